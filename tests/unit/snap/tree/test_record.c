/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <signal.h>
#include <sys/file.h>
#include <time.h>

#include "base/os/fs.h"
#include "snap/git/gitodb.h"
#include "snap/tree/record.h"
#include "tests/unit/gitfix.h"

static struct snapshot *snap;
static struct record record;
static struct err err;

static void forget(void)
{
	snapshot_free(TAKE(snap));
	record_done(&record);
	err_clear(&err);
}

static int teardown(void **state)
{
	forget();
	return fix_teardown(state);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fix_setup, teardown)

static void take(const char *tree)
{
	AUTO_FREE char *start = fix_path(tree);
	struct tree_place place = {0};
	struct tree_place_options find = {.start = start, .home = fix_home};
	struct snapshot_options options = {.place = &place, .home = fix_home};

	forget();
	if (tree_place_find(&find, &place, &err) < 0 || snapshot_take(&options, &snap, &err) < 0)
		fail_msg("%s", err.message);
	tree_place_done(&place);
}

static void write_taken(const char *run_id)
{
	struct record_request request = {
		.snapshot = snap,
		.run_id = run_id,
		.message = "run it\n\nDlrun-Run: x",
		.wall_ms = INT64_C(1700000000999),
	};

	record_done(&record);
	record_write(&request, &record);
	assert_true(!record.commit != !record.why);
}

/* For a process that a test started: an assertion there would go on in the middle of the tests. */
static bool try_record(const char *tree, const char *run_id)
{
	AUTO_FREE char *start = fix_path(tree);
	struct tree_place place = {0};
	struct tree_place_options find = {.start = start, .home = fix_home};
	struct snapshot_options options = {.place = &place, .home = fix_home};
	struct record_request request = {
		.run_id = run_id, .message = "x", .wall_ms = INT64_C(1700000000999)};

	if (tree_place_find(&find, &place, &err) < 0 || snapshot_take(&options, &snap, &err) < 0)
		return false;
	request.snapshot = snap;
	record_write(&request, &record);
	return record.commit;
}

/* A record that is made. */
static void write_record(const char *tree, const char *run_id)
{
	take(tree);
	write_taken(run_id);
	if (record.why)
		fail_msg("%s", record.why);
}

/* A record that is not made. */
static void expect_none(const char *tree, const char *words)
{
	take(tree);
	write_taken("none");
	assert_null(record.commit);
	if (!record.why || !strstr(record.why, words))
		fail_msg("no \"%s\" in \"%s\"", words, record.why ? record.why : "(none)");
}

static void expect_output(const char *script, const char *expected)
{
	AUTO_FREE char *got = fix_out(script);

	assert_string_equal(got, expected);
}

static void make_repository(void)
{
	fix_sh("git init -q r; cd r; mkdir -p d/e f; echo 1 > d/e/f; echo 22 > f/g; echo 333 > g;"
	       "ln -s g l; echo '#!/bin/sh' > x; chmod +x x; git add -A; git commit -q -m one");
}

/* With one file each. */
static void make_directories(int n)
{
	AUTO_FREE char *script = mem_printf("cd r; i=0; while [ $i -lt %d ]; do"
					    " mkdir s$i; echo s$i > s$i/f; i=$((i + 1)); done",
		n);

	fix_sh(script);
}

/* What git itself makes of the files, without any filter, in a repository of its own. */
static void expect_tree(const char *tree, const char *run_id)
{
	AUTO_FREE char *script =
		mem_printf("rm -rf other; mkdir other; (cd %s; tar --exclude=.git -cf - .) |"
			   "tar -xf - -C other;"
			   "cd other; git init -q; git add -A -f; git write-tree",
			tree);
	AUTO_FREE char *expected = fix_out(script);
	AUTO_FREE char *query =
		mem_printf("git -C %s rev-parse 'refs/dlrun/%s^{tree}'", tree, run_id);

	expect_output(query, expected);
}

