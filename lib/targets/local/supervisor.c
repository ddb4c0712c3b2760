/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervisor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect.h"
#include "core/record/setup_key.h"
#include "host/gpu.h"
#include "targets/local/observe.h"
#include "targets/local/program.h"
#include "targets/local/setup.h"
#include "targets/local/study_slot.h"

/*
 * Notes for users, marks of the log
 */

enum {
	MARK_MS = 1000,               /* between two marks */
	LOG_RESERVE_BYTES = 64 << 10, /* behind the log, for what a program says of a full disk */
};

void sup_note(struct supervisor *sup, const char *fmt, ...)
{
	char time[CLOCK_TEXT_SIZE];
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	clock_format(clock_wall_ms(), time);
	AUTO_FREE char *line = mem_printf("%s %s\n", time, text);
	fs_write_fd(sup->notes_fd, ATTEMPT_NOTES, line, strlen(line), NULL);
}

void sup_mark(int marks_fd, int64_t size, struct mark *last)
{
	const struct mark mark = {.time_ms = clock_wall_ms(), .offset = size};
	char line[MARK_SIZE];

	if (mark.offset == last->offset && last->time_ms)
		return;
	/* Write the mark in one call: half a line is worse than none. */
	size_t len = mark_format(&mark, line);
	if (write(marks_fd, line, len) == (ssize_t)len)
		*last = mark;
}

void sup_mark_log(struct supervisor *sup)
{
	struct stat st;

	if (fstat(sup->log_fd, &st) < 0)
		return;
	os_reserve(sup->log_fd, st.st_size, LOG_RESERVE_BYTES);
	sup_mark(sup->marks_fd, st.st_size, &sup->last_mark);
}

static int on_mark_due(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	sup->log_quiet = false;
	return 0;
}

static short want_log(void *ctx)
{
	struct supervisor *sup = ctx;

	return sup->log_quiet ? 0 : POLLIN;
}

static int sup_on_log(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	os_watch_drain(sup->log_watch);
	sup_mark_log(sup);
	sup->log_quiet = true;
	loop_add_timer(sup->loop, clock_ms() + MARK_MS, on_mark_due, sup);
	return 0;
}

void sup_wait_as(struct supervisor *sup, enum run_state state, const char *text)
{
	struct attempt_state *now = &sup->state;
	AUTO_ERR struct err err = {0};

	if (now->state == state && strncmp(now->text, text, sizeof(now->text) - 1) == 0)
		return;
	now->state = state;
	snprintf(now->text, sizeof(now->text), "%s", text);
	if (attempt_state_write(".", now, &err) < 0)
		sup_note(sup, "%s", err.message);
}

/*
 * Observing the program while it runs, for its record.
 */

/* dlrun top shows the written file: on a local disk it is written with each sample. */
enum {
	WRITE_MS = 1000,
	WRITE_NETWORK_MS = 10000,
	COLLECT_FIRST_MS = 1000, /* a program that ends sooner pays for no walk but the last */
	COLLECT_MS = 2000,
	COLLECT_REST_FOR = 100, /* a walk of 20 ms is followed by 2 s of rest */
};

