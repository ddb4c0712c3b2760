/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/channel.h"
#include "net/stream/pump.h"
#include "tests/unit/childfix.h"
#include "tests/unit/until.h"

/*
 * A command whose whole input is given and whose output is collected
 */

enum { OUTPUT_MAX = 4 << 20, CHUNK = 8192 };

struct runtime {
	struct loop *loop;
	struct channel *channel;
	const char *input;
	size_t input_left;
	bool keeps_input, input_ended, stop_at_output, drop_when_ready;
	bool ended[2];
	struct buf flows[2];
	struct channel_exit end;
	int n_ready, n_ends;
	struct err error;
};

static void send_input(struct runtime *runtime)
{
	struct channel *channel = runtime->channel;

	while (runtime->input_left > 0) {
		ssize_t n = channel->ops->write(
			channel, runtime->input, runtime->input_left, &runtime->error);
		if (n < 0)
			return;
		assert_true(n > 0);
		runtime->input += n;
		runtime->input_left -= (size_t)n;
	}
	if (runtime->input_ended || runtime->keeps_input)
		return;
	runtime->input_ended = true;
	assert_int_equal(channel->ops->send_eof(channel, &runtime->error),
		err_is_set(&runtime->error) ? -(int)runtime->error.code : 0);
}

static void take_output(struct runtime *runtime, enum channel_flow flow)
{
	struct channel *channel = runtime->channel;
	char chunk[CHUNK];
	ssize_t n;

	while ((n = channel->ops->read(channel, flow, chunk, sizeof(chunk), &runtime->error)) > 0)
		buf_add(&runtime->flows[flow], chunk, (size_t)n);
	runtime->ended[flow] = n == 0;
}

static int on_ready(void *ctx, struct err *err)
{
	struct runtime *runtime = ctx;

	runtime->n_ready++;
	if (runtime->drop_when_ready) {
		channel_free(TAKE(runtime->channel));
		return 0;
	}
	take_output(runtime, CHANNEL_OUT);
	take_output(runtime, CHANNEL_ERR);
	send_input(runtime);
	int r = runtime->channel->ops->wait(runtime->channel, &runtime->end, &runtime->error);
	if (r > 0)
		assert_true(runtime->ended[CHANNEL_OUT] && runtime->ended[CHANNEL_ERR]);
	runtime->n_ends += r > 0;
	if (r != 0 || (runtime->stop_at_output && runtime->flows[CHANNEL_OUT].len > 0))
		loop_stop(runtime->loop);
	return 0;
}

static const char *const *sh(const char *script)
{
	static const char *argv[] = {"sh", "-c", NULL, NULL};

	argv[2] = script;
	return argv;
}

static void open_runtime(struct runtime *runtime)
{
	*runtime = (struct runtime){.loop = loop_new()};
	buf_init(&runtime->flows[0], OUTPUT_MAX);
	buf_init(&runtime->flows[1], OUTPUT_MAX);
}

static void start(struct runtime *runtime, const char *script)
{
	const struct channel_events events = {on_ready, runtime};

	open_runtime(runtime);
	runtime->channel = child_channel_open(runtime->loop, sh(script), NULL, &events);
}

static void run(struct runtime *runtime)
{
	struct err err = {0};

	assert_int_equal(loop_run(runtime->loop, &err), 0);
}

static void finish(struct runtime *runtime)
{
	channel_free(runtime->channel);
	buf_done(&runtime->flows[0]);
	buf_done(&runtime->flows[1]);
	err_done(&runtime->error);
	loop_free(runtime->loop);
}

/*
 * Bytes
 */

static void test_flows_are_apart(void **state)
{
	struct runtime runtime;

	start(&runtime, "printf 'a\\0b'; printf oops >&2; cat");
	runtime.input = "input\r\n";
	runtime.input_left = 7;
	run(&runtime);
	assert_int_equal(runtime.flows[CHANNEL_OUT].len, 10);
	assert_memory_equal(runtime.flows[CHANNEL_OUT].data, "a\0binput\r\n", 10);
	assert_string_equal(runtime.flows[CHANNEL_ERR].data, "oops");
	assert_true(runtime.end.known);
	assert_int_equal(runtime.end.code, 0);
	assert_string_equal(runtime.end.signal, "");
	assert_int_equal(runtime.n_ends, 1);
	finish(&runtime);
}

static void test_much_comes_back_whole(void **state)
{
	enum { SIZE = 3 << 20 };
	AUTO_FREE char *data = mem_alloc(SIZE, 1);
	struct runtime runtime;

	for (size_t i = 0; i < SIZE; i++)
		data[i] = (char)(i * 2654435761u >> 13);
	start(&runtime, "cat");
	runtime.input = data;
	runtime.input_left = SIZE;
	run(&runtime);
	assert_int_equal(runtime.flows[CHANNEL_OUT].len, SIZE);
	assert_memory_equal(runtime.flows[CHANNEL_OUT].data, data, SIZE);
	assert_int_equal(runtime.end.code, 0);
	finish(&runtime);
}

