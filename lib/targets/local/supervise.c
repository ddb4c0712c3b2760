/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/attempt/attempt.h"
#include "core/attempt/collect.h"
#include "core/record/reply.h"
#include "host/gpu.h"
#include "targets/local/study_slot.h"
#include "targets/local/supervisor.h"
#include "targets/local/tree.h"
#include "targets/local/runtime_mount.h"

/*
 * Two processes. The one that was started makes trees; its child is the supervisor, so that what
 * the supervisor finds below itself is the program's family and nothing else. When another attempt
 * follows, the supervisor becomes the one that makes trees for it, and has a child that supervises:
 * no program file is needed, which may be another one by then, and the environment goes with it.
 */

extern char **environ; /* inherited by the program as a whole */

enum {
	LOCK_WAIT_MS = 2000, /* others only check for a moment */
	FIND_GPUS_MS = 30000,
};

/* SIGTERM too: it only announces that there may be a cancel, and may come before the supervisor is
 * ready to check. */
static void ignore_signals(void)
{
	static const int ignored[] = {
		SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};

	for (size_t i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
		signal(ignored[i], SIG_IGN);
}

/* The reply has been sent, or another process sends it: its reader must see the end of file. */
static void local_supervise_close_output(void)
{
	dup2(STDERR_FILENO, STDOUT_FILENO);
}

/*
 * The worker
 */

static int mount_runtime(const struct attempt_job *job, struct err *err)
{
	AUTO_FREE char *tree = NULL;
	int r = fs_realpath(ATTEMPT_TREE, &tree, err);

	if (r == 0)
		r = runtime_mount(tree, job, err);
	return r < 0 ? r : runtime_packages_link(tree, &job->spec.runtime, err);
}

static void make_tree(int fd)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	struct json *result = json_object();
	AUTO_ERR struct err err = {0};
	int64_t start_ms = clock_ms();
	bool spare = false;

	int r = attempt_job_read(".", &job, &err);
	if (r == 0)
		r = tree_make(".", &job, &spare, &err);
	if (r == 0)
		r = mount_runtime(&job, &err);
	if (r == 0)
		r = collect_restore(".", &job, &err);
	if (r == 0)
		r = collect_mark(".", &err);
	json_set_bool(result, "spare", spare);
	json_set_int(result, "ms", clock_ms() - start_ms);
	reply_write(fd, r, &err, result);
}

static void local_supervise_find_gpus(int fd)
{
	const char *path = env_get((const char *const *)environ, "PATH");
	struct json *result = json_object();
	AUTO_ERR struct err err = {0};
	struct gpu_list list = {0};

	int r = gpu_find(path, FIND_GPUS_MS, &list, &err);
	if (r == 0)
		json_set(result, "gpus", gpu_list_to_json(&list));
	reply_write(fd, r, &err, result);
}

static void wait_in_line(int fd)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_ERR struct err err = {0};
	int r = attempt_job_read(".", &job, &err);

	if (r == 0)
		r = study_line_wait(&job, &err);
	reply_write(fd, r, &err, json_object());
}

static int make_spare(struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	int r = attempt_job_read(".", &job, err);

	os_be_nice();
	/* The supervisor is our child; its status is not needed. */
	signal(SIGCHLD, SIG_IGN);
	return r < 0 ? r : spare_make(&job, err);
}

static int local_supervise_work(const char *self, int fd, struct err *err)
{
	char order;

	local_supervise_close_output();
	for (;;) {
		ssize_t n = read(fd, &order, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		if (order == WORKER_SPARE)
			return make_spare(err);
		if (order == WORKER_AFTER)
			after_waiter_run(self, fd);
		else if (order == WORKER_LINE)
			wait_in_line(fd);
		else if (order == WORKER_GPUS)
			local_supervise_find_gpus(fd);
		else
			make_tree(fd);
	}
}

/*
 * The supervisor
 */

/* The course for an attempt that may have had a supervisor before. */
enum operation { OPERATION_NONE, OPERATION_START, OPERATION_ADOPT };

static enum operation choose_operation(struct attempt_state *state)
{
	struct target_status end;
	struct attempt_state before;

	attempt_state_init(state);
	if (attempt_end_read(".", &end)) {
		target_status_done(&end);
		return OPERATION_NONE;
	}
	if (!attempt_state_read(".", &before))
		return OPERATION_START;
	if (!attempt_program_alive(&before))
		return OPERATION_NONE;
	state->state = RUN_RUNNING;
	state->program = before.program;
	state->family = before.family;
	state->n_ranks = before.n_ranks;
	memcpy(state->ranks, before.ranks, sizeof(state->ranks));
	state->started_ms = before.started_ms;
	return OPERATION_ADOPT;
}

/* Everything that can fail before the attempt counts as accepted. */
static int local_supervise_take_attempt(
	struct supervisor_start *start, struct attempt_job *job, int *ret_log_fd, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };

	int r = attempt_job_read(".", job, err);
	if (r < 0)
		return r;
	AUTO_FD int fd = open(ATTEMPT_LOG, FLAGS, 0600);
	if (fd < 0)
		return fs_error(err, errno, "making the log of %s", job->run_id);
	r = attempt_state_write(".", &start->state, err);
	if (r < 0)
		return r;
	start->job = job;
	start->log_fd = *ret_log_fd = TAKE_FD(fd);
	return 0;
}

