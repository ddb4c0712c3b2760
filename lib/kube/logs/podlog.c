/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "base/util/vec.h"
#include "kube/logs/podlog.h"

enum {
	TICK_MS = 250,
	GRACE_MS = 1000, /* for what a probe has seen to come by the stream too */
	GRACE_FAST_MS = 250,
	PEEK_MS = 500,
	WATCH_FIRST_MS = 2000, /* of silence, then the last line is requested */
	/* A stream that falls silent while much was coming is checked at once: a kubelet that
	 * has lost its file rotates the next one in 3 seconds or more. */
	WATCH_FAST_MS = 500,
	FAST_BYTES = 16 << 10, /* in a tick */
	WATCH_MAX_MS = 30000,
	HEAD_EVERY_MS = 2000,
	HEAD_BYTES = 512 << 10, /* logs are rotated at 1 MiB or more */
	HEAD_LIMIT = 64,
	PROBE_MAX = 64 << 10,
	PROBE_MS = 10000,
	IDLE_MS = 5 * 60 * 1000,
	RETRY_MS = 8000, /* for client.c's own repetitions */
	BACKOFF_FIRST_MS = 100,
	BACKOFF_MAX_MS = 5000,
	AGAIN_MIN_MS = 1000, /* when a stream has ended in order */
	AGAIN_MAX_MS = 4000,
	WAIT_STEPS = 4,        /* pauses stay below a second while a container begins */
	REPORT_AFTER = 3,      /* failures */
	DRAINS_MAX = 3,        /* what is left is read again */
	FINISH_MS = 60 * 1000, /* for a kubelet that is away to come back */
	REMOVED_MS = 10000,    /* for one that has not found the container */
	STATIC_MS = 8000,      /* the same for what is not followed */
	REFUSED_MS = 30000,    /* a server that starts may refuse what it allowed before */
};

static const int64_t MS_NS = 1000000;

/* A request for a single line beside the stream. */
struct probe {
	struct podlog *podlog;
	struct kube_call *call;
	struct buf text;
	int64_t began_ms;
	void (*done)(struct podlog *podlog, const struct buf *text);
};

struct podlog {
	struct kube_client *client;
	struct loop *loop;
	struct podlog_events events;
	char *pod_path, *path, *container, *label, *id, *uid;
	bool follow, previous;
	int64_t tail_lines, since_ms, started_ms;

	struct podlog_lines *lines;
	struct kube_call *stream;
	bool follows;            /* the stream does */
	bool mute;               /* it only shows where to begin */
	bool is_cut;             /* it is to be dropped from the loop */
	bool got_new;            /* bytes were delivered by it */
	bool in_line;            /* the last of them was no LF */
	int64_t stream_ms;       /* it was begun */
	int64_t heard_ms;        /* the last byte of it */
	unsigned empty_try;      /* of it, that found the log empty; 0: none */
	int64_t begun_ms;        /* the first of all streams */
	int64_t ended_ms;        /* the container, as far as is known; 0: it runs */
	int64_t empty_ms;        /* when a log was requested that was empty; 0: none was */
	int64_t woke_ms;         /* after that sleep all was begun anew */
	struct loop_timer *next; /* begin a stream, or end */
	struct loop_timer *tick;
	unsigned failures;
	int64_t refused_ms;         /* since when the login is; 0: it is not */
	bool has_read;              /* a stream or probe, ever */
	struct kube_call *pod_call; /* reads the pod, which may be gone */
	struct err stream_error;    /* of the stream before that */
	struct err error;           /* what it ends with */
	bool is_reported;           /* of them */
	unsigned n_ends;            /* of streams, in order and without anything new */
	char *last_remark;

	struct probe head, tail;
	bool has_peeked, is_peek; /* during this stream; the present probe of the tail */
	int64_t watch_ms;         /* silence until the next probe of the last line */
	int64_t behind_ms;        /* since the stream is known to be behind; 0: it is not */
	int64_t head_ms;
	uint64_t unheaded; /* bytes since the head was requested */
	size_t n_heard;    /* bytes since the last tick */
	bool is_fast;

