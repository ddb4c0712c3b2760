/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/target_local.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/context/session.h"
#include "core/record/reply.h"
#include "core/record/run.h"
#include "core/record/spec.h"
#include "core/target/fetch_sink.h"
#include "core/target/target_work.h"
#include "host/gpu.h"
#include "net/stream/pump.h"
#include "net/stream/stream.h"
#include "node/runner.h"
#include "targets/local/program.h"
#include "targets/local/rank_log.h"

enum { ATTEMPTS_MAX = 1000000, ADDRESSES_MAX = 64 << 10 };

struct target_local {
	struct target target;
	struct session *session;
	char machine[OS_ID_SIZE];               /* empty: not known */
	struct pid_list VEC_OF(pid_t) children; /* started here, to be waited for */
};

static struct target_local *target_local_of(struct target *target)
{
	return (struct target_local *)target;
}

/*
 * Handles
 */

static int target_local_prepare(struct target *target, const char *run_id, int attempt,
	const struct spec *spec UNUSED, char handle[static TARGET_HANDLE_SIZE],
	struct err *err UNUSED)
{
	snprintf(handle, TARGET_HANDLE_SIZE, "%s:%s/%d", target_local_of(target)->machine, run_id,
		attempt);
	return 0;
}

static int target_local_parse_handle(const char *handle, struct attempt_place *ret, struct err *err)
{
	const char *colon = strchr(handle, ':'), *slash = colon ? strchr(colon, '/') : NULL;
	int64_t attempt = 0;

	if (slash && (size_t)(colon - handle) < sizeof(ret->machine) &&
		(size_t)(slash - colon) <= sizeof(ret->run_id) &&
		str_to_int(slash + 1, 1, ATTEMPTS_MAX, "attempt", &attempt, NULL) == 0) {
		memcpy(ret->machine, handle, (size_t)(colon - handle));
		memcpy(ret->run_id, colon + 1, (size_t)(slash - colon) - 1);
		ret->attempt = (int)attempt;
		if (run_id_is_valid(ret->run_id))
			return 0;
	}
	AUTO_FREE char *shown = str_escaped(handle);
	return err_set(err, E_DATA, "'%s' is not a handle of a local run", shown);
}

/* Find the attempt that a handle names. */
static int local_place_find(
	struct target_local *local, const char *handle, struct attempt_place *ret, struct err *err)
{
	const struct dirs *dirs = &local->session->dirs;
	struct attempt_place place = {0};

	int r = target_local_parse_handle(handle, &place, err);
	if (r < 0)
		return r;
	AUTO_FREE char *run_dir = dirs_run(dirs, place.run_id);
	place.foreign = *place.machine && *local->machine && !str_eq(place.machine, local->machine);
	place.dir = dirs_attempt(dirs, place.run_id, place.attempt);
	place.submit_lock = fs_join(run_dir, RUN_SUBMIT_LOCK);
	*ret = place;
	return 0;
}

/* The same, of this machine only. ret is to be freed on failure too. */
static int local_place_own(
	struct target_local *local, const char *handle, struct attempt_place *ret, struct err *err)
{
	int r = local_place_find(local, handle, ret, err);

	if (r < 0 || !ret->foreign)
		return r;
	return err_set(err, E_TARGET_UNSUPPORTED, "%s belongs to another machine", ret->run_id);
}

/*
 * Starting the supervisor
 */

/* Whether a systemd scope can be had and outlives the session: only where the user lingers. */
static bool local_has_scope(const struct target_local *local)
{
	const struct session_env *env = &local->session->env;
	AUTO_FREE char *manager = NULL, *linger = NULL;

	if (!env->dirs.xdg_runtime_dir || str_empty(env->user) || strchr(env->user, '/'))
		return false;
	manager = mem_printf("%s/systemd/private", env->dirs.xdg_runtime_dir);
	/* Without it the user's manager ends with the last session, and its scopes with it, so that
	 * a plain process lives longer. */
	linger = mem_printf("/var/lib/systemd/linger/%s", env->user);
	return access(manager, F_OK) == 0 && access(linger, F_OK) == 0;
}

