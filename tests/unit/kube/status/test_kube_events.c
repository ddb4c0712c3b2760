/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/events.h"

static struct json *parse(const char *text)
{
	struct json *json;

	assert_int_equal(json_parse(text, strlen(text), JSON_SIZE_MAX, "the test", &json, NULL), 0);
	return json;
}

/* What is collected of an array of events, one line each: REASON COUNT FIRST LAST MESSAGE. */
static char *collected(const char *text)
{
	AUTO_JSON struct json *array = parse(text);
	AUTO_KUBE_EVENT_LIST struct kube_event_list list;
	const struct json **v = mem_alloc(json_count(array) + 1, sizeof(*v));
	struct kube_items items = {.v = v, .known = true};
	AUTO_BUF struct buf out;

	for (const struct json *m = json_first(array); m; m = json_next(m))
		v[items.n++] = m;
	kube_events_collect(&items, &list);
	free(v);
	buf_init(&out, 100000);
	vec_foreach (struct kube_event, e, &list)
		buf_addf(&out, "%s%s %d %d %d %s|", e->warning ? "!" : "", e->reason, e->count,
			(int)(e->first_ms / 1000 % 100000), (int)(e->last_ms / 1000 % 100000),
			e->message);
	return buf_take(&out);
}

#define ABOUT "\"involvedObject\":{\"kind\":\"Pod\",\"name\":\"p\",\"uid\":\"1\"}"

static void test_old_form(void **state)
{
	AUTO_FREE char *got = collected(
		"[{" ABOUT ",\"reason\":\"Pulling\",\"message\":\"m\",\"type\":\"Normal\","
		"\"firstTimestamp\":\"1970-01-01T00:00:10Z\","
		"\"lastTimestamp\":\"1970-01-01T00:00:20Z\",\"count\":3,\"eventTime\":null}]");

	assert_string_equal(got, "Pulling 3 10 20 m|");
}

static void test_new_form(void **state)
{
	AUTO_FREE char *core = collected(
		"[{" ABOUT ",\"reason\":\"FailedScheduling\",\"message\":\"m\",\"type\":"
		"\"Warning\",\"eventTime\":\"1970-01-01T00:00:10.000001Z\","
		"\"firstTimestamp\":null,\"lastTimestamp\":null,"
		"\"series\":{\"count\":5,\"lastObservedTime\":\"1970-01-01T00:01:00.5Z\"}}]");
	AUTO_FREE char *events = collected(
		"[{\"regarding\":{\"kind\":\"Pod\",\"name\":\"p\"},\"reason\":\"R\",\"note\":"
		"\"n\",\"type\":\"Normal\",\"eventTime\":null,\"deprecatedCount\":2,"
		"\"deprecatedFirstTimestamp\":\"1970-01-01T00:00:01Z\","
		"\"deprecatedLastTimestamp\":\"1970-01-01T00:00:09Z\"}]");

	assert_string_equal(core, "!FailedScheduling 5 10 60 m|");
	assert_string_equal(events, "R 2 1 9 n|");
}

#define AT(reason, message, second)                                                                \
	"{" ABOUT ",\"reason\":\"" reason "\",\"message\":\"" message                              \
	"\",\"type\":\"Warning\",\"lastTimestamp\":\"1970-01-01T00:00:" second "Z\"}"

static void test_order_and_repeats(void **state)
{
	AUTO_FREE char *got = collected("[" AT("B", "b", "30") "," AT("A", "a", "10") "," AT(
		"B", "b", "20") "," AT("B", "c", "40") "]");
	AUTO_FREE char *same =
		collected("[" AT("Z", "z", "10") "," AT("A", "b", "10") "," AT("A", "a", "10") "]");

	assert_string_equal(got, "!A 1 10 10 a|!B 2 20 30 b|!B 1 40 40 c|");
	assert_string_equal(same, "!A 1 10 10 a|!A 1 10 10 b|!Z 1 10 10 z|");
}

static void test_bad(void **state)
{
	AUTO_FREE char *got = collected(
		"[null,1,\"x\",[],{},{\"reason\":\"R\"},{" ABOUT "},"
		"{\"reason\":\"R\",\"involvedObject\":3},"
		"{" ABOUT ",\"reason\":\"R\",\"count\":-4,\"lastTimestamp\":\"soon\"},"
		"{" ABOUT ",\"reason\":\"R\\u001b\",\"message\":\"a\\nb\",\"count\":1e300}]");

	assert_string_equal(got, "R 1 0 0 |R\\u001b 1 0 0 a b|");
}

static void test_limit(void **state)
{
	struct buf text;
	AUTO_FREE char *got = NULL;
	size_t lines = 0;

	buf_init(&text, JSON_SIZE_MAX);
	for (int i = 0; i < KUBE_EVENTS_MAX + 50; i++)
		buf_addf(&text,
			"%s{" ABOUT ",\"reason\":\"R\",\"message\":\"m%d\",\"lastTimestamp\":"
			"\"1970-01-01T%02d:%02d:%02dZ\"}",
			i ? "," : "[", i, i / 3600, i / 60 % 60, i % 60);
	buf_addc(&text, ']');
	got = collected(text.data);
	buf_done(&text);
	for (const char *at = got; *at; at++)
		lines += *at == '|';
	assert_int_equal(lines, KUBE_EVENTS_MAX);
	assert_true(str_starts(got, "R 1 50 50 m50|"));
}

static void test_newest(void **state)
{
	AUTO_JSON struct json *one = parse(AT("A", "old", "10"));
	AUTO_JSON struct json *two = parse(AT("A", "new", "20"));
	const struct json *v[] = {two, one};
	struct kube_items items = {.v = v, .n = 2, .known = true};
	AUTO_KUBE_EVENT_LIST struct kube_event_list list;

	kube_events_collect(&items, &list);
	assert_string_equal(kube_events_newest(&list, "Pod", "p", "A")->message, "new");
	assert_string_equal(kube_events_newest(&list, NULL, NULL, NULL)->message, "new");
	assert_null(kube_events_newest(&list, "Job", "p", "A"));
	assert_null(kube_events_newest(&list, "Pod", "q", "A"));
	assert_null(kube_events_newest(&list, "Pod", "p", "B"));
}

static void test_counts_are_bounded(void **state)
{
	AUTO_BUF struct buf text;
	AUTO_FREE char *got = NULL;

	buf_init(&text, 1 << 20);
	for (int i = 0; i < 3000; i++)
		buf_addf(&text, "%s{" ABOUT ",\"reason\":\"R\",\"message\":\"m\",\"count\":1e6}",
			i ? "," : "[");
	buf_addc(&text, ']');
	got = collected(text.data);
	assert_string_equal(got, "R 1000000 0 0 m|");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_old_form),
		cmocka_unit_test(test_new_form),
		cmocka_unit_test(test_order_and_repeats),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_newest),
		cmocka_unit_test(test_counts_are_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
