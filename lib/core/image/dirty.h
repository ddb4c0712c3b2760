/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a working tree that are being edited, kept from one push to the next: those that the
 * stat cache does not vouch for. If one of them has changed since the last push, there will be
 * something to upload, and that is known before the tree is scanned.
 *
 * This is only a guess about what to start early; a wrong one costs an upload session.
 */
#ifndef DLRUN_CORE_IMAGE_DIRTY_H
#define DLRUN_CORE_IMAGE_DIRTY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "snap/tree/paths.h"

enum { DIRTY_MAX = 64, DIRTY_MARK_SIZE = 65 };

struct dirty_file {
	char *path;                 /* relative to the root */
	char mark[DIRTY_MARK_SIZE]; /* of its stat data */
};
struct dirty_files VEC_OF(struct dirty_file);

struct dirty {
	struct dirty_files before, now;
	bool known; /* there was a push before, with not too many of them */
};

/* If the file is missing or damaged, nothing is known. */
void dirty_load(const char *path, struct dirty *ret);
void dirty_done(struct dirty *dirty);
#define AUTO_DIRTY AUTO(dirty_done)
/* Whether a file of the last push has changed since; false where nothing is known. */
bool dirty_has_changed(const struct dirty *dirty, const char *root);
/* Keep the paths that the snapshot will read for dirty_save. Returns whether they mean that
 * something has changed since the last push. */
bool dirty_add(struct dirty *dirty, const struct path *const *paths, size_t n);
/* Call after a push. */
int dirty_save(const char *path, const struct dirty *dirty, struct err *err);

#endif
