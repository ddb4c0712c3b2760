/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/axes.h"

/* Rows as "a=1 b=x;a=1 b=y". */
static char *rows_text(const struct cases *cases)
{
	struct buf out;

	buf_init(&out, 1 << 20);
	for (size_t row = 0; row < cases->n; row++)
		for (size_t k = 0; k < cases->keys.n; k++)
			buf_addf(&out, "%s%s=%s",
				k     ? " "
				: row ? ";"
				      : "",
				cases->keys.v[k], cases_get(cases, row, k));
	return out.data;
}

static void add_all(struct axes *axes, const char *const *texts)
{
	for (; *texts; texts++) {
		AUTO_ERR struct err err = {0};
		if (axes_add(axes, *texts, &err) < 0)
			fail_msg("%s: %s", *texts, err.message);
	}
}

static int make(
	const char *const *texts, struct cases_options options, struct cases *ret, struct err *err)
{
	AUTO_AXES struct axes *axes = axes_new();

	add_all(axes, texts);
	return cases_make(axes, &options, ret, err);
}

#define AXES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void assert_rows(
	const char *const *texts, struct cases_options options, const char *expected)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *text = NULL;

	if (make(texts, options, &cases, &err) < 0)
		fail_msg("%s: %s", texts[0], err.message);
	text = rows_text(&cases);
	assert_string_equal(text, expected);
}

/* The values of one axis, joined by "|". */
static char *values_of(const char *text)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_ERR struct err err = {0};

	if (make(AXES(text), (struct cases_options){0}, &cases, &err) < 0)
		return mem_printf("error: %s", err.message);
	return strv_join(&cases.values, "|");
}

static void test_lists(void **state)
{
	static const struct {
		const char *text, *values;
	} lists[] = {
		{"lr=0.1,0.03,0.01", "0.1|0.03|0.01"},
		{"lr= 0.1 , 0.03", "0.1|0.03"},
		{"_a.b-c/d=x", "x"},
		{"a=b=c,d=e", "b=c|d=e"},
		{"a=\"x,y\",'z,\"',\"\"", "x,y|z,\"|"},
		{"a=\"\\\"\\\\\\n\" ,b", "\"\\\\n|b"},
		{"a=x\\,y,\\[,\\\\,\\d", "x,y|[|\\|\\d"},
		{"a=it's,5\"", "it's|5\""},
		{"x=[1,2],[3]", "[1,2]|[3]"},
		{"x={a:[1,2],b:(3,4)},f(1,2)", "{a:[1,2],b:(3,4)}|f(1,2)"},
		{"x=[\"a,]\",b],[it's,\\],c]", "[\"a,]\",b]|[it's,\\],c]"},
		{"p=../data,./a..b,v1..2,..", "../data|./a..b|v1..2|.."},
		{"p=\"1..5\",'log:1..2:3',2", "1..5|log:1..2:3|2"},
		{"u=http://a/b:80,C:\\dir\\x,s3://a..b", "http://a/b:80|C:\\dir\\x|s3://a..b"},
		{"seed=1..5", "1|2|3|4|5"},
		{"seed=5..1", "5|4|3|2|1"},
		{"seed=1..9:2", "1|3|5|7|9"},
		{"seed=1..8:3", "1|4|7"},
		{"seed=9..1:4", "9|5|1"},
		{"seed=9..1:-4", "9|5|1"},
		{"seed=-1..1,7", "-1|0|1|7"},
		{"seed=3..3", "3"},
		{"shard=08..11", "08|09|10|11"},
		{"shard=-01..1", "-01|000|001"},
		{"x=lin:0..1:5", "0|0.25|0.5|0.75|1"},
		{"x=lin:1..0:3", "1|0.5|0"},
		{"x=lin:0..1:4", "0|0.333333|0.666667|1"},
		{"x=lin:-1.50..1:3", "-1.50|-0.25|1"},
		{"x=lin:1000000..1000003:4", "1000000|1000001|1000002|1000003"},
		{"x=lin:0..1e20:3", "0|5.0e+19|1e20"},
		{"x=lin:0..1e-9:3", "0|5.0e-10|1e-9"},
		{"x=lin:0..0.000004:3", "0|2.0e-6|0.000004"},
		{"x=lin:0..4000:3,5", "0|2000|4000|5"},
		{"x=lin:.5..+1.5:3", ".5|1|+1.5"},
		{"lr=log:1e-4..1e-1:4", "1e-4|0.001|0.01|1e-1"},
		{"lr=log:1e-4..1e-1:12", "1e-4|0.000187382|0.000351119|0.000657933|0.00123285|"
					 "0.00231013|0.00432876|0.00811131|0.0151991|0.0284804|"
					 "0.053367|1e-1"},
		{"n=log:1..1024:11", "1|2|4|8|16|32|64|128|256|512|1024"},
		{"n=log:100..1:3", "100|10|1"},
		{"n=log:1..1.00001:3", "1|1.000005|1.00001"},
		{"n=log:1048576..16777216:5", "1048576|2097152|4194304|8388608|16777216"},
		{"x=lin:-1e-100..1e-100:3", "-1e-100|0|1e-100"},
		{"x=lin:0..1e-322:3", "0|4.94066e-323|1e-322"},
		{"x=lin:-0.1..0.2:4", "-0.1|0|0.1|0.2"},
		{"x=lin:0.1..0.7:7", "0.1|0.2|0.3|0.4|0.5|0.6|0.7"},
		{"x=lin:0..0.0625:9",
			"0|0.0078125|0.015625|0.0234375|0.03125|0.0390625|0.046875|0.0546875|0.0625"},
		{"x=lin:-1e6..1e6:7", "-1e6|-666667|-333333|0|333333|666667|1e6"},
	};

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		AUTO_FREE char *values = values_of(lists[i].text);
		if (!str_eq(values, lists[i].values))
			fail_msg("%s: \"%s\", not \"%s\"", lists[i].text, values, lists[i].values);
	}
}

