/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "app/gc/gc.h"
#include "base/os/env.h"
#include "base/os/os.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "core/record/setup_key.h"
#include "targets/local/setup.h"
#include "tests/unit/tree.h"

/* run/ and run2/ are trees of runs, cache/setups where setups are. */
struct place {
	struct tree tree;
	char *run, *run2;
	struct attempt_job job;
	struct err err;
};

static int make_place(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));

	place->tree = tree_new();
	tree_write(&place->tree, "run/uv.lock", "1");
	tree_write(&place->tree, "run/src/a.py", "a");
	tree_write(&place->tree, "run2/uv.lock", "1");
	place->run = fs_join(place->tree.root, "run");
	place->run2 = fs_join(place->tree.root, "run2");
	place->job.setups = fs_join(place->tree.root, "cache/setups");
	place->job.spec.runtime.setup.cwd = mem_strdup(".");
	strv_add(&place->job.spec.runtime.setup.key, "uv.lock");
	*state = place;
	return 0;
}

static int drop_place(void **state)
{
	struct place *place = *state;

	tree_free(&place->tree);
	free(place->run);
	free(place->run2);
	attempt_job_done(&place->job);
	err_done(&place->err);
	free(place);
	return 0;
}

static void set_line(struct place *place, const char *line)
{
	free(place->job.spec.runtime.setup.run);
	place->job.spec.runtime.setup.run = mem_strdup(line);
}

static char *key_of(struct place *place)
{
	char key[SHA256_HEX_SIZE];

	if (setup_key(&place->job.spec.runtime.setup, NULL, place->run, NULL, NULL, key,
		    &place->err) < 0)
		fail_msg("%s", place->err.message);
	return mem_strdup(key);
}

