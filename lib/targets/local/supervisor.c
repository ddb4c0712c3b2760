/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervisor_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "targets/local/observe.h"
#include "targets/local/setup.h"

enum {
	SLOW_TICK_MS = 10000, /* looks at what is watched anyway */
	FAST_TICK_MS = 500,   /* where nothing can be watched, or the program is no child */
};

/*
 * Events
 */

static int on_child(void *ctx, int sig, struct err *err)
{
	struct supervisor *sup = ctx;
	struct rusage usage;
	bool ended = false;
	int status;
	pid_t pid;

	(void)sig;
	(void)err;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
		sup_add_usage(sup, &usage);
		if (pid != sup->child)
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

static int on_wake(void *ctx, int sig, struct err *err)
{
	(void)sig;
	(void)err;
	sup_look_for_cancel(ctx);
	return 0;
}

static short want_input(void *ctx)
{
	(void)ctx;
	return POLLIN;
}

static int on_dir(void *ctx, short revents, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)revents;
	(void)err;
	os_watch_drain(sup->dir_watch);
	sup_look_for_cancel(sup);
	return 0;
}

/*
 * The worker
 */

static void tree_answered(struct supervisor *sup, int r, const struct json *result, struct err *err)
{
	if (r < 0) {
		sup_start_failed(sup, err);
		return;
	}
	sup_note(sup, "the tree is made in %lld ms%s", (long long)json_get_int(result, "ms", 0),
		json_get_bool(result, "spare", false) ? " from a spare" : "");
	sup_setup_begin(sup);
}

static void worker_answered(struct supervisor *sup)
{
	AUTO_JSON struct json *result = NULL;
	AUTO_ERR struct err err = {0};
	char order = sup->worker_order;
	size_t len = sup->reply_len;

	sup->worker_order = 0;
	sup->reply_len = 0;
	int r = reply_parse(sup->reply, len, "the process that makes the tree", &result, &err);
	if (order == WORKER_TREE && sup->phase == PHASE_TREE)
		tree_answered(sup, r, result, &err);
	else if (order == WORKER_GPUS && sup->phase == PHASE_GPUS)
		sup_gpus_answered(sup, r, result, &err);
}

static int on_worker(void *ctx, short revents, struct err *err)
{
	struct supervisor *sup = ctx;
	ssize_t n = read(
		sup->worker_fd, sup->reply + sup->reply_len, sizeof(sup->reply) - sup->reply_len);

	(void)revents;
	(void)err;
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n > 0)
		sup->reply_len += (size_t)n;
	if (n <= 0 || sup->reply_len == sizeof(sup->reply)) {
		loop_remove_fd(sup->loop, sup->worker_source);
		sup->worker_source = NULL;
	}
	if (!sup->worker_source || memchr(sup->reply, '\n', sup->reply_len))
		worker_answered(sup);
	return 0;
}

int sup_ask_worker(struct supervisor *sup, char order, struct err *err)
{
	sup->worker_order = order;
	if (sup->worker_source && write(sup->worker_fd, &order, 1) == 1)
		return 0;
	return err_set(err, E_RUN_START, "the process that makes the tree is gone");
}

static int on_tick(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;
	bool watched = sup->dir_watch >= 0 && sup->log_watch >= 0 && !sup->adopted;

	(void)err;
	sup_look_for_cancel(sup);
	sup_mark_log(sup);
	if (sup->adopted && !attempt_process_alive(&sup->state.program))
		sup_program_ended(sup);
	if (sup->phase != PHASE_OVER)
		loop_add_timer(sup->loop, clock_ms() + (watched ? SLOW_TICK_MS : FAST_TICK_MS),
			on_tick, sup);
	return 0;
}

/*
 * The whole course
 */

static int add_sources(struct supervisor *sup, struct err *err)
{
	static const struct loop_fd_ops dir_ops = {want_input, on_dir};
	static const struct loop_fd_ops worker_ops = {want_input, on_worker};

	int r = loop_add_signal(sup->loop, SIGCHLD, on_child, sup, err);
	if (r == 0)
		r = loop_add_signal(sup->loop, SIGTERM, on_wake, sup, err);
	if (r < 0)
		return r;
	sup->dir_watch = os_watch_open(".");
	if (sup->dir_watch >= 0)
		loop_add_fd(sup->loop, sup->dir_watch, &dir_ops, sup);
	sup_watch_log(sup);
	if (!sup->adopted)
		sup->worker_source = loop_add_fd(sup->loop, sup->worker_fd, &worker_ops, sup);
	return on_tick(sup, err);
}

static int open_files(struct supervisor *sup, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };

	sup->marks_fd = open(ATTEMPT_MARKS, FLAGS, 0600);
	sup->notes_fd = open(ATTEMPT_NOTES, FLAGS, 0600);
	sup_make_reserve();
	if (sup->marks_fd < 0 || sup->notes_fd < 0)
		return fs_error(err, errno, "making the files of %s", sup->job->run_id);
	return 0;
}

static int find_tree(struct supervisor *sup, struct err *err)
{
	AUTO_FREE char *here = NULL;
	int r = fs_realpath(".", &here, err);

	if (r == 0)
		sup->tree = fs_join(here, ATTEMPT_TREE);
	return r;
}

static void begin(struct supervisor *sup)
{
	if (sup->phase == PHASE_OVER)
		return;
	if (sup->adopted) {
		sup_note(sup, "watching over pid %ld again", (long)sup->state.program.pid);
		sup_set_limit(sup);
		sup_observe_begin(sup);
		return;
	}
	AUTO_ERR struct err err = {0};
	if (sup_ask_worker(sup, WORKER_TREE, &err) < 0)
		sup_start_failed(sup, &err);
}

static void supervisor_done(struct supervisor *sup)
{
	sup_gpus_free(sup);
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
	AUTO(supervisor_done)
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
		.oom_kills = -1,
		.marks_fd = -1,
		.notes_fd = -1,
		.dir_watch = -1,
		.log_watch = -1,
	};

	sup.phase = sup.adopted ? PHASE_RUNNING : PHASE_TREE;
	sup.child = start->state.program.pid;
	os_become_subreaper();
	/* Leave the cgroup of the run whose program has submitted this one. */
	os_family_leave();
	int r = open_files(&sup, err);
	if (r == 0)
		r = find_tree(&sup, err);
	if (r == 0)
		r = add_sources(&sup, err);
	/* An accepted attempt must get an end in its record. That of an adopted one may be written
	 * by another process. */
	if (r < 0 && !sup.adopted)
		sup_start_failed(&sup, err);
	if (r < 0)
		return r;
	begin(&sup);
	r = sup.phase == PHASE_OVER ? 0 : loop_run(sup.loop, err);
	*ret_next = sup.next;
	sup.next = (struct attempt_next){0};
	return r;
}
