/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/baked.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "oci/layer/tar_stream.h"

enum {
	CHUNK = 1 << 20,
	FILES_MAX = 1000 * 1000,
	LIST_MAX = 16 << 20,   /* bytes of a list of names */
	SECRET_MIN = 6,        /* shorter values are found anywhere */
	WINDOW_MAX = 64 << 10, /* of longer ones the beginning is looked for */
};

void baked_done(struct baked *baked)
{
	vec_done(&baked->files);
	vec_done(&baked->hardlinks);
	arena_done(&baked->arena);
	buf_done(&baked->tops);
	buf_done(&baked->gone);
	buf_done(&baked->told);
	buf_done(&baked->window);
	digest_done(&baked->digest);
	free(baked->entries.v);
	strv_done(&baked->removed);
}

/* "/.venv/x" of "dlrun/src/.venv/x"; NULL: it is not in the tree. */
static const char *baked_in_tree(const struct baked *baked, const char *path)
{
	size_t len = strlen(baked->tree);

	return strncmp(path, baked->tree, len) == 0 && path[len] == '/' ? path + len : NULL;
}

static const char *baked_without_dot(const char *path)
{
	return path + (str_starts(path, "./") ? 2 : 0);
}

/* "dlrun/src/.venv/x" is "dlrun/env/tree/.venv/x" in the layer. */
static const char *baked_path(struct baked *baked, const char *path)
{
	const char *plain = baked_without_dot(path), *in_tree = baked_in_tree(baked, plain);

	if (!in_tree)
		return arena_strdup(&baked->arena, plain);
	AUTO_FREE char *moved = mem_printf("%s%s", &KUBE_BAKED[1], in_tree);
	return arena_strdup(&baked->arena, moved);
}

/* Append the components of path to at, an absolute path. "..": the last one is removed. */
static void baked_walk(struct buf *at, const char *path)
{
	for (const char *name = path; *name; name += strspn(name, "/")) {
		size_t len = strcspn(name, "/");
		if (len == 2 && memcmp(name, "..", 2) == 0) {
			const char *last = at->len ? strrchr(at->data, '/') : NULL;
			buf_truncate(at, last ? (size_t)(last - at->data) : 0);
		} else if (len > 0 && !(len == 1 && *name == '.')) {
			buf_addc(at, '/');
			buf_add(at, name, len);
		}
		name += len;
	}
}

/* A link of the tree lies elsewhere in the layer: a target that climbs becomes the absolute one
 * that it had in the tree, where what the setup has made is linked again. */
static const char *baked_target(struct baked *baked, const struct tar_member *member)
{
	const char *path = baked_without_dot(member->path);

	if (!baked_in_tree(baked, path) || *member->target == '/' || !strstr(member->target, ".."))
		return arena_strdup(&baked->arena, member->target);
	AUTO_FREE char *dir = fs_dirname(path);
	AUTO_BUF struct buf target = buf_with(LIST_MAX);

	baked_walk(&target, dir);
	baked_walk(&target, member->target);
	return arena_strdup(&baked->arena, target.len ? target.data : "/");
}

static int baked_refuse_secret(const char *name, size_t len, const char *path, struct err *err)
{
	AUTO_FREE char *text = mem_strndup(name, len), *shown_name = str_shown(text);
	AUTO_FREE char *shown = str_shown(path);

	return err_set(err, E_SECRET, "the setup writes the secret %s to /%s", shown_name, shown);
}

/* The pod may have had other values than those here. */
static int baked_check_told(struct baked *baked, struct err *err)
{
	if (baked->told.len == 0)
		return 0;
	AUTO_FREE char *line = mem_strndup(baked->told.data, strcspn(baked->told.data, "\n"));
	size_t len = strcspn(line, " ");

	return baked_refuse_secret(
		line, len, baked_path(baked, line + len + (line[len] != '\0')), err);
}

/* The length of what is looked for of the value of a secret. */
static size_t baked_secret(const char *pair, const char **ret_value)
{
	const char *value = strchr(pair, '=') + 1;
	size_t len = strlen(value);

	*ret_value = value;
	return len < SECRET_MIN ? 0 : len < WINDOW_MAX ? len : WINDOW_MAX;
}

/* In the newest file. */
static int baked_check_bytes(
	const struct baked *baked, const char *data, size_t len, struct err *err)
{
	for (size_t i = 0; baked->secrets && i < baked->secrets->n; i++) {
		const char *pair = baked->secrets->v[i], *value;
		size_t n = baked_secret(pair, &value);
		if (n && memmem(data, len, value, n))
			return baked_refuse_secret(pair, strcspn(pair, "="),
				baked->files.v[baked->files.n - 1].entry.path, err);
	}
	return 0;
}

static int baked_check_names(struct baked *baked, const struct entry *entry, struct err *err)
{
	int r = baked_check_bytes(baked, entry->path, strlen(entry->path), err);

	return r == 0 && entry->target
		       ? baked_check_bytes(baked, entry->target, strlen(entry->target), err)
		       : r;
}

/* The owner becomes root, so what is the tree's, or was of another, is there for everybody to read;
 * else it is as the tool made it, with the umask of bake.sh. */