/* Nothing of ours but the reference and whole objects. */
static void expect_sound(const char *tree)
{
	AUTO_FREE char *script =
		mem_printf("cd %s; git fsck --strict --no-dangling 2>&1 | grep -v ^notice: || true;"
			   "cd $(git rev-parse --git-common-dir);"
			   "find . -name '*tmp*' -o -name '*.lock' -o -name '*dlrun-*'",
			tree);

	expect_output(script, "");
}

static void test_dirty(void **state)
{
	make_repository();
	fix_sh("cd r; echo edited > d/e/f; echo new > n; rm g; chmod +x f/g");
	write_record("r", "run-1");
	assert_string_equal(record.ref, "refs/dlrun/run-1");
	expect_output("git -C r rev-parse refs/dlrun/run-1", record.commit);
	expect_tree("r", "run-1");
	expect_sound("r");
	expect_output("cd r; git diff --name-status HEAD refs/dlrun/run-1",
		"M\td/e/f\nM\tf/g\nD\tg\nA\tn");
	expect_output("cd r; git log -1 --format='%an|%ae|%at|%cn|%ce|%ct|%ci|%B' refs/dlrun/run-1",
		"Test Person|test@example.com|1700000000|Test Person|test@example.com|1700000000|"
		"2023-11-14 22:13:20 +0000|run it\n\nDlrun-Run: x");
	expect_output("cd r; test $(git rev-parse HEAD) = $(git rev-parse refs/dlrun/run-1^)", "");
	fix_sh("cd r; git stash -q -u; git checkout -q refs/dlrun/run-1; test \"$(cat n)\" = new");
}

/* Nothing but the reference and objects is new, and of these only what is needed. */
static void test_only_what_is_needed(void **state)
{
	static const char *const list =
		"cd r/.git; find . -type f | LC_ALL=C sort | xargs sha256sum; find . -type d | "
		"LC_ALL=C sort";

	make_repository();
	AUTO_FREE char *script = mem_printf("(%s) > before", list);
	fix_sh(script);
	write_record("r", "clean");
	AUTO_FREE char *again = mem_printf("(%s) > after", list);
	fix_sh(again);
	expect_output("diff before after | grep -c '^<' || true", "0");
	/* One file and one directory each for the reference and the commit. */
	expect_output("diff before after | grep -c '^> [0-9a-f]'", "2");
	expect_tree("r", "clean");
	fix_sh("cd r; echo edited > d/e/f");
	write_record("r", "edit");
	fix_sh("mv after before");
	fix_sh(again);
	expect_output("diff before after | grep -c '^<' || true", "0");
	/* Blob, three trees, commit, reference. */
	expect_output("diff before after | grep -c '^> [0-9a-f]'", "6");
	expect_sound("r");
}

static void test_same_again(void **state)
{
	make_repository();
	fix_sh("cd r; echo edited > g");
	write_record("r", "a");
	AUTO_FREE char *commit = mem_strdup(record.commit);
	write_record("r", "a");
	assert_string_equal(record.commit, commit);
	write_record("r", "b");
	assert_string_equal(record.commit, commit);
	expect_output("git -C r for-each-ref --format='%(refname)' refs/dlrun",
		"refs/dlrun/a\nrefs/dlrun/b");
	expect_sound("r");
}

static void test_unborn(void **state)
{
	fix_sh("git init -q r; cd r; echo 1 > a; mkdir d; : > d/empty; git add -N a");
	write_record("r", "first");
	expect_tree("r", "first");
	expect_output("git -C r log --format=%P refs/dlrun/first", "");
	expect_sound("r");
}

/* The index says that the empty blob is there, but it is not. */
static void test_intent_to_add(void **state)
{
	make_repository();
	fix_sh("cd r; : > e; git add -N e");
	write_record("r", "e");
	expect_tree("r", "e");
	expect_sound("r");
}

