/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/layer.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/entry.h"
#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/err.h"
#include "base/util/str.h"

/* The position of the first entry whose path is not less than the first len bytes of path. */
static size_t layer_lower_bound(const struct entry_refs *refs, const char *path, size_t len)
{
	return vec_bound(refs, ref, strncmp((*ref)->path, path, len) < 0);
}

/* Whether there is an entry at the path, or with slash one below it. */
static bool layer_has_path(const struct entry_refs *refs, const char *path, size_t len, bool slash)
{
	/* Paths that merely begin with path may stand before the one that is it plus a slash. */
	AUTO_FREE char *wanted = mem_printf("%.*s%s", (int)len, path, slash ? "/" : "");
	size_t at = layer_lower_bound(refs, wanted, len + 1);

	return at < refs->n && strncmp(refs->v[at]->path, wanted, len + 1) == 0;
}

/*
 * Covering
 */

static void hide_path(const struct entry_refs *lower, const char *path, size_t len, bool *hidden)
{
	AUTO_FREE char *wanted = mem_strndup(path, len);
	size_t at = layer_lower_bound(lower, wanted, len + 1);

	if (at < lower->n && strcmp(lower->v[at]->path, wanted) == 0)
		hidden[at] = true;
}

static void hide_below(const struct entry_refs *lower, const char *path, bool *hidden)
{
	AUTO_FREE char *prefix = mem_printf("%s/", path);
	size_t len = strlen(prefix);

	for (size_t at = layer_lower_bound(lower, prefix, len); at < lower->n; at++) {
		if (strncmp(lower->v[at]->path, prefix, len) != 0)
			return;
		hidden[at] = true;
	}
}

static void hide(const struct entry_refs *lower, const struct entry *by, bool *hidden)
{
	for (const char *slash = by->path; (slash = strchr(slash, '/')); slash++)
		hide_path(lower, by->path, (size_t)(slash - by->path), hidden);
	hide_path(lower, by->path, strlen(by->path), hidden);
	hide_below(lower, by->path, hidden);
}

void entry_refs_cover(
	const struct entry_refs *lower, const struct entry_refs *upper, struct entry_refs *ret)
{
	AUTO_FREE bool *hidden = mem_alloc(lower->n, sizeof(*hidden));
	struct entry_refs merged = {0};
	size_t at = 0;

	for (size_t i = 0; i < upper->n; i++)
		hide(lower, upper->v[i], hidden);
	vec_reserve(&merged, lower->n + upper->n);
	for (size_t i = 0; i < lower->n; i++) {
		if (hidden[i])
			continue;
		while (at < upper->n && strcmp(upper->v[at]->path, lower->v[i]->path) < 0)
			merged.v[merged.n++] = upper->v[at++];
		merged.v[merged.n++] = lower->v[i];
	}
	while (at < upper->n)
		merged.v[merged.n++] = upper->v[at++];
	*ret = merged;
}

/*
 * Difference
 */

struct work {
	const struct entry_refs *to;
	size_t max;
	struct layer_diff diff;
	/* Skip paths below this one, which was dealt with: removed paths of one directory are
	 * adjacent. */
	const char *settled;
	size_t settled_len;
};

/* Whether the directory that the first len bytes of path name takes all below it along: something
 * else has its place now, or nothing of it is left. */
static bool layer_settle(struct work *work, const char *path, size_t len)
{
	bool replaced = layer_has_path(work->to, path, len, false);

	if (!replaced && layer_has_path(work->to, path, len, true))
		return false;
	work->settled = path;
	work->settled_len = len;
	if (!replaced)
		strv_add_take(&work->diff.whiteouts, mem_strndup(path, len));
	return true;
}

static bool layer_is_settled(const struct work *work, const char *path)
{
	return work->settled && strncmp(path, work->settled, work->settled_len) == 0 &&
	       path[work->settled_len] == '/';
}