static void add_scope(const struct attempt_place *place, struct strv *argv)
{
	static const char *const words[] = {
		"systemd-run", "--user", "--scope", "--quiet", "--collect"};

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		strv_add(argv, words[i]);
	strv_addf(argv, "--unit=dlrun-%s-%d.scope", place->run_id, place->attempt);
	strv_add(argv, "--");
}

/* Reap the children that have ended meanwhile. */
static void reap(struct target_local *local)
{
	size_t kept = 0;

	for (size_t i = 0; i < local->children.n; i++)
		if (waitpid(local->children.v[i], NULL, WNOHANG) == 0)
			local->children.v[kept++] = local->children.v[i];
	local->children.n = kept;
}

/* Start `self __supervise dir`; *ret_fd: where it replies with one line (reply.h). scope: in a
 * systemd scope of its own, so that a logout does not end it. */
static int local_start(struct target_local *local, const struct attempt_place *place,
	const struct strv *env, bool scope, int *ret_fd, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };
	AUTO_FREE char *notes = fs_join(place->dir, ATTEMPT_NOTES);
	AUTO_STRV struct strv argv = {0}, own = {0};
	AUTO_FREE char *mark = attempt_mark(place->dir);
	int fds[2];
	pid_t pid;

	/* Started by the program of another run, it does not end with that. */
	strv_copy(&own, env);
	env_set(&own, mark, false);
	if (scope)
		add_scope(place, &argv);
	strv_add(&argv, local->session->env.self);
	strv_add(&argv, "__supervise");
	strv_add(&argv, place->dir);
	AUTO_FD int notes_fd = open(notes, FLAGS, 0600);
	if (notes_fd < 0)
		return fs_error(err, errno, "%s", notes);
	int r = fs_pipe(fds, 0, err);
	if (r < 0)
		return r;
	AUTO_FD int read_end = fds[0], write_end = fds[1];
	struct proc_spec spec = {
		.argv = (const char *const *)argv.v,
		.env = (const char *const *)own.v,
		.dir = "/",
		.stdin_fd = -1,
		.stdout_fd = write_end,
		.stderr_fd = notes_fd,
		.new_session = true,
	};
	r = proc_spawn(&spec, &pid, err);
	if (r < 0)
		return r;
	reap(local);
	*vec_push(&local->children) = pid;
	*ret_fd = TAKE_FD(read_end);
	return 0;
}

/*
 * Starting an attempt on this machine: its directory, then its supervisor, then its word.
 */

static void target_local_add_all(struct strv *to, const struct strv *from)
{
	for (size_t i = 0; from && i < from->n; i++)
		env_set(to, from->v[i], false);
}

/* Add the defaults of an earlier attempt that no record has: the remote of the repository. */
static void add_earlier(const struct attempt_place *place, struct strv *defaults)
{
	AUTO(attempt_job_done) struct attempt_job earlier = {0};
	AUTO_FREE char *dir = attempt_sibling(place->dir, place->attempt - 1);

	if (place->attempt < 2 || attempt_job_read(dir, &earlier, NULL) < 0)
		return;
	for (size_t i = 0; i < earlier.defaults.n; i++)
		env_set(defaults, earlier.defaults.v[i], true);
}

static void target_local_set_env(
	const struct attempt_place *place, const struct target_job *job, struct attempt_job *ret)
{
	struct strv *env = &ret->spec.env;

	strv_done(env);
	target_local_add_all(env, job->env);
	strv_addf(env, "DLRUN_RUN_ID=%s", place->run_id);
	strv_addf(env, "DLRUN_OUTPUT_DIR=%s", ret->outputs);
	AUTO_BUF struct buf addresses = buf_with(ADDRESSES_MAX);
	for (int i = 0; i < job->spec->resources.nodes || i == 0; i++)
		buf_addf(&addresses, "%s" ATTEMPT_ADDRESS, i ? "," : "");
	strv_addf(env, "DLRUN_NODE_ADDRS=%s", addresses.data);
	strv_add(env, "DLRUN_GPUS_PER_NODE=0");
	attempt_job_place(ret, place->dir);
	target_local_add_all(&ret->defaults, job->default_env);
	strv_add(&ret->defaults, "MASTER_ADDR=" ATTEMPT_ADDRESS);
	strv_add(&ret->defaults, "NNODES=1");
	strv_add(&ret->defaults, "NODE_RANK=0");
	add_earlier(place, &ret->defaults);
}