static void sup_write_observed(struct supervisor *sup, const struct json *observed)
{
	AUTO_BUF struct buf text = buf_with(OBSERVED_MAX);

	json_print(observed, &text);
	if (buf_check(&text, OBSERVED_FILE, NULL) == 0)
		fs_replace(OBSERVED_FILE, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
	sup->observed_ms = clock_ms();
}

/* Curves and parameters that the program writes into its tree. A walk that takes long is rare. */
static void sup_collect_events(struct supervisor *sup)
{
	int64_t start_ms = clock_ms();

	if (start_ms < sup->collect_ms)
		return;
	collect_results(".", sup->job, COLLECT_EVENTS, NULL);
	int64_t rest_ms = (clock_ms() - start_ms) * COLLECT_REST_FOR;
	sup->collect_ms = clock_ms() + (rest_ms > COLLECT_MS ? rest_ms : COLLECT_MS);
}

static int sup_on_observe(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;
	int64_t next_ms;

	sup->observe_timer = NULL;
	if (sup->phase != PHASE_RUNNING)
		return 0;
	sup_collect_events(sup);
	next_ms = observer_sample(sup->observer);
	if (!sup->observed_ms || clock_ms() - sup->observed_ms >=
					 (fs_is_network(sup->dir) ? WRITE_NETWORK_MS : WRITE_MS)) {
		AUTO_JSON struct json *observed = observer_json(sup->observer);
		sup_write_observed(sup, observed);
	}
	sup->observe_timer = loop_add_timer(sup->loop, clock_ms() + next_ms, sup_on_observe, sup);
	return 0;
}

static void sup_observe_begin(struct supervisor *sup)
{
	AUTO_FREE char *log = fs_join(sup->dir, ATTEMPT_LOG);
	struct gpu_list given;

	attempt_gpus(".", &given);
	struct observer_spec spec = {
		.outputs = sup->job->outputs,
		.log = log,
		.family = &sup->state.family,
		.program = sup->state.program.pid,
		.gpus = given.n ? &given : NULL,
	};

	sup->observer = observer_new(&spec);
	sup->collect_ms = clock_ms() + COLLECT_FIRST_MS;
	sup->observe_timer = loop_add_timer(sup->loop, clock_ms(), sup_on_observe, sup);
}

void sup_observe_end(struct supervisor *sup)
{
	struct json *observed;

	loop_remove_timer(sup->loop, sup->observe_timer);
	sup->observe_timer = NULL;
	if (!sup->observer)
		return;
	observer_finish(sup->observer, sup->cpu_s, sup->peak_bytes);
	observed = observer_json(sup->observer);
	sup_write_observed(sup, observed);
	json_free(sup->end.observed);
	sup->end.observed = observed;
}

int sup_order_worker(struct supervisor *sup, char order, struct err *err)
{
	sup->worker_order = order;
	if (sup->worker_source && write(sup->worker_fd, &order, 1) == 1)
		return 0;
	return err_set(err, E_RUN_START, "the process that makes the tree is gone");
}

/*
 * The GPUs of the program: the worker runs the tools, which may take long; the queue is checked
 * here.
 */

enum {
	GPUS_POLL_MS = 1000,
	TOOLS_EVERY_MS = 2000, /* between two questions to the tools */
	GPUS_JSON_MAX = 64 << 10,
};

struct supervisor_gpus {
	struct gpu_list list; /* as of the last response */
	struct gpu_claim *claim;
	int64_t requested_ms; /* clock_ms() */
	bool is_requested;
	bool quiet; /* the queue has called and is not to call again before the timer */
	struct loop_fd *source;
	struct loop_timer *timer;
};

static void sup_gpus_free(struct supervisor *sup)
{
	struct supervisor_gpus *gpus = sup->gpus;

	if (!gpus)
		return;
	loop_remove_timer(sup->loop, gpus->timer);
	loop_remove_fd(sup->loop, gpus->source);
	gpu_claim_free(gpus->claim);
	free(gpus);
	sup->gpus = NULL;
}

static const struct gpu_list *sup_gpus_granted(const struct supervisor *sup)
{
	return sup->gpus && sup->gpus->claim ? gpu_claim_granted(sup->gpus->claim) : NULL;
}

/*
 * GPUs of the program
 */

/* How many GPUs of those granted are for the ranks in front of one: all nodes have as many, or as
 * their role says. */
static size_t sup_gpus_before(const struct supervisor *sup, size_t granted, int rank)
{
	const struct spec *spec = &sup->job->spec;
	struct roles_part part;
	size_t n = 0;

	if (!spec->roles.list.n)
		return (size_t)rank * (granted / (size_t)sup_nodes(sup));
	for (int i = 0; i < rank; i++) {
		roles_of_rank(spec, i, &part);
		n += (size_t)part.gpus;
	}
	return n;
}

/* job: of that rank. */
static void sup_gpus_env(
	const struct supervisor *sup, const struct attempt_job *job, int rank, struct strv *env)
{
	const struct gpu_list *granted = sup_gpus_granted(sup);
	const struct strv *own = &job->spec.env;
	AUTO_STRV struct strv pairs = {0};

	if (!granted)
		return;
	size_t from = sup_gpus_before(sup, granted->n, rank);
	size_t n = sup_gpus_before(sup, granted->n, rank + 1) - from;
	gpu_claim_env(sup->gpus->claim, from, n, &pairs);
	/* Variables of the user stay. */
	for (size_t i = 0; i < pairs.n; i++) {
		AUTO_FREE char *name = mem_strndup(pairs.v[i], strcspn(pairs.v[i], "="));
		if (!own->n || !env_get((const char *const *)own->v, name))
			env_set(env, pairs.v[i], false);
	}
	AUTO_FREE char *count = mem_printf("DLRUN_GPUS_PER_NODE=%zu", n);
	env_set(env, count, false);
}

/* Write the granted GPUs for the record, and for a later supervisor. warning: may be NULL. */
static void sup_gpus_write(
	struct supervisor *sup, const struct gpu_list *granted, const char *warning)
{
	AUTO_JSON struct json *json = json_object();
	struct json *resources = json_sub(json, "resources");
	AUTO_BUF struct buf text = buf_with(GPUS_JSON_MAX);

	/* Of roles each has its own number. */
	if (!sup->job->spec.roles.list.n)
		json_set_int(resources, "gpus", (int64_t)granted->n / sup_nodes(sup));
	json_set_str(resources, "gpu_model", granted->n ? granted->v[0].model : NULL);
	json_set(json, "list", gpu_list_to_json(granted));
	json_set_str(json, "warning", warning);
	json_print(json, &text);
	if (buf_check(&text, ATTEMPT_GPUS, NULL) < 0 ||
		fs_replace(ATTEMPT_GPUS, text.data, text.len, 0600, FS_SYNC_NONE, NULL) < 0)
		sup_note(sup, "cannot write " ATTEMPT_GPUS);
}

static void sup_setup_env(const struct supervisor *sup, struct strv *env)
{
	AUTO_STRV struct strv with = {0};

	if (!sup->setup)
		return;
	setup_env(sup->setup, env, &with);
	attempt_setup_env_write(env, &with);
	strv_done(env);
	*env = with;
	with = (struct strv){0};
}

/*
 * The start of the program
 */

enum { DEFAULT_PORT = 29500 /* torchrun's */, SPARE_MS = 2000 };

/* Choose a port that is free, and hold it by the descriptor that is returned; if another process
 * takes it when that is closed, the program fails with a clear message. */
static int sup_hold_port(uint16_t *ret)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	AUTO_FD int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		getsockname(fd, (struct sockaddr *)&address, &len) < 0) {
		*ret = DEFAULT_PORT;
		return -1;
	}
	*ret = ntohs(address.sin_port);
	return TAKE_FD(fd);
}