static void layer_remove_path(struct work *work, const char *path)
{
	if (layer_is_settled(work, path))
		return;
	for (const char *slash = path; (slash = strchr(slash, '/')); slash++)
		if (layer_settle(work, path, (size_t)(slash - path)))
			return;
	/* A directory at its place replaces it. */
	if (!layer_has_path(work->to, path, strlen(path), true))
		strv_add(&work->diff.whiteouts, path);
}

static bool layer_is_over(const struct work *work)
{
	return work->diff.entries.n + work->diff.whiteouts.n > work->max;
}

bool layer_diff_make(const struct entry_refs *from, const struct entry_refs *to, size_t max,
	struct layer_diff *ret)
{
	struct work work = {.to = to, .max = max};
	size_t i = 0, k = 0;

	while ((i < from->n || k < to->n) && !layer_is_over(&work)) {
		int order = i == from->n ? 1 : k == to->n ? -1 : 0;
		if (order == 0)
			order = strcmp(from->v[i]->path, to->v[k]->path);
		if (order < 0)
			layer_remove_path(&work, from->v[i]->path);
		else if (order > 0 || !entry_same(from->v[i], to->v[k]))
			*vec_push(&work.diff.entries) = to->v[k];
		i += order <= 0;
		k += order >= 0;
	}
	if (layer_is_over(&work)) {
		layer_diff_done(&work.diff);
		return false;
	}
	strv_sort(&work.diff.whiteouts);
	*ret = work.diff;
	return true;
}

void layer_diff_done(struct layer_diff *diff)
{
	if (!diff)
		return;
	vec_done(&diff->entries);
	strv_done(&diff->whiteouts);
}

/* Buffers that serve one file after the other. Zero: not used yet. */
struct layer_content {
	uint8_t *buffers[2]; /* one is hashed while the other is read into */
	struct digest digest;
	bool is_part; /* as of entry_opener */
};

/* Takes the bytes in order. */
typedef int layer_content_fn(void *ctx, const void *data, size_t len, struct err *err);

enum { WHITEOUT_LEN = sizeof(LAYER_WHITEOUT_PREFIX) - 1 };

const char *layer_prefix(const char *workdir)
{
	return workdir + strspn(workdir, "/");
}

static bool is_dots(const char *name, size_t len)
{
	return (len == 1 || len == 2) && memcmp(name, "..", len) == 0;
}

static bool is_whiteout(const char *name, size_t len)
{
	return len >= WHITEOUT_LEN && memcmp(name, LAYER_WHITEOUT_PREFIX, WHITEOUT_LEN) == 0;
}

bool layer_path_is_valid(const char *path)
{
	const char *at = path;

	if (entry_path_has_git(path))
		return false;
	for (;;) {
		size_t len = strcspn(at, "/");
		if (len == 0 || len > ENTRY_NAME_MAX || is_dots(at, len) || is_whiteout(at, len))
			return false;
		at += len;
		if (!*at)
			return at - path <= ENTRY_PATH_MAX;
		at++;
	}
}

static int layer_refuse(struct err *err, const char *name, const char *why)
{
	AUTO_FREE char *shown = str_shown(name);

	return err_set(err, E_IMAGE, "a layer has the name \"%s\": %s", shown, why);
}

/* Check a component of a name; last: nothing but slashes and dots follows. NULL, or why not. */
static const char *check_component(const char *at, size_t len, bool last)
{
	if (len == 2 && is_dots(at, len))
		return "it leads out of the image";
	if (!is_whiteout(at, len))
		return len > ENTRY_NAME_MAX ? "a part of it is over 255 bytes" : NULL;
	if (!last)
		return "what is deleted holds nothing";
	if (len == sizeof(LAYER_OPAQUE_NAME) - 1 && memcmp(at, LAYER_OPAQUE_NAME, len) == 0)
		return NULL;
	at += WHITEOUT_LEN;
	len -= WHITEOUT_LEN;
	if (len == 0 || is_dots(at, len) || is_whiteout(at, len))
		return "it deletes nothing that can have a name";
	return len > ENTRY_NAME_MAX ? "a part of it is over 255 bytes" : NULL;
}

