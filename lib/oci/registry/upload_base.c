/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/trace.h"
#include "oci/registry/uploads_impl.h"

static int upload_copy(struct upload_job *job, struct err *err);

/*
 * Base layers: mounted from another repository of the registry, there already, or copied.
 */

static const char doing_mount[] = "mounting a base layer";

/* Limit the mounts at once, so that later requests, after which more has to follow, do not wait
 * behind all of them. */
enum { MOUNTS_AT_ONCE = HTTP_CONNECTIONS_MAX };

static bool is_mounting(const struct upload_job *job)
{
	return job->kind == UPLOAD_BASE && !job->is_queued && !job->is_done && !job->has_turn &&
	       !job->waits_for_turn;
}

static size_t count_mounting(const struct uploads *uploads)
{
	size_t n = 0;

	vec_foreach (struct upload_job *const, job, &uploads->jobs)
		n += is_mounting(*job);
	return n;
}

void upload_base_next(struct uploads *uploads)
{
	size_t n = count_mounting(uploads);

	vec_foreach (struct upload_job *, job, &uploads->jobs) {
		if (n >= MOUNTS_AT_ONCE)
			break;
		if (!(*job)->is_queued)
			continue;
		(*job)->is_queued = false;
		upload_begin_soon(*job);
		n++;
	}
}

/* The base's manifest is remembered or exists, but a layer of it does not. */
static int upload_base_fail_gone(struct upload_job *job, struct err *err)
{
	const struct uploads_options *options = &job->uploads->options;
	AUTO_ERR struct err error = {0};

	err_set(&error, E_IMAGE_BASE,
		"the base %s is gone: registry %s has no layer %s of it any more",
		options->base_name, registry_host(options->registry), job->blob.digest);
	err_hint(&error, "docker push %s   # once more, or name another one with --image",
		options->base_name);
	return upload_failed(job, &error, err);
}

static int fail_mount(struct upload_job *job, struct err *err)
{
	const struct uploads_options *options = &job->uploads->options;
	const char *host = registry_host(options->registry);
	AUTO_ERR struct err error = {0};

	if (options->mount_from)
		err_set(&error, E_REGISTRY_MOUNT,
			"registry %s does not let %s use the layers of the base %s", host,
			registry_name(options->registry), options->base_name);
	else
		err_set(&error, E_REGISTRY_MOUNT, "the base %s is not in registry %s",
			options->base_name, host);
	err_evidence(&error, "layers of a base do not pass through this machine");
	err_evidence(&error,
		"push the base to %s once and name that one with --image, or copy it:", host);
	err_hint(&error, "dlrun push --copy-base …");
	return upload_failed(job, &error, err);
}

static int one_byte(void *ctx, const void *data UNUSED, size_t len, struct err *err)
{
	struct upload_job *job = ctx;

	job->got += len;
	/* Cancel: a server that does not support ranges would send the whole blob. */
	return job->got > 1 ? err_set(err, E_CANCELED, "enough") : 0;
}

/* repo: NULL: the registry's. */
static struct registry_call *upload_base_probe(struct upload_job *job, struct registry *registry,
	const char *repo, const char *what, registry_done_fn *done)
{
	static const char *const range[] = {"Range: bytes=0-0"};
	static const struct strv headers = {(char **)range, 1, 1};
	AUTO_FREE char *path = mem_printf("blobs/%s", job->blob.digest);
	struct registry_request request = {
		.method = "GET",
		.repo = repo,
		.path = path,
		.headers = &headers,
		.data = one_byte,
		/* A look beside an upload begins no login. */
		.accept = REGISTRY_ANY | (job->kind == UPLOAD_FILE ? REGISTRY_NO_LOGIN : 0),
		/* Of a proof, a response without the byte is all there is to know. */
		.once = job->kind != UPLOAD_BASE,
		.doing = what,
		.done = done,
		.ctx = job,
	};

	job->got = 0;
	return registry_start(registry, &request);
}

/* Where it should be mounted from. */
static int checked_source(
	void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;

	upload_ended(job);
	bool is_gone = job->got == 0 && !err_is_set(error) && response->status == 404;
	return is_gone ? upload_base_fail_gone(job, err) : fail_mount(job, err);
}

/* The base is of the repository that is pushed to. */
static bool is_of_registry(const struct uploads_options *options)
{
	const char *name = registry_name(options->registry);
	size_t len = strlen(name);

	return strncmp(options->base_name, name, len) == 0 && strchr(":@", options->base_name[len]);
}

