/* SPDX-License-Identifier: Apache-2.0 */
#include "app/gc/gc.h"
#include "app/gc/gc_registry.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

#define KEEP_MS (7LL * 24 * 60 * 60 * 1000)

struct gc_values {
	bool dry_run, registry;
	int64_t keep;
	const char *target, *node;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "dry-run", struct gc_values, dry_run),
		.help = "Say what would be freed, and free nothing"},
	{OPT_MEMBER(OPT_DURATION, 0, "keep", struct gc_values, keep), .arg = "TIME",
		.help = "Keep trees of runs ended within TIME (7d), images younger than it (30d)"},
	{OPT_MEMBER(OPT_FLAG, 0, "registry", struct gc_values, registry),
		.help = "Delete old images of dlrun from the registry instead"},
	{OPT_MEMBER(OPT_STRING, 0, "node", struct gc_values, node), .arg = "HOST",
		.help = "On a host, or all hosts of a target, instead", .values = VALUE_TARGET},
	{OPT_MEMBER(OPT_STRING, 't', "target", struct gc_values, target), .arg = "T",
		.help = "Of --registry: only the registry of this target", .values = VALUE_TARGET},
	{OPT_END},
};

static int cmd_gc_print_json(struct app *app, const struct gc_report *report, bool dry_run)
{
	struct json *json = app_json("gc");

	json_set_bool(json, "dry_run", dry_run);
	json_set_int(json, "bytes", (int64_t)report->bytes);
	json_set_int(json, "trees", (int64_t)report->trees);
	json_set_int(json, "blobs", (int64_t)report->blobs);
	json_set_int(json, "files", (int64_t)report->files);
	return app_print_json(app, json);
}

/*
 * --registry
 */

static const char *const fates[GC_TAG_FATES] = {"old", "young", "needed", "shared", "unknown"};

static int print_registry_json(
	struct app *app, const struct gc_registry_report *report, bool dry_run)
{
	struct json *json = app_json("gc-registry"), *tags = json_array();

	json_set_bool(json, "dry_run", dry_run);
	json_set_int(json, "deleted", (int64_t)report->n[GC_TAG_OLD]);
	vec_foreach (struct gc_tag, tag, &report->tags) {
		struct json *row = json_object();

		json_set_str(row, "name", tag->name);
		json_set_bool(row, "deleted", tag->fate == GC_TAG_OLD);
		json_set_str(row, "why", fates[tag->fate]);
		if (tag->age_ms >= 0)
			json_set_int(row, "age_s", tag->age_ms / 1000);
		else
			json_set(row, "age_s", json_null());
		json_add(tags, row);
	}
	json_set(json, "tags", tags);
	return app_print_json(app, json);
}

static int print_registry(struct app *app, const struct gc_registry_report *report, bool dry_run)
{
	const size_t *n = report->n;
	char age[32];

	vec_foreach (struct gc_tag, tag, &report->tags)
		if (tag->fate == GC_TAG_OLD)
			ui_printf_fit(app, UI_OUT, 2, "%s %s, %s old\n",
				dry_run ? "would delete" : "deleted", tag->name,
				duration_text(tag->age_ms, age));
	ui_printf_fit(app, UI_OUT, 2,
		"%s %zu %s; kept %zu young, %zu that runs need, %zu with other tags, %zu of "
		"unknown age\n",
		dry_run ? "would delete" : "deleted", n[GC_TAG_OLD],
		n[GC_TAG_OLD] == 1 ? "image" : "images", n[GC_TAG_YOUNG], n[GC_TAG_NEEDED],
		n[GC_TAG_SHARED], n[GC_TAG_UNKNOWN]);
	if (report->more)
		app_note(app, "there are more tags than dlrun looks at in one go: repeat it");
	return 0;
}

