/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte says in what pieces the rest arrives; the lines are the same in any. */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/watch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_event(const char *line, size_t len)
{
	AUTO_KUBE_WATCH_EVENT struct kube_watch_event event = {0};
	AUTO_ERR struct err err = {0};

	if (kube_watch_event_parse(line, len, &event, &err) < 0) {
		BUG_ON(err.id != E_KUBE_RESPONSE || event.root);
		return;
	}
	BUG_ON(!event.object || json_kind(event.object) != JSON_OBJECT);
	if (event.kind == KUBE_EVENT_ERROR)
		return;
	BUG_ON(str_empty(event.version));
	BUG_ON(event.kind != KUBE_EVENT_BOOKMARK && str_empty(event.name));
}

static int on_line(void *ctx, const char *line, size_t len, struct err *err)
{
	struct buf *out = ctx;

	BUG_ON(len == 0 || memchr(line, '\n', len));
	check_event(line, len);
	buf_add(out, line, len);
	buf_addc(out, '\n');
	return 0;
}

static void feed(const char *text, size_t len, size_t piece, struct buf *out)
{
	AUTO_KUBE_LINES struct kube_lines lines;

	kube_lines_init(&lines);
	buf_init(out, len + 1);
	for (size_t at = 0; at < len; at += piece) {
		size_t n = len - at < piece ? len - at : piece;
		BUG_ON(kube_lines_add(&lines, text + at, n, on_line, out, NULL) != 0);
	}
	BUG_ON(out->len + lines.part.len > len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_BUF struct buf whole = {0}, pieces = {0};

	if (size < 2 || size > KUBE_LINE_MAX)
		return 0;
	const char *text = (const char *)data + 1;
	feed(text, size - 1, size - 1, &whole);
	feed(text, size - 1, (size_t)data[0] + 1, &pieces);
	BUG_ON(whole.len != pieces.len || memcmp(whole.data, pieces.data, whole.len) != 0);
	return 0;
}
