/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside lib/node only: a connection with a runner (conn.c), the operations that have one each
 * (node.c), and what several of them share.
 */
#ifndef DLRUN_NODE_NODE_IMPL_H
#define DLRUN_NODE_NODE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "net/stream/channel.h"
#include "node/node.h"
#include "node/wire.h"

/*
 * A connection with a runner (protocol.h) over one channel: the runner is sent if it is
 * requested, facts are read, then one request is sent and its response read. On the loop; nothing
 * blocks.
 */

/* Error classes of a runner, behind "MARK fail", that operations tell apart. */
enum node_class {
	NODE_CLASS_NONE,
	NODE_CLASS_MISSING,
	NODE_CLASS_CORRUPT,
	NODE_CLASS_GONE,
	NODE_CLASS_OTHER,
};

enum node_flow_kind {
	NODE_LINES, /* the response is lines on stdout */
	NODE_RAW,   /* bytes on stdout, lines on stderr, the last of which is the response's end */
	NODE_EXEC,  /* bytes on both behind "go"; the end is that of the command */
};

struct node_request {
	const char *text; /* lines without the last ".", each with its LF; copied */
	enum node_flow_kind kind;
	bool keeps_stdin;    /* no end behind "." or the payload */
	int64_t response_ms; /* the longest silence; 0: the connection's, -1: any */
	/* The next bytes: more than 0, 0 at the end, CHANNEL_AGAIN (node_conn_wake tells of more),
	 * or a negative code, which ends the connection. NULL: no payload. */
	ssize_t (*payload)(void *ctx, void *out, size_t len, struct err *err);
};

/* From the loop only; line and raw are for a request. The connection may be freed in `ended`
 * alone. A negative return of the first three ends it with that error. */
struct node_conn_events {
	/* Facts are there: node_conn_request may be called, now or later. */
	int (*handshake)(void *ctx, struct err *err);
	/* 1: taken; 0: not understood, and left as it was. flow: CHANNEL_ERR in raw answers. */
	int (*line)(void *ctx, enum channel_flow flow, char *line, struct err *err);
	/* How many bytes of a response were taken; of what was not it is asked again when something
	 * else has come and behind node_conn_wake. len 0: that flow has ended. */
	ssize_t (*raw)(
		void *ctx, enum channel_flow flow, const char *data, size_t len, struct err *err);
	/* Once. error not set: "done", or the end of the command. A negative return ends
	 * loop_run. */
	int (*ended)(void *ctx, struct err *error, struct err *err);
	void *ctx; /* of payload as well */
};

struct node_conn_options {
	struct loop *loop;
	struct channel_opener opener;
	const char *name;    /* of the node, for messages */
	const char *command; /* node_command's */
	const struct channel_pty *pty;
	/* the longest silence; E_NODE_SHELL sooner where nothing comes at all */
	int64_t response_ms;
};

struct node_conn;
/* Strings of options are copied. Begins at once. */
struct node_conn *node_conn_open(
	const struct node_conn_options *options, const struct node_conn_events *events);
void node_conn_free(struct node_conn *conn);

/* Hand the connection over to another owner. */
void node_conn_hand(struct node_conn *conn, const struct node_conn_events *events);
/* NULL: it has not said hello. */
const struct node_handshake *node_conn_handshake(const struct node_conn *conn);
/* Behind hello, once. */
void node_conn_request(struct node_conn *conn, const struct node_request *request);
void node_conn_wake(struct node_conn *conn);
void node_conn_resize(struct node_conn *conn, unsigned columns, unsigned rows);
/* Valid as long as the connection. */
struct node_conn_info {
	enum node_class class;
	struct channel_exit exit; /* of the command, at the end of NODE_EXEC */
	uint64_t sent;            /* bytes, of everything */
	int64_t rtt_ms;           /* of a short answer; -1: none yet */
	/* clock_ms(): when its channel was begun, when it said hello, when the request, or a part
	 * of it, may have been heard there. 0: not yet. */
	int64_t opened_ms, since_ms, requested_ms;
};
const struct node_conn_info *node_conn_info(const struct node_conn *conn);

/* The command of a connection. E_CONFIG: root has characters that the protocol has not. */
int node_command(const char *root, const char *mark, char **ret, struct err *err);
/* 16 random hex digits. */
void node_mark(char out[static NODE_MARK_LEN + 1]);

/*
 * Descriptors of others that a connection reads and writes, in the mode that they are in: when
 * poll(2) says so. On the loop; a descriptor is waited for only behind a try that was too early.
 */

struct node_fd {
	struct loop *loop;
	int fd; /* -1: none */
	short events;
	bool waits, is_file;
	struct loop_fd *source;
	void (*woken)(void *ctx); /* it is worth another try */
	void *ctx;
};

/* The descriptor stays the caller's. events: POLLIN or POLLOUT. */
void node_fd_init(struct node_fd *io, struct loop *loop, int fd, short events,
	void (*woken)(void *ctx), void *ctx);
void node_fd_done(struct node_fd *io);
/* Bytes, 0 at the end (and without a descriptor), CHANNEL_AGAIN, or E_IO. */
ssize_t node_fd_read(struct node_fd *io, void *out, size_t len, struct err *err);

/*
 * Payload of a submit (protocol.h): its parts in their order, as one stream of bytes that can be
 * begun anywhere, and the words about it.
 */

enum { NODE_KEY_SIZE = 41 }; /* 40 hex digits and NUL */

