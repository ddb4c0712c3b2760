/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "base/util/str.h"
#include "snap/ignore/ignore.h"
#include "snap/tree/paths.h"
#include "tests/unit/effort.h"
#include "tests/unit/tree.h"

struct runtime {
	struct tree tree;
	struct paths_repo repo; /* at the root */
	struct strv include, paths, allow;
	struct paths_options options;
	struct path_list list;
	struct err err;
};

static int find_repo(
	void *ctx, const char *dir, const struct paths_repo **ret_repo, struct err *err)
{
	struct runtime *w = ctx;

	*ret_repo = *dir ? NULL : &w->repo;
	return 0;
}

static int setup(void **state)
{
	struct runtime *w = mem_alloc(1, sizeof(*w));

	w->tree = tree_new();
	w->options = (struct paths_options){
		.root = w->tree.root,
		.repo = find_repo,
		.repo_ctx = w,
		.include = &w->include,
		.paths = &w->paths,
		.allow = &w->allow,
		.limits = {.total_bytes = 500 << 20, .file_bytes = 100 << 20, .files = 200000},
	};
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct runtime *w = *state;

	tracked_done(&w->repo.tracked);
	strv_done(&w->include);
	strv_done(&w->paths);
	strv_done(&w->allow);
	path_list_done(&w->list);
	err_done(&w->err);
	tree_free(&w->tree);
	free(w);
	return 0;
}

static void track(struct runtime *w, const char *path)
{
	struct tracked_path *entry = vec_push(&w->repo.tracked);

	entry->path = arena_strdup(&w->repo.tracked.arena, path);
	entry->mode = TRACKED_MODE_FILE;
}

/* The paths in order, blanks between them. */
static void expect(struct runtime *w, const char *paths)
{
	AUTO_BUF struct buf out;

	path_list_done(&w->list);
	if (paths_list(&w->options, &w->list, &w->err) < 0)
		fail_msg("%s", w->err.message);
	buf_init(&out, 1 << 16);
	vec_foreach (const struct path, path, &w->list)
		buf_addf(&out, "%s%s", path > w->list.v ? " " : "", path->path);
	assert_string_equal(out.data, paths);
}

static void expect_refusal(struct runtime *w, enum err_id id, const char *message)
{
	err_clear(&w->err);
	path_list_done(&w->list);
	int r = paths_list(&w->options, &w->list, &w->err);
	assert_int_equal(r, -(int)err_info(id)->code);
	assert_int_equal(paths_list(&w->options, &w->list, NULL), r);
	if (w->err.id != id)
		fail_msg("%s: %s", err_info(w->err.id)->name, w->err.message);
	assert_string_equal(w->err.message, message);
	assert_null(w->list.v);
}

static void expect_evidence(const struct runtime *w, const char *const *lines)
{
	size_t n = 0;

	for (; lines[n]; n++) {
		assert_true(n < w->err.n_evidence);
		assert_string_equal(w->err.evidence[n], lines[n]);
	}
	assert_int_equal(w->err.n_evidence, n);
}

#define EVIDENCE(...) expect_evidence(w, (const char *const[]){__VA_ARGS__})

/* The hint up to the name of the file, which is that of the tree. */
static void expect_hint(const struct runtime *w, const char *line)
{
	AUTO_FREE char *hint = mem_printf("%s >> %s/.dlrunignore", line, w->tree.root);

	assert_non_null(w->err.hint);
	assert_string_equal(w->err.hint, hint);
}

/* Limits */

