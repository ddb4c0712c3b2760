/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>

#include "snap/git/gitdir.h"
#include "snap/tree/snapshot.h"
#include "tests/unit/gitfix.h"

static struct tree_place place;
static struct err err;

static int teardown(void **state)
{
	tree_place_done(&place);
	err_clear(&err);
	return fix_teardown(state);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fix_setup, teardown)

static int find_with(struct tree_place_options options, const char *start)
{
	AUTO_FREE char *path = fix_path(start);

	options.start = path;
	options.home = fix_home;
	options.marker = "dlrun.yaml";
	tree_place_done(&place);
	err_clear(&err);
	return tree_place_find(&options, &place, &err);
}

static int find(const char *start)
{
	return find_with((struct tree_place_options){0}, start);
}

/* git_dir NULL: none. Names are relative to the directory of the test. */
static void expect(const char *root, const char *prefix, const char *git_dir)
{
	AUTO_FREE char *root_path = fix_path(root);
	AUTO_FREE char *git_path = git_dir ? fix_path(git_dir) : NULL;

	assert_string_equal(place.root, root_path);
	assert_string_equal(place.prefix, prefix);
	if (git_path)
		assert_string_equal(place.git_dir, git_path);
	else
		assert_null(place.git_dir);
}

static void expect_error(int rc, enum err_id id, const char *words)
{
	assert_int_equal(rc, -(int)err_info(id)->code);
	assert_int_equal(err.id, id);
	if (!strstr(err.message, words))
		fail_msg("no \"%s\" in \"%s\"", words, err.message);
	assert_non_null(err.hint);
	assert_null(place.root);
}

static void test_repository(void **state)
{
	fix_sh("git init -q r; mkdir -p r/a/b");
	assert_int_equal(find("r"), 0);
	expect("r", ".", "r/.git");
	assert_int_equal(find("r/a/b"), 0);
	expect("r", "a/b", "r/.git");
}

static void test_start_through_link(void **state)
{
	fix_sh("git init -q r; mkdir r/a; ln -s r/a l; ln -s r rr");
	assert_int_equal(find("l"), 0);
	expect("r", "a", "r/.git");
	assert_int_equal(find("rr"), 0);
	expect("r", ".", "r/.git");
}

static void test_no_repository(void **state)
{
	fix_sh("mkdir -p p/a/b q; : > p/dlrun.yaml");
	assert_int_equal(find("p/a/b"), 0);
	expect("p", "a/b", NULL);
	assert_int_equal(find("q"), 0);
	expect("q", ".", NULL);
}

static void test_nearest_marker_wins(void **state)
{
	fix_sh("mkdir -p p/a/b; : > p/dlrun.yaml; : > p/a/dlrun.yaml; mkdir p/a/b/dlrun.yaml");
	assert_int_equal(find("p/a/b"), 0);
	expect("p/a", "b", NULL);
}

static void test_repository_wins_over_marker(void **state)
{
	fix_sh("git init -q r; mkdir -p r/exp; : > r/exp/dlrun.yaml");
	assert_int_equal(find("r/exp"), 0);
	expect("r", "exp", "r/.git");
}

/* git goes on upwards from a .git that is no repository, and so do we. */
static void test_stray_git_directory(void **state)
{
	fix_sh("git init -q r; mkdir -p r/a/.git/objects");
	assert_int_equal(find("r/a"), 0);
	expect("r", "a", "r/.git");
}

static void test_work_tree_and_submodule(void **state)
{
	fix_sh("git init -q r; cd r; git commit -q --allow-empty -m x; git worktree add -q ../w;"
	       "git init -q ../s; git -C ../s commit -q --allow-empty -m y;"
	       "git submodule --quiet add ../s sub; mkdir sub/d");
	assert_int_equal(find("w"), 0);
	expect("w", ".", "r/.git/worktrees/w");
	assert_int_equal(find("r/sub/d"), 0);
	expect("r/sub", "d", "r/.git/modules/sub");
	AUTO_FREE char *git_dir = fix_path("r/.git/worktrees/w");
	AUTO_FREE char *common = gitdir_common(git_dir);
	AUTO_FREE char *expected = fix_path("r/.git");
	assert_string_equal(common, expected);
}

