/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/notice.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/loop/proc_run.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { NOTICE_FIELD_MAX = 300 };

struct notice_known {
	char *key;
	int64_t at_ms;
};

struct notices {
	struct notices_options options;
	struct strv argv;
	char *cluster;
	struct strv queue; /* keys of JSON without "lost" */
	struct VEC_OF(struct notice_known) known;
	int64_t lost, told_lost;
	struct proc_run *run; /* of the program; NULL: none runs */
};

static void notices_next(struct notices *notices);

/* Whether this was not told for a while; it counts as told from now on. */
static bool notices_is_new(struct notices *notices, const char *key)
{
	int64_t now_ms = clock_ms();
	struct notice_known *oldest = NULL;

	vec_foreach (struct notice_known, known, &notices->known) {
		if (str_eq(known->key, key)) {
			bool is_new = now_ms - known->at_ms >= NOTICE_QUIET_MS;
			known->at_ms = is_new ? now_ms : known->at_ms;
			return is_new;
		}
		if (!oldest || known->at_ms < oldest->at_ms)
			oldest = known;
	}
	if (notices->known.n < NOTICE_KNOWN_MAX)
		oldest = vec_push(&notices->known);
	REPLACE(oldest->key, mem_strdup(key));
	oldest->at_ms = now_ms;
	return true;
}

static void notices_problem(struct notices *notices, const char *text)
{
	AUTO_FREE char *whole = mem_printf("the program of notify: %s", text);

	notices->lost++;
	if (notices->options.problem && notices_is_new(notices, whole))
		notices->options.problem(notices->options.ctx, whole);
}

/*
 * The program
 */

static int notices_on_end(void *ctx, const struct proc_run_result *result, struct err *err UNUSED)
{
	struct notices *notices = ctx;
	AUTO_FREE char *how = result->end == PROC_RUN_LATE ? mem_strdup("it did not end in time")
			      : result->status > 0         ? proc_run_text(result)
							   : NULL;

	proc_run_free(TAKE(notices->run));
	if (how)
		notices_problem(notices, how);
	notices_next(notices);
	return 0;
}

/* The whole line is in a pipe when the program starts: it is small enough. */
static int notices_start(struct notices *notices, const char *line, struct err *err)
{
	int64_t limit_ms = notices->options.program_ms;
	const struct proc_run_spec spec = {.argv = (const char *const *)notices->argv.v,
		.input = line,
		.stderr_fd = STDERR_FILENO,
		.timeout_ms = limit_ms ? limit_ms : NOTICE_PROGRAM_MS};

	return proc_run_start(
		notices->options.loop, &spec, notices_on_end, notices, &notices->run, err);
}

/* Starts the program for the first that waits, if none runs. */
static void notices_next(struct notices *notices)
{
	while (!notices->run && notices->queue.n > 0) {
		AUTO_BUF struct buf line = buf_with(2 * NOTICE_LINE_MAX);
		AUTO_ERR struct err err = {0};

		AUTO_FREE char *text = strv_take_out(&notices->queue, 0);
		buf_addf(&line, "%.*s,\"lost\":%lld}\n", (int)strlen(text) - 1, text,
			(long long)(notices->lost - notices->told_lost));
		if (notices_start(notices, line.data, &err) < 0) {
			notices_problem(notices, err.message);
			continue;
		}
		notices->told_lost = notices->lost;
	}
}

/*
 * Notices
 */

/* The first max bytes, whole characters. */
static void notices_set(struct json *json, const char *key, const char *text, size_t max)
{
	if (!text)
		return;
	AUTO_FREE char *cut = mem_strndup(text, str_fit(text, max));
	json_set_str(json, key, cut);
}

static void notices_line(const struct notices *notices, const struct notice *notice,
	const char *time, size_t max, struct buf *out)
{
	AUTO_JSON struct json *json = json_object();
	size_t field_max = max < NOTICE_FIELD_MAX ? max : NOTICE_FIELD_MAX;

	if (time)
		json_set_str(json, "time", time);
	json_set_str(json, "cluster", notices->cluster);
	notices_set(json, "kind", notice->kind, field_max);
	notices_set(json, "group", notice->group, field_max);
	notices_set(json, "owner", notice->owner, field_max);
	notices_set(json, "text", notice->text, max);
	json_print(json, out);
}

/* The text by which equal notices are known. */
static void notices_key(const struct notices *notices, const struct notice *notice, struct buf *out)
{
	struct notice same = *notice;
	AUTO_FREE char *text = mem_strdup(notice->text);
	char *to = text;

	for (const char *s = text; *s; s++)
		if (!str_is_digit(*s) || s == text || !str_is_digit(s[-1]))
			*to++ = str_is_digit(*s) ? '0' : *s;
	*to = '\0';
	same.text = notice->is_lasting ? text : notice->text;
	notices_line(notices, &same, NULL, NOTICE_LINE_MAX, out);
}

void notices_add(struct notices *notices, const struct notice *notice)
{
	AUTO_BUF struct buf key = buf_with(8 * NOTICE_LINE_MAX);
	char now[CLOCK_TEXT_SIZE];

	if (notices->queue.n >= NOTICE_QUEUE_MAX) {
		notices->lost++;
		return;
	}
	notices_key(notices, notice, &key);
	if (!notices_is_new(notices, key.data))
		return;
	clock_format(clock_wall_ms(), now);
	/* Escapes make the line longer than its texts. */
	for (size_t max = NOTICE_LINE_MAX;; max /= 2) {
		AUTO_BUF struct buf line = buf_with(8 * NOTICE_LINE_MAX);
		notices_line(notices, notice, now, max, &line);
		if (line.len > NOTICE_LINE_MAX - 64 && max > 0)
			continue;
		strv_add(&notices->queue, line.data);
		break;
	}
	notices_next(notices);
}

int64_t notices_lost(const struct notices *notices)
{
	return notices->lost;
}

struct notices *notices_new(const struct notices_options *options)
{
	struct notices *notices = mem_alloc(1, sizeof(*notices));

	notices->options = *options;
	strv_copy(&notices->argv, options->argv);
	notices->cluster = mem_strdup(options->cluster);
	return notices;
}

void notices_free(struct notices *notices)
{
	if (!notices)
		return;
	if (notices->run)
		proc_run_leave(notices->run);
	vec_foreach (struct notice_known, known, &notices->known)
		free(known->key);
	vec_done(&notices->known);
	strv_done(&notices->queue);
	strv_done(&notices->argv);
	free(notices->cluster);
	free(notices);
}
