/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>

#include "base/util/enc.h"
#include "snap/git/repo.h"
#include "tests/unit/gitfix.h"

static struct repos repos;
static struct repos_options options;
static char *root, *git_dir, *home, *xdg;
static struct err err;

static void forget(void)
{
	repos_done(&repos);
	err_clear(&err);
	free(root);
	free(git_dir);
	free(xdg);
	free(home);
	root = git_dir = xdg = home = NULL;
}

static int teardown(void **state)
{
	forget();
	return fix_teardown(state);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fix_setup, teardown)

/* Names are relative to the directory of the test. */
static void start(const char *tree, const char *git)
{
	forget();
	root = fix_path(tree);
	git_dir = git ? fix_path(git) : NULL;
	home = mem_strdup(fix_home);
	options = (struct repos_options){.root = root, .git_dir = git_dir, .home = home};
	repos_init(&repos, &options);
}

static int find(const char *dir)
{
	const struct paths_repo *ret = NULL;
	int rc = repos_find(&repos, dir, &ret, &err);
	const struct repo *repo = repos_at(&repos, dir);

	assert_ptr_equal(ret, rc == 0 && repo ? &repo->paths : NULL);
	return rc;
}

/* The repository of dir, which must be there. */
static const struct repo *take(const char *dir)
{
	if (find(dir) < 0)
		fail_msg("%s", err.message);
	const struct repo *repo = repos_at(&repos, dir);
	assert_non_null(repo);
	return repo;
}

static const struct repo *open_tree(const char *tree, const char *git)
{
	start(tree, git);
	return take("");
}

static char *listing(const struct repo *repo)
{
	struct buf out;

	buf_init(&out, 64 << 20);
	for (size_t i = 0; i < repo->paths.tracked.n; i++) {
		const struct tracked_path *t = &repo->paths.tracked.v[i];
		char hex[2 * SHA1_SIZE + 1];

		hex_encode(t->oid, SHA1_SIZE, hex);
		buf_addf(&out, "%s%06o %s %s", i ? "\n" : "", t->mode, hex, t->path);
	}
	return out.data;
}

/* dir: where git is asked, relative to the directory of the test. */
static void expect_paths(const struct repo *repo, const char *dir)
{
	AUTO_FREE char *got = listing(repo);
	AUTO_FREE char *script =
		mem_printf("cd %s; git -c core.quotePath=false ls-files -s |"
			   "sed -E 's/^([0-9]+ [0-9a-f]{40})[0-9a-f]* [0-3]\t/\\1 /'",
			dir);
	AUTO_FREE char *expected = fix_out(script);

	assert_string_equal(got, expected);
}

static void expect_head(const struct repo *repo, const char *dir, const char *branch)
{
	AUTO_FREE char *script = mem_printf("git -C %s rev-parse HEAD HEAD^{tree}", dir);
	AUTO_FREE char *expected = fix_out(script);
	char hex[2 * SHA1_SIZE + 1];

	assert_non_null(repo->facts.commit);
	assert_memory_equal(repo->facts.commit, expected, strlen(repo->facts.commit));
	if (branch)
		assert_string_equal(repo->facts.branch, branch);
	else
		assert_null(repo->facts.branch);
	if (repo->oid_size == SHA1_SIZE) {
		assert_true(repo->facts.has_tree);
		hex_encode(repo->facts.tree, SHA1_SIZE, hex);
		assert_string_equal(hex, expected + 2 * SHA1_SIZE + 1);
	}
}

static void make_repository(void)
{
	fix_sh("git init -q r; cd r; mkdir d e; echo 1 > d/f; echo 2 > e/f; echo 3 > g; ln -s g l;"
	       "echo x > x; chmod +x x; git add -A; git commit -q -m one");
}

static void test_ordinary(void **state)
{
	make_repository();
	const struct repo *repo = open_tree("r", "r/.git");
	AUTO_FREE char *exclude = fix_path("r/.git/info/exclude");
	AUTO_FREE char *global = fix_path("home/.config/git/ignore");

	expect_paths(repo, "r");
	expect_head(repo, "r", "main");
	assert_null(repo->why);
	assert_null(repo->facts.remote_url);
	assert_true(repo->has_objects);
	assert_true(repo->has_tree);
	assert_memory_equal(repo->tree, repo->facts.tree, SHA1_SIZE);
	assert_string_equal(repo->paths.info_exclude, exclude);
	assert_string_equal(repo->paths.excludes_file, global);
	assert_false(repo->paths.ignore_case);
	assert_true(repo->facts.file_mode);
	assert_string_equal(repo->facts.user_name, "Test Person");
	assert_string_equal(repo->facts.user_email, "test@example.com");
	/* Asked again it is the same one. */
	assert_ptr_equal(take(""), repo);
	assert_int_equal(repos.list.n, 1);
}

