/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>

#include "core/image/code.h"
#include "tests/unit/runfix.h"

#define RUN_ID "a-22222"

static struct fake_tree *sample(void)
{
	struct fake_tree *tree = tree_new();

	tree_put(tree, "README", 'f', 1, 100);
	tree_put(tree, "src/main.py", 'x', 2, 300);
	tree_put(tree, "src/deep/er/a.py", 'f', 3, 5000);
	tree_put(tree, "src/empty", 'f', 4, 0);
	tree_put(tree, "link", 'l', 5, 10);
	return tree;
}

static size_t count_below(const char *dir)
{
	AUTO_DIR DIR *stream = opendir(dir);
	size_t n = 0;

	for (struct dirent *e; stream && (e = readdir(stream));) {
		struct stat st;
		if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
			continue;
		AUTO_FREE char *path = fs_join(dir, e->d_name);
		assert_int_equal(lstat(path, &st), 0);
		n += S_ISDIR(st.st_mode) ? count_below(path) : 1;
	}
	return n;
}

static mode_t mode_of(const char *name)
{
	struct stat st;

	assert_int_equal(lstat(in_root(name), &st), 0);
	return st.st_mode & 07777;
}

/* dir below root holds exactly the tree, with the modes of umask mask. */
static void assert_tree(const char *name, const struct fake_tree *tree, mode_t mask)
{
	AUTO_FREE char *dir = mem_strdup(in_root(name));

	for (size_t i = 0; i < tree->n; i++) {
		const struct fake_file *file = &tree->v[i];
		AUTO_FREE char *path = fs_join(dir, file->path);
		AUTO_FREE char *want = mem_alloc(file->size + 1, 1);
		AUTO_BUF struct buf got = {0};
		char target[100] = "";
		struct stat st;
		fake_content(file->seed, file->size, want);
		assert_int_equal(lstat(path, &st), 0);
		if (file->kind == 'l') {
			assert_int_equal(readlink(path, target, sizeof(target)), file->size);
			assert_string_equal(target, want);
			continue;
		}
		ok(fs_read(path, 1 << 20, &got, NULL, error));
		assert_string_equal(got.data, want);
		assert_int_equal(st.st_mode & 07777, (file->kind == 'x' ? 0777 : 0666) & ~mask);
	}
	assert_int_equal(count_below(dir), tree->n);
}

static void assert_fails(const struct run *run, const char *dir, enum err_id id)
{
	AUTO_ERR struct err err = {0};

	if (run_checkout(&session, run, dir, &err) == 0)
		fail_msg("%s: no failure", dir);
	if (err.id != id)
		fail_msg("%s: %s", dir, err.message);
}

static void test_entries(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = run_with(RUN_ID, tree);
	AUTO_ENTRIES struct entry_list got = {0};

	ok(run_entries(&session, run, &got, error));
	assert_int_equal(got.n, tree->entries.n);
	for (size_t i = 0; i < got.n; i++) {
		assert_string_equal(got.v[i].path, tree->entries.v[i].path);
		assert_true(entry_same(&got.v[i], &tree->entries.v[i]));
	}
	tree_done(tree);
}

static void damage(const struct descriptor *blob)
{
	AUTO_FREE char *name =
		mem_printf(OWN_LAYOUT "/blobs/sha256/%s", strchr(blob->digest, ':') + 1);
	AUTO_FD int fd = open(in_root(name), O_WRONLY | O_CLOEXEC);

	assert_int_equal(pwrite(fd, "xxxxxxxx", 8, (off_t)blob->size - 8), 8);
}

