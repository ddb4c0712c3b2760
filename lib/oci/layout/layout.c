/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layout/layout.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/digest.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/manifest.h"

/*
 * index.json
 */

#define REF_NAME "org.opencontainers.image.ref.name"
#define OWN      "dev.dlrun.image"

static const char empty_index[] =
	"{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\","
	"\"manifests\":[]}";

int layout_index_parse(
	const char *text, size_t len, const char *what, struct layout_index *ret, struct err *err)
{
	AUTO_LAYOUT_INDEX struct layout_index index = {0};

	if (len > LAYOUT_INDEX_MAX)
		return err_set(err, E_DATA_LIMIT, "%s is larger than %d MiB", what,
			LAYOUT_INDEX_MAX >> 20);
	if (len == 0 || (text[0] == '\0' && memcmp(text, text + 1, len - 1) == 0)) {
		text = empty_index;
		len = sizeof(empty_index) - 1;
	}
	int r = json_parse(text, len, LAYOUT_INDEX_MAX, what, &index.json, err);
	if (r < 0)
		return r;
	const struct json *manifests = json_get(index.json, "manifests");
	if (!manifests)
		return err_set(err, E_DATA, "%s has no list of manifests", what);
	/* Programs in Go write null for an empty list. */
	if (json_kind(manifests) != JSON_ARRAY && json_kind(manifests) != JSON_NULL)
		return err_set(err, E_DATA, "the manifests of %s are no list", what);
	for (const struct json *m = json_first(manifests); m; m = json_next(m)) {
		const struct json *annotations = json_get(m, "annotations");
		*vec_push(&index.entries) = (struct layout_entry){
			.json = m,
			.name = json_get_str(annotations, REF_NAME),
			.is_own = json_get(annotations, OWN),
		};
	}
	*ret = index;
	index = (struct layout_index){0};
	return 0;
}

void layout_index_done(struct layout_index *index)
{
	if (!index)
		return;
	json_free(index->json);
	vec_done(&index->entries);
}

int layout_entry_blob(
	const struct layout_entry *entry, const char *what, struct descriptor *ret, struct err *err)
{
	AUTO_FREE char *name = mem_printf("an entry of %s", what);

	return descriptor_parse(entry->json, name, ret, err);
}

void layout_index_write(const struct layout_index *index, const struct descriptor *add,
	const char *name, struct buf *out)
{
	struct json *manifests = json_array();

	vec_foreach (const struct layout_entry, entry, &index->entries)
		if (!entry->drop)
			json_add(manifests, json_clone(entry->json));
	if (add) {
		struct json *made = descriptor_json(add),
			    *annotations = json_sub(made, "annotations");
		if (name)
			json_set_str(annotations, REF_NAME, name);
		json_set_str(annotations, OWN, "1");
		json_add(manifests, made);
	}
	/* Setting the members one by one would search all of them for each. */
	AUTO_JSON struct json *json = json_clone(index->json);
	json_set(json, "manifests", manifests);
	json_print(json, out);
}

/*
 * The layout
 */

struct layout {
	char *dir;
	char *index_path;
	int blobs_fd; /* blobs/sha256; -1: a layout that has none yet */
	mode_t file_mode;
};

enum {
	LAYOUT_INDEX_WAIT_MS = 60 * 1000, /* for others that change index.json */
	LAYOUT_SINK_WAIT_MS = 60 * 1000,  /* for layout_gc */
	LAYOUT_GC_WAIT_MS = 2 * 1000,     /* for sinks */
};

static int layout_lock_index(const struct layout *layout, int *ret_fd, struct err *err);
static int layout_read_index(
	const struct layout *layout, struct layout_index *ret, struct err *err);
static int layout_write_index(const struct layout *layout, const struct layout_index *index,
	const struct descriptor *add, const char *name, bool sync, struct err *err);

static const char version_text[] = "{\"imageLayoutVersion\":\"1.0.0\"}";

enum { VERSION_SIZE_MAX = 64 * 1024 };

/*
 * Opening
 */

static int layout_no_layout(struct err *err, const char *dir, const char *why)
{
	return err_set(err, E_IMAGE_BASE, "%s is not an OCI image layout: %s", dir, why);
}

