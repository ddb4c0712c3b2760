/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/why.h"

#include <string.h>

#include "app/lifecycle/failure.h"
#include "app/lifecycle/hint_excluded.h"
#include "app/lifecycle/study_judge.h"
#include "app/runs/held.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/record/after.h"
#include "core/record/results.h"
#include "core/target/target.h"
#include "targets/targets.h"

enum { TAIL_LINES = 300, REASON_MAX = 64 << 10 };

/*
 * The state of a run in one sentence. Facts come from the record; foreign text (the target's) is
 * kept as it is, the terminal filter is cli's.
 */

/* " after 4 min 12 s", or nothing if it never started. */
static void add_duration(const struct run *run, struct buf *out)
{
	int64_t started = run_started_ms(run), ended = run_ended_ms(run);
	char text[32];

	if (started && ended >= started)
		buf_addf(out, " after %s", duration_text(ended - started, text));
}

static void lifecycle_why_add_text(const struct run *run, const char *otherwise, struct buf *out)
{
	const char *text = json_get_str(run->doc, "text");

	buf_adds(out, text ? text : otherwise);
}

/* The same once more with these options; without an image there is no code to run again. */
static void add_submit(const struct run *run, const char *options, struct buf *hint)
{
	AUTO_STRV struct strv words = {0};

	buf_adds(hint, "dlrun submit");
	if (run_image_digest(run))
		buf_addf(hint, " --from %s", run_id(run));
	if (*options)
		buf_addf(hint, " %s", options);
	if (run_image_digest(run))
		return;
	/* A line for the shell is the command: of dlrun.yaml. */
	if (json_get_bool(run->doc, "shell", false) ||
		words_get(run->doc, "command", &words, NULL) < 0 || !words.n)
		return;
	buf_adds(hint, " -- ");
	str_shell_join(hint, words.v);
}

static void add_again(const struct run *run, struct buf *hint)
{
	if (run_image_digest(run) && run_attempts(run) > 0)
		buf_addf(hint, "dlrun restart %s", run_id(run));
	else
		add_submit(run, "", hint);
}

/* "dlrun submit OPTIONS …" is about this run. */
static void lifecycle_why_add_known(const struct run *run, const char *known, struct buf *hint)
{
	static const char submit[] = "dlrun submit ", rest[] = " …";

	if (!str_starts(known, submit) || !str_ends(known, rest)) {
		buf_adds(hint, known);
		return;
	}
	AUTO_FREE char *options =
		mem_strndup(known + strlen(submit), strlen(known) - strlen(submit) - strlen(rest));
	add_submit(run, options, hint);
}

static void why_waiting(const struct run *run, struct buf *sentence, struct buf *hint)
{
	const char *text = json_get_str(run->doc, "text");
	AUTO_FREE char *reason = words_reason_now(text ? text : "");

	if (run_is_held(run)) {
		const char *waits_for = json_get_str(json_get(run->doc, RUN_HELD), "for");
		bool moves = str_eq(waits_for, HELD_FOR_ROOM);
		const char *is = moves                        ? ":"
				 : held_is_after(run) && text ? " is queued here:"
							      : " is";
		buf_addf(sentence, "%s%s %s", run_id(run), is, text ? text : "queued here");
		buf_adds(hint, "dlrun queue --send");
		return;
	}
	buf_addf(sentence, "%s is %s%s%s", run_id(run), run_state_name(run_state(run)),
		text ? ": " : "", reason);
	buf_addf(hint, "dlrun logs -f %s", run_id(run));
}

static void why_running(const struct run *run, struct buf *sentence, struct buf *hint)
{
	int64_t started = run_started_ms(run);
	char text[32];

	buf_addf(sentence, "%s is running", run_id(run));
	if (started && clock_wall_ms() >= started)
		buf_addf(sentence, " for %s now", duration_text(clock_wall_ms() - started, text));
	if (run_cancelling(run))
		buf_adds(sentence, " and is being stopped");
	if (json_get_str(run->doc, "text"))
		buf_addf(sentence, "; %s", json_get_str(run->doc, "text"));
	buf_addf(hint, "dlrun logs -f %s", run_id(run));
}

