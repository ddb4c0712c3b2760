/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "oci/registry/uploads_impl.h"

static const char doing[] = "uploading a layer";
static const char *const octets[] = {"Content-Type: application/octet-stream"};

static const struct strv octet_headers = {(char **)octets, 1, 1};

static struct http_body whole(const struct upload_job *job)
{
	struct http_body body = {.size = job->blob.size};

	if (job->kind == UPLOAD_BYTES) {
		body.data = job->data;
	} else {
		body.fd = job->fd;
		body.has_fd = true;
	}
	return body;
}

/* The registry's word for what it has stored, where it says so. */
static bool digest_is_right(const struct upload_job *job, const struct http_answer *answer)
{
	const char *digest = field_find(&answer->headers, "docker-content-digest");

	return !digest || strcmp(digest, job->blob.digest) == 0;
}

static int stored(struct upload_job *job, const struct http_answer *answer, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	if (digest_is_right(job, answer))
		return upload_arrived(job, err);
	AUTO_FREE char *shown = str_shown(field_find(&answer->headers, "docker-content-digest"));
	err_set(&fault, E_REGISTRY_ANSWER, "%s stored %s under another digest",
		registry_name(job->uploads->options.registry), job->blob.digest);
	err_evidence(&fault, "it says %s", shown);
	return upload_failed(job, &fault, err);
}

/*
 * A single POST
 */

static bool in_one_post(const struct upload_job *job)
{
	const struct uploads *uploads = job->uploads;

	if (job->session || job->tries > 0)
		return false;
	switch (uploads->options.memory->single_post) {
	case ABILITY_YES:
		return job->blob.size <= UPLOAD_SINGLE_MAX;
	case ABILITY_UNKNOWN:
		return job->kind == UPLOAD_BYTES && job->blob.size <= UPLOAD_PROBE_MAX &&
		       !uploads->is_probing;
	case ABILITY_NO:
		break;
	}
	return false;
}

static int posted(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_job *job = ctx;
	struct registry_memory *memory = job->uploads->options.memory;

	upload_ended(job);
	job->uploads->is_probing = false;
	if (err_is_set(fault))
		return fault->code == ERR_NET ? upload_again(job, NULL, fault, err)
					      : upload_failed(job, fault, err);
	if (answer->status == 201) {
		registry_memory_set(memory, &memory->single_post, true);
		return stored(job, answer, err);
	}
	if (upload_may_pass(answer))
		return upload_again(job, answer, NULL, err);
	registry_memory_set(memory, &memory->single_post, false);
	if (answer->status == 401 || answer->status == 403)
		return upload_refused(job, answer, err);
	if (answer->status != 202)
		return upload_need_session(job, err);
	AUTO_ERR struct err cause = {0};
	job->session = upload_session_new(job->uploads, job);
	if (upload_session_take(job->session, answer, &cause) < 0)
		return upload_failed(job, &cause, err);
	return upload_send(job, err);
}

static int post(struct upload_job *job)
{
	AUTO_FREE char *path = url_add_param("blobs/uploads/", "digest", job->blob.digest);
	struct registry_request request = {
		.method = "POST",
		.path = path,
		.headers = &octet_headers,
		.body = whole(job),
		.accept = REGISTRY_ANY,
		.doing = doing,
	};

	job->uploads->is_probing = true;
	upload_start(job, &request, posted);
	return 0;
}

int upload_blob(struct upload_job *job, struct err *err)
{
	return in_one_post(job) ? post(job) : upload_need_session(job, err);
}

/*
 * PUT
 */

