/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of runs at experiment trackers in a program's output: Weights & Biases
 * (https://wandb.ai/ENTITY/PROJECT/runs/ID, or another host in a line that speaks of wandb or says
 * "View run") and MLflow (…#/experiments/N/runs/ID, also without #). An engine: bytes in, addresses
 * out.
 *
 * Only http and https, and only printable ASCII that a URL may have. User names, passwords and the
 * query from "?" on are removed: anonymous W&B addresses have a key there.
 */
#ifndef DLRUN_CORE_RECORD_LINKS_H
#define DLRUN_CORE_RECORD_LINKS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "base/util/vec.h"

enum { LINKS_MAX = 32, LINKS_URL_MAX = 500, LINKS_LINE_MAX = 2048 };

struct links {
	struct strv found; /* each once, in the order of their first appearance */
	struct buf line;   /* the line that is not at its end */
};

void links_init(struct links *links);
/* The next bytes of the output. */
void links_add(struct links *links, const char *data, size_t len);
/* The output is at its end for now: a line without an end counts, too. */
void links_end(struct links *links);
bool links_full(const struct links *links);
void links_done(struct links *links);

#endif