static void why_succeeded(const struct run *run, struct buf *sentence, struct buf *hint)
{
	buf_addf(sentence, "%s succeeded", run_id(run));
	add_duration(run, sentence);
	if (json_get_str(run->doc, "text"))
		buf_addf(sentence, "; %s", json_get_str(run->doc, "text"));
	buf_addf(hint, "dlrun show %s", run_id(run));
}

enum { MIB = 1 << 20 };

/* Twice what it had. */
static bool add_more_memory(const struct run *run, struct buf *hint)
{
	int64_t bytes = json_get_int(json_get(run->spec, "resources"), "memory_bytes", 0);

	if (bytes <= 0 || bytes > INT64_MAX / 2 || !run_image_digest(run))
		return false;
	uint64_t mib = ((uint64_t)bytes * 2 + MIB - 1) / MIB;
	buf_addf(hint, "dlrun submit --from %s --memory %lluMi", run_id(run),
		(unsigned long long)mib);
	return true;
}

static void why_failed(const struct run *run, struct buf *sentence, struct buf *hint)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	buf_addf(sentence, "%s failed: ", run_id(run));
	lifecycle_why_add_text(run, "nobody knows why", sentence);
	if (str_eq(exit.origin, "job"))
		add_duration(run, sentence);
	/* A run that was never sent has no log. */
	if (str_eq(exit.reason, "Interrupted") || run_attempts(run) == 0)
		add_again(run, hint);
	else if (!str_eq(exit.reason, "OutOfMemory") || !add_more_memory(run, hint))
		buf_addf(hint, "dlrun logs %s", run_id(run));
}

static void why_cancelled(const struct run *run, struct buf *sentence, struct buf *hint)
{
	const char *stopped = json_get_str(run->doc, STUDY_STOPPED);
	struct run_exit exit;

	run_get_exit(run, &exit);
	buf_addf(sentence, "%s was cancelled", run_id(run));
	if (str_eq(exit.reason, AFTER_REASON)) {
		buf_adds(sentence, ": ");
		lifecycle_why_add_text(run, "a run before it ended otherwise", sentence);
		if (run_attempts(run) > 0)
			buf_addf(hint, "dlrun restart %s, once that has succeeded; without it: ",
				run_id(run));
		add_submit(run, "", hint);
		return;
	}
	add_duration(run, sentence);
	if (stopped)
		buf_addf(sentence, ": %s", stopped);
	add_again(run, hint);
}

static void why_lost(const struct run *run, struct buf *sentence, struct buf *hint)
{
	buf_addf(sentence, "%s was lost: ", run_id(run));
	lifecycle_why_add_text(run, "nobody saw its end", sentence);
	add_again(run, hint);
}

static void why_unknown(const struct run *run, struct buf *sentence, struct buf *hint)
{
	const char *last = json_get_str(run->doc, "last_state");

	buf_addf(sentence, "%s cannot be asked now", run_id(run));
	if (last)
		buf_addf(sentence, " (it was %s)", last);
	buf_adds(sentence, ": ");
	lifecycle_why_add_text(run, "its target does not answer", sentence);
	buf_addf(hint, "dlrun why %s", run_id(run));
}

typedef void why_fn(const struct run *run, struct buf *sentence, struct buf *hint);

