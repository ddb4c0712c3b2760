/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freeing what is no longer needed on this machine, and what dlrun keeps on hosts.
 */
#ifndef DLRUN_APP_GC_GC_H
#define DLRUN_APP_GC_GC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "node/node.h"

/* Of a setup that was done, after its last use. */
#define GC_SETUP_KEEP_MS (INT64_C(30) * 24 * 3600 * 1000)

/* Free what nobody needs: temporary files, trees of runs that ended more than keep_ms ago, images
 * and plans of removed runs, studies without members, stat caches of trees without a run, spare
 * trees when space is short (or with keep_ms 0 when no run is left to end). Never records of runs,
 * logs, outputs. What a submit at work may need is left for the next time. dry_run only counts;
 * what becomes free by other removals is not in it. One thing that cannot be removed does not keep
 * the others: the first failure is returned at the end. Blocks. */
struct gc_report {
	uint64_t bytes;
	size_t trees, blobs, files; /* trees: spare ones, too; files: strays, temporary, caches */
};
int gc_local(struct session *session, int64_t keep_ms, bool dry_run, struct gc_report *ret,
	struct err *err);
/* The part of it for setups (setup.h), at now_ms of the wall clock; adds to *ret. */
int gc_setups(struct session *session, int64_t keep_ms, int64_t now_ms, bool dry_run,
	struct gc_report *ret, struct err *err);

#define GC_NODE_BYTES (UINT64_C(10) << 30) /* of layers and data that may stay */

/* Free trees of ended runs, layers and data that nobody needs. name: a host, or a target of kind
 * ssh, whose hosts are all cleaned; what they freed together. keep_ms: how old things must be.
 * Runs, their logs and outputs are never removed. Blocks. */
int gc_node(struct session *session, const char *name, int64_t keep_ms, bool dry_run,
	struct node_freed *ret, struct err *err);

#endif
