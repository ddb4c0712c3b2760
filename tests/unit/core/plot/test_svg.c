/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/mem.h"
#include "core/plot/svg.h"

/* A part of a page has no style of its own, names its lines, and is text. */
static void test_parts(void **state)
{
	static const struct series_point points[] = {
		{0, 1, 2}, {1, 2, 1}, {2, 3, (double)NAN}, {3, 4, 0.5}};
	struct chart_line lines[] = {
		{.label = mem_strdup("<b>one"), .curve = {.points = points, .n = 4}},
		{.label = mem_strdup("other"), .curve = {.points = points, .n = 2}}};
	const struct chart chart = {
		.title = "lo\"ss<", .lines = lines, .n_lines = 2, .width = 400, .height = 100};
	AUTO_BUF struct buf part, whole;

	buf_init(&part, 1 << 20);
	buf_init(&whole, 1 << 20);
	svg_draw_part(&chart, &part);
	svg_draw(&chart, 1, &whole);
	assert_null(strstr(part.data, "style"));
	assert_null(strstr(part.data, "stroke=\""));
	assert_null(strstr(part.data, "<b>"));
	assert_non_null(strstr(part.data, "aria-label=\"lo&quot;ss&lt;\""));
	assert_non_null(strstr(part.data, "<g><title>&lt;b&gt;one</title><path class=\"c k0\""));
	assert_non_null(strstr(part.data, "<path class=\"c k1\""));
	assert_non_null(strstr(part.data, "<path class=\"k0\" d=\""));
	assert_non_null(strstr(whole.data, "<style>"));
	assert_non_null(strstr(whole.data, "<path class=\"c\" stroke=\"#0077bb\" d=\""));
	assert_null(strstr(whole.data, "k0"));
	free(lines[0].label);
	free(lines[1].label);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
