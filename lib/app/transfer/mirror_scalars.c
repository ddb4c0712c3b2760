/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <unistd.h>

#include "app/transfer/mirror.h"
#include "app/transfer/mirror_files_impl.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "events/series.h"
#include "events/tfevents.h"

/*
 * Scalars only: a look asks for a window of each file, and the next one goes on behind what came,
 * or behind a large record that was met in it and of which no more has to come. Windows grow where
 * that spares nothing: a look costs time, too.
 *
 * What is here is whole records. Those that were appended when somebody died before `seen` was
 * written are cut off again, and come again.
 */

enum {
	LARGE_MIN = 16 << 10,
	WINDOW_MIN = 4 << 10, /* where a record is waited for */
	WINDOW = 64 << 10,
	LARGE_WINDOWS = 2, /* records that are worth a look of their own, on average */
	GROWTH = 4,
	LOST_MAX = 3, /* times that a file is begun anew because there was no record at a place */
	PIECE = 256 << 10,
};

static const struct scalars_only_spec spec = {
	.large_min = LARGE_MIN, .record_max = SERIES_RECORD_MAX};

void mirror_scalars_init(struct mirror_files *files)
{
	files->sink.ops = &mirror_scalars_ops;
	files->walk = scalars_only_new(&spec);
	buf_init(&files->out, PIECE + SERIES_RECORD_MAX + PIECE);
}

/*
 * Choice of the range to request
 */

static bool is_known(const struct mirror_kept *kept, const struct fetch_item *item, uint64_t here)
{
	const struct mirror_walked *walked = &kept->walked;

	if (kept->is_anew || walked->is_unsure || walked->is_behind || here != kept->size ||
		walked->source != item->size)
		return false;
	/* A file that may still change is checked again once it no longer does. */
	return item->changing || kept->mtime_ns == item->mtime_ns;
}

/* Record that the file was checked in its present state. */
static void settle(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, bool is_read)
{
	int64_t mtime_ns = is_read && !item->changing ? item->mtime_ns : MIRROR_NEVER;

	if (kept->walked.source != item->size)
		files->counts.is_new = true;
	if (kept->walked.source != item->size || kept->mtime_ns != mtime_ns)
		files->is_dirty = true;
	kept->walked.source = item->size;
	kept->mtime_ns = mtime_ns;
}

static void forget_place(struct mirror_kept *kept)
{
	kept->walked.place = (struct scalars_place){0};
	kept->walked.source = 0;
	kept->walked.is_unsure = kept->walked.is_behind = false;
}

/* 1: *ret is wanted; 0: it waits for a record that was passed over. */
static int choose_range(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, struct fetch_range *ret)
{
	const struct mirror_walked *walked = &kept->walked;
	uint64_t window = walked->window ? walked->window : WINDOW;

	ret->offset = kept->is_anew ? 0 : scalars_only_from(&walked->place);
	if (!kept->is_anew && item->size < walked->place.at) {
		settle(files, kept, item, true);
		return 0;
	}
	ret->len = item->size - ret->offset;
	if (ret->len > window)
		ret->len = window;
	return 1;
}

static int scalars_wants(struct fetch_sink *sink, const struct fetch_item *item,
	struct fetch_range *ret, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);
	struct mirror_kept *kept = mirror_admit(files, item);
	struct stat st = {0};

	if (!kept)
		return 0;
	if (files->linked)
		return mirror_take_linked(files, kept, item, err);
	AUTO_FD int fd = mirror_open_here(files, item->path, &st);
	if (fd < 0 && fd != -ENOENT)
		return mirror_fail(files, -fd, item->path, err);
	uint64_t here = fd < 0 ? 0 : (uint64_t)st.st_size;
	if (fd >= 0 && is_known(kept, item, here))
		return 0;
	if (item->size == 0) {
		forget_place(kept);
		return mirror_take_empty(files, kept, item, fd >= 0 && here == 0, err);
	}
	kept->is_anew |= fd < 0 || here < kept->size || item->size < kept->walked.source;
	return choose_range(files, kept, item, ret);
}

/*
 * Content received
 */

/* Whether all that is here are records that were kept: after a power cut. */
static int check_here(struct mirror_files *files, uint64_t size)
{
	AUTO(scalars_only_free_auto) struct scalars_only *walk = scalars_only_new(&spec);
	struct scalars_place place = {0};
	uint64_t at = 0, n_kept = 0;
	AUTO_BUF struct buf piece;

	buf_init(&piece, PIECE);
	scalars_only_begin(walk, &place);
	while (at < size) {
		size_t len = size - at < PIECE ? (size_t)(size - at) : PIECE;
		ssize_t n = pread(files->fd, buf_room(&piece, len), len, (off_t)at);

		if (n <= 0)
			return n < 0 ? -errno : -ESTALE;
		buf_reset(&files->out);
		scalars_only_feed(walk, piece.data, (size_t)n, &files->out);
		n_kept += files->out.len;
		at += (uint64_t)n;
	}
	scalars_only_place(walk, &place);
	return place.at == size && n_kept == size ? 0 : -ESTALE;
}

static int open_known(struct mirror_files *files, struct mirror_kept *kept)
{
	struct stat st;

	files->fd = mirror_open_here(files, kept->path, &st);
	if (files->fd < 0)
		return files->fd;
	if ((uint64_t)st.st_size < kept->size)
		return -ESTALE;
	if ((uint64_t)st.st_size > kept->size && ftruncate(files->fd, (off_t)kept->size) < 0)
		return -errno;
	if (!kept->walked.is_unsure)
		return 0;
	int r = check_here(files, kept->size);
	kept->is_anew = r < 0;
	kept->walked.is_unsure = false;
	return r;
}

