/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/ssh/target_gang.h"

/*
 * The output of several hosts at once, line by line. A place in it is the offset of each rank, by
 * rank, with commas. While it is followed, the run is looked at: its ranks end with each other.
 */

enum {
	FOLLOW_PATIENCE_MS = 24 * 60 * 60 * 1000,
	PATIENCE_MS = 20000,
	LINE_MAX_BYTES = 64 << 10,
	FLUSH_MS = 1000,
	LOOK_MS = 10000,
	LOOK_SOON_MS = 1000, /* when one has ended */
};

struct reading;
struct source {
	struct reading *reading;
	struct node_host *host;
	struct node_call *asked;
	int rank;
	struct buf line; /* that has not ended */
	int64_t line_time_ms, line_since_ms;
	uint64_t offset; /* behind what was handed over */
	bool has_begun;  /* offset is known */
};

struct reading {
	struct target_work work;
	struct target_node *node;
	struct target_call *call, look;
	struct target_log_request request;
	char *token, *handle;
	struct node_handle parsed;
	struct strv hosts;
	struct source *sources;
	size_t n, n_open;
	struct loop_timer *flush, *timer;
	struct target_status status;
	struct err fault; /* of a rank; the others are read to their ends */
	bool is_looking;
};

static void drop_reading(struct target_work *work)
{
	struct reading *reading = (struct reading *)work;
	struct loop *loop = reading->node->target.loop;

	loop_remove_timer(loop, reading->flush);
	loop_remove_timer(loop, reading->timer);
	if (reading->is_looking)
		target_call_cancel(&reading->look);
	target_status_done(&reading->status);
	for (size_t i = 0; i < reading->n; i++) {
		node_cancel(reading->sources[i].asked);
		buf_done(&reading->sources[i].line);
	}
	free(reading->sources);
	free(reading->handle);
	node_handle_done(&reading->parsed);
	strv_done(&reading->hosts);
	err_done(&reading->fault);
	free(reading);
}

/*
 * Lines
 */

static void keep_token(struct reading *reading)
{
	char text[TARGET_TOKEN_SIZE] = "";
	size_t len = 0;

	for (size_t i = 0; i < reading->n; i++) {
		int n = snprintf(text + len, sizeof(text) - len, "%s%" PRIu64, i ? "," : "",
			reading->sources[i].offset);
		if (n < 0 || (size_t)n >= sizeof(text) - len)
			return;
		len += (size_t)n;
	}
	memcpy(reading->token, text, len + 1);
}

static int hand_over(
	struct source *source, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct reading *reading = source->reading;
	const struct target_log_events *events = &reading->request.events;
	int r = 0;

	if (events->data && time_ms >= reading->request.since_ms)
		r = events->data(events->ctx, source->rank, data, len, time_ms, err);
	if (r < 0)
		return r;
	source->offset += len;
	keep_token(reading);
	return 0;
}

static int flush_line(struct source *source, struct err *err)
{
	int r = 0;

	if (source->line.len)
		r = hand_over(
			source, source->line.data, source->line.len, source->line_time_ms, err);
	buf_reset(&source->line);
	return r;
}

/* Bytes behind the last end of a line are held back until their line ends. */
static size_t whole_lines(const char *data, size_t len)
{
	while (len > 0 && data[len - 1] != '\n' && data[len - 1] != '\r')
		len--;
	return len;
}

static int on_data(
	void *ctx, uint64_t offset, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct source *source = ctx;
	size_t whole = source->reading->n > 1 ? whole_lines(data, len) : len;
	int r = 0;

	if (!source->has_begun)
		source->offset = offset;
	source->has_begun = true;
	if (whole > 0)
		r = flush_line(source, err);
	if (r == 0 && whole > 0)
		r = hand_over(source, data, whole, time_ms, err);
	if (r < 0 || whole == len)
		return r;
	if (!source->line.len) {
		source->line_time_ms = time_ms;
		source->line_since_ms = clock_ms();
	}
	buf_add(&source->line, data + whole, len - whole);
	return source->line.len > LINE_MAX_BYTES ? flush_line(source, err) : 0;
}

static int on_flush(void *ctx, struct err *err)
{
	struct reading *reading = ctx;
	int r = 0;

	for (size_t i = 0; r == 0 && i < reading->n; i++)
		if (clock_ms() - reading->sources[i].line_since_ms >= FLUSH_MS)
			r = flush_line(&reading->sources[i], err);
	reading->flush = loop_add_timer(
		reading->node->target.loop, clock_ms() + FLUSH_MS / 2, on_flush, reading);
	return r;
}

static void on_notice(void *ctx, const char *text)
{
	const struct source *source = ctx;
	const struct target_log_events *events = &source->reading->request.events;

	if (events->notice)
		events->notice(events->ctx, text);
}

/*
 * A look at the run meanwhile
 */

static void look_in(struct reading *reading, int64_t ms);

static void on_looked(struct target_call *call, int status, struct err *err)
{
	struct reading *reading = (struct reading *)((char *)call - offsetof(struct reading, look));

	(void)status;
	err_clear(err);
	reading->is_looking = false;
	look_in(reading, reading->n_open < reading->n || reading->status.cancelling ? LOOK_SOON_MS
										    : LOOK_MS);
}

