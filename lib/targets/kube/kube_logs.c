/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/logs/runlog.h"
#include "targets/kube/kube_archive.h"
#include "targets/kube/kube_mend.h"
#include "targets/kube/target_kube.h"

/*
 * The log of an attempt, and while its program has not begun what it waits for: that is asked for
 * now and then, and said when it has changed. What is seen is kept here.
 */

/* Most programs have begun before the first look: its requests would take the connections that are
 * open from the log. */
enum { FIRST_LOOK_MS = 2500, LOOK_MS = 2000, LOOK_LIMIT_MS = 15000 };

struct following {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct target_log_request request; /* but for its token */
	struct kube_handle place;
	struct kube_runlog *runlog;
	struct kube_archive *archive; /* that what is read goes to; or NULL */
	struct target_call kept;      /* what is in it is read first */
	struct buf live_token;        /* behind that */
	char *token;                  /* the caller's */
	char *handle;
	struct err fault;
	struct target_call keep; /* beside, with a stream of its own */
	struct loop_timer *keep_timer;
	bool is_over, keeps;
	/* what it waits for */
	struct loop_timer *timer;
	struct target_call look;
	struct target_status status;
	char *said;
	bool has_begun;
};

static void drop(struct target_work *work)
{
	struct following *following = (struct following *)work;

	target_call_cancel(&following->kept);
	kube_archive_free(following->archive);
	kube_runlog_free(following->runlog);
	loop_remove_timer(following->kube->target.loop, following->timer);
	loop_remove_timer(following->kube->target.loop, following->keep_timer);
	target_call_cancel(&following->look);
	target_call_cancel(&following->keep);
	target_status_done(&following->status);
	err_done(&following->fault);
	buf_done(&following->live_token);
	free(following->handle);
	free(following->said);
	free(following);
}

/*
 * Waiting
 */

static void say(struct following *following, const char *text)
{
	if (following->request.events.notice)
		following->request.events.notice(following->request.events.ctx, text);
}

static void look_later(struct following *following, int64_t ms);

static void say_status(struct following *following)
{
	const struct target_status *status = &following->status;
	const char *text = status->text;

	if (status->state == RUN_RUNNING || run_state_is_final(status->state)) {
		following->has_begun = true;
		return;
	}
	if (!text || str_eq(text, following->said))
		return;
	free(following->said);
	following->said = mem_strdup(text);
	AUTO_FREE char *line = mem_printf("%s: %s", run_state_name(status->state), text);
	say(following, line);
}

static void on_looked(struct target_call *call, int r, struct err *err)
{
	struct following *following =
		(struct following *)((char *)call - offsetof(struct following, look));

	if (r == 0)
		say_status(following);
	else
		err_clear(err);
	target_status_done(&following->status);
	if (!following->has_begun)
		look_later(following, LOOK_MS);
}

static int look(void *ctx, struct err *err)
{
	struct following *following = ctx;

	following->timer = NULL;
	if (following->has_begun)
		return 0;
	following->look =
		(struct target_call){.deadline_ms = clock_ms() + LOOK_LIMIT_MS, .done = on_looked};
	return kube_state(&following->kube->target, following->handle, &following->status,
		&following->look, err);
}

static void look_later(struct following *following, int64_t ms)
{
	following->timer =
		loop_add_timer(following->kube->target.loop, clock_ms() + ms, look, following);
}

/*
 * The log
 */

static void keep_token(struct following *following)
{
	AUTO_BUF struct buf token;

	buf_init(&token, 1 << 20);
	kube_runlog_token(following->runlog, &token);
	/* The token of too many ranks does not fit: the log is started anew then. */
	if (token.len < TARGET_TOKEN_SIZE)
		memcpy(following->token, token.data, token.len + 1);
}

/* A full disk here keeps nobody from reading on. */
static void stop_keeping(struct following *following, const struct err *fault)
{
	AUTO_FREE char *text = mem_printf("from here on the log is not kept: %s", fault->message);

	kube_archive_free(TAKE(following->archive));
	say(following, text);
}

static void keep_data(
	struct following *following, int rank, const char *data, size_t len, int64_t time_ms)
{
	AUTO_ERR struct err fault = {0};
	char max[16];

	if (!following->archive)
		return;
	int r = kube_archive_add(following->archive, rank, data, len, time_ms, &fault);
	if (r < 0)
		stop_keeping(following, &fault);
	if (r <= 0)
		return;
	AUTO_FREE char *text = mem_printf("from here on the log is shown, but not kept: that of an "
					  "attempt is kept up to %s",
		str_size(KUBE_ARCHIVE_MAX, max));
	say(following, text);
}

static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct following *following = ctx;
	const struct target_log_events *events = &following->request.events;

	following->has_begun = true;
	int r = events->data(events->ctx, rank, data, len, time_ms, err);
	if (r >= 0)
		keep_data(following, rank, data, len, time_ms);
	return r;
}

