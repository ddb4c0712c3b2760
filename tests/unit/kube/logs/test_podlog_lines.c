/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/vec.h"
#include "kube/logs/podlog_lines.h"

enum { OUT_MAX = 64 << 20 };

struct seen_gap {
	struct podlog_gap gap;
	size_t at; /* bytes of output before it */
};

struct seen {
	struct buf out;
	struct seen_gaps VEC_OF(struct seen_gap) gaps;
	struct strv remarks;
	int64_t time_ms;
	size_t n_calls;
	size_t refuse_at; /* call of data that fails; 0: none */
};

static int on_data(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct seen *seen = ctx;

	assert_true(len > 0 && len <= PODLOG_BATCH);
	if (++seen->n_calls == seen->refuse_at)
		return -ERR_CANCELED;
	buf_add(&seen->out, data, len);
	seen->time_ms = time_ms;
	return 0;
}

static void on_gap(void *ctx, const struct podlog_gap *gap)
{
	struct seen *seen = ctx;

	*vec_push(&seen->gaps) = (struct seen_gap){*gap, seen->out.len};
}

static void on_remark(void *ctx, const char *text, size_t len)
{
	struct seen *seen = ctx;

	strv_add_take(&seen->remarks, mem_strndup(text, len));
}

static struct podlog_lines *seen_start(struct seen *seen, const struct podlog_point *point)
{
	struct podlog_lines_events events = {on_data, on_gap, on_remark, seen};

	struct podlog_lines *lines = podlog_lines_new(&events, point, !point);

	if (!seen->out.data)
		buf_init(&seen->out, OUT_MAX);
	/* Little logs are read again from their start otherwise. */
	lines->overlap = 0;
	return lines;
}

static void seen_done(struct seen *seen)
{
	buf_done(&seen->out);
	vec_done(&seen->gaps);
	strv_done(&seen->remarks);
}

static int feed(struct podlog_lines *lines, const char *text)
{
	return podlog_lines_feed(lines, text, strlen(text), NULL);
}

static void plan_is(struct podlog_lines *lines, const char *since, bool follow)
{
	struct podlog_plan plan;

	podlog_lines_plan(lines, true, &plan);
	assert_string_equal(plan.since, since);
	assert_int_equal(plan.follow, follow);
	podlog_lines_begin(lines);
}

#define T0 "2026-11-21T08:21:00."
#define A  T0 "000000001Z "
#define B  T0 "000000002Z "
#define C  T0 "100000000Z "

