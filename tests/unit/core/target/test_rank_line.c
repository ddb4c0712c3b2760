/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/auto.h"
#include "core/target/rank_line.h"

enum { OUT_MAX = 1 << 20, LONG = 70 << 10 };

struct out {
	struct buf text; /* "[BYTES@TIME]" for each call */
	bool fails;
};

static int hand_over(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct out *out = ctx;

	buf_addc(&out->text, '[');
	buf_add(&out->text, data, len);
	buf_addf(&out->text, "@%d]", (int)time_ms);
	return out->fails ? -1 : 0;
}

static void test_lines_are_whole(void **state)
{
	struct out out = {0};
	struct rank_line line;

	buf_init(&out.text, OUT_MAX);
	rank_line_init(&line, hand_over, &out);
	assert_int_equal(rank_line_add(&line, "a\nb", 3, 1, NULL), 0);
	assert_int_equal(rank_line_add(&line, "c", 1, 2, NULL), 0);
	assert_string_equal(out.text.data, "[a\n@1]");
	/* What had not ended keeps the time at which it came. */
	assert_int_equal(rank_line_add(&line, "d\rx", 3, 3, NULL), 0);
	assert_string_equal(out.text.data, "[a\n@1][bc@1][d\r@3]");
	assert_int_equal(rank_line_flush_late(&line, NULL), 0);
	assert_string_equal(out.text.data, "[a\n@1][bc@1][d\r@3]");
	line.since_ms = -10000;
	assert_int_equal(rank_line_flush_late(&line, NULL), 0);
	assert_int_equal(rank_line_flush(&line, NULL), 0);
	assert_string_equal(out.text.data, "[a\n@1][bc@1][d\r@3][x@3]");
	rank_line_done(&line);
	buf_done(&out.text);
}

static void test_a_long_line_does_not_wait(void **state)
{
	AUTO_FREE char *text = malloc(LONG);
	struct out out = {.fails = true};
	struct rank_line line;

	memset(text, 'x', LONG);
	buf_init(&out.text, OUT_MAX);
	rank_line_init(&line, hand_over, &out);
	assert_int_equal(rank_line_add(&line, text, 10, 1, NULL), 0);
	assert_int_equal(out.text.len, 0);
	assert_int_equal(rank_line_add(&line, text, LONG, 2, NULL), -1);
	assert_int_equal(out.text.len, LONG + 10 + strlen("[@1]"));
	rank_line_done(&line);
	buf_done(&out.text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lines_are_whole),
		cmocka_unit_test(test_a_long_line_does_not_wait),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
