/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/clock.h"

struct fixture {
	struct loop_wait wait;
	int n_left;
	volatile int interrupted;
};

static int on_done(void *ctx, struct err *err)
{
	struct fixture *fixture = ctx;

	loop_wait_done(&fixture->wait);
	if (--fixture->n_left > 0)
		loop_add_timer(fixture->wait.loop, clock_ms(), on_done, fixture);
	return 0;
}

static int on_stop(void *ctx, struct err *err)
{
	struct fixture *fixture = ctx;

	loop_stop(fixture->wait.loop);
	return 0;
}

static int on_interrupt(void *ctx, struct err *err)
{
	struct fixture *fixture = ctx;

	fixture->interrupted = 1;
	return 0;
}

static int on_error(void *ctx, struct err *err)
{
	return err_set(err, E_IO, "broken");
}

static int set_up(void **state)
{
	static struct fixture fixture;

	fixture = (struct fixture){.wait = {.loop = loop_new()}};
	*state = &fixture;
	return 0;
}

static int tear_down(void **state)
{
	loop_free(((struct fixture *)*state)->wait.loop);
	return 0;
}

static void test_nothing_open_does_not_run_the_loop(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};

	loop_add_timer(fixture->wait.loop, clock_ms(), on_error, NULL);
	assert_int_equal(loop_wait_run(&fixture->wait, &err), 0);
}

static void test_ends_when_all_are_done(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};

	fixture->wait.n_open = 3;
	fixture->n_left = 3;
	loop_add_timer(fixture->wait.loop, clock_ms(), on_done, fixture);
	assert_int_equal(loop_wait_run(&fixture->wait, &err), 0);
	assert_int_equal(fixture->wait.n_open, 0);
}

static void test_goes_on_when_others_stop_the_loop(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};

	fixture->wait.n_open = 1;
	fixture->n_left = 1;
	loop_add_timer(fixture->wait.loop, clock_ms(), on_stop, fixture);
	loop_add_timer(fixture->wait.loop, clock_ms() + 20, on_done, fixture);
	assert_int_equal(loop_wait_run(&fixture->wait, &err), 0);
	assert_int_equal(fixture->wait.n_open, 0);
}

static void test_ends_at_the_deadline(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};

	fixture->wait.n_open = 1;
	fixture->wait.deadline_ms = clock_ms() + 30;
	assert_int_equal(loop_wait_run(&fixture->wait, &err), 0);
	assert_int_equal(fixture->wait.n_open, 1);
	assert_true(clock_ms() >= fixture->wait.deadline_ms);
}

/* What was started slowly may be there at once. */
static void test_what_is_there_counts_behind_the_deadline(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};

	fixture->wait.n_open = 2;
	fixture->n_left = 1;
	fixture->wait.deadline_ms = clock_ms() - 1;
	loop_add_timer(fixture->wait.loop, 0, on_done, fixture);
	assert_int_equal(loop_wait_run(&fixture->wait, &err), 0);
	assert_int_equal(fixture->wait.n_open, 1);
}

static void test_an_interrupt_cancels(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};

	fixture->wait.n_open = 1;
	fixture->wait.interrupted = &fixture->interrupted;
	fixture->wait.deadline_ms = clock_ms() + 3600 * 1000;
	loop_add_timer(fixture->wait.loop, clock_ms() + 20, on_interrupt, fixture);
	assert_true(loop_wait_run(&fixture->wait, &err) < 0);
	assert_int_equal(err.id, E_CANCELED);
}

static void test_an_error_of_the_loop_ends_it(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};

	fixture->wait.n_open = 1;
	loop_add_timer(fixture->wait.loop, clock_ms(), on_error, NULL);
	assert_true(loop_wait_run(&fixture->wait, &err) < 0);
	assert_int_equal(err.id, E_IO);
}

static void test_a_pause_lasts_until_it_is_over(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};
	int64_t begin_ms = clock_ms();

	loop_add_timer(fixture->wait.loop, begin_ms, on_stop, fixture);
	assert_int_equal(loop_pause(fixture->wait.loop, 30, NULL, &err), 0);
	assert_true(clock_ms() - begin_ms >= 30);
}

static void test_an_interrupt_ends_a_pause(void **state)
{
	struct fixture *fixture = *state;
	AUTO_ERR struct err err = {0};

	loop_add_timer(fixture->wait.loop, clock_ms() + 20, on_interrupt, fixture);
	assert_true(loop_pause(fixture->wait.loop, 3600 * 1000, &fixture->interrupted, &err) < 0);
	assert_int_equal(err.id, E_CANCELED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_nothing_open_does_not_run_the_loop),
		TEST(test_ends_when_all_are_done),
		TEST(test_goes_on_when_others_stop_the_loop),
		TEST(test_ends_at_the_deadline),
		TEST(test_what_is_there_counts_behind_the_deadline),
		TEST(test_an_interrupt_cancels),
		TEST(test_an_error_of_the_loop_ends_it),
		TEST(test_a_pause_lasts_until_it_is_over),
		TEST(test_an_interrupt_ends_a_pause),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
