/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/vec.h"

struct pair {
	int a, b;
};

static void test_push(void **state)
{
	struct VEC_OF(struct pair) vec = {0};

	for (int i = 0; i < 1000; i++) {
		struct pair *item = vec_push(&vec);
		assert_int_equal(item->a, 0);
		assert_int_equal(item->b, 0);
		item->a = i;
		item->b = -1;
	}
	assert_int_equal(vec.n, 1000);
	assert_true(vec.cap >= 1000 && vec.cap < 3000);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(vec.v[i].a, i);
	vec_done(&vec);
	assert_null(vec.v);
	assert_int_equal(vec.n + vec.cap, 0);
	vec_done(&vec);
}

static int descending(const void *a, const void *b)
{
	return *(const int *)b - *(const int *)a;
}

static void test_sort_and_foreach(void **state)
{
	struct VEC_OF(int) vec = {0};
	int last = 100, n = 0;

	vec_sort(&vec, descending);
	vec_foreach (int, item, &vec)
		fail_msg("%d", *item);
	for (int i = 0; i < 50; i++)
		*vec_push(&vec) = i * 37 % 50;
	vec_sort(&vec, descending);
	vec_foreach (int, item, &vec) {
		assert_true(*item < last);
		last = *item;
		n++;
	}
	assert_int_equal(n, 50);
	assert_int_equal(last, 0);
	vec_done(&vec);
}

static void test_strv(void **state)
{
	AUTO_STRV struct strv strv = {0};
	AUTO_STRV struct strv copy = {0};
	struct strv none = {0};

	assert_int_equal(strv_find(&strv, "x"), -1);
	for (int i = 0; i < 100; i++) {
		strv_addf(&strv, "%d", i);
		assert_null(strv.v[strv.n]);
	}
	strv_add(&strv, "");
	strv_add_take(&strv, mem_strdup("7"));
	assert_int_equal(strv.n, 102);
	assert_int_equal(strv_find(&strv, "7"), 7);
	assert_int_equal(strv_find(&strv, ""), 100);
	assert_int_equal(strv_find(&strv, "100"), -1);
	strv_add(&copy, "old");
	strv_copy(&copy, &strv);
	strv_copy(&copy, &copy);
	assert_int_equal(copy.n, 102);
	assert_string_equal(copy.v[99], "99");
	assert_ptr_not_equal(copy.v[99], strv.v[99]);
	assert_null(copy.v[102]);
	strv_cut(&copy, 200);
	assert_int_equal(copy.n, 102);
	strv_cut(&copy, 7);
	assert_int_equal(copy.n, 7);
	assert_string_equal(copy.v[6], "6");
	assert_null(copy.v[7]);
	strv_cut(&copy, 0);
	strv_cut(&none, 0);
	assert_int_equal(copy.n, 0);
	strv_copy(&copy, &none);
	assert_int_equal(copy.n, 0);
	strv_done(NULL);
	strv_done(&none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_push),
		cmocka_unit_test(test_sort_and_foreach),
		cmocka_unit_test(test_strv),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
