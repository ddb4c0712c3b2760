/* SPDX-License-Identifier: Apache-2.0 */
#include "node/marks.h"

#include <string.h>

void node_marks_done(struct node_marks *marks)
{
	vec_done(&marks->v);
	marks->at = 0;
}

static void drop_old(struct node_marks *marks)
{
	if (marks->at < NODE_MARKS_MAX / 2 && marks->at * 2 < marks->v.n)
		return;
	marks->v.n -= marks->at;
	memmove(marks->v.v, marks->v.v + marks->at, marks->v.n * sizeof(*marks->v.v));
	marks->at = 0;
}

static void thin_out(struct node_marks *marks)
{
	size_t n = 0;

	/* The later one of two stays: what it stands for had arrived by then. */
	for (size_t i = 1; i < marks->v.n; i += 2)
		marks->v.v[n++] = marks->v.v[i];
	if (marks->v.n % 2)
		marks->v.v[n++] = marks->v.v[marks->v.n - 1];
	marks->v.n = n;
}

void node_marks_add(struct node_marks *marks, int64_t time_ms, uint64_t bytes)
{
	if (marks->at)
		drop_old(marks);
	if (marks->v.n - marks->at >= NODE_MARKS_MAX && marks->at == 0)
		thin_out(marks);
	if (time_ms < marks->last.time_ms)
		time_ms = marks->last.time_ms;
	if (bytes < marks->last.bytes)
		bytes = marks->last.bytes;
	marks->last = (struct node_log_mark){time_ms, bytes};
	*vec_push(&marks->v) = marks->last;
}

size_t node_marks_piece(struct node_marks *marks, uint64_t offset, size_t len, int64_t *ret_time_ms)
{
	while (marks->at < marks->v.n && marks->v.v[marks->at].bytes <= offset)
		marks->at++;
	*ret_time_ms = 0;
	if (marks->at == marks->v.n)
		return len;
	const struct node_log_mark *mark = &marks->v.v[marks->at];

	*ret_time_ms = mark->time_ms;
	return mark->bytes - offset < len ? (size_t)(mark->bytes - offset) : len;
}
