/* SPDX-License-Identifier: Apache-2.0 */
#include "base/data/json_scan.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/enc.h"
#include "base/util/str.h"

/* cJSON reads a number into a buffer of 64; every integer of 15 digits is exact in a double. */
enum { NUMBER_MAX = 63, EXACT_DIGITS = 15 };

static bool fault(struct json_scan *scan, const char *what)
{
	scan->fault = what;
	return false;
}

static bool over(struct json_scan *scan, const char *what)
{
	scan->over = true;
	return fault(scan, what);
}

/* The byte at the position, or -1 at the end. */
static int peek(const struct json_scan *scan)
{
	return scan->pos < scan->len ? (unsigned char)scan->text[scan->pos] : -1;
}

static bool accept(struct json_scan *scan, char c)
{
	if (peek(scan) != c)
		return false;
	scan->pos++;
	return true;
}

static void skip_blanks(struct json_scan *scan)
{
	for (;;) {
		int c = peek(scan);

		if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
			return;
		scan->pos++;
	}
}

/* Four hex digits; -1 if there are none. */
static int scan_hex4(struct json_scan *scan)
{
	int value = 0;

	for (int i = 0; i < 4; i++) {
		int digit = hex_digit(peek(scan));

		if (digit < 0)
			return -1;
		value = value << 4 | digit;
		scan->pos++;
	}
	return value;
}

/* Scan the four hex digits that follow \u, and the second half of a surrogate pair. */
static bool scan_unicode(struct json_scan *scan)
{
	int code = scan_hex4(scan);

	if (code < 0)
		return fault(scan, "\\u without four hex digits");
	if (code == 0)
		return fault(scan, "a NUL character in a string");
	if (code < 0xd800 || code > 0xdfff)
		return true;
	if (code > 0xdbff || !accept(scan, '\\') || !accept(scan, 'u'))
		return fault(scan, "half of a surrogate pair");
	code = scan_hex4(scan);
	if (code < 0xdc00 || code > 0xdfff)
		return fault(scan, "half of a surrogate pair");
	return true;
}

static bool scan_escape(struct json_scan *scan)
{
	int c = peek(scan);

	if (c < 0)
		return fault(scan, "a string without its end");
	if (!c || !strchr("\"\\/bfnrtu", c))
		return fault(scan, "an unknown escape in a string");
	scan->pos++;
	return c != 'u' || scan_unicode(scan);
}

/* Scan a string behind its opening quote. */
static bool scan_string(struct json_scan *scan)
{
	for (;;) {
		int c = peek(scan);

		if (c < 0)
			return fault(scan, "a string without its end");
		if (c < 0x20)
			return fault(scan, "a control character in a string");
		if (c >= 0x80) {
			size_t n = str_utf8_len(scan->text + scan->pos, scan->len - scan->pos);
			if (n == 0)
				return fault(scan, "bytes that are not UTF-8");
			scan->pos += n;
			continue;
		}
		scan->pos++;
		if (c == '"')
			return true;
		if (c == '\\' && !scan_escape(scan))
			return false;
	}
}

static size_t scan_digits(struct json_scan *scan)
{
	size_t start = scan->pos;

	while (peek(scan) >= '0' && peek(scan) <= '9')
		scan->pos++;
	return scan->pos - start;
}

/* Whether the number from at to the position, which has an exponent, is beyond every double, or
 * nearer to zero than any. */
static bool is_out_of_range(const struct json_scan *scan, size_t at)
{
	char text[NUMBER_MAX + 1] = {0};

	memcpy(text, scan->text + at, scan->pos - at);
	double value = strtod(text, NULL);
	return isinf(value) || (value == 0 && strcspn(text, "123456789") < strcspn(text, "eE"));
}

