/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/digest.h"
#include "base/util/mem.h"
#include "oci/registry/uploads_impl.h"

/*
 * Copy a blob from another registry to ours, through a ring in memory: the side that is ahead
 * waits.
 */

static const char doing[] = "copying a base layer";

enum {
	RING = 1 << 20,
	/* Room that is left when the download is told to wait: more than comes at once. */
	PIECE_MAX = 64 << 10,
	/* Each needs two connections, maybe to one host; while it has but one it holds that. */
	COPIES_MAX = (HTTP_CONNECTIONS_MAX - 2) / 2,
};

struct upload_copy {
	struct upload_job *job;
	struct registry_call *download;
	char *ring;
	uint64_t put, taken; /* bytes */
	struct digest digest;
	bool digest_begun;
	bool download_waits, upload_waits;
};

void upload_copy_free(struct upload_copy *copy)
{
	if (!copy)
		return;
	registry_cancel(copy->download);
	if (copy->digest_begun)
		digest_done(&copy->digest);
	free(copy->ring);
	free(copy);
}

static int take_turn(struct upload_job *job, struct err *err)
{
	job->waits_for_turn = false;
	job->has_turn = true;
	return upload_need_session(job, err);
}

static size_t count_copies(const struct uploads *uploads)
{
	size_t n = 0;

	vec_foreach (struct upload_job *const, job, &uploads->jobs)
		n += (*job)->has_turn && !(*job)->is_done;
	return n;
}

int upload_copy(struct upload_job *job, struct err *err)
{
	struct uploads *uploads = job->uploads;
	int r = 0;

	if (job->tries == 0)
		uploads->progress.bytes_total += job->blob.size;
	if (job->has_turn || count_copies(uploads) < COPIES_MAX)
		r = take_turn(job, err);
	else
		job->waits_for_turn = true;
	upload_base_next(uploads);
	return r;
}

int upload_copy_next(struct uploads *uploads, struct err *err)
{
	if (count_copies(uploads) >= COPIES_MAX)
		return 0;
	vec_foreach (struct upload_job *, job, &uploads->jobs)
		if ((*job)->waits_for_turn)
			return take_turn(*job, err);
	return 0;
}

/*
 * From there
 */

static int took(void *ctx, const void *data, size_t len, struct err *err)
{
	struct upload_copy *copy = ctx;
	size_t room = RING - (size_t)(copy->put - copy->taken);

	if (copy->put + len > copy->job->blob.size)
		return err_set(err, E_IMAGE, "the base layer %s is longer than its manifest says",
			copy->job->blob.digest);
	if (len > room)
		return err_set(err, E_BUG, "a base layer came faster than was asked");
	for (size_t done = 0; done < len;) {
		size_t at = copy->put % RING, n = len - done;
		if (n > RING - at)
			n = RING - at;
		memcpy(copy->ring + at, (const char *)data + done, n);
		copy->put += n;
		done += n;
	}
	digest_add(&copy->digest, data, len);
	if (copy->upload_waits) {
		copy->upload_waits = false;
		registry_resume(copy->job->call);
	}
	copy->download_waits = room - len < PIECE_MAX;
	return copy->download_waits;
}

static bool is_whole(struct upload_copy *copy)
{
	uint8_t sha256[SHA256_SIZE];
	char text[DIGEST_TEXT_SIZE];

	if (copy->put != copy->job->blob.size)
		return false;
	digest_end(&copy->digest, sha256);
	digest_text(sha256, text);
	return strcmp(text, copy->job->blob.digest) == 0;
}

/* The registry that takes it checks the digest, too; this is the better message. */
static int downloaded(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_copy *copy = ctx;
	struct upload_job *job = copy->job;
	AUTO_ERR struct err cause = {0};

	(void)answer;
	copy->download = NULL;
	copy->download_waits = false;
	if (err_is_set(fault)) {
		registry_cancel(job->call);
		job->call = NULL;
		if (fault->code != ERR_NET)
			return upload_failed(job, fault, err);
		upload_copy_free(TAKE(job->copy));
		return upload_again(job, NULL, fault, err);
	}
	if (is_whole(copy))
		return 0;
	err_set(&cause, E_IMAGE, "the base layer %s is not what its digest says in registry %s",
		job->blob.digest, registry_host(upload_base_registry(job->uploads)));
	return upload_failed(job, &cause, err);
}

/*
 * To here
 */

static ssize_t give(void *ctx, void *out, size_t len, struct err *err)
{
	struct upload_copy *copy = ((struct upload_job *)ctx)->copy;
	size_t there = (size_t)(copy->put - copy->taken), at = copy->taken % RING;

	(void)err;
	if (there == 0) {
		copy->upload_waits = true;
		return 0;
	}
	if (len > there)
		len = there;
	if (len > RING - at)
		len = RING - at;
	memcpy(out, copy->ring + at, len);
	copy->taken += len;
	if (copy->download_waits && RING - (copy->put - copy->taken) >= PIECE_MAX) {
		copy->download_waits = false;
		registry_resume(copy->download);
	}
	return (ssize_t)len;
}

static int copied(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_job *job = ctx;
	struct uploads_progress *progress = &job->uploads->progress;

	if (!err_is_set(fault) && answer->status / 100 == 2) {
		progress->bytes_done += job->blob.size;
		progress->copied += job->blob.size;
	}
	return upload_put_done(ctx, answer, fault, err);
}

static void start_download(struct upload_copy *copy)
{
	struct uploads *uploads = copy->job->uploads;
	AUTO_FREE char *path = mem_printf("blobs/%s", copy->job->blob.digest);
	const struct registry_request request = {
		.method = "GET",
		.repo = uploads->options.mount_from,
		.path = path,
		.data = took,
		.doing = doing,
		.done = downloaded,
		.ctx = copy,
	};

	copy->download = registry_start(upload_base_registry(uploads), &request);
}

int upload_copy_send(struct upload_job *job, struct err *err)
{
	const struct http_body body = {.size = job->blob.size, .read = give};

	(void)err;
	upload_copy_free(job->copy);
	job->copy = mem_alloc(1, sizeof(*job->copy));
	job->copy->job = job;
	job->copy->ring = mem_alloc(1, RING);
	digest_begin(&job->copy->digest, DIGEST_SHA256);
	job->copy->digest_begun = true;
	upload_put(job, &body, doing, copied);
	start_download(job->copy);
	return 0;
}
