/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"

enum { SECOND_MS = 1000, MINUTE_MS = 60 * SECOND_MS, HOUR_MS = 60 * MINUTE_MS };
static const int64_t day_ms = 24 * HOUR_MS;
static const int64_t max_duration_ms = 36500 * (int64_t)24 * HOUR_MS;
/* 0000-01-01 and 9999-12-31, days since 1970. */
enum { FIRST_DAY = -719528, LAST_DAY = 2932896 };

static struct timespec now(clockid_t id)
{
	struct timespec t = {0};

	clock_gettime(id, &t);
	return t;
}

static struct timespec now_steady(void)
{
#ifdef CLOCK_BOOTTIME
	return now(CLOCK_BOOTTIME);
#else
	return now(CLOCK_MONOTONIC);
#endif
}

int64_t clock_ms(void)
{
	return clock_us() / 1000;
}

int64_t clock_us(void)
{
	struct timespec t = now_steady();

	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_deadline(int64_t timeout_ms)
{
	int64_t deadline_ms;

	if (timeout_ms < 0 || __builtin_add_overflow(clock_ms(), timeout_ms, &deadline_ms))
		return INT64_MAX;
	return deadline_ms;
}

int64_t clock_wall_ms(void)
{
	struct timespec t = now(CLOCK_REALTIME);

	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Days since 1970-01-01 in the proleptic Gregorian calendar. Years begin in March here, so that the
 * leap day is the last of a year; 400 of them have 146,097 days. */
static int64_t days_of(int year, int month, int day)
{
	int y = month > 2 ? year : year - 1;
	int era = (y >= 0 ? y : y - 399) / 400;
	int of_era = y - era * 400;
	int day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

	return (int64_t)era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year -
	       719468;
}

static void date_of(int64_t days, int *ret_year, int *ret_month, int *ret_day)
{
	int64_t shifted = days + 719468;
	int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
	int day = (int)(shifted - era * 146097);
	int year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
	int day_of_year = day - (365 * year + year / 4 - year / 100);
	int month = (5 * day_of_year + 2) / 153;

	*ret_day = day_of_year - (153 * month + 2) / 5 + 1;
	*ret_month = month < 10 ? month + 3 : month - 9;
	*ret_year = year + (int)era * 400 + (*ret_month <= 2);
}

/* value in n digits, and what follows it. */
static char *put_number(char *out, int value, int n, char next)
{
	for (int i = n - 1; i >= 0; i--, value /= 10)
		out[i] = (char)('0' + value % 10);
	out[n] = next;
	return out + n + 1;
}

void clock_format(int64_t wall_ms, char out[static CLOCK_TEXT_SIZE])
{
	const int64_t first = FIRST_DAY * day_ms, last = (LAST_DAY + 1) * day_ms - 1;
	int year, month, day;

	wall_ms = wall_ms < first ? first : wall_ms > last ? last : wall_ms;
	int64_t days = (wall_ms - first) / day_ms + FIRST_DAY;
	int ms = (int)(wall_ms - days * day_ms);
	date_of(days, &year, &month, &day);
	char *at = put_number(out, year, 4, '-');
	at = put_number(at, month, 2, '-');
	at = put_number(at, day, 2, 'T');
	at = put_number(at, ms / HOUR_MS, 2, ':');
	at = put_number(at, ms / MINUTE_MS % 60, 2, ':');
	at = put_number(at, ms / SECOND_MS % 60, 2, '.');
	at = put_number(at, ms % SECOND_MS, 3, 'Z');
	*at = '\0';
}

/* n digits at *s, which moves behind them. */
static bool clock_take_number(const char **s, int n, int *ret)
{
	*ret = 0;
	for (; n; n--, ++*s) {
		if (!str_is_digit(**s))
			return false;
		*ret = *ret * 10 + (**s - '0');
	}
	return true;
}

static bool take_char(const char **s, const char *any_of)
{
	if (!**s || !strchr(any_of, **s))
		return false;
	++*s;
	return true;
}

static int days_in_month(int year, int month)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

	return days[month - 1] + (month == 2 && leap);
}

static bool take_date(const char **s, int64_t *ret_days)
{
	int year, month, day;

	if (!clock_take_number(s, 4, &year) || !take_char(s, "-") ||
		!clock_take_number(s, 2, &month) || !take_char(s, "-") ||
		!clock_take_number(s, 2, &day))
		return false;
	if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month))
		return false;
	*ret_days = days_of(year, month, day);
	return true;
}

static bool take_hour_minute(const char **s, int *ret_ms)
{
	int hour, minute;

	if (!clock_take_number(s, 2, &hour) || !take_char(s, ":") ||
		!clock_take_number(s, 2, &minute))
		return false;
	*ret_ms = hour * HOUR_MS + minute * MINUTE_MS;
	return hour < 24 && minute < 60;
}

static bool clock_take_time(const char **s, int *ret_ms)
{
	int second, weight = 100;

	if (!take_hour_minute(s, ret_ms) || !take_char(s, ":") ||
		!clock_take_number(s, 2, &second) || second > 60)
		return false;
	*ret_ms += second * SECOND_MS;
	if (!take_char(s, "."))
		return true;
	if (!str_is_digit(**s))
		return false;
	for (; str_is_digit(**s); ++*s, weight /= 10)
		*ret_ms += (**s - '0') * weight;
	return true;
}

