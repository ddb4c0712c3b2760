/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/uploads.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "base/util/vec.h"
#include "net/stream/field.h"
#include "oci/registry/uploads_impl.h"

static int upload_begin(struct upload_job *job, struct err *err);
static int upload_blob(struct upload_job *job, struct err *err);
static int upload_send(struct upload_job *job, struct err *err);
static bool upload_in_chunks(const struct upload_job *job);
static int upload_chunks(struct upload_job *job, struct err *err);

enum { FIRST_WAIT_MS = 200 };

/* For traces. */
static const char *const upload_kind_names[] = {
	[UPLOAD_FILE] = "upload of a file",
	[UPLOAD_BYTES] = "upload",
	[UPLOAD_BASE] = "layer of the base",
	[UPLOAD_PROOF] = "proof",
};

struct uploads *uploads_new(const struct uploads_options *options)
{
	struct uploads *uploads = mem_alloc(1, sizeof(*uploads));

	uploads->options = *options;
	if (!uploads->options.chunked_min)
		uploads->options.chunked_min = UPLOAD_CHUNKED_MIN;
	return uploads;
}

static void job_stop(struct upload_job *job)
{
	registry_cancel(job->call);
	job->call = NULL;
	registry_cancel(job->look);
	job->look = NULL;
	loop_remove_timer(job->uploads->options.loop, job->timer);
	job->timer = NULL;
	upload_copy_free(TAKE(job->copy));
	upload_session_free(TAKE(job->session));
}

static void job_free(struct upload_job *job)
{
	job_stop(job);
	if (job->fd >= 0)
		close(job->fd);
	free(job->data);
	vec_done(&job->waiters);
	free(job);
}

void uploads_free(struct uploads *uploads)
{
	if (!uploads)
		return;
	vec_foreach (struct upload_job *, job, &uploads->jobs)
		job_free(*job);
	vec_done(&uploads->jobs);
	while (uploads->sessions.n > 0)
		upload_session_free(uploads->sessions.v[0]);
	vec_done(&uploads->sessions);
	loop_remove_timer(uploads->options.loop, uploads->close_timer);
	err_done(&uploads->error);
	free(uploads);
}

struct uploads_progress uploads_progress(const struct uploads *uploads)
{
	struct uploads_progress progress = uploads->progress;

	vec_foreach (struct upload_job *const, job, &uploads->jobs)
		if ((*job)->call && !(*job)->is_done)
			progress.bytes_done += (*job)->offset + registry_sent((*job)->call);
	return progress;
}

/*
 * Ends
 */

/* The newest file may have any size: it travels while the next one is made. */
static bool uploads_is_enough(const struct uploads *uploads)
{
	uint64_t bytes = 0, newest = 0;

	vec_foreach (struct upload_job *const, job, &uploads->jobs) {
		if ((*job)->is_done || (*job)->kind == UPLOAD_PROOF)
			continue;
		if (!uploads->done_at)
			return false;
		if ((*job)->kind == UPLOAD_FILE)
			bytes += newest = (*job)->blob.size;
	}
	return bytes - newest <= uploads->done_at;
}

static int uploads_report(struct uploads *uploads, struct err *err)
{
	uploads_done_fn *done = uploads->done;
	bool failed = err_is_set(&uploads->error);

	if (!done || (!failed && !uploads_is_enough(uploads)))
		return 0;
	uploads->done = NULL;
	return done(uploads->done_ctx, failed ? &uploads->error : NULL, err);
}

void uploads_leave(struct uploads *uploads)
{
	uploads->done = NULL;
	vec_foreach (struct upload_job *, job, &uploads->jobs)
		vec_done(&(*job)->waiters);
}

int uploads_wait(
	struct uploads *uploads, uint64_t most, uploads_done_fn *done, void *ctx, struct err *err)
{
	uploads->done_at = most;
	uploads->done = done;
	uploads->done_ctx = ctx;
	return uploads_report(uploads, err);
}

