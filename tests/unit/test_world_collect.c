#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <unistd.h>

#include "base/buf.h"
#include "base/str.h"
#include "run/world_collect.h"
#include "worldfix.h"

/* An output as it is when the program begins. */
static void add_output(struct place *place, const char *path)
{
	AUTO_FREE char *output = fs_join("results", path), *link = fs_join("run", path);
	AUTO_FREE char *target = fs_join(place->tree.root, output);

	strv_add(&place->job.world.outputs, path);
	tree_dir(&place->tree, output);
	assert_int_equal(symlinkat(target, place->tree.fd, link), 0);
}

/* rm -r PATH; mkdir PATH */
static void make_anew(struct place *place, const char *path)
{
	AUTO_FREE char *link = fs_join("run", path);

	assert_int_equal(unlinkat(place->tree.fd, link, 0), 0);
	tree_dir(&place->tree, link);
}

static void expect_moved(struct place *place, int expected)
{
	int n = -1;

	if (world_collect(place->run, &place->job, &n, &place->err) < 0)
		fail_msg("%s", place->err.message);
	assert_int_equal(n, expected);
}

static void expect_text(struct place *place, const char *path, const char *text)
{
	AUTO_FREE char *full = fs_join(place->tree.root, path);
	AUTO_BUF struct buf content = {0};
	AUTO_ERR struct err err = {0};

	if (fs_read(full, 4096, &content, NULL, &err) < 0)
		fail_msg("%s", err.message);
	assert_string_equal(content.data, text);
}

static bool exists(struct place *place, const char *path)
{
	return faccessat(place->tree.fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void test_links_stay(void **state)
{
	struct place *place = *state;

	expect_moved(place, 0);
	add_output(place, "out");
	tree_write(&place->tree, "results/out/x", "1");
	expect_moved(place, 0);
	expect_text(place, "results/out/x", "1");
	assert_true(exists(place, "run/out"));
	assert_int_equal(unlinkat(place->tree.fd, "run/out", 0), 0);
	expect_moved(place, 0);
	tree_write(&place->tree, "run/out", "a file");
	expect_moved(place, 0);
	expect_text(place, "run/out", "a file");
}

static void test_directory_in_place_of_the_link(void **state)
{
	struct place *place = *state;

	tree_dir(&place->tree, "run/a");
	tree_dir(&place->tree, "results/a");
	add_output(place, "a/out");
	add_output(place, "other");
	make_anew(place, "a/out");
	tree_write(&place->tree, "run/a/out/x", "1");
	tree_dir(&place->tree, "run/a/out/deep");
	tree_write(&place->tree, "run/a/out/deep/y", "2");
	expect_moved(place, 1);
	expect_text(place, "results/a/out/x", "1");
	expect_text(place, "results/a/out/deep/y", "2");
	assert_false(exists(place, "run/a/out"));
	expect_moved(place, 0);
}

static void test_merged_with_earlier_results(void **state)
{
	struct place *place = *state;

	add_output(place, "out");
	tree_write(&place->tree, "results/out/old", "old");
	tree_write(&place->tree, "results/out/both", "old");
	tree_dir(&place->tree, "results/out/deep");
	tree_write(&place->tree, "results/out/deep/old", "old");
	make_anew(place, "out");
	tree_write(&place->tree, "run/out/both", "new");
	tree_write(&place->tree, "run/out/new", "new");
	tree_dir(&place->tree, "run/out/deep");
	tree_write(&place->tree, "run/out/deep/new", "new");
	expect_moved(place, 1);
	expect_text(place, "results/out/old", "old");
	expect_text(place, "results/out/both", "new");
	expect_text(place, "results/out/new", "new");
	expect_text(place, "results/out/deep/old", "old");
	expect_text(place, "results/out/deep/new", "new");
	assert_false(exists(place, "run/out"));
}

static void test_two_kinds_stay(void **state)
{
	struct place *place = *state;
	int n = 0;

	add_output(place, "out");
	tree_write(&place->tree, "results/out/x", "file");
	make_anew(place, "out");
	tree_dir(&place->tree, "run/out/x");
	tree_write(&place->tree, "run/out/x/y", "below");
	tree_write(&place->tree, "run/out/z", "moved");
	assert_true(world_collect(place->run, &place->job, &n, &place->err) < 0);
	assert_int_equal(n, 1);
	assert_non_null(strstr(place->err.message, "'out'"));
	expect_text(place, "results/out/x", "file");
	expect_text(place, "run/out/x/y", "below");
	expect_text(place, "results/out/z", "moved");
}

/* Nothing outside of the two directories is touched, whatever links the program has made. */
static void test_links_of_the_program(void **state)
{
	struct place *place = *state;

	tree_dir(&place->tree, "elsewhere");
	tree_dir(&place->tree, "elsewhere/out");
	tree_write(&place->tree, "elsewhere/out/x", "mine");
	tree_dir(&place->tree, "run/a");
	tree_dir(&place->tree, "results/a");
	add_output(place, "a/out");
	assert_int_equal(unlinkat(place->tree.fd, "run/a/out", 0), 0);
	assert_int_equal(unlinkat(place->tree.fd, "run/a", AT_REMOVEDIR), 0);
	assert_int_equal(symlinkat("../elsewhere", place->tree.fd, "run/a"), 0);
	expect_moved(place, 0);
	expect_text(place, "elsewhere/out/x", "mine");
}

static void test_nothing_there(void **state)
{
	struct place *place = *state;

	add_output(place, "out");
	assert_int_equal(unlinkat(place->tree.fd, "run/out", 0), 0);
	assert_int_equal(unlinkat(place->tree.fd, "run", AT_REMOVEDIR), 0);
	expect_moved(place, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_links_stay, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_directory_in_place_of_the_link, setup, teardown),
		cmocka_unit_test_setup_teardown(test_merged_with_earlier_results, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_kinds_stay, setup, teardown),
		cmocka_unit_test_setup_teardown(test_links_of_the_program, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nothing_there, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
