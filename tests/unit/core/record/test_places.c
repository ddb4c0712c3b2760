/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/target_names.h"
#include "core/record/places.h"
#include "tests/unit/tmpfix.h"

static struct config *make_config(const char *text)
{
	AUTO_FREE char *path = fs_join(tmp, CONFIG_FILE);
	const char *const env[] = {NULL};
	struct config *config;

	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
	const struct config_files files = {.project = path, .env = env};
	assert_int_equal(config_load(&files, &config, NULL), 0);
	return config;
}

static void test_lists(void **state)
{
	static const struct {
		const char *text;
		const char *items[TARGET_NAMES_MAX];
	} cases[] = {
		{"lab", {"lab"}},
		{"lab,eu", {"lab", "eu"}},
		{" lab , eu,us ", {"lab", "eu", "us"}},
		{"local,kube:gke/team,kube", {"local", "kube:gke/team", "kube"}},
		{"ssh:gpu1,gpu2", {"ssh:gpu1,gpu2"}},
		{"lab,ssh:gpu[1,4],gpu7", {"lab", "ssh:gpu[1,4],gpu7"}},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_STRV struct strv items = {0};
		assert_int_equal(target_names_split(NULL, cases[i].text, &items, NULL), 0);
		for (size_t k = 0; k < items.n; k++)
			assert_string_equal(items.v[k], cases[i].items[k]);
		assert_null(cases[i].items[items.n]);
	}
}

static void test_bad_lists(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
		{"lab,", "'lab,' names no target before or after a comma"},
		{",lab", "',lab' names no target before or after a comma"},
		{"a,,b", "'a,,b' names no target before or after a comma"},
		{",", "',' names no target before or after a comma"},
		{"lab,eu,lab", "'lab,eu,lab' names target lab twice"},
		{"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q",
			"'a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q' names more than 16 targets"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_STRV struct strv items = {0};
		AUTO_ERR struct err err = {0};
		assert_int_equal(target_names_split(NULL, cases[i].text, &items, &err), -ERR_USAGE);
		assert_string_equal(err.message, cases[i].message);
	}
}

/* A target may be called so, and a list in the file is the same as one of an option. */
static void test_configuration(void **state)
{
	AUTO_CONFIG struct config *config = NULL;
	AUTO_STRV struct strv none = {0};

	config = make_config("target: [lab, \"eu,us\"]\nspill_after: 10m\n"
			     "targets: {\"a,b\": {kind: local}}\n");
	AUTO_RUN_PLACES struct run_places places = {0};
	assert_int_equal(run_places_from_config(config, &none, &places, NULL), 0);
	assert_int_equal(places.n, 3);
	assert_string_equal(places.v[2].target, "us");
	assert_int_equal(places.v[0].wait_ms, 600000);
	assert_false(places.v[0].waits_first);
	AUTO_STRV struct strv items = {0};
	assert_int_equal(target_names_split(config, "a,b", &items, NULL), 0);
	assert_int_equal(items.n, 1);
	AUTO_FREE char *first = target_names_first(config, "lab,eu");
	assert_string_equal(first, "lab");
}