static void notify_waiters(struct upload_job *job, int has)
{
	vec_foreach (struct upload_waiter, waiter, &job->waiters)
		waiter->done(waiter->ctx, has);
	vec_done(&job->waiters);
}

static void count_arrival(struct upload_job *job)
{
	struct uploads_progress *progress = &job->uploads->progress;

	if (job->kind == UPLOAD_BASE) {
		progress->mounts_done++;
	} else if (job->kind != UPLOAD_PROOF) {
		progress->blobs_done++;
		progress->bytes_done += job->blob.size;
	}
}

int upload_arrived(struct upload_job *job, struct err *err)
{
	struct uploads *uploads = job->uploads;
	struct registry_cache *cache = uploads->options.cache;

	trace_note(TRACE_OCI, "blob %s: the registry has it, %s, %llu bytes", job->blob.digest,
		upload_kind_names[job->kind], (unsigned long long)job->blob.size);
	job_stop(job);
	/* A file without a name takes space for as long as it is open. */
	auto_fd(&job->fd);
	job->fd = -1;
	job->is_done = true;
	count_arrival(job);
	registry_cache_put(cache, &cache->blobs, job->blob.digest, NULL, clock_wall_ms());
	notify_waiters(job, 1);
	upload_base_next(uploads);
	int r = upload_copy_next(uploads, err);
	return r < 0 ? r : uploads_report(uploads, err);
}

/* Stop the job's requests, and delete its session. */
static void upload_abandon(struct upload_job *job)
{
	struct upload_session *session = TAKE(job->session);

	if (session && session->is_ready)
		upload_session_delete(session);
	else
		upload_session_free(session);
	job_stop(job);
}

int upload_is_there(struct upload_job *job, struct err *err)
{
	struct uploads_progress *progress = &job->uploads->progress;

	upload_abandon(job);
	/* Out of both sums: upload_arrived adds it to what was done. */
	progress->blobs_total--;
	progress->blobs_done--;
	progress->bytes_total -= job->blob.size;
	progress->bytes_done -= job->blob.size;
	progress->files_there++;
	progress->bytes_there += job->blob.size;
	return upload_arrived(job, err);
}

int upload_failed(struct upload_job *job, struct err *error, struct err *err)
{
	struct uploads *uploads = job->uploads;

	trace_note(TRACE_OCI, "blob %s: failed: %s", job->blob.digest, error->message);
	if (!err_is_set(&uploads->error))
		err_move(&uploads->error, error);
	job_stop(job);
	return uploads_report(uploads, err);
}

/* In done: fail with what the response means. */
static int upload_refused(
	struct upload_job *job, const struct http_response *response, struct err *err)
{
	AUTO_ERR struct err error = {0};

	registry_call_error(job->ended, response, &error);
	return upload_failed(job, &error, err);
}

/*
 * Trying again
 */

bool upload_may_pass(const struct http_response *response)
{
	static const int statuses[] = {408, 425, 429, 500, 502, 503, 504};

	for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++)
		if (response->status == statuses[i])
			return true;
	return false;
}

static int64_t uploads_wait_ms(const struct upload_job *job, const struct http_response *response)
{
	int64_t limit = FIRST_WAIT_MS;
	const char *requested = response ? field_find(&response->headers, "retry-after") : NULL;
	int64_t after = requested ? field_retry_after(requested, clock_wall_ms()) : -1;

	for (int i = 1; i < job->tries; i++)
		limit *= 3;
	if (after > REGISTRY_RETRY_AFTER_MAX_MS)
		after = REGISTRY_RETRY_AFTER_MAX_MS;
	if (after >= 0)
		return after + (int64_t)random_below(FIRST_WAIT_MS);
	return limit / 2 + (int64_t)random_below((uint32_t)limit / 2) + 1;
}

static int begin_by_timer(void *ctx, struct err *err)
{
	struct upload_job *job = ctx;

	job->timer = NULL;
	return upload_begin(job, err);
}

