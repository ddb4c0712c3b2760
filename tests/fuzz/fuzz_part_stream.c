/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of files from a pod: however the bytes are cut, the same comes out, each part has the
 * bytes that it said, and a part that is not whole is told.
 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "targets/kube/pod_copy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
	struct buf text;
	uint64_t left;
	bool is_open;
};

static int on_begin(void *ctx, uint64_t offset, uint64_t len, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(seen->is_open);
	seen->is_open = true;
	seen->left = len;
	buf_addf(&seen->text, "%llu+", (unsigned long long)offset);
	return 0;
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(!seen->is_open || len > seen->left);
	seen->left -= len;
	buf_add(&seen->text, data, len);
	return 0;
}

static int on_end(void *ctx, uint64_t size, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(!seen->is_open || seen->left);
	seen->is_open = false;
	buf_addf(&seen->text, "=%llu;", (unsigned long long)size);
	return 0;
}

static int on_unread(void *ctx, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(!seen->is_open || seen->left);
	seen->is_open = false;
	buf_adds(&seen->text, "=unread;");
	return 0;
}

static int on_gone(void *ctx, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(seen->is_open);
	buf_adds(&seen->text, "gone;");
	return 0;
}

static int feed(const char *data, size_t size, size_t piece, struct seen *seen)
{
	const struct part_events events = {on_begin, on_data, on_end, on_unread, on_gone, seen};
	AUTO(part_stream_free_auto) struct part_stream *stream = part_stream_new(&events);
	int r = 0;

	*seen = (struct seen){0};
	buf_init(&seen->text, 64 * (size + 1));
	for (size_t at = 0; r == 0 && at < size; at += piece)
		r = part_stream_add(stream, data + at, size - at < piece ? size - at : piece, NULL);
	if (r == 0)
		r = part_stream_finish(stream, NULL);
	BUG_ON(r == 0 && seen->is_open);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen whole, cut;
	int a = feed((const char *)data, size, size + 1, &whole);
	int b = feed((const char *)data, size, 1 + size % 7, &cut);

	BUG_ON(a != b);
	BUG_ON(a == 0 && (whole.text.len != cut.text.len ||
				 memcmp(whole.text.data, cut.text.data, cut.text.len) != 0));
	buf_done(&whole.text);
	buf_done(&cut.text);
	return 0;
}
