/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "base/loop/loop.h"
#include "base/loop/task.h"
#include "base/util/clock.h"

enum { QUERIES = 1000, SOON_MS = 10 };

struct world {
	struct loop *loop;
	struct task *task;
	struct task *waiting; /* whose ask is answered later */
	int queries, posts, dones, result;
	int sum; /* of the thread, looked at while it waits */
	bool later, refuse, cancel_when_requested;
	char message[64];
};

static int response_later(void *ctx, struct err *err)
{
	struct world *world = ctx;

	(void)err;
	task_response(world->waiting, 7, NULL);
	return 0;
}

static void on_query(void *ctx, struct task *task)
{
	struct world *world = ctx;
	struct err error = {0};

	world->queries++;
	world->sum++;
	if (world->cancel_when_requested) {
		task_cancel(task);
		task_response(task, 3, NULL);
	} else if (world->refuse) {
		int r = err_set(&error, E_IO, "no");
		task_response(task, r, &error);
	} else if (world->later) {
		world->waiting = task;
		loop_add_timer(world->loop, clock_ms() + SOON_MS, response_later, world);
	} else {
		task_response(task, world->queries, NULL);
	}
	err_done(&error);
}

static void on_post(void *ctx)
{
	((struct world *)ctx)->posts++;
}

static int on_done(void *ctx, int r, struct err *error, struct err *err)
{
	struct world *world = ctx;

	(void)err;
	world->dones++;
	world->result = r;
	if (err_is_set(error))
		strncat(world->message, error->message, sizeof(world->message) - 1);
	task_free(world->task);
	world->task = NULL;
	return 0;
}

static void run(struct world *world, task_fn *fn)
{
	struct err err = {0};

	world->loop = loop_new();
	task_start(world->loop, fn, on_done, world, &world->task);
	assert_int_equal(loop_run(world->loop, &err), 0);
	assert_int_equal(world->dones, 1);
	loop_free(world->loop);
}

static int query_often(struct task *task, void *ctx, struct err *err)
{
	struct world *world = ctx;

	for (int i = 1; i <= QUERIES; i++) {
		world->sum++;
		if (task_ask(task, on_query, world, err) != i)
			return -1;
	}
	task_post(task, on_post, world);
	return 5;
}

static void test_queries_are_answered_one_by_one(void **state)
{
	struct world world = {0};

	(void)state;
	run(&world, query_often);
	assert_int_equal(world.result, 5);
	assert_int_equal(world.queries, QUERIES);
	assert_int_equal(world.sum, 2 * QUERIES);
	assert_int_equal(world.posts, 1);
}

static int query_once(struct task *task, void *ctx, struct err *err)
{
	return task_ask(task, on_query, ctx, err);
}

static void test_an_response_may_come_later(void **state)
{
	struct world world = {.later = true};

	(void)state;
	run(&world, query_once);
	assert_int_equal(world.result, 7);
}

static void test_a_refusal_reaches_the_end(void **state)
{
	struct world world = {.refuse = true};

	(void)state;
	run(&world, query_once);
	assert_int_equal(world.result, -ERR_IO);
	assert_string_equal(world.message, "no");
}

static int query_twice(struct task *task, void *ctx, struct err *err)
{
	int first = task_ask(task, on_query, ctx, err);

	err_clear(err);
	int second = task_ask(task, on_query, ctx, err);
	return first == -ERR_CANCELED ? second : 1;
}

static void test_cancel_ends_every_query(void **state)
{
	struct world world = {.cancel_when_requested = true};

	(void)state;
	run(&world, query_twice);
	assert_int_equal(world.result, -ERR_CANCELED);
	assert_int_equal(world.queries, 1);
}

static void test_free_ends_a_task_that_waits(void **state)
{
	struct world world = {.loop = loop_new()};

	(void)state;
	task_start(world.loop, query_once, on_done, &world, &world.task);
	task_free(world.task);
	assert_int_equal(world.dones, 0);
	loop_free(world.loop);
	task_free(NULL);
}

static int post_many(struct task *task, void *ctx, struct err *err)
{
	for (int i = 0; i < TASK_POSTS_MAX; i++)
		task_post(task, on_post, ctx);
	(void)err;
	return 0;
}

static void test_posts_arrive_before_the_end(void **state)
{
	struct world world = {0};

	(void)state;
	run(&world, post_many);
	assert_int_equal(world.posts, TASK_POSTS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_queries_are_answered_one_by_one),
		cmocka_unit_test(test_an_response_may_come_later),
		cmocka_unit_test(test_a_refusal_reaches_the_end),
		cmocka_unit_test(test_cancel_ends_every_query),
		cmocka_unit_test(test_free_ends_a_task_that_waits),
		cmocka_unit_test(test_posts_arrive_before_the_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
