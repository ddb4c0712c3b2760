/* SPDX-License-Identifier: Apache-2.0 */
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

#include "base/util/mem.h"

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
