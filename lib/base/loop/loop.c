/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/trace.h"
#include "base/util/vec.h"

/* poll's own clock stops while a laptop sleeps and clock_ms() does not, so deadlines are checked at
 * this interval. */
enum {
	WAIT_MAX_MS = 5000,
	ASLEEP_MS = 3000, /* a round that lasts so much too long */
	TRACE_MIN_MS = 5,
};

typedef void loop_fn(void); /* of any type */

struct loop_fd {
	int fd;
	const struct loop_fd_ops *ops;
	void *ctx;
	bool removed;
};

struct timer {
	int64_t at_ms;
	uintptr_t id; /* rises: timers of one instant run in the order of their making */
	loop_timer_fn *fn;
	void *ctx;
};

struct signal_source {
	int sig;
	loop_signal_fn *fn;
	void *ctx;
	struct sigaction before;
};

struct loop {
	struct VEC_OF(struct loop_fd *) fds;
	struct VEC_OF(struct pollfd) polled;
	struct VEC_OF(struct timer) timers; /* a binary heap, the next one first */
	struct VEC_OF(struct signal_source) signals;
	uintptr_t last_timer;
	int64_t seen_ms; /* when the time was last read, while there were timers */
	int64_t woke_ms;
	int pipe[2]; /* made with the first signal, else -1 */
	bool running;
	bool stop;
	bool has_removed;
};

struct loop *loop_new(void)
{
	struct loop *loop = mem_alloc(1, sizeof(*loop));

	loop->pipe[0] = loop->pipe[1] = -1;
	return loop;
}

/* Note a dispatch that took long, of a timer where fd is negative. A debugger knows the function by
 * its distance from a name. start_ms: 0 while nothing was traced. */
static void loop_trace(int64_t start_ms, int fd, loop_fn *fn)
{
	int64_t took_ms = start_ms ? clock_ms() - start_ms : 0;
	AUTO_FREE char *name = NULL;

	if (took_ms < TRACE_MIN_MS)
		return;
	name = fd < 0 ? mem_strdup("a timer") : mem_printf("descriptor %d", fd);
	trace_note(TRACE_LOOP, "%s took %lld ms in loop_new%+td", name, (long long)took_ms,
		(char *)fn - (char *)loop_new);
}

/*
 * Descriptors
 */

struct loop_fd *loop_add_fd(struct loop *loop, int fd, const struct loop_fd_ops *ops, void *ctx)
{
	struct loop_fd *source = mem_alloc(1, sizeof(*source));

	*source = (struct loop_fd){.fd = fd, .ops = ops, .ctx = ctx};
	*vec_push(&loop->fds) = source;
	return source;
}

static void sweep_fds(struct loop *loop)
{
	size_t kept = 0;

	if (!loop->has_removed)
		return;
	for (size_t i = 0; i < loop->fds.n; i++) {
		if (loop->fds.v[i]->removed)
			free(loop->fds.v[i]);
		else
			loop->fds.v[kept++] = loop->fds.v[i];
	}
	loop->fds.n = kept;
	loop->has_removed = false;
}

/* While the loop runs it walks the array, so the source is only marked. */
void loop_remove_fd(struct loop *loop, struct loop_fd *source)
{
	if (!source)
		return;
	source->removed = true;
	loop->has_removed = true;
	if (!loop->running)
		sweep_fds(loop);
}

/* Fill the array for poll; returns the number of sources waited for. A source that wants nothing is
 * hidden from poll, which would otherwise report its hang-up again and again. */
static size_t prepare_fds(struct loop *loop)
{
	size_t n = loop->fds.n, wanted = 0;

	loop->polled.n = 0;
	vec_reserve(&loop->polled, n + 1);
	for (size_t i = 0; i < n; i++) {
		struct loop_fd *source = loop->fds.v[i];
		short events = source->removed ? 0 : source->ops->prepare(source->ctx);

		*vec_push(&loop->polled) =
			(struct pollfd){.fd = events ? source->fd : -1, .events = events};
		wanted += events != 0;
	}
	*vec_push(&loop->polled) = (struct pollfd){.fd = loop->pipe[0], .events = POLLIN};
	return wanted;
}

