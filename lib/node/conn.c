/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "base/util/trace.h"
#include "node/node.h"
#include "node/node_impl.h"
#include "node/runner.h"

/* The characters of ROOT (protocol.h). */
#define ROOT_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/~+-"

enum { ROOT_MAX = 1024 };

void node_mark(char out[static NODE_MARK_LEN + 1])
{
	unsigned char bytes[NODE_MARK_LEN / 2];

	random_bytes(bytes, sizeof(bytes));
	hex_encode(bytes, sizeof(bytes), out);
}

static int check_root(const char *root, struct err *err)
{
	AUTO_FREE char *shown = str_shown(root);
	const char *tilde = strchr(root, '~');

	if (str_empty(root) || strlen(root) > ROOT_MAX || root[strspn(root, ROOT_CHARS)])
		return err_set(err, E_CONFIG,
			"the directory \"%s\" on the node has characters other than letters, "
			"digits and ._/~+-",
			shown);
	if (*root != '/' && !str_starts(root, "~/") && !str_eq(root, "~"))
		return err_set(err, E_CONFIG,
			"the directory \"%s\" on the node begins with neither / nor ~/", shown);
	if (tilde && tilde != root)
		return err_set(err, E_CONFIG,
			"the directory \"%s\" on the node has ~ elsewhere than at its beginning",
			shown);
	return 0;
}

int node_command(const char *root, const char *mark, char **ret, struct err *err)
{
	int r = check_root(root, err);

	if (r == 0)
		*ret = mem_printf("exec sh -c '%s' dlrun %s %s %zu %s", node_boot, root,
			node_runner_hash, node_runner_size, mark);
	return r;
}

int node_first_command(const char *root, char **ret, struct err *err)
{
	char mark[NODE_MARK_LEN + 1];

	node_mark(mark);
	return node_command(root, mark, ret, err);
}

enum { TEXT_MAX = 2000, SIGNALED = 128 };

/* A command that every login shell must run; a restricted one says that it may not. */
#define SHELL_HINT "ssh %s 'exec sh -c true'"

static const struct {
	const char *word;
	enum node_class class;
	enum err_id id, early_id;
} classes[] = {
	{"usage", NODE_CLASS_OTHER, E_NODE_PROTOCOL, E_NODE_PROTOCOL},
	{"busy", NODE_CLASS_OTHER, E_NODE_BUSY, E_NODE_ROOT},
	{"disk", NODE_CLASS_OTHER, E_NODE_DISK, E_NODE_ROOT},
	{"missing", NODE_CLASS_MISSING, E_RUN_NOT_FOUND, E_NODE_ROOT},
	{"log", NODE_CLASS_OTHER, E_RUN_LOG, E_NODE_ROOT},
	{"corrupt", NODE_CLASS_CORRUPT, E_NODE_CORRUPT, E_NODE_CORRUPT},
	{"io", NODE_CLASS_OTHER, E_NODE_FAILED, E_NODE_ROOT},
	{"gone", NODE_CLASS_GONE, E_NODE_FAILED, E_NODE_ROOT},
	{"gpu", NODE_CLASS_OTHER, E_GPU_TOOL, E_NODE_ROOT},
	{"tool", NODE_CLASS_OTHER, E_NODE_TOOL, E_NODE_TOOL},
	{"program", NODE_CLASS_OTHER, E_EXEC_NOT_FOUND, E_NODE_ROOT},
	{"noexec", NODE_CLASS_OTHER, E_EXEC_NOT_EXECUTABLE, E_NODE_ROOT},
};

/* The rest of a line as text for people; decoded where it stands. */
static void conn_take_text(char *text, struct buf *out)
{
	size_t len = strlen(text);

	/* Not coded right: shown as it is. */
	AUTO_FREE char *whole = mem_strdup(text);
	if (node_word_decode(text))
		len = strlen(text);
	else
		memcpy(text, whole, len + 1);
	term_clean(text, len < TEXT_MAX ? len : TEXT_MAX, true, out);
	while (out->len && out->data[out->len - 1] == ' ')
		buf_truncate(out, out->len - 1);
}

