/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of one directory, sorted as the paths below it are: a directory counts as its name with
 * a slash.
 */
#ifndef DLRUN_SNAP_TREE_LISTING_H
#define DLRUN_SNAP_TREE_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/vec.h"

enum { LISTING_TEXT_MAX = 256 << 20 }; /* bytes of all names of one directory */

struct listing_item {
	const char *name;
	uint32_t len;
	uint8_t type; /* DT_DIR, DT_REG, DT_LNK, or one of the special kinds */
};

/* May be reused; without ".", ".." and ".git". */
struct listing {
	struct VEC_OF(struct listing_item) items;
	struct buf text;
	void *buffer; /* of one call for names */
	bool has_git, has_gitignore, has_dlrunignore;
};

void listing_init(struct listing *listing);
void listing_done(struct listing *listing);
/* fd: a directory that was opened just now. fold_git: .GIT counts as .git. 0, or a negative errno;
 * -EFBIG: over LISTING_TEXT_MAX. */
int listing_read(struct listing *listing, int fd, bool fold_git);
/* Use n names that were read and sorted earlier; text: for each its type, its bytes, NUL; it must
 * stay as long as the items are used. What the listing has of .git and rules is left alone. false:
 * these are no names of a directory. */
bool listing_take(struct listing *listing, const char *text, size_t len, size_t n);

#endif
