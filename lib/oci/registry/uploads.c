/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/uploads.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/trace.h"
#include "net/stream/field.h"
#include "oci/registry/uploads_impl.h"

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
	err_done(&uploads->fault);
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

static bool all_done(const struct uploads *uploads)
{
	vec_foreach (struct upload_job *const, job, &uploads->jobs)
		if (!(*job)->is_done && (*job)->kind != UPLOAD_PROOF)
			return false;
	return true;
}

static int report(struct uploads *uploads, struct err *err)
{
	uploads_done_fn *done = uploads->done;
	bool failed = err_is_set(&uploads->fault);

	if (!done || (!failed && !all_done(uploads)))
		return 0;
	uploads->done = NULL;
	return done(uploads->done_ctx, failed ? &uploads->fault : NULL, err);
}

void uploads_leave(struct uploads *uploads)
{
	uploads->done = NULL;
	vec_foreach (struct upload_job *, job, &uploads->jobs)
		vec_done(&(*job)->waiters);
}

int uploads_wait(struct uploads *uploads, uploads_done_fn *done, void *ctx, struct err *err)
{
	uploads->done = done;
	uploads->done_ctx = ctx;
	return report(uploads, err);
}

static void tell_waiters(struct upload_job *job, int has)
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
	struct registry_memory *memory = uploads->options.memory;

	trace_note(TRACE_OCI, "blob %s: the registry has it, %s, %llu bytes", job->blob.digest,
		upload_kind_names[job->kind], (unsigned long long)job->blob.size);
	job_stop(job);
	job->is_done = true;
	count_arrival(job);
	registry_remember(memory, &memory->blobs, job->blob.digest, NULL, clock_wall_ms());
	tell_waiters(job, 1);
	upload_base_next(uploads);
	int r = upload_copy_next(uploads, err);
	return r < 0 ? r : report(uploads, err);
}

void upload_abandon(struct upload_job *job)
{
	struct upload_session *session = TAKE(job->session);

	if (session && session->is_ready)
		upload_session_delete(session);
	else
		upload_session_free(session);
	job_stop(job);
}

int upload_failed(struct upload_job *job, struct err *fault, struct err *err)
{
	struct uploads *uploads = job->uploads;

	trace_note(TRACE_OCI, "blob %s: failed: %s", job->blob.digest, fault->message);
	if (!err_is_set(&uploads->fault))
		err_move(&uploads->fault, fault);
	job_stop(job);
	return report(uploads, err);
}

int upload_refused(struct upload_job *job, const struct http_answer *answer, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	registry_call_error(job->ended, answer, &fault);
	return upload_failed(job, &fault, err);
}

/*
 * Trying again
 */

bool upload_may_pass(const struct http_answer *answer)
{
	static const int statuses[] = {408, 425, 429, 500, 502, 503, 504};

	for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++)
		if (answer->status == statuses[i])
			return true;
	return false;
}

static int64_t wait_ms(const struct upload_job *job, const struct http_answer *answer)
{
	int64_t ceiling = FIRST_WAIT_MS;
	const char *asked = answer ? field_find(&answer->headers, "retry-after") : NULL;
	int64_t after = asked ? field_retry_after(asked, clock_wall_ms()) : -1;

	for (int i = 1; i < job->tries; i++)
		ceiling *= 3;
	if (after > REGISTRY_RETRY_AFTER_MAX_MS)
		after = REGISTRY_RETRY_AFTER_MAX_MS;
	if (after >= 0)
		return after + (int64_t)random_below(FIRST_WAIT_MS);
	return ceiling / 2 + (int64_t)random_below((uint32_t)ceiling / 2) + 1;
}

static int begin_by_timer(void *ctx, struct err *err)
{
	struct upload_job *job = ctx;

	job->timer = NULL;
	return upload_begin(job, err);
}

int upload_again(struct upload_job *job, const struct http_answer *answer, struct err *fault,
	struct err *err)
{
	job->tries++;
	int64_t due_ms = clock_ms() + wait_ms(job, answer);
	if (job->tries >= UPLOAD_TRIES ||
		due_ms >= registry_deadline_ms(job->uploads->options.registry))
		return answer ? upload_refused(job, answer, err) : upload_failed(job, fault, err);
	log_note("%s: once more (%s)", job->blob.digest,
		err_is_set(fault) ? fault->message : "the registry did not take it");
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

int upload_begin(struct upload_job *job, struct err *err)
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
	tell_waiters(job, has);
	upload_base_next(job->uploads);
}

int upload_unproved(struct upload_job *job, struct err *err)
{
	struct registry_memory *memory = job->uploads->options.memory;

	registry_forget(memory, &memory->blobs, job->blob.digest);
	retire(job, 0);
	return report(job->uploads, err);
}

int upload_unknown(struct upload_job *job, struct err *err)
{
	retire(job, -1);
	return report(job->uploads, err);
}

static struct upload_job *find_job(const struct uploads *uploads, const char *digest)
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
	struct upload_job *job = find_job(uploads, blob->digest);

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

static bool is_trusted(const struct uploads *uploads, const struct registry_hint *hint)
{
	return !uploads->options.trusts_nothing &&
	       registry_hint_is_fresh(hint, clock_wall_ms(), REGISTRY_TRUST_BLOB_MS);
}

/* Storage that this machine cannot ask does not tell at the next push, either. */
static bool is_mute(const struct uploads *uploads)
{
	int64_t mute_ms = uploads->options.memory->mute_ms, now_ms = clock_wall_ms();

	return !uploads->options.trusts_nothing && mute_ms <= now_ms &&
	       mute_ms > now_ms - REGISTRY_TRUST_MUTE_MS;
}

void uploads_prove_old(struct uploads *uploads)
{
	const struct registry_hints *hints = &uploads->options.memory->blobs;
	uint8_t sha256[SHA256_SIZE];

	if (is_mute(uploads))
		return;
	vec_foreach (const struct registry_hint, hint, hints)
		if (hint->in_newest && digest_parse(hint->name, sha256) &&
			!is_trusted(uploads, hint))
			add_proof(uploads, hint->name);
}

bool uploads_trusts(const struct uploads *uploads, const char *digest)
{
	return is_trusted(uploads, registry_hint_find(&uploads->options.memory->blobs, digest));
}

void uploads_has(
	struct uploads *uploads, const struct descriptor *blob, uploads_has_fn *done, void *ctx)
{
	const struct upload_job *job = find_job(uploads, blob->digest);
	const struct registry_hint *hint =
		registry_hint_find(&uploads->options.memory->blobs, blob->digest);
	bool is_sent = job && job->kind != UPLOAD_PROOF;

	if ((job && job->is_done) || is_trusted(uploads, hint))
		done(ctx, 1);
	else if (!hint || is_sent)
		done(ctx, 0);
	else
		uploads_prove(uploads, blob, done, ctx);
}

void uploads_prove(
	struct uploads *uploads, const struct descriptor *blob, uploads_has_fn *done, void *ctx)
{
	struct upload_job *job = find_job(uploads, blob->digest);

	if (!job && !is_mute(uploads))
		job = add_proof(uploads, blob->digest);
	if (!job || job->is_done)
		done(ctx, job ? 1 : -1);
	else
		*vec_push(&job->waiters) = (struct upload_waiter){done, ctx};
}

void uploads_forget(struct uploads *uploads, const char *digest)
{
	struct registry_memory *memory = uploads->options.memory;
	struct upload_job *job = find_job(uploads, digest);

	registry_forget(memory, &memory->blobs, digest);
	if (!job)
		return;
	retire(job, 0);
}