/* All ports are held until the last is found: one that is closed may be chosen again. */
static void sup_find_ports(struct supervisor *sup)
{
	const size_t n = roles_count(&sup->job->spec);
	int fds[ROLES_MAX];

	for (size_t i = 0; i < n; i++)
		fds[i] = sup_hold_port(&sup->ports[i]);
	for (size_t i = 0; i < n; i++)
		auto_fd(&fds[i]);
}

static void sup_exec_failed(struct supervisor *sup, int errnum)
{
	struct roles_part part;
	sup_ranks_part(sup, &part);
	const char *name = part.shell ? "/bin/sh" : part.command->v[0];
	bool missing = errnum == ENOENT || errnum == ENOTDIR;
	AUTO_FREE char *shown = NULL, *text = NULL, *line = NULL;
	AUTO_FREE char *escaped = str_escaped(name), *rank = roles_part_text(&part);
	AUTO_FREE char *cwd = fs_join(ATTEMPT_TREE, sup->job->spec.cwd), *path = fs_join(cwd, name);

	/* All ranks of a run without roles have the same program. */
	shown = part.name ? mem_printf("%s: %s", rank, escaped) : mem_strdup(escaped);
	/* Seen from the program's directory. */
	if (missing && strchr(name, '/') && access(path, F_OK) == 0)
		text = mem_printf("%s: its interpreter or loader is missing", shown);
	else if (missing)
		text = mem_printf(
			"%s: %s", shown, strchr(name, '/') ? "no such file" : "command not found");
	else
		text = mem_printf("%s: %s", shown, strerror(errnum));
	line = mem_printf("dlrun: %s\n", text);
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, line, strlen(line), NULL);
	/* Until it is gone its cgroup cannot be removed. */
	waitpid(sup->state.program.pid, NULL, 0);
	sup_finish_as(
		sup, RUN_FAILED, missing ? 127 : 126, missing ? "NotFound" : "NotExecutable", text);
}

void sup_start_failed(struct supervisor *sup, const struct err *err)
{
	const char *text = err->message ? err->message : "it could not be started";
	AUTO_FREE char *line = mem_printf("dlrun: %s\n", text);

	sup_note(sup, "not started: %s", text);
	/* Half a tree is of no use, and may be what the disk is full of. */
	fs_remove_tree(AT_FDCWD, ATTEMPT_TEMP, NULL);
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, line, strlen(line), NULL);
	sup_finish_as(sup, RUN_FAILED, 125, "StartFailed", text);
}

/* Warn of limits that the run requested and that are not enforced. */
static void sup_warn_of_limits(struct supervisor *sup)
{
	const struct resources *requested = &sup->job->spec.resources;
	unsigned enforced = sup->state.family.enforced;
	bool memory = requested->memory_bytes && !(enforced & OS_LIMIT_MEMORY);
	bool cpus = requested->cpus_milli && !(enforced & OS_LIMIT_CPUS);

	if (!memory && !cpus)
		return;
	snprintf(sup->state.warning, sizeof(sup->state.warning),
		"%s%s%s: not enforced, no writable cgroup here has the %s%s%s controller%s",
		memory ? "--memory" : "", memory && cpus ? " and " : "", cpus ? "--cpus" : "",
		memory ? "memory" : "", memory && cpus ? " and " : "", cpus ? "cpu" : "",
		memory && cpus ? "s" : "");
	sup_note(sup, "%s", sup->state.warning);
}

/* Make a cgroup for the family where there may be one. */
static void sup_make_family(struct supervisor *sup)
{
	const struct resources *requested = &sup->job->spec.resources;
	const struct os_limits limits = {requested->memory_bytes, requested->cpus_milli};
	/* Include our pid: another state directory may have a run of the same id. */
	AUTO_FREE char *name = mem_printf("dlrun-%s-%d-%ld", sup->job->run_id, sup->job->attempt,
		(long)sup->state.supervisor.pid);

	/* The setup may have made it. */
	if (os_family_is(&sup->state.family))
		return;
	sup->state.family = (struct os_family){{0}};
	if (sup->job->cgroup)
		os_family_create(&sup->state.family, name, &limits);
	sup_warn_of_limits(sup);
}

/* Remove a cgroup that the program could not enter, or has left already: it does not show the
 * family. */
static void sup_check_family(struct supervisor *sup)
{
	if (!os_family_is(&sup->state.family) || !os_family_is_empty(&sup->state.family))
		return;
	/* A program that has ended already was in the cgroup, whose count of OOM kills is still
	 * needed. */
	if (!attempt_program_alive(&sup->state))
		return;
	os_family_remove(&sup->state.family);
	attempt_state_write(".", &sup->state, NULL);
}

enum { SUP_KEEP_MAX = 2 * GPU_MAX + ATTEMPT_SLOT_FDS };

/* List the descriptors that a child inherits: it holds the GPUs, once they are granted, and the
 * slot while it lives. */
