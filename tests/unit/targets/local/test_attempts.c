/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/attemptfix.h"

#include "base/os/env.h"
#include "targets/local/program.h"

/*
 * What stands in front of programs, and what follows after them. This program is its own
 * `dlrun __supervise DIR`.
 */

static void set_words(struct place *place, const char *const *words)
{
	strv_done(&place->job.spec.command);
	for (; *words; words++)
		strv_add(&place->job.spec.command, *words);
	place->job.spec.shell = false;
}
#define WORDS(place, ...) set_words(place, (const char *const[]){__VA_ARGS__, NULL})

static void before(struct place *place, const char *lines)
{
	place->job.spec.runtime.before = mem_strdup(lines);
}

/*
 * before
 */

static void test_before_makes_the_environment(void **state)
{
	struct place *place = *state;

	before(place, "export GREETING='hel lo'\ncd /\n# a comment");
	WORDS(place, "sh", "-c", "echo \"$GREETING|$1|$PWD\"", "x", "a  b\"'");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "hel lo|a  b\"'|/\n");
}

static void test_before_a_line(void **state)
{
	struct place *place = *state;

	before(place, "X=1");
	sh(place, "echo $X; exit 4");
	start(place);
	expect_end(place, RUN_FAILED, 4, 0, "Error");
	expect_log(place, "1\n");
}

/* As in any shell: a line that fails is followed by the next one, unless the lines say
 * otherwise. */
static void test_before_that_fails(void **state)
{
	struct place *place = *state;

	before(place, "false");
	WORDS(place, "echo", "ran");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
}

static void test_before_that_ends(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};

	before(place, "set -e\nfalse");
	WORDS(place, "echo", "ran");
	start(place);
	expect_end(place, RUN_FAILED, 1, 0, "Error");
	expect_log(place, "");
	observe(place, &status);
	assert_string_equal(status.exit.origin, "job");
}

static void test_before_a_program_that_is_missing(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};

	place->job.spec.runtime.retries = 5;
	before(place, "PATH=/usr/bin:/bin");
	WORDS(place, "python33", "x");
	start(place);
	expect_end(place, RUN_FAILED, 127, 0, "NotFound");
	expect_log(place, "dlrun: python33: command not found\n");
	observe(place, &status);
	assert_string_equal(status.text, "python33: command not found");
	assert_string_equal(status.exit.origin, "dlrun");
	assert_int_equal(attempt_next(place->dir), 0);
}

static void test_before_can_find_the_program(void **state)
{
	struct place *place = *state;

	write_file(place->dir, "files-tool", "#!/bin/sh\necho found\n", 0755);
	before(place, "PATH=$PWD/..:$PATH");
	WORDS(place, "files-tool");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "found\n");
}

/* 127 of the program's own is its own. */
static void test_127_of_the_program(void **state)
{
	struct place *place = *state;

	before(place, ":");
	WORDS(place, "sh", "-c", "exit 127");
	start(place);
	expect_end(place, RUN_FAILED, 127, 0, "Error");
}

/*
 * PYTHONPATH
 */

static void expect_python_path(const char *inherited, const char *want)
{
	struct attempt_job job = {.spec.cwd = mem_strdup("a")};
	const char *const env[] = {"OLDPWD=/x", inherited, NULL};
	AUTO_STRV struct strv got = {0};

	strv_add(&job.spec.runtime.python_paths, "src");
	strv_add(&job.spec.runtime.python_paths, ".");
	program_env(&job, env, "/t", &got);
	assert_string_equal(env_get((const char *const *)got.v, "PYTHONPATH"), want);
	assert_string_equal(env_get((const char *const *)got.v, "PWD"), "/t/a");
	assert_null(env_get((const char *const *)got.v, "OLDPWD"));
	attempt_job_done(&job);
}

static void test_python_paths(void **state)
{
	expect_python_path(NULL, "/t/src:/t");
	expect_python_path("PYTHONPATH=", "/t/src:/t");
	expect_python_path("PYTHONPATH=/own:/b", "/t/src:/t:/own:/b");
}

/*
 * The signal before the limit
 */

static void limits(struct place *place, int64_t timeout_ms, int64_t before_ms)
{
	place->job.spec.timeout_ms = timeout_ms;
	place->job.spec.runtime.signal = SIGUSR1;
	place->job.spec.runtime.signal_before_ms = before_ms;
}

/* How long a shell on a busy machine may take to set its traps. */
enum { SIGNAL_AFTER_MS = 3000 };

static void test_signal_before_the_limit(void **state)
{
	struct place *place = *state;

	limits(place, 60000, 60000 - SIGNAL_AFTER_MS);
	WORDS(place, "sh", "-c",
		"exec 2>/dev/null; trap 'echo saved; exit 0' USR1; while :; do sleep 0.01; done");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "saved\n");
}

