/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/err.h"

/* A descriptor with what a test wants of it and what it saw. */
struct source {
	struct loop *loop;
	struct loop_fd *handle;
	int fd;
	short wants;
	short seen;
	int n;
	void (*act)(struct source *source);
	struct source *other;
};

static short prepare(void *ctx)
{
	return ((struct source *)ctx)->wants;
}

static int dispatch(void *ctx, short revents, struct err *err)
{
	struct source *source = ctx;

	source->seen = revents;
	source->n++;
	if (source->act)
		source->act(source);
	return 0;
}

static const struct loop_fd_ops ops = {.prepare = prepare, .dispatch = dispatch};

static void add(struct loop *loop, struct source *source, int fd, short wants)
{
	source->loop = loop;
	source->fd = fd;
	source->wants = wants;
	source->handle = loop_add_fd(loop, fd, &ops, source);
}

static void run(struct loop *loop)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(loop_run(loop, &err), 0);
	assert_false(err_is_set(&err));
}

static int stop_timer(void *ctx, struct err *err)
{
	loop_stop(ctx);
	return 0;
}

static void make_pair(int fds[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static void close_pair(int fds[2])
{
	close(fds[0]);
	close(fds[1]);
}

static void read_one(struct source *source)
{
	char c;

	if (read(source->fd, &c, 1) <= 0)
		loop_remove_fd(source->loop, source->handle);
}

static void test_nothing(void **state)
{
	struct loop *loop = loop_new();

	run(loop);
	loop_free(loop);
	loop_free(NULL);
}

static void test_read_to_the_end(void **state)
{
	struct loop *loop = loop_new();
	struct source source = {.act = read_one};
	int fds[2];

	make_pair(fds);
	assert_int_equal(write(fds[1], "abc", 3), 3);
	close(fds[1]);
	add(loop, &source, fds[0], POLLIN);
	run(loop); /* ends because the source removed itself */
	assert_int_equal(source.n, 4);
	loop_free(loop);
	close(fds[0]);
}

/* The other end has gone, but nothing is wanted now: no dispatch, and above all no spinning. */
static void test_back_pressure(void **state)
{
	struct loop *loop = loop_new();
	struct source source = {0};
	struct rusage before, after;
	int fds[2];

	make_pair(fds);
	assert_int_equal(write(fds[1], "abc", 3), 3);
	close(fds[1]);
	add(loop, &source, fds[0], 0);
	loop_add_timer(loop, clock_ms() + 200, stop_timer, loop);
	getrusage(RUSAGE_SELF, &before);
	run(loop);
	getrusage(RUSAGE_SELF, &after);
	assert_int_equal(source.n, 0);
	long us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000L +
		  (after.ru_utime.tv_usec - before.ru_utime.tv_usec) +
		  (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000L +
		  (after.ru_stime.tv_usec - before.ru_stime.tv_usec);
	assert_in_range(us, 0, 100000);

	/* Nothing at all is waited for any more. */
	run(loop);
	source.wants = POLLIN;
	source.act = read_one;
	run(loop);
	assert_int_equal(source.n, 4);
	loop_free(loop);
	close(fds[0]);
}

enum { PUMPED = 4 << 20 };

static size_t n_written, n_read;

static void write_some(struct source *source)
{
	static const char zeros[65536];
	ssize_t n = send(source->fd, zeros, sizeof(zeros), MSG_DONTWAIT);

	assert_true(n > 0);
	n_written += (size_t)n;
	if (n_written < PUMPED)
		return;
	loop_remove_fd(source->loop, source->handle);
	shutdown(source->fd, SHUT_WR);
}

static void read_some(struct source *source)
{
	static char data[65536];
	ssize_t n = recv(source->fd, data, sizeof(data), MSG_DONTWAIT);

	assert_true(n >= 0);
	n_read += (size_t)n;
	if (n == 0)
		loop_remove_fd(source->loop, source->handle);
}

static int let_read(void *ctx, struct err *err)
{
	struct source *reader = ctx;

	/* A busy machine: the loop has only begun. */
	if (n_written == 0) {
		loop_add_timer(reader->loop, clock_ms() + 30, let_read, reader);
		return 0;
	}
	/* Full by now: the writer waits. */
	assert_in_range(n_written, 1, PUMPED - 1);
	assert_int_equal(n_read, 0);
	reader->wants = POLLIN;
	return 0;
}

static void test_writer_waits_for_reader(void **state)
{
	struct loop *loop = loop_new();
	struct source writer = {.act = write_some}, reader = {.act = read_some};
	int fds[2];

	n_written = n_read = 0;
	make_pair(fds);
	add(loop, &writer, fds[0], POLLOUT);
	add(loop, &reader, fds[1], 0);
	loop_add_timer(loop, clock_ms() + 30, let_read, &reader);
	run(loop);
	assert_true(n_written >= PUMPED);
	assert_int_equal(n_read, n_written);
	loop_free(loop);
	close_pair(fds);
}

/* One direction ends, the other goes on. */
static void test_half_close(void **state)
{
	struct loop *loop = loop_new();
	struct source source = {.act = read_one};
	int fds[2];
	char data[8];

	make_pair(fds);
	assert_int_equal(write(fds[1], "q", 1), 1);
	assert_int_equal(shutdown(fds[1], SHUT_WR), 0);
	add(loop, &source, fds[0], POLLIN);
	run(loop);
	assert_int_equal(source.n, 2);
	assert_int_equal(write(fds[0], "answer", 6), 6);
	assert_int_equal(read(fds[1], data, sizeof(data)), 6);
	loop_free(loop);
	close_pair(fds);
}

static void remove_other(struct source *source)
{
	loop_remove_fd(source->loop, source->handle);
	if (source->other) {
		loop_remove_fd(source->loop, source->other->handle);
		source->other->other = NULL;
	}
}

static void test_remove_in_dispatch(void **state)
{
	struct loop *loop = loop_new();
	struct source a = {.act = remove_other}, b = {.act = remove_other};
	int fds[2];

	make_pair(fds);
	a.other = &b;
	b.other = &a;
	add(loop, &a, fds[0], POLLOUT);
	add(loop, &b, fds[1], POLLOUT);
	run(loop);
	/* Both were ready; whichever came first took the other away. */
	assert_int_equal(a.n + b.n, 1);
	loop_free(loop);
	close_pair(fds);
}

static void add_other(struct source *source)
{
	if (source->n == 1)
		add(source->loop, source->other, source->fd, POLLOUT);
	else
		loop_remove_fd(source->loop, source->handle);
}

static void remove_self(struct source *source)
{
	loop_remove_fd(source->loop, source->handle);
}

static void test_add_in_dispatch(void **state)
{
	enum { N = 100 };
	struct loop *loop = loop_new();
	struct source sources[N] = {0};
	int fds[2];

	make_pair(fds);
	for (int i = 0; i < N; i++) {
		sources[i].act = i + 1 < N ? add_other : remove_self;
		sources[i].other = &sources[i + 1 < N ? i + 1 : 0];
	}
	add(loop, &sources[0], fds[0], POLLOUT);
	run(loop);
	for (int i = 0; i < N; i++)
		assert_int_equal(sources[i].n, i + 1 < N ? 2 : 1);
	loop_free(loop);
	close_pair(fds);
}

static void swap_fd(struct source *source)
{
	remove_self(source);
	close(source->fd);
	/* The lowest free number is the one just closed. */
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_int_equal(fd, source->fd);
	add(source->loop, source->other, fd, POLLOUT);
}

static void test_number_used_again(void **state)
{
	struct loop *loop = loop_new();
	struct source next = {.act = remove_self}, first = {.act = swap_fd, .other = &next};

	add(loop, &first, open("/dev/null", O_RDWR | O_CLOEXEC), POLLIN);
	run(loop);
	assert_int_equal(first.n, 1);
	assert_int_equal(next.n, 1);
	assert_int_equal(next.seen, POLLOUT);
	loop_free(loop);
	close(next.fd);
}

static void test_remove_before_run(void **state)
{
	struct loop *loop = loop_new();
	struct source a = {.act = remove_self}, b = {.act = remove_self};

	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	add(loop, &a, fd, POLLOUT);
	add(loop, &b, fd, POLLOUT);
	loop_remove_fd(loop, a.handle);
	loop_remove_fd(loop, NULL);
	run(loop);
	assert_int_equal(a.n, 0);
	assert_int_equal(b.n, 1);
	loop_free(loop);
	close(fd);
}

static int fail_dispatch(void *ctx, short revents, struct err *err)
{
	return err_set(err, E_RUN_LOST, "gone");
}

static void test_error_ends_run(void **state)
{
	static const struct loop_fd_ops failing = {.prepare = prepare, .dispatch = fail_dispatch};
	AUTO_ERR struct err err = {0};
	struct source source = {.wants = POLLOUT};
	struct loop *loop = loop_new();

	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct loop_fd *handle = loop_add_fd(loop, fd, &failing, &source);
	assert_int_equal(loop_run(loop, &err), -ERR_REMOTE);
	assert_string_equal(err.message, "gone");
	loop_remove_fd(loop, handle);
	run(loop);
	loop_free(loop);
	close(fd);
}

/*
 * Timers
 */

struct order {
	struct loop *loop;
	char text[64];
	size_t len;
	struct loop_timer *victim;
};

struct step {
	struct order *order;
	char name;
};

static int take_step(void *ctx, struct err *err)
{
	struct step *step = ctx;

	step->order->text[step->order->len++] = step->name;
	return 0;
}

static void test_timer_order(void **state)
{
	struct order order = {.loop = loop_new()};
	struct step steps[6];
	static const int at[] = {30, 10, 20, 10, -5, 30};
	int64_t start_ms = clock_ms();

	for (int i = 0; i < 6; i++) {
		steps[i] = (struct step){.order = &order, .name = (char)('0' + i)};
		loop_add_timer(order.loop, start_ms + at[i], take_step, &steps[i]);
	}
	run(order.loop);
	assert_true(clock_ms() >= start_ms + 30);
	assert_string_equal(order.text, "413205");
	loop_free(order.loop);
}

static void test_many_timers(void **state)
{
	enum { N = 5000 };
	static struct loop_timer *timers[N];
	static int64_t counts[N];
	struct loop *loop = loop_new();
	uint32_t random = 1;
	AUTO_ERR struct err err = {0};

	(void)err;
	for (int i = 0; i < N; i++) {
		random = random * 1664525 + 1013904223;
		timers[i] = loop_add_timer(
			loop, clock_ms() + 100000 + random % 1000, stop_timer, &counts[i]);
	}
	for (int i = 0; i < N; i++) {
		random = random * 1664525 + 1013904223;
		int j = (int)(random % N);
		loop_remove_timer(loop, timers[j]);
		loop_remove_timer(loop, timers[j]);
	}
	for (int i = 0; i < N; i++)
		loop_remove_timer(loop, timers[i]);
	run(loop); /* none is left, so it ends now */
	loop_free(loop);
}

static int remove_victim(void *ctx, struct err *err)
{
	struct order *order = ctx;

	order->text[order->len++] = 'r';
	loop_remove_timer(order->loop, order->victim);
	return 0;
}

static void test_remove_timer(void **state)
{
	struct order order = {.loop = loop_new()};
	struct step a = {&order, 'a'}, b = {&order, 'b'};
	int64_t now = clock_ms();

	struct loop_timer *ran = loop_add_timer(order.loop, now, take_step, &a);
	loop_add_timer(order.loop, now + 1, remove_victim, &order);
	order.victim = loop_add_timer(order.loop, now + 1, take_step, &b);
	run(order.loop);
	assert_string_equal(order.text, "ar");
	/* One that has run, and nothing. */
	struct loop_timer *next = loop_add_timer(order.loop, now, take_step, &b);
	loop_remove_timer(order.loop, ran);
	loop_remove_timer(order.loop, NULL);
	run(order.loop);
	loop_remove_timer(order.loop, next);
	assert_string_equal(order.text, "arb");
	loop_free(order.loop);
}

static int renew(void *ctx, struct err *err)
{
	struct source *source = ctx;

	source->n++;
	loop_add_timer(source->loop, 0, renew, source);
	return 0;
}

/* A timer that is always due keeps neither descriptors nor other timers waiting. */
static void test_no_starvation(void **state)
{
	struct loop *loop = loop_new();
	struct source greedy = {.loop = loop}, source = {.act = remove_self};

	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	add(loop, &source, fd, POLLOUT);
	loop_add_timer(loop, 0, renew, &greedy);
	loop_add_timer(loop, clock_ms() + 20, stop_timer, loop);
	run(loop);
	assert_int_equal(source.n, 1);
	assert_true(greedy.n > 1);
	loop_free(loop);
	close(fd);
}

static int fail_timer(void *ctx, struct err *err)
{
	return err_set(err, E_RUN_TIMEOUT, "late");
}

static void test_timer_error(void **state)
{
	struct loop *loop = loop_new();
	AUTO_ERR struct err err = {0};

	loop_add_timer(loop, clock_ms(), fail_timer, NULL);
	assert_int_equal(loop_run(loop, &err), -ERR_REMOTE);
	assert_string_equal(err.message, "late");
	run(loop); /* it ran once and is gone */
	loop_free(loop);
}

static void test_stop_before_run(void **state)
{
	struct loop *loop = loop_new();
	struct source source = {.act = remove_self};

	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	add(loop, &source, fd, POLLOUT);
	loop_stop(loop);
	run(loop);
	assert_int_equal(source.n, 0);
	run(loop);
	assert_int_equal(source.n, 1);
	loop_free(loop);
	close(fd);
}

/*
 * Signals
 */

struct signals {
	struct loop *loop;
	int n[NSIG];
	int stop_after;
};

static int note_signal(void *ctx, int sig, struct err *err)
{
	struct signals *signals = ctx;
	int n = 0;

	signals->n[sig]++;
	for (int i = 0; i < NSIG; i++)
		n += signals->n[i];
	if (n >= signals->stop_after)
		loop_stop(signals->loop);
	return 0;
}

static int raise_timer(void *ctx, struct err *err)
{
	raise(SIGUSR1);
	raise(SIGUSR2);
	return 0;
}

static void test_signals(void **state)
{
	struct signals signals = {.loop = loop_new(), .stop_after = 2};
	AUTO_ERR struct err err = {0};
	struct sigaction action;

	signal(SIGUSR1, SIG_IGN);
	assert_int_equal(loop_add_signal(signals.loop, SIGUSR1, note_signal, &signals, &err), 0);
	assert_int_equal(loop_add_signal(signals.loop, SIGUSR2, note_signal, &signals, &err), 0);
	loop_add_timer(signals.loop, clock_ms() + 5, raise_timer, NULL);
	run(signals.loop);
	assert_int_equal(signals.n[SIGUSR1], 1);
	assert_int_equal(signals.n[SIGUSR2], 1);

	/* Also before the loop runs, and however often at once. */
	signals.stop_after = 3;
	for (int i = 0; i < 100000; i++)
		raise(SIGUSR1);
	run(signals.loop);
	assert_int_equal(signals.n[SIGUSR1], 2);

	loop_remove_signal(signals.loop, SIGUSR1);
	loop_remove_signal(signals.loop, SIGUSR1);
	sigaction(SIGUSR1, NULL, &action);
	assert_ptr_equal(action.sa_handler, SIG_IGN);
	raise(SIGUSR1);
	assert_int_equal(loop_add_signal(signals.loop, SIGUSR1, note_signal, &signals, &err), 0);

	loop_free(signals.loop);
	sigaction(SIGUSR1, NULL, &action);
	assert_ptr_equal(action.sa_handler, SIG_IGN);
	sigaction(SIGUSR2, NULL, &action);
	assert_ptr_equal(action.sa_handler, SIG_DFL);
	signal(SIGUSR1, SIG_DFL);
}

static int raise_interrupts(void *ctx, struct err *err)
{
	raise(SIGINT);
	raise(SIGTERM);
	raise(SIGHUP);
	return 0;
}

static void test_interrupts(void **state)
{
	static const int all[] = {SIGINT, SIGTERM, SIGHUP};
	struct signals signals = {.loop = loop_new(), .stop_after = 3};
	AUTO_ERR struct err err = {0};
	struct sigaction action;

	for (size_t i = 0; i < 3; i++)
		signal(all[i], SIG_IGN);
	assert_int_equal(loop_add_interrupts(signals.loop, note_signal, &signals, &err), 0);
	loop_add_timer(signals.loop, clock_ms() + 5, raise_interrupts, NULL);
	run(signals.loop);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(signals.n[all[i]], 1);

	loop_remove_interrupts(signals.loop);
	for (size_t i = 0; i < 3; i++) {
		sigaction(all[i], NULL, &action);
		assert_ptr_equal(action.sa_handler, SIG_IGN);
		signal(all[i], SIG_DFL);
	}
	loop_free(signals.loop);
}

static int fail_on_signal(void *ctx, int sig, struct err *err)
{
	note_signal(ctx, sig, err);
	return err_set(err, E_CANCELED, "signal %d", sig);
}

/* The first of two signals that came together ends the run; the second is not lost. */
static void test_signal_behind_the_end(void **state)
{
	for (int fails = 0; fails < 2; fails++) {
		struct signals signals = {.loop = loop_new(), .stop_after = fails ? 9 : 1};
		AUTO_ERR struct err err = {0};
		loop_signal_fn *first = fails ? fail_on_signal : note_signal;

		assert_int_equal(loop_add_signal(signals.loop, SIGUSR1, first, &signals, &err), 0);
		assert_int_equal(
			loop_add_signal(signals.loop, SIGUSR2, note_signal, &signals, &err), 0);
		raise(SIGUSR1);
		raise(SIGUSR2);
		assert_int_equal(loop_run(signals.loop, &err), fails ? -ERR_CANCELED : 0);
		assert_int_equal(signals.n[SIGUSR2], 0);
		signals.stop_after = 2;
		loop_add_timer(signals.loop, clock_ms() + 10000, stop_timer, signals.loop);
		run(signals.loop);
		assert_int_equal(signals.n[SIGUSR1], 1);
		assert_int_equal(signals.n[SIGUSR2], 1);
		loop_free(signals.loop);
	}
}

static void test_timers_of_all_times(void **state)
{
	struct loop *loop = loop_new();

	loop_add_timer(loop, INT64_MAX, stop_timer, NULL);
	loop_add_timer(loop, INT64_MIN, stop_timer, loop);
	run(loop);
	loop_free(loop);
}

static void test_signal_after_another_loop(void **state)
{
	for (int i = 0; i < 3; i++) {
		struct signals signals = {.loop = loop_new(), .stop_after = 1};
		AUTO_ERR struct err err = {0};
		assert_int_equal(
			loop_add_signal(signals.loop, SIGUSR1, note_signal, &signals, &err), 0);
		raise(SIGUSR1);
		run(signals.loop);
		assert_int_equal(signals.n[SIGUSR1], 1);
		loop_free(signals.loop);
	}
}

static void test_signal_that_cannot_be(void **state)
{
	struct loop *loop = loop_new();
	struct signals signals = {.loop = loop};
	AUTO_ERR struct err err = {0};

	assert_int_equal(loop_add_signal(loop, SIGKILL, note_signal, &signals, &err), -ERR_IO);
	assert_string_equal(err.message, "cannot wait for signal 9: Invalid argument");
	run(loop); /* nothing was added */
	loop_free(loop);
}

static void test_child(void **state)
{
	struct signals signals = {.loop = loop_new(), .stop_after = 1};
	AUTO_ERR struct err err = {0};
	int status;

	assert_int_equal(loop_add_signal(signals.loop, SIGCHLD, note_signal, &signals, &err), 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(3);
	run(signals.loop); /* the signal alone is worth waiting for */
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 3);
	loop_free(signals.loop);
}

struct sleeper {
	struct loop *loop;
	int ticks;
	bool until_woken;
};

static int doze(void *ctx, struct err *err)
{
	struct sleeper *sleeper = ctx;

	if (sleeper->until_woken)
		setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 10000}, NULL);
	if (sleeper->until_woken ? loop_woke_ms(sleeper->loop) == 0 : ++sleeper->ticks < 5)
		loop_add_timer(sleeper->loop, clock_ms() + 20, doze, sleeper);
	return 0;
}

/* As if the process had been stopped at that place. */
static void stand_still(int sig)
{
	nanosleep(&(struct timespec){.tv_sec = 3, .tv_nsec = 100000000}, NULL);
}

static void test_sleep_is_noticed(void **state)
{
	struct sleeper sleeper = {.loop = loop_new()};
	struct sigaction action = {.sa_handler = stand_still}, before;

	doze(&sleeper, NULL);
	run(sleeper.loop);
	assert_int_equal(loop_woke_ms(sleeper.loop), 0);

	sleeper.until_woken = true;
	assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
	int64_t begin_ms = clock_ms();
	doze(&sleeper, NULL);
	run(sleeper.loop);
	setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	sigaction(SIGALRM, &before, NULL);
	assert_true(loop_woke_ms(sleeper.loop) >= begin_ms + 3000);
	loop_free(sleeper.loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_read_to_the_end),
		cmocka_unit_test(test_back_pressure),
		cmocka_unit_test(test_writer_waits_for_reader),
		cmocka_unit_test(test_half_close),
		cmocka_unit_test(test_remove_in_dispatch),
		cmocka_unit_test(test_add_in_dispatch),
		cmocka_unit_test(test_number_used_again),
		cmocka_unit_test(test_remove_before_run),
		cmocka_unit_test(test_error_ends_run),
		cmocka_unit_test(test_timer_order),
		cmocka_unit_test(test_many_timers),
		cmocka_unit_test(test_remove_timer),
		cmocka_unit_test(test_no_starvation),
		cmocka_unit_test(test_timer_error),
		cmocka_unit_test(test_stop_before_run),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_interrupts),
		cmocka_unit_test(test_signal_behind_the_end),
		cmocka_unit_test(test_timers_of_all_times),
		cmocka_unit_test(test_signal_after_another_loop),
		cmocka_unit_test(test_signal_that_cannot_be),
		cmocka_unit_test(test_child),
		cmocka_unit_test(test_sleep_is_noticed),
	};

	return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
