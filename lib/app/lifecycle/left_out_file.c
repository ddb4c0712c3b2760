/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/lifecycle/failure.h"
#include "app/lifecycle/hint_left_out.h"
#include "app/lifecycle/why.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/record/world.h"
#include "core/target/target.h"
#include "targets/targets.h"

/*
 * left_out.json, dlrun/left-out/v1: a list of paths for each reason.
 */

enum { FILE_MAX = 4 * LEFT_OUT_BYTES_MAX, TAIL_LINES = 300, REASON_MAX = 64 << 10 };

static const char *const reasons[] = {
	[LEFT_OUT_IGNORED] = "ignored",
	[LEFT_OUT_DLRUNIGNORE] = "dlrunignore",
	[LEFT_OUT_SPECIAL] = "special",
	[LEFT_OUT_REPOSITORY] = "repository",
};

static char *file_of(const struct dirs *dirs, const char *run_id)
{
	AUTO_FREE char *dir = dirs_run(dirs, run_id);

	return fs_join(dir, RUN_LEFT_OUT);
}

static struct json *to_json(const struct snapshot *snapshot)
{
	struct strv lists[ARRAY_LEN(reasons)] = {0};
	struct json *json = json_object();
	size_t bytes = 0;

	vec_foreach (const struct left_out, row, &snapshot->paths.left_out) {
		bytes += strlen(row->path);
		if (bytes > LEFT_OUT_BYTES_MAX)
			break;
		strv_add(&lists[row->why], row->path);
	}
	json_set_str(json, "schema", "dlrun/left-out/v1");
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
		if (lists[i].n)
			words_set(json, reasons[i], &lists[i]);
		strv_done(&lists[i]);
	}
	return json;
}

static int write_text(
	const struct dirs *dirs, const struct run *run, const struct buf *text, struct err *err)
{
	AUTO_FREE char *path = file_of(dirs, run_id(run));

	return fs_replace(path, text->data, text->len, 0600, FS_SYNC_NONE, err);
}

/* The same code lacks the same files. */
static int copy_from(
	const struct dirs *dirs, const struct run *run, const char *parent, struct err *err)
{
	AUTO_FREE char *path = NULL;
	AUTO_BUF struct buf text = {0};

	if (!run_id_is_valid(parent))
		return 0;
	path = file_of(dirs, parent);
	if (fs_read(path, FILE_MAX, &text, NULL, NULL) < 0)
		return 0;
	return write_text(dirs, run, &text, err);
}

int left_out_write(const struct dirs *dirs, const struct run *run, const struct snapshot *snapshot,
	struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = {0};

	if (!snapshot)
		return copy_from(dirs, run, json_get_str(run->doc, "parent"), err);
	if (snapshot->paths.left_out.n == 0)
		return 0;
	json = to_json(snapshot);
	buf_init(&text, FILE_MAX);
	json_print(json, &text);
	int r = buf_check(&text, RUN_LEFT_OUT, err);
	return r < 0 ? r : write_text(dirs, run, &text, err);
}

/*
 * Reading
 */

/* Paths below data and outputs exist in the run. */
static bool is_brought_back(const struct world *world, const char *path)
{
	vec_foreach (const struct world_data, data, &world->data)
		if (fs_below(path, data->path))
			return true;
	vec_foreach (char *const, output, &world->outputs)
		if (fs_below(path, *output))
			return true;
	return false;
}

static int add_list(const struct json *json, enum left_out_why why, const struct world *world,
	struct left_out_paths *ret, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	int r = words_get(json, reasons[why], &words, err);

	for (size_t i = 0; r == 0 && i < words.n && ret->n < LEFT_OUT_MAX; i++)
		if (!is_brought_back(world, words.v[i]))
			left_out_add(ret, words.v[i], why);
	return r;
}

int left_out_read(
	const struct dirs *dirs, const struct run *run, struct left_out_paths *ret, struct err *err)
{
	AUTO_FREE char *path = file_of(dirs, run_id(run));
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_WORLD struct world world = {0};
	bool missing = false;

	int r = fs_read(path, FILE_MAX, &text, &missing, err);
	if (r < 0 && missing) {
		err_clear(err);
		return 0;
	}
	if (r == 0)
		r = json_parse(text.data, text.len, FILE_MAX, path, &json, err);
	if (r == 0 && run->spec)
		r = world_from_json(run->spec, &world, err);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(reasons); i++)
		r = add_list(json, (enum left_out_why)i, &world, ret, err);
	left_out_sort(ret);
	return r;
}

/*
 * From the run's own log
 */

/* Keeps the last FAILURE_TAIL bytes, in at most twice the room. */
static int keep_tail(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	(void)rank;
	struct buf *tail = ctx;

	(void)time_ms;
	(void)err;
	if (len > FAILURE_TAIL) {
		data += len - FAILURE_TAIL;
		len = FAILURE_TAIL;
	}
	if (tail->len + len > 2 * FAILURE_TAIL)
		buf_consume(tail, tail->len - FAILURE_TAIL);
	buf_add(tail, data, len);
	return 0;
}

static int read_tail(
	struct session *session, const struct run *run, struct buf *ret, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	char token[TARGET_TOKEN_SIZE] = "";
	const struct target_log_request request = {
		.tail_lines = TAIL_LINES, .rank = -1, .events = {.data = keep_tail, .ctx = ret}};

	int r = target_open_run(session, run, &target, err);
	return r < 0 ? r : target_logs(target, run_handle(run), &request, token, NULL, err);
}

/* Whether its program or setup has ended by a failure of its own, or is not there. */
static bool has_failed(const struct run *run)
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

static bool add_left_out(const struct dirs *dirs, const struct run *run, const char *tree,
	const struct buf *tail, struct buf *hint)
{
	AUTO_LEFT_OUT struct left_out_paths paths = {0};
	AUTO_FREE char *cwd = words_get_one(run->spec, "cwd");
	const struct left_out_place place = {
		.run_id = run_id(run), .tree = tree, .cwd = cwd ? cwd : "."};
	AUTO_ERR struct err err = {0};
	const struct left_out *found;

	if (left_out_read(dirs, run, &paths, &err) < 0)
		return false;
	found = left_out_find(&paths, &place, tail->data, tail->len);
	if (!found)
		return false;
	buf_reset(hint);
	left_out_hint(found, hint);
	return true;
}

static bool has_secrets(const struct run *run)
{
	AUTO_STRV struct strv names = {0};

	return words_get(run->spec, "secrets", &names, NULL) < 0 || names.n > 0;
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

	facts.is_private = has_secrets(run);
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
	AUTO_BUF struct buf tail = {0};

	run_why(run, sentence, hint);
	if (!has_failed(run))
		return false;
	buf_init(&tail, (size_t)2 * FAILURE_TAIL);
	if (has_begun(run))
		keep_tail(&tail, 0, output, len, 0, NULL);
	else
		name_missing(run, &tail);
	bool known = add_failure(run, tree, &tail, sentence, hint);
	return add_left_out(dirs, run, tree, &tail, hint) || known;
}

bool run_why_all(
	struct session *session, const struct run *run, struct buf *sentence, struct buf *hint)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf tail;

	buf_init(&tail, (size_t)2 * FAILURE_TAIL);
	if (has_failed(run) && has_begun(run) && read_tail(session, run, &tail, &err) < 0) {
		run_why(run, sentence, hint);
		return false;
	}
	return run_why_said(&session->dirs, run, tail.data, tail.len, sentence, hint);
}
