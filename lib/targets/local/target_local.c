/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/target_local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/target/fetch_sink.h"

enum { ATTEMPTS_MAX = 1000000 };

/*
 * Handles
 */

static int prepare(struct target *target, const char *run_id, int attempt, const struct spec *spec,
	char handle[static TARGET_HANDLE_SIZE], struct err *err)
{
	(void)spec;
	(void)err;
	snprintf(handle, TARGET_HANDLE_SIZE, "%s:%s/%d", target_local_of(target)->machine, run_id,
		attempt);
	return 0;
}

static int parse_handle(const char *handle, struct attempt_place *ret, struct err *err)
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

int local_place_find(
	struct target_local *local, const char *handle, struct attempt_place *ret, struct err *err)
{
	const struct dirs *dirs = &local->session->dirs;
	struct attempt_place place = {0};

	int r = parse_handle(handle, &place, err);
	if (r < 0)
		return r;
	AUTO_FREE char *run_dir = dirs_run(dirs, place.run_id);
	place.foreign = *place.machine && *local->machine && !str_eq(place.machine, local->machine);
	place.dir = dirs_attempt(dirs, place.run_id, place.attempt);
	place.submit_lock = fs_join(run_dir, RUN_SUBMIT_LOCK);
	*ret = place;
	return 0;
}

/*
 * Starting the supervisor
 */

bool local_has_scope(const struct target_local *local)
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

int local_start(struct target_local *local, const struct attempt_place *place,
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
	int r = os_pipe(fds, 0);
	if (r < 0)
		return err_set_errno(err, E_IO, -r, "cannot make a pipe");
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

static int state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};

	int r = local_place_find(target_local_of(target), handle, &place, err);
	if (r < 0)
		return r;
	*ret = (struct target_status){0};
	if (!place.foreign)
		r = attempt_look(place.dir, place.submit_lock, ret, err);
	else if (!attempt_end_read(place.dir, ret)) {
		ret->state = RUN_UNKNOWN;
		ret->text = mem_strdup("it belongs to another machine");
	}
	if (r == 0) {
		add_more(&place, ret);
		target_call_end_soon(call, target->loop);
	}
	return r;
}

/* Cancel the attempt; if it has ended, the one that followed it, if any. */
static int cancel_next(struct attempt_place *place, bool *ret_orphan, struct err *err)
{
	int r = attempt_cancel(place->dir, ret_orphan, err);

	for (int next; r == 0 && (next = attempt_next(place->dir)) > place->attempt;) {
		char *dir = attempt_sibling(place->dir, next);
		free(place->dir);
		place->dir = dir;
		place->attempt = next;
		r = attempt_cancel(place->dir, ret_orphan, err);
	}
	return r;
}

static int cancel(
	struct target *target, const char *handle, struct target_call *call, struct err *err)
{
	struct target_local *local = target_local_of(target);
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};
	AUTO_STRV struct strv env = {0};
	bool orphan = false;

	int r = local_place_find(local, handle, &place, err);
	if (r == 0 && place.foreign)
		r = err_set(
			err, E_TARGET_UNSUPPORTED, "%s belongs to another machine", place.run_id);
	/* The submit is under way and will find the cancel that is written here. */
	if (r == 0 && fs_is_locked(place.submit_lock))
		r = fs_mkdirs(place.dir, 0700, err);
	if (r == 0)
		r = cancel_next(&place, &orphan, err);
	if (r == 0 && orphan) {
		AUTO_FD int fd = -1;
		for (const char *const *e = local->session->env.env; e && *e; e++)
			strv_add(&env, *e);
		r = local_start(local, &place, &env, false, &fd, err);
	}
	if (r == 0)
		target_call_end_soon(call, target->loop);
	return r;
}

static int forget(struct target *target, const char *handle, bool all, struct target_call *call,
	struct err *err)
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

static int read_log(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err)
{
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};

	int r = local_place_find(target_local_of(target), handle, &place, err);
	if (r == 0)
		attempt_log_read(target->loop, &place, request, token, call);
	return r;
}

static int fetch(struct target *target, const char *handle, struct fetch_sink *sink,
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

const struct target_ops target_local_ops = {
	.kind = "local",
	.is_here = true,
	.prepare = prepare,
	.submit = local_submit,
	.state = state,
	.logs = read_log,
	.cancel = cancel,
	.forget = forget,
	.fetch = fetch,
	.carry = local_carry,
	.exec = local_exec,
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
