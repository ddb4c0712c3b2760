/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of a fetch that has, or may have, grown since the fetch before: its end is brought, behind
 * a copy of what is here. Only of logs and event files, which by their names are appended to, and
 * only while the last FETCH_GROW_OVERLAP bytes that are here are there, too, and the zeros behind
 * them, which may be space that a program has allocated ahead; of others what was written before
 * may change when they grow (an index, a header, a column), which no look at their end tells.
 */
#ifndef DLRUN_APP_TRANSFER_FETCH_GROW_H
#define DLRUN_APP_TRANSFER_FETCH_GROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"

/* Shorter ones are brought as a whole. */
enum { FETCH_GROW_OVERLAP = 64 << 10 };

/* Zero is not in use but for fd, which is -1. */
struct fetch_grow {
	int fd;           /* the file as it is here */
	uint64_t at, end; /* of it: what is compared next, and how far */
	bool differs;     /* it was written anew there */
};

/* Where what is wanted of one that is not smaller there begins; 0: the whole. */
uint64_t fetch_grow_offset(int dir_fd, const char *name);
/* offset: that of fetch_grow_offset or further on. temp_fd gets what is in front of it. */
int fetch_grow_begin(struct fetch_grow *grow, int dir_fd, const char *name, uint64_t offset,
	int temp_fd, const char *what, struct err *err);
/* Zeros become a hole, so that a sparse file stays one. Nothing lies behind the end that it has. */
int fetch_grow_write(int fd, const char *what, const char *data, size_t len, struct err *err);
/* The bytes that came next. False: they are not what is here, now or before. */
bool fetch_grow_check(struct fetch_grow *grow, const void *data, size_t len);
void fetch_grow_end(struct fetch_grow *grow);

#endif