/* "CLASS text" of the node called name, decoded where it stands. is_early: ahead of the request. */
static enum node_class conn_explain_failure(
	const char *name, char *line, bool is_early, struct err *ret)
{
	AUTO_BUF struct buf text = buf_with(8 * (size_t)TEXT_MAX);
	size_t len = strcspn(line, " ");
	enum err_id id = is_early ? E_NODE_ROOT : E_NODE_FAILED;
	enum node_class class = NODE_CLASS_OTHER;

	conn_take_text(line + len + (line[len] == ' '), &text);
	for (size_t i = 0; i < ARRAY_LEN(classes); i++) {
		if (strlen(classes[i].word) != len || memcmp(classes[i].word, line, len) != 0)
			continue;
		class = classes[i].class;
		id = is_early ? classes[i].early_id : classes[i].id;
	}
	err_set(ret, id, "%s: %s", name, text.len ? text.data : "it failed without a message");
	if (id == E_NODE_DISK)
		err_hint(ret, "dlrun gc --node %s", name);
	return class;
}

/* The channel ended without a response. is_opening: not even the mark came. */
static void conn_explain_unanswered(
	const char *name, const struct channel_exit *exit, bool is_opening, struct err *ret)
{
	bool was_killed = exit->known && (*exit->signal || exit->code > SIGNALED);

	if (!exit->known || (was_killed && !is_opening))
		err_set(ret, E_NODE_LOST, "the connection to %s was lost", name);
	else if (*exit->signal)
		err_set(ret, is_opening ? E_NODE_SHELL : E_NODE_PROTOCOL,
			"the login shell of %s was killed by SIG%s", name, exit->signal);
	else if (is_opening)
		err_set(ret, E_NODE_SHELL, "the login shell of %s ran no command (exit status %d)",
			name, exit->code);
	else
		err_set(ret, E_NODE_PROTOCOL, "%s ended without an answer (exit status %d)", name,
			exit->code);
	if (ret->id == E_NODE_SHELL)
		err_hint(ret, SHELL_HINT, name);
}

/* is_opening as above. */
static void conn_explain_silence(
	const char *name, int64_t limit_ms, bool is_opening, struct err *ret)
{
	char text[32];

	duration_text(limit_ms, text);
	if (!is_opening) {
		err_set(ret, E_NODE_LOST, "%s said nothing for %s", name, text);
		return;
	}
	err_set(ret, E_NODE_SHELL, "the login shell of %s has run no command within %s", name,
		text);
	err_hint(ret, SHELL_HINT, name);
}

enum {
	HOLD_SIZE = NODE_WIRE_PIECE + NODE_LINE_MAX,
	TURNS_MAX = 32, /* of one dispatch */
	SENDS_MAX = 2,  /* of the runner */
	/* Until a login shell has run the command; so much more where the login took its time. */
	FIRST_MS = 7000,
	FIRST_PER_LOGIN = 4,
};

enum phase {
	PHASE_OPENING, /* noise, until the first line with MARK */
	PHASE_SENDING, /* the runner */
	PHASE_STORED,  /* it is there; the connection ends */
	PHASE_FACTS,
	PHASE_READY,
	PHASE_REQUESTED,
	PHASE_OVER,
};

struct flow {
	struct node_wire wire;
	bool is_raw, has_ended, has_notified_end;
	char *hold; /* raw bytes that wait: from hold_at on */
	size_t hold_at, hold_len;
};

struct node_conn {
	struct node_conn_options options;
	struct node_conn_events events;
	struct channel_pty pty;
	char *name, *command, *term;
	struct channel *channel;
	enum phase phase;
	struct flow flows[2]; /* by enum channel_flow */
	struct node_handshake handshake;
	struct node_request request;
	bool is_answered; /* a raw answer is at its end */
	bool has_gone;    /* behind "go" */
	/* Output: waiting from waiting_at on, then what payload gives. */
	struct buf waiting;
	size_t waiting_at;
	bool has_payload, wants_eof, is_shut;
	struct err write_error;
	int n_sends;
	struct node_conn_info info;
	/* Silence. */
	int64_t heard_ms, limit_ms;
	struct loop_timer *timer, *turn;
	struct err error;
	char *scratch;
};

