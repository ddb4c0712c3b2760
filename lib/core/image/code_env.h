/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an attempt is started with that follows from the record: what the program is told of its
 * code (the snapshot, its git commit, its image), and the job for the target.
 */
#ifndef DLRUN_CORE_IMAGE_CODE_ENV_H
#define DLRUN_CORE_IMAGE_CODE_ENV_H

#include "base/util/vec.h"
#include "core/record/run.h"
#include "core/record/spec.h"
#include "core/target/target.h"

/* From the record, as it is when the run is queued. defaults: only where nothing is set. */
void run_code_env(const struct run *run, struct strv *env, struct strv *defaults);

/* The newest attempt of run as its specification has it; what is left out: handle, environments,
 * layout, image. Everything is borrowed. */
struct target_job run_code_job(const struct run *run, const struct spec *spec);

#endif