static bool exists(struct place *place, const char *path)
{
	return faccessat(place->tree.fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static char *text_of(struct place *place, const char *path)
{
	AUTO_FREE char *full = fs_join(place->tree.root, path);
	AUTO_BUF struct buf text = {0};

	return fs_read(full, 4096, &text, NULL, NULL) < 0 ? NULL : buf_take(&text);
}

static void expect_text(struct place *place, const char *path, const char *text)
{
	AUTO_FREE char *found = text_of(place, path);

	if (!str_eq(found, text))
		fail_msg("%s: %s", path, found ? found : "missing");
}

/*
 * What a supervisor does
 */

static pid_t start_line(const struct setup *setup)
{
	struct setup_order order;
	pid_t pid;

	setup_order(setup, &order);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(order.output_fd, 1);
		dup2(order.output_fd, 2);
		if (chdir(order.cwd) == 0)
			execl("/bin/sh", "sh", "-c", order.line, (char *)NULL);
		_exit(125);
	}
	return pid;
}

/* Look until there is something to do. */
static int wait_for(struct setup *setup, enum setup_state *ret, struct err *err)
{
	int r;

	while ((r = setup_poll(setup, ret, err)) == 0 && *ret == SETUP_BUSY)
		poll(NULL, 0, (int)(setup_wait_ms(setup) > 5 ? 5 : setup_wait_ms(setup)));
	return r;
}

static int do_setup(
	struct place *place, const char *tree, struct setup **ret, bool *ret_ran, struct err *err)
{
	enum setup_state state = SETUP_BUSY;
	int status;

	*ret_ran = false;
	int r = setup_begin(&place->job, tree, ret, err);
	if (r == 0)
		r = wait_for(*ret, &state, err);
	if (r < 0 || state == SETUP_READY)
		return r;
	*ret_ran = true;
	waitpid(start_line(*ret), &status, 0);
	return setup_end(*ret, status, err);
}

/* Whether the line was run. */
static bool must_do(struct place *place, const char *tree)
{
	AUTO_SETUP struct setup *setup = NULL;
	bool ran;

	if (do_setup(place, tree, &setup, &ran, &place->err) < 0)
		fail_msg("%s", place->err.message);
	return ran;
}

/* In a tree of its own, as every attempt has. */
static bool must_do_anew(struct place *place)
{
	static int n;
	AUTO_FREE char *name = mem_printf("again%d/uv.lock", n);
	AUTO_FREE char *tree = mem_printf("%s/again%d", place->tree.root, n++);
	AUTO_FREE char *product = fs_join(tree, "env/.");

	tree_write(&place->tree, name, "1");
	bool ran = must_do(place, tree);
	assert_int_equal(access(product, F_OK), 0);
	return ran;
}

static void must_fail(struct place *place, const char *part)
{
	AUTO_SETUP struct setup *setup = NULL;
	bool ran;

	assert_true(do_setup(place, place->run, &setup, &ran, &place->err) < 0);
	if (!place->err.message || !strstr(place->err.message, part))
		fail_msg("not %s: %s", part, place->err.message);
}

/*
 * Keys
 */

static void test_none(void **state)
{
	struct place *place = *state;
	struct setup *setup = (struct setup *)place;

	assert_int_equal(setup_begin(&place->job, place->run, &setup, &place->err), 0);
	assert_null(setup);
	setup_free(NULL);
	set_line(place, "true");
	free(TAKE(place->job.setups));
	assert_true(setup_begin(&place->job, place->run, &setup, &place->err) < 0);
	assert_int_equal(place->err.id, E_RUN_SETUP);
}

static void test_key(void **state)
{
	struct place *place = *state;
	struct runtime_setup *todo = &place->job.spec.runtime.setup;

	set_line(place, "make");
	AUTO_FREE char *first = key_of(place);
	AUTO_FREE char *again = key_of(place);
	assert_string_equal(first, again);
	assert_int_equal(strlen(first), 64);
	assert_int_equal(fchmodat(place->tree.fd, "run/uv.lock", 0600, 0), 0);
	AUTO_FREE char *umask_differs = key_of(place);
	assert_string_equal(first, umask_differs);
	tree_write(&place->tree, "run/src/a.py", "edited");
	AUTO_FREE char *code_differs = key_of(place);
	assert_string_equal(first, code_differs);

	AUTO_STRV struct strv keys = {0};
	strv_add(&keys, first);
	set_line(place, "make ");
	strv_add_take(&keys, key_of(place));
	set_line(place, "make");
	free(todo->cwd);
	todo->cwd = mem_strdup("src");
	strv_add_take(&keys, key_of(place));
	assert_int_equal(fchmodat(place->tree.fd, "run/uv.lock", 0700, 0), 0);
	strv_add_take(&keys, key_of(place));
	tree_write(&place->tree, "run/uv.lock", "2");
	strv_add_take(&keys, key_of(place));
	strv_add(&todo->key, "src");
	strv_add_take(&keys, key_of(place));
	tree_write(&place->tree, "run/src/deep/b.py", "");
	strv_add_take(&keys, key_of(place));
	tree_write(&place->tree, "run/src/deep/b.py", "x");
	strv_add_take(&keys, key_of(place));
	tree_link(&place->tree, "run/src/deep/l", "b.py");
	strv_add_take(&keys, key_of(place));
	assert_int_equal(mkfifoat(place->tree.fd, "run/src/deep/pipe", 0600), 0);
	strv_add_take(&keys, key_of(place));
	for (size_t i = 0; i < keys.n; i++)
		if (strv_find(&keys, keys.v[i]) != (ptrdiff_t)i)
			fail_msg("key %zu is that of %td", i, strv_find(&keys, keys.v[i]));
}

static void test_key_order(void **state)
{
	struct place *place = *state;
	struct runtime_setup *todo = &place->job.spec.runtime.setup;

	set_line(place, "make");
	tree_write(&place->tree, "run/b", "b");
	strv_add(&todo->key, "b");
	AUTO_FREE char *first = key_of(place);
	strv_done(&todo->key);
	strv_add(&todo->key, "b");
	strv_add(&todo->key, "uv.lock");
	AUTO_FREE char *second = key_of(place);
	assert_string_equal(first, second);
}

static bool holds_no_ignored(const void *ctx, const char *path)
{
	(void)ctx;
	return !strstr(path, "ignored");
}

/* Of a directory what a snapshot has. */
static void test_key_of_a_snapshot(void **state)
{
	struct place *place = *state;
	struct runtime_setup *todo = &place->job.spec.runtime.setup;
	char key[SHA256_HEX_SIZE];

	set_line(place, "make");
	tree_write(&place->tree, "run/libs/foo/code.c", "1");
	strv_add(&todo->key, "libs");
	AUTO_FREE char *before = key_of(place);
	tree_write(&place->tree, "run/libs/foo/ignored.o", "");
	tree_write(&place->tree, "run/libs/ignored/x", "");
	AUTO_FREE char *whole = key_of(place);
	assert_string_not_equal(whole, before);
	assert_int_equal(setup_key(todo, NULL, place->run, holds_no_ignored, NULL, key, NULL), 0);
	assert_string_equal(key, before);
}

/* What a link says, and the file behind it. */
static void test_key_link(void **state)
{
	struct place *place = *state;
	struct runtime_setup *todo = &place->job.spec.runtime.setup;

	set_line(place, "make");
	tree_link(&place->tree, "run/link", "uv.lock");
	strv_done(&todo->key);
	strv_add(&todo->key, "link");
	AUTO_FREE char *first = key_of(place);
	tree_write(&place->tree, "run/uv.lock", "2");
	AUTO_FREE char *second = key_of(place);
	assert_string_not_equal(first, second);
}

static void expect_no_key(struct place *place, const char *path, enum err_id id, const char *part)
{
	char key[SHA256_HEX_SIZE];
	struct runtime_setup *todo = &place->job.spec.runtime.setup;

	strv_done(&todo->key);
	strv_add(&todo->key, path);
	assert_true(setup_key(todo, NULL, place->run, NULL, NULL, key, &place->err) < 0);
	if (place->err.id != id || !strstr(place->err.message, part))
		fail_msg("%s: %s", path, place->err.message);
}

static void test_bad_keys(void **state)
{
	struct place *place = *state;

	set_line(place, "make");
	tree_link(&place->tree, "run/away", "/etc");
	tree_sparse(&place->tree, "run/big", (off_t)SETUP_KEY_BYTES_MAX + 1);
	expect_no_key(place, "gone.lock", E_RUN_SETUP, "'gone.lock' is not in the tree");
	expect_no_key(place, "uv.lock/x", E_RUN_SETUP, "is not in the tree");
	expect_no_key(place, "away/passwd", E_RUN_SETUP, "behind a symbolic link");
	expect_no_key(place, "../run/uv.lock", E_RUN_SETUP, "'../run/uv.lock'");
	expect_no_key(place, "big", E_DATA_LIMIT, "'big'");
}

/*
 * Done once
 */

static void test_once(void **state)
{
	struct place *place = *state;

	set_line(place, "echo x >> ../../../../count; mkdir env; echo e > env/f; echo said");
	assert_true(must_do(place, place->run));
	expect_text(place, "run/env/f", "e\n");
	assert_false(must_do(place, place->run));
	assert_false(must_do(place, place->run2));
	expect_text(place, "run2/env/f", "e\n");
	expect_text(place, "count", "x\n");
	AUTO_FREE char *key = key_of(place);
	AUTO_FREE char *log = mem_printf("cache/setups/%s/log", key);
	expect_text(place, log, "said\n");
	tree_write(&place->tree, "run/uv.lock", "2");
	assert_true(must_do(place, place->run));
	expect_text(place, "count", "x\nx\n");
}

static void test_products(void **state)
{
	struct place *place = *state;
	struct stat st;

	tree_write(&place->tree, "results/out/x", "x");
	AUTO_FREE char *results = fs_join(place->tree.root, "results/out");
	tree_link(&place->tree, "run/out", results);
	strv_add(&place->job.spec.runtime.outputs, "out");
	tree_write(&place->tree, "run/kept/x", "of the snapshot");
	tree_write(&place->tree, "run2/src/ext.so", "its own");
	tree_dir(&place->tree, "elsewhere");
	tree_link(&place->tree, "run2/lib", "../elsewhere");
	tree_dir(&place->tree, "run/lib");
	set_line(place,
		"test ! -e out || exit 9; echo e > src/ext.so; mkdir -p src/__pycache__ lib new/er;"
		"touch src/__pycache__/a.pyc src/b.pyc new/er/f lib/p kept/y; echo z > kept/x;"
		"rm uv.lock; ln -s /etc link; mkdir out");
	assert_true(must_do(place, place->run));
	expect_text(place, "run/src/ext.so", "e\n");
	expect_text(place, "run/kept/x", "of the snapshot");
	assert_true(exists(place, "run/kept/y"));
	assert_true(exists(place, "run/new/er/f"));
	assert_true(exists(place, "run/lib/p"));
	assert_true(exists(place, "run/link"));
	assert_false(exists(place, "run/src/__pycache__"));
	assert_false(exists(place, "run/src/b.pyc"));
	assert_true(exists(place, "results/out/x"));
	assert_false(must_do(place, place->run2));
	expect_text(place, "run2/src/ext.so", "its own");
	assert_int_equal(fstatat(place->tree.fd, "run2/new", &st, AT_SYMLINK_NOFOLLOW), 0);
	assert_true(S_ISLNK(st.st_mode));
	/* Its directory is not there, or leads away. */
	assert_false(exists(place, "run2/kept"));
	assert_false(exists(place, "elsewhere/p"));
}

static void test_in_directory(void **state)
{
	struct place *place = *state;

	free(place->job.spec.runtime.setup.cwd);
	place->job.spec.runtime.setup.cwd = mem_strdup("src");
	set_line(place, "cat a.py > made");
	assert_true(must_do(place, place->run));
	expect_text(place, "run/src/made", "a");
	/* The caller's place may hold no file of the snapshot. */
	free(place->job.spec.runtime.setup.cwd);
	place->job.spec.runtime.setup.cwd = mem_strdup("no/such");
	set_line(place, "touch f");
	assert_true(must_do(place, place->run));
}

static void test_copy_is_apart(void **state)
{
	struct place *place = *state;

	set_line(place, "echo changed > src/a.py; rm -rf uv.lock");
	assert_true(must_do(place, place->run));
	expect_text(place, "run/src/a.py", "a");
	expect_text(place, "run/uv.lock", "1");
}

/*
 * Failing
 */

static void test_fails(void **state)
{
	struct place *place = *state;

	set_line(place,
		"mkdir half; test ! -e ../seen || exit 0; touch ../seen; printf 'a\\nb\\nc\\n"
		"d \\033[31m'; exit 3");
	must_fail(place, "the setup exited with 3: mkdir half");
	assert_int_equal(place->err.id, E_RUN_SETUP);
	assert_int_equal(place->err.n_evidence, 3);
	assert_string_equal(place->err.evidence[0], "b");
	assert_string_equal(place->err.evidence[2], "d \\x1b[31m");
	AUTO_FREE char *key = key_of(place);
	AUTO_FREE char *log = mem_printf("cache/setups/%s/log", key);
	expect_text(place, log, "a\nb\nc\nd \033[31m");
	assert_false(exists(place, "run/half"));
	/* In a fresh tree: mkdir would fail otherwise. */
	assert_true(must_do(place, place->run));
	assert_true(exists(place, "run/half"));
	expect_text(place, log, "");
}

static void test_signal(void **state)
{
	struct place *place = *state;

	set_line(place, "kill -9 $$");
	must_fail(place, "killed by SIGKILL");
	assert_int_equal(place->err.n_evidence, 0);
}

/* A supervisor that dies while the line runs: whoever is next waits for the line. */
static void test_killed(void **state)
{
	struct place *place = *state;
	AUTO_SETUP struct setup *setup = NULL;
	enum setup_state found;
	int fds[2], status;
	char byte;

	set_line(
		place, "echo $$ > ../pid; test -e ../again || { touch ../again; exec sleep 600; }");
	assert_int_equal(os_pipe(fds, 0), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct setup *lost = NULL;
		if (setup_begin(&place->job, place->run, &lost, NULL) == 0 &&
			wait_for(lost, &found, NULL) == 0 && found == SETUP_RUN)
			start_line(lost);
		_exit(write(fds[1], "x", 1) != 1);
	}
	assert_int_equal(read(fds[0], &byte, 1), 1);
	waitpid(pid, &status, 0);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(setup_begin(&place->job, place->run, &setup, &place->err), 0);
	AUTO_FREE char *key = key_of(place);
	AUTO_FREE char *path = mem_printf("cache/setups/%s/pid", key);
	AUTO_FREE char *text = NULL;
	while (!text || !strchr(text, '\n')) {
		free(text);
		text = text_of(place, path);
	}
	assert_int_equal(setup_poll(setup, &found, &place->err), 0);
	assert_int_equal(found, SETUP_BUSY);
	assert_string_equal(setup_why(setup), "a setup whose supervisor was killed still runs");
	assert_true(setup_wait_ms(setup) > 0);
	int64_t line_pid;
	text[strcspn(text, "\n")] = '\0';
	assert_int_equal(str_to_int(text, 2, INT_MAX, "pid", &line_pid, NULL), 0);
	kill((pid_t)line_pid, SIGKILL);
	assert_int_equal(wait_for(setup, &found, &place->err), 0);
	assert_int_equal(found, SETUP_RUN);
	waitpid(start_line(setup), &status, 0);
	assert_int_equal(setup_end(setup, status, &place->err), 0);
}

static void test_killed_copying(void **state)
{
	struct place *place = *state;
	char name[64];

	for (int i = 0; i < 200; i++) {
		snprintf(name, sizeof(name), "run/d%d/f%d", i % 5, i);
		tree_write(&place->tree, name, name);
	}
	set_line(place, "cat d*/f* | wc -c > size; cp size ../../../../size");
	for (int i = 0; i < 30; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			_exit(!must_do(place, place->run));
		struct timespec wait = {.tv_nsec = 300 * 1000 * i};
		nanosleep(&wait, NULL);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	must_do(place, place->run);
	AUTO_FREE char *size = text_of(place, "run/size");
	assert_non_null(size);
	int total = 0;
	for (int i = 0; i < 200; i++)
		total += snprintf(name, sizeof(name), "run/d%d/f%d", i % 5, i);
	AUTO_FREE char *expected = mem_printf("%d\n", total);
	assert_string_equal(size, expected);
}

/*
 * Several at once
 */

static void race(struct place *place, int n, int *ret_failed)
{
	int status;

	*ret_failed = 0;
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid > 0)
			continue;
		AUTO_FREE char *tree = mem_printf("%s%d", place->run, i);
		AUTO_FREE char *lock = fs_join(tree, "uv.lock");
		AUTO_SETUP struct setup *setup = NULL;
		bool ran;
		if (fs_mkdirs(tree, 0700, NULL) < 0 ||
			fs_replace(lock, "1", 1, 0644, FS_SYNC_NONE, NULL) < 0)
			_exit(9);
		int r = do_setup(place, tree, &setup, &ran, NULL);
		AUTO_FREE char *product = fs_join(tree, "env/f");
		_exit(r < 0 ? 1 : access(product, F_OK) < 0 ? 2 : 0);
	}
	for (int i = 0; i < n; i++) {
		assert_true(wait(&status) > 0);
		assert_true(WIFEXITED(status));
		if (WEXITSTATUS(status) > 1)
			fail_msg("a setup that was ready has no products");
		*ret_failed += WEXITSTATUS(status);
	}
}

