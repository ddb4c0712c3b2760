/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/data/yaml.h"

static void check(const char *text, bool typed, const char *expected)
{
	AUTO_YAML struct yaml *yaml = NULL;
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf out;

	buf_init(&out, 4096);
	assert_int_equal(yaml_parse(text, __builtin_strlen(text), "t", &yaml, NULL), 0);
	json = typed ? yaml_to_json(yaml) : yaml_to_json_text(yaml);
	json_print(json, &out);
	assert_string_equal(out.data, expected);
}

static void test_types(void **state)
{
	check("{a: 1, b: -3, c: true, d: ~, e: , f: 1.5}", true,
		"{\"a\":1,\"b\":-3,\"c\":true,\"d\":null,\"e\":null,\"f\":1.5}");
	check("{a: '1', b: \"true\", c: yes, d: 0x1, e: 007, f: 1_0, g: 1e3, h: 2024-01-01}", true,
		"{\"a\":\"1\",\"b\":\"true\",\"c\":\"yes\",\"d\":\"0x1\",\"e\":\"007\",\"f\":\"1_0\","
		"\"g\":\"1e3\",\"h\":\"2024-01-01\"}");
	check("{a: 1234567890123456, b: -, c: 1., d: .5, e: 16Gi}", true,
		"{\"a\":\"1234567890123456\",\"b\":\"-\",\"c\":\"1.\",\"d\":\".5\",\"e\":\"16Gi\"}");
}

static void test_text(void **state)
{
	check("{a: 1, b: true, c: }", false, "{\"a\":\"1\",\"b\":\"true\",\"c\":\"\"}");
}

static void test_nesting(void **state)
{
	check("a:\n- {b: 1}\n- [x, 2]\n", true, "{\"a\":[{\"b\":1},[\"x\",2]]}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_nesting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
