/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "net/stream/field.h"
#include "oci/registry/uploads_impl.h"

static const char doing[] = "opening an upload";

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
	err_done(&session->fault);
	free(session);
}

int upload_session_take(
	struct upload_session *session, const struct http_answer *answer, struct err *err)
{
	AUTO_URL struct url url = {0};
	const char *chunk_min = field_find(&answer->headers, "oci-chunk-min-length");

	int r = registry_location(session->uploads->options.registry, answer, &url, err);
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
static int opened(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_session *session = ctx;
	struct upload_job *owner = session->owner;
	AUTO_ERR struct err cause = {0};

	struct registry_call *call = TAKE(session->call);
	if (err_is_set(fault))
		err_move(&cause, fault);
	else if (answer->status != 202)
		registry_call_error(call, answer, &cause);
	else
		upload_session_take(session, answer, &cause);
	if (owner)
		return err_is_set(&cause) ? upload_failed(owner, &cause, err)
					  : upload_send(owner, err);
	if (session->uploads->is_closing)
		return close_late(session, err_is_set(&cause), err);
	err_move(&session->fault, &cause);
	return 0;
}

struct upload_session *upload_session_open(struct uploads *uploads, struct upload_job *owner)
{
	struct upload_session *session = upload_session_new(uploads, owner);
	const struct registry_request request = {
		.method = "POST",
		.path = "blobs/uploads/",
		.doing = doing,
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
	if (uploads->options.memory->single_post == ABILITY_YES)
		return;
	/* Leave one for the blob that finds out whether a single POST is supported. */
	if (uploads->options.memory->single_post == ABILITY_UNKNOWN && n > 1)
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
	if (err_is_set(&job->session->fault))
		return upload_failed(job, &job->session->fault, err);
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
static int deleted(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct upload_session *session = ctx;
	struct uploads *uploads = session->uploads;

	(void)answer;
	(void)fault;
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
		else if (err_is_set(&session->fault))
			upload_session_free(session);
	}
	uploads->closed = done;
	uploads->closed_ctx = ctx;
	if (done && uploads->sessions.n > 0 && !uploads->close_timer)
		uploads->close_timer = loop_add_timer(uploads->options.loop,
			clock_ms() + UPLOAD_CLOSE_MS, close_timeout, uploads);
	return report_closed(uploads, err);
}
