/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freeing what is no longer needed on this machine.
 */
#ifndef DLRUN_APP_GC_GC_H
#define DLRUN_APP_GC_GC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"

/* Free what nobody needs: temporary files, trees of runs that ended more than keep_ms ago, images
 * and plans of removed runs, stat caches of trees without a run, spare trees when space is short
 * (or with keep_ms 0 when no run is left to end). Never records, logs, outputs. What a submit at
 * work may need is left for the next time. dry_run only counts; what becomes free by other removals
 * is not in it. One thing that cannot be removed does not keep the others: the first failure is
 * returned at the end. Blocks. */
struct gc_report {
	uint64_t bytes;
	size_t trees, blobs, files; /* trees: spare ones, too; files: strays, temporary, caches */
};
int gc_local(struct session *session, int64_t keep_ms, bool dry_run, struct gc_report *ret,
	struct err *err);

#endif
