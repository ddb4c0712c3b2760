/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"

static void filter_all(
	struct buf *out, enum term_cr cr, bool color, const char *s, size_t len, size_t piece)
{
	struct term_filter filter;

	buf_init(out, 100000);
	term_filter_init(&filter, cr, color);
	for (size_t at = 0; at < len; at += piece)
		term_filter_add(&filter, s + at, piece < len - at ? piece : len - at, out);
	term_filter_end(&filter, out);
	assert_int_equal(filter.n_pending, 0);
}

/* In one piece, and cut at every place. */
static void assert_filtered(
	enum term_cr cr, bool color, const char *s, size_t len, const char *want, int line)
{
	for (size_t piece = 1; piece <= len + 1; piece++) {
		AUTO_BUF struct buf out;
		filter_all(&out, cr, color, s, len, piece);
		if (strlen(want) != out.len || memcmp(out.data, want, out.len) != 0)
			fail_msg("line %d, pieces of %zu: \"%s\" is not \"%s\"", line, piece,
				out.data, want);
	}
}

#define SHOWN(in, want)   assert_filtered(TERM_CR_SHOW, false, in, sizeof(in) - 1, want, __LINE__)
#define COLORED(in, want) assert_filtered(TERM_CR_SHOW, true, in, sizeof(in) - 1, want, __LINE__)
#define REDRAWN(in, want) assert_filtered(TERM_CR_REDRAW, false, in, sizeof(in) - 1, want, __LINE__)

static void test_plain(void **state)
{
	SHOWN("", "");
	SHOWN("hello\tworld\n", "hello\tworld\n");
	SHOWN("grüße 日本 €", "grüße 日本 €");
	SHOWN("👩‍🔬 ❤️ \U000e0100", "👩‍🔬 ❤️ \U000e0100");
	SHOWN("\\x1b ^[ <U+202E>", "\\x1b ^[ <U+202E>");
}

static void test_controls(void **state)
{
	SHOWN("a\0b", "a^@b");
	SHOWN("\a\b\v\f\x0e\x1f\x7f", "^G^H^K^L^N^_^?");
	SHOWN("a\r\nb\r", "a^M\nb^M");
	/* C1 as bytes of their own, which some terminals obey, and as UTF-8. */
	SHOWN("\x9b"
	      "31m\x90\x85",
		"\\x9b31m\\x90\\x85");
	SHOWN("\xc2\x9b"
	      "31m\xc2\x80\xc2\x9f\xc2\xa0",
		"\\xc2\\x9b31m\\xc2\\x80\\xc2\\x9f\xc2\xa0");
}

static void test_escape_sequences(void **state)
{
	/* title, clipboard, hyperlink, cursor, erase, charset, reset, device control, report */
	COLORED("\033]0;title\a", "^[]0;title^G");
	COLORED("\033]52;c;AAAA\033\\", "^[]52;c;AAAA^[\\");
	COLORED("\033]8;;http://x\033\\y", "^[]8;;http://x^[\\y");
	COLORED("\033[2J\033[H\033[1;1H\033[K", "^[[2J^[[H^[[1;1H^[[K");
	COLORED("\033(0\033c\033P1$r\033[6n\033[?25l", "^[(0^[c^[P1$r^[[6n^[[?25l");
	COLORED("\033[>4;1m\033[?1m\033[ m\033[1 m", "^[[>4;1m^[[?1m^[[ m^[[1 m");
	COLORED("\033\033[1m\033[\033[0m", "^[\033[1m^[[\033[0m");
	COLORED("\033", "^[");
	COLORED("\033[", "^[[");
	COLORED("\033[31", "^[[31");
	COLORED("\033[3\n1m", "^[[3\n1m");
	COLORED("\033[3\x7f"
		"1m",
		"^[[3^?1m");
}

static void test_colors(void **state)
{
	COLORED("\033[31mred\033[0m.", "\033[31mred\033[0m.");
	COLORED("\033[31mred\033[m.", "\033[31mred\033[m.");
	COLORED("\033[38;2;1;2;3mx", "\033[38;2;1;2;3mx\033[0m");
	COLORED("\033[4:3mx", "\033[4:3mx\033[0m");
	COLORED("\033[0;0mx", "\033[0;0mx");
	COLORED("\033[0;1mx", "\033[0;1mx\033[0m");
	COLORED("\033[10mx", "\033[10mx\033[0m");
	SHOWN("\033[31mred\033[0m.\033[38:5:1m", "red.");
	/* 24 parameter bytes and no more. */
	COLORED("\033[123456789012345678901234m", "\033[123456789012345678901234m\033[0m");
	COLORED("\033[1234567890123456789012345m", "^[[1234567890123456789012345m");
}

