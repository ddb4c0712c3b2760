/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the local target: this machine. A handle is MACHINE:ID/N, so that with a state
 * directory on a shared home no machine judges another one's runs.
 */
#ifndef DLRUN_TARGETS_LOCAL_TARGET_LOCAL_H
#define DLRUN_TARGETS_LOCAL_TARGET_LOCAL_H

#include <stdbool.h>

#include "base/os/os.h"
#include "core/attempt/attempt.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target_work.h"

struct target_local {
	struct target target;
	struct session *session;
	char machine[OS_ID_SIZE];               /* empty: not known */
	struct pid_list VEC_OF(pid_t) children; /* started here, to be waited for */
};

static inline struct target_local *target_local_of(struct target *target)
{
	return (struct target_local *)target;
}

extern const struct target_ops target_local_ops;

/* name: how the user calls it; the session must outlive it. */
struct target *target_local_new(struct session *session, const char *name);

/* Find the attempt that a handle names. */
int local_place_find(
	struct target_local *local, const char *handle, struct attempt_place *ret, struct err *err);

/* Start `self __supervise dir`; *ret_fd: where it replies with one line (reply.h). scope: in a
 * systemd scope of its own, so that a logout does not end it. */
int local_start(struct target_local *local, const struct attempt_place *place,
	const struct strv *env, bool scope, int *ret_fd, struct err *err);
/* Whether that scope can be had and outlives the session: only where the user lingers. */
bool local_has_scope(const struct target_local *local);

/* Implementations of target_ops.submit, carry and exec. */
int local_submit(struct target *target, const struct target_job *job, struct target_call *call,
	struct err *err);
int local_carry(struct target *target, const char *handle, int rank, uint16_t port, int fd,
	struct target_call *call, struct err *err);
int local_exec(struct target *target, const char *handle, const struct target_exec_request *request,
	int *ret_status, struct target_call *call, struct err *err);

#endif
