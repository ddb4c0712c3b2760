/*
 * The image that a run's code is in, by its reference, wherever that is: for those who read its
 * layers.
 */
#ifndef DLRUN_RUN_CODE_H
#define DLRUN_RUN_CODE_H

#include "base/err.h"
#include "oci/image.h"
#include "oci/layout.h"
#include "run/session.h"

struct code {
	struct layout *layout; /* that holds the image and dlrun's own layers of it */
	struct layout *opened; /* the same unless it is the session's */
	struct image image;
};

/* ref: "oci:DIR@sha256:…", or "HOST/REPO@sha256:…", whose own layers are fetched into the cache
 * (run/code_pull.h; blocks). E_IMAGE_BASE: no image of a run, or not there any more. */
int code_open(struct session *session, const char *ref, struct code *ret, struct err *err);
void code_done(struct code *code);

#endif
