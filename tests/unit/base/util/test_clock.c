/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"

static void test_clocks_run(void **state)
{
	int64_t us = clock_us(), ms = clock_ms(), wall = clock_wall_ms();

	assert_true(ms >= us / 1000 && ms <= us / 1000 + 60000);
	assert_true(clock_us() >= us);
	assert_true(wall / 1000 >= time(NULL) - 60 && wall / 1000 <= time(NULL) + 1);
}

static const struct {
	int64_t ms;
	const char *text;
} times[] = {
	{0, "1970-01-01T00:00:00.000Z"},
	{-1, "1969-12-31T23:59:59.999Z"},
	{1785585600123, "2026-08-01T12:00:00.123Z"},
	{951782400000, "2000-02-29T00:00:00.000Z"},
	{951868799999, "2000-02-29T23:59:59.999Z"},
	{951868800000, "2000-03-01T00:00:00.000Z"},
	{4107542400000, "2100-03-01T00:00:00.000Z"},
	{4107542399999, "2100-02-28T23:59:59.999Z"},
	{1704067199000, "2023-12-31T23:59:59.000Z"},
	{-62167219200000, "0000-01-01T00:00:00.000Z"},
	{253402300799999, "9999-12-31T23:59:59.999Z"},
};

static void test_format_and_parse(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(times); i++) {
		char out[CLOCK_TEXT_SIZE];
		int64_t ms;
		clock_format(times[i].ms, out);
		assert_string_equal(out, times[i].text);
		assert_int_equal(clock_parse(times[i].text, &ms, NULL), 0);
		assert_true(ms == times[i].ms);
	}
}

static void test_format_clamps(void **state)
{
	char out[CLOCK_TEXT_SIZE];

	clock_format(INT64_MIN, out);
	assert_string_equal(out, "0000-01-01T00:00:00.000Z");
	clock_format(INT64_MAX, out);
	assert_string_equal(out, "9999-12-31T23:59:59.999Z");
}

/* Every day of two eras against the C library. */
static void test_calendar(void **state)
{
	for (int64_t day = -150000; day < 150000; day++) {
		char want[CLOCK_TEXT_SIZE], got[CLOCK_TEXT_SIZE];
		time_t t = (time_t)(day * 86400 + 3661);
		struct tm tm;
		int64_t ms;
		gmtime_r(&t, &tm);
		assert_int_not_equal(
			strftime(want, sizeof(want), "%Y-%m-%dT%H:%M:%S.000Z", &tm), 0);
		clock_format((int64_t)t * 1000, got);
		assert_string_equal(got, want);
		assert_int_equal(clock_parse(got, &ms, NULL), 0);
		assert_true(ms == (int64_t)t * 1000);
	}
}

static void test_parse_forms(void **state)
{
	static const struct {
		const char *s;
		int64_t ms;
	} rows[] = {
		{"2026-08-01T12:00:00Z", 1785585600000},
		{"2026-08-01t12:00:00z", 1785585600000},
		{"2026-08-01 12:00:00Z", 1785585600000},
		{"2026-08-01T14:00:00+02:00", 1785585600000},
		{"2026-08-01T06:30:00-05:30", 1785585600000},
		{"2026-08-02T11:59:00+23:59", 1785585600000},
		{"2026-08-01T12:00:00-00:00", 1785585600000},
		{"2026-08-01T12:00:00.1Z", 1785585600100},
		{"2026-08-01T12:00:00.1239999999999999999999999Z", 1785585600123},
		{"2026-08-01T12:00:00.123456789+00:00", 1785585600123},
		{"1990-12-31T23:59:60Z", 662688000000},
		{"1990-12-31T15:59:60-08:00", 662688000000},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int64_t ms;
		assert_int_equal(clock_parse(rows[i].s, &ms, NULL), 0);
		assert_true(ms == rows[i].ms);
	}
}