static size_t sup_descriptors(const struct supervisor *sup, int ret[static SUP_KEEP_MAX])
{
	size_t n = 0;

	if (sup_gpus_granted(sup)) {
		const int *fds = gpu_claim_fds(sup->gpus->claim, &n);
		memcpy(ret, fds, n * sizeof(*fds));
	}
	if (sup->slot) {
		memcpy(ret + n, study_slot_fds(sup->slot), ATTEMPT_SLOT_FDS * sizeof(*ret));
		n += ATTEMPT_SLOT_FDS;
	}
	return n;
}

int sup_fork_rank(
	struct supervisor *sup, int rank, int log_fd, struct program *ret, struct err *err)
{
	AUTO_FREE char *cwd = fs_join(sup->tree, sup->job->spec.cwd);
	AUTO(spec_done) struct spec of_role = {0};
	AUTO_STRV struct strv env = {0}, command = {0};
	const struct attempt_job *job = sup->job;
	struct attempt_job own;
	struct roles_part part;
	int keep[SUP_KEEP_MAX], r = 0;
	size_t n_keep = sup_descriptors(sup, keep);

	roles_of_rank(&job->spec, rank, &part);
	AUTO_FREE char *port = mem_printf("MASTER_PORT=%u", sup->ports[part.index]);
	if (part.name) {
		r = program_role_job(job, rank, &own, err);
		if (r < 0)
			return r;
		of_role = own.spec;
		job = &own;
	}
	if (part.name && part.rank == 0)
		r = program_write_hosts(job, err);
	if (r < 0)
		return r;
	program_env(job, sup->inherited, sup->tree, &env);
	sup_setup_env(sup, &env);
	sup_gpus_env(sup, job, rank, &env);
	if (sup_nodes(sup) > 1)
		program_rank_env(job, part.rank, sup->ports[part.index], &env);
	env_set(&env, port, true);
	program_command(job, &env, sup->tree, &command);
	struct program_spec spec = {
		.command = &command,
		.env = &env,
		.cwd = cwd,
		.output_fd = log_fd,
		.lock_fd = sup->lock_fd,
		.keep = keep,
		.n_keep = n_keep,
		.family = &sup->state.family,
	};
	return program_fork(&spec, ret, err);
}

/* The program, or those of all ranks; ret: of one that has no ranks. */
static int sup_fork_program(struct supervisor *sup, struct program *ret, struct err *err)
{
	sup_find_ports(sup);
	sup_make_family(sup);
	sup_count_kills(sup);
	return sup_nodes(sup) > 1 ? sup_ranks_start(sup, &ret->pid, err)
				  : sup_fork_rank(sup, 0, sup->log_fd, ret, err);
}

void sup_order_spare(struct supervisor *sup)
{
	if (!sup->wants_spare)
		return;
	sup->wants_spare = false;
	if (write(sup->worker_fd, (char[]){WORKER_SPARE}, 1) < 0)
		sup_note(sup, "no spare tree is made: %s", strerror(errno));
}

static int sup_on_spare_due(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	sup_order_spare(sup);
	return 0;
}

static void sup_start_program(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};
	struct program program;

	if (sup_study_over(sup))
		return;
	if (sup_fork_program(sup, &program, &err) < 0) {
		sup_start_failed(sup, &err);
		return;
	}
	sup->phase = PHASE_RUNNING;
	sup->child = program.pid;
	sup->state.state = RUN_RUNNING;
	sup->state.text[0] = '\0';
	sup->state.program = (struct attempt_process){
		.pid = program.pid, .start = os_process_start(program.pid)};
	sup->state.started_ms = clock_wall_ms();
	if (attempt_state_write(".", &sup->state, &err) < 0)
		sup_note(sup, "%s", err.message);
	sup_mark_log(sup);
	collect_pass_mark(".");
	int errnum = sup->ranks ? sup_ranks_release(sup) : program_release(&program);
	if (errnum) {
		sup_exec_failed(sup, errnum);
		return;
	}
	sup_note(sup, "started, pid %ld", (long)program.pid);
	sup_check_family(sup);
	sup_set_limit(sup);
	sup_observe_begin(sup);
	sup->wants_spare = sup->job->spares != NULL;
	loop_add_timer(sup->loop, clock_ms() + SPARE_MS, sup_on_spare_due, sup);
	sup_check_cancel(sup);
}

/*
 * The queue
 */

static void sup_gpus_go_without(struct supervisor *sup)
{
	sup_gpus_free(sup);
	sup_start_program(sup);
}

/* If no number of GPUs was requested, run without one and say so rather than not at all. */
static void sup_gpus_fail(struct supervisor *sup, const struct err *err)
{
	static const struct gpu_list none;
	AUTO_FREE char *warning = NULL;

	if (sup->job->spec.runtime.gpus != RUNTIME_GPUS_AUTO || err->id == E_RUN_START) {
		sup_start_failed(sup, err);
		return;
	}
	warning = mem_printf("it was given no GPU: %s%s%s", err->message,
		err->n_evidence ? ": " : "", err->n_evidence ? err->evidence[0] : "");
	sup_note(sup, "%s", warning);
	sup_gpus_write(sup, &none, warning);
	sup_gpus_go_without(sup);
}