	int stopped; /* what data has returned, if negative */
	bool finishing, drained, is_over;
	unsigned n_drains;
	unsigned n_slow; /* streams that do not follow and were cut, since they brought nothing */
	int64_t finish_ms;
};

static void podlog_plan_next(struct podlog *podlog, int64_t wait_ms);
static void podlog_probe_tail(struct podlog *podlog);

/*
 * Notices
 */

static void podlog_notify(struct podlog *podlog, const char *text)
{
	if (podlog->events.notice)
		podlog->events.notice(podlog->events.ctx, text);
}

static const char *podlog_time_text(int64_t ns, char out[static CLOCK_TEXT_SIZE])
{
	clock_format(ns / MS_NS, out);
	return out;
}

/* Bytes behind a gap belong to another line. */
static void podlog_end_line(struct podlog *podlog, int64_t ns)
{
	AUTO_ERR struct err err = {0};

	if (!podlog->in_line || !podlog->events.data)
		return;
	podlog->in_line = false;
	podlog->events.data(podlog->events.ctx, "\n", 1, ns / MS_NS, &err);
}

static void podlog_on_gap(void *ctx, const struct podlog_gap *gap)
{
	static const char *const why[] = {
		[PODLOG_ROTATED] = "may be missing: its node rotated the log",
		[PODLOG_SKIPPED] = "are missing: its node rotates the log faster than it serves it",
		[PODLOG_BEGINNING] = "may be missing: its node keeps the newest part of a log only",
	};
	struct podlog *podlog = ctx;
	int64_t from_ns = gap->after_ns ? gap->after_ns : podlog->started_ms * MS_NS;
	char after[CLOCK_TEXT_SIZE], before[CLOCK_TEXT_SIZE], size[32];
	AUTO_FREE char *until = NULL, *text = NULL;

	duration_text((gap->before_ns - from_ns) / MS_NS, size);
	if (gap->kind == PODLOG_BEGINNING)
		until = mem_printf(
			"before %s (%s)", podlog_time_text(gap->before_ns, before), size);
	else if (gap->before_ns)
		until = mem_printf("between %s and %s (%s)", podlog_time_text(gap->after_ns, after),
			podlog_time_text(gap->before_ns, before), size);
	else
		until = mem_printf("after %s", podlog_time_text(gap->after_ns, after));
	text = mem_printf("%s: lines %s %s", podlog->label, until, why[gap->kind]);
	if (gap->kind != PODLOG_BEGINNING)
		podlog_end_line(podlog, gap->after_ns);
	if (podlog->events.gap)
		podlog->events.gap(podlog->events.ctx, text);
	else
		podlog_notify(podlog, text);
}

static void podlog_on_remark(void *ctx, const char *line, size_t len)
{
	struct podlog *podlog = ctx;
	AUTO_BUF struct buf text = buf_with(4096);

	buf_addf(&text, "%s: the cluster says of its log: ", podlog->label);
	str_escape(&text, line, len);
	if (str_eq(podlog->last_remark, text.data))
		return;
	REPLACE(podlog->last_remark, mem_strdup(text.data));
	podlog_notify(podlog, text.data);
}

static int podlog_on_lines(
	void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct podlog *podlog = ctx;
	int r;

	podlog->got_new = true;
	podlog->unheaded += len;
	if (podlog->mute || !podlog->events.data)
		return 0;
	r = podlog->events.data(podlog->events.ctx, data, len, time_ms, err);
	podlog->in_line = data[len - 1] != '\n';
	podlog->stopped = r < 0 ? r : 0;
	return podlog->stopped;
}

/*
 * The end
 */

static void podlog_stop_all(struct podlog *podlog)
{
	kube_cancel(TAKE(podlog->stream));
	kube_cancel(TAKE(podlog->pod_call));
	kube_cancel(TAKE(podlog->head.call));
	kube_cancel(TAKE(podlog->tail.call));
	loop_remove_timer(podlog->loop, TAKE(podlog->next));
	loop_remove_timer(podlog->loop, TAKE(podlog->tick));
}

