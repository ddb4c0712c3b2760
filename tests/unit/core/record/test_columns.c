/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "core/record/columns.h"

enum { NOW_MS = 1000 * 1000 * 1000 };

static struct run *make_run(const char *members)
{
	AUTO_BUF struct buf text;
	struct json *doc = NULL;
	struct run *run = NULL;

	buf_init(&text, 1 << 20);
	buf_addf(&text, "{\"schema\":\"dlrun/run/v1\",\"id\":\"a-22222\",\"state\":\"failed\"%s%s}",
		*members ? "," : "", members);
	assert_int_equal(json_parse(text.data, text.len, 1 << 20, "test", &doc, NULL), 0);
	assert_int_equal(run_from_json(doc, NULL, &run, NULL), 0);
	return run;
}

static void shows(const char *members, const char *name, const char *want)
{
	AUTO_RUN struct run *run = make_run(members);
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_COLUMN_VALUE struct column_value value = {0};

	assert_int_equal(columns_parse(name, &columns, NULL), 0);
	assert_int_equal(columns.n, 1);
	column_get(&columns.v[0], run, NOW_MS, &value);
	if (!want)
		assert_int_equal(value.kind, COLUMN_MISSING);
	else
		assert_string_equal(value.text ? value.text : "(none)", want);
}

static void test_paths(void **state)
{
	shows("\"params\":{\"lr\":\"0.1\"}", "params.lr", "0.1");
	shows("\"params\":{\"lr\":\"0.1\"}", "params.l", NULL);
	shows("\"params\":{\"lr\":\"0.1\"}", "params.lr.x", NULL);
	shows("\"exit\":null", "exit.code", NULL);
	shows("\"exit\":null", "exit", NULL);
	shows("\"exit\":{\"code\":3,\"reason\":\"Error\"}", "exit", "3");
	shows("\"exit\":{\"code\":3,\"reason\":\"Error\"}", "exit.reason", "Error");
	shows("\"target\":{\"name\":\"lab\",\"hosts\":[\"a\",\"b\"]}", "target", "lab");
	shows("\"target\":{\"hosts\":[\"a\",\"b\"]}", "target.hosts", "a b");
	shows("\"target\":{\"hosts\":[\"a\",\"b\"]}", "target.hosts.1", "b");
	shows("\"target\":{\"hosts\":[\"a\",\"b\"]}", "target.hosts.2", NULL);
	shows("\"target\":{\"hosts\":[\"a\",\"b\"]}", "target.hosts.-1", NULL);
	shows("\"snapshot\":{\"dirty\":true}", "snapshot.dirty", "true");
	shows("\"note\":\"\"", "note", NULL);
}

/* A name may hold dots; the longest that is there counts. */
static void test_names_with_dots(void **state)
{
	shows("\"params\":{\"opt.lr\":\"1\"}", "params.opt.lr", "1");
	shows("\"params\":{\"opt\":{\"lr\":\"2\"}}", "params.opt.lr", "2");
	shows("\"params\":{\"opt\":{\"lr\":\"2\"},\"opt.lr\":\"1\"}", "params.opt.lr", "1");
	shows("\"params\":{\"a.b\":{\"c.d\":\"3\"},\"a\":{\"b\":1}}", "params.a.b.c.d", "3");
	shows("\"params\":{\"\":{\"\":\"4\"}}", "params..", "4");
}

static void test_metrics(void **state)
{
	static const char doc[] = "\"metrics\":{\"loss\":{\"value\":2.3100001,\"step\":100},"
				  "\"train/acc.top1\":{\"value\":0.5,\"step\":9},\"n\":"
				  "{\"value\":null,\"step\":1}}";

	shows(doc, "metrics.loss", "2.31");
	shows(doc, "metrics.loss.step", "100");
	shows(doc, "metrics.train/acc.top1", "0.5");
	shows(doc, "metrics.n", NULL);
	shows(doc, "metrics.none", NULL);
	shows(doc, "metrics", "loss=2.31 train/acc.top1=0.5 n=null");
}

