/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A destination that takes nothing: what would be written there.
 */
#ifndef DLRUN_OCI_LAYOUT_DRY_SINK_H
#define DLRUN_OCI_LAYOUT_DRY_SINK_H

#include "oci/model/blob.h"

/* Whether the real destination has the blob. */
typedef bool dry_sink_has_fn(void *ctx, const struct descriptor *blob);
/* name: of the real destination; stage_dir_fd: for layers that are made to be measured. Both
 * outlive the sink. The manifest is not counted. */
struct sink *dry_sink(const char *name, int stage_dir_fd, dry_sink_has_fn *has, void *ctx);

#endif
