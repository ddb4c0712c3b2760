/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/data/data.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/transfer.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

struct data_values {
	const char *target, *from;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 't', "target", struct data_values, target), .arg = "T",
		.help = "Where the data are (default: `target:`)", .values = VALUE_TARGET,
		.key = "target"},
	{OPT_MEMBER(OPT_STRING, 0, "from", struct data_values, from), .arg = "DIR",
		.help = "Push this directory instead of PATH in the working tree",
		.values = VALUE_DIR},
	{OPT_END},
};

static void data_on_progress(void *ctx, uint64_t done, uint64_t total)
{
	transfer_show_bytes(ctx, "data", done, total);
}

static int data_print_pushed(struct app *app, const struct data_pushed *pushed)
{
	char all[16], sent[16];

	if (pushed->n_passed)
		app_warn(app, "%zu sockets, pipes and devices are no part of the data",
			pushed->n_passed);
	for (size_t i = 0; i < pushed->changed.n; i++)
		app_warn(app, "%s", pushed->changed.v[i]);
	if (app->options.json)
		return app_print_json(app, data_pushed_json(pushed));
	app_phase(app, "data", "%zu %s, %s%s", pushed->n_files,
		pushed->n_files == 1 ? "file" : "files", str_size(pushed->bytes, all),
		pushed->was_there ? " · is there already, nothing was sent" : "");
	if (!pushed->was_there)
		app_phase(app, "", "%zu sent, %s%s", pushed->n_sent,
			str_size(pushed->bytes_sent, sent),
			pushed->n_hosts > 1 ? ", to all hosts together" : "");
	AUTO_FREE char *path = ui_clean(pushed->path);
	return ui_printf(app, UI_OUT, "%s@%s\n", path, pushed->id) < 0;
}

static void data_note_unlisted(struct app *app, const struct config *config, const char *path)
{
	const struct strv *list = config_list(config, "data");
	AUTO_FREE char *shown = ui_clean(path);

	for (size_t i = 0; i < list->n; i++)
		if (fs_below(path, list->v[i]))
			return;
	app_note(app, "runs do not see it yet: data: [%s] is not in dlrun.yaml", shown);
}

static void data_note_sub_path(struct app *app, const struct data_pushed *pushed)
{
	if (!pushed->sub_path)
		return;
	AUTO_FREE char *sub_path = ui_clean(pushed->sub_path), *path = ui_clean(pushed->path);
	app_note(app, "runs see it where data: of target %s says %s: {..., sub_path: %s}",
		pushed->target, path, sub_path);
}

static int data_run_push(
	struct app *app, const struct data_options *options, const struct config *config)
{
	AUTO(data_pushed_done) struct data_pushed pushed = {0};
	AUTO_ERR struct err err = {0};

	int r = data_push(&app->session, options, &pushed, &err);
	transfer_clear(options->ctx);
	if (r < 0)
		return app_fail(app, &err);
	r = data_print_pushed(app, &pushed);
	data_note_unlisted(app, config, pushed.path);
	data_note_sub_path(app, &pushed);
	return r;
}

static int data_print_versions(struct app *app, const struct data_versions *versions)
{
	static const struct ui_column columns[] = {{"DATA"}, {"CURRENT"}, {"FILES", true, false},
		{"SIZE", true, false}, {"PUSHED", .drop = 1}, {"FROM", .drop = 2, .cut = true},
		{"HOST", .drop = 3}};
	AUTO_TABLE struct ui_table table = {0};

	bool has_hosts = versions->list.v[0].host != NULL;

	ui_table_init(&table, columns, ARRAY_LEN(columns) - !has_hosts);
	vec_foreach (struct data_version, version, &versions->list) {
		const struct version_summary *summary = &version->summary;
		int64_t age_ms = clock_wall_ms() - summary->time_ms;
		AUTO_FREE char *path = ui_clean(version->path), *from = ui_clean(summary->host);
		AUTO_FREE char *host = ui_clean(version->host ? version->host : "");
		char size[16], age[32];
		duration_text(age_ms > 1000 ? age_ms - age_ms % 1000 : 0, age);
		ui_table_addf(
			&table, version->is_current ? UI_BOLD : "", "%s@%s", path, version->id);
		ui_table_add(&table, "", version->is_current ? "yes" : "");
		ui_table_addf(&table, "", "%llu", (unsigned long long)summary->n_files);
		ui_table_add(&table, "", str_size(summary->bytes, size));
		ui_table_addf(&table, "", "%s ago", age);
		ui_table_add(&table, "", from);
		if (has_hosts)
			ui_table_add(&table, "", host);
	}
	return ui_table_print(app, &table);
}

