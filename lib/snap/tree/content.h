/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of one path of a tree at one moment: its stat data are checked before and after
 * reading, so that a file that is written meanwhile is read again. Nothing outside of the tree is
 * ever opened and no link followed.
 */
#ifndef DLRUN_SNAP_TREE_CONTENT_H
#define DLRUN_SNAP_TREE_CONTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/digest.h"
#include "base/util/err.h"
#include "snap/tree/paths.h"
#include "snap/tree/statcache.h"

enum content_git { CONTENT_GIT_NONE, CONTENT_GIT_SHA1, CONTENT_GIT_SHA256 };

/* A reader, one for each thread. */
struct content_reader {
	int root_fd;
	enum content_git git; /* which ids of blobs are wanted */
	bool network;         /* the tree is on a network file system */
	struct digest sha256, id;
	uint8_t *buf;
};

struct content {
	uint8_t sha256[SHA256_SIZE];
	uint8_t git_id[SHA1_SIZE]; /* zero if not wanted */
	unsigned flags;            /* enum statcache_flag */
	char *target;              /* of a link; malloc'd, the caller's */
	bool settled;              /* may go into the stat cache */
};

/* Take over the stat data; false if it is neither a file nor a link. */
struct stat;
bool content_set_stat(struct path *path, const struct stat *st);
/* lstat of path below root_fd without following links: 0 or -errno. */
int content_lstat(int root_fd, const char *path, struct stat *ret);

#endif
