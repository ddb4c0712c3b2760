/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "app/transfer/fetch.h"
#include "app/transfer/fetch_params.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/runs/transfer.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

enum { ROUND_MIN_MS = 2000, ROUND_MAX_MS = 60 * 1000, SLICE_MS = 200 };

struct fetch_values {
	const char *output;
	bool force, tree, list, follow;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 'o', "output", struct fetch_values, output), .arg = "DIR",
		.help = "Into DIR, which is made if it is missing; default: the id of the run",
		.values = VALUE_DIR},
	{OPT_MEMBER(OPT_FLAG, 0, "list", struct fetch_values, list),
		.help = "List the files with their sizes and times, and fetch nothing"},
	{OPT_MEMBER(OPT_FLAG, 0, "follow", struct fetch_values, follow),
		.help = "Go on until the run has ended: what is new or has changed"},
	{OPT_MEMBER(OPT_FLAG, 0, "force", struct fetch_values, force),
		.help = "Replace files, too, that did not come from a fetch or were changed since"},
	{OPT_MEMBER(OPT_FLAG, 0, "tree", struct fetch_values, tree),
		.help = "PATHs are of the tree that the program runs in, not of its results; "
			"into RUN-tree"},
	{OPT_END},
};

/* State of one command. */
struct fetching {
	struct app *app;
	const struct fetch_values *values;
	struct fetch_options options;
	struct transfer transfer;
	struct run *run;
	char *dir;
	struct fetch_report report; /* of all rounds */
};

/* Absent for now, or for good. */
static void print_none(struct app *app, const struct run *run)
{
	if (run_state_is_final(run_state(run)))
		app_note(app, "%s has no results", run_id(run));
	else
		app_note(app, "%s has no results yet", run_id(run));
}

/*
 * A list
 */

/* run: in each of them; or NULL. */
static void add_list_json(struct json *list, const struct outputs_files *files, const char *run)
{
	vec_foreach (const struct outputs_file, file, files) {
		struct json *one = json_object();
		if (run)
			json_set_str(one, "run", run);
		json_set_bytes(one, "path", file->path, strlen(file->path));
		json_set_int(one, "bytes", (int64_t)file->size);
		run_set_time(one, "modified", file->mtime_ns / 1000000);
		json_add(list, one);
	}
}

static int print_list_json(
	struct app *app, const struct run *run, const struct outputs_files *files)
{
	struct json *json = app_json("files"), *list = json_array();

	json_set_str(json, "run", run_id(run));
	add_list_json(list, files, NULL);
	json_set(json, "files", list);
	return app_print_json(app, json);
}

static const struct ui_column list_columns[] = {
	{.title = "SIZE", .right = true}, {.title = "MODIFIED"}, {.title = "PATH"}};

/* below: a directory in front of the paths, or "". */
static void add_list(struct ui_table *table, const struct outputs_files *files, const char *below)
{
	char text[32];

	vec_foreach (const struct outputs_file, file, files) {
		AUTO_FREE char *whole = fs_join(below, file->path);
		AUTO_FREE char *path = str_escaped(whole);
		ui_table_add(table, "", str_size(file->size, text));
		ui_table_add(table, "", ui_time(file->mtime_ns / 1000000, text));
		ui_table_add(table, "", path);
	}
}

static int print_list(struct app *app, const struct outputs_files *files)
{
	AUTO_TABLE struct ui_table table;

	ui_table_init(&table, list_columns, ARRAY_LEN(list_columns));
	add_list(&table, files, "");
	return ui_table_print(app, &table) < 0;
}