static int open_current(struct mirror_files *files, const struct fetch_range *range)
{
	struct mirror_kept *kept = files->current;

	if (!kept->is_anew) {
		int r = open_known(files, kept);
		return r == 0 && range->offset != scalars_only_from(&kept->walked.place) ? -ESTALE
											 : r;
	}
	files->fd = mirror_open_anew(files, kept->path);
	if (files->fd < 0)
		return files->fd;
	mirror_set_size(files, kept, 0);
	forget_place(kept);
	kept->is_anew = false;
	return range->offset == 0 ? 0 : -ESTALE;
}

static int scalars_begin(struct fetch_sink *sink, const struct fetch_item *item,
	const struct fetch_range *range, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);

	mirror_close_file(files);
	struct mirror_kept *kept = map_get(&files->files, item->path);
	if (!kept || files->linked)
		return 0;
	files->current = kept;
	files->is_dropped = false;
	files->range = *range;
	int r = mirror_begun(files, open_current(files, range), item->path, err);
	if (r <= 0)
		return r;
	if (!kept->walked.is_behind || range->offset >= kept->walked.goal)
		kept->walked.goal = item->size;
	kept->mtime_ns = MIRROR_NEVER;
	files->is_dirty = true;
	files->was_sure = kept->walked.place.at == 0 || kept->walked.place.has_sum;
	scalars_only_begin(files->walk, &kept->walked.place);
	return 1;
}

/* All or nothing. */
static int append(struct mirror_files *files, struct mirror_kept *kept, struct err *err)
{
	const struct buf *out = &files->out;
	int r = mirror_write_at(files->fd, out->data, out->len, kept->size);

	if (r < 0) {
		(void)!ftruncate(files->fd, (off_t)kept->size);
		return mirror_fail(files, -r, kept->path, err);
	}
	files->counts.bytes_new += out->len;
	files->counts.is_new |= out->len > 0;
	mirror_set_size(files, kept, kept->size + out->len);
	return 0;
}

/* The content there does not continue at the known place. If that place was behind a record that
 * was passed over, the file may also be damaged. */
static void begin_anew(struct mirror_files *files, struct mirror_kept *kept)
{
	if (!files->was_sure && kept->walked.n_lost >= LOST_MAX)
		return;
	kept->walked.n_lost += !files->was_sure;
	files->is_dropped = kept->is_anew = files->counts.is_asked_again = true;
}

static int take_piece(struct mirror_files *files, const char *data, size_t len, struct err *err)
{
	struct mirror_kept *kept = files->current;

	buf_reset(&files->out);
	if (scalars_only_feed(files->walk, data, len, &files->out) == SCALARS_ONLY_OTHER) {
		begin_anew(files, kept);
		return 0;
	}
	int r = append(files, kept, err);
	if (r == 0)
		scalars_only_place(files->walk, &kept->walked.place);
	return r;
}

static int scalars_write(struct fetch_sink *sink, const void *data, size_t len, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);
	const char *at = data;
	int r = 0;

	for (size_t n; r == 0 && len > 0 && !files->is_dropped; at += n, len -= n) {
		n = len < PIECE ? len : PIECE;
		r = take_piece(files, at, n, err);
	}
	return r;
}

/*
 * How it goes on
 */

static uint64_t next_window(const struct mirror_files *files, bool is_cut)
{
	struct scalars_only_passed passed;
	uint64_t needs = scalars_only_needs(files->walk) + TFRECORD_TRAILER;

	if (scalars_only_state(files->walk) != SCALARS_ONLY_OK)
		return WINDOW_MIN;
	/* Reset the window at the end of the file: content written later may differ. */
	if (!is_cut)
		return WINDOW;
	if (needs > files->range.len)
		return needs;
	scalars_only_passed(files->walk, &passed);
	if (passed.records && passed.bytes / passed.records >= LARGE_WINDOWS * WINDOW)
		return WINDOW;
	uint64_t window = files->current->walked.window ? files->current->walked.window : WINDOW;
	return window < MIRROR_BYTES_MAX ? window * GROWTH : window;
}

static int scalars_end(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);
	struct mirror_kept *kept = files->current;
	struct mirror_walked *walked = &kept->walked;
	enum scalars_only_state state = scalars_only_state(files->walk);
	bool is_cut = files->range.offset + files->range.len < item->size;

	(void)err;
	if (!files->is_dropped) {
		walked->is_behind =
			is_cut && state == SCALARS_ONLY_OK && walked->place.at <= item->size;
		walked->window = next_window(files, is_cut);
		settle(files, kept, item, !walked->is_behind && state != SCALARS_ONLY_UNFILLED);
		files->counts.is_behind |= walked->is_behind;
		files->counts.is_asked_again |=
			walked->is_behind && scalars_only_from(&walked->place) < walked->goal;
	}
	mirror_close_file(files);
	return 0;
}

const struct fetch_sink_ops mirror_scalars_ops = {
	.wants = scalars_wants,
	.begin = scalars_begin,
	.write = scalars_write,
	.end = scalars_end,
	.unread = mirror_unread,
	.free = mirror_free_sink,
};
