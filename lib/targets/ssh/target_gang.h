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

bool node_handle_is_gang(const char *handle);
/* The hosts that it names, also those of target_pool.h. */
void node_handle_split(const char *hosts, struct strv *ret);
/* The handle of one rank (< 0: the first), of one host too; the caller frees. E_USAGE: there is no
 * such rank. */
int node_handle_rank(const char *handle, int rank, char **ret, struct err *err);

/* The hosts of an attempt, ranks or those that it waits on (target_pool.h), which are asked
 * together. */
struct gang;
struct gang_place {
	struct gang *gang;
	struct node_host *host; /* the session's; NULL: see gang_open */
	struct node_call *requested;
	struct node_attempts found;
	struct err error; /* of the last question; not set: answered */
	bool is_answered;
	enum node_withdrawn withdrawn;
};
struct gang {
	struct target_node *node;
	struct node_handle handle; /* its host: all of them */
	struct strv hosts, names;
	struct strv ranks_called;  /* as hosts, of a run with roles; else empty */
	struct gang_place *places; /* as many as hosts */
	size_t ends_first, ends_n; /* as of gang_view */
	size_t n_open;
	/* All have answered; not from within the call that asked. */
	void (*done)(struct gang *gang);
	bool (*is_enough)(const struct gang_place *place); /* done after this one; or NULL */
	int64_t settle_ms; /* how long the others are waited for after the first; -1: no limit */
	struct loop_timer *timer;
	void (*late)(struct gang *gang);
	struct gang_view view; /* of gang_begin */
	struct gang_rank *ranks;
	enum gang_step *steps;
};

/* Zeroed before. may_lack: one whose name is of no use any more has an error, and hides no other.
 * gang_close forgets what is asked, and accepts one that was not opened. */
int gang_open(struct target *target, const char *handle, bool may_lack, struct gang *gang,
	struct err *err);
void gang_close(struct gang *gang);
/* Whether a process of this machine still submits the run. */
bool gang_is_submitting(const struct gang *gang);
/* The timer takes the place of the one that is set; at_ms of clock_ms(). late NULL: none. */
void gang_set_timer(struct gang *gang, int64_t at_ms, void (*late)(struct gang *gang));
/* Sends verb to the hosts from first to before end; cancels requests that are open. verb: "stop",
 * "forget", "forget all", "drop", "go", "withdraw", "state". Where there is none to be asked, done
 * is called from the timer. */
void gang_tell(struct gang *gang, const char *verb, size_t first, size_t end,
	void (*done)(struct gang *gang));
/* The first error, explained, or of a host that has not answered; NULL: none has failed. */
struct err *gang_failed(struct gang *gang);

/* An operation on all of them. */
struct gang_work {
	struct target_work work;
	struct gang gang;
	struct target_call *call;
	bool is_stop;
	bool *ret_taken;                  /* of withdraw */
	struct target_status *ret, found; /* of state */
	struct err error;                 /* of state: of a host that has not answered */
};
static inline struct gang_work *gang_work_of(struct gang *gang)
{
	return CONTAINER_OF(gang, struct gang_work, gang);
}
/* The call has begun, and view has what is known here, before nodes are asked: what they say is at
 * least as new. */
int gang_begin(struct target *target, const char *handle, bool may_lack, struct target_call *call,
	struct gang_work **ret, struct err *err);

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
int target_gang_withdraw(struct target *target, const char *handle, bool *ret_taken,
	struct target_call *call, struct err *err);
int target_gang_broadcast(struct target *target, const char *handle, const char *verb,
	struct target_call *call, struct err *err);

#endif
