/* SPDX-License-Identifier: Apache-2.0 */
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/context/session.h"
#include "core/record/spec.h"
#include "core/target/target_work.h"
#include "targets/local/supervise.h"
#include "targets/local/target_local.h"
#include "tests/unit/supervisefix.h"
#include "tests/unit/until.h"

#define RUN_ID "a-22222"

struct place {
	char base[64];
	char state_home[80];
	struct session session;
	struct target *target;
	char handle[TARGET_HANDLE_SIZE];
	struct spec spec;
	struct strv env, defaults, secrets;
	struct image image;
	struct target_job job;
	char *dir; /* of the attempt */
};

static char self[4096];

static const char *const shell_env[] = {
	"PATH=/usr/local/bin:/usr/bin:/bin", "NODE_RANK=7", "MINE=shell", NULL};

static int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));
	struct session_env env = {.cwd = "/", .user = "me", .env = shell_env, .self = self};

	snprintf(place->base, sizeof(place->base), "/tmp/dlrun-test-local-XXXXXX");
	if (!mkdtemp(place->base))
		return -1;
	snprintf(place->state_home, sizeof(place->state_home), "%s/state", place->base);
	env.dirs.xdg_state_home = env.dirs.xdg_cache_home = env.dirs.xdg_data_home =
		place->state_home;
	if (session_init(&place->session, &env, NULL) < 0)
		return -1;
	place->target = target_local_new(&place->session, "local");
	place->target->ops->prepare(place->target, RUN_ID, 1, NULL, place->handle, NULL);
	snprintf(place->image.manifest.digest, sizeof(place->image.manifest.digest), "sha256:0");
	place->job = (struct target_job){.run_id = RUN_ID,
		.attempt = 1,
		.handle = place->handle,
		.spec = &place->spec,
		.env = &place->env,
		.default_env = &place->defaults,
		.secret_env = &place->secrets,
		.image = &place->image};
	place->spec = (struct spec){.shell = true, .cwd = mem_strdup("."), .grace_ms = 10000};
	place->dir = dirs_attempt(&place->session.dirs, RUN_ID, 1);
	AUTO_FREE char *tree = fs_join(place->dir, ATTEMPT_TREE);
	*state = place;
	return fs_mkdirs(tree, 0700, NULL);
}

static int teardown(void **state)
{
	struct place *place = *state;
	int r;

	target_free(place->target);
	session_done(&place->session);
	spec_done(&place->spec);
	strv_done(&place->env);
	strv_done(&place->defaults);
	strv_done(&place->secrets);
	free(place->dir);
	r = fs_remove_tree(AT_FDCWD, place->base, NULL);
	free(place);
	return r;
}