static void test_settings(void **state)
{
	make_repository();
	fix_sh("cd r; git config core.ignoreCase true; git config core.fileMode false;"
	       "git remote add origin https://me:secret@example.com/x.git;"
	       "git config --global core.excludesFile '~/my ignore'");
	const struct repo *repo = open_tree("r", "r/.git");
	AUTO_FREE char *global = fix_path("home/my ignore");

	assert_true(repo->paths.ignore_case);
	assert_false(repo->facts.file_mode);
	assert_string_equal(repo->facts.remote_url, "https://example.com/x.git");
	assert_string_equal(repo->paths.excludes_file, global);
}

static void test_excludes_file(void **state)
{
	make_repository();
	start("r", "r/.git");
	xdg = fix_path("xdg");
	options.xdg_config = xdg;
	AUTO_FREE char *expected = fix_path("xdg/git/ignore");
	assert_string_equal(take("")->paths.excludes_file, expected);

	/* git reads its configuration from there, too, and we as git. */
	fix_put("xdg/git/config", "[core]\n\texcludesFile = /etc/ignored\n");
	start("r", "r/.git");
	xdg = fix_path("xdg");
	options.xdg_config = xdg;
	assert_string_equal(take("")->paths.excludes_file, "/etc/ignored");

	fix_sh("git -C r config core.excludesFile ''");
	assert_null(open_tree("r", "r/.git")->paths.excludes_file);
	fix_sh("git -C r config core.excludesFile '~nobody/x'");
	assert_null(open_tree("r", "r/.git")->paths.excludes_file);
	fix_sh("git -C r config --unset core.excludesFile");
	start("r", "r/.git");
	options.home = NULL;
	assert_null(take("")->paths.excludes_file);
}

static void test_unborn(void **state)
{
	fix_sh("git init -q r");
	const struct repo *repo = open_tree("r", "r/.git");
	assert_null(repo->facts.commit);
	assert_false(repo->facts.has_tree);
	assert_string_equal(repo->facts.branch, "main");
	assert_int_equal(repo->paths.tracked.n, 0);
	fix_sh("cd r; echo 1 > a; git add a");
	expect_paths(open_tree("r", "r/.git"), "r");
}

static void test_detached_and_packed(void **state)
{
	make_repository();
	fix_sh("cd r; git checkout -q -b a/b; git pack-refs --all; git gc -q");
	expect_head(open_tree("r", "r/.git"), "r", "a/b");
	fix_sh("cd r; git checkout -q --detach");
	expect_head(open_tree("r", "r/.git"), "r", NULL);
}

static void make_conflict(void)
{
	make_repository();
	fix_sh("cd r; git checkout -q -b o; echo b > g; git commit -q -a -m 2;"
	       "git checkout -q main;"
	       "echo c > g; git commit -q -a -m 3");
}

static void test_merge_conflict(void **state)
{
	make_conflict();
	fix_sh("cd r; git merge -q o || true");
	const struct repo *repo = open_tree("r", "r/.git");
	expect_head(repo, "r", "main");
	const struct tracked_path *t = tracked_find(&repo->paths.tracked, "g");
	assert_true(t->conflict);
	assert_false(tracked_find(&repo->paths.tracked, "d/f")->conflict);
	assert_int_equal(repo->paths.tracked.n, 5);
}

static void test_rebase(void **state)
{
	make_conflict();
	fix_sh("cd r; git rebase -q o 2>/dev/null || true");
	const struct repo *repo = open_tree("r", "r/.git");
	expect_head(repo, "r", NULL);
	assert_true(tracked_find(&repo->paths.tracked, "g")->conflict);
}

static void test_linked_work_tree(void **state)
{
	make_repository();
	fix_sh("cd r; git worktree add -q -b side ../w; cd ../w; echo n > n; git add n");
	const struct repo *repo = open_tree("w", "r/.git/worktrees/w");
	AUTO_FREE char *exclude = fix_path("r/.git/info/exclude");

	expect_paths(repo, "w");
	expect_head(repo, "w", "side");
	assert_string_equal(repo->paths.info_exclude, exclude);
	assert_true(repo->has_objects);
	assert_null(repo->why);
}