static void test_input_that_nobody_reads(void **state)
{
	enum { SIZE = 1 << 20 };
	AUTO_FREE char *data = mem_alloc(SIZE, 1);
	struct runtime runtime;

	start(&runtime, "exec <&-; echo said; exit 4");
	runtime.input = data;
	runtime.input_left = SIZE;
	run(&runtime);
	assert_int_equal(runtime.input_left, 0);
	assert_string_equal(runtime.flows[CHANNEL_OUT].data, "said\n");
	assert_int_equal(runtime.end.code, 4);
	assert_false(err_is_set(&runtime.error));
	finish(&runtime);
}

static int count_only(void *ctx, struct err *err)
{
	++*(int *)ctx;
	return 0;
}

static int stop_loop(void *ctx, struct err *err)
{
	loop_stop(ctx);
	return 0;
}

/* A reader that does not read on is not called again and again. */
static void test_what_is_not_read_waits(void **state)
{
	struct loop *loop = loop_new();
	struct err err = {0};
	int n = 0;

	struct channel *channel = child_channel_open(
		loop, sh("yes; yes >&2"), NULL, &(struct channel_events){count_only, &n});
	loop_add_timer(loop, clock_ms() + 100, stop_loop, loop);
	assert_int_equal(loop_run(loop, &err), 0);
	/* Room to write, something to read. */
	assert_in_range(n, 1, 3);
	channel_free(channel);
	loop_free(loop);
}

/*
 * Ends
 */

static void test_exit_code(void **state)
{
	struct runtime runtime;

	start(&runtime, "exit 255");
	run(&runtime);
	assert_true(runtime.end.known);
	assert_int_equal(runtime.end.code, 255);
	assert_string_equal(runtime.end.signal, "");
	finish(&runtime);
}

static void test_signal(void **state)
{
	struct runtime runtime;

	start(&runtime, "kill -TERM $$");
	run(&runtime);
	assert_true(runtime.end.known);
	assert_string_equal(runtime.end.signal, "TERM");
	finish(&runtime);
}

static void test_end_long_after_the_output(void **state)
{
	struct runtime runtime;

	start(&runtime, "exec >&- 2>&-; sleep 0.3; exit 9");
	run(&runtime);
	assert_int_equal(runtime.end.code, 9);
	assert_int_equal(runtime.n_ends, 1);
	finish(&runtime);
}

