/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/after_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/time.h>

#include "app/lifecycle/restart.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "core/attempt/attempt.h"
#include "core/store/store.h"
#include "targets/targets.h"

enum {
	AFTER_QUERY_MS = 15000,
	AFTER_HERE_MS = 2000,
	AFTER_LOOK_MS = 10000, /* until all are looked at, whatever is waited for */
	AFTER_LOOK_EACH_MS = 100,
	AFTER_STORE_MS = 5000, /* for what another process polls */
	AFTER_POLL_MS = 2000,
	AFTER_POLL_MAX_MS = 30000,
	AFTER_SOON_MS = 200, /* where there is no lock (yet) */
};

struct after_waiter {
	struct session *session;
	const struct after_list *list;
	struct after_check check;
	int out_fd;
	int poll_fd; /* the lock of the one that polls; -1: another has it */
	int64_t poll_ms, poll_pause_ms;
	int64_t soon_ms;
};

static bool after_is_here(const struct run *run)
{
	return target_ops_recorded(run)->is_here;
}

/*
 * Failures that another start follows
 */

/* 1: it was started again. */
static int after_retry(struct session *session, const char *id, struct err *err)
{
	AUTO_RUN struct run *run = NULL;
	AUTO_FREE char *text = NULL;
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0)
		r = store_get(store, id, &run, NULL);
	if (r < 0 || !run_wants_retry(run))
		return 0;
	AUTO_ERR struct err failure = {0};
	r = run_retry(session, run, &text, &failure);
	if (r == -ERR_BUG)
		return err_move(err, &failure);
	if (r < 0)
		log_note("%s is not started again: %s", id, failure.message);
	return r == 0 && !run_state_is_final(run_state(run));
}

int after_check_again(struct session *session, const struct after_list *list,
	struct after_check *ret, struct err *err)
{
	for (;;) {
		after_check_done(ret);
		int r = after_check(session, list, ret, err);
		if (r < 0 || ret->state != AFTER_NEVER)
			return r;
		r = after_retry(session, ret->id, err);
		if (r <= 0)
			return r;
	}
}

/*
 * The poll for all
 */

static int after_poll_all(struct after_waiter *waiter, struct err *err)
{
	AUTO(run_list_done) struct run_list waiting = {0};

	int r = runs_unfinished(waiter->session, NULL, &waiting, err);
	if (r == 0)
		r = after_refresh(waiter->session, &waiting, AFTER_QUERY_MS, err);
	waiter->poll_pause_ms += waiter->poll_pause_ms / 5 + AFTER_SOON_MS;
	if (waiter->poll_pause_ms > AFTER_POLL_MAX_MS)
		waiter->poll_pause_ms = AFTER_POLL_MAX_MS;
	waiter->poll_ms = clock_ms() + waiter->poll_pause_ms;
	return r;
}

static char *after_poll_path(const struct after_waiter *waiter)
{
	AUTO_FREE char *dir = held_dir(&waiter->session->dirs);

	return fs_join(dir, "poll");
}

static int after_poll_lock(struct after_waiter *waiter, struct err *err)
{
	AUTO_FREE char *dir = held_dir(&waiter->session->dirs);
	AUTO_FREE char *path = after_poll_path(waiter);
	AUTO_ERR struct err error = {0};

	if (waiter->poll_fd >= 0)
		return 0;
	int r = fs_mkdirs(dir, 0700, &error);
	if (r == 0)
		r = fs_lock(path, true, 0, &waiter->poll_fd, &error);
	return r < 0 && error.id != E_IO_LOCK ? err_move(err, &error) : 0;
}

/*
 * Waiting
 */

static void after_on_alarm(int sig UNUSED)
{
}

