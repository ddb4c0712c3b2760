/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection by libssh2, without a configuration:
 *
 *	ssh_libssh2_tool KEY=VALUE... exec [-t] COMMAND
 *	ssh_libssh2_tool KEY=VALUE... port HOST PORT
 *	ssh_libssh2_tool KEY=VALUE... many N HOST PORT BYTES
 *	ssh_libssh2_tool KEY=VALUE... commands N COMMAND
 *	ssh_libssh2_tool KEY=VALUE... cancel MS
 *
 * Keys: host, port, user, known, global, id (those three more than once), only, agent, strict (ask,
 * yes, accept-new, off), hash, alias, keepalive (ms), first, answer (to all questions), late (ms
 * before the loop runs), pause (ms before anything is read).
 *
 * exec and port join stdin and stdout with a channel; "exit N", "signal NAME" or "exit unknown"
 * comes on stderr. many sends BYTES on each of N connections at once and wants them back. commands
 * runs N at once and prints how many of them ended with 0.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "net/ssh/ssh_libssh2.h"

enum { CHUNK = 64 << 10, UNUSABLE = 125, FALLBACK = 126 };

struct tool;
struct conn {
	struct tool *tool;
	struct channel *channel;
	uint64_t to_send, sent, got;
	bool sent_eof, done;
};

struct tool {
	struct loop *loop;
	struct ssh_libssh2 *ssh;
	struct ssh_libssh2_login login;
	struct strv known, global, ids;
	const char *response;
	int64_t late_ms, backoff_ms;
	char **words;
	struct channel *channel;
	struct loop_fd *input;
	char in[CHUNK];
	size_t in_at, in_len;
	bool in_end, eof_sent, ended[2], paused;
	struct conn *conns;
	size_t n_conns, n_done, n_good;
	int status;
};

static int fail(const struct err *err)
{
	fprintf(stderr, "error: %s: %s\n", err_info(err->id)->name, err->message);
	for (size_t i = 0; i < err->n_evidence; i++)
		fprintf(stderr, "  %s\n", err->evidence[i]);
	return UNUSABLE;
}

static int stop(struct tool *tool, int status)
{
	tool->status = status;
	loop_stop(tool->loop);
	return 0;
}

/*
 * exec and port
 */