/* Everything is over but for the call of end. */
static int podlog_end_now(struct podlog *podlog, struct err *error, struct err *err)
{
	struct err none = {0};

	podlog_stop_all(podlog);
	podlog->is_over = true;
	podlog_lines_finish(podlog->lines);
	return podlog->events.end
		       ? podlog->events.end(podlog->events.ctx, error ? error : &none, err)
		       : 0;
}

/*
 * Requests
 */

struct query {
	const char *pairs[16];
	size_t n;
};

static void podlog_add_pair(struct query *query, const char *key, const char *value)
{
	BUG_ON(query->n + 3 > ARRAY_LEN(query->pairs));
	query->pairs[query->n++] = key;
	query->pairs[query->n++] = value;
	query->pairs[query->n] = NULL;
}

static struct query podlog_base_query(const struct podlog *podlog)
{
	struct query query = {0};

	podlog_add_pair(&query, "container", podlog->container);
	podlog_add_pair(&query, "timestamps", "true");
	if (podlog->previous)
		podlog_add_pair(&query, "previous", "true");
	return query;
}

static int podlog_on_end_timer(void *ctx, struct err *err)
{
	struct podlog *podlog = ctx;
	AUTO_ERR struct err error = {0};

	podlog->next = NULL;
	if (err_is_set(&podlog->error))
		err_move(&error, &podlog->error);
	return podlog_end_now(podlog, &error, err);
}

static void podlog_end_soon(struct podlog *podlog)
{
	loop_remove_timer(podlog->loop, podlog->next);
	podlog->next = loop_add_timer(podlog->loop, clock_ms(), podlog_on_end_timer, podlog);
}

static int podlog_on_probe_data(void *ctx, const void *data, size_t len, struct err *err UNUSED)
{
	struct probe *probe = ctx;

	buf_add(&probe->text, data, len);
	return 0;
}

static int podlog_on_probe_done(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct probe *probe = ctx;
	struct podlog *podlog = probe->podlog;

	probe->call = NULL;
	if (!err_is_set(&response->error)) {
		probe->done(podlog, &probe->text);
	} else if (podlog->finishing && !podlog->stream && !podlog->pod_call) {
		/* The last line could not be had. */
		if (clock_ms() <= podlog->finish_ms) {
			podlog_plan_next(podlog, GRACE_MS);
			return 0;
		}
		err_clear(&podlog->error);
		err_move(&podlog->error, &response->error);
		podlog_end_soon(podlog);
	}
	return 0;
}

static void podlog_start_probe(struct podlog *podlog, struct probe *probe, const char *key,
	const char *value, void (*done)(struct podlog *podlog, const struct buf *text))
{
	struct query query = podlog_base_query(podlog);

	if (probe->call)
		return;
	podlog_add_pair(&query, key, value);
	probe->podlog = podlog;
	probe->done = done;
	probe->began_ms = clock_ms();
	buf_reset(&probe->text);
	probe->call = kube_start(podlog->client, &(struct kube_request){.method = "GET",
							 .path = podlog->path,
							 .query = query.pairs,
							 .deadline_ms = clock_deadline(PROBE_MS),
							 .idle_ms = PROBE_MS,
							 .data = podlog_on_probe_data,
							 .done = podlog_on_probe_done,
							 .ctx = probe});
}

/*
 * The stream
 */

static int podlog_on_cut(void *ctx, struct err *err UNUSED)
{
	struct podlog *podlog = ctx;

	podlog->next = NULL;
	podlog->is_cut = false;
	kube_cancel(TAKE(podlog->stream));
	podlog_plan_next(podlog, 0);
	return 0;
}

/* Drop the stream, from wherever that is found, and begin the next one. */
static void podlog_cut(struct podlog *podlog)
{
	podlog->is_cut = true;
	loop_remove_timer(podlog->loop, podlog->next);
	podlog->next = loop_add_timer(podlog->loop, clock_ms(), podlog_on_cut, podlog);
}

