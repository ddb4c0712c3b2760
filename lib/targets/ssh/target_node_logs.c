/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "targets/ssh/target_gang.h"

/*
 * The output of an attempt, from the node. A place in it is its offset in bytes.
 */

enum {
	FOLLOW_PATIENCE_MS = 24 * 60 * 60 * 1000, /* somebody who follows waits for a node */
	PATIENCE_MS = 20000,                      /* else an answer is wanted now */
	LOOK_MS = 1500,
};

struct reading {
	struct node_work base;
	struct target_log_request request;
	char *token; /* the caller's */
	/* Why it has not begun yet, for who follows. */
	struct node_call *look;
	struct loop_timer *timer;
	struct strv names;
	struct node_attempts found;
	char *told;
	bool has_begun;
};

static void stop_looking(struct reading *reading)
{
	node_cancel(reading->look);
	reading->look = NULL;
	loop_remove_timer(reading->base.target->target.loop, reading->timer);
	reading->timer = NULL;
}

static void release(struct node_work *work)
{
	struct reading *reading = (struct reading *)work;

	stop_looking(reading);
	node_attempts_done(&reading->found);
	strv_done(&reading->names);
	free(reading->told);
	free(reading);
}

static void on_notice(void *ctx, const char *text)
{
	const struct reading *reading = ctx;
	const struct target_log_events *events = &reading->request.events;

	if (events->notice)
		events->notice(events->ctx, text);
}

/*
 * Reasons for waiting, each reported once
 */

static void look_later(struct reading *reading);

static void tell_waiting(struct reading *reading)
{
	AUTO(target_status_done) struct target_status status = {0};

	if (reading->found.n == 0)
		return;
	target_node_status(reading->base.host->node, &reading->found.v[0], &status);
	reading->has_begun = status.state == RUN_RUNNING || run_state_is_final(status.state);
	if (reading->has_begun || str_empty(status.text) || str_eq(status.text, reading->told))
		return;
	free(reading->told);
	reading->told = mem_strdup(status.text);
	AUTO_FREE char *reason = words_reason_now(status.text);
	on_notice(reading, reason);
}

/* An unreachable node is reported by the log itself. */
static int on_looked(void *ctx, int status, struct err *fault, struct err *err)
{
	struct reading *reading = ctx;

	(void)fault;
	(void)err;
	reading->look = NULL;
	if (status == 0)
		tell_waiting(reading);
	node_attempts_done(&reading->found);
	if (!reading->has_begun)
		look_later(reading);
	return 0;
}

static int on_time(void *ctx, struct err *err)
{
	struct reading *reading = ctx;

	(void)err;
	reading->timer = NULL;
	reading->look = node_state(
		reading->base.host->node, &reading->names, &reading->found, on_looked, reading);
	return 0;
}

static void look_later(struct reading *reading)
{
	reading->timer = loop_add_timer(
		reading->base.target->target.loop, clock_ms() + LOOK_MS, on_time, reading);
}

/*
 * The log
 */

static int on_data(
	void *ctx, uint64_t offset, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct reading *reading = ctx;
	const struct target_log_events *events = &reading->request.events;
	int r = 0;

	if (!reading->has_begun)
		stop_looking(reading);
	reading->has_begun = true;
	time_ms = node_time_here(reading->base.host->node, time_ms);
	if (events->data && time_ms >= reading->request.since_ms)
		r = events->data(events->ctx, 0, data, len, time_ms, err);
	if (r == 0)
		snprintf(reading->token, TARGET_TOKEN_SIZE, "%llu",
			(unsigned long long)(offset + len));
	return r;
}

static int on_end(void *ctx, int status, struct err *fault, struct err *err)
{
	(void)err;
	return node_work_end(ctx, status, fault);
}

static void read_log(struct reading *reading, uint64_t offset)
{
	const struct target_log_request *request = &reading->request;
	const struct node_handle *handle = &reading->base.handle;
	const struct node_log_request wanted = {
		.run = handle->run_id,
		.attempt = handle->attempt,
		.offset = offset,
		.tail_lines = request->token ? -1 : request->tail_lines,
		.follow = request->follow,
		.patience_ms = request->follow ? FOLLOW_PATIENCE_MS : PATIENCE_MS,
		.events = {.data = on_data, .notice = on_notice, .ctx = reading},
	};

	reading->base.asked = node_log(reading->base.host->node, &wanted, on_end, reading);
	if (!request->follow || !request->events.notice)
		return;
	strv_addf(&reading->names, "%s/%d", handle->run_id, handle->attempt);
	look_later(reading);
}

int target_node_logs(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err)
{
	struct reading *reading;
	int64_t offset = 0;

	if (node_handle_is_gang(handle))
		return target_gang_logs(target, handle, request, token, call, err);
	if (request->token &&
		str_to_int(request->token, 0, INT64_MAX, "the place in the log", &offset, err) < 0)
		return -(int)err->code;
	reading = mem_alloc(1, sizeof(*reading));
	*reading =
		(struct reading){.base = {.release = release}, .request = *request, .token = token};
	int r = node_work_begin(target, handle, &reading->base, call, err);
	if (r == 0)
		read_log(reading, (uint64_t)offset);
	return r;
}
