/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freeing what dlrun keeps on hosts: trees of ended runs, layers and data that nobody needs.
 */
#ifndef DLRUN_APP_GC_GC_NODE_H
#define DLRUN_APP_GC_GC_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "node/node.h"

#define GC_NODE_BYTES (UINT64_C(10) << 30) /* of layers and data that may stay */

/* name: a host, or a target of kind ssh, whose hosts are all cleaned; what they freed together.
 * keep_ms: how old things must be. Runs, their logs and outputs are never removed. Blocks. */
int gc_node(struct session *session, const char *name, int64_t keep_ms, bool dry_run,
	struct node_freed *ret, struct err *err);

#endif
