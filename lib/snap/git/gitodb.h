/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adding objects and a reference to a repository so that a crash at any moment leaves nothing but
 * one directory of ours: objects/tmp_objdir-dlrun-*, a name that git's own clean-up knows. It is
 * filled there and moved in place by rename, objects before the reference.
 *
 * A process holds a lock in its directory while it lives; gitodb_sweep removes those of dead ones.
 */
#ifndef DLRUN_SNAP_GIT_GITODB_H
#define DLRUN_SNAP_GIT_GITODB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/err.h"

struct gitodb;

/* The objects of the repository whose common directory this is. */
int gitodb_open(const char *common_dir, struct gitodb **ret, struct err *err);
/* Removes what was added and not published. */
void gitodb_free(struct gitodb *db);
AUTO_POINTER(struct gitodb, gitodb_free)
#define AUTO_GITODB AUTO(gitodb_free_auto)

bool gitodb_has(struct gitodb *db, const uint8_t oid[static SHA1_SIZE]);

/* Call this before the first gitodb_add. pack: all objects will go into one pack. Fails where the
 * repository cannot be written to. */
int gitodb_begin(struct gitodb *db, bool pack, struct err *err);
enum gitodb_type { GITODB_BLOB, GITODB_TREE, GITODB_COMMIT };
int gitodb_add(struct gitodb *db, enum gitodb_type type, const void *data, size_t len,
	uint8_t ret_oid[static SHA1_SIZE], struct err *err);
/* Make what was added visible, then let ref (a full name) point to oid, whatever it was. */
int gitodb_publish(
	struct gitodb *db, const char *ref, const uint8_t oid[static SHA1_SIZE], struct err *err);

/* Remove leftovers of processes that died. Best effort. */
void gitodb_sweep(const char *common_dir);

/* Remove ref if it points to the commit with these hex digits (NULL: whatever it points to); gone
 * already is success. */
int gitodb_remove_ref(const char *git_dir, const char *common_dir, const char *ref,
	const char *commit, struct err *err);

#endif