/* Bytes come that may be the first. */
static void podlog_note_first(struct podlog *podlog)
{
	int64_t now_ms = clock_ms();
	bool was_empty = podlog->empty_ms > 0;
	/* The log of a container that has ended is not rotated any more. */
	int64_t until_ms = podlog->ended_ms ? podlog->ended_ms : now_ms;
	int64_t from_ms = was_empty ? podlog->empty_ms : podlog->begun_ms;

	if (!podlog_lines_lacks_first(podlog->lines))
		return;
	/* A stream that stands brings what comes. */
	if (podlog->empty_try && podlog->empty_try == kube_try(podlog->stream))
		from_ms = until_ms;
	podlog_lines_unread(podlog->lines, until_ms - from_ms, was_empty);
}

static int podlog_on_stream_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct podlog *podlog = ctx;
	int r;

	if (podlog->is_cut)
		return 1;
	podlog->has_read = true;
	podlog_note_first(podlog);
	podlog->heard_ms = clock_ms();
	podlog->watch_ms = 0;
	podlog->behind_ms = 0;
	podlog->n_heard += len;
	r = podlog_lines_feed(podlog->lines, data, len, err);
	if (r < 0)
		return r;
	if (r == PODLOG_AGAIN)
		podlog_cut(podlog);
	return podlog->is_cut;
}

/* The API server decides about access, and may deny it wrongly when it has just started. */
static bool podlog_is_forbidden(struct podlog *podlog, const struct err *error)
{
	int64_t now_ms = clock_ms();

	if (error->id != E_KUBE_DENIED && error->id != E_KUBE_AUTH) {
		podlog->refused_ms = 0;
		return false;
	}
	podlog->refused_ms = podlog->refused_ms ? podlog->refused_ms : now_ms;
	return !podlog->has_read || now_ms >= podlog->refused_ms + REFUSED_MS;
}

/* Retry, whatever a kubelet or a proxy before it responds: the pod exists. */
static int podlog_failed_for_now(struct podlog *podlog, struct err *error, struct err *err)
{
	bool is_removed = error->id == E_KUBE_INVALID, is_too_late;
	int64_t now_ms = clock_ms();

	if (podlog->finishing)
		is_too_late =
			now_ms > podlog->finish_ms - (is_removed ? FINISH_MS - REMOVED_MS : 0);
	else
		is_too_late = !podlog->follow && podlog->failures >= REPORT_AFTER &&
			      now_ms >= podlog->begun_ms + STATIC_MS;
	if (is_too_late)
		return podlog_end_now(podlog, error, err);
	if (++podlog->failures >= REPORT_AFTER && !podlog->is_reported) {
		AUTO_FREE char *text = mem_printf(
			"%s: its log cannot be read for now: %s", podlog->label, error->message);
		podlog_notify(podlog, text);
		podlog->is_reported = true;
	}
	podlog_plan_next(podlog, backoff_ms(podlog->failures, BACKOFF_FIRST_MS, BACKOFF_MAX_MS));
	return 0;
}

/* 400: there is none of the instance before, none yet of this one (kubelet,
 * validateContainerLogStatus), no such container, whichever server is asked; or its runtime does
 * not answer the kubelet. */
static int podlog_refused(struct podlog *podlog, struct err *error, struct err *err)
{
	static const char *const waiting[] = {"waiting to start", "ContainerCreating",
		"PodInitializing", "does not have a host assigned"};
	const char *text = error->message;
	size_t i = 0;

	if (podlog->previous && strstr(text, "previous terminated container"))
		return podlog_end_now(podlog, NULL, err);
	if (strstr(text, "is not valid for pod") || strstr(text, "is terminated"))
		return podlog_end_now(podlog, error, err);
	while (i < ARRAY_LEN(waiting) && !strstr(text, waiting[i]))
		i++;
	if (i == ARRAY_LEN(waiting))
		return podlog_failed_for_now(podlog, error, err);
	if (podlog->finishing || !podlog->follow)
		return podlog_end_now(podlog, NULL, err);
	podlog->failures = podlog->failures < WAIT_STEPS ? podlog->failures + 1 : WAIT_STEPS;
	podlog_plan_next(podlog, backoff_ms(podlog->failures, BACKOFF_FIRST_MS, BACKOFF_MAX_MS));
	return 0;
}