static void sup_gpus_request(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	sup->gpus->is_requested = true;
	sup->gpus->requested_ms = clock_ms();
	if (sup_order_worker(sup, WORKER_GPUS, &err) < 0)
		sup_gpus_fail(sup, &err);
}

static int sup_gpus_on_timer(void *ctx, struct err *err);

static void sup_gpus_set_timer(struct supervisor *sup, int64_t at_ms)
{
	loop_remove_timer(sup->loop, sup->gpus->timer);
	sup->gpus->timer = loop_add_timer(sup->loop, at_ms, sup_gpus_on_timer, sup);
}

static void sup_gpus_wait(struct supervisor *sup)
{
	struct supervisor_gpus *gpus = sup->gpus;

	gpus->quiet = false;
	sup_wait_as(sup, RUN_QUEUED, gpu_claim_why(gpus->claim));
	sup_gpus_set_timer(sup, clock_ms() + GPUS_POLL_MS);
}

/* Call with fresh output of the tools: old output may call a GPU free that is used by now. */
static void sup_gpus_try(struct supervisor *sup)
{
	struct supervisor_gpus *gpus = sup->gpus;
	AUTO_ERR struct err err = {0};
	int r = gpu_claim_try(gpus->claim, &gpus->list, &err);

	if (r < 0) {
		sup_gpus_fail(sup, &err);
	} else if (r == 0) {
		sup_gpus_wait(sup);
	} else {
		loop_remove_timer(sup->loop, gpus->timer);
		loop_remove_fd(sup->loop, gpus->source);
		gpus->timer = NULL;
		gpus->source = NULL;
		sup_gpus_write(sup, gpu_claim_granted(gpus->claim), gpu_claim_notice(gpus->claim));
		sup_start_program(sup);
	}
}

/* Run the tools only when their output could matter; at once when a GPU was given back. */
static void sup_gpus_refresh(struct supervisor *sup, bool given_back)
{
	struct supervisor_gpus *gpus = sup->gpus;
	AUTO_ERR struct err failure = {0};
	int64_t again_ms = given_back ? 0 : gpus->requested_ms + TOOLS_EVERY_MS;

	if (gpus->is_requested || sup_study_over(sup))
		return;
	int r = gpu_claim_ready(gpus->claim, &gpus->list, &failure);
	if (r < 0)
		sup_gpus_fail(sup, &failure);
	else if (r == 0)
		sup_gpus_wait(sup);
	else if (clock_ms() >= again_ms)
		sup_gpus_request(sup);
	else
		sup_gpus_set_timer(sup, again_ms);
}

static int sup_gpus_on_timer(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	if (sup->phase != PHASE_GPUS)
		return 0;
	sup->gpus->timer = NULL;
	sup_gpus_refresh(sup, false);
	return 0;
}

static short sup_gpus_prepare(void *ctx)
{
	const struct supervisor *sup = ctx;

	return sup->phase != PHASE_GPUS || sup->gpus->quiet ? 0 : POLLIN;
}

static int sup_gpus_on_call(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	if (sup->phase != PHASE_GPUS)
		return 0;
	sup->gpus->quiet = true;
	sup_gpus_refresh(sup, true);
	return 0;
}

static unsigned sup_gpus_wanted(const struct supervisor *sup)
{
	int gpus = roles_gpus(&sup->job->spec);

	return gpus == RUNTIME_GPUS_AUTO ? (unsigned)sup_nodes(sup) : (unsigned)gpus;
}

static int sup_gpus_enter(struct supervisor *sup, struct err *err)
{
	static const struct loop_fd_ops ops = {sup_gpus_prepare, sup_gpus_on_call};
	struct supervisor_gpus *gpus = sup->gpus;
	const struct runtime *runtime = &sup->job->spec.runtime;
	struct gpu_claim_spec spec = {
		.owner = sup->job->run_id,
		.want = sup_gpus_wanted(sup),
		.only = &runtime->gpus_only,
	};

	int r = gpu_claim_new(&spec, &gpus->claim, err);
	if (r < 0)
		return r;
	int fd = gpu_claim_watch_fd(gpus->claim);
	if (fd >= 0)
		gpus->source = loop_add_fd(sup->loop, fd, &ops, sup);
	return 0;
}

static void sup_gpus_too_few(struct supervisor *sup)
{
	static const struct gpu_list none;
	size_t n = sup->gpus->list.n;

	if (n > 0) {
		AUTO_FREE char *warning = mem_printf(
			"its nodes were given no GPU: they are %d, and there %s %zu here",
			sup_nodes(sup), n == 1 ? "is" : "are", n);
		sup_note(sup, "%s", warning);
		sup_gpus_write(sup, &none, warning);
	}
	sup_gpus_go_without(sup);
}

/* Handle the worker's reply; result may be NULL. */
static void sup_gpus_on_reply(
	struct supervisor *sup, int r, const struct json *result, struct err *err)
{
	struct supervisor_gpus *gpus = sup->gpus;

	gpus->is_requested = false;
	if (r == 0)
		r = gpu_list_from_json(json_get(result, "gpus"), &gpus->list, err);
	/* Each node gets one, or none does. */
	if (r == 0 && gpus->list.n < (size_t)sup_nodes(sup) &&
		sup->job->spec.runtime.gpus == RUNTIME_GPUS_AUTO) {
		sup_gpus_too_few(sup);
		return;
	}
	if (r == 0 && !gpus->claim)
		r = sup_gpus_enter(sup, err);
	if (r < 0)
		sup_gpus_fail(sup, err);
	else
		sup_gpus_try(sup);
}