/*
 * The end
 */

static void drop_channel(struct node_conn *conn)
{
	channel_free(TAKE(conn->channel));
}

static int conn_on_turn(void *ctx, struct err *err);

void node_conn_wake(struct node_conn *conn)
{
	if (!conn->turn)
		conn->turn = loop_add_timer(conn->options.loop, 0, conn_on_turn, conn);
}

/* The owner hears of it in a turn of its own, so that nothing is freed under what called. */
static void conn_end(struct node_conn *conn)
{
	if (conn->phase == PHASE_OVER)
		return;
	conn->phase = PHASE_OVER;
	drop_channel(conn);
	loop_remove_timer(conn->options.loop, TAKE(conn->timer));
	node_conn_wake(conn);
}

static void node_conn_fail(struct node_conn *conn, struct err *error)
{
	if (conn->phase == PHASE_OVER) {
		err_clear(error);
		return;
	}
	err_move(&conn->error, error);
	conn_end(conn);
}

/* Add the output on stderr, and that of the login shell, until now. */
static void conn_add_evidence(struct node_conn *conn, struct err *error)
{
	struct flow *flow = &conn->flows[CHANNEL_ERR];

	for (int i = 0; i < TURNS_MAX && conn->channel && !flow->has_ended && !flow->is_raw; i++) {
		struct node_said said;
		ssize_t n = conn->channel->ops->read(
			conn->channel, CHANNEL_ERR, conn->scratch, NODE_WIRE_PIECE, NULL);

		if (n <= 0)
			break;
		node_wire_add(&flow->wire, conn->scratch, (size_t)n);
		while (node_wire_next(&flow->wire, &said, NULL) > 0)
			if (said.what == NODE_SAYS_LINE)
				node_wire_keep(&flow->wire, said.line);
	}
	if (!flow->is_raw)
		node_wire_evidence(&flow->wire, error);
	if (conn->phase == PHASE_OPENING)
		node_wire_evidence(&conn->flows[CHANNEL_OUT].wire, error);
}

static void fail_with_evidence(struct node_conn *conn, struct err *error)
{
	conn_add_evidence(conn, error);
	node_conn_fail(conn, error);
}

static void fail_class(struct node_conn *conn, char *line)
{
	AUTO_ERR struct err error = {0};
	bool is_early = conn->phase < PHASE_READY;

	conn->info.class = conn_explain_failure(conn->name, line, is_early, &error);
	fail_with_evidence(conn, &error);
}

/* The channel is at its end, and nothing said how the request went. */
static void fail_unanswered(struct node_conn *conn, const struct channel_exit *exit)
{
	AUTO_ERR struct err error = {0};

	if (err_is_set(&conn->write_error))
		err_move(&error, &conn->write_error);
	else
		conn_explain_unanswered(conn->name, exit, conn->phase == PHASE_OPENING, &error);
	fail_with_evidence(conn, &error);
}

/*
 * Silence
 */

static int on_silence(void *ctx, struct err *err UNUSED)
{
	struct node_conn *conn = ctx;
	AUTO_ERR struct err error = {0};
	int64_t due_ms = conn->heard_ms + conn->limit_ms;

	conn->timer = NULL;
	if (conn->phase == PHASE_READY || conn->limit_ms < 0)
		return 0;
	if (clock_ms() < due_ms) {
		conn->timer = loop_add_timer(conn->options.loop, due_ms, on_silence, conn);
		return 0;
	}
	conn_explain_silence(conn->name, conn->limit_ms, conn->phase == PHASE_OPENING, &error);
	fail_with_evidence(conn, &error);
	return 0;
}

