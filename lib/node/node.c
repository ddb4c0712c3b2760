/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "node/node_impl.h"
#include "node/wire.h"

static void node_handshake_failed(struct node *node, const struct err *error);
/* A connection of any call has said hello, or has failed to. */
static void node_learn(struct node *node, const struct node_conn *conn);
static struct node_conn *node_open_conn(
	struct node *node, const struct channel_pty *pty, const struct node_conn_events *events);
enum {
	RESPONSE_MS = 30 * 1000,
	IDLE_MS = 60 * 1000, /* what a connection may wait before it is used */
	CUTS_MAX = 3,
	CUT_MS = 10 * 1000, /* what took longer was no cut but silence */
	AGAIN_MS = 300,
};

/*
 * The connection ahead
 */

static void drop_idle(struct node *node)
{
	loop_remove_timer(node->options.loop, TAKE(node->idle_timer));
	node_conn_free(TAKE(node->idle));
}

/* Servers count the sessions of a connection. */
static int on_idle_too_long(void *ctx, struct err *err UNUSED)
{
	struct node *node = ctx;

	node->idle_timer = NULL;
	drop_idle(node);
	return 0;
}

static int on_idle_handshake(void *ctx, struct err *err UNUSED)
{
	struct node *node = ctx;

	node_learn(node, node->idle);
	loop_remove_timer(node->options.loop, node->idle_timer);
	node->idle_timer =
		loop_add_timer(node->options.loop, clock_ms() + IDLE_MS, on_idle_too_long, node);
	return 0;
}

/* Whether a connection that failed before there was a hello is worth another one: it was cut, and
 * that is no habit. */
static bool node_begins_again(
	struct node *node, const struct node_conn *conn, const struct err *error)
{
	if (error->id != E_SSH_LOST && error->id != E_NODE_LOST)
		return false;
	return clock_ms() - node_conn_info(conn)->opened_ms < CUT_MS && node->n_cuts++ < CUTS_MAX;
}

static int on_again(void *ctx, struct err *err UNUSED)
{
	struct node *node = ctx;

	node->idle_timer = NULL;
	if (!node->is_known)
		node_ahead(node);
	return 0;
}

static int on_idle_ended(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct node *node = ctx;
	bool was_heard = node_conn_handshake(node->idle) != NULL;
	bool again = !node->is_known && node_begins_again(node, node->idle, error);

	drop_idle(node);
	if (again)
		node->idle_timer =
			loop_add_timer(node->options.loop, clock_ms() + AGAIN_MS, on_again, node);
	/* The end of an idle connection is no error; a caller that needs one opens another. */
	if (was_heard || again || node->is_known)
		return 0;
	node_handshake_failed(node, error);
	node->idle_failed_ms = clock_ms();
	err_move(&node->idle_error, error);
	return 0;
}

void node_ahead(struct node *node)
{
	const struct node_conn_events events = {
		.handshake = on_idle_handshake, .ended = on_idle_ended, .ctx = node};

	if (node->idle)
		return;
	loop_remove_timer(node->options.loop, TAKE(node->idle_timer));
	err_clear(&node->idle_error);
	node->idle = node_open_conn(node, NULL, &events);
}

/* The connection that was opened ahead, the caller's from now on, or NULL. age_ms: how long it
 * may have waited; 0: as usual. */
static struct node_conn *node_take_idle(
	struct node *node, int64_t age_ms, const struct node_conn_events *events)
{
	struct node_conn *conn = TAKE(node->idle);

	if (!conn)
		return NULL;
	loop_remove_timer(node->options.loop, TAKE(node->idle_timer));
	int64_t since_ms = node_conn_info(conn)->since_ms;

	if (since_ms && (clock_ms() - since_ms > (age_ms ? age_ms : IDLE_MS) ||
				loop_woke_ms(node->options.loop) > since_ms)) {
		node_conn_free(conn);
		return NULL;
	}
	node_conn_hand(conn, events);
	return conn;
}

static struct node_conn *node_open_conn(
	struct node *node, const struct channel_pty *pty, const struct node_conn_events *events)
{
	AUTO_FREE char *command = NULL;
	char mark[NODE_MARK_LEN + 1];

