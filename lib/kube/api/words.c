/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/words.h"

#include <stdbool.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"
#include "kube/api/kubeconfig.h"

/* A character that is escaped becomes four bytes at most for each of its own. */
enum { ESCAPED_MAX = 4, CONTEXT_MAX = 4096 };

static void squeeze(struct buf *line, const char *text, size_t len)
{
	bool blank = true;

	for (size_t i = 0; i < len && !line->full; i++) {
		bool is_blank = text[i] && strchr(" \t\r\n", text[i]);
		if (!is_blank || !blank)
			buf_addc(line, is_blank ? ' ' : text[i]);
		blank = is_blank;
	}
	if (line->len > 0 && line->data[line->len - 1] == ' ')
		buf_truncate(line, line->len - 1);
}

/* How many bytes of whole characters fit. */
static size_t cut(const char *text, size_t len, size_t max)
{
	size_t at = 0, n;

	while (at < len && (n = str_utf8_len(text + at, len - at)) > 0 && at + n <= max)
		at += n;
	return at;
}

char *kube_words(const char *text, size_t len, size_t max)
{
	AUTO_BUF struct buf line;
	AUTO_BUF struct buf shown;

	buf_init(&line, max + ESCAPED_MAX);
	squeeze(&line, text, len);
	buf_init(&shown, ESCAPED_MAX * (max + ESCAPED_MAX) + sizeof("…"));
	str_escape(&shown, line.data, line.len);
	size_t fits = cut(shown.data, shown.len, max);
	if (fits < shown.len || line.full) {
		buf_truncate(&shown, fits);
		buf_adds(&shown, "…");
	}
	return buf_take(&shown);
}

void kube_hint_version(const char *context, const char *question, struct err *err)
{
	AUTO_BUF struct buf quoted = {0};

	if (!context || str_eq(context, KUBECONFIG_IN_CLUSTER))
		return;
	buf_init(&quoted, CONTEXT_MAX);
	str_shell_quote(&quoted, context);
	err_hint(err, "kubectl --context %s version   # %s", quoted.data, question);
}
