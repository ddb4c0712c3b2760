/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/util/clock.h"
#include "base/util/enc.h"
#include "snap/tree/snapshot.h"
#include "snap/tree/statcache.h"
#include "tests/unit/gitfix.h"

static struct snapshot *snap;
static struct err err;
static struct strv include, limits, allow;

static void forget(void)
{
	snapshot_free(TAKE(snap));
	err_clear(&err);
}

static int teardown(void **state)
{
	forget();
	strv_done(&include);
	strv_done(&limits);
	strv_done(&allow);
	return fix_teardown(state);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fix_setup, teardown)

static int try_take(const char *tree, bool cached)
{
	AUTO_FREE char *start = fix_path(tree);
	AUTO_FREE char *cache = fix_path("cache");
	struct tree_place place = {0};
	struct tree_place_options find = {.start = start, .home = fix_home, .marker = "dlrun.yaml"};
	struct snapshot_options options = {
		.place = &place,
		.include = &include,
		.paths = &limits,
		.allow = &allow,
		.cache_dir = cached ? cache : NULL,
		.home = fix_home,
	};

	forget();
	if (tree_place_find(&find, &place, &err) < 0)
		fail_msg("%s", err.message);
	int rc = snapshot_take(&options, &snap, &err);
	tree_place_done(&place);
	return rc;
}