static int podlog_on_pod(void *ctx, struct kube_response *response, struct err *err)
{
	struct podlog *podlog = ctx;
	AUTO_ERR struct err error = {0};
	const char *uid = json_get_str(json_get(response->object, "metadata"), "uid");
	bool is_gone;

	podlog->pod_call = NULL;
	err_move(&error, &podlog->stream_error);
	/* Another one may have its name. Without the right to read it, that is left to those who
	 * watch the pods. */
	if (err_is_set(&response->error))
		is_gone = response->error.id == E_KUBE_NOT_FOUND &&
			  str_eq(response->reason, "NotFound");
	else
		is_gone = podlog->uid && uid && !str_eq(uid, podlog->uid);
	if (is_gone)
		return podlog_end_now(podlog, &error, err);
	return podlog->stream ? 0 : podlog_failed_for_now(podlog, &error, err);
}

static int podlog_stream_failed(struct podlog *podlog, struct err *error, struct err *err)
{
	if (error->id == E_KUBE_INVALID)
		return podlog_refused(podlog, error, err);
	if (podlog_is_forbidden(podlog, error))
		return podlog_end_now(podlog, error, err);
	if (error->id != E_KUBE_NOT_FOUND)
		return podlog_failed_for_now(podlog, error, err);
	if (podlog->pod_call)
		return 0;
	/* A kubelet that starts does not know its pods yet: does the API server? */
	err_clear(&podlog->stream_error);
	err_move(&podlog->stream_error, error);
	podlog->pod_call =
		kube_start(podlog->client, &(struct kube_request){.method = "GET",
						   .path = podlog->pod_path,
						   .deadline_ms = clock_deadline(PROBE_MS),
						   .done = podlog_on_pod,
						   .ctx = podlog});
	return 0;
}

/* A stream without follow has brought all that there was. */
static void podlog_static_done(struct podlog *podlog)
{
	podlog->drained = true;
	if (podlog->finishing) {
		podlog_probe_tail(podlog);
	} else if (podlog->mute || podlog->follow) {
		podlog->mute = false;
		podlog_plan_next(podlog, 0);
	} else {
		podlog_end_soon(podlog);
	}
}

static int podlog_on_stream_done(void *ctx, struct kube_response *response, struct err *err)
{
	struct podlog *podlog = ctx;
	bool failed = err_is_set(&response->error);
	int r;

	podlog->stream = NULL;
	if (podlog->is_cut)
		return 0;
	if (podlog->stopped) {
		err_move(err, &response->error);
		return podlog->stopped;
	}
	r = podlog_lines_end(podlog->lines, !failed && !podlog->follows, err);
	if (r < 0)
		return r;
	if (podlog->got_new) {
		podlog->failures = podlog->n_ends = 0;
		podlog->is_reported = false;
	}
	podlog->has_read = podlog->has_read || !failed;
	if (failed)
		return podlog_stream_failed(podlog, &response->error, err);
	if (r == PODLOG_AGAIN) {
		podlog_plan_next(podlog, 0);
	} else if (!podlog->follows) {
		podlog_static_done(podlog);
	} else if (podlog->finishing) {
		podlog_probe_tail(podlog);
	} else {
		/* The program has most likely ended, and the watch of the pod reports it soon. An
		 * earlier request could get the log of the container which follows it: no server
		 * says whose log it is. */
		podlog_plan_next(podlog, AGAIN_MIN_MS << podlog->n_ends);
		podlog->n_ends += AGAIN_MIN_MS << podlog->n_ends < AGAIN_MAX_MS;
	}
	return 0;
}

