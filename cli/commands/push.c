/* SPDX-License-Identifier: Apache-2.0 */

#include "app/prepare/push.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/preview.h"
#include "cli/runs/transfer.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

struct push_values {
	const char *image, *to, *target;
	int64_t allow_size;
	bool full, copy_base, trace, dry_run;
	struct strv include, allow;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 0, "to", struct push_values, to), .arg = "REPO",
		.help = "Where to: HOST/REPO[:TAG] or oci:DIR[:TAG] (default: `registry:`, else "
			"dlrun's own OCI layout)",
		.values = VALUE_DIR},
	{OPT_MEMBER(OPT_STRING, 't', "target", struct push_values, target), .arg = "T",
		.help = "To the registry of this target", .values = VALUE_TARGET},
	{OPT_MEMBER(OPT_STRING, 0, "image", struct push_values, image), .arg = "BASE",
		.help = "Base image: scratch, HOST/REPO[:TAG], or oci:DIR[:TAG]", .key = "image"},
	{OPT_MEMBER(OPT_FLAG, 0, "copy-base", struct push_values, copy_base),
		.help = "Copy base layers from another registry if needed"},
	{OPT_MEMBER(OPT_LIST, 0, "include", struct push_values, include), .arg = "PATH",
		.help = "Include a path that git ignores", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_LIST, 0, "allow", struct push_values, allow), .arg = "PATH",
		.help = "Allow a file that was refused as secret or large", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_SIZE, 0, "allow-size", struct push_values, allow_size), .arg = "SIZE",
		.help = "Allow a working tree of up to SIZE (500Mi, 2Gi)"},
	{OPT_MEMBER(OPT_FLAG, 0, "full", struct push_values, full),
		.help = "Write the full code layer, not only what changed"},
	{OPT_MEMBER(OPT_FLAG, 0, "dry-run", struct push_values, dry_run),
		.help = "List files and layers; send and keep nothing"},
	{OPT_MEMBER(OPT_FLAG, 0, "trace", struct push_values, trace),
		.help = "Show each request with its time and bytes"},
	{OPT_END},
};

/*
 * While it goes on
 */

static void show_snapshot(void *ctx, const struct snapshot *snapshot, int64_t ms)
{
	struct transfer *transfer = ctx;

	transfer_clear(transfer);
	preview_print_snapshot(transfer->app, snapshot, ms);
}

static void show_exchange(void *ctx, const struct http_event *event)
{
	struct transfer *transfer = ctx;

	transfer_clear(transfer);
	ui_printf(transfer->app, UI_ERR, "%-6s %s %d %lld ms up %llu down %llu%s%s\n",
		event->method, event->url, event->status, (long long)event->ms,
		(unsigned long long)event->bytes_up, (unsigned long long)event->bytes_down,
		event->error ? " " : "", event->error ? event->error->message : "");
}

/*
 * The end
 */

static bool cmd_push_is_there(const struct push_result *result, const char *digest)
{
	return strv_find(&result->there, digest) >= 0;
}

static struct json *dry_json(const struct push_result *result)
{
	struct json *json = push_result_json(result);

	json_set_bool(json, "dry_run", true);
	preview_add_files(result->snapshot, json);
	return json;
}

static void add_base_row(const struct push_result *result, struct ui_table *table)
{
	size_t n = 0, n_there = 0;
	uint64_t bytes = 0;
	char size[16];

	for (size_t i = 0; i < result->image.n_layers; i++) {
		const struct image_layer *layer = &result->image.layers[i];
		if (layer->role != IMAGE_ROLE_BASE)
			continue;
		n++;
		n_there += cmd_push_is_there(result, layer->blob.digest);
		bytes += layer->blob.size;
	}
	if (n == 0)
		return;
	ui_table_add(table, "", "base");
	ui_table_add(table, "", str_size(bytes, size));
	ui_table_add(table, "", n_there == n ? "is there" : "to mount");
	ui_table_addf(table, UI_DIM, "%zu %s of %s", n, n == 1 ? "layer" : "layers", result->base);
}

static void print_layers(struct app *app, const struct push_result *result)
{
	static const struct ui_column columns[] = {{"LAYER", false, false}, {"SIZE", true, false},
		{"", false, false}, {"DIGEST", false, true}};
	AUTO_TABLE struct ui_table table;
	char bytes[16];

	ui_table_init(&table, columns, sizeof(columns) / sizeof(*columns));
	add_base_row(result, &table);
	for (size_t i = 0; i < result->image.n_layers; i++) {
		const struct image_layer *layer = &result->image.layers[i];
		bool there = cmd_push_is_there(result, layer->blob.digest);
		if (layer->role == IMAGE_ROLE_BASE)
			continue;
		ui_table_add(&table, "", image_role_name(layer->role));
		ui_table_add(&table, "", str_size(layer->blob.size, bytes));
		ui_table_add(&table, "", there ? "is there" : "to send");
		ui_table_add(&table, UI_DIM, layer->blob.digest);
	}
	ui_table_print(app, &table);
}

static int print_dry_run(struct app *app, const struct push_result *result)
{
	if (app->options.json)
		return app_print_json(app, dry_json(result));
	preview_print_files(app, result->snapshot);
	print_layers(app, result);
	app_note(app, "nothing was sent: this was --dry-run");
	return app->out_lost;
}

static int print_result(struct app *app, const struct push_result *result, bool dry_run)
{
	preview_print_image(app, &result->image, result->pack_ms + result->push_ms);
	vec_foreach (char *, text, &result->snapshot->warnings)
		app_warn(app, "%s", *text);
	vec_foreach (char *const, text, &result->warnings)
		app_warn(app, "%s", *text);
	if (dry_run)
		return print_dry_run(app, result);
	if (app->options.json)
		return app_print_json(app, push_result_json(result));
	return ui_printf(app, UI_OUT, "%s\n", result->ref) < 0;
}

static int cmd_push_run(struct app *app, void *values_ptr, struct strv *words UNUSED)
{
	const struct push_values *values = values_ptr;
	const struct submit_options tree = {.include = &values->include,
		.allow = &values->allow,
		.allow_bytes = values->allow_size == OPT_UNSET ? 0 : values->allow_size,
		.full = values->full};
	const struct push_options options = {.to = values->to,
		.target = values->target,
		.base = values->image,
		.full = values->full,
		.copy_base = values->copy_base,
		.dry_run = values->dry_run,
		.tree = &tree};
	struct transfer transfer = {.app = app};
	const struct submit_events events = {.snapshot = show_snapshot,
		.exchange = values->trace ? show_exchange : NULL,
		.progress = transfer_on_progress,
		.note = transfer_on_note,
		.ctx = &transfer};
	AUTO_ERR struct err err = {0};
	AUTO(push_result_done) struct push_result result = {0};
	struct config *config;

	int r = app_config(app, opts, values, &config, &err);
	if (r == 0)
		r = push_image(&app->session, &options, &events, &result, &err);
	transfer_clear(&transfer);
	return r < 0 ? app_fail(app, &err) : print_result(app, &result, values->dry_run);
}

const struct cmd cmd_push = {
	.name = "push",
	.summary = "Push this directory's code as an image, print its reference",
	.synopsis = "[options]",
	.examples =
		{"dlrun push --to reg.example.com/me/code # an image of the working tree in a registry",
			"dlrun push --dry-run # what would be sent, file by file",
			"dlrun push --to oci:out:v1 # an OCI image layout on disk, with a tag"},
	.opts = opts,
	.values_size = sizeof(struct push_values),
	.flags = CMD_STARTS,
	.run = cmd_push_run,
};
