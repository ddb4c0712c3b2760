/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A conversation with a runner (protocol.h) over one channel: the runner is sent if it is
 * requested, facts are read, then one request is sent and its response read. On the loop; nothing
 * blocks.
 */
#ifndef DLRUN_NODE_TALK_H
#define DLRUN_NODE_TALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "net/stream/channel.h"
#include "node/facts.h"

/* Error classes of a runner, behind "MARK fail". */
enum node_class {
	NODE_CLASS_NONE,
	NODE_CLASS_USAGE,
	NODE_CLASS_BUSY,
	NODE_CLASS_DISK,
	NODE_CLASS_MISSING,
	NODE_CLASS_CORRUPT,
	NODE_CLASS_IO,
	NODE_CLASS_GONE,
	NODE_CLASS_GPU,
	NODE_CLASS_TOOL,
	NODE_CLASS_OTHER,
};

enum node_flow_kind {
	NODE_LINES, /* the answer is lines on stdout */
	NODE_RAW,   /* bytes on stdout, lines on stderr, the last of which is the answer's end */
	NODE_EXEC,  /* bytes on both behind "go"; the end is that of the command */
};

struct node_request {
	const char *text; /* lines without the last ".", each with its LF; copied */
	enum node_flow_kind kind;
	bool keeps_stdin;  /* no end behind "." or the payload */
	int64_t answer_ms; /* the longest silence; 0: the conversation's, -1: any */
	/* The next bytes: more than 0, 0 at the end, CHANNEL_AGAIN (node_talk_wake tells of more),
	 * or a negative code, which ends the conversation. NULL: no payload. */
	ssize_t (*payload)(void *ctx, void *out, size_t len, struct err *err);
};

/* From the loop only. The conversation may be freed in `ended` alone. A negative return of the
 * first three ends it with that fault. */
struct node_talk_events {
	/* Facts are there: node_talk_ask may be called, now or later. */
	int (*hello)(void *ctx, struct err *err);
	/* 1: taken; 0: not understood, and left as it was. flow: CHANNEL_ERR in raw answers. */
	int (*line)(void *ctx, enum channel_flow flow, char *line, struct err *err);
	/* How many bytes of an answer were taken; of what was not it is asked again when something
	 * else has come and behind node_talk_wake. len 0: that flow has ended. */
	ssize_t (*raw)(
		void *ctx, enum channel_flow flow, const char *data, size_t len, struct err *err);
	/* Once. fault not set: "done", or the end of the command. A negative return ends
	 * loop_run. */
	int (*ended)(void *ctx, struct err *fault, struct err *err);
	void *ctx; /* of payload as well */
};

struct node_talk_options {
	struct loop *loop;
	struct channel_opener opener;
	const char *name;    /* of the node, for messages */
	const char *command; /* node_command's */
	const struct channel_pty *pty;
	int64_t answer_ms; /* the longest silence; E_NODE_SHELL sooner where nothing comes at all */
};

struct node_talk;
/* Strings of options are copied. Begins at once. */
struct node_talk *node_talk_open(
	const struct node_talk_options *options, const struct node_talk_events *events);
void node_talk_free(struct node_talk *talk);
AUTO_POINTER(struct node_talk, node_talk_free)

/* Hand the conversation over to another owner. */
void node_talk_hand(struct node_talk *talk, const struct node_talk_events *events);
/* NULL: it has not said hello. */
const struct node_hello *node_talk_hello(const struct node_talk *talk);
/* Behind hello, once. */
void node_talk_ask(struct node_talk *talk, const struct node_request *request);
void node_talk_wake(struct node_talk *talk);
void node_talk_resize(struct node_talk *talk, unsigned columns, unsigned rows);
/* Whether the request, or a part of it, may have been heard there. */
bool node_talk_was_asked(const struct node_talk *talk);
enum node_class node_talk_class(const struct node_talk *talk);
/* Of the command, at the end of NODE_EXEC. */
const struct channel_exit *node_talk_exit(const struct node_talk *talk);
uint64_t node_talk_sent(const struct node_talk *talk);  /* bytes, of everything */
int64_t node_talk_rtt_ms(const struct node_talk *talk); /* of a short answer; -1: none yet */
/* clock_ms() when its channel was begun. */
int64_t node_talk_opened_ms(const struct node_talk *talk);
/* clock_ms() when it said hello; 0: it has not. */
int64_t node_talk_since_ms(const struct node_talk *talk);

/* The command of a conversation. E_CONFIG: root has characters that the protocol has not. */
int node_command(const char *root, const char *mark, char **ret, struct err *err);
/* 16 random hex digits. */
void node_mark(char out[static NODE_MARK_LEN + 1]);
/* The mark of a command of node_command's. */
const char *node_command_mark(const char *command);

#endif