static void podlog_start_stream(struct podlog *podlog)
{
	struct query query = podlog_base_query(podlog);
	struct podlog_plan plan;
	char number[24], since[CLOCK_TEXT_SIZE];
	bool wants_follow = podlog->follow && !podlog->finishing && !podlog->mute;
	bool has_point = podlog_lines_point(podlog->lines)->time_ns > 0;

	podlog_lines_plan(podlog->lines, wants_follow, &plan);
	podlog->follows = plan.follow;
	if (plan.follow)
		podlog_add_pair(&query, "follow", "true");
	if (*plan.since)
		podlog_add_pair(&query, "sinceTime", plan.since);
	if (!has_point && podlog->tail_lines >= 0) {
		snprintf(number, sizeof(number), "%" PRId64, podlog->mute ? 1 : podlog->tail_lines);
		podlog_add_pair(&query, "tailLines", number);
	}
	if (!has_point && podlog->since_ms > 0) {
		clock_format(podlog->since_ms, since);
		podlog_add_pair(&query, "sinceTime", since);
	}
	podlog_lines_begin(podlog->lines);
	podlog->got_new = false;
	podlog->empty_try = 0;
	podlog->has_peeked = false;
	podlog->heard_ms = podlog->stream_ms = clock_ms();
	podlog->watch_ms = 0;
	podlog->behind_ms = 0;
	trace_note(TRACE_KUBE, "log %s: stream since %s", podlog->path,
		*plan.since                                   ? plan.since
		: podlog->since_ms || podlog->tail_lines >= 0 ? "what was asked for"
							      : "its beginning");
	podlog->stream = kube_start(podlog->client, &(struct kube_request){.method = "GET",
							    .path = podlog->path,
							    .query = query.pairs,
							    .deadline_ms = clock_deadline(RETRY_MS),
							    .idle_ms = IDLE_MS,
							    .data = podlog_on_stream_data,
							    .share = HTTP_TURN,
							    .done = podlog_on_stream_done,
							    .ctx = podlog});
}

static int podlog_on_next(void *ctx, struct err *err UNUSED)
{
	struct podlog *podlog = ctx;

	podlog->next = NULL;
	if (!podlog->stream)
		podlog_start_stream(podlog);
	return 0;
}

static void podlog_plan_next(struct podlog *podlog, int64_t wait_ms)
{
	if (podlog->is_cut)
		return;
	loop_remove_timer(podlog->loop, podlog->next);
	podlog->next = loop_add_timer(podlog->loop, clock_ms() + wait_ms, podlog_on_next, podlog);
}

/*
 * Watching it
 */

static void podlog_on_head(struct podlog *podlog, const struct buf *text)
{
	podlog_lines_head(podlog->lines, text->data, text->len);
}

/* The container has ended, and this is its last line: was it delivered? An empty file was rotated
 * just before the end: only a search for the point tells what became of the rest. */
static void podlog_on_last_line(struct podlog *podlog, const struct buf *text)
{
	bool has_point = podlog_lines_point(podlog->lines)->time_ns > 0;
	bool behind = podlog_lines_is_behind(podlog->lines, text->data, text->len);
	bool unsure = text->len == 0 && has_point && !podlog->drained;

	if (podlog->stream)
		return;
	if ((behind || unsure) && podlog->n_drains++ < DRAINS_MAX) {
		if (podlog->drained)
			podlog_lines_doubt(podlog->lines);
		podlog_plan_next(podlog, 0);
		return;
	}
	podlog_end_soon(podlog);
}

static void podlog_on_tail(struct podlog *podlog, const struct buf *text)
{
	if (podlog->finishing && !podlog->stream) {
		podlog_on_last_line(podlog, text);
		return;
	}
	/* Data that came in the meantime tells more. */
	if (podlog->heard_ms > podlog->tail.began_ms || !podlog->stream)
		return;
	if (text->len == 0) {
		podlog->empty_try = kube_try(podlog->stream);
		podlog->empty_ms = podlog->tail.began_ms;
	}
	/* Too early to say that the stream is behind. */
	if (podlog->is_peek && !podlog->finishing)
		return;
	if (podlog_lines_is_behind(podlog->lines, text->data, text->len))
		podlog->behind_ms = clock_ms();
	/* A stream that does not follow ends by itself, and a slow node may take long to begin it:
	 * cut again and again, it would never bring anything. */
	else if (podlog->finishing &&
		 (podlog->follows || (clock_ms() >= podlog->stream_ms + WATCH_MAX_MS &&
					     podlog->n_slow++ < DRAINS_MAX)))
		podlog_cut(podlog);
}