static void test_submodule_and_nested(void **state)
{
	make_repository();
	fix_sh("git init -q s; cd s; echo s > s; git add s; git commit -q -m s; cd ../r;"
	       "git submodule --quiet add ../s sub; git clone -q ../s d/nested; mkdir plain stray;"
	       "mkdir stray/.git; echo 'gitdir: /nowhere' > e/.git");
	const struct repo *outer = open_tree("r", "r/.git");
	const struct repo *sub = take("sub"), *nested = take("d/nested");

	expect_paths(outer, "r");
	expect_paths(sub, "r/sub");
	expect_paths(nested, "r/d/nested");
	expect_head(sub, "r/sub", "main");
	assert_int_equal(tracked_find(&outer->paths.tracked, "sub")->mode, TRACKED_MODE_GITLINK);
	assert_int_equal(find("plain"), 0);
	assert_int_equal(find("stray"), 0);
	assert_int_equal(find("e"), 0);
	assert_int_equal(repos.list.n, 3);
	assert_int_equal(repos.notes.n, 1);
	assert_non_null(strstr(repos.notes.v[0], "'e/.git'"));
	assert_non_null(strstr(repos.notes.v[0], "/nowhere"));
}

static void test_uninitialised_submodule(void **state)
{
	make_repository();
	fix_sh("git init -q s; git -C s commit -q --allow-empty -m s; cd r;"
	       "git submodule --quiet add ../s sub; git submodule --quiet deinit -f sub");
	start("r", "r/.git");
	assert_int_equal(find(""), 0);
	assert_int_equal(find("sub"), 0);
	assert_int_equal(repos.list.n, 1);
}

static void test_no_repository(void **state)
{
	fix_sh("mkdir p");
	start("p", NULL);
	assert_int_equal(find(""), 0);
	assert_int_equal(repos.list.n, 0);
}

/* What only git can read: the same paths, and a sentence why. */
static void expect_fallback(const char *words)
{
	const struct repo *repo = open_tree("r", "r/.git");

	expect_paths(repo, "r");
	expect_head(repo, "r", "main");
	assert_non_null(repo->why);
	if (!strstr(repo->why, words))
		fail_msg("no \"%s\" in \"%s\"", words, repo->why);
	assert_string_equal(repo->facts.user_name, "Test Person");
}

static void test_split_index(void **state)
{
	make_repository();
	fix_sh("cd r; git update-index --split-index; echo n > n; git add n;"
	       "echo 4 > g; git add g");
	expect_fallback("is split");
	assert_true(repos_at(&repos, "")->has_objects);
}

static void test_sparse_index(void **state)
{
	make_repository();
	fix_sh("cd r; git sparse-checkout set --cone --sparse-index d");
	expect_fallback("");
	const struct repo *repo = repos_at(&repos, "");
	size_t at = (size_t)(tracked_find(&repo->paths.tracked, "e/f") - repo->paths.tracked.v);
	assert_true(repo->stats[at].skip_worktree);
	at = (size_t)(tracked_find(&repo->paths.tracked, "d/f") - repo->paths.tracked.v);
	assert_false(repo->stats[at].skip_worktree);
}

static void test_sha256(void **state)
{
	fix_sh("git init -q --object-format=sha256 r; cd r; echo 1 > a; echo 2 > b; git add .;"
	       "git commit -q -m x");
	expect_fallback("libgit2 says");
	const struct repo *repo = repos_at(&repos, "");
	assert_int_equal(repo->oid_size, 32);
	assert_int_equal(strlen(repo->facts.commit), 64);
	assert_false(repo->has_objects);
	assert_false(repo->facts.staged);
	fix_sh("cd r; echo 3 > a; git add a");
	assert_true(open_tree("r", "r/.git")->facts.staged);
}

static void test_extension_that_git_knows(void **state)
{
	make_repository();
	fix_sh("cd r; git config extensions.worktreeConfig true; git config core.ignoreCase true;"
	       "git config core.repositoryFormatVersion 1;"
	       "git config extensions.preciousObjects true;"
	       "git remote add origin ssh://me:pw@example.com/x; git config core.fileMode 0");
	const struct repo *repo = open_tree("r", "r/.git");
	expect_paths(repo, "r");
	expect_head(repo, "r", "main");
	assert_true(repo->paths.ignore_case);
	assert_false(repo->facts.file_mode);
	assert_string_equal(repo->facts.remote_url, "ssh://example.com/x");
}

/* Not even git knows the extension, but an index is an index. */
static void test_extension_that_nobody_knows(void **state)
{
	make_repository();
	fix_sh("cd r; git config core.repositoryFormatVersion 1; git config extensions.newThing 1");
	const struct repo *repo = open_tree("r", "r/.git");
	assert_int_equal(repo->paths.tracked.n, 5);
	assert_non_null(strstr(repo->why, "only its index"));
	assert_non_null(strstr(repo->why, "newthing"));
	assert_false(repo->has_objects);
}

