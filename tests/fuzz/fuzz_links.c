/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links in a program's output: what is found does not depend on where the input is cut, holds
 * nothing that a terminal or a page could take for anything but an address, and was in the input.
 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "core/record/links.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void find(const char *s, size_t len, size_t piece, struct links *links)
{
	links_init(links);
	for (size_t at = 0; at < len; at += piece)
		links_add(links, s + at, piece < len - at ? piece : len - at);
	links_end(links);
}

static void check_url(const char *url, const char *data, size_t size)
{
	const char *host = strstr(url, "://") + 3;
	size_t len = strlen(url), authority = strcspn(host, "/");

	BUG_ON(!str_starts(url, "http://") && !str_starts(url, "https://"));
	BUG_ON(len > LINKS_URL_MAX || strpbrk(url, " ?<>\"\\^`{}|") ||
		memchr(host, '@', authority));
	for (const char *p = url; *p; p++)
		BUG_ON(*p <= ' ' || *p > '~');
	BUG_ON(!memmem(data, size, host, strlen(host)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t piece = size && data[0] ? data[0] : 1000;
	const char *s = (const char *)data + (size ? 1 : 0);
	size_t len = size ? size - 1 : 0;
	AUTO(links_done) struct links whole, parts;

	find(s, len, len ? len : 1, &whole);
	find(s, len, piece, &parts);
	BUG_ON(whole.found.n > LINKS_MAX);
	for (size_t i = 0; i < whole.found.n; i++) {
		check_url(whole.found.v[i], s, len);
		for (size_t k = 0; k < i; k++)
			BUG_ON(str_eq(whole.found.v[i], whole.found.v[k]));
	}
	/* Where a line is cut because it is too long, the words before an address may be lost in
	 * one and not in the other. */
	for (size_t i = 0; i < parts.found.n; i++)
		check_url(parts.found.v[i], s, len);
	BUG_ON(len <= LINKS_LINE_MAX / 2 && whole.found.n != parts.found.n);
	return 0;
}