/* The signal comes again and again, so that one that came too early does no harm. */
static void after_set_alarm(int64_t ms)
{
	const struct itimerval timer = {
		.it_value = {ms / 1000, ms % 1000 * 1000}, .it_interval = {0, ms ? 500000 : 0}};
	struct sigaction action = {.sa_handler = after_on_alarm};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

/* Until nobody has a lock on the file, or ms have passed. false: there is nothing to wait for. */
static bool after_wait_lock(const char *path, int how, int64_t ms)
{
	AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0 || flock(fd, how | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return false;
	int64_t end_ms = clock_ms() + ms;
	after_set_alarm(ms);
	while (flock(fd, how) < 0 && errno == EINTR && clock_ms() < end_ms)
		continue;
	after_set_alarm(0);
	return true;
}

static void after_sleep(int64_t ms)
{
	poll(NULL, 0, (int)ms);
}

/* Wait a little, where nothing can be waited for in the kernel. */
static void after_sleep_soon(struct after_waiter *waiter, int64_t max_ms)
{
	waiter->soon_ms = waiter->soon_ms ? waiter->soon_ms * 2 : AFTER_SOON_MS;
	if (waiter->soon_ms > AFTER_STORE_MS)
		waiter->soon_ms = AFTER_STORE_MS;
	after_sleep(waiter->soon_ms < max_ms ? waiter->soon_ms : max_ms);
}

/* The first of them on this machine, then the next, as long as there is time. */
static int after_wait_here(
	struct after_waiter *waiter, struct run_list *here, int64_t end_ms, struct err *err)
{
	const struct dirs *dirs = &waiter->session->dirs;

	for (size_t i = 0; i < here->n;) {
		struct run_list one = {.v = &here->v[i], .n = 1, .cap = 1};
		int r = runs_refresh(waiter->session, &one, AFTER_HERE_MS, err);
		int64_t left_ms = end_ms - clock_ms();
		const struct run *run = here->v[i];

		if (r < 0)
			return r;
		if (run_state_is_final(run_state(run)) && run_state(run) != RUN_SUCCEEDED)
			return 0;
		if (run_state_is_final(run_state(run))) {
			i++;
			continue;
		}
		if (left_ms <= 0)
			return 0;
		AUTO_FREE char *dir = dirs_attempt(dirs, run_id(run), run_attempts(run));
		AUTO_FREE char *lock = fs_join(dir, ATTEMPT_LOCK);
		if (after_wait_lock(lock, LOCK_SH, left_ms))
			waiter->soon_ms = 0;
		else
			after_sleep_soon(waiter, left_ms);
	}
	return 0;
}

static void after_wait_away(struct after_waiter *waiter)
{
	AUTO_FREE char *path = after_poll_path(waiter);
	int64_t left_ms = waiter->poll_ms - clock_ms();

	if (waiter->poll_fd >= 0)
		after_sleep(left_ms < 0 ? 0 : left_ms < AFTER_LOOK_MS ? left_ms : AFTER_LOOK_MS);
	else if (!after_wait_lock(path, LOCK_EX, AFTER_STORE_MS))
		after_sleep_soon(waiter, AFTER_STORE_MS);
}

static bool after_is_deserted(const struct after_waiter *waiter)
{
	struct pollfd out = {.fd = waiter->out_fd};

	return poll(&out, 1, 0) > 0 && out.revents & (POLLERR | POLLHUP | POLLNVAL);
}

static int after_round(struct after_waiter *waiter, struct err *err)
{
	AUTO(run_list_done) struct run_list here = {0}, away = {0};
	int64_t end_ms =
		clock_ms() + AFTER_LOOK_MS + AFTER_LOOK_EACH_MS * (int64_t)waiter->check.pending.n;
	int r = 0;

	/* The pending runs move to the two lists: check.pending has nothing then. */
	vec_foreach (struct run *, run, &waiter->check.pending) {
		struct run_list *list = after_is_here(*run) ? &here : &away;
		*vec_push(list) = TAKE(*run);
	}
	if (away.n)
		r = after_poll_lock(waiter, err);
	if (r == 0 && waiter->poll_fd >= 0 && clock_ms() >= waiter->poll_ms)
		r = after_poll_all(waiter, err);
	if (r == 0 && here.n)
		r = runs_refresh(waiter->session, &here, AFTER_HERE_MS, err);
	if (r == 0)
		r = after_check_again(waiter->session, waiter->list, &waiter->check, err);
	if (r < 0 || waiter->check.state != AFTER_WAITS)
		return r;
	if (here.n && waiter->poll_fd >= 0 && waiter->poll_ms < end_ms)
		end_ms = waiter->poll_ms;
	if (here.n)
		return after_wait_here(waiter, &here, end_ms, err);
	after_wait_away(waiter);
	return 0;
}

int after_wait(struct session *session, const struct after_list *list, int out_fd,
	struct after_check *ret, struct err *err)
{
	struct after_waiter waiter = {.session = session,
		.list = list,
		.out_fd = out_fd,
		.poll_fd = -1,
		.poll_pause_ms = AFTER_POLL_MS};
	int r = after_check_again(session, list, &waiter.check, err);

	while (r == 0 && waiter.check.state == AFTER_WAITS) {
		r = after_round(&waiter, err);
		if (r == 0 && after_is_deserted(&waiter))
			r = err_set(err, E_CANCELED, "nobody waits any more");
		if (r == 0)
			r = after_check_again(session, list, &waiter.check, err);
	}
	auto_fd(&waiter.poll_fd);
	if (r < 0)
		after_check_done(&waiter.check);
	else
		*ret = waiter.check;
	return r;
}
