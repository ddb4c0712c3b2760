/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>

#include "base/util/err.h"
#include "base/util/vec.h"

void strv_add(struct strv *strv, const char *s)
{
	strv_add_take(strv, mem_strdup(s));
}

void strv_add_take(struct strv *strv, char *s)
{
	BUG_ON(!s);
	if (strv->n + 1 >= strv->cap)
		vec_reserve(strv, vec_next_cap(strv->cap));
	strv->v[strv->n++] = s;
	strv->v[strv->n] = NULL;
}

void strv_addf(struct strv *strv, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	strv_add_take(strv, mem_vprintf(fmt, args));
	va_end(args);
}

void strv_copy(struct strv *to, const struct strv *from)
{
	if (to == from)
		return;
	strv_done(to);
	for (size_t i = 0; i < from->n; i++)
		strv_add(to, from->v[i]);
}

ptrdiff_t strv_find(const struct strv *strv, const char *s)
{
	for (size_t i = 0; i < strv->n; i++)
		if (strcmp(strv->v[i], s) == 0)
			return (ptrdiff_t)i;
	return -1;
}

static int strv_compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void strv_sort(struct strv *strv)
{
	vec_sort(strv, strv_compare);
}

char *strv_join(const struct strv *strv, const char *between)
{
	size_t size = 1, len = strlen(between), at = 0;
	char *text;

	for (size_t i = 0; i < strv->n; i++)
		size += strlen(strv->v[i]) + len;
	text = mem_alloc(size, 1);
	for (size_t i = 0; i < strv->n; i++) {
		const char *parts[] = {i ? between : "", strv->v[i]};
		for (size_t j = 0; j < 2; j++) {
			memcpy(text + at, parts[j], strlen(parts[j]));
			at += strlen(parts[j]);
		}
	}
	text[at] = '\0';
	return text;
}

char *strv_take_out(struct strv *strv, size_t i)
{
	char *taken = strv->v[i];

	memmove(strv->v + i, strv->v + i + 1, (strv->n - i) * sizeof(*strv->v));
	strv->n--;
	return taken;
}

void strv_cut(struct strv *strv, size_t n)
{
	for (; strv->n > n; strv->v[strv->n] = NULL)
		free(strv->v[--strv->n]);
}

void strv_done(struct strv *strv)
{
	if (!strv)
		return;
	for (size_t i = 0; i < strv->n; i++)
		free(strv->v[i]);
	vec_done(strv);
}
