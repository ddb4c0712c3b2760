/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>

#include "base/util/enc.h"
#include "snap/git/gitindex.h"
#include "tests/unit/gitfix.h"

static struct gitindex index_now;
static struct err err;

static int teardown(void **state)
{
	gitindex_done(&index_now);
	err_clear(&err);
	return fix_teardown(state);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fix_setup, teardown)

static int parse(const void *data, size_t len)
{
	gitindex_done(&index_now);
	err_clear(&err);
	return gitindex_parse(data, len, GITINDEX_RAW_SHA1_SIZE, &index_now, &err);
}

static void load(struct buf *ret)
{
	AUTO_FREE char *path = fix_path("r/.git/index");

	assert_int_equal(fs_read(path, 64 << 20, ret, NULL, NULL), 0);
}

static int parse_file(void)
{
	AUTO_BUF struct buf data = {0};

	load(&data);
	return parse(data.data, data.len);
}

/* As `git ls-files -s` prints it, with stage 0. */
static char *listing(void)
{
	struct buf out;

	buf_init(&out, 64 << 20);
	for (size_t i = 0; i < index_now.tracked.n; i++) {
		const struct tracked_path *t = &index_now.tracked.v[i];
		char hex[2 * SHA1_SIZE + 1];

		hex_encode(t->oid, SHA1_SIZE, hex);
		buf_addf(&out, "%s%06o %s 0\t%s", i ? "\n" : "", t->mode, hex, t->path);
	}
	return out.data;
}

static void expect_as_git(void)
{
	AUTO_FREE char *expected = fix_out("cd r; git -c core.quotePath=false ls-files -s");

	if (parse_file() < 0)
		fail_msg("%s", err.message);
	AUTO_FREE char *got = listing();
	assert_string_equal(got, expected);
}

static void expect_refusal(const char *words)
{
	assert_int_equal(parse_file(), -ERR_IO);
	assert_int_equal(err.id, E_SNAPSHOT_REPO);
	if (!strstr(err.message, words))
		fail_msg("no \"%s\" in \"%s\"", words, err.message);
}

/* Files, an executable, a link, names that sort oddly and of all lengths modulo eight. */
static void make_repository(void)
{
	fix_sh("git init -q r; cd r; mkdir -p a a-b a.b/c 'x y'; echo 1 > a/f; echo 2 > a-b/f;"
	       "echo 3 > a.b/c/f; : > 'x y/e'; echo '#!' > run; chmod +x run; ln -s run l;"
	       "for n in 1 12 123 1234 12345 123456 1234567 12345678; do echo $n > n$n; done;"
	       "echo x > \"$(printf '\\377')\"; git add -A");
}

static void test_version_2(void **state)
{
	make_repository();
	expect_as_git();
	assert_false(index_now.has_tree);
}

static void test_version_3(void **state)
{
	make_repository();
	fix_sh("cd r; echo new > n; git add -N n; git update-index --skip-worktree run;"
	       "git update-index --assume-unchanged l");
	assert_int_equal(parse_file(), 0);
	size_t n_add = 0, n_skip = 0, n_valid = 0;
	for (size_t i = 0; i < index_now.tracked.n; i++) {
		static const uint8_t zero[SHA1_SIZE];
		const struct gitindex_stat *stat = &index_now.stats[i];
		const struct tracked_path *t = &index_now.tracked.v[i];
		assert_int_equal(stat->intent_to_add, str_eq(t->path, "n"));
		assert_int_equal(stat->skip_worktree, str_eq(t->path, "run"));
		assert_int_equal(stat->assume_valid, str_eq(t->path, "l"));
		assert_int_equal(memcmp(t->oid, zero, SHA1_SIZE) == 0, stat->intent_to_add);
		n_add += stat->intent_to_add;
		n_skip += stat->skip_worktree;
		n_valid += stat->assume_valid;
	}
	assert_int_equal(n_add + n_skip + n_valid, 3);
}

static void test_version_4(void **state)
{
	make_repository();
	fix_sh("cd r; git update-index --index-version 4; git update-index --skip-worktree run");
	expect_as_git();
}

