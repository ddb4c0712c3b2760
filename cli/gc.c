#include "base/auto.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/ui.h"
#include "run/ops.h"

#define KEEP_MS (7LL * 24 * 60 * 60 * 1000)

struct gc_values {
	bool dry_run;
	int64_t keep;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "dry-run", struct gc_values, dry_run),
		.help = "Say what would be freed, and free nothing"},
	{OPT_MEMBER(OPT_DURATION, 0, "keep", struct gc_values, keep), .arg = "TIME",
		.help = "Keep the trees of runs that ended within this time (default: 7d)"},
	{OPT_END},
};

static int print_json(struct app *app, const struct gc_report *report, bool dry_run)
{
	struct json *json = app_json("gc");

	json_set_bool(json, "dry_run", dry_run);
	json_set_int(json, "bytes", (int64_t)report->bytes);
	json_set_int(json, "trees", (int64_t)report->trees);
	json_set_int(json, "blobs", (int64_t)report->blobs);
	json_set_int(json, "files", (int64_t)report->files);
	return app_print_json(app, json);
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct gc_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	struct gc_report report = {0};
	struct session *session;
	char bytes[16];

	(void)words;
	if (app_session(app, &session, &err) < 0 ||
		gc_local(session, values->keep == OPT_UNSET ? KEEP_MS : values->keep,
			values->dry_run, &report, &err) < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return print_json(app, &report, values->dry_run);
	ui_printf(app, UI_OUT, "%s %s: %zu %s, %zu %s, %zu other %s\n",
		values->dry_run ? "would free" : "freed", str_size(report.bytes, bytes),
		report.trees, report.trees == 1 ? "tree" : "trees", report.blobs,
		report.blobs == 1 ? "blob" : "blobs", report.files,
		report.files == 1 ? "file" : "files");
	return 0;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun gc # free what no run needs",
	"dlrun gc --dry-run # only say how much that would be",
	"dlrun gc --keep 0 # drop the trees of all ended runs, too",
};

const struct cmd cmd_gc = {
	.name = "gc",
	.summary = "Free the space that no run needs any more",
	.synopsis = "[options]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct gc_values),
	.run = run,
};
