/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TensorBoard beside the program of one run, wherever that is: found at a port of the run, else
 * started there, in the program's environment, over all that the run has written. It ends with the
 * command that has started it.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_REMOTE_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_REMOTE_H

#include "app/tensorboard/tensorboard_link.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"

struct tensorboard_remote_options {
	struct session *session;
	const struct run *run; /* lives as long */
	const char *secret;    /* "/RANDOM"; lives as long */
	void (*notice)(void *ctx, const char *text);
	void *ctx;
};

/* Begins to probe the ports of the run and 6006. The run has begun. E_RUN_ENDED;
 * E_TARGET_UNSUPPORTED. To be freed outside of the loop, which runs until what was started there
 * has stopped, 3 s at most. */
int tensorboard_remote_open(const struct tensorboard_remote_options *options,
	struct tensorboard_server **ret, struct err *err);

#endif