static void watch_silence(struct node_conn *conn, int64_t limit_ms)
{
	loop_remove_timer(conn->options.loop, TAKE(conn->timer));
	conn->limit_ms = limit_ms;
	conn->heard_ms = clock_ms();
	if (limit_ms >= 0)
		conn->timer = loop_add_timer(
			conn->options.loop, conn->heard_ms + limit_ms, on_silence, conn);
}

/* A node that is slow as a whole is slow to log in as well. */
static int64_t first_ms(const struct node_conn *conn)
{
	int64_t ms = FIRST_MS + FIRST_PER_LOGIN * (clock_ms() - conn->info.opened_ms);

	return ms < conn->options.response_ms ? ms : conn->options.response_ms;
}

/*
 * Writing
 */

static void write_failed(struct node_conn *conn, struct err *error)
{
	/* Defer the error: output that came before may say why. */
	err_move(&conn->write_error, error);
	conn->has_payload = conn->wants_eof = false;
	conn->waiting_at = conn->waiting.len;
	conn->is_shut = true;
}

/* 1: some were written; 0: not now. */
static int write_waiting(struct node_conn *conn)
{
	AUTO_ERR struct err error = {0};
	const char *data = conn->waiting.data + conn->waiting_at;
	size_t len = conn->waiting.len - conn->waiting_at;
	ssize_t n = conn->channel->ops->write(conn->channel, data, len, &error);

	if (n == CHANNEL_AGAIN)
		return 0;
	if (n < 0) {
		write_failed(conn, &error);
		return 1;
	}
	conn->waiting_at += (size_t)n;
	conn->info.sent += (uint64_t)n;
	conn->heard_ms = clock_ms();
	return 1;
}

/* 1: there is more, or the end; 0: not now. */
static int conn_take_payload(struct node_conn *conn)
{
	AUTO_ERR struct err error = {0};

	conn->waiting_at = 0;
	buf_reset(&conn->waiting);
	ssize_t n = conn->request.payload(conn->events.ctx,
		buf_reserve(&conn->waiting, NODE_WIRE_PIECE), NODE_WIRE_PIECE, &error);

	if (n == CHANNEL_AGAIN)
		return 0;
	if (n < 0)
		node_conn_fail(conn, &error);
	else if (n == 0)
		conn->has_payload = false;
	else
		buf_added(&conn->waiting, (size_t)n);
	return 1;
}

static int write_some(struct node_conn *conn)
{
	AUTO_ERR struct err error = {0};

	if (conn->is_shut)
		return 0;
	if (conn->waiting_at < conn->waiting.len)
		return write_waiting(conn);
	if (conn->has_payload)
		return conn_take_payload(conn);
	if (!conn->wants_eof)
		return 0;
	conn->is_shut = true;
	conn->wants_eof = false;
	if (conn->channel->ops->send_eof(conn->channel, &error) < 0)
		write_failed(conn, &error);
	return 1;
}

static void conn_send(struct node_conn *conn, const char *data, size_t len, bool ends)
{
	conn->waiting_at = 0;
	buf_reset(&conn->waiting);
	buf_add(&conn->waiting, data, len);
	conn->wants_eof = ends;
}

void node_conn_request(struct node_conn *conn, const struct node_request *request)
{
	BUG_ON(conn->phase != PHASE_READY && conn->phase != PHASE_OVER);
	if (conn->phase == PHASE_OVER)
		return;
	conn->phase = PHASE_REQUESTED;
	conn->request = *request;
	/* Only the verb: what follows may be secret. */
	trace_note(TRACE_SSH, "%s: runner: %.*s", conn->name, (int)strcspn(request->text, " \n"),
		request->text);
	conn_send(conn, request->text, strlen(request->text), !request->keeps_stdin);
	buf_adds(&conn->waiting, ".\n");
	conn->request.text = NULL;
	conn->has_payload = request->payload != NULL;
	conn->info.requested_ms = clock_ms();
	watch_silence(
		conn, request->response_ms ? request->response_ms : conn->options.response_ms);
	/* Commands with bytes of their own begin with "go", other raw answers at once. */
	conn->flows[CHANNEL_OUT].is_raw = request->kind == NODE_RAW;
	node_conn_wake(conn);
}

