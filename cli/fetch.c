#include "base/auto.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/runs.h"
#include "cli/transfer.h"
#include "cli/ui.h"
#include "run/fetch.h"

struct fetch_values {
	const char *output;
	bool force, tree;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 'o', "output", struct fetch_values, output), .arg = "DIR",
		.help = "Into DIR, which is made if it is missing; default: the id of the run",
		.values = VALUE_DIR},
	{OPT_MEMBER(OPT_FLAG, 0, "force", struct fetch_values, force),
		.help = "Replace files, too, that did not come from a fetch or were changed since"},
	{OPT_MEMBER(OPT_FLAG, 0, "tree", struct fetch_values, tree),
		.help = "PATHs are of the tree that the program runs in, not of its results; "
			"into the id of the run and -tree"},
	{OPT_END},
};

/* As it was written, if it was, since that is where people look. */
static void say(struct app *app, const char *dir, const struct fetch_values *values,
	const struct run *run, const struct fetch_report *report)
{
	const char *shown = values->output ? values->output : run_id(run);
	char bytes[16];

	if (report->files + report->skipped == 0) {
		app_note(app, "%s has no results to fetch", run_id(run));
		return;
	}
	app_note(app, "%zu %s fetched, %s, %zu unchanged · %s", report->files,
		report->files == 1 ? "file" : "files", str_size(report->bytes, bytes),
		report->skipped, app->shell_dir ? dir : shown);
}

static int print_json(
	struct app *app, const char *dir, const struct run *run, const struct fetch_report *report)
{
	struct json *json = app_json("fetch");

	json_set_str(json, "run", run_id(run));
	json_set_bytes(json, "dir", dir, strlen(dir));
	json_set_int(json, "files", (int64_t)report->files);
	json_set_int(json, "bytes", (int64_t)report->bytes);
	json_set_int(json, "skipped", (int64_t)report->skipped);
	return app_print_json(app, json);
}

static void on_progress(void *ctx, const struct fetch_progress *progress)
{
	transfer_show_bytes(ctx, "fetch", progress->bytes_done, progress->bytes);
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct fetch_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	AUTO_STRV struct strv paths = {0};
	AUTO_FREE char *dir = NULL;
	struct fetch_report report = {0};
	struct transfer transfer = {.app = app};

	if (values->tree && words->n < 2) {
		err_set(&err, E_USAGE, "--tree wants the paths to be fetched");
		err_hint(
			&err, "dlrun fetch --tree %s logs/train.txt", words->n ? words->v[0] : "@");
		return app_fail(app, &err);
	}
	for (size_t i = 1; i < words->n; i++)
		strv_add(&paths, words->v[i]);
	if (runs_get(app, words->n ? words->v[0] : NULL, &run, &err) < 0)
		return app_fail(app, &err);
	const struct fetch_options options = {.paths = &paths,
		.dir = values->output,
		.force = values->force,
		.from_tree = values->tree,
		.interrupted = &app_interrupted,
		.progress = on_progress,
		.ctx = &transfer};
	app_catch_signals();
	int r = run_fetch(&app->session, run, &options, &dir, &report, &err);
	transfer_clear(&transfer);
	/* What was fetched is there, whatever else went wrong. */
	if (r == 0 || report.files + report.skipped)
		say(app, dir, values, run, &report);
	if (r < 0)
		return app_fail(app, &err);
	return app->options.json ? print_json(app, dir, run, &report) : 0;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun fetch @ # all results of the newest run, into a directory of its name",
	"dlrun fetch resnet-3k2f9 'checkpoints/*.pt' # only these; again: only what is new",
	"dlrun fetch @ runs -o curves # one directory of the results, into curves/runs",
};

const struct cmd cmd_fetch = {
	.name = "fetch",
	.summary = "Copy the results of a run here, while it runs or afterwards",
	.synopsis = "[options] [RUN [PATH...]]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct fetch_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN_PATH,
	.run = run,
};
