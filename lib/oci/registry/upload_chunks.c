/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/vec.h"
#include "net/stream/field.h"
#include "oci/registry/uploads_impl.h"

static const char doing[] = "uploading a layer in pieces";

bool upload_in_chunks(const struct upload_job *job)
{
	const struct uploads *uploads = job->uploads;

	return job->kind == UPLOAD_FILE && job->blob.size > uploads->options.chunked_min &&
	       uploads->options.memory->chunks != ABILITY_NO;
}

/* The whole blob in one PUT from now on. */
static int give_up_chunks(struct upload_job *job, struct err *err)
{
	struct registry_memory *memory = job->uploads->options.memory;

	registry_memory_set(memory, &memory->chunks, false);
	job->offset = 0;
	job->tries = 0;
	upload_session_delete(TAKE(job->session));
	return upload_need_session(job, err);
}

static uint64_t chunk_size(const struct upload_job *job)
{
	bool is_known = job->uploads->options.memory->chunks == ABILITY_YES;
	uint64_t size = is_known ? UPLOAD_CHUNK : UPLOAD_FIRST_CHUNK;
	uint64_t left = job->blob.size - job->offset;

	if (size < job->session->chunk_min)
		size = job->session->chunk_min;
	return size < left ? size : left;
}

/*
 * After a cut
 */

/* Where the registry is. Nowhere: from the beginning, in a new session. */
static int resumed(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_job *job = ctx;
	AUTO_ERR struct err ignored = {0};
	uint64_t bytes = 0;

	upload_ended(job);
	const char *range = err_is_set(fault) ? NULL : field_find(&answer->headers, "range");
	if (!range || answer->status != 204 || !field_upload_range(range, &bytes) ||
		bytes > job->blob.size || upload_session_take(job->session, answer, &ignored) < 0) {
		job->offset = 0;
		return upload_again(job, NULL, err_is_set(fault) ? fault : &ignored, err);
	}
	job->offset = bytes;
	return upload_chunks(job, err);
}

static int resume(struct upload_job *job)
{
	struct registry_request request = {
		.method = "GET",
		.url = &job->session->url,
		.accept = REGISTRY_ANY,
		.doing = doing,
	};

	upload_start(job, &request, resumed);
	return 0;
}

/*
 * A single piece
 */

/* Whether the registry has what was sent: some take a piece that does not fit. */
static bool went_on(const struct upload_job *job, const struct http_answer *answer, uint64_t sent)
{
	const char *range = field_find(&answer->headers, "range");
	uint64_t bytes;

	return range && field_upload_range(range, &bytes) && bytes == job->offset + sent;
}

static int lost(struct upload_job *job, const struct http_answer *answer, struct err *fault,
	struct err *err)
{
	if (err_is_set(fault) && fault->code != ERR_NET)
		return upload_failed(job, fault, err);
	if (++job->tries < UPLOAD_TRIES)
		return resume(job);
	return err_is_set(fault) ? upload_failed(job, fault, err)
				 : upload_refused(job, answer, err);
}

static bool is_refused(const struct http_answer *answer)
{
	return answer->status == 401 || answer->status == 403 || answer->status == 413 ||
	       answer->status == 507;
}

/* Bytes in flight when a connection was cut may arrive after the registry has reported its
 * offset. */
static bool is_elsewhere(const struct upload_job *job, const struct http_answer *answer)
{
	return answer->status == 416 && job->uploads->options.memory->chunks == ABILITY_YES;
}

static int patched(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_job *job = ctx;
	struct registry_memory *memory = job->uploads->options.memory;
	AUTO_ERR struct err cause = {0};
	uint64_t sent = chunk_size(job);

	upload_ended(job);
	if (err_is_set(fault) || upload_may_pass(answer))
		return lost(job, answer, fault, err);
	if (is_refused(answer))
		return upload_refused(job, answer, err);
	if (is_elsewhere(job, answer) && ++job->tries < UPLOAD_TRIES)
		return resume(job);
	if (answer->status != 202 || !went_on(job, answer, sent))
		return give_up_chunks(job, err);
	if (upload_session_take(job->session, answer, &cause) < 0)
		return upload_failed(job, &cause, err);
	registry_memory_set(memory, &memory->chunks, true);
	job->tries = 0;
	job->offset += sent;
	return upload_chunks(job, err);
}

static int patch(struct upload_job *job)
{
	uint64_t size = chunk_size(job);
	AUTO_STRV struct strv headers = {0};
	struct registry_request request = {
		.method = "PATCH",
		.url = &job->session->url,
		.headers = &headers,
		.body = {.size = size, .fd = job->fd, .has_fd = true, .offset = job->offset},
		.accept = REGISTRY_ANY,
		.once = true,
		.doing = doing,
	};

	strv_add(&headers, "Content-Type: application/octet-stream");
	strv_addf(&headers, "Content-Range: %llu-%llu", (unsigned long long)job->offset,
		(unsigned long long)(job->offset + size - 1));
	upload_start(job, &request, patched);
	return 0;
}

static int finish(struct upload_job *job)
{
	static const struct http_body nothing;

	job->offset = 0;
	upload_put(job, &nothing, doing, upload_put_done);
	return 0;
}

int upload_chunks(struct upload_job *job, struct err *err)
{
	(void)err;
	return job->offset < job->blob.size ? patch(job) : finish(job);
}