static uint16_t baked_mode(const struct baked *baked, const struct tar_member *member)
{
	unsigned mode = member->mode & 0777;

	if (member->is_root && !baked_in_tree(baked, baked_without_dot(member->path)))
		return (uint16_t)(mode ? mode : 0400); /* 0: entry.h has no such one */
	return mode & 0100 ? 0755 : 0644;
}

static int baked_take_member(void *ctx, const struct tar_member *member, struct err *err)
{
	struct baked *baked = ctx;
	struct baked_file file = {.entry = {.size = member->size}};

	baked->list = str_eq(member->path, "tops")      ? &baked->tops
		      : str_eq(member->path, "gone")    ? &baked->gone
		      : str_eq(member->path, "secrets") ? &baked->told
							: NULL;
	baked->has_content = false;
	buf_reset(&baked->window);
	digest_done(&baked->digest);
	digest_begin(&baked->digest, DIGEST_SHA256);
	if (baked->list || member->kind == TAR_DIR || member->kind == TAR_OTHER)
		return 0;
	if (baked->files.n + baked->hardlinks.n >= FILES_MAX)
		return err_set(
			err, E_DATA_LIMIT, "the setup has made more than %d files", FILES_MAX);
	file.entry.path = baked_path(baked, member->path);
	file.entry.exec = (member->mode & 0100) != 0;
	file.entry.mode = baked_mode(baked, member);
	if (member->kind == TAR_HARDLINK) {
		file.entry.target = baked_path(baked, member->target);
		*vec_push(&baked->hardlinks) = file;
		return 0;
	}
	if (member->kind == TAR_LINK) {
		file.entry.kind = ENTRY_LINK;
		file.entry.exec = false;
		file.entry.target = baked_target(baked, member);
		file.entry.size = strlen(file.entry.target);
		digest_sha256(file.entry.target, file.entry.size, file.entry.sha256);
	}
	baked->bytes += member->size;
	*vec_push(&baked->files) = file;
	return baked_check_names(baked, &file.entry, err);
}

/* A value may lie in two parts of the content: the end of the one before is kept. */
static int baked_check_secrets(struct baked *baked, const char *data, size_t len, struct err *err)
{
	size_t longest = 0;

	for (size_t i = 0; baked->secrets && i < baked->secrets->n; i++) {
		const char *value;
		size_t n = baked_secret(baked->secrets->v[i], &value);
		longest = n > longest ? n : longest;
	}
	if (longest == 0)
		return 0;
	buf_add(&baked->window, data, len < longest ? len : longest);
	int r = baked_check_bytes(baked, baked->window.data, baked->window.len, err);
	if (r == 0)
		r = baked_check_bytes(baked, data, len, err);
	if (len >= longest) {
		buf_reset(&baked->window);
		buf_add(&baked->window, data + len - longest, longest);
	} else if (baked->window.len > longest) {
		AUTO_FREE char *rest =
			mem_strndup(baked->window.data + baked->window.len - longest, longest);
		buf_reset(&baked->window);
		buf_add(&baked->window, rest, longest);
	}
	return r;
}

static int baked_take_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct baked *baked = ctx;

	if (baked->list) {
		buf_add(baked->list, data, len);
		return buf_check(baked->list, "a list of names", err);
	}
	if (!baked->has_content)
		baked->files.v[baked->files.n - 1].at =
			baked->chunk_at + (uint64_t)((const char *)data - baked->chunk);
	baked->has_content = true;
	digest_add(&baked->digest, data, len);
	return baked_check_secrets(baked, data, len, err);
}

static int baked_take_end(void *ctx, struct err *err UNUSED)
{
	struct baked *baked = ctx;

	if (!baked->list)
		digest_end(&baked->digest, baked->files.v[baked->files.n - 1].entry.sha256);
	return 0;
}

static int baked_read_tar(struct baked *baked, struct err *err)
{
	const struct tar_events events = {.member = baked_take_member,
		.data = baked_take_data,
		.end = baked_take_end,
		.ctx = baked};
	AUTO(tar_stream_free_auto) struct tar_stream *stream = tar_stream_new(&events);
	AUTO_FREE char *chunk = mem_alloc(1, CHUNK);
	int r = 0;

	baked->chunk = chunk;
	while (r == 0) {
		ssize_t n = pread(baked->fd, chunk, CHUNK, (off_t)baked->chunk_at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fs_error(err, errno, "reading the environment");
		if (n == 0)
			return tar_stream_finish(stream, err);
		r = tar_stream_add(stream, chunk, (size_t)n, err);
		baked->chunk_at += (uint64_t)n;
	}
	return r;
}

static int baked_by_path(const void *a, const void *b)
{
	return strcmp(((const struct baked_file *)a)->entry.path,
		((const struct baked_file *)b)->entry.path);
}

static const struct baked_file *baked_find(const struct baked *baked, const char *path)
{
	const struct baked_file wanted = {.entry = {.path = path}};

	return baked->files.n ? bsearch(&wanted, baked->files.v, baked->files.n, sizeof(wanted),
					baked_by_path)
			      : NULL;
}

/* Whether something of the environment lies at or below path. */
static bool baked_has(const struct baked *baked, const char *path)
{
	size_t from = 0, to = baked->files.n, len = strlen(path);

	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (strcmp(baked->files.v[middle].entry.path, path) < 0)
			from = middle + 1;
		else
			to = middle;
	}
	for (; from < baked->files.n; from++) {
		const char *found = baked->files.v[from].entry.path;
		if (strncmp(found, path, len) != 0)
			return false;
		if (found[len] == '\0' || found[len] == '/')
			return true;
	}
	return false;
}