static void test_no_such_program(void **state)
{
	const char *const argv[] = {"dlrun-test-no-such-program", NULL};
	struct child child = {0};
	struct err err = {0};

	assert_int_equal(
		child_start(&(struct child_spec){.argv = argv}, &child, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_RUN_EXEC);
	assert_non_null(strstr(err.message, argv[0]));
	assert_int_equal(child.pid, 0);
	err_done(&err);
}

static void test_env_is_the_childs(void **state)
{
	static const char *const env[] = {"PATH=/usr/bin:/bin", "WORD=given", NULL};
	struct runtime runtime;

	open_runtime(&runtime);
	runtime.channel = child_channel_open(runtime.loop, sh("echo $WORD$HOME"), env,
		&(struct channel_events){on_ready, &runtime});
	run(&runtime);
	assert_string_equal(runtime.flows[CHANNEL_OUT].data, "given\n");
	finish(&runtime);
}

static bool is_gone(pid_t pid)
{
	return kill(pid, 0) < 0 && errno == ESRCH;
}

/* Somebody else waits for it: it may be a zombie for as long as that takes. */
static bool is_dead(pid_t pid)
{
	return is_gone(pid) || !os_process_alive(pid, os_process_start(pid));
}

static void test_free_kills_the_group(void **state)
{
	struct runtime runtime;
	int child = 0, grandchild = 0;

	start(&runtime, "sleep 1000 & echo $$ $!; wait");
	runtime.stop_at_output = true;
	runtime.keeps_input = true;
	run(&runtime);
	assert_int_equal(sscanf(runtime.flows[CHANNEL_OUT].data, "%d %d", &child, &grandchild), 2);
	channel_free(TAKE(runtime.channel));
	assert_true(is_gone(child));
	UNTIL(is_dead(grandchild));
	finish(&runtime);
}

static void test_freed_when_ready(void **state)
{
	struct runtime runtime;

	start(&runtime, "echo out; echo err >&2");
	runtime.drop_when_ready = true;
	run(&runtime);
	assert_int_equal(runtime.n_ready, 1);
	finish(&runtime);
}

static void test_free_of_nothing(void **state)
{
	channel_free(NULL);
}

/*
 * Terminals
 */

static void test_terminal(void **state)
{
	const struct channel_pty pty = {.term = "xterm", .columns = 91, .rows = 17};
	const struct child_spec spec = {.argv = sh("trap 'stty size; exit 3' WINCH; stty size; "
						   "stty raw -echo; read x; echo \"got $x\"; "
						   "while :; do sleep 0.05; done"),
		.pty = &pty};
	struct child child = {0};
	struct runtime runtime;
	struct err err = {0};

	open_runtime(&runtime);
	assert_int_equal(child_start(&spec, &child, &err), 0);
	runtime.channel = channel_of_child(
		runtime.loop, &child, &(struct channel_events){on_ready, &runtime});
	assert_int_equal(child.pid, 0);
	runtime.input = "typed\n";
	runtime.input_left = 6;
	runtime.stop_at_output = true;
	while (!strstr(runtime.flows[CHANNEL_OUT].data, "got"))
		run(&runtime);
	/* Nothing was echoed. */
	assert_string_equal(runtime.flows[CHANNEL_OUT].data, "17 91\r\ngot typed\n");
	runtime.channel->ops->resize(runtime.channel, 120, 40);
	while (runtime.n_ends == 0)
		run(&runtime);
	assert_non_null(strstr(runtime.flows[CHANNEL_OUT].data, "40 120"));
	assert_int_equal(runtime.end.code, 3);
	finish(&runtime);
}

static void test_child_that_nobody_takes(void **state)
{
	struct child child = {0};
	struct err err = {0};

	child_end(&child);
	assert_int_equal(
		child_start(&(struct child_spec){.argv = sh("exec sleep 1000")}, &child, &err), 0);
	pid_t pid = child.pid;
	child_end(&child);
	assert_true(is_gone(pid));
	assert_int_equal(child.pid, 0);
}

static void test_child_that_keeps_the_terminal(void **state)
{
	struct child child = {0};
	struct err err = {0};
	const struct child_spec spec = {.argv = sh("trap 'exit 0' TERM; echo up; while :; do sleep "
						   "0.01; done"),
		.keeps_terminal = true};
	char byte;

	assert_int_equal(child_start(&spec, &child, &err), 0);
	pid_t pid = child.pid;
	UNTIL(read(child.out, &byte, 1) == 1);
	child_end(&child);
	assert_true(is_gone(pid));
}

/*
 * Pumps
 */

static struct pump *pump;
static int n_done;

static int on_done(void *ctx, struct pump_end *end, struct err *err)
{
	n_done++;
	pump = NULL;
	assert_int_equal(end->faulty, 0);
	assert_int_equal(end->bytes_ab, 5);
	loop_stop(ctx);
	return 0;
}

static void on_woken(void *ctx)
{
	if (pump)
		pump_wake(pump);
}

static void test_stream_in_a_pump(void **state)
{
	struct loop *loop = loop_new();
	struct err err = {0};
	char response[64];
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	struct channel *channel = child_channel_open(
		loop, sh("tr a-z A-Z; echo end"), NULL, &(struct channel_events){on_ready, NULL});
	pump = pump_start(&(struct pump_options){.loop = loop,
		.a = stream_from_fd(fds[1]),
		.b = channel_stream(channel, on_woken, NULL),
		.done = on_done,
		.ctx = loop});
	assert_int_equal(write(fds[0], "hello", 5), 5);
	assert_int_equal(shutdown(fds[0], SHUT_WR), 0);
	assert_int_equal(loop_run(loop, &err), 0);
	assert_int_equal(n_done, 1);
	assert_int_equal(read(fds[0], response, sizeof(response)), 9);
	assert_memory_equal(response, "HELLOend\n", 9);
	close(fds[0]);
	loop_free(loop);
}

static int ignore_sigpipe(void **state)
{
	signal(SIGPIPE, SIG_IGN);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_flows_are_apart),
		cmocka_unit_test(test_much_comes_back_whole),
		cmocka_unit_test(test_input_that_nobody_reads),
		cmocka_unit_test(test_what_is_not_read_waits),
		cmocka_unit_test(test_exit_code),
		cmocka_unit_test(test_signal),
		cmocka_unit_test(test_end_long_after_the_output),
		cmocka_unit_test(test_no_such_program),
		cmocka_unit_test(test_env_is_the_childs),
		cmocka_unit_test(test_free_kills_the_group),
		cmocka_unit_test(test_freed_when_ready),
		cmocka_unit_test(test_free_of_nothing),
		cmocka_unit_test(test_terminal),
		cmocka_unit_test(test_child_that_nobody_takes),
		cmocka_unit_test(test_child_that_keeps_the_terminal),
		cmocka_unit_test(test_stream_in_a_pump),
	};

	return cmocka_run_group_tests(tests, ignore_sigpipe, NULL);
}
