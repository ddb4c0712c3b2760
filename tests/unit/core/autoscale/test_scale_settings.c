/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/settings.h"

#define MINIMAL "cluster: lab\nproviders: [{exec: [p]}]\n"

enum { TEXT_SIZE = 1 << 20 };

static int parse(const char *text, struct scale_settings **ret, struct err *err)
{
	return settings_parse(text, strlen(text), "a.yaml", ret, err);
}

static void test_defaults(void **state)
{
	AUTO_SETTINGS struct scale_settings *settings = NULL;

	assert_int_equal(parse(MINIMAL, &settings, NULL), 0);
	const struct scale_limits *limits = settings_limits(settings);
	assert_string_equal(settings_cluster(settings), "lab");
	assert_int_equal(settings_every_ms(settings), 15000);
	assert_int_equal(settings_metrics_port(settings), 0);
	assert_null(settings_notify(settings));
	assert_int_equal(settings_providers(settings)->n, 1);
	assert_int_equal(limits->removals, 10);
	assert_int_equal(limits->idle_ms, 600 * 1000);
	assert_int_equal(limits->boot_ms, 1500 * 1000);
	assert_int_equal(limits->silent_ms, 3600 * 1000);
	assert_int_equal(limits->nodes, 0);
	assert_true(limits->price <= 0);
}

static void test_all_keys(void **state)
{
	static const char text[] =
		"cluster: lab.eu-1\n"
		"every: 1m30s\n"
		"limits: {nodes: 100, price: 500.5, step: 50, removals: 5, idle: 10m,\n"
		"  spares: 2, boot: 20m, silent: 2h}\n"
		"providers:\n"
		"  - aws: {regions: [us-east-1, us-west-2]}\n"
		"  - exec: [/etc/dlrun/clusterapi, --verbose, \"\"]\n"
		"metrics: 9090\n"
		"notify: [mail-it, me]\n";
	AUTO_SETTINGS struct scale_settings *settings = NULL;

	assert_int_equal(parse(text, &settings, NULL), 0);
	const struct scale_limits *limits = settings_limits(settings);
	const struct settings_providers *providers = settings_providers(settings);
	assert_int_equal(settings_every_ms(settings), 90 * 1000);
	assert_int_equal(limits->nodes, 100);
	assert_true(limits->price > 500.4 && limits->price < 500.6);
	assert_int_equal(limits->step, 50);
	assert_int_equal(limits->removals, 5);
	assert_int_equal(limits->spares, 2);
	assert_int_equal(limits->idle_ms, 600 * 1000);
	assert_int_equal(limits->boot_ms, 1200 * 1000);
	assert_int_equal(limits->silent_ms, 7200 * 1000);
	assert_int_equal(settings_metrics_port(settings), 9090);
	assert_int_equal(settings_notify(settings)->n, 2);
	assert_string_equal(settings_notify(settings)->v[1], "me");
	assert_int_equal(providers->n, 2);
	assert_int_equal(providers->v[0].kind, SETTINGS_AWS);
	assert_int_equal(providers->v[0].words.n, 2);
	assert_string_equal(providers->v[0].words.v[1], "us-west-2");
	assert_int_equal(providers->v[1].kind, SETTINGS_EXEC);
	assert_int_equal(providers->v[1].words.n, 3);
	assert_string_equal(providers->v[1].words.v[0], "/etc/dlrun/clusterapi");
}

/* The example of dlrun-autoscale(5). */
static void test_manual(void **state)
{
	AUTO_FREE char *path =
		mem_printf("%s/../../../man/dlrun-autoscale.5.scd", getenv("UNIT_DATA"));
	AUTO_SETTINGS struct scale_settings *settings = NULL;
	AUTO_BUF struct buf page = buf_with(TEXT_SIZE);

	assert_int_equal(fs_read(path, TEXT_SIZE, &page, NULL, NULL), 0);
	char *text = strstr(page.data, "```\ncluster: ");
	assert_non_null(text);
	text += strlen("```\n");
	char *end = strstr(text, "```");
	assert_non_null(end);
	assert_int_equal(settings_parse(text, (size_t)(end - text), path, &settings, NULL), 0);
	assert_int_equal(settings_providers(settings)->n, 2);
}