static void sup_gpus_begin(struct supervisor *sup)
{
	if (sup_gpus_wanted(sup) == 0) {
		sup_start_program(sup);
		return;
	}
	sup->phase = PHASE_GPUS;
	sup->gpus = mem_alloc(1, sizeof(*sup->gpus));
	sup_gpus_request(sup);
}

/*
 * The setup of a program (setup.h): the supervisor waits for it, or runs it here as a process of
 * the family, so that a cancel ends it too.
 */

enum { LOG_TAIL_MAX = 64 << 10 };

static int sup_setup_on_timer(void *ctx, struct err *err);

static void sup_setup_set_timer(struct supervisor *sup, int64_t at_ms)
{
	loop_remove_timer(sup->loop, sup->setup_timer);
	sup->setup_timer = loop_add_timer(sup->loop, at_ms, sup_setup_on_timer, sup);
}

static void sup_setup_fail(struct supervisor *sup, const char *text)
{
	AUTO_FREE char *line = mem_printf("dlrun: %s\n", text);

	fs_write_fd(sup->log_fd, ATTEMPT_LOG, line, strlen(line), NULL);
	attempt_set_end(&sup->end, RUN_FAILED, 125, 0, "setup", "SetupFailed", text);
	sup_finish(sup);
}

/*
 * Running it
 */

static int sup_setup_fork(struct supervisor *sup, struct program *ret, struct err *err)
{
	AUTO_STRV struct strv env = {0}, command = {0};
	int keep[SUP_KEEP_MAX];
	size_t n_keep = sup_descriptors(sup, keep);
	struct setup_order order;

	setup_order(sup->setup, &order);
	program_env(sup->job, sup->inherited, sup->tree, &env);
	strv_add(&command, "/bin/sh");
	strv_add(&command, "-c");
	strv_add(&command, order.line);
	sup_make_family(sup);
	struct program_spec spec = {
		.command = &command,
		.env = &env,
		.cwd = order.cwd,
		.output_fd = order.output_fd,
		.lock_fd = sup->lock_fd,
		.keep = keep,
		.n_keep = n_keep,
		.family = &sup->state.family,
	};
	sup_note(sup, "setup: %s, output in %s", order.line, order.log);
	return program_fork(&spec, ret, err);
}

static void sup_setup_run(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};
	struct program program;

	if (sup_setup_fork(sup, &program, &err) < 0) {
		sup_setup_fail(sup, err.message);
		return;
	}
	sup->phase = PHASE_SETUP_RUNS;
	sup->child = program.pid;
	sup->state.setup = (struct attempt_process){
		.pid = program.pid, .start = os_process_start(program.pid)};
	sup_wait_as(sup, RUN_STARTING, "its setup runs");
	int errnum = program_release(&program);
	if (errnum)
		sup_note(sup, "setup: %s", strerror(errnum));
	sup_check_family(sup);
	sup_check_cancel(sup);
}

static void sup_setup_copy_tail(struct supervisor *sup, const char *path)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	AUTO_FREE char *text = mem_alloc(LOG_TAIL_MAX, 1);
	struct stat st;
	off_t at;

	if (fd < 0 || fstat(fd, &st) < 0)
		return;
	at = st.st_size > LOG_TAIL_MAX ? st.st_size - LOG_TAIL_MAX : 0;
	ssize_t n = pread(fd, text, LOG_TAIL_MAX, at);
	if (n <= 0)
		return;
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, text, (size_t)n, NULL);
	if (text[n - 1] != '\n')
		fs_write_fd(sup->log_fd, ATTEMPT_LOG, "\n", 1, NULL);
}

/* Show the reason in the run's own log. */
static void sup_setup_failed(struct supervisor *sup)
{
	int status = sup->setup_status, sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	AUTO_FREE char *shown = setup_shown(sup->job->spec.runtime.setup.run), *text = NULL;
	struct setup_order order;
	char name[8];

	setup_order(sup->setup, &order);
	AUTO_FREE char *begin = mem_printf("dlrun: setup failed, the end of %s:\n", order.log);
	if (sig)
		text = mem_printf("setup failed by signal %d (%s): %s", sig,
			proc_signal_name(sig, name), shown);
	else
		text = mem_printf("setup failed with exit %d: %s", WEXITSTATUS(status), shown);
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, begin, strlen(begin), NULL);
	sup_setup_copy_tail(sup, order.log);
	sup_setup_fail(sup, text);
}

static void sup_setup_ready(struct supervisor *sup)
{
	sup->state.setup = (struct attempt_process){0};
	sup_wait_as(sup, RUN_STARTING, "");
	sup_gpus_begin(sup);
}

void sup_setup_over(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};
	bool failed = sup->setup_status != 0;

	/* None of it is the program's. */
	sup->cpu_s = 0;
	sup->peak_bytes = 0;
	if (sup->stop != STOP_NONE) {
		sup_finish_unbegun(sup, "it was cancelled during its setup");
		return;
	}
	int r = setup_end(sup->setup, sup->setup_status, &err);
	if (failed)
		sup_setup_failed(sup);
	else if (r < 0)
		sup_setup_fail(sup, err.message);
	else
		sup_setup_ready(sup);
}

