/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the ssh target: runs of several hosts (gang.h). Their handle names all of them in
 * the order of the ranks, with commas: ssh:HOST,HOST/RUN/N. Each rank is an attempt on its node as
 * that of one host is, which is held until all are ready.
 */
#ifndef DLRUN_TARGETS_SSH_TARGET_GANG_H
#define DLRUN_TARGETS_SSH_TARGET_GANG_H

#include "targets/ssh/gang.h"
#include "targets/ssh/target_node.h"

enum { GANG_HOLD_MS = 15 * 60 * 1000, GANG_TOKEN_ROOM = 24 };

bool node_handle_is_gang(const char *handle);
/* The hosts that it names. */
void node_handle_split(const char *hosts, struct strv *ret);
/* The handle of one rank (< 0: the first), of one host too; the caller frees. E_USAGE: there is no
 * such rank. */
int node_handle_rank(const char *handle, int rank, char **ret, struct err *err);
/* How others reach the host: what the configuration connects to. */
const char *gang_address(const struct node_host *host);

/*
 * The hosts of a run, which are asked together
 */

struct gang;
struct gang_place {
	struct gang *gang;
	struct node_host *host; /* the session's */
	struct node_call *asked;
	struct node_attempts found;
	struct err fault; /* of the last question; not set: answered */
	bool is_answered;
};
struct gang {
	struct target_node *node;
	struct node_handle handle; /* its host: all of them */
	struct strv hosts, names;
	struct gang_place *places; /* as many as hosts */
	size_t n_open;
	/* All have answered; not from within the call that asked. */
	void (*done)(struct gang *gang);
	/* Of gang_look */
	struct gang_view view;
	struct gang_rank *ranks;
	enum gang_step *steps;
};
/* Zeroed before. gang_close forgets what is asked, and accepts one that was not opened. */
int gang_open(struct target *target, const char *handle, struct gang *gang, struct err *err);
void gang_close(struct gang *gang);
/* Asks all for their attempts; what is known here is looked at before. */
void gang_ask(struct gang *gang, void (*done)(struct gang *gang));
/* The answers as ranks of gang_judge. Whether all have answered. */
bool gang_take(struct gang *gang);
/* Takes the steps; whether there was one: then done is called. */
bool gang_take_steps(struct gang *gang, void (*done)(struct gang *gang));
/* The first place with a fault, explained; NULL: none has. */
struct gang_place *gang_failed(struct gang *gang);
/* Sends verb to all hosts; cancels requests that are open. verb: "stop", "forget", "forget all",
 * "drop", "go". */
void gang_tell(struct gang *gang, const char *verb, void (*done)(struct gang *gang));

/* target_ops, for handles of several hosts */
int target_gang_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err);
int target_gang_logs(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err);
int target_gang_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err);
int target_gang_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err);
int target_gang_tell(struct target *target, const char *handle, const char *verb,
	struct target_call *call, struct err *err);

#endif
