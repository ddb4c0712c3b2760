/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small allocations with one lifetime: the paths of a tree. Freed together.
 */
#ifndef DLRUN_BASE_UTIL_ARENA_H
#define DLRUN_BASE_UTIL_ARENA_H

#include <stddef.h>

struct arena_block;

struct arena {
	struct arena_block *blocks;
	size_t used;  /* of the newest block */
	size_t bytes; /* in all */
};

/* Zero is an empty arena. */
void arena_done(struct arena *arena);
/* Not zeroed, aligned for any object. */
void *arena_alloc(struct arena *arena, size_t size) __attribute__((returns_nonnull));
char *arena_strndup(struct arena *arena, const char *s, size_t len);
char *arena_strdup(struct arena *arena, const char *s);
/* The blocks of *from become part of *to. */
void arena_merge(struct arena *to, struct arena *from);

#endif