/* Whether settings_apply makes of a group with minimum 2, maximum 20, price 2 and weight 3 what is expected. */
static void expect_group(const struct scale_settings *settings, const char *id, bool is_spot,
	const char *type, const char *expected)
{
	struct scale_group group = {.id = mem_strdup(id),
		.is_spot = is_spot,
		.min = 2,
		.max = 20,
		.price = 2,
		.weight = 3};

	scale_pairs_add(&group.labels, "node.kubernetes.io/instance-type", type);
	settings_apply(settings, &group);
	AUTO_FREE char *text = mem_printf("%lld %lld %.2f %s", (long long)group.weight,
		(long long)group.max, group.price, group.refused ? group.refused : "-");
	assert_string_equal(text, expected);
	scale_group_done(&group);
}

/* The first pattern that says something of a key counts for that key; then the prices of types. */
static void test_groups(void **state)
{
	static const char text[] =
		MINIMAL "groups:\n"
			"  gpu-a: {weight: -1}\n"
			"  \"gpu-*\": {weight: 7, max: 10, refuse: kept for the exam}\n"
			"  \"gpu-[ab]\": {max: 30, price: 3.5, refuse: no}\n"
			"  few: {max: 1}\n"
			"  big: {max: 1000}\n"
			"prices: {p4d.24xlarge: 32.77}\n"
			"spot_prices: {p4d.24xlarge: 9.83}\n";
	AUTO_SETTINGS struct scale_settings *settings = NULL;

	assert_int_equal(parse(text, &settings, NULL), 0);
	expect_group(settings, "gpu-a", false, "p4d.24xlarge", "-1 10 3.50 kept for the exam");
	expect_group(settings, "gpu-c", false, "p4d.24xlarge", "7 10 32.77 kept for the exam");
	expect_group(settings, "gpu-c", true, "p4d.24xlarge", "7 10 9.83 kept for the exam");
	expect_group(settings, "cpu", false, "m5.large", "3 20 2.00 -");
	/* Never below the provider's minimum. */
	expect_group(settings, "few", true, "p4d.24xlarge", "3 2 9.83 -");
	expect_group(settings, "big", true, "p4d.24xlarge", "3 20 9.83 -");
}

/* A provider's own reason stays. */
static void test_refused_already(void **state)
{
	AUTO_SETTINGS struct scale_settings *settings = NULL;
	struct scale_group group = {.id = mem_strdup("a"), .refused = mem_strdup("others have it")};

	assert_int_equal(parse(MINIMAL "groups: {a: {refuse: mine}}\n", &settings, NULL), 0);
	settings_apply(settings, &group);
	assert_string_equal(group.refused, "others have it");
	scale_group_done(&group);
}

