/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts that a submit learns only after the start: the git record and how long it took. They are
 * kept in a file of the run's directory, which needs no sync, and join the record with the next
 * step of the run's state.
 */
#ifndef DLRUN_CORE_RECORD_FINISH_H
#define DLRUN_CORE_RECORD_FINISH_H

#include <stdbool.h>

#include "base/util/err.h"
#include "core/record/dirs.h"
#include "core/record/run.h"

#define RUN_FINISH "finish.json"

/* Write them from the members of run's doc. */
int finish_write(const struct dirs *dirs, const struct run *run, struct err *err);
/* Merge them into run's doc, if they are not there yet: returns whether it changed. */
bool finish_merge(const struct dirs *dirs, struct run *run);

#endif