static int upload_base_checked(
	void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;

	upload_ended(job);
	if (job->got > 0)
		return upload_arrived(job, err);
	if (err_is_set(error))
		return upload_failed(job, error, err);
	if (upload_may_pass(response))
		return upload_again(job, response, NULL, err);
	const struct uploads_options *options = &job->uploads->options;
	if (options->copies)
		return upload_copy(job, err);
	if (options->mount_from) {
		job->call = upload_base_probe(job, upload_base_registry(job->uploads),
			options->mount_from, "looking for a base layer", checked_source);
		return 0;
	}
	return is_of_registry(options) ? upload_base_fail_gone(job, err) : fail_mount(job, err);
}

/* HEAD is not enough: a registry with a cache of descriptors says yes when the bytes are gone. */
static int check_there(struct upload_job *job)
{
	job->call = upload_base_probe(job, job->uploads->options.registry, NULL,
		"looking for a base layer", upload_base_checked);
	return 0;
}

/* 202: it did not, and has opened a session instead. */
static void drop_session(struct upload_job *job, const struct http_response *response)
{
	struct upload_session *session = upload_session_new(job->uploads, NULL);

	if (upload_session_take(session, response, NULL) == 0)
		upload_session_delete(session);
	else
		upload_session_free(session);
}

static int mounted(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;

	upload_ended(job);
	if (err_is_set(error))
		return upload_failed(job, error, err);
	if (response->status == 201)
		return upload_arrived(job, err);
	if (upload_may_pass(response))
		return upload_again(job, response, NULL, err);
	if (response->status == 202)
		drop_session(job, response);
	return check_there(job);
}

int upload_base(struct upload_job *job, struct err *err UNUSED)
{
	const char *from = job->uploads->options.mount_from;
	struct registry_request request = {
		.method = "POST",
		.accept = REGISTRY_ANY,
		.doing = doing_mount,
	};

	if (!from)
		return check_there(job);
	trace_note(TRACE_OCI, "blob %s: mounted from %s", job->blob.digest, from);
	AUTO_FREE char *from_path = registry_repo_path(job->uploads->options.registry, from);
	AUTO_FREE char *mount = url_add_param("blobs/uploads/", "mount", job->blob.digest);
	AUTO_FREE char *path = url_add_param(mount, "from", from_path);
	request.path = path;
	upload_start(job, &request, mounted);
	return 0;
}

/*
 * Proofs: one byte of the blob.
 */

static const char doing_look[] = "looking for a layer";

/* A user who may push may lack the right to read, or be limited in the rate of requests. */
static bool says_nothing(const struct http_response *response)
{
	return response->status == 401 || response->status == 403 || response->status == 405 ||
	       response->status == 429;
}

/* Storage that the registry redirects to, say, cannot be reached from here: who pulls may be
 * nearer. One that says nothing at all is waited for no longer than UPLOAD_PROOF_MS. A transfer
 * that breaks off and 500 are not among these: so answer registries that know a blob whose bytes
 * they have lost. */
static bool is_unknown(const struct http_response *response, const struct err *error)
{
	if (err_is_set(error))
		return error->id == E_HTTP_CONNECT || error->id == E_HTTP_RESOLVE ||
		       error->id == E_HTTP_TLS || error->id == E_HTTP_CA ||
		       error->id == E_HTTP_CERT || error->id == E_HTTP_ZONE;
	return response->status == 502 || response->status == 503 || response->status == 504;
}

static int proved(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;

	upload_ended(job);
	if (job->got > 0)
		return upload_arrived(job, err);
	if (is_unknown(response, error))
		return upload_unknown(job, err);
	bool is_there = !err_is_set(error) && says_nothing(response);
	return is_there ? upload_arrived(job, err) : upload_unproved(job, err);
}

/* In small steps: a machine that stood still has not waited. */
static int proof_tick(void *ctx, struct err *err)
{
	enum { TICK_MS = 250, TICKS = UPLOAD_PROOF_MS / TICK_MS };
	struct upload_job *job = ctx;

	job->timer = NULL;
	if (job->tries++ == TICKS) {
		struct registry_cache *cache = job->uploads->options.cache;
		cache->mute_ms = clock_wall_ms();
		cache->changed = true;
		log_note("%s: nobody tells within %d ms whether it is there", job->blob.digest,
			UPLOAD_PROOF_MS);
		return upload_unknown(job, err);
	}
	job->timer =
		loop_add_timer(job->uploads->options.loop, clock_ms() + TICK_MS, proof_tick, job);
	return 0;
}

int upload_proof(struct upload_job *job, struct err *err)
{
	job->call =
		upload_base_probe(job, job->uploads->options.registry, NULL, doing_look, proved);
	return proof_tick(job, err);
}