static int write_all(const char *data, size_t len)
{
	while (len > 0) {
		ssize_t n = write(STDOUT_FILENO, data, len);
		if (n < 0)
			return -1;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

static int copy_out(struct tool *tool, enum channel_flow flow, struct err *err)
{
	static char data[CHUNK];

	while (!tool->ended[flow]) {
		ssize_t n = tool->channel->ops->read(tool->channel, flow, data, CHUNK, err);
		if (n == CHANNEL_AGAIN)
			return 0;
		if (n < 0)
			return (int)n;
		if (n == 0)
			tool->ended[flow] = true;
		else if (flow == CHANNEL_ERR)
			fwrite(data, 1, (size_t)n, stderr);
		else if (write_all(data, (size_t)n) < 0)
			return err_set(err, E_IO, "stdout");
	}
	return 0;
}

static int copy_in(struct tool *tool, struct err *err)
{
	while (tool->in_len > 0) {
		ssize_t n = tool->channel->ops->write(
			tool->channel, tool->in + tool->in_at, tool->in_len, err);
		if (n == CHANNEL_AGAIN)
			return 0;
		if (n < 0)
			return (int)n;
		tool->in_at += (size_t)n;
		tool->in_len -= (size_t)n;
	}
	if (tool->in_end && !tool->eof_sent) {
		tool->eof_sent = true;
		return tool->channel->ops->send_eof(tool->channel, err);
	}
	return 0;
}

static int check_end(struct tool *tool, struct err *err)
{
	struct channel_exit exit;

	int r = tool->channel->ops->wait(tool->channel, &exit, err);
	if (r <= 0)
		return r;
	if (exit.signal[0])
		fprintf(stderr, "signal %s\n", exit.signal);
	else if (exit.known)
		fprintf(stderr, "exit %d\n", exit.code);
	else
		fprintf(stderr, "exit unknown\n");
	return stop(tool, exit.signal[0] ? 128 : exit.known ? exit.code : UNUSABLE);
}

static int on_ready(void *ctx, struct err *err)
{
	struct tool *tool = ctx;
	AUTO_ERR struct err error = {0};

	(void)err;
	if (tool->paused)
		return 0;
	int r = copy_out(tool, CHANNEL_OUT, &error);
	if (r == 0)
		r = copy_out(tool, CHANNEL_ERR, &error);
	if (r == 0)
		r = copy_in(tool, &error);
	if (r == 0)
		r = check_end(tool, &error);
	return r < 0 ? stop(tool, fail(&error)) : 0;
}

static int end_backoff(void *ctx, struct err *err)
{
	struct tool *tool = ctx;

	tool->paused = false;
	return on_ready(tool, err);
}

static short want_input(void *ctx)
{
	struct tool *tool = ctx;

	return tool->in_len == 0 && !tool->in_end ? POLLIN : 0;
}

static int take_input(void *ctx, short revents, struct err *err)
{
	struct tool *tool = ctx;

	(void)revents;
	ssize_t n = read(STDIN_FILENO, tool->in, CHUNK);
	if (n <= 0)
		tool->in_end = true;
	tool->in_at = 0;
	tool->in_len = n > 0 ? (size_t)n : 0;
	int r = copy_in(tool, err);
	return r < 0 ? stop(tool, fail(err)) : 0;
}

static const struct loop_fd_ops input_ops = {.prepare = want_input, .dispatch = take_input};

static void begin_one(struct tool *tool)
{
	const struct channel_events events = {on_ready, tool};
	const struct channel_pty pty = {"xterm", 80, 24};
	bool wants_pty = str_eq(tool->words[1], "-t");

	if (str_eq(tool->words[0], "exec"))
		tool->channel = ssh_libssh2_command(tool->ssh, tool->words[wants_pty ? 2 : 1],
			wants_pty ? &pty : NULL, &events);
	else
		tool->channel = ssh_libssh2_connect(
			tool->ssh, tool->words[1], (uint16_t)atoi(tool->words[2]), &events);
	tool->input = loop_add_fd(tool->loop, STDIN_FILENO, &input_ops, tool);
	if (tool->backoff_ms > 0) {
		tool->paused = true;
		loop_add_timer(tool->loop, clock_ms() + tool->backoff_ms, end_backoff, tool);
	}
}

/*
 * many and commands
 */

static char pattern_at(const struct conn *conn, uint64_t at)
{
	return (char)((at * 31 + at / 255 + (uint64_t)(conn - conn->tool->conns)) & 0xff);
}

static int send_pattern(struct conn *conn, struct err *err)
{
	static char data[CHUNK];

	while (conn->sent < conn->to_send) {
		size_t n = conn->to_send - conn->sent < CHUNK ? conn->to_send - conn->sent : CHUNK;
		for (size_t i = 0; i < n; i++)
			data[i] = pattern_at(conn, conn->sent + i);
		ssize_t taken = conn->channel->ops->write(conn->channel, data, n, err);
		if (taken == CHANNEL_AGAIN)
			return 0;
		if (taken < 0)
			return (int)taken;
		conn->sent += (uint64_t)taken;
	}
	if (!conn->sent_eof) {
		conn->sent_eof = true;
		return conn->channel->ops->send_eof(conn->channel, err);
	}
	return 0;
}

static int take_pattern(struct conn *conn, enum channel_flow flow, struct err *err)
{
	static char data[CHUNK];

	for (;;) {
		ssize_t n = conn->channel->ops->read(conn->channel, flow, data, CHUNK, err);
		if (n == CHANNEL_AGAIN || n == 0)
			return 0;
		if (n < 0)
			return (int)n;
		for (ssize_t i = 0; i < n && conn->to_send > 0; i++) {
			if (data[i] != pattern_at(conn, conn->got + (uint64_t)i))
				return err_set(err, E_DATA, "wrong byte at %llu",
					(unsigned long long)conn->got + (uint64_t)i);
		}
		conn->got += (uint64_t)n;
	}
}

static int finish(struct conn *conn, bool good)
{
	struct tool *tool = conn->tool;

	conn->done = true;
	channel_free(TAKE(conn->channel));
	tool->n_good += good ? 1 : 0;
	if (++tool->n_done < tool->n_conns)
		return 0;
	printf("%zu of %zu\n", tool->n_good, tool->n_conns);
	return stop(tool, tool->n_good == tool->n_conns ? 0 : 1);
}

static int on_conn(void *ctx, struct err *err)
{
	struct conn *conn = ctx;
	AUTO_ERR struct err error = {0};
	struct channel_exit exit = {0};

	(void)err;
	int r = send_pattern(conn, &error);
	if (r == 0)
		r = take_pattern(conn, CHANNEL_OUT, &error);
	if (r == 0)
		r = take_pattern(conn, CHANNEL_ERR, &error);
	if (r == 0)
		r = conn->channel->ops->wait(conn->channel, &exit, &error);
	if (r < 0)
		fail(&error);
	if (r == 0)
		return 0;
	bool is_command = str_eq(conn->tool->words[0], "commands");
	return finish(conn, r == 1 && conn->got >= conn->to_send &&
				    (!is_command || (exit.known && exit.code == 0)));
}

static void begin_many(struct tool *tool)
{
	bool is_command = str_eq(tool->words[0], "commands");

	tool->n_conns = (size_t)atoi(tool->words[1]);
	tool->conns = mem_alloc(tool->n_conns, sizeof(*tool->conns));
	for (size_t i = 0; i < tool->n_conns; i++) {
		struct conn *conn = &tool->conns[i];
		const struct channel_events events = {on_conn, conn};
		conn->tool = tool;
		if (is_command) {
			conn->channel =
				ssh_libssh2_command(tool->ssh, tool->words[2], NULL, &events);
			continue;
		}
		conn->to_send = strtoull(tool->words[4], NULL, 10);
		conn->channel = ssh_libssh2_connect(
			tool->ssh, tool->words[2], (uint16_t)atoi(tool->words[3]), &events);
	}
}

/*
 * The connection
 */

static int on_done(
	void *ctx, enum ssh_libssh2_end end, const char *why, struct err *error, struct err *err)
{
	struct tool *tool = ctx;

	(void)err;
	if (end == SSH_LIBSSH2_FAILED)
		return stop(tool, fail(error));
	if (end == SSH_LIBSSH2_FALLBACK) {
		fprintf(stderr, "fallback: because %s\n", why);
		fail(error);
		return stop(tool, FALLBACK);
	}
	if (str_eq(tool->words[0], "exec") || str_eq(tool->words[0], "port"))
		begin_one(tool);
	else if (!str_eq(tool->words[0], "cancel"))
		begin_many(tool);
	return 0;
}

static void on_print(void *ctx, const char *text, bool is_detail)
{
	(void)ctx;
	fprintf(stderr, "%s: %s\n", is_detail ? "detail" : "note", text);
}

static int on_prompt(
	void *ctx, const char *question, bool secret, struct buf *response, struct err *err)
{
	struct tool *tool = ctx;

	(void)err;
	fprintf(stderr, "question%s: %s\n", secret ? " (secret)" : "", question);
	buf_adds(response, tool->response);
	return 1;
}

static int cancel_now(void *ctx, struct err *err)
{
	(void)err;
	return stop(ctx, 0);
}

static enum ssh_strict strict_of(const char *word)
{
	if (str_eq(word, "yes"))
		return SSH_STRICT_YES;
	if (str_eq(word, "accept-new"))
		return SSH_STRICT_ACCEPT_NEW;
	return str_eq(word, "off") ? SSH_STRICT_OFF : SSH_STRICT_ASK;
}

static bool take_text(struct tool *tool, const char *key, const char *value)
{
	const struct {
		const char *key;
		const char **at;
	} texts[] = {
		{"host", &tool->login.hostname},
		{"user", &tool->login.user},
		{"agent", &tool->login.agent},
		{"alias", &tool->login.key_alias},
		{"first", &tool->login.first_command},
		{"answer", &tool->response},
	};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		if (str_eq(texts[i].key, key)) {
			*texts[i].at = value;
			return true;
		}
	}
	return false;
}

static void take_key(struct tool *tool, const char *key, const char *value)
{
	struct ssh_libssh2_login *login = &tool->login;

	if (take_text(tool, key, value))
		return;
	if (str_eq(key, "known"))
		strv_add(&tool->known, value);
	else if (str_eq(key, "global"))
		strv_add(&tool->global, value);
	else if (str_eq(key, "id"))
		strv_add(&tool->ids, value);
	else if (str_eq(key, "strict"))
		login->strict = strict_of(value);
	else if (str_eq(key, "port"))
		login->port = (uint16_t)atoi(value);
	else if (str_eq(key, "only"))
		login->identities_only = true;
	else if (str_eq(key, "hash"))
		login->hash_known_hosts = true;
	else if (str_eq(key, "keepalive"))
		login->keepalive_ms = atoi(value);
	else if (str_eq(key, "late"))
		tool->late_ms = atoi(value);
	else if (str_eq(key, "pause"))
		tool->backoff_ms = atoi(value);
}

static void take_words(struct tool *tool, char **words)
{
	for (; *words && strchr(*words, '=') && !tool->words; words++) {
		AUTO_FREE char *key = mem_strndup(*words, (size_t)(strchr(*words, '=') - *words));
		take_key(tool, key, strchr(*words, '=') + 1);
	}
	tool->words = words;
	tool->login.name = tool->login.hostname;
	tool->login.user_known_hosts = (const char *const *)tool->known.v;
	tool->login.global_known_hosts = (const char *const *)tool->global.v;
	tool->login.identities = (const char *const *)tool->ids.v;
}

int main(int argc, char **argv)
{
	struct tool tool = {.loop = loop_new(), .login = {.hostname = "127.0.0.1", .port = 22}};
	AUTO_ERR struct err err = {0};

	if (argc < 2)
		return 2;
	take_words(&tool, argv + 1);
	const struct ssh_libssh2_events events = {.done = on_done,
		.print = on_print,
		.prompt = tool.response ? on_prompt : NULL,
		.ctx = &tool};
	tool.ssh = ssh_libssh2_start(tool.loop, &tool.login, &events);
	if (str_eq(tool.words[0], "cancel"))
		loop_add_timer(tool.loop, clock_ms() + atoi(tool.words[1]), cancel_now, &tool);
	poll(NULL, 0, (int)tool.late_ms);
	if (loop_run(tool.loop, &err) < 0)
		tool.status = fail(&err);
	loop_remove_fd(tool.loop, tool.input);
	channel_free(tool.channel);
	ssh_libssh2_free(tool.ssh);
	loop_free(tool.loop);
	strv_done(&tool.known);
	strv_done(&tool.global);
	strv_done(&tool.ids);
	free(tool.conns);
	return tool.status;
}