int upload_again(struct upload_job *job, const struct http_response *response, struct err *error,
	struct err *err)
{
	job->tries++;
	int64_t due_ms = clock_ms() + uploads_wait_ms(job, response);
	if (job->tries >= UPLOAD_TRIES ||
		due_ms >= registry_deadline_ms(job->uploads->options.registry))
		return response ? upload_refused(job, response, err)
				: upload_failed(job, error, err);
	log_note("%s: once more (%s)", job->blob.digest,
		err_is_set(error) ? error->message : "the registry did not take it");
	job->timer = loop_add_timer(job->uploads->options.loop, due_ms, begin_by_timer, job);
	upload_session_free(TAKE(job->session));
	return 0;
}

void upload_start_at(struct upload_job *job, struct registry *registry,
	struct registry_request *request, registry_done_fn *done)
{
	request->done = done;
	request->ctx = job;
	job->call = registry_start(registry, request);
}

void upload_start(struct upload_job *job, struct registry_request *request, registry_done_fn *done)
{
	upload_start_at(job, job->uploads->options.registry, request, done);
}

/*
 * Jobs
 */

/* Where the job is begun, by its kind. */
static int upload_begin(struct upload_job *job, struct err *err)
{
	static int (*const begin[])(struct upload_job *, struct err *) = {
		[UPLOAD_FILE] = upload_blob,
		[UPLOAD_BYTES] = upload_blob,
		[UPLOAD_BASE] = upload_base,
		[UPLOAD_PROOF] = upload_proof,
	};

	trace_note(TRACE_OCI, "blob %s: begun, %s", job->blob.digest, upload_kind_names[job->kind]);
	return begin[job->kind](job, err);
}

/* Not known under its digest any more. */
static void retire(struct upload_job *job, int has)
{
	job_stop(job);
	trace_note(TRACE_OCI, "blob %s: %s", job->blob.digest,
		has ? "not known whether the registry has it" : "the registry does not have it");
	job->is_done = true;
	job->is_queued = false;
	job->blob.digest[0] = '\0';
	notify_waiters(job, has);
	upload_base_next(job->uploads);
}

int upload_unproved(struct upload_job *job, struct err *err)
{
	struct registry_cache *cache = job->uploads->options.cache;

	registry_cache_drop(cache, &cache->blobs, job->blob.digest);
	retire(job, 0);
	return uploads_report(job->uploads, err);
}

int upload_unknown(struct upload_job *job, struct err *err)
{
	retire(job, -1);
	return uploads_report(job->uploads, err);
}

static struct upload_job *uploads_find_job(const struct uploads *uploads, const char *digest)
{
	vec_foreach (struct upload_job *const, job, &uploads->jobs)
		if (strcmp((*job)->blob.digest, digest) == 0)
			return *job;
	return NULL;
}

void upload_begin_soon(struct upload_job *job)
{
	job->timer = loop_add_timer(job->uploads->options.loop, clock_ms(), begin_by_timer, job);
}

/* NULL: it is under way already, or there. */
static struct upload_job *add_job(
	struct uploads *uploads, enum upload_kind kind, const struct descriptor *blob)
{
	struct upload_job *job = uploads_find_job(uploads, blob->digest);

	if (job && job->kind != UPLOAD_PROOF)
		return NULL;
	if (job) /* A proof is overtaken. */
		retire(job, 0);
	job = mem_alloc(1, sizeof(*job));
	*job = (struct upload_job){.uploads = uploads, .kind = kind, .blob = *blob, .fd = -1};
	*vec_push(&uploads->jobs) = job;
	job->is_queued = kind == UPLOAD_BASE;
	if (!job->is_queued)
		upload_begin_soon(job);
	return job;
}

static void count_upload(struct uploads *uploads, const struct descriptor *blob)
{
	uploads->progress.blobs_total++;
	uploads->progress.bytes_total += blob->size;
}

