/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/push.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect.h"
#include "core/context/session.h"
#include "targets/local/tree.h"

struct place {
	char base[64];
	char tree[80], attempt[80], spares[80];
	struct session session;
	struct attempt_job job;
};

static const char *const shell_env[] = {"PATH=/usr/bin:/bin", NULL};

static void write_file(const char *dir, const char *name, const char *text, mode_t mode)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_FREE char *parent = mem_strndup(path, (size_t)(strrchr(path, '/') - path));

	assert_int_equal(fs_mkdirs(parent, 0755, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), mode, FS_SYNC_NONE, NULL), 0);
}

static int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));
	struct session_env env = {
		.user = "me", .env = shell_env, .self = "none", .site_config = "/proc/nonexistent"};

	snprintf(place->base, sizeof(place->base), "/tmp/dlrun-test-tree-XXXXXX");
	if (!mkdtemp(place->base))
		return -1;
	snprintf(place->tree, sizeof(place->tree), "%s/tree", place->base);
	snprintf(place->attempt, sizeof(place->attempt), "%s/attempt", place->base);
	snprintf(place->spares, sizeof(place->spares), "%s/spares", place->base);
	env.dirs.xdg_state_home = env.dirs.xdg_cache_home = env.dirs.xdg_data_home = place->base;
	env.cwd = place->tree;
	write_file(place->tree, "a.py", "a\n", 0644);
	write_file(place->tree, "d/b.sh", "b\n", 0755);
	place->job = (struct attempt_job){
		.spares = mem_strdup(place->spares), .spec.cwd = mem_strdup(".")};
	*state = place;
	return session_init(&place->session, &env, NULL);
}

static int teardown(void **state)
{
	struct place *place = *state;
	int r;

	session_done(&place->session);
	attempt_job_done(&place->job);
	r = fs_remove_tree(AT_FDCWD, place->base, NULL);
	free(place);
	return r;
}

/* An image of the tree as it is now. */
static void pack(struct place *place)
{
	AUTO(push_result_done) struct push_result result = {0};
	const struct submit_options tree = {0};
	const struct push_options options = {.tree = &tree};
	AUTO_ERR struct err err = {0};

	if (push_image(&place->session, &options, NULL, &result, &err) < 0)
		fail_msg("%s", err.message);
	free(place->job.image);
	free(place->job.layout);
	place->job.image = mem_strdup(result.image.manifest.digest);
	place->job.layout = dirs_layout(&place->session.dirs);
}

/* A new attempt's tree; whether a spare was taken. */
static bool make_tree(struct place *place)
{
	AUTO_ERR struct err err = {0};
	bool spare;

	assert_int_equal(fs_remove_tree(AT_FDCWD, place->attempt, NULL), 0);
	assert_int_equal(mkdir(place->attempt, 0700), 0);
	if (tree_make(place->attempt, &place->job, &spare, &err) < 0)
		fail_msg("%s", err.message);
	return spare;
}

static void make_spare(struct place *place)
{
	AUTO_ERR struct err err = {0};

	if (spare_make(&place->job, &err) < 0)
		fail_msg("%s", err.message);
}

static void expect_same(const struct place *place)
{
	AUTO_FREE char *line = mem_printf("diff -r %s %s/tree", place->tree, place->attempt);

	assert_int_equal(system(line), 0);
}

static size_t count_spares(const struct place *place)
{
	AUTO_DIR DIR *dir = opendir(place->spares);
	struct dirent *entry;
	size_t n = 0;

	while (dir && (entry = readdir(dir)))
		n += strlen(entry->d_name) == 64;
	return n;
}

static void test_from_the_layers(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *script = fs_join(place->attempt, "tree/d/b.sh");
	struct stat st;

	pack(place);
	assert_false(make_tree(place));
	expect_same(place);
	assert_int_equal(stat(script, &st), 0);
	assert_true(st.st_mode & S_IXUSR);
	/* It stays as it is when it is asked for again. */
	AUTO_FREE char *tree = fs_join(place->attempt, "tree");
	write_file(tree, "a.py", "changed by the program\n", 0644);
	bool spare;
	assert_int_equal(tree_make(place->attempt, &place->job, &spare, NULL), 0);
	AUTO_FREE char *line = mem_printf("grep -q program %s/a.py", tree);
	assert_int_equal(system(line), 0);
}

static void test_the_place_in_the_tree(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *cwd = fs_join(place->attempt, "tree/only/ignored");

	free(place->job.spec.cwd);
	place->job.spec.cwd = mem_strdup("only/ignored");
	pack(place);
	make_tree(place);
	assert_int_equal(access(cwd, F_OK), 0);
}

static void test_half_a_tree_is_made_anew(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *half = fs_join(place->attempt, ATTEMPT_TEMP);
	bool spare;

	pack(place);
	write_file(half, "left", "over", 0644);
	assert_int_equal(tree_make(place->attempt, &place->job, &spare, NULL), 0);
	expect_same(place);
}