static const char *skip_blank_components(const char *at)
{
	for (;;) {
		if (*at == '/')
			at++;
		else if (at[0] == '.' && (at[1] == '/' || !at[1]))
			at++;
		else
			return at;
	}
}

/* name with single slashes between its components, in out. NULL, or why not. */
static const char *clean(const char *name, struct buf *out)
{
	const char *at = name;

	if (!*name)
		return "it is empty";
	if (*name == '/')
		return "it is absolute";
	while (*(at = skip_blank_components(at))) {
		size_t len = strcspn(at, "/");
		bool last = !*skip_blank_components(at + len);
		const char *why = check_component(at, len, last);
		if (why)
			return why;
		if (out->len)
			buf_addc(out, '/');
		buf_add(out, at, len);
		at += len;
	}
	return out->full ? "it is too long" : NULL;
}

/* Take the whiteout off the end of a clean name. */
static enum layer_mark layer_take_mark(struct buf *name)
{
	char *slash = strrchr(name->data, '/');
	size_t dir_len = slash ? (size_t)(slash - name->data) : 0;
	const char *last = slash ? slash + 1 : name->data;

	if (!is_whiteout(last, strlen(last)))
		return LAYER_PLAIN;
	if (str_eq(last, LAYER_OPAQUE_NAME)) {
		buf_truncate(name, dir_len);
		return LAYER_EMPTIED;
	}
	size_t at = (size_t)(last - name->data), rest = strlen(last) - WHITEOUT_LEN;
	memmove(name->data + at, last + WHITEOUT_LEN, rest);
	buf_truncate(name, at + rest);
	return LAYER_REMOVED;
}

/* Where a clean name lies; *ret_rest: relative to the workdir. */
static enum layer_place layer_place_of(const char *name, const char *prefix, const char **ret_rest)
{
	size_t name_len = strlen(name), prefix_len = strlen(prefix);

	*ret_rest = "";
	if (name_len == 0)
		return LAYER_ABOVE;
	if (prefix_len == 0) {
		*ret_rest = name;
		return LAYER_INSIDE;
	}
	if (name_len <= prefix_len) {
		bool above = memcmp(name, prefix, name_len) == 0 &&
			     (prefix[name_len] == '/' || !prefix[name_len]);
		return above ? LAYER_ABOVE : LAYER_OUTSIDE;
	}
	if (memcmp(name, prefix, prefix_len) != 0 || name[prefix_len] != '/')
		return LAYER_OUTSIDE;
	*ret_rest = name + prefix_len + 1;
	return LAYER_INSIDE;
}

int layer_path_parse(const char *name, const char *workdir, struct layer_path *ret, struct err *err)
{
	const char *prefix = layer_prefix(workdir), *rest;
	AUTO_BUF struct buf cleaned = buf_with(strlen(prefix) + 1 + ENTRY_PATH_MAX + WHITEOUT_LEN);

	const char *why = clean(name, &cleaned);
	if (why)
		return layer_refuse(err, name, why);
	ret->mark = layer_take_mark(&cleaned);
	ret->place = layer_place_of(cleaned.data, prefix, &rest);
	size_t len = strlen(rest);
	if (ret->mark == LAYER_PLAIN && entry_path_has_git(rest))
		return layer_refuse(err, name, "programs in a .git directory run by themselves");
	if (len > ENTRY_PATH_MAX)
		return layer_refuse(err, name, "it is over 4,095 bytes");
	memcpy(ret->path, rest, len + 1);
	return 0;
}

enum {
	NAME_SIZE = 100,
	TYPE_LONG_NAME = 'L',
	TYPE_LONG_TARGET = 'K',
};