	if (!pty)
		command = TAKE(node->first_command);
	node_mark(mark);
	/* The root was good for node_new. */
	if (!command)
		BUG_ON(node_command(node->root, mark, &command, NULL) < 0);
	const struct node_conn_options options = {.loop = node->options.loop,
		.opener = node->options.opener,
		.name = node->name,
		.command = command,
		.pty = pty,
		.response_ms = node->options.response_ms};

	return node_conn_open(&options, events);
}

int node_new(const struct node_options *options, const char *first_command, struct node **ret,
	struct err *err)
{
	AUTO_FREE char *command = NULL;
	int r = node_command(options->root, "0123456789abcdef", &command, err);

	if (r < 0)
		return r;
	struct node *node = mem_alloc(1, sizeof(*node));

	node->options = *options;
	node->options.name = node->name = mem_strdup(options->name);
	node->options.root = node->root = mem_strdup(options->root);
	node->first_command = mem_strdup(first_command);
	if (!node->options.response_ms)
		node->options.response_ms = RESPONSE_MS;
	node->known.facts.rtt_ms = -1;
	node_ahead(node);
	*ret = node;
	return 0;
}

void node_free(struct node *node)
{
	if (!node)
		return;
	node->is_closing = true;
	while (node->calls)
		node_cancel(node->calls);
	drop_idle(node);
	err_clear(&node->idle_error);
	node_handshake_done(&node->known);
	node_attempts_done(&node->ended);
	free(node->first_command);
	free(node->name);
	free(node->root);
	free(node);
}

/*
 * Facts
 */

/* Waits beside connections, and has none. */
static const struct call_ops handshake_ops = {0};

static void end_handshakes(struct node *node, const struct err *error)
{
	for (struct node_call *call = node->calls; call; call = call->next) {
		if (call->ops != &handshake_ops || call->is_over)
			continue;
		if (error)
			err_copy(&call->error, error);
		call_finish(call, NULL);
	}
}

static void node_learn(struct node *node, const struct node_conn *conn)
{
	node_handshake_merge(&node->known, node_conn_handshake(conn));
	node->is_known = true;
	end_handshakes(node, NULL);
}

static void node_note_rtt(struct node *node, const struct node_conn *conn)
{
	int64_t rtt_ms = node_conn_info(conn)->rtt_ms;
	struct node_facts *facts = &node->known.facts;

	if (rtt_ms >= 0 && (facts->rtt_ms < 0 || rtt_ms < facts->rtt_ms))
		facts->rtt_ms = rtt_ms;
}

static void node_handshake_failed(struct node *node, const struct err *error)
{
	if (!node->is_known)
		end_handshakes(node, error);
}

/* A connection was given up: who waits for hello alone gets one. */
static void node_resume_handshakes(struct node *node)
{
	if (node->is_closing || node->is_known || node->idle)
		return;
	for (struct node_call *call = node->calls; call; call = call->next) {
		if (call->ops != &handshake_ops || call->is_over)
			continue;
		node_ahead(node);
		return;
	}
}

struct node_call *node_handshake(
	struct node *node, const struct node_facts **ret, node_done_fn *done, void *ctx)
{
	struct node_call *call = call_new(node, sizeof(*call), &handshake_ops, done, ctx);

	*ret = &node->known.facts;
	if (node->is_known)
		call_finish(call, NULL);
	else if (err_is_set(&node->idle_error))
		call_finish(call, &node->idle_error);
	else
		node_ahead(node);
	return call;
}

const struct node_facts *node_facts(const struct node *node)
{
	return node->is_known ? &node->known.facts : NULL;
}

int64_t node_time_here(const struct node *node, int64_t time_ms)
{
	const struct node_facts *facts = node ? node_facts(node) : NULL;

	return time_ms && facts ? time_ms - facts->ahead_ms : time_ms;
}

int node_check_attempt(const char *run, int attempt, struct err *err)
{
	AUTO_FREE char *shown = str_shown(run);

	if (!node_name_is_good(run) || attempt < 1)
		return err_set(err, E_USAGE, "\"%s\" is not a run of a node", shown);
	return 0;
}

enum {
	BACKOFF_MIN_MS = 200,
	BACKOFF_MAX_MS = 5000,
	TIMEOUT_MS = 60 * 1000,
	/* A connection that lasted so long was no failure to begin one. */
	LASTED_MS = 5000,
	ONCE_MS = 5000, /* as old may be one that waits for what is said once */
	REQUEST_MAX = 64 << 20,
};