static void test_checkpoints(void **state)
{
	struct runtime *w = *state;

	for (int i = 0; i < 10; i++) {
		char name[64];
		snprintf(name, sizeof(name), "exp/checkpoints/epoch-%d.pt", i);
		tree_sparse(&w->tree, name, 1 << 30);
		snprintf(name, sizeof(name), "exp/code-%d.py", i);
		tree_write(&w->tree, name, "print(1)\n");
	}
	tree_sparse(&w->tree, "images.tar", 300 << 20);
	tree_write(&w->tree, "train.py", "");
	int64_t start_ms = effort_ms();
	expect_refusal(
		w, E_SNAPSHOT_LIMIT, "the working tree has 10 GiB, over the limit of 500 MiB");
	/* To read it takes several times as much. */
	assert_true(effort_ms() - start_ms < 1000);
	EVIDENCE("exp/checkpoints/: 10 GiB in 10 files", "images.tar: 300 MiB", NULL);
	expect_hint(w, "echo exp/checkpoints/");
	assert_int_equal(w->err.code, ERR_LIMIT);

	/* Following the hint helps, and so does following the next one. */
	tree_write(&w->tree, ".dlrunignore", "exp/checkpoints/\n");
	expect_refusal(w, E_SNAPSHOT_LIMIT,
		"images.tar has 300 MiB, over the limit of 100 MiB for a file");
	EVIDENCE(NULL);
	expect_hint(w, "echo /images.tar");
	strv_add(&w->allow, "images.tar");
	expect(w,
		".dlrunignore exp/code-0.py exp/code-1.py exp/code-2.py exp/code-3.py exp/code-4.py "
		"exp/code-5.py exp/code-6.py exp/code-7.py exp/code-8.py exp/code-9.py images.tar "
		"train.py");
}

static void test_total(void **state)
{
	struct runtime *w = *state;

	w->options.limits.total_bytes = 1000;
	tree_sparse(&w->tree, "a", 400);
	tree_sparse(&w->tree, "b/c/d", 300);
	tree_sparse(&w->tree, "b/c/e", 300);
	expect(w, "a b/c/d b/c/e");
	tree_sparse(&w->tree, "b/f", 1);
	expect_refusal(
		w, E_SNAPSHOT_LIMIT, "the working tree has 1001 B, over the limit of 1000 B");
	EVIDENCE("b/c/: 600 B in 2 files", "a: 400 B", NULL);
	/* What is allowed by name does not count, a directory stands for all below it. */
	strv_add(&w->allow, "b/c");
	expect(w, "a b/c/d b/c/e b/f");
	tree_sparse(&w->tree, "a", 1001);
	expect_refusal(
		w, E_SNAPSHOT_LIMIT, "the working tree has 1002 B, over the limit of 1000 B");
	EVIDENCE("a: 1001 B", NULL);
	strv_add(&w->allow, "a");
	expect(w, "a b/c/d b/c/e b/f");
	w->options.limits = (struct paths_limits){0};
	w->options.allow = NULL;
	expect(w, "a b/c/d b/c/e b/f");
}

/* Tracked or not: the limits are for both. */
static void test_total_of_tracked(void **state)
{
	struct runtime *w = *state;

	tree_sparse(&w->tree, "big", 600 << 20);
	track(w, "big");
	expect_refusal(
		w, E_SNAPSHOT_LIMIT, "the working tree has 600 MiB, over the limit of 500 MiB");
}

static void test_ignored_does_not_count(void **state)
{
	struct runtime *w = *state;

	tree_sparse(&w->tree, "data/big", 1ll << 40);
	tree_sparse(&w->tree, "big.bin", 1ll << 40);
	tree_write(&w->tree, ".gitignore", "data/\n");
	tree_write(&w->tree, ".dlrunignore", "*.bin\n");
	expect(w, ".dlrunignore .gitignore");
}

static void test_files(void **state)
{
	struct runtime *w = *state;

	w->options.limits.files = 1000;
	for (int i = 0; i < 1001; i++) {
		char name[32];
		snprintf(name, sizeof(name), "imgs/%s/%d", i % 3 ? "train" : "test", i);
		tree_write(&w->tree, name, "x");
	}
	expect_refusal(
		w, E_SNAPSHOT_LIMIT, "the working tree has 1,001 files, over the limit of 1,000");
	EVIDENCE("imgs/: 1001 B in 1,001 files", NULL);
	expect_hint(w, "echo /imgs/");
	strv_add(&w->allow, "imgs/test");
	assert_int_equal(paths_list(&w->options, &w->list, &w->err), 0);
	assert_int_equal(w->list.n, 1001);
}

