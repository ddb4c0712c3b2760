/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TensorBoard beside the program of one run, wherever that is: found at a port of the run, else
 * started there, in the program's environment, over all that the run has written. It ends with the
 * command that has started it.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_REMOTE_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "app/tensorboard/tensorboard_link.h"
#include "base/util/auto.h"
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

struct tensorboard_remote;
/* Begins to probe the ports of the run and 6006. The run has begun. E_RUN_ENDED;
 * E_TARGET_UNSUPPORTED. */
int tensorboard_remote_open(const struct tensorboard_remote_options *options,
	struct tensorboard_remote **ret, struct err *err);
/* Stop what was started there; runs the loop for that, 3 s at most. NULL is accepted. */
void tensorboard_remote_free(struct tensorboard_remote *remote);
AUTO_POINTER(struct tensorboard_remote, tensorboard_remote_free)

/* As tensorboard_local_poll. What was found, not started, is not polled again. */
int tensorboard_remote_poll(struct tensorboard_remote *remote, struct err *err);
/* Once it answers. */
const char *tensorboard_remote_version(const struct tensorboard_remote *remote);
/* Port of TensorBoard beside the program. */
uint16_t tensorboard_remote_port(const struct tensorboard_remote *remote);
/* Whether TensorBoard was already running, and so does not know the secret. */
bool tensorboard_remote_was_found(const struct tensorboard_remote *remote);
void tensorboard_remote_link(struct tensorboard_remote *remote, struct tensorboard_link *ret);

#endif