/* A bare repository with work trees beside it: the setting speaks of the main one only. */
static void test_work_tree_of_bare_repository(void **state)
{
	fix_sh("git init -q r; git -C r commit -q --allow-empty -m x; git clone -q --bare r p/.bare;"
	       "cd p; echo 'gitdir: ./.bare' > .git; git worktree add -q w main");
	assert_int_equal(find("p/w"), 0);
	expect("p/w", ".", "p/.bare/worktrees/w");
	expect_error(find("p"), E_SNAPSHOT_BARE, "bare repository");
}

static void test_broken_git_file(void **state)
{
	fix_sh("mkdir -p b/d c; echo 'gitdir: /proc/nonexistent/.git/worktrees/b' > b/.git; : > c/.git");
	assert_int_equal(find("b/d"), 0);
	expect("b", "d", NULL);
	assert_int_equal(find("c"), 0);
	expect("c", ".", NULL);
}

static void test_bare(void **state)
{
	fix_sh("git init -q --bare b.git; git init -q r; git init -q x;"
	       "git -C x config core.bare true");
	expect_error(find("b.git"), E_SNAPSHOT_BARE, "b.git' is a bare repository");
	assert_true(strstr(err.hint, "worktree add"));
	expect_error(find("b.git/refs"), E_SNAPSHOT_BARE, "bare repository");
	expect_error(find("r/.git"), E_SNAPSHOT_BARE, "holds the data of a repository");
	assert_true(str_starts(err.hint, "cd ") && str_ends(err.hint, "/r"));
	expect_error(find("r/.git/objects"), E_SNAPSHOT_BARE, "holds the data of a repository");
	expect_error(find("x"), E_SNAPSHOT_BARE, "holds the data of a repository");
}

static void test_root_and_home_are_refused(void **state)
{
	fix_sh("ln -s home hh; ln -s / slash; mkdir home/p");
	expect_error(find("home"), E_SNAPSHOT_ROOT, "your home directory");
	expect_error(find("hh"), E_SNAPSHOT_ROOT, "your home directory");
	expect_error(find("/"), E_SNAPSHOT_ROOT, "root of the file system");
	expect_error(find("slash"), E_SNAPSHOT_ROOT, "root of the file system");
	assert_int_equal(find("home/p"), 0);
	expect("home/p", ".", NULL);
}

static void test_home_by_a_link(void **state)
{
	struct tree_place_options options = {.marker = "dlrun.yaml"};

	fix_sh("ln -s home hh");
	AUTO_FREE char *start = fix_path("home"), *home = fix_path("hh");
	options.start = start;
	options.home = home;
	int rc = tree_place_find(&options, &place, &err);
	expect_error(rc, E_SNAPSHOT_ROOT, "home directory");
}

static void test_marker_in_home_does_not_count(void **state)
{
	fix_sh("mkdir home/p; : > home/dlrun.yaml");
	assert_int_equal(find("home/p"), 0);
	expect("home/p", ".", NULL);
}

static void test_repository_of_home(void **state)
{
	fix_sh("git init -q home; mkdir -p home/p/a 'home/q q'; : > home/p/dlrun.yaml");
	expect_error(find("home"), E_SNAPSHOT_ROOT, "your home directory");
	expect_error(find("home/q q"), E_SNAPSHOT_ROOT, "lies in the repository of all of");
	assert_true(str_starts(err.hint, "touch '/"));
	assert_true(str_ends(err.hint, "/home/q q/dlrun.yaml'"));
	assert_int_equal(find("home/p/a"), 0);
	expect("home/p", "a", NULL);
}

static void test_git_dir_given(void **state)
{
	fix_sh("git init -q r; mkdir -p t/a w x; : > x/y");
	/* Without a work tree the current directory is its root. */
	assert_int_equal(find_with((struct tree_place_options){.git_dir = "../r/.git"}, "t"), 0);
	expect("t", ".", "r/.git");
	AUTO_FREE char *work = fix_path("t");
	struct tree_place_options both = {.git_dir = "../../r/.git", .work_tree = work};
	assert_int_equal(find_with(both, "t/a"), 0);
	expect("t", "a", "r/.git");
	expect_error(find_with((struct tree_place_options){.git_dir = "y"}, "x"), E_SNAPSHOT_REPO,
		"GIT_DIR names");
	both = (struct tree_place_options){.git_dir = "../r/.git", .work_tree = work};
	expect_error(find_with(both, "w"), E_SNAPSHOT_ROOT, "outside of the work tree");
	both = (struct tree_place_options){.git_dir = "../r/.git", .work_tree = "/"};
	expect_error(find_with(both, "w"), E_SNAPSHOT_ROOT, "root of the file system");
}