static void take(const char *tree, bool cached)
{
	if (try_take(tree, cached) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(snap->paths.n, snap->entries.n);
}

/* One line for each entry: kind, exec bit, size, path. */
static char *list(void)
{
	struct buf out;

	buf_init(&out, 64 << 20);
	vec_foreach (const struct entry, e, &snap->entries)
		buf_addf(&out, "%c%d %ju %s\n", e->kind == ENTRY_LINK ? 'l' : 'f', e->exec,
			(uintmax_t)e->size, e->path);
	return out.data;
}

static void expect_list(const char *expected)
{
	AUTO_FREE char *got = list();

	assert_string_equal(got, expected);
}

static void expect_git(bool dirty, size_t changed, size_t untracked, size_t deleted)
{
	assert_true(snap->git.present);
	assert_int_equal(snap->git.n_changed, changed);
	assert_int_equal(snap->git.n_untracked, untracked);
	assert_int_equal(snap->git.n_deleted, deleted);
	assert_int_equal(snap->git.dirty, dirty);
}

static bool warns(const char *words)
{
	for (size_t i = 0; i < snap->warnings.n; i++)
		if (strstr(snap->warnings.v[i], words))
			return true;
	return false;
}

/* What is on disk now, read by sha256sum. */
static void expect_bytes(const char *tree)
{
	vec_foreach (const struct entry, e, &snap->entries) {
		AUTO_BUF struct buf quoted = {0};
		char hex[SHA256_HEX_SIZE];

		if (e->kind != ENTRY_FILE)
			continue;
		buf_init(&quoted, 1 << 20);
		str_shell_quote(&quoted, e->path);
		AUTO_FREE char *script =
			mem_printf("cd %s; sha256sum < %s | cut -c1-64", tree, quoted.data);
		AUTO_FREE char *expected = fix_out(script);
		hex_encode(e->sha256, SHA256_SIZE, hex);
		assert_string_equal(hex, expected);
	}
}

static void make_repository(void)
{
	fix_sh("git init -q r; cd r; mkdir d e; echo 1 > d/f; echo 22 > e/f; echo 333 > g;"
	       "ln -s g l; echo '#!/bin/sh' > x; chmod +x x; git add -A; git commit -q -m one");
}

/* Until what was written before is old enough for the stat cache: ctime cannot be set. */
static void settle(void)
{
	AUTO_FREE char *path = fix_path("probe");
	struct stat st;

	fix_put("probe", "");
	assert_int_equal(stat(path, &st), 0);
	struct statcache_stat probe = {
		.mtime_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec,
		.ctime_ns = st.st_ctim.tv_sec * INT64_C(1000000000) + st.st_ctim.tv_nsec,
	};
	while (!statcache_is_settled(&probe, clock_wall_ms() * 1000000, false))
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* All of .git; times: when files were written, too. */
static char *git_files(bool times)
{
	AUTO_FREE char *script = mem_printf(
		"cd r; find .git -type f -o -type l | LC_ALL=C sort | while read -r f; do"
		" echo \"$f $(sha256sum < \"$f\") $(stat -c '%%a %s %%s' \"$f\")\"; done;"
		"find .git -type d | LC_ALL=C sort",
		times ? "%Y %Z" : "");

	return fix_out(script);
}

static void test_clean(void **state)
{
	make_repository();
	AUTO_FREE char *before = git_files(true);
	AUTO_FREE char *commit = fix_out("git -C r rev-parse HEAD");
	take("r", false);
	expect_list("f0 2 d/f\nf0 3 e/f\nf0 4 g\nl0 1 l\nf1 10 x\n");
	expect_bytes("r");
	expect_git(false, 0, 0, 0);
	assert_true(snap->git.library);
	assert_string_equal(snap->git.commit, commit);
	assert_string_equal(snap->git.branch, "main");
	assert_int_equal(snap->bytes, 20);
	assert_int_equal(snap->warnings.n, 0);
	assert_string_equal(snap->entries.v[3].target, "g");
	assert_int_equal(snap->stats.n_hashed, 5);
	AUTO_FREE char *after = git_files(true);
	assert_string_equal(before, after);
}

/* The id is a contract: it is the same everywhere, for ever. */
static void test_id(void **state)
{
	char id[DIGEST_TEXT_SIZE];

	make_repository();
	take("r", false);
	AUTO_FREE char *expected = fix_out(
		"cd r; for f in d/f e/f g l x; do"
		" if [ -L $f ]; then t=l; printf %s $(readlink $f) > c;"
		" else t=f; cat $f > c; fi; x=0; [ $f = x ] && x=1;"
		" printf '%s%s%s%s\\0%s\\0' $t $x $(stat -c %s c) $(sha256sum < c | cut -c1-64) $f;"
		" rm c; done | sha256sum | cut -c1-64");
	assert_memory_equal(snap->id, "sha256:", 7);
	assert_string_equal(snap->id + 7, expected);
	memcpy(id, snap->id, sizeof(id));
	fix_sh("cp -r r r2; umask 077; cp -r r r3; rm -rf r2/.git; touch -d 1999-01-01 r3/*");
	take("r2", false);
	assert_string_equal(snap->id, id);
	assert_false(snap->git.present);
	take("r3", false);
	assert_string_equal(snap->id, id);
}

static void test_counts(void **state)
{
	make_repository();
	fix_sh("cd r; echo changed > g");
	take("r", false);
	expect_git(true, 1, 0, 0);
	fix_sh("cd r; echo new > n; rm d/f");
	take("r", false);
	expect_git(true, 1, 1, 1);
	fix_sh("cd r; git checkout -q .; rm n; chmod +x g");
	take("r", false);
	expect_git(true, 1, 0, 0);
	fix_sh("cd r; chmod -x g; rm l; ln -s x l");
	take("r", false);
	expect_git(true, 1, 0, 0);
	fix_sh("cd r; rm l; echo g > l");
	take("r", false);
	expect_git(true, 1, 0, 0);
	fix_sh("cd r; rm l; mkdir l; echo 1 > l/in");
	take("r", false);
	expect_git(true, 0, 1, 1);
	fix_sh("cd r; rm -r l; git checkout -q .; touch *");
	take("r", false);
	expect_git(false, 0, 0, 0);
}

static void test_staged(void **state)
{
	make_repository();
	fix_sh("cd r; echo staged > g; git add g");
	take("r", false);
	expect_git(true, 0, 0, 0);
	fix_sh("cd r; git rm -q --cached d/f");
	take("r", false);
	expect_git(true, 0, 1, 0);
	fix_sh("cd r; git reset -q --hard; echo n > n; git add -N n");
	take("r", false);
	expect_git(true, 1, 0, 0);
	fix_sh("cd r; git add n; git commit -q -m n");
	take("r", false);
	expect_git(false, 0, 0, 0);
}

static void test_unborn_and_detached(void **state)
{
	fix_sh("git init -q r; echo 1 > r/a");
	take("r", false);
	expect_git(true, 0, 1, 0);
	assert_null(snap->git.commit);
	assert_string_equal(snap->git.branch, "main");
	fix_sh("cd r; git add a");
	take("r", false);
	expect_git(true, 0, 0, 0);
	fix_sh("cd r; git commit -q -m x; git checkout -q --detach");
	take("r", false);
	expect_git(false, 0, 0, 0);
	assert_null(snap->git.branch);
	assert_non_null(snap->git.commit);
}

static void test_conflict(void **state)
{
	make_repository();
	fix_sh("cd r; git checkout -q -b o; echo b > g; git commit -q -a -m 2;"
	       "git checkout -q main;"
	       "echo c > g; git commit -q -a -m 3; git merge -q o || true");
	take("r", false);
	expect_git(true, 1, 0, 0);
	expect_bytes("r");
	assert_non_null(entry_find(&snap->entries, "g"));
}

/* git does not look at these; the bytes on disk are what runs. */
static void test_assume_unchanged_and_skip_worktree(void **state)
{
	make_repository();
	fix_sh("cd r; git update-index --assume-unchanged g; git update-index --skip-worktree d/f;"
	       "echo edited > g; echo edited > d/f; git update-index --skip-worktree e/f; rm e/f");
	take("r", false);
	expect_bytes("r");
	expect_git(true, 2, 0, 0);
	expect_list("f0 7 d/f\nf0 7 g\nl0 1 l\nf1 10 x\n");
}

/* Bytes as on disk; a file that only a filter changed is no edit while git knows its stat data. */
static void test_line_ends(void **state)
{
	fix_sh("git init -q r; cd r; echo '* text=auto eol=crlf' > .gitattributes;"
	       "printf 'a\\nb\\n' > t; git add .; git commit -q -m x; rm t; git checkout -q t");
	settle();
	fix_sh("cd r; git update-index --refresh -q; test \"$(od -c t | grep -c r)\" != 0");
	take("r", false);
	expect_git(false, 0, 0, 0);
	assert_int_equal(entry_find(&snap->entries, "t")->size, 6);
	fix_sh("cd r; printf 'a\\r\\nc\\r\\n' > t");
	take("r", false);
	expect_git(true, 1, 0, 0);
}

static void test_file_mode_off(void **state)
{
	make_repository();
	fix_sh("cd r; git config core.fileMode false; chmod +x g");
	take("r", false);
	expect_git(false, 0, 0, 0);
	assert_true(entry_find(&snap->entries, "g")->exec);
}

static void test_linked_work_tree(void **state)
{
	make_repository();
	fix_sh("cd r; git worktree add -q -b side ../w; echo n > ../w/n");
	take("w", false);
	expect_git(true, 0, 1, 0);
	assert_string_equal(snap->git.branch, "side");
	expect_list("f0 2 d/f\nf0 3 e/f\nf0 4 g\nl0 1 l\nf0 2 n\nf1 10 x\n");
}

static void make_submodule(void)
{
	make_repository();
	fix_sh("git init -q s; cd s; echo s > s; echo '*.o' > .gitignore; git add .;"
	       "git commit -q -m s; cd ../r; git submodule --quiet add ../s sub;"
	       "git commit -q -m sub");
}

static void test_submodule(void **state)
{
	make_submodule();
	take("r", false);
	expect_git(false, 0, 0, 0);
	assert_non_null(entry_find(&snap->entries, "sub/s"));
	assert_null(entry_find(&snap->entries, "sub/.git"));
	fix_sh("cd r/sub; echo edited > s; echo x > x.o; echo n > n");
	take("r", false);
	expect_git(true, 1, 1, 0);
	assert_null(entry_find(&snap->entries, "sub/x.o"));
	fix_sh("cd r/sub; rm n x.o; git commit -q -a -m edit");
	take("r", false);
	expect_git(true, 0, 0, 0);
	fix_sh("cd r; git add sub; git commit -q -m sub");
	take("r", false);
	expect_git(false, 0, 0, 0);
	fix_sh("cd r; git submodule --quiet deinit -f sub");
	take("r", false);
	expect_git(false, 0, 0, 0);
	assert_null(entry_find(&snap->entries, "sub/s"));
	assert_true(warns("'sub' is a submodule that is not checked out"));
	fix_sh("cd r; echo sub > .dlrunignore");
	take("r", false);
	assert_int_equal(snap->warnings.n, 0);
	fix_sh("cd r; rm .dlrunignore; echo x > sub/x");
	take("r", false);
	assert_int_equal(snap->warnings.n, 0);
}

static void test_nested_repository(void **state)
{
	make_repository();
	fix_sh("cd r; git init -q nested; cd nested; echo 1 > a; git add a; git commit -q -m x");
	take("r", false);
	assert_non_null(entry_find(&snap->entries, "nested/a"));
	assert_true(snap->git.dirty);
}

static void test_sparse_checkout(void **state)
{
	make_repository();
	fix_sh("cd r; git sparse-checkout set --cone --no-sparse-index d");
	take("r", false);
	expect_git(false, 0, 0, 0);
	expect_list("f0 2 d/f\nf0 4 g\nl0 1 l\nf1 10 x\n");
	fix_sh("cd r; git sparse-checkout set --cone --sparse-index d");
	take("r", false);
	expect_git(false, 0, 0, 0);
	expect_list("f0 2 d/f\nf0 4 g\nl0 1 l\nf1 10 x\n");
	assert_false(snap->git.library);
	assert_true(warns("git was asked"));
}

static void test_split_index(void **state)
{
	make_repository();
	fix_sh("cd r; git update-index --split-index; echo 4 > g");
	/* git sets the time of the shared index whenever it reads it. */
	AUTO_FREE char *before = git_files(false);
	take("r", false);
	expect_git(true, 1, 0, 0);
	assert_true(warns("is split"));
	AUTO_FREE char *after = git_files(false);
	assert_string_equal(before, after);
}

static void test_sha256_repository(void **state)
{
	fix_sh("git init -q --object-format=sha256 r; cd r; echo 1 > a; echo 2 > b; mkdir c;"
	       "echo '*.log' > .gitignore; echo 3 > c/d; echo 4 > kept.log; git add -f .;"
	       "git commit -q -m x; echo x > gone.log");
	take("r", false);
	expect_git(false, 0, 0, 0);
	assert_non_null(entry_find(&snap->entries, "kept.log"));
	assert_null(entry_find(&snap->entries, "gone.log"));
	assert_int_equal(strlen(snap->git.commit), 64);
	assert_true(warns("libgit2"));
	fix_sh("cd r; echo 22 > a; rm b; echo n > n");
	take("r", true);
	expect_git(true, 1, 1, 1);
	fix_sh("cd r; git add a b n; git commit -q -m y; echo 33 > a; git add a");
	take("r", true);
	expect_git(true, 0, 0, 0);
}

static void test_no_repository(void **state)
{
	fix_sh("mkdir -p p/a; echo '*.o' > p/.gitignore; echo 1 > p/a/f; echo 2 > p/x.o");
	take("p", true);
	assert_false(snap->git.present);
	expect_list("f0 4 .gitignore\nf0 2 a/f\n");
	assert_int_equal(snap->warnings.n, 0);
}

static void test_broken_git_file(void **state)
{
	fix_sh("mkdir p; echo 1 > p/f; echo 'gitdir: /nowhere' > p/.git");
	take("p", false);
	expect_list("f0 2 f\n");
	assert_false(snap->git.present);
	assert_true(warns("/nowhere"));
}

static void test_foreign_owner(void **state)
{
	if (!fix_is_root())
		skip();
	make_repository();
	fix_sh("chown -R 4321 r");
	assert_int_equal(try_take("r", false), -ERR_AUTH);
	assert_int_equal(err.id, E_SNAPSHOT_OWNER);
	assert_non_null(strstr(err.hint, "safe.directory"));
}

static void test_paths_and_include(void **state)
{
	make_repository();
	fix_sh("cd r; echo e/f > .dlrunignore; echo '*.bin' > .gitignore; echo 1 > d/v.bin; rm x;"
	       "echo 1 > e/n");
	strv_add(&limits, "d");
	strv_add(&limits, "e");
	strv_add(&include, "d/v.bin");
	take("r", false);
	expect_list("f0 2 d/f\nf0 2 d/v.bin\nf0 2 e/n\n");
	/* x is deleted, but not asked for; e/f was dropped, which is no deletion. */
	expect_git(true, 0, 2, 0);
}

static void test_odd_files(void **state)
{
	fix_sh("mkdir p; cd p; : > empty; mkfifo fifo; ln -s /nowhere dangling; ln -s l l;"
	       "ln -s \"$(printf '%04000d' 0)\" long; printf x > \"$(printf 'a\\nb\\t\\377')\";"
	       "ln empty hard; touch -d 2106-01-01 future; touch -d 1960-01-01 past;"
	       "chmod 4711 past");
	take("p", true);
	assert_int_equal(entry_find(&snap->entries, "long")->size, 4000);
	assert_int_equal(strlen(entry_find(&snap->entries, "long")->target), 4000);
	assert_non_null(entry_find(&snap->entries, "a\nb\t\377"));
	assert_null(entry_find(&snap->entries, "fifo"));
	assert_true(entry_find(&snap->entries, "past")->exec);
	assert_string_equal(entry_find(&snap->entries, "l")->target, "l");
	assert_true(warns("'fifo' is a socket, FIFO or device"));
	assert_true(warns("'dangling' is a symbolic link out of the tree"));
}

static void test_warnings(void **state)
{
	fix_sh("mkdir -p p/a/__pycache__ p/b; cd p; echo x > a/__pycache__/m.pyc;"
	       "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:0\\n' > a/lfs;"
	       "cp a/lfs lfs2; printf '#!/bin/sh\\r\\n' > s.sh;"
	       "printf '#!/bin/sh\\nx\\r\\n' > ok.sh; ln -s ../x a/in; ln -s ../../x a/out;"
	       "ln -s b/../../y out2; ln -s b/.. in2; ln -s ./a/.././b in3;"
	       "echo x > not__pycache__");
	settle();
	take("p", true);
	assert_true(snap->stats.n_hashed > 5);
	assert_true(warns("2 files are pointers of Git LFS"));
	assert_true(warns("such as 'a/lfs'"));
	assert_true(warns("'s.sh' begins with a #! line"));
	assert_true(warns("2 symbolic links lead out of the tree"));
	assert_true(warns("such as 'a/out'"));
	assert_true(warns("'a/__pycache__/m.pyc' is compiled Python"));
	assert_int_equal(snap->warnings.n, 4);
	/* From the stat cache they are the same. */
	take("p", true);
	assert_int_equal(snap->stats.n_hashed, 5);
	assert_int_equal(snap->warnings.n, 4);
	assert_true(warns("2 files are pointers of Git LFS"));
	assert_true(warns("'s.sh' begins"));
}

/*
 * The stat cache
 */

static void test_cache(void **state)
{
	make_repository();
	settle();
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 5);
	take("r", true);
	/* Links are always read. */
	assert_int_equal(snap->stats.n_hashed, 1);
	expect_bytes("r");
	expect_git(false, 0, 0, 0);
	fix_sh("cd r; echo edited > g");
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 2);
	expect_bytes("r");
	expect_git(true, 1, 0, 0);
	/* Still young: read again, and right. */
	fix_sh("cd r; echo EDITED > g");
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 2);
	expect_bytes("r");
}