static void write_file(const struct place *place, const char *name, const char *text)
{
	AUTO_FREE char *path = fs_join(place->dir, name);

	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static void submit(struct place *place, const char *line)
{
	AUTO_ERR struct err err = {0};

	strv_done(&place->spec.command);
	strv_add(&place->spec.command, line);
	if (target_submit(place->target, &place->job, TIMEOUT_MS, &err) < 0)
		fail_msg("%s", err.message);
}

static void get_state(struct place *place, struct target_status *ret)
{
	AUTO_ERR struct err err = {0};

	if (target_state(place->target, place->handle, TIMEOUT_MS, ret, &err) < 0)
		fail_msg("%s", err.message);
}

static bool is_over(struct place *place)
{
	AUTO(target_status_done) struct target_status status = {0};

	get_state(place, &status);
	return run_state_is_final(status.state);
}

static bool has_output(const struct place *place)
{
	AUTO_FREE char *path = fs_join(place->dir, ATTEMPT_LOG);
	struct stat st;

	return stat(path, &st) == 0 && st.st_size > 0;
}

/*
 * Reading logs
 */

struct reader {
	struct buf text;
	unsigned refuse_one_in; /* 0: takes everything */
	size_t calls;
	int64_t last_ms;
	bool times_fall;
	const char *stop_at; /* refuse once this has come */
	struct strv notices;
};

static int take(void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct reader *reader = ctx;

	assert_int_equal(rank, 0);
	reader->calls++;
	if (reader->refuse_one_in && random_below(reader->refuse_one_in) == 0)
		return err_set(err, E_CANCELED, "enough");
	if (reader->stop_at && strstr(reader->text.data, reader->stop_at))
		return err_set(err, E_CANCELED, "enough");
	if (time_ms < reader->last_ms)
		reader->times_fall = true;
	reader->last_ms = time_ms;
	buf_add(&reader->text, data, len);
	return 0;
}

static void take_notice(void *ctx, const char *text)
{
	struct reader *reader = ctx;

	strv_add(&reader->notices, text);
}

static void reader_init(struct reader *reader)
{
	*reader = (struct reader){0};
	buf_init(&reader->text, 16 << 20);
}

static void reader_done(struct reader *reader)
{
	buf_done(&reader->text);
	strv_done(&reader->notices);
}

static int read_log(struct place *place, struct target_log_request request, struct reader *reader,
	char token[static TARGET_TOKEN_SIZE], struct err *err)
{
	request.events =
		(struct target_log_events){.data = take, .notice = take_notice, .ctx = reader};
	request.rank = -1;
	return target_logs(place->target, place->handle, &request, token, NULL, err);
}

static void expect_log(struct place *place, struct target_log_request request, const char *want)
{
	AUTO(reader_done) struct reader reader;
	char token[TARGET_TOKEN_SIZE] = "";
	AUTO_ERR struct err err = {0};

	reader_init(&reader);
	if (read_log(place, request, &reader, token, &err) < 0)
		fail_msg("%s", err.message);
	assert_string_equal(reader.text.data, want);
}

#define WHOLE ((struct target_log_request){.tail_lines = -1})

/*
 * Starting
 */

static void test_submit_and_state(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};

	submit(place, "echo hello; exit 4");
	UNTIL(is_over(place));
	get_state(place, &status);
	assert_int_equal(status.state, RUN_FAILED);
	assert_int_equal(status.exit.code, 4);
	expect_log(place, WHOLE, "hello\n");
}

static void test_environment(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *outputs = dirs_outputs(&place->session.dirs, RUN_ID);

	strv_add(&place->env, "EPOCHS=3");
	strv_add(&place->defaults, "PYTHONUNBUFFERED=1");
	strv_add(&place->defaults, "MINE=default");
	strv_add(&place->secrets, "HF_TOKEN=s3cret");
	submit(place, "echo $EPOCHS $PYTHONUNBUFFERED $MINE $HF_TOKEN $DLRUN_RUN_ID $DLRUN_ATTEMPT "
		      "$DLRUN_NODE_ADDRS $DLRUN_GPUS_PER_NODE $MASTER_ADDR $NNODES $NODE_RANK;"
		      "cat $DLRUN_HOSTFILE; echo $DLRUN_OUTPUT_DIR;"
		      "touch $DLRUN_OUTPUT_DIR/a $DLRUN_ATTEMPT_DIR/b");
	UNTIL(is_over(place));
	AUTO_FREE char *want = mem_printf("3 1 shell s3cret " RUN_ID
					  " 1 127.0.0.1 0 127.0.0.1 1 7\n127.0.0.1\n%s\n",
		outputs);
	expect_log(place, WHOLE, want);
}

/* A secret is in no file below the state directory. */
static void test_secrets_are_not_written(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *grep = mem_printf("grep -r s3cret %s", place->state_home);

	strv_add(&place->secrets, "HF_TOKEN=s3cret");
	submit(place, "test \"$HF_TOKEN\" = s3\"\"cret");
	UNTIL(is_over(place));
	AUTO(target_status_done) struct target_status status = {0};
	get_state(place, &status);
	assert_int_equal(status.state, RUN_SUCCEEDED);
	assert_int_not_equal(system(grep), 0);
}

static void test_submit_is_idempotent(void **state)
{
	struct place *place = *state;

	submit(place, "echo ran; while ! test -e ../go; do sleep 0.01; done");
	submit(place, "echo ran again");
	write_file(place, "go", "");
	UNTIL(is_over(place));
	submit(place, "echo ran again");
	expect_log(place, WHOLE, "ran\n");
}