static void test_many_objects_make_one_pack(void **state)
{
	make_repository();
	fix_sh("cd r; i=0; while [ $i -lt 60 ]; do echo $i > n$i; i=$((i + 1)); done");
	write_record("r", "few");
	expect_output("ls r/.git/objects/pack", "");
	make_directories(100);
	AUTO_FREE char *loose = fix_out("find r/.git/objects -type f ! -path '*/pack/*' | wc -l");
	write_record("r", "many");
	expect_output("find r/.git/objects -type f ! -path '*/pack/*' | wc -l", loose);
	expect_output("ls r/.git/objects/pack | sed 's/.*\\.//'", "idx\npack");
	/* 100 blobs and directories, the root, the commit. */
	expect_output("cd r; git verify-pack -v .git/objects/pack/*.idx |"
		      "grep -Ec '^[0-9a-f]{40} (commit|tree|blob)'",
		"202");
	expect_tree("r", "many");
	expect_sound("r");
	write_record("r", "again");
	expect_output("ls r/.git/objects/pack | wc -l", "2");
}

static void test_nested_and_submodule(void **state)
{
	make_repository();
	fix_sh("git init -q s; cd s; echo s > s; mkdir t; echo t > t/t; git add .;"
	       "git commit -q -m s; cd ../r; git submodule --quiet add ../s sub;"
	       "git clone -q ../s d/nested; echo more > sub/more");
	write_record("r", "sub");
	expect_output("git -C r ls-tree -r --name-only refs/dlrun/sub",
		".gitmodules\nd/e/f\nd/nested/s\nd/nested/t/t\nf/g\ng\nl\n"
		"sub/more\nsub/s\nsub/t/t\nx");
	expect_output("git -C r show refs/dlrun/sub:sub/t/t", "t");
	expect_sound("r");
}

static void test_bytes_as_on_disk(void **state)
{
	make_repository();
	fix_sh("cd r; git config core.autocrlf true; echo '*.t text filter=none ident' >"
	       ".gitattributes; printf 'a\\r\\n$Id: x$\\n' > a.t");
	write_record("r", "crlf");
	expect_output("cd r; git cat-file blob refs/dlrun/crlf:a.t | cmp - a.t", "");
	expect_sound("r");
}

static void test_odd_names(void **state)
{
	make_repository();
	fix_sh("cd r; mkdir a a.b a-b 'a b'; for d in a a.b a-b 'a b' .; do echo $d > \"$d/a.c\";"
	       " echo $d > \"$d/a0\"; done; echo x > \"$(printf 'n\\n\\377')\"; echo x > gitx;"
	       "mkdir .gitx; echo x > .gitx/.gitignore; echo x > git~x");
	write_record("r", "odd");
	expect_tree("r", "odd");
	expect_sound("r");
}

static void test_linked_work_tree(void **state)
{
	make_repository();
	fix_sh("cd r; git worktree add -q -b side ../w; echo n > ../w/n; git -C ../w add n;"
	       "git -C ../w commit -q -m n; echo m > ../w/m");
	write_record("w", "tree");
	expect_output("git -C r rev-parse refs/dlrun/tree", record.commit);
	expect_output(
		"test $(git -C w rev-parse HEAD) = $(git -C r rev-parse refs/dlrun/tree^)", "");
	expect_sound("w");
}

static void test_split_index(void **state)
{
	make_repository();
	fix_sh("cd r; git update-index --split-index; echo 4 > g");
	write_record("r", "split");
	expect_tree("r", "split");
}

static void test_file_mode_off(void **state)
{
	make_repository();
	fix_sh("cd r; git config core.fileMode false; chmod +x g; chmod -x x; echo n > n;"
	       "chmod +x n");
	write_record("r", "mode");
	expect_output(
		"git -C r ls-tree refs/dlrun/mode g n x | cut -c1-6", "100644\n100644\n100644");
}