static void test_race(void **state)
{
	struct place *place = *state;
	int n_failed;

	set_line(place, "echo x >> ../../../../count; mkdir env && touch env/f");
	race(place, 6, &n_failed);
	assert_int_equal(n_failed, 0);
	expect_text(place, "count", "x\n");
}

/* Each that fails lets the next one try. */
static void test_race_of_failures(void **state)
{
	struct place *place = *state;
	int n_failed;

	set_line(place, "echo x >> ../../../../count; mkdir env && touch env/f;"
			"test $(wc -l < ../../../../count) -ge 3");
	race(place, 6, &n_failed);
	assert_int_equal(n_failed, 2);
	expect_text(place, "count", "x\nx\nx\n");
}

/*
 * What was done may be damaged
 */

static void test_damage(void **state)
{
	static const char *const bad[] = {"", "{}",
		"{\"schema\":\"dlrun/setup/v1\",\"products\":3}",
		"{\"schema\":\"dlrun/setup/v1\",\"products\":[\"../../x\"]}",
		"{\"schema\":\"dlrun/setup/v1\",\"products\":[\"/etc\"]}"};
	struct place *place = *state;

	set_line(place, "mkdir env");
	AUTO_FREE char *key = key_of(place);
	AUTO_FREE char *done = mem_printf("cache/setups/%s/done", key);
	AUTO_FREE char *made = mem_printf("%s/cache/setups/%s/tree", place->tree.root, key);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_true(must_do_anew(place));
		tree_write(&place->tree, done, bad[i]);
	}
	assert_true(must_do_anew(place));
	assert_false(must_do_anew(place));
	assert_int_equal(fs_remove_tree(AT_FDCWD, made, NULL), 0);
	assert_true(must_do_anew(place));
}

