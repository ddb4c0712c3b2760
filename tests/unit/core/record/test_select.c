/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "core/record/columns.h"

#define DAY_MS (INT64_C(24) * 60 * 60 * 1000)

static struct run *make_run(const char *members)
{
	AUTO_FREE char *text = mem_printf(
		"{\"schema\":\"dlrun/run/v1\",\"id\":\"a-22222\",\"state\":\"failed\",%s}",
		members);
	struct json *doc = NULL;
	struct run *run = NULL;

	assert_int_equal(json_parse(text, strlen(text), 1 << 16, "test", &doc, NULL), 0);
	assert_int_equal(run_from_json(doc, NULL, &run, NULL), 0);
	return run;
}

static bool has_tags(const char *a, const char *b)
{
	AUTO_RUN struct run *run = make_run("\"tags\":{\"paper\":\"\",\"seed\":\"1\",\"n\":3}");
	AUTO_STRV struct strv tags = {0};
	const struct select_rules rules = {.tags = &tags};

	strv_add(&tags, a);
	if (b)
		strv_add(&tags, b);
	return select_matches(&rules, run);
}

static void test_tags(void **state)
{
	assert_true(has_tags("seed", NULL));
	assert_true(has_tags("seed=1", NULL));
	assert_false(has_tags("seed=2", NULL));
	assert_false(has_tags("seed=", NULL));
	assert_false(has_tags("see", NULL));
	assert_false(has_tags("", NULL));
	assert_true(has_tags("paper", NULL));
	assert_true(has_tags("paper=", NULL));
	assert_false(has_tags("paper=x", NULL));
	assert_true(has_tags("paper", "seed=1"));
	assert_false(has_tags("paper", "seed=2"));
	assert_true(has_tags("n", NULL));
	assert_false(has_tags("n=3", NULL));
}

static void test_group_and_time(void **state)
{
	AUTO_RUN struct run *run =
		make_run("\"group\":\"g\",\"times\":{\"submitted\":\"1970-01-01T00:00:01Z\"}");
	AUTO_RUN struct run *bare = make_run("\"group\":null");
	struct select_rules rules = {0};

	assert_false(select_is_set(&rules));
	assert_true(select_matches(&rules, run) && select_matches(&rules, bare));
	rules.group = "g";
	assert_true(select_is_set(&rules));
	assert_true(select_matches(&rules, run));
	assert_false(select_matches(&rules, bare));
	rules.group = "G";
	assert_false(select_matches(&rules, run));
	rules = (struct select_rules){.since_ms = 1000};
	assert_true(select_is_set(&rules));
	assert_true(select_matches(&rules, run));
	assert_false(select_matches(&rules, bare));
	rules.since_ms = 1001;
	assert_false(select_matches(&rules, run));
}

static void test_keep(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	const struct select_rules rules = {.group = "g"};

	*vec_push(&runs) = make_run("\"name\":\"a\",\"group\":\"g\"");
	*vec_push(&runs) = make_run("\"name\":\"b\",\"group\":\"h\"");
	*vec_push(&runs) = make_run("\"name\":\"c\",\"group\":\"g\"");
	select_keep(&rules, &runs);
	assert_int_equal(runs.n, 2);
	assert_string_equal(run_name(runs.v[0]), "a");
	assert_string_equal(run_name(runs.v[1]), "c");
}

static int64_t since(const char *text)
{
	int64_t ms = -1;

	assert_int_equal(select_parse_since(text, 30 * DAY_MS, &ms, NULL), 0);
	return ms;
}

static void test_since(void **state)
{
	static const char *const bad[] = {"", "yesterday", "2026-13-01", "2026-02-31",
		"2026-08-01 25:00", "2026-08-01x", "2026-08-01 12:00:00 x", "-1d"};

	assert_int_equal(since("7d"), 23 * DAY_MS);
	assert_int_equal(since("0"), 30 * DAY_MS);
	assert_int_equal(since("900d"), 1);
	assert_int_equal(since("1970-01-02"), DAY_MS);
	assert_int_equal(since("1970-01-02 12:30"), DAY_MS + 750 * 60000);
	assert_int_equal(since("1970-01-02T12:30"), DAY_MS + 750 * 60000);
	assert_int_equal(since("1970-01-02 12:30:05"), DAY_MS + 750 * 60000 + 5000);
	assert_int_equal(since("1970-01-02T00:00:00.5Z"), DAY_MS + 500);
	assert_int_equal(since("2028-02-29"), INT64_C(1835395200000));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_ERR struct err err = {0};
		int64_t ms = -1;
		assert_int_equal(select_parse_since(bad[i], 0, &ms, &err), -ERR_USAGE);
		assert_non_null(err.hint);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tags),
		cmocka_unit_test(test_group_and_time),
		cmocka_unit_test(test_keep),
		cmocka_unit_test(test_since),
	};

	setenv("TZ", "UTC", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