/* The content of a hard link lies where that of its file does. */
static void baked_add_hardlinks(struct baked *baked)
{
	size_t n = 0;

	vec_foreach (struct baked_file, link, &baked->hardlinks) {
		const struct baked_file *same = baked_find(baked, link->entry.target);
		const char *path = link->entry.path;
		if (!same)
			continue;
		*link = *same;
		link->entry.path = path;
		baked->hardlinks.v[n++] = *link;
	}
	for (size_t i = 0; i < n; i++)
		*vec_push(&baked->files) = baked->hardlinks.v[i];
	vec_sort(&baked->files, baked_by_path);
}

/* Each line of list, without the first slash. */
static void baked_each_line(struct baked *baked, const struct buf *list,
	void (*fn)(struct baked *baked, const char *path))
{
	for (const char *at = list->len ? list->data : ""; *at; at += strspn(at, "\n")) {
		size_t len = strcspn(at, "\n");
		AUTO_FREE char *line = mem_strndup(at, len);
		fn(baked, line + strspn(line, "/"));
		at += len;
	}
}

static void baked_add_removed(struct baked *baked, const char *path)
{
	if (*path && !baked_has(baked, path))
		strv_add(&baked->removed, path);
}

/* A path of the tree that links lead to from the trees of runs. */
static void baked_add_top(struct baked *baked, const char *path)
{
	const char *in_tree = baked_in_tree(baked, path);

	if (in_tree) {
		buf_adds(&baked->gone, in_tree + 1);
		buf_addc(&baked->gone, '\n');
	}
}

static int baked_by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The list of links is a file of the environment: its content goes behind the tar. */
static int baked_add_links(struct baked *baked, struct err *err)
{
	struct baked_file file = {.entry = {.path = &KUBE_BAKED_LINKS[1]}};
	off_t end = lseek(baked->fd, 0, SEEK_END);

	buf_reset(&baked->gone);
	baked_each_line(baked, &baked->tops, baked_add_top);
	int r = buf_check(&baked->gone, "a list of names", err);
	if (r == 0 && end < 0)
		r = fs_error(err, errno, "the environment");
	if (r == 0)
		r = fs_write_fd(
			baked->fd, "the environment", baked->gone.data, baked->gone.len, err);
	if (r < 0)
		return r;
	file.at = (uint64_t)end;
	file.entry.size = baked->gone.len;
	file.entry.mode = 0644;
	digest_sha256(baked->gone.data, baked->gone.len, file.entry.sha256);
	*vec_push(&baked->files) = file;
	return 0;
}

/* Files that are there twice, or below another, are none of tar's making. */
static int baked_check_order(const struct baked *baked, struct err *err)
{
	for (size_t i = 1; i < baked->files.n; i++) {
		const char *before = baked->files.v[i - 1].entry.path;
		const char *path = baked->files.v[i].entry.path;
		size_t len = strlen(before);
		if (strncmp(path, before, len) == 0 && (path[len] == '/' || path[len] == '\0'))
			return err_set(err, E_DATA, "the environment has a file twice: %s", path);
	}
	return 0;
}

int baked_read(struct baked *baked, struct err *err)
{
	buf_init(&baked->tops, LIST_MAX);
	buf_init(&baked->gone, LIST_MAX);
	buf_init(&baked->told, LIST_MAX);
	buf_init(&baked->window, 4 * WINDOW_MAX);
	int r = baked_read_tar(baked, err);
	if (r == 0)
		r = baked_check_told(baked, err);
	if (r < 0)
		return r;
	vec_sort(&baked->files, baked_by_path);
	baked_add_hardlinks(baked);
	baked_each_line(baked, &baked->gone, baked_add_removed);
	vec_sort(&baked->removed, baked_by_text);
	r = baked_add_links(baked, err);
	if (r < 0)
		return r;
	vec_sort(&baked->files, baked_by_path);
	vec_foreach (const struct baked_file, file, &baked->files)
		*vec_push(&baked->entries) = file->entry;
	return baked_check_order(baked, err);
}

/* Files are read one after the other. */
int baked_open(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	const struct baked *baked = ctx;
	AUTO_FD int fd = fcntl(baked->fd, F_DUPFD_CLOEXEC, 0);
	uint64_t at = baked->files.v[entry - baked->entries.v].at;

	if (fd < 0 || lseek(fd, (off_t)at, SEEK_SET) < 0)
		return fs_error(err, errno, "%s", entry->path);
	*ret_fd = TAKE_FD(fd);
	return 0;
}
