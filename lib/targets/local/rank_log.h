/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of all ranks of an attempt on this machine at once, line by line, in the order in
 * which it comes. A token has the token of each rank (attempt_log_read), by rank, with commas.
 */
#ifndef DLRUN_TARGETS_LOCAL_RANK_LOG_H
#define DLRUN_TARGETS_LOCAL_RANK_LOG_H

#include "core/attempt/attempt.h"

/* As attempt_log_read, for the ranks from 0 to n - 1; place is borrowed. */
void rank_log_read(struct loop *loop, const struct attempt_place *place, int n,
	const struct target_log_request *request, char *token, struct target_call *call);

#endif