static void test_bad_utf8(void **state)
{
	SHOWN("\xff\xfe\x80", "\\xff\\xfe\\x80");
	SHOWN("a\xc3", "a\\xc3");
	SHOWN("\xe2\x82", "\\xe2\\x82");
	SHOWN("\xe2\x82"
	      "a",
		"\\xe2\\x82a");
	SHOWN("\xf0\x9f\x98\xe2\x82\xac", "\\xf0\\x9f\\x98€");
	SHOWN("\xc0\xaf\xe0\x80\xaf", "\\xc0\\xaf\\xe0\\x80\\xaf");
	SHOWN("\xed\xa0\x80", "\\xed\\xa0\\x80");
	SHOWN("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80");
	SHOWN("\xc3\033[1m", "\\xc3");
	SHOWN("\xc3\r\n", "\\xc3^M\n");
}

static void test_hidden(void **state)
{
	SHOWN("a\u202eb\u2066c\u2069", "a<U+202E>b<U+2066>c<U+2069>");
	SHOWN("\u061c\u200b\u200e\u200f", "<U+061C><U+200B><U+200E><U+200F>");
	SHOWN("\u2028\u2029\u202a\ufeff", "<U+2028><U+2029><U+202A><U+FEFF>");
	SHOWN("\U000e0000\U000e0041\U000e007f\U000e0080", "<U+E0000><U+E0041><U+E007F>\U000e0080");
	SHOWN("\u2060\u180e\ufff9", "<U+2060><U+180E><U+FFF9>");
	SHOWN("\u200c\u200d\ufe0f\u2010\u2027\u202f", "\u200c\u200d\ufe0f\u2010\u2027\u202f");
}

static void test_redraw(void **state)
{
	REDRAWN("a\r\nb", "a\nb");
	REDRAWN("10%\r20%\n", "10%\r\033[K20%\n");
	REDRAWN("\r 5%\r 10%", "\r\033[K 5%\r\033[K 10%");
	/* Several are one, and none of them wipes a line that has come to its end. */
	REDRAWN("a\r\r\nb", "a\nb");
	REDRAWN("a\r\rb", "a\r\033[Kb");
	/* What was drawn last stays. */
	REDRAWN("100%\r", "100%");
	REDRAWN("100%\r\r", "100%");
	REDRAWN("\r", "");
	REDRAWN("a\r\033", "a\r\033[K^[");
	REDRAWN("a\r\xc3\xa9", "a\r\033[Ké");
}

static void test_limits_of_state(void **state)
{
	struct term_filter filter;
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	term_filter_init(&filter, TERM_CR_REDRAW, true);
	term_filter_add(&filter, NULL, 0, &out);
	/* An open sequence is not kept for ever. */
	for (int i = 0; i < 1000; i++) {
		term_filter_add(&filter, i ? "1" : "\r\033[", i ? 1 : 3, &out);
		assert_true(filter.n_pending <= 27);
	}
	term_filter_end(&filter, &out);
	assert_true(str_starts(out.data, "\r\033[K^[[1111"));
	/* The filter can be used again after its end. */
	buf_reset(&out);
	term_filter_add(&filter, "\033[1mx", 5, &out);
	term_filter_end(&filter, &out);
	term_filter_end(&filter, &out);
	assert_string_equal(out.data, "\033[1mx\033[0m");
}

static void test_clean(void **state)
{
	static const struct {
		const char *s;
		bool one_line;
		const char *want;
	} rows[] = {
		{"", true, ""},
		{"a\nb\tc", true, "a b c"},
		{"a\nb\tc", false, "a\nb\tc"},
		{"\033[1mbold\033[0m", true, "bold"},
		{"a\r\n", true, "a^M "},
		{"x\033", true, "x^["},
		{"x\xc3", true, "x\\xc3"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_BUF struct buf out;
		buf_init(&out, 100);
		buf_adds(&out, "a\nb:");
		term_clean(rows[i].s, strlen(rows[i].s), rows[i].one_line, &out);
		assert_int_equal(strncmp(out.data, "a\nb:", 4), 0);
		assert_string_equal(out.data + 4, rows[i].want);
	}
}

static void test_limit(void **state)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 5);
	term_clean("\xff\xff", 2, true, &out);
	assert_true(out.full);
	assert_string_equal(out.data, "\\xff\\");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_controls),
		cmocka_unit_test(test_escape_sequences),
		cmocka_unit_test(test_colors),
		cmocka_unit_test(test_bad_utf8),
		cmocka_unit_test(test_hidden),
		cmocka_unit_test(test_redraw),
		cmocka_unit_test(test_limits_of_state),
		cmocka_unit_test(test_clean),
		cmocka_unit_test(test_limit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