/* Numbers end in a NUL; the sum of the header has six digits, a NUL and a space. */
struct header {
	char name[NAME_SIZE];
	char mode[8], uid[8], gid[8];
	char size[12], mtime[12];
	char sum[8];
	char type;
	char target[NAME_SIZE];
	char magic[8];
	char user[32], group[32];
	char unused[183];
};
_Static_assert(sizeof(struct header) == LAYER_TAR_BLOCK, "a header is one block");

static void put_octal(char *field, size_t n_digits, uint64_t value)
{
	while (n_digits) {
		field[--n_digits] = (char)('0' + (value & 7));
		value >>= 3;
	}
}

/* A size too large for octal digits is written in binary, behind a byte that marks it. */
static void put_size(char field[static 12], uint64_t size)
{
	if (size >> 33 == 0) {
		put_octal(field, 11, size);
		return;
	}
	memset(field, 0, 12);
	field[0] = (char)0x80;
	for (int i = 11; size; i--, size >>= 8)
		field[i] = (char)(size & 0xff);
}

static void put_sum(struct header *header)
{
	const uint8_t *bytes = (const uint8_t *)header;
	unsigned sum = 0;

	memset(header->sum, ' ', sizeof(header->sum));
	for (size_t i = 0; i < sizeof(*header); i++)
		sum += bytes[i];
	put_octal(header->sum, 6, sum);
	header->sum[6] = '\0';
}

static void add_zeros(struct buf *out, size_t n)
{
	static const char zeros[LAYER_TAR_BLOCK];

	buf_add(out, zeros, n);
}

/* As much of a text as has room. */
static void put_text(char field[static NAME_SIZE], const char *text, size_t len)
{
	memcpy(field, text, len < NAME_SIZE ? len : NAME_SIZE);
}

static struct header layer_begin(char type, const char *name, uint64_t size, const char *target)
{
	struct header header = {.type = type, .magic = "ustar  "};

	put_text(header.name, name, strlen(name));
	if (target)
		put_text(header.target, target, strlen(target));
	put_octal(header.mode, 7, 0);
	put_octal(header.uid, 7, 0);
	put_octal(header.gid, 7, 0);
	put_size(header.size, size);
	put_octal(header.mtime, 11, 0);
	return header;
}

/* A member of its own that holds what has no room in the header of the next. */
static void add_long(struct buf *out, char type, const char *text, const char *target)
{
	size_t size = strlen(text) + 1;
	struct header header = layer_begin(type, "././@LongLink", size, target);

	/* The owner names and the target are ignored by readers; libarchive writes them, too. */
	memcpy(header.user, "root", 4);
	memcpy(header.group, "wheel", 5);
	put_sum(&header);
	buf_add(out, &header, sizeof(header));
	buf_add(out, text, size);
	add_zeros(out, layer_tar_padding(size));
}

void layer_tar_header(const struct layer_tar_member *member, struct buf *out)
{
	const char *target = member->target;
	struct header header = layer_begin((char)member->type, member->name, member->size, target);

	if (target && strlen(target) > NAME_SIZE)
		add_long(out, TYPE_LONG_TARGET, target, target);
	if (strlen(member->name) > NAME_SIZE)
		add_long(out, TYPE_LONG_NAME, member->name, target);
	put_octal(header.mode, 7, member->mode);
	put_octal(header.mtime, 11, (uint64_t)member->mtime_s);
	put_sum(&header);
	buf_add(out, &header, sizeof(header));
}

size_t layer_tar_padding(uint64_t size)
{
	return (size_t)(-size % LAYER_TAR_BLOCK);
}

enum { BUFFER_SIZE = 256 * 1024 };

static void layer_content_done(struct layer_content *content)
{
	if (!content)
		return;
	free(content->buffers[0]);
	free(content->buffers[1]);
	digest_done(&content->digest);
	*content = (struct layer_content){0};
}