/*
 * Reading raw responses
 */

static int give_raw(struct node_conn *conn, enum channel_flow which)
{
	AUTO_ERR struct err error = {0};
	struct flow *flow = &conn->flows[which];

	if (flow->hold_at == flow->hold_len)
		return 0;
	ssize_t n = conn->events.raw(conn->events.ctx, which, flow->hold + flow->hold_at,
		flow->hold_len - flow->hold_at, &error);

	if (n < 0)
		node_conn_fail(conn, &error);
	else
		flow->hold_at += (size_t)n;
	return n != 0;
}

static void notify_end(struct node_conn *conn, enum channel_flow which)
{
	AUTO_ERR struct err error = {0};
	struct flow *flow = &conn->flows[which];

	if (!flow->is_raw || !flow->has_ended || flow->has_notified_end ||
		flow->hold_at < flow->hold_len)
		return;
	flow->has_notified_end = true;
	if (conn->events.raw(conn->events.ctx, which, "", 0, &error) < 0)
		node_conn_fail(conn, &error);
}

static void conn_hold(struct flow *flow, const char *data, size_t len)
{
	if (!flow->hold)
		flow->hold = mem_alloc(HOLD_SIZE, 1);
	memcpy(flow->hold, data, len);
	flow->hold_at = 0;
	flow->hold_len = len;
}

/*
 * Reading lines
 */

static void unexpected(struct node_conn *conn, const char *line)
{
	AUTO_FREE char *shown = str_shown(line);
	AUTO_ERR struct err error = {0};

	err_set(&error, E_NODE_PROTOCOL, "%s sent an unexpected message: %s", conn->name, shown);
	node_conn_fail(conn, &error);
}

static void open_channel(struct node_conn *conn);

static void end_stored(struct node_conn *conn, char *line UNUSED)
{
	conn->phase = PHASE_STORED;
}

/* Not before the server has ended the first one: some count it until then, or fail. */
static void conn_begin_anew(struct node_conn *conn)
{
	drop_channel(conn);
	loop_remove_timer(conn->options.loop, TAKE(conn->timer));
	open_channel(conn);
}

static void send_runner(struct node_conn *conn, char *line)
{
	if (++conn->n_sends >= SENDS_MAX) {
		unexpected(conn, line);
		return;
	}
	conn->phase = PHASE_SENDING;
	watch_silence(conn, conn->options.response_ms);
	conn_send(conn, node_runner, node_runner_size, true);
}

static void begin_facts(struct node_conn *conn, char *version)
{
	AUTO_ERR struct err error = {0};

	if (str_eq(version, "1")) {
		conn->phase = PHASE_FACTS;
		watch_silence(conn, conn->options.response_ms);
		return;
	}
	err_set(&error, E_NODE_PROTOCOL, "the runner on %s speaks another version", conn->name);
	node_conn_fail(conn, &error);
}

static void become_raw(struct node_conn *conn, char *line)
{
	if (conn->request.kind != NODE_EXEC) {
		unexpected(conn, line);
		return;
	}
	conn->has_gone = true;
	conn->flows[CHANNEL_OUT].is_raw = conn->flows[CHANNEL_ERR].is_raw = true;
	watch_silence(conn, -1);
}

static void take_fact(struct node_conn *conn, char *line)
{
	AUTO_ERR struct err error = {0};
	int r;

	if (!str_eq(line, ".")) {
		r = node_handshake_add(&conn->handshake, line, &error);
	} else {
		r = node_handshake_check(&conn->handshake, &error);
		if (r == 0) {
			conn->phase = PHASE_READY;
			int64_t now_ms = clock_wall_ms();
			conn->info.since_ms = clock_ms();
			node_handshake_compare(&conn->handshake,
				now_ms - (conn->info.since_ms - conn->info.opened_ms), now_ms);
			r = conn->events.handshake(conn->events.ctx, &error);
		}
	}
	if (r < 0) {
		err_prefix(&error, "%s", conn->name);
		node_conn_fail(conn, &error);
	}
}