static void test_files_of_the_root(void **state)
{
	struct runtime *w = *state;

	w->options.limits.files = 10;
	for (int i = 0; i < 11; i++) {
		char name[32];
		snprintf(name, sizeof(name), "%d", i);
		tree_write(&w->tree, name, "x");
	}
	expect_refusal(w, E_SNAPSHOT_LIMIT, "the working tree has 11 files, over the limit of 10");
	EVIDENCE("./: 11 B in 11 files", NULL);
	assert_non_null(strstr(w->err.hint, "paths:"));
}

static void test_large_files(void **state)
{
	struct runtime *w = *state;

	w->options.limits = (struct paths_limits){.file_bytes = 100};
	for (int i = 0; i < 6; i++) {
		char name[32];
		snprintf(name, sizeof(name), "d %d/x", i);
		tree_sparse(&w->tree, name, 99 + i);
	}
	expect_refusal(w, E_SNAPSHOT_LIMIT, "4 files are over the limit of 100 B for a file");
	EVIDENCE("d 5/x: 104 B", "d 4/x: 103 B", "d 3/x: 102 B", "d 2/x: 101 B", NULL);
	expect_hint(w, "printf '%s\\n' 'd 5/x' 'd 4/x' 'd 3/x' 'd 2/x'");
	strv_add(&w->allow, "d 5");
	strv_add(&w->allow, "d 4/x");
	strv_add(&w->allow, "d 3/");
	expect_refusal(w, E_SNAPSHOT_LIMIT, "d 2/x has 101 B, over the limit of 100 B for a file");
}

/* A tree that has no end in sight is not walked to its end. */
static void test_early(void **state)
{
	struct runtime *w = *state;

	w->options.limits.files = 2;
	for (int i = 0; i < 30000; i++) {
		char name[32];
		snprintf(name, sizeof(name), "%d/%d", i % 100, i);
		if (i < 100)
			tree_write(&w->tree, name, "");
		else
			assert_int_equal(mknodat(w->tree.fd, name, S_IFREG | 0644, 0), 0);
	}
	int64_t start_ms = effort_ms();
	err_clear(&w->err);
	assert_true(paths_list(&w->options, &w->list, &w->err) < 0);
	assert_int_equal(w->err.id, E_SNAPSHOT_LIMIT);
	assert_true(effort_ms() - start_ms < 5000);
}

static void test_hints_are_exact(void **state)
{
	static const struct {
		const char *name, *line;
	} cases[] = {
		{"plain", "echo /plain"},
		{"a b", "echo '/a b'"},
		{"it's", "echo '/it'\\''s'"},
		{"#x", "echo '/#x'"},
		{"!x", "echo '/!x'"},
		{"#d/x", "printf '%s\\n' '\\#d/x'"},
		{"-n/x", "echo -n/x"},
		{"a*[b]", "printf '%s\\n' '/a\\*\\[b]'"},
		{"back\\slash", "printf '%s\\n' '/back\\\\slash'"},
		{"end ", "printf '%s\\n' '/end\\ '"},
	};
	struct runtime *w = *state;

	w->options.limits = (struct paths_limits){.file_bytes = 1024};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		err_clear(&w->err);
		tree_sparse(&w->tree, cases[i].name, 2048);
		assert_true(paths_list(&w->options, &w->list, &w->err) < 0);
		expect_hint(w, cases[i].line);
		/* The line does what it promises. */
		AUTO_FREE char *command = mem_printf("cd '%s' && %s", w->tree.root, w->err.hint);
		pid_t pid = fork();
		if (pid == 0) {
			execl("/bin/sh", "sh", "-c", command, (char *)NULL);
			_exit(127);
		}
		int status;
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		expect(w, ".dlrunignore");
		assert_int_equal(w->list.n_excluded, i + 1);
	}
	err_clear(&w->err);
	tree_sparse(&w->tree, "new\nline", 2048);
	assert_true(paths_list(&w->options, &w->list, &w->err) < 0);
	assert_null(w->err.hint);
	assert_string_equal(
		w->err.message, "new\\nline has 2.0 KiB, over the limit of 1.0 KiB for a file");
}