/*
 * Waiting for it
 */

static int sup_setup_on_timer(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;
	AUTO_ERR struct err failure = {0};
	enum setup_state state;

	sup->setup_timer = NULL;
	if (sup->phase != PHASE_SETUP)
		return 0;
	int r = setup_poll(sup->setup, &state, &failure);
	if (r < 0) {
		sup_setup_fail(sup, failure.message);
	} else if (state == SETUP_READY) {
		sup_setup_ready(sup);
	} else if (state == SETUP_RUN) {
		sup_setup_run(sup);
	} else {
		sup_wait_as(sup, RUN_STARTING, setup_why(sup->setup));
		sup_setup_set_timer(sup, clock_ms() + setup_wait_ms(sup->setup));
	}
	return 0;
}

static void sup_setup_begin(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	sup->phase = PHASE_SETUP;
	if (setup_begin(sup->job, sup->tree, &sup->setup, &err) < 0)
		sup_setup_fail(sup, err.message);
	else if (!sup->setup)
		sup_gpus_begin(sup);
	else
		sup_setup_set_timer(sup, clock_ms());
}

/*
 * The loop
 */

enum {
	SLOW_TICK_MS = 10000, /* checks of what is watched anyway */
	FAST_TICK_MS = 500,   /* where nothing can be watched, or the program is no child */
};

static int sup_on_child(void *ctx, int sig UNUSED, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;
	struct rusage usage;
	bool ended = false;
	int status;
	pid_t pid;

	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
		sup_add_usage(sup, &usage);
		if (sup->state.n_ranks)
			ended |= sup_ranks_ended(sup, pid, status) > 0;
		if (sup->state.n_ranks || pid != sup->child)
			continue;
		ended = true;
		*(sup->phase == PHASE_SETUP_RUNS ? &sup->setup_status : &sup->wait_status) = status;
	}
	if (ended && sup->phase == PHASE_SETUP_RUNS) {
		sup_setup_ended(sup);
	} else if (ended) {
		sup->reaped = true;
		sup_program_ended(sup);
	}
	return 0;
}

static int sup_on_wake(void *ctx, int sig UNUSED, struct err *err UNUSED)
{
	sup_check_cancel(ctx);
	return 0;
}

static short sup_prepare_input(void *ctx UNUSED)
{
	return POLLIN;
}

static int sup_on_dir(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	os_watch_drain(sup->dir_watch);
	sup_check_cancel(sup);
	return 0;
}

/*
 * The worker
 */

static void sup_worker_replied(struct supervisor *sup)
{
	AUTO_JSON struct json *result = NULL;
	AUTO_ERR struct err err = {0};
	char order = sup->worker_order;
	size_t len = sup->reply_len;

	sup->worker_order = 0;
	sup->reply_len = 0;
	int r = reply_parse(sup->reply, len, "the process that makes the tree", &result, &err);
	if (order == WORKER_TREE && sup->phase == PHASE_TREE && r < 0) {
		sup_start_failed(sup, &err);
	} else if (order == WORKER_TREE && sup->phase == PHASE_TREE) {
		sup_note(sup, "the tree is made in %lld ms%s",
			(long long)json_get_int(result, "ms", 0),
			json_get_bool(result, "spare", false) ? " from a spare" : "");
		sup_setup_begin(sup);
	} else if (order == WORKER_AFTER && sup->phase == PHASE_AFTER) {
		sup_after_on_reply(sup, r, result, &err);
	} else if (order == WORKER_LINE && sup->phase == PHASE_SLOT) {
		sup_slot_on_reply(sup, r, &err);
	} else if (order == WORKER_GPUS && sup->phase == PHASE_GPUS) {
		sup_gpus_on_reply(sup, r, result, &err);
	}
}

static int sup_on_worker(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;
	ssize_t n = read(
		sup->worker_fd, sup->reply + sup->reply_len, sizeof(sup->reply) - sup->reply_len);

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n > 0)
		sup->reply_len += (size_t)n;
	if (n <= 0 || sup->reply_len == sizeof(sup->reply)) {
		loop_remove_fd(sup->loop, sup->worker_source);
		sup->worker_source = NULL;
	}
	if (!sup->worker_source || memchr(sup->reply, '\n', sup->reply_len))
		sup_worker_replied(sup);
	return 0;
}

static int sup_on_tick(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;
	bool watched = sup->phase <= PHASE_SLOT ||
		       (sup->dir_watch >= 0 && sup->log_watch >= 0 && !sup->adopted);

	sup_check_cancel(sup);
	sup_mark_log(sup);
	if (sup->adopted && !attempt_program_alive(&sup->state))
		sup_program_ended(sup);
	if (sup->phase != PHASE_OVER)
		loop_add_timer(sup->loop, clock_ms() + (watched ? SLOW_TICK_MS : FAST_TICK_MS),
			sup_on_tick, sup);
	return 0;
}

/*
 * The whole course
 */

static void sup_watch(struct supervisor *sup)
{
	static const struct loop_fd_ops log_ops = {want_log, sup_on_log};
	static const struct loop_fd_ops dir_ops = {sup_prepare_input, sup_on_dir};

	sup->dir_watch = os_watch_open(".");
	if (sup->dir_watch >= 0)
		loop_add_fd(sup->loop, sup->dir_watch, &dir_ops, sup);
	sup->log_watch = os_watch_open(ATTEMPT_LOG);
	if (sup->log_watch >= 0)
		loop_add_fd(sup->loop, sup->log_watch, &log_ops, sup);
}