static uint8_t *buffer(struct layer_content *content, unsigned i)
{
	if (!content->buffers[i])
		content->buffers[i] = mem_grow(NULL, BUFFER_SIZE, 1);
	return content->buffers[i];
}

static int changed(const struct entry *entry, struct err *err)
{
	return err_set(err, E_IO_CHANGED, "%s changed while it was read", entry->path);
}

/* As much as there is, up to len bytes. */
static int read_up_to(const struct entry *entry, int fd, uint8_t *out, size_t len, size_t *ret_len,
	struct err *err)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = read(fd, out + done, len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fs_error(err, errno, "reading %s", entry->path);
		if (n == 0)
			break;
		done += (size_t)n;
	}
	*ret_len = done;
	return 0;
}

static int copy_small(struct layer_content *content, const struct entry *entry, int fd,
	layer_content_fn *fn, void *ctx, struct err *err)
{
	uint8_t sha256[SHA256_SIZE], *data = buffer(content, 0);
	size_t len;
	/* Read one byte more, to detect a file that has grown and the end of one that has not. */
	size_t want = (size_t)entry->size + !content->is_part;
	int r = read_up_to(entry, fd, data, want, &len, err);

	if (r)
		return r;
	digest_sha256(data, len, sha256);
	if (len != entry->size || memcmp(sha256, entry->sha256, SHA256_SIZE) != 0)
		return changed(entry, err);
	return fn(ctx, data, len, err);
}

struct hashing {
	struct digest *digest;
	const uint8_t *data;
	size_t len;
	struct par_task *task;
};

static void hash(void *ctx)
{
	struct hashing *hashing = ctx;

	digest_add(hashing->digest, hashing->data, hashing->len);
}

static void hashing_wait(struct hashing *hashing)
{
	par_wait(hashing->task);
	hashing->task = NULL;
}

static int check_end(const struct entry *entry, int fd, struct err *err)
{
	uint8_t more;
	size_t len;
	int r = read_up_to(entry, fd, &more, 1, &len, err);

	return r == 0 && len ? changed(entry, err) : r;
}

static int copy_large(struct layer_content *content, const struct entry *entry, int fd,
	layer_content_fn *fn, void *ctx, struct err *err)
{
	AUTO(hashing_wait) struct hashing hashing = {.digest = &content->digest};
	uint8_t sha256[SHA256_SIZE];
	unsigned turn = 0;
	int r = 0;

	digest_begin(&content->digest, DIGEST_SHA256);
	for (uint64_t left = entry->size; left && r == 0; left -= hashing.len) {
		uint8_t *data = buffer(content, turn++ % 2);
		size_t want = left < BUFFER_SIZE ? (size_t)left : BUFFER_SIZE, len;
		r = read_up_to(entry, fd, data, want, &len, err);
		if (r)
			return r;
		if (len != want)
			return changed(entry, err);
		hashing_wait(&hashing);
		hashing.data = data;
		hashing.len = len;
		hashing.task = par_start(hash, &hashing);
		r = fn(ctx, data, len, err);
	}
	if (r == 0 && !content->is_part)
		r = check_end(entry, fd, err);
	if (r)
		return r;
	hashing_wait(&hashing);
	digest_end(&content->digest, sha256);
	return memcmp(sha256, entry->sha256, SHA256_SIZE) == 0 ? 0 : changed(entry, err);
}

/* Reads all of fd, from where it is. What was handed out before a failure is worthless. */
static int layer_content_copy(struct layer_content *content, const struct entry *entry, int fd,
	layer_content_fn *fn, void *ctx, struct err *err)
{
	if (entry->size < BUFFER_SIZE)
		return copy_small(content, entry, fd, fn, ctx, err);
	return copy_large(content, entry, fd, fn, ctx, err);
}

enum {
	MODE_FILE = 0664,
	MODE_EXEC = 0775,
	MODE_DIR = 0775,
	MODE_LINK = 0777,
	STORED_MIN = 64 * 1024, /* smaller ones are not worth a piece of their own */
};

