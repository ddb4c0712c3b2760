/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/trace.h"
#include "node/node_impl.h"

enum {
	PAUSE_MIN_MS = 200,
	PAUSE_MAX_MS = 5000,
	PATIENCE_MS = 60 * 1000,
	/* A conversation that lasted so long was no failure to begin one. */
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
	call->patience_ms = PATIENCE_MS;
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
	node_talk_free(call->talk);
	loop_remove_timer(node->options.loop, call->timer);
	if (call->ops->free)
		call->ops->free(call);
	buf_done(&call->text);
	err_clear(&call->fault);
	free(call);
	/* Calls may have waited for the hello of this call's conversation. */
	node_mind_hellos(node);
}

/*
 * The request
 */

void call_say(struct node_call *call, const char *verb)
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
	call_say(call, verb);
	call_word(call, run);
	call_number(call, (uint64_t)attempt);
	call_line_end(call);
}

/*
 * The end
 */

static int on_timer(void *ctx, struct err *err)
{
	struct node_call *call = ctx;
	AUTO_ERR struct err fault = {0};

	call->timer = NULL;
	if (!call->is_over) {
		call_begin(call);
		return 0;
	}
	node_done_fn *done = call->done;
	void *done_ctx = call->ctx;
	int status = err_is_set(&call->fault) ? -(int)call->fault.code : 0;

	err_move(&fault, &call->fault);
	if (call->ops->over)
		call->ops->over(call, &fault);
	node_cancel(call);
	return !done ? 0 : done(done_ctx, status, &fault, err);
}

static void set_timer(struct node_call *call, int64_t at_ms)
{
	struct loop *loop = call->node->options.loop;

	loop_remove_timer(loop, call->timer);
	call->timer = loop_add_timer(loop, at_ms, on_timer, call);
}

void call_begin_later(struct node_call *call)
{
	set_timer(call, 0);
}

void call_finish(struct node_call *call, struct err *fault)
{
	if (fault)
		err_move(&call->fault, fault);
	call->is_over = true;
	set_timer(call, 0);
}

void call_moves(struct node_call *call)
{
	call->lost_ms = 0;
	call->pause_ms = 0;
}

static bool wait_a_while(struct node_call *call)
{
	int64_t now_ms = clock_ms(), pause_ms = 2 * call->pause_ms;

	if (!call->lost_ms)
		call->lost_ms = now_ms;
	if (call->patience_ms >= 0 && now_ms - call->lost_ms >= call->patience_ms)
		return false;
	if (pause_ms < PAUSE_MIN_MS)
		pause_ms = PAUSE_MIN_MS;
	call->pause_ms = pause_ms < PAUSE_MAX_MS ? pause_ms : PAUSE_MAX_MS;
	/* Many that were cut at once do not come back at once. */
	set_timer(call, now_ms + call->pause_ms / 2 + random_below((uint32_t)call->pause_ms));
	return true;
}

enum call_next call_next(struct node_call *call, const struct err *fault)
{
	if (!err_is_set(fault))
		return CALL_OVER;
	/* A server may have no room for two at a time. */
	if (call->was_idle && call->node->is_known && !node_talk_hello(call->talk))
		return CALL_AGAIN;
	if (fault->code != ERR_NET)
		return CALL_OVER;
	if (!call->node->is_known && !node_begins_again(call->node, call->talk, fault))
		return CALL_OVER;
	if (call->is_once && node_talk_was_asked(call->talk))
		return CALL_OVER;
	/* A conversation that had waited may have been dead for long. */
	return call->was_ahead && !call->lost_ms ? CALL_AGAIN : CALL_LATER;
}

/*
 * Conversations
 */

static ssize_t on_payload(void *ctx, void *out, size_t len, struct err *err)
{
	struct node_call *call = ctx;

	return call->ops->payload(call, out, len, err);
}

static int on_hello(void *ctx, struct err *err)
{
	struct node_call *call = ctx;
	struct node_request request = {.kind = NODE_LINES, .answer_ms = call->answer_ms};
	int r = 0;

	node_learn(call->node, call->talk);
	if (call->ops->begin)
		r = call->ops->begin(call, &request, err);
	if (r == 0)
		r = buf_check(&call->text, "a request", err);
	if (r < 0)
		return r;
	request.text = call->text.data;
	request.payload = call->ops->payload ? on_payload : NULL;
	node_talk_ask(call->talk, &request);
	return 0;
}

static int on_line(void *ctx, enum channel_flow flow, char *line, struct err *err)
{
	struct node_call *call = ctx;

	return call->ops->line ? call->ops->line(call, flow, line, err) : 0;
}

static ssize_t on_raw(
	void *ctx, enum channel_flow flow, const char *data, size_t len, struct err *err)
{
	struct node_call *call = ctx;

	return call->ops->raw ? call->ops->raw(call, flow, data, len, err) : (ssize_t)len;
}

static int on_ended(void *ctx, struct err *fault, struct err *err)
{
	struct node_call *call = ctx;
	int64_t since_ms = node_talk_since_ms(call->talk);

	trace_note(TRACE_SSH, "runner: %.*s ended after %lld ms%s%s",
		(int)strcspn(call->text.data, " \n"), call->text.data,
		since_ms ? (long long)(clock_ms() - since_ms) : 0LL, err_is_set(fault) ? ": " : "",
		err_is_set(fault) ? fault->message : "");
	if (since_ms && clock_ms() - since_ms > LASTED_MS)
		call_moves(call);
	enum call_next next =
		call->ops->ended ? call->ops->ended(call, fault) : call_next(call, fault);

	(void)err;
	call->sent += node_talk_sent(call->talk);
	node_note_rtt(call->node, call->talk);
	node_talk_free(TAKE(call->talk));
	if (next == CALL_AGAIN) {
		if (err_is_set(fault) && !call->lost_ms)
			call->lost_ms = clock_ms();
		set_timer(call, 0);
	} else if (next == CALL_OVER || !wait_a_while(call)) {
		if (!since_ms && err_is_set(fault))
			node_hello_failed(call->node, fault);
		call_finish(call, fault);
	}
	return 0;
}

/* The idle one failed a moment ago: that is what would happen again. */
static bool take_idle_fault(struct node_call *call)
{
	enum { FRESH_MS = 10 * 1000 };
	struct node *node = call->node;
	AUTO_ERR struct err fault = {0};

	if (!err_is_set(&node->idle_fault))
		return false;
	err_move(&fault, &node->idle_fault);
	if (clock_ms() - node->idle_failed_ms > FRESH_MS)
		return false;
	call_finish(call, &fault);
	return true;
}

void call_begin(struct node_call *call)
{
	const struct node_talk_events events = {
		.hello = on_hello, .line = on_line, .raw = on_raw, .ended = on_ended, .ctx = call};
	AUTO_ERR struct err fault = {0};

	if (!call->pty)
		call->talk = node_take_idle(call->node, call->is_once ? ONCE_MS : 0, &events);
	call->was_idle = call->talk != NULL;
	call->was_ahead = call->talk && node_talk_hello(call->talk);
	if (call->was_ahead) {
		if (on_hello(call, &fault) < 0) {
			node_talk_free(TAKE(call->talk));
			call_finish(call, &fault);
		}
		return;
	}
	if (!call->talk && take_idle_fault(call))
		return;
	if (!call->talk)
		call->talk = node_open_talk(call->node, call->pty, &events);
}
