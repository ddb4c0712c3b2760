/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/os.h"
#include "base/util/mem.h"

enum { N_MAX = 100000, WIDTH_MAX = 16 };

static void test_width(void **state)
{
	assert_in_range(par_width(), 1, WIDTH_MAX);
	assert_true(par_width() <= os_processors());
	assert_int_equal(par_width(), par_width());
}

struct count {
	atomic_uchar *seen;
	atomic_bool bad_worker;
	size_t sums[WIDTH_MAX]; /* each touched by one worker at a time only */
};

static void count_item(void *ctx, size_t i, unsigned worker)
{
	struct count *count = ctx;

	atomic_fetch_add(&count->seen[i], 1);
	if (worker >= par_width())
		count->bad_worker = true;
	else
		count->sums[worker] += i;
}

static void check_for(size_t n)
{
	struct count count = {.seen = mem_alloc(n + 1, sizeof(*count.seen))};
	size_t sum = 0;

	par_for(n, count_item, &count);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(count.seen[i], 1);
	assert_int_equal(count.seen[n], 0);
	assert_false(count.bad_worker);
	for (size_t i = 0; i < WIDTH_MAX; i++)
		sum += count.sums[i];
	assert_int_equal(sum, n ? n * (n - 1) / 2 : 0);
	free(count.seen);
}

static void test_for(void **state)
{
	static const size_t sizes[] = {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1000, 4097, N_MAX};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		check_for(sizes[i]);
	for (int i = 0; i < 200; i++)
		check_for(50);
}

/* Two items that each wait for the other end only if they run at the same time. */
struct meeting {
	atomic_uint n;
	atomic_bool alone;
};

static void meet(struct meeting *meeting)
{
	time_t end = time(NULL) + 20;

	atomic_fetch_add(&meeting->n, 1);
	while (meeting->n < 2) {
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		if (time(NULL) > end) {
			meeting->alone = true;
			return;
		}
	}
}

static void meet_item(void *ctx, size_t i, unsigned worker)
{
	meet(ctx);
}

static void meet_queued(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	if (item == ctx) {
		par_queue_add(queue, (char *)item + 1);
		par_queue_add(queue, (char *)item + 1);
		par_queue_add(queue, (char *)item + 1);
		return;
	}
	meet(ctx);
}

static void test_at_the_same_time(void **state)
{
	struct meeting of_for = {0}, of_queue = {0};

	if (par_width() < 2)
		skip();
	par_for(2, meet_item, &of_for);
	assert_int_equal(of_for.n, 2);
	assert_false(of_for.alone);
	par_queue_run_apart(meet_queued, &of_queue, &of_queue, -1);
	assert_int_equal(of_queue.n, 3);
	assert_false(of_queue.alone);
}

static void nested_item(void *ctx, size_t i, unsigned worker)
{
	struct count *counts = ctx;

	par_for(100, count_item, &counts[i]);
}

static void test_nested(void **state)
{
	struct count counts[8] = {0};

	for (size_t i = 0; i < 8; i++)
		counts[i].seen = mem_alloc(100, sizeof(*counts[i].seen));
	par_for(8, nested_item, counts);
	for (size_t i = 0; i < 8; i++) {
		for (size_t j = 0; j < 100; j++)
			assert_int_equal(counts[i].seen[j], 1);
		free(counts[i].seen);
	}
}

/* A tree in which the item is the number of levels below: 3 children each. */
struct tree {
	atomic_size_t n;
	atomic_bool bad_worker;
};

static void grow(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct tree *tree = ctx;
	size_t levels = (size_t)item;

	atomic_fetch_add(&tree->n, 1);
	if (worker >= par_width())
		tree->bad_worker = true;
	for (int i = 0; i < 3 && levels > 1; i++)
		par_queue_add(queue, (void *)(levels - 1));
}

static void test_queue(void **state)
{
	static const size_t want[] = {1, 4, 13, 40, 121, 364, 1093, 3280, 9841, 29524};

	for (size_t levels = 1; levels <= sizeof(want) / sizeof(*want); levels++) {
		struct tree tree = {0};
		par_queue_run_apart(grow, &tree, (void *)levels, -1);
		assert_int_equal(tree.n, want[levels - 1]);
		assert_false(tree.bad_worker);
	}
	for (int i = 0; i < 300; i++) {
		struct tree tree = {0};
		par_queue_run_apart(grow, &tree, (void *)3, -1);
		assert_int_equal(tree.n, 13);
	}
}