/* Tags deleted before a failure are reported, too. */
static int run_registry(struct app *app, const struct gc_values *values)
{
	const struct gc_registry_options options = {.target = values->target,
		.keep_ms = values->keep == OPT_UNSET ? GC_REGISTRY_KEEP_MS : values->keep,
		.dry_run = values->dry_run};
	AUTO(gc_registry_report_done) struct gc_registry_report report = {0};
	AUTO_ERR struct err err = {0};
	struct session *session;

	int r = app_session(app, &session, &err);
	if (r == 0)
		r = gc_registry(session, &options, &report, &err);
	if (app->options.json)
		return r < 0 ? app_fail(app, &err)
			     : print_registry_json(app, &report, values->dry_run);
	if (r == 0 || report.tags.n)
		print_registry(app, &report, values->dry_run);
	return r < 0 ? app_fail(app, &err) : 0;
}

/*
 * --node
 */

static int run_node(struct app *app, const struct gc_values *values)
{
	int64_t keep_ms = values->keep == OPT_UNSET ? KEEP_MS : values->keep;
	struct node_freed freed = {0};
	AUTO_ERR struct err err = {0};
	struct session *session;
	char bytes[16];

	if (app_session(app, &session, &err) < 0 ||
		gc_node(session, values->node, keep_ms, values->dry_run, &freed, &err) < 0)
		return app_fail(app, &err);
	uint64_t all = freed.layers_bytes + freed.trees_bytes + freed.data_bytes;
	if (app->options.json) {
		struct json *json = app_json("gc-node");
		json_set_bool(json, "dry_run", values->dry_run);
		json_set_str(json, "node", values->node);
		json_set_int(json, "bytes", (int64_t)all);
		json_set_int(json, "layers_bytes", (int64_t)freed.layers_bytes);
		json_set_int(json, "trees_bytes", (int64_t)freed.trees_bytes);
		json_set_int(json, "data_bytes", (int64_t)freed.data_bytes);
		json_set_int(json, "count", (int64_t)freed.count);
		return app_print_json(app, json);
	}
	ui_printf_fit(app, UI_OUT, 2, "%s %s on %s: %zu %s\n",
		values->dry_run ? "would free" : "freed", str_size(all, bytes), values->node,
		freed.count, freed.count == 1 ? "thing" : "things");
	return 0;
}

static int check_options(const struct gc_values *values, struct err *err)
{
	if (values->node && (values->registry || values->target)) {
		err_set(err, E_USAGE, "--node and --registry cannot be used together");
		return err_hint(err, "dlrun gc --node %s && dlrun gc --registry", values->node);
	}
	if (!values->target || values->registry)
		return 0;
	err_set(err, E_USAGE, "--target requires --registry");
	return err_hint(err, "dlrun gc --registry …");
}

static int cmd_gc_run(struct app *app, void *values_ptr, struct strv *words UNUSED)
{
	const struct gc_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	struct gc_report report = {0};
	struct session *session;
	char bytes[16];

	if (check_options(values, &err) < 0)
		return app_fail(app, &err);
	if (values->node)
		return run_node(app, values);
	if (values->registry)
		return run_registry(app, values);
	if (app_session(app, &session, &err) < 0 ||
		gc_local(session, values->keep == OPT_UNSET ? KEEP_MS : values->keep,
			values->dry_run, &report, &err) < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return cmd_gc_print_json(app, &report, values->dry_run);
	ui_printf_fit(app, UI_OUT, 2, "%s %s: %zu %s, %zu %s, %zu other %s\n",
		values->dry_run ? "would free" : "freed", str_size(report.bytes, bytes),
		report.trees, report.trees == 1 ? "tree" : "trees", report.blobs,
		report.blobs == 1 ? "blob" : "blobs", report.files,
		report.files == 1 ? "file" : "files");
	return 0;
}

const struct cmd cmd_gc = {
	.name = "gc",
	.summary = "Free space that no run needs, here or in a registry",
	.synopsis = "[options]",
	.examples = {"dlrun gc # free what no run needs",
		"dlrun gc --dry-run # only say how much that would be",
		"dlrun gc --registry --dry-run # which old images could be deleted from the registry"},
	.opts = opts,
	.values_size = sizeof(struct gc_values),
	.run = cmd_gc_run,
};