static void test_stamp(void **state)
{
	static const struct {
		const char *text;
		size_t len;
		int64_t ns;
	} rows[] = {
		{"1970-01-01T00:00:00.000000001Z x", 31, 1},
		{"1970-01-01T00:00:00Z ", 21, 0},
		{"1970-01-01T00:00:01.5Z ", 23, 1500000000},
		{"1970-01-01T02:00:00.123456789+02:00 ", 36, 123456789},
		{"1969-12-31T22:00:00-02:00 ", 0, 0},
		{"2000-02-29T12:00:00Z ", 21, INT64_C(951825600) * 1000000000},
		{"2026-11-21T08:21:00.100000000Z ", 31, INT64_C(1795249260100000000)},
		{"2026-11-21T08:21:00.100000000Z", 0, 0},
		{"2026-11-21T08:21:00.1234567890Z ", 0, 0},
		{"2026-11-21T08:21:00.Z ", 0, 0},
		{"2026-13-21T08:21:00Z ", 0, 0},
		{"2026-11-21 08:21:00Z ", 0, 0},
		{"2026-11-21T08:21:00+2:00 ", 0, 0},
		{"2026-11-21T08:21:00.1x ", 0, 0},
		{"", 0, 0},
		{"failed to create fsnotify watcher: too many open files", 0, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int64_t ns = 0;
		assert_int_equal(
			podlog_stamp(rows[i].text, strlen(rows[i].text), &ns), rows[i].len);
		if (rows[i].len > 0)
			assert_int_equal(ns, rows[i].ns);
	}
}

static void test_plain(void **state)
{
	static const char text[] =
		A "one\n" A "\n" B "\xff\x00 two\r\n" C "2026-11-21T08:21:00Z three\n" C "open";
	static const char want[] = "one\n\n\xff\x00 two\r\n2026-11-21T08:21:00Z three\nopen";

	for (size_t piece = 1; piece < sizeof(text); piece++) {
		struct seen seen = {0};
		struct podlog_lines *lines = seen_start(&seen, NULL);
		plan_is(lines, "", true);
		for (size_t at = 0; at < sizeof(text) - 1; at += piece) {
			size_t n = piece < sizeof(text) - 1 - at ? piece : sizeof(text) - 1 - at;
			assert_int_equal(podlog_lines_feed(lines, text + at, n, NULL), 0);
		}
		assert_int_equal(seen.out.len, sizeof(want) - 5);
		assert_int_equal(podlog_lines_flush(lines, NULL), 0);
		assert_int_equal(seen.out.len, sizeof(want) - 1);
		assert_memory_equal(seen.out.data, want, sizeof(want) - 1);
		assert_int_equal(seen.time_ms, INT64_C(1795249260100));
		assert_int_equal(podlog_lines_point(lines)->ordinal, 2);
		assert_int_equal(podlog_lines_point(lines)->len, 4);
		assert_int_equal(podlog_lines_end(lines, false, NULL), 0);
		assert_int_equal(seen.gaps.n + seen.remarks.n, 0);
		podlog_lines_free(lines);
		seen_done(&seen);
	}
}

/* Cut after each byte: the second stream brings the rest. */
static void test_cut(void **state)
{
	static const char text[] = A "x\n" A "x\n" A "x\n" B "yes\n" B "yes, again\n" C "z\n";

	for (size_t cut = 0; cut < sizeof(text); cut++) {
		struct seen seen = {0};
		struct podlog_lines *lines = seen_start(&seen, NULL);
		char token[PODLOG_TOKEN_SIZE];
		struct podlog_point point;
		plan_is(lines, "", true);
		assert_int_equal(podlog_lines_feed(lines, text, cut, NULL), 0);
		if (cut % 2)
			assert_int_equal(podlog_lines_flush(lines, NULL), 0);
		podlog_point_format(podlog_lines_point(lines), token);
		podlog_lines_free(lines);
		assert_true(podlog_point_parse(token, &point));
		lines = seen_start(&seen, &point);
		plan_is(lines, point.time_ns ? "2026-11-21T08:20:50Z" : "", true);
		assert_int_equal(lines->seeking, point.time_ns != 0);
		assert_int_equal(feed(lines, text), 0);
		assert_string_equal(seen.out.data, "x\nx\nx\nyes\nyes, again\nz\n");
		assert_int_equal(seen.gaps.n, 0);
		podlog_lines_free(lines);
		seen_done(&seen);
	}
}

static void test_refused(void **state)
{
	struct seen seen = {.refuse_at = 2};
	struct podlog_lines *lines = seen_start(&seen, NULL);

	plan_is(lines, "", true);
	assert_int_equal(feed(lines, A "1\n" C "2\n" C "3\n"), -ERR_CANCELED);
	assert_string_equal(seen.out.data, "1\n");
	assert_int_equal(podlog_lines_point(lines)->time_ns, podlog_lines_point(lines)->max_ns);
	assert_int_equal(podlog_lines_point(lines)->time_ns % 1000000000, 1);
	plan_is(lines, "2026-11-21T08:20:50Z", true);
	assert_int_equal(feed(lines, A "1\n" C "2\n" C "3\n"), 0);
	assert_string_equal(seen.out.data, "1\n2\n3\n");
	podlog_lines_free(lines);
	seen_done(&seen);
}

static void test_rotated(void **state)
{
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);

	plan_is(lines, "", true);
	assert_int_equal(feed(lines, A "1\n"), 0);
	/* A time may hide new lines: the whole file is asked for. */
	plan_is(lines, "2026-11-21T08:20:50Z", true);
	assert_int_equal(feed(lines, C "4\n"), PODLOG_AGAIN);
	assert_int_equal(seen.gaps.n, 1);
	assert_int_equal(seen.gaps.v[0].gap.kind, PODLOG_ROTATED);
	assert_int_equal(seen.gaps.v[0].gap.after_ns % 1000000000, 1);
	assert_int_equal(seen.gaps.v[0].gap.before_ns % 1000000000, 100000000);
	plan_is(lines, "", true);
	assert_int_equal(feed(lines, B "3\n" C "4\n"), 0);
	assert_string_equal(seen.out.data, "1\n3\n4\n");
	assert_int_equal(seen.gaps.n, 1);
	podlog_lines_free(lines);
	seen_done(&seen);
}