static int write_job(struct target_local *local, const struct attempt_place *place,
	const struct target_job *job, struct err *err)
{
	const struct dirs *dirs = &local->session->dirs;
	const char *study_id = job->spec->study.id;
	AUTO_FREE char *study = study_id ? dirs_study(dirs, study_id) : NULL;
	AUTO(attempt_job_done)
	struct attempt_job out = {
		.run_id = mem_strdup(place->run_id),
		.attempt = place->attempt,
		.layout = dirs_layout(dirs),
		.image = mem_strdup(job->image->manifest.digest),
		.spares = dirs_spares(dirs),
		.setups = dirs_setups(dirs),
		.slots = study ? fs_join(study, "slots") : NULL,
		.outputs = dirs_outputs(dirs, place->run_id),
		.tree_bytes = job->tree_bytes,
		.cgroup = true,
	};

	int r = spec_copy(job->spec, &out.spec, err);
	if (r < 0)
		return r;
	target_local_set_env(place, job, &out);
	r = attempt_make_dirs(place->dir, out.outputs, job->spec->resources.nodes, err);
	return r < 0 ? r : attempt_job_write(place->dir, &out, err);
}

/*
 * Waiting for the supervisor's word
 */

struct start {
	struct target_work work;
	struct target_call *call;
	struct target_local *local;
	struct attempt_place place;
	struct strv env;
	bool scope;
	int fd;
	struct loop_fd *source;
	struct loop_timer *timer;
	char line[REPLY_MAX];
	size_t len;
};

static void local_start_stop(struct start *start)
{
	loop_remove_fd(start->local->target.loop, start->source);
	start->source = NULL;
	auto_fd(&start->fd);
	start->fd = -1;
}

static void local_start_drop(struct target_work *work)
{
	struct start *start = (struct start *)work;

	loop_remove_timer(start->local->target.loop, start->timer);
	local_start_stop(start);
	attempt_place_done(&start->place);
	strv_done(&start->env);
	free(start);
}

static int local_start_begin(struct start *start, struct err *err);

static void local_start_replied(struct start *start)
{
	AUTO_ERR struct err err = {0};
	int r;

	local_start_stop(start);
	/* No manager to make the scope: the supervisor has not been started at all. */
	if (start->scope && start->len == 0) {
		start->scope = false;
		r = local_start_begin(start, &err);
		if (r == 0)
			return;
	} else {
		r = reply_parse(start->line, start->len, "the supervisor", NULL, &err);
	}
	target_call_end(start->call, r, &err);
}

static short local_start_prepare(void *ctx UNUSED)
{
	return POLLIN;
}

static int local_start_on_response(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct start *start = ctx;
	ssize_t n = read(start->fd, start->line + start->len, sizeof(start->line) - start->len);

	if (n < 0 && errno == EINTR)
		return 0;
	if (n > 0)
		start->len += (size_t)n;
	if (n <= 0 || start->len == sizeof(start->line) || memchr(start->line, '\n', start->len))
		local_start_replied(start);
	return 0;
}

static int local_start_begin(struct start *start, struct err *err)
{
	static const struct loop_fd_ops ops = {local_start_prepare, local_start_on_response};
	int r = local_start(
		start->local, &start->place, &start->env, start->scope, &start->fd, err);

	if (r < 0 && start->scope) {
		/* There is no systemd-run on PATH. */
		start->scope = false;
		err_clear(err);
		r = local_start(start->local, &start->place, &start->env, false, &start->fd, err);
	}
	if (r == 0)
		start->source = loop_add_fd(start->local->target.loop, start->fd, &ops, start);
	return r;
}

static int local_start_on_deadline(void *ctx, struct err *err UNUSED)
{
	struct start *start = ctx;
	AUTO_ERR struct err late = {0};

	err_set(&late, E_RUN_START, "the supervisor of %s did not answer in time",
		start->place.run_id);
	target_call_end(start->call, -(int)late.code, &late);
	return 0;
}