static void test_work_tree_given_alone(void **state)
{
	fix_sh("git init -q r; mkdir -p r/a/b");
	assert_int_equal(find_with((struct tree_place_options){.work_tree = ".."}, "r/a/b"), 0);
	expect("r/a", "b", "r/.git");
}

static void test_work_tree_configured(void **state)
{
	fix_sh("git init -q r; mkdir -p t/d; git -C r config core.worktree ../../t");
	assert_int_equal(
		find_with((struct tree_place_options){.git_dir = "../../r/.git"}, "t/d"), 0);
	expect("t", "d", "r/.git");
	fix_sh("git -C r config core.worktree /proc/nonexistent");
	assert_true(find_with((struct tree_place_options){.git_dir = "../r/.git"}, "t") < 0);
	assert_true(strstr(err.message, "the work tree of"));
}

static void test_start_missing(void **state)
{
	assert_int_equal(find("nowhere"), -ERR_IO);
	assert_true(strstr(err.message, "nowhere"));
}

static void expect_config(const char *text, bool bare, const char *work_tree)
{
	AUTO_GITDIR_CONFIG struct gitdir_config config;
	AUTO_FREE char *dir = fix_path("g");

	fix_put("g/config", text);
	gitdir_config_read(dir, &config);
	assert_int_equal(config.bare, bare);
	if (work_tree)
		assert_string_equal(config.work_tree, work_tree);
	else
		assert_null(config.work_tree);
}

static void test_configuration(void **state)
{
	expect_config("", false, NULL);
	expect_config("[core]\n\tbare = true\n", true, NULL);
	expect_config("[CORE] BARE\n", true, NULL);
	expect_config("[core]bare=yes;x", true, NULL);
	expect_config("[core]\nbare = true\nbare = false\n", false, NULL);
	expect_config("[core \"x\"]\nbare = true\n", false, NULL);
	expect_config("[core \"]\"]\nbare = true\n[other]\nbare = 1\n", false, NULL);
	expect_config("[x]\ny = a\\\n[core]\nbare = true\n", false, NULL);
	expect_config("# [core]\n; bare\n[core]\nworktree = a b  # c\n", false, "a b");
	expect_config("[core]\nworktree = \"a;#b \"  \n", false, "a;#b ");
	expect_config("[core]\nworktree = a\\\\b\\\"\\tc\\\nd\r\n", false, "a\\b\"\tcd");
	expect_config("[core]\nworktree =\n", false, NULL);
	expect_config("[core", false, NULL);
	expect_config("[core]\nworktree", false, "true");
	expect_config("[core]\nworktree = \\", false, NULL);
}

static void test_object_format(void **state)
{
	AUTO_GITDIR_CONFIG struct gitdir_config config;
	AUTO_FREE char *dir = fix_path("r/.git");

	fix_sh("git init -q --object-format=sha256 r");
	gitdir_config_read(dir, &config);
	assert_string_equal(config.object_format, "sha256");
}

static void test_configuration_per_work_tree(void **state)
{
	fix_sh("git init -q r; cd r; git config extensions.worktreeConfig true;"
	       "git config --worktree core.bare true");
	expect_error(find("r"), E_SNAPSHOT_BARE, "holds the data");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_repository),
		test(test_start_through_link),
		test(test_no_repository),
		test(test_nearest_marker_wins),
		test(test_repository_wins_over_marker),
		test(test_stray_git_directory),
		test(test_work_tree_and_submodule),
		test(test_work_tree_of_bare_repository),
		test(test_broken_git_file),
		test(test_bare),
		test(test_root_and_home_are_refused),
		test(test_home_by_a_link),
		test(test_marker_in_home_does_not_count),
		test(test_repository_of_home),
		test(test_git_dir_given),
		test(test_work_tree_given_alone),
		test(test_work_tree_configured),
		test(test_start_missing),
		test(test_configuration),
		test(test_object_format),
		test(test_configuration_per_work_tree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
