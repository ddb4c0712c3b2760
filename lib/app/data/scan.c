/* SPDX-License-Identifier: Apache-2.0 */
#include "app/data/scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	SCAN_DEPTH_MAX = 100,
	SCAN_LINK_MAX = 4096,
	SCAN_WINDOW = 2 * CHUNK_MAX,
	SCAN_FRESH_MS = 2000
};

#define SCAN_OURS ".dlrun" /* in the place of data: no part of it */

static int64_t scan_ns(const struct timespec *time)
{
	return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

/*
 * The walk
 */

struct scan {
	struct version *version;
	size_t n_passed;
};

static int scan_add_link(
	struct scan *scan, const char *full, struct version_entry *entry, struct err *err)
{
	char target[SCAN_LINK_MAX];
	ssize_t len = readlink(full, target, sizeof(target));

	if (len < 0)
		return fs_error(err, errno, "%s", full);
	if (!len || (size_t)len == sizeof(target))
		return err_set(err, E_DATA_LIMIT, "%s: the target of the link is too long", full);
	entry->kind = 'l';
	entry->target = arena_strndup(&scan->version->arena, target, (size_t)len);
	return 0;
}

/* 1: it is a part of the data. */
static int scan_fill(struct scan *scan, const char *full, const struct stat *st,
	struct version_entry *entry, struct err *err)
{
	entry->mode = st->st_mode & 0555;
	if (S_ISLNK(st->st_mode)) {
		int r = scan_add_link(scan, full, entry, err);
		return r < 0 ? r : 1;
	}
	if (S_ISDIR(st->st_mode)) {
		entry->kind = 'd';
		entry->mode = (st->st_mode & 0777) | 0700;
		return 1;
	}
	if (!S_ISREG(st->st_mode)) {
		scan->n_passed++;
		return 0;
	}
	entry->kind = 'f';
	entry->size = (uint64_t)st->st_size;
	entry->inode = st->st_ino;
	entry->mtime_ns = scan_ns(&st->st_mtim);
	entry->ctime_ns = scan_ns(&st->st_ctim);
	entry->has_stat = true;
	return 1;
}

static int scan_walk(
	struct scan *scan, const char *dir, const char *prefix, int depth, struct err *err);

static int scan_add(struct scan *scan, const char *dir, const char *prefix, const char *name,
	int depth, struct err *err)
{
	AUTO_FREE char *full = fs_join(dir, name), *path = mem_printf("%s%s", prefix, name);
	struct version_entry entry = {0};
	struct stat st;

	if (lstat(full, &st) < 0)
		return fs_error(err, errno, "%s", full);
	int r = scan_fill(scan, full, &st, &entry, err);
	if (r <= 0)
		return r;
	if (scan->version->entries.n == VERSION_ENTRIES_MAX || strlen(path) >= SCAN_LINK_MAX)
		return err_set(err, E_DATA_LIMIT,
			"%s: data may have %d files, with paths of %d bytes", dir,
			VERSION_ENTRIES_MAX, SCAN_LINK_MAX - 1);
	entry.path = arena_strdup(&scan->version->arena, path);
	*vec_push(&scan->version->entries) = entry;
	if (entry.kind != 'd')
		return 0;
	AUTO_FREE char *below = mem_printf("%s/", path);
	return scan_walk(scan, full, below, depth + 1, err);
}

static int scan_walk(
	struct scan *scan, const char *dir, const char *prefix, int depth, struct err *err)
{
	AUTO_DIR DIR *open = opendir(dir);
	const struct dirent *item;

	if (!open)
		return fs_error(err, errno, "%s", dir);
	if (depth > SCAN_DEPTH_MAX)
		return err_set(
			err, E_DATA_LIMIT, "%s: data may have %d levels", dir, SCAN_DEPTH_MAX);
	for (;;) {
		errno = 0;
		item = readdir(open);
		if (!item)
			return errno ? fs_error(err, errno, "%s", dir) : 0;
		if (str_eq(item->d_name, ".") || str_eq(item->d_name, "..") ||
			(!*prefix && str_eq(item->d_name, SCAN_OURS)))
			continue;
		int r = scan_add(scan, dir, prefix, item->d_name, depth, err);
		if (r < 0)
			return r;
	}
}

static int scan_by_path(const void *a, const void *b)
{
	const struct version_entry *one = a, *other = b;

	return strcmp(one->path, other->path);
}

static void scan_take_known(struct version *version, const struct version *known)
{
	vec_foreach (struct version_entry, entry, &version->entries) {
		const struct version_entry *before = version_find(known, entry->path);
		size_t bytes;
		if (!before || !before->has_stat || entry->kind != 'f' || before->kind != 'f' ||
			before->size != entry->size || before->inode != entry->inode ||
			before->mtime_ns != entry->mtime_ns || before->ctime_ns != entry->ctime_ns)
			continue;
		memcpy(entry->sha, before->sha, sizeof(entry->sha));
		entry->has_digest = true;
		bytes = before->n_chunks * sizeof(*before->chunks);
		if (!bytes)
			continue;
		entry->chunks = arena_alloc(&version->arena, bytes);
		memcpy(entry->chunks, before->chunks, bytes);
		entry->n_chunks = before->n_chunks;
	}
}

int scan_dir(const char *dir, const struct version *known, struct version *ret, size_t *ret_passed,
	struct err *err)
{
	struct scan scan = {.version = ret};

	int r = scan_walk(&scan, dir, "", 0, err);
	if (r < 0)
		return r;
	vec_sort(&ret->entries, scan_by_path);
	if (known)
		scan_take_known(ret, known);
	*ret_passed = scan.n_passed;
	return 0;
}

/*
 * Contents
 */

static int scan_changed(const char *full, struct err *err)
{
	AUTO_FREE char *shown = str_shown(full);

	return err_set(err, E_IO_CHANGED, "%s changed while it was read", shown);
}

int scan_check(int fd, const char *full, const struct version_entry *entry, const char *sha256,
	struct err *err)
{
	char hex[SHA256_HEX_SIZE];
	struct stat st;

	if (fstat(fd, &st) < 0)
		return fs_error(err, errno, "%s", full);
	hex_encode(entry->sha, SHA256_SIZE, hex);
	return !S_ISREG(st.st_mode) || (uint64_t)st.st_size != entry->size ||
			       scan_ns(&st.st_mtim) != entry->mtime_ns ||
			       (sha256 && !str_eq(sha256, hex))
		       ? scan_changed(full, err)
		       : 0;
}

int scan_open(const char *full, const struct version_entry *entry, int *ret_fd, struct err *err)
{
	AUTO_FD int fd = open(full, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return fs_error(err, errno, "%s", full);
	int r = scan_check(fd, full, entry, NULL, err);
	if (r == 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}

/* As many bytes as there are, len at most. */
static ssize_t scan_read_full(int fd, uint8_t *out, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = read(fd, out + done, len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

struct scan_window {
	int fd;
	uint8_t *bytes;
	size_t len; /* bytes that are not used yet begin at 0 */
	bool has_ended;
};

static int scan_window_fill(
	struct scan_window *window, const char *full, size_t size, struct err *err)
{
	ssize_t n = scan_read_full(window->fd, window->bytes + window->len, size - window->len);

	if (n < 0)
		return fs_error(err, (int)-n, "%s", full);
	window->has_ended = window->len + (size_t)n < size;
	window->len += (size_t)n;
	return 0;
}

static int scan_give(const struct scan_reading *reading, uint64_t at, const uint8_t *bytes,
	size_t len, struct err *err)
{
	size_t skip = reading->skip <= at        ? 0
		      : reading->skip - at < len ? (size_t)(reading->skip - at)
						 : len;

	return reading->data && skip < len
		       ? reading->data(reading->ctx, bytes + skip, len - skip, err)
		       : 0;
}

struct scan_chunks VEC_OF(struct version_chunk);

static int scan_pass(const char *full, struct version_entry *entry,
	const struct scan_reading *reading, struct scan_window *window, struct scan_chunks *chunks,
	struct err *err)
{
	bool is_chunked = entry->size >= VERSION_CHUNKED;
	size_t size = is_chunked ? SCAN_WINDOW : 1 << 18;
	AUTO_DIGEST struct digest digest = {0};
	uint64_t at = 0;
	int r = 0;

	digest_begin(&digest, DIGEST_SHA256);
	while (r == 0) {
		size_t used = 0;
		r = scan_window_fill(window, full, size, err);
		while (r == 0 && used < window->len &&
			(window->has_ended || !is_chunked || window->len - used >= CHUNK_MAX)) {
			const uint8_t *bytes = window->bytes + used;
			size_t left = window->len - used;
			size_t len = is_chunked ? chunk_cut(reading->chunker, bytes, left) : left;
			if (is_chunked)
				*vec_push(chunks) = (struct version_chunk){
					(uint32_t)len, chunk_hash(bytes, len)};
			digest_add(&digest, bytes, len);
			r = scan_give(reading, at, bytes, len, err);
			used += len;
			at += len;
		}
		window->len -= used;
		memmove(window->bytes, window->bytes + used, window->len);
		if (window->has_ended)
			break;
	}
	if (r == 0 && at != entry->size)
		return scan_changed(full, err);
	digest_end(&digest, entry->sha);
	return r;
}

int scan_read(const char *dir, struct version_entry *entry, const struct scan_reading *reading,
	struct err *err)
{
	AUTO_FREE char *full = fs_join(dir, entry->path);
	AUTO_FD int fd = -1;
	AUTO_FREE uint8_t *bytes = NULL;
	struct scan_chunks chunks = {0};

	int r = scan_open(full, entry, &fd, err);
	if (r < 0)
		return r;
	bytes = mem_grow(NULL, entry->size >= VERSION_CHUNKED ? SCAN_WINDOW : 1 << 18, 1);
	struct scan_window window = {.fd = fd, .bytes = bytes};
	r = scan_pass(full, entry, reading, &window, &chunks, err);
	if (r == 0)
		r = scan_check(fd, full, entry, NULL, err);
	if (r == 0 && chunks.n) {
		size_t size = chunks.n * sizeof(*chunks.v);
		entry->chunks = arena_alloc(reading->arena, size);
		memcpy(entry->chunks, chunks.v, size);
		entry->n_chunks = chunks.n;
	}
	entry->has_digest = r == 0;
	vec_done(&chunks);
	return r;
}

int scan_prefix(const char *dir, const struct version_entry *entry, uint64_t len,
	uint8_t out[static SHA256_SIZE], struct err *err)
{
	AUTO_FREE char *full = fs_join(dir, entry->path);
	AUTO_DIGEST struct digest digest = {0};
	AUTO_FREE uint8_t *bytes = mem_grow(NULL, 1 << 18, 1);
	AUTO_FD int fd = -1;

	int r = scan_open(full, entry, &fd, err);
	if (r < 0)
		return r;
	digest_begin(&digest, DIGEST_SHA256);
	while (len) {
		ssize_t n = scan_read_full(fd, bytes, len < 1 << 18 ? (size_t)len : 1 << 18);
		if (n < 0)
			return fs_error(err, (int)-n, "%s", full);
		if (n == 0)
			return scan_changed(full, err);
		digest_add(&digest, bytes, (size_t)n);
		len -= (uint64_t)n;
	}
	digest_end(&digest, out);
	return 0;
}

/*
 * Several files at once
 */

struct scan_hashing {
	const char *dir;
	const struct scan_wants *wants;
	const struct chunker *chunker;
	struct arena *arenas; /* of each worker */
	struct err *errors;
};

static void scan_hash_one(void *ctx, size_t i, unsigned worker)
{
	struct scan_hashing *hashing = ctx;
	const struct scan_reading reading = {
		.chunker = hashing->chunker, .arena = &hashing->arenas[worker]};

	if (!err_is_set(&hashing->errors[worker]))
		scan_read(hashing->dir, hashing->wants->v[i], &reading, &hashing->errors[worker]);
}

int scan_hash(const char *dir, struct version *version, const struct scan_wants *wants,
	const struct chunker *chunker, struct err *err)
{
	unsigned n = par_width();
	AUTO_FREE struct arena *arenas = mem_alloc(n, sizeof(*arenas));
	AUTO_FREE struct err *errors = mem_alloc(n, sizeof(*errors));
	struct scan_hashing hashing = {dir, wants, chunker, arenas, errors};
	int r = 0;

	par_for(wants->n, scan_hash_one, &hashing);
	for (unsigned i = 0; i < n; i++) {
		arena_merge(&version->arena, &arenas[i]);
		if (r == 0 && err_is_set(&errors[i]))
			r = err_move(err, &errors[i]);
		err_done(&errors[i]);
	}
	return r;
}

void scan_forget_fresh(struct version *version, int64_t begun_wall_ms)
{
	int64_t limit_ns = (begun_wall_ms - SCAN_FRESH_MS) * 1000000;

	vec_foreach (struct version_entry, entry, &version->entries)
		entry->has_stat =
			entry->has_stat && entry->mtime_ns < limit_ns && entry->ctime_ns < limit_ns;
}
