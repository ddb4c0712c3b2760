/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/os/os.h"
#include "base/util/mem.h"
#include "snap/tree/listing.h"

void listing_init(struct listing *listing)
{
	*listing = (struct listing){0};
	buf_init(&listing->text, LISTING_TEXT_MAX);
	listing->buffer = mem_grow(NULL, OS_NAMES_SIZE, 1);
}

void listing_done(struct listing *listing)
{
	vec_done(&listing->items);
	buf_done(&listing->text);
	free(listing->buffer);
}

static bool is_dot(const char *name)
{
	return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* DT_UNKNOWN: it is gone. */
static unsigned char type_of(int fd, const char *name)
{
	struct stat st;

	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return DT_UNKNOWN;
	return (unsigned char)IFTODT(st.st_mode);
}

static void add_name(struct listing *listing, unsigned char type, const char *name)
{
	listing->has_gitignore |= strcmp(name, ".gitignore") == 0;
	listing->has_dlrunignore |= strcmp(name, ".dlrunignore") == 0;
	buf_addc(&listing->text, (char)type);
	buf_add(&listing->text, name, strlen(name) + 1);
}

static int by_path(const void *a, const void *b)
{
	const struct listing_item *x = a, *y = b;
	size_t len = x->len < y->len ? x->len : y->len;
	int d = memcmp(x->name, y->name, len);

	if (d)
		return d;
	int x_next = x->len > len ? (unsigned char)x->name[len] : x->type == DT_DIR ? '/' : 0;
	int y_next = y->len > len ? (unsigned char)y->name[len] : y->type == DT_DIR ? '/' : 0;
	return x_next - y_next;
}

/* The text moves while it grows, so that the names are looked up at its end. */
static void make_items(struct listing *listing)
{
	const char *at = listing->text.data, *end = at + listing->text.len;

	while (at < end) {
		struct listing_item *item = vec_push(&listing->items);
		item->type = (unsigned char)*at++;
		item->name = at;
		item->len = (uint32_t)strlen(at);
		at += item->len + 1;
	}
	vec_sort(&listing->items, by_path);
}

static bool is_name(const char *name, size_t len)
{
	return len > 0 && !is_dot(name) && strcmp(name, ".git") != 0 && !memchr(name, '/', len);
}

bool listing_take(struct listing *listing, const char *text, size_t len, size_t n)
{
	const char *at = text, *end = text + len;

	listing->items.n = 0;
	vec_reserve(&listing->items, n);
	for (; at < end && listing->items.n < n; listing->items.n++) {
		struct listing_item *item = &listing->items.v[listing->items.n];
		item->type = (unsigned char)*at++;
		item->name = at;
		item->len = (uint32_t)strnlen(at, (size_t)(end - at));
		at += item->len + 1;
		if (at > end || !is_name(item->name, item->len))
			return false;
	}
	return at == end && listing->items.n == n;
}

struct reading {
	struct listing *listing;
	int fd;
	bool fold_git;
};

static void take_name(void *ctx, const char *name, unsigned char type)
{
	const struct reading *reading = ctx;
	bool fold = reading->fold_git;

	if (is_dot(name))
		return;
	if (fold ? strcasecmp(name, ".git") == 0 : strcmp(name, ".git") == 0) {
		reading->listing->has_git = true;
		return;
	}
	if (type == DT_UNKNOWN)
		type = type_of(reading->fd, name);
	if (type != DT_UNKNOWN)
		add_name(reading->listing, type, name);
}

int listing_read(struct listing *listing, int fd, bool fold_git)
{
	struct reading reading = {.listing = listing, .fd = fd, .fold_git = fold_git};

	listing->has_git = listing->has_gitignore = listing->has_dlrunignore = false;
	listing->items.n = 0;
	buf_reset(&listing->text);
	int r = os_list_names(fd, listing->buffer, take_name, &reading);
	if (r < 0)
		return r;
	if (listing->text.full)
		return -EFBIG;
	make_items(listing);
	return 0;
}
