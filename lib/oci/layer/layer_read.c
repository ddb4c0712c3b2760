/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/layer_read.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop/library.h"
#include "base/loop/par.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/codec/codec.h"
#include "oci/layer/layer.h"

/*
 * libarchive, loaded when the first layer is read: it brings along more libraries than all others
 * together. Its functions have their usual names below.
 */

#define LAYER_ARCHIVE(X)                                                                           \
	X(entry_filetype)                                                                          \
	X(entry_free)                                                                              \
	X(entry_hardlink)                                                                          \
	X(entry_mtime)                                                                             \
	X(entry_mtime_nsec)                                                                        \
	X(entry_new)                                                                               \
	X(entry_pathname)                                                                          \
	X(entry_perm)                                                                              \
	X(entry_size)                                                                              \
	X(entry_sparse_count)                                                                      \
	X(entry_symlink)                                                                           \
	X(error_string)                                                                            \
	X(read_data_block)                                                                         \
	X(read_free)                                                                               \
	X(read_new)                                                                                \
	X(read_next_header2)                                                                       \
	X(read_open)                                                                               \
	X(read_set_format_option)                                                                  \
	X(read_support_format_tar)                                                                 \
	X(set_error)

static struct layer_archive {
#define LAYER_ARCHIVE_MEMBER(name) __typeof__(&archive_##name) name;
	LAYER_ARCHIVE(LAYER_ARCHIVE_MEMBER)
#undef LAYER_ARCHIVE_MEMBER
} layer_archive;

static const struct library_symbol symbols[] = {
#define SYMBOL(name) {offsetof(struct layer_archive, name), "archive_" #name},
	LAYER_ARCHIVE(SYMBOL)
#undef SYMBOL
};

static enum library_state state;

LIBRARY_NOTE("layers", "Reads layers of images", "recommended", LIBRARY_FILE("archive", "13"));

static const struct library library = {
	.file = LIBRARY_FILE("archive", "13"),
	.what = "libarchive, which reads layers of images,",
	.package = "libarchive13",
	.symbols = symbols,
	.n_symbols = ARRAY_LEN(symbols),
	.table = &layer_archive,
	.table_size = sizeof(layer_archive),
	.state = &state,
};

/* Once is enough, more does nothing. E_IO when it is not installed. */
static int layer_archive_load(struct err *err)
{
	return library_load(&library, err);
}

#define archive_entry_filetype          layer_archive.entry_filetype
#define archive_entry_free              layer_archive.entry_free
#define archive_entry_hardlink          layer_archive.entry_hardlink
#define archive_entry_mtime             layer_archive.entry_mtime
#define archive_entry_mtime_nsec        layer_archive.entry_mtime_nsec
#define archive_entry_new               layer_archive.entry_new
#define archive_entry_pathname          layer_archive.entry_pathname
#define archive_entry_perm              layer_archive.entry_perm
#define archive_entry_size              layer_archive.entry_size
#define archive_entry_sparse_count      layer_archive.entry_sparse_count
#define archive_entry_symlink           layer_archive.entry_symlink
#define archive_error_string            layer_archive.error_string
#define archive_read_data_block         layer_archive.read_data_block
#define archive_read_free               layer_archive.read_free
#define archive_read_new                layer_archive.read_new
#define archive_read_next_header2       layer_archive.read_next_header2
#define archive_read_open               layer_archive.read_open
#define archive_read_set_format_option  layer_archive.read_set_format_option
#define archive_read_support_format_tar layer_archive.read_support_format_tar
#define archive_set_error               layer_archive.set_error

enum { HALF_SIZE = 512 * 1024, TARGET_MAX = PATH_MAX - 1 };

/* The tar, unpacked and hashed. While one half is read, the other is filled. */
struct half {
	uint8_t *data;
	size_t len;
	int r;
	struct err err;
};

struct source {
	struct decoder *decoder;
	struct digest blob, tar;
	struct half halves[2];
	unsigned turn;         /* the half that comes next */
	struct par_task *task; /* fills it; NULL: nobody does yet */
	bool ended;
};

struct layer_reader {
	const struct unpack_spec *spec;
	struct source source;
	struct archive *archive;
	struct archive_entry *header;
	struct layer_path path, target;
	size_t n_members;
	uint64_t left; /* of the content of the current file */
	int failed;    /* what the source returned */
	struct err *err;
};

/*
 * The source.
 */

static void layer_read_to_digest(void *ctx, const void *data, size_t len)
{
	digest_add(ctx, data, len);
}

static void fill_half(void *ctx)
{
	struct source *source = ctx;
	struct half *half = &source->halves[source->turn];

	if (!half->data)
		half->data = mem_grow(NULL, HALF_SIZE, 1);
	half->r = decoder_read(source->decoder, half->data, HALF_SIZE, &half->len, &half->err);
	if (half->r == 0)
		digest_add(&source->tar, half->data, half->len);
}