/* The same size, and times that are set back: ctime tells. */
static void test_racy_edits(void **state)
{
	make_repository();
	settle();
	take("r", true);
	for (int i = 0; i < 20; i++) {
		AUTO_FREE char *script = mem_printf(
			"cd r; touch -r g stamp; echo %03d > g; touch -r stamp g; rm stamp", i);
		fix_sh(script);
		take("r", true);
		expect_bytes("r");
	}
}

static void test_same_tick_edits(void **state)
{
	fix_sh("mkdir p");
	for (int i = 0; i < 200; i++) {
		char text[2] = {(char)('a' + i % 26), '\0'};
		uint8_t expected[SHA256_SIZE];

		fix_put("p/f", text);
		take("p", true);
		digest_sha256(text, 1, expected);
		assert_memory_equal(snap->entries.v[0].sha256, expected, SHA256_SIZE);
	}
}

static void test_cache_of_no_repository(void **state)
{
	fix_sh("mkdir p; echo 1 > p/a; echo 2 > p/b");
	settle();
	take("p", true);
	take("p", true);
	assert_int_equal(snap->stats.n_hashed, 0);
	/* Ids of blobs are wanted now. */
	fix_sh("cd p; git init -q; git add .; git commit -q -m x");
	take("p", true);
	assert_int_equal(snap->stats.n_hashed, 2);
	expect_git(false, 0, 0, 0);
	take("p", true);
	assert_int_equal(snap->stats.n_hashed, 0);
	expect_git(false, 0, 0, 0);
}

