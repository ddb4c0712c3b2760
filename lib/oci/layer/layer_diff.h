/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compute the layer that turns one list of entries into another (OCI image-spec, layer.md,
 * "Representing Changes"). An engine.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_DIFF_H
#define DLRUN_OCI_LAYER_LAYER_DIFF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/entry.h"
#include "base/util/vec.h"

/* Entries that live elsewhere, sorted by path, none the directory of another. */
struct entry_refs VEC_OF(const struct entry *);

/* The tree of lower with upper on top of it: what upper does not replace. An entry of upper hides
 * one at its path, those below its path, and a file or link where upper needs a directory. */
void entry_refs_cover(
	const struct entry_refs *lower, const struct entry_refs *upper, struct entry_refs *ret);

struct layer_diff {
	struct entry_refs entries; /* of `to`: new ones and changed ones */
	struct strv whiteouts;     /* sorted; of whole directories where nothing of them is left */
};

/* From one tree to another. What turns into another kind needs no whiteout: an entry replaces
 * whatever has its path, a directory any file or link. false, and nothing returned, when it would
 * be more than max entries and whiteouts. */
bool layer_diff_make(const struct entry_refs *from, const struct entry_refs *to, size_t max,
	struct layer_diff *ret);
void layer_diff_done(struct layer_diff *diff);
#define AUTO_LAYER_DIFF AUTO(layer_diff_done)

#endif