static void source_init(struct source *source, const struct unpack_spec *spec)
{
	source->decoder = decoder_new(spec->fd, spec->max_bytes);
	digest_begin(&source->tar, DIGEST_SHA256);
	if (!spec->digest)
		return;
	digest_begin(&source->blob, DIGEST_SHA256);
	decoder_set_tap(source->decoder, layer_read_to_digest, &source->blob);
}

static void layer_read_source_done(struct source *source)
{
	par_wait(source->task);
	for (int i = 0; i < 2; i++) {
		free(source->halves[i].data);
		err_done(&source->halves[i].err);
	}
	decoder_free(source->decoder);
	digest_done(&source->blob);
	digest_done(&source->tar);
}

/* The next part; nothing at the end. */
static int source_next(
	struct source *source, const void **ret_data, size_t *ret_len, struct err *err)
{
	struct half *half = &source->halves[source->turn];

	*ret_data = NULL;
	*ret_len = 0;
	if (source->ended)
		return 0;
	if (!source->task)
		fill_half(source);
	par_wait(source->task);
	source->task = NULL;
	if (half->r) {
		source->ended = true;
		return err_move(err, &half->err);
	}
	/* A short one is the last, so that a small layer needs no thread. */
	source->ended = half->len < HALF_SIZE;
	source->turn ^= 1;
	if (!source->ended)
		source->task = par_start(fill_half, source);
	*ret_data = half->data;
	*ret_len = half->len;
	return 0;
}

static int check_digest(struct digest *digest, const char *want, const char *what, struct err *err)
{
	uint8_t sha256[SHA256_SIZE];
	char text[DIGEST_TEXT_SIZE];

	if (!want)
		return 0;
	digest_end(digest, sha256);
	digest_text(sha256, text);
	if (str_eq(text, want))
		return 0;
	return err_set(err, E_IMAGE, "layer %s is damaged: %s is %s", want, what, text);
}

/* Data behind the end of the archive counts for the digests. */
static int source_finish(struct source *source, const struct unpack_spec *spec, struct err *err)
{
	const void *data;
	size_t len;
	int r;

	do
		r = source_next(source, &data, &len, err);
	while (r == 0 && len);
	if (r == 0)
		r = check_digest(&source->blob, spec->digest, "its digest", err);
	if (r == 0)
		r = check_digest(&source->tar, spec->diff_id, "the digest of its content", err);
	return r;
}

/*
 * libarchive.
 */

static la_ssize_t from_source(struct archive *archive, void *ctx, const void **data)
{
	struct layer_reader *reader = ctx;
	size_t len;

	reader->failed = source_next(&reader->source, data, &len, reader->err);
	if (reader->failed) {
		archive_set_error(archive, EIO, "stopped");
		return -1;
	}
	return (la_ssize_t)len;
}

/* Warnings count: what libarchive did not understand is not guessed at. */
static int layer_read_check(struct layer_reader *reader, int status, struct err *err)
{
	if (status == ARCHIVE_OK)
		return 0;
	if (reader->failed)
		return reader->failed;
	const char *why = archive_error_string(reader->archive);
	AUTO_FREE char *shown = str_shown(why ? why : "unknown error");
	return err_set(err, E_IMAGE, "a layer is not a valid tar archive: %s", shown);
}

struct layer_reader *layer_reader_new(const struct unpack_spec *spec)
{
	struct layer_reader *reader = mem_alloc(1, sizeof(*reader));

	reader->spec = spec;
	source_init(&reader->source, spec);
	return reader;
}

void layer_reader_free(struct layer_reader *reader)
{
	if (!reader)
		return;
	if (reader->archive) {
		archive_read_free(reader->archive);
		archive_entry_free(reader->header);
	}
	layer_read_source_done(&reader->source);
	free(reader);
}

/*
 * Members.
 */

static int layer_read_refuse(struct layer_reader *reader, const char *why, struct err *err)
{
	const char *name = archive_entry_pathname(reader->header);
	AUTO_FREE char *shown = str_shown(name ? name : "");

	return err_set(err, E_IMAGE, "\"%s\" in a layer %s", shown, why);
}

static int take_hardlink(
	struct layer_reader *reader, const char *target, struct layer_member *ret, struct err *err)
{
	int r = layer_path_parse(target, reader->spec->workdir, &reader->target, err);

	if (r)
		return r;
	if (reader->target.mark != LAYER_PLAIN || reader->target.place != LAYER_INSIDE)
		return layer_read_refuse(reader, "is a hard link to something else than code", err);
	size_t len = strlen(ret->path);
	if (strncmp(reader->target.path, ret->path, len) == 0 &&
		(!reader->target.path[len] || reader->target.path[len] == '/'))
		return layer_read_refuse(reader, "is a hard link to what it replaces", err);
	ret->kind = LAYER_HARDLINK;
	ret->target = reader->target.path;
	return 0;
}

static int take_link(struct layer_reader *reader, struct layer_member *ret, struct err *err)
{
	ret->kind = LAYER_LINK;
	ret->target = archive_entry_symlink(reader->header);
	if (str_empty(ret->target) || strlen(ret->target) > TARGET_MAX)
		return layer_read_refuse(reader, "is a link with an impossible target", err);
	return 0;
}