void run_why(const struct run *run, struct buf *sentence, struct buf *hint)
{
	static why_fn *const table[RUN_STATES] = {
		[RUN_PREPARING] = why_waiting,
		[RUN_QUEUED] = why_waiting,
		[RUN_STARTING] = why_waiting,
		[RUN_RUNNING] = why_running,
		[RUN_SUCCEEDED] = why_succeeded,
		[RUN_FAILED] = why_failed,
		[RUN_CANCELLED] = why_cancelled,
		[RUN_LOST] = why_lost,
		[RUN_UNKNOWN] = why_unknown,
	};

	const char *known = json_get_str(run->doc, "hint");

	table[run_state(run)](run, sentence, hint);
	/* Prefer the hint that came with the reason. */
	if (known && json_get_str(run->doc, "text") && run_state(run) != RUN_UNKNOWN) {
		buf_reset(hint);
		lifecycle_why_add_known(run, known, hint);
	}
	AUTO_FREE char *waits = taken_text(run);
	if (!*waits)
		return;
	buf_addf(sentence, "; %s", waits);
	buf_reset(hint);
	if (taken_wait_ms(run))
		buf_addf(hint, "dlrun fetch %s", run_id(run));
	else
		add_again(run, hint);
}

/*
 * From the run's own log
 */

/* Keeps the last FAILURE_TAIL bytes, in at most twice the room. */
static int keep_tail(void *ctx, int rank UNUSED, const char *data, size_t len,
	int64_t time_ms UNUSED, struct err *err UNUSED)
{
	struct buf *tail = ctx;

	if (len > FAILURE_TAIL) {
		data += len - FAILURE_TAIL;
		len = FAILURE_TAIL;
	}
	if (tail->len + len > 2 * FAILURE_TAIL)
		buf_consume(tail, tail->len - FAILURE_TAIL);
	buf_add(tail, data, len);
	return 0;
}

struct target_log_request run_why_request(struct buf *ret)
{
	return (struct target_log_request){
		.tail_lines = TAIL_LINES, .rank = -1, .events = {.data = keep_tail, .ctx = ret}};
}

static int lifecycle_why_read_tail(
	struct session *session, const struct run *run, struct buf *ret, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	char token[TARGET_TOKEN_SIZE] = "";
	const struct target_log_request request = run_why_request(ret);

	int r = target_open_run(session, run, &target, err);
	return r < 0 ? r : target_logs(target, run_handle(run), &request, token, NULL, err);
}

/* Whether its program or setup has ended by a failure of its own, or is not there. */
static bool lifecycle_why_has_failed(const struct run *run)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	if (run_state(run) != RUN_FAILED || !run_handle(run))
		return false;
	return str_eq(exit.reason, "NotFound") || str_eq(exit.origin, "setup") ||
	       (str_eq(exit.origin, "job") && !str_eq(exit.reason, "Timeout"));
}

/* A program that could not be started has said nothing: its name is what was missing. */
static bool has_begun(const struct run *run)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	return !str_eq(exit.reason, "NotFound");
}

static void name_missing(const struct run *run, struct buf *ret)
{
	AUTO_STRV struct strv words = {0};

	if (words_get(run->doc, "command", &words, NULL) == 0 && words.n)
		buf_addf(ret, "'%s' not found", words.v[0]);
}

static bool lifecycle_why_add_excluded(const struct dirs *dirs, const struct run *run,
	const char *tree, const struct buf *tail, struct buf *hint)
{
	AUTO_EXCLUDED struct excluded_paths paths = {0};
	AUTO_FREE char *cwd = words_get_one(run->spec, "cwd");
	const struct excluded_place place = {
		.run_id = run_id(run), .tree = tree, .cwd = cwd ? cwd : "."};
	AUTO_ERR struct err err = {0};
	const struct excluded *found;

	if (excluded_read(dirs, run, &paths, &err) < 0 || excluded_add_data(run, &paths, &err) < 0)
		return false;
	found = excluded_find(&paths, &place, tail->data, tail->len);
	if (!found)
		return false;
	buf_reset(hint);
	excluded_hint(found, run, hint);
	return true;
}

/* ": ModuleNotFoundError: No module named 'x' (train.py:3)". What the target itself knows of the
 * reason goes before what the output looks like. */
