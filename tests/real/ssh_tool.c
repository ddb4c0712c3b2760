/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SSH to a host, without nodes and runs:
 *
 *	ssh_tool [OPTIONS] exec HOST -- WORDS...      stdin, stdout, stderr and the exit status
 *	ssh_tool [OPTIONS] forward HOST LOCALPORT REMOTEHOST:PORT
 *	ssh_tool [OPTIONS] login HOST                 prints the carrier and why
 *
 * Options: --carrier libssh2|openssh, --config FILE, --accept-new-host, --control-dir DIR,
 * --terminal, --pty, --early (the command is begun before the loop runs), --wait (the loop runs
 * only once stdin has ended), --parallel N (that many commands at once, their output line by line
 * as it comes), --first LINE (begun early, and never asked for), --drop MS (the first of the
 * commands is given up then). A failure is told as "error: ID: MESSAGE" with evidence, and exits
 * with 125.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh.h"
#include "net/stream/listen.h"
#include "net/stream/pump.h"

extern char **environ;

enum { PARALLEL_MAX = 64, CHUNK = 32 << 10 };

struct tool {
	struct ssh_options options;
	bool pty, early, wait;
	int parallel, drop_ms;
	struct loop *loop;
	struct ssh *ssh;
	const char *remote_host;
	uint16_t remote_port;
	int status, running;
};

struct command {
	struct tool *tool;
	struct channel *channel;
	struct loop_fd *input;
	char data[CHUNK];
	size_t at, len;
	bool input_ended, eof_sent;
};

static int fail(const struct err *err)
{
	fprintf(stderr, "error: %s: %s\n", err_info(err->id)->name, err->message);
	for (size_t i = 0; i < err->n_evidence; i++)
		fprintf(stderr, "  %s\n", err->evidence[i]);
	if (err->hint)
		fprintf(stderr, "  hint: %s\n", err->hint);
	return 125;
}

static void print(void *ctx, const char *text, bool is_detail)
{
	(void)ctx;
	fprintf(stderr, "%s: %s\n", is_detail ? "detail" : "say", text);
}

/*
 * exec
 */

static int status_of(const struct channel_exit *end)
{
	if (!end->known)
		return 126;
	if (!*end->signal)
		return end->code;
	fprintf(stderr, "signal: %s\n", end->signal);
	return 128 + proc_signal_number(end->signal);
}

static void end_command(struct command *command, int status)
{
	struct tool *tool = command->tool;

	loop_remove_fd(tool->loop, command->input);
	command->input = NULL;
	channel_free(TAKE(command->channel));
	if (status > tool->status)
		tool->status = status;
	if (--tool->running == 0)
		loop_stop(tool->loop);
}

static int pass_output(struct command *command, enum channel_flow flow, struct err *err)
{
	static char chunk[CHUNK];
	ssize_t n;

	while ((n = command->channel->ops->read(
			command->channel, flow, chunk, sizeof(chunk), err)) > 0)
		fs_write_fd(flow == CHANNEL_OUT ? 1 : 2, "output", chunk, (size_t)n, NULL);
	return n == CHANNEL_AGAIN ? 0 : (int)n;
}

static int pass_input(struct command *command, struct err *err)
{
	struct channel *channel = command->channel;

	while (command->len > 0) {
		ssize_t n = channel->ops->write(
			channel, command->data + command->at, command->len, err);
		if (n < 0)
			return n == CHANNEL_AGAIN ? 0 : (int)n;
		command->at += (size_t)n;
		command->len -= (size_t)n;
	}
	if (!command->input_ended || command->eof_sent)
		return 0;
	command->eof_sent = true;
	return channel->ops->send_eof(channel, err);
}

static int command_ready(void *ctx, struct err *err)
{
	struct command *command = ctx;
	struct channel_exit end = {0};
	AUTO_ERR struct err error = {0};

	(void)err;
	int r = pass_output(command, CHANNEL_OUT, &error);
	if (r >= 0)
		r = pass_output(command, CHANNEL_ERR, &error);
	if (r >= 0)
		r = pass_input(command, &error);
	if (r >= 0)
		r = command->channel->ops->wait(command->channel, &end, &error);
	if (r < 0)
		end_command(command, fail(&error));
	else if (r > 0)
		end_command(command, status_of(&end));
	return 0;
}

