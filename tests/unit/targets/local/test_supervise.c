/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/attemptfix.h"

#include <errno.h>

#include "core/attempt/marks.h"
#include "targets/local/supervise.h"

/*
 * How programs end
 */

static void test_directory_removed(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *go = mem_printf("%s/go", place->base), *line = NULL;
	struct attempt_state now = {0};

	line = mem_printf("until test -e %s; do sleep 0.01; done", go);
	sh(place, line);
	start(place);
	UNTIL(is_running(place));
	assert_true(attempt_state_read(place->dir, &now));
	assert_int_equal(fs_remove_tree(AT_FDCWD, place->dir, NULL), 0);
	write_file(place->base, "go", "", 0600);
	UNTIL(!attempt_process_alive(&now.supervisor));
}

/* After the supervisor has said that it begins. */
static void test_no_space_for_its_files(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};
	AUTO_FREE char *marks = fs_join(place->dir, ATTEMPT_MARKS);

	assert_int_equal(mkdir(marks, 0700), 0);
	sh(place, "true");
	start(place);
	expect_end(place, RUN_FAILED, 125, 0, "StartFailed");
	observe(place, &status);
	assert_non_null(strstr(status.text, "making the files of a-22222"));
}

static void test_success(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};

	sh(place, "echo out; echo err >&2; cat");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "out\nerr\n");
	observe(place, &status);
	assert_string_equal(status.exit.origin, "job");
	assert_true(status.started_ms > 0 && status.started_ms <= status.ended_ms);
	assert_true(json_get_num(json_get(status.observed, "usage"), "cpu_s", -1) >= 0);
	assert_true(json_get_int(json_get(status.observed, "usage"), "memory_peak_bytes", 0) > 0);
	assert_null(status.text);
}

static void test_exit_code(void **state)
{
	sh(*state, "exit 3");
	start(*state);
	expect_end(*state, RUN_FAILED, 3, 0, "Error");
}

static void test_killed_by_a_signal(void **state)
{
	sh(*state, "kill -KILL $$");
	start(*state);
	expect_end(*state, RUN_FAILED, 137, SIGKILL, "Signal");
}

static void test_terminated(void **state)
{
	sh(*state, "kill -TERM $$");
	start(*state);
	expect_end(*state, RUN_FAILED, 143, SIGTERM, "Signal");
}

/* dlrun ignores SIGPIPE, the program must not. */
static void test_signals_have_their_defaults(void **state)
{
	sh(*state, "kill -PIPE $$");
	start(*state);
	expect_end(*state, RUN_FAILED, 141, SIGPIPE, "Signal");
}

static void test_unknown_command(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};

	command(*state, "python33");
	start(*state);
	expect_end(*state, RUN_FAILED, 127, 0, "NotFound");
	expect_log(*state, "dlrun: python33: command not found\n");
	observe(*state, &status);
	assert_string_equal(status.exit.origin, "dlrun");
	assert_string_equal(status.text, "python33: command not found");
}

static void test_missing_file(void **state)
{
	command(*state, "./train.sh");
	start(*state);
	expect_end(*state, RUN_FAILED, 127, 0, "NotFound");
	expect_log(*state, "dlrun: ./train.sh: no such file\n");
}

static void test_not_executable(void **state)
{
	struct place *place = *state;

	write_file(place->dir, "tree/train.sh", "#!/bin/sh\n", 0644);
	command(place, "./train.sh");
	start(place);
	expect_end(place, RUN_FAILED, 126, 0, "NotExecutable");
	expect_log(place, "dlrun: ./train.sh: Permission denied\n");
}

static void test_a_directory(void **state)
{
	command(*state, "./");
	start(*state);
	expect_end(*state, RUN_FAILED, 126, 0, "NotExecutable");
}

static void test_missing_interpreter(void **state)
{
	struct place *place = *state;

	write_file(place->dir, "tree/train.py", "#!/usr/bin/python33\n", 0755);
	command(place, "./train.py");
	start(place);
	expect_end(place, RUN_FAILED, 127, 0, "NotFound");
	expect_log(place, "dlrun: ./train.py: its interpreter or loader is missing\n");
}

static void test_script_without_interpreter(void **state)
{
	struct place *place = *state;

	write_file(place->dir, "tree/run", "echo \"$0 $1\"\n", 0755);
	command(place, "./run");
	strv_add(&place->job.spec.command, "a b");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "./run a b\n");
}