static int local_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err)
{
	struct target_local *local = target_local_of(target);
	struct start *start = mem_alloc(1, sizeof(*start));

	*start = (struct start){.work = {local_start_drop}, .call = call, .local = local, .fd = -1};
	target_call_begin(call, &start->work);
	int r = local_place_find(local, job->handle, &start->place, err);
	if (r == 0)
		r = write_job(local, &start->place, job, err);
	if (r == 0) {
		for (const char *const *e = local->session->env.env; e && *e; e++)
			strv_add(&start->env, *e);
		target_local_add_all(&start->env, job->secret_env);
		start->scope = local_has_scope(local);
		r = local_start_begin(start, err);
	}
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	if (call->deadline_ms)
		start->timer = loop_add_timer(
			target->loop, call->deadline_ms, local_start_on_deadline, start);
	return 0;
}

/*
 * A command beside the program
 */

enum { EXEC_POLL_MS = 20, SIGNAL_STATUS = 128 };

struct exec {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	struct loop_timer *timer;
	pid_t pid;
	int *ret_status;
};

static void local_exec_drop(struct target_work *work)
{
	struct exec *exec = (struct exec *)work;

	loop_remove_timer(exec->loop, exec->timer);
	if (exec->pid > 0) {
		kill(exec->pid, SIGHUP);
		waitpid(exec->pid, NULL, WNOHANG);
	}
	free(exec);
}

static int local_exec_on_poll(void *ctx, struct err *err)
{
	struct exec *exec = ctx;
	int status;

	exec->timer = NULL;
	if (waitpid(exec->pid, &status, WNOHANG) == 0) {
		exec->timer = loop_add_timer(
			exec->loop, clock_ms() + EXEC_POLL_MS, local_exec_on_poll, exec);
		return 0;
	}
	exec->pid = 0;
	*exec->ret_status =
		WIFSIGNALED(status) ? SIGNAL_STATUS + WTERMSIG(status) : WEXITSTATUS(status);
	target_call_end(exec->call, 0, err);
	return 0;
}

/* rank may be -1: all of them. */
static int local_check_rank(
	const struct attempt_place *place, const struct attempt_job *job, int rank, struct err *err)
{
	int nodes = job->spec.resources.nodes;

	if (rank <= 0 || rank < nodes)
		return 0;
	if (nodes > 1)
		return err_set(err, E_USAGE, "%s has the ranks 0 to %d", place->run_id, nodes - 1);
	return err_set(err, E_USAGE, "%s has only rank 0", place->run_id);
}

/* Where the run has roles, job becomes that of the role of *rank, which becomes the rank within
 * it. */
static int local_take_part(struct attempt_job *job, int *rank, struct err *err)
{
	struct attempt_job own;
	struct roles_part part;

	if (!job->spec.roles.list.n)
		return 0;
	int r = program_role_job(job, *rank, &own, err);
	if (r < 0)
		return r;
	roles_of_rank(&job->spec, *rank, &part);
	*rank = part.rank;
	spec_done(&job->spec);
	job->spec = own.spec;
	return 0;
}

/* Start the command like the supervisor starts the program, whose command is in the job. */
static int local_exec_spawn(const struct attempt_place *place, const struct target_local *local,
	const struct target_exec_request *request, pid_t *ret, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_STRV struct strv env = {0}, command = {0};
	AUTO_FREE char *tree = fs_join(place->dir, ATTEMPT_TREE), *cwd = NULL;

	int r = attempt_job_read(place->dir, &job, err);
	if (r < 0)
		return r;
	if (access(tree, F_OK) < 0)
		return err_set(
			err, E_RUN_ENDED, "the tree of %s is not there any more", place->run_id);
	r = local_check_rank(place, &job, request->rank, err);
	if (r < 0)
		return r;
	attempt_job_place(&job, place->dir);
	bool has_ranks = job.spec.resources.nodes > 1;
	int rank = request->rank;
	r = local_take_part(&job, &rank, err);
	if (r < 0)
		return r;
	for (size_t i = 0; request->secret_env && i < request->secret_env->n; i++)
		strv_add(&job.spec.env, request->secret_env->v[i]);
	program_env(&job, local->session->env.env, tree, &env);
	attempt_setup_env_read(place->dir, &env);
	if (has_ranks)
		program_rank_env(&job, rank, 0, &env);
	job.spec.shell = false;
	job.spec.runtime.launcher = (struct launcher){0};
	strv_done(&job.spec.command);
	if (request->command->n)
		strv_copy(&job.spec.command, request->command);
	else
		strv_add(&job.spec.command, env_get((const char *const *)env.v, "SHELL")
						    ? env_get((const char *const *)env.v, "SHELL")
						    : "/bin/sh");
	program_command(&job, &env, tree, &command);
	cwd = fs_join(tree, job.spec.cwd);
	const struct proc_spec spec = {.argv = (const char *const *)command.v,
		.env = (const char *const *)env.v,
		.dir = cwd,
		.stdin_fd = request->fds[0],
		.stdout_fd = request->fds[1],
		.stderr_fd = request->fds[2],
		.is_command = true};
	return proc_spawn(&spec, ret, err);
}