static void test_many_entries(void **state)
{
	fix_sh("git init -q r; cd r; i=0; while [ $i -lt 3000 ]; do d=$((i % 37)); mkdir -p d$d;"
	       "echo $i > d$d/f$i; i=$((i + 1)); done; git add -A; git commit -q -m x");
	expect_as_git();
	fix_sh("cd r; git update-index --index-version 4");
	expect_as_git();
	assert_true(index_now.tracked.n == 3000);
}

static void test_stat_data(void **state)
{
	AUTO_FREE char *path = fix_path("r/f");
	struct stat st;

	fix_sh("git init -q r; cd r; echo hello > f; git add f");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(parse_file(), 0);
	const struct gitindex_stat *got = &index_now.stats[0];
	assert_int_equal(got->mtime_s, st.st_mtim.tv_sec);
	assert_int_equal(got->mtime_ns, st.st_mtim.tv_nsec);
	assert_int_equal(got->ctime_s, st.st_ctim.tv_sec);
	assert_int_equal(got->ctime_ns, st.st_ctim.tv_nsec);
	assert_int_equal(got->ino, (uint32_t)st.st_ino);
	assert_int_equal(got->size, 6);
}

static void test_conflict(void **state)
{
	fix_sh("git init -q r; cd r; echo a > f; echo z > g; git add .; git commit -q -m 1;"
	       "git checkout -q -b o; echo b > f; git commit -q -a -m 2; git checkout -q main;"
	       "echo c > f; git commit -q -a -m 3; git merge -q o || true");
	assert_int_equal(parse_file(), 0);
	assert_int_equal(index_now.tracked.n, 2);
	assert_string_equal(index_now.tracked.v[0].path, "f");
	assert_true(index_now.tracked.v[0].conflict);
	assert_false(index_now.tracked.v[1].conflict);
}

static void expect_tree(const char *id)
{
	size_t n = index_now.tracked.n;
	AUTO_FREE struct gittree_item *items = mem_alloc(n + 1, sizeof(*items));
	struct gittree tree;
	char hex[2 * SHA1_SIZE + 1];

	for (size_t i = 0; i < n; i++)
		items[i] = (struct gittree_item){.path = index_now.tracked.v[i].path,
			.oid = index_now.tracked.v[i].oid,
			.mode = index_now.tracked.v[i].mode};
	gittree_init(&tree, items, n);
	hex_encode(tree.v[0].oid, SHA1_SIZE, hex);
	assert_string_equal(hex, id);
	gittree_done(&tree);
}

/* Trees are computed as git does, and its own cache of the root is read. */
static void test_trees(void **state)
{
	make_repository();
	AUTO_FREE char *id = fix_out("cd r; git write-tree");
	expect_as_git();
	char hex[2 * SHA1_SIZE + 1];
	assert_true(index_now.has_tree);
	hex_encode(index_now.tree, SHA1_SIZE, hex);
	assert_string_equal(hex, id);
	expect_tree(id);
	fix_sh("cd r; echo more > a/g; git add a/g");
	AUTO_FREE char *second = fix_out("cp r/.git/index i; cd r; git write-tree");
	fix_sh("cp i r/.git/index");
	expect_as_git();
	assert_false(index_now.has_tree);
	expect_tree(second);
}

static void test_deep_trees(void **state)
{
	fix_sh("git init -q r; cd r; d=.; i=0; while [ $i -lt 200 ]; do d=$d/d; i=$((i + 1)); done;"
	       "mkdir -p $d e/e; echo x > $d/f; echo y > d/d/a; echo z > d/d/d/d/z; echo 1 > e/e/e;"
	       "git add -A");
	AUTO_FREE char *id = fix_out("cd r; git write-tree");
	expect_as_git();
	expect_tree(id);
}

static void test_empty_tree(void **state)
{
	assert_int_equal(parse("", 0), 0);
	assert_int_equal(index_now.tracked.n, 0);
	expect_tree("4b825dc642cb6eb9a060e54bf8d69288fbee4904");
	uint8_t oid[SHA1_SIZE];
	char hex[2 * SHA1_SIZE + 1];
	gittree_object_id("blob", "hello\n", 6, oid);
	hex_encode(oid, SHA1_SIZE, hex);
	assert_string_equal(hex, "ce013625030ba8dba906f756967f9e9ca394464a");
}

