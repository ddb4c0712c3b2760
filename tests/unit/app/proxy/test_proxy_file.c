/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/proxy/proxy_name.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

static void test_kinds(void **state)
{
	static const struct {
		const char *path;
		enum proxy_show show;
		const char *mime;
	} cases[] = {
		{"a.png", PROXY_IMAGE, "image/png"},
		{"a/b/C.JpEg", PROXY_IMAGE, "image/jpeg"},
		{"v.mp4", PROXY_VIDEO, "video/mp4"},
		{"s.wav", PROXY_AUDIO, "audio/wav"},
		{"a.svg", PROXY_TEXT, "text/plain; charset=utf-8"},
		{"a.html", PROXY_TEXT, "text/plain; charset=utf-8"},
		{"a.js", PROXY_TEXT, "text/plain; charset=utf-8"},
		{"a.png.exe", PROXY_SAVED, "application/octet-stream"},
		{"a.pdf", PROXY_SAVED, "application/octet-stream"},
		{"a.swf", PROXY_SAVED, "application/octet-stream"},
		{"a.png/b", PROXY_SAVED, "application/octet-stream"},
		{".png", PROXY_SAVED, "application/octet-stream"},
		{"png", PROXY_SAVED, "application/octet-stream"},
		{"a.", PROXY_SAVED, "application/octet-stream"},
		{"a. png", PROXY_SAVED, "application/octet-stream"},
		{"a.jpg jpeg", PROXY_SAVED, "application/octet-stream"},
		{"", PROXY_SAVED, "application/octet-stream"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct proxy_type *type = proxy_type_of(cases[i].path);

		assert_int_equal(type->show, cases[i].show);
		assert_string_equal(type->mime, cases[i].mime);
	}
}

static void test_paths(void **state)
{
	static const struct {
		const char *target, *path;
	} cases[] = {
		{"/a", "a"},
		{"/a/b.png?x=1", "a/b.png"},
		{"/a%20b", "a b"},
		{"/%ff%0a", "\xff\n"},
		{"/a%2fb", "a/b"},
		{"/..a", "..a"},
		{"/a..", "a.."},
		{"/...", "..."},
		{"/", NULL},
		{"", NULL},
		{"a", NULL},
		{"//a", NULL},
		{"/a/", NULL},
		{"/a//b", NULL},
		{"/.", NULL},
		{"/..", NULL},
		{"/a/../b", NULL},
		{"/a/%2e%2e/b", NULL},
		{"/%2e%2e%2fetc", NULL},
		{"/a%00b", NULL},
		{"/a%0", NULL},
		{"/a%", NULL},
		{"/a%zz", NULL},
		{"/a%4?1", NULL},
		{"/?a", NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *path = proxy_path_decode(cases[i].target);

		if (cases[i].path)
			assert_string_equal(path, cases[i].path);
		else
			assert_null(path);
	}
}

static void test_ranges(void **state)
{
	static const struct {
		const char *value;
		uint64_t size;
		int status;
		uint64_t first, n;
	} cases[] = {
		{NULL, 10, 200, 0, 10},
		{"bytes=0-", 10, 206, 0, 10},
		{"bytes=0-0", 10, 206, 0, 1},
		{"Bytes=3-5", 10, 206, 3, 3},
		{"bytes=3-500", 10, 206, 3, 7},
		{"bytes=-4", 10, 206, 6, 4},
		{"bytes=-400", 10, 206, 0, 10},
		{"bytes=9-", 10, 206, 9, 1},
		{"bytes=10-", 10, 416, 0, 10},
		{"bytes=-0", 10, 416, 0, 10},
		{"bytes=0-", 0, 416, 0, 0},
		{"bytes=-1", 0, 416, 0, 0},
		{"bytes=5-3", 10, 200, 0, 10},
		{"bytes=-", 10, 200, 0, 10},
		{"bytes=0-1,3-4", 10, 200, 0, 10},
		{"bytes= 0-1", 10, 200, 0, 10},
		{"lines=0-1", 10, 200, 0, 10},
		{"bytes=99999999999999999999999-", 10, 200, 0, 10},
		{"bytes=1", 10, 200, 0, 10},
		{"", 10, 200, 0, 10},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct proxy_range range;

		assert_int_equal(
			proxy_range_parse(cases[i].value, cases[i].size, &range), cases[i].status);
		assert_int_equal(range.first, cases[i].first);
		assert_int_equal(range.n, cases[i].n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_ranges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