/* What a plan knows of a full layer need not be read again: here the layer cannot be. */
static void test_entries_by_plan(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO_FREE char *plan = mem_printf("cache/dlrun/plans/%064d", 7);
	AUTO_FREE char *other = mem_printf("cache/dlrun/plans/%064d", 6);
	AUTO_ENTRIES struct entry_list got = {0}, none = {0};
	AUTO_ERR struct err err = {0};

	put(other, "no plan");
	struct image_request request = request_of(tree);
	request.plan_path = in_root(plan);
	just_write(OWN_LAYOUT, &request);
	tree_put(tree, "README", 'f', 9, 50);
	tree_remove(tree, "src/deep");
	request = request_of(tree);
	request.plan_path = in_root(plan);
	AUTO_IMAGE struct image image = write_image(OWN_LAYOUT, &request);
	assert_string_equal(roles_of(&image), "full delta");
	AUTO_FREE char *ref = mem_printf("oci:%s@%s", in_root(OWN_LAYOUT), image.manifest.digest);
	json_set_str(json_sub(run->doc, "image"), "ref", ref);
	damage(&image.layers[0].blob);
	ok(run_entries(&session, run, &got, error));
	assert_int_equal(got.n, tree->entries.n);
	for (size_t i = 0; i < got.n; i++) {
		assert_string_equal(got.v[i].path, tree->entries.v[i].path);
		assert_true(entry_same(&got.v[i], &tree->entries.v[i]));
	}
	assert_int_equal(unlink(in_root(plan)), 0);
	assert_true(run_entries(&session, run, &none, &err) < 0);
	assert_int_equal(err.id, E_IMAGE);
	tree_done(tree);
}