/* [.digits][e[+-]digits] behind the integer part. */
static bool scan_fraction(struct json_scan *scan, bool *ret_has_exponent)
{
	if (accept(scan, '.') && scan_digits(scan) == 0)
		return fault(scan, "a number without digits behind its point");
	*ret_has_exponent = accept(scan, 'e') || accept(scan, 'E');
	if (!*ret_has_exponent)
		return true;
	if (!accept(scan, '+'))
		accept(scan, '-');
	if (scan_digits(scan) == 0)
		return fault(scan, "a number without digits in its exponent");
	return true;
}

static bool scan_number(struct json_scan *scan)
{
	size_t start = scan->pos;
	bool has_exponent;

	accept(scan, '-');
	bool zero = peek(scan) == '0';
	size_t digits = scan_digits(scan);
	size_t end = scan->pos;
	if (digits == 0)
		return fault(scan, end == start ? "no value" : "a number without digits");
	if (zero && digits > 1)
		return fault(scan, "a number with a leading zero");
	if (!scan_fraction(scan, &has_exponent))
		return false;
	if (scan->pos - start > NUMBER_MAX)
		return over(scan, "a number of more than 63 characters");
	if ((scan->pos == end && digits > EXACT_DIGITS) ||
		(has_exponent && is_out_of_range(scan, start)))
		*vec_push(&scan->exact) = (struct json_exact){
			.ordinal = scan->n_numbers, .at = start, .len = scan->pos - start};
	scan->n_numbers++;
	return true;
}

static bool scan_word(struct json_scan *scan, const char *word)
{
	size_t len = strlen(word);

	if (scan->len - scan->pos < len || memcmp(scan->text + scan->pos, word, len) != 0)
		return fault(scan, "no value");
	scan->pos += len;
	return true;
}

static bool scan_value(struct json_scan *scan, unsigned depth);

/* Scan an array behind its [. */
static bool scan_array(struct json_scan *scan, unsigned depth)
{
	skip_blanks(scan);
	if (accept(scan, ']'))
		return true;
	for (;;) {
		if (!scan_value(scan, depth))
			return false;
		if (accept(scan, ']'))
			return true;
		if (!accept(scan, ','))
			return fault(scan, "neither , nor ] behind a value");
	}
}

/* Scan an object behind its {. */
static bool scan_object(struct json_scan *scan, unsigned depth)
{
	skip_blanks(scan);
	if (accept(scan, '}'))
		return true;
	for (;;) {
		skip_blanks(scan);
		if (!accept(scan, '"'))
			return fault(scan, "no key in quotes");
		if (!scan_string(scan))
			return false;
		skip_blanks(scan);
		if (!accept(scan, ':'))
			return fault(scan, "no : behind a key");
		if (!scan_value(scan, depth))
			return false;
		if (accept(scan, '}'))
			return true;
		if (!accept(scan, ','))
			return fault(scan, "neither , nor } behind a value");
	}
}

static bool scan_some_value(struct json_scan *scan, unsigned depth)
{
	int c = peek(scan);

	if ((c == '[' || c == '{') && depth == JSON_DEPTH_MAX)
		return over(scan, "more than 64 levels");
	if (accept(scan, '['))
		return scan_array(scan, depth + 1);
	if (accept(scan, '{'))
		return scan_object(scan, depth + 1);
	if (accept(scan, '"'))
		return scan_string(scan);
	if (c == 't')
		return scan_word(scan, "true");
	if (c == 'f')
		return scan_word(scan, "false");
	if (c == 'n')
		return scan_word(scan, "null");
	return scan_number(scan);
}

/* A value with the blanks around it. */
static bool scan_value(struct json_scan *scan, unsigned depth)
{
	if (++scan->n_values > JSON_VALUES_MAX)
		return over(scan, "more than a million values");
	skip_blanks(scan);
	if (!scan_some_value(scan, depth))
		return false;
	skip_blanks(scan);
	return true;
}

bool json_scan(struct json_scan *scan)
{
	if (!scan_value(scan, 0))
		return false;
	if (scan->pos < scan->len)
		return fault(scan, "more text behind the value");
	return true;
}

void json_scan_done(struct json_scan *scan)
{
	vec_done(&scan->exact);
}