void uploads_add_file(struct uploads *uploads, const struct descriptor *blob, int take_fd)
{
	struct upload_job *job = add_job(uploads, UPLOAD_FILE, blob);

	if (!job) {
		close(take_fd);
		return;
	}
	job->fd = take_fd;
	count_upload(uploads, blob);
}

void uploads_add_bytes(struct uploads *uploads, const struct descriptor *blob, const void *data)
{
	struct upload_job *job = add_job(uploads, UPLOAD_BYTES, blob);

	if (!job)
		return;
	job->data = mem_dup(data, blob->size);
	count_upload(uploads, blob);
}

void uploads_add_base(struct uploads *uploads, const struct descriptor *blob)
{
	if (!add_job(uploads, UPLOAD_BASE, blob))
		return;
	uploads->progress.mounts_total++;
	upload_base_next(uploads);
}

/*
 * Proofs of existing blobs
 */

static struct upload_job *add_proof(struct uploads *uploads, const char *digest)
{
	struct descriptor blob = {0};

	memcpy(blob.digest, digest, sizeof(blob.digest));
	return add_job(uploads, UPLOAD_PROOF, &blob);
}

static bool uploads_is_trusted(
	const struct uploads *uploads, const struct registry_cache_entry *entry)
{
	return !uploads->options.trusts_nothing &&
	       registry_cache_entry_is_fresh(entry, clock_wall_ms(), REGISTRY_TRUST_BLOB_MS);
}

/* Storage that this machine cannot reach cannot be reached at the next push, either. */
static bool is_mute(const struct uploads *uploads)
{
	int64_t mute_ms = uploads->options.cache->mute_ms, now_ms = clock_wall_ms();

	return !uploads->options.trusts_nothing && mute_ms <= now_ms &&
	       mute_ms > now_ms - REGISTRY_TRUST_MUTE_MS;
}

void uploads_prove_old(struct uploads *uploads)
{
	const struct registry_cache_list *list = &uploads->options.cache->blobs;
	uint8_t sha256[SHA256_SIZE];

	if (is_mute(uploads))
		return;
	vec_foreach (const struct registry_cache_entry, entry, list)
		if (entry->in_newest && digest_parse(entry->name, sha256) &&
			!uploads_is_trusted(uploads, entry))
			add_proof(uploads, entry->name);
}

bool uploads_trusts(const struct uploads *uploads, const char *digest)
{
	return uploads_is_trusted(
		uploads, registry_cache_entry_find(&uploads->options.cache->blobs, digest));
}

void uploads_has(
	struct uploads *uploads, const struct descriptor *blob, uploads_has_fn *done, void *ctx)
{
	const struct upload_job *job = uploads_find_job(uploads, blob->digest);
	const struct registry_cache_entry *entry =
		registry_cache_entry_find(&uploads->options.cache->blobs, blob->digest);
	bool is_sent = job && job->kind != UPLOAD_PROOF;

	if ((job && job->is_done) || uploads_is_trusted(uploads, entry))
		done(ctx, 1);
	else if (!entry || is_sent)
		done(ctx, 0);
	else
		uploads_prove(uploads, blob, done, ctx);
}

void uploads_prove(
	struct uploads *uploads, const struct descriptor *blob, uploads_has_fn *done, void *ctx)
{
	struct upload_job *job = uploads_find_job(uploads, blob->digest);

	if (!job && !is_mute(uploads))
		job = add_proof(uploads, blob->digest);
	if (!job || job->is_done)
		done(ctx, job ? 1 : -1);
	else
		*vec_push(&job->waiters) = (struct upload_waiter){done, ctx};
}

void uploads_forget(struct uploads *uploads, const char *digest)
{
	struct registry_cache *cache = uploads->options.cache;
	struct upload_job *job = uploads_find_job(uploads, digest);

	registry_cache_drop(cache, &cache->blobs, digest);
	uploads->was_misled = true;
	uploads->progress.files_there = uploads->progress.bytes_there = 0;
	if (!job)
		return;
	retire(job, 0);
}

