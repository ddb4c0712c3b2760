/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/results_query.h"

#include <stdlib.h>
#include <string.h>

#include "app/lifecycle/hint_excluded.h"
#include "app/transfer/mirror.h"
#include "app/transfer/mirror_files.h"
#include "app/transfer/outputs.h"
#include "base/loop/loop.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "core/record/observed.h"
#include "core/record/params.h"
#include "core/record/results.h"
#include "core/store/store.h"
#include "targets/targets.h"

/*
 * Results of runs: their targets are queried in parallel for a list of the files, and for those of
 * them that hold parameters or values over time.
 */

enum { TEXT_MAX = 64 << 10 };

struct results_queries;
struct results_query {
	struct results_queries *asker;
	struct run *run;
	struct target *target;
	struct outputs_call *call; /* in flight; or NULL */
	struct outputs_files files;
	bool is_listed, has_events;
	/* Elements of `files` that hold parameters, read one after the other. */
	const struct outputs_file *params[PARAMS_FILES];
	size_t n_params, at;
	struct buf text;
};

struct results_queries {
	struct session *session;
	struct results_query *queries;
	size_t n;
	struct loop_wait wait;
};

static void queries_done(struct results_queries *asker)
{
	for (size_t i = 0; i < asker->n; i++) {
		outputs_cancel(asker->queries[i].call);
		outputs_files_done(&asker->queries[i].files);
		buf_done(&asker->queries[i].text);
		target_free(asker->queries[i].target);
	}
	free(asker->queries);
}

static int results_query_take_text(void *ctx, const void *data, size_t len, struct err *err)
{
	struct results_query *query = ctx;

	buf_add(&query->text, data, len);
	return buf_check(&query->text, "a file of parameters", err);
}

static void results_query_read_next(struct results_query *query);

static void on_params(void *ctx, int status, struct err *error UNUSED)
{
	struct results_query *query = ctx;
	const char *path = query->params[query->at++]->path;
	AUTO_JSON struct json *params = NULL;

	query->call = NULL;
	if (status == 0)
		params = params_read(path, query->text.data, query->text.len);
	params_complete(params, json_sub(query->run->doc, "params"));
	results_query_read_next(query);
}

static void results_query_read_next(struct results_query *query)
{
	buf_done(&query->text);
	buf_init(&query->text, PARAMS_FILE_MAX + 1);
	if (query->at < query->n_params)
		query->call = outputs_read(query->target, run_handle(query->run),
			query->params[query->at]->path, 0, PARAMS_FILE_MAX, results_query_take_text,
			on_params, query);
	else
		loop_wait_done(&query->asker->wait);
}

/* Inputs that it was started without, and has made or downloaded by itself then. */
static void add_input_warning(struct results_query *query, struct json *warnings)
{
	AUTO_EXCLUDED struct excluded_paths paths = {0};
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf text = buf_with(TEXT_MAX);
	const struct excluded *found;

	if (excluded_read(&query->asker->session->dirs, query->run, &paths, &err) < 0)
		return;
	found = excluded_made_anew(&paths, &query->files);
	if (!found)
		return;
	excluded_warn_anew(found, &text);
	json_add_str(warnings, text.data);
}

/* Warnings to show with the results of this attempt. */
static struct json *make_warnings(struct results_query *query)
{
	const struct json *seen = json_get(query->run->seen, "warnings");
	struct json *warnings = json_array(), *observed = json_object();

	for (const struct json *text = json_first(seen);
		text && json_count(warnings) < OBSERVED_TEXTS_MAX; text = json_next(text))
		if (json_str(text))
			json_add_str(warnings, json_str(text));
	add_input_warning(query, warnings);
	json_set(observed, "warnings", json_clone(warnings));
	observed_merge(observed, query->run->doc);
	json_free(observed);
	return warnings;
}

static void results_query_on_list(void *ctx, int status, struct err *error)
{
	struct results_query *query = ctx;
	bool is_cut = status == -ERR_LIMIT;

	query->call = NULL;
	if (status == 0 || is_cut) {
		struct json *results = results_json(&query->files, is_cut);
		json_set(results, "warnings", make_warnings(query));
		json_set(query->run->doc, RESULTS_MEMBER, results);
		query->is_listed = true;
		query->n_params = params_choose(&query->files, query->params);
		vec_foreach (const struct outputs_file, file, &query->files)
			query->has_events |= strstr(file->path, MIRROR_PART) != NULL;
	} else {
		log_note(
			"the results of %s are not listed: %s", run_id(query->run), error->message);
	}
	results_query_read_next(query);
}

/* Ended runs whose results are known are skipped: these do not change any more. */
static bool results_query_is_wanted(const struct run *run, bool live)
{
	if (!run_handle(run))
		return false;
	if (!run_state_is_final(run_state(run)))
		return live && run_state(run) == RUN_RUNNING;
	return !results_is_valid(json_get(run->doc, RESULTS_MEMBER));
}

static void results_query_start(struct results_queries *asker, struct run *run)
{
	struct results_query *query = &asker->queries[asker->n++];
	AUTO_ERR struct err err = {0};

	*query = (struct results_query){.asker = asker, .run = run};
	if (target_open_run(asker->session, run, &query->target, &err) < 0) {
		log_note("the results of %s are not listed: %s", run_id(run), err.message);
		return;
	}
	asker->wait.n_open++;
	query->call = outputs_list(query->target, run_handle(run), NULL, OUTPUTS_BRIEF,
		OUTPUTS_FILES_MAX, &query->files, results_query_on_list, query);
}

/* Results that cannot be stored are requested again the next time. */
static void write_listed(struct results_queries *asker)
{
	struct store *store;

	for (size_t i = 0; i < asker->n; i++) {
		struct run *run = asker->queries[i].run;
		AUTO_ERR struct err err = {0};
		if (!asker->queries[i].is_listed || !run_state_is_final(run_state(run)))
			continue;
		if (session_store(asker->session, &store, &err) < 0 ||
			store_update_known(store, run, &err) < 0)
			log_note("%s", err.message);
	}
}

/* Curves and last values are then known without asking again. Of what goes on, who asks for them
 * brings them (mirror.h). */
static void bring_events(struct results_queries *asker, int64_t timeout_ms)
{
	struct run_list runs = {0};

	for (size_t i = 0; i < asker->n; i++)
		if (asker->queries[i].has_events &&
			run_state_is_final(run_state(asker->queries[i].run)))
			*vec_push(&runs) = asker->queries[i].run;
	metrics_bring(asker->session, &runs, timeout_ms);
	vec_done(&runs);
}

void runs_results(
	struct session *session, const struct run_list *runs, bool live, int64_t timeout_ms)
{
	int64_t end_ms = clock_deadline(timeout_ms), now_ms;
	AUTO(queries_done)
	struct results_queries asker = {
		.session = session, .wait = {.loop = session_loop(session), .deadline_ms = end_ms}};

	asker.queries = mem_alloc(runs->n + 1, sizeof(*asker.queries));
	vec_foreach (struct run *, run, runs)
		if (results_query_is_wanted(*run, live))
			results_query_start(&asker, *run);
	loop_wait_run(&asker.wait, NULL);
	write_listed(&asker);
	now_ms = clock_ms();
	bring_events(&asker, end_ms > now_ms ? end_ms - now_ms : 0);
}
