/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <sys/resource.h>

#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "snap/tree/paths.h"
#include "tests/unit/tree.h"

/* Repositories that a test made up. */
struct fake_repo {
	const char *dir;
	struct paths_repo repo;
};

struct runtime {
	struct tree tree;
	struct fake_repo repos[8];
	size_t n_repos;
	struct strv requested; /* directories that the walk asked about */
	struct strv include, paths, allow;
	struct paths_limits limits;
};

static int setup(void **state)
{
	struct runtime *w = mem_alloc(1, sizeof(*w));

	w->tree = tree_new();
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct runtime *w = *state;

	for (size_t i = 0; i < w->n_repos; i++) {
		tracked_done(&w->repos[i].repo.tracked);
		free(w->repos[i].repo.info_exclude);
		free(w->repos[i].repo.excludes_file);
	}
	strv_done(&w->requested);
	strv_done(&w->include);
	strv_done(&w->paths);
	strv_done(&w->allow);
	tree_free(&w->tree);
	free(w);
	return 0;
}

static int by_path(const void *a, const void *b)
{
	const struct tracked_path *x = a, *y = b;

	return strcmp(x->path, y->path);
}

/* A repository at dir whose index has these paths, blanks between them; @path is a submodule. */
static struct paths_repo *add_repo(struct runtime *w, const char *dir, const char *index)
{
	struct fake_repo *fake = &w->repos[w->n_repos++];
	struct tracked *tracked = &fake->repo.tracked;

	fake->dir = dir;
	for (const char *at = index; *at;) {
		size_t len = strcspn(at, " ");
		bool link = *at == '@';
		struct tracked_path *entry = vec_push(tracked);
		entry->path = arena_strndup(&tracked->arena, at + link, len - link);
		entry->mode = link ? TRACKED_MODE_GITLINK : TRACKED_MODE_FILE;
		at += len + (at[len] == ' ');
	}
	vec_sort(tracked, by_path);
	AUTO_FREE char *git = mem_printf("%s%s.git/HEAD", dir, *dir ? "/" : "");
	tree_write(&w->tree, git, "");
	return &fake->repo;
}

static int find_repo(
	void *ctx, const char *dir, const struct paths_repo **ret_repo, struct err *err)
{
	struct runtime *w = ctx;

	strv_add(&w->requested, dir);
	*ret_repo = NULL;
	for (size_t i = 0; i < w->n_repos; i++)
		if (str_eq(w->repos[i].dir, dir))
			*ret_repo = &w->repos[i].repo;
	return 0;
}

static int list(struct runtime *w, struct path_list *ret, struct err *err)
{
	struct paths_options options = {
		.root = w->tree.root,
		.repo = w->n_repos ? find_repo : NULL,
		.repo_ctx = w,
		.include = &w->include,
		.paths = &w->paths,
		.allow = &w->allow,
		.limits = w->limits,
	};

	return paths_list(&options, ret, err);
}

/* The paths, blanks between them; what git tracks has a + before it. */
static char *list_text(const struct path_list *list)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	vec_foreach (const struct path, path, list)
		buf_addf(&out, "%s%s%s", path > list->v ? " " : "", path->tracked ? "+" : "",
			path->path);
	assert_false(out.full);
	return buf_take(&out);
}

/* What was left out, a letter for the reason before it. */
static char *left_text(const struct path_list *list)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	vec_foreach (const struct excluded, row, &list->excluded)
		buf_addf(&out, "%s%c:%s", row > list->excluded.v ? " " : "", "IDSR"[row->why],
			row -> path);
	return buf_take(&out);
}

static void expect(struct runtime *w, const char *paths, const char *excluded)
{
	struct path_list found = {0};
	struct err err = {0};

	if (list(w, &found, &err) < 0)
		fail_msg("%s", err.message);
	AUTO_FREE char *text = list_text(&found);
	AUTO_FREE char *left = left_text(&found);
	assert_string_equal(text, paths);
	assert_string_equal(left, excluded);
	assert_int_equal(found.n_excluded, found.excluded.n);
	path_list_done(&found);
}

static void expect_requested(const struct runtime *w, const char *dirs)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 4096);
	for (size_t i = 0; i < w->requested.n; i++)
		buf_addf(&out, "[%s]", w->requested.v[i]);
	assert_string_equal(out.data, dirs);
}