static const char doing_open[] = "opening an upload";

/* The list of those without an owner. */
static void unlist(struct upload_session *session)
{
	struct uploads *uploads = session->uploads;

	for (size_t i = 0; i < uploads->sessions.n; i++)
		if (uploads->sessions.v[i] == session)
			uploads->sessions.v[i--] = uploads->sessions.v[--uploads->sessions.n];
}

struct upload_session *upload_session_new(struct uploads *uploads, struct upload_job *owner)
{
	struct upload_session *session = mem_alloc(1, sizeof(*session));

	session->uploads = uploads;
	session->owner = owner;
	return session;
}

void upload_session_free(struct upload_session *session)
{
	if (!session)
		return;
	unlist(session);
	registry_cancel(session->call);
	url_done(&session->url);
	err_done(&session->error);
	free(session);
}

int upload_session_take(
	struct upload_session *session, const struct http_response *response, struct err *err)
{
	AUTO_URL struct url url = {0};
	const char *chunk_min = field_find(&response->headers, "oci-chunk-min-length");

	int r = registry_location(session->uploads->options.registry, response, &url, err);
	if (r < 0)
		return r;
	url_done(&session->url);
	session->url = url;
	url = (struct url){0};
	if (chunk_min)
		field_number(chunk_min, &session->chunk_min);
	session->is_ready = true;
	return 0;
}

/*
 * Opening
 */

static void start_delete(struct upload_session *session);
static int report_closed(struct uploads *uploads, struct err *err);

static int close_late(struct upload_session *session, bool failed, struct err *err)
{
	struct uploads *uploads = session->uploads;

	if (!failed) {
		start_delete(session);
		return 0;
	}
	upload_session_free(session);
	return report_closed(uploads, err);
}

/* With owner: it goes on, or fails. Without: what happened is kept for who takes it. */
static int opened(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_session *session = ctx;
	struct upload_job *owner = session->owner;
	AUTO_ERR struct err cause = {0};

	struct registry_call *call = TAKE(session->call);
	if (err_is_set(error))
		err_move(&cause, error);
	else if (response->status != 202)
		registry_call_error(call, response, &cause);
	else
		upload_session_take(session, response, &cause);
	if (owner)
		return err_is_set(&cause) ? upload_failed(owner, &cause, err)
					  : upload_send(owner, err);
	if (session->uploads->is_closing)
		return close_late(session, err_is_set(&cause), err);
	err_move(&session->error, &cause);
	return 0;
}

static struct upload_session *upload_session_open(struct uploads *uploads, struct upload_job *owner)
{
	struct upload_session *session = upload_session_new(uploads, owner);
	const struct registry_request request = {
		.method = "POST",
		.path = "blobs/uploads/",
		.doing = doing_open,
		.done = opened,
		.ctx = session,
	};

	session->call = registry_start(uploads->options.registry, &request);
	return session;
}

/* Skip sessions that are being deleted: they are on the list, too. */
static struct upload_session *find_free(const struct uploads *uploads)
{
	vec_foreach (struct upload_session *const, session, &uploads->sessions)
		if (!(*session)->is_deleted)
			return *session;
	return NULL;
}

static size_t count_free(const struct uploads *uploads)
{
	size_t n = 0;

	vec_foreach (struct upload_session *const, session, &uploads->sessions)
		n += !(*session)->is_deleted;
	return n;
}

void uploads_open_ahead(struct uploads *uploads, size_t n)
{
	if (uploads->options.cache->single_post == ABILITY_YES)
		return;
	/* Leave one for the blob that finds out whether a single POST is supported. */
	if (uploads->options.cache->single_post == ABILITY_UNKNOWN && n > 1)
		n--;
	for (size_t have = count_free(uploads); have < n; have++)
		*vec_push(&uploads->sessions) = upload_session_open(uploads, NULL);
}