/* Every malformed axis: what is said and what would be right. */
static void test_bad_lists(void **state)
{
	static const struct {
		const char *text, *message, *hint;
	} bad[] = {
		{"lr", "--over lr: \"=\" and a list of values are missing", "--over lr=0.1,0.03"},
		{"", "--over : \"=\" and", "--over lr=0.1,0.03"},
		{"=1", "--over =1: a name begins", "--over lr=0.1,0.03"},
		{"1a=2", "--over 1a=2: a name begins", "--over lr=0.1,0.03"},
		{"a b=1", "--over a b=1: a name begins", "--over lr=0.1,0.03"},
		{"a+=1", "--over a+=1: a name begins", "--over lr=0.1,0.03"},
		{"\xc3\xa4=1", "--over \xc3\xa4=1: a name begins", "--over lr=0.1,0.03"},
		{"index=1", "--over index=1: {index} has a meaning", NULL},
		{"args=1", "--over args=1: {args} has a meaning", NULL},
		{"lr=", "--over lr=: there are no values", "--over lr=0.1,0.03"},
		{"lr=  ", "--over lr=  : there are no values", "--over lr=0.1,0.03"},
		{"lr=1,,2", "--over lr=1,,2: a value is empty", "--over 'lr=a,\"\"'"},
		{"lr=1,", "--over lr=1,: a value is empty", "--over 'lr=a,\"\"'"},
		{"lr=,1", "--over lr=,1: a value is empty", "--over 'lr=a,\"\"'"},
		{"lr=\"a", "--over lr=\"a: the quote \" is not closed", "--over 'lr=\"a,b\",c'"},
		{"lr='a", "--over lr='a: the quote ' is not closed", "--over 'lr=\"a,b\",c'"},
		{"lr=\"a\"b", "--over lr=\"a\"b: there is text behind", "--over 'lr=\"a,b\",c'"},
		{"lr=[1,2", "--over lr=[1,2: a bracket is not closed by ]",
			"--over 'lr=\"a,b\",c'"},
		{"lr=1],2", "--over lr=1],2: the bracket ] closes nothing",
			"--over 'lr=\"a,b\",c'"},
		{"lr=(1]", "--over lr=(1]: the bracket ] closes nothing", "--over 'lr=\"a,b\",c'"},
		{"lr=a\nb", "--over lr=a\\nb: a value is not plain text", NULL},
		{"lr=\"a\tb\"", "--over lr=\"a\\tb\": a value is not plain text", NULL},
		{"lr=\x1b[1m]", "--over lr=\\x1b[1m]: a value is not plain text", NULL},
		{"lr=\xff", "--over lr=\\xff: a value is not plain text", NULL},
		{"s=1..", "--over s=1..: \"1..\" is not a range", "--over s=1..5"},
		{"s=..5", "--over s=..5: \"..5\" is not a range", "--over s=1..5"},
		{"s=1..x", "--over s=1..x: \"1..x\" is not a range", "--over s=1..5"},
		{"s=1..5..9", "--over s=1..5..9: \"1..5..9\" is not a range", "--over s=1..5"},
		{"s=0.1..0.5", "--over s=0.1..0.5: \"0.1..0.5\" is not a range",
			"--over s=lin:0.1..0.5:5"},
		{"s=1e-4..1e-1:12", "--over s=1e-4..1e-1:12: \"1e-4..1e-1:12\" is not a range",
			"--over s=log:1e-4..1e-1:12"},
		{"s=0..1:0.1", "--over s=0..1:0.1: the step from 0 to 1 cannot be", NULL},
		{"s=0..1.0:0.1", "--over s=0..1.0:0.1: \"0..1.0:0.1\" is not a range",
			"--over s=lin:0..1.0:5"},
		{"s=1..99999999999999999999", "--over s=1..99999999999999999999: \"1..999", NULL},
		{"s=1..9:0", "--over s=1..9:0: the step from 1 to 9 cannot be \"0\"",
			"--over s=1..9:2"},
		{"s=1..9:-2", "--over s=1..9:-2: the step from 1 to 9 cannot be \"-2\"",
			"--over s=1..9:2"},
		{"s=9..1:x", "--over s=9..1:x: the step from 9 to 1 cannot be \"x\"",
			"--over s=9..1:2"},
		{"s=1..9:", "--over s=1..9:: the step from 1 to 9 cannot be \"\"",
			"--over s=1..9:2"},
		{"s=0..1000000000", "--over s=0..1000000000: an axis has at most 1000000000 values",
			NULL},
		{"s=-999999999999999..999999999999999", "--over s=-999999999999999..9999", NULL},
		{"x=log:", "--over x=log:: log: wants two numbers with \"..\" between, not \"\"",
			"--over x=log:1e-4..1e-1:12"},
		{"x=log:dir", "--over x=log:dir: log: wants two numbers", NULL},
		{"x=log:1e-4", "--over x=log:1e-4: log: wants two numbers", NULL},
		{"x=log:0..1:3", "--over x=log:0..1:3: log: wants two numbers above 0",
			"--over x=log:1e-4..1e-1:12"},
		{"x=loguniform:-1..1:3",
			"--over x=loguniform:-1..1:3: loguniform: wants two numbers above 0",
			"--over x=loguniform:1e-5..1e-1:8"},
		{"x=lin:1..1:3", "--over x=lin:1..1:3: lin: has the same number at both ends",
			"--over x=lin:0..1:5"},
		{"x=lin:0..1:1",
			"--over x=lin:0..1:1: the number of values must be from 2 to "
			"1000000000, not \"1\"",
			"--over x=lin:0..1:5"},
		{"x=uniform:0..1:0", "--over x=uniform:0..1:0: the number of values must be from 1",
			"--over x=uniform:0..1:8"},
		{"x=lin:0..1:5:6", "--over x=lin:0..1:5:6: the number of values must be", NULL},
		{"x=lin:0..1:", "--over x=lin:0..1:: the number of values must be", NULL},
		{"x=lin:0..1:2.5", "--over x=lin:0..1:2.5: the number of values must be", NULL},
		{"x=lin:nan..1:5", "--over x=lin:nan..1:5: lin: wants two numbers", NULL},
		{"x=lin:0x1..1:5", "--over x=lin:0x1..1:5: lin: wants two numbers", NULL},
		{"x=lin:0..1e999:5", "--over x=lin:0..1e999:5: lin: wants two numbers", NULL},
		{"x=lin:-1e308..1e308:5", "--over x=lin:-1e308..1e308:5: lin: has ends that are",
			NULL},
		{"x=linear:0..1:5", "--over x=linear:0..1:5: there is no list \"linear:\"",
			"--over x=lin:0..1:5"},
		{"x=logspace:1..2:5", "--over x=logspace:1..2:5: there is no list \"logspace:\"",
			"--over x=log:1e-4..1e-1:12"},
		{"x=port:1..2", "--over x=port:1..2: there is no list \"port:\"",
			"--over 'x=\"port:1..2\"'"},
		{"x=log:1..2,3", "--over x=log:1..2,3: a list without a number of values must",
			"--over x=log:1e-4..1e-1:12"},
		{"x=3,uniform:1..2", "--over x=3,uniform:1..2: a list without a number of values",
			"--over x=uniform:0..1:8"},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_AXES struct axes *axes = axes_new();
		AUTO_ERR struct err err = {0};

		if (axes_add(axes, bad[i].text, &err) >= 0)
			fail_msg("%s is accepted", bad[i].text);
		assert_int_equal(err.id, E_USAGE);
		if (!str_starts(err.message, bad[i].message))
			fail_msg("%s, not %s", err.message, bad[i].message);
		if (bad[i].hint)
			assert_string_equal(err.hint, bad[i].hint);
		assert_int_equal(axes_count(axes), 0);
	}
}