static void test_kinds(void **state)
{
	struct runtime *w = *state;
	struct path_list found = {0};
	struct stat st;

	tree_write(&w->tree, "plain", "12345");
	tree_write(&w->tree, "sub/program", "#!");
	assert_int_equal(fchmodat(w->tree.fd, "sub/program", 0755, 0), 0);
	tree_link(&w->tree, "link", "nowhere");
	tree_link(&w->tree, "dirlink", "sub");
	tree_link(&w->tree, "loop", "loop");
	tree_dir(&w->tree, "empty/deep");
	assert_int_equal(mkfifoat(w->tree.fd, "pipe", 0600), 0);
	expect(w, "dirlink link loop plain sub/program", "S:pipe");

	assert_int_equal(list(w, &found, NULL), 0);
	assert_int_equal(found.v[0].kind, ENTRY_LINK);
	assert_int_equal(found.v[0].size, 3);
	assert_int_equal(found.v[3].kind, ENTRY_FILE);
	assert_int_equal(found.bytes, 3 + 7 + 4 + 5 + 2);
	assert_int_equal(fstatat(w->tree.fd, "sub/program", &st, 0), 0);
	assert_int_equal(found.v[4].mode, st.st_mode);
	assert_int_equal(found.v[4].ino, st.st_ino);
	assert_int_equal(found.v[4].dev, st.st_dev);
	assert_int_equal(found.v[4].size, 2);
	assert_true(found.v[4].mtime_ns == st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
	assert_true(found.v[4].ctime_ns == st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec);
	path_list_done(&found);
}

static void test_order(void **state)
{
	struct runtime *w = *state;

	for (const char *const *name = (const char *const[]){"a0", "a/b", "a-b", "a.b/c", "a/b.c",
		     "a/a", "A", "a b", "\xff", "a-b.d/x", "a/bb/c", NULL};
		*name; name++)
		tree_write(&w->tree, *name, "");
	expect(w, "A a b a-b a-b.d/x a.b/c a/a a/b a/b.c a/bb/c a0 \xff", "");
}

static void test_any_bytes(void **state)
{
	static const char *const names[] = {"\t", "\n", " ", "\"", "$x", "'", "*", "-n", "\\",
		"e\xcc\x81", "\xc3\xa9", "\xf0\x9f\x98\x80", "\xff\xfe"};
	struct runtime *w = *state;
	struct path_list found = {0};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		tree_write(&w->tree, names[i], "");
	assert_int_equal(list(w, &found, NULL), 0);
	assert_int_equal(found.n, ARRAY_LEN(names));
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		assert_string_equal(found.v[i].path, names[i]);
	path_list_done(&found);
}

static void test_tracked_and_ignored(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "a.log build/keep build/x/deep/keep data/.gitkeep gone dir/gone");
	tree_write(&w->tree, ".gitignore", "*.log\nbuild/\ndata/*\n!keep.log\n");
	for (const char *const *name = (const char *const[]){"a.log", "b.log", "keep.log",
		     "build/keep", "build/new", "build/x/deep/keep", "build/x/deep/new",
		     "build/y/new", "data/.gitkeep", "data/set/file", "data/x", "dir/b.log",
		     "dir/c", NULL};
		*name; name++)
		tree_write(&w->tree, *name, "");
	expect(w, ".gitignore +a.log +build/keep +build/x/deep/keep +data/.gitkeep dir/c keep.log",
		"I:b.log I:build/ I:data/set/ I:data/x I:dir/b.log");
	expect_requested(w, "[]");
}

static void test_ignored_directory_that_is_whole(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "build/a build/b/c");
	tree_write(&w->tree, ".gitignore", "build/\n");
	tree_write(&w->tree, "build/a", "");
	tree_write(&w->tree, "build/b/c", "");
	expect(w, ".gitignore +build/a +build/b/c", "");
}