static void test_damaged_index(void **state)
{
	make_repository();
	fix_sh("cd r; printf garbage > .git/index");
	start("r", "r/.git");
	assert_int_equal(find(""), -ERR_IO);
	assert_int_equal(err.id, E_SNAPSHOT_REPO);
	assert_non_null(strstr(err.message, "git cannot read the repository"));
	assert_true(str_starts(err.hint, "git -C /") && str_ends(err.hint, "/r status"));
	fix_sh("cd r; : > .git/index");
	start("r", "r/.git");
	assert_true(find("") < 0);
}

/* PATH without git, but with env. */
static void without_git(void)
{
	fix_sh("mkdir bin; ln -s \"$(command -v env)\" bin/env");
	AUTO_FREE char *bin = fix_path("bin");
	setenv("PATH", bin, 1);
}

static void test_no_git_program(void **state)
{
	AUTO_FREE char *path = mem_strdup(getenv("PATH"));

	make_repository();
	fix_sh("cp -r r w; git -C w config core.repositoryFormatVersion 1;"
	       "git -C w config extensions.newThing 1; git -C r update-index --split-index");
	without_git();
	const struct repo *repo = open_tree("r", "r/.git");
	assert_int_equal(repo->paths.tracked.n, 0);
	assert_non_null(strstr(repo->why, "there is no git"));
	assert_non_null(repo->facts.commit);
	repo = open_tree("w", "w/.git");
	assert_int_equal(repo->paths.tracked.n, 5);
	assert_non_null(strstr(repo->why, "only its index"));
	setenv("PATH", path, 1);
}

/* None of these may run: a repository must not be able to name programs. */
static void test_no_program_of_the_repository_runs(void **state)
{
	make_repository();
	fix_sh("cat > canary << 'END'\n#!/bin/sh\n: > \"$(dirname \"$0\")/sang\"\nEND\n"
	       "chmod +x canary; c=$PWD/canary; cd r; echo '* filter=x diff=x' > .gitattributes;"
	       "git config core.fsmonitor $c; git config core.hooksPath ..;"
	       "git config filter.x.clean $c; git config filter.x.smudge $c;"
	       "git config diff.x.command $c; git config diff.x.textconv $c;"
	       "git config diff.external $c; git config core.pager $c;"
	       "git config core.sshCommand $c;"
	       "git config alias.ls-files \"!$c\"; git config alias.config \"!$c\";"
	       "for h in post-index-change pre-commit reference-transaction fsmonitor-watchman; do"
	       " ln -s canary ../$h; ln -s ../../../canary .git/hooks/$h; done; rm -f ../sang");
	open_tree("r", "r/.git");
	fix_sh("test ! -e sang; cd r; git -c core.fsmonitor= -c core.hooksPath=/dev/null"
	       " -c filter.x.clean= update-index --split-index; rm -f ../sang");
	assert_non_null(open_tree("r", "r/.git")->why);
	fix_sh("test ! -e sang; rm -rf r; git init -q --object-format=sha256 r; cd r; echo 1 > a;"
	       "git add a; git commit -q -m x; echo '* filter=x diff=x' > .git/info/attributes;"
	       "c=$(dirname $PWD)/canary; git config core.fsmonitor $c;"
	       "git config diff.x.command $c;"
	       "git config core.hooksPath ..; git config diff.x.textconv $c; echo 22 > a");
	assert_non_null(open_tree("r", "r/.git")->why);
	fix_sh("test ! -e sang");
}

/* A hook of git runs its programs with these set. */
static void test_environment_does_not_mislead(void **state)
{
	make_repository();
	fix_sh("git -C r update-index --split-index; git init -q other; echo x > other/o;"
	       "git -C other add o");
	AUTO_FREE char *other = fix_path("other/.git"), *index = fix_path("other/.git/index");
	setenv("GIT_DIR", other, 1);
	setenv("GIT_INDEX_FILE", index, 1);
	const struct repo *repo = open_tree("r", "r/.git");
	unsetenv("GIT_DIR");
	unsetenv("GIT_INDEX_FILE");
	expect_paths(repo, "r");
}

/* GIT_DIR that is not the one of the work tree goes to git, too. */
static void test_fallback_with_other_git_dir(void **state)
{
	make_repository();
	fix_sh("git -C r update-index --split-index; mv r/.git g; mkdir t");
	const struct repo *repo = open_tree("t", "g");
	assert_int_equal(repo->paths.tracked.n, 5);
	assert_non_null(repo->why);
}