/* A snapshot of a part leaves what is known of the rest. */
/* So many that they are looked up in parts. */
static void test_cache_of_many(void **state)
{
	char id[DIGEST_TEXT_SIZE];

	fix_sh("mkdir r; cd r; seq -f 'f%05g' 0 5000 | xargs touch");
	settle();
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 5001);
	settle();
	fix_sh("cd r; for i in 00000 02047 02048 04095 04096 05000; do echo $i > f$i; done;"
	       "rm f02046 f04097; touch f04095x");
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 7);
	assert_int_equal(snap->entries.n, 5000);
	memcpy(id, snap->id, sizeof(id));
	take("r", false);
	assert_int_equal(snap->stats.n_hashed, 5000);
	assert_string_equal(snap->id, id);
}

static void test_cache_of_a_part(void **state)
{
	make_repository();
	settle();
	take("r", true);
	fix_sh("cd r; touch -d 2001-01-01 d/f");
	settle();
	strv_add(&limits, "d");
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 1);
	strv_done(&limits);
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 1);
}

static bool has(const char *path)
{
	vec_foreach (const struct entry, e, &snap->entries)
		if (str_eq(e->path, path))
			return true;
	return false;
}

static void expect_commit(void)
{
	AUTO_FREE char *expected = fix_out("git -C r rev-parse HEAD");

	assert_string_equal(snap->git.commit, expected);
}

