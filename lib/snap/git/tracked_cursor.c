/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/str.h"
#include "snap/git/tracked_cursor.h"

void tracked_cursor_init(struct tracked_cursor *cursor, const struct tracked *tracked,
	const char *dir, size_t first, size_t n)
{
	*cursor = (struct tracked_cursor){
		.tracked = tracked,
		.first = first,
		.end = first + n,
		.next = first,
		.skip = *dir ? strlen(dir) + 1 : 0,
	};
}

/* Whether the entry at this position stands before name with the byte tail behind it. */
static bool stands_before(const struct tracked_cursor *cursor, size_t at, const char *name,
	size_t len, unsigned char tail)
{
	return str_is_before(cursor->tracked->v[at].path + cursor->skip, name, len, tail);
}

/* The first position from `from` on whose entry does not. Doubling steps find near ones fast and
 * skip directories that are gone. */
static size_t seek(
	const struct tracked_cursor *cursor, size_t from, const char *name, unsigned char tail)
{
	size_t step = 1, to = from, len = strlen(name);

	while (to < cursor->end && stands_before(cursor, to, name, len, tail)) {
		from = to + 1;
		to = cursor->end - to > step ? to + step : cursor->end;
		step *= 2;
	}
	while (from < to) {
		size_t mid = from + (to - from) / 2;
		if (stands_before(cursor, mid, name, len, tail))
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

static const struct tracked_path *entry_at(
	const struct tracked_cursor *cursor, size_t at, const char *name)
{
	if (at == cursor->end)
		return NULL;
	const struct tracked_path *entry = &cursor->tracked->v[at];
	return strcmp(entry->path + cursor->skip, name) == 0 ? entry : NULL;
}

const struct tracked_path *tracked_cursor_file(struct tracked_cursor *cursor, const char *name)
{
	/* Mostly the entry after that of the previous name. */
	for (size_t i = 0; i < 2 && cursor->next + i < cursor->end; i++) {
		const struct tracked_path *entry = entry_at(cursor, cursor->next + i, name);
		if (entry) {
			cursor->next += i;
			return entry;
		}
	}
	if (cursor->next == cursor->end)
		return NULL;
	cursor->next = seek(cursor, cursor->next, name, '\0');
	return entry_at(cursor, cursor->next, name);
}

size_t tracked_cursor_dir(struct tracked_cursor *cursor, const char *name, size_t *ret_n)
{
	size_t first = seek(cursor, cursor->next, name, '/');

	cursor->next = seek(cursor, first, name, '/' + 1);
	*ret_n = cursor->next - first;
	return first;
}

bool tracked_cursor_is_gitlink(const struct tracked_cursor *cursor, const char *name)
{
	const struct tracked_path *entry =
		entry_at(cursor, seek(cursor, cursor->first, name, '\0'), name);

	return entry && entry->mode == TRACKED_MODE_GITLINK;
}
