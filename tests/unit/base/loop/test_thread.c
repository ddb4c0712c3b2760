/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/par.h"

enum { MANY = 40 };

static _Thread_local bool is_spoilt;

struct piece {
	pthread_t thread;
	atomic_int done;
	bool blocks_signals, spoils, was_spoilt;
	int wait_fd; /* -1: for nothing */
};

static void work(void *ctx)
{
	struct piece *piece = ctx;
	sigset_t now;
	char byte;

	pthread_sigmask(SIG_SETMASK, NULL, &now);
	piece->blocks_signals = sigismember(&now, SIGINT) == 1 && sigismember(&now, SIGCHLD) == 1;
	piece->thread = pthread_self();
	piece->was_spoilt = is_spoilt;
	if (piece->wait_fd >= 0 && read(piece->wait_fd, &byte, 1) < 0)
		return;
	is_spoilt = piece->spoils;
	if (piece->spoils)
		thread_spoil();
	atomic_fetch_add(&piece->done, 1);
}

static void run(struct piece *piece)
{
	struct thread *thread = thread_start(work, piece);

	assert_non_null(thread);
	thread_wait(thread);
	assert_int_equal(piece->done, 1);
	assert_true(piece->blocks_signals);
}

static void test_one_is_used_again(void **state)
{
	struct piece first = {.wait_fd = -1}, second = {.wait_fd = -1};

	run(&first);
	run(&second);
	assert_true(pthread_equal(first.thread, second.thread));
}

static void test_a_spoilt_one_is_not(void **state)
{
	struct piece first = {.wait_fd = -1, .spoils = true}, second = {.wait_fd = -1};

	run(&first);
	run(&second);
	assert_false(second.was_spoilt);
}

static void test_many_at_once(void **state)
{
	struct piece pieces[MANY];
	struct thread *threads[MANY];
	int gate[2];

	assert_int_equal(pipe(gate), 0);
	thread_prepare(3);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < MANY; i++) {
			pieces[i] = (struct piece){.wait_fd = gate[0], .spoils = i % 7 == 0};
			threads[i] = thread_start(work, &pieces[i]);
			assert_non_null(threads[i]);
		}
		for (int i = 0; i < MANY; i++)
			assert_int_equal(write(gate[1], "x", 1), 1);
		for (int i = 0; i < MANY; i++) {
			thread_wait(threads[i]);
			assert_int_equal(pieces[i].done, 1);
			assert_false(pieces[i].was_spoilt);
		}
	}
	close(gate[0]);
	close(gate[1]);
}

static void test_one_that_is_left(void **state)
{
	struct piece piece = {.wait_fd = -1};
	char byte = 'x';
	int gate[2];

	assert_int_equal(pipe(gate), 0);
	piece.wait_fd = gate[0];
	thread_leave(thread_start(work, &piece));
	assert_int_equal(write(gate[1], &byte, 1), 1);
	while (!atomic_load(&piece.done))
		sched_yield();
	close(gate[0]);
	close(gate[1]);
}

static void test_the_child_of_a_fork_has_none(void **state)
{
	int status;

	thread_prepare(4);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct piece piece = {.wait_fd = -1};
		struct thread *thread = thread_start(work, &piece);

		alarm(30);
		if (thread)
			thread_wait(thread);
		_exit(thread && piece.done == 1 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_is_used_again),
		cmocka_unit_test(test_a_spoilt_one_is_not),
		cmocka_unit_test(test_many_at_once),
		cmocka_unit_test(test_one_that_is_left),
		cmocka_unit_test(test_the_child_of_a_fork_has_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
