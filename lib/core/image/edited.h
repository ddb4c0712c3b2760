/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a working tree that are being edited, kept from one push to the next: those that the
 * stat cache does not vouch for. If one of them has changed since the last push, there will be
 * something to upload, and that is known before the tree is scanned.
 *
 * This is only a guess about what to start early; a wrong one costs an upload session.
 */
#ifndef DLRUN_CORE_IMAGE_EDITED_H
#define DLRUN_CORE_IMAGE_EDITED_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "snap/tree/paths.h"

enum { EDITED_MAX = 64, EDITED_MARK_SIZE = 65 };

struct edited_file {
	char *path;                  /* relative to the root */
	char mark[EDITED_MARK_SIZE]; /* of its stat data */
};
struct edited_files VEC_OF(struct edited_file);

struct edited {
	struct edited_files before, now;
	bool known; /* there was a push before, with not too many of them */
};

/* If the file is missing or damaged, nothing is known. */
void edited_load(const char *path, struct edited *ret);
void edited_done(struct edited *edited);
#define AUTO_EDITED AUTO(edited_done)
/* Whether a file of the last push has changed since; false where nothing is known. */
bool edited_has_changed(const struct edited *edited, const char *root);
/* Keep the paths that the snapshot will read for edited_save. Returns whether they mean that
 * something has changed since the last push. */
bool edited_add(struct edited *edited, const struct path *const *paths, size_t n);
/* Call after a push. */
int edited_save(const char *path, const struct edited *edited, struct err *err);

#endif
