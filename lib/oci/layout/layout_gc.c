/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/digest.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/layout/layout_impl.h"
#include "oci/model/manifest.h"

/*
 * Damaged blobs
 */

static int hash_all(int fd, const char *name, char ret[static DIGEST_TEXT_SIZE], struct err *err)
{
	enum { CHUNK = 256 * 1024 };
	AUTO_DIGEST struct digest digest = {0};
	AUTO_FREE char *chunk = mem_alloc(1, CHUNK);
	uint8_t sha256[SHA256_SIZE];
	ssize_t n;

	digest_begin(&digest, DIGEST_SHA256);
	while ((n = read(fd, chunk, CHUNK)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fs_error(err, errno, "reading %s", name);
		digest_add(&digest, chunk, (size_t)n);
	}
	digest_end(&digest, sha256);
	digest_text(sha256, ret);
	return 0;
}

int layout_check_blob(struct layout *layout, const struct descriptor *blob, struct err *err)
{
	AUTO_FREE char *name = mem_printf("%s in %s", blob->digest, layout->dir);
	AUTO_FREE char *path =
		mem_printf("%s/blobs/sha256/%s", layout->dir, layout_blob_name(blob->digest));
	AUTO_BUF struct buf quoted = {0};
	AUTO_FD int fd = -1;
	char found[DIGEST_TEXT_SIZE];

	int r = layout_open_blob(layout, blob, &fd, err);
	if (r == 0)
		r = hash_all(fd, name, found, err);
	if (r < 0 || str_eq(found, blob->digest))
		return r;
	err_set(err, E_IMAGE, "%s is damaged: its content has the digest %s", name, found);
	buf_init(&quoted, 4 * strlen(path) + 16);
	str_shell_quote(&quoted, path);
	return err_hint(err, "rm %s", quoted.data);
}

int layout_remove_damaged(struct layout *layout, const struct descriptor *blob, struct err *err)
{
	AUTO_FD int lock = -1;
	AUTO_ERR struct err fault = {0};

	int r = layout_lock_blobs(layout, true, LAYOUT_GC_WAIT_MS, &lock, err);
	if (r < 0)
		return r;
	r = layout_check_blob(layout, blob, &fault);
	if (r == 0 || fault.id == E_IMAGE_BASE)
		return 0;
	if (fault.id != E_IMAGE)
		return err_move(err, &fault);
	if (unlinkat(layout->blobs_fd, layout_blob_name(blob->digest), 0) < 0)
		return fs_error(err, errno, "removing %s in %s", blob->digest, layout->dir);
	return 1;
}

/*
 * Collecting
 */

/* The blobs that stay, and the manifests whose references are still to be followed. */
struct marks {
	struct layout *layout;
	struct map seen;
	struct strv pending;
	struct map removed; /* names */
	bool dry_run;
	uint64_t bytes; /* of what goes */
	size_t blobs;
};

static char yes[] = "";

static void mark(struct marks *marks, const char *digest, bool follow)
{
	uint8_t sha256[SHA256_SIZE];

	/* A digest is marked as pending once, however it is reached. */
	AUTO_FREE char *pending = mem_printf("+%s", digest);
	if (!digest_parse(digest, sha256))
		return;
	map_put(&marks->seen, digest, yes);
	if (follow && !map_put(&marks->seen, pending, yes))
		strv_add(&marks->pending, digest);
}

/* Every descriptor in a manifest counts, also in members that dlrun does not know. */
static void mark_all(struct marks *marks, const struct json *json)
{
	const char *digest = json_get_str(json, "digest");
	const char *media_type = json_get_str(json, "mediaType");

	if (digest)
		mark(marks, digest, media_is_index(media_type) || media_is_manifest(media_type));
	enum json_kind kind = json_kind(json);
	if (kind != JSON_OBJECT && kind != JSON_ARRAY)
		return;
	for (const struct json *m = json_first(json); m; m = json_next(m))
		mark_all(marks, m);
}

/* A manifest that is missing or damaged leads nowhere; one that cannot be read now may. */
static int follow(struct marks *marks, const char *digest, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err fault = {0};
	struct descriptor manifest;

	int r = layout_resolve(marks->layout, digest, &manifest, &fault);
	if (r == 0)
		r = layout_read_blob(marks->layout, &manifest, MANIFEST_SIZE_MAX, &text, &fault);
	if (r == 0)
		r = json_parse(text.data, text.len, MANIFEST_SIZE_MAX, digest, &json, &fault);
	if (r == 0)
		mark_all(marks, json);
	return r == -ERR_IO || r == -ERR_AUTH ? err_move(err, &fault) : 0;
}

/* Drop what is to go, mark the rest. */
static int mark_index(struct marks *marks, struct layout_index *index, struct err *err)
{
	vec_foreach (struct layout_entry, entry, &index->entries) {
		struct descriptor blob;
		int r = layout_entry_blob(entry, marks->layout->index_path, &blob, err);
		if (r == 0)
			r = layout_has(marks->layout, &blob, err);
		if (r < 0)
			return r;
		if (r == 0 || (entry->name && map_get(&marks->removed, entry->name)))
			entry->drop = true;
		else
			mark(marks, blob.digest, true);
	}
	return 0;
}

static int mark_reachable(struct marks *marks, const struct strv *keep, struct err *err)
{
	int r = 0;

	for (size_t i = 0; keep && i < keep->n; i++)
		mark(marks, keep->v[i], true);
	for (size_t i = 0; i < marks->pending.n && r == 0; i++)
		r = follow(marks, marks->pending.v[i], err);
	return r;
}

static bool is_blob_name(const char *name)
{
	return strlen(name) == 2 * SHA256_SIZE &&
	       strspn(name, "0123456789abcdef") == 2 * SHA256_SIZE;
}

/* Temporary files are garbage: nobody writes while we hold the lock, so their writers are gone.
 * seen: NULL where no blobs are. */
static bool is_garbage(const struct map *seen, const char *name)
{
	AUTO_FREE char *digest = mem_printf("sha256:%s", name);

	return str_starts(name, FS_TEMP_PREFIX) ||
	       (seen && is_blob_name(name) && !map_get(seen, digest));
}

static int sweep(struct marks *marks, const struct map *seen, const char *dir, struct err *err)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct stat st;

	if (!stream)
		return errno == ENOENT ? 0 : fs_error(err, errno, "%s", dir);
	for (struct dirent *e; (e = readdir(stream));) {
		if (!is_garbage(seen, e->d_name) ||
			fstatat(dirfd(stream), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
			S_ISDIR(st.st_mode))
			continue;
		if (!marks->dry_run && unlinkat(dirfd(stream), e->d_name, 0) < 0)
			return fs_error(err, errno, "removing %s in %s", e->d_name, dir);
		marks->bytes += (uint64_t)st.st_size;
		marks->blobs++;
	}
	return 0;
}

static bool any_dropped(const struct layout_index *index)
{
	vec_foreach (const struct layout_entry, entry, &index->entries)
		if (entry->drop)
			return true;
	return false;
}

/* Names go before what they stand for. */
static int collect(struct marks *marks, const struct strv *keep, struct err *err)
{
	struct layout *layout = marks->layout;
	AUTO_FREE char *sha256 = fs_join(layout->dir, "blobs/sha256");
	AUTO_LAYOUT_INDEX struct layout_index index = {0};

	int r = layout_read_index(layout, &index, err);
	if (r == 0)
		r = mark_index(marks, &index, err);
	if (r == 0)
		r = mark_reachable(marks, keep, err);
	if (r == 0 && !marks->dry_run && any_dropped(&index))
		r = layout_write_index(layout, &index, NULL, NULL, true, err);
	if (r == 0)
		r = sweep(marks, &marks->seen, sha256, err);
	if (r == 0)
		r = sweep(marks, NULL, layout->dir, err);
	return r;
}

static int run_gc(struct marks *marks, const struct strv *remove_names, const struct strv *keep,
	struct err *err)
{
	AUTO_FD int blobs_lock = -1;
	AUTO_FD int index_lock = -1;

	for (size_t i = 0; remove_names && i < remove_names->n; i++)
		map_put(&marks->removed, remove_names->v[i], yes);
	int r = layout_lock_blobs(marks->layout, true, LAYOUT_GC_WAIT_MS, &blobs_lock, err);
	if (r == 0)
		r = layout_lock_index(marks->layout, &index_lock, err);
	return r < 0 ? r : collect(marks, keep, err);
}

/* r: what run_gc returned. */
static int end_gc(struct marks *marks, int r, uint64_t *ret_bytes, size_t *ret_blobs)
{
	map_done(&marks->seen);
	map_done(&marks->removed);
	strv_done(&marks->pending);
	if (r < 0)
		return r;
	*ret_bytes = marks->bytes;
	*ret_blobs = marks->blobs;
	return 0;
}

int layout_gc(struct layout *layout, const struct strv *remove_names, const struct strv *keep,
	uint64_t *ret_bytes, size_t *ret_blobs, struct err *err)
{
	struct marks marks = {.layout = layout};

	return end_gc(&marks, run_gc(&marks, remove_names, keep, err), ret_bytes, ret_blobs);
}

int layout_gc_preview(struct layout *layout, const struct strv *remove_names,
	const struct strv *keep, uint64_t *ret_bytes, size_t *ret_blobs, struct err *err)
{
	struct marks marks = {.layout = layout, .dry_run = true};

	return end_gc(&marks, run_gc(&marks, remove_names, keep, err), ret_bytes, ret_blobs);
}