static void test_no_name_configured(void **state)
{
	make_repository();
	fix_sh("rm home/.gitconfig");
	write_record("r", "nobody");
	expect_output("git -C r log -1 --format='%an <%ae>' refs/dlrun/nobody", "dlrun <dlrun>");
	fix_sh("cd r; git config user.name '  <A>\tB  '; git config user.email '<>'");
	write_record("r", "odd");
	expect_output("git -C r log -1 --format='%an <%ae>' refs/dlrun/odd", "AB <dlrun>");
	expect_sound("r");
}

static void test_shared_repository(void **state)
{
	make_repository();
	fix_sh("cd r; find .git -type d -exec chmod g+ws {} +; echo edited > g");
	write_record("r", "shared");
	expect_output(
		"cd r/.git; stat -c %A refs/dlrun | cut -c6-7; find objects -type d ! -perm -2020",
		"ws");
}

static void test_none_without_repository(void **state)
{
	fix_sh("mkdir p; echo 1 > p/a; git init -q --object-format=sha256 r; echo 1 > r/a");
	expect_none("p", "not in a git repository");
	expect_none("r", "SHA-256");
	fix_sh("rm -rf r");
	make_repository();
	fix_sh("cd r; git config core.repositoryFormatVersion 1;"
	       "git config extensions.preciousObjects 1");
	/* libgit2 before 1.9 does not write to such a repository. */
	take("r");
	write_taken("none");
	assert_true(record.commit || strstr(record.why, "cannot be written to"));
	expect_output(record.commit ? "find r/.git/objects -path '*dlrun*'"
				    : "find r/.git -path '*dlrun*'",
		"");
}

static void test_none_over_the_limits(void **state)
{
	make_repository();
	fix_sh("cd r; truncate -s 8388608 big");
	write_record("r", "most");
	fix_sh("cd r; truncate -s 8388609 big");
	expect_none("r", "'big' has 8.0 MiB, and no file over 8.0 MiB");
	fix_sh("cd r; rm big; for i in 1 2 3 4 5 6 7 8 9; do truncate -s 8300000 b$i;"
	       "echo $i >> b$i;"
	       "done");
	expect_none("r", "the changed files have");
	expect_sound("r");
	/* What is there already does not count. */
	fix_sh("cd r; git add .; git commit -q -m big");
	write_record("r", "known");
}

static void test_none_when_a_file_changed_since(void **state)
{
	static const char *const changes[] = {"echo other > g", "echo 444 > g", "rm g",
		"rm g; ln -s x g", "rm g; mkfifo g", "truncate -s 9000000 g"};

	make_repository();
	for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
		AUTO_FREE char *script = mem_printf("cd r; %s", changes[i]);
		fix_sh("cd r; rm -f g; echo edited > g");
		take("r");
		fix_sh(script);
		write_taken("late");
		assert_null(record.commit);
		assert_non_null(strstr(record.why, "g"));
		fix_sh("cd r; rm -f g; git checkout -q g");
		expect_sound("r");
	}
	expect_output("git -C r for-each-ref refs/dlrun", "");
}

