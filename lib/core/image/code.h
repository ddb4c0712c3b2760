/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The image that holds a run's code, opened by its reference, wherever it lies: for readers of its
 * layers.
 */
#ifndef DLRUN_CORE_IMAGE_CODE_H
#define DLRUN_CORE_IMAGE_CODE_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/record/spec.h"
#include "core/target/target.h"
#include "oci/image/image.h"
#include "oci/layout/layout.h"
#include "oci/model/ref.h"

struct code {
	struct layout *layout; /* that holds the image and dlrun's own layers of it */
	struct layout *opened; /* the same unless it is the session's */
	struct image image;
};

/* ref: "oci:DIR@sha256:…", or "HOST/REPO@sha256:…". Of the latter the parts that are missing here
 * (manifest, configuration, dlrun's own layers; never those of the base) are fetched into the
 * cache, every byte checked; blocks. E_IMAGE_BASE: not an image of a run, or not there any more. */
int code_open(struct session *session, const char *ref, struct code *ret, struct err *err);
void code_done(struct code *code);
/* E_IMAGE_BASE: why the record of run names no image. */
int code_fail_missing(const struct run *run, struct err *err);

/* The entries of a run's code, from its layers. These three: E_IMAGE_BASE when its image was never
 * made or is gone. */
int run_entries(
	struct session *session, const struct run *run, struct entry_list *ret, struct err *err);
/* Write a single file of the run's code to out_fd. */
int run_read_file(struct session *session, const struct run *run, const char *path, int out_fd,
	struct err *err);
/* Write a run's exact tree into a directory that is missing or empty (E_CHECKOUT_DIR otherwise, and
 * for the current one), seen from the session's; modes as git would give them. The tree appears as
 * a whole, or not at all. */
int run_checkout(struct session *session, const struct run *run, const char *dir, struct err *err);

/*
 * The parts of an attempt's start that follow from the record: the variables that describe the code
 * to the program (the snapshot, its git commit, its image), and the job for the target.
 */

/* Variables from the record as it is when the run is queued. defaults: only where nothing is
 * set. */
void run_code_env(const struct run *run, struct strv *env, struct strv *defaults);

/* The job for the newest attempt of run, from its specification, without handle, environments,
 * layout and image. Everything is borrowed. */
struct target_job run_code_job(const struct run *run, const struct spec *spec);

#endif