static int layout_check_version(const char *dir, const struct buf *text, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_FREE char *what = fs_join(dir, "oci-layout");

	int r = json_parse(text->data, text->len, VERSION_SIZE_MAX, what, &json, err);
	if (r < 0)
		return r;
	const char *version = json_get_str(json, "imageLayoutVersion");
	if (!version || !str_starts(version, "1."))
		return layout_no_layout(err, dir, "oci-layout does not say version 1.0.0");
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
static bool layout_may_begin(const char *dir)
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

static int layout_create(struct layout *layout, struct err *err)
{
	AUTO_FREE char *version = fs_join(layout->dir, "oci-layout");
	AUTO_FREE char *blobs = fs_join(layout->dir, "blobs");
	AUTO_FREE char *sha256 = fs_join(blobs, "sha256");
	AUTO_FREE char *parent = fs_join(layout->dir, "..");

	int r = fs_mkdirs(layout->dir, 0777, err);
	if (r == 0 && !layout_may_begin(layout->dir))
		return layout_no_layout(err, layout->dir, "it holds other files");
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
		r = layout_check_version(layout->dir, &text, err);
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
	return layout_no_layout(
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
		int r = layout_create(layout, err);
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

/* Shared or exclusive lock on the blobs. */
static int layout_lock_blobs(const struct layout *layout, bool exclusive, int64_t timeout_ms,
	int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = fs_join(layout->dir, "oci-layout");

	return fs_lock(path, exclusive, timeout_ms, ret_fd, err);
}

static int layout_lock_index(const struct layout *layout, int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s.lock", layout->index_path);

	return fs_lock(path, true, LAYOUT_INDEX_WAIT_MS, ret_fd, err);
}

/* Only another program writes it in pieces. Images are found by digest without it. */
static int hint_damaged(const struct layout *layout, struct err *err)
{
	AUTO_BUF struct buf quoted = buf_with(2 * PATH_MAX);

	str_shell_quote(&quoted, layout->index_path);
	err_evidence(err,
		"another program left it half written; without it images lose their tags only");
	return err_hint(err, "mv %s %s.damaged", quoted.data, quoted.data);
}

/* index.json as it is now. */
static int layout_read_index(const struct layout *layout, struct layout_index *ret, struct err *err)
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

/* Replace index.json, under its lock. add and name as for layout_index_write. */
static int layout_write_index(const struct layout *layout, const struct layout_index *index,
	const struct descriptor *add, const char *name, bool sync, struct err *err)
{
	AUTO_BUF struct buf out = buf_with(LAYOUT_INDEX_MAX);

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

/* The name of a blob's file. */
static const char *layout_blob_name(const char *digest)
{
	return digest + strlen("sha256:");
}

/* Whether the blob is there with the right size: 1, 0, or an error. */
static int layout_has(const struct layout *layout, const struct descriptor *blob, struct err *err)
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
	AUTO_BUF struct buf list = buf_with(300);

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

struct layout_sink {
	struct sink sink; /* first */
	struct layout *layout;
	int lock_fd;
	struct err failure; /* of taking the lock; the first call that can fail reports it */
	bool is_apart;
	struct strv elsewhere; /* digests of layers that are left out */
};

static struct layout_sink *layout_inside(struct sink *sink)
{
	return (struct layout_sink *)sink;
}

static int check_lock(struct layout_sink *own, struct err *err)
{
	if (own->lock_fd >= 0)
		return 0;
	if (err_is_set(&own->failure))
		return err_move(err, &own->failure);
	return layout_lock_blobs(own->layout, false, LAYOUT_SINK_WAIT_MS, &own->lock_fd, err);
}

static int layout_sink_has(
	struct sink *sink, const struct descriptor *blobs, size_t n, bool *ret_has, struct err *err)
{
	int r = check_lock(layout_inside(sink), err);

	for (size_t i = 0; i < n && r >= 0; i++) {
		r = layout_has(layout_inside(sink)->layout, &blobs[i], err);
		ret_has[i] = r > 0;
	}
	return r < 0 ? r : 0;
}

static int layout_sink_stage_dir(struct sink *sink)
{
	return layout_inside(sink)->layout->blobs_fd;
}

/* A nameless file gets its name in two steps if a damaged blob has the name already. */
static int link_over(struct layout *layout, int fd, const char *name)
{
	char temp[FS_TEMP_NAME_SIZE];
	int errnum = -os_link_fd(fd, layout->blobs_fd, name);

	if (errnum != EEXIST)
		return errnum;
	fs_temp_name(temp);
	errnum = -os_link_fd(fd, layout->blobs_fd, temp);
	if (errnum == 0 && renameat(layout->blobs_fd, temp, layout->blobs_fd, name) < 0) {
		errnum = errno;
		unlinkat(layout->blobs_fd, temp, 0);
	}
	return errnum;
}

/* The stage's file under its final name; 0 or an errno. */
static int give_name(struct layout *layout, struct blob_stage *stage, const char *name)
{
	if (!*stage->name)
		return link_over(layout, stage->fd, name);
	if (renameat(stage->dir_fd, stage->name, layout->blobs_fd, name) < 0)
		return errno;
	*stage->name = '\0';
	return 0;
}

/* Publish the content of a stage in our directory as the blob. */
static int publish(struct layout_sink *own, struct blob_stage *stage, const struct descriptor *blob,
	struct err *err)
{
	struct layout *layout = own->layout;

	if (fchmod(stage->fd, layout->file_mode) < 0)
		return fs_error(err, errno, "writing %s to %s", blob->digest, layout->dir);
	/* The name implies that the content is durable: the next one who needs it does not ask. */
	int r = fs_sync_fd(stage->fd, layout->dir, err);
	if (r < 0)
		return r;
	int errnum = give_name(layout, stage, layout_blob_name(blob->digest));
	if (errnum)
		return fs_error(err, errnum, "writing %s to %s", blob->digest, layout->dir);
	own->sink.bytes_written += blob->size;
	own->sink.blobs_written++;
	return 0;
}

static int check_stage(const struct descriptor *made, const struct descriptor *wanted,
	const char *dir, struct err *err)
{
	if (strcmp(made->digest, wanted->digest) == 0 && made->size == wanted->size)
		return 0;
	return err_set(err, E_IMAGE, "what was to be %s in %s is damaged: its digest is %s",
		wanted->digest, dir, made->digest);
}

/* A copy of what fd holds, verified on the way. */
static int copy_in(struct layout_sink *own, int fd, const struct descriptor *blob, struct err *err)
{
	enum { CHUNK = 256 * 1024 };
	AUTO_STAGE struct blob_stage stage = {.fd = -1};
	AUTO_FREE char *chunk = mem_alloc(1, CHUNK);
	struct descriptor made;
	uint64_t at = 0;

	int r = blob_stage_begin(&stage, own->layout->blobs_fd, err);
	while (r == 0 && at <= blob->size) {
		ssize_t n = pread(fd, chunk, CHUNK, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fs_error(err, errno, "reading %s", blob->digest);
		if (n == 0)
			break;
		r = blob_stage_write(&stage, chunk, (size_t)n, err);
		at += (uint64_t)n;
	}
	if (r < 0)
		return r;
	blob_stage_end(&stage, &made);
	r = check_stage(&made, blob, own->layout->dir, err);
	return r < 0 ? r : publish(own, &stage, blob, err);
}

static int layout_sink_put(
	struct sink *sink, struct blob_stage *stage, const struct descriptor *blob, struct err *err)
{
	int r = sink_has(sink, blob, err);

	if (r == 0)
		r = stage->dir_fd == layout_inside(sink)->layout->blobs_fd
			    ? publish(layout_inside(sink), stage, blob, err)
			    : copy_in(layout_inside(sink), stage->fd, blob, err);
	if (r < 0)
		return r;
	blob_stage_done(stage);
	return 0;
}

static int layout_sink_put_bytes(
	struct sink *sink, const void *data, const struct descriptor *blob, struct err *err)
{
	AUTO_STAGE struct blob_stage stage = {.fd = -1};
	struct descriptor made;

	int r = sink_has(sink, blob, err);
	if (r != 0)
		return r < 0 ? r : 0;
	r = blob_stage_begin(&stage, layout_inside(sink)->layout->blobs_fd, err);
	if (r == 0)
		r = blob_stage_write(&stage, data, blob->size, err);
	if (r < 0)
		return r;
	blob_stage_end(&stage, &made);
	r = check_stage(&made, blob, layout_inside(sink)->layout->dir, err);
	return r < 0 ? r : publish(layout_inside(sink), &stage, blob, err);
}

static int layout_sink_link(
	struct sink *sink, int from, const struct descriptor *blob, struct err *err)
{
	struct layout *layout = layout_inside(sink)->layout;
	struct stat st;

	int r = sink_has(sink, blob, err);
	if (r != 0)
		return r < 0 ? r : 0;
	if (from < 0 && layout_inside(sink)->is_apart) {
		strv_add(&layout_inside(sink)->elsewhere, blob->digest);
		return 0;
	}
	if (from < 0)
		return err_set(err, E_IMAGE_BASE, "%s has no %s", layout->dir, blob->digest);
	if (fstat(from, &st) < 0)
		return fs_error(err, errno, "%s", blob->digest);
	if ((uint64_t)st.st_size != blob->size)
		return err_set(err, E_IMAGE, "%s has %llu bytes instead of %llu", blob->digest,
			(unsigned long long)st.st_size, (unsigned long long)blob->size);
	/* Sync the blob: its last writer may have been another program, which did not. */
	r = fs_sync_fd(from, blob->digest, err);
	if (r < 0)
		return r;
	if (link_over(layout, from, layout_blob_name(blob->digest)) == 0)
		return 0;
	return copy_in(layout_inside(sink), from, blob, err);
}

/*
 * Committing
 */

static int check_reference(
	const struct layout_sink *own, const struct descriptor *blob, struct err *err)
{
	const struct layout *layout = own->layout;
	bool is_elsewhere =
		media_is_foreign(blob->media_type) || strv_find(&own->elsewhere, blob->digest) >= 0;
	int r = is_elsewhere ? 1 : layout_has(layout, blob, err);

	if (r != 0)
		return r < 0 ? r : 0;
	return err_set(err, E_IMAGE, "%s lacks %s of the image", layout->dir, blob->digest);
}

static int check_references(const struct layout_sink *own, const void *text,
	const struct descriptor *blob, struct err *err)
{
	AUTO_MANIFEST struct manifest manifest = {0};
	int r = manifest_parse(text, blob->size, blob->digest, &manifest, err);

	if (r == 0)
		r = check_reference(own, &manifest.config, err);
	for (size_t i = 0; i < manifest.n_layers && r == 0; i++)
		r = check_reference(own, &manifest.layers[i], err);
	return r;
}

static int add_to_index(
	struct layout *layout, const struct descriptor *blob, const char *name, struct err *err)
{
	AUTO_FD int lock = -1;
	AUTO_LAYOUT_INDEX struct layout_index index = {0};
	bool present = false, dropped = false, foreign = false;

	int r = layout_lock_index(layout, &lock, err);
	if (r == 0)
		r = layout_read_index(layout, &index, err);
	if (r < 0)
		return r;
	vec_foreach (struct layout_entry, entry, &index.entries) {
		bool same_name = name && str_eq(entry->name, name);
		bool same_blob = str_eq(json_get_str(entry->json, "digest"), blob->digest);
		foreign |= !entry->is_own;
		if (same_blob && (!name || same_name))
			present = true;
		else if (same_name)
			dropped = entry->drop = true;
	}
	if (present && !dropped)
		return 0;
	return layout_write_index(layout, &index, present ? NULL : blob, name, foreign, err);
}

static int layout_sink_commit(struct sink *sink, const void *manifest,
	const struct descriptor *blob, const char *name, struct err *err)
{
	struct layout *layout = layout_inside(sink)->layout;

	int r = check_lock(layout_inside(sink), err);
	if (r == 0)
		r = check_references(layout_inside(sink), manifest, blob, err);
	if (r == 0)
		r = layout_sink_put_bytes(sink, manifest, blob, err);
	/* Also when nothing is new: another process may have put the names a moment ago. */
	if (r == 0)
		r = fs_sync_fd(layout->blobs_fd, layout->dir, err);
	return r < 0 ? r : add_to_index(layout, blob, name, err);
}

/* Presence is looked up each time. */
static void layout_sink_forget(struct sink *sink UNUSED, const struct descriptor *blob UNUSED)
{
}

static void layout_sink_close(struct sink *sink)
{
	if (layout_inside(sink)->lock_fd >= 0)
		close(layout_inside(sink)->lock_fd);
	err_done(&layout_inside(sink)->failure);
	strv_done(&layout_inside(sink)->elsewhere);
	free(sink);
}

static const struct sink_ops layout_sink_ops = {
	.has = layout_sink_has,
	.stage_dir = layout_sink_stage_dir,
	.put = layout_sink_put,
	.put_bytes = layout_sink_put_bytes,
	.link = layout_sink_link,
	.commit = layout_sink_commit,
	.forget = layout_sink_forget,
	.free = layout_sink_close,
};

struct sink *layout_sink(struct layout *layout)
{
	struct layout_sink *made = mem_alloc(1, sizeof(*made));

	made->sink.ops = &layout_sink_ops;
	made->sink.name = layout->dir;
	made->layout = layout;
	made->lock_fd = -1;
	layout_lock_blobs(layout, false, LAYOUT_SINK_WAIT_MS, &made->lock_fd, &made->failure);
	return &made->sink;
}

struct sink *layout_sink_apart(struct layout *layout)
{
	struct sink *sink = layout_sink(layout);

	layout_inside(sink)->is_apart = true;
	return sink;
}

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
	AUTO_ERR struct err error = {0};

	int r = layout_lock_blobs(layout, true, LAYOUT_GC_WAIT_MS, &lock, err);
	if (r < 0)
		return r;
	r = layout_check_blob(layout, blob, &error);
	if (r == 0 || error.id == E_IMAGE_BASE)
		return 0;
	if (error.id != E_IMAGE)
		return err_move(err, &error);
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
static int layout_follow(struct marks *marks, const char *digest, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err error = {0};
	struct descriptor manifest;

	int r = layout_resolve(marks->layout, digest, &manifest, &error);
	if (r == 0)
		r = layout_read_blob(marks->layout, &manifest, MANIFEST_SIZE_MAX, &text, &error);
	if (r == 0)
		r = json_parse(text.data, text.len, MANIFEST_SIZE_MAX, digest, &json, &error);
	if (r == 0)
		mark_all(marks, json);
	return r == -ERR_IO || r == -ERR_AUTH ? err_move(err, &error) : 0;
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
		r = layout_follow(marks, marks->pending.v[i], err);
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

static int layout_sweep(
	struct marks *marks, const struct map *seen, const char *dir, struct err *err)
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
static int layout_collect(struct marks *marks, const struct strv *keep, struct err *err)
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
		r = layout_sweep(marks, &marks->seen, sha256, err);
	if (r == 0)
		r = layout_sweep(marks, NULL, layout->dir, err);
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
	return r < 0 ? r : layout_collect(marks, keep, err);
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

struct dry_sink {
	struct sink sink; /* first */
	int stage_dir_fd;
	dry_sink_has_fn *has;
	void *ctx;
};

static int dry_has(struct sink *sink, const struct descriptor *blobs, size_t n, bool *ret_has,
	struct err *err UNUSED)
{
	struct dry_sink *own = (struct dry_sink *)sink;

	for (size_t i = 0; i < n; i++)
		ret_has[i] = own->has(own->ctx, &blobs[i]);
	return 0;
}

static int dry_stage_dir(struct sink *sink)
{
	return ((struct dry_sink *)sink)->stage_dir_fd;
}

static int dry_count(struct sink *sink, const struct descriptor *blob, struct err *err)
{
	int there = sink_has(sink, blob, err);

	sink->bytes_written += there ? 0 : blob->size;
	sink->blobs_written += !there;
	return 0;
}

static int dry_put(struct sink *sink, struct blob_stage *stage UNUSED,
	const struct descriptor *blob, struct err *err)
{
	return dry_count(sink, blob, err);
}

static int dry_put_bytes(
	struct sink *sink, const void *data UNUSED, const struct descriptor *blob, struct err *err)
{
	return dry_count(sink, blob, err);
}

/* Blobs of a base do not pass through this machine, unless they are stored here. */
static int dry_link(struct sink *sink, int from, const struct descriptor *blob, struct err *err)
{
	return from >= 0 ? dry_count(sink, blob, err) : 0;
}

static int dry_commit(struct sink *sink UNUSED, const void *manifest UNUSED,
	const struct descriptor *blob UNUSED, const char *name UNUSED, struct err *err UNUSED)
{
	return 0;
}

static void dry_forget(struct sink *sink UNUSED, const struct descriptor *blob UNUSED)
{
}

static void dry_close(struct sink *sink)
{
	free(sink);
}

static const struct sink_ops dry_sink_ops = {
	.has = dry_has,
	.stage_dir = dry_stage_dir,
	.put = dry_put,
	.put_bytes = dry_put_bytes,
	.link = dry_link,
	.commit = dry_commit,
	.forget = dry_forget,
	.free = dry_close,
};

struct sink *dry_sink(const char *name, int stage_dir_fd, dry_sink_has_fn *has, void *ctx)
{
	struct dry_sink *own = mem_alloc(1, sizeof(*own));

	own->sink.ops = &dry_sink_ops;
	own->sink.name = name;
	own->stage_dir_fd = stage_dir_fd;
	own->has = has;
	own->ctx = ctx;
	return &own->sink;
}