static void local_exec_wait(
	struct target *target, pid_t pid, int *ret_status, struct target_call *call)
{
	struct exec *exec = mem_alloc(1, sizeof(*exec));

	*exec = (struct exec){.work = {local_exec_drop},
		.call = call,
		.loop = target->loop,
		.pid = pid,
		.ret_status = ret_status};
	target_call_begin(call, &exec->work);
	exec->timer =
		loop_add_timer(target->loop, clock_ms() + EXEC_POLL_MS, local_exec_on_poll, exec);
}

static int local_exec(struct target *target, const char *handle,
	const struct target_exec_request *request, int *ret_status, struct target_call *call,
	struct err *err)
{
	struct target_local *local = target_local_of(target);
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};
	pid_t pid;

	int r = local_place_own(local, handle, &place, err);
	if (r == 0)
		r = local_exec_spawn(&place, local, request, &pid, err);
	if (r < 0)
		return r;
	local_exec_wait(target, pid, ret_status, call);
	return 0;
}

/* Versions of data. */
static int local_store(struct target *target, const struct target_store_request *request,
	int *ret_status, struct target_call *call, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	pid_t pid;

	strv_add(&words, "sh");
	strv_add(&words, "-c");
	strv_add(&words, node_store_script);
	strv_add(&words, "dlrun");
	for (size_t i = 0; i < request->words->n; i++)
		strv_add(&words, request->words->v[i]);
	const struct proc_spec spec = {.argv = (const char *const *)words.v,
		.stdin_fd = request->fds[0],
		.stdout_fd = request->fds[1],
		.stderr_fd = request->fds[2]};
	int r = proc_spawn(&spec, &pid, err);
	if (r == 0)
		local_exec_wait(target, pid, ret_status, call);
	return r;
}

/*
 * Connections to its ports
 */

/* A port that is not open yet is tried again for so long. */
enum { RELAY_HOLD_MS = 10 * 1000, RELAY_RETRY_MS = 100 };

struct relay {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	uint16_t port;
	int fd; /* the caller's side, until the pump has it */
	int64_t begun_ms;
	bool is_v6; /* the next try is */
	struct loop_timer *timer;
	struct pump *pump;
};

static void local_relay_drop(struct target_work *work)
{
	struct relay *relay = (struct relay *)work;

	loop_remove_timer(relay->loop, relay->timer);
	pump_cancel(relay->pump);
	if (relay->fd >= 0)
		close(relay->fd);
	free(relay);
}

static int local_relay_on_pumped(void *ctx, struct pump_end *end, struct err *err UNUSED)
{
	struct relay *relay = ctx;

	relay->pump = NULL;
	target_call_end_pumped(relay->call, end);
	return 0;
}

/* Loopback connects at once, so a non-blocking connect gains nothing. */
static int target_local_connect_once(const struct relay *relay)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET,
		.sin_port = htons(relay->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
		.sin6_port = htons(relay->port),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT};
	AUTO_FD int fd = socket(relay->is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -1;
	r = relay->is_v6 ? connect(fd, (struct sockaddr *)&v6, sizeof(v6))
			 : connect(fd, (struct sockaddr *)&v4, sizeof(v4));
	return r == 0 ? TAKE_FD(fd) : -1;
}