static void test_other_kind_than_in_the_index(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "file-now-dir dir-now-file/x dir-now-link/x link a/b/c/d a/b/e");
	tree_write(&w->tree, "file-now-dir/y", "");
	tree_write(&w->tree, "dir-now-file", "");
	tree_write(&w->tree, "elsewhere/x", "");
	tree_link(&w->tree, "dir-now-link", "elsewhere");
	tree_link(&w->tree, "link", "elsewhere");
	tree_write(&w->tree, "a/b/c", "");
	tree_write(&w->tree, "a/b/e/f", "");
	expect(w, "a/b/c a/b/e/f dir-now-file dir-now-link elsewhere/x file-now-dir/y +link", "");
}

static void test_rule_files(void **state)
{
	struct runtime *w = *state;
	struct paths_repo *repo = add_repo(w, "", "");

	repo->info_exclude = fs_join(w->tree.root, ".git/exclude");
	repo->excludes_file = fs_join(w->tree.root, ".git/global");
	tree_write(&w->tree, ".git/real", "global\n!both\n");
	tree_link(&w->tree, ".git/global", "real");
	tree_write(&w->tree, ".git/exclude", "info\nboth\n");
	tree_write(&w->tree, ".gitignore", "root\n/anchored\n!again\n");
	tree_write(&w->tree, "d/.gitignore", "again\n/x\n!info\n");
	tree_write(&w->tree, "d/e/x", "");
	tree_write(&w->tree, "d/x", "");
	for (const char *const *name = (const char *const[]){"global", "info", "both", "root",
		     "anchored", "again", NULL};
		*name; name++) {
		AUTO_FREE char *below = mem_printf("d/%s", *name);
		tree_write(&w->tree, *name, "");
		tree_write(&w->tree, below, "");
	}
	expect(w, ".gitignore again d/.gitignore d/anchored d/e/x d/info",
		"I:anchored I:both I:d/again I:d/both I:d/global I:d/root I:d/x I:global I:info I:root");
}

static void test_rule_files_that_are_none(void **state)
{
	struct runtime *w = *state;

	tree_write(&w->tree, "rules", "x\n");
	tree_write(&w->tree, "x", "");
	tree_link(&w->tree, ".gitignore", "rules");
	tree_dir(&w->tree, "a/.gitignore");
	tree_write(&w->tree, "a/x", "");
	tree_dir(&w->tree, "b");
	assert_int_equal(mkfifoat(w->tree.fd, "b/.gitignore", 0600), 0);
	tree_write(&w->tree, "b/x", "");
	tree_write(&w->tree, "c/.gitignore", "");
	expect(w, ".gitignore a/x b/x c/.gitignore rules x", "S:b/.gitignore");
}

static void test_no_repository(void **state)
{
	struct runtime *w = *state;

	tree_write(&w->tree, ".gitignore", "*.o\n");
	tree_write(&w->tree, "a.o", "");
	tree_write(&w->tree, "a.c", "");
	tree_write(&w->tree, ".git/config", "");
	tree_write(&w->tree, "sub/.git/config", "");
	tree_write(&w->tree, "sub/x", "");
	expect(w, ".gitignore a.c sub/x", "I:a.o");
}

static void test_git_in_capitals(void **state)
{
	struct runtime *w = *state;
	struct paths_repo *repo = add_repo(w, "", "");

	repo->ignore_case = true;
	tree_write(&w->tree, "sub/.GIT/x", "");
	tree_write(&w->tree, ".gitignore", "*.LOG\n");
	tree_write(&w->tree, "a.log", "");
	expect(w, ".gitignore", "I:a.log");
}

static void test_nested_repositories(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "@module @gone @was-module seen/file top");
	add_repo(w, "module", "a.log src/x");
	add_repo(w, "module/inner", "y");
	add_repo(w, "nested", "b.log");
	add_repo(w, "ignored", "z");
	add_repo(w, "seen", "inside");
	tree_write(&w->tree, ".gitignore", "*.log\n/ignored\n/was-module\n");
	tree_write(&w->tree, "module/.gitignore", "*.tmp\n");
	for (const char *const *name = (const char *const[]){"top", "a.log", "module/a.log",
		     "module/new.log", "module/x.tmp", "module/src/x", "module/inner/y",
		     "module/inner/x.tmp", "nested/b.log", "nested/n.log", "ignored/z", "seen/file",
		     "seen/inside", "seen/x.log", "stray/.git", "stray/file", "stray/a.log",
		     "was-module/file", "was-module/b.log", NULL};
		*name; name++)
		tree_write(&w->tree, *name, "");
	/* The outer index has a file in seen, so git looks through that repository. A submodule
	 * that is none is part of the outer tree, even when it is ignored. */
	expect(w,
		".gitignore module/.gitignore +module/a.log module/inner/x.tmp +module/inner/y "
		"module/new.log +module/src/x +nested/b.log nested/n.log +seen/file seen/inside "
		"stray/file +top was-module/file",
		"I:a.log R:ignored/ I:module/x.tmp I:seen/x.log I:stray/a.log I:was-module/b.log");
	expect_requested(w, "[][module][nested][stray][was-module][module/inner]");
}