static int dispatch_fds(struct loop *loop, struct err *err)
{
	/* Sources added meanwhile stand behind the polled ones. */
	size_t n = loop->polled.n - 1;

	for (size_t i = 0; i < n && !loop->stop; i++) {
		struct loop_fd *source = loop->fds.v[i];
		short revents = loop->polled.v[i].revents;

		if (!revents || source->removed)
			continue;
		int64_t start_ms = trace_is_on(TRACE_LOOP) ? clock_ms() : 0;
		loop_fn *fn = (loop_fn *)source->ops->dispatch;
		int fd = source->fd;
		int r = source->ops->dispatch(source->ctx, revents, err);
		loop_trace(start_ms, fd, fn);
		if (r < 0)
			return r;
	}
	return 0;
}

/*
 * Timers. The pointer that callers hold is the id and is never followed: it stays harmless when the
 * timer has run.
 */

static bool is_before(const struct timer *a, const struct timer *b)
{
	return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->id < b->id;
}

static void swap_timers(struct timer *a, struct timer *b)
{
	struct timer t = *a;

	*a = *b;
	*b = t;
}

static void sift_up(struct loop *loop, size_t i)
{
	struct timer *v = loop->timers.v;

	for (; i > 0 && is_before(&v[i], &v[(i - 1) / 2]); i = (i - 1) / 2)
		swap_timers(&v[i], &v[(i - 1) / 2]);
}

static void sift_down(struct loop *loop, size_t i)
{
	struct timer *v = loop->timers.v;

	for (;;) {
		size_t child = 2 * i + 1;

		if (child >= loop->timers.n)
			return;
		if (child + 1 < loop->timers.n && is_before(&v[child + 1], &v[child]))
			child++;
		if (is_before(&v[i], &v[child]))
			return;
		swap_timers(&v[i], &v[child]);
		i = child;
	}
}

static void loop_drop_timer(struct loop *loop, size_t i)
{
	loop->timers.v[i] = loop->timers.v[--loop->timers.n];
	if (i == loop->timers.n)
		return;
	sift_down(loop, i);
	sift_up(loop, i);
}

struct loop_timer *loop_add_timer(struct loop *loop, int64_t at_ms, loop_timer_fn *fn, void *ctx)
{
	uintptr_t id = ++loop->last_timer;

	/* Put the timer behind those already due: one that renews itself for the past would starve
	 * them. */
	if (loop->running && at_ms < clock_ms())
		at_ms = clock_ms();
	if (!loop->running && loop->timers.n == 0)
		loop->seen_ms = clock_ms();
	*vec_push(&loop->timers) = (struct timer){.at_ms = at_ms, .id = id, .fn = fn, .ctx = ctx};
	sift_up(loop, loop->timers.n - 1);
	return (struct loop_timer *)id;
}

void loop_remove_timer(struct loop *loop, struct loop_timer *timer)
{
	for (size_t i = 0; timer && i < loop->timers.n; i++) {
		if (loop->timers.v[i].id != (uintptr_t)timer)
			continue;
		loop_drop_timer(loop, i);
		return;
	}
}

/* Timers made meanwhile wait for the next round: one that renews itself for now would block all
 * else. */
static int dispatch_timers(struct loop *loop, struct err *err)
{
	int64_t now_ms = clock_ms();
	uintptr_t last = loop->last_timer;

	while (loop->timers.n > 0 && !loop->stop) {
		struct timer timer = loop->timers.v[0];

		if (timer.at_ms > now_ms || timer.id > last)
			return 0;
		loop_drop_timer(loop, 0);
		int64_t start_ms = trace_is_on(TRACE_LOOP) ? clock_ms() : 0;
		int r = timer.fn(timer.ctx, err);
		loop_trace(start_ms, -1, (loop_fn *)timer.fn);
		if (r < 0)
			return r;
	}
	return 0;
}

/*
 * Signals
 */

/* Written by the handler: one flag for each signal, so that a full pipe loses none. */
static volatile sig_atomic_t signal_pending[NSIG];
static volatile sig_atomic_t signal_pipe[NSIG]; /* where to write; 0: not ours */