static int local_relay_on_try(void *ctx, struct err *err UNUSED)
{
	struct relay *relay = ctx;
	AUTO_ERR struct err error = {0};

	relay->timer = NULL;
	int fd = target_local_connect_once(relay);
	if (fd < 0) {
		relay->is_v6 = !relay->is_v6;
		fd = target_local_connect_once(relay);
	}
	if (fd >= 0) {
		const struct pump_options options = {.loop = relay->loop,
			.a = stream_from_fd(TAKE_FD(relay->fd)),
			.b = stream_from_fd(fd),
			.done = local_relay_on_pumped,
			.ctx = relay};

		relay->pump = pump_start(&options);
	} else if (clock_ms() - relay->begun_ms < RELAY_HOLD_MS) {
		relay->timer = loop_add_timer(
			relay->loop, clock_ms() + RELAY_RETRY_MS, local_relay_on_try, relay);
	} else {
		int r = err_set(&error, E_KUBE_FORWARD, "nothing listens on port %u of the program",
			relay->port);

		target_call_end(relay->call, r, &error);
	}
	return 0;
}

static int local_relay(struct target *target, const char *handle, int rank UNUSED, uint16_t port,
	int fd, struct target_call *call, struct err *err)
{
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};
	struct relay *relay;

	int r = local_place_own(target_local_of(target), handle, &place, err);
	if (r < 0) {
		close(fd);
		return r;
	}
	relay = mem_alloc(1, sizeof(*relay));
	*relay = (struct relay){.work = {local_relay_drop},
		.call = call,
		.loop = target->loop,
		.port = port,
		.fd = fd,
		.begun_ms = clock_ms()};
	target_call_begin(call, &relay->work);
	relay->timer = loop_add_timer(target->loop, 0, local_relay_on_try, relay);
	return 0;
}

/*
 * Operations that are done at once
 */

static void add_more(const struct attempt_place *place, struct target_status *status)
{
	int next = status->state == RUN_FAILED ? attempt_next(place->dir) : 0;

	if (next > place->attempt)
		status->next_handle = mem_printf("%s:%s/%d", place->machine, place->run_id, next);
	if (!status->observed)
		status->observed = attempt_observed(place->dir);
}

/* A supervisor may be killed before it acts on a cancel: the next query of the state starts another
 * one, which ends the program. Of several supervisors the first gets the attempt. */
static int local_end_orphan(
	struct target_local *local, const struct attempt_place *place, struct err *err)
{
	AUTO_STRV struct strv env = {0};
	AUTO_FD int fd = -1;

	if (!attempt_is_orphan(place->dir))
		return 0;
	for (const char *const *e = local->session->env.env; e && *e; e++)
		strv_add(&env, *e);
	return local_start(local, place, &env, false, &fd, err);
}

static int state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	struct target_local *local = target_local_of(target);
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};

	int r = local_place_find(local, handle, &place, err);
	if (r < 0)
		return r;
	*ret = (struct target_status){0};
	if (!place.foreign)
		r = attempt_poll(place.dir, place.submit_lock, ret, err);
	else if (!attempt_end_read(place.dir, ret)) {
		ret->state = RUN_UNKNOWN;
		ret->text = mem_strdup("it belongs to another machine");
	}
	if (r == 0 && ret->cancelling && ret->state == RUN_RUNNING)
		local_end_orphan(local, &place, NULL);
	if (r == 0) {
		add_more(&place, ret);
		target_call_end_soon(call, target->loop);
	}
	return r;
}

/* Cancel the attempt; if it has ended, the one that followed it, if any. */
static int cancel_next(struct attempt_place *place, struct err *err)
{
	int r = attempt_cancel(place->dir, err);

	for (int next; r == 0 && (next = attempt_next(place->dir)) > place->attempt;) {
		char *dir = attempt_sibling(place->dir, next);
		REPLACE(place->dir, dir);
		place->attempt = next;
		r = attempt_cancel(place->dir, err);
	}
	return r;
}