static int data_run_ls(struct app *app, const struct data_options *options)
{
	AUTO(data_versions_done) struct data_versions versions = {0};
	AUTO_ERR struct err err = {0};

	int r = data_list(&app->session, options, &versions, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return app_print_json(app, data_versions_json(&versions));
	if (versions.list.n)
		return data_print_versions(app, &versions);
	AUTO_FREE char *path = ui_clean(options->path ? options->path : "data");
	app_note(app, "%s has no versions of %s", versions.target, path);
	return 0;
}

/* PATH[@VERSION]: a path of data may have an @, too. */
static const char *data_version_of(
	const struct data_options *options, const struct config *config, const char *word)
{
	const char *target = options->target ? options->target : config_str(config, "target");
	const char *at = strrchr(word, '@');
	bool is_path = json_get(json_get(config_target(config, target), "data"), word) != NULL;

	return at && (str_starts(at, "@d-") || !is_path) ? at + 1 : NULL;
}

static int data_run_rm(struct app *app, const struct data_options *options,
	const struct config *config, const char *word)
{
	AUTO(data_versions_done) struct data_versions versions = {0};
	AUTO_ERR struct err err = {0};
	struct data_options own = *options;
	const char *id = data_version_of(options, config, word);
	AUTO_FREE char *name = id ? mem_strndup(word, (size_t)(id - 1 - word)) : mem_strdup(word);

	own.path = name;
	int r = data_remove(&app->session, &own, id, &versions, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (versions.has_rest)
		app_warn(app, "what belongs to another user remains on %s", versions.target);
	if (app->options.json)
		return app_print_json(app, data_versions_json(&versions));
	vec_foreach (struct data_version, version, &versions.list) {
		AUTO_FREE char *path = ui_clean(version->path);
		ui_printf(app, UI_OUT, "removed %s@%s\n", path, version->id);
	}
	return app->out_lost;
}

static int cmd_data_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct data_values *values = values_ptr;
	struct transfer transfer = {.app = app};
	const char *verb = words->v[0], *word = words->n > 1 ? words->v[1] : NULL;
	const struct data_options options = {.target = values->target,
		.path = word,
		.from = values->from,
		.note = transfer_on_note,
		.progress = data_on_progress,
		.ctx = &transfer,
		.interrupted = &app_interrupted};
	AUTO_ERR struct err err = {0};
	struct config *config;

	int r = str_choose(verb, "push ls rm", "the word behind data", &err);
	if (r == 0 && !word && !str_eq(verb, "ls"))
		r = err_set(&err, E_USAGE, "data %s: missing argument PATH", verb);
	if (r == 0 && values->from && !str_eq(verb, "push"))
		r = err_set(&err, E_USAGE, "--from requires data push");
	if (r == 0)
		r = app_config(app, opts, values, &config, &err);
	if (r < 0)
		return app_fail(app, &err);
	app_catch_signals();
	if (str_eq(verb, "push"))
		return data_run_push(app, &options, config);
	return word && str_eq(verb, "rm") ? data_run_rm(app, &options, config, word)
					  : data_run_ls(app, &options);
}

const struct cmd cmd_data = {
	.name = "data",
	.summary = "Push data to a target in versions, list and remove them",
	.synopsis = "push|ls|rm [options] [PATH[@VERSION]]",
	.examples =
		{"dlrun data push data/imagenet -t lab # a version on the hosts; what they have does not travel",
			"dlrun data ls -t lab # versions of all data, the current one of each",
			"dlrun data rm data/imagenet@d-71c2 -t lab # one version"},
	.opts = opts,
	.values_size = sizeof(struct data_values),
	.min_words = 1,
	.max_words = 2,
	.words = VALUE_DATA,
	.flags = CMD_STARTS,
	.run = cmd_data_run,
};
