/*
 * What a program is told of its code: the snapshot, its git commit, its image.
 */
#ifndef DLRUN_RUN_CODE_ENV_H
#define DLRUN_RUN_CODE_ENV_H

#include "base/vec.h"
#include "run/run.h"

/* From the record, as it is when the run is queued. defaults: only where nothing is set. */
void run_code_env(const struct run *run, struct strv *env, struct strv *defaults);

#endif