static const struct bad {
	const char *text, *message, *hint;
} bads[] = {
	{"", "a.yaml:1:1: the text is empty", NULL},
	{"- a\n", "a.yaml:1:1: the text must be a map, not a list", NULL},
	{"providers: [{exec: [p]}]\n", "a.yaml:1:1: cluster is missing", NULL},
	{"cluster: lab\n", "a.yaml:1:1: providers is missing", NULL},
	{"cluster: lab\ncluster: eu\n",
		"a.yaml:2:1: the key 'cluster' is set twice, first on line 1", NULL},
	{"cluster:\n", "a.yaml:1:9: cluster has no value", NULL},
	{"cluster: \"\"\n", "a.yaml:1:10: cluster is empty", NULL},
	{"cluster: [a]\n", "a.yaml:1:10: cluster must be a single value, not a list", NULL},
	{"cluster: a b\n",
		"a.yaml:1:10: cluster must be letters, digits, \"-\", \"_\" and \".\", the first a "
		"letter or a digit, 100 at most",
		NULL},
	{"cluster: -x\n",
		"a.yaml:1:10: cluster must be letters, digits, \"-\", \"_\" and \".\", the first a "
		"letter or a digit, 100 at most",
		NULL},
	{MINIMAL "evry: 15s\n", "a.yaml:3:1: unknown key 'evry'", "did you mean 'every'?"},
	{MINIMAL "wholly: 15s\n", "a.yaml:3:1: unknown key 'wholly'",
		"dlrun help dlrun-autoscale.5"},
	{MINIMAL "every: 15\n",
		"a.yaml:3:8: every is not valid: \"15\" needs a unit: 15s (seconds), 15m (minutes), "
		"15h or 15d",
		NULL},
	{MINIMAL "every: soon\n",
		"a.yaml:3:8: every is not valid: \"soon\" is not a duration like 90s, 15m, 1h30m "
		"or 7d",
		NULL},
	{MINIMAL "every: 500ms\n",
		"a.yaml:3:8: every must be a duration from 1 s to 1 h, not \"500ms\"", NULL},
	{MINIMAL "every: 2h\n", "a.yaml:3:8: every must be a duration from 1 s to 1 h, not \"2h\"",
		NULL},
	{MINIMAL "limits:\n", "a.yaml:3:8: limits has no value", NULL},
	{MINIMAL "limits: {}\n", "a.yaml:3:9: limits is empty", NULL},
	{MINIMAL "limits:\n  node: 5\n", "a.yaml:4:3: unknown key 'node' in limits",
		"did you mean 'nodes'?"},
	{MINIMAL "limits:\n  idle_s: 600\n", "a.yaml:4:3: unknown key 'idle_s' in limits",
		"did you mean 'idle'?"},
	{MINIMAL "limits:\n  nodes: -1\n",
		"a.yaml:4:10: limits.nodes must be a whole number from 1 to 2147483647, not \"-1\"",
		NULL},
	{MINIMAL "limits:\n  nodes: 1e3\n",
		"a.yaml:4:10: limits.nodes must be a whole number from 1 to 2147483647, not "
		"\"1e3\"",
		NULL},
	{MINIMAL "limits:\n  removals: 0\n",
		"a.yaml:4:13: limits.removals must be a whole number from 1 to 2147483647, not "
		"\"0\"",
		NULL},
	{MINIMAL "limits:\n  price: 0\n",
		"a.yaml:4:10: limits.price must be above 0: nothing could be bought", NULL},
	{MINIMAL "limits:\n  price: nan\n",
		"a.yaml:4:10: limits.price must be a price like 3.2, from 0 to 1000000000, not "
		"\"nan\"",
		NULL},
	{MINIMAL "limits:\n  price: 1e400\n",
		"a.yaml:4:10: limits.price must be a price like 3.2, from 0 to 1000000000, not "
		"\"1e400\"",
		NULL},
	{MINIMAL "limits:\n  price: $5\n",
		"a.yaml:4:10: limits.price must be a price like 3.2, from 0 to 1000000000, not "
		"\"$5\"",
		NULL},
	{MINIMAL "limits:\n  idle: 36500d\n",
		"a.yaml:4:9: limits.idle must be a duration from 0 s to 24855 d 3 h, not "
		"\"36500d\"",
		NULL},
	{"cluster: lab\nproviders: []\n", "a.yaml:2:12: providers is empty", NULL},
	{"cluster: lab\nproviders: {aws: {}}\n", "a.yaml:2:12: providers must be a list, not a map",
		NULL},
	{"cluster: lab\nproviders: [aws]\n",
		"a.yaml:2:13: providers[0] must be a map, not a single value", NULL},
	{"cluster: lab\nproviders:\n  - gcp: {regions: [a]}\n",
		"a.yaml:3:5: unknown key 'gcp' in providers[0]", "dlrun help dlrun-autoscale.5"},
	{"cluster: lab\nproviders:\n  - exec: [p]\n    aws: {regions: [a]}\n",
		"a.yaml:3:5: providers[0] must have one key, aws or exec", NULL},
	{"cluster: lab\nproviders:\n  - aws: {regions: [a]}\n  - aws: {regions: [b]}\n",
		"a.yaml:4:10: providers[1].aws is there twice: one provider has all regions", NULL},
	{"cluster: lab\nproviders:\n  - aws: {}\n", "a.yaml:3:10: providers[0].aws is empty", NULL},
	{"cluster: lab\nproviders:\n  - aws: {regions: []}\n",
		"a.yaml:3:20: providers[0].aws.regions is empty", NULL},
	{"cluster: lab\nproviders:\n  - aws: {regions: [a.b]}\n",
		"a.yaml:3:21: providers[0].aws.regions[0] is not a region like us-east-1", NULL},
	{"cluster: lab\nproviders:\n  - aws: {regions: [a, a]}\n",
		"a.yaml:3:24: providers[0].aws.regions[1] names a region that is there already",
		NULL},
	{"cluster: lab\nproviders:\n  - exec: p\n",
		"a.yaml:3:11: providers[0].exec must be a list, not a single value", NULL},
	{"cluster: lab\nproviders:\n  - exec: [\"\", a]\n",
		"a.yaml:3:12: providers[0].exec[0] is empty", NULL},
	{"cluster: lab\nproviders:\n  - exec: [p, [a]]\n",
		"a.yaml:3:15: providers[0].exec[1] must be a single value, not a list", NULL},
	{MINIMAL "groups: [a]\n", "a.yaml:3:9: groups must be a map, not a list", NULL},
	{MINIMAL "groups:\n  a: {max: 1}\n  a: {max: 2}\n",
		"a.yaml:5:3: the key 'a' is set twice, first on line 4", NULL},
	{MINIMAL "groups:\n  \"\": {max: 1}\n",
		"a.yaml:4:7: groups.\"\" is not a pattern of 1 to 256 bytes", NULL},
	{MINIMAL "groups:\n  \"gpu-*\": {maximum: 1}\n",
		"a.yaml:4:13: unknown key 'maximum' in groups.gpu-*",
		"dlrun help dlrun-autoscale.5"},
	{MINIMAL "groups:\n  \"gpu-*\": {max: 1000001}\n",
		"a.yaml:4:18: groups.gpu-*.max must be a whole number from 0 to 1000000, not "
		"\"1000001\"",
		NULL},
	{MINIMAL "groups:\n  a: {weight: 1.5}\n",
		"a.yaml:4:15: groups.a.weight must be a whole number from -10000000 to 10000000, "
		"not \"1.5\"",
		NULL},
	{MINIMAL "groups:\n  a: {refuse: \"a\\nb\"}\n",
		"a.yaml:4:15: groups.a.refuse is not one line of printable text, of 256 bytes at "
		"most",
		NULL},
	{MINIMAL "prices: {m5.large: -1}\n",
		"a.yaml:3:20: prices.m5.large must be a price like 3.2, from 0 to 1000000000, not "
		"\"-1\"",
		NULL},
	{MINIMAL "spot_prices: {}\n", "a.yaml:3:14: spot_prices is empty", NULL},
	{MINIMAL "metrics: 0\n",
		"a.yaml:3:10: metrics must be a whole number from 1 to 65535, not \"0\"", NULL},
	{MINIMAL "metrics: 65536\n",
		"a.yaml:3:10: metrics must be a whole number from 1 to 65535, not \"65536\"", NULL},
	{MINIMAL "notify: mail\n", "a.yaml:3:9: notify must be a list, not a single value", NULL},
};

