/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "core/record/observed.h"

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
	expect(DOC, NULL, DOC);
	expect(DOC, "{}", DOC);
	expect(DOC, "[]", DOC);
	expect(DOC,
		"{\"usage\":{},\"metrics\":{},\"links\":[],\"params\":{},\"warning\":null,"
		"\"cost\":null}",
		DOC);
}

static void test_any_form(void **state)
{
	expect(DOC,
		"{\"usage\":3,\"metrics\":[1],\"links\":{\"x\":1},\"params\":\"p\",\"warning\":{},"
		"\"resources\":[2],\"cost\":12}",
		DOC);
	expect(DOC, "{\"links\":[1,null,[]]}", DOC);
}

static void test_merge(void **state)
{
	expect(DOC,
		"{\"usage\":{\"cpu_s\":2.5,\"energy_j\":null},\"resources\":{\"gpus\":2},"
		"\"params\":{\"lr\":9,\"seed\":1},\"metrics\":{\"acc\":{\"value\":1}},"
		"\"links\":[\"a\",\"b\",\"b\"],\"warning\":\"w\"}",
		"{\"usage\":{\"cpu_s\":2.5,\"energy_j\":null},\"resources\":{\"gpus\":2},"
		"\"params\":{\"lr\":\"0.1\",\"seed\":1},\"metrics\":{\"acc\":{\"value\":1}},"
		"\"links\":[\"a\",\"b\"],\"warnings\":[\"w\"]}");
	expect("{\"cost\":{\"amount\":1}}", "{\"cost\":{\"amount\":2}}",
		"{\"cost\":{\"amount\":2},\"usage\":{},\"resources\":{},\"params\":{}}");
	/* Once more changes nothing. */
	expect("{\"warnings\":[\"w\"]}", "{\"warning\":\"w\"}",
		"{\"warnings\":[\"w\"],\"usage\":{},\"resources\":{},\"params\":{}}");
}

static void test_limit(void **state)
{
	AUTO_JSON struct json *doc = json_object(), *observed = json_object();
	struct json *links = json_array();

	for (int i = 0; i < OBSERVED_TEXTS_MAX + 10; i++) {
		char text[32];
		snprintf(text, sizeof(text), "link %d", i);
		json_add_str(links, text);
	}
	json_set(observed, "links", links);
	observed_merge(observed, doc);
	assert_int_equal(json_count(json_get(doc, "links")), OBSERVED_TEXTS_MAX);
}

static void expect_both(void (*apply)(struct json *to, const struct json *from),
	const char *to_text, const char *from_text, const char *want)
{
	AUTO_JSON struct json *to = NULL, *from = NULL;
	AUTO_BUF struct buf got;

	buf_init(&got, 1 << 20);
	assert_int_equal(json_parse(to_text, strlen(to_text), 1 << 20, "to", &to, NULL), 0);
	assert_int_equal(json_parse(from_text, strlen(from_text), 1 << 20, "from", &from, NULL), 0);
	apply(to, from);
	json_print(to, &got);
	assert_string_equal(got.data, want);
}

static void add_rank(struct json *to, const struct json *from)
{
	observed_add_rank(to, from);
}

static void test_ranks(void **state)
{
	expect_both(add_rank,
		"{\"usage\":{\"cpu_s\":2,\"memory_peak_bytes\":5},\"now\":{\"cpu\":1,"
		"\"gpu_busy\":null}}",
		"{\"usage\":{\"cpu_s\":3,\"memory_peak_bytes\":4},\"now\":{\"cpu\":0.5,"
		"\"gpu_busy\":0.25,\"power_w\":null}}",
		"{\"usage\":{\"cpu_s\":5,\"memory_peak_bytes\":5},\"now\":{\"cpu\":1.5,"
		"\"gpu_busy\":0.25}}");
	expect_both(add_rank, "{}", "[3]", "{\"usage\":{},\"now\":{}}");
}

/* Peaks stay, what was busy is the mean of the looks that told it. */
static void test_polls(void **state)
{
	expect_both(observed_keep, "{}",
		"{\"time\":\"t\",\"usage\":{\"cpu_s\":2},\"now\":{\"memory_bytes\":7,"
		"\"gpu_busy\":0.5,\"gpu_memory_bytes\":null}}",
		"{\"usage\":{\"cpu_s\":2,\"memory_peak_bytes\":7,\"gpu_busy\":0.5},\"time\":\"t\","
		"\"now\":{\"memory_bytes\":7,\"gpu_busy\":0.5,\"gpu_memory_bytes\":null},"
		"\"gpu_looks\":1}");
	expect_both(observed_keep,
		"{\"usage\":{\"cpu_s\":9,\"memory_peak_bytes\":7,\"gpu_busy\":0.5,\"energy_j\":3},"
		"\"gpu_looks\":3}",
		"{\"now\":{\"memory_bytes\":5,\"gpu_busy\":0.9}}",
		"{\"usage\":{\"cpu_s\":9,\"memory_peak_bytes\":7,\"gpu_busy\":0.6,\"energy_j\":3},"
		"\"gpu_looks\":4,\"time\":null,\"now\":{\"memory_bytes\":5,\"gpu_busy\":0.9}}");
	expect_both(observed_keep, "{\"usage\":3,\"gpu_looks\":-1}", "{\"now\":[]}",
		"{\"usage\":{},\"gpu_looks\":-1,\"time\":null,\"now\":[]}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_any_form),
		cmocka_unit_test(test_merge),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_ranks),
		cmocka_unit_test(test_polls),
	};

	return cmocka_run_group_tests_name("observed", tests, NULL, NULL);
}
