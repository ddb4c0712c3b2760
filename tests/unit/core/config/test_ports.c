/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/ports.h"

static void test_each_once_in_its_order(void **state)
{
	struct ports ports = {0};

	assert_int_equal(ports_add(&ports, "65535", NULL), 0);
	assert_int_equal(ports_add(&ports, "1", NULL), 0);
	assert_int_equal(ports_add(&ports, "6006", NULL), 0);
	assert_int_equal(ports.n, 3);
	assert_int_equal(ports.v[0], 65535);
	assert_int_equal(ports.v[1], 1);
	assert_int_equal(ports.v[2], 6006);
}

static void test_what_is_no_port(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
		{"0", "'0' is not a valid port; use a number from 1 to 65535"},
		{"65536", "'65536' is not a valid port; use a number from 1 to 65535"},
		{"-1", "'-1' is not a valid port; use a number from 1 to 65535"},
		{"", "'' is not a valid port; use a number from 1 to 65535"},
		{"6006/udp", "'6006/udp' is not a valid port; use a number from 1 to 65535"},
		{"18446744073709557622",
			"'18446744073709557622' is not a valid port; use a number from 1 to 65535"},
		{"6006", "port 6006 is listed twice"},
	};
	struct ports ports = {.v = {6006}, .n = 1};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ERR struct err err = {0};

		assert_int_equal(ports_add(&ports, cases[i].text, &err), -ERR_CONFIG);
		assert_string_equal(err.message, cases[i].message);
		assert_int_equal(ports.n, 1);
	}
}

static void test_their_number_is_bounded(void **state)
{
	struct ports ports = {0}, more = {0};
	AUTO_ERR struct err err = {0}, late = {0};

	for (int i = 0; i < PORTS_MAX; i++) {
		AUTO_FREE char *text = mem_printf("%d", 1000 + i);
		assert_int_equal(ports_add(&ports, text, &err), 0);
	}
	assert_int_equal(ports_add(&ports, "1", &err), -ERR_CONFIG);
	assert_string_equal(err.message, "more than 64 ports are listed");
	assert_int_equal(ports_add(&more, "1000", NULL), 0);
	assert_int_equal(ports_merge(&ports, &more, NULL), 0);
	assert_int_equal(ports_add(&more, "1", NULL), 0);
	assert_int_equal(ports_merge(&ports, &more, &late), -ERR_CONFIG);
	assert_int_equal(ports.n, PORTS_MAX);
}

static void test_merging_adds_what_is_new(void **state)
{
	struct ports ports = {.v = {6006, 8888}, .n = 2};
	const struct ports more = {.v = {80, 6006, 7000}, .n = 3};

	assert_int_equal(ports_merge(&ports, &more, NULL), 0);
	assert_int_equal(ports.n, 4);
	assert_int_equal(ports.v[2], 80);
	assert_int_equal(ports.v[3], 7000);
}

static void read_text(const char *text, struct ports *ret)
{
	AUTO_JSON struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), 1 << 20, "it", &json, NULL), 0);
	ports_from_json(json, ret);
}

static void test_json(void **state)
{
	const struct ports ports = {.v = {6006, 8888}, .n = 2};
	AUTO_JSON struct json *json = ports_to_json(&ports);
	AUTO_BUF struct buf text = {0};
	struct ports back;

	buf_init(&text, 1000);
	json_print(json, &text);
	assert_string_equal(text.data, "[6006,8888]");
	read_text("[0, 65536, -5, \"80\", 1.5, [1], null, 6006, 6006, 443]", &back);
	assert_int_equal(back.n, 2);
	assert_int_equal(back.v[0], 6006);
	assert_int_equal(back.v[1], 443);
	read_text("{\"a\":80}", &back);
	assert_int_equal(back.n, 0);
	ports_from_json(NULL, &back);
	assert_int_equal(back.n, 0);
}

static void test_json_of_too_many(void **state)
{
	AUTO_JSON struct json *list = json_array();
	struct ports back;

	for (int i = 1; i <= 2 * PORTS_MAX; i++)
		json_add_int(list, i);
	ports_from_json(list, &back);
	assert_int_equal(back.n, PORTS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_once_in_its_order),
		cmocka_unit_test(test_what_is_no_port),
		cmocka_unit_test(test_their_number_is_bounded),
		cmocka_unit_test(test_merging_adds_what_is_new),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_json_of_too_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