static int layer_read_take_file(
	struct layer_reader *reader, struct layer_member *ret, struct err *err)
{
	la_int64_t size = archive_entry_size(reader->header);

	if (archive_entry_sparse_count(reader->header) > 0 || size < 0)
		return layer_read_refuse(reader, "is a sparse file", err);
	ret->kind = LAYER_FILE;
	ret->size = (uint64_t)size;
	ret->exec = archive_entry_perm(reader->header) & S_IXUSR;
	reader->left = ret->size;
	return 0;
}

static int take_plain(struct layer_reader *reader, struct layer_member *ret, struct err *err)
{
	struct archive_entry *header = reader->header;
	const char *hardlink = archive_entry_hardlink(header);

	ret->path = reader->path.path;
	ret->mtime.tv_sec = archive_entry_mtime(header);
	ret->mtime.tv_nsec = archive_entry_mtime_nsec(header);
	if (hardlink)
		return take_hardlink(reader, hardlink, ret, err);
	switch (archive_entry_filetype(header)) {
	case AE_IFREG:
		return layer_read_take_file(reader, ret, err);
	case AE_IFLNK:
		return take_link(reader, ret, err);
	case AE_IFDIR:
		ret->kind = LAYER_DIR;
		return 0;
	default:
		return layer_read_refuse(reader, "is a device, pipe or socket", err);
	}
}

/* 1: a member for the caller; 0: none of its business. */
static int layer_read_take_member(
	struct layer_reader *reader, struct layer_member *ret, struct err *err)
{
	struct layer_path *path = &reader->path;
	const char *name = archive_entry_pathname(reader->header);
	bool plain_file = archive_entry_filetype(reader->header) == AE_IFREG &&
			  !archive_entry_hardlink(reader->header);

	if (!name)
		return layer_read_refuse(reader, "has a name that cannot be read", err);
	int r = layer_path_parse(name, reader->spec->workdir, path, err);
	if (r)
		return r;
	*ret = (struct layer_member){0};
	reader->left = 0;
	if (path->mark != LAYER_PLAIN) {
		if (!plain_file)
			return layer_read_refuse(reader, "is a whiteout that is not a file", err);
		bool one = path->mark == LAYER_REMOVED && path->place == LAYER_INSIDE;
		ret->kind = one ? LAYER_WHITEOUT : LAYER_OPAQUE;
		ret->path = path->place == LAYER_INSIDE ? path->path : "";
		return path->place != LAYER_OUTSIDE;
	}
	if (path->place == LAYER_OUTSIDE)
		return 0;
	if (path->place == LAYER_INSIDE) {
		r = take_plain(reader, ret, err);
		return r ? r : 1;
	}
	if (archive_entry_filetype(reader->header) != AE_IFDIR)
		return layer_read_refuse(reader, "is where the directory of the code must be", err);
	return 0;
}

static int open_archive(struct layer_reader *reader, struct err *err)
{
	int r = layer_archive_load(err);

	if (r < 0)
		return r;
	reader->header = archive_entry_new();
	reader->archive = archive_read_new();
	if (!reader->archive || !reader->header)
		mem_out(sizeof(*reader));
	archive_read_support_format_tar(reader->archive);
	/* Files named ._x are files here as well. */
	archive_read_set_format_option(reader->archive, "tar", "mac-ext", NULL);
	return layer_read_check(
		reader, archive_read_open(reader->archive, reader, NULL, from_source, NULL), err);
}

int layer_reader_next(struct layer_reader *reader, struct layer_member *ret, struct err *err)
{
	int r = 0;

	reader->err = err;
	if (!reader->archive)
		r = open_archive(reader, err);
	while (r == 0) {
		int status = archive_read_next_header2(reader->archive, reader->header);
		if (status == ARCHIVE_EOF)
			return source_finish(&reader->source, reader->spec, err);
		r = layer_read_check(reader, status, err);
		if (r == 0 && ++reader->n_members > LAYER_MEMBERS_MAX)
			return err_set(err, E_DATA_LIMIT, "a layer has more than %d members",
				LAYER_MEMBERS_MAX);
		if (r == 0)
			r = layer_read_take_member(reader, ret, err);
	}
	return r;
}

int layer_reader_data(
	struct layer_reader *reader, const void **ret_data, size_t *ret_len, struct err *err)
{
	la_int64_t offset;
	int status;

	reader->err = err;
	do
		status = archive_read_data_block(reader->archive, ret_data, ret_len, &offset);
	while (status == ARCHIVE_OK && *ret_len == 0);
	if (status == ARCHIVE_EOF)
		return reader->left ? layer_read_refuse(reader, "is shorter than it says", err) : 0;
	int r = layer_read_check(reader, status, err);
	if (r)
		return r;
	if (*ret_len > reader->left)
		return layer_read_refuse(reader, "is longer than it says", err);
	reader->left -= *ret_len;
	return 1;
}