static bool clock_take_offset(const char **s, int *ret_ms)
{
	bool west = **s == '-';

	*ret_ms = 0;
	if (take_char(s, "Zz"))
		return true;
	if (!take_char(s, "+-") || !take_hour_minute(s, ret_ms))
		return false;
	if (west)
		*ret_ms = -*ret_ms;
	return true;
}

int clock_parse(const char *s, int64_t *ret_wall_ms, struct err *err)
{
	const char *p = s;
	int64_t days;
	int time_ms, offset_ms;

	if (take_date(&p, &days) && take_char(&p, "Tt ") && clock_take_time(&p, &time_ms) &&
		clock_take_offset(&p, &offset_ms) && !*p) {
		*ret_wall_ms = days * day_ms + time_ms - offset_ms;
		return 0;
	}
	AUTO_FREE char *given = str_shown(s);
	return err_set(err, E_DATA, "\"%s\" is not a time like 2026-08-01T12:00:00Z", given);
}

static const struct unit {
	const char *name;
	int64_t ms;
} units[] = {
	{"d", (int64_t)24 * HOUR_MS},
	{"h", HOUR_MS},
	{"m", MINUTE_MS},
	{"s", SECOND_MS},
	{"ms", 1},
};

/* The unit at *s, at most from position *next of the table, which moves behind it. */
static const struct unit *take_unit(const char **s, size_t *next)
{
	size_t len = strspn(*s, "dhms");

	for (size_t i = *next; i < ARRAY_LEN(units); i++) {
		if (strlen(units[i].name) != len || strncmp(units[i].name, *s, len) != 0)
			continue;
		*s += len;
		*next = i + 1;
		return &units[i];
	}
	return NULL;
}

static bool parse_duration(const char *s, int64_t *ret_ms)
{
	int64_t sum = 0;
	size_t next = 0;

	if (!*s)
		return false;
	if (str_eq(s, "0")) {
		*ret_ms = 0;
		return true;
	}
	while (*s) {
		int64_t n = 0;
		if (!str_is_digit(*s))
			return false;
		for (; str_is_digit(*s); s++)
			if ((n = n * 10 + (*s - '0')) > max_duration_ms)
				return false;
		const struct unit *unit = take_unit(&s, &next);
		if (!unit || n > (max_duration_ms - sum) / unit->ms)
			return false;
		sum += n * unit->ms;
	}
	*ret_ms = sum;
	return true;
}

int duration_parse(const char *s, int64_t *ret_ms, struct err *err)
{
	if (parse_duration(s, ret_ms))
		return 0;
	AUTO_FREE char *given = str_shown(s);
	/* A bare 5 could mean seconds or minutes. */
	if (*s && !s[strspn(s, "0123456789")])
		return err_set(err, E_USAGE,
			"\"%s\" needs a unit: %ss (seconds), %sm (minutes), %sh or %sd", given,
			given, given, given, given);
	return err_set(err, E_USAGE, "\"%s\" is not a duration like 90s, 15m, 1h30m or 7d", given);
}

/* Print seconds as n of the large unit and the rest in the small one. */
static void two_units(
	char out[static 32], int64_t n, const char *large, int64_t rest, const char *small)
{
	if (rest)
		snprintf(out, 32, "%lld %s %lld %s", (long long)n, large, (long long)rest, small);
	else
		snprintf(out, 32, "%lld %s", (long long)n, large);
}

const char *duration_text(int64_t ms, char out[static 32])
{
	int64_t s = ms / SECOND_MS;

	if (ms <= 0)
		snprintf(out, 32, "0 s");
	else if (ms < 100)
		snprintf(out, 32, "%d ms", (int)ms);
	else if (ms < 9950 && (ms + 50) / 100 % 10)
		snprintf(out, 32, "%d.%d s", (int)(ms + 50) / 1000, (int)(ms + 50) / 100 % 10);
	else if (ms < 9950)
		snprintf(out, 32, "%d s", (int)(ms + 50) / 1000);
	else if (s < 60)
		snprintf(out, 32, "%d s", s < 10 ? 10 : (int)s);
	else if (s < 3600)
		two_units(out, s / 60, "min", s % 60, "s");
	else if (s < 86400)
		two_units(out, s / 3600, "h", s / 60 % 60, "min");
	else
		two_units(out, s / 86400, "d", s / 3600 % 24, "h");
	return out;
}

/*
 * Backoff
 */

int64_t backoff_ms(unsigned failures, int64_t first_ms, int64_t max_ms)
{
	int64_t ms = first_ms;

	if (failures == 0)
		return 0;
	while (--failures > 0 && ms < max_ms)
		ms *= 2;
	return ms < max_ms ? ms : max_ms;
}

int64_t backoff_jitter_ms(unsigned failures, int64_t first_ms, int64_t max_ms)
{
	int64_t half_ms = backoff_ms(failures, first_ms, max_ms) / 2;

	return half_ms + random_below((uint32_t)half_ms + 1);
}
