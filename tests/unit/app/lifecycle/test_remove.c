/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "app/lifecycle/remove.h"
#include "core/context/session.h"
#include "core/store/store.h"
#include "tests/unit/runfix.h"

#define RUN_ID "a-22222"
#define RUNS   "state/dlrun/runs/"

static bool has_row(const char *id)
{
	AUTO_RUN struct run *run = NULL;

	return store_get(open_store(), id, &run, NULL) == 0;
}

static struct run *stored(const char *id)
{
	struct run *run = new_run(id);
	AUTO_FREE char *log = mem_printf(RUNS "%s/attempts/1/log", id);
	AUTO_FREE char *model = mem_printf(RUNS "%s/outputs/model", id);

	ok(store_insert(open_store(), run, error));
	put(log, "log");
	put(model, "model");
	return run;
}

static void sh(const char *script)
{
	AUTO_FREE char *line = mem_printf("cd %s/tree && export HOME=%s GIT_CONFIG_NOSYSTEM=1"
					  " GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.com"
					  " GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@example.com"
					  " && { %s ; } >/dev/null",
		root, fix_home, script);

	assert_int_equal(system(line), 0);
}

static int remove_one(struct run *run, struct err *err)
{
	const struct run_list one = {.v = &run, .n = 1, .cap = 1};
	AUTO_ERR struct err own = {0};
	int r = runs_remove(&session, &one, &own, err);

	return r == 0 && err_is_set(&own) ? err_move(err, &own) : r;
}

static void test_remove(void **state)
{
	AUTO_RUN struct run *run = stored(RUN_ID);

	run_free(stored("b-22222"));
	put("cache/dlrun/mirror/" RUN_ID "/x.tfevents", "x");
	put("cache/dlrun/mirror/b-22222/x.tfevents", "x");
	put("cache/dlrun/mirror-scalars/" RUN_ID "/x.tfevents", "x");
	put("cache/dlrun/mirror-scalars/b-22222/x.tfevents", "x");
	ok(remove_one(run, error));
	assert_false(has_row(RUN_ID));
	assert_false(exists(RUNS RUN_ID));
	assert_false(exists("cache/dlrun/mirror/" RUN_ID));
	assert_false(exists("cache/dlrun/mirror-scalars/" RUN_ID));
	assert_true(exists("cache/dlrun/mirror-scalars/b-22222/x.tfevents"));
	assert_true(exists("cache/dlrun/mirror/b-22222/x.tfevents"));
	assert_true(has_row("b-22222"));
	assert_true(exists(RUNS "b-22222/outputs/model"));
}

static void test_refused(void **state)
{
	static const enum run_state states[] = {
		RUN_PREPARING, RUN_QUEUED, RUN_STARTING, RUN_RUNNING, RUN_UNKNOWN};
	AUTO_RUN struct run *run = stored(RUN_ID);

	for (size_t i = 0; i < ARRAY_LEN(states); i++) {
		AUTO_ERR struct err err = {0};
		run_set_state(run, states[i]);
		assert_int_equal(remove_one(run, &err), -ERR_CONFLICT);
		assert_int_equal(err.id, E_RUN_RUNNING);
		assert_string_equal(err.hint, "dlrun cancel " RUN_ID);
	}
	assert_true(has_row(RUN_ID));
	assert_true(exists(RUNS RUN_ID "/attempts/1/log"));
}