static void test_limits(void **state)
{
	AUTO_AXES struct axes *axes = axes_new();
	AUTO_ERR struct err err = {0};
	char text[AXES_VALUE_MAX + 8] = "a=";

	memset(text + 2, 'x', AXES_VALUE_MAX);
	assert_int_equal(axes_add(axes, text, NULL), 0);
	text[0] = 'b';
	text[AXES_VALUE_MAX + 2] = 'x';
	assert_int_equal(axes_add(axes, text, &err), -ERR_USAGE);
	assert_non_null(strstr(err.message, "a value has more than 1000 bytes"));
	assert_int_equal(axes_add(axes, "a=1", &err), -ERR_USAGE);
	assert_string_equal(err.message, "--over a=1: the axis a is there already");
	memset(text, 'n', AXES_NAME_MAX + 1);
	memcpy(text + AXES_NAME_MAX + 1, "=1", 3);
	assert_int_equal(axes_add(axes, text, &err), -ERR_USAGE);
	assert_int_equal(axes_add(axes, text + 1, NULL), 0);
	for (size_t i = axes_count(axes); i < AXES_MAX; i++) {
		AUTO_FREE char *more = mem_printf("a%zu=1", i);
		assert_int_equal(axes_add(axes, more, NULL), 0);
	}
	assert_int_equal(axes_add(axes, "z=1", &err), -ERR_USAGE);
	assert_string_equal(err.message, "--over z=1: there are 64 axes already");

	AUTO_BUF struct buf many = {0};
	buf_init(&many, 1 << 20);
	buf_adds(&many, "m=0");
	for (int i = 0; i < CASES_MAX; i++)
		buf_addf(&many, ",%d", i + 1);
	AUTO_AXES struct axes *others = axes_new();
	assert_int_equal(axes_add(others, many.data, &err), -ERR_USAGE);
	assert_non_null(strstr(err.message, "a list has at most 10000 items"));
}

