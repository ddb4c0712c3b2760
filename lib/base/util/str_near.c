/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/str.h"

enum { WORD_MAX = 255 };

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
	unsigned ab = a < b ? a : b;

	return ab < c ? ab : c;
}

/* Optimal string alignment: three rows of the table are enough. */
static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
	unsigned rows[3][WORD_MAX + 1];
	unsigned *before = rows[0], *last = rows[1], *row = rows[2];

	for (unsigned j = 0; j <= b_len; j++)
		last[j] = j;
	for (unsigned i = 1; i <= a_len; i++) {
		row[0] = i;
		for (size_t j = 1; j <= b_len; j++) {
			unsigned differs = a[i - 1] != b[j - 1];
			row[j] = min3(last[j] + 1, row[j - 1] + 1, last[j - 1] + differs);
			bool swapped =
				i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
			if (swapped && before[j - 2] + 1 < row[j])
				row[j] = before[j - 2] + 1;
		}
		unsigned *oldest = before;
		before = last;
		last = row;
		row = oldest;
	}
	return last[b_len];
}

unsigned str_distance(const char *a, const char *b)
{
	size_t a_len = strnlen(a, WORD_MAX + 1), b_len = strnlen(b, WORD_MAX + 1);

	if (a_len > WORD_MAX || b_len > WORD_MAX)
		return strcmp(a, b) == 0 ? 0 : WORD_MAX;
	return distance(a, a_len, b, b_len);
}

/* The only candidate that word is the beginning of, or NULL. */
static const char *only_completion(const char *word, const char *const *candidates, size_t n)
{
	const char *found = NULL;

	for (size_t i = 0; i < n; i++) {
		if (!str_starts(candidates[i], word))
			continue;
		if (found)
			return NULL;
		found = candidates[i];
	}
	return found;
}

const char *str_suggest(const char *word, const char *const *candidates, size_t n)
{
	size_t len = strlen(word);
	const char *best = NULL;

	if (len == 0 || len > WORD_MAX)
		return NULL;
	best = only_completion(word, candidates, n);
	if (best)
		return best;
	size_t limit = len / 3 < 1 ? 1 : len / 3 > 3 ? 3 : len / 3;
	for (size_t i = 0; i < n; i++) {
		unsigned d = str_distance(word, candidates[i]);
		/* Replacing the whole word is no correction. */
		if (d > limit || d >= len)
			continue;
		best = candidates[i];
		if (d == 0)
			break;
		limit = d - 1;
	}
	return best;
}