/* Of a boot that ended before the disk had it all; used later in that boot; of another machine. */
static void test_power_cut(void **state)
{
	struct place *place = *state;
	char machine[OS_ID_SIZE] = "", boot[OS_ID_SIZE];

	if (!os_machine_id(machine) || !os_boot_id(boot))
		skip();
	set_line(place, "mkdir env");
	assert_true(must_do_anew(place));
	AUTO_FREE char *key = key_of(place);
	AUTO_FREE char *done = mem_printf("cache/setups/%s/done", key);
	AUTO_FREE char *stamp = mem_printf("cache/setups/%s/stamp", key);
	AUTO_FREE char *text = mem_printf("{\"schema\":\"dlrun/setup/v1\",\"products\":[\"env\"],"
					  "\"boot_id\":\"other\",\"machine_id\":\"%s\"}",
		machine);
	tree_write(&place->tree, done, text);
	struct timespec late[2] = {{.tv_sec = time(NULL) + 200}, {.tv_sec = time(NULL) + 200}};
	assert_int_equal(utimensat(place->tree.fd, stamp, late, 0), 0);
	assert_false(must_do_anew(place));
	assert_int_equal(utimensat(place->tree.fd, stamp, NULL, 0), 0);
	assert_true(must_do_anew(place));
	tree_write(&place->tree, done,
		"{\"schema\":\"dlrun/setup/v1\",\"products\":[\"env\"],\"boot_id\":\"other\","
		"\"machine_id\":\"other\"}");
	assert_false(must_do_anew(place));
}

