/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/axes_impl.h"

enum {
	AXIS_DEPTH_MAX = 64,
	AXIS_NUMBER_MAX = 60, /* characters */
	AXIS_DIGITS = 6,
	AXIS_DIGITS_MAX = 12,
	AXIS_GUARDS = 3,
};
/* A list may be longer than a study where a sample is taken. */
static const int64_t axis_count_max = 1000 * 1000 * 1000;
static const int64_t axis_range_max = 1000000000000000; /* exact in JSON and as a double */

static const char *const axis_form_names[] = {"lin", "log", "uniform", "loguniform"};

/*
 * Names
 */

bool axis_name_is_valid(const char *name, size_t len)
{
	static const char begin[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
	static const char rest[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
				   "0123456789.-/";

	return len > 0 && len <= AXES_NAME_MAX && memchr(begin, *name, sizeof(begin) - 1) &&
	       strspn(name, rest) >= len;
}

bool axis_name_is_reserved(const char *name)
{
	static const char *const reserved[] = {AXIS_RESERVED};

	for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
		if (str_eq(name, reserved[i]))
			return true;
	return false;
}

/*
 * Errors
 */

void axis_source_done(struct axis_source *source)
{
	free(source->where);
}

int axis_error(struct err *err, const struct axis_source *source, const char *fmt, ...)
{
	AUTO_FREE char *text = NULL;
	va_list args;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	return err_set(err, source->id, "%s: %s", source->where, text);
}

int axis_hint(struct err *err, const struct axis_source *source, const char *over, const char *yaml)
{
	if (source->is_yaml)
		return err_hint(err, "%s: %s", source->name, yaml);
	if (strpbrk(over, "\"'\\"))
		return err_hint(err, "--over '%s=%s'", source->name, over);
	return err_hint(err, "--over %s=%s", source->name, over);
}

static int axis_hint_quotes(struct err *err, const struct axis_source *source)
{
	return axis_hint(err, source, "\"a,b\",c", "[\"a,b\", c]");
}

/* The text is meant, not a form. */
static int axis_hint_text(struct err *err, const struct axis_source *source, const char *text)
{
	AUTO_FREE char *shown = str_shown(text);
	AUTO_FREE char *over = mem_printf("\"%s\"", shown), *yaml = mem_printf("[\"%s\"]", shown);

	return axis_hint(err, source, over, yaml);
}

/*
 * Numbers
 */

static size_t axis_span_digits(const char *s)
{
	return strspn(s, "0123456789");
}

/* Whether the len bytes at s are a decimal number: no blanks, hexadecimal digits or names, which
 * strtod takes. */
static bool axis_is_number(const char *s, size_t len)
{
	const char *at = s + strspn(s, "+-");
	size_t whole = axis_span_digits(at), part = 0;

	if (at - s > 1)
		return false;
	at += whole;
	/* "1..5": the point begins what stands between the ends. */
	if (*at == '.' && at[1] != '.') {
		part = axis_span_digits(at + 1);
		at += 1 + part;
	}
	if (whole + part == 0)
		return false;
	if (*at == 'e' || *at == 'E') {
		const char *exponent = at + 1 + (at[1] == '-' || at[1] == '+');
		size_t n = axis_span_digits(exponent);
		at = n ? exponent + n : at;
	}
	return at == s + len;
}

static bool axis_read_number(const char *s, size_t len, double *ret)
{
	char text[AXIS_NUMBER_MAX + 1];

	if (len > AXIS_NUMBER_MAX || !axis_is_number(s, len))
		return false;
	memcpy(text, s, len);
	text[len] = '\0';
	*ret = strtod(text, NULL);
	return isfinite(*ret);
}

static bool axis_read_whole(const char *s, size_t len, int64_t *ret)
{
	size_t sign = *s == '-' || *s == '+';
	char text[24];

	if (len - sign > 16 || len == sign || axis_span_digits(s + sign) != len - sign)
		return false;
	memcpy(text, s, len);
	text[len] = '\0';
	*ret = strtoll(text, NULL, 10);
	return *ret <= axis_range_max && *ret >= -axis_range_max;
}

/* So many digits tell numbers of that size apart which differ by the fraction 1 / ratio. */
static int axis_digits(double ratio)
{
	int digits = AXIS_DIGITS - 1;

	for (; ratio > 1 && digits < AXIS_DIGITS_MAX; ratio /= 10)
		digits++;
	return digits < AXIS_DIGITS ? AXIS_DIGITS : digits;
}

/* A number in decimal digits, rounded as printf does, without zeros at its end. */
struct axis_decimal {
	bool is_negative;
	char digits[24];
	int n, exponent; /* of the first digit; zero has n 0 */
};

/* At most 16 digits. */
static struct axis_decimal axis_round(double value, int digits)
{
	struct axis_decimal d = {.is_negative = value < 0};
	char text[40];

	snprintf(text, sizeof(text), "%.*e", digits > 1 ? digits - 1 : 0, fabs(value));
	d.exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
	for (const char *p = text; *p != 'e'; p++)
		if (str_is_digit(*p))
			d.digits[d.n++] = *p;
	while (d.n && d.digits[d.n - 1] == '0')
		d.n--;
	d.digits[d.n] = '\0';
	return d;
}

/* Zero is smaller than every number, and so is its exponent. */
static int axis_exponent(double value)
{
	return value == 0 ? -400 : axis_round(value, 16).exponent;
}

/* Print a number as people write it: without an exponent if its digits are not far from the
 * point. */
static char *axis_print(const struct axis_decimal *d)
{
	static const char zeros[] = "00000000000000";
	const char *sign = d->is_negative ? "-" : "";
	int e = d->exponent;

	if (!d->n)
		return mem_strdup("0");
	/* Readers of YAML want a point in front of "e" and a sign behind it. */
	if (e < -5 || e > 14)
		return mem_printf(
			"%s%c.%se%+d", sign, d->digits[0], d->n > 1 ? d->digits + 1 : "0", e);
	if (e < 0)
		return mem_printf("%s0.%.*s%s", sign, -e - 1, zeros, d->digits);
	if (d->n <= e + 1)
		return mem_printf("%s%s%.*s", sign, d->digits, e + 1 - d->n, zeros);
	return mem_printf("%s%.*s.%s", sign, e + 1, d->digits, d->digits + e + 1);
}

/*
 * Random numbers
 */

static const uint64_t axis_gamma = 0x9e3779b97f4a7c15;

static uint64_t axis_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

uint64_t axis_random_next(uint64_t *state)
{
	*state += axis_gamma;
	return axis_mix(*state);
}

/* In [0, 1). */
static double axis_random(uint64_t seed, const char *name, uint64_t i)
{
	uint64_t hash = 0xcbf29ce484222325;

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 0x100000001b3;
	hash = axis_mix(axis_mix(seed + axis_gamma) ^ hash);
	hash = axis_mix(hash + axis_gamma * (i + 1));
	return (double)(hash >> 11) * 0x1p-53;
}

/*
 * Values
 */

static bool axis_is_geometric(const struct axis_part *part)
{
	return part->form == AXIS_LOG || part->form == AXIS_LOGUNIFORM;
}

static bool axis_is_counted(const struct axis_part *part)
{
	return part->n && (part->form == AXIS_LIN || part->form == AXIS_LOG);
}

/* Round to the digits of the part. A number that ends with zeros behind them keeps one digit more:
 * it is meant to be exact (0.0078125, 2097152), and its last bit would decide how it is rounded. */
static struct axis_decimal axis_round_for(const struct axis_part *part, double value)
{
	int digits = part->precision;

	if (!axis_is_geometric(part))
		digits = axis_exponent(value) - part->precision + 1;
	if (digits < 1)
		return (struct axis_decimal){0};
	struct axis_decimal exact = axis_round(value, digits + AXIS_GUARDS);
	return axis_is_counted(part) && exact.n <= digits + 1 ? exact : axis_round(value, digits);
}

/* The number at that fraction of the way, never outside. */
static char *axis_between(const struct axis_part *part, double fraction)
{
	bool is_up = part->low < part->high;
	AUTO_FREE char *text = NULL;
	struct axis_decimal decimal;
	double value;

	if (axis_is_geometric(part))
		value = exp(log(part->low) + (log(part->high) - log(part->low)) * fraction);
	else
		value = part->low + (part->high - part->low) * fraction;
	decimal = axis_round_for(part, value);
	text = axis_print(&decimal);
	value = strtod(text, NULL);
	if (is_up ? value < part->low : value > part->low)
		return mem_strdup(part->from);
	if (is_up ? value > part->high : value < part->high)
		return mem_strdup(part->to);
	return TAKE(text);
}

static char *axis_part_value(const struct axis *axis, const struct axis_part *part, uint64_t i,
	uint64_t place, uint64_t seed)
{
	switch (part->form) {
	case AXIS_TEXT:
		return mem_strdup(part->from);
	case AXIS_RANGE:
		return mem_printf("%0*" PRId64, part->width, part->first + (int64_t)i * part->step);
	case AXIS_LIN:
	case AXIS_LOG:
		if (part->n == 0)
			break;
		if (i == 0)
			return mem_strdup(part->from);
		if (i == part->n - 1)
			return mem_strdup(part->to);
		return axis_between(part, (double)i / (double)(part->n - 1));
	default:
		break;
	}
	return axis_between(part, axis_random(seed, axis->name, place));
}

char *axis_value(const struct axis *axis, uint64_t i, uint64_t seed)
{
	uint64_t place = i;

	vec_foreach (const struct axis_part, part, &axis->parts) {
		if (i < part->n || part->n == 0)
			return axis_part_value(axis, part, i, place, seed);
		i -= part->n;
	}
	BUG_ON(true);
}

/*
 * Forms
 */

static int axis_parse_count(
	struct axis_part *part, const char *text, const struct axis_source *source, struct err *err)
{
	int64_t least = part->form == AXIS_LIN || part->form == AXIS_LOG ? 2 : 1, n;

	if (!axis_read_whole(text, strlen(text), &n) || n < least || n > axis_count_max) {
		AUTO_FREE char *shown = str_shown(text);
		return axis_error(err, source,
			"the number of values must be from %" PRId64 " to %" PRId64 ", not \"%s\"",
			least, axis_count_max, shown);
	}
	part->n = (uint64_t)n;
	return 0;
}

static int axis_parse_ends(struct axis_part *part, const char *name, const char *text,
	const struct axis_source *source, struct err *err)
{
	const char *dots = strstr(text, ".."), *end = text + strcspn(text, ":");
	AUTO_FREE char *shown = str_shown(text);

	if (!dots || dots >= end || !axis_read_number(text, (size_t)(dots - text), &part->low) ||
		!axis_read_number(dots + 2, (size_t)(end - dots - 2), &part->high))
		return axis_error(err, source,
			"%s: wants two numbers with \"..\" between, not \"%s\"", name, shown);
	part->from = mem_strndup(text, (size_t)(dots - text));
	part->to = mem_strndup(dots + 2, (size_t)(end - dots - 2));
	if (axis_is_geometric(part) && (part->low <= 0 || part->high <= 0))
		return axis_error(err, source, "%s: wants two numbers above 0", name);
	if (part->low == part->high)
		return axis_error(err, source, "%s: has the same number at both ends", name);
	if (!isfinite(part->high - part->low))
		return axis_error(err, source, "%s: has ends that are too far apart", name);
	return *end ? axis_parse_count(part, end + 1, source, err) : 0;
}

/* Neighbours differ in the sixth digit of their distance at the latest. */
static void axis_set_precision(struct axis_part *part)
{
	double low = fabs(part->low), high = fabs(part->high);
	double scale = low > high ? low : high, width = fabs(part->high - part->low);

	if (axis_is_geometric(part)) {
		double ratio = scale / width;
		if (axis_is_counted(part))
			ratio = 1 / expm1(fabs(log(low) - log(high)) / (double)(part->n - 1));
		part->precision = axis_digits(ratio);
		return;
	}
	part->precision = axis_is_counted(part)
				  ? axis_exponent(width / (double)(part->n - 1)) - AXIS_DIGITS + 1
				  : axis_exponent(width) - AXIS_DIGITS;
	if (part->precision < axis_exponent(scale) - AXIS_DIGITS_MAX + 1)
		part->precision = axis_exponent(scale) - AXIS_DIGITS_MAX + 1;
}

static int axis_hint_form(struct err *err, const struct axis_source *source, enum axis_form form)
{
	static const char *const hints[][2] = {{"lin:0..1:5", "{lin: [0, 1], n: 5}"},
		{"log:1e-4..1e-1:12", "{log: [1e-4, 1e-1], n: 12}"},
		{"uniform:0..1:8", "{uniform: [0, 1], n: 8}"},
		{"loguniform:1e-5..1e-1:8", "{loguniform: [1e-5, 1e-1], n: 8}"}};

	return axis_hint(err, source, hints[form - AXIS_LIN][0], hints[form - AXIS_LIN][1]);
}

static int axis_parse_form(struct axis_part *part, size_t form, const char *text,
	const struct axis_source *source, struct err *err)
{
	const char *name = axis_form_names[form];
	int r;

	part->form = AXIS_LIN + (enum axis_form)form;
	r = axis_parse_ends(part, name, text + strlen(name) + 1, source, err);
	if (r < 0)
		return axis_hint_form(err, source, part->form);
	axis_set_precision(part);
	return 0;
}

/* "linear:0..1:5" */
static int axis_unknown_form(
	const char *text, size_t len, const struct axis_source *source, struct err *err)
{
	AUTO_FREE char *word = mem_strndup(text, len);
	AUTO_FREE char *shown = str_shown(word);
	const char *near = str_suggest(word, axis_form_names, ARRAY_LEN(axis_form_names));

	axis_error(err, source, "there is no list \"%s:\"", shown);
	for (size_t i = 0; i < ARRAY_LEN(axis_form_names); i++)
		if (near ? near == axis_form_names[i] : str_starts(word, axis_form_names[i]))
			return axis_hint_form(err, source, AXIS_LIN + (enum axis_form)i);
	return axis_hint_text(err, source, text);
}

/* Whether it begins with two numbers and ".." between them. */
static bool axis_is_ends(const char *text)
{
	const char *dots = strstr(text, "..");

	return dots && axis_is_number(text, (size_t)(dots - text)) &&
	       axis_is_number(dots + 2, strcspn(dots + 2, ":"));
}

/*
 * Ranges of whole numbers
 */

/* Whether a range is meant: nobody else writes a number in front of "..". */
static bool axis_is_range(const char *text)
{
	const char *dots = strstr(text, "..");

	if (!dots)
		return false;
	if (dots == text)
		return axis_is_number(dots + 2, strcspn(dots + 2, ":"));
	return axis_is_number(text, (size_t)(dots - text));
}

static bool axis_has_zeros(const char *s, size_t len)
{
	size_t sign = *s == '-' || *s == '+';

	return len > sign + 1 && s[sign] == '0';
}

/* Numbers with fractions, whose distances or ratios are meant to be equal. */
static int axis_hint_ends(struct err *err, const struct axis_source *source, const char *text)
{
	double low = strtod(text, NULL), high = strtod(strstr(text, "..") + 2, NULL);
	size_t len = strcspn(text, ":"), digits = text[len] ? axis_span_digits(text + len + 1) : 0;
	bool has_count = digits && !text[len + 1 + digits];
	bool is_log = low > 0 && high > 0 && (high / low >= 100 || low / high >= 100);
	AUTO_FREE char *list = mem_printf(
		"%s:%.*s%s", is_log ? "log" : "lin", (int)len, text, has_count ? text + len : ":5");

	return axis_hint(err, source, list, list);
}

static int axis_bad_range(const char *text, const struct axis_source *source, struct err *err)
{
	AUTO_FREE char *shown = str_shown(text);

	axis_error(err, source, "\"%s\" is not a range of whole numbers", shown);
	return axis_is_ends(text) ? axis_hint_ends(err, source, text)
				  : axis_hint(err, source, "1..5", "1..5");
}

static int axis_parse_step(struct axis_part *part, const char *text, int64_t last,
	const struct axis_source *source, struct err *err)
{
	bool is_down = last < part->first;
	int64_t step = 1;

	if (*text && (!axis_read_whole(text + 1, strlen(text + 1), &step) || step == 0 ||
			     (step < 0 && !is_down))) {
		AUTO_FREE char *shown = str_shown(text + 1);
		axis_error(err, source, "the step from %" PRId64 " to %" PRId64 " cannot be \"%s\"",
			part->first, last, shown);
		return axis_hint(
			err, source, is_down ? "9..1:2" : "1..9:2", is_down ? "9..1:2" : "1..9:2");
	}
	step = step < 0 ? -step : step;
	/* "0..1:5" means five numbers to most people. */
	if (step > (is_down ? part->first - last : last - part->first) && part->first != last) {
		axis_error(err, source, "the step %" PRId64 " leads beyond %" PRId64, step, last);
		return axis_hint(err, source, "lin:0..1:5", "1..9:2");
	}
	part->n = (uint64_t)((is_down ? part->first - last : last - part->first) / step) + 1;
	part->step = is_down ? -step : step;
	return 0;
}

static int axis_parse_range(
	struct axis_part *part, const char *text, const struct axis_source *source, struct err *err)
{
	const char *dots = strstr(text, ".."), *to = dots + 2;
	size_t from_len = (size_t)(dots - text), to_len = strcspn(to, ":");
	int64_t last;

	part->form = AXIS_RANGE;
	if (!axis_read_whole(text, from_len, &part->first) || !axis_read_whole(to, to_len, &last))
		return axis_bad_range(text, source, err);
	part->from = mem_strndup(text, from_len);
	part->to = mem_strndup(to, to_len);
	if (axis_has_zeros(text, from_len) || axis_has_zeros(to, to_len))
		part->width = (int)(from_len > to_len ? from_len : to_len);
	return axis_parse_step(part, to + to_len, last, source, err);
}

/*
 * The items of a list
 */

struct axis_reader {
	const char *at;
	struct buf item;
	size_t keep;                  /* bytes of it that are no blanks at its end */
	bool is_literal;              /* it was quoted */
	char closing[AXIS_DEPTH_MAX]; /* brackets that are open */
	size_t depth;
};

static int axis_read_quoted(
	struct axis_reader *in, const struct axis_source *source, struct err *err)
{
	char quote = *in->at++;

	for (; *in->at && *in->at != quote; in->at++) {
		if (quote == '"' && *in->at == '\\' && (in->at[1] == '"' || in->at[1] == '\\'))
			in->at++;
		buf_addc(&in->item, *in->at);
	}
	if (!*in->at) {
		axis_error(err, source, "the quote %c is not closed", quote);
		return axis_hint_quotes(err, source);
	}
	in->at++;
	in->at += strspn(in->at, " ");
	in->is_literal = true;
	if (!*in->at || *in->at == ',')
		return 0;
	axis_error(err, source, "there is text behind the closing quote %c", quote);
	return axis_hint_quotes(err, source);
}

/* Texts within brackets keep their quotes. A quote in the middle of a word is an apostrophe. */
static void axis_read_nested_text(struct axis_reader *in)
{
	char quote = *in->at, before = in->item.len ? in->item.data[in->item.len - 1] : ' ';
	const char *end = in->at + 1;

	while (*end && *end != quote)
		end += end[0] == '\\' && end[1] ? 2 : 1;
	if (!*end || !strchr("[{(,:= ", before))
		end = in->at;
	buf_add(&in->item, in->at, (size_t)(end - in->at) + 1);
	in->at = end + 1;
}

/* 0, or an error: a bracket that closes nothing, or one too many. */
static int axis_read_bracket(
	struct axis_reader *in, const struct axis_source *source, struct err *err)
{
	static const char open[] = "[{(", close[] = "]})";
	const char *opens = strchr(open, *in->at);

	if (opens && in->depth == AXIS_DEPTH_MAX)
		return axis_error(
			err, source, "more than %d brackets within each other", AXIS_DEPTH_MAX);
	if (opens) {
		in->closing[in->depth++] = close[opens - open];
	} else if (in->depth == 0 || in->closing[--in->depth] != *in->at) {
		axis_error(err, source, "the bracket %c closes nothing", *in->at);
		return axis_hint_quotes(err, source);
	}
	buf_addc(&in->item, *in->at++);
	return 0;
}

/* Append the next character, or the two of an escape. */
static int axis_read_char(struct axis_reader *in, const struct axis_source *source, struct err *err)
{
	if (*in->at == '\\' && in->at[1] && strchr(",\\\"'[]{}()", in->at[1])) {
		if (in->depth)
			buf_addc(&in->item, '\\');
		buf_addc(&in->item, in->at[1]);
		in->at += 2;
		in->keep = in->item.len;
	} else if (strchr("[]{}()", *in->at)) {
		return axis_read_bracket(in, source, err);
	} else if (in->depth && (*in->at == '"' || *in->at == '\'')) {
		axis_read_nested_text(in);
	} else {
		buf_addc(&in->item, *in->at++);
	}
	return 0;
}

static int axis_read_plain(
	struct axis_reader *in, const struct axis_source *source, struct err *err)
{
	in->keep = 0;
	while (*in->at && (in->depth || *in->at != ',')) {
		int r = axis_read_char(in, source, err);
		if (r < 0)
			return r;
	}
	if (in->depth) {
		axis_error(
			err, source, "a bracket is not closed by %c", in->closing[in->depth - 1]);
		return axis_hint_quotes(err, source);
	}
	while (in->item.len > in->keep && in->item.data[in->item.len - 1] == ' ')
		buf_truncate(&in->item, in->item.len - 1);
	if (in->item.len)
		return 0;
	axis_error(err, source, "a value is empty");
	return axis_hint(err, source, "a,\"\"", "[a, \"\"]");
}

int axis_check_text(const char *text, const struct axis_source *source, struct err *err)
{
	if (!str_is_plain(text))
		return axis_error(err, source,
			"a value is not plain text: line breaks, tabs, other controls and bytes "
			"that are not UTF-8 cannot be in one");
	if (strlen(text) > AXES_VALUE_MAX)
		return axis_error(err, source, "a value has more than %d bytes", AXES_VALUE_MAX);
	return 0;
}

static int axis_parse_item(struct axis_part *part, const char *text, bool is_literal,
	const struct axis_source *source, struct err *err)
{
	size_t word = strspn(text, "abcdefghijklmnopqrstuvwxyz_-");
	int r = axis_check_text(text, source, err);

	if (r < 0)
		return r;
	for (size_t i = 0; !is_literal && i < ARRAY_LEN(axis_form_names); i++)
		if (text[word] == ':' && word == strlen(axis_form_names[i]) &&
			str_starts(text, axis_form_names[i]))
			return axis_parse_form(part, i, text, source, err);
	if (!is_literal && word && text[word] == ':' && axis_is_ends(text + word + 1))
		return axis_unknown_form(text, word, source, err);
	if (!is_literal && axis_is_range(text))
		return axis_parse_range(part, text, source, err);
	part->from = mem_strdup(text);
	part->n = 1;
	return 0;
}

static int axis_read_item(struct axis *axis, struct axis_reader *in,
	const struct axis_source *source, struct err *err)
{
	int r;

	buf_truncate(&in->item, 0);
	in->is_literal = false;
	in->at += strspn(in->at, " ");
	r = *in->at == '"' || *in->at == '\'' ? axis_read_quoted(in, source, err)
					      : axis_read_plain(in, source, err);
	if (r < 0)
		return r;
	if (axis->parts.n == CASES_MAX)
		return axis_error(err, source, "a list has at most %d items", CASES_MAX);
	struct axis_part *part = vec_push(&axis->parts);
	r = axis_parse_item(part, in->item.data, in->is_literal, source, err);
	if (r < 0)
		return r;
	axis->n += part->n;
	if (axis->n > (uint64_t)axis_count_max)
		return axis_error(
			err, source, "an axis has at most %" PRId64 " values", axis_count_max);
	if (part->n)
		return 0;
	if (axis->parts.n == 1 && !*in->at)
		return 0;
	axis_error(err, source, "a list without a number of values must stand alone");
	return axis_hint_form(err, source, part->form);
}

int axis_parse(struct axis *axis, const struct axis_source *source, struct err *err)
{
	struct axis_reader in = {.at = axis->list};
	int r;

	if (!axis->list[strspn(axis->list, " ")]) {
		axis_error(err, source, "there are no values");
		return axis_hint(err, source, "0.1,0.03", "[0.1, 0.03]");
	}
	buf_init(&in.item, strlen(axis->list));
	r = axis_read_item(axis, &in, source, err);
	while (r == 0 && *in.at == ',') {
		in.at++;
		r = axis_read_item(axis, &in, source, err);
	}
	buf_done(&in.item);
	return r;
}

void axis_json_text(const struct json *json, struct buf *out)
{
	if (json_kind(json) == JSON_STRING)
		buf_adds(out, json_str(json));
	else
		json_print(json, out);
}

void axis_quote(struct buf *out, const char *text)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
				    "_-./+";

	if (*text && !text[strspn(text, plain)] && !strstr(text, "..")) {
		buf_adds(out, text);
		return;
	}
	buf_addc(out, '"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			buf_addc(out, '\\');
		buf_addc(out, *text);
	}
	buf_addc(out, '"');
}

void axis_done(struct axis *axis)
{
	vec_foreach (struct axis_part, part, &axis->parts) {
		free(part->from);
		free(part->to);
	}
	vec_done(&axis->parts);
	free(axis->name);
	free(axis->list);
	free(axis->where);
}