static void local_supervise_reply(int r, const struct err *err)
{
	reply_write(STDOUT_FILENO, r, err, NULL);
	local_supervise_close_output();
}

/* Record the error of a further attempt: no process waits for a reply. */
static int fail_next(int r, const struct err *err)
{
	AUTO(target_status_done) struct target_status end = {0};

	attempt_set_end(&end, RUN_FAILED, 125, 0, "dlrun", "StartFailed", err->message);
	end.ended_ms = clock_wall_ms();
	attempt_end_write(".", &end, 0, NULL);
	return r;
}

/* A further attempt was locked when it was made. */
static int local_supervise_take_lock(struct attempt_next *at, bool *ret_held, struct err *err)
{
	AUTO_ERR struct err held = {0};

	*ret_held = false;
	if (at->lock_fd >= 0)
		return 0;
	int r = fs_lock(ATTEMPT_LOCK, true, LOCK_WAIT_MS, &at->lock_fd, &held);
	if (r == 0)
		return 0;
	*ret_held = held.id == E_IO_LOCK;
	return *ret_held ? 0 : err_move(err, &held);
}

static int watch_over(struct supervisor_start *start, struct attempt_next *at,
	struct attempt_next *ret_next, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	bool further = at->lock_fd >= 0, held;
	AUTO_FD int log_fd = -1;

	int r = local_supervise_take_lock(at, &held, err);
	/* If another supervisor has the attempt, the request is fulfilled. */
	enum operation operation = r < 0 || held ? OPERATION_NONE : choose_operation(&start->state);
	if (operation != OPERATION_NONE)
		r = local_supervise_take_attempt(start, &job, &log_fd, err);
	if (r < 0)
		return further ? fail_next(r, err) : r;
	if (!further)
		local_supervise_reply(0, NULL);
	if (operation == OPERATION_NONE)
		return 0;
	start->dir = at->dir;
	start->lock_fd = at->lock_fd;
	if (at->has_slot)
		start->slot = study_slot_keep(at->slot_fds);
	at->has_slot = false;
	return supervisor_run(start, ret_next, err);
}

/* Returns twice: 1 in the process that makes trees, 0 in its child. */
static int fork_both(int *ret_fd, pid_t *ret_worker, struct err *err)
{
	int sockets[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) < 0)
		return err_set_errno(err, E_RUN_START, errno, "cannot make a pair of sockets");
	AUTO_FD int ours = sockets[0], theirs = sockets[1];
	fcntl(ours, F_SETFD, FD_CLOEXEC);
	fcntl(theirs, F_SETFD, FD_CLOEXEC);
	*ret_worker = getpid();
	pid_t pid = fork();
	if (pid < 0)
		return err_set_errno(err, E_RUN_START, errno, "cannot start a process");
	*ret_fd = pid > 0 ? TAKE_FD(ours) : TAKE_FD(theirs);
	return pid > 0;
}

/* *at is the attempt to supervise, and on return the one that follows. */
static int care(const char *self, struct attempt_next *at, bool *ret_more, struct err *err)
{
	AUTO(attempt_next_done) struct attempt_next next = {0};
	AUTO_FD int fd = -1;
	pid_t worker = 0;

	*ret_more = false;
	int r = fork_both(&fd, &worker, err);
	if (r < 0)
		return at->lock_fd >= 0 ? fail_next(r, err) : r;
	if (r > 0) {
		attempt_next_done(at);
		return local_supervise_work(self, fd, err);
	}
	r = watch_over(
		&(struct supervisor_start){
			.worker = worker, .worker_fd = fd, .env = (const char *const *)environ},
		at, &next, err);
	if (r < 0 || !next.dir)
		return r;
	attempt_next_done(at);
	*at = next;
	next = (struct attempt_next){0};
	*ret_more = true;
	return 0;
}

/* Switch to the notes of the next attempt. */
static int enter_next(const struct attempt_next *at, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };

	if (chdir(at->dir) < 0)
		return fs_error(err, errno, "%s", at->dir);
	AUTO_FD int fd = open(ATTEMPT_NOTES, FLAGS, 0600);
	if (fd >= 0)
		dup2(fd, STDERR_FILENO);
	local_supervise_close_output();
	return 0;
}

static int care_for_all(const char *self, const char *dir, struct err *err)
{
	AUTO(attempt_next_done)
	struct attempt_next at = {.dir = mem_strdup(dir), .lock_fd = -1};
	bool more;

	for (;;) {
		int r = care(self, &at, &more, err);
		if (r < 0 || !more)
			return r;
		r = enter_next(&at, err);
		if (r < 0)
			return r;
	}
}

int supervise(const char *self, const char *dir, struct err *err)
{
	int r = 0;

	ignore_signals();
	os_protect_memory();
	if (chdir(dir) < 0)
		r = fs_error(err, errno, "%s", dir);
	if (r == 0)
		r = care_for_all(self, dir, err);
	/* A peer that has had a reply does not read this one. */
	if (r < 0)
		local_supervise_reply(r, err);
	return r;
}