/*
 * Python
 */

static void expect_var(const struct strv *env, const char *name, const char *value)
{
	const char *found = env_get((const char *const *)env->v, name);

	if (!str_eq(found, value))
		fail_msg("%s=%s", name, found ? found : "NULL");
}

static void test_venv(void **state)
{
	struct place *place = *state;
	AUTO_SETUP struct setup *setup = NULL;
	AUTO_STRV struct strv before = {0}, env = {0};
	bool ran;

	set_line(place, "S=.venv/lib/python3.12/site-packages; mkdir -p .venv/bin $S venv;"
			"touch .venv/pyvenv.cfg venv/pyvenv.cfg .venv/bin/python;"
			"chmod +x .venv/bin/python; pwd | sed s,$,/src, > $S/pkg.pth");
	assert_int_equal(do_setup(place, place->run, &setup, &ran, &place->err), 0);
	strv_add(&before, "PATH=/bin");
	strv_add(&before, "PYTHONHOME=/x");
	strv_add(&before, "VIRTUAL_ENV=/other");
	strv_add(&before, "CONDA_PREFIX=/conda");
	strv_add(&before, "PYTHONPATH=/y");
	setup_env(setup, &before, &env);
	AUTO_FREE char *path = mem_printf("%s/.venv/bin:/bin", place->run);
	AUTO_FREE char *venv = mem_printf("%s/.venv", place->run);
	AUTO_FREE char *python_path = mem_printf("%s/src:/y", place->run);
	expect_var(&env, "PATH", path);
	expect_var(&env, "VIRTUAL_ENV", venv);
	expect_var(&env, "CONDA_PREFIX", NULL);
	expect_var(&env, "PYTHONPATH", python_path);
	expect_var(&env, "PYTHONHOME", NULL);
	expect_var(&env, "UV_NO_SYNC", "1");
	strv_add(&before, "UV_NO_SYNC=0");
	setup_env(setup, &before, &env);
	expect_var(&env, "UV_NO_SYNC", "0");
	AUTO_STRV struct strv none = {0};
	setup_env(setup, &none, &env);
	path[strlen(path) - strlen(":/bin")] = '\0';
	expect_var(&env, "PATH", path);
}