static short input_prepare(void *ctx)
{
	const struct command *command = ctx;

	return command->len == 0 && !command->input_ended ? POLLIN : 0;
}

static int input_dispatch(void *ctx, short revents, struct err *err)
{
	struct command *command = ctx;
	ssize_t n = read(0, command->data, sizeof(command->data));

	(void)revents;
	command->at = 0;
	command->len = n > 0 ? (size_t)n : 0;
	command->input_ended = n <= 0;
	return command_ready(command, err);
}

static const struct loop_fd_ops input_ops = {.prepare = input_prepare, .dispatch = input_dispatch};

static void wait_for_input_end(void)
{
	struct pollfd fd = {.fd = 0, .events = POLLIN};

	while (poll(&fd, 1, -1) < 0)
		;
}

static int resize(void *ctx, int sig, struct err *err)
{
	struct command *command = ctx;

	(void)sig;
	(void)err;
	if (command->channel && command->channel->ops->resize)
		command->channel->ops->resize(command->channel, 120, 40);
	return 0;
}

static int drop(void *ctx, struct err *err)
{
	struct command *command = ctx;

	(void)err;
	if (command->channel)
		end_command(command, 0);
	return 0;
}

static int exec(struct tool *tool, const char *line)
{
	static struct command commands[PARALLEL_MAX];
	const struct channel_pty pty = {.term = "xterm", .columns = 91, .rows = 17};
	AUTO_ERR struct err err = {0};

	if (tool->wait)
		wait_for_input_end();
	for (int i = 0; i < tool->parallel; i++) {
		struct command *command = &commands[i];

		command->tool = tool;
		command->channel = ssh_command(tool->ssh, line, tool->pty ? &pty : NULL,
			&(struct channel_events){command_ready, command});
		command->input_ended = i > 0;
		if (i == 0)
			command->input = loop_add_fd(tool->loop, 0, &input_ops, command);
		tool->running++;
	}
	if (tool->drop_ms)
		loop_add_timer(tool->loop, clock_ms() + tool->drop_ms, drop, &commands[0]);
	if (tool->pty)
		loop_add_signal(tool->loop, SIGWINCH, resize, &commands[0], NULL);
	return loop_run(tool->loop, &err) < 0 ? fail(&err) : tool->status;
}

/*
 * forward
 */

struct carried {
	struct pump *pump;
};

static int pump_done(void *ctx, struct pump_end *end, struct err *err)
{
	struct carried *carried = ctx;

	(void)err;
	if (end->faulty)
		fail(&end->error);
	free(carried);
	return 0;
}

static void woken(void *ctx)
{
	const struct carried *carried = ctx;

	if (carried->pump)
		pump_wake(carried->pump);
}

static int no_event(void *ctx, struct err *err)
{
	(void)ctx;
	(void)err;
	return 0;
}

static int on_accept(void *ctx, int fd, const char *peer, struct err *err)
{
	struct tool *tool = ctx;
	struct carried *carried = mem_alloc(1, sizeof(*carried));

	(void)peer;
	(void)err;
	struct channel *channel = ssh_connect(tool->ssh, tool->remote_host, tool->remote_port,
		&(struct channel_events){no_event, NULL});
	carried->pump = pump_start(&(struct pump_options){.loop = tool->loop,
		.a = stream_from_fd(fd),
		.b = channel_stream(channel, woken, carried),
		.done = pump_done,
		.ctx = carried});
	return 0;
}

static int stop(void *ctx, int sig, struct err *err)
{
	(void)sig;
	(void)err;
	loop_stop(ctx);
	return 0;
}

