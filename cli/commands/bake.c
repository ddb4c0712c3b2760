/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/environment.h"
#include "app/environment/warm.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "cli/runs/transfer.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

/* Of bake and warm, which make ahead what runs need. */
struct bake_values {
	const char *target, *image;
	int64_t nodes, allow_size;
	struct strv include, allow;
};

/* Options of both. */
#define BAKE_TARGET                                                                                \
	{                                                                                          \
		OPT_MEMBER(OPT_STRING, 't', "target", struct bake_values, target),                 \
			.arg = "T", .help = "The target (default: `target:`)",                     \
			.values = VALUE_TARGET, .key = "target"                                    \
	}
#define BAKE_TREE                                                                                  \
	{OPT_MEMBER(OPT_STRING, 0, "image", struct bake_values, image), .arg = "BASE",             \
		.help = "Base image: HOST/REPO[:TAG], or oci:DIR[:TAG]", .key = "image"},          \
		{OPT_MEMBER(OPT_LIST, 0, "include", struct bake_values, include), .arg = "PATH",   \
			.help = "Include a path that git ignores", .values = VALUE_FILE},          \
		{OPT_MEMBER(OPT_LIST, 0, "allow", struct bake_values, allow), .arg = "PATH",       \
			.help = "Allow a file that was refused as secret or large",                \
			.values = VALUE_FILE},                                                     \
	{                                                                                          \
		OPT_MEMBER(OPT_SIZE, 0, "allow-size", struct bake_values, allow_size),             \
			.arg = "SIZE", .help = "Allow a working tree of up to SIZE (500Mi, 2Gi)"   \
	}

static const struct opt opts[] = {BAKE_TARGET, BAKE_TREE, {OPT_END}};

static const struct opt warm_opts[] = {BAKE_TARGET,
	{OPT_MEMBER(OPT_INT, 'N', "nodes", struct bake_values, nodes), .arg = "N",
		.help = "How many nodes or hosts (default: all that could take the run)", .min = 1,
		.max = RESOURCES_NODES_MAX},
	BAKE_TREE, {OPT_END}};

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

/* Common to both: the options of a submit whose command nobody starts; it may be named, for a base
 * is proposed by it. */
struct bake_context {
	struct strv nothing;
	struct submit_options options;
	struct transfer transfer;
	struct submit_events events;
};

static int bake_begin(struct app *app, const struct opt *table, const struct bake_values *values,
	const struct strv *words, struct bake_context *ret, struct err *err)
{
	struct config *config;

	*ret = (struct bake_context){
		.options = {.command = words->n ? words : &ret->nothing,
			.include = &values->include,
			.allow = &values->allow,
			.allow_bytes = values->allow_size == OPT_UNSET ? 0 : values->allow_size},
		.transfer = {.app = app},
		.events = {.progress = transfer_on_progress,
			.note = transfer_on_note,
			.warning = bake_show_warning,
			.ctx = &ret->transfer},
	};
	strv_add(&ret->nothing, "true");
	return app_config(app, table, values, &config, err);
}

static void bake_end(struct bake_context *context)
{
	transfer_clear(&context->transfer);
	strv_done(&context->nothing);
}

static int cmd_bake_run(struct app *app, void *values, struct strv *words)
{
	AUTO(environment_ahead_done) struct environment_ahead ahead = {0};
	AUTO_ERR struct err err = {0};
	struct bake_context context;

	int r = bake_begin(app, opts, values, words, &context, &err);
	if (r == 0)
		r = environment_make_ahead(
			&app->session, &context.options, &context.events, &ahead, &err);
	bake_end(&context);
	return r < 0 ? app_fail(app, &err) : bake_print(app, &ahead);
}

const struct cmd cmd_bake = {
	.name = "bake",
	.summary = "Make the environment of this project on a cluster before its first run",
	.synopsis = "[options] [--] [PROGRAM [ARGUMENT...]]",
	.examples = {"dlrun bake # the environment for the runs of this project's target",
		"dlrun bake -t gpu-cluster -- uv run train.py # by the base that this program gets",
		"dlrun bake --json # with the reference of its image, for a script"},
	.opts = opts,
	.values_size = sizeof(struct bake_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_COMMAND,
	.flags = CMD_STARTS | CMD_PROGRAM,
	.run = cmd_bake_run,
};

/* 1 where nodes are cold. */
static int warm_print(struct app *app, const struct warm_result *result)
{
	size_t n_cold = (size_t)result->wanted - result->warm.n;
	bool is_hosts = !result->ref;
	char took[32];

	if (app->options.json)
		return app_print_json(app, warm_result_json(result)) || n_cold;
	int r = ui_printf(app, UI_OUT, "%s: %zu of %d %s, in %s\n", result->target, result->warm.n,
		result->wanted, is_hosts ? "hosts are warm" : "nodes have the image",
		duration_text(result->total_ms, took));
	for (size_t i = 0; r == 0 && i < result->cold.n; i++)
		r = ui_printf(
			app, UI_OUT, "cold: %s: %s\n", result->cold.v[i], result->cold_why.v[i]);
	for (size_t i = 0; r == 0 && i < result->pulling.n; i++)
		r = ui_printf(app, UI_OUT, "cold: %s\n", result->pulling.v[i]);
	if (r == 0 && result->why)
		r = ui_printf(app, UI_OUT, "%zu cold: %s\n", n_cold, result->why);
	return r < 0 || n_cold;
}

static int cmd_warm_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct bake_values *values = values_ptr;
	int nodes = values->nodes == OPT_UNSET ? 0 : (int)values->nodes;
	AUTO(warm_result_done) struct warm_result result = {0};
	AUTO_ERR struct err err = {0};
	struct bake_context context;

	int r = bake_begin(app, warm_opts, values, words, &context, &err);
	if (r == 0)
		r = warm_nodes(
			&app->session, &context.options, nodes, &context.events, &result, &err);
	bake_end(&context);
	return r < 0 ? app_fail(app, &err) : warm_print(app, &result);
}

const struct cmd cmd_warm = {
	.name = "warm",
	.summary = "Bring what this project's runs need to the nodes or hosts of a target",
	.synopsis = "[options] [--] [PROGRAM [ARGUMENT...]]",
	.examples =
		{"dlrun warm # base, environment, data and code on the nodes that could take the run",
			"dlrun warm -t lab --nodes 8 # on eight hosts of a pool",
			"dlrun warm --json # which nodes have the image, for a script"},
	.opts = warm_opts,
	.values_size = sizeof(struct bake_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_COMMAND,
	.flags = CMD_STARTS | CMD_PROGRAM,
	.run = cmd_warm_run,
};
