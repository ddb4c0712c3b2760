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

#include "base/util/mem.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/err.h"
#include "base/util/vec.h"
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

/*
 * Directory cache: the sorted names of directories read before, in one file per tree (cachefile.h).
 * Each new, removed or renamed name changes mtime and ctime of its directory (POSIX.1-2017, 4.9),
 * so a directory with the same stat data has the same names. The caller ensures that this holds:
 * only for settled directories (statcache.h) on file systems that are known for it (os.h).
 *
 * The decisions of the rules on the names are not kept: rules are read each time.
 */

struct dircache_stat {
	uint64_t dev, ino;
	int64_t mtime_ns, ctime_ns;
};

enum dircache_flag {
	DIRCACHE_FOLD_GIT = 1 << 0, /* .GIT counted as .git when it was read */
	DIRCACHE_GIT = 1 << 1,      /* it holds .git, which is not among the names */
	DIRCACHE_GITIGNORE = 1 << 2,
	DIRCACHE_DLRUNIGNORE = 1 << 3,
};

/* A directory, in the file and in memory: this, its path, NUL, the text. */
struct dircache_row {
	struct dircache_stat stat;
	uint32_t path_len;
	uint32_t text_len; /* of all names: for each the type (DT_*), its bytes, NUL */
	uint32_t n_names;
	uint32_t flags;
};

/* Zero is the empty cache. */
struct dircache {
	struct cachefile file;
	const struct dircache_row **rows; /* sorted by path, in the file's memory */
	size_t n;
};

/* The file beside the stat cache at path: the same directory, dirs.v1. malloc'd. */
char *dircache_path(const char *statcache_path);

/* Map the file; an empty cache if it is missing or not good. Blocks for the disk. */
void dircache_open(struct dircache *cache, const char *path);
void dircache_done(struct dircache *cache);
/* Use bytes that stay with the caller and lie at a multiple of CACHEFILE_ALIGN; false (and an empty
 * cache) if they are not good. The texts are not checked. */
bool dircache_parse(struct dircache *cache, const void *data, size_t len);

/* The row of the directory ("" is the root), which may be out of date; NULL if there is none. */
const struct dircache_row *dircache_find(const struct dircache *cache, const char *path);
bool dircache_matches(
	const struct dircache_row *row, const struct dircache_stat *stat, bool fold_git);
const char *dircache_row_path(const struct dircache_row *row);
const char *dircache_row_text(const struct dircache_row *row);

/* A new row, with path and room for text_len bytes of text at *ret_text, in arena. */
struct dircache_row *dircache_row_new(struct arena *arena, const struct dircache_stat *stat,
	const char *path, size_t text_len, char **ret_text);

/* Replace the file. Rows must come in order of their paths; cachefile_write_end ends it. NULL:
 * cannot be. */
struct cachefile_writer *dircache_write(const char *path);
void dircache_add(struct cachefile_writer *writer, const struct dircache_row *row);

/*
 * The names of one directory, sorted as the paths below it are: a directory counts as its name with
 * a slash.
 */

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
