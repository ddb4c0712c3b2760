/*
 * Removing a run.
 */
#ifndef DLRUN_RUN_REMOVE_H
#define DLRUN_RUN_REMOVE_H

#include "base/err.h"
#include "run/run.h"
#include "run/session.h"

/* Forget: record, log, outputs here, git ref. E_RUN_RUNNING unless it has ended; E_IO_LOCK when
 * its supervisor or submit is still at work after some seconds. Stopped at any moment it can be
 * repeated; the image is left to gc_local. Blocks. */
int run_remove(struct session *session, struct run *run, struct err *err);

#endif
