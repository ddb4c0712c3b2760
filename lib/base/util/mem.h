/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory. Out of memory ends the process here, with one line on stderr and status 125, so no caller
 * checks for NULL. In exchange everything that a peer, a file or a user can make grow has a limit
 * of its own (buf.c, ERR_LIMIT).
 */
#ifndef DLRUN_BASE_UTIL_MEM_H
#define DLRUN_BASE_UTIL_MEM_H

#include <stdarg.h>
#include <stddef.h>

#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))
/* A parameter that the interface has and this function does not need. */
#define UNUSED __attribute__((unused))
/* The struct whose member ptr points to. */
#define CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* Zeroed memory for n objects of size bytes; overflow of the product counts as out of memory. */
void *mem_alloc(size_t n, size_t size) __attribute__((returns_nonnull, warn_unused_result));
/* Room for n objects of size bytes, the old content kept, the new part not zeroed. */
void *mem_grow(void *old, size_t n, size_t size) __attribute__((returns_nonnull));
void *mem_dup(const void *data, size_t size) __attribute__((returns_nonnull));
/* NULL gives NULL. */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t max) __attribute__((returns_nonnull));
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2), returns_nonnull));
char *mem_vprintf(const char *fmt, va_list args)
	__attribute__((format(printf, 1, 0), returns_nonnull));
/* free() of a secret, or NULL: overwritten first. */
void mem_wipe(char *secret);
/* End the process for lack of memory. */
_Noreturn void mem_out(size_t wanted);

/* malloc, realloc and free in the form that libraries take as hooks; they never return NULL. */
void *mem_hook_malloc(size_t size);
void *mem_hook_realloc(void *old, size_t size);
/* The size in bytes of a block of malloc, at least that requested; NULL: 0. */
size_t mem_block_size(void *block);

/*
 * Many small allocations with one lifetime: the paths of a tree. Freed together.
 */
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
