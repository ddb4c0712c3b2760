/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A version on its way to a place (runner/73-store.sh): which of its files the place has already,
 * by what earlier version or by a transfer that was cut, and one stream that brings the rest. The
 * stream is a list of names to be removed, then a tar; the last member, `do`, says how files are
 * put together whose chunks are there, and makes the version.
 */
#ifndef DLRUN_APP_DATA_BUNDLE_H
#define DLRUN_APP_DATA_BUNDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/data/chunker.h"
#include "app/data/scan.h"
#include "app/data/version.h"
#include "base/util/err.h"
#include "base/util/map.h"
#include "base/util/vec.h"

enum { BUNDLE_BLOCK = 64 << 10 };

/* The part of a transfer that came before it was cut. */
struct bundle_part {
	char base[VERSION_ID_SIZE]; /* that it began with, "-" for none; "": there is no such
	                             * transfer */
	struct map files;           /* of path: struct bundle_file */
	struct map gone;            /* of path, as the next */
	struct map dirs, others;    /* others: links, and what is no part of data */
	struct map links;           /* of path: target; of `changed` only */
	struct arena arena;
};
struct bundle_file {
	uint64_t size;
	unsigned mode;
	uint8_t sha[SHA256_SIZE];
	bool is_used; /* all of it, or its beginning, is what is wanted */
	uint64_t have;
};
/* text: the output of `begin` behind the versions. false: there is a part that cannot be
 * understood, and so cannot be gone on with. */
bool bundle_part_parse(const char *text, size_t len, struct bundle_part *ret);
void bundle_part_done(struct bundle_part *part);

struct bundle_piece {
	const struct version_entry *from; /* of base; NULL: bytes of the file itself, to be sent */
	uint64_t offset, len;
};
enum bundle_kind { BUNDLE_DIR, BUNDLE_LINK, BUNDLE_HARD, BUNDLE_FILE, BUNDLE_PIECES, BUNDLE_REST };
struct bundle_step {
	enum bundle_kind kind;
	struct version_entry *entry;
	const struct version_entry *from; /* BUNDLE_HARD: of base */
	struct VEC_OF(struct bundle_piece) pieces;
	uint64_t bytes; /* that are sent */
};

struct bundle {
	/* Set by the caller, borrowed. */
	const char *dir;
	struct version *now;
	const struct version *base;   /* NULL: none */
	const char *base_id;          /* "-": none */
	const char *part_name, *host; /* part-KEY-TOKEN there; this machine */
	const struct chunker *chunker;
	struct bundle_part *part;
	bool whole; /* no file is put together from chunks, or is another name of one of base */
	bool may_replace; /* the same version, which was changed there */

	struct map lost; /* of path of base: that is not what its list says (bundle_compare) */
	struct VEC_OF(struct bundle_step) steps;
	struct buf removed; /* names, each with its NUL */
	struct buf script;
	size_t n_files;     /* that have something sent */
	size_t n_hard;      /* that are other names */
	uint64_t bytes;     /* of them */
	atomic_ullong sent; /* so far */
	char id[VERSION_ID_SIZE];
	/* Of bundle_write. */
	int fd;
	bool has_no_reader; /* that is why it failed */
	uint64_t written;
	struct buf out;
};

/* Compares a version with what `changed` has found in it, in the form of a part. Returns the number
 * of paths that are not as its list says, or not in the list. *lost gets the former, part (or NULL)
 * the latter, which are removed then. */
size_t bundle_compare(const struct version *version, const struct bundle_part *changed,
	struct map *lost, struct bundle_part *part);
/* Reads files that may be at the place already, so that they have digests. */
int bundle_hash(struct bundle *bundle, struct err *err);
/* Whether all digests are known; then id is. */
bool bundle_is_known(struct bundle *bundle);
int bundle_plan(struct bundle *bundle, struct err *err);
void bundle_done(struct bundle *bundle);
/* The stream. Blocks; for a thread of its own. Reads each file once; the digests of all are known
 * at the end. */
int bundle_write(struct bundle *bundle, int fd, struct err *err);
/* Of BUNDLE_BLOCK bytes, of removed names. */
size_t bundle_blocks(const struct bundle *bundle);

#endif
