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
