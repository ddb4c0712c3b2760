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

enum form { FORM_UNKNOWN, FORM_NUL, FORM_LINES };

struct listing {
	int (*fn)(void *ctx, const struct listing_entry *entry, struct err *err);
	void *ctx;
	enum form form;
	int64_t now_s;
	struct buf record;
	/* Lines: the entry whose name may go on, as it was written. */
	struct buf pending;
	size_t n;
	bool ended;
};

struct listing *listing_new(
	int (*fn)(void *ctx, const struct listing_entry *entry, struct err *err), void *ctx)
{
	struct listing *listing = mem_alloc(1, sizeof(*listing));

	*listing = (struct listing){.fn = fn, .ctx = ctx};
	buf_init(&listing->record, LISTING_RECORD_MAX);
	buf_init(&listing->pending, LISTING_RECORD_MAX);
	return listing;
}

void listing_free(struct listing *listing)
{
	if (!listing)
		return;
	buf_done(&listing->record);
	buf_done(&listing->pending);
	free(listing);
}

static int refuse(const char *text, struct err *err)
{
	AUTO_FREE char *shown = str_shown(text);

	return err_set(err, E_DATA, "'%s' is not an entry of a listing", shown);
}

/*
 * Fields
 */

/* A number up to the blank behind it. */
static bool take_number(const char **at, int base, int64_t *ret)
{
	char *end;
	const char *digits = *at + (**at == '-');
	bool ok = base == 16 ? strspn(digits, "0123456789abcdefABCDEF") > 0
			     : *digits >= '0' && *digits < '0' + base;

	if (!ok)
		return false;
	long long value = strtoll(*at, &end, base);
	if (value == INT64_MAX || value == INT64_MIN)
		return false;
	*ret = value;
	*at = end;
	return true;
}

static bool take_blank(const char **at)
{
	return *(*at)++ == ' ';
}

/* "1700000000.1234567890" */
static bool take_time(const char **at, int64_t *ret_ns)
{
	int64_t seconds, ns = 0;
	bool negative = **at == '-';

	if (!take_number(at, 10, &seconds) || seconds > SECONDS_MAX || seconds < -SECONDS_MAX)
		return false;
	if (**at == '.') {
		(*at)++;
		for (int i = 0; i < NS_DIGITS; i++)
			ns = ns * 10 + (str_is_digit(**at) ? *(*at)++ - '0' : 0);
		*at += strspn(*at, "0123456789");
	}
	*ret_ns = seconds * NS_PER_S + (negative ? -ns : ns);
	return true;
}

static bool parse_nul(const char *text, struct listing_entry *ret)
{
	int64_t mode, size;

	ret->kind = *text;
	if (!*text || text[1] != ' ')
		return false;
	text += 2;
	if (!take_number(&text, 8, &mode) || mode < 0 || mode > 07777 || !take_blank(&text) ||
		!take_number(&text, 10, &size) || size < 0 || !take_blank(&text) ||
		!take_time(&text, &ret->mtime_ns) || !take_blank(&text))
		return false;
	ret->mode = (mode_t)mode;
	ret->size = (uint64_t)size;
	ret->path = text;
	return true;
}

static char kind_of(mode_t mode)
{
	if (S_ISDIR(mode))
		return 'd';
	if (S_ISREG(mode))
		return 'f';
	return S_ISLNK(mode) ? 'l' : 'o';
}

static bool parse_line(const char *text, struct listing_entry *ret)
{
	int64_t mode, size;

	if (!take_number(&text, 16, &mode) || mode < 0 || mode > 0177777 || !take_blank(&text) ||
		!take_number(&text, 10, &size) || size < 0 || !take_blank(&text) ||
		!take_time(&text, &ret->mtime_ns) || !take_blank(&text) || *text++ != '.' ||
		(*text && *text != '/'))
		return false;
	ret->kind = kind_of((mode_t)mode);
	ret->mode = (mode_t)(mode & 07777);
	ret->size = (uint64_t)size;
	ret->path = *text ? text + 1 : text;
	return true;
}

