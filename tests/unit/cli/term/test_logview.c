/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <time.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/logview.h"

enum { ENOUGH = 8 << 20 };

#define AT  1785585600000LL /* 2026-08-01T12:00:00Z */
#define NOW 1000000LL

struct view {
	struct logview log;
	struct buf out;
};

static void begin(struct view *view, enum logview_kind kind, bool color, bool stamped)
{
	logview_init(&view->log, kind, color, stamped);
	buf_init(&view->out, ENOUGH);
}

static void add(struct view *view, const char *data, int64_t now_ms)
{
	logview_add(&view->log, data, strlen(data), AT, now_ms, &view->out);
}

static void expect(struct view *view, const char *want)
{
	assert_string_equal(view->out.data, want);
	buf_reset(&view->out);
}

static void finish(struct view *view, const char *want)
{
	logview_end(&view->log, &view->out);
	expect(view, want);
	logview_done(&view->log);
	buf_done(&view->out);
}

static void lines_print_their_rank(void **state)
{
	struct view view;

	begin(&view, LOGVIEW_RAW, false, false);
	view.log.ranked = true;
	add(&view, "one\n", NOW);
	view.log.rank = 1;
	add(&view, "two\nhalf", NOW);
	add(&view, " whole\n", NOW);
	finish(&view, "[0] one\n[1] two\n[1] half whole\n");
}

static void raw_is_exact(void **state)
{
	struct view view;

	begin(&view, LOGVIEW_RAW, false, false);
	logview_add(&view.log, "a\r\033[2J\0\xff\n", 9, AT, NOW, &view.out);
	assert_int_equal(view.out.len, 9);
	assert_memory_equal(view.out.data, "a\r\033[2J\0\xff\n", 9);
	assert_int_equal(logview_due(&view.log), -1);
	buf_reset(&view.out);
	finish(&view, "");
}

static void raw_with_times(void **state)
{
	struct view view;

	begin(&view, LOGVIEW_RAW, false, true);
	add(&view, "a\nb", NOW);
	expect(&view, "2026-08-01T12:00:00.000Z a\n2026-08-01T12:00:00.000Z b");
	add(&view, "c\r\n\n", NOW);
	expect(&view, "c\r\n2026-08-01T12:00:00.000Z \n");
	logview_add(&view.log, "x", 1, 0, NOW, &view.out);
	expect(&view, "- x");
	finish(&view, "");
}

static void terminal_filters(void **state)
{
	struct view view;

	begin(&view, LOGVIEW_TERMINAL, false, false);
	add(&view, "\033[31mred\033[0m \033[2J\r\n", NOW);
	expect(&view, "red ^[[2J\n");
	add(&view, "part", NOW);
	expect(&view, "part");
	finish(&view, "");
}

/* The processor's time for a text of that line, again and again. */
static double cost_of(const char *line)
{
	enum { SIZE = 2 << 20 };
	AUTO_BUF struct buf text;
	struct view view;

	buf_init(&text, SIZE + 100);
	while (text.len < SIZE)
		buf_adds(&text, line);
	begin(&view, LOGVIEW_TERMINAL, false, false);
	clock_t begun = clock();
	logview_add(&view.log, text.data, text.len, AT, NOW, &view.out);
	double cost = (double)(clock() - begun);
	assert_int_equal(view.out.len, text.len);
	assert_memory_equal(view.out.data, text.data, text.len);
	buf_reset(&view.out);
	finish(&view, "");
	return cost;
}

static void empty_lines_cost_what_others_do(void **state)
{
	double others =
		cost_of("a line of some sixty-four characters, as programs write them ...\n");
	double empty = cost_of("\n");
	assert_true(empty < 30 * others);
}

static void redraws_are_few_and_the_last_is_shown(void **state)
{
	struct view view;

	begin(&view, LOGVIEW_TERMINAL, false, false);
	add(&view, "10%\r20%", NOW);
	expect(&view, "\r\033[K20%");
	for (int i = 0; i < 50; i++)
		add(&view, "\r30%", NOW + i);
	expect(&view, "");
	assert_int_equal(logview_due(&view.log), NOW + LOGVIEW_REDRAW_MS);
	logview_tick(&view.log, NOW + LOGVIEW_REDRAW_MS - 1, &view.out);
	expect(&view, "");
	logview_tick(&view.log, NOW + LOGVIEW_REDRAW_MS, &view.out);
	expect(&view, "\r\033[K30%");
	assert_int_equal(logview_due(&view.log), -1);
	add(&view, "\r40%", NOW + LOGVIEW_REDRAW_MS + 1);
	add(&view, "\r50%\nnext\n", NOW + LOGVIEW_REDRAW_MS + 2);
	expect(&view, "\r\033[K50%\nnext\n");
	add(&view, "\r60%", NOW + LOGVIEW_REDRAW_MS + 3);
	finish(&view, "\r\033[K60%");
}

