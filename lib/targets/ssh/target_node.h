/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the ssh target: machines with a login. A handle is ssh:HOST/RUN/N, with HOST as ssh
 * knows it from here; of a run of several hosts all of them, with commas (target_gang.h). What
 * is done there is lib/node's; this is how a run looks at it.
 */
#ifndef DLRUN_TARGETS_SSH_TARGET_NODE_H
#define DLRUN_TARGETS_SSH_TARGET_NODE_H

#include <stdbool.h>

#include "base/data/json.h"
#include "core/context/session.h"
#include "core/target/target_work.h"
#include "node/node.h"
#include "targets/ssh/node_open.h"

/* The tree, and what is made ahead of it. */
enum { NODE_TREE_FACTOR = 2 };

struct target_node {
	struct target target;
	struct session *session;
	struct json *definition; /* of the target in the configuration; or NULL */
	char *root;              /* dir: */
	struct strv hosts;       /* that it may be; at least one */
	/* The host that runs go to, or several as in a handle; NULL: not chosen yet. */
	char *chosen;
	struct strv pool; /* those that it may be moved to while it waits; or empty */
	char *why;        /* one sentence about the choice; or NULL */
	char *runtime;    /* podman, docker; NULL: programs run on the host itself */
	/* Of members of studies with a limit: of the last one that was prepared; 0: none. The
	 * limit of the recorded host; 0: none. Hosts that turned out to be of no use. */
	int parallel, recorded_slots;
	struct strv passed_over;
	char *last_notice; /* or NULL; and when */
	int64_t last_notice_ms;
};

static inline struct target_node *target_node_of(struct target *target)
{
	return (struct target_node *)target;
}

extern const struct target_ops target_node_ops;

/* "ssh:HOST[,HOST…]" */
bool target_node_is(const char *name);
/* name: how the user calls it. hosts: NULL: those of the definition, else those of name behind
 * "ssh:". root: NULL: that of the definition. */
int target_node_new(struct session *session, const char *name, const struct json *definition,
	const struct strv *hosts, const char *root, struct target **ret, struct err *err);
/* The target of a run's record (its member target). */
int target_node_recorded(struct session *session, const char *name, const struct json *definition,
	const struct json *recorded, struct target **ret, struct err *err);

/* How many members of a study of which `parallel` run at once in all run on the host; 0: any. */
int target_node_slots(const struct target_node *node, const char *host, int parallel);

/* The parts of a handle. */
struct node_handle {
	char *host;
	char run_id[RUN_ID_SIZE];
	int attempt;
};
int node_handle_parse(const char *handle, struct node_handle *ret, struct err *err);
void node_handle_done(struct node_handle *handle);
char *node_handle_text(const char *host, const char *run_id, int attempt); /* the caller frees */

/* An operation on one host: first member of the struct that carries it out. */
struct node_work {
	struct target_work work; /* release frees what is the operation's own, then the struct */
	struct target_node *target;
	struct target_call *call;
	struct node_handle handle;
	struct node_host *host;      /* the session's */
	struct node_call *requested; /* is forgotten with the operation */
	struct loop_timer *timer;
	void (*release)(struct node_work *work);
};
/* Takes work, allocated with its release set, over: after a failure it is gone. Then the operation
 * sets requested. */
int node_work_begin(struct target *target, const char *handle, struct node_work *work,
	struct target_call *call, struct err *err);
/* The same on the host that work->handle names already. */
int node_work_begin_there(
	struct target *target, struct node_work *work, struct target_call *call, struct err *err);
/* Extends the operation's timeout: ms from now on (-1: no limit). */
void node_work_extend(struct node_work *work, int64_t ms);
/* For node_done_fn: requested is over; ends the call. */
int node_work_end(struct node_work *work, int status, struct err *error);
/* The same as a node_done_fn: ctx is the node_work. */
int node_work_done(void *ctx, int status, struct err *error, struct err *err);

/* Notes here that the attempt was accepted, whatever becomes of the node. */
void node_note_accepted(const struct target_node *target, const struct node_handle *handle);
/* target_ops.submit of one host, or of one rank: then it is added to what was sent. is_pooled: the
 * host keeps it until one of several takes it (target_pool.h). */
struct node_rank;
int node_submit_rank(struct target *target, const struct target_job *job,
	const struct node_rank *rank, bool is_pooled, struct target_call *call, struct err *err);

/* target_ops.fetch of one host; prefix: of paths here, or NULL. */
int node_fetch_rank(struct target *target, const char *handle, const char *prefix,
	struct fetch_sink *sink, struct target_call *call, struct err *err);

int target_node_logs(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err);
int target_node_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err);
int target_node_preview(struct target *target, const struct target_job *job, struct json **ret,
	struct strv *ret_notes, struct err *err);
int target_node_relay(struct target *target, const char *handle, int rank, uint16_t port, int fd,
	struct target_call *call, struct err *err);
int target_node_exec(struct target *target, const char *handle,
	const struct target_exec_request *request, int *ret_status, struct target_call *call,
	struct err *err);
int target_node_store(struct target *target, const struct target_store_request *request,
	int *ret_status, struct target_call *call, struct err *err);
int target_node_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err);

int target_node_adopt(struct target *target, const char *id, struct run_list *ret,
	struct target_call *call, struct err *err);

/* Status of an attempt from its files on the node (node NULL: its clock is right). An engine. */
void target_node_status(
	const struct node *node, const struct node_attempt *attempt, struct target_status *ret);

#endif