static void test_cancel(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};

	submit(place, "sleep 1000");
	assert_int_equal(target_cancel(place->target, place->handle, TIMEOUT_MS, NULL), 0);
	UNTIL(is_over(place));
	get_state(place, &status);
	assert_int_equal(status.state, RUN_CANCELLED);
	assert_int_equal(target_cancel(place->target, place->handle, TIMEOUT_MS, NULL), 0);
}

/* Between the row and the directory: the submit goes on and finds that it is not wanted. */
static void test_cancel_during_the_submit(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *run_dir = dirs_run(&place->session.dirs, RUN_ID);
	AUTO_FREE char *lock = fs_join(run_dir, RUN_SUBMIT_LOCK);
	AUTO(target_status_done) struct target_status status = {0};
	AUTO_FD int fd = -1;

	assert_int_equal(fs_remove_tree(AT_FDCWD, place->dir, NULL), 0);
	assert_int_equal(fs_lock(lock, true, 0, &fd, NULL), 0);
	assert_int_equal(target_cancel(place->target, place->handle, TIMEOUT_MS, NULL), 0);
	submit(place, "echo ran");
	UNTIL(is_over(place));
	get_state(place, &status);
	assert_int_equal(status.state, RUN_CANCELLED);
	expect_log(place, WHOLE, "");
}

/* The supervisor is killed; cancel starts another one that ends the program. */
static void test_cancel_without_supervisor(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};
	struct attempt_state at;

	submit(place, "echo ready; sleep 1000");
	UNTIL(has_output(place));
	assert_true(attempt_state_read(place->dir, &at));
	kill(at.supervisor.pid, SIGKILL);
	UNTIL(!os_process_alive(at.supervisor.pid, 0));
	get_state(place, &status);
	assert_int_equal(status.state, RUN_RUNNING);
	assert_int_equal(target_cancel(place->target, place->handle, TIMEOUT_MS, NULL), 0);
	UNTIL(is_over(place));
	UNTIL(!os_process_alive(at.program.pid, 0));
}

static void test_forget(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *tree = fs_join(place->dir, ATTEMPT_TREE);

	submit(place, "mkdir -p d/e; chmod 500 d; echo kept");
	UNTIL(is_over(place));
	assert_int_equal(target_forget(place->target, place->handle, false, -1, NULL), 0);
	assert_int_equal(access(tree, F_OK), -1);
	expect_log(place, WHOLE, "kept\n");
	assert_int_equal(target_forget(place->target, place->handle, true, -1, NULL), 0);
	assert_int_equal(access(place->dir, F_OK), -1);
	assert_int_equal(target_forget(place->target, place->handle, true, -1, NULL), 0);
}

static void test_handles(void **state)
{
	static const char *const bad[] = {"", "x", ":a-22222/0", ":a-22222/x", ":a-22222",
		":../../x/1", "m:a-22222/1/2", "m:/1", "a-22222/1"};
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		AUTO_ERR struct err err = {0};
		assert_int_equal(target_state(place->target, bad[i], -1, &status, &err), -ERR_IO);
		assert_int_equal(err.id, E_DATA);
	}
	assert_int_equal(
		target_state(place->target, "another-machine:a-22222/1", -1, &status, NULL), 0);
	assert_int_equal(status.state, RUN_UNKNOWN);
	target_status_done(&status);
	/* Its end, seen through a shared home, counts. */
	attempt_set_end(&status, RUN_SUCCEEDED, 0, 0, "job", "Completed", NULL);
	assert_int_equal(attempt_end_write(place->dir, &status, 0, NULL), 0);
	assert_int_equal(
		target_state(place->target, "another-machine:a-22222/1", -1, &status, NULL), 0);
	assert_int_equal(status.state, RUN_SUCCEEDED);
}

static void test_no_supervisor_program(void **state)
{
	struct place *place = *state;
	AUTO_ERR struct err err = {0};

	place->session.env.self = "/bin/false";
	strv_add(&place->spec.command, "true");
	assert_true(target_submit(place->target, &place->job, TIMEOUT_MS, &err) < 0);
	assert_int_equal(err.id, E_RUN_START);
	place->session.env.self = "/proc/nonexistent";
	assert_true(target_submit(place->target, &place->job, TIMEOUT_MS, &err) < 0);
	assert_int_equal(err.id, E_RUN_EXEC);
}

