/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the operations of a node. Inside lib/node only. */
#ifndef DLRUN_NODE_NODE_IMPL_H
#define DLRUN_NODE_NODE_IMPL_H

#include "base/util/buf.h"
#include "node/node.h"
#include "node/talk.h"

struct node_call;
struct node_batch;

struct node {
	struct node_options options;
	char *name, *root, *first_command;
	struct node_hello known;
	bool is_closing;
	bool is_known;                 /* it has said hello */
	int n_cuts;                    /* conversations that were cut before the first hello */
	struct node_talk *idle;        /* a conversation ahead */
	struct loop_timer *idle_timer; /* when it has waited for too long, or is begun anew */
	struct err idle_fault;         /* of the last one, until somebody hears of it */
	int64_t idle_failed_ms;
	struct node_attempts ended; /* of whose end a log told: that is final */
	struct node_call *calls;    /* all, newest first */
	struct node_batch *batch;   /* questions of this turn */
};

/* The step after a conversation has ended. */
enum call_next {
	CALL_OVER,
	CALL_AGAIN, /* at once */
	CALL_LATER, /* after a pause, unless that is over which it is given */
};

/* How an operation works; what is NULL does nothing. */
struct call_ops {
	/* Facts are there: the request, of which text is call->text. */
	int (*begin)(struct node_call *call, struct node_request *request, struct err *err);
	int (*line)(struct node_call *call, enum channel_flow flow, char *line, struct err *err);
	ssize_t (*raw)(struct node_call *call, enum channel_flow flow, const char *data, size_t len,
		struct err *err);
	ssize_t (*payload)(struct node_call *call, void *out, size_t len, struct err *err);
	/* A conversation has ended; fault (not set: done) may be changed. NULL: call_next. */
	enum call_next (*ended)(struct node_call *call, struct err *fault);
	/* Ahead of done. */
	void (*over)(struct node_call *call, const struct err *fault);
	void (*free)(struct node_call *call); /* its own parts */
};

/* Every operation's struct begins with it. */
struct node_call {
	struct node *node;
	struct node_call *next;
	const struct call_ops *ops;
	node_done_fn *done;
	void *ctx;
	struct buf text;               /* of the request */
	const struct channel_pty *pty; /* needs a conversation of its own */
	struct node_talk *talk;
	bool was_ahead;      /* talk had said hello before */
	bool was_idle;       /* talk had been opened before */
	bool is_once;        /* a request that may have been heard is not said again */
	int64_t answer_ms;   /* as of a request */
	int64_t patience_ms; /* of pauses; -1: any */
	int64_t lost_ms;     /* since when it fails; 0: it does not */
	int64_t pause_ms;    /* the last one */
	uint64_t sent;       /* bytes, in conversations that are over */
	struct loop_timer *timer;
	bool is_over; /* the timer is for done */
	struct err fault;
};

/* An operation of size bytes, not begun yet. done NULL: nobody waits. */
void *call_new(
	struct node *node, size_t size, const struct call_ops *ops, node_done_fn *done, void *ctx);
/* A line of the request: `verb`, then words by call_word, then call_line_end. */
void call_say(struct node_call *call, const char *verb);
void call_word(struct node_call *call, const char *value);
void call_number(struct node_call *call, uint64_t value);
void call_line_end(struct node_call *call);
/* `verb RUN N` and the end of the line. */
void call_attempt(struct node_call *call, const char *verb, const char *run, int attempt);
/* Open a conversation, or take the one that waits. */
void call_begin(struct node_call *call);
void call_begin_later(struct node_call *call); /* by the next turn */
/* done comes by the next turn. Takes the fault; NULL: none. */
void call_finish(struct node_call *call, struct err *fault);
/* The call makes progress: pauses begin small again. */
void call_moves(struct node_call *call);
/* The usual decision: what was cut is tried again. */
enum call_next call_next(struct node_call *call, const struct err *fault);

/* A conversation of any call has said hello, or has failed to. */
void node_learn(struct node *node, const struct node_talk *talk);
void node_hello_failed(struct node *node, const struct err *fault);
/* A conversation was given up: who waits for hello alone gets one. */
void node_mind_hellos(struct node *node);
/* Whether a conversation that failed before there was a hello is worth another one: it was cut, and
 * that is no habit. */
bool node_begins_again(struct node *node, const struct node_talk *talk, const struct err *fault);
void node_note_rtt(struct node *node, const struct node_talk *talk);
struct node_talk *node_open_talk(
	struct node *node, const struct channel_pty *pty, const struct node_talk_events *events);
/* The conversation that was opened ahead, the caller's from now on, or NULL. age_ms: how long it
 * may have waited; 0: as usual. */
struct node_talk *node_take_idle(
	struct node *node, int64_t age_ms, const struct node_talk_events *events);

/* Whether nothing can change in it. */
bool node_state_is_final(const char *state);
/* An attempt that has ended, for node_state. */
void node_keep_end(struct node *node, const struct node_attempt *attempt);

/* RUN is one, N from 1; E_USAGE. */
int node_check_attempt(const char *run, int attempt, struct err *err);

#endif
