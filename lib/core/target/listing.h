/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings of a remote directory, as find(1) and stat(1) print them there. An engine: bytes are put
 * in, entries come out. MARK is random, so that no name has it:
 *
 *	MARK begin NOW                    the remote time in seconds
 *	MARK HEX SIZE SECONDS TIMES PATH  for each, HEX as stat's %f: kind and mode, the rest as
 *	                                  %s %Y %y %n. TIMES is DATE TIME[.FRACTION] [ZONE].
 *	                                  Lines without MARK belong to the name
 *	MARK end
 *
 * Nothing in it is trusted, but paths are passed on as they came, without "./": the sink
 * (app/transfer/fetch.h) checks where they lead.
 */
#ifndef DLRUN_CORE_TARGET_LISTING_H
#define DLRUN_CORE_TARGET_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/util/auto.h"
#include "base/util/err.h"

enum { LISTING_ENTRIES_MAX = 2000000, LISTING_RECORD_MAX = 16 << 10 };

struct listing_entry {
	const char *path; /* during the call */
	char kind;        /* 'd', 'f', 'l'; others are neither */
	mode_t mode;
	uint64_t size;
	int64_t mtime_ns;
	bool changing; /* its time is so near to the listing's that a change may not move it */
};

struct listing;
/* A negative return of fn ends the reading with err. */
struct listing *listing_new(const char *mark,
	int (*fn)(void *ctx, const struct listing_entry *entry, struct err *err), void *ctx);
void listing_free(struct listing *listing);
AUTO_POINTER(struct listing, listing_free)
/* E_DATA: not a listing; E_DATA_LIMIT: over the limits above. */
int listing_add(struct listing *listing, const char *data, size_t len, struct err *err);
/* Call at the end of the input. */
int listing_finish(const struct listing *listing, struct err *err);

#endif
