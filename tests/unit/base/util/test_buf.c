/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"

static void test_empty(void **state)
{
	struct buf zero = {0};
	AUTO_BUF struct buf buf;

	buf_init(&buf, 10);
	assert_string_equal(buf.data, "");
	assert_int_equal(buf.len, 0);
	assert_false(buf.full);
	buf_done(&zero);
	buf_done(NULL);
	/* A buffer that was never given a ceiling takes nothing. */
	buf_adds(&zero, "");
	assert_false(zero.full);
	buf_adds(&zero, "x");
	assert_true(zero.full);
	assert_int_equal(zero.len, 0);
	buf_reset(&zero);
	buf_addf(&zero, "%d", 1);
	assert_true(zero.full);
	buf_done(&zero);
}

static void test_add(void **state)
{
	AUTO_BUF struct buf buf;

	buf_init(&buf, 1 << 20);
	buf_adds(&buf, "ab");
	buf_addc(&buf, '\0');
	buf_add(&buf, "c\0d", 3);
	buf_addf(&buf, "%s=%d", "n", 5);
	buf_add(&buf, NULL, 0);
	assert_int_equal(buf.len, 9);
	assert_memory_equal(buf.data, "ab\0c\0dn=5", 10);
	for (int i = 0; i < 100000; i++)
		buf_addf(&buf, "%d", i % 10);
	assert_int_equal(buf.len, 100009);
	assert_int_equal(buf.data[100008], '9');
	assert_int_equal(buf.data[100009], '\0');
	assert_false(buf.full);
}

static void test_limit(void **state)
{
	AUTO_BUF struct buf buf;
	AUTO_ERR struct err err = {0};

	buf_init(&buf, 5);
	buf_adds(&buf, "abcde");
	assert_false(buf.full);
	assert_int_equal(buf_check(&buf, "the list", &err), 0);
	buf_adds(&buf, "");
	assert_false(buf.full);
	buf_addc(&buf, 'f');
	assert_true(buf.full);
	assert_string_equal(buf.data, "abcde");
	assert_int_equal(buf_check(&buf, "the list", &err), -ERR_LIMIT);
	assert_string_equal(err.message, "the list is larger than 5 B");
	/* For good: what comes later must not close the gap. */
	buf_consume(&buf, 3);
	buf_adds(&buf, "x");
	assert_string_equal(buf.data, "de");
	buf_reset(&buf);
	assert_false(buf.full);
	buf_adds(&buf, "xyzuvw");
	assert_string_equal(buf.data, "xyzuv");
	assert_true(buf.full);
}

static void test_limit_of_printf(void **state)
{
	AUTO_BUF struct buf buf;

	for (size_t max = 0; max < 300; max++) {
		buf_init(&buf, max);
		buf_addf(&buf, "%0200d", 7);
		assert_int_equal(buf.len, max < 200 ? max : 200);
		assert_int_equal(strlen(buf.data), buf.len);
		assert_int_equal(buf.full, max < 200);
		if (max >= 200)
			assert_int_equal(buf.data[199], '7');
		buf_done(&buf);
	}
}

static void test_limit_of_zero_and_all(void **state)
{
	struct buf buf;

	buf_init(&buf, 0);
	buf_addc(&buf, 'x');
	assert_true(buf.full);
	assert_string_equal(buf.data, "");
	buf_done(&buf);
	buf_init(&buf, SIZE_MAX);
	for (int i = 0; i < 1000; i++)
		buf_adds(&buf, "0123456789");
	assert_int_equal(buf.len, 10000);
	assert_false(buf.full);
	assert_null(buf_reserve(&buf, SIZE_MAX));
	assert_true(buf.full);
	buf_done(&buf);
}

static void test_reserve(void **state)
{
	AUTO_BUF struct buf buf;

	buf_init(&buf, 1000);
	char *reserved = buf_reserve(&buf, 900);
	assert_non_null(reserved);
	memset(reserved, 'x', 900);
	buf_added(&buf, 10);
	assert_string_equal(buf.data, "xxxxxxxxxx");
	assert_non_null(buf_reserve(&buf, 990));
	assert_false(buf.full);
	assert_null(buf_reserve(&buf, 991));
	assert_true(buf.full);
	/* A hole in the middle would be worse than an end that is missing. */
	buf_addc(&buf, 'y');
	assert_null(buf_reserve(&buf, 1));
	assert_int_equal(buf.len, 10);
}

static void test_consume_and_truncate(void **state)
{
	AUTO_BUF struct buf buf;

	buf_init(&buf, 100);
	buf_adds(&buf, "hello world");
	buf_consume(&buf, 0);
	buf_consume(&buf, 6);
	assert_string_equal(buf.data, "world");
	buf_truncate(&buf, 2);
	assert_string_equal(buf.data, "wo");
	buf_consume(&buf, 2);
	assert_string_equal(buf.data, "");
	assert_int_equal(buf.len, 0);
}

static void test_take(void **state)
{
	AUTO_BUF struct buf buf;
	struct buf zero = {0};

	buf_init(&buf, 4);
	buf_adds(&buf, "abcdef");
	AUTO_FREE char *s = buf_take(&buf);
	assert_string_equal(s, "abcd");
	assert_int_equal(buf.len, 0);
	assert_false(buf.full);
	buf_adds(&buf, "xy");
	assert_string_equal(buf.data, "xy");
	AUTO_FREE char *none = buf_take(&zero);
	assert_string_equal(none, "");
	buf_done(&zero);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_add),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_limit_of_printf),
		cmocka_unit_test(test_limit_of_zero_and_all),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_consume_and_truncate),
		cmocka_unit_test(test_take),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