static void test_none_where_nothing_may_be_written(void **state)
{
	int status;

	make_repository();
	fix_sh("cd r; echo edited > g; chmod -R a+rX ..; chmod 755 ..");
	if (fix_is_root())
		fix_sh("chown -R 4321 r home; chmod -R a-w r/.git");
	else
		fix_sh("chmod -R a-w r/.git");
	pid_t pid = fork();
	if (pid == 0) {
		if (fix_is_root() && (setgid(4321) || setuid(4321)))
			_exit(9);
		bool made = try_record("r", "none");
		_exit(!(!made && record.why && strstr(record.why, "ermission denied")));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	fix_sh("chmod -R u+w r/.git");
	expect_output("find r/.git -path '*dlrun*'", "");
}

/*
 * Processes that die
 */

static void test_leftovers_of_the_dead(void **state)
{
	make_repository();
	fix_sh("cd r/.git/objects; mkdir -p tmp_objdir-dlrun-dead00/ab tmp_objdir-dlrun-dead01;"
	       "echo x > tmp_objdir-dlrun-dead00/ab/cd; : > tmp_objdir-dlrun-dead00/lock;"
	       "mkdir tmp_objdir-dlrun-alive0 tmp_objdir-other; : > tmp_objdir-dlrun-alive0/lock;"
	       ": > tmp_object_git2_x");
	AUTO_FREE char *lock = fix_path("r/.git/objects/tmp_objdir-dlrun-alive0/lock");
	AUTO_FD int fd = open(lock, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	write_record("r", "next");
	expect_output("cd r/.git/objects; LC_ALL=C ls -d tmp*",
		"tmp_objdir-dlrun-alive0\ntmp_objdir-other\ntmp_object_git2_x");
	close(fd);
	fd = -1;
	AUTO_FREE char *root = fix_path("r"), *nowhere = fix_path("nowhere");
	record_sweep(nowhere);
	record_sweep(root);
	expect_output(
		"cd r/.git/objects; LC_ALL=C ls -d tmp*", "tmp_objdir-other\ntmp_object_git2_x");
}

/* Between the two files of a pack: the second follows. */
static void test_half_a_pack(void **state)
{
	make_repository();
	make_directories(100);
	write_record("r", "pack");
	fix_sh("cd r/.git/objects; mkdir -p tmp_objdir-dlrun-dead00/pack;"
	       "mv pack/*.idx tmp_objdir-dlrun-dead00/pack");
	AUTO_FREE char *root = fix_path("r");
	record_sweep(root);
	expect_output("ls r/.git/objects/pack | sed 's/.*\\.//'", "idx\npack");
	expect_sound("r");
	expect_tree("r", "pack");
}

/* Killed at any moment, the repository is sound and the next record cleans up. */
static void test_killed(void **state)
{
	make_repository();
	make_directories(40);
	for (long i = 0; i < 40; i++) {
		char id[32];
		int status;

		snprintf(id, sizeof(id), "killed-%ld", i);
		AUTO_FREE char *script = mem_printf("echo %ld > r/s0/f", i);
		fix_sh(script);
		pid_t pid = fork();
		if (pid == 0) {
			while (try_record("r", id))
				forget();
			_exit(1);
		}
		nanosleep(&(struct timespec){.tv_nsec = 3000000 + i * 300000}, NULL);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
	}
	write_record("r", "after");
	expect_tree("r", "after");
	expect_sound("r");
	fix_sh("cd r; for r in $(git for-each-ref --format='%(refname)' refs/dlrun); do"
	       " git ls-tree -r $r > /dev/null; done");
}

static void test_many_at_once(void **state)
{
	enum { N = 12 };
	pid_t pids[N];

	make_repository();
	make_directories(40);
	for (size_t i = 0; i < N; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			char id[32];
			snprintf(id, sizeof(id), "run-%zu", i);
			_exit(!try_record("r", id));
		}
	}
	for (size_t i = 0; i < N; i++) {
		int status;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	expect_output("git -C r for-each-ref refs/dlrun | wc -l", "12");
	expect_sound("r");
}

/* Whoever gets the lock of a directory of objects has the directory, also while it is swept. */
static void test_sweep_beside_others(void **state)
{
	enum { N = 20 };

	make_repository();
	AUTO_FREE char *git_dir = fix_path("r/.git");
	AUTO_FREE char *dir = fix_path("r/.git/objects/tmp_objdir-dlrun-abcdef");
	AUTO_FREE char *lock = fs_join(dir, "lock");
	for (int i = 0; i < N; i++) {
		AUTO_FD int fd = -1;
		int status, r;

		fix_sh("cd r/.git/objects; mkdir -p tmp_objdir-dlrun-abcdef;"
		       "cd tmp_objdir-dlrun-abcdef; rm -f lock; touch $(seq 1000)");
		pid_t pid = fork();
		if (pid == 0) {
			gitodb_sweep(git_dir);
			_exit(0);
		}
		while (access(lock, F_OK) && access(dir, F_OK) == 0)
			;
		do {
			err_clear(&err);
			r = fs_lock(lock, true, 0, &fd, &err);
		} while (r < 0 && err.id == E_IO_LOCK);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(r < 0 || access(lock, F_OK) == 0);
	}
}

/*
 * Removing
 */

static void test_remove(void **state)
{
	make_repository();
	AUTO_FREE char *root = fix_path("r");
	fix_sh("cd r; echo edited > g");
	write_record("r", "a");
	AUTO_FREE char *commit = mem_strdup(record.commit);
	write_record("r", "b");

	/* It points elsewhere: it is somebody else's. */
	const char *other = "0123456789012345678901234567890123456789";
	assert_int_equal(record_remove(root, "a", other, &err), 0);
	expect_output("git -C r for-each-ref --format='%(refname)' refs/dlrun",
		"refs/dlrun/a\nrefs/dlrun/b");
	assert_int_equal(record_remove(root, "a", commit, &err), 0);
	expect_output("git -C r for-each-ref --format='%(refname)' refs/dlrun", "refs/dlrun/b");
	assert_int_equal(record_remove(root, "a", commit, &err), 0);

	fix_sh("cd r; git pack-refs --all");
	assert_int_equal(record_remove(root, "b", other, &err), 0);
	expect_output("git -C r for-each-ref --format='%(refname)' refs/dlrun", "refs/dlrun/b");
	assert_int_equal(record_remove(root, "b", commit, &err), 0);
	expect_output("git -C r for-each-ref --format='%(refname)' refs/dlrun", "");
	expect_output("git -C r for-each-ref --format='%(refname)'", "refs/heads/main");
	expect_sound("r");
}

/* Whoever wrote it died before it could say which commit: packed, both, loose, gone. */
static void test_remove_whatever_it_is(void **state)
{
	static const char *const ids[] = {"c", "d", "e", "f"};

	make_repository();
	AUTO_FREE char *root = fix_path("r");
	fix_sh("cd r; git update-ref refs/dlrun/c HEAD; git update-ref refs/dlrun/d HEAD;"
	       "git pack-refs --all; git update-ref refs/dlrun/d HEAD;"
	       "git update-ref refs/dlrun/e HEAD");
	for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++)
		assert_int_equal(record_remove(root, ids[i], NULL, &err), 0);
	expect_output("git -C r for-each-ref --format='%(refname)'", "refs/heads/main");
	expect_sound("r");
}

static void test_remove_where_nothing_is(void **state)
{
	AUTO_FREE char *missing = fix_path("nowhere"), *plain = fix_path("p");
	const char *commit = "0123456789012345678901234567890123456789";

	fix_sh("mkdir p");
	assert_int_equal(record_remove(missing, "a", commit, &err), 0);
	assert_int_equal(record_remove(plain, "a", commit, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_dirty),
		test(test_only_what_is_needed),
		test(test_same_again),
		test(test_unborn),
		test(test_intent_to_add),
		test(test_many_objects_make_one_pack),
		test(test_nested_and_submodule),
		test(test_bytes_as_on_disk),
		test(test_odd_names),
		test(test_linked_work_tree),
		test(test_split_index),
		test(test_file_mode_off),
		test(test_no_name_configured),
		test(test_shared_repository),
		test(test_none_without_repository),
		test(test_none_over_the_limits),
		test(test_none_when_a_file_changed_since),
		test(test_none_where_nothing_may_be_written),
		test(test_leftovers_of_the_dead),
		test(test_half_a_pack),
		test(test_killed),
		test(test_many_at_once),
		test(test_sweep_beside_others),
		test(test_remove),
		test(test_remove_whatever_it_is),
		test(test_remove_where_nothing_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