/* Secrets */

static void test_secrets(void **state)
{
	struct runtime *w = *state;

	tree_write(&w->tree, "train.py", "");
	tree_write(&w->tree, ".env", "TOKEN=x\n");
	tree_write(&w->tree, ".env.example", "TOKEN=\n");
	expect_refusal(w, E_SNAPSHOT_SECRET, "an untracked file looks like a secret");
	EVIDENCE(".env: environment settings, which often hold secrets", NULL);
	expect_hint(w, "echo /.env");
	tree_write(&w->tree, "a/id_rsa", "");
	tree_write(&w->tree, "a/id_rsa.pub", "");
	tree_write(&w->tree, "cert.pem", "-----BEGIN CERTIFICATE-----\n");
	tree_write(
		&w->tree, "key.pem", "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n");
	expect_refusal(w, E_SNAPSHOT_SECRET, "3 untracked files look like secrets");
	EVIDENCE(".env: environment settings, which often hold secrets", "a/id_rsa: a private key",
		"key.pem: a private key", NULL);
	expect_hint(w, "printf '%s\\n' /.env a/id_rsa /key.pem");

	strv_add(&w->allow, "a");
	strv_add(&w->allow, ".env");
	strv_add(&w->allow, "key.pem");
	expect(w, ".env .env.example a/id_rsa a/id_rsa.pub cert.pem key.pem train.py");
}

static void test_secrets_that_are_none(void **state)
{
	struct runtime *w = *state;

	/* Committed, ignored, dropped, or only a link. */
	tree_write(&w->tree, ".env", "TOKEN=x\n");
	track(w, ".env");
	tree_write(&w->tree, "id_rsa", "");
	tree_write(&w->tree, ".gitignore", "id_rsa\n");
	tree_write(&w->tree, ".netrc", "");
	tree_write(&w->tree, ".dlrunignore", ".netrc\n");
	tree_link(&w->tree, ".pgpass", "/root/.pgpass");
	tree_dir(&w->tree, ".env.d");
	expect(w, ".dlrunignore .env .gitignore .pgpass");
	/* Bringing it back does not allow it. */
	strv_add(&w->include, "id_rsa");
	expect_refusal(w, E_SNAPSHOT_SECRET, "an untracked file looks like a secret");
	EVIDENCE("id_rsa: a private key", NULL);
	strv_add(&w->allow, "id_rsa");
	expect(w, ".dlrunignore .env .gitignore .pgpass id_rsa");
}

static void test_many_secrets(void **state)
{
	struct runtime *w = *state;

	for (int i = 9; i > 0; i--) {
		char name[32];
		snprintf(name, sizeof(name), "%d/id_rsa", i);
		tree_write(&w->tree, name, "");
	}
	expect_refusal(w, E_SNAPSHOT_SECRET, "9 untracked files look like secrets");
	EVIDENCE("1/id_rsa: a private key", "2/id_rsa: a private key", "3/id_rsa: a private key",
		"4/id_rsa: a private key", NULL);
}

/* Names */

