/* SPDX-License-Identifier: Apache-2.0 */
/* Programs on the loop that behave badly in each way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/loop/proc_run.h"
#include "base/os/os.h"
#include "base/util/str.h"
#include "tests/unit/tmpfix.h"
#include "tests/unit/until.h"

enum { LONG_MS = 60 * 1000, OUT_MAX = 1 << 20, ERRORS_MAX = 1000 };

struct ended {
	struct proc_run *run;
	int n;
	enum proc_run_end end;
	int status, code;
	char *out, *errors, *text;
};

static void ended_done(struct ended *ended)
{
	free(ended->out);
	free(ended->errors);
	free(ended->text);
}
#define AUTO_ENDED AUTO(ended_done)

static char *text_of(const struct buf *buf)
{
	return buf->data ? mem_strndup(buf->data, buf->len) : NULL;
}

static int on_end(void *ctx, const struct proc_run_result *result, struct err *err)
{
	struct ended *ended = ctx;

	(void)err;
	assert_false(result->is_stuck);
	ended->n++;
	ended->end = result->end;
	ended->status = result->status;
	ended->code = proc_run_code(result);
	ended->out = text_of(result->out);
	ended->errors = text_of(result->errors);
	ended->text = proc_run_text(result);
	proc_run_free(TAKE(ended->run));
	return 0;
}

static int begin(void **state)
{
	signal(SIGPIPE, SIG_IGN);
	return make_tmp(state);
}

/* No test leaves a process of its own behind. */
static int end(void **state)
{
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
	return remove_tmp(state);
}

static struct proc_run_spec spec_of(const char *const *argv)
{
	return (struct proc_run_spec){.argv = argv,
		.stdin_fd = -1,
		.out_max = OUT_MAX,
		.errors_max = ERRORS_MAX,
		.stderr_fd = -1,
		.timeout_ms = LONG_MS};
}

#define SCRIPT(text)                                                                               \
	(const char *const[])                                                                      \
	{                                                                                          \
		"sh", "-c", (text), "sh", tmp, NULL                                                \
	}