/* Rotated between lines of one time, the last of which was delivered. */
static void test_rotated_within(void **state)
{
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);

	plan_is(lines, "", true);
	assert_int_equal(feed(lines, A "1\n" A "2\n" A "3\n"), 0);
	plan_is(lines, "2026-11-21T08:20:50Z", true);
	assert_int_equal(feed(lines, A "2\n" A "3\n" A "4\n"), PODLOG_AGAIN);
	plan_is(lines, "2026-11-21T08:20:50Z", true);
	assert_int_equal(feed(lines, A "2\n" A "3\n" A "4\n"), 0);
	assert_string_equal(seen.out.data, "1\n2\n3\n4\n");
	assert_int_equal(seen.gaps.n, 0);
	podlog_lines_free(lines);
	seen_done(&seen);
}

static void test_untimed(void **state)
{
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);

	plan_is(lines, "", true);
	assert_int_equal(feed(lines, A "1\nfailed to watch\n" B "2\nrpc error: co"), 0);
	assert_int_equal(podlog_lines_end(lines, false, NULL), 0);
	assert_string_equal(seen.out.data, "1\n2\n");
	assert_int_equal(seen.remarks.n, 2);
	assert_string_equal(seen.remarks.v[0], "failed to watch");
	assert_string_equal(seen.remarks.v[1], "rpc error: co");
	lines->overlap = 1;
	plan_is(lines, "", true);
	lines->overlap = 0;
	/* The rest of a line that began before sinceTime. */
	plan_is(lines, "2026-11-21T08:20:50Z", true);
	assert_int_equal(feed(lines, "rest of it\n" A "1\n" B "2\n" C "3\n"), 0);
	assert_string_equal(seen.out.data, "1\n2\n3\n");
	assert_int_equal(seen.remarks.n, 2);
	podlog_lines_free(lines);
	seen_done(&seen);
}

/* The second that was read last is known: before the first there is none, of whatever bytes. */
static void test_untimed_zeros(void **state)
{
	static const char text[] = "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0Z x\n" A "1\n";
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);

	podlog_lines_begin(lines);
	assert_int_equal(podlog_lines_feed(lines, text, sizeof(text) - 1, NULL), 0);
	assert_string_equal(seen.out.data, "1\n");
	assert_int_equal(seen.remarks.n, 1);
	podlog_lines_free(lines);
	seen_done(&seen);
}

static void test_untimed_bounded(void **state)
{
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);
	AUTO_FREE char *text = mem_alloc(1, 100001);

	memset(text, 'x', 100000);
	text[99999] = '\n';
	plan_is(lines, "", true);
	assert_int_equal(feed(lines, text), 0);
	assert_int_equal(seen.remarks.n, 1);
	assert_int_equal(strlen(seen.remarks.v[0]), 256);
	podlog_lines_free(lines);
	seen_done(&seen);
}

/* A kubelet that begins the newest file anew. */
static void test_served_twice(void **state)
{
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);

	plan_is(lines, "", true);
	assert_int_equal(feed(lines, A "1\n" B "2\n" C "3\n" A "1\n" B "2\n"), PODLOG_AGAIN);
	assert_string_equal(seen.out.data, "1\n2\n3\n");
	plan_is(lines, "", false);
	assert_int_equal(feed(lines, A "1\n" B "2\n" C "3\n"), 0);
	assert_int_equal(podlog_lines_end(lines, true, NULL), 0);
	plan_is(lines, "2026-11-21T08:20:50Z", true);
	assert_int_equal(feed(lines, A "1\n" B "2\n" C "3\n" C "4\n"), 0);
	assert_string_equal(seen.out.data, "1\n2\n3\n4\n");
	assert_int_equal(seen.gaps.n, 0);
	podlog_lines_free(lines);
	seen_done(&seen);
}

