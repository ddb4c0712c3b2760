/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/layout/layout_impl.h"
#include "oci/model/manifest.h"

struct layout_sink {
	struct sink sink; /* first */
	struct layout *layout;
	int lock_fd;
	struct err failure; /* of taking the lock; the first call that can fail reports it */
};

static struct layout_sink *inside(struct sink *sink)
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
	int r = check_lock(inside(sink), err);

	for (size_t i = 0; i < n && r >= 0; i++) {
		r = layout_has(inside(sink)->layout, &blobs[i], err);
		ret_has[i] = r > 0;
	}
	return r < 0 ? r : 0;
}

static int sink_stage_dir(struct sink *sink)
{
	return inside(sink)->layout->blobs_fd;
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

static int sink_put(
	struct sink *sink, struct blob_stage *stage, const struct descriptor *blob, struct err *err)
{
	int r = sink_has(sink, blob, err);

	if (r == 0)
		r = stage->dir_fd == inside(sink)->layout->blobs_fd
			    ? publish(inside(sink), stage, blob, err)
			    : copy_in(inside(sink), stage->fd, blob, err);
	if (r < 0)
		return r;
	blob_stage_done(stage);
	return 0;
}

static int sink_put_bytes(
	struct sink *sink, const void *data, const struct descriptor *blob, struct err *err)
{
	AUTO_STAGE struct blob_stage stage = {.fd = -1};
	struct descriptor made;

	int r = sink_has(sink, blob, err);
	if (r != 0)
		return r < 0 ? r : 0;
	r = blob_stage_begin(&stage, inside(sink)->layout->blobs_fd, err);
	if (r == 0)
		r = blob_stage_write(&stage, data, blob->size, err);
	if (r < 0)
		return r;
	blob_stage_end(&stage, &made);
	r = check_stage(&made, blob, inside(sink)->layout->dir, err);
	return r < 0 ? r : publish(inside(sink), &stage, blob, err);
}

static int sink_link(struct sink *sink, int from, const struct descriptor *blob, struct err *err)
{
	struct layout *layout = inside(sink)->layout;
	struct stat st;

	int r = sink_has(sink, blob, err);
	if (r != 0)
		return r < 0 ? r : 0;
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
	return copy_in(inside(sink), from, blob, err);
}

/*
 * Committing
 */

static int check_reference(
	const struct layout *layout, const struct descriptor *blob, struct err *err)
{
	int r = media_is_foreign(blob->media_type) ? 1 : layout_has(layout, blob, err);

	if (r != 0)
		return r < 0 ? r : 0;
	return err_set(err, E_IMAGE, "%s lacks %s of the image", layout->dir, blob->digest);
}

static int check_references(const struct layout *layout, const void *text,
	const struct descriptor *blob, struct err *err)
{
	AUTO_MANIFEST struct manifest manifest = {0};
	int r = manifest_parse(text, blob->size, blob->digest, &manifest, err);

	if (r == 0)
		r = check_reference(layout, &manifest.config, err);
	for (size_t i = 0; i < manifest.n_layers && r == 0; i++)
		r = check_reference(layout, &manifest.layers[i], err);
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

static int sink_commit(struct sink *sink, const void *manifest, const struct descriptor *blob,
	const char *name, struct err *err)
{
	struct layout *layout = inside(sink)->layout;

	int r = check_lock(inside(sink), err);
	if (r == 0)
		r = check_references(layout, manifest, blob, err);
	if (r == 0)
		r = sink_put_bytes(sink, manifest, blob, err);
	/* Also when nothing is new: another process may have put the names a moment ago. */
	if (r == 0)
		r = fs_sync_fd(layout->blobs_fd, layout->dir, err);
	return r < 0 ? r : add_to_index(layout, blob, name, err);
}

/* Presence is looked up each time. */
static void sink_forget(struct sink *sink, const struct descriptor *blob)
{
	(void)sink;
	(void)blob;
}

static void sink_close(struct sink *sink)
{
	if (inside(sink)->lock_fd >= 0)
		close(inside(sink)->lock_fd);
	err_done(&inside(sink)->failure);
	free(sink);
}

static const struct sink_ops layout_sink_ops = {
	.has = layout_sink_has,
	.stage_dir = sink_stage_dir,
	.put = sink_put,
	.put_bytes = sink_put_bytes,
	.link = sink_link,
	.commit = sink_commit,
	.forget = sink_forget,
	.free = sink_close,
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