/*
 * Records
 */

/* The directory itself has no name. */
static int give(struct listing *listing, struct listing_entry *entry, struct err *err)
{
	if (!*entry->path)
		return 0;
	if (++listing->n > LISTING_ENTRIES_MAX)
		return err_set(err, E_DATA_LIMIT, "there are more than %d files and directories",
			LISTING_ENTRIES_MAX);
	entry->changing = entry->mtime_ns / NS_PER_S >= listing->now_s - NEAR_S;
	return listing->fn(listing->ctx, entry, err);
}

static int flush(struct listing *listing, struct err *err)
{
	struct listing_entry entry = {0};
	int r = 0;

	if (listing->pending.len && parse_line(listing->pending.data, &entry))
		r = give(listing, &entry, err);
	buf_reset(&listing->pending);
	return r;
}

/* A name with a line end in it goes on. */
static int take_line(struct listing *listing, const char *text, struct err *err)
{
	struct listing_entry entry = {0};

	if (str_eq(text, "end")) {
		/* The end, unless it is a part of a name after all, which the next line would
		 * tell. */
		if (listing->ended)
			buf_adds(&listing->pending, "\nend");
		listing->ended = true;
		return buf_check(&listing->pending, "a name in the listing", err);
	}
	if (!parse_line(text, &entry)) {
		if (!listing->pending.len)
			return refuse(text, err);
		buf_addf(&listing->pending, listing->ended ? "\nend\n%s" : "\n%s", text);
		listing->ended = false;
		return buf_check(&listing->pending, "a name in the listing", err);
	}
	if (listing->ended)
		buf_adds(&listing->pending, "\nend");
	listing->ended = false;
	int r = flush(listing, err);
	buf_adds(&listing->pending, text);
	return r;
}

static int take_nul(struct listing *listing, const char *text, struct err *err)
{
	struct listing_entry entry = {0};

	if (listing->ended)
		return refuse(text, err);
	if (str_eq(text, "end")) {
		listing->ended = true;
		return 0;
	}
	return parse_nul(text, &entry) ? give(listing, &entry, err) : refuse(text, err);
}

static int take_form(struct listing *listing, const char *text, struct err *err)
{
	const char *now = strchr(text, ' ');

	if (str_starts(text, "nul "))
		listing->form = FORM_NUL;
	else if (str_starts(text, "lines "))
		listing->form = FORM_LINES;
	if (listing->form == FORM_UNKNOWN ||
		str_to_int(now + 1, 0, SECONDS_MAX, "time", &listing->now_s, NULL) < 0)
		return refuse(text, err);
	return 0;
}

static int take_record(struct listing *listing, struct err *err)
{
	static int (*const take[])(struct listing * listing, const char *text, struct err *err) = {
		[FORM_UNKNOWN] = take_form, [FORM_NUL] = take_nul, [FORM_LINES] = take_line};
	int r = buf_check(&listing->record, "an entry of the listing", err);

	if (r == 0 && strlen(listing->record.data) != listing->record.len)
		r = refuse(listing->record.data, err);
	if (r == 0)
		r = take[listing->form](listing, listing->record.data, err);
	buf_reset(&listing->record);
	return r;
}

int listing_add(struct listing *listing, const char *data, size_t len, struct err *err)
{
	int r = 0;

	while (r == 0 && len) {
		char mark = listing->form == FORM_NUL ? '\0' : '\n';
		const char *end = memchr(data, mark, len);
		size_t n = end ? (size_t)(end - data) : len;

		buf_add(&listing->record, data, n);
		if (end)
			r = take_record(listing, err);
		else
			r = buf_check(&listing->record, "an entry of the listing", err);
		n += end != NULL;
		data += n;
		len -= n;
	}
	return r;
}

int listing_finish(struct listing *listing, struct err *err)
{
	if (listing->ended && listing->record.len == 0)
		return flush(listing, err);
	return err_set(err, E_DATA, "the listing ends too early");
}