static void test_waits(void **state)
{
	static const struct {
		const char *wait, *message;
	} cases[] = {
		{"eu=30",
			"--wait-for eu=30: \"30\" needs a unit: 30s (seconds), 30m (minutes), 30h or 30d"},
		{"eu=soon",
			"--wait-for eu=soon: \"soon\" is not a duration like 90s, 15m, 1h30m or 7d"},
		{"eu=", "--wait-for eu=: \"\" is not a duration like 90s, 15m, 1h30m or 7d"},
		{"eu", "--wait-for eu: how long is missing"},
		{"=5m", "--wait-for =5m: which target is missing"},
		{"en=5m", "--wait-for en: it is not one of the targets of this run"},
	};
	AUTO_CONFIG struct config *config = NULL;
	AUTO_STRV struct strv good = {0};
	AUTO_RUN_PLACES struct run_places places = {0};

	config = make_config("target: lab,eu\n");
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_STRV struct strv waits = {0};
		AUTO_ERR struct err err = {0};
		strv_add(&waits, cases[i].wait);
		assert_int_equal(run_places_from_config(config, &waits, &places, &err), -ERR_USAGE);
		assert_string_equal(err.message, cases[i].message);
	}
	strv_add(&good, "eu=1h30m");
	assert_int_equal(run_places_from_config(config, &good, &places, NULL), 0);
	assert_int_equal(places.v[0].wait_ms, -1);
	assert_int_equal(places.v[1].wait_ms, 5400000);
	assert_true(places.v[1].waits_first);
	AUTO_ERR struct err err = {0};
	AUTO_RUN_PLACES struct run_places single = {0};
	assert_int_equal(config_override(config, "target", "eu", NULL), 0);
	assert_int_equal(run_places_from_config(config, &good, &single, &err), -ERR_USAGE);
	assert_string_equal(err.message, "--wait-for requires several targets: there is only eu");
}

static void test_record(void **state)
{
	AUTO_RUN_PLACES struct run_places places = {0}, read = {0};
	static const char *const names[] = {"lab", "eu", "us", "far"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		*vec_push(&places) = (struct run_place){
			.target = mem_strdup(names[i]), .wait_ms = i == 1 ? 60000 : -1};
	places.v[1].waits_first = true;
	run_place_decide(&places.v[0], RUN_PLACE_NEVER, "8 hosts, none has 16 GPUs", 1000);
	run_place_decide(&places.v[1], RUN_PLACE_SILENT, "no answer", 2000);
	run_place_decide(&places.v[2], RUN_PLACE_CHOSEN, "3 × a100 free", 3000);
	AUTO_FREE char *text = run_places_text(&places);
	assert_string_equal(
		text, "lab: 8 hosts, none has 16 GPUs · eu: no answer · us: 3 × a100 free → us");
	AUTO_JSON struct json *json = run_places_to_json(&places);
	run_places_from_json(json, &read);
	assert_int_equal(read.n, 4);
	for (size_t i = 0; i < read.n; i++) {
		assert_string_equal(read.v[i].target, places.v[i].target);
		assert_int_equal(read.v[i].wait_ms, places.v[i].wait_ms);
		assert_int_equal(read.v[i].waits_first, places.v[i].waits_first);
		assert_int_equal(read.v[i].state, places.v[i].state);
		assert_int_equal(read.v[i].at_ms, places.v[i].at_ms);
		assert_true(str_eq(read.v[i].text, places.v[i].text));
	}
	assert_ptr_equal(run_places_find(&read, "us"), &read.v[2]);
	assert_null(run_places_find(&read, "u"));
}

/* Records of other versions and damaged ones. */
static void test_strange_records(void **state)
{
	static const char text[] =
		"[{\"target\":\"a\",\"state\":\"moved\",\"wait_ms\":\"x\",\"at\":7},{},3,"
		"{\"target\":\"\"},{\"target\":\"a\"},{\"target\":\"b\",\"at\":\"noon\"}]";
	AUTO_RUN_PLACES struct run_places read = {0}, none = {0};
	AUTO_JSON struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), sizeof(text), "x", &json, NULL), 0);
	run_places_from_json(json, &read);
	assert_int_equal(read.n, 2);
	assert_int_equal(read.v[0].state, RUN_PLACE_UNTRIED);
	assert_int_equal(read.v[0].wait_ms, -1);
	assert_int_equal(read.v[1].at_ms, 0);
	run_places_from_json(NULL, &none);
	assert_int_equal(none.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_bad_lists),
		cmocka_unit_test_setup_teardown(test_configuration, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_waits, make_tmp, remove_tmp),
		cmocka_unit_test(test_record),
		cmocka_unit_test(test_strange_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
