/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node: a machine with a shell that dlrun's runner works on (protocol.h), over any channels.
 * Every operation is started, runs on the loop, and ends with one call of done, never from within
 * the starting call. It is told by its handle, which node_cancel forgets without a call of done.
 */
#ifndef DLRUN_NODE_NODE_H
#define DLRUN_NODE_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "net/stream/channel.h"
#include "node/protocol.h"

struct node_options {
	struct loop *loop;
	const char *name; /* as people call it, for messages */
	const char *root; /* "~/.dlrun"; E_CONFIG for characters that the protocol has not */
	struct channel_opener opener;
	int64_t response_ms; /* how long a response may take once its channel is open; 0: 30 s */
};
/* The command that ssh_options.first_command may begin early: that of the first connection of a
 * node with this root. The caller frees. E_CONFIG as above. */
int node_first_command(const char *root, char **ret, struct err *err);

struct node;
/* first_command: from node_first_command, already begun; NULL: none was. */
int node_new(const struct node_options *options, const char *first_command, struct node **ret,
	struct err *err);
void node_free(struct node *node); /* operations under way are forgotten */

/* A connection is wanted soon: it is opened ahead, unless one waits already. */
void node_ahead(struct node *node);

struct node_call;
/* Not from within an operation's own events but done. */
void node_cancel(struct node_call *call); /* NULL is accepted */
typedef int node_done_fn(void *ctx, int status, struct err *error, struct err *err);

/* Facts about the node; strings are the node's, live as long as it, and are replaced (with the
 * lists) when it says hello again. Errors of all operations: those of the channels; E_NODE_SHELL
 * (no connection came about: evidence is what the login shell said), E_NODE_ROOT (its directory
 * cannot be used), E_NODE_DISK, E_NODE_TOOL (a tool is missing there), E_NODE_PROTOCOL (a response
 * that makes no sense), E_NODE_FAILED (with the node's words). */
#define NODE_FREE_UNKNOWN UINT64_MAX
struct node_facts {
	const char *host, *boot, *root, *local, *home, *system, *machine, *launch, *shell;
	const char *id;   /* of the machine (machine-id(5)), or empty */
	const char *pool; /* of its root: hosts that tell the same may share it; or empty */
	struct strv missing;
	int64_t time_ms, ahead_ms; /* its clock when it said hello, and of ours: by so much */
	int64_t rtt_ms;            /* the quickest short answer; -1: not measured */
	uint64_t free_bytes;       /* of the disk; NODE_FREE_UNKNOWN */
	uint64_t memory_bytes;
	unsigned uid, cpus;
	struct strv layers, spares;
};
/* Of the tools that may be missing one without which no run starts, as people are told of it; NULL:
 * runs start without it. */
const char *node_tool_needed(const char *tool);
/* Answers at once from what is known, else from the next hello. */
struct node_call *node_handshake(
	struct node *node, const struct node_facts **ret, node_done_fn *done, void *ctx);
const struct node_facts *node_facts(const struct node *node); /* NULL: nothing yet */
/* A time that it told, by the clock of this machine. 0 (not known) stays. */
int64_t node_time_here(const struct node *node, int64_t time_ms);

/* GPUs of the node, in the order of their indexes. */
struct node_gpu {
	char vendor[16], id[96], model[96], holder[64]; /* holder: a run, or empty */
	unsigned index;
	uint64_t memory_bytes;
	bool used; /* some process computes on it now */
};
struct node_gpus VEC_OF(struct node_gpu);
struct node_call *node_gpus(
	struct node *node, struct node_gpus *ret, node_done_fn *done, void *ctx);

/* key=value of the node's files, by value. */
struct node_field {
	char *key, *value;
};
struct node_fields VEC_OF(struct node_field);
void node_fields_done(struct node_fields *fields); /* NULL is accepted */

/* Facts that the hosts of a pool should have in common (`describe` of protocol.h). */
struct node_call *node_describe(
	struct node *node, struct node_fields *ret, node_done_fn *done, void *ctx);