/* What the caller read is old: somebody has started it again. */
static void test_started_again(void **state)
{
	AUTO_RUN struct run *run = stored(RUN_ID);
	AUTO_RUN struct run *now = NULL;
	AUTO_ERR struct err err = {0};

	ok(store_get(open_store(), RUN_ID, &now, error));
	run_set_state(now, RUN_QUEUED);
	ok(store_update_known(open_store(), now, error));
	assert_int_equal(remove_one(run, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_RUN_RUNNING);
	assert_true(exists(RUNS RUN_ID "/outputs/model"));
}

/* Whatever an earlier rm has removed before it was killed. */
static void test_half_removed(void **state)
{
	static const char *const scripts[] = {"rm -r attempts/1/log", "rm -r attempts",
		"rm -r outputs", "rm -r attempts outputs", "rm -r $PWD"};

	for (size_t i = 0; i < ARRAY_LEN(scripts); i++) {
		AUTO_RUN struct run *run = stored(RUN_ID);
		AUTO_FREE char *script =
			mem_printf("cd ../" RUNS " && cd " RUN_ID " && %s", scripts[i]);
		sh(script);
		ok(remove_one(run, error));
		assert_false(has_row(RUN_ID));
		assert_false(exists(RUNS RUN_ID));
	}
}

static void test_twice(void **state)
{
	AUTO_RUN struct run *run = stored(RUN_ID);
	AUTO_ERR struct err err = {0};

	ok(remove_one(run, error));
	assert_int_equal(remove_one(run, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_RUN_NOT_FOUND);
}

/* Several at once: each removes it, or finds nothing left. */
static void test_at_once(void **state)
{
	enum { N = 4 };
	AUTO_RUN struct run *run = stored(RUN_ID);
	pid_t pids[N];
	size_t removed = 0;

	for (size_t i = 0; i < 300; i++) {
		AUTO_FREE char *name = mem_printf(RUNS RUN_ID "/outputs/d%zu/f", i);
		put(name, "x");
	}
	session_done(&session);
	for (size_t i = 0; i < N; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			struct session_env env = {.dirs = {.home = fix_home,
							  .xdg_state_home = fix_state,
							  .xdg_cache_home = fix_cache,
							  .xdg_data_home = fix_data},
				.cwd = fix_cwd,
				.env = fix_env,
				.site_config = "/proc/nonexistent"};
			AUTO_ERR struct err err = {0};
			if (session_init(&session, &env, NULL) < 0)
				_exit(2);
			int r = remove_one(run, &err);
			_exit(r == 0 ? 0 : err.id == E_RUN_NOT_FOUND ? 1 : 2);
		}
	}
	for (size_t i = 0; i < N; i++) {
		int status;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
		removed += WEXITSTATUS(status) == 0;
	}
	assert_true(removed > 0);
	assert_false(exists(RUNS RUN_ID));
}

/* A supervisor has written the end and is about to go. */
static void test_waits_for_the_supervisor(void **state)
{
	AUTO_RUN struct run *run = stored(RUN_ID);
	int fds[2];
	char ready;

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		int fd = open(in_root(RUNS RUN_ID "/attempts/1/lock"), O_RDWR | O_CREAT, 0600);
		if (flock(fd, LOCK_EX) || write(fds[1], "x", 1) != 1)
			_exit(1);
		poll(NULL, 0, 200);
		put("done", "");
		_exit(0);
	}
	assert_int_equal(read(fds[0], &ready, 1), 1);
	ok(remove_one(run, error));
	assert_true(exists("done"));
	assert_false(exists(RUNS RUN_ID));
	waitpid(pid, NULL, 0);
	close(fds[0]);
	close(fds[1]);
}

static void test_waits_in_vain(void **state)
{
	AUTO_RUN struct run *run = stored(RUN_ID);
	AUTO_ERR struct err err = {0};
	AUTO_FD int fd =
		open(in_root(RUNS RUN_ID "/submit.lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(remove_one(run, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_IO_LOCK);
	assert_true(has_row(RUN_ID));
	assert_true(exists(RUNS RUN_ID "/outputs/model"));
}

/*
 * The git record
 */

static void test_ref(void **state)
{
	AUTO_RUN struct run *run = stored(RUN_ID);

	sh("git init -q && git commit -q --allow-empty -m x && git update-ref refs/dlrun/" RUN_ID
	   " HEAD && git update-ref refs/dlrun/b-22222 HEAD");
	ok(remove_one(run, error));
	sh("test \"$(git for-each-ref --format='%(refname)' refs/dlrun)\" = refs/dlrun/b-22222");
}

/* The ref cannot be removed now, because git is at work: nothing is lost. */
static void test_ref_refused(void **state)
{
	AUTO_RUN struct run *run = stored(RUN_ID);
	AUTO_ERR struct err err = {0};

	sh("git init -q && git commit -q --allow-empty -m x && git update-ref refs/dlrun/" RUN_ID
	   " HEAD && git pack-refs --all && touch .git/packed-refs.lock");
	assert_true(remove_one(run, &err) < 0);
	assert_non_null(strstr(err.message, "removing " RUN_ID));
	assert_true(has_row(RUN_ID));
	assert_true(exists(RUNS RUN_ID "/outputs/model"));
	sh("rm .git/packed-refs.lock");
	ok(remove_one(run, error));
	assert_false(has_row(RUN_ID));
	sh("test -z \"$(git for-each-ref refs/dlrun)\"");
}

/* The configuration that gave the target its name is gone. */
static void test_target_without_name(void **state)
{
	AUTO_RUN struct run *run = new_run(RUN_ID);

	json_set_str(json_sub(run->doc, "target"), "name", "here");
	ok(store_insert(open_store(), run, error));
	put(RUNS RUN_ID "/attempts/1/log", "");
	ok(remove_one(run, error));
	assert_false(exists(RUNS RUN_ID) || has_row(RUN_ID));
}

/* What a program made unwritable or unreadable goes all the same. */
static void test_modes(void **state)
{
	AUTO_RUN struct run *run = stored(RUN_ID);

	sh("cd ../" RUNS RUN_ID
	   "/outputs && mkdir -p a/b && echo x > a/b/c && chmod 0 a/b && chmod 500 a");
	ok(remove_one(run, error));
	assert_false(exists(RUNS RUN_ID));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, make_session, remove_session)
		T(test_remove),
		T(test_refused),
		T(test_started_again),
		T(test_half_removed),
		T(test_twice),
		T(test_at_once),
		T(test_waits_for_the_supervisor),
		T(test_waits_in_vain),
		T(test_ref),
		T(test_ref_refused),
		T(test_target_without_name),
		T(test_modes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