static int sup_add_sources(struct supervisor *sup, struct err *err)
{
	static const struct loop_fd_ops worker_ops = {sup_prepare_input, sup_on_worker};

	int r = loop_add_signal(sup->loop, SIGCHLD, sup_on_child, sup, err);
	if (r == 0)
		r = loop_add_signal(sup->loop, SIGTERM, sup_on_wake, sup, err);
	if (r < 0)
		return r;
	/* The kernel has few of these for all supervisors (max_user_instances of inotify(7)), and a
	 * cancel sends a signal, too. */
	if (sup->phase > PHASE_SLOT)
		sup_watch(sup);
	if (!sup->adopted)
		sup->worker_source = loop_add_fd(sup->loop, sup->worker_fd, &worker_ops, sup);
	return sup_on_tick(sup, err);
}

static int sup_open_files(struct supervisor *sup, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };

	sup->marks_fd = open(ATTEMPT_MARKS, FLAGS, 0600);
	sup->notes_fd = open(ATTEMPT_NOTES, FLAGS, 0600);
	sup_make_reserve();
	if (sup->marks_fd < 0 || sup->notes_fd < 0)
		return fs_error(err, errno, "making the files of %s", sup->job->run_id);
	return 0;
}

static int sup_find_tree(struct supervisor *sup, struct err *err)
{
	AUTO_FREE char *here = NULL;
	int r = fs_realpath(".", &here, err);

	if (r == 0)
		sup->tree = fs_join(here, ATTEMPT_TREE);
	return r;
}

static void sup_order_tree(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	if (sup_order_worker(sup, WORKER_TREE, &err) < 0)
		sup_start_failed(sup, &err);
}

void sup_slot_over(struct supervisor *sup)
{
	sup->phase = PHASE_TREE;
	sup_wait_as(sup, RUN_STARTING, "");
	sup_watch(sup);
	sup_check_cancel(sup);
	if (sup->phase == PHASE_TREE)
		sup_order_tree(sup);
}

void sup_after_over(struct supervisor *sup)
{
	sup_note(sup, "the runs before it have ended");
	sup->phase = PHASE_SLOT;
	if (sup_wants_slot(sup))
		sup_slot_begin(sup);
	else
		sup_slot_over(sup);
}

static void sup_begin(struct supervisor *sup)
{
	if (sup->phase == PHASE_OVER)
		return;
	if (sup->adopted) {
		sup_note(sup, "watching over pid %ld again", (long)sup->state.program.pid);
		sup_set_limit(sup);
		sup_ranks_adopt(sup);
		sup_observe_begin(sup);
		return;
	}
	if (sup->phase == PHASE_AFTER)
		sup_after_begin(sup);
	else if (sup->phase == PHASE_SLOT)
		sup_slot_begin(sup);
	else
		sup_order_tree(sup);
}

static void sup_done(struct supervisor *sup)
{
	sup_gpus_free(sup);
	sup_slot_free(sup);
	sup_ranks_free(sup);
	observer_free(sup->observer);
	setup_free(sup->setup);
	loop_free(sup->loop);
	free(sup->tree);
	auto_fd(&sup->marks_fd);
	auto_fd(&sup->notes_fd);
	auto_fd(&sup->dir_watch);
	auto_fd(&sup->log_watch);
	target_status_done(&sup->end);
	attempt_next_done(&sup->next);
}

int supervisor_run(
	const struct supervisor_start *start, struct attempt_next *ret_next, struct err *err)
{
	AUTO(sup_done)
	struct supervisor sup = {
		.dir = start->dir,
		.job = start->job,
		.inherited = start->env,
		.state = start->state,
		.loop = loop_new(),
		.adopted = start->state.program.pid > 0,
		.worker = start->worker,
		.worker_fd = start->worker_fd,
		.log_fd = start->log_fd,
		.lock_fd = start->lock_fd,
		.slot = start->slot,
		.oom_kills = -1,
		.marks_fd = -1,
		.notes_fd = -1,
		.dir_watch = -1,
		.log_watch = -1,
	};

	sup.phase = sup.adopted             ? PHASE_RUNNING
		    : sup_wants_after(&sup) ? PHASE_AFTER
		    : sup_wants_slot(&sup)  ? PHASE_SLOT
					    : PHASE_TREE;
	sup.child = start->state.program.pid;
	os_become_subreaper();
	/* Leave the cgroup of the run whose program has submitted this one. */
	os_family_leave();
	int r = sup_open_files(&sup, err);
	if (r == 0)
		r = sup_find_tree(&sup, err);
	if (r == 0)
		r = sup_add_sources(&sup, err);
	/* An accepted attempt must get an end in its record. That of an adopted one may be written
	 * by another process. */
	if (r < 0 && !sup.adopted)
		sup_start_failed(&sup, err);
	if (r < 0)
		return r;
	sup_begin(&sup);
	r = sup.phase == PHASE_OVER ? 0 : loop_run(sup.loop, err);
	*ret_next = sup.next;
	sup.next = (struct attempt_next){0};
	return r;
}