static void test_whiteout_names(void **state)
{
	static const char *const names[] = {
		".wh.x", ".wh..wh..opq", "a/.wh.y", "a/.wh.d/file", ".wh."};
	struct runtime *w = *state;

	tree_write(&w->tree, ".whx", "");
	tree_write(&w->tree, "wh.x", "");
	tree_write(&w->tree, "ok", "");
	expect(w, ".whx ok wh.x");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *message = mem_printf(
			"%s has a name that means a deletion in an image (.wh.)", names[i]);
		tree_write(&w->tree, names[i], "");
		expect_refusal(w, E_SNAPSHOT_NAME, message);
		tree_write(&w->tree, ".dlrunignore", ".wh.*\n");
		expect(w, ".dlrunignore .whx ok wh.x");
		assert_int_equal(unlinkat(w->tree.fd, ".dlrunignore", 0), 0);
		assert_int_equal(unlinkat(w->tree.fd, names[i], 0), 0);
	}
	/* An empty one is not in the tree at all, and a tracked one is not better. */
	tree_dir(&w->tree, "a/.wh.z");
	tree_write(&w->tree, ".wh.t", "");
	track(w, ".wh.t");
	expect_refusal(
		w, E_SNAPSHOT_NAME, ".wh.t has a name that means a deletion in an image (.wh.)");
}

static void test_names_of_git(void **state)
{
	static const char *const names[] = {"d/.GIT/x", "git~1", ".git /x", ".git.", ".git:x"};
	struct runtime *w = *state;

	tree_write(&w->tree, "ok", "");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *message =
			mem_printf("%s has a name that git refuses: some file systems "
				   "take it for .git",
				names[i]);
		tree_write(&w->tree, names[i], "");
		expect_refusal(w, E_SNAPSHOT_NAME, message);
		assert_int_equal(unlinkat(w->tree.fd, names[i], 0), 0);
	}
	expect(w, "ok");
}

static void test_first_name_is_notified(void **state)
{
	struct runtime *w = *state;

	for (int i = 99; i >= 0; i--) {
		char name[32];
		snprintf(name, sizeof(name), "d%d/.wh.%d", i % 10, i);
		tree_write(&w->tree, name, "");
	}
	for (int i = 0; i < 10; i++)
		expect_refusal(w, E_SNAPSHOT_NAME,
			"d0/.wh.0 has a name that means a deletion in an image (.wh.)");
	expect_hint(w, "echo d0/.wh.0");
}