static void loop_wake(int fd)
{
	if (write(fd, "", 1) < 0)
		(void)0; /* full: the reader is awake already */
}

static void on_signal(int sig)
{
	int saved = errno;

	signal_pending[sig] = 1;
	loop_wake(signal_pipe[sig]);
	errno = saved;
}

static int loop_make_pipe(struct loop *loop, struct err *err)
{
	if (loop->pipe[0] >= 0)
		return 0;
	return fs_pipe(loop->pipe, O_NONBLOCK, err);
}

int loop_add_signal(struct loop *loop, int sig, loop_signal_fn *fn, void *ctx, struct err *err)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	struct signal_source source = {.sig = sig, .fn = fn, .ctx = ctx};

	BUG_ON(sig <= 0 || sig >= NSIG || signal_pipe[sig]);
	int r = loop_make_pipe(loop, err);
	if (r < 0)
		return r;
	signal_pending[sig] = 0;
	signal_pipe[sig] = loop->pipe[1];
	sigfillset(&action.sa_mask);
	if (sigaction(sig, &action, &source.before) < 0) {
		signal_pipe[sig] = 0;
		return err_set_errno(err, E_IO, errno, "cannot wait for signal %d", sig);
	}
	*vec_push(&loop->signals) = source;
	return 0;
}

static void restore_signal(const struct signal_source *source)
{
	sigaction(source->sig, &source->before, NULL);
	signal_pipe[source->sig] = 0;
}

void loop_remove_signal(struct loop *loop, int sig)
{
	for (size_t i = 0; i < loop->signals.n; i++) {
		if (loop->signals.v[i].sig != sig)
			continue;
		restore_signal(&loop->signals.v[i]);
		loop->signals.v[i] = loop->signals.v[--loop->signals.n];
		return;
	}
}

static const int loop_interrupts[] = {SIGINT, SIGTERM, SIGHUP};

int loop_add_interrupts(struct loop *loop, loop_signal_fn *fn, void *ctx, struct err *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(loop_interrupts); i++)
		r = loop_add_signal(loop, loop_interrupts[i], fn, ctx, err);
	if (r < 0)
		loop_remove_interrupts(loop);
	return r;
}

static int loop_on_interrupt(void *ctx, int sig UNUSED, struct err *err UNUSED)
{
	*(volatile int *)ctx = 1;
	return 0;
}

int loop_flag_interrupts(struct loop *loop, volatile int *interrupted, struct err *err)
{
	return loop_add_interrupts(loop, loop_on_interrupt, (void *)interrupted, err);
}

void loop_remove_interrupts(struct loop *loop)
{
	for (size_t i = 0; i < ARRAY_LEN(loop_interrupts); i++)
		loop_remove_signal(loop, loop_interrupts[i]);
}

static int dispatch_signals(struct loop *loop, struct err *err)
{
	char drain[64];
	int r = 0;

	while (read(loop->pipe[0], drain, sizeof(drain)) > 0)
		;
	for (size_t i = 0; i < loop->signals.n && !loop->stop && r >= 0; i++) {
		struct signal_source source = loop->signals.v[i];

		if (!signal_pending[source.sig])
			continue;
		signal_pending[source.sig] = 0;
		r = source.fn(source.ctx, source.sig, err);
	}
	/* Signals that are still pending wait for the next run. */
	if (loop->stop || r < 0)
		loop_wake(loop->pipe[1]);
	return r < 0 ? r : 0;
}

/*
 * The loop
 */

static int loop_wait_ms(const struct loop *loop, int64_t now_ms)
{
	if (loop->timers.n == 0)
		return -1;
	int64_t at_ms = loop->timers.v[0].at_ms;
	if (at_ms <= now_ms)
		return 0;
	return at_ms - now_ms > WAIT_MAX_MS ? WAIT_MAX_MS : (int)(at_ms - now_ms);
}

/* limit_ms: the longest time expected since the last check; -1: any. */
static void loop_check_time(struct loop *loop, int limit_ms)
{
	int64_t now_ms = clock_ms();

	if (limit_ms >= 0 && now_ms - loop->seen_ms >= limit_ms + ASLEEP_MS)
		loop->woke_ms = now_ms;
	loop->seen_ms = now_ms;
}

