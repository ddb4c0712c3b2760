/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/str.h"
#include "base/util/vec.h"
#include "snap/git/tracked.h"

void tracked_done(struct tracked *tracked)
{
	if (!tracked)
		return;
	vec_done(tracked);
	arena_done(&tracked->arena);
}

static int compare_path(const void *key, const void *item)
{
	const struct tracked_path *entry = item;

	return strcmp(key, entry->path);
}

const struct tracked_path *tracked_find(const struct tracked *tracked, const char *path)
{
	if (tracked->n == 0)
		return NULL;
	return bsearch(path, tracked->v, tracked->n, sizeof(*tracked->v), compare_path);
}

/* The first position whose path is not before dir with the byte tail behind it. */
static size_t lower_bound(
	const struct tracked *tracked, const char *dir, size_t dir_len, unsigned char tail)
{
	return vec_bound(tracked, item, str_is_before(item->path, dir, dir_len, tail));
}

size_t tracked_below(const struct tracked *tracked, const char *dir, size_t *ret_n)
{
	size_t dir_len = strlen(dir);

	if (dir_len == 0) {
		*ret_n = tracked->n;
		return 0;
	}
	size_t first = lower_bound(tracked, dir, dir_len, '/');
	*ret_n = lower_bound(tracked, dir, dir_len, '/' + 1) - first;
	return first;
}