/* Makes levels of 200 bytes and returns the last one. */
static int make_levels(const struct tree *tree, int n)
{
	char name[200];
	int fd = dup(tree->fd);

	memset(name, 'd', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	for (int i = 0; i < n; i++) {
		assert_int_equal(mkdirat(fd, name, 0755), 0);
		int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(fd);
		fd = next;
	}
	return fd;
}

static void test_long_paths(void **state)
{
	struct runtime *w = *state;
	char name[128] = {0};
	AUTO_FD int fd = make_levels(&w->tree, 20);

	memset(name, 'x', 95);
	assert_int_equal(mknodat(fd, name, S_IFREG | 0644, 0), 0);
	assert_int_equal(paths_list(&w->options, &w->list, &w->err), 0);
	assert_int_equal(strlen(w->list.v[0].path), ENTRY_PATH_MAX);
	memset(name, 'x', 96);
	assert_int_equal(mknodat(fd, name, S_IFREG | 0644, 0), 0);
	err_clear(&w->err);
	path_list_done(&w->list);
	assert_true(paths_list(&w->options, &w->list, &w->err) < 0);
	assert_int_equal(w->err.id, E_SNAPSHOT_NAME);
	assert_true(str_ends(w->err.message, "… is a path of over 4,095 bytes"));
	assert_null(w->err.hint);
}

static void test_long_directory(void **state)
{
	struct runtime *w = *state;

	close(make_levels(&w->tree, 25));
	assert_true(paths_list(&w->options, &w->list, &w->err) < 0);
	assert_int_equal(w->err.id, E_SNAPSHOT_NAME);
	tree_write(&w->tree, ".gitignore", "dd*\n");
	err_clear(&w->err);
	expect(w, ".gitignore");
}

/* include: and paths: */

static void include(struct runtime *w, const char *path)
{
	strv_done(&w->include);
	strv_add(&w->include, path);
}

static void test_include_misses(void **state)
{
	struct runtime *w = *state;

	tree_write(&w->tree, ".gitignore", "data/\n*.log\n");
	tree_write(&w->tree, ".dlrunignore", "drop/\n*.tmp\n");
	for (const char *const *name = (const char *const[]){"data/vocab.txt", "drop/x", "a.tmp",
		     "src/a.py", "data/sub/words", NULL};
		*name; name++)
		tree_write(&w->tree, *name, "");
	tree_link(&w->tree, "link", "data");
	tree_dir(&w->tree, "empty");
	assert_int_equal(mkfifoat(w->tree.fd, "pipe", 0600), 0);

	include(w, "data/vocb.txt");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"data/vocb.txt\" matches nothing");
	assert_string_equal(w->err.hint, "--include data/vocab.txt");
	assert_int_equal(w->err.code, ERR_USAGE);
	include(w, "dta/sub/words");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"dta/sub/words\" matches nothing");
	assert_string_equal(w->err.hint, "--include data/sub/words");
	include(w, "dta/nothing");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"dta/nothing\" matches nothing");
	assert_string_equal(w->err.hint, "--include data");
	include(w, "a.py");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"a.py\" matches nothing");
	assert_string_equal(w->err.hint, "--include src/a.py");
	include(w, "quite/else");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"quite/else\" matches nothing");
	assert_null(w->err.hint);
	include(w, "empty");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"empty\" holds no file for the snapshot");
	include(w, "link/vocab.txt");
	expect_refusal(
		w, E_SNAPSHOT_INCLUDE, "include: \"link/vocab.txt\" leads through a symbolic link");
	include(w, "src/a.py/b");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"src/a.py/b\" leads through a file");
	include(w, "drop/x");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"drop/x\" is dropped by .dlrunignore");
	include(w, "drop");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"drop\" is dropped by .dlrunignore");
	include(w, "a.tmp");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"a.tmp\" is dropped by .dlrunignore");
	include(w, "pipe");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"pipe\" is not a file or link");
	tree_write(&w->tree, ".git/config", "");
	include(w, ".git/config");
	expect_refusal(w, E_SNAPSHOT_INCLUDE,
		"include: \".git/config\" belongs to a repository itself and is never sent");
	include(w, "../x");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"../x\" may lead out of the tree by ..");
	include(w, "/etc/passwd");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"/etc/passwd\" is an absolute path");
}

static void test_paths_misses(void **state)
{
	struct runtime *w = *state;

	tree_write(&w->tree, "exp/a.py", "");
	tree_write(&w->tree, "lib/b.py", "");
	strv_add(&w->paths, "exq");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "paths: \"exq\" matches nothing");
	assert_string_equal(w->err.hint, "paths: [exp]");
	free(w->paths.v[0]);
	w->paths.v[0] = mem_strdup("exp");
	include(w, "lib/b.py");
	expect_refusal(w, E_SNAPSHOT_INCLUDE, "include: \"lib/b.py\" lies outside of paths:");
}

/* The rest */

static void test_empty(void **state)
{
	struct runtime *w = *state;
	AUTO_FREE char *message = mem_printf("there is no file to run in %s", w->tree.root);

	expect_refusal(w, E_SNAPSHOT_EMPTY, message);
	EVIDENCE(NULL);
	tree_write(&w->tree, ".gitignore", "*\n");
	tree_write(&w->tree, "data/x", "");
	expect_refusal(w, E_SNAPSHOT_EMPTY, message);
	EVIDENCE(".gitignore: ignored by git", "data/: ignored by git", NULL);
}

static void test_root_that_is_gone(void **state)
{
	struct runtime *w = *state;

	w->options.root = "/proc/nonexistent/tree";
	expect_refusal(
		w, E_IO_READ, "cannot list /proc/nonexistent/tree: No such file or directory");
}