static void test_tidy_numbers(void **state)
{
	static const struct {
		const char *json, *text;
	} rows[] = {
		{"0", "0"},
		{"-3", "-3"},
		{"123456789012", "123456789012"},
		{"12345678901234567890", "12345678901234567890"},
		{"0.1", "0.1"},
		{"2.0", "2"},
		{"0.30000000000000004", "0.3"},
		{"1234567.89", "1234568"},
		{"0.00012345678", "0.00012346"},
		{"1e-300", "1e-300"},
		{"1e40", "1e+40"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *doc = mem_printf("\"params\":{\"x\":%s}", rows[i].json);
		shows(doc, "params.x", rows[i].text);
	}
}

static void test_tags(void **state)
{
	static const char doc[] = "\"tags\":{\"paper\":\"\",\"seed\":\"1\"}";

	shows(doc, "tags", "paper seed=1");
	shows(doc, "tags.paper", "yes");
	shows(doc, "tags.seed", "1");
	shows(doc, "tags.none", NULL);
	shows("\"tags\":{}", "tags", NULL);
}

static void test_made_columns(void **state)
{
	static const char usage[] = "\"usage\":{\"cpu_s\":90.5,\"memory_peak_bytes\":3145728,"
				    "\"gpu_busy\":0.937,\"energy_j\":7200}";

	shows("", "state", "failed");
	shows("\"command\":[\"./a b\",\"c\"]", "command", "'./a b' c");
	shows("", "command", NULL);
	shows("", "age", NULL);
	shows("", "duration", NULL);
	shows("\"times\":{\"started\":\"1970-01-01T00:00:10Z\",\"ended\":"
	      "\"1970-01-01T00:01:40Z\"}",
		"duration", "1 min 30 s");
	shows("\"attempts\":[{},{}]", "attempts", "2");
	shows("\"attempts\":[{\"number\":1},{\"number\":7}]", "attempts.1.number", "7");
	shows(usage, "cpu", "1 min 30 s");
	shows(usage, "memory", "3.0 MiB");
	shows(usage, "gpu", "94 %");
	shows(usage, "energy", "2 Wh");
	shows(usage, "gpu-memory", NULL);
	shows("\"snapshot\":{\"commit\":\"0123456789abcdef0123\"}", "commit", "0123456789ab");
}

static void test_every_kind_without_a_record(void **state)
{
	for (size_t i = 0; i < column_kinds_n; i++) {
		AUTO_RUN struct run *run = make_run("");
		AUTO_COLUMN_VALUE struct column_value value = {0};
		const struct column column = {(char *)"x", &column_kinds[i]};

		assert_true((column_kinds[i].path != NULL) != (column_kinds[i].make != NULL));
		column_get(&column, run, NOW_MS, &value);
	}
}

static void test_what_columns_show(void **state)
{
	static const struct {
		const char *columns, *member;
		bool shows;
	} cases[] = {
		{COLUMNS_DEFAULT, "metrics", false},
		{COLUMNS_METRIC, "metrics", true},
		{"wide", "metrics", true},
		{"id,step", "metrics", true},
		{"id,metrics.loss", "metrics", true},
		{"metrics", "metrics", true},
		{"wide", "params", false},
		{"params", "params", true},
		{"id,params.lr", "params", true},
		{"exit,duration", "exit", true},
		{"results.files", "results", true},
		{"reason", "exit", true},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_COLUMNS struct columns columns = {0};

		assert_int_equal(columns_parse(cases[i].columns, &columns, NULL), 0);
		assert_int_equal(columns_show(&columns, cases[i].member), cases[i].shows);
	}
}

static void test_parse(void **state)
{
	AUTO_COLUMNS struct columns columns = {0}, wide = {0};

	assert_int_equal(columns_parse(" id , params.lr,state", &columns, NULL), 0);
	assert_int_equal(columns.n, 3);
	assert_string_equal(columns.v[0].name, "id");
	assert_non_null(columns.v[0].kind);
	assert_string_equal(columns.v[1].name, "params.lr");
	assert_null(columns.v[1].kind);
	assert_int_equal(columns_parse("wide,metrics.loss", &wide, NULL), 0);
	assert_int_equal(wide.n, 14);
	assert_string_equal(wide.v[13].name, "metrics.loss");
}

static void refuse(const char *text, enum err_id id, const char *hint)
{
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_ERR struct err err = {0};

	assert_true(columns_parse(text, &columns, &err) < 0);
	assert_int_equal(err.id, id);
	if (hint)
		assert_string_equal(err.hint, hint);
}

static void test_refused(void **state)
{
	char long_name[COLUMN_NAME_MAX + 10];
	AUTO_BUF struct buf many;

	refuse("stat", E_USAGE, "did you mean state?");
	refuse("metric.loss", E_USAGE, "did you mean metrics.loss?");
	refuse("id,parms.lr", E_USAGE, "did you mean params.lr?");
	refuse("qqqqqqqq", E_USAGE, "dlrun help ps");
	refuse("", E_USAGE, NULL);
	refuse("id,,state", E_USAGE, NULL);
	refuse("id,", E_USAGE, NULL);
	refuse(".", E_USAGE, NULL);
	memset(long_name, 'a', sizeof(long_name));
	memcpy(long_name, "params.", 7);
	long_name[sizeof(long_name) - 1] = '\0';
	refuse(long_name, E_DATA_LIMIT, NULL);
	buf_init(&many, 1 << 16);
	for (int i = 0; i < COLUMNS_MAX; i++)
		buf_adds(&many, "id,");
	buf_adds(&many, "id");
	refuse(many.data, E_DATA_LIMIT, NULL);
}

static void sorted(const char *name, bool descending, const char *want)
{
	static const char *const docs[] = {
		"\"name\":\"b\",\"metrics\":{\"x\":{\"value\":10}}",
		"\"name\":\"c\",\"metrics\":{}",
		"\"name\":\"a\",\"metrics\":{\"x\":{\"value\":9.5}}",
		"\"name\":\"d\",\"metrics\":{\"x\":{\"value\":10}}",
		"\"name\":\"e\",\"metrics\":{\"x\":{\"value\":\"high\"}}",
	};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_COLUMNS struct columns columns = {0};
	char got[16] = "";

	for (size_t i = 0; i < ARRAY_LEN(docs); i++)
		*vec_push(&runs) = make_run(docs[i]);
	assert_int_equal(columns_parse(name, &columns, NULL), 0);
	columns_sort(&runs, &columns.v[0], descending, NOW_MS);
	for (size_t i = 0; i < runs.n; i++)
		got[i] = run_name(runs.v[i])[0];
	assert_string_equal(got, want);
}

static void test_sort(void **state)
{
	struct run_list none = {0};
	const struct column column = {(char *)"params.x", NULL};

	sorted("name", false, "abcde");
	sorted("name", true, "edcba");
	sorted("metrics.x", false, "abdec");
	sorted("metrics.x", true, "ebdac");
	sorted("params.none", true, "bcade");
	columns_sort(&none, &column, false, NOW_MS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_names_with_dots),
		cmocka_unit_test(test_metrics),
		cmocka_unit_test(test_tidy_numbers),
		cmocka_unit_test(test_tags),
		cmocka_unit_test(test_made_columns),
		cmocka_unit_test(test_every_kind_without_a_record),
		cmocka_unit_test(test_what_columns_show),
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_sort),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