static int wait_for_events(struct loop *loop)
{
	int limit_ms = loop_wait_ms(loop, clock_ms());
	int r = poll(loop->polled.v, loop->polled.n, limit_ms) < 0 ? -errno : 0;

	loop_check_time(loop, limit_ms);
	return r;
}

/* Run one round; 1 while there is something to wait for. */
static int loop_run_once(struct loop *loop, struct err *err)
{
	sweep_fds(loop);
	size_t wanted = prepare_fds(loop);
	if (loop->stop || wanted + loop->timers.n + loop->signals.n == 0)
		return 0;
	int r = wait_for_events(loop);
	if (r == -EINTR || r == -EAGAIN)
		return 1;
	if (r < 0)
		return err_set_errno(err, E_IO, -r, "cannot wait for input");
	if (loop->polled.v[loop->polled.n - 1].revents)
		r = dispatch_signals(loop, err);
	if (r == 0)
		r = dispatch_timers(loop, err);
	if (r == 0)
		r = dispatch_fds(loop, err);
	return r < 0 ? r : !loop->stop;
}

int loop_run(struct loop *loop, struct err *err)
{
	int r;

	BUG_ON(loop->running);
	loop->running = true;
	while ((r = loop_run_once(loop, err)) > 0)
		;
	loop->running = false;
	loop->stop = false;
	sweep_fds(loop);
	return r;
}

void loop_stop(struct loop *loop)
{
	loop->stop = true;
}

int64_t loop_woke_ms(struct loop *loop)
{
	/* The machine may have slept in the middle of a call from here. */
	if (loop->running && loop->timers.n > 0)
		loop_check_time(loop, 0);
	return loop->woke_ms;
}

void loop_free(struct loop *loop)
{
	if (!loop)
		return;
	BUG_ON(loop->running);
	vec_foreach (struct signal_source, source, &loop->signals)
		restore_signal(source);
	for (size_t i = 0; i < loop->fds.n; i++)
		free(loop->fds.v[i]);
	auto_fd(&loop->pipe[0]);
	auto_fd(&loop->pipe[1]);
	vec_done(&loop->fds);
	vec_done(&loop->polled);
	vec_done(&loop->timers);
	vec_done(&loop->signals);
	free(loop);
}

/*
 * Waiting for what was started
 */

enum { INTERRUPT_MS = 100 };

static int wait_on_timer(void *ctx, struct err *err UNUSED)
{
	struct loop_wait *wait = ctx;

	loop_stop(wait->loop);
	return 0;
}

/* When the loop is to stop in order to be called again; 0: only when all is done. */
static int64_t wait_next_ms(const struct loop_wait *wait)
{
	int64_t next_ms = wait->interrupted ? clock_ms() + INTERRUPT_MS : 0;

	if (wait->deadline_ms && (!next_ms || wait->deadline_ms < next_ms))
		return wait->deadline_ms;
	return next_ms;
}

int loop_wait_run(struct loop_wait *wait, struct err *err)
{
	int r = 0;

	while (r == 0 && wait->n_open > 0) {
		int64_t next_ms = wait_next_ms(wait);

		if (wait->interrupted && *wait->interrupted)
			return err_set(err, E_CANCELED, "interrupted");
		struct loop_timer *timer =
			next_ms ? loop_add_timer(wait->loop, next_ms, wait_on_timer, wait) : NULL;

		r = loop_run(wait->loop, err);
		loop_remove_timer(wait->loop, timer);
		if (wait->deadline_ms && clock_ms() >= wait->deadline_ms)
			break;
	}
	return r;
}

void loop_wait_done(struct loop_wait *wait)
{
	wait->n_open--;
	if (wait->n_open == 0)
		loop_stop(wait->loop);
}

int loop_pause(struct loop *loop, int64_t ms, const volatile int *interrupted, struct err *err)
{
	struct loop_wait wait = {.loop = loop,
		.n_open = 1,
		.deadline_ms = clock_ms() + ms,
		.interrupted = interrupted};

	return loop_wait_run(&wait, err);
}