/* The walk begins by those of the last time. */
static void test_settings_that_change(void **state)
{
	static const char *const kept[] = {"true", "rm $f", "echo x >$f",
		"printf 'ignore_case 0\nexcludes_file /x\nx' >$f", "echo ignore_case 1 >$f"};

	make_repository();
	fix_sh("touch r/a.tmp; echo '*.tmp' > none-of-these");
	take("r", true);
	assert_true(has("a.tmp"));
	for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++) {
		fix_sh("git -C r config core.excludesFile \"$PWD/none-of-these\"");
		take("r", true);
		assert_false(has("a.tmp"));
		expect_commit();
		AUTO_FREE char *script = mem_printf("f=$(ls cache/*/settings.v1); %s", kept[i]);
		fix_sh(script);
		take("r", true);
		assert_false(has("a.tmp"));
		fix_sh("git -C r config --unset core.excludesFile;"
		       "git -C r commit -q --allow-empty -m more");
		take("r", true);
		assert_true(has("a.tmp"));
		expect_commit();
	}
}

static void test_owner_that_changes(void **state)
{
	if (!fix_is_root())
		skip();
	make_repository();
	take("r", true);
	fix_sh("chown -R 4321 r");
	assert_true(try_take("r", true) < 0);
	assert_int_equal(err.id, E_SNAPSHOT_OWNER);
	err_clear(&err);
	fix_sh("chown -R 0 r");
	take("r", true);
}

