/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries: files and links of a tree, the types that a snapshot and an image layer share. lib/snap
 * provides them, lib/oci writes and reads them, neither knows the other.
 */
#ifndef DLRUN_BASE_DATA_ENTRY_H
#define DLRUN_BASE_DATA_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/mem.h"
#include "base/util/digest.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum { ENTRY_PATH_MAX = 4095, ENTRY_NAME_MAX = 255 };

enum entry_kind {
	ENTRY_FILE, /* a regular file */
	ENTRY_LINK, /* a symbolic link */
};

/* Directories are not entries: they follow from the paths (empty ones are not kept, as in git). */
struct entry {
	const char *path; /* bytes, relative, no "." or "..", no slash at either end */
	enum entry_kind kind;
	bool exec;                   /* files: the owner's execute bit */
	uint16_t mode;               /* permissions in a layer; 0: as those of code (layer.h) */
	uint64_t size;               /* bytes of the content, or of the link's target */
	uint8_t sha256[SHA256_SIZE]; /* of the content, or of the link's target */
	const char *target;          /* links: where it points, as written; files: NULL */
};

/* Sorted by the bytes of path, no path twice, none the directory of another. */
struct entry_list {
	struct entry *v;
	size_t n, cap;
	struct arena arena; /* owns paths and targets */
};

void entry_list_done(struct entry_list *list);
#define AUTO_ENTRIES AUTO(entry_list_done)
/* Byte order of the paths; for sorting and searching. */
int entry_compare(const void *a, const void *b);
/* The entry at path, or NULL. */
const struct entry *entry_find(const struct entry_list *list, const char *path);
/* Same kind, exec bit, size and content. */
bool entry_same(const struct entry *a, const struct entry *b);
/* A copy of e at the end of list, its strings in the list's arena. */
struct entry *entry_add(struct entry_list *list, const struct entry *e);

/* Whether a component of path is .git, or something that a file system takes for it (.GIT, git~1,
 * ".git ", .git:stream, and with code points that HFS+ ignores): git refuses such paths, because a
 * program named there runs with the next command in that tree. */
bool entry_path_has_git(const char *path);

/*
 * The snapshot id: SHA-256 over, for each path in byte order, its type (f or l), its exec bit
 * (0 or 1), the decimal size, 64 hex digits of the SHA-256, NUL, the path, NUL. Written as a digest
 * (digest.h).
 */
void entry_list_id(const struct entry_list *list, char out[static DIGEST_TEXT_SIZE]);

/* The source of the content of entries. */
struct entry_opener {
	/* A descriptor at the start of the file's content. The reader checks size and digest
	 * itself; a difference means that the file changed meanwhile (E_IO_CHANGED). */
	int (*open)(void *ctx, const struct entry *entry, int *ret_fd, struct err *err);
	void *ctx;
	bool is_part; /* other bytes may follow the content in that file */
};

#endif
