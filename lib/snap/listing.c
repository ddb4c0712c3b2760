#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "snap/listing.h"

void listing_init(struct listing *listing)
{
	*listing = (struct listing){0};
	buf_init(&listing->text, LISTING_TEXT_MAX);
}

void listing_done(struct listing *listing)
{
	vec_done(&listing->items);
	buf_done(&listing->text);
}

static bool is_dot(const char *name)
{
	return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* DT_UNKNOWN: it is gone. */
static unsigned char type_of(DIR *stream, const struct dirent *entry)
{
	struct stat st;

	if (entry->d_type != DT_UNKNOWN)
		return entry->d_type;
	if (fstatat(dirfd(stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
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

int listing_read(struct listing *listing, DIR *stream, bool fold_git)
{
	listing->has_git = listing->has_gitignore = listing->has_dlrunignore = false;
	listing->items.n = 0;
	buf_reset(&listing->text);
	for (;;) {
		errno = 0;
		struct dirent *entry = readdir(stream);
		if (!entry)
			break;
		const char *name = entry->d_name;
		unsigned char type = type_of(stream, entry);
		if (fold_git ? strcasecmp(name, ".git") == 0 : strcmp(name, ".git") == 0)
			listing->has_git = true;
		else if (!is_dot(name) && type != DT_UNKNOWN)
			add_name(listing, type, name);
	}
	if (errno)
		return -errno;
	if (listing->text.full)
		return -EFBIG;
	make_items(listing);
	return 0;
}
