/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "targets/kube/kube_archive.h"
#include "targets/kube/target_kube.h"

/*
 * Reading the archive of an attempt: one rank after the other, each gap at its place.
 */

struct gap {
	int64_t offset;
	char *text;
};
struct gaps VEC_OF(struct gap);

struct kept {
	struct target_work work;
	struct target_call *call;
	struct target_call inner; /* of the rank */
	struct loop *loop;
	struct target_log_request request;
	char *dir; /* of the ranks */
	bool is_whole;
	struct kept_places places;
	char token[TARGET_TOKEN_SIZE]; /* "OFFSET:TIME" */
	int rank;
	struct gaps gaps; /* of the rank, in order */
	size_t gap;       /* the next one */
	bool has_begun;   /* the rank */
};

static void drop_gaps(struct kept *kept)
{
	vec_foreach (struct gap, gap, &kept->gaps)
		free(gap->text);
	vec_done(&kept->gaps);
	kept->gaps = (struct gaps){0};
	kept->gap = 0;
}

static void drop(struct target_work *work)
{
	struct kept *kept = (struct kept *)work;

	target_call_cancel(&kept->inner);
	drop_gaps(kept);
	kept_places_done(&kept->places);
	free(kept->dir);
	free(kept);
}

static void say(const struct kept *kept, const char *text)
{
	const struct target_log_events *events = &kept->request.events;

	if (events->notice)
		events->notice(events->ctx, text);
}

/*
 * Gaps
 */

static void read_gaps(struct kept *kept, const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, KUBE_ARCHIVE_GAPS);
	AUTO_BUF struct buf text = {0};
	char *at, *line;

	drop_gaps(kept);
	if (fs_read(path, KUBE_ARCHIVE_GAPS_MAX, &text, NULL, NULL) < 0)
		return;
	for (at = text.data; at && (line = strsep(&at, "\n"));) {
		char *end;
		long long offset = strtoll(line, &end, 10);
		if (end > line && *end == ' ')
			*vec_push(&kept->gaps) = (struct gap){offset, mem_strdup(end + 1)};
	}
}

static void say_gaps(struct kept *kept, int64_t until)
{
	for (; kept->gap < kept->gaps.n && kept->gaps.v[kept->gap].offset <= until; kept->gap++)
		say(kept, kept->gaps.v[kept->gap].text);
}

/*
 * Bytes
 */

static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct kept *kept = ctx;
	int64_t at = strtoll(kept->token, NULL, 10);

	(void)rank;
	while (!kept->has_begun && kept->gap < kept->gaps.n && kept->gaps.v[kept->gap].offset < at)
		kept->gap++;
	kept->has_begun = true;
	while (len > 0) {
		size_t n = len;
		say_gaps(kept, at);
		if (kept->gap < kept->gaps.n && kept->gaps.v[kept->gap].offset - at < (int64_t)n)
			n = (size_t)(kept->gaps.v[kept->gap].offset - at);
		int r = kept->request.events.data(
			kept->request.events.ctx, kept->rank, data, n, time_ms, err);
		if (r < 0)
			return r;
		data += n;
		len -= n;
		at += (int64_t)n;
	}
	return 0;
}

static const struct kept_place *place_of(const struct kept *kept)
{
	vec_foreach (const struct kept_place, place, &kept->places)
		if (place->rank == kept->rank)
			return place;
	return NULL;
}

static void say_left_out(const struct kept *kept)
{
	const struct kept_place *place = place_of(kept);
	char size[16], max[16];

	if (!place || place->left_out == 0)
		return;
	AUTO_FREE char *text = mem_printf("rank %d: %s that came here next is not kept: the log "
					  "of an attempt is kept up to %s",
		kept->rank, str_size(place->left_out, size), str_size(KUBE_ARCHIVE_MAX, max));
	say(kept, text);
}

static bool read_rank(struct kept *kept);

static void on_done(struct target_call *call, int status, struct err *err)
{
	struct kept *kept = (struct kept *)((char *)call - offsetof(struct kept, inner));

	if (status == 0) {
		say_gaps(kept, INT64_MAX);
		say_left_out(kept);
	}
	if (status == 0 && kept->request.rank < 0) {
		kept->rank++;
		if (read_rank(kept))
			return;
	}
	target_call_end(kept->call, status, err);
}

/* A log that goes on has bytes behind its place, which will come again. */
static bool has_rank(const struct kept *kept, const char *dir, int64_t *ret_limit)
{
	const struct kept_place *place = place_of(kept);

	*ret_limit = kept->is_whole || !place ? 0 : place->offset;
	return (kept->is_whole || *ret_limit > 0) && access(dir, F_OK) == 0;
}

/* The next one that has said something. */
static bool read_rank(struct kept *kept)
{
	struct target_log_request request = kept->request;

	request.follow = false;
	request.token = NULL;
	request.events.data = on_data;
	request.events.ctx = kept;
	request.events.notice = NULL;
	for (; kept->rank < KUBE_ARCHIVE_RANKS_MAX; kept->rank++) {
		struct attempt_place place = {.dir = mem_printf("%s/%d", kept->dir, kept->rank)};
		if (has_rank(kept, place.dir, &place.limit)) {
			read_gaps(kept, place.dir);
			kept->has_begun = false;
			kept->inner = (struct target_call){.done = on_done};
			attempt_log_read(kept->loop, &place, &request, kept->token, &kept->inner);
			return true;
		}
		attempt_place_done(&place);
		if (kept->request.rank >= 0)
			break;
	}
	return false;
}

bool kube_kept_logs(struct loop *loop, const char *attempt_dir, struct kept_places *places,
	const struct target_log_request *request, struct target_call *call)
{
	AUTO_FREE char *dir = kube_archive_path(attempt_dir, !places);
	AUTO_KEPT_PLACES struct kept_places own = {0};
	struct kept *kept;

	if (places)
		own = *places;
	if (access(dir, F_OK) < 0)
		return false;
	if (!places)
		kept_places_read(attempt_dir, &own);
	kept = mem_alloc(1, sizeof(*kept));
	*kept = (struct kept){
		.work = {drop},
		.call = call,
		.loop = loop,
		.request = *request,
		.dir = TAKE(dir),
		.is_whole = !places,
		.places = own,
		.rank = request->rank < 0 ? 0 : request->rank,
	};
	own = (struct kept_places){0};
	read_gaps(kept, kept->dir);
	if (request->tail_lines < 0)
		say_gaps(kept, INT64_MAX);
	if (read_rank(kept)) {
		target_call_begin(call, &kept->work);
	} else {
		drop(&kept->work);
		target_call_end_soon(call, loop);
	}
	return true;
}
