/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard.h"

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

enum { PORT_MAX = 65535 };

struct tensorboard_values {
	int64_t port;
	bool remote, scalars, no_open;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_INT, 0, "port", struct tensorboard_values, port), .arg = "N", .min = 1,
		.max = PORT_MAX,
		.help = "At this port here; default: 6006 or the next one that is free"},
	{OPT_MEMBER(OPT_FLAG, 0, "remote", struct tensorboard_values, remote),
		.help = "Use the TensorBoard that runs with the program, or start one there"},
	{OPT_MEMBER(OPT_FLAG, 0, "scalars", struct tensorboard_values, scalars),
		.help = "Copy only what curves need: no images, audio, graphs, histograms"},
	{OPT_MEMBER(OPT_FLAG, 0, "no-open", struct tensorboard_values, no_open),
		.help = "Only print the URL, open no browser"},
	{OPT_END},
};

struct showing {
	struct app *app;
	const struct tensorboard_values *values;
	const struct run_list *runs;
	struct json *list; /* runs of the JSON */
};

/*
 * Messages
 */

static void cmd_tensorboard_add_json(
	struct showing *showing, const struct run *run, const struct mirror_state *state)
{
	struct json *json = json_object();

	json_set_str(json, "id", run_id(run));
	json_set_str(json, "state", run_state_name(run_state(run)));
	if (state) {
		json_set_int(json, "files", (int64_t)state->files);
		json_set_int(json, "bytes", (int64_t)state->bytes);
		json_set_int(json, "plugin_files", (int64_t)state->plugin_files);
		json_set_int(json, "plugin_bytes", (int64_t)state->plugin_bytes);
		json_set_int(json, "plugin_files_left_out", (int64_t)state->n_excluded);
	}
	json_add(showing->list, json);
}

static void on_mirrored(void *ctx, const struct mirror_state *states, size_t n)
{
	struct showing *showing = ctx;
	size_t files = 0, plugin_files = 0;
	uint64_t bytes = 0, plugin_bytes = 0;
	char size[16];
	AUTO_FREE char *plugins = NULL;
	bool goes_on = false;

	for (size_t i = 0; i < n; i++) {
		files += states[i].files;
		bytes += states[i].bytes;
		plugin_files += states[i].plugin_files;
		plugin_bytes += states[i].plugin_bytes;
		goes_on |= !states[i].is_over;
		cmd_tensorboard_add_json(showing, showing->runs->v[i], &states[i]);
	}
	plugins = plugin_files ? mem_printf(" · %zu of plugins · %s", plugin_files,
					 str_size(plugin_bytes, size))
			       : mem_strdup("");
	app_phase(showing->app, "mirror", "%zu %s · %zu event %s · %s%s%s%s", n,
		n == 1 ? "run" : "runs", files, files == 1 ? "file" : "files",
		str_size(bytes, size), plugins, showing->values->scalars ? " · curves only" : "",
		goes_on ? " · new bytes only, every 5 s" : "");
}

static void cmd_tensorboard_print_json(
	const struct showing *showing, const struct tensorboard_shown *shown)
{
	struct json *json = app_json("tensorboard");

	json_set_str(json, "url", shown->url);
	json_set_int(json, "port", shown->port);
	json_set_str(json, "version", shown->version);
	json_set_str(json, "program", shown->program);
	json_set(json, "remote_port", json_null());
	if (shown->remote)
		json_set_int(json, "remote_port", shown->remote);
	json_set(json, "runs", json_clone(showing->list));
	app_print_json(showing->app, json);
}

static void print_remote(
	struct app *app, const struct run *run, const struct tensorboard_shown *shown)
{
	app_phase(app, "remote", "TensorBoard %s at port %u in %s, %s", shown->version,
		shown->remote, run_id(run), shown->was_found ? "found there" : "started there");
}

static void on_shown(void *ctx, const struct tensorboard_shown *shown)
{
	struct showing *showing = ctx;
	struct app *app = showing->app;
	bool is_seen = app->out_tty && app->err_tty;

	if (shown->remote) {
		cmd_tensorboard_add_json(showing, showing->runs->v[0], NULL);
		print_remote(app, showing->runs->v[0], shown);
	}
	if (app->options.json) {
		cmd_tensorboard_print_json(showing, shown);
		return;
	}
	/* On a terminal once is enough. */
	app_phase(app, "open", "%s  (Ctrl-C stops serving; runs are not touched)", shown->url);
	if (!is_seen || app->options.quiet)
		ui_printf(app, UI_OUT, "%s\n", shown->url);
	if (is_seen && !showing->values->no_open)
		(void)browser_open(shown->open_url);
}

static void cmd_tensorboard_on_notice(void *ctx, const char *text)
{
	const struct showing *showing = ctx;

	app_note(showing->app, "%s", text);
}

/*
 * The command
 */

static int get_runs(
	struct app *app, const struct strv *words, struct run_list *ret, struct err *err)
{
	struct run *run;

	if (words->n)
		return runs_get_all(app, words, ret, err);
	int r = runs_get(app, NULL, &run, err);
	if (r == 0)
		*vec_push(ret) = run;
	return r;
}

static int cmd_tensorboard_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct tensorboard_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};

	if (get_runs(app, words, &runs, &err) < 0)
		return app_fail(app, &err);
	AUTO_JSON struct json *list = json_array();
	struct showing showing = {.app = app, .values = values, .runs = &runs, .list = list};
	const struct tensorboard_options options = {
		.port = values->port == OPT_UNSET ? 0 : (uint16_t)values->port,
		.remote = values->remote,
		.scalars_only = values->scalars,
		.mirrored = on_mirrored,
		.shown = on_shown,
		.notice = cmd_tensorboard_on_notice,
		.ctx = &showing,
		.interrupted = &app_interrupted};
	app_catch_signals();
	int r = run_tensorboard(&app->session, &runs, &options, &err);
	if (r < 0 && app_interrupted) {
		app_note_interrupted(app, "no longer serving; runs are not touched");
		return 0;
	}
	return r < 0 ? app_fail(app, &err) : 0;
}

const struct cmd cmd_tensorboard = {
	.name = "tensorboard",
	.summary = "Show runs in TensorBoard, in the browser",
	.synopsis = "[options] [RUN|STUDY...]",
	.examples = {"dlrun tensorboard # the newest run, in the browser",
		"dlrun tensorboard @ @-1 resnet-3k2f9 # three runs side by side, wherever they ran",
		"dlrun tensorboard --remote @ # the one that runs with the program: nothing is copied"},
	.opts = opts,
	.values_size = sizeof(struct tensorboard_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.flags = CMD_STUDIES,
	.run = cmd_tensorboard_run,
};
