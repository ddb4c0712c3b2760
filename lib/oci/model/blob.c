/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/model/blob.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/os/os.h"

/* Where files without names are not offered (network file systems, other systems). */
static int open_named(struct blob_stage *stage)
{
	fs_temp_name(stage->name);
	int fd = openat(stage->dir_fd, stage->name,
		O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		stage->name[0] = '\0';
	return fd;
}

int blob_stage_begin(struct blob_stage *stage, int dir_fd, struct err *err)
{
	*stage = (struct blob_stage){.dir_fd = dir_fd, .fd = os_open_nameless(dir_fd, 0600)};
	if (stage->fd < 0)
		stage->fd = open_named(stage);
	if (stage->fd < 0)
		return fs_error(err, errno, "making a file for a layer");
	digest_begin(&stage->digest, DIGEST_SHA256);
	return 0;
}

int blob_stage_write(struct blob_stage *stage, const void *data, size_t len, struct err *err)
{
	if (stage->max_size && len > stage->max_size - stage->size) {
		stage->full = true;
		return err_set(err, E_DATA_LIMIT, "a layer is larger than it may be");
	}
	int r = fs_write_fd(stage->fd, "a layer", data, len, err);

	if (r)
		return r;
	digest_add(&stage->digest, data, len);
	stage->size += len;
	return 0;
}

void blob_stage_end(struct blob_stage *stage, struct descriptor *ret)
{
	uint8_t sha256[SHA256_SIZE];

	digest_end(&stage->digest, sha256);
	*ret = (struct descriptor){.size = stage->size};
	digest_text(sha256, ret->digest);
}

void blob_stage_done(struct blob_stage *stage)
{
	if (!stage)
		return;
	/* A zero stage has descriptor 0, which is not its own. */
	if (stage->digest.ctx && stage->fd >= 0)
		close(stage->fd);
	if (stage->name[0])
		unlinkat(stage->dir_fd, stage->name, 0);
	digest_done(&stage->digest);
	stage->fd = -1;
	stage->name[0] = '\0';
}

int sink_has(struct sink *sink, const struct descriptor *blob, struct err *err)
{
	bool has = false;
	int r = sink->ops->has(sink, blob, 1, &has, err);

	return r < 0 ? r : has;
}

void sink_free(struct sink *sink)
{
	if (sink)
		sink->ops->free(sink);
}
