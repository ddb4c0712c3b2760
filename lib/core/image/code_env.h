/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of an attempt's start that follow from the record: the variables that describe the code
 * to the program (the snapshot, its git commit, its image), and the job for the target.
 */
#ifndef DLRUN_CORE_IMAGE_CODE_ENV_H
#define DLRUN_CORE_IMAGE_CODE_ENV_H

#include "base/util/vec.h"
#include "core/record/run.h"
#include "core/record/spec.h"
#include "core/target/target.h"

/* Variables from the record as it is when the run is queued. defaults: only where nothing is
 * set. */
void run_code_env(const struct run *run, struct strv *env, struct strv *defaults);

/* The job for the newest attempt of run, from its specification, without handle, environments,
 * layout and image. Everything is borrowed. */
struct target_job run_code_job(const struct run *run, const struct spec *spec);

#endif
