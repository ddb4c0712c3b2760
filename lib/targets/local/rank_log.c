/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/rank_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/target/rank_line.h"
#include "core/target/target_work.h"

struct rank_logs;
struct rank_source {
	struct rank_logs *logs;
	struct target_call call;
	bool is_open;
	struct rank_line line;
	/* Behind what was handed over, and when that came; begin: where reading began. */
	int64_t offset, time_ms;
	char *begin;
	char token[TARGET_TOKEN_SIZE]; /* in front of the bytes that come */
};

struct rank_logs {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	struct target_log_request request;
	char *token; /* the caller's */
	int n, n_open;
	bool is_stopped; /* by who reads */
	struct rank_source *sources;
	struct loop_timer *timer;
	struct err error; /* of a rank; the others are read to their ends */
};

static void rank_log_drop(struct target_work *work)
{
	struct rank_logs *logs = (struct rank_logs *)work;

	loop_remove_timer(logs->loop, logs->timer);
	for (int i = 0; i < logs->n; i++) {
		if (logs->sources[i].is_open)
			target_call_cancel(&logs->sources[i].call);
		rank_line_done(&logs->sources[i].line);
		free(logs->sources[i].begin);
	}
	free(logs->sources);
	err_done(&logs->error);
	free(logs);
}

/*
 * Lines
 */

static void rank_log_keep_token(struct rank_logs *logs)
{
	char text[TARGET_TOKEN_SIZE] = "";
	size_t len = 0;

	for (int i = 0; i < logs->n; i++) {
		int n = snprintf(text + len, sizeof(text) - len, "%s%lld:%lld", i ? "," : "",
			(long long)logs->sources[i].offset, (long long)logs->sources[i].time_ms);
		if (n < 0 || (size_t)n >= sizeof(text) - len)
			return;
		len += (size_t)n;
	}
	memcpy(logs->token, text, len + 1);
}

static int rank_log_hand_over(
	void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct rank_source *source = ctx;
	struct rank_logs *logs = source->logs;
	const struct target_log_events *events = &logs->request.events;
	int rank = (int)(source - logs->sources);
	int r = events->data ? events->data(events->ctx, rank, data, len, time_ms, err) : 0;

	logs->is_stopped |= r < 0;
	if (r < 0)
		return r;
	source->offset += (int64_t)len;
	source->time_ms = time_ms;
	rank_log_keep_token(logs);
	return 0;
}

static int rank_log_on_data(
	void *ctx, int rank UNUSED, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct rank_source *source = ctx;

	if (source->line.line.len == 0)
		source->offset = strtoll(source->token, NULL, 10);
	return rank_line_add(&source->line, data, len, time_ms, err);
}

static int rank_log_on_timer(void *ctx, struct err *err)
{
	struct rank_logs *logs = ctx;
	int r = 0;

	logs->timer = NULL;
	for (int i = 0; r == 0 && i < logs->n; i++)
		r = rank_line_flush_late(&logs->sources[i].line, err);
	if (r < 0) {
		target_call_end(logs->call, r, err);
		return 0;
	}
	logs->timer =
		loop_add_timer(logs->loop, clock_ms() + RANK_LINE_TURN_MS, rank_log_on_timer, logs);
	return 0;
}

/*
 * All of them
 */

static void rank_log_on_end(struct target_call *call, int status, struct err *err)
{
	struct rank_source *source = CONTAINER_OF(call, struct rank_source, call);
	struct rank_logs *logs = source->logs;

	source->is_open = false;
	if (status == 0)
		status = rank_line_flush(&source->line, err);
	if (status < 0 && !err_is_set(&logs->error))
		err_move(&logs->error, err);
	if (--logs->n_open > 0 && !logs->is_stopped)
		return;
	target_call_end_as(logs->call, &logs->error);
}

static void rank_log_on_notice(void *ctx, const char *text)
{
	const struct target_log_events *events = &((struct rank_source *)ctx)->logs->request.events;

	events->notice(events->ctx, text);
}

/* Why the attempt waits is reported once. */
static void rank_log_begin(struct rank_source *source, int rank, const struct attempt_place *from)
{
	struct rank_logs *logs = source->logs;
	struct target_log_request request = logs->request;
	struct attempt_place place = *from;

	place.rank = rank;
	place.dir = mem_strdup(from->dir);
	place.submit_lock = mem_strdup(from->submit_lock);
	request.token = source->begin;
	request.rank = rank;
	request.events = (struct target_log_events){
		.data = rank_log_on_data,
		.ctx = source,
	};
	if (rank == 0 && logs->request.events.notice)
		request.events.notice = rank_log_on_notice;
	source->call.done = rank_log_on_end;
	source->is_open = true;
	logs->n_open++;
	attempt_log_read(logs->loop, &place, &request, source->token, &source->call);
}

static void rank_log_take_token(struct rank_logs *logs, const char *token)
{
	for (int i = 0; token && i < logs->n; i++) {
		size_t len = strcspn(token, ",");

		logs->sources[i].begin = mem_strndup(token, len);
		logs->sources[i].offset = strtoll(token, NULL, 10);
		token += len + (token[len] == ',');
	}
}

void rank_log_read(struct loop *loop, const struct attempt_place *place, int n,
	const struct target_log_request *request, char *token, struct target_call *call)
{
	struct rank_logs *logs = mem_alloc(1, sizeof(*logs));

	*logs = (struct rank_logs){.work = {rank_log_drop},
		.call = call,
		.loop = loop,
		.request = *request,
		.token = token,
		.n = n,
		.sources = mem_alloc((size_t)n, sizeof(*logs->sources))};
	for (int i = 0; i < n; i++) {
		logs->sources[i] = (struct rank_source){.logs = logs};
		rank_line_init(&logs->sources[i].line, rank_log_hand_over, &logs->sources[i]);
	}
	rank_log_take_token(logs, request->token);
	target_call_begin(call, &logs->work);
	for (int i = 0; i < n; i++)
		rank_log_begin(&logs->sources[i], i, place);
	logs->timer = loop_add_timer(loop, clock_ms() + RANK_LINE_TURN_MS, rank_log_on_timer, logs);
}