static void test_parse_refuses(void **state)
{
	static const char *const bad[] = {"", "now", "2026", "2026-08-01", "2026-08-01T12:00:00",
		"2026-08-01T12:00Z", "2026-8-1T12:00:00Z", "2026-08-01T12:00:00.Z",
		"2026-08-01T12:00:00,5Z", "2026-13-01T12:00:00Z", "2026-00-01T12:00:00Z",
		"2026-08-32T12:00:00Z", "2026-08-00T12:00:00Z", "2026-02-29T12:00:00Z",
		"2100-02-29T12:00:00Z", "2026-08-01T24:00:00Z", "2026-08-01T12:60:00Z",
		"2026-08-01T12:00:61Z", "2026-08-01T12:00:00+24:00", "2026-08-01T12:00:00+02:60",
		"2026-08-01T12:00:00+0200", "2026-08-01T12:00:00 +02:00", "2026-08-01T12:00:00Z ",
		" 2026-08-01T12:00:00Z", "2026-08-01T12:00:00ZZ", "-026-08-01T12:00:00Z",
		"+2026-08-01T12:00:00Z", "20260801T120000Z", "2026-08-01X12:00:00Z",
		"12026-08-01T12:00:00Z"};
	AUTO_ERR struct err err = {0};
	int64_t ms = 42;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(clock_parse(bad[i], &ms, &err), -ERR_IO);
	assert_int_equal(err.id, E_DATA);
	assert_int_equal(ms, 42);
	clock_parse("yester\nday", &ms, &err);
	assert_string_equal(
		err.message, "\"yester\\nday\" is not a time like 2026-08-01T12:00:00Z");
}

static void test_duration_parse(void **state)
{
	static const struct {
		const char *s;
		int64_t ms;
	} rows[] = {
		{"0", 0},
		{"90s", 90000},
		{"15m", 900000},
		{"1h30m", 5400000},
		{"7d", 604800000},
		{"250ms", 250},
		{"1d2h3m4s5ms", 93784005},
		{"1s500ms", 1500},
		{"100m", 6000000},
		{"1m1ms", 60001},
		{"36500d", 3153600000000},
		{"3153600000s", 3153600000000},
		{"36499d24h", 3153600000000},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int64_t ms;
		assert_int_equal(duration_parse(rows[i].s, &ms, NULL), 0);
		assert_true(ms == rows[i].ms);
	}
}

static void test_duration_refuses(void **state)
{
	static const char *const bad[] = {"", "s", "-1", "+1", "1 h", " 1h", "1h ", "1h30", "30m1h",
		"1h1h", "1w", "1H", "1.5h", "1ms1s", "1hm", "1sm", "1dh", "1m s", "36501d",
		"36500d1ms", "3153600001", "9223372036854775807ms", "99999999999999999999999d",
		"1min", "00", "5", "1sec"};
	AUTO_ERR struct err err = {0};
	int64_t ms = 42;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(duration_parse(bad[i], &ms, &err), -ERR_USAGE);
	assert_int_equal(ms, 42);
	assert_string_equal(err.message, "\"1sec\" is not a duration like 90s, 15m, 1h30m or 7d");
	duration_parse("5", &ms, &err);
	assert_string_equal(
		err.message, "\"5\" needs a unit: 5s (seconds), 5m (minutes), 5h or 5d");
}

static void test_duration_text(void **state)
{
	static const struct {
		int64_t ms;
		const char *want;
	} rows[] = {
		{INT64_MIN, "0 s"},
		{0, "0 s"},
		{1, "1 ms"},
		{99, "99 ms"},
		{100, "0.1 s"},
		{300, "0.3 s"},
		{349, "0.3 s"},
		{350, "0.4 s"},
		{949, "0.9 s"},
		{950, "1 s"},
		{2000, "2 s"},
		{9949, "9.9 s"},
		{9950, "10 s"},
		{10999, "10 s"},
		{59999, "59 s"},
		{60000, "1 min"},
		{252000, "4 min 12 s"},
		{3599999, "59 min 59 s"},
		{7200000, "2 h"},
		{7259999, "2 h"},
		{5400000, "1 h 30 min"},
		{86399999, "23 h 59 min"},
		{86400000, "1 d"},
		{273600000, "3 d 4 h"},
		{INT64_MAX, "106751991167 d 7 h"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char out[32];
		assert_string_equal(duration_text(rows[i].ms, out), rows[i].want);
	}
}

static void test_deadline(void **state)
{
	int64_t before = clock_ms(), now = clock_deadline(0), at = clock_deadline(1000);
	int64_t after = clock_ms();

	assert_in_range(now, before, after);
	assert_in_range(at, before + 1000, after + 1000);
	assert_true(clock_deadline(-1) == INT64_MAX);
	assert_true(clock_deadline(INT64_MIN) == INT64_MAX);
	assert_true(clock_deadline(INT64_MAX) == INT64_MAX);
	assert_true(clock_deadline(INT64_MAX - 1) == INT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_clocks_run),
		cmocka_unit_test(test_format_and_parse),
		cmocka_unit_test(test_format_clamps),
		cmocka_unit_test(test_calendar),
		cmocka_unit_test(test_parse_forms),
		cmocka_unit_test(test_parse_refuses),
		cmocka_unit_test(test_duration_parse),
		cmocka_unit_test(test_duration_refuses),
		cmocka_unit_test(test_duration_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
