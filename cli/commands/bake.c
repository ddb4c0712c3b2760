/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/environment.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "cli/runs/transfer.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

struct bake_values {
	const char *target, *image;
	int64_t allow_size;
	struct strv include, allow;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 't', "target", struct bake_values, target), .arg = "T",
		.help = "The cluster (default: `target:`)", .values = VALUE_TARGET,
		.key = "target"},
	{OPT_MEMBER(OPT_STRING, 0, "image", struct bake_values, image), .arg = "BASE",
		.help = "Base image: HOST/REPO[:TAG], or oci:DIR[:TAG]", .key = "image"},
	{OPT_MEMBER(OPT_LIST, 0, "include", struct bake_values, include), .arg = "PATH",
		.help = "Include a path that git ignores", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_LIST, 0, "allow", struct bake_values, allow), .arg = "PATH",
		.help = "Allow a file that was refused as secret or large", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_SIZE, 0, "allow-size", struct bake_values, allow_size), .arg = "SIZE",
		.help = "Allow a working tree of up to SIZE (500Mi, 2Gi)"},
	{OPT_END},
};

static void bake_show_warning(void *ctx, const char *text)
{
	struct transfer *transfer = ctx;

	transfer_clear(transfer);
	app_warn(transfer->app, "%s", text);
}

static int bake_print(struct app *app, const struct environment_ahead *ahead)
{
	char size[16], took[32];

	if (app->options.json)
		return app_print_json(app, environment_ahead_json(ahead));
	return ui_printf(app, UI_OUT, "%s  %s  %s in %s%s\n", ahead->name,
		       str_size(ahead->bytes, size), ahead->is_made ? "made" : "found",
		       duration_text(ahead->total_ms, took),
		       ahead->is_made ? "" : ": nothing to do") < 0;
}

static int cmd_bake_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct bake_values *values = values_ptr;
	AUTO_STRV struct strv nothing = {0};
	const struct submit_options options = {.command = &nothing,
		.include = &values->include,
		.allow = &values->allow,
		.allow_bytes = values->allow_size == OPT_UNSET ? 0 : values->allow_size};
	struct transfer transfer = {.app = app};
	const struct submit_events events = {.progress = transfer_on_progress,
		.note = transfer_on_note,
		.warning = bake_show_warning,
		.ctx = &transfer};
	AUTO_ERR struct err err = {0};
	AUTO(environment_ahead_done) struct environment_ahead ahead = {0};
	struct config *config;

	(void)words;
	strv_add(&nothing, "true");
	int r = app_config(app, opts, values, &config, &err);
	if (r == 0)
		r = environment_make_ahead(&app->session, &options, &events, &ahead, &err);
	transfer_clear(&transfer);
	return r < 0 ? app_fail(app, &err) : bake_print(app, &ahead);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun bake # the environment for the runs of this project's target",
	"dlrun bake -t gpu-cluster # the same for another cluster",
	"dlrun bake --json # with the reference of its image, for a script",
};

const struct cmd cmd_bake = {
	.name = "bake",
	.summary = "Make the environment of this project on a cluster before its first run",
	.synopsis = "[options]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct bake_values),
	.flags = CMD_STARTS,
	.run = cmd_bake_run,
};