static void expect_owner_error(void)
{
	AUTO_FREE char *hint = mem_printf("git config --global --add safe.directory %s/r", fix_dir);

	start("r", "r/.git");
	assert_int_equal(find(""), -ERR_AUTH);
	assert_int_equal(err.id, E_SNAPSHOT_OWNER);
	assert_string_equal(err.hint, hint);
}

static void test_foreign_owner(void **state)
{
	if (!fix_is_root())
		skip();
	make_repository();
	fix_sh("chown -R 4321 r");
	expect_owner_error();
	AUTO_FREE char *command = mem_strdup(err.hint);
	fix_sh(command);
	assert_int_equal(open_tree("r", "r/.git")->paths.tracked.n, 5);
}

static void test_foreign_owner_requested_by_git(void **state)
{
	if (!fix_is_root())
		skip();
	fix_sh("git init -q --object-format=sha256 r; echo 1 > r/a; git -C r add a;"
	       "chown -R 4321 r");
	expect_owner_error();
	AUTO_FREE char *command = mem_strdup(err.hint);
	fix_sh(command);
	assert_int_equal(open_tree("r", "r/.git")->paths.tracked.n, 1);
}

static void test_urls(void **state)
{
	static const char *const pairs[][2] = {
		{"https://example.com/x.git", "https://example.com/x.git"},
		{"https://user@example.com/x", "https://example.com/x"},
		{"https://user:pw@example.com:8443/x@y", "https://example.com:8443/x@y"},
		{"https://a:b@c@example.com/", "https://example.com/"},
		{"ssh://git@example.com/x", "ssh://example.com/x"},
		{"git@example.com:x/y.git", "git@example.com:x/y.git"},
		{"/srv/x@y.git", "/srv/x@y.git"},
		{"file:///srv/x@y.git", "file:///srv/x@y.git"},
		{"https://example.com?x=a@b", "https://example.com?x=a@b"},
		{"", ""},
	};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		AUTO_FREE char *got = repo_url_without_user(pairs[i][0]);
		assert_string_equal(got, pairs[i][1]);
	}
}

static void test_git_output(void **state)
{
	static const char oid[] = "0123456789012345678901234567890123456789";
	static const char *const bad[] = {"", "H", "H 100644", "H 100644 zz 0\tx",
		"H 100644 0123456789012345678901234567890123456789 0 x",
		"H 100644 0123456789012345678901234567890123456789 0\t../x",
		"H 100644 0123456789012345678901234567890123456789 0\t",
		"Hx100644 0123456789012345678901234567890123456789 0\tx"};
	struct gitindex index;

	AUTO_FREE char *two = mem_printf(
		"H 100755 %s 0\ta%cS 120000 %s 2\tb%cH 120000 %s 3\tb", oid, 1, oid, 1, oid);
	size_t len = strlen(two) + 1;
	for (size_t i = 0; i < len; i++)
		two[i] = two[i] == 1 ? '\0' : two[i];
	assert_int_equal(gitls_parse(two, len, &index, &err), 0);
	assert_int_equal(index.tracked.n, 2);
	assert_int_equal(index.tracked.v[0].mode, 0100755);
	assert_false(index.tracked.v[0].conflict);
	assert_true(index.tracked.v[1].conflict);
	assert_true(index.stats[1].skip_worktree);
	gitindex_done(&index);
	/* Cut off, and not in order. */
	assert_true(gitls_parse(two, len - 1, &index, &err) < 0);
	two[strlen(two) - 1] = 'c';
	assert_true(gitls_parse(two, len, &index, &err) < 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_true(gitls_parse(bad[i], strlen(bad[i]) + 1, &index, &err) < 0);
	assert_int_equal(gitls_parse("", 0, &index, &err), 0);
	assert_int_equal(index.tracked.n, 0);
	gitindex_done(&index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_ordinary),
		test(test_settings),
		test(test_excludes_file),
		test(test_unborn),
		test(test_detached_and_packed),
		test(test_merge_conflict),
		test(test_rebase),
		test(test_linked_work_tree),
		test(test_submodule_and_nested),
		test(test_uninitialised_submodule),
		test(test_no_repository),
		test(test_split_index),
		test(test_sparse_index),
		test(test_sha256),
		test(test_extension_that_git_knows),
		test(test_extension_that_nobody_knows),
		test(test_damaged_index),
		test(test_no_git_program),
		test(test_no_program_of_the_repository_runs),
		test(test_environment_does_not_mislead),
		test(test_fallback_with_other_git_dir),
		test(test_foreign_owner),
		test(test_foreign_owner_requested_by_git),
		test(test_urls),
		test(test_git_output),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