static void test_split_and_sparse_are_named(void **state)
{
	make_repository();
	fix_sh("cd r; git commit -q -m x; git update-index --split-index");
	expect_refusal("is split");
	fix_sh("cd r; git update-index --no-split-index;"
	       "git sparse-checkout set --cone --sparse-index a");
	expect_refusal("is sparse");
	fix_sh("cd r; git sparse-checkout set --cone --no-sparse-index a");
	expect_as_git();
}

static void test_without_checksum(void **state)
{
	AUTO_BUF struct buf data = {0};

	make_repository();
	load(&data);
	memset(data.data + data.len - SHA1_SIZE, 0, SHA1_SIZE);
	assert_int_equal(parse(data.data, data.len), 0);
	AUTO_FREE char *got = listing();
	AUTO_FREE char *expected = fix_out("cd r; git -c core.quotePath=false ls-files -s");
	assert_string_equal(got, expected);
}

static void test_sha256(void **state)
{
	AUTO_BUF struct buf data = {0};

	fix_sh("git init -q --object-format=sha256 r; cd r; echo 1 > a; echo 2 > bb; git add .");
	load(&data);
	assert_true(parse(data.data, data.len) < 0);
	err_clear(&err);
	assert_int_equal(
		gitindex_parse(data.data, data.len, GITINDEX_RAW_SHA256_SIZE, &index_now, &err), 0);
	AUTO_FREE char *expected = fix_out("cd r; git rev-parse :bb | cut -c1-40");
	char hex[2 * SHA1_SIZE + 1];
	assert_int_equal(index_now.tracked.n, 2);
	hex_encode(index_now.tracked.v[1].oid, SHA1_SIZE, hex);
	assert_string_equal(hex, expected);
}

/* Every byte of the index counts: with the checksum, no change of one goes unseen. */
static void test_damage_is_seen(void **state)
{
	AUTO_BUF struct buf data = {0};

	make_repository();
	load(&data);
	for (size_t i = 0; i < data.len; i++) {
		data.data[i] ^= 0x20;
		assert_true(parse(data.data, data.len) < 0);
		data.data[i] ^= 0x20;
	}
	for (size_t len = 1; len < data.len; len++)
		assert_true(parse(data.data, len) < 0);
	assert_int_equal(parse(data.data, data.len), 0);
}

static void test_paths(void **state)
{
	static const char *const good[] = {"a", "a/b", ".gitignore", "...", "a/.gitx/b", "..a"};
	static const char *const bad[] = {"", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "./a",
		".git", ".git/x", "a/.GIT/x"};

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		assert_true(gitindex_path_is_valid(good[i]));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_false(gitindex_path_is_valid(bad[i]));
}

/* Only what differs from the path before is looked at. */
static void test_paths_beside_others(void **state)
{
	static const char *const bad[] = {"..", "./", "//", "x/"};
	AUTO_BUF struct buf data = {0};

	fix_sh("git init -q r; cd r; mkdir a; echo 1 > a/+; echo 2 > a/wx; git add -A");
	load(&data);
	memset(data.data + data.len - SHA1_SIZE, 0, SHA1_SIZE);
	char *name = memmem(data.data, data.len, "a/wx", 4);
	assert_non_null(name);
	assert_int_equal(parse(data.data, data.len), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		memcpy(name + 2, bad[i], 2);
		assert_true(parse(data.data, data.len) < 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_version_2),
		test(test_version_3),
		test(test_version_4),
		test(test_many_entries),
		test(test_stat_data),
		test(test_conflict),
		test(test_trees),
		test(test_deep_trees),
		test(test_empty_tree),
		test(test_split_and_sparse_are_named),
		test(test_without_checksum),
		test(test_sha256),
		test(test_damage_is_seen),
		test(test_paths),
		test(test_paths_beside_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