static void conn_take_response(struct node_conn *conn, enum channel_flow which, char *line)
{
	AUTO_ERR struct err error = {0};
	int r = conn->events.line(conn->events.ctx, which, line, &error);

	if (r < 0)
		node_conn_fail(conn, &error);
	else if (r == 0 && which == CHANNEL_ERR)
		node_wire_keep(&conn->flows[CHANNEL_ERR].wire, line);
}

static void take_response_out(struct node_conn *conn, char *line)
{
	conn_take_response(conn, CHANNEL_OUT, line);
}

static void conn_on_done(struct node_conn *conn, char *line UNUSED)
{
	conn_end(conn);
}

static const struct {
	enum node_says what;
	enum phase phase;
	void (*take)(struct node_conn *conn, char *line);
} turns[] = {
	{NODE_SAYS_SEND, PHASE_OPENING, send_runner},
	{NODE_SAYS_STORED, PHASE_SENDING, end_stored},
	{NODE_SAYS_HELLO, PHASE_OPENING, begin_facts},
	{NODE_SAYS_LINE, PHASE_FACTS, take_fact},
	{NODE_SAYS_LINE, PHASE_REQUESTED, take_response_out},
	{NODE_SAYS_GO, PHASE_REQUESTED, become_raw},
	{NODE_SAYS_DONE, PHASE_REQUESTED, conn_on_done},
};

static void on_out(struct node_conn *conn, const struct node_said *said)
{
	if (said->what == NODE_SAYS_FAIL) {
		fail_class(conn, said->line);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(turns); i++) {
		if (said->what != turns[i].what || conn->phase != turns[i].phase)
			continue;
		turns[i].take(conn, said->line);
		return;
	}
	if (said->what != NODE_SAYS_LINE)
		unexpected(conn, said->line);
}

static void on_err(struct node_conn *conn, const struct node_said *said)
{
	if (said->what == NODE_SAYS_FAIL)
		fail_class(conn, said->line);
	else if (said->what == NODE_SAYS_DONE && conn->request.kind == NODE_RAW)
		conn->is_answered = true;
	else if (said->what != NODE_SAYS_LINE)
		return;
	else if (conn->phase == PHASE_REQUESTED && conn->request.kind == NODE_RAW)
		conn_take_response(conn, CHANNEL_ERR, said->line);
	else
		node_wire_keep(&conn->flows[CHANNEL_ERR].wire, said->line);
}

/* tmux throws away what its terminal has not shown yet (tcflush(3) with TCOFLUSH), as may be the
 * line that says "go". What it shows begins with an escape sequence, as no line of a node does. */
static bool begins_terminal(const struct node_conn *conn)
{
	return conn->request.kind == NODE_EXEC && conn->term && conn->phase == PHASE_REQUESTED &&
	       node_wire_peek(&conn->flows[CHANNEL_OUT].wire) == '\033';
}

/* false: the channel is another one now, or none. */
static bool take_lines(struct node_conn *conn, enum channel_flow which)
{
	AUTO_ERR struct err error = {0};
	struct flow *flow = &conn->flows[which];
	const struct channel *channel = conn->channel;
	struct node_said said;
	int r = 0;

	for (;;) {
		if (which == CHANNEL_OUT && begins_terminal(conn))
			become_raw(conn, NULL);
		if (flow->is_raw || (r = node_wire_next(&flow->wire, &said, &error)) <= 0)
			break;
		if (which == CHANNEL_OUT)
			on_out(conn, &said);
		else
			on_err(conn, &said);
		if (conn->channel != channel)
			return false;
	}
	if (r < 0) {
		err_prefix(&error, "%s", conn->name);
		fail_with_evidence(conn, &error);
	}
	return r >= 0;
}

static void conn_take_bytes(
	struct node_conn *conn, enum channel_flow which, const char *data, size_t len)
{
	struct flow *flow = &conn->flows[which];
	const char *rest;