static void test_nothing_to_make_it_from(void **state)
{
	struct place *place = *state;
	AUTO_ERR struct err err = {0};
	bool spare;

	assert_int_equal(mkdir(place->attempt, 0700), 0);
	assert_int_equal(tree_make(place->attempt, &place->job, &spare, &err), -ERR_IO);
	assert_int_equal(err.id, E_RUN_START);
	pack(place);
	memset(place->job.image + 10, '0', 20);
	assert_true(tree_make(place->attempt, &place->job, &spare, &err) < 0);
	assert_int_equal(err.id, E_IMAGE_BASE);
	assert_int_equal(spare_make(&place->job, &err), -ERR_NOTFOUND);
}

static void test_a_spare_is_taken_once(void **state)
{
	struct place *place = *state;

	pack(place);
	make_spare(place);
	make_spare(place);
	assert_int_equal(count_spares(place), 1);
	assert_true(make_tree(place));
	expect_same(place);
	AUTO_FREE char *list = fs_join(place->attempt, COLLECT_DIRS);
	AUTO_FREE char *temp = fs_join(place->attempt, ATTEMPT_TEMP);
	assert_int_equal(access(list, F_OK), 0);
	assert_int_equal(access(temp, F_OK), -1);
	assert_int_equal(count_spares(place), 0);
	assert_false(make_tree(place));
	expect_same(place);
}

static void test_a_spare_and_a_delta(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *gone = fs_join(place->tree, "d/b.sh");

	pack(place);
	make_spare(place);
	write_file(place->tree, "a.py", "edited\n", 0644);
	write_file(place->tree, "new/c", "new\n", 0644);
	assert_int_equal(unlink(gone), 0);
	AUTO_FREE char *dir = fs_join(place->tree, "d");
	assert_int_equal(rmdir(dir), 0);
	pack(place);
	assert_true(make_tree(place));
	expect_same(place);
	/* The spare of an image with a delta is that of the layers below it. */
	make_spare(place);
	assert_true(make_tree(place));
	expect_same(place);
}

/* A spare that the delta cannot be put on is no loss. */
static void test_a_damaged_spare(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *line = mem_printf("for s in %s/*; do test -d $s && rm -r $s &&"
					  " echo > $s; done; true",
		place->spares);

	pack(place);
	make_spare(place);
	assert_int_equal(system(line), 0);
	write_file(place->tree, "a.py", "edited\n", 0644);
	pack(place);
	assert_false(make_tree(place));
	expect_same(place);
}

static void test_no_space_for_spares(void **state)
{
	struct place *place = *state;

	pack(place);
	place->job.tree_bytes = UINT64_C(1) << 60;
	make_spare(place);
	assert_int_equal(count_spares(place), 0);
	free(TAKE(place->job.spares));
	make_spare(place);
	assert_false(make_tree(place));
}

static void test_few_spares_are_kept(void **state)
{
	struct place *place = *state;

	for (int i = 0; i < SPARES_MAX + 2; i++) {
		AUTO_FREE char *plans = dirs_plans(&place->session.dirs);
		AUTO_FREE char *text = mem_printf("%d\n", i);
		write_file(place->tree, "a.py", text, 0644);
		/* A full layer of its own each time. */
		assert_int_equal(fs_remove_tree(AT_FDCWD, plans, NULL), 0);
		pack(place);
		make_spare(place);
	}
	assert_int_equal(count_spares(place), SPARES_MAX);
	assert_true(make_tree(place));
}

static void test_drop(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *half = fs_join(place->spares, "half-x");
	uint64_t bytes = 1;
	size_t n = 1;

	assert_int_equal(spares_drop(place->spares, false, &bytes, &n, NULL), 0);
	assert_true(bytes == 0 && n == 0);
	pack(place);
	make_spare(place);
	write_file(half, "f", "f", 0644);
	assert_int_equal(spares_drop(place->spares, true, &bytes, &n, NULL), 0);
	assert_true(bytes > 0 && n == 2);
	assert_int_equal(count_spares(place), 1);
	assert_int_equal(spares_drop(place->spares, false, &bytes, &n, NULL), 0);
	assert_int_equal(n, 2);
	assert_int_equal(count_spares(place), 0);
	assert_int_equal(access(half, F_OK), -1);
}

static void test_sizes(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *link = fs_join(place->tree, "link");

	assert_int_equal(tree_size("/proc/nonexistent"), 0);
	uint64_t before = tree_size(place->tree);
	assert_true(before > 0);
	/* A link out of it is not followed. */
	assert_int_equal(symlink("/usr", link), 0);
	assert_true(tree_size(place->tree) <= before + 65536);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_from_the_layers),
		TEST(test_the_place_in_the_tree),
		TEST(test_half_a_tree_is_made_anew),
		TEST(test_nothing_to_make_it_from),
		TEST(test_a_spare_is_taken_once),
		TEST(test_a_spare_and_a_delta),
		TEST(test_a_damaged_spare),
		TEST(test_no_space_for_spares),
		TEST(test_few_spares_are_kept),
		TEST(test_drop),
		TEST(test_sizes),
	};

	return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
