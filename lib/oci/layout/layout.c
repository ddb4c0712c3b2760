/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layout/layout.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/layout/layout_impl.h"
#include "oci/model/manifest.h"

static const char version_text[] = "{\"imageLayoutVersion\":\"1.0.0\"}";

enum { VERSION_SIZE_MAX = 64 * 1024 };

/*
 * Opening
 */

static int no_layout(struct err *err, const char *dir, const char *why)
{
	return err_set(err, E_IMAGE_BASE, "%s is not an OCI image layout: %s", dir, why);
}

static int check_version(const char *dir, const struct buf *text, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_FREE char *what = fs_join(dir, "oci-layout");

	int r = json_parse(text->data, text->len, VERSION_SIZE_MAX, what, &json, err);
	if (r < 0)
		return r;
	const char *version = json_get_str(json, "imageLayoutVersion");
	if (!version || !str_starts(version, "1."))
		return no_layout(err, dir, "oci-layout does not say version 1.0.0");
	return 0;
}

/* An interrupted creation may have left the file empty. Everybody who completes it writes the same
 * bytes, so nobody needs to be kept out. */
static int create_version(const char *path, struct err *err)
{
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fs_error(err, errno, "%s", path);
	if (st.st_size > 0)
		return 0;
	int r = fs_write_fd(fd, path, version_text, sizeof(version_text) - 1, err);
	return r < 0 ? r : fs_sync_fd(fd, path, err);
}

