/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/layer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util/arena.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/layer/layer_content.h"
#include "oci/layer/layer_path.h"
#include "oci/layer/layer_tar.h"

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

static void to_digest(void *ctx, const void *data, size_t len)
{
	digest_add(ctx, data, len);
}

static int put(void *ctx, const void *data, size_t len, struct err *err)
{
	struct writer *writer = ctx;

	writer->tar_size += len;
	return encoder_write(writer->encoder, data, len, err);
}

static int put_zeros(struct writer *writer, size_t len)
{
	static const char zeros[LAYER_TAR_END];

	return len ? put(writer, zeros, len, writer->err) : 0;
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
	return r < 0 ? r : put(writer, writer->header.data, writer->header.len, writer->err);
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

static int write_file(struct writer *writer, const struct entry *entry)
{
	const struct entry_opener *opener = &writer->spec->opener;
	AUTO_FD int fd = -1;
	int r = opener->open(opener->ctx, entry, &fd, writer->err);

	if (r == 0)
		r = write_header(writer,
			(struct layer_tar_member){LAYER_TAR_FILE,
				.mode = entry->exec ? MODE_EXEC : MODE_FILE, .size = entry->size});
	if (r)
		return r;
	encoder_set_incompressible(writer->encoder, is_incompressible(entry));
	r = layer_content_copy(&writer->content, entry, fd, put, writer, writer->err);
	encoder_set_incompressible(writer->encoder, false);
	return r ? r : put_zeros(writer, layer_tar_padding(entry->size));
}

static int write_entry(struct writer *writer, const struct entry *entry)
{
	member_name(writer, entry->path, "");
	if (entry->kind == ENTRY_FILE)
		return write_file(writer, entry);
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
		r = write_dir(writer);
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

static int check_path(const char *path, struct err *err)
{
	if (layer_path_is_valid(path))
		return 0;
	AUTO_FREE char *shown = str_shown(path);
	return err_set(err, E_SNAPSHOT_NAME, "\"%s\" cannot be a name in an image", shown);
}

static int write_whiteout(struct writer *writer, const struct whiteout *whiteout)
{
	int r = check_path(whiteout->path, writer->err);

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

	if (!spec->full && !spec->n_entries && !spec->n_whiteouts)
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
			r = check_path(entry->path, writer->err);
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

	*writer = (struct writer){.spec = spec, .stage = stage, .err = err};
	buf_init(&writer->name, strlen(prefix) + 1 + NAME_MAX_LEN);
	buf_init(&writer->dir, ENTRY_PATH_MAX);
	buf_init(&writer->header, HEADER_MAX);
	buf_adds(&writer->name, prefix);
	if (*prefix)
		buf_addc(&writer->name, '/');
	writer->prefix_len = writer->name.len;
	writer->encoder = encoder_new(spec->codec, to_stage, stage);
	digest_begin(&writer->digest, DIGEST_SHA256);
	encoder_set_tap(writer->encoder, to_digest, &writer->digest);
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
		r = put_zeros(&writer, LAYER_TAR_END);
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