/* Whether what would be sent is what its digest says. */
static bool source_is_right(const struct upload_job *job)
{
	enum { CHUNK = 64 << 10 };
	AUTO_DIGEST struct digest digest = {0};
	AUTO_FREE char *chunk = mem_alloc(1, CHUNK);
	uint8_t sha256[SHA256_SIZE];
	char text[DIGEST_TEXT_SIZE];

	digest_begin(&digest, DIGEST_SHA256);
	if (job->data)
		digest_add(&digest, job->data, job->blob.size);
	for (off_t at = 0; !job->data;) {
		ssize_t n = pread(job->fd, chunk, CHUNK, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		digest_add(&digest, chunk, (size_t)n);
		at += n;
	}
	digest_end(&digest, sha256);
	digest_text(sha256, text);
	return strcmp(text, job->blob.digest) == 0;
}

/* The blob was damaged in transit, or on this machine. */
static int digest_invalid(struct upload_job *job, const struct http_answer *answer, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	if (job->was_verified || job->copy)
		return upload_refused(job, answer, err);
	job->was_verified = true;
	if (source_is_right(job))
		return upload_again(job, answer, NULL, err);
	err_set(&fault, E_IO, "the layer %s was damaged on this machine before it was sent",
		job->blob.digest);
	return upload_failed(job, &fault, err);
}

/* 404 and 416: the registry has lost the session. 400 is that, too, with some. */
static bool session_is_lost(const struct http_answer *answer)
{
	return answer->status == 404 || answer->status == 416 ||
	       registry_answer_has(answer, "BLOB_UPLOAD_UNKNOWN", NULL) ||
	       registry_answer_has(answer, "BLOB_UPLOAD_INVALID", NULL);
}

/* The end of the connection may have eaten the answer only. */
static int looked(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_job *job = ctx;
	AUTO_ERR struct err lost = {0};

	upload_ended(job);
	if (!err_is_set(fault) && answer->status == 200)
		return stored(job, answer, err);
	err_set(&lost, E_HTTP_CLOSED, "the connection to %s ended during an upload",
		registry_name(job->uploads->options.registry));
	return upload_again(job, NULL, err_is_set(fault) ? fault : &lost, err);
}

void upload_look(struct upload_job *job, const char *what, registry_done_fn *done)
{
	AUTO_FREE char *path = mem_printf("blobs/%s", job->blob.digest);
	struct registry_request request = {
		.method = "HEAD",
		.path = path,
		.accept = REGISTRY_ANY,
		.doing = what,
	};

	upload_start(job, &request, done);
}

static bool may_have_arrived(const struct err *fault)
{
	return fault->id == E_HTTP_CLOSED || fault->id == E_HTTP_TIMEOUT;
}

int upload_put_done(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_job *job = ctx;

	upload_ended(job);
	if (err_is_set(fault)) {
		if (fault->code != ERR_NET || fault->id == E_REGISTRY_TIMEOUT)
			return upload_failed(job, fault, err);
		if (!may_have_arrived(fault))
			return upload_again(job, NULL, fault, err);
		upload_look(job, doing, looked);
		return 0;
	}
	if (answer->status / 100 == 2) {
		upload_session_free(TAKE(job->session));
		return stored(job, answer, err);
	}
	if (registry_answer_has(answer, "DIGEST_INVALID", NULL))
		return digest_invalid(job, answer, err);
	if (upload_may_pass(answer) || session_is_lost(answer))
		return upload_again(job, answer, NULL, err);
	return upload_refused(job, answer, err);
}

void upload_put(struct upload_job *job, const struct http_body *body, const char *what,
	registry_done_fn *done)
{
	AUTO_URL struct url url = {0};
	struct registry_request request = {
		.method = "PUT",
		.url = &url,
		.headers = body->size ? &octet_headers : NULL,
		.body = *body,
		.accept = REGISTRY_ANY,
		.once = true,
		.doing = what,
	};

	url_copy(&job->session->url, &url);
	char *path = url_add_param(url.path, "digest", job->blob.digest);
	free(url.path);
	url.path = path;
	upload_start(job, &request, done);
}

int upload_send(struct upload_job *job, struct err *err)
{
	if (job->kind == UPLOAD_BASE)
		return upload_copy_send(job, err);
	if (upload_in_chunks(job))
		return upload_chunks(job, err);
	const struct http_body body = whole(job);
	upload_put(job, &body, doing, upload_put_done);
	return 0;
}
