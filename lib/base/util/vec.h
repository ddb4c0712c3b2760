/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing arrays of any type.
 *
 *	struct entry_list VEC_OF(struct entry);
 *	struct entry *e = vec_push(&list);       a zeroed new last element
 *	vec_foreach (struct entry, e, &list) …
 *	vec_done(&list);                         frees the array, not what its elements own
 */
#ifndef DLRUN_BASE_UTIL_VEC_H
#define DLRUN_BASE_UTIL_VEC_H

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"

#define VEC_OF(type)                                                                               \
	{                                                                                          \
		type *v;                                                                           \
		size_t n, cap;                                                                     \
	}

static inline size_t vec_next_cap(size_t cap)
{
	return cap ? cap + cap / 2 + 8 : 16;
}

#define vec_reserve(vec, want)                                                                     \
	do {                                                                                       \
		if ((want) > (vec)->cap) {                                                         \
			(vec)->v = mem_grow((vec)->v, (want), sizeof(*(vec)->v));                  \
			(vec)->cap = (want);                                                       \
		}                                                                                  \
	} while (0)

#define vec_push(vec)                                                                              \
	__extension__({                                                                            \
		__typeof__(vec) vec_ = (vec);                                                      \
		if (vec_->n == vec_->cap)                                                          \
			vec_reserve(vec_, vec_next_cap(vec_->cap));                                \
		(__typeof__(vec_->v))memset(&vec_->v[vec_->n++], 0, sizeof(*vec_->v));             \
	})

#define vec_foreach(type, item, vec)                                                               \
	for (type *item = (vec)->v; (item) && (item) < (vec)->v + (vec)->n; (item)++)

#define vec_sort(vec, cmp)                                                                         \
	do {                                                                                       \
		if ((vec)->n > 1)                                                                  \
			qsort((vec)->v, (vec)->n, sizeof(*(vec)->v), (cmp));                       \
	} while (0)

/* In a sorted array: how many elements stand in front of the first one for which is_before, an
 * expression about *item, does not hold. */
#define vec_bound(vec, item, is_before)                                                            \
	__extension__({                                                                            \
		size_t low_ = 0, high_ = (vec)->n;                                                 \
		while (low_ < high_) {                                                             \
			size_t middle_ = low_ + (high_ - low_) / 2;                                \
			__typeof__(*(vec)->v) const *item = &(vec)->v[middle_];                    \
			if (is_before)                                                             \
				low_ = middle_ + 1;                                                \
			else                                                                       \
				high_ = middle_;                                                   \
		}                                                                                  \
		low_;                                                                              \
	})

#define vec_done(vec)                                                                              \
	do {                                                                                       \
		free((vec)->v);                                                                    \
		(vec)->v = NULL;                                                                   \
		(vec)->n = (vec)->cap = 0;                                                         \
	} while (0)

/* Owned strings; v[n] is always NULL once something was added, so v serves as an argv. */
struct strv VEC_OF(char *);

void strv_add(struct strv *strv, const char *s);
/* Takes s over. */
void strv_add_take(struct strv *strv, char *s);
void strv_addf(struct strv *strv, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* *to holds the same strings as *from then, its old ones are freed. */
void strv_copy(struct strv *to, const struct strv *from);
/* The position of s, or -1. */
ptrdiff_t strv_find(const struct strv *strv, const char *s);
/* All strings, joined by between; the caller frees. */
char *strv_join(const struct strv *strv, const char *between);
/* By bytes, as strcmp does. */
void strv_sort(struct strv *strv);
/* The string at position i, which the caller frees; those behind it move up. */
char *strv_take_out(struct strv *strv, size_t i);
/* Frees the strings from position n on. */
void strv_cut(struct strv *strv, size_t n);
void strv_done(struct strv *strv);
#define AUTO_STRV AUTO(strv_done)

#endif
