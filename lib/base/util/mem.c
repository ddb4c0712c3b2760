/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/mem.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __APPLE__
#include <malloc/malloc.h>
#else
#include <malloc.h>
#endif

enum { OUT_OF_MEMORY_STATUS = 125 };

void mem_out(size_t wanted)
{
	char line[80];
	int len = snprintf(line, sizeof(line), "dlrun: out of memory (%zu bytes wanted)\n", wanted);

	/* Nothing can be done if stderr cannot be written. */
	if (write(STDERR_FILENO, line, (size_t)len) < 0)
		_exit(OUT_OF_MEMORY_STATUS);
	_exit(OUT_OF_MEMORY_STATUS);
}

/* Never 0, because malloc(0) may give NULL. */
static size_t product(size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes) || bytes > PTRDIFF_MAX)
		mem_out(SIZE_MAX);
	return bytes ? bytes : 1;
}

void *mem_alloc(size_t n, size_t size)
{
	size_t bytes = product(n, size);
	void *p = calloc(1, bytes);

	if (!p)
		mem_out(bytes);
	return p;
}

void *mem_grow(void *old, size_t n, size_t size)
{
	size_t bytes = product(n, size);
	void *p = realloc(old, bytes);

	if (!p)
		mem_out(bytes);
	return p;
}

void *mem_dup(const void *data, size_t size)
{
	void *p = mem_grow(NULL, size, 1);

	if (size)
		memcpy(p, data, size);
	return p;
}

char *mem_strdup(const char *s)
{
	return s ? mem_dup(s, strlen(s) + 1) : NULL;
}

void mem_wipe(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

char *mem_strndup(const char *s, size_t max)
{
	size_t len = strnlen(s, max);
	char *p = mem_grow(NULL, len + 1, 1);

	memcpy(p, s, len);
	p[len] = '\0';
	return p;
}

char *mem_printf(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	char *s = mem_vprintf(fmt, args);
	va_end(args);
	return s;
}

char *mem_vprintf(const char *fmt, va_list args)
{
	char *s;

	if (vasprintf(&s, fmt, args) < 0)
		mem_out(0);
	return s;
}

size_t mem_block_size(void *block)
{
#ifdef __APPLE__
	return malloc_size(block);
#else
	return malloc_usable_size(block);
#endif
}

void *mem_hook_malloc(size_t size)
{
	return mem_grow(NULL, size, 1);
}

void *mem_hook_realloc(void *old, size_t size)
{
	return mem_grow(old, size, 1);
}

/*
 * Arenas
 */

enum { FIRST_BLOCK = 4096, LARGEST_BLOCK = 256 * 1024 };

struct arena_block {
	struct arena_block *next; /* older */
	size_t size;
	alignas(max_align_t) char data[];
};

static struct arena_block *new_block(size_t size)
{
	if (size > PTRDIFF_MAX - sizeof(struct arena_block))
		mem_out(size);
	struct arena_block *block = mem_grow(NULL, sizeof(*block) + size, 1);
	block->size = size;
	return block;
}

static size_t next_size(const struct arena *arena)
{
	if (!arena->blocks)
		return FIRST_BLOCK;
	size_t twice = 2 * arena->blocks->size;
	return twice < LARGEST_BLOCK ? twice : LARGEST_BLOCK;
}

/* A block of its own for something large, behind the newest one, which stays in use. */
static void *alloc_large(struct arena *arena, size_t size)
{
	struct arena_block *block = new_block(size);

	if (arena->blocks) {
		block->next = arena->blocks->next;
		arena->blocks->next = block;
	} else {
		block->next = NULL;
		arena->blocks = block;
		arena->used = size;
	}
	return block->data;
}

static void *alloc(struct arena *arena, size_t size, size_t align)
{
	arena->bytes += size;
	if (arena->blocks) {
		size_t at = (arena->used + align - 1) & ~(align - 1);
		if (at <= arena->blocks->size && size <= arena->blocks->size - at) {
			arena->used = at + size;
			return arena->blocks->data + at;
		}
	}
	size_t block_size = next_size(arena);
	if (size > block_size / 4)
		return alloc_large(arena, size);
	struct arena_block *block = new_block(block_size);
	block->next = arena->blocks;
	arena->blocks = block;
	arena->used = size;
	return block->data;
}

void *arena_alloc(struct arena *arena, size_t size)
{
	return alloc(arena, size, alignof(max_align_t));
}

char *arena_strndup(struct arena *arena, const char *s, size_t len)
{
	char *copy = alloc(arena, len + 1, 1);

	memcpy(copy, s, len);
	copy[len] = '\0';
	return copy;
}

char *arena_strdup(struct arena *arena, const char *s)
{
	return arena_strndup(arena, s, strlen(s));
}

void arena_merge(struct arena *to, struct arena *from)
{
	if (!from->blocks)
		return;
	if (!to->blocks) {
		*to = *from;
	} else {
		struct arena_block *last = from->blocks;
		while (last->next)
			last = last->next;
		last->next = to->blocks->next;
		to->blocks->next = from->blocks;
		to->bytes += from->bytes;
	}
	*from = (struct arena){0};
}

void arena_done(struct arena *arena)
{
	if (!arena)
		return;
	for (struct arena_block *block = arena->blocks, *next; block; block = next) {
		next = block->next;
		free(block);
	}
	*arena = (struct arena){0};
}
