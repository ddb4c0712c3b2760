/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/record/dirs.h"

static void expect_text(char *made, const char *want)
{
	assert_string_equal(made, want);
	free(made);
}

static void test_home_only(void **state)
{
	struct dirs_env env = {.home = "/home/me"};
	struct dirs dirs;

	assert_int_equal(dirs_find(&env, &dirs, NULL), 0);
	assert_string_equal(dirs.home, "/home/me");
	assert_string_equal(dirs.config, "/home/me/.config");
	assert_string_equal(dirs.state, "/home/me/.local/state/dlrun");
	assert_string_equal(dirs.cache, "/home/me/.cache/dlrun");
	assert_string_equal(dirs.data, "/home/me/.local/share/dlrun");
	assert_int_equal(strncmp(dirs.runtime, "/tmp/dlrun-", 11), 0);
	dirs_done(&dirs);
	dirs_done(&dirs);
}

static void test_xdg_wins(void **state)
{
	struct dirs_env env = {.home = "/h",
		.xdg_config_home = "/c",
		.xdg_state_home = "/s",
		.xdg_cache_home = "/k",
		.xdg_data_home = "/d",
		.xdg_runtime_dir = "/run/user/7"};
	struct dirs dirs;

	assert_int_equal(dirs_find(&env, &dirs, NULL), 0);
	assert_string_equal(dirs.config, "/c");
	assert_string_equal(dirs.state, "/s/dlrun");
	assert_string_equal(dirs.cache, "/k/dlrun");
	assert_string_equal(dirs.data, "/d/dlrun");
	assert_string_equal(dirs.runtime, "/run/user/7/dlrun");
	expect_text(dirs_run(&dirs, "a-22222"), "/s/dlrun/runs/a-22222");
	expect_text(dirs_outputs(&dirs, "a-22222"), "/s/dlrun/runs/a-22222/outputs");
	expect_text(dirs_attempt(&dirs, "a-22222", 3), "/s/dlrun/runs/a-22222/attempts/3");
	expect_text(dirs_layout(&dirs), "/d/dlrun/oci");
	expect_text(dirs_spares(&dirs), "/s/dlrun/spares");
	expect_text(dirs_plans(&dirs), "/k/dlrun/plans");
	expect_text(dirs_setups(&dirs), "/k/dlrun/setups");
	dirs_done(&dirs);
}

static void test_relative_values_are_ignored(void **state)
{
	struct dirs_env env = {.home = "/h",
		.xdg_state_home = "state",
		.xdg_cache_home = "",
		.xdg_runtime_dir = "run"};
	struct dirs dirs;

	assert_int_equal(dirs_find(&env, &dirs, NULL), 0);
	assert_string_equal(dirs.state, "/h/.local/state/dlrun");
	assert_string_equal(dirs.cache, "/h/.cache/dlrun");
	assert_int_equal(strncmp(dirs.runtime, "/tmp/dlrun-", 11), 0);
	dirs_done(&dirs);
}

static void test_without_home(void **state)
{
	struct dirs_env env = {
		.home = "", .xdg_state_home = "/s", .xdg_cache_home = "/k", .xdg_data_home = "/d"};
	AUTO_ERR struct err err = {0};
	struct dirs dirs;

	assert_int_equal(dirs_find(&env, &dirs, &err), 0);
	assert_null(dirs.home);
	assert_null(dirs.config);
	dirs_done(&dirs);
	env.xdg_data_home = NULL;
	assert_int_equal(dirs_find(&env, &dirs, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO_HOME);
	env.home = "relative";
	assert_int_equal(dirs_find(&env, &dirs, &err), -ERR_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_home_only),
		cmocka_unit_test(test_xdg_wins),
		cmocka_unit_test(test_relative_values_are_ignored),
		cmocka_unit_test(test_without_home),
	};

	return cmocka_run_group_tests_name("dirs", tests, NULL, NULL);
}