/*
 * What programs get
 */

static void test_environment(void **state)
{
	struct place *place = *state;
	char real[4096];

	strv_add(&place->env, "OLDPWD=/before");
	strv_add(&place->env, "PWD=/before");
	strv_add(&place->env, "MINE=shell");
	strv_add(&place->env, "NNODES=4");
	strv_add(&place->env, "DLRUN_ATTEMPT=9");
	strv_add(&place->job.spec.env, "DLRUN_ATTEMPT=1");
	strv_add(&place->job.spec.env, "ODD=a=b \xff\n'");
	strv_add(&place->job.defaults, "NNODES=1");
	strv_add(&place->job.defaults, "NODE_RANK=0");
	free(place->job.spec.cwd);
	place->job.spec.cwd = mem_strdup("exp/a");
	sh(place, "pwd; echo $PWD; echo ${OLDPWD-none} $MINE $NNODES $NODE_RANK $DLRUN_ATTEMPT;"
		  "printf '%s|' \"$ODD\"; test \"$MASTER_PORT\" -gt 1023");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	assert_non_null(realpath(place->dir, real));
	AUTO_FREE char *want = mem_printf(
		"%s/tree/exp/a\n%s/tree/exp/a\nnone shell 4 0 1\na=b \xff\n'|", real, real);
	expect_log(place, want);
}

static void test_path_is_the_program_s(void **state)
{
	struct place *place = *state;

	write_file(place->dir, "tree/tool", "#!/bin/sh\necho found\n", 0755);
	strv_add(&place->job.spec.env, "PATH=.:/usr/bin:/bin");
	command(place, "tool");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "found\n");
}

static void test_words_of_any_bytes(void **state)
{
	struct place *place = *state;

	command(place, "printf");
	strv_add(&place->job.spec.command, "%s|%s|");
	strv_add(&place->job.spec.command, "\xff\xfe \n");
	strv_add(&place->job.spec.command, "");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "\xff\xfe \n||");
}

static void test_no_descriptor_is_inherited(void **state)
{
	struct place *place = *state;
	int fds[2];
	char c;

	/* As a shell or a CI runner has them open: without close-on-exec. */
	assert_int_equal(pipe(fds), 0);
	sh(place,
		"for fd in /proc/self/fd/*; do case ${fd##*/} in [0-2]) ;; *) readlink $fd;; esac;"
		" done; while ! test -e ../go; do sleep 0.01; done");
	start(place);
	close(fds[1]);
	UNTIL(is_running(place));
	/* The end of the pipe is seen though the program runs. */
	assert_int_equal(read(fds[0], &c, 1), 0);
	close(fds[0]);
	write_file(place->dir, "go", "", 0600);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_log(place, "");
}

static void test_it_is_its_own_session(void **state)
{
	struct place *place = *state;
	struct attempt_state at;

	sh(place, "echo $$; while ! test -e ../go; do sleep 0.01; done");
	start(place);
	UNTIL(has_line(place, ATTEMPT_LOG));
	assert_true(attempt_state_read(place->dir, &at));
	assert_int_equal(at.program.pid, read_pid(place, ATTEMPT_LOG));
	assert_int_equal(getsid(at.program.pid), at.program.pid);
	assert_int_equal(getpgid(at.program.pid), at.program.pid);
	write_file(place->dir, "go", "", 0600);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
}

/*
 * Stopping
 */

static void test_time_limit(void **state)
{
	struct place *place = *state;

	place->job.spec.timeout_ms = 100;
	sh(place, "sleep 1000");
	start(place);
	expect_end(place, RUN_FAILED, 124, SIGTERM, "Timeout");
}