static void redraws_keep_colors(void **state)
{
	struct view view;

	begin(&view, LOGVIEW_TERMINAL, true, false);
	add(&view, "\033[32m1\r2\r3\n", NOW);
	expect(&view, "\033[32m\r\033[K3\n");
	finish(&view, "\033[0m");
}

static void long_lines_do_not_wait(void **state)
{
	AUTO_FREE char *text = mem_alloc(LOGVIEW_LINE_MAX + 1, 1);
	struct view view;

	memset(text, 'x', LOGVIEW_LINE_MAX);
	begin(&view, LOGVIEW_TERMINAL, false, false);
	add(&view, "a\rb", NOW);
	buf_reset(&view.out);
	add(&view, "\r", NOW);
	add(&view, text, NOW + 1);
	assert_true(view.out.len > LOGVIEW_LINE_MAX);
	assert_int_equal(logview_due(&view.log), -1);
	buf_reset(&view.out);
	finish(&view, "");
}

static void terminal_with_times(void **state)
{
	struct view view;

	begin(&view, LOGVIEW_TERMINAL, false, true);
	add(&view, "1%\r2%\n", NOW);
	expect(&view, "\r\033[K2026-08-01T12:00:00.000Z 2%\n");
	finish(&view, "");
}

#define HEAD                                                                                       \
	"{\"schema\":\"dlrun/log/v1\",\"rank\":0,\"time\":\"2026-08-01T12:00:00.000Z\",\"text\":"

static void json_lines(void **state)
{
	struct view view;

	begin(&view, LOGVIEW_JSON, false, false);
	add(&view, "a\r\"b\"\nhal", NOW);
	expect(&view, HEAD "\"a\\r\\\"b\\\"\"}\n");
	add(&view, "f\n\n", NOW);
	expect(&view, HEAD "\"half\"}\n" HEAD "\"\"}\n");
	add(&view, "\xff\n", NOW);
	expect(&view, HEAD "\"\xef\xbf\xbd\",\"text_b64\":\"/w==\"}\n");
	logview_add(&view.log, "end", 3, 0, NOW, &view.out);
	expect(&view, "");
	finish(&view, "{\"schema\":\"dlrun/log/v1\",\"rank\":0,\"time\":null,\"text\":\"end\"}\n");
}

/* A part's text: its length, and whether it is marked. */
static size_t part(const char **text, bool *ret_partial)
{
	size_t len = strcspn(*text, "\n");
	AUTO_JSON struct json *json = NULL;

	assert_int_equal(json_parse(*text, len, ENOUGH, "a line", &json, NULL), 0);
	assert_null(json_get(json, "text_b64"));
	*ret_partial = json_get_bool(json, "partial", false);
	*text += len + 1;
	return strlen(json_get_str(json, "text"));
}

static void json_cuts_between_characters(void **state)
{
	AUTO_BUF struct buf line;
	const char *text;
	struct view view;
	bool partial;

	buf_init(&line, ENOUGH);
	buf_addc(&line, 'x');
	while (line.len < LOGVIEW_LINE_MAX + 100)
		buf_adds(&line, "é");
	buf_addc(&line, '\n');
	begin(&view, LOGVIEW_JSON, false, false);
	add(&view, line.data, NOW);
	text = view.out.data;
	assert_int_equal(part(&text, &partial), LOGVIEW_LINE_MAX - 1);
	assert_true(partial);
	assert_int_equal(part(&text, &partial), line.len - 1 - (LOGVIEW_LINE_MAX - 1));
	assert_false(partial);
	assert_int_equal(*text, 0);
	buf_reset(&view.out);
	finish(&view, "");
}

static void json_of_anything_is_bounded(void **state)
{
	AUTO_FREE char *data = mem_alloc(5 * LOGVIEW_LINE_MAX, 1);
	size_t lines = 0;
	struct view view;

	memset(data, 0x80, 5 * LOGVIEW_LINE_MAX);
	begin(&view, LOGVIEW_JSON, false, false);
	logview_add(&view.log, data, 5 * LOGVIEW_LINE_MAX, AT, NOW, &view.out);
	for (const char *p = view.out.data; (p = strchr(p, '\n')); p++)
		lines++;
	assert_in_range(lines, 4, 5);
	logview_done(&view.log);
	buf_done(&view.out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_print_their_rank),
		cmocka_unit_test(raw_is_exact),
		cmocka_unit_test(raw_with_times),
		cmocka_unit_test(terminal_filters),
		cmocka_unit_test(empty_lines_cost_what_others_do),
		cmocka_unit_test(redraws_are_few_and_the_last_is_shown),
		cmocka_unit_test(redraws_keep_colors),
		cmocka_unit_test(long_lines_do_not_wait),
		cmocka_unit_test(terminal_with_times),
		cmocka_unit_test(json_lines),
		cmocka_unit_test(json_cuts_between_characters),
		cmocka_unit_test(json_of_anything_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
