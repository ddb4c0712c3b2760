/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pulling the code of an image in a registry: the parts that are missing here (manifest,
 * configuration, dlrun's own layers; never those of the base) are fetched into the cache, every
 * byte checked.
 */
#ifndef DLRUN_CORE_IMAGE_CODE_PULL_H
#define DLRUN_CORE_IMAGE_CODE_PULL_H

#include "base/util/err.h"
#include "core/context/session.h"
#include "oci/layout/layout.h"
#include "oci/model/ref.h"

/* ref: HOST/REPO@sha256:…, as runs name it (the request for a `pull:` of the configuration goes to
 * its `push:`). *ret is a layout in which image_load finds it. Blocks. E_IMAGE_BASE, E_IMAGE,
 * registry.*, http.*. */
int code_pull(struct session *session, const struct ref *ref, struct layout **ret, struct err *err);

#endif