/* Every run would import the first one's code: that is no success, for nobody. */
static void test_hook(void **state)
{
	struct place *place = *state;

	set_line(place,
		"S=.venv/lib/python3.12/site-packages; mkdir -p .venv/bin $S/pkg-1.dist-info;"
		"touch .venv/pyvenv.cfg .venv/bin/python $S/_editable_skbc_pkg.py;"
		"chmod +x .venv/bin/python; printf '{\"url\": \"file://%s\", \"dir_info\":"
		"{\"editable\": true}}' $(pwd) > $S/pkg-1.dist-info/direct_url.json");
	must_fail(place, "the setup installs pkg with -e by an import hook");
	must_fail(place, "the setup installs pkg with -e by an import hook");
}

static void test_no_venv(void **state)
{
	struct place *place = *state;
	AUTO_SETUP struct setup *setup = NULL;
	AUTO_STRV struct strv before = {0}, env = {0};
	bool ran;

	set_line(place, "mkdir -p src/.venv node_modules; touch src/.venv/pyvenv.cfg");
	assert_int_equal(do_setup(place, place->run, &setup, &ran, &place->err), 0);
	strv_add(&before, "PATH=/bin");
	setup_env(setup, &before, &env);
	assert_int_equal(env.n, 1);
	expect_var(&env, "PATH", "/bin");
}

