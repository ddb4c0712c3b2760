/* SPDX-License-Identifier: Apache-2.0 */
/* Several providers that are the same program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>

#include "app/autoscale/supply.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/settings.h"

enum { LONG_MS = 60 * 1000 };

#define GROUPS "echo '{\\\"groups\\\": [{\\\"id\\\": \\\"'$0'\\\"}]}'"

static struct scale_settings *settings_of(const char *providers)
{
	AUTO_FREE char *text = mem_printf("cluster: lab\nproviders:\n%s", providers);
	struct scale_settings *settings = NULL;
	AUTO_ERR struct err err = {0};

	if (settings_parse(text, strlen(text), "a.yaml", &settings, &err) < 0)
		fail_msg("%s", err.message);
	return settings;
}

static void test_one_program_with_other_arguments(void **state)
{
	static const struct {
		const char *group, *provider;
	} wanted[] = {{"a", "sh"}, {"b", "sh#2"}, {"c", "sh#3"}};
	AUTO_SETTINGS struct scale_settings *settings =
		settings_of("  - exec: [sh, -c, \"" GROUPS "\", a]\n"
			    "  - exec: [sh, -c, \"" GROUPS "\", b]\n"
			    "  - exec: [sh, -c, \"" GROUPS "\", c, more]\n");
	struct loop *loop = loop_new();
	struct loop_wait wait = {.loop = loop, .deadline_ms = clock_deadline(LONG_MS)};
	struct scale_model model = {0};
	AUTO_SUPPLY struct supply *supply = NULL;

	assert_int_equal(supply_open(loop, NULL, settings, &supply, NULL), 0);
	supply_ask(supply, &wait);
	assert_int_equal(loop_wait_run(&wait, NULL), 0);
	supply_take(supply, &model);
	assert_int_equal(model.remarks.n, 0);
	assert_int_equal(model.groups.n, ARRAY_LEN(wanted));
	for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
		assert_string_equal(model.groups.v[i].id, wanted[i].group);
		assert_string_equal(model.groups.v[i].provider, wanted[i].provider);
		assert_string_equal(provider_name(supply_provider(supply, &model.groups.v[i])),
			wanted[i].provider);
	}
	scale_model_done(&model);
	supply_free(TAKE(supply));
	loop_free(loop);
}

/* A group of both is the first one's. */
static void test_one_group_of_two(void **state)
{
	AUTO_SETTINGS struct scale_settings *settings =
		settings_of("  - exec: [sh, -c, \"" GROUPS "\", a]\n"
			    "  - exec: [sh, -c, \"" GROUPS "\", a, more]\n"
			    "groups: {\"a*\": {weight: 1}, \"ab*\": {weight: 1}}\n");
	struct loop *loop = loop_new();
	struct loop_wait wait = {.loop = loop, .deadline_ms = clock_deadline(LONG_MS)};
	struct scale_model model = {0};
	AUTO_SUPPLY struct supply *supply = NULL;

	assert_int_equal(supply_open(loop, NULL, settings, &supply, NULL), 0);
	supply_ask(supply, &wait);
	assert_int_equal(loop_wait_run(&wait, NULL), 0);
	supply_take(supply, &model);
	assert_int_equal(model.groups.n, 1);
	assert_string_equal(model.groups.v[0].provider, "sh");
	assert_int_equal(model.remarks.n, 2);
	assert_string_equal(
		model.remarks.v[1], "settings: groups has ab*, and no group is called that");
	assert_string_equal(model.remarks.v[0], "provider sh#2: group a: id is there twice");
	scale_model_done(&model);
	supply_free(TAKE(supply));
	loop_free(loop);
}

static void test_one_program_twice(void **state)
{
	AUTO_SETTINGS struct scale_settings *settings =
		settings_of("  - exec: [sh, a]\n  - exec: [sh, a, b]\n  - exec: [sh, a]\n");
	struct loop *loop = loop_new();
	struct supply *supply = NULL;
	AUTO_ERR struct err err = {0};

	assert_true(supply_open(loop, NULL, settings, &supply, &err) < 0);
	assert_int_equal(err.id, E_SCALE_SETTINGS);
	assert_string_equal(err.message, "provider sh is there twice");
	assert_null(supply);
	loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_program_with_other_arguments),
		cmocka_unit_test(test_one_group_of_two),
		cmocka_unit_test(test_one_program_twice),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests_name("supply", tests, NULL, NULL);
}
