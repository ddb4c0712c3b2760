/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/links.h"

#include "base/util/auto.h"
#include "base/util/str.h"

enum { SEGMENTS_MAX = 16 };

void links_init(struct links *links)
{
	*links = (struct links){0};
	buf_init(&links->line, LINKS_LINE_MAX);
}

void links_done(struct links *links)
{
	strv_done(&links->found);
	buf_done(&links->line);
}

bool links_full(const struct links *links)
{
	return links->found.n >= LINKS_MAX;
}

/*
 * A single address
 */

static bool links_is_word(char c)
{
	return str_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_url_char(char c)
{
	return links_is_word(c) || (c && strchr("-._~:/?#[]@!$&'()*+,;=%", c));
}

static size_t url_span(const char *s)
{
	size_t len = 0;

	while (is_url_char(s[len]))
		len++;
	return len;
}

/* Strip punctuation that ends a sentence or closes a bracket. */
static size_t url_trim(const char *s, size_t len)
{
	while (len > 0 && strchr(".,;:!?)]'*", s[len - 1]))
		len--;
	return len;
}

/* The parts of path between its slashes, "#" counts as one. */
static size_t links_split(char *path, char *parts[static SEGMENTS_MAX])
{
	size_t n = 0;

	for (char *save, *part = strtok_r(path, "/", &save); part && n < SEGMENTS_MAX;
		part = strtok_r(NULL, "/", &save))
		parts[n++] = part;
	return n;
}

static bool is_id(const char *s)
{
	while (links_is_word(*s) || *s == '-' || *s == '_' || *s == '.')
		s++;
	return *s == '\0';
}

/* …/experiments/N/runs/ID */
static bool is_mlflow(char *const *parts, size_t n)
{
	return n >= 4 && str_eq(parts[n - 4], "experiments") && str_eq(parts[n - 2], "runs") &&
	       is_id(parts[n - 3]) && is_id(parts[n - 1]);
}

/* ENTITY/PROJECT/runs/ID */
static bool is_wandb(char *const *parts, size_t n)
{
	return n == 4 && str_eq(parts[2], "runs") && is_id(parts[3]) && parts[0][0] != '#';
}

static bool is_wandb_host(const char *host)
{
	size_t len = strcspn(host, ":/");

	return (len == 8 && memcmp(host, "wandb.ai", 8) == 0) ||
	       (len > 9 && memcmp(host + len - 9, ".wandb.ai", 9) == 0);
}

/* A name or an address, perhaps with a port. */
static bool links_is_host(const char *s, const char *end)
{
	if (s == end)
		return false;
	while (s < end && (links_is_word(*s) || strchr("-.:[]", *s)))
		s++;
	return s == end;
}

static bool speaks_of_runs(const char *words, size_t len)
{
	return memmem(words, len, "wandb", 5) || memmem(words, len, "View run", 8);
}

/* host: behind the scheme. The words before the address in its line decide as well. */
static bool is_tracker(const char *host, const char *words, size_t words_len)
{
	char *parts[SEGMENTS_MAX];
	const char *slash = strchr(host, '/');

	if (!slash || !links_is_host(host, slash))
		return false;
	AUTO_FREE char *path = mem_strdup(slash);
	size_t n = links_split(path, parts);
	if (is_mlflow(parts, n))
		return true;
	return is_wandb(parts, n) && (is_wandb_host(host) || speaks_of_runs(words, words_len));
}

static void add_url(struct links *links, const char *scheme, const char *rest, size_t len)
{
	const char *line = links->line.data;
	size_t words_len = (size_t)(rest - line), authority = strcspn(rest, "/?#");
	const char *at = memrchr(rest, '@', authority < len ? authority : len);

	if (at) {
		len -= (size_t)(at + 1 - rest);
		rest = at + 1;
	}
	AUTO_FREE char *host = mem_strndup(rest, len);
	host[strcspn(host, "?")] = '\0';
	AUTO_FREE char *url = mem_printf("%s%s", scheme, host);
	if (strlen(url) > LINKS_URL_MAX || !is_tracker(host, line, words_len) ||
		strv_find(&links->found, url) >= 0 || links_full(links))
		return;
	strv_add_take(&links->found, TAKE(url));
}

/*
 * Lines
 */

/* whole: the line is at its end, and so is an address there. */
static void scan_line(struct links *links, bool whole)
{
	static const char *const schemes[] = {"https://", "http://"};
	const char *line = links->line.data;

	for (const char *p = line; (p = strstr(p, "://"));) {
		const char *rest = p + 3;
		size_t span = url_span(rest);

		if (!whole && !rest[span])
			return;
		for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
			size_t before = strlen(schemes[i]) - 3;

			if (p - line >= (ptrdiff_t)before && str_starts(p - before, schemes[i]))
				add_url(links, schemes[i], rest, url_trim(rest, span));
		}
		p = rest + span;
	}
}

static void links_end_line(struct links *links)
{
	scan_line(links, true);
	buf_reset(&links->line);
}

/* A line that is too long goes on with its last part, which has room for a whole address. */
static void links_make_space(struct links *links, size_t len)
{
	enum { KEPT = LINKS_LINE_MAX / 2 };

	if (links->line.len + len <= LINKS_LINE_MAX)
		return;
	scan_line(links, false);
	if (links->line.len > KEPT)
		buf_consume(&links->line, links->line.len - KEPT);
}

static void add_to_line(struct links *links, const char *data, size_t len)
{
	enum { PIECE = LINKS_LINE_MAX / 2 };

	while (len > 0) {
		size_t n = len < PIECE ? len : PIECE;

		links_make_space(links, n);
		buf_add(&links->line, data, n);
		data += n;
		len -= n;
	}
}

void links_add(struct links *links, const char *data, size_t len)
{
	const char *end = data + len;

	while (data < end && !links_full(links)) {
		const char *stop = data;

		while (stop < end && *stop != '\n' && *stop != '\r' && *stop)
			stop++;
		add_to_line(links, data, (size_t)(stop - data));
		if (stop < end)
			links_end_line(links);
		data = stop + 1;
	}
}

void links_end(struct links *links)
{
	links_end_line(links);
}
