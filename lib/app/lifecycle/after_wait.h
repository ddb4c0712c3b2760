/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for the runs that another one begins after, wherever they are.
 *
 * A run on this machine is waited for in the kernel, by the lock of its supervisor. The others are
 * polled by one process for all that wait here, which is the one that has the lock in
 * STATE/queue/poll; the rest read the store now and then. Nothing is changed but the records of the
 * runs that are waited for, and gangs that failed start again as for any that watches (restart.h).
 */
#ifndef DLRUN_APP_LIFECYCLE_AFTER_WAIT_H
#define DLRUN_APP_LIFECYCLE_AFTER_WAIT_H

#include "app/runs/after_check.h"

/* after_check; gangs that failed start again, and are waited for. */
int after_check_again(struct session *session, const struct after_list *list,
	struct after_check *ret, struct err *err);

/* Returns with AFTER_MET or AFTER_NEVER, or E_CANCELED when the reader of out_fd, a pipe, has gone.
 * Blocks. */
int after_wait(struct session *session, const struct after_list *list, int out_fd,
	struct after_check *ret, struct err *err);

#endif