	conn->heard_ms = clock_ms();
	if (conn->info.requested_ms && conn->info.rtt_ms < 0 && !conn->request.payload)
		conn->info.rtt_ms = conn->heard_ms - conn->info.requested_ms;
	if (flow->is_raw) {
		conn_hold(flow, data, len);
		return;
	}
	node_wire_add(&flow->wire, data, len);
	if (!take_lines(conn, which) || !flow->is_raw)
		return;
	len = node_wire_rest(&flow->wire, &rest);
	conn_hold(flow, rest, len);
}

/*
 * The channel
 */

/* stderr of a command must not be taken for the node's before "go" tells them apart. */
static bool must_wait(const struct node_conn *conn, enum channel_flow which)
{
	const struct flow *out = &conn->flows[CHANNEL_OUT];

	return which == CHANNEL_ERR && conn->request.kind == NODE_EXEC &&
	       conn->phase == PHASE_REQUESTED && !conn->has_gone && !out->has_ended;
}

/* 1: something came; 0: not now. */
static int conn_read_some(struct node_conn *conn, enum channel_flow which)
{
	AUTO_ERR struct err error = {0};
	struct flow *flow = &conn->flows[which];

	if (flow->is_raw && flow->hold_at < flow->hold_len)
		return give_raw(conn, which);
	if (flow->has_ended || must_wait(conn, which))
		return 0;
	ssize_t n = conn->channel->ops->read(
		conn->channel, which, conn->scratch, NODE_WIRE_PIECE, &error);

	if (n == CHANNEL_AGAIN)
		return 0;
	if (n < 0) {
		fail_with_evidence(conn, &error);
	} else if (n == 0) {
		flow->has_ended = true;
		notify_end(conn, which);
	} else {
		conn_take_bytes(conn, which, conn->scratch, (size_t)n);
		if (conn->phase != PHASE_OVER && flow->is_raw)
			give_raw(conn, which);
	}
	return 1;
}

static bool is_drained(const struct node_conn *conn, enum channel_flow which)
{
	const struct flow *flow = &conn->flows[which];

	return flow->has_ended && flow->hold_at == flow->hold_len;
}

/* Bytes of which the lines, that are all there, do not tell. */
static bool has_unwanted(const struct node_conn *conn)
{
	const struct flow *out = &conn->flows[CHANNEL_OUT];

	return conn->request.kind == NODE_RAW && out->has_ended &&
	       conn->flows[CHANNEL_ERR].has_ended && out->hold_at < out->hold_len;
}

static void node_conn_check_end(struct node_conn *conn)
{
	AUTO_ERR struct err error = {0};
	struct channel_exit exit = {0};

	notify_end(conn, CHANNEL_OUT);
	notify_end(conn, CHANNEL_ERR);
	if (conn->phase != PHASE_OVER && has_unwanted(conn))
		unexpected(conn, "bytes that belong to nothing");
	if (conn->phase == PHASE_OVER || !is_drained(conn, CHANNEL_OUT))
		return;
	if (conn->is_answered) {
		conn_end(conn);
		return;
	}
	if (!is_drained(conn, CHANNEL_ERR))
		return;
	int r = conn->channel->ops->wait(conn->channel, &exit, &error);
	if (r == 0)
		return;
	if (conn->phase == PHASE_STORED) {
		conn_begin_anew(conn);
		return;
	}
	conn->info.exit = exit;
	if (r < 0)
		fail_with_evidence(conn, &error);
	else if (conn->has_gone && exit.known)
		conn_end(conn);
	else
		fail_unanswered(conn, &exit);
}

static void node_conn_move(struct node_conn *conn)
{
	for (int i = 0; i < TURNS_MAX; i++) {
		int moved = 0;

		/* Lines of stderr tell of bytes on stdout. */
		moved |= conn_read_some(conn, CHANNEL_ERR);
		if (conn->phase != PHASE_OVER)
			moved |= conn_read_some(conn, CHANNEL_OUT);
		if (conn->phase != PHASE_OVER)
			moved |= write_some(conn);
		if (conn->phase != PHASE_OVER)
			node_conn_check_end(conn);
		if (conn->phase == PHASE_OVER || !moved)
			return;
	}
	node_conn_wake(conn);
}