static void podlog_probe_tail(struct podlog *podlog)
{
	podlog->is_peek = podlog->is_peek && podlog->tail.call;
	podlog_start_probe(podlog, &podlog->tail, "tailLines", "1", podlog_on_tail);
}

static void podlog_check_head(struct podlog *podlog, int64_t now_ms)
{
	char limit[24];

	if (podlog->unheaded < HEAD_BYTES || now_ms < podlog->head_ms + HEAD_EVERY_MS)
		return;
	podlog->unheaded = 0;
	podlog->head_ms = now_ms;
	snprintf(limit, sizeof(limit), "%d", HEAD_LIMIT);
	podlog_start_probe(podlog, &podlog->head, "limitBytes", limit, podlog_on_head);
}

/* Before the first line only a probe tells that there was none: an early one, or a program that
 * then writes much at once seems to lack its beginning. */
static void podlog_probe_first(struct podlog *podlog, int64_t now_ms)
{
	if (podlog->has_peeked || podlog->ended_ms || podlog->tail.call ||
		now_ms < podlog->stream_ms + PEEK_MS || !podlog_lines_lacks_first(podlog->lines))
		return;
	podlog->has_peeked = podlog->is_peek = true;
	podlog_start_probe(podlog, &podlog->tail, "tailLines", "1", podlog_on_tail);
}

/* Silence: the program's, or a stream that is dead or stuck? */
static void podlog_check_stream(struct podlog *podlog, int64_t now_ms)
{
	int64_t first_ms = podlog->is_fast ? WATCH_FAST_MS : WATCH_FIRST_MS;
	int64_t grace_ms = podlog->is_fast ? GRACE_FAST_MS : GRACE_MS;

	if (podlog->behind_ms) {
		if (now_ms < podlog->behind_ms + grace_ms)
			return;
		podlog->behind_ms = 0;
		podlog_lines_doubt(podlog->lines);
		podlog_cut(podlog);
		return;
	}
	if (podlog->watch_ms == 0)
		podlog->watch_ms = first_ms;
	if (now_ms < podlog->heard_ms + podlog->watch_ms)
		return;
	if (podlog->tail.call)
		return;
	podlog->watch_ms = podlog->finishing                     ? first_ms
			   : podlog->watch_ms < WATCH_MAX_MS / 2 ? podlog->watch_ms * 2
								 : WATCH_MAX_MS;
	podlog->heard_ms = now_ms;
	podlog_probe_tail(podlog);
}

/* The connections are mostly dead by then, which silence would show late only. */
static bool podlog_leave_sleep(struct podlog *podlog)
{
	if (podlog->woke_ms == loop_woke_ms(podlog->loop))
		return false;
	podlog->woke_ms = loop_woke_ms(podlog->loop);
	kube_cancel(TAKE(podlog->tail.call));
	kube_cancel(TAKE(podlog->head.call));
	podlog_cut(podlog);
	return true;
}

/* Take turns among more logs than can be read at the same time. true: it waits for its turn, or has
 * had it. Waiting for a turn is not silence of the log. */
static bool podlog_take_turns(struct podlog *podlog, int64_t now_ms)
{
	if (kube_waits_for_turn(podlog->stream)) {
		podlog->heard_ms = podlog->stream_ms = now_ms;
		return true;
	}
	if (!podlog->follows || !kube_is_to_give_way(podlog->stream))
		return false;
	podlog_cut(podlog);
	return true;
}

