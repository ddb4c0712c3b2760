/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of targets on many runs: CALLS_AT_ONCE of them are in flight together, or as many as
 * the caller says.
 */
#ifndef DLRUN_APP_LIFECYCLE_CALLS_H
#define DLRUN_APP_LIFECYCLE_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/target/target.h"

enum { CALLS_AT_ONCE = 64 };

struct calls {
	size_t n;
	size_t at_once;     /* 0: CALLS_AT_ONCE */
	int64_t timeout_ms; /* of each */
	/* Start operation i; the call is that of the operation. */
	int (*start)(void *ctx, size_t i, struct target_call *call, struct err *err);
	/* Operation i has ended, or could not be started. Called outside of the loop: the target
	 * may be freed. */
	void (*done)(void *ctx, size_t i, int status, struct err *err);
	void *ctx;
	const volatile int *interrupted; /* may be NULL */
};
/* Blocks. Fails when the loop does, or when interrupted: the operations for which done was not
 * called have no result then. */
int calls_run(struct loop *loop, const struct calls *calls, struct err *err);

#endif