static char *cache_file(void)
{
	return fix_out("echo $PWD/cache/*/stat.v1");
}

static void test_damaged_cache(void **state)
{
	static const char *const damage[] = {"truncate -s 100", "truncate -s 0", "rm -f",
		"dd if=/dev/zero bs=1 count=1 seek=120 conv=notrunc status=none of="};

	make_repository();
	settle();
	for (size_t i = 0; i < sizeof(damage) / sizeof(*damage); i++) {
		take("r", true);
		AUTO_FREE char *file = cache_file();
		AUTO_FREE char *script =
			mem_printf("%s%s%s", damage[i], str_ends(damage[i], "=") ? "" : " ", file);
		fix_sh(script);
		take("r", true);
		assert_int_equal(snap->stats.n_hashed, 5);
		expect_bytes("r");
	}
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 1);
}

static void test_cache_directory_that_is_a_file(void **state)
{
	make_repository();
	fix_put("cache", "");
	take("r", true);
	expect_bytes("r");
	expect_git(false, 0, 0, 0);
}

/* The clock went forward a day and back: nothing wrong is taken for right. */
static void test_future_times(void **state)
{
	fix_sh("mkdir p");
	for (int i = 0; i < 3; i++) {
		AUTO_FREE char *script = mem_printf("echo %d > p/f; touch -d '1 day' p/f", i);
		fix_sh(script);
		take("p", true);
		assert_int_equal(snap->stats.n_hashed, 1);
		expect_bytes("p");
	}
}

static void test_two_at_once(void **state)
{
	make_repository();
	settle();
	for (int i = 0; i < 8; i++) {
		pid_t pids[4];
		for (size_t k = 0; k < 4; k++) {
			pids[k] = fork();
			if (pids[k] == 0) {
				int rc = try_take("r", true);
				_exit(rc < 0 || snap->entries.n != 5);
			}
		}
		for (size_t k = 0; k < 4; k++) {
			int status;
			assert_int_equal(waitpid(pids[k], &status, 0), pids[k]);
			assert_int_equal(status, 0);
		}
	}
	take("r", true);
	assert_int_equal(snap->stats.n_hashed, 1);
}

/*
 * Files that change while they are read
 */

struct writer {
	char *path;
	atomic_bool stop;
	pthread_t thread;
};

