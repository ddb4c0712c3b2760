/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/layer_content.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

enum { BUFFER_SIZE = 256 * 1024 };

void layer_content_done(struct layer_content *content)
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
	int r = read_up_to(entry, fd, data, (size_t)entry->size + 1, &len, err);

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
	if (r == 0)
		r = check_end(entry, fd, err);
	if (r)
		return r;
	hashing_wait(&hashing);
	digest_end(&content->digest, sha256);
	return memcmp(sha256, entry->sha256, SHA256_SIZE) == 0 ? 0 : changed(entry, err);
}

int layer_content_copy(struct layer_content *content, const struct entry *entry, int fd,
	layer_content_fn *fn, void *ctx, struct err *err)
{
	if (entry->size < BUFFER_SIZE)
		return copy_small(content, entry, fd, fn, ctx, err);
	return copy_large(content, entry, fd, fn, ctx, err);
}