static bool add_failure(const struct run *run, const char *tree, const struct buf *tail,
	struct buf *sentence, struct buf *hint)
{
	const struct json *target = json_get(run->doc, "target");
	const struct target_ops *ops = target_ops_recorded(run);
	struct failure_facts facts = {
		.run_id = run_id(run),
		.tree = tree,
		.workdir = IMAGE_WORKDIR,
		.in_container = ops->needs_image || json_get_str(target, "runtime"),
		.is_cluster = ops->has_scheduler,
	};
	AUTO_BUF struct buf reason = {0}, next = {0};

	AUTO_STRV struct strv names = {0};

	facts.is_private = words_get(run->spec, "secrets", &names, NULL) < 0 || names.n > 0;
	run_get_exit(run, &facts.exit);
	buf_init(&reason, REASON_MAX);
	buf_init(&next, REASON_MAX);
	if (str_eq(facts.exit.reason, "NotFound") ||
		!failure_find(&facts, tail->data, tail->len, &reason, &next))
		return false;
	buf_addf(sentence, ": %s", reason.data);
	if (!next.len || str_eq(facts.exit.reason, "OutOfMemory"))
		return true;
	buf_reset(hint);
	buf_adds(hint, next.data);
	return true;
}

bool run_why_said(const struct dirs *dirs, const struct run *run, const char *output, size_t len,
	struct buf *sentence, struct buf *hint)
{
	AUTO_FREE char *attempt = dirs_attempt(dirs, run_id(run), run_attempts(run));
	AUTO_FREE char *tree = fs_join(attempt, ATTEMPT_TREE);
	AUTO_BUF struct buf tail = buf_with((size_t)2 * FAILURE_TAIL);

	run_why(run, sentence, hint);
	if (!lifecycle_why_has_failed(run))
		return false;
	if (has_begun(run))
		keep_tail(&tail, 0, output, len, 0, NULL);
	else
		name_missing(run, &tail);
	bool known = add_failure(run, tree, &tail, sentence, hint);
	return lifecycle_why_add_excluded(dirs, run, tree, &tail, hint) || known;
}

bool run_why_all(
	struct session *session, const struct run *run, struct buf *sentence, struct buf *hint)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf tail = buf_with((size_t)2 * FAILURE_TAIL);

	if (lifecycle_why_has_failed(run) && has_begun(run) &&
		lifecycle_why_read_tail(session, run, &tail, &err) < 0) {
		run_why(run, sentence, hint);
		return false;
	}
	return run_why_said(&session->dirs, run, tail.data, tail.len, sentence, hint);
}

bool run_why_reads(const struct run *run)
{
	return lifecycle_why_has_failed(run) && has_begun(run);
}

bool run_cause(const struct dirs *dirs, const struct run *run, const char *output, size_t len,
	struct buf *cause)
{
	AUTO_FREE char *attempt = dirs_attempt(dirs, run_id(run), run_attempts(run));
	AUTO_FREE char *tree = fs_join(attempt, ATTEMPT_TREE);
	const char *text = json_get_str(run->doc, "text");
	enum run_state state = run_state(run);
	AUTO_BUF struct buf tail, reason, hint;

	buf_init(&tail, (size_t)2 * FAILURE_TAIL);
	buf_init(&reason, REASON_MAX);
	buf_init(&hint, REASON_MAX);
	if (run_why_reads(run))
		keep_tail(&tail, 0, output, len, 0, NULL);
	else if (lifecycle_why_has_failed(run))
		name_missing(run, &tail);
	if (lifecycle_why_has_failed(run) && add_failure(run, tree, &tail, &reason, &hint)) {
		buf_adds(cause, reason.data + strlen(": "));
		return false;
	}
	if (!text || state == RUN_SUCCEEDED || state == RUN_CANCELLED)
		return true;
	AUTO_FREE char *now = words_reason_now(text);
	buf_adds(cause, run_state_is_final(state) ? text : now);
	return run_state_is_final(state);
}