/* Files of 64 KiB and more whose content is compressed already, or (weights) gains next to
 * nothing. */
static const char *const incompressible[] = {
	".7z",
	".bz2",
	".ckpt",
	".flac",
	".gif",
	".gz",
	".jar",
	".jpeg",
	".jpg",
	".mkv",
	".mp3",
	".mp4",
	".npz",
	".ogg",
	".png",
	".pt",
	".pth",
	".safetensors",
	".tgz",
	".webm",
	".webp",
	".whl",
	".xz",
	".zip",
	".zst",
};

/* A whiteout stands where its directory's content begins: before its siblings. */
struct whiteout {
	const char *path;
	size_t dir_len; /* of path up to its last slash, included */
};

struct writer {
	const struct layer_spec *spec;
	struct encoder *encoder;
	struct blob_stage *stage;
	struct digest digest; /* of the tar */
	uint64_t tar_size;
	struct layer_content content;
	struct VEC_OF(struct whiteout) whiteouts;
	struct buf name; /* of the member: the prefix and a path */
	size_t prefix_len;
	struct buf dir;    /* the directory that we are in, relative to the workdir */
	struct buf header; /* of the member */
	struct err *err;
};

/*
 * The pipe: tar, digest and encoder, blob.
 */

static int to_stage(void *ctx, const void *data, size_t len, struct err *err)
{
	return blob_stage_write(ctx, data, len, err);
}

static void layer_to_digest(void *ctx, const void *data, size_t len)
{
	digest_add(ctx, data, len);
}

static int layer_put(void *ctx, const void *data, size_t len, struct err *err)
{
	struct writer *writer = ctx;

	writer->tar_size += len;
	return encoder_write(writer->encoder, data, len, err);
}

static int layer_put_zeros(struct writer *writer, size_t len)
{
	static const char zeros[LAYER_TAR_END];

	return len ? layer_put(writer, zeros, len, writer->err) : 0;
}

/*
 * Members.
 */

/* Member names are made here: the prefix, the directory and slash of path, mark, the last part. */
static const char *member_name(struct writer *writer, const char *path, const char *mark)
{
	const char *slash = strrchr(path, '/');
	size_t dir_len = slash ? (size_t)(slash + 1 - path) : 0;

	buf_truncate(&writer->name, writer->prefix_len);
	buf_add(&writer->name, path, dir_len);
	buf_adds(&writer->name, mark);
	buf_adds(&writer->name, path + dir_len);
	return writer->name.data;
}

/* Of the member that name is that of. */
static int write_header(struct writer *writer, struct layer_tar_member member)
{
	member.name = writer->name.data;
	member.mtime_s = writer->spec->mtime_s;
	buf_reset(&writer->header);
	layer_tar_header(&member, &writer->header);
	int r = buf_check(&writer->header, "the header of a file", writer->err);
	return r < 0 ? r : layer_put(writer, writer->header.data, writer->header.len, writer->err);
}

static int write_marker(struct writer *writer)
{
	return write_header(writer, (struct layer_tar_member){LAYER_TAR_FILE, .mode = MODE_FILE});
}

static bool is_incompressible(const struct entry *entry)
{
	if (entry->size < STORED_MIN)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(incompressible); i++)
		if (str_ends(entry->path, incompressible[i]))
			return true;
	return false;
}

static int layer_write_file(struct writer *writer, const struct entry *entry)
{
	const struct entry_opener *opener = &writer->spec->opener;
	AUTO_FD int fd = -1;
	unsigned mode = entry->mode ? entry->mode : entry->exec ? MODE_EXEC : MODE_FILE;
	int r = opener->open(opener->ctx, entry, &fd, writer->err);

	if (r == 0)
		r = write_header(writer, (struct layer_tar_member){LAYER_TAR_FILE, .mode = mode,
						 .size = entry->size});
	if (r)
		return r;
	encoder_set_incompressible(writer->encoder, is_incompressible(entry));
	r = layer_content_copy(&writer->content, entry, fd, layer_put, writer, writer->err);
	encoder_set_incompressible(writer->encoder, false);
	return r ? r : layer_put_zeros(writer, layer_tar_padding(entry->size));
}