static void test_cancel_by_term(void **state)
{
	struct place *place = *state;

	sh(place, "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
	start(place);
	UNTIL(has_line(place, ATTEMPT_LOG));
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	expect_end(place, RUN_CANCELLED, 143, 0, "Cancelled");
	AUTO_FREE char *log = read_text(place, ATTEMPT_LOG);
	assert_non_null(strstr(log, "saved\n"));
}

/* Where processes cannot be listed, one that leaves the program's session is out of reach. */
static const char *own_session(void)
{
	return os_signal_descendants(0, NULL) >= 0 ? "setsid" : "";
}

/* A program that ignores SIGTERM, and a daemon that has left its session: none stays. */
static void test_cancel_takes_the_whole_family(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *line =
		mem_printf("trap '' TERM; (%s sh -c 'trap \"\" TERM HUP; echo $$ > ../daemon;"
			   " while :; do sleep 0.05; done' &) ;"
			   "echo $$ > ../main; while :; do sleep 0.05; done",
			own_session());

	place->job.spec.grace_ms = 200;
	sh(place, line);
	start(place);
	UNTIL(has_line(place, "daemon") && has_line(place, "main"));
	pid_t daemon = read_pid(place, "daemon"), program = read_pid(place, "main");
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	expect_end(place, RUN_CANCELLED, 143, SIGKILL, "Cancelled");
	assert_true(is_dead(daemon));
	assert_true(is_dead(program));
}

static void test_what_is_left_behind_ends(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *line = mem_printf(
		"(%s sh -c 'trap \"echo bye; exit\" TERM; echo $$ > ../daemon;"
		" while :; do sleep 0.05; done' &); while ! test -s ../daemon; do sleep 0.01; done;"
		" exit 5",
		own_session());

	sh(place, line);
	start(place);
	expect_end(place, RUN_FAILED, 5, 0, "Error");
	assert_true(is_dead(read_pid(place, "daemon")));
	AUTO_FREE char *log = read_text(place, ATTEMPT_LOG);
	assert_non_null(strstr(log, "bye\n"));
}

static void test_a_stopped_program_can_be_cancelled(void **state)
{
	struct place *place = *state;

	sh(place, "echo ready; kill -STOP $$; sleep 1000");
	start(place);
	UNTIL(has_line(place, ATTEMPT_LOG));
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	expect_end(place, RUN_CANCELLED, 143, SIGTERM, "Cancelled");
}

static void test_cancelled_before_it_begins(void **state)
{
	struct place *place = *state;

	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	sh(place, "echo ran");
	start(place);
	expect_end(place, RUN_CANCELLED, 143, 0, "Cancelled");
	expect_log(place, "");
}

/*
 * Taking back
 */

static void test_taken_back_before_it_comes(void **state)
{
	struct place *place = *state;
	bool taken = false;

	assert_int_equal(attempt_withdraw(place->dir, &taken, NULL), 1);
	assert_true(taken);
	sh(place, "echo ran");
	start(place);
	expect_end(place, RUN_FAILED, 125, 0, "Interrupted");
	expect_log(place, "");
	assert_int_equal(attempt_withdraw(place->dir, &taken, NULL), 1);
	assert_true(taken);
}

static void test_what_runs_is_not_taken_back(void **state)
{
	struct place *place = *state;
	bool taken = true;

	sh(place, "until test -e ../go; do sleep 0.01; done");
	start(place);
	UNTIL(is_running(place));
	for (int i = 0; i < 3; i++) {
		assert_int_equal(attempt_withdraw(place->dir, &taken, NULL), 1);
		assert_false(taken);
	}
	write_file(place->dir, "go", "", 0600);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	assert_int_equal(attempt_withdraw(place->dir, &taken, NULL), 1);
	assert_false(taken);
}

/* At any moment of the start: it has run, or it was taken back. */
static void test_taken_back_while_it_starts(void **state)
{
	struct place *place = *state;
	bool taken = false;

	sh(place, "echo ran");
	start(place);
	UNTIL(attempt_withdraw(place->dir, &taken, NULL) == 1);
	UNTIL(is_over(place));
	AUTO_FREE char *log = read_text(place, ATTEMPT_LOG);
	assert_string_equal(log, taken ? "" : "ran\n");
}

/* Nobody knows whether the program of a supervisor that is dead had begun. */
static void test_a_dead_supervisor_is_not_taken_back(void **state)
{
	struct place *place = *state;
	struct attempt_state dead = {.state = RUN_QUEUED};
	bool taken = true;

	assert_int_equal(attempt_state_write(place->dir, &dead, NULL), 0);
	assert_int_equal(attempt_withdraw(place->dir, &taken, NULL), 1);
	assert_false(taken);
}

static void test_cancel_after_the_end_changes_nothing(void **state)
{
	struct place *place = *state;

	sh(place, "exit 3");
	start(place);
	expect_end(place, RUN_FAILED, 3, 0, "Error");
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	assert_false(attempt_is_orphan(place->dir));
	expect_end(place, RUN_FAILED, 3, 0, "Error");
}

/*
 * Supervisors that die, reboots, pids that others have
 */

static void kill_supervisor(struct place *place)
{
	struct attempt_state at;

	assert_true(attempt_state_read(place->dir, &at));
	assert_int_equal(kill(at.supervisor.pid, SIGKILL), 0);
	UNTIL(is_dead(at.supervisor.pid));
	waitpid(place->child, NULL, 0);
	place->child = 0;
}

static void test_supervisor_dies(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};
	struct attempt_state at;

	sh(place, "echo ready; while :; do sleep 0.05; done");
	start(place);
	UNTIL(has_line(place, ATTEMPT_LOG));
	kill_supervisor(place);
	observe(place, &status);
	assert_int_equal(status.state, RUN_RUNNING);
	assert_non_null(status.text);
	assert_true(attempt_state_read(place->dir, &at));
	kill(-at.program.pid, SIGKILL);
	expect_end(place, RUN_LOST, 125, 0, "Lost");
	os_family_remove(&at.family);
}