static bool is_whole(const struct upload_job *job, const struct http_response *response)
{
	const char *length = field_find(&response->headers, "content-length");
	uint64_t size;

	return !length || (field_number(length, &size) && size == job->blob.size);
}

static int kept(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;

	job->look = NULL;
	bool is_there = !err_is_set(error) && response->status == 200 && is_whole(job, response);
	return is_there ? upload_is_there(job, err) : 0;
}

/* Both have to say yes, else the upload goes on: the byte is there, and HEAD, which keeps a
 * collection of garbage that is under way from deleting it (Harbor's). */
static int looked(void *ctx, struct http_response *response UNUSED, struct err *error UNUSED,
	struct err *err UNUSED)
{
	struct upload_job *job = ctx;
	AUTO_FREE char *path = mem_printf("blobs/%s", job->blob.digest);
	struct registry_request request = {
		.method = "HEAD",
		.path = path,
		.accept = REGISTRY_ANY | REGISTRY_NO_LOGIN,
		.once = true,
		.doing = doing_look,
		.done = kept,
		.ctx = job,
	};

	job->look = job->got ? registry_start(job->uploads->options.registry, &request) : NULL;
	return 0;
}

void upload_look(struct upload_job *job)
{
	if (job->kind != UPLOAD_FILE || job->blob.size < UPLOAD_LOOK_MIN || job->was_looked_for ||
		job->uploads->was_misled || !job->call)
		return;
	job->was_looked_for = true;
	job->look =
		upload_base_probe(job, job->uploads->options.registry, NULL, doing_look, looked);
}

/*
 * Copy a blob from another registry to ours, through a ring in memory: the side that is ahead
 * waits.
 */

static const char doing_copy[] = "copying a base layer";

enum {
	RING = 1 << 20,
	/* Space that is left when the download has to wait: more than comes at once. */
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

/* Now, or when it has its turn. */
static int upload_copy(struct upload_job *job, struct err *err)
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
	size_t space = RING - (size_t)(copy->put - copy->taken);

	if (copy->put + len > copy->job->blob.size)
		return err_set(err, E_IMAGE, "the base layer %s is longer than its manifest says",
			copy->job->blob.digest);
	if (len > space)
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
	copy->download_waits = space - len < PIECE_MAX;
	return copy->download_waits;
}

static bool upload_base_is_whole(struct upload_copy *copy)
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
static int downloaded(
	void *ctx, struct http_response *response UNUSED, struct err *error, struct err *err)
{
	struct upload_copy *copy = ctx;
	struct upload_job *job = copy->job;
	AUTO_ERR struct err cause = {0};

	copy->download = NULL;
	copy->download_waits = false;
	if (err_is_set(error)) {
		registry_cancel(job->call);
		job->call = NULL;
		if (error->code != ERR_NET)
			return upload_failed(job, error, err);
		upload_copy_free(TAKE(job->copy));
		return upload_again(job, NULL, error, err);
	}
	if (upload_base_is_whole(copy))
		return 0;
	err_set(&cause, E_IMAGE, "the base layer %s is not what its digest says in registry %s",
		job->blob.digest, registry_host(upload_base_registry(job->uploads)));
	return upload_failed(job, &cause, err);
}

/*
 * To here
 */

static ssize_t upload_base_give(void *ctx, void *out, size_t len, struct err *err UNUSED)
{
	struct upload_copy *copy = ((struct upload_job *)ctx)->copy;
	size_t there = (size_t)(copy->put - copy->taken), at = copy->taken % RING;

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

static int copied(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;
	struct uploads_progress *progress = &job->uploads->progress;

	if (!err_is_set(error) && response->status / 100 == 2) {
		progress->bytes_done += job->blob.size;
		progress->copied += job->blob.size;
	}
	return upload_put_done(ctx, response, error, err);
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
		.doing = doing_copy,
		.done = downloaded,
		.ctx = copy,
	};

	copy->download = registry_start(upload_base_registry(uploads), &request);
}

int upload_copy_send(struct upload_job *job, struct err *err UNUSED)
{
	const struct http_body body = {.size = job->blob.size, .read = upload_base_give};

	upload_copy_free(job->copy);
	job->copy = mem_alloc(1, sizeof(*job->copy));
	job->copy->job = job;
	job->copy->ring = mem_alloc(1, RING);
	digest_begin(&job->copy->digest, DIGEST_SHA256);
	job->copy->digest_begun = true;
	upload_put(job, &body, doing_copy, copied);
	start_download(job->copy);
	return 0;
}
