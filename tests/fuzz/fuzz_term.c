/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The terminal filter: the first byte picks the mode, the second where the rest is cut in two.
 * Whatever comes in, only harmless bytes come out, and the cut does not show.
 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/term.h"
#include "base/util/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void filter_pieces(struct buf *out, struct term_filter filter, const char *s, size_t len,
	size_t first, size_t others)
{
	buf_init(out, 16 * len + 16);
	for (size_t at = 0, n = first; at < len; at += n, n = others) {
		n = n < len - at ? n : len - at;
		term_filter_add(&filter, s + at, n, out);
	}
	term_filter_end(&filter, out);
	BUG_ON(filter.n_pending || filter.colored || out->full);
}

/* Length of the SGR sequence at s, 0 if there is none. */
static size_t sgr_len(const char *s)
{
	size_t n = strspn(s + 2, "0123456789;:");

	return s[1] == '[' && n <= 24 && s[2 + n] == 'm' ? n + 3 : 0;
}

/* Length of what stands at s and may go to a terminal. */
static size_t harmless_len(const struct term_filter *filter, const char *s, size_t len)
{
	uint32_t cp = 0;
	size_t n = unicode_decode(s, len, &cp);

	BUG_ON(n == 0);
	if (cp == '\n' || cp == '\t')
		return 1;
	if (cp == '\r') {
		BUG_ON(filter->cr != TERM_CR_REDRAW || strncmp(s, "\r\033[K", 4) != 0);
		return 4;
	}
	if (cp == 0x1b) {
		BUG_ON(!filter->color || sgr_len(s) == 0);
		return sgr_len(s);
	}
	BUG_ON(unicode_is_control(cp) || unicode_is_hidden(cp));
	return n;
}

static void check_harmless(const struct term_filter *filter, const struct buf *out)
{
	bool colored = false;

	for (size_t at = 0, n; at < out->len; at += n) {
		n = harmless_len(filter, out->data + at, out->len - at);
		if (out->data[at] == 0x1b)
			colored = strspn(out->data + at + 2, "0;") != n - 3;
	}
	BUG_ON(colored);
}

static void check_clean(const char *s, size_t len)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 16 * len + 16);
	term_clean(s, len, true, &out);
	for (size_t i = 0; i < out.len; i++)
		BUG_ON((uint8_t)out.data[i] < 0x20 || out.data[i] == 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct term_filter filter;
	AUTO_BUF struct buf whole = {0};
	AUTO_BUF struct buf halves = {0};
	AUTO_BUF struct buf bytes = {0};

	if (size < 2)
		return 0;
	const char *s = (const char *)data + 2;
	size_t len = size - 2;
	term_filter_init(&filter, data[0] & 1 ? TERM_CR_REDRAW : TERM_CR_SHOW, data[0] & 2);
	filter_pieces(&whole, filter, s, len, len, len);
	filter_pieces(&halves, filter, s, len, data[1] + 1, len);
	filter_pieces(&bytes, filter, s, len, 1, 1);
	BUG_ON(whole.len != halves.len || memcmp(whole.data, halves.data, whole.len) != 0);
	BUG_ON(whole.len != bytes.len || memcmp(whole.data, bytes.data, whole.len) != 0);
	check_harmless(&filter, &whole);
	check_clean(s, len);
	return 0;
}
