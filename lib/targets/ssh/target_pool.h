/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the ssh target: attempts that wait on several hosts with one home, until the first of
 * them takes it (runner/56-pool.sh). Their handle names all of them with `|`, the one that keeps
 * the ticket first: ssh:HOST|HOST/RUN/N. When one has taken it, target_status.handle is that of an
 * attempt on one host, and so is the record's from then on.
 */
#ifndef DLRUN_TARGETS_SSH_TARGET_POOL_H
#define DLRUN_TARGETS_SSH_TARGET_POOL_H

#include "targets/ssh/target_node.h"

#define NODE_POOL_BETWEEN "|"

bool node_handle_is_pool(const char *handle);

/* target_ops, for such handles. state also tells hosts of the attempt that have not heard of it.
 * Any host that answers has carried cancel and forget out. */
int target_pool_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err);
int target_pool_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err);
int target_pool_logs(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err);
/* Verbs as of gang_tell; ret_taken: of "withdraw". */
int target_pool_tell(struct target *target, const char *handle, const char *verb, bool *ret_taken,
	struct target_call *call, struct err *err);

/* Sets the status' handle and what the record says of the target: the attempt is on that host. */
void target_pool_set_host(
	const struct node_handle *handle, const char *host, struct target_status *ret);

#endif