static void test_grid(void **state)
{
	const struct cases_options grid = {0}, zip = {.zip = true};

	assert_rows(
		AXES("a=1,2", "b=x,y,z"), grid, "a=1 b=x;a=1 b=y;a=1 b=z;a=2 b=x;a=2 b=y;a=2 b=z");
	assert_rows(AXES("a=1,2", "b=x,y"), zip, "a=1 b=x;a=2 b=y");
	assert_rows(AXES("a=1,1", "b=x,y"), zip, "a=1 b=x;a=1 b=y");
	for (size_t a = 1; a < 6; a++)
		for (size_t b = 1; b < 6; b++) {
			AUTO_FREE char *one = mem_printf("a=1..%zu", a);
			AUTO_FREE char *other = mem_printf("b=1..%zu", b);
			AUTO_CASES struct cases cases = {0};

			assert_int_equal(make(AXES(one, other, "c=1..3"), grid, &cases, NULL), 0);
			assert_int_equal(cases.n, a * b * 3);
			assert_int_equal(cases.values.n, cases.n * 3);
		}
}

static void assert_refused(const char *const *texts, struct cases_options options,
	const char *message, const char *hint)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(make(texts, options, &cases, &err), -ERR_USAGE);
	assert_string_equal(err.message, message);
	if (hint)
		assert_string_equal(err.hint, hint);
	else
		assert_null(err.hint);
}

