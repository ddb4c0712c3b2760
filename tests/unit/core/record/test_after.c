/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util/mem.h"
#include "core/record/spec.h"

static void add_one(struct after_list *list, const char *id, bool is_study, bool any, size_t n)
{
	after_add(list, id, is_study, any);
	assert_int_equal(list->n, n);
}

static void test_a_run_is_there_once(void **state)
{
	AUTO_AFTER struct after_list list = {0};

	add_one(&list, "lion-4k2x9", false, true, 1);
	add_one(&list, "lion-4k2x9", false, true, 1);
	assert_true(list.v[0].any);
	add_one(&list, "lion-4k2x9", false, false, 1);
	assert_false(list.v[0].any);
	add_one(&list, "lion-4k2x9", false, true, 1);
	assert_false(list.v[0].any);
	/* A study of the same id is another thing. */
	add_one(&list, "lion-4k2x9", true, true, 2);
}

static void check_text(const struct after_list *list, const char *text)
{
	AUTO_FREE char *now = after_text(list);

	assert_string_equal(now, text);
}

static void test_text(void **state)
{
	AUTO_AFTER struct after_list list = {0};

	after_add(&list, "a-22222", false, false);
	check_text(&list, "after a-22222");
	after_add(&list, "b-22222", true, false);
	check_text(&list, "after a-22222 and b-22222");
	after_add(&list, "c-22222", false, false);
	check_text(&list, "after a-22222 and 2 others");
}

static int read_text(const char *text, struct after_list *ret)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err err = {0};

	assert_int_equal(json_parse(text, strlen(text), 1 << 20, "text", &json, &err), 0);
	return after_from_json(json, ret, &err);
}

static void test_json(void **state)
{
	static const char good[] = "[{\"run\":\"a-22222\",\"when\":\"ok\"},"
				   "{\"study\":\"b-22222\",\"when\":\"any\"}]";
	static const char *const bad[] = {"[{}]", "[{\"run\":\"a-22222\"}]", "[1]",
		"[{\"run\":\"../x\",\"when\":\"ok\"}]", "[{\"when\":\"ok\"}]",
		"[{\"run\":\"a-22222\",\"when\":\"OK\"}]", "[{\"run\":7,\"when\":\"ok\"}]"};
	AUTO_AFTER struct after_list list = {0};
	AUTO_BUF struct buf out;

	assert_int_equal(read_text(good, &list), 0);
	assert_int_equal(list.n, 2);
	assert_true(!list.v[0].is_study && !list.v[0].any && list.v[1].is_study && list.v[1].any);
	AUTO_JSON struct json *json = after_to_json(&list);
	buf_init(&out, 1 << 20);
	json_print(json, &out);
	assert_string_equal(out.data, good);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_AFTER struct after_list none = {0};
		assert_true(read_text(bad[i], &none) < 0);
		assert_int_equal(none.n, 0);
	}
}

static void test_it_has_a_limit(void **state)
{
	AUTO_AFTER struct after_list list = {0}, read = {0};
	AUTO_ERR struct err err = {0};

	for (int i = 0; i <= AFTER_MAX; i++) {
		AUTO_FREE char *id = mem_printf("a%d-22222", i);
		after_add(&list, id, false, false);
	}
	AUTO_JSON struct json *json = after_to_json(&list);
	assert_true(after_from_json(json, &read, &err) < 0);
	assert_int_equal(err.id, E_DATA);
}

static void test_a_specification_has_it(void **state)
{
	AUTO_SPEC struct spec spec = {.cwd = mem_strdup(".")}, copy = {0};
	AUTO_ERR struct err err = {0};

	strv_add(&spec.command, "true");
	after_add(&spec.after, "a-22222", false, true);
	assert_int_equal(spec_copy(&spec, &copy, &err), 0);
	assert_int_equal(copy.after.n, 1);
	assert_true(copy.after.v[0].any);
	AUTO_JSON struct json *json = spec_to_json(&spec);
	json_set_str(json, AFTER_RECORD, "a-22222");
	after_done(&copy.after);
	AUTO_SPEC struct spec other = {0};
	assert_int_equal(spec_from_json(json, &other, &err), 0);
	assert_int_equal(other.after.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_run_is_there_once),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_it_has_a_limit),
		cmocka_unit_test(test_a_specification_has_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