int upload_need_session(struct upload_job *job, struct err *err)
{
	struct uploads *uploads = job->uploads;

	if (job->session)
		return upload_send(job, err);
	job->session = find_free(uploads);
	if (!job->session) {
		job->session = upload_session_open(uploads, job);
		return 0;
	}
	unlist(job->session);
	job->session->owner = job;
	if (err_is_set(&job->session->error))
		return upload_failed(job, &job->session->error, err);
	return job->session->is_ready ? upload_send(job, err) : 0;
}

/*
 * Deleting
 */

static int report_closed(struct uploads *uploads, struct err *err)
{
	uploads_done_fn *closed = uploads->closed;

	if (!closed || uploads->sessions.n > 0)
		return 0;
	loop_remove_timer(uploads->options.loop, uploads->close_timer);
	uploads->close_timer = NULL;
	uploads->closed = NULL;
	return closed(uploads->closed_ctx, NULL, err);
}

/* A registry that does not delete it now does so later by itself. */
static int deleted(
	void *ctx, struct http_response *response UNUSED, struct err *error UNUSED, struct err *err)
{
	struct upload_session *session = ctx;
	struct uploads *uploads = session->uploads;

	session->call = NULL;
	upload_session_free(session);
	return report_closed(uploads, err);
}

static void start_delete(struct upload_session *session)
{
	const struct registry_request request = {
		.method = "DELETE",
		.url = &session->url,
		/* Some want more rights for it than for uploads. */
		.accept = REGISTRY_ANY | REGISTRY_NO_LOGIN,
		.doing = "closing an upload",
		.done = deleted,
		.ctx = session,
	};

	session->is_ready = false;
	session->is_deleted = true;
	session->call = registry_start(session->uploads->options.registry, &request);
}

void upload_session_delete(struct upload_session *session)
{
	session->owner = NULL;
	*vec_push(&session->uploads->sessions) = session;
	start_delete(session);
}

static int close_timeout(void *ctx, struct err *err)
{
	struct uploads *uploads = ctx;

	uploads->close_timer = NULL;
	while (uploads->sessions.n > 0)
		upload_session_free(uploads->sessions.v[0]);
	return report_closed(uploads, err);
}

int uploads_close(struct uploads *uploads, uploads_done_fn *done, void *ctx, struct err *err)
{
	uploads->is_closing = true;
	vec_foreach (struct upload_job *, job, &uploads->jobs)
		if ((*job)->kind != UPLOAD_PROOF)
			upload_abandon(*job);
	for (size_t i = uploads->sessions.n; i-- > 0;) {
		struct upload_session *session = uploads->sessions.v[i];
		if (session->is_ready)
			start_delete(session);
		else if (err_is_set(&session->error))
			upload_session_free(session);
	}
	uploads->closed = done;
	uploads->closed_ctx = ctx;
	if (done && uploads->sessions.n > 0 && !uploads->close_timer)
		uploads->close_timer = loop_add_timer(uploads->options.loop,
			clock_ms() + UPLOAD_CLOSE_MS, close_timeout, uploads);
	return report_closed(uploads, err);
}

static const char doing_upload[] = "uploading a layer";
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
static bool digest_is_right(const struct upload_job *job, const struct http_response *response)
{
	const char *digest = field_find(&response->headers, "docker-content-digest");

	return !digest || strcmp(digest, job->blob.digest) == 0;
}

static int stored(struct upload_job *job, const struct http_response *response, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (digest_is_right(job, response))
		return upload_arrived(job, err);
	AUTO_FREE char *shown = str_shown(field_find(&response->headers, "docker-content-digest"));
	err_set(&error, E_REGISTRY_RESPONSE, "%s stored %s under another digest",
		registry_name(job->uploads->options.registry), job->blob.digest);
	err_evidence(&error, "it says %s", shown);
	return upload_failed(job, &error, err);
}

/*
 * A single POST
 */