void *call_new(
	struct node *node, size_t size, const struct call_ops *ops, node_done_fn *done, void *ctx)
{
	struct node_call *call = mem_alloc(1, size);

	call->node = node;
	call->ops = ops;
	call->done = done;
	call->ctx = ctx;
	call->timeout_ms = TIMEOUT_MS;
	buf_init(&call->text, REQUEST_MAX);
	call->next = node->calls;
	node->calls = call;
	return call;
}

void node_cancel(struct node_call *call)
{
	if (!call)
		return;
	struct node *node = call->node;

	for (struct node_call **p = &node->calls; *p; p = &(*p)->next) {
		if (*p != call)
			continue;
		*p = call->next;
		break;
	}
	node_conn_free(call->conn);
	loop_remove_timer(node->options.loop, call->timer);
	if (call->ops->free)
		call->ops->free(call);
	buf_done(&call->text);
	vec_done(&call->words);
	err_clear(&call->error);
	free(call);
	/* Calls may have waited for the hello of this call's connection. */
	node_resume_handshakes(node);
}

/*
 * The request
 */

void call_add_text(struct node_call *call, const char *verb)
{
	buf_adds(&call->text, verb);
}

void call_word(struct node_call *call, const char *value)
{
	node_word_add(&call->text, value);
}

void call_number(struct node_call *call, uint64_t value)
{
	buf_addf(&call->text, " %" PRIu64, value);
}

void call_line_end(struct node_call *call)
{
	buf_addc(&call->text, '\n');
}

void call_attempt(struct node_call *call, const char *verb, const char *run, int attempt)
{
	call_add_text(call, verb);
	call_word(call, run);
	call_number(call, (uint64_t)attempt);
	call_line_end(call);
}

/*
 * The end
 */

static int node_on_timer(void *ctx, struct err *err)
{
	struct node_call *call = ctx;
	AUTO_ERR struct err error = {0};

	call->timer = NULL;
	if (!call->is_over) {
		call_begin(call);
		return 0;
	}
	node_done_fn *done = call->done;
	void *done_ctx = call->ctx;
	int status = err_is_set(&call->error) ? -(int)call->error.code : 0;

	err_move(&error, &call->error);
	if (call->ops->over)
		call->ops->over(call, &error);
	node_cancel(call);
	return !done ? 0 : done(done_ctx, status, &error, err);
}

static void node_set_timer(struct node_call *call, int64_t at_ms)
{
	struct loop *loop = call->node->options.loop;

	loop_remove_timer(loop, call->timer);
	call->timer = loop_add_timer(loop, at_ms, node_on_timer, call);
}

void call_begin_later(struct node_call *call)
{
	node_set_timer(call, 0);
}

void call_finish(struct node_call *call, struct err *error)
{
	if (error)
		err_move(&call->error, error);
	call->is_over = true;
	node_set_timer(call, 0);
}

void call_progressed(struct node_call *call)
{
	call->lost_ms = 0;
	call->n_failures = 0;
}

static bool call_back_off(struct node_call *call)
{
	int64_t now_ms = clock_ms();

	if (!call->lost_ms)
		call->lost_ms = now_ms;
	if (call->timeout_ms >= 0 && now_ms - call->lost_ms >= call->timeout_ms)
		return false;
	int64_t delay_ms = backoff_ms(++call->n_failures, BACKOFF_MIN_MS, BACKOFF_MAX_MS);
	/* Many that were cut at once do not come back at once. */
	node_set_timer(call, now_ms + delay_ms / 2 + random_below((uint32_t)delay_ms));
	return true;
}

enum call_next call_next(struct node_call *call, const struct err *error)
{
	if (!err_is_set(error))
		return CALL_OVER;
	/* A server may have no room for two at a time. */
	if (call->was_idle && call->node->is_known && !node_conn_handshake(call->conn))
		return CALL_AGAIN;
	if (error->code != ERR_NET)
		return CALL_OVER;
	if (!call->node->is_known && !node_begins_again(call->node, call->conn, error))
		return CALL_OVER;
	if (call->is_once && node_conn_info(call->conn)->requested_ms)
		return CALL_OVER;
	/* A connection that had waited may have been dead for long. */
	return call->was_ahead && !call->lost_ms ? CALL_AGAIN : CALL_LATER;
}

/*
 * Connections
 */

static ssize_t on_payload(void *ctx, void *out, size_t len, struct err *err)
{
	struct node_call *call = ctx;

	return call->ops->payload(call, out, len, err);
}