static int conn_on_ready(void *ctx, struct err *err UNUSED)
{
	struct node_conn *conn = ctx;

	if (conn->phase == PHASE_OVER)
		return 0;
	if (conn->phase == PHASE_OPENING && !conn->timer)
		watch_silence(conn, first_ms(conn));
	node_conn_move(conn);
	return 0;
}

static int conn_on_turn(void *ctx, struct err *err)
{
	struct node_conn *conn = ctx;
	AUTO_ERR struct err error = {0};

	conn->turn = NULL;
	if (conn->phase != PHASE_OVER) {
		node_conn_move(conn);
		return 0;
	}
	err_move(&error, &conn->error);
	return conn->events.ended(conn->events.ctx, &error, err);
}

static void open_channel(struct node_conn *conn)
{
	const struct channel_opener *opener = &conn->options.opener;
	const struct channel_events events = {.ready = conn_on_ready, .ctx = conn};
	/* As node_command puts it. */
	const char *mark = conn->command + strlen(conn->command) - NODE_MARK_LEN;

	for (size_t i = 0; i < ARRAY_LEN(conn->flows); i++) {
		node_wire_done(&conn->flows[i].wire);
		node_wire_init(&conn->flows[i].wire, mark, i == CHANNEL_ERR);
		conn->flows[i].has_ended = false;
	}
	conn->phase = PHASE_OPENING;
	conn->info.opened_ms = clock_ms();
	conn->is_shut = conn->wants_eof = false;
	conn->channel = opener->command(opener->ctx, conn->command, conn->options.pty, &events);
}

struct node_conn *node_conn_open(
	const struct node_conn_options *options, const struct node_conn_events *events)
{
	struct node_conn *conn = mem_alloc(1, sizeof(*conn));

	conn->options = *options;
	conn->events = *events;
	conn->name = mem_strdup(options->name);
	conn->command = mem_strdup(options->command);
	if (options->pty) {
		conn->term = mem_strdup(options->pty->term);
		conn->pty = *options->pty;
		conn->pty.term = conn->term;
		conn->options.pty = &conn->pty;
	}
	conn->info.rtt_ms = -1;
	conn->scratch = mem_alloc(NODE_WIRE_PIECE, 1);
	/* A request and its ".", the runner, or a piece of a payload. */
	buf_init(&conn->waiting, SIZE_MAX / 2);
	open_channel(conn);
	return conn;
}

void node_conn_free(struct node_conn *conn)
{
	if (!conn)
		return;
	drop_channel(conn);
	loop_remove_timer(conn->options.loop, conn->timer);
	loop_remove_timer(conn->options.loop, conn->turn);
	for (size_t i = 0; i < ARRAY_LEN(conn->flows); i++) {
		node_wire_done(&conn->flows[i].wire);
		free(conn->flows[i].hold);
	}
	node_handshake_done(&conn->handshake);
	buf_done(&conn->waiting);
	err_clear(&conn->write_error);
	err_clear(&conn->error);
	free(conn->scratch);
	free(conn->name);
	free(conn->command);
	free(conn->term);
	free(conn);
}

void node_conn_hand(struct node_conn *conn, const struct node_conn_events *events)
{
	conn->events = *events;
}

const struct node_handshake *node_conn_handshake(const struct node_conn *conn)
{
	return conn->info.since_ms ? &conn->handshake : NULL;
}

void node_conn_resize(struct node_conn *conn, unsigned columns, unsigned rows)
{
	conn->pty.columns = columns;
	conn->pty.rows = rows;
	if (conn->channel && conn->channel->ops->resize)
		conn->channel->ops->resize(conn->channel, columns, rows);
}

const struct node_conn_info *node_conn_info(const struct node_conn *conn)
{
	return &conn->info;
}
