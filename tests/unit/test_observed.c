#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/json.h"
#include "run/observed.h"

static void expect(const char *doc_text, const char *observed_text, const char *want)
{
	AUTO_JSON struct json *doc = NULL, *observed = NULL;
	AUTO_BUF struct buf got;

	buf_init(&got, 1 << 20);
	assert_int_equal(json_parse(doc_text, strlen(doc_text), 1 << 20, "doc", &doc, NULL), 0);
	if (observed_text)
		assert_int_equal(json_parse(observed_text, strlen(observed_text), 1 << 20,
					 "observed", &observed, NULL),
			0);
	observed_merge(observed, doc);
	json_print(doc, &got);
	assert_string_equal(got.data, want);
}

#define DOC                                                                                        \
	"{\"usage\":{\"cpu_s\":null,\"energy_j\":null},\"resources\":{\"gpus\":0},"                \
	"\"params\":{\"lr\":\"0.1\"},\"metrics\":{\"loss\":{\"value\":3}},\"links\":[\"a\"],"      \
	"\"warnings\":[]}"

static void test_nothing(void **state)
{
	(void)state;
	expect(DOC, NULL, DOC);
	expect(DOC, "{}", DOC);
	expect(DOC, "[]", DOC);
	expect(DOC, "{\"usage\":{},\"metrics\":{},\"links\":[],\"params\":{},\"warning\":null}",
		DOC);
}

static void test_any_form(void **state)
{
	(void)state;
	expect(DOC,
		"{\"usage\":3,\"metrics\":[1],\"links\":{\"x\":1},\"params\":\"p\",\"warning\":{},"
		"\"resources\":[2]}",
		DOC);
	expect(DOC, "{\"links\":[1,null,[]]}", DOC);
}

static void test_merge(void **state)
{
	(void)state;
	expect(DOC,
		"{\"usage\":{\"cpu_s\":2.5,\"energy_j\":null},\"resources\":{\"gpus\":2},"
		"\"params\":{\"lr\":9,\"seed\":1},\"metrics\":{\"acc\":{\"value\":1}},"
		"\"links\":[\"a\",\"b\",\"b\"],\"warning\":\"w\"}",
		"{\"usage\":{\"cpu_s\":2.5,\"energy_j\":null},\"resources\":{\"gpus\":2},"
		"\"params\":{\"lr\":\"0.1\",\"seed\":1},\"metrics\":{\"acc\":{\"value\":1}},"
		"\"links\":[\"a\",\"b\"],\"warnings\":[\"w\"]}");
	/* Once more changes nothing. */
	expect("{\"warnings\":[\"w\"]}", "{\"warning\":\"w\"}",
		"{\"warnings\":[\"w\"],\"usage\":{},\"resources\":{},\"params\":{}}");
}

static void test_limit(void **state)
{
	AUTO_JSON struct json *doc = json_object(), *observed = json_object();
	struct json *links = json_array();

	(void)state;
	for (int i = 0; i < OBSERVED_TEXTS_MAX + 10; i++) {
		char text[32];
		snprintf(text, sizeof(text), "link %d", i);
		json_add_str(links, text);
	}
	json_set(observed, "links", links);
	observed_merge(observed, doc);
	assert_int_equal(json_count(json_get(doc, "links")), OBSERVED_TEXTS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_any_form),
		cmocka_unit_test(test_merge),
		cmocka_unit_test(test_limit),
	};

	return cmocka_run_group_tests_name("observed", tests, NULL, NULL);
}