static void expect_bad(const char *text, const char *message, const char *hint)
{
	AUTO_SETTINGS struct scale_settings *settings = NULL;
	AUTO_ERR struct err err = {0};

	assert_int_equal(parse(text, &settings, &err), -ERR_CONFIG);
	assert_null(settings);
	assert_string_equal(err.message, message);
	assert_true(str_eq(err.hint, hint));
}

static void test_bad(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(bads); i++)
		expect_bad(bads[i].text, bads[i].message, bads[i].hint);
}

/* Lists of one member more than they may have. */
static void test_too_long(void **state)
{
	static const struct {
		const char *head, *item;
		int n;
		const char *tail, *message;
	} cases[] = {
		{"cluster: lab\nproviders: [", "{exec: [p]}", 17, "]\n",
			"a.yaml:2:12: providers has 17 members: at most 16 are allowed"},
		{"cluster: lab\nproviders: [{exec: [", "p", 65, "]}]\n",
			"a.yaml:2:20: providers[0].exec has 65 members: at most 64 are allowed"},
		{"cluster: lab\nproviders: [{aws: {regions: [", "p", 33, "]}}]\n",
			"a.yaml:2:29: providers[0].aws.regions has 33 members: at most 32 are allowed"},
		{MINIMAL "groups: {", "g%d: {max: 1}", 1001, "}\n",
			"a.yaml:3:9: groups has 1001 members: at most 1000 are allowed"},
		{MINIMAL "prices: {", "t%d: 1", 2001, "}\n",
			"a.yaml:3:9: prices has 2001 members: at most 2000 are allowed"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_BUF struct buf text = buf_with(TEXT_SIZE);
		size_t before = strcspn(cases[i].item, "%");
		bool counts = cases[i].item[before] != '\0';

		buf_adds(&text, cases[i].head);
		for (int k = 0; k < cases[i].n; k++) {
			buf_adds(&text, k ? ", " : "");
			buf_add(&text, cases[i].item, before);
			if (counts)
				buf_addf(&text, "%d%s", k, cases[i].item + before + 2);
		}
		buf_adds(&text, cases[i].tail);
		expect_bad(text.data, cases[i].message, NULL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_all_keys),
		cmocka_unit_test(test_manual),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_refused_already),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
