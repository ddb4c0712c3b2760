/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"
#include "core/study/compare.h"

static struct run_list runs;
static struct strv patterns;

static int begin(void **state)
{
	runs = (struct run_list){0};
	patterns = (struct strv){0};
	return 0;
}

static int end(void **state)
{
	run_list_done(&runs);
	strv_done(&patterns);
	return 0;
}

static void add_run(const char *members)
{
	AUTO_BUF struct buf text;
	struct json *doc = NULL;
	struct run *run = NULL;

	buf_init(&text, 1 << 20);
	buf_addf(&text,
		"{\"schema\":\"dlrun/run/v1\",\"id\":\"a-22222\",\"state\":\"succeeded\",%s}",
		members);
	assert_int_equal(json_parse(text.data, text.len, 1 << 20, "test", &doc, NULL), 0);
	assert_int_equal(run_from_json(doc, NULL, &run, NULL), 0);
	*vec_push(&runs) = run;
}

/* Names of the columns, with blanks; metrics_max in front of what it has excluded: "id … +2". */
static void columns_are(size_t metrics_max, const char *wanted)
{
	const struct compare_rules rules = {&patterns, metrics_max};
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_BUF struct buf text;
	AUTO_ERR struct err err = {0};
	size_t excluded = 0;

	buf_init(&text, 1 << 20);
	assert_int_equal(compare_columns(&runs, &rules, &columns, &excluded, &err), 0);
	vec_foreach (struct column, column, &columns)
		buf_addf(&text, "%s%s", text.len ? " " : "", column->name);
	if (excluded)
		buf_addf(&text, " +%zu", excluded);
	assert_string_equal(text.data, wanted);
}

static void test_what_differs(void **state)
{
	add_run("\"params\":{\"lr\":\"0.1\",\"same\":\"1\",\"only\":\"1\"},\"env\":{\"A\":\"1\"},"
		"\"tags\":{\"t\":\"\"},\"target\":{\"name\":\"a\"},\"image\":{\"base\":\"scratch\"},"
		"\"snapshot\":{\"id\":\"sha256:1\"}");
	add_run("\"params\":{\"lr\":\"0.2\",\"same\":\"1\"},\"env\":{\"A\":\"2\"},"
		"\"tags\":{\"t\":\"\"},\"target\":{\"name\":\"b\"},\"image\":{\"base\":\"scratch\"},"
		"\"snapshot\":{\"id\":\"sha256:2\"}");
	columns_are(0, "id params.lr params.only env.A duration target code");
}

static void test_states_and_energy(void **state)
{
	add_run("\"usage\":{\"energy_j\":null}");
	add_run("\"usage\":{\"energy_j\":5}");
	columns_are(0, "id duration energy");
	json_set_str(runs.v[0]->doc, "state", "failed");
	columns_are(0, "id state duration energy");
}

/* Parameters have columns of their own: only what else differs makes one of the command. */
static void test_command(void **state)
{
	add_run("\"command\":[\"python\",\"a.py\",\"--lr\",\"1\",\"x=2\"],\"params\":{\"lr\":\"1\"}");
	add_run("\"command\":[\"python\",\"a.py\",\"--lr\",\"2\"],\"params\":{\"lr\":\"2\"}");
	columns_are(0, "id params.lr duration");
	add_run("\"command\":[\"python\",\"b.py\",\"--lr\",\"1\"],\"params\":{\"lr\":\"1\"}");
	columns_are(0, "id params.lr command duration");
}

static void test_command_of_a_shell(void **state)
{
	add_run("\"command\":[\"python a.py --lr 1 >x\"],\"shell\":true,\"params\":{\"lr\":\"1\"}");
	add_run("\"command\":[\"python a.py  --lr 2 >x\"],\"shell\":true,\"params\":{\"lr\":\"2\"}");
	columns_are(0, "id params.lr duration");
	add_run("\"command\":[\"python b.py --lr 2 >x\"],\"shell\":true,\"params\":{\"lr\":\"2\"}");
	columns_are(0, "id params.lr command duration");
}

#define VALUE "{\"value\":1,\"step\":2,\"min\":0,\"min_step\":1,\"max\":3,\"max_step\":0}"