static void on_notice(void *ctx, int rank, const char *text)
{
	(void)rank;
	say(ctx, text);
}

static void on_gap(void *ctx, int rank, const char *text)
{
	struct following *following = ctx;

	if (following->archive)
		kube_archive_gap(following->archive, rank, text, NULL);
	say(following, text);
}

static void end_both(struct following *following)
{
	AUTO_ERR struct err own = {0};
	int r;

	if (!following->is_over || following->keeps)
		return;
	/* The end of the call frees following before the error is reported: move the error out. */
	r = err_is_set(&following->fault) ? err_move(&own, &following->fault) : 0;
	target_call_end(following->call, r, &own);
}

static int on_end(void *ctx, struct err *fault, struct err *err)
{
	struct following *following = ctx;

	(void)err;
	keep_token(following);
	following->is_over = true;
	if (err_is_set(fault)) {
		err_move(&following->fault, fault);
		following->keeps = false;
	} else if (following->archive && following->request.follow && following->request.rank < 0) {
		kube_archive_finish(following->archive, NULL);
	}
	end_both(following);
	return 0;
}

/*
 * The archive: of one who reads all from the start it is the same stream; beside another one it is
 * a stream of its own, as soon as nobody else keeps it.
 */

static void keep_later(struct following *following);

static void on_kept(struct target_call *call, int r, struct err *err)
{
	struct following *following =
		(struct following *)((char *)call - offsetof(struct following, keep));

	(void)r;
	err_clear(err);
	following->keeps = false;
	if (following->is_over)
		end_both(following);
	else
		keep_later(following);
}

static int keep_beside(void *ctx, struct err *err)
{
	struct following *following = ctx;

	(void)err;
	following->keep_timer = NULL;
	if (following->is_over)
		return 0;
	following->keep = (struct target_call){.done = on_kept};
	following->keeps = kube_keep(&following->kube->target, following->handle, true,
				   &following->keep, NULL) == 0;
	return 0;
}

static void keep_later(struct following *following)
{
	following->keep_timer = loop_add_timer(
		following->kube->target.loop, clock_ms() + LOOK_MS, keep_beside, following);
}

static void start_live(struct following *following, const char *token)
{
	const struct target_log_request *request = &following->request;
	struct loop *loop = following->kube->target.loop;
	const struct kube_runlog_request wanted = {
		.kube_namespace = following->place.kube_namespace,
		.kind = following->place.kind,
		.name = following->place.name,
		.rank = request->rank,
		.tail_lines = request->tail_lines,
		.since_ms = request->since_ms,
		.follow = request->follow,
		.token = token,
		.events = {on_data, on_notice, on_gap, on_end, following},
	};

	following->runlog = kube_runlog_start(following->kube->cluster->client, loop, &wanted);
	if (following->archive)
		kube_archive_watch(following->archive, loop, following->runlog);
	if (request->follow && !following->archive &&
		kube_is_own(following->kube, &following->place))
		keep_later(following);
	if (request->follow)
		look_later(following, FIRST_LOOK_MS);
}

static void on_read(struct target_call *call, int status, struct err *err)
{
	struct following *following =
		(struct following *)((char *)call - offsetof(struct following, kept));

	if (status < 0)
		target_call_end(following->call, status, err);
	else
		start_live(following, following->live_token.data);
}

/* The node may no longer have the part of the log that was seen here before. */
static bool read_kept(struct following *following, const char *dir)
{
	struct kept_places places;

	if (kube_archive_open(dir, KUBE_ARCHIVE_MAX, &following->archive, NULL) != 0)
		following->archive = NULL;
	kept_places_read(dir, &places);
	kept_places_token(&places, &following->live_token);
	following->kept = (struct target_call){.done = on_read};
	return kube_kept_logs(
		following->kube->target.loop, dir, &places, &following->request, &following->kept);
}

int kube_logs(struct target *target, const char *handle, const struct target_log_request *request,
	char *token, struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle place;
	struct following *following;

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r < 0)
		return r;
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, place.run_id, place.attempt);
	/* A token is a place in the live log. */
	if (!request->token && kube_kept_logs(target->loop, dir, NULL, request, call))
		return 0;
	following = mem_alloc(1, sizeof(*following));
	*following = (struct following){
		.work = {drop},
		.kube = kube,
		.call = call,
		.request = *request,
		.place = place,
		.token = token,
		.handle = mem_strdup(handle),
	};
	buf_init(&following->live_token, KUBE_ARCHIVE_TOKENS_MAX);
	target_call_begin(call, &following->work);
	bool is_whole = !request->token && request->tail_lines < 0 && request->since_ms == 0 &&
			kube_is_own(kube, &place);
	if (!is_whole || !read_kept(following, dir))
		start_live(following, is_whole ? following->live_token.data : request->token);
	return 0;
}
