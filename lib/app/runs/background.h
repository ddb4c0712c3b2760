/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This program once more, in the background: in a session of its own, without a terminal, and in
 * no directory that somebody may want to unmount.
 */
#ifndef DLRUN_APP_RUNS_BACKGROUND_H
#define DLRUN_APP_RUNS_BACKGROUND_H

#include <sys/types.h>

#include "base/util/err.h"
#include "core/context/session.h"

/* argv[0] is session->env.self. The environment is this one's, and means the same files there. The
 * caller waits for *ret_pid. Blocks until exec. */
int background_start(
	struct session *session, const char *const *argv, pid_t *ret_pid, struct err *err);

#endif
