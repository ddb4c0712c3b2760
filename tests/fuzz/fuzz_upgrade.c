/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte says in which pieces an answer comes: what is made of it does not depend on them,
 * and is bounded. */
#include "base/util/str.h"
#include "net/http/http.h"
#include "net/websocket/upgrade.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct outcome {
	struct upgrade_reply reply;
	int r;
	size_t used;
	struct err err;
};

static void feed(struct outcome *out, const char *data, size_t size, size_t piece)
{
	upgrade_reply_init(&out->reply, "h");
	while (out->r == 0 && out->used < size) {
		size_t len = size - out->used < piece ? size - out->used : piece;
		size_t used = 0;

		out->r = upgrade_reply_feed(&out->reply, data + out->used, len, &used, &out->err);
		BUG_ON(used > len || (out->r == 0 && used != len));
		out->used += used;
	}
}

static void check(const struct outcome *out)
{
	const struct upgrade_reply *reply = &out->reply;
	size_t total = 0;

	BUG_ON(reply->body.len > HTTP_ERROR_BODY_MAX);
	vec_foreach (char *, header, &reply->headers)
		total += strlen(*header);
	/* A blank may be added behind each colon. */
	BUG_ON(total > 2 * (size_t)HTTP_HEADERS_MAX);
	BUG_ON(out->r > 0 && (reply->status < 101 || reply->status > 999));
	BUG_ON(out->r < 0 && !err_is_set(&out->err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct outcome whole = {0}, pieces = {0};

	if (size == 0)
		return 0;
	feed(&whole, (const char *)data + 1, size - 1, size);
	feed(&pieces, (const char *)data + 1, size - 1, (size_t)data[0] + 1);
	check(&whole);
	BUG_ON(whole.r != pieces.r || whole.reply.status != pieces.reply.status);
	BUG_ON(whole.err.id != pieces.err.id);
	BUG_ON(whole.r >= 0 &&
		(whole.used != pieces.used || whole.reply.headers.n != pieces.reply.headers.n ||
			!str_eq(whole.reply.body.data, pieces.reply.body.data)));
	upgrade_reply_done(&whole.reply);
	upgrade_reply_done(&pieces.reply);
	err_done(&whole.err);
	err_done(&pieces.err);
	return 0;
}
