/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/node_impl.h"

enum {
	ANSWER_MS = 30 * 1000,
	IDLE_MS = 60 * 1000, /* what a conversation may wait before it is used */
	CUTS_MAX = 3,
	CUT_MS = 10 * 1000, /* what took longer was no cut but silence */
	AGAIN_MS = 300,
};

/*
 * The conversation ahead
 */

static void drop_idle(struct node *node)
{
	loop_remove_timer(node->options.loop, TAKE(node->idle_timer));
	node_talk_free(TAKE(node->idle));
}

/* Servers count the sessions of a connection. */
static int on_idle_too_long(void *ctx, struct err *err)
{
	struct node *node = ctx;

	(void)err;
	node->idle_timer = NULL;
	drop_idle(node);
	return 0;
}

static int on_idle_hello(void *ctx, struct err *err)
{
	struct node *node = ctx;

	(void)err;
	node_learn(node, node->idle);
	loop_remove_timer(node->options.loop, node->idle_timer);
	node->idle_timer =
		loop_add_timer(node->options.loop, clock_ms() + IDLE_MS, on_idle_too_long, node);
	return 0;
}

static int on_idle_line(void *ctx, enum channel_flow flow, char *line, struct err *err)
{
	(void)ctx;
	(void)flow;
	(void)line;
	(void)err;
	return 0;
}

static ssize_t on_idle_raw(
	void *ctx, enum channel_flow flow, const char *data, size_t len, struct err *err)
{
	(void)ctx;
	(void)flow;
	(void)data;
	(void)err;
	return (ssize_t)len;
}

bool node_begins_again(struct node *node, const struct node_talk *talk, const struct err *fault)
{
	if (fault->id != E_SSH_LOST && fault->id != E_NODE_LOST)
		return false;
	return clock_ms() - node_talk_opened_ms(talk) < CUT_MS && node->n_cuts++ < CUTS_MAX;
}

static int on_again(void *ctx, struct err *err)
{
	struct node *node = ctx;

	(void)err;
	node->idle_timer = NULL;
	if (!node->is_known)
		node_ahead(node);
	return 0;
}

static int on_idle_ended(void *ctx, struct err *fault, struct err *err)
{
	struct node *node = ctx;
	bool was_heard = node_talk_hello(node->idle) != NULL;
	bool again = !node->is_known && node_begins_again(node, node->idle, fault);

	(void)err;
	drop_idle(node);
	if (again)
		node->idle_timer =
			loop_add_timer(node->options.loop, clock_ms() + AGAIN_MS, on_again, node);
	/* The end of an idle conversation is no error; a caller that needs one opens another. */
	if (was_heard || again || node->is_known)
		return 0;
	node_hello_failed(node, fault);
	node->idle_failed_ms = clock_ms();
	err_move(&node->idle_fault, fault);
	return 0;
}

void node_ahead(struct node *node)
{
	const struct node_talk_events events = {.hello = on_idle_hello,
		.line = on_idle_line,
		.raw = on_idle_raw,
		.ended = on_idle_ended,
		.ctx = node};

	if (node->idle)
		return;
	loop_remove_timer(node->options.loop, TAKE(node->idle_timer));
	err_clear(&node->idle_fault);
	node->idle = node_open_talk(node, NULL, &events);
}

struct node_talk *node_take_idle(
	struct node *node, int64_t age_ms, const struct node_talk_events *events)
{
	struct node_talk *talk = TAKE(node->idle);

	if (!talk)
		return NULL;
	loop_remove_timer(node->options.loop, TAKE(node->idle_timer));
	int64_t since_ms = node_talk_since_ms(talk);

	if (since_ms && (clock_ms() - since_ms > (age_ms ? age_ms : IDLE_MS) ||
				loop_woke_ms(node->options.loop) > since_ms)) {
		node_talk_free(talk);
		return NULL;
	}
	node_talk_hand(talk, events);
	return talk;
}

struct node_talk *node_open_talk(
	struct node *node, const struct channel_pty *pty, const struct node_talk_events *events)
{
	AUTO_FREE char *command = NULL;
	char mark[NODE_MARK_LEN + 1];

	if (!pty)
		command = TAKE(node->first_command);
	node_mark(mark);
	/* The root was good for node_new. */
	if (!command)
		BUG_ON(node_command(node->root, mark, &command, NULL) < 0);
	const struct node_talk_options options = {.loop = node->options.loop,
		.opener = node->options.opener,
		.name = node->name,
		.command = command,
		.pty = pty,
		.answer_ms = node->options.answer_ms};

	return node_talk_open(&options, events);
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
	if (!node->options.answer_ms)
		node->options.answer_ms = ANSWER_MS;
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
	err_clear(&node->idle_fault);
	node_hello_done(&node->known);
	node_attempts_done(&node->ended);
	free(node->first_command);
	free(node->name);
	free(node->root);
	free(node);
}

/*
 * Facts
 */

/* Waits beside conversations, and has none. */
static const struct call_ops hello_ops = {0};

static void end_hellos(struct node *node, const struct err *fault)
{
	for (struct node_call *call = node->calls; call; call = call->next) {
		if (call->ops != &hello_ops || call->is_over)
			continue;
		if (fault)
			err_copy(&call->fault, fault);
		call_finish(call, NULL);
	}
}

void node_learn(struct node *node, const struct node_talk *talk)
{
	node_hello_merge(&node->known, node_talk_hello(talk));
	node->is_known = true;
	end_hellos(node, NULL);
}

void node_note_rtt(struct node *node, const struct node_talk *talk)
{
	int64_t rtt_ms = node_talk_rtt_ms(talk);
	struct node_facts *facts = &node->known.facts;

	if (rtt_ms >= 0 && (facts->rtt_ms < 0 || rtt_ms < facts->rtt_ms))
		facts->rtt_ms = rtt_ms;
}

void node_hello_failed(struct node *node, const struct err *fault)
{
	if (!node->is_known)
		end_hellos(node, fault);
}

void node_mind_hellos(struct node *node)
{
	if (node->is_closing || node->is_known || node->idle)
		return;
	for (struct node_call *call = node->calls; call; call = call->next) {
		if (call->ops != &hello_ops || call->is_over)
			continue;
		node_ahead(node);
		return;
	}
}

struct node_call *node_hello(
	struct node *node, const struct node_facts **ret, node_done_fn *done, void *ctx)
{
	struct node_call *call = call_new(node, sizeof(*call), &hello_ops, done, ctx);

	*ret = &node->known.facts;
	if (node->is_known)
		call_finish(call, NULL);
	else if (err_is_set(&node->idle_fault))
		call_finish(call, &node->idle_fault);
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