static int write_entry(struct writer *writer, const struct entry *entry)
{
	member_name(writer, entry->path, "");
	if (entry->kind == ENTRY_FILE)
		return layer_write_file(writer, entry);
	return write_header(writer, (struct layer_tar_member){LAYER_TAR_LINK, .mode = MODE_LINK,
					    .target = entry->target});
}

static int write_dir(struct writer *writer)
{
	buf_truncate(&writer->name, writer->prefix_len);
	buf_add(&writer->name, writer->dir.data, writer->dir.len);
	if (writer->name.len == 0)
		return 0;
	if (writer->name.data[writer->name.len - 1] != '/')
		buf_addc(&writer->name, '/');
	return write_header(writer, (struct layer_tar_member){LAYER_TAR_DIR, .mode = MODE_DIR});
}

/*
 * The order: by the bytes of the members' names, a directory's with its slash at the end, but
 * whiteouts first in their directory.
 */

/* Go to the directory of path, with an entry for each one that is new on the way. */
static int enter_dir_of(struct writer *writer, const char *path)
{
	struct buf *dir = &writer->dir;
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0, common = 0;
	int r = 0;

	/* Where both are the same for whole components. */
	for (size_t i = 0; i <= len && i <= dir->len; i++) {
		if ((i == len || path[i] == '/') && (i == dir->len || dir->data[i] == '/'))
			common = i;
		if (i < len && i < dir->len && path[i] != dir->data[i])
			break;
	}
	buf_truncate(dir, common);
	while (dir->len < len && r == 0) {
		size_t next = dir->len + (dir->len > 0);
		next += strcspn(path + next, "/");
		buf_add(dir, path + dir->len, next - dir->len);
		r = writer->spec->no_dirs ? 0 : write_dir(writer);
	}
	return r;
}

static int compare_whiteouts(const void *a, const void *b)
{
	const struct whiteout *x = a, *y = b;
	size_t len = x->dir_len < y->dir_len ? x->dir_len : y->dir_len;
	int r = memcmp(x->path, y->path, len);

	if (r == 0 && x->dir_len != y->dir_len)
		return x->dir_len < y->dir_len ? -1 : 1;
	return r ? r : strcmp(x->path + len, y->path + len);
}

static void take_whiteouts(struct writer *writer)
{
	const struct layer_spec *spec = writer->spec;

	for (size_t i = 0; i < spec->n_whiteouts; i++) {
		const char *path = spec->whiteouts[i], *slash = strrchr(path, '/');
		struct whiteout *whiteout = vec_push(&writer->whiteouts);
		*whiteout = (struct whiteout){path, slash ? (size_t)(slash + 1 - path) : 0};
	}
	vec_sort(&writer->whiteouts, compare_whiteouts);
}

static bool comes_first(const struct whiteout *whiteout, const struct entry *entry)
{
	return strncmp(whiteout->path, entry->path, whiteout->dir_len) <= 0;
}

static int layer_check_path(const char *path, struct err *err)
{
	if (layer_path_is_valid(path))
		return 0;
	AUTO_FREE char *shown = str_shown(path);
	return err_set(err, E_SNAPSHOT_NAME, "\"%s\" cannot be a name in an image", shown);
}

static int write_whiteout(struct writer *writer, const struct whiteout *whiteout)
{
	int r = layer_check_path(whiteout->path, writer->err);

	if (r == 0)
		r = enter_dir_of(writer, whiteout->path);
	if (r)
		return r;
	member_name(writer, whiteout->path, LAYER_WHITEOUT_PREFIX);
	return write_marker(writer);
}

