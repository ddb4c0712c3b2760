/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that sends the code of a run to its nodes (app/runs/deliver.h).
 */
#ifndef DLRUN_APP_LIFECYCLE_DELIVERY_H
#define DLRUN_APP_LIFECYCLE_DELIVERY_H

#include "base/util/err.h"
#include "core/context/session.h"

/* Until the newest attempt of the run has ended; at once where another process does it. */
int delivery_run(struct session *session, const char *id, struct err *err);

#endif