static int target_local_cancel(
	struct target *target, const char *handle, struct target_call *call, struct err *err)
{
	struct target_local *local = target_local_of(target);
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};

	int r = local_place_own(local, handle, &place, err);
	/* The submit is under way and will find the cancel that is written here. */
	if (r == 0 && fs_is_locked(place.submit_lock))
		r = fs_mkdirs(place.dir, 0700, err);
	if (r == 0)
		r = cancel_next(&place, err);
	if (r == 0)
		r = local_end_orphan(local, &place, err);
	if (r == 0)
		target_call_end_soon(call, target->loop);
	return r;
}

/*
 * Taking back: its supervisor is asked until it has decided.
 */

enum { WITHDRAW_POLL_MS = 10 };

struct withdrawing {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	struct loop_timer *timer;
	struct attempt_place place;
	bool *ret_taken;
};

static void local_withdraw_drop(struct target_work *work)
{
	struct withdrawing *withdrawing = (struct withdrawing *)work;

	loop_remove_timer(withdrawing->loop, withdrawing->timer);
	attempt_place_done(&withdrawing->place);
	free(withdrawing);
}

static int local_withdraw_on_poll(void *ctx, struct err *err UNUSED)
{
	struct withdrawing *withdrawing = ctx;
	AUTO_ERR struct err error = {0};
	int64_t deadline_ms = withdrawing->call->deadline_ms;

	withdrawing->timer = NULL;
	int r = attempt_withdraw(withdrawing->place.dir, withdrawing->ret_taken, &error);
	if (r == 0 && deadline_ms && clock_ms() >= deadline_ms)
		r = err_set(&error, E_TARGET_SILENT, "the supervisor of %s did not answer in time",
			withdrawing->place.run_id);
	if (r == 0)
		withdrawing->timer = loop_add_timer(withdrawing->loop,
			clock_ms() + WITHDRAW_POLL_MS, local_withdraw_on_poll, withdrawing);
	else
		target_call_end(withdrawing->call, r < 0 ? r : 0, &error);
	return 0;
}

static int local_withdraw(struct target *target, const char *handle, bool *ret_taken,
	struct target_call *call, struct err *err)
{
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};
	struct withdrawing *withdrawing;

	int r = local_place_own(target_local_of(target), handle, &place, err);
	if (r < 0)
		return r;
	withdrawing = mem_alloc(1, sizeof(*withdrawing));
	*withdrawing = (struct withdrawing){.work = {local_withdraw_drop},
		.call = call,
		.loop = target->loop,
		.place = place,
		.ret_taken = ret_taken};
	place = (struct attempt_place){0};
	target_call_begin(call, &withdrawing->work);
	withdrawing->timer = loop_add_timer(target->loop, 0, local_withdraw_on_poll, withdrawing);
	return 0;
}

static int target_local_forget(struct target *target, const char *handle, bool all,
	struct target_call *call, struct err *err)
{
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};

	int r = local_place_find(target_local_of(target), handle, &place, err);
	if (r < 0)
		return r;
	AUTO_FREE char *tree = fs_join(place.dir, ATTEMPT_TREE);
	AUTO_FREE char *temp = fs_join(place.dir, ATTEMPT_TEMP);
	r = fs_remove_tree(AT_FDCWD, tree, err);
	if (r == 0)
		r = fs_remove_tree(AT_FDCWD, temp, err);
	if (r == 0 && all)
		r = fs_remove_tree(AT_FDCWD, place.dir, err);
	if (r == 0)
		target_call_end_soon(call, target->loop);
	return r;
}

static void free_local(struct target *target)
{
	struct target_local *local = target_local_of(target);

	reap(local);
	vec_done(&local->children);
	free(target->name);
	free(local);
}

static int target_local_read_log(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err)
{
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};

	AUTO(attempt_job_done) struct attempt_job job = {0};

	int r = local_place_find(target_local_of(target), handle, &place, err);
	if (r < 0)
		return r;
	/* Before there is a job there is no log either. */
	if (attempt_job_read(place.dir, &job, NULL) == 0)
		r = local_check_rank(&place, &job, request->rank, err);
	int nodes = job.spec.resources.nodes;
	place.rank = nodes > 1 && request->rank > 0 ? request->rank : 0;
	if (r == 0 && nodes > 1 && request->rank < 0)
		rank_log_read(target->loop, &place, nodes, request, token, call);
	else if (r == 0)
		attempt_log_read(target->loop, &place, request, token, call);
	return r;
}