static void test_unreadable(void **state)
{
	struct runtime *w = *state;
	uid_t uid = geteuid();

	tree_write(&w->tree, "a", "");
	tree_write(&w->tree, "closed/x", "");
	tree_write(&w->tree, "rules/.gitignore", "x\n");
	assert_int_equal(fchmodat(w->tree.fd, "closed", 0, 0), 0);
	assert_int_equal(fchmodat(w->tree.fd, ".", 0755, 0), 0);
	if (uid == 0)
		assert_int_equal(seteuid(65534), 0);
	expect_refusal(w, E_IO_READ, "cannot list closed: Permission denied");
	expect_hint(w, "echo /closed/");
	assert_int_equal(seteuid(uid), 0);
	tree_write(&w->tree, ".gitignore", "closed/\n");
	assert_int_equal(fchmodat(w->tree.fd, "rules/.gitignore", 0, 0), 0);
	if (uid == 0)
		assert_int_equal(seteuid(65534), 0);
	expect_refusal(
		w, E_IO_READ, "cannot read the rules of rules/.gitignore: Permission denied");
	assert_int_equal(seteuid(uid), 0);
	assert_int_equal(fchmodat(w->tree.fd, "closed", 0755, 0), 0);
}

static void test_large_rules(void **state)
{
	struct runtime *w = *state;

	tree_sparse(&w->tree, "d/.gitignore", IGNORE_TEXT_MAX + 1);
	expect_refusal(w, E_DATA_LIMIT, "d/.gitignore is larger than 4.0 MiB");
}

static int fail_to_find(
	void *ctx, const char *dir, const struct paths_repo **ret_repo, struct err *err)
{
	*ret_repo = NULL;
	return *dir ? err_set(err, E_SNAPSHOT_OWNER, "%s is not ours", dir) : 0;
}

static void test_repository_that_fails(void **state)
{
	struct runtime *w = *state;

	w->options.repo = fail_to_find;
	tree_write(&w->tree, "b/.git/HEAD", "");
	tree_write(&w->tree, "a/.git/HEAD", "");
	tree_write(&w->tree, "a/x", "");
	expect_refusal(w, E_SNAPSHOT_OWNER, "a is not ours");
}

/* In a child with mounts of its own: 0 as it should be, 77 not allowed here. */
static int list_with_loop(struct runtime *w)
{
	AUTO_FREE char *inner = fs_join(w->tree.root, "a/inner");

	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount(w->tree.root, inner, NULL, MS_BIND, NULL) < 0)
		return 77;
	int r = paths_list(&w->options, &w->list, &w->err);
	return r < 0 && w->err.id == E_SNAPSHOT_LOOP &&
			       str_eq(w->err.message, "a/inner is mounted inside itself")
		       ? 0
		       : 1;
}

static void test_mount_loop(void **state)
{
	struct runtime *w = *state;
	int status;

	tree_write(&w->tree, "a/x", "");
	tree_dir(&w->tree, "a/inner");
	pid_t pid = fork();
	if (pid == 0)
		_exit(list_with_loop(w));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_checkpoints),
		TEST(test_total),
		TEST(test_total_of_tracked),
		TEST(test_ignored_does_not_count),
		TEST(test_files),
		TEST(test_files_of_the_root),
		TEST(test_large_files),
		TEST(test_early),
		TEST(test_hints_are_exact),
		TEST(test_secrets),
		TEST(test_secrets_that_are_none),
		TEST(test_many_secrets),
		TEST(test_whiteout_names),
		TEST(test_names_of_git),
		TEST(test_first_name_is_notified),
		TEST(test_long_paths),
		TEST(test_long_directory),
		TEST(test_include_misses),
		TEST(test_paths_misses),
		TEST(test_empty),
		TEST(test_root_that_is_gone),
		TEST(test_unreadable),
		TEST(test_large_rules),
		TEST(test_repository_that_fails),
		TEST(test_mount_loop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
