/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/gc/gc_registry.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

#define HEX16 "0123456789abcdef"

static void test_own(void **state)
{
	static const char *const others[] = {"", "dlrun", "dlrun-", "v1", "dlrun-" HEX16 "0",
		"dlrun-0123456789abcde", "dlrun-0123456789ABCDEF", "Dlrun-" HEX16, "xdlrun-" HEX16,
		"dlrun-0123456789abcdeg"};

	assert_true(gc_tag_is_own("dlrun-" HEX16));
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		assert_false(gc_tag_is_own(others[i]));
}

static void test_of_digest(void **state)
{
	char tag[GC_TAG_SIZE];

	assert_true(gc_tag_of("sha256:" HEX16 HEX16 HEX16 "ffffffffffffffff", tag));
	assert_string_equal(tag, "dlrun-" HEX16);
	assert_false(gc_tag_of("sha256:" HEX16, tag));
	assert_false(gc_tag_of("", tag));
	assert_false(gc_tag_of(NULL, tag));
}

static void test_lists(void **state)
{
	static const struct {
		const char *text;
		int r;
		size_t n;
	} cases[] = {
		{"{\"name\":\"a\",\"tags\":[\"v1\",\"dlrun-" HEX16 "\"]}", 0, 2},
		{"{\"tags\":[]}", 0, 0},
		{"{\"tags\":null}", 0, 0},
		{"{}", 0, 0},
		/* What is no tag is not asked for. */
		{"{\"tags\":[\"../x\",\"a/b\",\"\",\"-a\",7,null,[\"b\"],\"ok\"]}", 0, 1},
		{"{\"tags\":\"v1\"}", -ERR_REMOTE, 0},
		{"{\"tags\":{\"a\":\"b\"}}", -ERR_REMOTE, 0},
		{"[\"v1\"]", -ERR_REMOTE, 0},
		{"<html>", -ERR_REMOTE, 0},
		{"", -ERR_REMOTE, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_STRV struct strv tags = {0};
		AUTO_ERR struct err err = {0};

		assert_int_equal(gc_tags_parse(cases[i].text, strlen(cases[i].text), &tags, &err),
			cases[i].r);
		assert_int_equal(tags.n, cases[i].n);
		assert_int_equal(err.id, cases[i].r ? E_REGISTRY_RESPONSE : E_NONE);
	}
}

static void test_next_page(void **state)
{
	static const struct {
		const char *field, *next;
	} cases[] = {
		{"link: </v2/a/tags/list?n=2&last=b>; rel=\"next\"", "/v2/a/tags/list?n=2&last=b"},
		{"link: </x>; rel=next", "/x"},
		{"link: </x>;rel=\"NEXT\"", "/x"},
		{"link: </a>; rel=\"first\", </b>; rel=\"next\"", "/b"},
		{"link: <https://r.example/v2/?a=1,2>; title=\"x\"; rel=\"next\"",
			"https://r.example/v2/?a=1,2"},
		{"link: </x>; rel=\"nextish\"", NULL},
		{"link: </x>; rel=\"prev\"", NULL},
		{"link: </x>", NULL},
		{"link: </x", NULL},
		{"link: <", NULL},
		{"link:", NULL},
		{"x-link: </x>; rel=next", NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_STRV struct strv headers = {0};

		strv_add(&headers, "content-type: application/json");
		strv_add(&headers, cases[i].field);
		AUTO_FREE char *next = gc_next_page(&headers);
		if (!str_eq(next, cases[i].next))
			fail_msg("%s gave %s", cases[i].field, next);
	}
}

static void test_evaluate(void **state)
{
	static const struct {
		struct gc_tag_facts facts;
		enum gc_tag_fate fate;
	} cases[] = {
		{{.needed = true, .is_ours = true, .recorded_ms = 1}, GC_TAG_NEEDED},
		{{.is_ours = true, .recorded_ms = 900}, GC_TAG_OLD},
		{{.is_ours = true, .recorded_ms = 901}, GC_TAG_YOUNG},
		{{.is_ours = true, .modified_ms = 900}, GC_TAG_OLD},
		/* The younger of two times counts, whoever says it. */
		{{.is_ours = true, .recorded_ms = 10, .modified_ms = 990}, GC_TAG_YOUNG},
		{{.is_ours = true, .recorded_ms = 990, .modified_ms = 10}, GC_TAG_YOUNG},
		{{.is_ours = true, .recorded_ms = 2000}, GC_TAG_YOUNG},
		{{.is_ours = true}, GC_TAG_UNKNOWN},
		{{.is_ours = true, .modified_ms = -1}, GC_TAG_UNKNOWN},
		{{.recorded_ms = 10, .modified_ms = 10}, GC_TAG_UNKNOWN},
		{{0}, GC_TAG_UNKNOWN},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_int_equal(gc_tag_evaluate(&cases[i].facts, 1000, 100), cases[i].fate);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own),
		cmocka_unit_test(test_of_digest),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_next_page),
		cmocka_unit_test(test_evaluate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