static int on_look(void *ctx, struct err *err)
{
	struct reading *reading = ctx;
	AUTO_ERR struct err fault = {0};

	(void)err;
	reading->timer = NULL;
	target_status_done(&reading->status);
	reading->status = (struct target_status){0};
	reading->look =
		(struct target_call){.deadline_ms = clock_ms() + LOOK_MS, .done = on_looked};
	reading->is_looking = target_gang_state(&reading->node->target, reading->handle,
				      &reading->status, &reading->look, &fault) == 0;
	return 0;
}

static void look_in(struct reading *reading, int64_t ms)
{
	struct loop *loop = reading->node->target.loop;

	if (!reading->request.follow || reading->is_looking)
		return;
	loop_remove_timer(loop, reading->timer);
	reading->timer = loop_add_timer(loop, clock_ms() + ms, on_look, reading);
}

/*
 * All of them
 */

static int on_end(void *ctx, int status, struct err *fault, struct err *err)
{
	struct source *source = ctx;
	struct reading *reading = source->reading;
	AUTO_ERR struct err end = {0};

	(void)err;
	source->asked = NULL;
	if (status == 0)
		status = flush_line(source, fault);
	node_explain(source->host, fault);
	if (status < 0 && !err_is_set(&reading->fault))
		err_move(&reading->fault, fault);
	if (--reading->n_open > 0) {
		look_in(reading, 0);
		return 0;
	}
	int r = err_is_set(&reading->fault) ? err_move(&end, &reading->fault) : 0;
	target_call_end(reading->call, r, &end);
	return 0;
}

static void begin_source(struct source *source)
{
	struct reading *reading = source->reading;
	const struct target_log_request *request = &reading->request;
	const struct node_log_request wanted = {
		.run = reading->parsed.run_id,
		.attempt = reading->parsed.attempt,
		.offset = source->offset,
		.tail_lines = request->token ? -1 : request->tail_lines,
		.follow = request->follow,
		.patience_ms = request->follow ? FOLLOW_PATIENCE_MS : PATIENCE_MS,
		.events = {.data = on_data, .notice = on_notice, .ctx = source},
	};

	reading->n_open++;
	source->asked = node_log(source->host->node, &wanted, on_end, source);
}

static int add_source(struct reading *reading, int rank, struct err *err)
{
	struct source *source = &reading->sources[reading->n];

	*source = (struct source){.reading = reading, .rank = rank};
	buf_init(&source->line, LINE_MAX_BYTES + (1 << 20));
	reading->n++;
	return node_open(reading->node->session, reading->hosts.v[rank], reading->node->root,
		&source->host, err);
}

/* The token of one rank is like that of a run with one host. */
static int parse_token(struct reading *reading, const char *token, struct err *err)
{
	AUTO_STRV struct strv offsets = {0};
	int r = 0;

	node_handle_split(token, &offsets);
	if (offsets.n != reading->n)
		return err_set(err, E_USAGE, "the place in the log is of another number of ranks");
	for (size_t i = 0; r == 0 && i < offsets.n; i++) {
		int64_t offset = 0;
		r = str_to_int(offsets.v[i], 0, INT64_MAX, "the place in the log", &offset, err);
		reading->sources[i].offset = (uint64_t)offset;
		reading->sources[i].has_begun = true;
	}
	return r;
}

static int open_sources(struct reading *reading, struct err *err)
{
	int wanted = reading->request.rank, r = 0;

	node_handle_split(reading->parsed.host, &reading->hosts);
	if (wanted >= 0 && (size_t)wanted >= reading->hosts.n)
		return err_set(err, E_USAGE, "%s has the ranks 0 to %zu", reading->parsed.run_id,
			reading->hosts.n - 1);
	reading->sources = mem_alloc(reading->hosts.n, sizeof(*reading->sources));
	if (wanted >= 0)
		r = add_source(reading, wanted, err);
	for (size_t i = 0; wanted < 0 && r == 0 && i < reading->hosts.n; i++)
		r = add_source(reading, (int)i, err);
	if (r == 0 && reading->request.token)
		r = parse_token(reading, reading->request.token, err);
	return r;
}

int target_gang_logs(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err)
{
	struct reading *reading = mem_alloc(1, sizeof(*reading));

	*reading = (struct reading){.work = {drop_reading},
		.node = target_node_of(target),
		.call = call,
		.request = *request,
		.token = token,
		.handle = mem_strdup(handle)};
	int r = node_handle_parse(handle, &reading->parsed, err);
	if (r == 0)
		r = open_sources(reading, err);
	if (r < 0) {
		drop_reading(&reading->work);
		return r;
	}
	target_call_begin(call, &reading->work);
	for (size_t i = 0; i < reading->n; i++)
		begin_source(&reading->sources[i]);
	if (reading->n > 1)
		reading->flush =
			loop_add_timer(target->loop, clock_ms() + FLUSH_MS / 2, on_flush, reading);
	look_in(reading, LOOK_MS);
	return 0;
}