/* An attempt. Sizes are those of files on the disk here. */
struct node_layer {
	const char *hex;   /* of the digest */
	const char *codec; /* "gzip", "zstd", "none" */
	uint64_t size;
	int (*open)(void *ctx, struct err *err); /* a descriptor at its beginning */
	void *ctx;
};
struct node_submit {
	const char *run;
	int attempt;
	const char *job, *secrets, *record; /* files of the run as protocol.h has them; secrets and
	                                       record may be NULL */
	const char *apply;               /* NULL: nothing is to be removed before the last layer */
	const struct node_layer *layers; /* lowest first */
	size_t n_layers, n_spare;        /* spares hold the first n_spare */
	unsigned strip;
	const char *tool;    /* without which it is refused (E_NODE_TOOL); or NULL */
	uint64_t need_bytes; /* free space */
	/* The name of the node here: it keeps the attempt until one of several hosts takes it.
	 * NULL: the attempt begins there. */
	const char *pool;
	/* Bytes that were sent and are to be sent; may be NULL. */
	void (*progress)(void *ctx, uint64_t sent, uint64_t total);
	void *ctx;
};
struct node_submitted {
	uint64_t bytes_sent;
	unsigned layers_sent;
	bool spare; /* a tree made ahead was there */
};
/* Idempotent: begun anew over a new channel while it fails with ERR_NET, a transfer goes on where
 * it was cut. What request points to lives until done. */
struct node_call *node_submit(struct node *node, const struct node_submit *request,
	struct node_submitted *ret, node_done_fn *done, void *ctx);

struct node_attempt {
	char *run, *user, *record; /* user, record: of node_list only */
	int attempt;
	char *state;               /* as cli.md's run states; "absent": not known there */
	struct node_fields fields; /* key=value of its files */
};
const char *node_attempt_get(const struct node_attempt *attempt, const char *key); /* NULL: none */
int64_t node_attempt_int(const struct node_attempt *attempt, const char *key, int64_t missing);
struct node_attempts VEC_OF(struct node_attempt);
void node_attempts_done(struct node_attempts *attempts);

/* names: "RUN/N". Questions that are asked in one turn of the loop go together. */
struct node_call *node_state(struct node *node, const struct strv *names, struct node_attempts *ret,
	node_done_fn *done, void *ctx);
/* Of one attempt; a node that may take it (node_submit.pool) learns that, and that it is called
 * `as` here. */
struct node_call *node_state_as(struct node *node, const char *run, int attempt, const char *as,
	struct node_attempts *ret, node_done_fn *done, void *ctx);
struct node_call *node_list(
	struct node *node, struct node_attempts *ret, node_done_fn *done, void *ctx);

/* The program's output. */
struct node_log_events {
	/* Bytes from offset on. time_ms: their arrival there, by the clock of this machine; 0: not
	 * known. < 0: stop; those bytes count as not delivered. */
	int (*data)(void *ctx, uint64_t offset, const char *data, size_t len, int64_t time_ms,
		struct err *err);
	void (*notice)(void *ctx, const char *text); /* lost, back again; may be NULL */
	void *ctx;
};
struct node_log_request {
	const char *run;
	int attempt;
	uint64_t offset;    /* where to begin; past the end: nothing comes */
	int64_t tail_lines; /* -1: from offset */
	bool follow;        /* until the attempt has ended, over as many connections as it takes */
	int64_t timeout_ms; /* how long it is tried to reach the node again; -1: for ever */
	struct node_log_events events;
};
struct node_call *node_log(
	struct node *node, const struct node_log_request *request, node_done_fn *done, void *ctx);

struct node_call *node_stop(struct node *node, const char *run, int attempt, node_done_fn *done,
	void *ctx); /* cancel */
/* Stop an attempt on one of several hosts: how is "peer" or "drop" (protocol.h). */
struct node_call *node_stop_for(struct node *node, const char *run, int attempt, const char *how,
	node_done_fn *done, void *ctx);
/* An attempt that has not begun never will, or it has begun, or has ended otherwise. Idempotent;
 * the facts of the node are there when done is called. */
enum node_withdrawn {
	NODE_HAS_BEGUN,
	NODE_WITHDRAWN,
	NODE_WAS_ABSENT, /* none was there; it will not begin when it comes */
};
struct node_call *node_withdraw(struct node *node, const char *run, int attempt,
	enum node_withdrawn *ret, node_done_fn *done, void *ctx);
/* Let a held attempt begin; success if it has begun already. E_NODE_FAILED: it never will.
 * Idempotent. */
