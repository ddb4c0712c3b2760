/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stat cache: stat data and digests of files read before, sorted by path, in one file per tree
 * (cachefile.h). A file with the same stat data has the same content.
 *
 * Only settled files go in: those whose mtime and ctime were older than a window when they were
 * read. A younger file could change again without a change of its times (git calls that racy); a
 * file from the future is young, too. The window is two seconds, the coarsest tick of any local
 * file system; where ctime shows a fine tick, a tenth of a second, ten times the tick of a kernel.
 */
#ifndef DLRUN_SNAP_TREE_STATCACHE_H
#define DLRUN_SNAP_TREE_STATCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/digest.h"
#include "base/util/err.h"
#include "snap/git/cachefile.h"

#define STATCACHE_WINDOW_NS         INT64_C(2000000000)
#define STATCACHE_WINDOW_FINE_NS    INT64_C(100000000)
#define STATCACHE_WINDOW_NETWORK_NS INT64_C(5000000000)

enum statcache_flag {
	STATCACHE_GIT_SHA1 = 1 << 0, /* git_id is the object id of the content as a blob */
	STATCACHE_GIT_SHA256 =
		1 << 1, /* the same in a SHA-256 repository, cut to SHA1_SIZE bytes */
	STATCACHE_LFS_POINTER = 1 << 2, /* the content is a pointer of Git LFS */
	STATCACHE_CR_SCRIPT = 1 << 3,   /* its first line is #! and ends in CR LF */
};

struct statcache_entry {
	uint64_t dev, ino, size;
	int64_t mtime_ns, ctime_ns;
	uint32_t mode;
	uint16_t path_len;
	uint16_t flags;
	uint8_t sha256[SHA256_SIZE];
	uint8_t git_id[SHA1_SIZE];
	uint8_t zero[4];
};

/* Zero is the empty cache. */
struct statcache {
	struct cachefile file;
	size_t *stops; /* where some records begin, in their order */
	size_t n_stops;
};

/* The file for a tree: cache_dir/<16 hex digits of the SHA-256 of root>/stat.v1. */
char *statcache_path(const char *cache_dir, const char *root);

/* Map the file; an empty cache if it is missing or not good. Blocks for the disk. */
void statcache_open(struct statcache *cache, const char *path);
void statcache_done(struct statcache *cache);
/* Use bytes that stay with the caller; false (and an empty cache) if they are not good. */
bool statcache_parse(struct statcache *cache, const void *data, size_t len);

/* Entries in order of their paths. Zero starts at the first. */
struct statcache_cursor {
	size_t at;
	struct statcache_entry entry;
	const char *path; /* of entry; in the cache's memory */
};
/* Move to the first entry whose path is not before this one. */
void statcache_seek(
	const struct statcache *cache, struct statcache_cursor *cursor, const char *path);
/* False at the end. */
bool statcache_next(const struct statcache *cache, struct statcache_cursor *cursor);

/* Whether entry is valid for a file with these stat data. network: dev and ino are ignored, which
 * such file systems make up. */
struct statcache_stat {
	uint64_t dev, ino, size;
	int64_t mtime_ns, ctime_ns;
	uint32_t mode;
};
bool statcache_matches(
	const struct statcache_entry *entry, const struct statcache_stat *stat, bool network);
/* Whether a file with these times that was read at now_ns (since 1970) may go into the cache. */
bool statcache_is_settled(const struct statcache_stat *stat, int64_t now_ns, bool network);

/* Replace the file. Paths must come in order; cachefile_write_end ends it. NULL: cannot be. */
struct cachefile_writer *statcache_write(const char *path);
void statcache_add(
	struct cachefile_writer *writer, const struct statcache_entry *entry, const char *path);

#endif