static void test_dlrunignore(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "big/a tracked.bin src/keep.bin x.txt @module");
	add_repo(w, "module", "m.bin n");
	tree_write(&w->tree, ".dlrunignore", "*.bin\nbig/\n!*.log\n");
	tree_write(&w->tree, ".gitignore", "*.log\n!big\n");
	tree_write(&w->tree, "src/.dlrunignore", "!keep.bin\n/only-here\n");
	for (const char *const *name = (const char *const[]){"big/a", "tracked.bin", "src/keep.bin",
		     "src/drop.bin", "src/only-here", "only-here", "x.txt", "new.bin", "y.log",
		     "module/m.bin", "module/n", NULL};
		*name; name++)
		tree_write(&w->tree, *name, "");
	expect(w,
		".dlrunignore .gitignore +module/n only-here src/.dlrunignore +src/keep.bin +x.txt",
		"D:big/ D:module/m.bin D:new.bin D:src/drop.bin D:src/only-here D:tracked.bin "
		"I:y.log");
}

static void test_include(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "data/tracked");
	tree_write(&w->tree, ".gitignore", "data/\nmodels/\n*.log\n");
	tree_write(&w->tree, ".dlrunignore", "*.tmp\n");
	for (const char *const *name = (const char *const[]){"data/tracked", "data/vocab.txt",
		     "data/big", "data/a/b/one", "data/a/b/two", "data/a/c", "models/.git/HEAD",
		     "models/m/w", "models/x.tmp", "models/.gitignore", "run.log", "other.log",
		     "plain", NULL};
		*name; name++)
		tree_write(&w->tree, *name, "");
	tree_write(&w->tree, "models/.gitignore", "*\n");
	strv_add(&w->include, "./data/vocab.txt");
	strv_add(&w->include, "data/a/b/one");
	strv_add(&w->include, "models/");
	strv_add(&w->include, "run.log");
	strv_add(&w->include, "plain");
	expect(w,
		".dlrunignore .gitignore data/a/b/one +data/tracked data/vocab.txt models/.gitignore "
		"models/m/w plain run.log",
		"I:data/ D:models/x.tmp I:other.log");
}

static void test_include_the_whole_tree(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "a");
	tree_write(&w->tree, ".gitignore", "*\n");
	tree_write(&w->tree, "a", "");
	tree_write(&w->tree, "b/c", "");
	expect(w, "+a", "I:.gitignore I:b/");
	strv_add(&w->include, ".");
	expect(w, ".gitignore +a b/c", "");
}

static void test_paths(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "a/x a/y b c/d/e");
	for (const char *const *name = (const char *const[]){"a/x", "a/y", "a/z.log", "b", "c/d/e",
		     "c/d/f.log", "c/g", "d.log", ".gitignore", NULL};
		*name; name++)
		tree_write(&w->tree, *name, "");
	tree_write(&w->tree, ".gitignore", "*.log\n");
	strv_add(&w->paths, "c/d");
	strv_add(&w->paths, "a/x");
	expect(w, "+a/x +c/d/e", "I:c/d/f.log");
	strv_add(&w->include, "c/d/f.log");
	expect(w, "+a/x +c/d/e c/d/f.log", "");
}