static int list_files(struct fetching *fetching)
{
	struct app *app = fetching->app;
	AUTO(outputs_files_done) struct outputs_files files = {0};
	AUTO_ERR struct err err = {0};

	if (run_list_files(&app->session, fetching->run, &fetching->options, &files, &err) < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return print_list_json(app, fetching->run, &files);
	if (files.n)
		return print_list(app, &files);
	print_none(app, fetching->run);
	return 0;
}

/*
 * Copies
 */

/* As it was written, if it was, since that is where people look. */
static void cmd_fetch_print(const struct fetching *fetching)
{
	const struct fetch_report *report = &fetching->report;
	const char *shown = fetching->values->output;
	struct app *app = fetching->app;
	char bytes[16];

	if (report->files + report->skipped == 0) {
		print_none(app, fetching->run);
		return;
	}
	if (report->in_git)
		app_note(app, "%zu %s in .git not fetched", report->in_git,
			report->in_git == 1 ? "file" : "files");
	if (app->shell_dir || (!shown && fetching->values->tree))
		shown = fetching->dir;
	app_note(app, "%zu %s fetched, %s, %zu unchanged · %s", report->files,
		report->files == 1 ? "file" : "files", str_size(report->bytes, bytes),
		report->skipped, shown ? shown : run_id(fetching->run));
}

static void fetch_set_report(struct json *json, const struct fetch_report *report)
{
	json_set_int(json, "files", (int64_t)report->files);
	json_set_int(json, "bytes", (int64_t)report->bytes);
	json_set_int(json, "skipped", (int64_t)report->skipped);
	json_set_int(json, "in_git", (int64_t)report->in_git);
}

static int cmd_fetch_print_json(const struct fetching *fetching)
{
	struct json *json = app_json("fetch");

	json_set_str(json, "run", run_id(fetching->run));
	json_set_bytes(json, "dir", fetching->dir, strlen(fetching->dir));
	fetch_set_report(json, &fetching->report);
	return app_print_json(fetching->app, json);
}

static void cmd_fetch_on_progress(void *ctx, const struct fetch_progress *progress)
{
	transfer_show_bytes(ctx, "fetch", progress->bytes_done, progress->bytes);
}

/* files counts what has come again each time. */
static int fetch_once(struct fetching *fetching, struct err *err)
{
	struct fetch_report report = {0};

	free(TAKE(fetching->dir));
	fetching->transfer = (struct transfer){.app = fetching->app};
	int r = run_fetch(&fetching->app->session, fetching->run, &fetching->options,
		&fetching->dir, &report, err);
	transfer_clear(&fetching->transfer);
	fetching->report.files += report.files;
	fetching->report.bytes += report.bytes;
	fetching->report.skipped = report.skipped;
	fetching->report.in_git = report.in_git;
	return r;
}

/*
 * Following
 */

static void cmd_fetch_sleep(int64_t ms)
{
	for (int64_t end_ms = clock_ms() + ms; !app_interrupted && clock_ms() < end_ms;)
		poll(NULL, 0, SLICE_MS);
}

/* Errors that another round may fix: the network, a file that does not exist yet, or one that could
 * not be read or replaced, which the last round reports. */
static bool is_for_now(const struct err *err, bool ended)
{
	return err->code == ERR_NET ||
	       (!ended && (err->id == E_FETCH_PATH || err->id == E_FETCH_KEPT ||
				  err->id == E_IO_READ));
}

static void print_round(const struct fetching *fetching, size_t files)
{
	if (files)
		app_phase(fetching->app, "fetched", "%zu %s", files, files == 1 ? "file" : "files");
}

/* Sleep as long as the round took, so that half of the time is the network's, and read the run
 * again. */
static int begin_round(struct fetching *fetching, const char *id, int64_t took_ms, struct err *err)
{
	int64_t ms = took_ms < ROUND_MIN_MS ? ROUND_MIN_MS : took_ms;

	cmd_fetch_sleep(ms < ROUND_MAX_MS ? ms : ROUND_MAX_MS);
	if (app_interrupted)
		return err_set(err, E_CANCELED, "interrupted; %s goes on", id);
	run_free(TAKE(fetching->run));
	return runs_get(fetching->app, id, &fetching->run, err);
}

/* The state is read before a round: the one that begins after the end is the last. */
static int follow_files(struct fetching *fetching, struct err *err)
{
	AUTO_FREE char *id = mem_strdup(run_id(fetching->run));
	bool was_cut = false;
	int r = 0;

	while (r == 0) {
		bool ended = run_state_is_final(run_state(fetching->run));
		int64_t begun_ms = clock_ms();
		size_t before = fetching->report.files;

		r = fetch_once(fetching, err);
		if (r == 0 ? ended : app_interrupted || !is_for_now(err, ended))
			return r;
		bool is_cut = r < 0 && err->code == ERR_NET;
		if (is_cut && !was_cut)
			app_note(fetching->app, "[%s; trying again]", err->message);
		was_cut = is_cut;
		err_clear(err);
		print_round(fetching, fetching->report.files - before);
		r = begin_round(fetching, id, clock_ms() - begun_ms, err);
	}
	return r;
}

static int cmd_fetch_check(
	const struct fetch_values *values, const struct strv *words, struct err *err)
{
	const char *run = words->n ? words->v[0] : "@";

	if (values->list && (values->follow || values->output || values->force)) {
		err_set(err, E_USAGE,
			"--list cannot be used together with --follow, -o or --force");
		return err_hint(err, "dlrun fetch --list %s", run);
	}
	if (values->tree && words->n < 2) {
		err_set(err, E_USAGE, "--tree wants the paths to be fetched");
		return err_hint(err, "dlrun fetch --tree %s logs/train.txt", run);
	}
	return 0;
}

static int copy_files(struct fetching *fetching)
{
	struct app *app = fetching->app;
	AUTO_ERR struct err err = {0};
	int r = fetching->values->follow ? follow_files(fetching, &err)
					 : fetch_once(fetching, &err);

	/* Report the fetched files even if something else went wrong. */
	if (fetching->run && (r == 0 || fetching->report.files + fetching->report.skipped))
		cmd_fetch_print(fetching);
	if (r < 0)
		return app_fail(app, &err);
	return app->options.json ? cmd_fetch_print_json(fetching) : 0;
}

/*
 * Studies: a directory for each run below one of the study
 */

/* Paths that none of the runs has are an error. */
static bool fetch_is_partial(const struct err *err, size_t n_found)
{
	return err->id == E_FETCH_PATH && n_found > 0;
}

static int fetch_list_study(
	struct fetching *fetching, const char *study, const struct run_list *runs)
{
	struct app *app = fetching->app;
	AUTO_JSON struct json *json = app_json("files");
	struct json *list = json_array();
	AUTO_ERR struct err missing = {0};
	AUTO_TABLE struct ui_table table;
	size_t n = 0;

	json_set_str(json, "study", study);
	json_set(json, "files", list);
	ui_table_init(&table, list_columns, ARRAY_LEN(list_columns));
	vec_foreach (struct run *, run, runs) {
		AUTO(outputs_files_done) struct outputs_files files = {0};
		AUTO_ERR struct err err = {0};

		if (run_list_files(&app->session, *run, &fetching->options, &files, &err) < 0) {
			if (err.id != E_FETCH_PATH)
				return app_fail(app, &err);
			err_move(&missing, &err);
			continue;
		}
		n += files.n;
		add_list(&table, &files, run_id(*run));
		add_list_json(list, &files, run_id(*run));
	}
	if (err_is_set(&missing) && n == 0)
		return app_fail(app, &missing);
	if (app->options.json)
		return app_print_json(app, TAKE(json));
	if (n)
		return ui_table_print(app, &table) < 0;
	app_note(app, "no run of %s has results", study);
	return 0;
}

/* The directory of a study, as it was written or seen from here. The caller frees. */
static char *fetch_study_dir(const struct fetch_values *values, const char *study, struct err *err)
{
	AUTO_FREE char *shown = NULL;
	AUTO_BUF struct buf quoted = buf_with(PATH_MAX);

	if (values->output)
		return mem_strdup(values->output);
	if (!strchr(study, '/') && *study != '.' && *study)
		return mem_printf("%s%s", study, values->tree ? "-tree" : "");
	shown = str_shown(study);
	err_set(err, E_USAGE, "'%s' cannot be the name of a directory", shown);
	str_shell_quote(&quoted, study);
	err_hint(err, "dlrun fetch -o results %s", quoted.data);
	return NULL;
}

/* Fetch one run into dir/ID. */
static int fetch_member(
	struct fetching *fetching, const char *dir, struct run *run, struct err *err)
{
	struct app *app = fetching->app;
	AUTO_FREE char *below = fs_join(dir, run_id(run));
	AUTO_FREE char *path = fs_join(app->session.env.cwd, below);

	fetching->run = run;
	fetching->options.dir = below;
	fetching->options.hides = !fetching->values->output;
	if (!fetching->values->tree)
		fetch_params_clear(path);
	int r = fetch_once(fetching, err);
	if ((r == 0 || err->id == E_FETCH_PATH) && !fetching->values->tree) {
		AUTO_ERR struct err failure = {0};
		int w = fetch_params_write(path, run, &failure);
		if (r == 0 && w < 0)
			r = err_move(err, &failure);
	}
	fetching->run = NULL;
	return r;
}

static void fetch_print_study(const struct fetching *fetching, const char *dir, size_t n_runs)
{
	const struct fetch_report *report = &fetching->report;
	char bytes[16];

	app_note(fetching->app, "%zu %s fetched of %zu runs, %s, %zu unchanged · %s", report->files,
		report->files == 1 ? "file" : "files", n_runs, str_size(report->bytes, bytes),
		report->skipped, dir);
	if (report->in_git)
		app_note(fetching->app, "%zu %s in .git not fetched", report->in_git,
			report->in_git == 1 ? "file" : "files");
}

static void fetch_add_report(struct fetch_report *sum, const struct fetch_report *report)
{
	sum->files += report->files;
	sum->bytes += report->bytes;
	sum->skipped += report->skipped;
	sum->in_git += report->in_git;
}

/* All members; list gets an object for each. The first error is that of all. */
static int fetch_members(struct fetching *fetching, const char *dir, const struct run_list *runs,
	struct json *list, struct err *err)
{
	AUTO_ERR struct err first = {0};
	struct fetch_report sum = {0};
	size_t n_found = 0;

	vec_foreach (struct run *, run, runs) {
		AUTO_ERR struct err own = {0};

		fetching->report = (struct fetch_report){0};
		int r = fetch_member(fetching, dir, *run, &own);
		struct json *json = json_object();
		fetch_set_report(json, &fetching->report);
		json_set_str(json, "run", run_id(*run));
		json_add(list, json);
		fetch_add_report(&sum, &fetching->report);
		n_found += r == 0;
		if (r < 0 && own.id != E_FETCH_PATH)
			app_note(fetching->app, "%s: %s", run_id(*run), own.message);
		bool is_path = own.id == E_FETCH_PATH;
		if (r < 0 && (!err_is_set(&first) || (first.id == E_FETCH_PATH && !is_path)))
			err_move(&first, &own);
		if (app_interrupted)
			break;
	}
	fetching->report = sum;
	if (err_is_set(&first) && !fetch_is_partial(&first, n_found))
		return err_move(err, &first);
	return 0;
}

static int fetch_study(struct fetching *fetching, const char *study, const struct run_list *runs)
{
	struct app *app = fetching->app;
	AUTO_ERR struct err err = {0};
	AUTO_JSON struct json *json = app_json("fetch");
	struct json *list = json_array();
	AUTO_FREE char *dir = NULL, *whole = NULL;

	json_set(json, "runs", list);
	if (fetching->values->follow)
		err_set(&err, E_RUN_STUDY, "%s is a study: --follow is for one run", study);
	else
		dir = fetch_study_dir(fetching->values, study, &err);
	if (!dir)
		return app_fail(app, &err);
	int r = fetch_members(fetching, dir, runs, list, &err);
	if (r == 0 || fetching->report.files + fetching->report.skipped)
		fetch_print_study(fetching, dir, runs->n);
	if (r < 0)
		return app_fail(app, &err);
	if (!app->options.json)
		return 0;
	whole = fs_join(app->session.env.cwd, dir);
	json_set_str(json, "study", study);
	json_set_bytes(json, "dir", whole, strlen(whole));
	fetch_set_report(json, &fetching->report);
	return app_print_json(app, TAKE(json));
}

static int fetch_run(struct fetching *fetching, struct run_list *runs)
{
	/* Rounds of --follow read the run again. */
	fetching->run = TAKE(runs->v[0]);
	runs->n = 0;
	int status = fetching->values->list ? list_files(fetching) : copy_files(fetching);
	run_free(fetching->run);
	return status;
}

static int cmd_fetch_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct fetch_values *values = values_ptr;
	struct fetching fetching = {.app = app, .values = values};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *study = NULL;
	AUTO_STRV struct strv paths = {0};
	AUTO_ERR struct err err = {0};
	int status;

	for (size_t i = 1; i < words->n; i++)
		strv_add(&paths, words->v[i]);
	if (cmd_fetch_check(values, words, &err) < 0 ||
		runs_get_study(app, words->n ? words->v[0] : NULL, &runs, &study, &err) < 0)
		return app_fail(app, &err);
	fetching.options = (struct fetch_options){.paths = &paths,
		.dir = values->output,
		.force = values->force,
		.from_tree = values->tree,
		.interrupted = &app_interrupted,
		.progress = cmd_fetch_on_progress,
		.ctx = &fetching.transfer};
	app_catch_signals();
	if (study)
		status = values->list ? fetch_list_study(&fetching, study, &runs)
				      : fetch_study(&fetching, study, &runs);
	else
		status = fetch_run(&fetching, &runs);
	free(fetching.dir);
	return status;
}

const struct cmd cmd_fetch = {
	.name = "fetch",
	.summary = "Copy the results of a run here, while it runs or afterwards",
	.synopsis = "[options] [RUN|STUDY [PATH...]]",
	.examples = {"dlrun fetch @ # all results of the newest run, into a directory of its name",
		"dlrun fetch resnet-3k2f9 'checkpoints/*.pt' # only these; again: only what is new",
		"dlrun fetch tiger-4k2x9 -o runs # of a study: a directory and params.json for each run"},
	.opts = opts,
	.values_size = sizeof(struct fetch_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN_PATH,
	.flags = CMD_STUDIES,
	.run = cmd_fetch_run,
};