/* Ends by SIGTERM; what is open then is not freed, so the process just goes. */
static int forward(struct tool *tool, const char *local, char *remote)
{
	struct listener *listener = NULL;
	AUTO_ERR struct err err = {0};
	char *colon = strrchr(remote, ':');

	if (!colon)
		return 2;
	*colon = '\0';
	tool->remote_host = remote;
	tool->remote_port = (uint16_t)strtoul(colon + 1, NULL, 10);
	const struct listen_options options = {.loop = tool->loop,
		.port = (uint16_t)strtoul(local, NULL, 10),
		.accept = on_accept,
		.ctx = tool};
	if (listener_open(&options, &listener, &err) < 0)
		return fail(&err);
	printf("%u\n", listener_port(listener));
	fflush(stdout);
	loop_add_signal(tool->loop, SIGTERM, stop, tool->loop, NULL);
	int r = loop_run(tool->loop, &err);
	listener_free(listener);
	_exit(r < 0 ? fail(&err) : 0);
}

/*
 * login
 */

static int login_done(void *ctx, struct err *error, struct err *err)
{
	struct tool *tool = ctx;

	(void)err;
	if (err_is_set(error))
		tool->status = fail(error);
	loop_stop(tool->loop);
	return 0;
}

static int login(struct tool *tool)
{
	static const char *const names[] = {"none", "libssh2", "openssh"};
	AUTO_ERR struct err err = {0};
	const char *why = NULL;

	ssh_login(tool->ssh, login_done, tool);
	if (loop_run(tool->loop, &err) < 0)
		return fail(&err);
	enum ssh_transport forwarder = ssh_transport(tool->ssh, &why);
	printf("%s: %s\n", names[forwarder], why);
	return tool->status;
}

/*
 * Words
 */

static char **parse(struct tool *tool, char **argv)
{
	for (; *argv && str_starts(*argv, "--") && (*argv)[2]; argv++) {
		if (str_eq(*argv, "--accept-new-host"))
			tool->options.accept_new_host = true;
		else if (str_eq(*argv, "--terminal"))
			tool->options.has_terminal = true;
		else if (str_eq(*argv, "--pty"))
			tool->pty = true;
		else if (str_eq(*argv, "--early"))
			tool->early = true;
		else if (str_eq(*argv, "--wait"))
			tool->wait = true;
		else if (str_eq(*argv, "--carrier"))
			tool->options.transport =
				str_eq(*++argv, "openssh") ? SSH_OPENSSH : SSH_LIBSSH2;
		else if (str_eq(*argv, "--config"))
			tool->options.config = *++argv;
		else if (str_eq(*argv, "--control-dir"))
			tool->options.control_dir = *++argv;
		else if (str_eq(*argv, "--first"))
			tool->options.first_command = *++argv;
		else if (str_eq(*argv, "--parallel"))
			tool->parallel = (int)strtol(*++argv, NULL, 10);
		else if (str_eq(*argv, "--drop"))
			tool->drop_ms = (int)strtol(*++argv, NULL, 10);
	}
	return argv;
}

static int run(struct tool *tool, const char *verb, char **argv, const char *line)
{
	if (str_eq(verb, "exec"))
		return exec(tool, line);
	if (str_eq(verb, "login"))
		return login(tool);
	if (str_eq(verb, "forward") && argv[0] && argv[1])
		return forward(tool, argv[0], argv[1]);
	return 2;
}

int main(int argc, char **argv)
{
	struct tool tool = {.parallel = 1, .options = {.print = print}};
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf line = {0};

	(void)argc;
	signal(SIGPIPE, SIG_IGN);
	buf_init(&line, 1 << 20);
	argv = parse(&tool, argv + 1);
	const char *verb = argv[0];
	if (!verb || !argv[1])
		return 2;
	argv = parse(&tool, argv + 1);
	if (tool.parallel < 1 || tool.parallel > PARALLEL_MAX || !argv[0])
		return 2;
	tool.options.host = *argv++;
	for (char **word = argv + (*argv && str_eq(*argv, "--")); *word; word++)
		buf_addf(&line, "%s%s", line.len ? " " : "", *word);
	tool.loop = tool.options.loop = loop_new();
	tool.options.env = (const char *const *)environ;
	tool.options.home = getenv("HOME");
	if (tool.early)
		tool.options.first_command = line.data;
	int status = ssh_open(&tool.options, &tool.ssh, &err) < 0
			     ? fail(&err)
			     : run(&tool, verb, argv, line.data);
	ssh_free(tool.ssh);
	loop_free(tool.loop);
	return status;
}
