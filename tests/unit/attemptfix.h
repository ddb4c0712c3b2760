/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the supervisor share: an attempt in a directory of its own, whose supervisor is
 * this test program (its main passes `__supervise DIR` to run_supervisor).
 */
#ifndef DLRUN_TESTS_UNIT_ATTEMPTFIX_H
#define DLRUN_TESTS_UNIT_ATTEMPTFIX_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/reply.h"
#include "tests/unit/supervisefix.h"
#include "tests/unit/until.h"

struct place {
	char base[64];
	char dir[128];         /* of the attempt */
	char submit_lock[128]; /* of the run */
	struct attempt_job job;
	struct strv env;
	pid_t child;
};

static char self[4096];

static inline void write_file(const char *dir, const char *name, const char *text, mode_t mode)
{
	AUTO_FREE char *path = fs_join(dir, name);

	assert_int_equal(fs_replace(path, text, strlen(text), mode, FS_SYNC_NONE, NULL), 0);
}

static inline int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));
	char tree[160];

	snprintf(place->base, sizeof(place->base), "/tmp/dlrun-test-supervise-XXXXXX");
	if (!mkdtemp(place->base))
		return -1;
	snprintf(place->dir, sizeof(place->dir), "%s/runs/a-22222/attempts/1", place->base);
	snprintf(place->submit_lock, sizeof(place->submit_lock), "%s/runs/a-22222/" RUN_SUBMIT_LOCK,
		place->base);
	snprintf(tree, sizeof(tree), "%s/" ATTEMPT_TREE, place->dir);
	if (fs_mkdirs(tree, 0700, NULL) < 0)
		return -1;
	place->job = (struct attempt_job){.run_id = mem_strdup("a-22222"),
		.attempt = 1,
		.spec = {.cwd = mem_strdup("."), .grace_ms = 10000},
		.cgroup = true};
	strv_addf(&place->env, "PATH=%s", "/usr/local/bin:/usr/bin:/bin");
	*state = place;
	return 0;
}

static inline int setup_without_cgroup(void **state)
{
	int r = setup(state);

	((struct place *)*state)->job.cgroup = false;
	return r;
}

static inline int teardown(void **state)
{
	struct place *place = *state;
	int r;

	if (place->child > 0)
		waitpid(place->child, NULL, 0);
	attempt_job_done(&place->job);
	strv_done(&place->env);
	r = fs_remove_tree(AT_FDCWD, place->base, NULL);
	free(place);
	return r;
}

/* The supervisor's answer. */
static inline int start_quietly(struct place *place, struct err *err)
{
	const char *const argv[] = {self, "__supervise", place->dir, NULL};
	AUTO_BUF struct buf response = {0};
	int fds[2];

	assert_int_equal(attempt_job_write(place->dir, &place->job, NULL), 0);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	AUTO_FD int read_end = fds[0];
	struct proc_spec spec = {.argv = argv,
		.env = (const char *const *)place->env.v,
		.stdin_fd = -1,
		.stdout_fd = fds[1],
		.stderr_fd = STDERR_FILENO,
		.new_session = true};
	assert_int_equal(proc_spawn(&spec, &place->child, err), 0);
	close(fds[1]);
	assert_int_equal(fs_read_fd(read_end, "answer", REPLY_MAX, &response, NULL), 0);
	return reply_parse(response.data, response.len, "the supervisor", NULL, err);
}

static inline void start(struct place *place)
{
	AUTO_ERR struct err err = {0};

	if (start_quietly(place, &err) < 0)
		fail_msg("%s", err.message);
}

static inline void observe(const struct place *place, struct target_status *ret)
{
	AUTO_ERR struct err err = {0};

	if (attempt_poll(place->dir, place->submit_lock, ret, &err) < 0)
		fail_msg("%s", err.message);
}

static inline bool is_over(const struct place *place)
{
	AUTO(target_status_done) struct target_status status = {0};

	observe(place, &status);
	return run_state_is_final(status.state);
}

static inline bool is_running(const struct place *place)
{
	AUTO(target_status_done) struct target_status status = {0};

	observe(place, &status);
	return status.state == RUN_RUNNING;
}

static inline char *read_text(const struct place *place, const char *name)
{
	AUTO_FREE char *path = fs_join(place->dir, name);
	AUTO_BUF struct buf text = {0};

	if (fs_read(path, 1 << 20, &text, NULL, NULL) < 0)
		return mem_strdup("");
	return buf_take(&text);
}

static inline void sh(struct place *place, const char *line)
{
	strv_done(&place->job.spec.command);
	strv_add(&place->job.spec.command, line);
	place->job.spec.shell = true;
}

static inline void command(struct place *place, const char *word)
{
	strv_done(&place->job.spec.command);
	strv_add(&place->job.spec.command, word);
	place->job.spec.shell = false;
}

static inline void expect_end(
	struct place *place, enum run_state state, int code, int sig, const char *reason)
{
	AUTO(target_status_done) struct target_status status = {0};

	UNTIL(is_over(place));
	observe(place, &status);
	if (status.state != state || status.exit.code != code)
		fail_msg("%s %d: %s\n%s", run_state_name(status.state), status.exit.code,
			status.text ? status.text : "", read_text(place, ATTEMPT_LOG));
	assert_int_equal(status.exit.signal, sig);
	assert_string_equal(status.exit.reason, reason);
	assert_true(status.ended_ms > 0);
}

static inline void expect_log(const struct place *place, const char *want)
{
	AUTO_FREE char *log = read_text(place, ATTEMPT_LOG);

	assert_string_equal(log, want);
}

static inline pid_t read_pid(const struct place *place, const char *name)
{
	AUTO_FREE char *text = read_text(place, name);

	return (pid_t)atoi(text);
}

static inline bool has_line(const struct place *place, const char *name)
{
	AUTO_FREE char *text = read_text(place, name);

	return strchr(text, '\n') != NULL;
}

static inline bool is_dead(pid_t pid)
{
	return !os_process_alive(pid, 0);
}

#endif
