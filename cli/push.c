#include "base/auto.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/preview.h"
#include "cli/ui.h"
#include "run/submit.h"

struct push_values {
	const char *image, *to;
	int64_t allow_size;
	bool full;
	struct strv include, allow;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 0, "image", struct push_values, image), .arg = "BASE",
		.help = "Base image: scratch or oci:DIR[:TAG]", .key = "image"},
	{OPT_MEMBER(OPT_STRING, 0, "to", struct push_values, to), .arg = "oci:DIR[:TAG]",
		.help = "An OCI image layout on disk (default: dlrun's own)", .values = VALUE_DIR},
	{OPT_MEMBER(OPT_LIST, 0, "include", struct push_values, include), .arg = "PATH",
		.help = "Send a path that git ignores, too", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_LIST, 0, "allow", struct push_values, allow), .arg = "PATH",
		.help = "Send a file that was refused as secret or large", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_SIZE, 0, "allow-size", struct push_values, allow_size), .arg = "SIZE",
		.help = "Send a tree of up to SIZE (500Mi, 2Gi)"},
	{OPT_MEMBER(OPT_FLAG, 0, "full", struct push_values, full),
		.help = "Write the whole code layer anew, not what changed"},
	{OPT_END},
};

static int print_result(struct app *app, const struct push_result *result)
{
	preview_say_snapshot(app, result->snapshot, result->snapshot_ms);
	preview_say_image(app, &result->image, result->pack_ms + result->push_ms);
	vec_foreach (char *, text, &result->snapshot->warnings)
		app_warn(app, "%s", *text);
	if (app->options.json)
		return app_print_json(app, push_result_json(result));
	return ui_printf(app, UI_OUT, "%s\n", result->ref) < 0;
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct push_values *values = values_ptr;
	const struct submit_options options = {.include = &values->include,
		.allow = &values->allow,
		.allow_bytes = values->allow_size == OPT_UNSET ? 0 : values->allow_size,
		.full = values->full};
	AUTO_ERR struct err err = {0};
	AUTO(push_result_done) struct push_result result = {0};
	struct config *config;

	(void)words;
	if (app_config(app, opts, values, &config, &err) < 0 ||
		push_image(&app->session, values->image, values->to, values->full, &options,
			&result, &err) < 0)
		return app_fail(app, &err);
	return print_result(app, &result);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun push # an image of this tree in dlrun's own store",
	"dlrun push --to oci:out # the same in an OCI image layout that other tools read",
	"dlrun push --image oci:base:2.5 --to oci:out:v1 # on a base image, with a tag",
};

const struct cmd cmd_push = {
	.name = "push",
	.summary = "Make an image of this directory's code and print its reference",
	.synopsis = "[options]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct push_values),
	.run = run,
};