/* Whether there is nothing in dir, or another process begins a layout in it right now. */
static bool may_begin(const char *dir)
{
	AUTO_DIR DIR *stream = opendir(dir);
	bool empty = true, begun = false;

	for (struct dirent *e; stream && (e = readdir(stream));) {
		begun = begun || str_eq(e->d_name, "oci-layout");
		empty = empty && (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."));
	}
	return empty || begun;
}

static int create_index(struct layout *layout, struct err *err)
{
	AUTO_FD int lock = -1;
	AUTO_LAYOUT_INDEX struct layout_index index = {0};

	if (access(layout->index_path, F_OK) == 0)
		return 0;
	int r = layout_lock_index(layout, &lock, err);
	if (r == 0 && access(layout->index_path, F_OK) == 0)
		return 0;
	if (r == 0)
		r = layout_read_index(layout, &index, err);
	if (r == 0)
		r = layout_write_index(layout, &index, NULL, NULL, false, err);
	return r;
}

/* The mode of new files: readable by those who may enter the directory. */
static void set_file_mode(struct layout *layout)
{
	struct stat st;

	layout->file_mode = 0600;
	if (layout->blobs_fd >= 0 && fstat(layout->blobs_fd, &st) == 0)
		layout->file_mode = (st.st_mode & 0666) | 0600;
}

static int create(struct layout *layout, struct err *err)
{
	AUTO_FREE char *version = fs_join(layout->dir, "oci-layout");
	AUTO_FREE char *blobs = fs_join(layout->dir, "blobs");
	AUTO_FREE char *sha256 = fs_join(blobs, "sha256");
	AUTO_FREE char *parent = fs_join(layout->dir, "..");

	int r = fs_mkdirs(layout->dir, 0777, err);
	if (r == 0 && !may_begin(layout->dir))
		return no_layout(err, layout->dir, "it holds other files");
	if (r == 0)
		r = create_version(version, err);
	if (r == 0)
		r = fs_mkdirs(sha256, 0777, err);
	if (r < 0)
		return r;
	layout->blobs_fd = open(sha256, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	set_file_mode(layout);
	r = create_index(layout, err);
	const char *const names[] = {blobs, layout->dir, parent};
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(names); i++)
		r = fs_sync_dir(names[i], err);
	return r;
}

/* 1: complete, 0: not there or not finished. */
static int open_existing(struct layout *layout, struct err *err)
{
	AUTO_FREE char *version = fs_join(layout->dir, "oci-layout");
	AUTO_FREE char *sha256 = fs_join(layout->dir, "blobs/sha256");
	AUTO_BUF struct buf text = {0};
	bool missing = false;

	int r = fs_read(version, VERSION_SIZE_MAX, &text, &missing, err);
	if (missing || (r == 0 && text.len == 0)) {
		err_clear(err);
		return 0;
	}
	if (r == 0)
		r = check_version(layout->dir, &text, err);
	if (r < 0)
		return r;
	layout->blobs_fd = open(sha256, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (layout->blobs_fd < 0 && errno != ENOENT)
		return fs_error(err, errno, "%s", sha256);
	set_file_mode(layout);
	return layout->blobs_fd >= 0 && access(layout->index_path, F_OK) == 0;
}

static int not_there(const char *dir, struct err *err)
{
	struct stat st;

	if (stat(dir, &st) < 0)
		return err_set(err, E_IMAGE_BASE, "%s does not exist", dir);
	return no_layout(
		err, dir, S_ISDIR(st.st_mode) ? "it has no oci-layout" : "it is not a directory");
}

int layout_open(const char *dir, bool want_create, struct layout **ret, struct err *err)
{
	AUTO_LAYOUT struct layout *layout = mem_alloc(1, sizeof(*layout));

	layout->blobs_fd = -1;
	layout->dir = mem_strdup(dir);
	layout->index_path = fs_join(dir, "index.json");
	int complete = open_existing(layout, err);
	if (complete < 0)
		return complete;
	if (!complete && want_create) {
		if (layout->blobs_fd >= 0)
			close(TAKE_FD(layout->blobs_fd));
		int r = create(layout, err);
		if (r < 0)
			return r;
	} else if (!complete && layout->blobs_fd < 0 && access(layout->index_path, F_OK) < 0) {
		return not_there(dir, err);
	}
	*ret = TAKE(layout);
	return 0;
}

void layout_free(struct layout *layout)
{
	if (!layout)
		return;
	if (layout->blobs_fd >= 0)
		close(layout->blobs_fd);
	free(layout->dir);
	free(layout->index_path);
	free(layout);
}

/*
 * Locks and the index
 */

int layout_lock_blobs(const struct layout *layout, bool exclusive, int64_t timeout_ms, int *ret_fd,
	struct err *err)
{
	AUTO_FREE char *path = fs_join(layout->dir, "oci-layout");

	return fs_lock(path, exclusive, timeout_ms, ret_fd, err);
}

int layout_lock_index(const struct layout *layout, int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s.lock", layout->index_path);

	return fs_lock(path, true, LAYOUT_INDEX_WAIT_MS, ret_fd, err);
}

/* Only another program writes it in pieces. Images are found by digest without it. */
static int hint_damaged(const struct layout *layout, struct err *err)
{
	AUTO_BUF struct buf quoted;

	buf_init(&quoted, 2 * PATH_MAX);
	str_shell_quote(&quoted, layout->index_path);
	err_evidence(err,
		"another program left it half written; without it images lose their tags only");
	return err_hint(err, "mv %s %s.damaged", quoted.data, quoted.data);
}

int layout_read_index(const struct layout *layout, struct layout_index *ret, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	bool missing = false;
	int r = fs_read(layout->index_path, LAYOUT_INDEX_MAX, &text, &missing, err);

	if (r < 0 && !missing)
		return r;
	err_clear(err);
	r = layout_index_parse(
		missing ? "" : text.data, missing ? 0 : text.len, layout->index_path, ret, err);
	return r < 0 && err && err->id == E_DATA ? hint_damaged(layout, err) : r;
}

int layout_write_index(const struct layout *layout, const struct layout_index *index,
	const struct descriptor *add, const char *name, bool sync, struct err *err)
{
	AUTO_BUF struct buf out;

	buf_init(&out, LAYOUT_INDEX_MAX);
	layout_index_write(index, add, name, &out);
	int r = buf_check(&out, layout->index_path, err);
	if (r < 0) {
		err_hint(err, "dlrun gc");
		return r;
	}
	return fs_replace(layout->index_path, out.data, out.len, layout->file_mode,
		sync ? FS_SYNC_FILE : FS_SYNC_NONE, err);
}

/*
 * Blobs
 */

const char *layout_blob_name(const char *digest)
{
	return digest + strlen("sha256:");
}

int layout_has(const struct layout *layout, const struct descriptor *blob, struct err *err)
{
	struct stat st;

	if (layout->blobs_fd < 0)
		return 0;
	if (fstatat(layout->blobs_fd, layout_blob_name(blob->digest), &st, 0) == 0)
		return S_ISREG(st.st_mode) && (uint64_t)st.st_size == blob->size;
	if (errno == ENOENT)
		return 0;
	return fs_error(err, errno, "%s in %s", blob->digest, layout->dir);
}

/* The file of a digest, of whatever size. */
static int open_digest(const struct layout *layout, const char *digest, int *ret_fd,
	uint64_t *ret_size, struct err *err)
{
	struct stat st;
	/* Blobs may be links made by other programs; opening the target must not block. */
	AUTO_FD int fd = layout->blobs_fd < 0
				 ? -1
				 : openat(layout->blobs_fd, layout_blob_name(digest),
					   O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0 && (layout->blobs_fd < 0 || errno == ENOENT))
		return err_set(err, E_IMAGE_BASE, "%s has no %s", layout->dir, digest);
	if (fd < 0 || fstat(fd, &st) < 0)
		return fs_error(err, errno, "%s in %s", digest, layout->dir);
	if (!S_ISREG(st.st_mode))
		return err_set(err, E_IMAGE, "%s in %s is not a file", digest, layout->dir);
	*ret_fd = TAKE_FD(fd);
	*ret_size = (uint64_t)st.st_size;
	return 0;
}

int layout_open_blob(
	struct layout *layout, const struct descriptor *blob, int *ret_fd, struct err *err)
{
	AUTO_FD int fd = -1;
	uint64_t size = 0;
	int r = open_digest(layout, blob->digest, &fd, &size, err);

	if (r < 0)
		return r;
	if (size != blob->size)
		return err_set(err, E_IMAGE, "%s in %s has %llu bytes instead of %llu",
			blob->digest, layout->dir, (unsigned long long)size,
			(unsigned long long)blob->size);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int read_checked(const struct layout *layout, int fd, const char *digest, size_t max,
	struct buf *ret, struct err *err)
{
	AUTO_FREE char *name = mem_printf("%s in %s", digest, layout->dir);
	AUTO_BUF struct buf buf = {0};
	uint8_t sha256[SHA256_SIZE];
	char found[DIGEST_TEXT_SIZE];

	int r = fs_read_fd(fd, name, max, &buf, err);
	if (r < 0)
		return r;
	digest_sha256(buf.data, buf.len, sha256);
	digest_text(sha256, found);
	if (!str_eq(found, digest))
		return err_set(
			err, E_IMAGE, "%s is damaged: its content has the digest %s", name, found);
	buf_done(ret);
	*ret = buf;
	buf = (struct buf){0};
	return 0;
}

int layout_read_blob(struct layout *layout, const struct descriptor *blob, size_t max,
	struct buf *ret, struct err *err)
{
	AUTO_FD int fd = -1;
	char size[16];

	if (blob->size > max)
		return err_set(err, E_DATA_LIMIT, "%s in %s is larger than %s", blob->digest,
			layout->dir, str_size(max, size));
	int r = layout_open_blob(layout, blob, &fd, err);
	return r < 0 ? r : read_checked(layout, fd, blob->digest, max, ret, err);
}

/*
 * Names
 */

static int resolve_digest(
	struct layout *layout, const char *digest, struct descriptor *ret, struct err *err)
{
	AUTO_FD int fd = -1;
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	uint64_t size = 0;

	int r = open_digest(layout, digest, &fd, &size, err);
	if (r == 0)
		r = read_checked(layout, fd, digest, MANIFEST_SIZE_MAX, &text, err);
	if (r == 0)
		r = json_parse(text.data, text.len, MANIFEST_SIZE_MAX, digest, &json, err);
	if (r < 0)
		return r;
	const char *media_type = manifest_media_type(json);
	if (!media_type)
		return err_set(err, E_IMAGE, "%s in %s is not an image", digest, layout->dir);
	descriptor_of(text.data, text.len, media_type, ret);
	return 0;
}

/* The names in the index as a line of evidence. */
static void list_names(const struct layout_index *index, struct err *err)
{
	AUTO_BUF struct buf list;

	buf_init(&list, 300);
	for (size_t i = 0; i < index->entries.n && !list.full; i++) {
		const char *name = index->entries.v[i].name;
		if (!name)
			continue;
		buf_adds(&list, list.len ? ", " : "");
		str_escape(&list, name, strlen(name));
	}
	err_evidence(err, "it has %zu image%s%s%s%s", index->entries.n,
		index->entries.n == 1 ? "" : "s", list.len ? ": " : "", list.data,
		list.full ? "…" : "");
}

static int resolve_name(const struct layout *layout, const struct layout_index *index,
	const char *name, struct descriptor *ret, struct err *err)
{
	vec_foreach (const struct layout_entry, entry, &index->entries)
		if (str_eq(entry->name, name))
			return layout_entry_blob(entry, layout->index_path, ret, err);
	AUTO_FREE char *shown = str_shown(name);
	int r = err_set(err, E_IMAGE_BASE, "%s has no image named %s", layout->dir, shown);
	list_names(index, err);
	return r;
}

/* Several entries may name one manifest. */
static int resolve_only(const struct layout *layout, const struct layout_index *index,
	struct descriptor *ret, struct err *err)
{
	struct descriptor only = {0}, blob;

	vec_foreach (const struct layout_entry, entry, &index->entries) {
		int r = layout_entry_blob(entry, layout->index_path, &blob, err);
		if (r < 0)
			return r;
		if (*only.digest && !str_eq(only.digest, blob.digest)) {
			r = err_set(err, E_IMAGE_BASE,
				"%s has several images: say which by its tag or digest",
				layout->dir);
			list_names(index, err);
			return r;
		}
		only = blob;
	}
	if (!*only.digest)
		return err_set(err, E_IMAGE_BASE, "%s has no image", layout->dir);
	*ret = only;
	return 0;
}

int layout_resolve(struct layout *layout, const char *name, struct descriptor *ret, struct err *err)
{
	AUTO_LAYOUT_INDEX struct layout_index index = {0};
	uint8_t sha256[SHA256_SIZE];

	if (name && digest_parse(name, sha256))
		return resolve_digest(layout, name, ret, err);
	int r = layout_read_index(layout, &index, err);
	if (r < 0)
		return r;
	return name ? resolve_name(layout, &index, name, ret, err)
		    : resolve_only(layout, &index, ret, err);
}

int layout_names(struct layout *layout, struct strv *ret, struct err *err)
{
	AUTO_LAYOUT_INDEX struct layout_index index = {0};

	int r = layout_read_index(layout, &index, err);
	for (size_t i = 0; r == 0 && i < index.entries.n; i++)
		if (index.entries.v[i].name)
			strv_add(ret, index.entries.v[i].name);
	return r;
}
