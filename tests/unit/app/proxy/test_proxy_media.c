/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "app/proxy/proxy_media.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/record/params.h"

enum { OUT_MAX = 1 << 20 };

static void add_file(struct outputs_files *files, const char *path, uint64_t size, int64_t mtime_ns)
{
	*vec_push(files) = (struct outputs_file){mem_strdup(path), size, mtime_ns};
}

static size_t count(const char *text, const char *word)
{
	size_t n = 0;

	for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
		n++;
	return n;
}

/* The words stand in the text in that order; NULL is the end. */
static void expect_order(const char *text, const char *const *words)
{
	for (const char *at = text; *words; words++) {
		const char *found = strstr(at, *words);

		if (!found)
			fail_msg("'%s' is not in: %s", *words, at);
		at = found + strlen(*words);
	}
}

/* The newest row first, and in it the newest step; what was written at the same time by its
 * number. */
static void test_order(void **state)
{
	AUTO_RUN struct run *a = run_new("a-22222", "a"), *b = run_new("b-22222", "b");
	AUTO(outputs_files_done) struct outputs_files of_a = {0}, of_b = {0};
	struct proxy_media_list list = {0};
	AUTO_BUF struct buf out;

	add_file(&of_a, "old.png", 1, 50);
	add_file(&of_a, "s/e_9.png", 1, 100);
	add_file(&of_a, "s/e_10.png", 1, 100);
	add_file(&of_a, "s/e_2.png", 1, 200);
	add_file(&of_a, "s/empty_3.png", 0, 300);
	add_file(&of_a, "s/page.html", 1, 300);
	add_file(&of_a, "s/model.bin", 1, 300);
	add_file(&of_b, "s/e_7.png", 1, 60);
	add_file(&of_b, "v2/epoch.mp4", 1, 90);
	add_file(&of_b, "t.flac", 1, 10);
	*vec_push(&list) = (struct proxy_media){a, &of_a};
	*vec_push(&list) = (struct proxy_media){b, &of_b};
	buf_init(&out, OUT_MAX);
	proxy_media_add(&list, &out);
	expect_order(out.data,
		(const char *const[]){"<a href=\"/run/a-22222\">a-22222</a></th>",
			"b-22222</a></th>", "s/e_#.png</th>",
			"src=\"/media/a-22222/s/e_2.png?v=1-c8\"", "<figcaption>2<", "/s/e_10.png",
			"/s/e_9.png", "</td><td>", "/media/b-22222/s/e_7.png", "v#/epoch.mp4</th>",
			"<td><div class=\"steps\"></div></td>", "<video controls", "<figcaption>2<",
			"old.png</th>", "<figcaption><", "t.flac</th>", "<audio controls", NULL});
	assert_int_equal(count(out.data, "<figure"), 7);
	vec_done(&list);
}

static void test_limits(void **state)
{
	AUTO_RUN struct run *run = run_new("a-22222", "a");
	AUTO(outputs_files_done) struct outputs_files files = {0};
	struct proxy_media_list list = {0};
	AUTO_BUF struct buf out, empty;

	buf_init(&empty, OUT_MAX);
	*vec_push(&list) = (struct proxy_media){run, &files};
	proxy_media_add(&list, &empty);
	assert_int_equal(empty.len, 0);
	for (int i = 0; i < 100; i++) {
		AUTO_FREE char *step = mem_printf("e%d.png", i);
		AUTO_FREE char *row = mem_printf("%c%c.png", 'a' + i / 26, 'a' + i % 26);

		add_file(&files, step, 1, 1000 + i);
		add_file(&files, row, 1, i);
	}
	buf_init(&out, OUT_MAX);
	proxy_media_add(&list, &out);
	assert_int_equal(count(out.data, "<tr><th scope=\"row\""), PROXY_MEDIA_ROWS);
	assert_int_equal(count(out.data, "src=\"/media/a-22222/e9"), 10);
	assert_int_equal(count(out.data, "alt=\"e76.png"), 1);
	assert_int_equal(count(out.data, "alt=\"e75.png"), 0);
	assert_non_null(strstr(out.data, "and 76 before"));
	assert_non_null(strstr(out.data, "and 61 more kinds of files"));
	vec_done(&list);
}

static void test_text_is_text(void **state)
{
	AUTO_RUN struct run *run = run_new("a-22222", "a");
	AUTO(outputs_files_done) struct outputs_files files = {0};
	struct proxy_media_list list = {0};
	AUTO_BUF struct buf out;

	add_file(&files, "a\"><script>1</script>.png", 1, 1);
	add_file(&files, "b\xff\x1b[31m?v=1#.mp4", 1, 1);
	*vec_push(&list) = (struct proxy_media){run, &files};
	buf_init(&out, OUT_MAX);
	proxy_media_add(&list, &out);
	assert_null(strstr(out.data, "<script"));
	assert_null(strchr(out.data, '\x1b'));
	assert_null(strchr(out.data, '\xff'));
	assert_non_null(strstr(out.data, "/media/a-22222/b%FF%1B%5B31m%3Fv%3D1%23.mp4?v=1-1"));
	vec_done(&list);
}

static const struct {
	const char *target, *run, *path; /* run NULL: refused */
} targets[] = {
	{"/media/a-22222/x.png?v=1-2", "a-22222", "/x.png?v=1-2"},
	{"/media/a-22222/d/x.png", "a-22222", "/d/x.png"},
	{"/media/a-22222/", "a-22222", "/"},
	{"/media/a-22222", NULL, NULL},
	{"/media/a-22222?/x.png", NULL, NULL},
	{"/media//x.png", NULL, NULL},
	{"/media/", NULL, NULL},
	{"/media", NULL, NULL},
	{"/", NULL, NULL},
	{"/media/a-2222/x.png", NULL, NULL},
	{"/media/A-22222/x.png", NULL, NULL},
	{"/media/../x.png", NULL, NULL},
	{"/media/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-22222/x.png",
		NULL, NULL},
};

static void test_targets(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
		char run[RUN_ID_SIZE];
		const char *path = NULL;

		assert_int_equal(
			proxy_media_parse(targets[i].target, run, &path), targets[i].run != NULL);
		if (!targets[i].run)
			continue;
		assert_string_equal(run, targets[i].run);
		assert_string_equal(path, targets[i].path);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_text_is_text),
		cmocka_unit_test(test_targets),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