static bool in_one_post(const struct upload_job *job)
{
	const struct uploads *uploads = job->uploads;

	if (job->session || job->tries > 0)
		return false;
	switch (uploads->options.cache->single_post) {
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

static int posted(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;
	struct registry_cache *cache = job->uploads->options.cache;

	upload_ended(job);
	job->uploads->is_probing = false;
	if (err_is_set(error))
		return error->code == ERR_NET ? upload_again(job, NULL, error, err)
					      : upload_failed(job, error, err);
	if (response->status == 201) {
		registry_cache_set(cache, &cache->single_post, true);
		return stored(job, response, err);
	}
	if (upload_may_pass(response))
		return upload_again(job, response, NULL, err);
	registry_cache_set(cache, &cache->single_post, false);
	if (response->status == 401 || response->status == 403)
		return upload_refused(job, response, err);
	if (response->status != 202)
		return upload_need_session(job, err);
	AUTO_ERR struct err cause = {0};
	job->session = upload_session_new(job->uploads, job);
	if (upload_session_take(job->session, response, &cause) < 0)
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
		.doing = doing_upload,
	};

	job->uploads->is_probing = true;
	upload_start(job, &request, posted);
	upload_look(job);
	return 0;
}

static int upload_blob(struct upload_job *job, struct err *err)
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
static int digest_invalid(
	struct upload_job *job, const struct http_response *response, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (job->was_verified || job->copy)
		return upload_refused(job, response, err);
	job->was_verified = true;
	if (source_is_right(job))
		return upload_again(job, response, NULL, err);
	err_set(&error, E_IO, "the layer %s was damaged on this machine before it was sent",
		job->blob.digest);
	return upload_failed(job, &error, err);
}

/* The end of the connection may have eaten the response only. */
static int upload_on_head(
	void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;
	AUTO_ERR struct err lost = {0};

	upload_ended(job);
	if (!err_is_set(error) && response->status == 200)
		return stored(job, response, err);
	err_set(&lost, E_HTTP_CLOSED, "the connection to %s ended during an upload",
		registry_name(job->uploads->options.registry));
	return upload_again(job, NULL, err_is_set(error) ? error : &lost, err);
}

/* HEAD of the blob. */
static void upload_head(struct upload_job *job, const char *what, registry_done_fn *done)
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

int upload_put_done(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;

	upload_ended(job);
	if (err_is_set(error)) {
		if (error->code != ERR_NET || error->id == E_REGISTRY_TIMEOUT)
			return upload_failed(job, error, err);
		if (error->id != E_HTTP_CLOSED && error->id != E_HTTP_TIMEOUT)
			return upload_again(job, NULL, error, err);
		upload_head(job, doing_upload, upload_on_head);
		return 0;
	}
	if (response->status / 100 == 2) {
		upload_session_free(TAKE(job->session));
		return stored(job, response, err);
	}
	if (registry_response_has(response, "DIGEST_INVALID", NULL))
		return digest_invalid(job, response, err);
	/* 404 and 416: the registry has lost the session. 400 is that, too, with some. */
	if (upload_may_pass(response) || response->status == 404 || response->status == 416 ||
		registry_response_has(response, "BLOB_UPLOAD_UNKNOWN", NULL) ||
		registry_response_has(response, "BLOB_UPLOAD_INVALID", NULL))
		return upload_again(job, response, NULL, err);
	return upload_refused(job, response, err);
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
	REPLACE(url.path, path);
	upload_start(job, &request, done);
}

/* With a session. */
static int upload_send(struct upload_job *job, struct err *err)
{
	if (job->kind == UPLOAD_BASE)
		return upload_copy_send(job, err);
	if (upload_in_chunks(job)) {
		ERR_TRY(upload_chunks(job, err));
	} else {
		const struct http_body body = whole(job);
		upload_put(job, &body, doing_upload, upload_put_done);
	}
	/* Behind it, which has the connection that is open. */
	upload_look(job);
	return 0;
}

static const char doing_pieces[] = "uploading a layer in pieces";

static bool upload_in_chunks(const struct upload_job *job)
{
	const struct uploads *uploads = job->uploads;

	return job->kind == UPLOAD_FILE && job->blob.size > uploads->options.chunked_min &&
	       uploads->options.cache->chunks != ABILITY_NO;
}

/* The whole blob in one PUT from now on. */
static int give_up_chunks(struct upload_job *job, struct err *err)
{
	struct registry_cache *cache = job->uploads->options.cache;

	registry_cache_set(cache, &cache->chunks, false);
	job->offset = 0;
	job->tries = 0;
	upload_session_delete(TAKE(job->session));
	return upload_need_session(job, err);
}

static uint64_t chunk_size(const struct upload_job *job)
{
	bool is_known = job->uploads->options.cache->chunks == ABILITY_YES;
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
static int resumed(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;
	AUTO_ERR struct err cause = {0};
	uint64_t bytes = 0;

	upload_ended(job);
	const char *range = err_is_set(error) ? NULL : field_find(&response->headers, "range");
	if (!range || response->status != 204 || !field_upload_range(range, &bytes) ||
		bytes > job->blob.size || upload_session_take(job->session, response, &cause) < 0) {
		/* An error without a cause would be none, and the push would wait for this blob. */
		if (!err_is_set(error) && !err_is_set(&cause))
			err_set(&cause, E_REGISTRY_RESPONSE,
				"%s does not know an upload that it has begun",
				registry_name(job->uploads->options.registry));
		job->offset = 0;
		return upload_again(job, NULL, err_is_set(error) ? error : &cause, err);
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
		.doing = doing_pieces,
	};

	upload_start(job, &request, resumed);
	return 0;
}

/*
 * A single piece
 */

/* Whether the registry has what was sent: some take a piece that does not fit. */
static bool went_on(
	const struct upload_job *job, const struct http_response *response, uint64_t sent)
{
	const char *range = field_find(&response->headers, "range");
	uint64_t bytes;

	return range && field_upload_range(range, &bytes) && bytes == job->offset + sent;
}

static int lost(struct upload_job *job, const struct http_response *response, struct err *error,
	struct err *err)
{
	if (err_is_set(error) && error->code != ERR_NET)
		return upload_failed(job, error, err);
	if (++job->tries < UPLOAD_TRIES)
		return resume(job);
	return err_is_set(error) ? upload_failed(job, error, err)
				 : upload_refused(job, response, err);
}

static bool is_refused(const struct http_response *response)
{
	return response->status == 401 || response->status == 403 || response->status == 413 ||
	       response->status == 507;
}

static int patched(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct upload_job *job = ctx;
	struct registry_cache *cache = job->uploads->options.cache;
	AUTO_ERR struct err cause = {0};
	uint64_t sent = chunk_size(job);

	upload_ended(job);
	if (err_is_set(error) || upload_may_pass(response))
		return lost(job, response, error, err);
	if (is_refused(response))
		return upload_refused(job, response, err);
	/* Bytes in flight when a connection was cut may arrive after the registry has reported its
	 * offset. */
	if (response->status == 416 && cache->chunks == ABILITY_YES && ++job->tries < UPLOAD_TRIES)
		return resume(job);
	if (response->status != 202 || !went_on(job, response, sent))
		return give_up_chunks(job, err);
	if (upload_session_take(job->session, response, &cause) < 0)
		return upload_failed(job, &cause, err);
	registry_cache_set(cache, &cache->chunks, true);
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
		.doing = doing_pieces,
	};

	strv_add(&headers, "Content-Type: application/octet-stream");
	strv_addf(&headers, "Content-Range: %llu-%llu", (unsigned long long)job->offset,
		(unsigned long long)(job->offset + size - 1));
	upload_start(job, &request, patched);
	return 0;
}

static int upload_chunks(struct upload_job *job, struct err *err UNUSED)
{
	static const struct http_body nothing;

	if (job->offset < job->blob.size)
		return patch(job);
	job->offset = 0;
	upload_put(job, &nothing, doing_pieces, upload_put_done);
	return 0;
}