struct node_call *node_go(
	struct node *node, const char *run, int attempt, node_done_fn *done, void *ctx);
struct node_call *node_forget(
	struct node *node, const char *run, int attempt, bool all, node_done_fn *done, void *ctx);

/* A command beside the program (E_EXEC_NOT_FOUND, E_EXEC_NOT_EXECUTABLE), or (is_shell) the
 * terminal of ad-hoc work. */
struct node_exec_request {
	const char *run;
	int attempt;
	const struct strv *command; /* empty: a shell */
	bool is_shell;
	const struct channel_pty *pty; /* NULL: no terminal */
	int fds[3];                    /* stdin, stdout, stderr; -1: none */
};
struct node_call *node_exec(struct node *node, const struct node_exec_request *request,
	struct channel_exit *ret, node_done_fn *done, void *ctx);
/* Words for the script of versions of data (runner/73-store.sh); fds as those of node_exec. */
struct node_call *node_store(struct node *node, const struct strv *words, const int fds[3],
	struct channel_exit *ret, node_done_fn *done, void *ctx);
void node_exec_resize(struct node_call *call, unsigned columns, unsigned rows);

/* Results. */
struct node_file {
	char kind; /* 'd', 'f', 'l' */
	unsigned mode;
	uint64_t size;
	int64_t mtime_ms;
	char *path, *target; /* target: of a link */
};
struct node_files VEC_OF(struct node_file);
void node_files_done(struct node_files *files);
enum { NODE_FILES_MAX = 1000 * 1000 };
/* The part of the files to list. Not copied. */
struct node_files_scope {
	const char *path; /* NULL: all; else it alone, or what is below it */
	/* NULL: all; else regular files whose names match one of these patterns of find, or one
	 * with a slash "./" and their path. */
	const struct strv *like;
	int attempt; /* 0: results; else what lies in the tree of that attempt */
};
/* scope: NULL: all results. A path that is not there: an empty list. */
struct node_call *node_files(struct node *node, const char *run,
	const struct node_files_scope *scope, struct node_files *ret, node_done_fn *done,
	void *ctx);
struct node_want {
	const struct node_file *file;
	uint64_t offset, len; /* from there, at most so many bytes */
};
struct node_get_events {
	int (*begin)(void *ctx, size_t i, uint64_t size, struct err *err); /* of file i */
	int (*data)(void *ctx, size_t i, const void *data, size_t len, struct err *err);
	void *ctx;
};
/* Parts of n files, in order, in one stream; size is what is there of each. 0 where there was more:
 * it is no file any more. E_IO_CHANGED, behind all others: one became shorter while it was read,
 * what came of it is worthless. wants and paths live until done. scope: NULL, or what the files
 * were listed with: its attempt counts. */
struct node_call *node_get(struct node *node, const char *run, const struct node_files_scope *scope,
	const struct node_want *wants, size_t n, const struct node_get_events *events,
	node_done_fn *done, void *ctx);

/* Content-addressed data: whether it is there, else sent from a tar stream of fd. */
struct node_call *node_data(struct node *node, const char *key,
	int (*open)(void *ctx, struct err *err), void *open_ctx, node_done_fn *done, void *ctx);

struct node_freed {
	uint64_t layers_bytes, trees_bytes, data_bytes;
	size_t count;
};
struct node_call *node_gc(struct node *node, int64_t age_s, uint64_t keep_bytes, bool dry,
	struct node_freed *ret, node_done_fn *done, void *ctx);

/* Resources of a node and their use at a moment (`machine` of protocol.h). Below 0 (cpus: 0): not
 * known. */
struct node_meter {
	struct node_gpu gpu;
	double busy, power_w; /* busy: 0 to 1 */
	int64_t memory_used_bytes;
};
struct node_machine {
	double load; /* of one minute */
	unsigned cpus;
	int64_t memory_bytes, memory_free_bytes;
	struct VEC_OF(struct node_meter) gpus; /* by vendor and index */
	char *error;                           /* why there are none: the node's words; or NULL */
};
void node_machine_init(struct node_machine *machine);
void node_machine_done(struct node_machine *machine); /* NULL is accepted */

/* ret: initialised; filled anew. It may take 40 s where the tools for GPUs hang. */
struct node_call *node_machine(
	struct node *node, struct node_machine *ret, node_done_fn *done, void *ctx);

#endif