/*
 * gc
 */

static size_t collect(struct place *place, int64_t keep_ms, int64_t later_ms, bool dry_run)
{
	struct session session = {.dirs.cache = fs_join(place->tree.root, "cache")};
	struct gc_report report = {0};
	int64_t now_ms = clock_wall_ms() + later_ms;

	assert_int_equal(gc_setups(&session, keep_ms, now_ms, dry_run, &report, &place->err), 0);
	free(session.dirs.cache);
	return report.trees;
}

static void test_gc(void **state)
{
	struct place *place = *state;
	AUTO_SETUP struct setup *setup = NULL;
	const int64_t week_ms = GC_SETUP_KEEP_MS / 4, late_ms = GC_SETUP_KEEP_MS + 1000;
	bool ran;

	assert_int_equal(collect(place, 0, 0, false), 0);
	set_line(place, "mkdir env");
	assert_int_equal(do_setup(place, place->run, &setup, &ran, &place->err), 0);
	assert_int_equal(collect(place, 0, late_ms, true), 0);
	assert_int_equal(collect(place, 0, late_ms, false), 0);
	assert_true(exists(place, "run/env/."));
	setup_free(TAKE(setup));
	assert_int_equal(collect(place, week_ms, week_ms + 1000, false), 0);
	assert_int_equal(collect(place, week_ms, late_ms, true), 1);
	assert_true(exists(place, "run/env/."));
	assert_int_equal(collect(place, week_ms, late_ms, false), 1);
	assert_false(exists(place, "run/env/."));
	assert_int_equal(collect(place, week_ms, late_ms, false), 0);
	unlinkat(place->tree.fd, "run/env", 0);
	set_line(place, "exit 1");
	must_fail(place, "exited with 1");
	tree_dir(&place->tree, "cache/setups/gone-x");
	assert_int_equal(collect(place, week_ms, 0, false), 1);
	assert_int_equal(collect(place, week_ms, week_ms + 1000, false), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_none, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_key, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_key_order, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_key_of_a_snapshot, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_key_link, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_bad_keys, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_once, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_products, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_in_directory, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_copy_is_apart, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_fails, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_signal, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_killed, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_killed_copying, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_race, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_race_of_failures, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_damage, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_power_cut, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_venv, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_hook, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_no_venv, make_place, drop_place),
		cmocka_unit_test_setup_teardown(test_gc, make_place, drop_place),
	};

	return cmocka_run_group_tests_name("setup", tests, NULL, NULL);
}