static void test_an_orphan_can_be_cancelled(void **state)
{
	struct place *place = *state;
	struct attempt_state at;

	place->job.spec.grace_ms = 200;
	sh(place, "trap '' TERM; echo ready; while :; do sleep 0.05; done");
	start(place);
	UNTIL(has_line(place, ATTEMPT_LOG));
	kill_supervisor(place);
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	assert_true(attempt_is_orphan(place->dir));
	assert_true(attempt_state_read(place->dir, &at));
	start(place);
	expect_end(place, RUN_CANCELLED, 143, 0, "Cancelled");
	assert_true(is_dead(at.program.pid));
}

static void test_only_one_supervisor(void **state)
{
	struct place *place = *state;
	pid_t first;

	sh(place, "echo ran; while ! test -e ../go; do sleep 0.01; done");
	start(place);
	first = place->child;
	UNTIL(has_line(place, ATTEMPT_LOG));
	start(place);
	waitpid(place->child, NULL, 0);
	place->child = first;
	write_file(place->dir, "go", "", 0600);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	waitpid(first, NULL, 0);
	start(place);
	expect_log(place, "ran\n");
}

static void test_a_submit_that_died(void **state)
{
	struct place *place = *state;
	AUTO(target_status_done) struct target_status status = {0};
	AUTO_FD int fd = -1;

	sh(place, "echo ran");
	assert_int_equal(attempt_job_write(place->dir, &place->job, NULL), 0);
	assert_int_equal(fs_lock(place->submit_lock, true, 0, &fd, NULL), 0);
	observe(place, &status);
	assert_int_equal(status.state, RUN_PREPARING);
	close(TAKE_FD(fd));
	expect_end(place, RUN_FAILED, 125, 0, "Interrupted");
	/* One that was on its way finds the end. */
	start(place);
	expect_log(place, "");
	expect_end(place, RUN_FAILED, 125, 0, "Interrupted");
}

static void test_a_submit_that_died_before_the_directory(void **state)
{
	struct place *place = *state;

	assert_int_equal(fs_remove_tree(AT_FDCWD, place->dir, NULL), 0);
	expect_end(place, RUN_FAILED, 125, 0, "Interrupted");
	assert_int_equal(access(place->dir, F_OK), -1);
}

/* As a supervisor would have left it here. */
static void make_state(struct place *place, struct attempt_state *at)
{
	attempt_state_init(at);
	at->supervisor = (struct attempt_process){.pid = 1, .start = 1};
	at->program =
		(struct attempt_process){.pid = getpid(), .start = os_process_start(getpid())};
	at->state = RUN_RUNNING;
	at->started_ms = 1000;
	write_file(place->dir, ATTEMPT_LOG, "", 0600);
}

static void expect_evaluated(
	struct place *place, const struct attempt_state *at, enum run_state want, const char *text)
{
	AUTO(target_status_done) struct target_status status = {0};

	assert_int_equal(attempt_state_write(place->dir, at, NULL), 0);
	observe(place, &status);
	assert_string_equal(run_state_name(status.state), run_state_name(want));
	assert_non_null(status.text);
	if (!strstr(status.text, text))
		fail_msg("%s", status.text);
}