static void test_signal_that_is_ignored(void **state)
{
	struct place *place = *state;

	limits(place, SIGNAL_AFTER_MS + 200, 200);
	place->job.spec.grace_ms = 100;
	WORDS(place, "sh", "-c", "trap '' USR1 TERM; while :; do sleep 0.01; done");
	start(place);
	expect_end(place, RUN_FAILED, 124, SIGKILL, "Timeout");
}

/* The shell of a line stays, so that what comes after the program is done. */
static void test_signal_to_a_line(void **state)
{
	struct place *place = *state;

	limits(place, 60000, 60000 - SIGNAL_AFTER_MS);
	sh(place,
		"exec 2>/dev/null; sh -c 'trap \"echo saved; exit 5\" USR1; while :; do sleep 0.01; done'; "
		"echo then $?; exit 7");
	start(place);
	expect_end(place, RUN_FAILED, 7, 0, "Error");
	expect_log(place, "saved\nthen 5\n");
}

static void test_signal_that_ends_it(void **state)
{
	struct place *place = *state;

	limits(place, 60000, 59900);
	WORDS(place, "sleep", "1000");
	start(place);
	expect_end(place, RUN_FAILED, 128 + SIGUSR1, SIGUSR1, "Signal");
}

static void test_no_signal_without_a_limit(void **state)
{
	struct place *place = *state;

	limits(place, 0, 1);
	WORDS(place, "sleep", "0.1");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
}

/*
 * Further attempts
 */

/* The fixture now means attempt number of the run. */
static void go_to(struct place *place, int number)
{
	AUTO_FREE char *dir = attempt_sibling(place->dir, number);

	snprintf(place->dir, sizeof(place->dir), "%s", dir);
}

static bool has_exit(const struct place *place, int number)
{
	AUTO_FREE char *dir = attempt_sibling(place->dir, number);
	AUTO_FREE char *path = fs_join(dir, ATTEMPT_EXIT);

	return access(path, F_OK) == 0;
}

/* A place without layout: trees of further attempts are there before they are made. */
static void make_trees(struct place *place, int n)
{
	for (int i = 2; i <= n; i++) {
		AUTO_FREE char *dir = attempt_sibling(place->dir, i);
		AUTO_FREE char *tree = fs_join(dir, ATTEMPT_TREE);
		assert_int_equal(fs_mkdirs(tree, 0700, NULL), 0);
	}
}

static void test_retries(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *count = mem_printf("%s/count", place->base), *line = NULL;

	line = mem_printf(
		"echo $DLRUN_ATTEMPT $SECRET >> %s; echo a$DLRUN_ATTEMPT;"
		" test -d $DLRUN_ATTEMPT_DIR && test -s $DLRUN_HOSTFILE || exit 9;"
		" case $DLRUN_ATTEMPT_DIR in */attempts/$DLRUN_ATTEMPT/files) ;; *) exit 8;;"
		" esac; test $DLRUN_ATTEMPT = 3 || exit 1",
		count);
	strv_add(&place->env, "SECRET=s3cret");
	strv_add(&place->job.spec.env, "DLRUN_ATTEMPT=1");
	attempt_job_place(&place->job, place->dir);
	assert_int_equal(attempt_make_dirs(place->dir, NULL, 1, NULL), 0);
	place->job.spec.runtime.retries = 5;
	make_trees(place, 3);
	sh(place, line);
	start(place);
	expect_end(place, RUN_FAILED, 1, 0, "Error");
	assert_int_equal(attempt_next(place->dir), 2);
	UNTIL(has_exit(place, 3));
	go_to(place, 2);
	expect_end(place, RUN_FAILED, 1, 0, "Error");
	assert_int_equal(attempt_next(place->dir), 3);
	expect_log(place, "a2\n");
	go_to(place, 3);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	assert_int_equal(attempt_next(place->dir), 0);
	AUTO_FREE char *text = read_text(place, "../../../../count");
	assert_string_equal(text, "1 s3cret\n2 s3cret\n3 s3cret\n");
	AUTO_FREE char *grep = mem_printf("grep -rq s3cret %s/runs", place->base);
	assert_int_not_equal(system(grep), 0);
}

static void test_retries_that_are_used_up(void **state)
{
	struct place *place = *state;

	place->job.spec.runtime.retries = 1;
	make_trees(place, 2);
	sh(place, "kill -SEGV $$");
	start(place);
	UNTIL(has_exit(place, 2));
	expect_end(place, RUN_FAILED, 139, SIGSEGV, "Signal");
	go_to(place, 2);
	expect_end(place, RUN_FAILED, 139, SIGSEGV, "Signal");
	assert_int_equal(attempt_next(place->dir), 0);
}