static void test_a_silent_supervisor(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *program = mem_printf("%s/silent", place->base);
	AUTO_ERR struct err err = {0};

	assert_int_equal(
		fs_replace(program, "#!/bin/sh\nexec sleep 5\n", 23, 0755, FS_SYNC_NONE, NULL), 0);
	place->session.env.self = program;
	strv_add(&place->spec.command, "true");
	assert_true(target_submit(place->target, &place->job, 50, &err) < 0);
	assert_int_equal(err.id, E_RUN_START);
}

/* The directory of the run cannot be made. */
static void test_no_directory(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *runs = mem_printf("%s/dlrun/runs", place->state_home);
	AUTO_ERR struct err err = {0};

	assert_int_equal(fs_remove_tree(AT_FDCWD, runs, NULL), 0);
	assert_int_equal(fs_replace(runs, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	strv_add(&place->spec.command, "true");
	assert_int_equal(target_submit(place->target, &place->job, TIMEOUT_MS, &err), -ERR_IO);
}

/*
 * Logs
 */

static void finished_log(struct place *place, const char *log, const char *marks)
{
	AUTO(target_status_done) struct target_status status = {0};

	write_file(place, ATTEMPT_LOG, log);
	if (marks)
		write_file(place, ATTEMPT_MARKS, marks);
	attempt_set_end(&status, RUN_SUCCEEDED, 0, 0, "job", "Completed", NULL);
	assert_int_equal(attempt_end_write(place->dir, &status, 0, NULL), 0);
}

static void test_tail(void **state)
{
	static const struct {
		const char *log;
		int64_t lines;
		const char *want;
	} cases[] = {
		{"a\nb\nc\n", -1, "a\nb\nc\n"},
		{"a\nb\nc\n", 0, ""},
		{"a\nb\nc\n", 1, "c\n"},
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc\n", 3, "a\nb\nc\n"},
		{"a\nb\nc\n", 99, "a\nb\nc\n"},
		{"a\nb\nc", 1, "c"},
		{"a\nb\nc", 2, "b\nc"},
		{"\n\n\n", 2, "\n\n"},
		{"", 3, ""},
		{"no newline", 1, "no newline"},
	};
	struct place *place = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		finished_log(place, cases[i].log, NULL);
		expect_log(place, (struct target_log_request){.tail_lines = cases[i].lines},
			cases[i].want);
		expect_log(place,
			(struct target_log_request){.tail_lines = cases[i].lines, .follow = true},
			cases[i].want);
	}
}

static void test_tail_of_a_long_log(void **state)
{
	struct place *place = *state;
	AUTO_BUF struct buf log, want;

	buf_init(&log, 8 << 20);
	buf_init(&want, 8 << 20);
	for (int i = 0; i < 200000; i++)
		buf_addf(i < 150000 ? &log : &want, "line %d\n", i);
	buf_add(&log, want.data, want.len);
	finished_log(place, log.data, NULL);
	expect_log(place, (struct target_log_request){.tail_lines = 50000}, want.data);
}

static void test_since(void **state)
{
	static const struct {
		int64_t since_ms;
		const char *want;
	} cases[] = {
		{1, "one\ntwo\nthree\n"},
		{1000, "one\ntwo\nthree\n"},
		{1001, "two\nthree\n"},
		{2000, "two\nthree\n"},
		{2001, "three\n"},
		{9000, ""},
	};
	struct place *place = *state;

	/* The second mark lies within a line. */
	finished_log(place, "one\ntwo\nthree\n", "500 0\n1000 4\n2000 6\n3000 14\n");
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		expect_log(place,
			(struct target_log_request){
				.tail_lines = -1, .since_ms = cases[i].since_ms},
			cases[i].want);
	expect_log(place, (struct target_log_request){.tail_lines = 1, .since_ms = 1}, "three\n");
	expect_log(
		place, (struct target_log_request){.tail_lines = 9, .since_ms = 2001}, "three\n");
}

struct timed {
	struct buf text;
};

static int take_timed(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct timed *timed = ctx;

	buf_addf(&timed->text, "%lld:%.*s|", (long long)time_ms, (int)len, data);
	return 0;
}

static void test_times(void **state)
{
	struct place *place = *state;
	struct timed timed;
	char token[TARGET_TOKEN_SIZE];
	struct target_log_request request = {
		.tail_lines = -1, .rank = -1, .events = {.data = take_timed, .ctx = &timed}};

	finished_log(place, "onetwothree", "500 0\n1000 3\n2000 6\n3000 11\n");
	buf_init(&timed.text, 1000);
	assert_int_equal(target_logs(place->target, place->handle, &request, token, NULL, NULL), 0);
	assert_string_equal(timed.text.data, "1000:one|2000:two|3000:three|");
	assert_string_equal(token, "11:3000");
	buf_reset(&timed.text);
	request.token = "4:1500";
	assert_int_equal(target_logs(place->target, place->handle, &request, token, NULL, NULL), 0);
	assert_string_equal(timed.text.data, "2000:wo|3000:three|");
	buf_done(&timed.text);
}

static void test_bytes_beyond_the_marks(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *path = fs_join(place->dir, ATTEMPT_LOG);
	struct timespec times[2] = {{.tv_sec = 5}, {.tv_sec = 5, .tv_nsec = 7000000}};
	char token[TARGET_TOKEN_SIZE];
	struct timed timed;
	struct target_log_request request = {
		.tail_lines = -1, .events = {.data = take_timed, .ctx = &timed}};

	finished_log(place, "onetwo", "1000 3\n");
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
	buf_init(&timed.text, 1000);
	assert_int_equal(target_logs(place->target, place->handle, &request, token, NULL, NULL), 0);
	assert_string_equal(timed.text.data, "1000:one|5007:two|");
	buf_done(&timed.text);
}

static void test_tokens(void **state)
{
	struct place *place = *state;
	AUTO(reader_done) struct reader reader;
	char token[TARGET_TOKEN_SIZE];
	struct target_log_request request = {.tail_lines = -1, .token = "100:7"};

	finished_log(place, "0123456789", NULL);
	reader_init(&reader);
	assert_int_equal(read_log(place, request, &reader, token, NULL), 0);
	assert_string_equal(reader.text.data, "");
	assert_int_equal(reader.notices.n, 1);
	assert_string_equal(token, "10:7");
	expect_log(place, (struct target_log_request){.tail_lines = 1, .token = "3:0"}, "3456789");
	expect_log(place, (struct target_log_request){.tail_lines = -1, .token = "-3:0"},
		"0123456789");
	expect_log(
		place, (struct target_log_request){.tail_lines = -1, .token = "3"}, "0123456789");
}

static void test_no_log(void **state)
{
	struct place *place = *state;

	expect_log(place, WHOLE, "");
	expect_log(place, (struct target_log_request){.tail_lines = -1, .follow = true}, "");
}

/* Cut at random, each time going on with the token: every byte once, in order. */
static void test_follow_with_cuts(void **state)
{
	struct place *place = *state;
	AUTO(reader_done) struct reader reader;
	AUTO_BUF struct buf want;
	char token[TARGET_TOKEN_SIZE] = "0:0";
	size_t cuts = 0;

	buf_init(&want, 1 << 20);
	for (int i = 0; i < 3000; i++)
		buf_addf(&want, "line %d\n", i);
	submit(place, "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done");
	reader_init(&reader);
	reader.refuse_one_in = 3;
	for (;;) {
		AUTO_ERR struct err err = {0};
		AUTO_FREE char *from = mem_strdup(token);
		struct target_log_request request = {
			.tail_lines = -1, .follow = true, .token = from};
		int r = read_log(place, request, &reader, token, &err);
		if (r == 0)
			break;
		assert_int_equal(err.id, E_CANCELED);
		cuts++;
	}
	assert_string_equal(reader.text.data, want.data);
	assert_false(reader.times_fall);
	assert_true(is_over(place));
	/* Once more with a cut that is sure. */
	if (cuts == 0)
		print_message("not cut this time\n");
}

/* A line arrives while the program waits for the reader. */
static void test_follow_is_live(void **state)
{
	struct place *place = *state;
	AUTO(reader_done) struct reader reader;
	AUTO_ERR struct err err = {0};
	char token[TARGET_TOKEN_SIZE];
	struct target_log_request request = {.tail_lines = -1, .follow = true};

	submit(place,
		"echo first; while ! test -e ../go; do sleep 0.01; done; echo second; echo x");
	reader_init(&reader);
	reader.stop_at = "first";
	/* The reader gives up at what follows "first", which does not come before it has. */
	int64_t began_ms = clock_ms();
	struct target_log_request head = {.tail_lines = -1};
	while (!strstr(reader.text.data, "first") && clock_ms() - began_ms < TIMEOUT_MS) {
		AUTO_FREE char *from = mem_strdup(token);
		head.token = reader.calls ? from : NULL;
		assert_int_equal(read_log(place, head, &reader, token, NULL), 0);
	}
	write_file(place, "go", "");
	reader.stop_at = NULL;
	AUTO_FREE char *from = mem_strdup(token);
	request.token = from;
	assert_int_equal(read_log(place, request, &reader, token, &err), 0);
	assert_string_equal(reader.text.data, "first\nsecond\nx\n");
	assert_true(is_over(place));
}

static void test_follow_ends_when_the_supervisor_is_killed(void **state)
{
	struct place *place = *state;
	struct attempt_state at;

	submit(place, "echo ready; sleep 1000");
	UNTIL(has_output(place));
	assert_true(attempt_state_read(place->dir, &at));
	kill(at.supervisor.pid, SIGKILL);
	kill(-at.program.pid, SIGKILL);
	UNTIL(!os_process_alive(at.supervisor.pid, 0));
	expect_log(place, (struct target_log_request){.tail_lines = 0, .follow = true}, "");
	os_family_remove(&at.family);
}

static int64_t cpu_ms(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/* Its own looks must not wake it up again. */
static void test_follow_is_idle(void **state)
{
	struct place *place = *state;
	int64_t before_ms = cpu_ms();

	submit(place, "sleep 1; echo end");
	expect_log(place, (struct target_log_request){.tail_lines = -1, .follow = true}, "end\n");
	assert_true(cpu_ms() - before_ms < 400);
}

static volatile int interrupted;

static void on_alarm(int sig)
{
	interrupted = 1;
}

static void test_follow_can_be_interrupted(void **state)
{
	struct place *place = *state;
	AUTO(reader_done) struct reader reader;
	AUTO_ERR struct err err = {0};
	char token[TARGET_TOKEN_SIZE];
	struct target_log_request request = {.tail_lines = -1,
		.follow = true,
		.events = {.data = take, .notice = take_notice, .ctx = &reader}};

	reader_init(&reader);
	submit(place, "sleep 1000");
	signal(SIGALRM, on_alarm);
	interrupted = 0;
	ualarm(20000, 0);
	int64_t began_ms = clock_ms();
	assert_int_equal(
		target_logs(place->target, place->handle, &request, token, &interrupted, &err),
		-ERR_CANCELED);
	assert_true(clock_ms() - began_ms < 15000);
	assert_int_equal(target_cancel(place->target, place->handle, -1, NULL), 0);
	UNTIL(is_over(place));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_submit_and_state),
		TEST(test_environment),
		TEST(test_secrets_are_not_written),
		TEST(test_submit_is_idempotent),
		TEST(test_cancel),
		TEST(test_cancel_during_the_submit),
		TEST(test_cancel_without_supervisor),
		TEST(test_forget),
		TEST(test_handles),
		TEST(test_no_supervisor_program),
		TEST(test_a_silent_supervisor),
		TEST(test_no_directory),
		TEST(test_tail),
		TEST(test_tail_of_a_long_log),
		TEST(test_since),
		TEST(test_times),
		TEST(test_bytes_beyond_the_marks),
		TEST(test_tokens),
		TEST(test_no_log),
		TEST(test_follow_with_cuts),
		TEST(test_follow_is_live),
		TEST(test_follow_ends_when_the_supervisor_is_killed),
		TEST(test_follow_is_idle),
		TEST(test_follow_can_be_interrupted),
	};

	if (argc == 3 && strcmp(argv[1], "__supervise") == 0)
		return run_supervisor(argv[2]);
	if (!os_self_path(self, sizeof(self)) && !realpath(argv[0], self))
		return 1;
	return cmocka_run_group_tests_name("target_local", tests, NULL, NULL);
}
