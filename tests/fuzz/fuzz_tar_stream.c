/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "oci/layer/tar_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was promised of the file whose content comes. */
struct seen {
	uint64_t left;
	int in_file;
	uint64_t sum;
};

static int on_member(void *ctx, const struct tar_member *member, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(seen->in_file);
	BUG_ON(member->mode > 07777 || !member->path || !member->target);
	seen->in_file = member->kind == TAR_FILE;
	seen->left = member->size;
	seen->sum = seen->sum * 31 + member->size + (uint64_t)member->path[0];
	return 0;
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(!seen->in_file || len > seen->left);
	seen->left -= len;
	seen->sum += len;
	return 0;
}

static int on_end(void *ctx, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(!seen->in_file || seen->left);
	seen->in_file = 0;
	return 0;
}

static int read_in(const uint8_t *data, size_t size, size_t piece, uint64_t *ret_sum)
{
	struct seen seen = {0};
	const struct tar_events events = {on_member, on_data, on_end, &seen};
	AUTO(tar_stream_free_auto) struct tar_stream *stream = tar_stream_new(&events);
	int r = 0;

	for (size_t at = 0; r == 0 && at < size; at += piece)
		r = tar_stream_add(stream, data + at, size - at < piece ? size - at : piece, NULL);
	if (r == 0)
		r = tar_stream_finish(stream, NULL);
	*ret_sum = seen.sum;
	return r;
}

/* How it comes makes no difference. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t whole = 0, parts = 0;
	int r = read_in(data, size, size + 1, &whole);

	BUG_ON(read_in(data, size, 13, &parts) != r);
	BUG_ON(r == 0 && whole != parts);
	return 0;
}