static int target_local_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err)
{
	struct target_local *local = target_local_of(target);
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};
	AUTO_FREE char *root = NULL;

	int r = local_place_find(local, handle, &place, err);
	if (r < 0)
		return r;
	root = sink->from_tree ? fs_join(place.dir, ATTEMPT_TREE)
			       : dirs_outputs(&local->session->dirs, place.run_id);
	return attempt_files_fetch(target->loop, root, place.dir, sink, call, err);
}

/*
 * Room
 */

#define ROOM_OWNER "a look at what is free"

enum { ROOM_FIND_MS = 5000 };

/* Whether so many GPUs could be had at once: 1, or 0. Takes a place in the queue for GPUs for a
 * moment. */
static int local_room_gpus(
	struct target_local *local, const struct spec *spec, struct gpu_list *list, struct err *err)
{
	const char *path = env_get(local->session->env.env, "PATH");
	const int gpus = roles_gpus(spec);
	const struct gpu_claim_spec claimed = {
		.owner = ROOM_OWNER,
		.want = gpus == RUNTIME_GPUS_AUTO ? 1 : (unsigned)gpus,
		.only = &spec->runtime.gpus_only,
	};
	AUTO_GPU_CLAIM struct gpu_claim *claim = NULL;

	list->n = 0;
	int r = gpu_may_exist(path) ? gpu_find(path, ROOM_FIND_MS, list, err) : 0;
	if (r < 0 || list->n == 0)
		return r < 0 ? r : 1;
	r = gpu_claim_new(&claimed, &claim, err);
	return r < 0 ? r : gpu_claim_try(claim, list, err);
}

int64_t target_local_free_gpus(const struct gpu_list *list, const char *model)
{
	AUTO_STRV struct strv ids = {0};

	for (size_t i = 0; i < list->n; i++)
		if (!list->v[i].used && str_eq(list->v[i].model, model))
			strv_add(&ids, list->v[i].id);
	for (size_t n = ids.n; n > 0; n--) {
		const struct gpu_claim_spec claimed = {
			.owner = ROOM_OWNER, .want = (unsigned)n, .only = &ids};
		AUTO_GPU_CLAIM struct gpu_claim *claim = NULL;
		int r = gpu_claim_new(&claimed, &claim, NULL);
		if (r == 0)
			r = gpu_claim_ready(claim, list, NULL);
		if (r != 0)
			return r < 0 ? -1 : (int64_t)n;
	}
	return 0;
}

static int local_room(struct target *target, const struct target_requirements *requirements,
	struct target_room *ret, struct target_call *call, struct err *err)
{
	struct target_local *local = target_local_of(target);
	const struct spec *spec = requirements->spec;
	struct gpu_list list = {0};
	int r = roles_gpus(spec) ? local_room_gpus(local, spec, &list, err) : 1;

	if (r < 0)
		return r;
	ret->is_now = r > 0;
	if (list.n == 0)
		ret->text = mem_strdup("this machine");
	else if (r > 0)
		ret->text = mem_printf("%s free", list.n == 1 ? "its GPU" : "GPUs");
	else
		ret->text = mem_printf("%zu GPU%s, none free", list.n, list.n == 1 ? "" : "s");
	target_call_end_soon(call, target->loop);
	return 0;
}

const struct target_ops target_local_ops = {
	.kind = "local",
	.is_here = true,
	.room = local_room,
	.has_nodes = true,
	.prepare = target_local_prepare,
	.submit = local_submit,
	.state = state,
	.logs = target_local_read_log,
	.cancel = target_local_cancel,
	.withdraw = local_withdraw,
	.forget = target_local_forget,
	.fetch = target_local_fetch,
	.relay = local_relay,
	.exec = local_exec,
	.store = local_store,
	.free = free_local,
};

struct target *target_local_new(struct session *session, const char *name)
{
	struct target_local *local = mem_alloc(1, sizeof(*local));

	local->target = (struct target){
		.ops = &target_local_ops, .name = mem_strdup(name), .loop = session_loop(session)};
	local->session = session;
	if (!os_machine_id(local->machine))
		local->machine[0] = '\0';
	return &local->target;
}
