/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory here that becomes a version: what it has by now, and the content of its files. What
 * was read once is not read again while stat(2) tells that the file is the same.
 */
#ifndef DLRUN_APP_DATA_SCAN_H
#define DLRUN_APP_DATA_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "app/data/chunker.h"
#include "app/data/version.h"
#include "base/util/err.h"
#include "base/util/vec.h"

/* Walks dir; sockets, devices and pipes are passed over (their number in *ret_passed). The chunks
 * and digests that known (of an earlier scan; or NULL) has for files that are still the same are
 * taken over. */
int scan_dir(const char *dir, const struct version *known, struct version *ret, size_t *ret_passed,
	struct err *err);

/* Bytes of a file in order, read once: digest and chunks become those of entry when all of it has
 * been given to data (NULL: nobody wants it). E_IO_CHANGED: the file is not what entry says. */
struct scan_reading {
	const struct chunker *chunker;
	struct arena *arena; /* for chunks */
	uint64_t skip;       /* bytes at the beginning that data does not get */
	int (*data)(void *ctx, const void *data, size_t len, struct err *err);
	void *ctx;
};
int scan_read(const char *dir, struct version_entry *entry, const struct scan_reading *reading,
	struct err *err);

/* To be read; E_IO_CHANGED: it is not what entry says. */
int scan_open(const char *full, const struct version_entry *entry, int *ret_fd, struct err *err);
/* Whether it still is, once it has been read. sha256: in hex, of what was read; or NULL. */
int scan_check(int fd, const char *full, const struct version_entry *entry, const char *sha256,
	struct err *err);

/* The digest of the first len bytes. */
int scan_prefix(const char *dir, const struct version_entry *entry, uint64_t len,
	uint8_t out[static SHA256_SIZE], struct err *err);

/* Digests and chunks of those entries that have none, by several threads. */
struct scan_wants VEC_OF(struct version_entry *);
int scan_hash(const char *dir, struct version *version, const struct scan_wants *wants,
	const struct chunker *chunker, struct err *err);

/* A file that was changed so short ago that the next change may not show is not known: its stat
 * data is forgotten. */
void scan_forget_fresh(struct version *version, int64_t begun_wall_ms);

#endif
