/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/util/log.h"

static void keep(void *ctx, const char *line)
{
	snprintf(ctx, 64, "%s", line);
}

static int touched;

static int touch(void)
{
	return ++touched;
}

static void test_log(void **state)
{
	char last[64] = "none";

	/* Without a sink nothing is even computed. */
	assert_false(log_is_on());
	log_note("%d", touch());
	log_write("lost");
	assert_int_equal(touched, 0);
	log_set_sink(keep, last);
	assert_true(log_is_on());
	log_note("%s %d", "n", touch());
	assert_string_equal(last, "n 1");
	log_set_sink(NULL, NULL);
	log_note("%d", touch());
	assert_string_equal(last, "n 1");
	assert_int_equal(touched, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_log)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
