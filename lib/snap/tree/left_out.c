/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "snap/tree/left_out.h"

static int by_path(const void *a, const void *b)
{
	const struct left_out *x = a, *y = b;

	return strcmp(x->path, y->path);
}

bool left_out_count(struct left_out_rows *rows, const char *path)
{
	rows->n_all++;
	return !rows->last || strcmp(path, rows->last) < 0;
}

void left_out_keep(struct left_out_rows *rows, const char *path, bool is_dir, enum left_out_why why,
	uint64_t size)
{
	size_t len = strlen(path);
	char *copy = arena_alloc(&rows->arena, len + 2);

	memcpy(copy, path, len);
	memcpy(copy + len, is_dir ? "/" : "", is_dir ? 2 : 1);
	*vec_push(&rows->rows) = (struct left_out){.path = copy, .why = why, .size = size};
	if (rows->rows.n >= 2 * LEFT_OUT_MAX)
		left_out_cut(rows);
}

void left_out_cut(struct left_out_rows *rows)
{
	struct arena kept = {0};

	vec_sort(&rows->rows, by_path);
	if (rows->rows.n <= LEFT_OUT_MAX)
		return;
	rows->rows.n = LEFT_OUT_MAX;
	vec_foreach (struct left_out, row, &rows->rows)
		row->path = arena_strdup(&kept, row->path);
	rows->last = rows->rows.v[LEFT_OUT_MAX - 1].path;
	arena_done(&rows->arena);
	rows->arena = kept;
}

void left_out_merge(struct left_out_rows *to, struct left_out_rows *from)
{
	vec_foreach (struct left_out, row, &from->rows)
		*vec_push(&to->rows) = *row;
	to->n_all += from->n_all;
	to->last = NULL;
	arena_merge(&to->arena, &from->arena);
	left_out_rows_done(from);
}

void left_out_rows_done(struct left_out_rows *rows)
{
	vec_done(&rows->rows);
	arena_done(&rows->arena);
	*rows = (struct left_out_rows){0};
}