struct apart {
	pthread_t caller;
	int fd;
	atomic_uint on_caller, wrong;
};

static void poll_apart(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct apart *apart = ctx;
	uintptr_t left = (uintptr_t)item;

	apart->on_caller += pthread_equal(apart->caller, pthread_self()) != 0;
	apart->wrong += fcntl(apart->fd, F_GETFD) < 0;
	for (int i = 0; left && i < 3; i++)
		par_queue_add(queue, (void *)(left - 1));
}

/* The descriptor that is named can be used, and the caller keeps all of its own. */
static void test_queue_apart(void **state)
{
	struct apart apart = {.caller = pthread_self()};
	int other;

	assert_true((other = fcntl(2, F_DUPFD_CLOEXEC, 3)) >= 3);
	assert_true((apart.fd = fcntl(2, F_DUPFD_CLOEXEC, 3)) >= 3);
	for (int i = 0; i < 50; i++)
		par_queue_run_apart(poll_apart, &apart, (void *)5, apart.fd);
	assert_int_equal(apart.wrong, 0);
	assert_int_equal(apart.on_caller, 0);
	assert_int_equal(close(apart.fd), 0);
	assert_int_equal(close(other), 0);
}

static void chain(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	size_t left = (size_t)item;

	*(size_t *)ctx += 1; /* one at a time, in order */
	if (left > 1)
		par_queue_add(queue, (void *)(left - 1));
}

static void test_queue_chain(void **state)
{
	size_t n = 0;

	par_queue_run_apart(chain, &n, (void *)10000, -1);
	assert_int_equal(n, 10000);
}

static void add_many(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	atomic_fetch_add((atomic_size_t *)ctx, 1);
	for (size_t i = 0; item == ctx && i < N_MAX; i++)
		par_queue_add(queue, NULL);
}

static void test_queue_wide(void **state)
{
	atomic_size_t n = 0;

	par_queue_run_apart(add_many, &n, &n, -1);
	assert_int_equal(n, N_MAX + 1);
}

struct task {
	sigset_t mask;
	atomic_bool done;
};

static void note_mask(void *ctx)
{
	struct task *task = ctx;

	pthread_sigmask(SIG_SETMASK, NULL, &task->mask);
	task->done = true;
}

static void test_task(void **state)
{
	struct task task = {0};
	sigset_t before, after;

	pthread_sigmask(SIG_SETMASK, NULL, &before);
	par_wait(par_start(note_mask, &task));
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	assert_true(task.done);
	for (int sig = 1; sig <= 31; sig++) {
		assert_int_equal(sigismember(&before, sig), sigismember(&after, sig));
		if (sig != SIGKILL && sig != SIGSTOP)
			assert_true(sigismember(&task.mask, sig));
	}
	par_wait(NULL);
}

struct left {
	int go, went; /* pipes' ends */
};

static void go_on(void *ctx)
{
	struct left *left = ctx;
	char byte;

	if (read(left->go, &byte, 1) == 1)
		byte = write(left->went, "x", 1) == 1 ? 'y' : 'n';
	free(left);
}

/* What it uses is its own: it ends behind the one that began it. */
static void test_left_alone(void **state)
{
	struct left *left = mem_alloc(1, sizeof(*left));
	int go[2], went[2];
	char byte = 0;

	assert_int_equal(pipe(go), 0);
	assert_int_equal(pipe(went), 0);
	*left = (struct left){go[0], went[1]};
	par_leave(par_start(go_on, left));
	assert_int_equal(write(go[1], "x", 1), 1);
	assert_int_equal(read(went[0], &byte, 1), 1);
	assert_int_equal(byte, 'x');
	par_leave(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_width),
		cmocka_unit_test(test_for),
		cmocka_unit_test(test_at_the_same_time),
		cmocka_unit_test(test_nested),
		cmocka_unit_test(test_queue),
		cmocka_unit_test(test_queue_apart),
		cmocka_unit_test(test_queue_chain),
		cmocka_unit_test(test_queue_wide),
		cmocka_unit_test(test_task),
		cmocka_unit_test(test_left_alone),
	};

	return cmocka_run_group_tests_name("par", tests, NULL, NULL);
}