static void test_refused(void **state)
{
	const struct cases_options grid = {0}, zip = {.zip = true}, five = {.sample = 5};
	AUTO_AXES struct axes *none = axes_new();
	AUTO_CASES struct cases cases = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(cases_make(none, &grid, &cases, &err), -ERR_USAGE);
	assert_string_equal(err.message, "a study needs an axis");
	assert_refused(AXES("a=1..3", "b=x", "c=1..3"), zip, "--zip: a has 3 values and b has 1",
		"without --zip all combinations are made");
	assert_refused(AXES("a=1..10001"), grid,
		"10001 a are 10001 combinations; a study has at most 10000 members",
		"dlrun sweep --sample 100 …");
	assert_refused(AXES("a=1..1000", "b=1..1000", "c=1..1000"), grid,
		"1000 a × 1000 b × 1000 c are 1000000000 combinations; a study has at most 10000 "
		"members",
		"dlrun sweep --sample 100 …");
	assert_refused(AXES("a=1..1000000000", "b=1..1000000000", "c=1..1000000000"), grid,
		"1000000000 a × 1000000000 b × 1000000000 c are more combinations than can be "
		"counted",
		NULL);
	assert_refused(AXES("a=1..1000000000", "b=1..1000000000", "c=1..1000000000"), five,
		"1000000000 a × 1000000000 b × 1000000000 c are more combinations than can be "
		"counted",
		NULL);
	assert_refused(AXES("a=1,2", "b=1,2"), five, "--sample 5: there are only 4 combinations",
		"without --sample all of them are made");
	assert_refused(AXES("a=1..20000"), (struct cases_options){.sample = 10001},
		"--sample 10001: a study has at most 10000 members", NULL);
	assert_refused(AXES("a=1,2", "lr=log:1e-4..1e-1"), grid,
		"--over lr=log:1e-4..1e-1: without a number of values it needs --sample",
		"--over lr=log:1e-4..1e-1:12");
	assert_refused(AXES("lr=lin:0..1"), zip,
		"--over lr=lin:0..1: without a number of values it needs --sample",
		"--over lr=lin:0..1:12");
	assert_refused(AXES("a=x,y,x"), grid, "the axis a has the value \"x\" twice",
		"--over repeat=1..5");
	assert_refused(AXES("a=1..5,3"), grid, "the axis a has the value \"3\" twice",
		"--over repeat=1..5");
}

static void assert_all_different(const struct cases *cases)
{
	struct map seen = {0};

	for (size_t row = 0; row < cases->n; row++) {
		AUTO_BUF struct buf text = {0};

		buf_init(&text, 1 << 20);
		for (size_t k = 0; k < cases->keys.n; k++)
			buf_addf(&text, "%s\n", cases_get(cases, row, k));
		assert_null(map_put(&seen, text.data, &seen));
	}
	map_done(&seen);
}

static void test_sample(void **state)
{
	const char *const *grid = AXES("a=1..4", "b=x,y,z", "c=1..5");

	for (size_t n = 1; n <= 60; n++)
		for (uint64_t seed = 0; seed < 3; seed++) {
			struct cases_options options = {.sample = n, .seed = seed};
			AUTO_CASES struct cases one = {0}, again = {0}, all = {0};

			assert_int_equal(make(grid, options, &one, NULL), 0);
			assert_int_equal(make(grid, options, &again, NULL), 0);
			assert_int_equal(one.n, n);
			assert_all_different(&one);
			options.sample = 60;
			assert_int_equal(make(grid, options, &all, NULL), 0);
			for (size_t i = 0; i < one.values.n; i++) {
				assert_string_equal(one.values.v[i], again.values.v[i]);
				assert_string_equal(one.values.v[i], all.values.v[i]);
			}
		}
}