/* Small falls are no matter; great ones are looked at, and learned. */
static void test_clock_back(void **state)
{
	static const char file[] = A "1\n" C "2\n" T0 "099000000Z 3\n"
				     "2026-11-21T07:00:00.000000000Z 4\n";
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);

	plan_is(lines, "", true);
	assert_int_equal(feed(lines, file), PODLOG_AGAIN);
	assert_string_equal(seen.out.data, "1\n2\n3\n");
	plan_is(lines, "", false);
	assert_int_equal(feed(lines, file), 0);
	assert_int_equal(podlog_lines_end(lines, true, NULL), 0);
	assert_string_equal(seen.out.data, "1\n2\n3\n4\n");
	/* In the shadow of later lines times are no help. */
	plan_is(lines, "", true);
	assert_int_equal(feed(lines, file), 0);
	assert_int_equal(feed(lines, "2026-11-21T07:00:01.000000000Z 5\n"), 0);
	assert_string_equal(seen.out.data, "1\n2\n3\n4\n5\n");
	plan_is(lines, "", false);
	assert_int_equal(feed(lines, "2026-11-21T07:00:02.000000000Z 6\n"), 0);
	assert_int_equal(seen.gaps.n, 0);
	assert_int_equal(podlog_lines_end(lines, true, NULL), PODLOG_AGAIN);
	assert_int_equal(seen.gaps.n, 1);
	plan_is(lines, "", true);
	assert_int_equal(feed(lines, "2026-11-21T07:00:02.000000000Z 6\n"), 0);
	assert_string_equal(seen.out.data, "1\n2\n3\n4\n5\n6\n");
	podlog_lines_free(lines);
	seen_done(&seen);
}

static void test_token(void **state)
{
	static const char *const bad[] = {"", "1", "1:", "1:a", "2:a:1:0:1:1:1", "1:a:1:0:1:1",
		"1:a:1:0:1:1:1:", "1:a:1:0:1:1:1:1", "1:a:1:0:0:1:1", "1:a:1:0:1:0:1",
		"1:a:ffffffffffffffff:0:1:1:1", "1:a:1::1:1:1", "1:a:1:7fffffffffffffff:1:1:1",
		"1:a:1:0:1ffffffff:1:1", "1:a:1:0:1:1:G", "1:a:1:0:1:1:11111111111111111",
		"1:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:1:0:1:1:1"};
	struct podlog_point point = {.time_ns = INT64_MAX - 5,
		.max_ns = INT64_MAX,
		.ordinal = UINT32_MAX,
		.len = UINT64_MAX,
		.hash = UINT64_MAX};
	struct podlog_point back;
	char token[PODLOG_TOKEN_SIZE];

	memset(point.id, 'i', sizeof(point.id) - 1);
	podlog_point_format(&point, token);
	assert_true(podlog_point_parse(token, &back));
	assert_memory_equal(&point, &back, sizeof(point));
	point.time_ns = point.max_ns = 0;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(podlog_point_parse(bad[i], &back));
}

#define T0_MS INT64_C(1795249260000)

/* Lines of 64 bytes of the program from first_ms on, as many as make up n bytes in took_ms. */
static void feed_lines(struct podlog_lines *lines, size_t n, int64_t first_ms, int64_t took_ms)
{
	for (size_t at = 0; at < n; at += 64) {
		char time[CLOCK_TEXT_SIZE], line[128];

		clock_format(first_ms + took_ms * (int64_t)at / (int64_t)n, time);
		snprintf(line, sizeof(line), "%s %063d\n", time, 1);
		assert_int_equal(feed(lines, line), 0);
	}
}

/* What was told of files before the first line; NULL: nothing was. */
static const struct seen_gap *beginning_of(const struct seen *seen)
{
	for (size_t i = 0; i < seen->gaps.n; i++)
		if (seen->gaps.v[i].gap.kind == PODLOG_BEGINNING)
			return &seen->gaps.v[i];
	return NULL;
}

struct beginning {
	int64_t started_ms, first_ms; /* 0: not known; after T0 */
	size_t n_bytes;
	int64_t took_ms;
	int64_t unread_ms;
	bool was_empty, want;
};

static void check_beginning(const struct beginning *row)
{
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);
	const struct seen_gap *notified;

	podlog_lines_started(lines, row->started_ms);
	podlog_lines_begin(lines);
	podlog_lines_unread(lines, row->unread_ms, row->was_empty);
	feed_lines(lines, row->n_bytes, T0_MS + row->first_ms, row->took_ms);
	notified = beginning_of(&seen);
	assert_int_equal(notified != NULL, row->want);
	assert_int_equal(seen.gaps.n, row->want);
	if (notified) {
		assert_int_equal(notified->gap.after_ns, 0);
		assert_int_equal(notified->gap.before_ns, (T0_MS + row->first_ms) * 1000000);
		assert_int_equal(notified->at == 0, row->unread_ms >= 3000);
	}
	podlog_lines_free(lines);
	seen_done(&seen);
}