/* Limits, cancels and success are no failures of the program. */
static void test_what_is_not_repeated(void **state)
{
	struct place *place = *state;

	place->job.spec.runtime.retries = 3;
	place->job.spec.timeout_ms = 100;
	sh(place, "sleep 1000");
	start(place);
	expect_end(place, RUN_FAILED, 124, SIGTERM, "Timeout");
	assert_int_equal(attempt_next(place->dir), 0);
}

/* Once: the handler of the first would be ended by a second. */
static const char counts_int[] =
	"trap 'n=$((n + 1))' INT; trap 'echo term' TERM; n=0; echo >&2; "
	"while [ $n = 0 ]; do sleep 0.01; done; sleep 0.3; echo int $n; exit 6";

static void test_stop_signal(void **state)
{
	struct place *place = *state;

	place->job.spec.runtime.stop_signal = SIGINT;
	WORDS(place, "bash", "-c", counts_int);
	start(place);
	UNTIL(has_line(place, ATTEMPT_LOG));
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	expect_end(place, RUN_CANCELLED, 143, 0, "Cancelled");
	expect_log(place, "\nint 1\n");
}

static void test_stop_signal_at_the_limit(void **state)
{
	struct place *place = *state;

	place->job.spec.runtime.stop_signal = SIGINT;
	place->job.spec.timeout_ms = SIGNAL_AFTER_MS;
	WORDS(place, "bash", "-c", counts_int);
	start(place);
	expect_end(place, RUN_FAILED, 124, 0, "Timeout");
	expect_log(place, "\nint 1\n");
}

static void test_cancel_ends_all_attempts(void **state)
{
	struct place *place = *state;

	place->job.spec.runtime.retries = 3;
	sh(place, "echo ready; sleep 1000");
	start(place);
	UNTIL(has_line(place, ATTEMPT_LOG));
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	expect_end(place, RUN_CANCELLED, 143, SIGTERM, "Cancelled");
	assert_int_equal(attempt_next(place->dir), 0);
}

/* The supervisor of the first was killed after it had named a next one: nobody begins it later. */
static void test_a_next_one_that_never_began(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};
	AUTO(attempt_next_done) struct attempt_next next = {0};

	place->job.spec.runtime.retries = 3;
	sh(place, "echo ran");
	assert_int_equal(attempt_job_write(place->dir, &place->job, NULL), 0);
	assert_int_equal(attempt_next_make(place->dir, &next, NULL), 0);
	go_to(place, 2);
	/* While it is held it is about to begin. */
	observe(place, &status);
	assert_int_equal(status.state, RUN_STARTING);
	attempt_next_done(&next);
	expect_end(place, RUN_FAILED, 125, 0, "Interrupted");
	target_status_done(&status);
	observe(place, &status);
	assert_string_equal(status.text, "dlrun was stopped before attempt 2 had begun");
	/* Its number is used up. */
	go_to(place, 1);
	assert_true(attempt_next_make(place->dir, &next, NULL) < 0);
}

/* What runs goes on behind an upgrade: its next attempt has the limits that it was started with. */
static void test_a_job_of_an_older_version(void **state)
{
	struct place *place = *state;
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO(attempt_next_done) struct attempt_next next = {0};

	write_file(place->dir, ATTEMPT_JOB,
		"{\"schema\":\"dlrun/job/v1\",\"run\":\"a-23456\",\"attempt\":1,\"command\":[\"x\"],"
		"\"shell\":true,\"cwd\":\"a\",\"env\":[\"A=1\"],\"timeout_ms\":5000,"
		"\"grace_ms\":7000,\"limit_memory_bytes\":1073741824,\"limit_cpus_milli\":1500,"
		"\"retries\":2,\"signal\":10}",
		0600);
	assert_int_equal(attempt_next_make(place->dir, &next, NULL), 0);
	assert_int_equal(attempt_job_read(next.dir, &job, NULL), 0);
	assert_int_equal(job.spec.resources.memory_bytes, 1073741824);
	assert_int_equal(job.spec.resources.cpus_milli, 1500);
	assert_true(job.spec.shell);
	assert_string_equal(job.spec.cwd, "a");
	assert_string_equal(job.spec.env.v[0], "A=1");
	assert_int_equal(job.spec.timeout_ms, 5000);
	assert_int_equal(job.spec.grace_ms, 7000);
	assert_int_equal(job.spec.runtime.retries, 1);
	assert_int_equal(job.spec.runtime.signal, 10);
}

