/* SPDX-License-Identifier: Apache-2.0 */
#include "core/target/listing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { NS_DIGITS = 9, NEAR_S = 1 };
#define NS_PER_S    INT64_C(1000000000)
#define SECONDS_MAX (INT64_C(1) << 33)

struct listing {
	char *mark;
	int (*fn)(void *ctx, const struct listing_entry *entry, struct err *err);
	void *ctx;
	int64_t now_s;
	struct buf line;
	struct buf pending; /* the entry whose name may go on, without the mark */
	size_t n;
	bool has_begun, has_ended;
};

struct listing *listing_new(const char *mark,
	int (*fn)(void *ctx, const struct listing_entry *entry, struct err *err), void *ctx)
{
	struct listing *listing = mem_alloc(1, sizeof(*listing));

	*listing = (struct listing){.mark = mem_strdup(mark), .fn = fn, .ctx = ctx};
	buf_init(&listing->line, LISTING_RECORD_MAX);
	buf_init(&listing->pending, LISTING_RECORD_MAX);
	return listing;
}

void listing_free(struct listing *listing)
{
	if (!listing)
		return;
	buf_done(&listing->line);
	buf_done(&listing->pending);
	free(listing->mark);
	free(listing);
}

static int listing_refuse(const char *text, struct err *err)
{
	AUTO_FREE char *shown = str_shown(text);

	return err_set(err, E_DATA, "'%s' is not an entry of a listing", shown);
}

/* A number and the blank behind it. */
static bool listing_take_number(const char **at, int base, int64_t min, int64_t max, int64_t *ret)
{
	char *end;
	const char *digits = *at + (**at == '-');

	if (strspn(digits, base == 16 ? "0123456789abcdefABCDEF" : "0123456789") == 0)
		return false;
	long long value = strtoll(*at, &end, base);
	*ret = value;
	*at = end + 1;
	return *end == ' ' && value >= min && value <= max && value != INT64_MAX;
}

/* "2026-01-31 12:00:00.123456789 +0000 ", of which the fraction counts. Old busybox (1.31) and
 * toybox (0.7) print no zone; paths begin with a dot. */
static bool take_fraction(const char **at, int64_t *ret_ns)
{
	const char *time = strchr(*at, ' '), *zone = time ? strchr(time + 1, ' ') : NULL;
	bool has_zone = zone && (zone[1] == '+' || zone[1] == '-');
	const char *end = has_zone ? strchr(zone + 1, ' ') : zone;

	*ret_ns = 0;
	if (!end)
		return false;
	time += strcspn(time, ".");
	for (int i = 0; time < zone && i < NS_DIGITS; i++)
		*ret_ns = *ret_ns * 10 + (str_is_digit(time[1]) ? *++time - '0' : 0);
	*at = end + 1;
	return true;
}

static char listing_kind_of(mode_t mode)
{
	if (S_ISDIR(mode))
		return 'd';
	if (S_ISREG(mode))
		return 'f';
	return S_ISLNK(mode) ? 'l' : 'o';
}

static bool parse_entry(const char *text, struct listing_entry *ret)
{
	int64_t mode, size, seconds, ns;

	if (!listing_take_number(&text, 16, 0, 0177777, &mode) ||
		!listing_take_number(&text, 10, 0, INT64_MAX, &size) ||
		!listing_take_number(&text, 10, -SECONDS_MAX, SECONDS_MAX, &seconds) ||
		!take_fraction(&text, &ns) || *text != '.' || (text[1] && text[1] != '/'))
		return false;
	*ret = (struct listing_entry){.path = text[1] ? text + 2 : "",
		.kind = listing_kind_of((mode_t)mode),
		.mode = (mode_t)(mode & 07777),
		.size = (uint64_t)size,
		.mtime_ns = seconds * NS_PER_S + ns};
	return true;
}

/* The directory itself has no name. */
static int flush_entry(struct listing *listing, struct err *err)
{
	struct listing_entry entry;

	if (!listing->pending.len)
		return 0;
	if (!parse_entry(listing->pending.data, &entry))
		return listing_refuse(listing->pending.data, err);
	if (*entry.path && ++listing->n > LISTING_ENTRIES_MAX)
		return err_set(err, E_DATA_LIMIT, "there are more than %d files and directories",
			LISTING_ENTRIES_MAX);
	entry.changing = entry.mtime_ns / NS_PER_S >= listing->now_s - NEAR_S;
	int r = *entry.path ? listing->fn(listing->ctx, &entry, err) : 0;
	buf_reset(&listing->pending);
	return r;
}

static int take_begin(struct listing *listing, const char *text, struct err *err)
{
	if (!str_starts(text, "begin ") || str_to_int(text + strlen("begin "), 0, SECONDS_MAX,
						   "time", &listing->now_s, NULL) < 0)
		return listing_refuse(text, err);
	listing->has_begun = true;
	return 0;
}

static int listing_take_line(struct listing *listing, const char *line, struct err *err)
{
	size_t len = strlen(listing->mark);
	bool is_marked = str_starts(line, listing->mark) && line[len] == ' ';

	if (strlen(line) != listing->line.len || listing->has_ended ||
		(!is_marked && !listing->pending.len))
		return listing_refuse(line, err);
	if (!is_marked) {
		buf_addf(&listing->pending, "\n%s", line);
		return buf_check(&listing->pending, "a name in the listing", err);
	}
	line += len + 1;
	if (!listing->has_begun)
		return take_begin(listing, line, err);
	int r = flush_entry(listing, err);
	listing->has_ended = str_eq(line, "end");
	if (!listing->has_ended)
		buf_adds(&listing->pending, line);
	return r;
}

int listing_add(struct listing *listing, const char *data, size_t len, struct err *err)
{
	int r = 0;

	while (r == 0 && len) {
		const char *end = memchr(data, '\n', len);
		size_t n = end ? (size_t)(end - data) : len;

		buf_add(&listing->line, data, n);
		r = buf_check(&listing->line, "an entry of the listing", err);
		if (r == 0 && end) {
			r = listing_take_line(listing, listing->line.data, err);
			buf_reset(&listing->line);
		}
		n += end != NULL;
		data += n;
		len -= n;
	}
	return r;
}

int listing_finish(const struct listing *listing, struct err *err)
{
	if (listing->has_ended && listing->line.len == 0)
		return 0;
	return err_set(err, E_DATA, "the listing ends too early");
}