/* Appends a line each millisecond. */
static void *append(void *arg)
{
	struct writer *writer = arg;
	int fd = open(writer->path, O_WRONLY | O_APPEND | O_CLOEXEC);

	while (!atomic_load(&writer->stop)) {
		if (write(fd, "line\n", 5) != 5)
			break;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	close(fd);
	return NULL;
}

/* Changes the first byte all the time, never the size. */
static void *scribble(void *arg)
{
	struct writer *writer = arg;
	int fd = open(writer->path, O_WRONLY | O_CLOEXEC);
	char c = 0;

	while (!atomic_load(&writer->stop)) {
		if (pwrite(fd, &c, 1, 0) != 1)
			break;
		c++;
	}
	close(fd);
	return NULL;
}

static void start(struct writer *writer, void *(*fn)(void *), const char *name)
{
	writer->path = fix_path(name);
	atomic_init(&writer->stop, false);
	assert_int_equal(pthread_create(&writer->thread, NULL, fn, writer), 0);
}

static void stop(struct writer *writer)
{
	atomic_store(&writer->stop, true);
	pthread_join(writer->thread, NULL);
	free(writer->path);
}

/* Either an error that names it, or whole lines. */
static void test_growing_file(void **state)
{
	struct writer writer;

	fix_sh("mkdir p; : > p/log; echo 1 > p/other");
	start(&writer, append, "p/log");
	for (int i = 0; i < 50; i++) {
		int rc = try_take("p", true);
		if (rc < 0) {
			assert_int_equal(err.id, E_IO_CHANGED);
			assert_non_null(strstr(err.message, "'log'"));
			continue;
		}
		const struct entry *log = entry_find(&snap->entries, "log");
		AUTO_FREE char *text = mem_alloc(log->size + 1, 1);
		uint8_t expected[SHA256_SIZE];
		assert_int_equal(log->size % 5, 0);
		for (size_t at = 0; at < log->size; at += 5)
			memcpy(text + at, "line\n", 5);
		digest_sha256(text, log->size, expected);
		assert_memory_equal(log->sha256, expected, SHA256_SIZE);
	}
	stop(&writer);
}

static void test_file_that_never_rests(void **state)
{
	struct writer writer;

	/* Large enough that a write falls into every reading. */
	fix_sh("mkdir p; head -c 30000000 /dev/zero > p/big; echo 1 > p/other");
	start(&writer, scribble, "p/big");
	int rc = try_take("p", true);
	stop(&writer);
	assert_int_equal(rc, -ERR_IO);
	assert_int_equal(err.id, E_IO_CHANGED);
	assert_non_null(strstr(err.message, "'big' kept changing"));
	assert_non_null(strstr(err.hint, ".dlrunignore"));
}

/* Swaps a file, a directory and a link for one another. */
static void *swap(void *arg)
{
	struct writer *writer = arg;
	AUTO_FREE char *a = mem_printf("%s.a", writer->path);
	AUTO_FREE char *b = mem_printf("%s.b", writer->path);

	while (!atomic_load(&writer->stop)) {
		(void)!rename(writer->path, b);
		(void)!rename(a, writer->path);
		(void)!rename(b, a);
	}
	return NULL;
}

static void test_kinds_that_swap(void **state)
{
	struct writer writer;

	fix_sh("mkdir p; echo secret > outside; echo 1 > p/x; ln -s ../outside p/x.a;"
	       "echo 2 > p/y");
	start(&writer, swap, "p/x");
	for (int i = 0; i < 200; i++) {
		int rc = try_take("p", false);
		const struct entry *x = rc < 0 ? NULL : entry_find(&snap->entries, "x");
		if (rc < 0)
			assert_int_equal(err.id, E_IO_CHANGED);
		else if (x)
			assert_int_equal(x->size, x->kind == ENTRY_LINK ? 10 : 2);
	}
	stop(&writer);
}

/* In a process of another user, because root reads everything. */
static void test_unreadable(void **state)
{
	int status;

	fix_sh("mkdir -p p/d; echo 1 > p/d/f; echo 2 > p/g; echo 3 > p/ok; chmod 755 .;"
	       "chmod -R go+rX p; chmod 000 p/g p/d/f");
	pid_t pid = fork();
	if (pid == 0) {
		if (fix_is_root() && (setgid(4321) || setuid(4321)))
			_exit(9);
		int rc = try_take("p", false);
		bool good = rc == -ERR_IO && err.id == E_IO_READ &&
			    strstr(err.message, "'d/f' cannot be read") &&
			    str_starts(err.hint, "chmod u+r /") && err.n_evidence == 1;
		_exit(good ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/*
 * Later
 */

static void test_refresh(void **state)
{
	char id[DIGEST_TEXT_SIZE];

	make_repository();
	take("r", true);
	memcpy(id, snap->id, sizeof(id));
	assert_int_equal(snapshot_refresh(snap, &err), 0);
	assert_string_equal(snap->id, id);
	fix_sh("cd r; echo edited > g; rm d/f; rm l; ln -s x l; chmod -x x");
	size_t hashed = snap->stats.n_hashed;
	assert_int_equal(snapshot_refresh(snap, &err), 0);
	assert_int_equal(snap->stats.n_hashed, hashed + 3);
	assert_string_not_equal(snap->id, id);
	expect_list("f0 3 e/f\nf0 7 g\nl0 1 l\nf0 10 x\n");
	expect_git(true, 3, 0, 1);
	expect_bytes("r");
	assert_string_equal(entry_find(&snap->entries, "l")->target, "x");
	fix_sh("cd r; rm -rf *");
	assert_int_equal(snapshot_refresh(snap, &err), -ERR_CONFIG);
	assert_int_equal(err.id, E_SNAPSHOT_EMPTY);
}

static void test_opener(void **state)
{
	make_repository();
	take("r", false);
	struct entry_opener opener = snapshot_opener(snap);
	const struct entry *g = entry_find(&snap->entries, "g");
	AUTO_BUF struct buf buf = {0};
	int fd = -1;

	assert_int_equal(opener.open(opener.ctx, g, &fd, &err), 0);
	assert_int_equal(fs_read_fd(fd, "g", 100, &buf, NULL), 0);
	assert_string_equal(buf.data, "333\n");
	close(fd);
	fd = -1;
	fix_sh("cd r; rm g; ln -s x g; rm d/f; mkdir d/f; rm e/f; mkfifo e/f; rm x");
	vec_foreach (const struct entry, e, &snap->entries) {
		if (e->kind == ENTRY_LINK)
			continue;
		assert_true(opener.open(opener.ctx, e, &fd, &err) < 0);
		assert_int_equal(err.id, E_IO_CHANGED);
		assert_int_equal(fd, -1);
	}
}

/* A directory that becomes a link must not lead out of the tree. */
static void test_opener_stays_inside(void **state)
{
	make_repository();
	take("r", false);
	struct entry_opener opener = snapshot_opener(snap);
	int fd = -1;

	fix_sh("mkdir out; echo 1 > out/f; cd r; rm -r d; ln -s ../out d");
	assert_true(opener.open(opener.ctx, &snap->entries.v[0], &fd, &err) < 0);
	assert_int_equal(err.id, E_IO_CHANGED);
}

static void test_limits_come_first(void **state)
{
	make_repository();
	fix_sh("cd r; echo k > .env");
	assert_int_equal(try_take("r", true), -ERR_LIMIT);
	assert_int_equal(err.id, E_SNAPSHOT_SECRET);
	strv_add(&allow, ".env");
	take("r", true);
	expect_git(true, 0, 1, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_clean),
		test(test_id),
		test(test_counts),
		test(test_staged),
		test(test_unborn_and_detached),
		test(test_conflict),
		test(test_assume_unchanged_and_skip_worktree),
		test(test_line_ends),
		test(test_file_mode_off),
		test(test_linked_work_tree),
		test(test_submodule),
		test(test_nested_repository),
		test(test_sparse_checkout),
		test(test_split_index),
		test(test_sha256_repository),
		test(test_no_repository),
		test(test_broken_git_file),
		test(test_foreign_owner),
		test(test_paths_and_include),
		test(test_odd_files),
		test(test_warnings),
		test(test_cache),
		test(test_racy_edits),
		test(test_same_tick_edits),
		test(test_cache_of_no_repository),
		test(test_cache_of_many),
		test(test_cache_of_a_part),
		test(test_settings_that_change),
		test(test_owner_that_changes),
		test(test_damaged_cache),
		test(test_cache_directory_that_is_a_file),
		test(test_future_times),
		test(test_two_at_once),
		test(test_growing_file),
		test(test_file_that_never_rests),
		test(test_kinds_that_swap),
		test(test_unreadable),
		test(test_refresh),
		test(test_opener),
		test(test_opener_stays_inside),
		test(test_limits_come_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