struct node_part {
	const char *kind;
	const char *data;               /* or NULL: of layer */
	const struct node_layer *layer; /* or NULL */
	uint64_t size;
};

struct node_transfer {
	const struct node_submit *request;
	char name[NODE_KEY_SIZE];
	struct VEC_OF(struct node_part) parts;
	size_t n_layers;
	uint64_t total, at; /* at: of the next byte */
	int fd;             /* of the part that is being read; -1: none */
};

/* The layers in `kept` are left out; NULL: none. Zero or any transfer; keeps request, which lives
 * longer. */
void node_transfer_init(
	struct node_transfer *transfer, const struct node_submit *request, const struct strv *kept);
void node_transfer_done(struct node_transfer *transfer);
/* `transfer` and `part` lines, for a payload from byte `from` on. */
void node_transfer_lines(const struct node_transfer *transfer, uint64_t from, struct buf *out);
void node_transfer_seek(struct node_transfer *transfer, uint64_t from);
/* The next bytes, 0 at the end. E_IO_CHANGED: a layer is shorter than it says. */
ssize_t node_transfer_read(struct node_transfer *transfer, void *out, size_t len, struct err *err);

/* The name of a tree made ahead of the first n_spare layers; "" without any. */
void node_spare_key(const struct node_submit *request, char out[static NODE_KEY_SIZE]);

/*
 * Operations
 */

struct node_call;
struct node_batch;

struct node {
	struct node_options options;
	char *name, *root, *first_command;
	struct node_handshake known;
	bool is_closing;
	bool is_known;                 /* it has said hello */
	int n_cuts;                    /* connections that were cut before the first hello */
	struct node_conn *idle;        /* a connection ahead */
	struct loop_timer *idle_timer; /* when it has waited for too long, or is begun anew */
	struct err idle_error;         /* of the last one, until somebody hears of it */
	int64_t idle_failed_ms;
	struct node_attempts ended; /* of whose end a log told: that is final */
	struct node_call *calls;    /* all, newest first */
	struct node_batch *batch;   /* questions of this turn */
};

/* The step after a connection has ended. */
enum call_next {
	CALL_OVER,
	CALL_AGAIN, /* at once */
	CALL_LATER, /* after a delay, unless timeout_ms is over */
};

/* How an operation works; what is NULL does nothing. */
struct call_ops {
	void (*reset)(struct node_call *call); /* forget the last response */
	/* Facts are there: the request, of which text is call->text. */
	int (*begin)(struct node_call *call, struct node_request *request, struct err *err);
	int (*line)(struct node_call *call, enum channel_flow flow, char *line, struct err *err);
	/* Instead of line: a line that begins with one of keys (blanks between), as call->words. */
	const char *keys;
	int (*keyed_line)(struct node_call *call, struct err *err);
	ssize_t (*raw)(struct node_call *call, enum channel_flow flow, const char *data, size_t len,
		struct err *err);
	ssize_t (*payload)(struct node_call *call, void *out, size_t len, struct err *err);
	/* A connection has ended; error (not set: done) may be changed. NULL: call_next. */
	enum call_next (*ended)(struct node_call *call, struct err *error);
	/* Ahead of done. */
	void (*over)(struct node_call *call, const struct err *error);
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
	struct node_words words;       /* of the last line */
	const struct channel_pty *pty; /* needs a connection of its own */
	struct node_conn *conn;
	bool was_ahead;      /* conn had said hello before */
	bool was_idle;       /* conn had been opened before */
	bool is_once;        /* a request that may have been heard is not said again */
	int64_t response_ms; /* as of a request */
	int64_t timeout_ms;  /* of all retries; -1: no limit */
	int64_t lost_ms;     /* since when it fails; 0: it does not */
	unsigned n_failures; /* since it made progress */
	uint64_t sent;       /* bytes, in connections that are over */
	struct loop_timer *timer;
	bool is_over; /* the timer is for done */
	struct err error;
};

/* An operation of size bytes, not begun yet. done NULL: nobody waits. */
void *call_new(
	struct node *node, size_t size, const struct call_ops *ops, node_done_fn *done, void *ctx);
/* A line of the request: `verb`, then words by call_word, then call_line_end. */
void call_add_text(struct node_call *call, const char *verb);
void call_word(struct node_call *call, const char *value);
void call_number(struct node_call *call, uint64_t value);
void call_line_end(struct node_call *call);
/* `verb RUN N` and the end of the line. */
void call_attempt(struct node_call *call, const char *verb, const char *run, int attempt);
/* Open a connection, or take the one that waits. */
void call_begin(struct node_call *call);
/* The same, or the end with error where r is an error; the call. */
struct node_call *call_begin_checked(struct node_call *call, int r, struct err *error);
void call_begin_later(struct node_call *call); /* by the next turn */
/* done comes by the next turn. Takes the error; NULL: none. */
void call_finish(struct node_call *call, struct err *error);
/* The call makes progress: delays begin small again. */
void call_progressed(struct node_call *call);
/* The usual decision: what was cut is tried again. */
enum call_next call_next(struct node_call *call, const struct err *error);

/* Whether nothing can change in it. */
bool node_state_is_final(const char *state);
/* An attempt that has ended, for node_state. */
void node_keep_end(struct node *node, const struct node_attempt *attempt);

/* RUN is one, N from 1; E_USAGE. */
int node_check_attempt(const char *run, int attempt, struct err *err);

#endif
