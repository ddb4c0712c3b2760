/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/proxy/html.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static void expect_text(const char *text, size_t len, const char *wanted)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	html_text(&out, text, len);
	assert_string_equal(out.data, wanted);
}

static void test_text(void **state)
{
	expect_text("a", 1, "a");
	expect_text("", 0, "");
	expect_text("<script>\"'&", 11, "&lt;script&gt;&quot;&#39;&amp;");
	expect_text("\xc3\xa9\n\t", 4, "\xc3\xa9\n\t");
	expect_text("a\0b\x1b\x7f", 5,
		"a\xef\xbf\xbd"
		"b\xef\xbf\xbd\xef\xbf\xbd");
	expect_text("\xff\xc3<", 3, "\xef\xbf\xbd\xef\xbf\xbd&lt;");
	/* Right-to-left override, C1. */
	expect_text("\xe2\x80\xae\xc2\x9b", 5, "\xef\xbf\xbd\xef\xbf\xbd");
}

static void test_paths(void **state)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	html_path(&out, "a/b c\"<'>&?#%\xff\n~-._Z9:");
	assert_string_equal(out.data, "a/b%20c%22%3C%27%3E%26%3F%23%25%FF%0A~-._Z9%3A");
}

static void expect_log(const char *text, const char *wanted)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	html_log(&out, text, strlen(text));
	assert_string_equal(out.data, wanted);
}

static void test_logs(void **state)
{
	expect_log("", "");
	expect_log("a\n\nb", "a\n\nb");
	expect_log("a\r\nb\r\n", "a\nb\n");
	expect_log("1 %\r50 %\r100 %\ndone\n", "100 %\ndone\n");
	expect_log("1 %\r50 %\r", "50 %");
	expect_log("\033[31m<b>\033[0m\n", "&lt;b&gt;\n");
	expect_log("\033]52;c;x\007\n", "^[]52;c;x^G\n");
	expect_log("a\x1b", "a^[");
}

static void test_markup(void **state)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	html_addf(&out, "<a href=\"%s\">%s</a> 5 %%", "x\"y", "<z>");
	assert_string_equal(out.data, "<a href=\"x&quot;y\">&lt;z&gt;</a> 5 %");
}

static void test_pages(void **state)
{
	AUTO_BUF struct buf out, again;

	buf_init(&out, 4000);
	buf_init(&again, 4000);
	html_begin(&out, "a<b", 0, 0);
	html_end(&out);
	assert_non_null(strstr(out.data, "<title>a&lt;b</title>"));
	assert_null(strstr(out.data, "refresh"));
	assert_null(strstr(out.data, "script"));
	assert_true(str_starts(out.data, "<!doctype html>\n"));
	html_begin(&again, "a", 0, 7);
	assert_non_null(strstr(again.data, "<meta http-equiv=\"refresh\" content=\"7\">"));
}

static void test_a_full_page(void **state)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 10);
	html_adds(&out, "<<<<<<<<<<");
	assert_true(out.full);
	assert_true(out.len <= 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_logs),
		cmocka_unit_test(test_markup),
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_a_full_page),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