/* What the words of the header give in Python; the combinations of a small grid come in turns. */
static void test_sample_is_portable(void **state)
{
	assert_rows(AXES("a=1..1000", "b=1..1000", "c=1..1000"),
		(struct cases_options){.sample = 4},
		"a=659 b=608 c=536;a=155 b=643 c=232;a=447 b=780 c=722;a=510 b=377 c=738");
	assert_rows(AXES("a=1..1000", "b=1..1000", "c=1..1000"),
		(struct cases_options){.sample = 4, .seed = 42},
		"a=756 b=276 c=414;a=77 b=719 c=388;a=742 b=332 c=377;a=306 b=851 c=5");
	assert_rows(AXES("a=0..3", "lr=loguniform:1e-5..1e-1"),
		(struct cases_options){.sample = 4, .zip = true},
		"a=3 lr=0.000173271;a=1 lr=0.0000815664;a=0 lr=0.000569687;a=2 lr=0.0000607323");
}

static void test_large_sample(void **state)
{
	struct cases_options options = {.sample = CASES_MAX, .seed = 7};
	AUTO_CASES struct cases cases = {0};

	assert_int_equal(make(AXES("a=1..1000000", "b=1..1000"), options, &cases, NULL), 0);
	assert_int_equal(cases.n, CASES_MAX);
	assert_all_different(&cases);
}

static void test_drawn(void **state)
{
	struct cases_options options = {.sample = 200, .seed = 3};
	AUTO_CASES struct cases cases = {0}, other = {0};
	size_t adam = 0, low = 0;

	assert_int_equal(make(AXES("opt=adam,sgd", "lr=loguniform:1e-5..1e-1", "m=uniform:1..0",
				      "w=log:1..100", "d=lin:0..1", "u=uniform:0..1:3"),
				 options, &cases, NULL),
		0);
	for (size_t row = 0; row < cases.n; row++) {
		double lr = strtod(cases_get(&cases, row, 1), NULL);
		double m = strtod(cases_get(&cases, row, 2), NULL);

		adam += str_eq(cases_get(&cases, row, 0), "adam");
		low += lr < 1e-3;
		assert_true(lr >= 1e-5 && lr <= 1e-1 && m >= 0 && m <= 1);
	}
	/* The combinations take turns; half of the numbers are below the geometric mean. */
	assert_true(adam >= 97 && adam <= 103);
	assert_true(low > 70 && low < 130);
	/* The numbers of an axis do not depend on the others. */
	assert_int_equal(make(AXES("lr=loguniform:1e-5..1e-1"), options, &other, NULL), 0);
	for (size_t row = 0; row < other.n; row++)
		assert_string_equal(cases_get(&other, row, 0), cases_get(&cases, row, 1));
}

/* The ends are as they were typed, what is between is in order and reads back. */
static void test_ends(void **state)
{
	static const char *const ends[][2] = {{"1e-4", "1e-1"}, {"0.1", "0.2"}, {"3", "7e10"},
		{"1e-300", "1e300"}, {"99", "100"}, {"5", "0.00002"}};

	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		for (size_t n = 2; n < 200; n += 7)
			for (int geometric = 0; geometric < 2; geometric++) {
				AUTO_FREE char *text = mem_printf("x=%s:%s..%s:%zu",
					geometric ? "log" : "lin", ends[i][0], ends[i][1], n);
				bool up = strtod(ends[i][0], NULL) < strtod(ends[i][1], NULL);
				AUTO_CASES struct cases cases = {0};

				assert_int_equal(
					make(AXES(text), (struct cases_options){0}, &cases, NULL),
					0);
				assert_int_equal(cases.n, n);
				assert_string_equal(cases_get(&cases, 0, 0), ends[i][0]);
				assert_string_equal(cases_get(&cases, n - 1, 0), ends[i][1]);
				for (size_t row = 1; row < n; row++) {
					double a = strtod(cases_get(&cases, row - 1, 0), NULL);
					double b = strtod(cases_get(&cases, row, 0), NULL);
					assert_true(up ? a < b : a > b);
				}
			}
}