static void test_beginning(void **state)
{
	static const struct beginning rows[] = {
		{T0_MS, 3000, 64, 0, 3000, false, true},
		{T0_MS, 2999, 64, 0, 9000, false, false},
		{T0_MS, 9000, 64, 0, 2999, false, false},
		{0, 9000, 1 << 20, 100, 9000, false, false},
		{INT64_MAX, 9000, 1 << 20, 100, 9000, false, false},
		{T0_MS, 9000, 1 << 20, 1000, 0, false, true},
		{T0_MS, 9000, 511 << 10, 1000, 0, false, false},
		{T0_MS, 900, 1 << 20, 2000, 0, false, false},
		{T0_MS, 2000, 1 << 20, 2000, 0, false, true},
		/* A file was filled in the time since it was empty, or it cannot have been. */
		{T0_MS, 9000, 1 << 20, 100, 0, true, false},
		{T0_MS, 9000, 1 << 20, 2000, 2000, true, true},
		{T0_MS, 9000, 1 << 20, 2000, 900, true, false},
		{T0_MS, 900, 1 << 20, 2000, 2000, true, false},
		{T0_MS, 9000, 64, 0, 3000, true, true},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		check_beginning(&rows[i]);
}

/* How fast the program writes is seen between gaps only; where a point is known, all is. */
static void test_beginning_and_gap(void **state)
{
	static const struct podlog_point old = {0};
	static const char skipped[] = "2026-11-21T08:21:30Z 2\n";

	for (int has_point = 0; has_point < 2; has_point++) {
		struct seen seen = {0};
		struct podlog_lines *lines = seen_start(&seen, has_point ? &old : NULL);

		podlog_lines_started(lines, T0_MS);
		podlog_lines_begin(lines);
		podlog_lines_head(lines, A "1\n", strlen(A "1\n"));
		feed_lines(lines, 500 << 10, T0_MS + 2000, 100);
		podlog_lines_head(lines, skipped, strlen(skipped));
		feed_lines(lines, 1 << 20, T0_MS + 60000, 2000);
		assert_int_equal(beginning_of(&seen) != NULL, !has_point);
		podlog_lines_free(lines);
		seen_done(&seen);
	}
}

static void test_behind(void **state)
{
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);
	static const char last[] = B "2\n", next[] = C "3\n";

	assert_false(podlog_lines_is_behind(lines, "", 0));
	plan_is(lines, "", true);
	assert_int_equal(feed(lines, A "1\n" B "2\n"), 0);
	assert_false(podlog_lines_is_behind(lines, last, strlen(last)));
	assert_true(podlog_lines_is_behind(lines, next, strlen(next)));
	assert_false(podlog_lines_is_behind(lines, next, strlen(next)));
	assert_int_equal(feed(lines, B "2a\n"), 0);
	assert_true(podlog_lines_is_behind(lines, next, strlen(next)));
	podlog_lines_free(lines);
	seen_done(&seen);
}

static void test_long(void **state)
{
	enum { LONG = 1 << 20 };
	struct seen seen = {0};
	struct podlog_lines *lines = seen_start(&seen, NULL);
	AUTO_FREE char *text = mem_alloc(1, LONG + 128);
	size_t n = strlen(A);

	memcpy(text, A, n);
	for (size_t i = 0; i < LONG; i++)
		text[n + i] = (char)('a' + i % 23);
	memcpy(text + n + LONG, "\n" B "end\n", strlen("\n" B "end\n"));
	plan_is(lines, "", true);
	assert_int_equal(podlog_lines_feed(lines, text, n + LONG / 3, NULL), 0);
	assert_true(seen.out.len > LONG / 3 - PODLOG_BATCH);
	plan_is(lines, "2026-11-21T08:20:50Z", true);
	assert_int_equal(feed(lines, text), 0);
	assert_int_equal(seen.out.len, LONG + 5);
	assert_memory_equal(seen.out.data, text + n, LONG + 1);
	podlog_lines_free(lines);
	seen_done(&seen);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stamp),
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_rotated),
		cmocka_unit_test(test_rotated_within),
		cmocka_unit_test(test_untimed),
		cmocka_unit_test(test_untimed_bounded),
		cmocka_unit_test(test_untimed_zeros),
		cmocka_unit_test(test_served_twice),
		cmocka_unit_test(test_clock_back),
		cmocka_unit_test(test_token),
		cmocka_unit_test(test_beginning),
		cmocka_unit_test(test_beginning_and_gap),
		cmocka_unit_test(test_behind),
		cmocka_unit_test(test_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