/* As many levels as a path has room for, with few descriptors and a small stack for the threads. */
static void test_deep(void **state)
{
	enum { DEPTH = 2046 };
	struct runtime *w = *state;
	struct path_list found = {0};
	struct rlimit before, few;
	int fd = dup(w->tree.fd);

	for (int i = 0; i < DEPTH; i++) {
		assert_int_equal(mkdirat(fd, "d", 0755), 0);
		int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(fd);
		fd = next;
	}
	assert_int_equal(mknodat(fd, "xyz", S_IFREG | 0644, 0), 0);
	close(fd);
	getrlimit(RLIMIT_NOFILE, &before);
	few = before;
	few.rlim_cur = 40;
	setrlimit(RLIMIT_NOFILE, &few);
	int r = list(w, &found, NULL);
	setrlimit(RLIMIT_NOFILE, &before);
	assert_int_equal(r, 0);
	assert_int_equal(found.n, 1);
	assert_int_equal(strlen(found.v[0].path), ENTRY_PATH_MAX);
	path_list_done(&found);
}

static void test_many_excluded(void **state)
{
	enum { N = 25000 };
	struct runtime *w = *state;
	struct path_list found = {0};

	tree_write(&w->tree, ".gitignore", "*.log\n");
	for (int i = 0; i < N; i++) {
		char name[32];
		snprintf(name, sizeof(name), "%d/%05d.log", i % 2, N - i);
		if (i < 2)
			tree_write(&w->tree, name, "1234");
		else
			assert_int_equal(mknodat(w->tree.fd, name, S_IFREG | 0644, 0), 0);
	}
	assert_int_equal(list(w, &found, NULL), 0);
	assert_int_equal(found.n_excluded, N);
	assert_int_equal(found.excluded.n, EXCLUDED_MAX);
	assert_string_equal(found.excluded.v[0].path, "0/00002.log");
	for (size_t i = 1; i < EXCLUDED_MAX; i++)
		assert_true(strcmp(found.excluded.v[i - 1].path, found.excluded.v[i].path) < 0);
	assert_string_equal(found.excluded.v[EXCLUDED_MAX - 1].path, "0/20000.log");
	path_list_done(&found);
}

static void test_sizes_of_excluded(void **state)
{
	struct runtime *w = *state;
	struct path_list found = {0};

	tree_write(&w->tree, ".gitignore", "x\nd/\n");
	tree_write(&w->tree, "x", "12345");
	tree_write(&w->tree, "d/y", "12345");
	assert_int_equal(list(w, &found, NULL), 0);
	assert_string_equal(found.excluded.v[0].path, "d/");
	assert_int_equal(found.excluded.v[0].size, 0);
	assert_int_equal(found.excluded.v[1].size, 5);
	path_list_done(&found);
}

/* What several threads find in any order is always the same. */
static void test_same_each_time(void **state)
{
	struct runtime *w = *state;

	add_repo(w, "", "3/3/3 5/1");
	add_repo(w, "4/4", "1/1");
	tree_write(&w->tree, ".gitignore", "7\n*1\n!1/1\n");
	for (int i = 0; i < 1000; i++) {
		char name[32];
		snprintf(name, sizeof(name), "%d/%d/%d", i / 100, i / 10 % 10, i % 10);
		tree_write(&w->tree, name, "");
	}
	AUTO_FREE char *first = NULL;
	for (int i = 0; i < 50; i++) {
		struct path_list found = {0};
		assert_int_equal(list(w, &found, NULL), 0);
		AUTO_FREE char *text = list_text(&found);
		AUTO_FREE char *left = left_text(&found);
		AUTO_FREE char *both = mem_printf("%s\n%s", text, left);
		path_list_done(&found);
		if (!first)
			first = TAKE(both);
		else
			assert_string_equal(both, first);
	}
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_kinds),
		TEST(test_order),
		TEST(test_any_bytes),
		TEST(test_tracked_and_ignored),
		TEST(test_ignored_directory_that_is_whole),
		TEST(test_other_kind_than_in_the_index),
		TEST(test_rule_files),
		TEST(test_rule_files_that_are_none),
		TEST(test_no_repository),
		TEST(test_git_in_capitals),
		TEST(test_nested_repositories),
		TEST(test_dlrunignore),
		TEST(test_include),
		TEST(test_include_the_whole_tree),
		TEST(test_paths),
		TEST(test_deep),
		TEST(test_many_excluded),
		TEST(test_sizes_of_excluded),
		TEST(test_same_each_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
