/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves a program of this machine behind httpd.c, for tests:
 *
 *	httpd_tool PROGRAM-PORT [STRIP]
 *
 * The port that it serves at is the first line on stdout, with the token behind a blank where one
 * is needed. Paths from /own/ on are answered here: /own/hello, /own/silence (never), /own/stream
 * (10 pieces of 1 MiB, as there is room). Notices are on stderr. It ends with its stdin.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/httpd.h"
#include "net/stream/pump.h"

enum { PIECES = 10, PIECE_SIZE = 1 << 20 };

struct tool {
	struct loop *loop;
	struct httpd *httpd;
	uint16_t port; /* of the program */
	const char *strip;
};

/*
 * The program
 */

static int on_pumped(void *ctx, struct pump_end *end, struct err *err)
{
	(void)ctx;
	(void)end;
	(void)err;
	return 0;
}

static int on_connect(void *ctx, int fd, struct err *err)
{
	const struct tool *tool = ctx;
	const struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(tool->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	AUTO_FD int own = fd;
	AUTO_FD int program = socket(AF_INET, SOCK_STREAM, 0);

	if (program < 0 || connect(program, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return fs_error(err, errno, "cannot connect to port %u", tool->port);
	const struct pump_options options = {.loop = tool->loop,
		.a = stream_from_fd(TAKE_FD(own)),
		.b = stream_from_fd(TAKE_FD(program)),
		.done = on_pumped};
	pump_start(&options);
	return 0;
}

/*
 * Answers of its own
 */

struct pieces {
	struct httpd_exchange *exchange;
	int left;
};

static void on_gone(void *ctx)
{
	free(ctx);
}

static void write_pieces(void *ctx)
{
	struct pieces *pieces = ctx;
	AUTO_FREE char *piece = mem_alloc(PIECE_SIZE, 1);
	bool is_writable = true;

	memset(piece, 'x', PIECE_SIZE);
	for (; is_writable && pieces->left > 0; pieces->left--)
		is_writable = httpd_write(pieces->exchange, piece, PIECE_SIZE);
	if (pieces->left > 0)
		return;
	httpd_end(pieces->exchange, false);
	free(pieces);
}

static void stream(struct httpd_exchange *exchange)
{
	struct pieces *pieces = mem_alloc(1, sizeof(*pieces));

	*pieces = (struct pieces){.exchange = exchange, .left = PIECES};
	httpd_on_gone(exchange, on_gone, pieces);
	httpd_on_writable(exchange, write_pieces, pieces);
	httpd_begin(exchange, 200, NULL, -1);
	write_pieces(pieces);
}

static void on_request(
	void *ctx, struct httpd_exchange *exchange, const struct httpd_request *request)
{
	struct tool *tool = ctx;
	const struct httpd_route route = {
		.key = "program", .connect = on_connect, .ctx = tool, .strip = tool->strip};

	if (str_eq(request->target, "/own/hello"))
		httpd_respond(exchange, 200, NULL, "hello\n", 6);
	else if (str_eq(request->target, "/own/stream"))
		stream(exchange);
	else if (str_starts(request->target, "/own/") && !str_eq(request->target, "/own/silence"))
		httpd_refuse(exchange, 404, "there is nothing here", NULL);
	else if (!str_starts(request->target, "/own/"))
		httpd_relay(exchange, &route);
}

static void on_notice(void *ctx, const char *text)
{
	(void)ctx;
	fprintf(stderr, "%s\n", text);
}

/*
 * The tool
 */

static short wants_end(void *ctx)
{
	(void)ctx;
	return POLLIN;
}

static int on_stdin(void *ctx, short revents, struct err *err)
{
	const struct tool *tool = ctx;
	char c;

	(void)revents;
	(void)err;
	if (read(STDIN_FILENO, &c, 1) <= 0)
		loop_stop(tool->loop);
	return 0;
}

static int serve(struct tool *tool, struct err *err)
{
	static const struct loop_fd_ops ops = {.prepare = wants_end, .dispatch = on_stdin};
	const struct httpd_options options = {
		.loop = tool->loop, .request = on_request, .notice = on_notice, .ctx = tool};

	int r = httpd_open(&options, &tool->httpd, err);
	if (r < 0)
		return r;
	const char *token = httpd_token(tool->httpd);
	printf("%u%s%s\n", httpd_port(tool->httpd), token ? " " : "", token ? token : "");
	fflush(stdout);
	loop_add_fd(tool->loop, STDIN_FILENO, &ops, tool);
	r = loop_run(tool->loop, err);
	httpd_free(tool->httpd);
	return r;
}

int main(int argc, char **argv)
{
	AUTO_ERR struct err err = {0};
	struct tool tool = {.loop = loop_new()};
	int64_t port;

	if (argc < 2 || str_to_int(argv[1], 1, UINT16_MAX, "port", &port, &err) < 0) {
		fprintf(stderr, "usage: httpd_tool PROGRAM-PORT [STRIP]\n");
		return 2;
	}
	tool.port = (uint16_t)port;
	tool.strip = argv[2];
	int r = serve(&tool, &err);
	if (r < 0)
		fprintf(stderr, "error: %s\n", err.message);
	loop_free(tool.loop);
	return r < 0;
}
