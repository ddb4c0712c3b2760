/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layout/dry_sink.h"

#include <stdlib.h>

#include "base/util/mem.h"

struct dry_sink {
	struct sink sink; /* first */
	int stage_dir_fd;
	dry_sink_has_fn *has;
	void *ctx;
};

static int dry_has(
	struct sink *sink, const struct descriptor *blobs, size_t n, bool *ret_has, struct err *err)
{
	struct dry_sink *own = (struct dry_sink *)sink;

	(void)err;
	for (size_t i = 0; i < n; i++)
		ret_has[i] = own->has(own->ctx, &blobs[i]);
	return 0;
}

static int sink_stage_dir(struct sink *sink)
{
	return ((struct dry_sink *)sink)->stage_dir_fd;
}

static int count(struct sink *sink, const struct descriptor *blob, struct err *err)
{
	int there = sink_has(sink, blob, err);

	sink->bytes_written += there ? 0 : blob->size;
	sink->blobs_written += !there;
	return 0;
}

static int sink_put(
	struct sink *sink, struct blob_stage *stage, const struct descriptor *blob, struct err *err)
{
	(void)stage;
	return count(sink, blob, err);
}

static int sink_put_bytes(
	struct sink *sink, const void *data, const struct descriptor *blob, struct err *err)
{
	(void)data;
	return count(sink, blob, err);
}

/* Blobs of a base do not pass through this machine, unless they are stored here. */
static int sink_link(struct sink *sink, int from, const struct descriptor *blob, struct err *err)
{
	return from >= 0 ? count(sink, blob, err) : 0;
}

static int sink_commit(struct sink *sink, const void *manifest, const struct descriptor *blob,
	const char *name, struct err *err)
{
	(void)sink;
	(void)manifest;
	(void)blob;
	(void)name;
	(void)err;
	return 0;
}

static void sink_forget(struct sink *sink, const struct descriptor *blob)
{
	(void)sink;
	(void)blob;
}

static void sink_close(struct sink *sink)
{
	free(sink);
}

static const struct sink_ops dry_sink_ops = {
	.has = dry_has,
	.stage_dir = sink_stage_dir,
	.put = sink_put,
	.put_bytes = sink_put_bytes,
	.link = sink_link,
	.commit = sink_commit,
	.forget = sink_forget,
	.free = sink_close,
};

struct sink *dry_sink(const char *name, int stage_dir_fd, dry_sink_has_fn *has, void *ctx)
{
	struct dry_sink *own = mem_alloc(1, sizeof(*own));

	own->sink.ops = &dry_sink_ops;
	own->sink.name = name;
	own->stage_dir_fd = stage_dir_fd;
	own->has = has;
	own->ctx = ctx;
	return &own->sink;
}