static int podlog_on_tick(void *ctx, struct err *err)
{
	struct podlog *podlog = ctx;
	int64_t now_ms = clock_ms();

	podlog->tick = loop_add_timer(podlog->loop, now_ms + TICK_MS, podlog_on_tick, podlog);
	if (!podlog->stream || podlog->is_cut || podlog_leave_sleep(podlog) ||
		podlog_take_turns(podlog, now_ms))
		return 0;
	int r = podlog_lines_flush(podlog->lines, err);
	if (r < 0)
		return r;
	if (podlog->n_heard > 0)
		podlog->is_fast = podlog->n_heard >= FAST_BYTES;
	podlog->n_heard = 0;
	podlog_check_head(podlog, now_ms);
	podlog_probe_first(podlog, now_ms);
	podlog_check_stream(podlog, now_ms);
	return 0;
}

/*
 * The interface
 */

struct podlog *podlog_start(
	struct kube_client *client, struct loop *loop, const struct podlog_request *request)
{
	struct podlog *podlog = mem_alloc(1, sizeof(*podlog));
	struct podlog_lines_events events = {
		podlog_on_lines, podlog_on_gap, podlog_on_remark, podlog};
	struct podlog_point point = {0};
	bool has_point = request->token && podlog_point_parse(request->token, &point) &&
			 str_eq(point.id, request->id) && point.time_ns > 0;

	*podlog = (struct podlog){.client = client,
		.loop = loop,
		.begun_ms = clock_ms(),
		.woke_ms = loop_woke_ms(loop),
		.events = request->events,
		.pod_path = kube_path(
			"/api/v1/namespaces/%s/pods/%s", request->kube_namespace, request->pod),
		.path = kube_path(
			"/api/v1/namespaces/%s/pods/%s/log", request->kube_namespace, request->pod),
		.container = mem_strdup(request->container),
		.label = mem_strdup(request->label ? request->label : request->pod),
		.id = mem_strdup(request->id ? request->id : ""),
		.uid = mem_strdup(request->uid),
		.follow = request->follow && !request->previous,
		.previous = request->previous,
		.ended_ms = request->previous ? clock_ms() : 0,
		.tail_lines = has_point ? -1 : request->tail_lines,
		.since_ms = has_point ? 0 : request->since_ms,
		.started_ms = request->started_ms};
	podlog->mute = podlog->tail_lines == 0;
	buf_init(&podlog->head.text, PROBE_MAX);
	buf_init(&podlog->tail.text, PROBE_MAX);
	podlog->lines = podlog_lines_new(&events, has_point ? &point : NULL,
		!has_point && podlog->tail_lines < 0 && podlog->since_ms == 0);
	podlog_lines_started(podlog->lines, request->started_ms);
	podlog->tick = loop_add_timer(loop, clock_ms() + TICK_MS, podlog_on_tick, podlog);
	podlog_plan_next(podlog, 0);
	return podlog;
}

void podlog_free(struct podlog *podlog)
{
	if (!podlog)
		return;
	podlog_stop_all(podlog);
	podlog_lines_free(podlog->lines);
	buf_done(&podlog->head.text);
	buf_done(&podlog->tail.text);
	err_done(&podlog->stream_error);
	err_done(&podlog->error);
	free(podlog->pod_path);
	free(podlog->path);
	free(podlog->uid);
	free(podlog->container);
	free(podlog->label);
	free(podlog->id);
	free(podlog->last_remark);
	free(podlog);
}

void podlog_finish(struct podlog *podlog, bool previous)
{
	if (podlog->finishing || podlog->is_over)
		return;
	podlog->finishing = true;
	podlog->ended_ms = podlog->ended_ms ? podlog->ended_ms : clock_ms();
	podlog->finish_ms = clock_deadline(FINISH_MS);
	if (previous && !podlog->previous) {
		podlog->previous = true;
		podlog_cut(podlog);
	} else if (!podlog->stream) {
		podlog_plan_next(podlog, 0);
	} else if (!podlog->is_cut) {
		/* A kubelet checks once a second whether a log that it sends goes on. */
		podlog_probe_tail(podlog);
	}
}

void podlog_token(const struct podlog *podlog, char out[static PODLOG_TOKEN_SIZE])
{
	struct podlog_point point = *podlog_lines_point(podlog->lines);

	snprintf(point.id, sizeof(point.id), "%s", podlog->id);
	podlog_point_format(&point, out);
}
