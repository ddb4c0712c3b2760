/* SPDX-License-Identifier: Apache-2.0 */
/* The output of a program, over as many connections as it takes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/node_impl.h"
#include "node/wire.h"

struct node_log {
	struct node_call call;
	char *run;
	struct node_log_request request;
	bool is_tail;      /* where the last lines begin is asked first */
	uint64_t offset;   /* of the next byte */
	uint64_t marks_at; /* bytes of `marks` that have come */
	struct node_marks marks;
	bool has_end, is_final; /* `end` was said; of an attempt that has ended */
	uint64_t end_bytes;
	bool was_lost;
	bool is_refused; /* by the events: what data returned is the end */
};

static void log_free(struct node_call *call)
{
	struct node_log *log = (struct node_log *)call;

	node_marks_done(&log->marks);
	free(log->run);
}

static void node_log_notify(struct node_log *log, const char *text)
{
	if (log->request.events.notice)
		log->request.events.notice(log->request.events.ctx, text);
}

static int log_begin(struct node_call *call, struct node_request *request, struct err *err UNUSED)
{
	struct node_log *log = (struct node_log *)call;

	if (log->was_lost) {
		AUTO_FREE char *text = mem_printf("%s answers again", call->node->name);

		log->was_lost = false;
		node_log_notify(log, text);
	}
	buf_reset(&call->text);
	log->has_end = false;
	if (log->is_tail) {
		buf_addf(&call->text, "tail %s %d %" PRId64 "\n", log->run, log->request.attempt,
			log->request.tail_lines);
		return 0;
	}
	buf_addf(&call->text, "log %s %d %" PRIu64 " %" PRIu64 "%s\n", log->run,
		log->request.attempt, log->offset, log->marks_at,
		log->request.follow ? " follow" : "");
	request->kind = NODE_RAW;
	request->keeps_stdin = true;
	/* A program may be silent for days; whether the connection lives is the channel's. */
	request->response_ms = log->request.follow ? -1 : 0;
	return 0;
}

static int node_log_take_offset(struct node_log *log, char *line, struct err *err)
{
	int r = node_words_split(line, &log->call.words, err);

	if (r < 0)
		return r;
	if (log->call.words.n < 2 || !node_word_number(log->call.words.v[1], &log->offset))
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid offset");
	return 1;
}

/* Not an error: what is no mark says nothing of times. */
static int node_log_take_mark(struct node_log *log, char *line)
{
	uint64_t time_ms, bytes;
	size_t len = strlen(line) - strlen("m ") + 1;
	char *blank = strchr(line + 2, ' ');

	log->marks_at += len;
	if (!blank)
		return 1;
	*blank = '\0';
	if (node_word_number(line + 2, &time_ms) && time_ms <= INT64_MAX &&
		node_word_number(blank + 1, &bytes))
		node_marks_add(&log->marks, (int64_t)time_ms, bytes);
	return 1;
}

/* How it stands is not asked for again once it has ended. */
static int node_log_take_attempt(struct node_log *log, char *line, struct err *err)
{
	struct node_attempt attempt;
	int r = node_words_split(line, &log->call.words, err);

	if (r == 0)
		r = node_attempt_parse(&log->call.words, &attempt, err);
	if (r < 0)
		return r;
	if (str_eq(attempt.run, log->run) && attempt.attempt == log->request.attempt)
		node_keep_end(log->call.node, &attempt);
	node_attempt_done(&attempt);
	return 1;
}

static int node_log_take_end(struct node_log *log, char *line, struct err *err)
{
	int r = node_words_split(line, &log->call.words, err);

	if (r < 0)
		return r;
	if (log->call.words.n < 3 || !node_word_number(log->call.words.v[1], &log->end_bytes))
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid end");
	log->has_end = true;
	log->is_final = node_state_is_final(log->call.words.v[2]);
	return 1;
}

static int log_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	struct node_log *log = (struct node_log *)call;

	if (log->is_tail)
		return str_starts(line, "offset ") ? node_log_take_offset(log, line, err) : 0;
	if (flow != CHANNEL_ERR)
		return 0;
	if (str_starts(line, "m "))
		return node_log_take_mark(log, line);
	if (str_starts(line, "attempt "))
		return node_log_take_attempt(log, line, err);
	return str_starts(line, "end ") ? node_log_take_end(log, line, err) : 0;
}

static ssize_t log_raw(struct node_call *call, enum channel_flow flow UNUSED, const char *data,
	size_t len, struct err *err)
{
	struct node_log *log = (struct node_log *)call;
	const struct node_log_events *events = &log->request.events;
	size_t at = 0;

	while (at < len) {
		int64_t time_ms;
		size_t n = node_marks_piece(&log->marks, log->offset, len - at, &time_ms);
		int r = events->data(events->ctx, log->offset, data + at, n,
			node_time_here(call->node, time_ms), err);

		if (r < 0) {
			log->is_refused = true;
			return r;
		}
		log->offset += n;
		at += n;
	}
	call_progressed(call);
	return (ssize_t)len;
}

/* A flow that ended by itself is no end of the log: only its size tells. */
static void node_log_check_whole(const struct node_log *log, struct err *error)
{
	const char *name = log->call.node->name;

	if (err_is_set(error) || log->is_tail)
		return;
	if (!log->has_end)
		err_set(error, E_NODE_PROTOCOL, "%s does not say where the log ends", name);
	else if (log->offset < log->end_bytes)
		err_set(error, E_NODE_LOST, "%s sent %" PRIu64 " of %" PRIu64 " bytes of the log",
			name, log->offset, log->end_bytes);
	else if (log->request.follow && !log->is_final)
		err_set(error, E_NODE_LOST, "%s does not follow the log to its end", name);
}

static enum call_next log_ended(struct node_call *call, struct err *error)
{
	struct node_log *log = (struct node_log *)call;

	if (log->is_refused)
		return CALL_OVER;
	if (!err_is_set(error) && log->is_tail) {
		log->is_tail = false;
		return CALL_AGAIN;
	}
	node_log_check_whole(log, error);
	enum call_next next = call_next(call, error);

	if (next == CALL_LATER && !log->was_lost) {
		AUTO_FREE char *text = mem_printf("%s: trying again", error->message);

		log->was_lost = true;
		node_log_notify(log, text);
	}
	return next;
}

static const struct call_ops log_ops = {
	.begin = log_begin,
	.line = log_line,
	.raw = log_raw,
	.ended = log_ended,
	.free = log_free,
};

struct node_call *node_log(
	struct node *node, const struct node_log_request *request, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err error = {0};
	struct node_log *log = call_new(node, sizeof(*log), &log_ops, done, ctx);

	log->request = *request;
	log->run = mem_strdup(request->run);
	log->request.run = log->run;
	log->offset = request->offset;
	log->is_tail = request->tail_lines >= 0;
	log->call.timeout_ms = request->timeout_ms;
	int r = node_check_attempt(request->run, request->attempt, &error);
	return call_begin_checked(&log->call, r, &error);
}