/* The workdir itself. */
static int write_top(struct writer *writer)
{
	const struct layer_spec *spec = writer->spec;

	if (spec->no_dirs || (!spec->full && !spec->n_entries && !spec->n_whiteouts))
		return 0;
	int r = write_dir(writer);
	if (r || !spec->full)
		return r;
	buf_truncate(&writer->name, writer->prefix_len);
	buf_adds(&writer->name, LAYER_OPAQUE_NAME);
	return write_marker(writer);
}

static int write_members(struct writer *writer)
{
	const struct layer_spec *spec = writer->spec;
	size_t n = 0;

	take_whiteouts(writer);
	int r = write_top(writer);
	for (size_t i = 0; i < spec->n_entries && r == 0; i++) {
		const struct entry *entry = spec->entries[i];
		for (; r == 0 && n < writer->whiteouts.n &&
			comes_first(&writer->whiteouts.v[n], entry);
			n++)
			r = write_whiteout(writer, &writer->whiteouts.v[n]);
		if (r == 0)
			r = layer_check_path(entry->path, writer->err);
		if (r == 0)
			r = enter_dir_of(writer, entry->path);
		if (r == 0)
			r = write_entry(writer, entry);
	}
	for (; r == 0 && n < writer->whiteouts.n; n++)
		r = write_whiteout(writer, &writer->whiteouts.v[n]);
	return r;
}

/*
 * All of it.
 */

static void writer_init(struct writer *writer, const struct layer_spec *spec,
	struct blob_stage *stage, struct err *err)
{
	enum {
		NAME_MAX_LEN = ENTRY_PATH_MAX + sizeof(LAYER_WHITEOUT_PREFIX),
		HEADER_MAX = 64 * 1024, /* of the longest name and target */
	};
	const char *prefix = layer_prefix(spec->workdir);

	*writer = (struct writer){.spec = spec,
		.stage = stage,
		.content = {.is_part = spec->opener.is_part},
		.err = err};
	buf_init(&writer->name, strlen(prefix) + 1 + NAME_MAX_LEN);
	buf_init(&writer->dir, ENTRY_PATH_MAX);
	buf_init(&writer->header, HEADER_MAX);
	buf_adds(&writer->name, prefix);
	if (*prefix)
		buf_addc(&writer->name, '/');
	writer->prefix_len = writer->name.len;
	writer->encoder = encoder_new(spec->codec, to_stage, stage);
	digest_begin(&writer->digest, DIGEST_SHA256);
	encoder_set_tap(writer->encoder, layer_to_digest, &writer->digest);
}

static void writer_done(struct writer *writer)
{
	encoder_free(writer->encoder);
	digest_done(&writer->digest);
	layer_content_done(&writer->content);
	vec_done(&writer->whiteouts);
	buf_done(&writer->name);
	buf_done(&writer->dir);
	buf_done(&writer->header);
}

int layer_write(const struct layer_spec *spec, struct blob_stage *stage, struct layer_result *ret,
	struct err *err)
{
	AUTO(writer_done) struct writer writer = {0};
	uint8_t sha256[SHA256_SIZE];

	if (spec->mtime_s < 0 || spec->mtime_s > LAYER_MTIME_MAX)
		return err_set(err, E_USAGE, "%lld is not a time for files of an image (0 to %lld)",
			(long long)spec->mtime_s, LAYER_MTIME_MAX);
	writer_init(&writer, spec, stage, err);
	int r = write_members(&writer);
	if (r == 0)
		r = layer_put_zeros(&writer, LAYER_TAR_END);
	if (r == 0)
		r = encoder_end(writer.encoder, err);
	if (r)
		return r;
	digest_end(&writer.digest, sha256);
	digest_text(sha256, ret->diff_id);
	ret->tar_size = writer.tar_size;
	blob_stage_end(stage, &ret->blob);
	return 0;
}
