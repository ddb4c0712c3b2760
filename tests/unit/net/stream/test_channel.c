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
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/channel.h"
#include "net/stream/channel_child.h"
#include "net/stream/pump.h"
#include "tests/unit/until.h"

/*
 * A command whose whole input is given and whose output is collected
 */

enum { OUTPUT_MAX = 4 << 20, CHUNK = 8192 };

struct world {
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

static void send_input(struct world *world)
{
	struct channel *channel = world->channel;

	while (world->input_left > 0) {
		ssize_t n = channel->ops->write(
			channel, world->input, world->input_left, &world->error);
		if (n < 0)
			return;
		assert_true(n > 0);
		world->input += n;
		world->input_left -= (size_t)n;
	}
	if (world->input_ended || world->keeps_input)
		return;
	world->input_ended = true;
	assert_int_equal(channel->ops->send_eof(channel, &world->error),
		err_is_set(&world->error) ? -(int)world->error.code : 0);
}

static void take_output(struct world *world, enum channel_flow flow)
{
	struct channel *channel = world->channel;
	char chunk[CHUNK];
	ssize_t n;

	while ((n = channel->ops->read(channel, flow, chunk, sizeof(chunk), &world->error)) > 0)
		buf_add(&world->flows[flow], chunk, (size_t)n);
	world->ended[flow] = n == 0;
}

static int on_ready(void *ctx, struct err *err)
{
	struct world *world = ctx;

	(void)err;
	world->n_ready++;
	if (world->drop_when_ready) {
		channel_free(TAKE(world->channel));
		return 0;
	}
	take_output(world, CHANNEL_OUT);
	take_output(world, CHANNEL_ERR);
	send_input(world);
	int r = world->channel->ops->wait(world->channel, &world->end, &world->error);
	if (r > 0)
		assert_true(world->ended[CHANNEL_OUT] && world->ended[CHANNEL_ERR]);
	world->n_ends += r > 0;
	if (r != 0 || (world->stop_at_output && world->flows[CHANNEL_OUT].len > 0))
		loop_stop(world->loop);
	return 0;
}

static const char *const *sh(const char *script)
{
	static const char *argv[] = {"sh", "-c", NULL, NULL};

	argv[2] = script;
	return argv;
}

static void open_world(struct world *world)
{
	*world = (struct world){.loop = loop_new()};
	buf_init(&world->flows[0], OUTPUT_MAX);
	buf_init(&world->flows[1], OUTPUT_MAX);
}

static void start(struct world *world, const char *script)
{
	const struct channel_events events = {on_ready, world};

	open_world(world);
	world->channel = channel_from_child(world->loop, sh(script), NULL, &events);
}

static void run(struct world *world)
{
	struct err err = {0};

	assert_int_equal(loop_run(world->loop, &err), 0);
}

static void finish(struct world *world)
{
	channel_free(world->channel);
	buf_done(&world->flows[0]);
	buf_done(&world->flows[1]);
	err_done(&world->error);
	loop_free(world->loop);
}

/*
 * Bytes
 */

static void test_flows_are_apart(void **state)
{
	struct world world;

	(void)state;
	start(&world, "printf 'a\\0b'; printf oops >&2; cat");
	world.input = "input\r\n";
	world.input_left = 7;
	run(&world);
	assert_int_equal(world.flows[CHANNEL_OUT].len, 10);
	assert_memory_equal(world.flows[CHANNEL_OUT].data, "a\0binput\r\n", 10);
	assert_string_equal(world.flows[CHANNEL_ERR].data, "oops");
	assert_true(world.end.known);
	assert_int_equal(world.end.code, 0);
	assert_string_equal(world.end.signal, "");
	assert_int_equal(world.n_ends, 1);
	finish(&world);
}

static void test_much_comes_back_whole(void **state)
{
	enum { SIZE = 3 << 20 };
	AUTO_FREE char *data = mem_alloc(SIZE, 1);
	struct world world;

	(void)state;
	for (size_t i = 0; i < SIZE; i++)
		data[i] = (char)(i * 2654435761u >> 13);
	start(&world, "cat");
	world.input = data;
	world.input_left = SIZE;
	run(&world);
	assert_int_equal(world.flows[CHANNEL_OUT].len, SIZE);
	assert_memory_equal(world.flows[CHANNEL_OUT].data, data, SIZE);
	assert_int_equal(world.end.code, 0);
	finish(&world);
}

static void test_input_that_nobody_reads(void **state)
{
	enum { SIZE = 1 << 20 };
	AUTO_FREE char *data = mem_alloc(SIZE, 1);
	struct world world;

	(void)state;
	start(&world, "exec <&-; echo said; exit 4");
	world.input = data;
	world.input_left = SIZE;
	run(&world);
	assert_int_equal(world.input_left, 0);
	assert_string_equal(world.flows[CHANNEL_OUT].data, "said\n");
	assert_int_equal(world.end.code, 4);
	assert_false(err_is_set(&world.error));
	finish(&world);
}

static int count_only(void *ctx, struct err *err)
{
	(void)err;
	++*(int *)ctx;
	return 0;
}

static int stop_loop(void *ctx, struct err *err)
{
	(void)err;
	loop_stop(ctx);
	return 0;
}

/* A reader that does not read on is not called again and again. */
static void test_what_is_not_read_waits(void **state)
{
	struct loop *loop = loop_new();
	struct err err = {0};
	int n = 0;

	(void)state;
	struct channel *channel = channel_from_child(
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
	struct world world;

	(void)state;
	start(&world, "exit 255");
	run(&world);
	assert_true(world.end.known);
	assert_int_equal(world.end.code, 255);
	assert_string_equal(world.end.signal, "");
	finish(&world);
}

static void test_signal(void **state)
{
	struct world world;

	(void)state;
	start(&world, "kill -TERM $$");
	run(&world);
	assert_true(world.end.known);
	assert_string_equal(world.end.signal, "TERM");
	finish(&world);
}

static void test_end_long_after_the_output(void **state)
{
	struct world world;

	(void)state;
	start(&world, "exec >&- 2>&-; sleep 0.3; exit 9");
	run(&world);
	assert_int_equal(world.end.code, 9);
	assert_int_equal(world.n_ends, 1);
	finish(&world);
}

static void test_no_such_program(void **state)
{
	const char *const argv[] = {"dlrun-test-no-such-program", NULL};
	struct world world;
	struct err err = {0};
	char byte = 'x';

	(void)state;
	open_world(&world);
	world.channel = channel_from_child(
		world.loop, argv, NULL, &(struct channel_events){on_ready, &world});
	run(&world);
	assert_int_equal(world.error.id, E_RUN_EXEC);
	const struct channel_ops *ops = world.channel->ops;
	assert_int_equal(ops->read(world.channel, CHANNEL_ERR, &byte, 1, &err), -ERR_NOTFOUND);
	assert_int_equal(ops->write(world.channel, &byte, 1, &err), -ERR_NOTFOUND);
	assert_int_equal(ops->send_eof(world.channel, &err), -ERR_NOTFOUND);
	assert_int_equal(ops->wait(world.channel, &world.end, &err), -ERR_NOTFOUND);
	assert_non_null(strstr(err.message, argv[0]));
	err_done(&err);
	finish(&world);
}

static void test_env_is_the_childs(void **state)
{
	static const char *const env[] = {"PATH=/usr/bin:/bin", "WORD=given", NULL};
	struct world world;

	(void)state;
	open_world(&world);
	world.channel = channel_from_child(
		world.loop, sh("echo $WORD$HOME"), env, &(struct channel_events){on_ready, &world});
	run(&world);
	assert_string_equal(world.flows[CHANNEL_OUT].data, "given\n");
	finish(&world);
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
	struct world world;
	int child = 0, grandchild = 0;

	(void)state;
	start(&world, "sleep 1000 & echo $$ $!; wait");
	world.stop_at_output = true;
	world.keeps_input = true;
	run(&world);
	assert_int_equal(sscanf(world.flows[CHANNEL_OUT].data, "%d %d", &child, &grandchild), 2);
	channel_free(TAKE(world.channel));
	assert_true(is_gone(child));
	UNTIL(is_dead(grandchild));
	finish(&world);
}

static void test_freed_when_ready(void **state)
{
	struct world world;

	(void)state;
	start(&world, "echo out; echo err >&2");
	world.drop_when_ready = true;
	run(&world);
	assert_int_equal(world.n_ready, 1);
	finish(&world);
}

static void test_free_of_nothing(void **state)
{
	(void)state;
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
	struct world world;
	struct err err = {0};

	(void)state;
	open_world(&world);
	assert_int_equal(child_start(&spec, &child, &err), 0);
	world.channel =
		channel_of_child(world.loop, &child, &(struct channel_events){on_ready, &world});
	assert_int_equal(child.pid, 0);
	world.input = "typed\n";
	world.input_left = 6;
	world.stop_at_output = true;
	while (!strstr(world.flows[CHANNEL_OUT].data, "got"))
		run(&world);
	/* Nothing was echoed. */
	assert_string_equal(world.flows[CHANNEL_OUT].data, "17 91\r\ngot typed\n");
	world.channel->ops->resize(world.channel, 120, 40);
	while (world.n_ends == 0)
		run(&world);
	assert_non_null(strstr(world.flows[CHANNEL_OUT].data, "40 120"));
	assert_int_equal(world.end.code, 3);
	finish(&world);
}

static void test_child_that_nobody_takes(void **state)
{
	struct child child = {0};
	struct err err = {0};

	(void)state;
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

	(void)state;
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
	(void)err;
	n_done++;
	pump = NULL;
	assert_int_equal(end->faulty, 0);
	assert_int_equal(end->bytes_ab, 5);
	loop_stop(ctx);
	return 0;
}

static void on_woken(void *ctx)
{
	(void)ctx;
	if (pump)
		pump_wake(pump);
}

static void test_stream_in_a_pump(void **state)
{
	struct loop *loop = loop_new();
	struct err err = {0};
	char response[64];
	int fds[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	struct channel *channel = channel_from_child(
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
	(void)state;
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