/* From its start to its end; the loop has nothing to wait for then. */
static void run(const struct proc_run_spec *spec, struct ended *ret)
{
	struct loop *loop = loop_new();
	AUTO_ERR struct err err = {0};

	*ret = (struct ended){0};
	if (proc_run_start(loop, spec, on_end, ret, &ret->run, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(ret->n, 0);
	assert_int_equal(loop_run(loop, NULL), 0);
	assert_int_equal(ret->n, 1);
	loop_free(loop);
}

static void run_script(const char *script, struct ended *ret)
{
	const struct proc_run_spec spec = spec_of(SCRIPT(script));

	run(&spec, ret);
}

static bool is_there(const char *name)
{
	AUTO_FREE char *path = fs_join(tmp, name);

	return access(path, F_OK) == 0;
}

/* The process id that a program has left in a file. */
static pid_t pid_in(const char *name)
{
	AUTO_FREE char *path = fs_join(tmp, name);
	AUTO_BUF struct buf text = {0};

	assert_int_equal(fs_read(path, 64, &text, NULL, NULL), 0);
	return (pid_t)strtol(text.data, NULL, 10);
}

/*
 * Input and output
 */

static void test_what_it_is_given_and_writes(void **state)
{
	AUTO_ENDED struct ended ended, secret, bare;

	struct proc_run_spec spec = spec_of(SCRIPT("cat; echo $WORD >&2"));
	spec.input = "a line\n";
	spec.env = (const char *const[]){"WORD=of env", "PATH=/usr/bin:/bin", NULL};
	run(&spec, &ended);
	assert_int_equal(ended.end, PROC_RUN_ENDED);
	assert_int_equal(ended.status, 0);
	assert_string_equal(ended.out, "a line\n");
	assert_string_equal(ended.errors, "of env\n");
	spec.is_secret = true;
	run(&spec, &secret);
	assert_string_equal(secret.out, "a line\n");
	/* Without pipes it has none of our descriptors. */
	spec = spec_of(SCRIPT("read -r x && exit 1; echo a && echo b >&2"));
	spec.out_max = spec.errors_max = 0;
	run(&spec, &bare);
	assert_int_equal(bare.status, 0);
	assert_null(bare.out);
}

static char *long_text(size_t len)
{
	char *text = mem_alloc(len + 1, 1);

	memset(text, 'x', len);
	return text;
}

/* More than a pipe holds, to one that reads it, one that does not, and one that closes it. */
static void test_a_long_input(void **state)
{
	static const char *const scripts[] = {"cat", "echo x", "exec <&-; echo x"};
	AUTO_FREE char *input = long_text(OUT_MAX);

	for (size_t i = 0; i < ARRAY_LEN(scripts); i++) {
		AUTO_ENDED struct ended ended;
		struct proc_run_spec spec = spec_of(SCRIPT(scripts[i]));

		spec.input = input;
		run(&spec, &ended);
		assert_int_equal(ended.end, PROC_RUN_ENDED);
		assert_int_equal(ended.status, 0);
		assert_string_equal(ended.out, i == 0 ? input : "x\n");
	}
}

/* A program that is left gets what fits into a pipe. */
static void test_the_input_is_there_at_once(void **state)
{
	struct loop *loop = loop_new();
	AUTO_FREE char *input = long_text(4000);
	struct ended ended = {0};
	struct proc_run_spec spec = spec_of(SCRIPT("cat > $1/new; mv $1/new $1/got"));
	struct stat st;

	spec.input = input;
	spec.out_max = spec.errors_max = 0;
	assert_int_equal(proc_run_start(loop, &spec, on_end, &ended, &ended.run, NULL), 0);
	proc_run_leave(TAKE(ended.run));
	assert_int_equal(loop_run(loop, NULL), 0);
	loop_free(loop);
	UNTIL(is_there("got"));
	AUTO_FREE char *path = fs_join(tmp, "got");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 4000);
	assert_true(waitpid(-1, NULL, 0) > 0);
	assert_int_equal(ended.n, 0);
}

static void test_too_much(void **state)
{
	AUTO_ENDED struct ended ended, just;

	run_script("yes", &ended);
	assert_int_equal(ended.end, PROC_RUN_TOO_MUCH);
	assert_int_not_equal(ended.status, 0);
	struct proc_run_spec spec = spec_of(SCRIPT("printf 12345"));
	spec.out_max = 5;
	run(&spec, &just);
	assert_int_equal(just.end, PROC_RUN_ENDED);
	assert_string_equal(just.out, "12345");
	ended_done(&just);
	/* It may end before it is read. */
	spec.out_max = 4;
	run(&spec, &just);
	assert_int_equal(just.end, PROC_RUN_TOO_MUCH);
}

/* The end of stderr is kept, however much it is. */
static void test_much_on_stderr(void **state)
{
	AUTO_ENDED struct ended ended;

	run_script("i=0; while [ $i -lt 2000 ]; do printf '%0100d\\n' $i >&2; i=$((i+1)); done; "
		   "echo end >&2; echo out",
		&ended);
	assert_int_equal(ended.end, PROC_RUN_ENDED);
	assert_string_equal(ended.out, "out\n");
	assert_int_equal(strlen(ended.errors), ERRORS_MAX);
	assert_true(str_ends(ended.errors, "01999\nend\n"));
}

static void test_nothing_is_inherited(void **state)
{
	AUTO_ENDED struct ended ended;
	int fd = dup2(1, 9);

	assert_int_equal(fd, 9);
	run_script("for fd in 3 4 5 6 7 8 9; do { true >&$fd; } 2>/dev/null && echo $fd; done; :",
		&ended);
	close(fd);
	assert_string_equal(ended.out, "");
}

/*
 * Ends
 */

static void test_programs_that_do_not_start(void **state)
{
	struct loop *loop = loop_new();
	AUTO_FREE char *script = fs_join(tmp, "script");
	AUTO_ERR struct err missing = {0}, interpreter = {0};
	struct ended ended = {0};

	struct proc_run_spec spec = spec_of((const char *const[]){"/no/such/program", NULL});
	spec.input = "text";
	assert_int_equal(
		proc_run_start(loop, &spec, on_end, &ended, &ended.run, &missing), -ERR_NOTFOUND);
	assert_int_equal(missing.id, E_RUN_EXEC);
	assert_non_null(strstr(missing.message, "/no/such/program"));
	assert_int_equal(fs_replace(script, "#!/no/such/shell\n", 17, 0700, FS_SYNC_NONE, NULL), 0);
	spec.argv = (const char *const[]){script, NULL};
	assert_true(proc_run_start(loop, &spec, on_end, &ended, &ended.run, &interpreter) < 0);
	assert_int_equal(interpreter.n_evidence, 1);
	assert_null(ended.run);
	assert_int_equal(loop_run(loop, NULL), 0);
	assert_int_equal(ended.n, 0);
	loop_free(loop);
}

static void check_end(const char *script, int code, const char *text, const char *code_text)
{
	AUTO_ENDED struct ended ended;

	run_script(script, &ended);
	assert_int_equal(ended.end, PROC_RUN_ENDED);
	assert_int_equal(ended.code, code);
	assert_string_equal(ended.text, text);
	AUTO_FREE char *of_code = proc_run_code_text(ended.code);
	assert_string_equal(of_code, code_text);
}

static void test_how_it_ended(void **state)
{
	AUTO_ENDED struct ended unknown;

	check_end("exit 3", 3, "exit status 3", "failed with exit status 3");
	check_end("kill -9 $$", 137, "killed by SIGKILL", "was killed by SIGKILL");
	/* A shell says so of what it has run. */
	check_end("exit 143", 143, "exit status 143", "was killed by SIGTERM");
	signal(SIGCHLD, SIG_IGN);
	run_script("echo out", &unknown);
	signal(SIGCHLD, SIG_DFL);
	assert_int_equal(unknown.status, -1);
	assert_int_equal(unknown.code, 127);
	assert_string_equal(unknown.out, "out\n");
	assert_string_equal(unknown.text, "it is not known how it ended");
}

static void test_its_time_is_over(void **state)
{
	AUTO_ENDED struct ended at_once, closed;

	struct proc_run_spec spec = spec_of(SCRIPT("exec sleep 1000"));
	spec.timeout_ms = 0;
	run(&spec, &at_once);
	assert_int_equal(at_once.end, PROC_RUN_LATE);
	assert_string_equal(at_once.text, "killed by SIGKILL");
	/* One that has closed its output is not waited for without a limit either. */
	spec = spec_of(SCRIPT("exec >&- 2>&-; exec sleep 1000"));
	spec.timeout_ms = 100;
	run(&spec, &closed);
	assert_int_equal(closed.end, PROC_RUN_LATE);
}

/* On a machine under load a program may have no time even for its trap. */
static void test_time_to_end_in_order(void **state)
{
	for (int64_t ms = 200; !is_there("trapped"); ms *= 2) {
		AUTO_ENDED struct ended ended;
		struct proc_run_spec spec = spec_of(
			SCRIPT("trap ': > $1/trapped; exit 0' TERM; while :; do sleep 0.01; done"));

		assert_true(ms < LONG_MS);
		spec.timeout_ms = spec.grace_ms = ms;
		run(&spec, &ended);
		assert_int_equal(ended.end, PROC_RUN_LATE);
	}
	AUTO_ENDED struct ended stays;
	struct proc_run_spec spec =
		spec_of(SCRIPT("trap '' TERM; : > $1/up; while :; do sleep 0.01; done"));
	spec.timeout_ms = spec.grace_ms = 100;
	run(&spec, &stays);
	assert_int_equal(stays.end, PROC_RUN_LATE);
	assert_int_not_equal(stays.status, 0);
}

/* What it has started and left holds the pipes: in its group, and in one of its own. */
static void test_what_is_left(void **state)
{
	static const char script[] =
		"sleep 1000 & echo $! > $1/child; setsid sh -c 'echo $$ > $0/away.new; mv "
		"$0/away.new $0/away; exec sleep 1000' $1 & until [ -e $1/away ]; do sleep 0.01; "
		"done; echo out";

	for (int kills = 0; kills < 2; kills++) {
		AUTO_ENDED struct ended ended;
		struct proc_run_spec spec = spec_of(SCRIPT(script));
		AUTO_FREE char *path = fs_join(tmp, "away");

		spec.kills_rest = kills;
		run(&spec, &ended);
		assert_int_equal(ended.end, PROC_RUN_ENDED);
		assert_string_equal(ended.out, "out\n");
		assert_int_equal(kill(pid_in("away"), SIGKILL), 0);
		if (!kills)
			assert_int_equal(kill(pid_in("child"), SIGKILL), 0);
		UNTIL(!os_process_alive(pid_in("child"), 0));
		unlink(path);
	}
}

/*
 * Programs that are given up
 */

/* A program that runs, and a child of it. */
static void start_hanging(struct loop *loop, int64_t grace_ms, struct ended *ret)
{
	struct proc_run_spec spec = spec_of(SCRIPT(
		"sleep 1000 & echo $! > $1/child; echo $$ > $1/new; mv $1/new $1/pid; wait"));

	spec.grace_ms = grace_ms;
	*ret = (struct ended){0};
	assert_int_equal(proc_run_start(loop, &spec, on_end, ret, &ret->run, NULL), 0);
	UNTIL(is_there("pid"));
}

static void test_a_program_that_is_stopped(void **state)
{
	static const int64_t graces_ms[] = {0, LONG_MS};

	for (size_t i = 0; i < ARRAY_LEN(graces_ms); i++) {
		AUTO_ENDED struct ended ended;
		AUTO_FREE char *path = fs_join(tmp, "pid");
		struct loop *loop = loop_new();

		start_hanging(loop, graces_ms[i], &ended);
		proc_run_stop(ended.run);
		proc_run_stop(ended.run);
		assert_int_equal(ended.n, 0);
		assert_int_equal(loop_run(loop, NULL), 0);
		assert_int_equal(ended.n, 1);
		assert_int_equal(ended.end, PROC_RUN_STOPPED);
		assert_int_equal(ended.code, 128 + (graces_ms[i] ? SIGTERM : SIGKILL));
		UNTIL(!os_process_alive(pid_in("child"), 0));
		unlink(path);
		loop_free(loop);
	}
}

static void test_a_program_that_is_freed(void **state)
{
	struct loop *loop = loop_new();
	AUTO_ENDED struct ended ended;

	start_hanging(loop, LONG_MS, &ended);
	proc_run_free(TAKE(ended.run));
	assert_true(kill(pid_in("pid"), 0) < 0);
	UNTIL(!os_process_alive(pid_in("child"), 0));
	assert_int_equal(loop_run(loop, NULL), 0);
	assert_int_equal(ended.n, 0);
	loop_free(loop);
	proc_run_free(NULL);
}

/* It stays in our session and group, so that it can have the terminal, and is signalled alone. */
static void test_one_that_has_the_terminal(void **state)
{
	AUTO_FREE char *ours = mem_printf("%ld\n", (long)getsid(0));
	AUTO_ENDED struct ended apart, beside, late;

	struct proc_run_spec spec = spec_of(SCRIPT("cut -d' ' -f6 /proc/$$/stat"));
	run(&spec, &apart);
	assert_string_not_equal(apart.out, ours);
	spec.has_terminal = true;
	run(&spec, &beside);
	assert_string_equal(beside.out, ours);
	spec.argv = (const char *const[]){"sleep", "1000", NULL};
	spec.timeout_ms = 0;
	run(&spec, &late);
	assert_int_equal(late.end, PROC_RUN_LATE);
}

#define WITH_TMP(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_TMP(test_what_it_is_given_and_writes),
		WITH_TMP(test_a_long_input),
		WITH_TMP(test_the_input_is_there_at_once),
		WITH_TMP(test_too_much),
		WITH_TMP(test_much_on_stderr),
		WITH_TMP(test_nothing_is_inherited),
		WITH_TMP(test_programs_that_do_not_start),
		WITH_TMP(test_how_it_ended),
		WITH_TMP(test_its_time_is_over),
		WITH_TMP(test_time_to_end_in_order),
		WITH_TMP(test_what_is_left),
		WITH_TMP(test_a_program_that_is_stopped),
		WITH_TMP(test_a_program_that_is_freed),
		WITH_TMP(test_one_that_has_the_terminal),
	};

	return cmocka_run_group_tests_name("proc_run", tests, NULL, NULL);
}