static void test_read_file(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = run_with(RUN_ID, tree);
	AUTO_FD int fd = open(in_root("out"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	AUTO_BUF struct buf got = {0};
	AUTO_ERR struct err err = {0};
	char want[301] = "";

	fake_content(2, 300, want);
	ok(run_read_file(&session, run, "src/main.py", fd, error));
	ok(fs_read(in_root("out"), 1000, &got, NULL, error));
	assert_string_equal(got.data, want);
	assert_int_equal(run_read_file(&session, run, "src/main", fd, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_IMAGE_BASE);
	tree_done(tree);
}

/* The image may lie in another layout. */
static void test_other_layout(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO_IMAGE struct image image = {0};
	AUTO_ENTRIES struct entry_list got = {0}, again = {0};

	give_image(run, "tree/out", tree, &image);
	ok(run_entries(&session, run, &got, error));
	assert_int_equal(got.n, tree->n);
	assert_false(exists(OWN_LAYOUT));
	AUTO_FREE char *ref = mem_printf("oci:out@%s", image.manifest.digest);
	json_set_str(json_sub(run->doc, "image"), "ref", ref);
	ok(run_entries(&session, run, &again, error));
	assert_int_equal(again.n, tree->n);
	tree_done(tree);
}

static void test_no_image(void **state)
{
	static const struct {
		const char *ref;
		enum err_id id;
	} cases[] = {
		{NULL, E_IMAGE_BASE},
		{"oci:/nowhere@sha256:"
		 "0000000000000000000000000000000000000000000000000000000000000000",
			E_IMAGE_BASE},
		{"oci:/nowhere:tag", E_IMAGE_BASE},
		{"scratch", E_IMAGE_BASE},
		{"127.0.0.1:1/r@sha256:"
		 "0000000000000000000000000000000000000000000000000000000000000000",
			E_REGISTRY_UNREACHABLE},
		{"h.example.com/r:tag", E_IMAGE_BASE},
		{"oci:", E_IMAGE_REF},
	};
	AUTO_RUN struct run *run = new_run(RUN_ID);

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ENTRIES struct entry_list got = {0};
		AUTO_ERR struct err err = {0};
		json_set_str(json_sub(run->doc, "image"), "ref", cases[i].ref);
		assert_true(run_entries(&session, run, &got, &err) < 0);
		assert_int_equal(err.id, cases[i].id);
		assert_non_null(strstr(err.message, RUN_ID));
		if (!cases[i].ref)
			assert_string_equal(err.hint, "dlrun why " RUN_ID);
		assert_fails(run, "new/dir", cases[i].id);
	}
	assert_int_equal(count_below(in_root("tree")), 0);
	assert_false(exists("tree/new"));
}

/*
 * Checking out
 */

static void test_checkout(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = run_with(RUN_ID, tree);

	mode_t before = umask(022);
	ok(run_checkout(&session, run, "new", error));
	assert_tree("tree/new", tree, 022);
	assert_int_equal(mode_of("tree/new"), 0755);
	umask(077);
	ok(run_checkout(&session, run, "a/b//c/", error));
	assert_tree("tree/a/b/c", tree, 077);
	assert_int_equal(mode_of("tree/a"), 0700);
	assert_int_equal(mode_of("tree/a/b"), 0700);
	umask(002);
	ok(run_checkout(&session, run, in_root("abs"), error));
	assert_tree("abs", tree, 002);
	assert_int_equal(mode_of("abs/src/deep"), 0775);
	ok(run_checkout(&session, run, "./new/./sub", error));
	assert_tree("tree/new/sub", tree, 002);
	umask(before);
	assert_int_equal(count_below(in_root("tree")), 3 * tree->n);
	tree_done(tree);
}

static void test_checkout_into_empty(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = run_with(RUN_ID, tree);

	mode_t before = umask(022);
	mkdir(in_root("tree/empty"), 0750);
	ok(run_checkout(&session, run, "empty", error));
	assert_tree("tree/empty", tree, 022);
	assert_int_equal(mode_of("tree/empty"), 0750);

	/* by a link to it */
	mkdir(in_root("tree/other"), 0755);
	assert_int_equal(symlink("../tree/other", in_root("tree/link")), 0);
	ok(run_checkout(&session, run, "link", error));
	assert_tree("tree/other", tree, 022);
	umask(before);
	assert_int_equal(count_below(in_root("tree")), 2 * tree->n + 1);
	tree_done(tree);
}

static void test_checkout_refused(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = run_with(RUN_ID, tree);
	AUTO_ERR struct err err = {0};

	put("tree/full/.hidden", "x");
	put("tree/file", "x");
	assert_int_equal(symlink("gone", in_root("tree/dangling")), 0);
	assert_fails(run, "full", E_CHECKOUT_DIR);
	assert_fails(run, "file", E_CHECKOUT_DIR);
	assert_fails(run, "file/sub", E_IO);
	assert_fails(run, ".", E_CHECKOUT_DIR);
	assert_fails(run, "", E_CHECKOUT_DIR);
	assert_fails(run, "/", E_CHECKOUT_DIR);
	assert_fails(run, "dangling", E_IO);
	assert_fails(run, "new/../other", E_IO);
	assert_int_equal(count_below(in_root("tree")), 3);
	assert_false(exists("tree/new") || exists("tree/other") || exists("tree/gone"));

	assert_int_equal(run_checkout(&session, run, "full", &err), -ERR_CONFLICT);
	assert_string_equal(err.message, "full is not empty");
	assert_string_equal(err.hint, "dlrun checkout " RUN_ID " " RUN_ID);
	tree_done(tree);
}

/* A layer that is found damaged half way: nothing is left, parents neither. */
static void test_checkout_fails(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO_IMAGE struct image image = {0};

	give_image(run, OWN_LAYOUT, tree, &image);
	damage(&image.layers[0].blob);
	mkdir(in_root("tree/empty"), 0755);
	assert_fails(run, "p/q/r", E_IMAGE);
	assert_fails(run, "empty", E_IMAGE);
	assert_fails(run, in_root("new"), E_IMAGE);
	assert_false(exists("tree/p") || exists("new"));
	assert_true(exists("tree/empty"));
	AUTO_DIR DIR *stream = opendir(in_root("tree"));
	for (struct dirent *e; (e = readdir(stream));)
		assert_true(str_eq(e->d_name, ".") || str_eq(e->d_name, "..") ||
			    str_eq(e->d_name, "empty"));
	assert_int_equal(rmdir(in_root("tree/empty")), 0);
	tree_done(tree);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, make_session, remove_session)
		T(test_entries),
		T(test_entries_by_plan),
		T(test_read_file),
		T(test_other_layout),
		T(test_no_image),
		T(test_checkout),
		T(test_checkout_into_empty),
		T(test_checkout_refused),
		T(test_checkout_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