static void assert_json(const char *text, const char *rows, const char *message, const char *hint)
{
	AUTO_JSON struct json *json = NULL, *again = NULL;
	AUTO_AXES struct axes *axes = axes_new(), *others = axes_new();
	AUTO_CASES struct cases cases = {0}, same = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *shown = NULL, *twice = NULL;
	const struct cases_options zip = {.zip = true};
	int r = 0;

	assert_int_equal(json_parse(text, strlen(text), 4096, "it", &json, NULL), 0);
	for (const struct json *m = json_first(json); m && r == 0; m = json_next(m))
		r = axes_add_json(axes, json_key(m), m, &err);
	if (!rows) {
		assert_int_equal(r, -ERR_CONFIG);
		if (!str_starts(err.message, message))
			fail_msg("%s, not %s", err.message, message);
		if (hint)
			assert_string_equal(err.hint, hint);
		return;
	}
	if (r < 0)
		fail_msg("%s: %s", text, err.message);
	assert_int_equal(cases_make(axes, &zip, &cases, &err), 0);
	shown = rows_text(&cases);
	assert_string_equal(shown, rows);
	/* What the record keeps gives the same again. */
	again = axes_to_json(axes);
	for (const struct json *m = json_first(again); m; m = json_next(m))
		assert_int_equal(axes_add_json(others, json_key(m), m, NULL), 0);
	assert_int_equal(cases_make(others, &zip, &same, NULL), 0);
	twice = rows_text(&same);
	assert_string_equal(twice, rows);
}

static void test_json(void **state)
{
	assert_json("{\"lr\":{\"log\":[1e-4,\"1e-2\"],\"n\":3},\"seed\":\"1..3\"}",
		"lr=0.0001 seed=1;lr=0.001 seed=2;lr=1e-2 seed=3", NULL, NULL);
	assert_json(
		"{\"opt\":[\"adam\",\"1..5\",\"a,b\",\"\\\"\",\"\\\\\",\"log:1..2\",\"\",\" a \","
		"\"[\"]}",
		"opt=adam;opt=1..5;opt=a,b;opt=\";opt=\\;opt=log:1..2;opt=;opt= a ;opt=[", NULL,
		NULL);
	assert_json("{\"a\":[1,true,0.5,[1,2],{\"b\":null}],\"c\":\"x,1..4\"}",
		"a=1 c=x;a=true c=1;a=0.5 c=2;a=[1,2] c=3;a={\"b\":null} c=4", NULL, NULL);
	assert_json("{\"a\":5,\"b\":false}", "a=5 b=false", NULL, NULL);
	assert_json("{\"a\":null}", NULL, "sweep.over.a: there are no values", "a: [0.1, 0.03]");
	assert_json("{\"a\":[]}", NULL, "sweep.over.a: there are no values", "a: [0.1, 0.03]");
	assert_json("{\"a\":{}}", NULL, "sweep.over.a: a map has one of",
		"a: {log: [1e-4, 1e-1], n: 12}");
	assert_json("{\"a\":{\"log\":[1]}}", NULL, "sweep.over.a: a map has one of", NULL);
	assert_json("{\"a\":{\"log\":[1,2],\"lin\":[1,2]}}", NULL, "sweep.over.a: a map has", NULL);
	assert_json(
		"{\"a\":{\"geo\":[1,2],\"n\":3}}", NULL, "sweep.over.a: a map has one of", NULL);
	assert_json("{\"a\":{\"log\":[1,\"2:3,4\"]}}", NULL, "sweep.over.a: a map has", NULL);
	assert_json("{\"a\":{\"log\":[0,1],\"n\":3}}", NULL,
		"sweep.over.a: log: wants two numbers above 0", "a: {log: [1e-4, 1e-1], n: 12}");
	assert_json("{\"a\":{\"lin\":[0,1],\"n\":1}}", NULL,
		"sweep.over.a: the number of values must be", "a: {lin: [0, 1], n: 5}");
	assert_json("{\"a b\":1}", NULL, "sweep.over.a b: a name begins", "lr: [0.1, 0.03]");
	assert_json("{\"a\":[\"x\\ny\"]}", NULL, "sweep.over.a: a value is not plain text", NULL);
}

static void test_describe(void **state)
{
	AUTO_AXES struct axes *axes = axes_new();
	AUTO_FREE char *text = NULL;

	add_all(axes, AXES("lr=0.1,0.03", "seed=1..5", "wd=uniform:0..1"));
	text = axes_describe(axes);
	assert_string_equal(text, "2 lr × 5 seed × wd");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_bad_lists),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_grid),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_sample),
		cmocka_unit_test(test_sample_is_portable),
		cmocka_unit_test(test_large_sample),
		cmocka_unit_test(test_drawn),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_describe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
