/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/util/buf.h"
#include "base/util/str.h"
#include "targets/local/runtime_mount.h"
#include "tests/unit/worldfix.h"

static void add_output(struct place *place, const char *path)
{
	strv_add(&place->job.spec.runtime.outputs, path);
}

static void add_data(struct place *place, const char *path, const char *from)
{
	*vec_push(&place->job.spec.runtime.data) =
		(struct runtime_data){mem_strdup(path), fs_join(place->tree.root, from)};
}

static void mount(struct place *place)
{
	if (runtime_mount(place->run, &place->job, &place->err) < 0)
		fail_msg("%s", place->err.message);
}

static void expect_error(struct place *place, enum err_id id, const char *part)
{
	assert_true(runtime_mount(place->run, &place->job, &place->err) < 0);
	if (place->err.id != id || !strstr(place->err.message, part))
		fail_msg("not %s: %s", part, place->err.message);
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

static void expect_link(struct place *place, const char *path, const char *target)
{
	AUTO_FREE char *full = fs_join(place->tree.root, target);
	char text[PATH_MAX];
	ssize_t n = readlinkat(place->tree.fd, path, text, sizeof(text) - 1);

	if (n < 0)
		fail_msg("%s is no link", path);
	text[n] = '\0';
	assert_string_equal(text, full);
}

static bool exists(struct place *place, const char *path)
{
	return faccessat(place->tree.fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/*
 * The plan
 */

static void expect_plan(struct place *place, const char *expected)
{
	struct mount_list plan = {0};
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err err = {0};

	if (mount_plan(&place->job.spec.runtime, &plan, &err) < 0)
		fail_msg("%s", err.message);
	buf_init(&text, 4096);
	vec_foreach (struct mount, mount, &plan)
		buf_addf(&text, "%s%s<%s ", mount->kind == MOUNT_DATA ? "data:" : "", mount->path,
			mount->below ? mount->below : "");
	vec_done(&plan);
	assert_string_equal(text.data, expected);
}

static void test_plan(void **state)
{
	struct place *place = *state;

	expect_plan(place, "");
	add_output(place, "runs");
	add_output(place, "out/deep/er");
	add_output(place, "out");
	add_output(place, "out/deep");
	add_output(place, "runs");
	add_output(place, "out-2");
	add_data(place, "out/data", "places");
	add_data(place, "data", "places");
	add_data(place, "data/x", "places");
	add_data(place, "data", "places");
	expect_plan(place, "data:data< data:data/x< out< out-2< data:out/data<out out/deep<out "
			   "out/deep/er<out runs< ");
}

static void expect_no_plan(struct place *place, enum err_id id)
{
	struct mount_list plan = {0};

	assert_true(mount_plan(&place->job.spec.runtime, &plan, &place->err) < 0);
	assert_int_equal(place->err.id, id);
	assert_int_equal(plan.n, 0);
	runtime_done(&place->job.spec.runtime);
	err_clear(&place->err);
}

static void test_plan_refuses(void **state)
{
	static const char *const paths[] = {
		"", "/abs", "../up", "a/../b", "a/", "./a", "a//b", "."};
	struct place *place = *state;

	add_output(place, "x");
	add_data(place, "x", "places");
	expect_no_plan(place, E_RUN_OUTPUTS);
	add_output(place, "x/y");
	add_data(place, "x", "places");
	expect_no_plan(place, E_RUN_OUTPUTS);
	add_data(place, "x", "places");
	add_data(place, "x", "other");
	expect_no_plan(place, E_RUN_DATA);
	*vec_push(&place->job.spec.runtime.data) =
		(struct runtime_data){mem_strdup("x"), mem_strdup("relative")};
	expect_no_plan(place, E_DATA);
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		add_output(place, paths[i]);
		expect_no_plan(place, E_DATA);
	}
}

/*
 * Outputs
 */

static void test_output(void **state)
{
	struct place *place = *state;

	add_output(place, "runs");
	add_output(place, "a/b/out");
	mount(place);
	expect_link(place, "run/runs", "results/runs");
	expect_link(place, "run/a/b/out", "results/a/b/out");
	tree_write(&place->tree, "run/runs/x", "1");
	expect_text(place, "results/runs/x", "1");
	mount(place);
	expect_text(place, "results/runs/x", "1");
}

static void test_output_with_files(void **state)
{
	struct place *place = *state;

	tree_write(&place->tree, "run/out/README", "r");
	tree_write(&place->tree, "run/out/sub/base.yaml", "b");
	tree_link(&place->tree, "run/out/link", "/etc/passwd");
	assert_int_equal(fchmodat(place->tree.fd, "run/out/README", 0750, 0), 0);
	add_output(place, "out");
	mount(place);
	expect_link(place, "run/out", "results/out");
	expect_text(place, "run/out/README", "r");
	expect_text(place, "results/out/sub/base.yaml", "b");
	struct stat st;
	assert_int_equal(fstatat(place->tree.fd, "results/out/README", &st, 0), 0);
	assert_int_equal(st.st_mode & 0777, 0750);
	assert_int_equal(fstatat(place->tree.fd, "results/out/link", &st, AT_SYMLINK_NOFOLLOW), 0);
	assert_true(S_ISLNK(st.st_mode));
}

static void test_later_attempt(void **state)
{
	struct place *place = *state;

	add_output(place, "out");
	tree_write(&place->tree, "run/out/state", "snapshot");
	tree_write(&place->tree, "run/out/dir/x", "snapshot");
	tree_write(&place->tree, "run/out/file", "snapshot");
	tree_write(&place->tree, "run/out/new", "snapshot");
	tree_write(&place->tree, "results/out/state", "checkpoint");
	tree_write(&place->tree, "results/out/dir", "a file now");
	tree_write(&place->tree, "results/out/file/x", "a directory now");
	mount(place);
	expect_text(place, "run/out/state", "checkpoint");
	expect_text(place, "run/out/dir", "a file now");
	expect_text(place, "run/out/file/x", "a directory now");
	expect_text(place, "run/out/new", "snapshot");
}

static void test_nested_outputs(void **state)
{
	struct place *place = *state;

	add_output(place, "out/ckpt/best");
	add_output(place, "out");
	mount(place);
	expect_link(place, "run/out", "results/out");
	tree_write(&place->tree, "run/out/ckpt/best/x", "1");
	expect_text(place, "results/out/ckpt/best/x", "1");
}

static void test_output_conflicts(void **state)
{
	struct place *place = *state;

	add_output(place, "a/out");
	tree_write(&place->tree, "run/a/out", "tracked");
	expect_error(place, E_RUN_OUTPUTS, "output 'a/out': 'a/out' is a file");
	expect_text(place, "run/a/out", "tracked");
	unlinkat(place->tree.fd, "run/a/out", 0);
	tree_link(&place->tree, "run/a/out", "/etc");
	expect_error(place, E_RUN_OUTPUTS, "'a/out' is a symbolic link");
	unlinkat(place->tree.fd, "run/a/out", 0);
	unlinkat(place->tree.fd, "run/a", AT_REMOVEDIR);
	tree_dir(&place->tree, "elsewhere");
	tree_link(&place->tree, "run/a", "../elsewhere");
	expect_error(place, E_RUN_OUTPUTS, "'a' is a symbolic link");
	assert_false(exists(place, "elsewhere/out"));
	unlinkat(place->tree.fd, "run/a", 0);
	tree_write(&place->tree, "run/a", "a file");
	expect_error(place, E_RUN_OUTPUTS, "'a' is a file");
	unlinkat(place->tree.fd, "run/a", 0);
	unlinkat(place->tree.fd, "results/a/out", AT_REMOVEDIR);
	tree_write(&place->tree, "results/a/out", "of an attempt");
	expect_error(place, E_RUN_OUTPUTS, "'a/out' is a file");
	expect_text(place, "results/a/out", "of an attempt");
}

/*
 * Data
 */

static void test_data(void **state)
{
	struct place *place = *state;

	tree_write(&place->tree, "places/imagenet/train/1", "one");
	tree_write(&place->tree, "places/vocab.txt", "v");
	add_data(place, "data/imagenet", "places/imagenet");
	add_data(place, "data/vocab.txt", "places/vocab.txt");
	mount(place);
	mount(place);
	expect_link(place, "run/data/imagenet", "places/imagenet");
	expect_text(place, "run/data/imagenet/train/1", "one");
	expect_text(place, "run/data/vocab.txt", "v");
}

static void test_data_beside_files(void **state)
{
	struct place *place = *state;

	tree_write(&place->tree, "run/data/README", "snapshot");
	tree_write(&place->tree, "run/data/sub/.gitkeep", "");
	tree_write(&place->tree, "run/data/odd", "a file here");
	tree_write(&place->tree, "run/data/odd2/x", "a directory here");
	tree_write(&place->tree, "places/d/README", "live");
	tree_write(&place->tree, "places/d/big.bin", "b");
	tree_write(&place->tree, "places/d/sub/.gitkeep", "");
	tree_write(&place->tree, "places/d/sub/more", "m");
	tree_write(&place->tree, "places/d/odd/x", "a directory there");
	tree_write(&place->tree, "places/d/odd2", "a file there");
	add_data(place, "data", "places/d");
	for (int i = 0; i < 2; i++) {
		mount(place);
		expect_text(place, "run/data/README", "snapshot");
		expect_link(place, "run/data/big.bin", "places/d/big.bin");
		expect_link(place, "run/data/sub/more", "places/d/sub/more");
		expect_text(place, "run/data/odd", "a file here");
		expect_text(place, "run/data/odd2/x", "a directory here");
	}
	expect_text(place, "places/d/README", "live");
}

static void test_data_in_data(void **state)
{
	struct place *place = *state;

	tree_write(&place->tree, "places/d/x", "x");
	tree_write(&place->tree, "places/d/big/not-this", "n");
	tree_write(&place->tree, "places/big/1", "one");
	add_data(place, "data", "places/d");
	add_data(place, "data/big", "places/big");
	mount(place);
	expect_text(place, "run/data/x", "x");
	expect_text(place, "run/data/big/1", "one");
	assert_false(exists(place, "places/d/big/1"));
}

static void test_data_in_output(void **state)
{
	struct place *place = *state;

	tree_write(&place->tree, "places/d/x", "x");
	tree_write(&place->tree, "run/work/in/README", "r");
	add_output(place, "work");
	add_data(place, "work/in", "places/d");
	for (int i = 0; i < 2; i++) {
		mount(place);
		expect_link(place, "run/work", "results/work");
		expect_text(place, "run/work/in/x", "x");
		expect_text(place, "run/work/in/README", "r");
	}
}

static void test_data_conflicts(void **state)
{
	struct place *place = *state;

	add_data(place, "data", "places/d");
	add_output(place, "out");
	expect_error(place, E_RUN_DATA, "data 'data' is not at ");
	assert_false(exists(place, "run/out"));
	tree_dir(&place->tree, "places/d");
	tree_write(&place->tree, "run/data", "tracked");
	expect_error(place, E_RUN_DATA, "one of the snapshot and ");
	expect_text(place, "run/data", "tracked");
	unlinkat(place->tree.fd, "run/data", 0);
	unlinkat(place->tree.fd, "places/d", AT_REMOVEDIR);
	tree_write(&place->tree, "places/d", "a file");
	tree_write(&place->tree, "run/data/x", "tracked");
	expect_error(place, E_RUN_DATA, "one of the snapshot and ");
	unlinkat(place->tree.fd, "run/data/x", 0);
	unlinkat(place->tree.fd, "run/data", AT_REMOVEDIR);
	tree_write(&place->tree, "run/data", "tracked");
	mount(place);
	expect_text(place, "run/data", "tracked");
}

static void test_data_links(void **state)
{
	struct place *place = *state;

	tree_write(&place->tree, "places/d/x", "x");
	tree_link(&place->tree, "run/data", "/etc");
	add_data(place, "data", "places/d");
	mount(place);
	expect_link(place, "run/data", "places/d");
	add_data(place, "in/deep", "places/d");
	tree_dir(&place->tree, "elsewhere");
	tree_link(&place->tree, "run/in", "../elsewhere");
	expect_error(place, E_RUN_DATA, "'in' is a symbolic link");
	assert_false(exists(place, "elsewhere/deep"));
}

/* A directory of the snapshot may hold links: what is merged beside them does not follow. */
static void test_merge_follows_nothing(void **state)
{
	struct place *place = *state;

	tree_write(&place->tree, "places/d/sub/x", "x");
	tree_dir(&place->tree, "elsewhere");
	tree_dir(&place->tree, "run/data");
	tree_link(&place->tree, "run/data/sub", "../../elsewhere");
	add_data(place, "data", "places/d");
	mount(place);
	assert_false(exists(place, "elsewhere/x"));
	tree_link(&place->tree, "places/d/loop", ".");
	mount(place);
}

static void test_many(void **state)
{
	struct place *place = *state;

	tree_write(&place->tree, "run/data/README", "r");
	tree_dir(&place->tree, "places/d");
	AUTO_FD int fd = openat(place->tree.fd, "places/d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	for (int i = 0; i < MOUNT_LINKS_MAX + 1; i++) {
		char name[16];
		snprintf(name, sizeof(name), "%d", i);
		assert_int_equal(symlinkat("x", fd, name), 0);
	}
	add_data(place, "data", "places/d");
	expect_error(place, E_DATA_LIMIT, "data 'data' has more than 20000");
}

/*
 * Killed at any moment, and again
 */

static void mount_until_killed(struct place *place, int64_t us)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit(runtime_mount(place->run, &place->job, NULL) < 0);
	struct timespec wait = {.tv_nsec = us * 1000};
	nanosleep(&wait, NULL);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void test_killed(void **state)
{
	struct place *place = *state;
	char name[64];

	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "run/out/d%d/f%d", i % 7, i);
		tree_write(&place->tree, name, name);
		snprintf(name, sizeof(name), "places/d/d%d/f%d", i % 7, i);
		tree_write(&place->tree, name, name);
	}
	tree_write(&place->tree, "run/data/README", "r");
	tree_write(&place->tree, "run/data/d1/README", "r");
	add_output(place, "out");
	add_output(place, "deep/er/out");
	add_data(place, "data", "places/d");
	for (int i = 0; i < 60; i++)
		mount_until_killed(place, 150 * i);
	mount(place);
	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "run/out/d%d/f%d", i % 7, i);
		expect_text(place, name, name);
		char data[64];
		snprintf(name, sizeof(name), "run/data/d%d/f%d", i % 7, i);
		snprintf(data, sizeof(data), "places/d/d%d/f%d", i % 7, i);
		expect_text(place, name, data);
	}
	expect_link(place, "run/out", "results/out");
	expect_link(place, "run/deep/er/out", "results/deep/er/out");
	expect_text(place, "run/data/d1/README", "r");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_plan, setup, teardown),
		cmocka_unit_test_setup_teardown(test_plan_refuses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_output, setup, teardown),
		cmocka_unit_test_setup_teardown(test_output_with_files, setup, teardown),
		cmocka_unit_test_setup_teardown(test_later_attempt, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nested_outputs, setup, teardown),
		cmocka_unit_test_setup_teardown(test_output_conflicts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data_beside_files, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data_in_data, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data_in_output, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data_conflicts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data_links, setup, teardown),
		cmocka_unit_test_setup_teardown(test_merge_follows_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
	};

	return cmocka_run_group_tests_name("world_mount", tests, NULL, NULL);
}