static void test_reboot_and_reused_pid(void **state)
{
	struct place *place = *state;
	struct attempt_state at;

	make_state(place, &at);
	expect_evaluated(place, &at, RUN_RUNNING, "supervisor was killed");
	if (os_process_start(getpid())) {
		at.program.start++;
		expect_evaluated(place, &at, RUN_LOST, "supervisor was killed");
		make_state(place, &at);
	}
	if (*at.boot_id) {
		snprintf(at.boot_id, sizeof(at.boot_id), "another-boot");
		expect_evaluated(place, &at, RUN_LOST, "restarted");
		make_state(place, &at);
	}
	snprintf(at.machine_id, sizeof(at.machine_id), "another-machine");
	expect_evaluated(place, &at, RUN_UNKNOWN, "another machine");
}

static void test_damaged_files(void **state)
{
	struct place *place = *state;

	write_file(place->dir, ATTEMPT_STATE, "", 0600);
	write_file(place->dir, ATTEMPT_EXIT, "{\"state\":\"running\"}", 0600);
	/* As if nothing had been written: it never began. */
	expect_end(place, RUN_FAILED, 125, 0, "Interrupted");
}

static void test_damaged_job(void **state)
{
	struct place *place = *state;
	AUTO_ERR struct err err = {0};
	const char *const argv[] = {self, "__supervise", place->dir, NULL};
	AUTO_BUF struct buf response;
	int status;

	buf_init(&response, REPLY_MAX);
	write_file(place->dir, ATTEMPT_JOB, "{\"run\":\"a-22222\"}", 0600);
	assert_int_equal(proc_capture(argv, NULL, TIMEOUT_MS, &response, &status, NULL), 0);
	assert_int_equal(reply_parse(response.data, response.len, "it", NULL, &err), -ERR_IO);
	assert_int_equal(err.id, E_DATA);
}

static void test_no_tree(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *tree = fs_join(place->dir, ATTEMPT_TREE);

	assert_int_equal(rmdir(tree), 0);
	sh(place, "echo ran");
	start(place);
	expect_end(place, RUN_FAILED, 125, 0, "StartFailed");
}

/*
 * Marks
 */

/* false: not as many, or not as close to each other, as they are where the machine is not busy. */
static bool marks_are_close(struct place *place)
{
	AUTO_FREE char *path = fs_join(place->dir, ATTEMPT_MARKS);
	struct marks_reader reader;
	struct mark mark, last = {0};
	int64_t began_ms = clock_wall_ms();
	bool is_close = true;
	size_t n = 0;

	/* Grows for longer than two marks are apart. */
	sh(place, "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do echo $i; sleep 0.1; done");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	marks_reader_init(&reader, path);
	while (marks_reader_next(&reader, &mark)) {
		assert_true(mark.time_ms >= last.time_ms && mark.time_ms >= began_ms - 1);
		if (n == 0)
			assert_int_equal(mark.offset, 0);
		else
			assert_true(mark.offset > last.offset);
		/* At least one a second while it grows. */
		if (n > 1)
			is_close = is_close && mark.time_ms - last.time_ms < 2000;
		last = mark;
		n++;
	}
	marks_reader_done(&reader);
	assert_int_equal(last.offset, 9 * 2 + 4 * 3);
	return is_close && n >= 3 && n <= 8;
}

static void test_marks(void **state)
{
	bool is_close = false;

	for (int i = 0; i < 5 && !is_close; i++) {
		if (i > 0) {
			assert_int_equal(teardown(state), 0);
			assert_int_equal(setup(state), 0);
		}
		is_close = marks_are_close(*state);
	}
	assert_true(is_close);
}

static void test_mark_lines(void **state)
{
	static const struct {
		const char *text;
		size_t taken;
		bool ok;
	} cases[] = {
		{"", 0, false},
		{"12 34", 0, false},
		{"12 34\n", 6, true},
		{"12 34\n56 78\n", 6, true},
		{"\n", 1, false},
		{"12\n", 3, false},
		{"12 \n", 4, false},
		{" 12 34\n", 7, false},
		{"12 34 \n", 7, false},
		{"12 -4\n", 6, false},
		{"12  4\n", 6, false},
		{"9223372036854775807 0\n", 22, true},
		{"9223372036854775808 0\n", 22, false},
	};
	struct mark mark = {1785600000123, INT64_MAX};
	char line[MARK_SIZE];
	bool ok;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct mark got;
		assert_int_equal(mark_parse(cases[i].text, strlen(cases[i].text), &got, &ok),
			cases[i].taken);
		assert_int_equal(ok, cases[i].ok);
	}
	assert_int_equal(mark_format(&mark, line), strlen("1785600000123 9223372036854775807\n"));
	assert_string_equal(line, "1785600000123 9223372036854775807\n");
}

