/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of records that may be lost at any time: cached facts about a tree from earlier runs. It
 * is in the byte order of the machine, carries a checksum over all of it and is replaced by rename
 * under a lock.
 *
 * A file with any defect counts as empty; a failure to write it is noted and ignored.
 */
#ifndef DLRUN_SNAP_GIT_CACHEFILE_H
#define DLRUN_SNAP_GIT_CACHEFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CACHEFILE_HEADER_SIZE = 32,
	CACHEFILE_ALIGN = 8, /* each record begins at a multiple of it in the file */
	CACHEFILE_RECORDS_MAX = 4 << 20,
};

/* Zero is an empty file. */
struct cachefile {
	const uint8_t *data; /* the records */
	size_t len;
	uint64_t n;
	void *map; /* NULL: data are not ours */
	size_t map_len;
};

/* Map the file; empty if it is missing or not good. magic: the first number of the format. Blocks
 * for the disk. */
void cachefile_open(struct cachefile *file, uint64_t magic, const char *path);
void cachefile_done(struct cachefile *file);
/* Use bytes that stay with the caller; false (and an empty file) if they are not good. */
bool cachefile_parse(struct cachefile *file, uint64_t magic, const void *data, size_t len);

/* Replace the file, in a directory that is made if need be; the lock is stat.lock in it. Of two
 * processes that write at once one gives up. */
struct cachefile_writer;
struct cachefile_writer *cachefile_write(const char *path, uint64_t magic); /* NULL: cannot be */
/* Add a record: the size bytes at head, the len bytes at tail, and zeros up to a multiple of
 * CACHEFILE_ALIGN. size: a multiple of CACHEFILE_ALIGN. */
void cachefile_add(struct cachefile_writer *writer, const void *head, size_t size, const void *tail,
	size_t len);
/* Puts the file in place, or not; frees writer, which may be NULL. */
void cachefile_write_end(struct cachefile_writer *writer);

/* The checksum that cachefile_parse expects in the header, for tests. len: a multiple of
 * CACHEFILE_ALIGN. */
uint64_t cachefile_checksum(uint64_t start, const void *data, size_t len);

#endif
