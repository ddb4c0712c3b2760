/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

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

/* The mark of a command of node_command's. */
static const char *node_command_mark(const char *command)
{
	return command + strlen(command) - NODE_MARK_LEN;
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
static void talk_take_text(char *text, struct buf *out)
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
static enum node_class node_print_failure(
	const char *name, char *line, bool is_early, struct err *ret)
{
	AUTO_BUF struct buf text;
	size_t len = strcspn(line, " ");
	enum err_id id = is_early ? E_NODE_ROOT : E_NODE_FAILED;
	enum node_class class = NODE_CLASS_OTHER;

	buf_init(&text, 8 * (size_t)TEXT_MAX);
	talk_take_text(line + len + (line[len] == ' '), &text);
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

/* The channel ended without an answer. is_opening: not even the mark came. */
static void node_print_unanswered(
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
static void node_print_silent(const char *name, int64_t limit_ms, bool is_opening, struct err *ret)
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

static void node_print_unexpected(const char *name, const char *line, struct err *ret)
{
	AUTO_FREE char *shown = str_shown(line);

	err_set(ret, E_NODE_PROTOCOL, "%s sent an unexpected message: %s", name, shown);
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
	PHASE_STORED,  /* it is there; the conversation ends */
	PHASE_FACTS,
	PHASE_READY,
	PHASE_REQUESTED,
	PHASE_OVER,
};

struct flow {
	struct node_wire wire;
	bool is_raw, has_ended, notified_end;
	char *hold; /* raw bytes that wait: from hold_at on */
	size_t hold_at, hold_len;
};

struct node_talk {
	struct node_talk_options options;
	struct node_talk_events events;
	struct channel_pty pty;
	char *name, *command, *term;
	struct channel *channel;
	enum phase phase;
	struct flow flows[2]; /* by enum channel_flow */
	struct node_hello hello;
	struct node_request request;
	bool is_answered; /* a raw answer is at its end */
	bool has_gone;    /* behind "go" */
	/* Output: waiting from waiting_at on, then what payload gives. */
	struct buf waiting;
	size_t waiting_at;
	bool has_payload, wants_eof, is_shut;
	struct err write_error;
	int n_sends;
	struct node_talk_info info;
	/* Silence. */
	int64_t heard_ms, limit_ms;
	struct loop_timer *timer, *turn;
	struct err error;
	char *scratch;
};

/*
 * The end
 */

static void drop_channel(struct node_talk *talk)
{
	channel_free(TAKE(talk->channel));
}

static int talk_on_turn(void *ctx, struct err *err);

void node_talk_wake(struct node_talk *talk)
{
	if (!talk->turn)
		talk->turn = loop_add_timer(talk->options.loop, 0, talk_on_turn, talk);
}

/* The owner hears of it in a turn of its own, so that nothing is freed under what called. */
static void talk_end(struct node_talk *talk)
{
	if (talk->phase == PHASE_OVER)
		return;
	talk->phase = PHASE_OVER;
	drop_channel(talk);
	loop_remove_timer(talk->options.loop, TAKE(talk->timer));
	node_talk_wake(talk);
}

static void talk_fail(struct node_talk *talk, struct err *error)
{
	if (talk->phase == PHASE_OVER) {
		err_clear(error);
		return;
	}
	err_move(&talk->error, error);
	talk_end(talk);
}

/* Add the output on stderr, and that of the login shell, until now. */
static void talk_add_evidence(struct node_talk *talk, struct err *error)
{
	struct flow *flow = &talk->flows[CHANNEL_ERR];

	for (int i = 0; i < TURNS_MAX && talk->channel && !flow->has_ended && !flow->is_raw; i++) {
		struct node_said said;
		ssize_t n = talk->channel->ops->read(
			talk->channel, CHANNEL_ERR, talk->scratch, NODE_WIRE_PIECE, NULL);

		if (n <= 0)
			break;
		node_wire_add(&flow->wire, talk->scratch, (size_t)n);
		while (node_wire_next(&flow->wire, &said, NULL) > 0)
			if (said.what == NODE_SAYS_LINE)
				node_wire_keep(&flow->wire, said.line);
	}
	if (!flow->is_raw)
		node_wire_evidence(&flow->wire, error);
	if (talk->phase == PHASE_OPENING)
		node_wire_evidence(&talk->flows[CHANNEL_OUT].wire, error);
}

static void fail_with_evidence(struct node_talk *talk, struct err *error)
{
	talk_add_evidence(talk, error);
	talk_fail(talk, error);
}

static void fail_class(struct node_talk *talk, char *line)
{
	AUTO_ERR struct err error = {0};
	bool is_early = talk->phase < PHASE_READY;

	talk->info.class = node_print_failure(talk->name, line, is_early, &error);
	fail_with_evidence(talk, &error);
}

/* The channel is at its end, and nothing said how the request went. */
static void fail_unanswered(struct node_talk *talk, const struct channel_exit *exit)
{
	AUTO_ERR struct err error = {0};

	if (err_is_set(&talk->write_error))
		err_move(&error, &talk->write_error);
	else
		node_print_unanswered(talk->name, exit, talk->phase == PHASE_OPENING, &error);
	fail_with_evidence(talk, &error);
}

/*
 * Silence
 */

static int on_silence(void *ctx, struct err *err)
{
	struct node_talk *talk = ctx;
	AUTO_ERR struct err error = {0};
	int64_t due_ms = talk->heard_ms + talk->limit_ms;

	(void)err;
	talk->timer = NULL;
	if (talk->phase == PHASE_READY || talk->limit_ms < 0)
		return 0;
	if (clock_ms() < due_ms) {
		talk->timer = loop_add_timer(talk->options.loop, due_ms, on_silence, talk);
		return 0;
	}
	node_print_silent(talk->name, talk->limit_ms, talk->phase == PHASE_OPENING, &error);
	fail_with_evidence(talk, &error);
	return 0;
}

static void watch_silence(struct node_talk *talk, int64_t limit_ms)
{
	loop_remove_timer(talk->options.loop, TAKE(talk->timer));
	talk->limit_ms = limit_ms;
	talk->heard_ms = clock_ms();
	if (limit_ms >= 0)
		talk->timer = loop_add_timer(
			talk->options.loop, talk->heard_ms + limit_ms, on_silence, talk);
}

/* A node that is slow as a whole is slow to log in as well. */
static int64_t first_ms(const struct node_talk *talk)
{
	int64_t ms = FIRST_MS + FIRST_PER_LOGIN * (clock_ms() - talk->info.opened_ms);

	return ms < talk->options.response_ms ? ms : talk->options.response_ms;
}

/*
 * Writing
 */

static void write_failed(struct node_talk *talk, struct err *error)
{
	/* Defer the error: output that came before may say why. */
	err_move(&talk->write_error, error);
	talk->has_payload = talk->wants_eof = false;
	talk->waiting_at = talk->waiting.len;
	talk->is_shut = true;
}

/* 1: some were written; 0: not now. */
static int write_waiting(struct node_talk *talk)
{
	AUTO_ERR struct err error = {0};
	const char *data = talk->waiting.data + talk->waiting_at;
	size_t len = talk->waiting.len - talk->waiting_at;
	ssize_t n = talk->channel->ops->write(talk->channel, data, len, &error);

	if (n == CHANNEL_AGAIN)
		return 0;
	if (n < 0) {
		write_failed(talk, &error);
		return 1;
	}
	talk->waiting_at += (size_t)n;
	talk->info.sent += (uint64_t)n;
	talk->heard_ms = clock_ms();
	return 1;
}

/* 1: there is more, or the end; 0: not now. */
static int talk_take_payload(struct node_talk *talk)
{
	AUTO_ERR struct err error = {0};

	talk->waiting_at = 0;
	buf_reset(&talk->waiting);
	ssize_t n = talk->request.payload(talk->events.ctx,
		buf_capacity(&talk->waiting, NODE_WIRE_PIECE), NODE_WIRE_PIECE, &error);

	if (n == CHANNEL_AGAIN)
		return 0;
	if (n < 0)
		talk_fail(talk, &error);
	else if (n == 0)
		talk->has_payload = false;
	else
		buf_added(&talk->waiting, (size_t)n);
	return 1;
}

static int write_some(struct node_talk *talk)
{
	AUTO_ERR struct err error = {0};

	if (talk->is_shut)
		return 0;
	if (talk->waiting_at < talk->waiting.len)
		return write_waiting(talk);
	if (talk->has_payload)
		return talk_take_payload(talk);
	if (!talk->wants_eof)
		return 0;
	talk->is_shut = true;
	talk->wants_eof = false;
	if (talk->channel->ops->send_eof(talk->channel, &error) < 0)
		write_failed(talk, &error);
	return 1;
}

static void talk_print(struct node_talk *talk, const char *data, size_t len, bool ends)
{
	talk->waiting_at = 0;
	buf_reset(&talk->waiting);
	buf_add(&talk->waiting, data, len);
	talk->wants_eof = ends;
}

void node_talk_query(struct node_talk *talk, const struct node_request *request)
{
	BUG_ON(talk->phase != PHASE_READY && talk->phase != PHASE_OVER);
	if (talk->phase == PHASE_OVER)
		return;
	talk->phase = PHASE_REQUESTED;
	talk->request = *request;
	/* Only the verb: what follows may be secret. */
	trace_note(TRACE_SSH, "%s: runner: %.*s", talk->name, (int)strcspn(request->text, " \n"),
		request->text);
	talk_print(talk, request->text, strlen(request->text), !request->keeps_stdin);
	buf_adds(&talk->waiting, ".\n");
	talk->request.text = NULL;
	talk->has_payload = request->payload != NULL;
	talk->info.requested_ms = clock_ms();
	watch_silence(
		talk, request->response_ms ? request->response_ms : talk->options.response_ms);
	/* Commands with bytes of their own begin with "go", other raw answers at once. */
	talk->flows[CHANNEL_OUT].is_raw = request->kind == NODE_RAW;
	node_talk_wake(talk);
}

/*
 * Reading raw responses
 */

static int give_raw(struct node_talk *talk, enum channel_flow which)
{
	AUTO_ERR struct err error = {0};
	struct flow *flow = &talk->flows[which];

	if (flow->hold_at == flow->hold_len)
		return 0;
	ssize_t n = talk->events.raw(talk->events.ctx, which, flow->hold + flow->hold_at,
		flow->hold_len - flow->hold_at, &error);

	if (n < 0)
		talk_fail(talk, &error);
	else
		flow->hold_at += (size_t)n;
	return n != 0;
}

static void notify_end(struct node_talk *talk, enum channel_flow which)
{
	AUTO_ERR struct err error = {0};
	struct flow *flow = &talk->flows[which];

	if (!flow->is_raw || !flow->has_ended || flow->notified_end ||
		flow->hold_at < flow->hold_len)
		return;
	flow->notified_end = true;
	if (talk->events.raw(talk->events.ctx, which, "", 0, &error) < 0)
		talk_fail(talk, &error);
}

static void talk_hold(struct flow *flow, const char *data, size_t len)
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

static void unexpected(struct node_talk *talk, const char *line)
{
	AUTO_ERR struct err error = {0};

	node_print_unexpected(talk->name, line, &error);
	talk_fail(talk, &error);
}

static void open_channel(struct node_talk *talk);

static void end_stored(struct node_talk *talk, char *line)
{
	(void)line;
	talk->phase = PHASE_STORED;
}

/* Not before the server has ended the first one: some count it until then, or fail. */
static void talk_begin_anew(struct node_talk *talk)
{
	drop_channel(talk);
	loop_remove_timer(talk->options.loop, TAKE(talk->timer));
	open_channel(talk);
}

static void send_runner(struct node_talk *talk, char *line)
{
	if (++talk->n_sends >= SENDS_MAX) {
		unexpected(talk, line);
		return;
	}
	talk->phase = PHASE_SENDING;
	watch_silence(talk, talk->options.response_ms);
	talk_print(talk, node_runner, node_runner_size, true);
}

static void begin_facts(struct node_talk *talk, char *version)
{
	AUTO_ERR struct err error = {0};

	if (str_eq(version, "1")) {
		talk->phase = PHASE_FACTS;
		watch_silence(talk, talk->options.response_ms);
		return;
	}
	err_set(&error, E_NODE_PROTOCOL, "the runner on %s speaks another version", talk->name);
	talk_fail(talk, &error);
}

static void become_raw(struct node_talk *talk, char *line)
{
	if (talk->request.kind != NODE_EXEC) {
		unexpected(talk, line);
		return;
	}
	talk->has_gone = true;
	talk->flows[CHANNEL_OUT].is_raw = talk->flows[CHANNEL_ERR].is_raw = true;
	watch_silence(talk, -1);
}

static void take_fact(struct node_talk *talk, char *line)
{
	AUTO_ERR struct err error = {0};
	int r;

	if (!str_eq(line, ".")) {
		r = node_hello_add(&talk->hello, line, &error);
	} else {
		r = node_hello_check(&talk->hello, &error);
		if (r == 0) {
			talk->phase = PHASE_READY;
			int64_t now_ms = clock_wall_ms();
			talk->info.since_ms = clock_ms();
			node_hello_compare(&talk->hello,
				now_ms - (talk->info.since_ms - talk->info.opened_ms), now_ms);
			r = talk->events.hello(talk->events.ctx, &error);
		}
	}
	if (r < 0) {
		err_prefix(&error, "%s", talk->name);
		talk_fail(talk, &error);
	}
}

static void talk_take_response(struct node_talk *talk, enum channel_flow which, char *line)
{
	AUTO_ERR struct err error = {0};
	int r = talk->events.line(talk->events.ctx, which, line, &error);

	if (r < 0)
		talk_fail(talk, &error);
	else if (r == 0 && which == CHANNEL_ERR)
		node_wire_keep(&talk->flows[CHANNEL_ERR].wire, line);
}

static void take_response_out(struct node_talk *talk, char *line)
{
	talk_take_response(talk, CHANNEL_OUT, line);
}

static void talk_on_done(struct node_talk *talk, char *line)
{
	(void)line;
	talk_end(talk);
}

static const struct {
	enum node_says what;
	enum phase phase;
	void (*take)(struct node_talk *talk, char *line);
} turns[] = {
	{NODE_SAYS_SEND, PHASE_OPENING, send_runner},
	{NODE_SAYS_STORED, PHASE_SENDING, end_stored},
	{NODE_SAYS_HELLO, PHASE_OPENING, begin_facts},
	{NODE_SAYS_LINE, PHASE_FACTS, take_fact},
	{NODE_SAYS_LINE, PHASE_REQUESTED, take_response_out},
	{NODE_SAYS_GO, PHASE_REQUESTED, become_raw},
	{NODE_SAYS_DONE, PHASE_REQUESTED, talk_on_done},
};

static void on_out(struct node_talk *talk, const struct node_said *said)
{
	if (said->what == NODE_SAYS_FAIL) {
		fail_class(talk, said->line);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(turns); i++) {
		if (said->what != turns[i].what || talk->phase != turns[i].phase)
			continue;
		turns[i].take(talk, said->line);
		return;
	}
	if (said->what != NODE_SAYS_LINE)
		unexpected(talk, said->line);
}

static void on_err(struct node_talk *talk, const struct node_said *said)
{
	if (said->what == NODE_SAYS_FAIL)
		fail_class(talk, said->line);
	else if (said->what == NODE_SAYS_DONE && talk->request.kind == NODE_RAW)
		talk->is_answered = true;
	else if (said->what != NODE_SAYS_LINE)
		return;
	else if (talk->phase == PHASE_REQUESTED && talk->request.kind == NODE_RAW)
		talk_take_response(talk, CHANNEL_ERR, said->line);
	else
		node_wire_keep(&talk->flows[CHANNEL_ERR].wire, said->line);
}

/* tmux throws away what its terminal has not shown yet (tcflush(3) with TCOFLUSH), as may be the
 * line that says "go". What it shows begins with an escape sequence, as no line of a node does. */
static bool begins_terminal(const struct node_talk *talk)
{
	return talk->request.kind == NODE_EXEC && talk->term && talk->phase == PHASE_REQUESTED &&
	       node_wire_peek(&talk->flows[CHANNEL_OUT].wire) == '\033';
}

/* false: the channel is another one now, or none. */
static bool take_lines(struct node_talk *talk, enum channel_flow which)
{
	AUTO_ERR struct err error = {0};
	struct flow *flow = &talk->flows[which];
	const struct channel *channel = talk->channel;
	struct node_said said;
	int r = 0;

	for (;;) {
		if (which == CHANNEL_OUT && begins_terminal(talk))
			become_raw(talk, NULL);
		if (flow->is_raw || (r = node_wire_next(&flow->wire, &said, &error)) <= 0)
			break;
		if (which == CHANNEL_OUT)
			on_out(talk, &said);
		else
			on_err(talk, &said);
		if (talk->channel != channel)
			return false;
	}
	if (r < 0) {
		err_prefix(&error, "%s", talk->name);
		fail_with_evidence(talk, &error);
	}
	return r >= 0;
}

static void talk_take_bytes(
	struct node_talk *talk, enum channel_flow which, const char *data, size_t len)
{
	struct flow *flow = &talk->flows[which];
	const char *rest;

	talk->heard_ms = clock_ms();
	if (talk->info.requested_ms && talk->info.rtt_ms < 0 && !talk->request.payload)
		talk->info.rtt_ms = talk->heard_ms - talk->info.requested_ms;
	if (flow->is_raw) {
		talk_hold(flow, data, len);
		return;
	}
	node_wire_add(&flow->wire, data, len);
	if (!take_lines(talk, which) || !flow->is_raw)
		return;
	len = node_wire_rest(&flow->wire, &rest);
	talk_hold(flow, rest, len);
}

/*
 * The channel
 */

/* stderr of a command must not be taken for the node's before "go" tells them apart. */
static bool must_wait(const struct node_talk *talk, enum channel_flow which)
{
	const struct flow *out = &talk->flows[CHANNEL_OUT];

	return which == CHANNEL_ERR && talk->request.kind == NODE_EXEC &&
	       talk->phase == PHASE_REQUESTED && !talk->has_gone && !out->has_ended;
}

/* 1: something came; 0: not now. */
static int talk_read_some(struct node_talk *talk, enum channel_flow which)
{
	AUTO_ERR struct err error = {0};
	struct flow *flow = &talk->flows[which];

	if (flow->is_raw && flow->hold_at < flow->hold_len)
		return give_raw(talk, which);
	if (flow->has_ended || must_wait(talk, which))
		return 0;
	ssize_t n = talk->channel->ops->read(
		talk->channel, which, talk->scratch, NODE_WIRE_PIECE, &error);

	if (n == CHANNEL_AGAIN)
		return 0;
	if (n < 0) {
		fail_with_evidence(talk, &error);
	} else if (n == 0) {
		flow->has_ended = true;
		notify_end(talk, which);
	} else {
		talk_take_bytes(talk, which, talk->scratch, (size_t)n);
		if (talk->phase != PHASE_OVER && flow->is_raw)
			give_raw(talk, which);
	}
	return 1;
}

static bool is_drained(const struct node_talk *talk, enum channel_flow which)
{
	const struct flow *flow = &talk->flows[which];

	return flow->has_ended && flow->hold_at == flow->hold_len;
}

/* Bytes of which the lines, that are all there, do not tell. */
static bool has_unwanted(const struct node_talk *talk)
{
	const struct flow *out = &talk->flows[CHANNEL_OUT];

	return talk->request.kind == NODE_RAW && out->has_ended &&
	       talk->flows[CHANNEL_ERR].has_ended && out->hold_at < out->hold_len;
}

static void talk_poll_for_end(struct node_talk *talk)
{
	AUTO_ERR struct err error = {0};
	struct channel_exit exit = {0};

	notify_end(talk, CHANNEL_OUT);
	notify_end(talk, CHANNEL_ERR);
	if (talk->phase != PHASE_OVER && has_unwanted(talk))
		unexpected(talk, "bytes that belong to nothing");
	if (talk->phase == PHASE_OVER || !is_drained(talk, CHANNEL_OUT))
		return;
	if (talk->is_answered) {
		talk_end(talk);
		return;
	}
	if (!is_drained(talk, CHANNEL_ERR))
		return;
	int r = talk->channel->ops->wait(talk->channel, &exit, &error);
	if (r == 0)
		return;
	if (talk->phase == PHASE_STORED) {
		talk_begin_anew(talk);
		return;
	}
	talk->info.exit = exit;
	if (r < 0)
		fail_with_evidence(talk, &error);
	else if (talk->has_gone && exit.known)
		talk_end(talk);
	else
		fail_unanswered(talk, &exit);
}

static void talk_move(struct node_talk *talk)
{
	for (int i = 0; i < TURNS_MAX; i++) {
		int moved = 0;

		/* Lines of stderr tell of bytes on stdout. */
		moved |= talk_read_some(talk, CHANNEL_ERR);
		if (talk->phase != PHASE_OVER)
			moved |= talk_read_some(talk, CHANNEL_OUT);
		if (talk->phase != PHASE_OVER)
			moved |= write_some(talk);
		if (talk->phase != PHASE_OVER)
			talk_poll_for_end(talk);
		if (talk->phase == PHASE_OVER || !moved)
			return;
	}
	node_talk_wake(talk);
}

static int talk_on_ready(void *ctx, struct err *err)
{
	struct node_talk *talk = ctx;

	(void)err;
	if (talk->phase == PHASE_OVER)
		return 0;
	if (talk->phase == PHASE_OPENING && !talk->timer)
		watch_silence(talk, first_ms(talk));
	talk_move(talk);
	return 0;
}

static int talk_on_turn(void *ctx, struct err *err)
{
	struct node_talk *talk = ctx;
	AUTO_ERR struct err error = {0};

	talk->turn = NULL;
	if (talk->phase != PHASE_OVER) {
		talk_move(talk);
		return 0;
	}
	err_move(&error, &talk->error);
	return talk->events.ended(talk->events.ctx, &error, err);
}

static void open_channel(struct node_talk *talk)
{
	const struct channel_opener *opener = &talk->options.opener;
	const struct channel_events events = {.ready = talk_on_ready, .ctx = talk};
	const char *mark = node_command_mark(talk->command);

	for (size_t i = 0; i < ARRAY_LEN(talk->flows); i++) {
		node_wire_done(&talk->flows[i].wire);
		node_wire_init(&talk->flows[i].wire, mark, i == CHANNEL_ERR);
		talk->flows[i].has_ended = false;
	}
	talk->phase = PHASE_OPENING;
	talk->info.opened_ms = clock_ms();
	talk->is_shut = talk->wants_eof = false;
	talk->channel = opener->command(opener->ctx, talk->command, talk->options.pty, &events);
}

struct node_talk *node_talk_open(
	const struct node_talk_options *options, const struct node_talk_events *events)
{
	struct node_talk *talk = mem_alloc(1, sizeof(*talk));

	talk->options = *options;
	talk->events = *events;
	talk->name = mem_strdup(options->name);
	talk->command = mem_strdup(options->command);
	if (options->pty) {
		talk->term = mem_strdup(options->pty->term);
		talk->pty = *options->pty;
		talk->pty.term = talk->term;
		talk->options.pty = &talk->pty;
	}
	talk->info.rtt_ms = -1;
	talk->scratch = mem_alloc(NODE_WIRE_PIECE, 1);
	/* A request and its ".", the runner, or a piece of a payload. */
	buf_init(&talk->waiting, SIZE_MAX / 2);
	open_channel(talk);
	return talk;
}

void node_talk_free(struct node_talk *talk)
{
	if (!talk)
		return;
	drop_channel(talk);
	loop_remove_timer(talk->options.loop, talk->timer);
	loop_remove_timer(talk->options.loop, talk->turn);
	for (size_t i = 0; i < ARRAY_LEN(talk->flows); i++) {
		node_wire_done(&talk->flows[i].wire);
		free(talk->flows[i].hold);
	}
	node_hello_done(&talk->hello);
	buf_done(&talk->waiting);
	err_clear(&talk->write_error);
	err_clear(&talk->error);
	free(talk->scratch);
	free(talk->name);
	free(talk->command);
	free(talk->term);
	free(talk);
}

void node_talk_hand(struct node_talk *talk, const struct node_talk_events *events)
{
	talk->events = *events;
}

const struct node_hello *node_talk_hello(const struct node_talk *talk)
{
	return talk->info.since_ms ? &talk->hello : NULL;
}

void node_talk_resize(struct node_talk *talk, unsigned columns, unsigned rows)
{
	talk->pty.columns = columns;
	talk->pty.rows = rows;
	if (talk->channel && talk->channel->ops->resize)
		talk->channel->ops->resize(talk->channel, columns, rows);
}

const struct node_talk_info *node_talk_info(const struct node_talk *talk)
{
	return &talk->info;
}