static void test_marks_that_are_off(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *path = fs_join(place->dir, ATTEMPT_MARKS);
	AUTO_BUF struct buf text;
	struct marks_reader reader;
	struct mark mark;

	buf_init(&text, 1 << 20);
	buf_adds(&text, "100 5\nnonsense\n90 9\n");
	for (int i = 0; i < 9000; i++)
		buf_addc(&text, 'x');
	buf_adds(&text, "\n200 7\n300");
	write_file(place->dir, ATTEMPT_MARKS, text.data, 0600);
	marks_reader_init(&reader, path);
	assert_true(marks_reader_next(&reader, &mark));
	assert_true(mark.time_ms == 100 && mark.offset == 5);
	assert_true(marks_reader_next(&reader, &mark));
	assert_true(mark.time_ms == 100 && mark.offset == 9);
	assert_true(marks_reader_next(&reader, &mark));
	assert_true(mark.time_ms == 200 && mark.offset == 9);
	assert_false(marks_reader_next(&reader, &mark));
	/* The rest of the line comes later. */
	int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	assert_int_equal(write(fd, " 11\n", 4), 4);
	close(fd);
	assert_true(marks_reader_next(&reader, &mark));
	assert_true(mark.time_ms == 300 && mark.offset == 11);
	marks_reader_done(&reader);
	marks_reader_init(&reader, "/proc/nonexistent");
	assert_false(marks_reader_next(&reader, &mark));
	marks_reader_done(&reader);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define BOTH(fn)                                                                                   \
	{#fn, fn, setup, teardown, NULL},                                                          \
	{                                                                                          \
#fn " without cgroup", fn, setup_without_cgroup, teardown, NULL                    \
	}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_directory_removed),
		BOTH(test_no_space_for_its_files),
		BOTH(test_success),
		TEST(test_exit_code),
		TEST(test_killed_by_a_signal),
		TEST(test_terminated),
		TEST(test_signals_have_their_defaults),
		BOTH(test_unknown_command),
		TEST(test_missing_file),
		TEST(test_not_executable),
		TEST(test_a_directory),
		TEST(test_missing_interpreter),
		TEST(test_script_without_interpreter),
		TEST(test_environment),
		TEST(test_path_is_the_program_s),
		TEST(test_words_of_any_bytes),
		TEST(test_no_descriptor_is_inherited),
		TEST(test_it_is_its_own_session),
		BOTH(test_time_limit),
		BOTH(test_cancel_by_term),
		BOTH(test_cancel_takes_the_whole_family),
		BOTH(test_what_is_left_behind_ends),
		BOTH(test_a_stopped_program_can_be_cancelled),
		TEST(test_cancelled_before_it_begins),
		TEST(test_taken_back_before_it_comes),
		TEST(test_what_runs_is_not_taken_back),
		TEST(test_taken_back_while_it_starts),
		TEST(test_a_dead_supervisor_is_not_taken_back),
		TEST(test_cancel_after_the_end_changes_nothing),
		BOTH(test_supervisor_dies),
		BOTH(test_an_orphan_can_be_cancelled),
		TEST(test_only_one_supervisor),
		TEST(test_a_submit_that_died),
		TEST(test_a_submit_that_died_before_the_directory),
		TEST(test_reboot_and_reused_pid),
		TEST(test_damaged_files),
		TEST(test_damaged_job),
		TEST(test_no_tree),
		TEST(test_marks),
		cmocka_unit_test(test_mark_lines),
		TEST(test_marks_that_are_off),
	};

	if (argc == 3 && strcmp(argv[1], "__supervise") == 0)
		return run_supervisor(argv[2]);
	if (!os_self_path(self, sizeof(self)) && !realpath(argv[0], self))
		return 1;
	return cmocka_run_group_tests_name("supervise", tests, NULL, NULL);
}