static void test_a_next_one_that_cannot_begin(void **state)
{
	struct place *place = *state;

	place->job.spec.runtime.retries = 1;
	make_trees(place, 2);
	AUTO_FREE char *state_file = fs_join(place->dir, "../2/" ATTEMPT_STATE "/x");
	assert_int_equal(fs_mkdirs(state_file, 0700, NULL), 0);
	sh(place, "exit 1");
	start(place);
	UNTIL(has_exit(place, 2));
	go_to(place, 2);
	expect_end(place, RUN_FAILED, 125, 0, "StartFailed");
}

/*
 * Setups
 */

static void set_setup(struct place *place, const char *line)
{
	struct runtime_setup *setup = &place->job.spec.runtime.setup;

	write_file(place->dir, "tree/key", "1\n", 0644);
	place->job.setups = mem_printf("%s/setups", place->base);
	setup->run = mem_strdup(line);
	setup->cwd = mem_strdup(".");
	strv_add(&setup->key, "key");
}

static void test_setup_before_the_program(void **state)
{
	struct place *place = *state;

	set_setup(place, "echo made > product; echo from setup");
	sh(place, "cat product");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "made\n");
}

static void test_setup_that_fails(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};

	place->job.spec.runtime.retries = 3;
	set_setup(place, "echo out of luck; exit 3");
	sh(place, "echo ran");
	start(place);
	expect_end(place, RUN_FAILED, 125, 0, "SetupFailed");
	observe(place, &status);
	assert_string_equal(status.exit.origin, "setup");
	assert_string_equal(status.text, "setup failed with exit 3: echo out of luck; exit 3");
	AUTO_FREE char *log = read_text(place, ATTEMPT_LOG);
	assert_non_null(strstr(log, "dlrun: setup failed, the end of "));
	assert_non_null(strstr(log, ":\nout of luck\ndlrun: setup failed with exit 3"));
	assert_null(strstr(log, "ran\n"));
	assert_int_equal(attempt_next(place->dir), 0);
}

static void test_setup_that_is_cancelled(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};
	AUTO_FREE char *line = mem_printf(
		"trap '' TERM; echo $$ > %s/pid; while :; do sleep 0.01; done", place->base);

	place->job.spec.grace_ms = 100;
	set_setup(place, line);
	sh(place, "echo ran");
	start(place);
	UNTIL(has_line(place, "../../../../pid"));
	observe(place, &status);
	assert_int_equal(status.state, RUN_STARTING);
	assert_string_equal(status.text, "its setup runs");
	pid_t pid = read_pid(place, "../../../../pid");
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	expect_end(place, RUN_CANCELLED, 143, 0, "Cancelled");
	assert_true(is_dead(pid));
	expect_log(place, "");
}

/* What it left behind is ended before the program begins, and does not end the program. */
static void test_setup_that_leaves_something(void **state)
{
	struct place *place = *state;

	set_setup(place, "(trap '' TERM; while :; do sleep 0.01; done) & echo x > product");
	sh(place, "cat product; sleep 0.7; echo still");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "x\nstill\n");
}

static void test_setup_without_its_key(void **state)
{
	struct place *place = *state;

	set_setup(place, "true");
	strv_add(&place->job.spec.runtime.setup.key, "uv.lock");
	sh(place, "echo ran");
	start(place);
	expect_end(place, RUN_FAILED, 125, 0, "SetupFailed");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_before_makes_the_environment),
		TEST(test_before_a_line),
		TEST(test_before_that_fails),
		TEST(test_before_that_ends),
		TEST(test_before_a_program_that_is_missing),
		TEST(test_before_can_find_the_program),
		TEST(test_127_of_the_program),
		cmocka_unit_test(test_python_paths),
		TEST(test_signal_before_the_limit),
		TEST(test_signal_that_is_ignored),
		TEST(test_signal_to_a_line),
		TEST(test_signal_that_ends_it),
		TEST(test_no_signal_without_a_limit),
		TEST(test_retries),
		TEST(test_retries_that_are_used_up),
		TEST(test_what_is_not_repeated),
		TEST(test_stop_signal),
		TEST(test_stop_signal_at_the_limit),
		TEST(test_cancel_ends_all_attempts),
		TEST(test_a_next_one_that_never_began),
		TEST(test_a_job_of_an_older_version),
		TEST(test_a_next_one_that_cannot_begin),
		TEST(test_setup_before_the_program),
		TEST(test_setup_that_fails),
		TEST(test_setup_that_is_cancelled),
		TEST(test_setup_that_leaves_something),
		TEST(test_setup_without_its_key),
	};

	if (argc == 3 && strcmp(argv[1], "__supervise") == 0)
		return run_supervisor(argv[2]);
	if (!os_self_path(self, sizeof(self)) && !realpath(argv[0], self))
		return 1;
	return cmocka_run_group_tests_name("attempts", tests, NULL, NULL);
}