static int node_on_handshake(void *ctx, struct err *err)
{
	struct node_call *call = ctx;
	struct node_request request = {.kind = NODE_LINES, .response_ms = call->response_ms};
	int r = 0;

	node_learn(call->node, call->conn);
	if (call->ops->reset)
		call->ops->reset(call);
	if (call->ops->begin)
		r = call->ops->begin(call, &request, err);
	if (r == 0)
		r = buf_check(&call->text, "a request", err);
	if (r < 0)
		return r;
	request.text = call->text.data;
	request.payload = call->ops->payload ? on_payload : NULL;
	node_conn_request(call->conn, &request);
	return 0;
}

static int node_on_line(void *ctx, enum channel_flow flow, char *line, struct err *err)
{
	struct node_call *call = ctx;
	size_t len = strcspn(line, " ");

	if (call->ops->line)
		return call->ops->line(call, flow, line, err);
	for (const char *key = call->ops->keys, *end; line[len] && key && *key; key = end) {
		end = strchrnul(key, ' ');
		if ((size_t)(end - key) == len && memcmp(key, line, len) == 0) {
			int r = node_words_split(line, &call->words, err);
			if (r == 0)
				r = call->ops->keyed_line(call, err);
			return r < 0 ? r : 1;
		}
		end += *end == ' ';
	}
	return 0;
}

static ssize_t on_raw(
	void *ctx, enum channel_flow flow, const char *data, size_t len, struct err *err)
{
	struct node_call *call = ctx;

	return call->ops->raw ? call->ops->raw(call, flow, data, len, err) : (ssize_t)len;
}

static int node_on_ended(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct node_call *call = ctx;
	int64_t since_ms = node_conn_info(call->conn)->since_ms;

	trace_note(TRACE_SSH, "runner: %.*s ended after %lld ms%s%s",
		(int)strcspn(call->text.data, " \n"), call->text.data,
		since_ms ? (long long)(clock_ms() - since_ms) : 0LL, err_is_set(error) ? ": " : "",
		err_is_set(error) ? error->message : "");
	if (since_ms && clock_ms() - since_ms > LASTED_MS)
		call_progressed(call);
	enum call_next next =
		call->ops->ended ? call->ops->ended(call, error) : call_next(call, error);

	call->sent += node_conn_info(call->conn)->sent;
	node_note_rtt(call->node, call->conn);
	node_conn_free(TAKE(call->conn));
	if (next == CALL_AGAIN) {
		if (err_is_set(error) && !call->lost_ms)
			call->lost_ms = clock_ms();
		node_set_timer(call, 0);
	} else if (next == CALL_OVER || !call_back_off(call)) {
		if (!since_ms && err_is_set(error))
			node_handshake_failed(call->node, error);
		call_finish(call, error);
	}
	return 0;
}

/* The idle one failed a moment ago: that is what would happen again. */
static bool take_idle_error(struct node_call *call)
{
	enum { FRESH_MS = 10 * 1000 };
	struct node *node = call->node;
	AUTO_ERR struct err error = {0};

	if (!err_is_set(&node->idle_error))
		return false;
	err_move(&error, &node->idle_error);
	if (clock_ms() - node->idle_failed_ms > FRESH_MS)
		return false;
	call_finish(call, &error);
	return true;
}

void call_begin(struct node_call *call)
{
	const struct node_conn_events events = {.handshake = node_on_handshake,
		.line = node_on_line,
		.raw = on_raw,
		.ended = node_on_ended,
		.ctx = call};
	AUTO_ERR struct err error = {0};

	if (!call->pty)
		call->conn = node_take_idle(call->node, call->is_once ? ONCE_MS : 0, &events);
	call->was_idle = call->conn != NULL;
	call->was_ahead = call->conn && node_conn_handshake(call->conn);
	if (call->was_ahead) {
		if (node_on_handshake(call, &error) < 0) {
			node_conn_free(TAKE(call->conn));
			call_finish(call, &error);
		}
		return;
	}
	if (!call->conn && take_idle_error(call))
		return;
	if (!call->conn)
		call->conn = node_open_conn(call->node, call->pty, &events);
}

struct node_call *call_begin_checked(struct node_call *call, int r, struct err *error)
{
	if (r < 0)
		call_finish(call, error);
	else
		call_begin(call);
	return call;
}
