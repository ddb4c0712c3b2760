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

struct runtime {
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
	struct runtime *runtime = ctx;

	task_respond(runtime->waiting, 7, NULL);
	return 0;
}

static void on_query(void *ctx, struct task *task)
{
	struct runtime *runtime = ctx;
	struct err error = {0};

	runtime->queries++;
	runtime->sum++;
	if (runtime->cancel_when_requested) {
		task_cancel(task);
		task_respond(task, 3, NULL);
	} else if (runtime->refuse) {
		int r = err_set(&error, E_IO, "no");
		task_respond(task, r, &error);
	} else if (runtime->later) {
		runtime->waiting = task;
		loop_add_timer(runtime->loop, clock_ms() + SOON_MS, response_later, runtime);
	} else {
		task_respond(task, runtime->queries, NULL);
	}
	err_done(&error);
}

static void on_post(void *ctx)
{
	((struct runtime *)ctx)->posts++;
}

static int on_done(void *ctx, int r, struct err *error, struct err *err)
{
	struct runtime *runtime = ctx;

	runtime->dones++;
	runtime->result = r;
	if (err_is_set(error))
		strncat(runtime->message, error->message, sizeof(runtime->message) - 1);
	task_free(runtime->task);
	runtime->task = NULL;
	return 0;
}

static void run(struct runtime *runtime, task_fn *fn)
{
	struct err err = {0};

	runtime->loop = loop_new();
	task_start(runtime->loop, fn, on_done, runtime, &runtime->task);
	assert_int_equal(loop_run(runtime->loop, &err), 0);
	assert_int_equal(runtime->dones, 1);
	loop_free(runtime->loop);
}

static int query_often(struct task *task, void *ctx, struct err *err)
{
	struct runtime *runtime = ctx;

	for (int i = 1; i <= QUERIES; i++) {
		runtime->sum++;
		if (task_request(task, on_query, runtime, err) != i)
			return -1;
	}
	task_post(task, on_post, runtime);
	return 5;
}

static void test_queries_are_answered_one_by_one(void **state)
{
	struct runtime runtime = {0};

	run(&runtime, query_often);
	assert_int_equal(runtime.result, 5);
	assert_int_equal(runtime.queries, QUERIES);
	assert_int_equal(runtime.sum, 2 * QUERIES);
	assert_int_equal(runtime.posts, 1);
}

static int query_once(struct task *task, void *ctx, struct err *err)
{
	return task_request(task, on_query, ctx, err);
}

static void test_an_response_may_come_later(void **state)
{
	struct runtime runtime = {.later = true};

	run(&runtime, query_once);
	assert_int_equal(runtime.result, 7);
}

static void test_a_refusal_reaches_the_end(void **state)
{
	struct runtime runtime = {.refuse = true};

	run(&runtime, query_once);
	assert_int_equal(runtime.result, -ERR_IO);
	assert_string_equal(runtime.message, "no");
}

static int query_twice(struct task *task, void *ctx, struct err *err)
{
	int first = task_request(task, on_query, ctx, err);

	err_clear(err);
	int second = task_request(task, on_query, ctx, err);
	return first == -ERR_CANCELED ? second : 1;
}

static void test_cancel_ends_every_query(void **state)
{
	struct runtime runtime = {.cancel_when_requested = true};

	run(&runtime, query_twice);
	assert_int_equal(runtime.result, -ERR_CANCELED);
	assert_int_equal(runtime.queries, 1);
}

static void test_free_ends_a_task_that_waits(void **state)
{
	struct runtime runtime = {.loop = loop_new()};

	task_start(runtime.loop, query_once, on_done, &runtime, &runtime.task);
	task_free(runtime.task);
	assert_int_equal(runtime.dones, 0);
	loop_free(runtime.loop);
	task_free(NULL);
}

static int post_many(struct task *task, void *ctx, struct err *err)
{
	for (int i = 0; i < TASK_POSTS_MAX; i++)
		task_post(task, on_post, ctx);
	return 0;
}

static void test_posts_arrive_before_the_end(void **state)
{
	struct runtime runtime = {0};

	run(&runtime, post_many);
	assert_int_equal(runtime.posts, TASK_POSTS_MAX);
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
