/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/proxy/proxy_view.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* Each URL, and the one way to write what was understood of it. */
static const struct {
	const char *target, *wanted;
} urls[] = {
	{"/", "/"},
	{"/?", "/"},
	{"/compare?run=b-22222&run=a-22222", "/compare?run=b-22222&run=a-22222"},
	{"/?sort=metrics.loss.min&group=tiger-4k2x9", "/?group=tiger-4k2x9&sort=metrics.loss.min"},
	{"/?sort=-age", "/?sort=-age"},
	{"/?q=adam+lab%20x", "/?q=adam+lab+x"},
	{"/?q=a%26sort%3Dage%23%25%2B", "/?q=a%26sort%3Dage%23%25%2B"},
	{"/?q=%C3%A9", "/?q=%C3%A9"},
	{"/?q=\xc3\xa9", "/?q=%C3%A9"},
	{"/?columns=state,metrics.loss&columns=age", "/?columns=state,metrics.loss,age"},
	{"/?columns=a,,a,b,", "/?columns=a,b"},
	{"/?x=params.lr&y=metrics.a%2Fb", "/?x=params.lr&y=metrics.a%2Fb"},
	/* The first one counts; a run is chosen once. */
	{"/?sort=a&sort=b&run=a&run=a", "/?sort=a&run=a"},
	{"/?q=<script>\"'", "/?q=%3Cscript%3E%22%27"},
	{"/?q=..%2F..", "/?q=..%2F.."},
	/* What is no text, no value or no name. */
	{"/?q=", "/"},
	{"/?q", "/"},
	{"/?q=%", "/"},
	{"/?q=%2", "/"},
	{"/?q=%zz", "/"},
	{"/?q=%00", "/"},
	{"/?q=a%00b", "/"},
	{"/?q=%0A", "/"},
	{"/?q=%1B%5B31m", "/"},
	{"/?q=%FF", "/"},
	{"/?q=%C3", "/"},
	{"/?q=%E2%80%AE", "/"},
	{"/?Q=a&other=b&=c&&&q=d", "/?q=d"},
	{"/?q=a#sort=b", "/?q=a"},
	{"/#?q=a", "/"},
	{"/?qq=a&grou=b", "/"},
};

static void expect_url(const char *target, const char *wanted)
{
	AUTO_PROXY_VIEW struct proxy_view view, again;
	AUTO_BUF struct buf out, twice;

	buf_init(&out, 1 << 20);
	buf_init(&twice, 1 << 20);
	proxy_view_parse(target, &view);
	proxy_view_add(&view, &out);
	assert_string_equal(out.data, wanted);
	proxy_view_parse(out.data, &again);
	proxy_view_add(&again, &twice);
	assert_string_equal(twice.data, wanted);
}

static void test_urls(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(urls); i++)
		expect_url(urls[i].target, urls[i].wanted);
}

static void test_values(void **state)
{
	AUTO_PROXY_VIEW struct proxy_view view;

	proxy_view_parse("/compare?q=a+b&run=x&columns=id,age&sort=-age&group=g&x=p&y=m", &view);
	assert_string_equal(view.path, "/compare");
	assert_string_equal(view.query, "a b");
	assert_string_equal(view.sort, "-age");
	assert_string_equal(view.group, "g");
	assert_string_equal(view.x, "p");
	assert_string_equal(view.y, "m");
	assert_int_equal(view.runs.n, 1);
	assert_int_equal(view.columns.n, 2);
	assert_string_equal(view.columns.v[1], "age");
}

static void test_limits(void **state)
{
	AUTO_PROXY_VIEW struct proxy_view view, exact, longer;
	AUTO_BUF struct buf many, value;

	buf_init(&many, 1 << 20);
	buf_init(&value, 1 << 20);
	buf_adds(&many, "/?");
	for (int i = 0; i < 1000; i++)
		buf_addf(&many, "run=r%d&columns=c%d,d%d&", i, i, i);
	proxy_view_parse(many.data, &view);
	assert_int_equal(view.runs.n, PROXY_VIEW_RUNS_MAX);
	assert_int_equal(view.columns.n, PROXY_VIEW_COLUMNS_MAX);
	buf_adds(&value, "/?q=");
	for (int i = 0; i < PROXY_VIEW_VALUE_MAX; i++)
		buf_addc(&value, 'a');
	proxy_view_parse(value.data, &exact);
	assert_int_equal(strlen(exact.query), PROXY_VIEW_VALUE_MAX);
	buf_addc(&value, 'a');
	proxy_view_parse(value.data, &longer);
	assert_null(longer.query);
}

static void test_sorted(void **state)
{
	AUTO_PROXY_VIEW struct proxy_view view;
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	proxy_view_parse("/?sort=age&q=x", &view);
	proxy_view_add_sorted(&view, "-params.a b", &out);
	assert_string_equal(out.data, "/?q=x&sort=-params.a+b");
	buf_reset(&out);
	proxy_view_add_sorted(&view, NULL, &out);
	assert_string_equal(out.data, "/?q=x");
	assert_string_equal(view.sort, "age");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_urls),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_sorted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