static void test_metrics(void **state)
{
	add_run("\"metrics\":{\"grad\":" VALUE ",\"acc\":" VALUE ",\"loss\":" VALUE "}");
	add_run("\"metrics\":{\"x.loss\":{\"value\":1,\"step\":1},\"epoch\":" VALUE "}");
	columns_are(0, "id metrics.loss metrics.loss.min metrics.grad metrics.acc metrics.acc.max "
		       "metrics.x.loss metrics.epoch duration");
	columns_are(2, "id metrics.loss metrics.loss.min metrics.grad duration +3");
	strv_add(&patterns, "*loss");
	columns_are(1, "id metrics.loss metrics.loss.min metrics.x.loss duration");
}

static void test_metric_that_none_has(void **state)
{
	const struct compare_rules rules = {&patterns, 0};
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_ERR struct err err = {0};
	size_t excluded;

	add_run("\"metrics\":{\"loss\":" VALUE "}");
	add_run("\"metrics\":null");
	strv_add(&patterns, "loss");
	strv_add(&patterns, "los\033s");
	assert_int_equal(compare_columns(&runs, &rules, &columns, &excluded, &err), -ERR_USAGE);
	assert_string_equal(err.message, "--metric: none of the runs has a metric 'los\\x1bs'");
	assert_string_equal(err.evidence[0], "loss");
}

static void test_goals(void **state)
{
	static const struct {
		const char *name;
		enum compare_goal goal;
	} cases[] = {
		{"loss", COMPARE_MIN},
		{"val_loss", COMPARE_MIN},
		{"trainLoss", COMPARE_MIN},
		{"eval/perplexity", COMPARE_MIN},
		{"Accuracy/val", COMPARE_MAX},
		{"top1", COMPARE_MAX},
		{"f1-score", COMPARE_MAX},
		{"score_loss", COMPARE_MIN},
		{"lr", COMPARE_ANY},
		{"accurate", COMPARE_ANY},
		{"glossary", COMPARE_ANY},
		{"", COMPARE_ANY},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_int_equal(compare_goal_of(cases[i].name), cases[i].goal);
}

static void test_goals_of_columns(void **state)
{
	static const struct {
		char *name;
		enum compare_goal goal;
	} cases[] = {
		{"metrics.loss.min", COMPARE_MIN},
		{"metrics.a.b.acc.max", COMPARE_MAX},
		{"metrics.loss.max", COMPARE_ANY},
		{"metrics.loss", COMPARE_ANY},
		{"metrics.lr.min", COMPARE_ANY},
		{"params.loss.min", COMPARE_ANY},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct column column = {cases[i].name, NULL};
		assert_int_equal(compare_column_goal(&column), cases[i].goal);
	}
}

static void test_titles_and_best_values(void **state)
{
	static const char *const titles[] = {
		"id", "lr", "val.loss", "val.loss min", "acc max", "acc.min"};
	static const double wanted[] = {0, 0, 0, 0.25, 3, 0}; /* 0: none */
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_COLUMN_VALUES struct column_values values = {0};

	add_run("\"params\":{\"lr\":\"0.1\"},\"metrics\":{\"val.loss\":{\"value\":1,\"min\":0.5},"
		"\"acc\":{\"value\":1,\"min\":0,\"max\":3}}");
	add_run("\"params\":{\"lr\":\"0.2\"},\"metrics\":{\"val.loss\":{\"value\":1,\"min\":0.25},"
		"\"acc\":{\"value\":1,\"min\":0,\"max\":\"NaN\"}}");
	add_run("\"params\":{\"lr\":\"0.3\"}");
	assert_int_equal(columns_parse("id,params.lr,metrics.val.loss,metrics.val.loss.min,"
				       "metrics.acc.max,metrics.acc.min",
				 &columns, NULL),
		0);
	columns_get(&columns, &runs, 0, &values);
	AUTO_FREE double *best = compare_find_best(&columns, &values);
	for (size_t i = 0; i < columns.n; i++) {
		AUTO_FREE char *title = compare_title(&columns.v[i]);
		size_t n = 0;

		assert_string_equal(title, titles[i]);
		for (size_t at = i; at < values.n; at += columns.n)
			n += compare_is_best(best[i], &values.v[at]);
		assert_int_equal(n, wanted[i] > 0);
		assert_true(wanted[i] > 0 ? best[i] == wanted[i] : isnan(best[i]));
	}
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, begin, end)
	const struct CMUnitTest tests[] = {
		CASE(test_what_differs),
		CASE(test_states_and_energy),
		CASE(test_command),
		CASE(test_command_of_a_shell),
		CASE(test_metrics),
		CASE(test_metric_that_none_has),
		CASE(test_goals),
		CASE(test_goals_of_columns),
		CASE(test_titles_and_best_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
