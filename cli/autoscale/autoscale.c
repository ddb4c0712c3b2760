/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/autoscale/autoscale.h"

#include <unistd.h>

#include "app/autoscale/collect.h"
#include "app/autoscale/turn.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/autoscale/growth.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/report.h"
#include "core/autoscale/snapshot.h"

/* As of `git diff --exit-code` and its like: there is something to do. */
enum { EXIT_CHANGES = 10, REPORT_MAX = 256 << 20 };

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 't', "target", struct autoscale_values, target), .arg = "T",
		.help = "The cluster (default: `target:`, or the current context)",
		.values = VALUE_TARGET},
	{OPT_MEMBER(OPT_STRING, 0, "settings", struct autoscale_values, settings), .arg = "FILE",
		.help = "What may be bought, of whom: dlrun-autoscale(5)", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_STRING, 0, "groups", struct autoscale_values, groups), .arg = "FILE",
		.help = "Groups of machines and limits, as in a snapshot", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_STRING, 0, "snapshot", struct autoscale_values, snapshot), .arg = "FILE",
		.help = "Plan what this file says (-: stdin), not a cluster", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_LIST, 0, "what-if", struct autoscale_values, what_if), .arg = "DEMAND",
		.help = "Add pods: '16 x 8 GPUs' is a gang, 'study of 200 x 1 GPU' is none"},
	{OPT_MEMBER(OPT_STRING, 0, "save", struct autoscale_values, save), .arg = "FILE",
		.help = "Write what was planned from as a snapshot", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_FLAG, 0, "apply", struct autoscale_values, apply),
		.help = "run: do what is planned; without it nothing is changed"},
	{OPT_MEMBER(OPT_FLAG, 0, "once", struct autoscale_values, once),
		.help = "run: end after one turn"},
	{OPT_MEMBER(OPT_STRING, 0, "image", struct autoscale_values, image), .arg = "IMAGE",
		.help = "manifest: the image that has dlrun, for the cluster"},
	{OPT_END},
};

static int autoscale_read(const char *path, struct scale_model *ret, struct err *err)
{
	AUTO_BUF struct buf text = buf_with(SCALE_SNAPSHOT_MAX);
	AUTO_JSON struct json *json = NULL;
	bool is_stdin = str_eq(path, "-");

	int r = is_stdin ? fs_read_fd(STDIN_FILENO, "stdin", SCALE_SNAPSHOT_MAX, &text, err)
			 : fs_read(path, SCALE_SNAPSHOT_MAX, &text, NULL, err);
	if (r == 0)
		r = json_parse(text.data, text.len, SCALE_SNAPSHOT_MAX, path, &json, err);
	if (r == 0 && (r = snapshot_read(json, ret, err)) < 0)
		err_prefix(err, "%s", path);
	return r;
}

static int autoscale_save(const char *path, const struct scale_model *model, struct err *err)
{
	AUTO_BUF struct buf text = buf_with(SCALE_SNAPSHOT_MAX);
	AUTO_JSON struct json *json = snapshot_write(model);

	json_print_pretty(json, &text);
	buf_addc(&text, '\n');
	int r = buf_check(&text, "the snapshot", err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0644, FS_SYNC_FILE, err);
}

static int autoscale_print(struct app *app, const struct strv *what_if,
	const struct scale_model *model, const struct scale_plan *plan)
{
	if (app->options.json) {
		struct json *json = app_json("autoscale-plan");
		json_set(json, "plan", plan_json(model, plan));
		if (what_if->n)
			json_set(json, "what_if", whatif_json(what_if, model, plan));
		return app_print_json(app, json);
	}
	AUTO_BUF struct buf text = buf_with(REPORT_MAX);
	AUTO_ERR struct err err = {0};
	plan_text(model, plan, &text);
	whatif_text(what_if, model, plan, &text);
	if (buf_check(&text, "the plan", &err) < 0)
		return app_fail(app, &err);
	return ui_printf_fit(app, UI_OUT, AUTOSCALE_INDENT, "%s", text.data) < 0;
}

/* From a snapshot, or from a cluster with the groups of a file or of providers. */
static int autoscale_look(struct app *app, const struct autoscale_values *values,
	struct scale_model *ret, struct err *err)
{
	AUTO_AUTOSCALE_PLACE struct autoscale_place place = {0};

	if (values->snapshot)
		return autoscale_read(values->snapshot, ret, err);
	if (values->groups)
		ERR_TRY(autoscale_read(values->groups, ret, err));
	else if (!values->settings)
		strv_add(&ret->remarks, "without --settings or --groups no machines can be bought");
	ERR_TRY(autoscale_open(app, values, &place, err));
	if (place.settings)
		return autoscaler_look(&(struct autoscaler_options){.cluster = place.cluster,
					       .settings = place.settings,
					       .supply = place.supply,
					       .interrupted = &app_interrupted},
			ret, err);
	if (!ret->cluster)
		ret->cluster = mem_strdup(place.target);
	return collect_cluster(place.cluster, NULL, &app_interrupted, ret, err);
}

static int autoscale_plan(struct app *app, const struct autoscale_values *values)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	AUTO_ERR struct err err = {0};

	scale_model_init(&model);
	int r = autoscale_look(app, values, &model, &err);
	growth_learn_boots(NULL, &model);
	for (size_t i = 0; r == 0 && i < values->what_if.n; i++)
		r = whatif_add(values->what_if.v[i], &model, &err);
	if (r == 0 && values->save)
		r = autoscale_save(values->save, &model, &err);
	if (r < 0)
		return autoscale_fail(app, &err);
	int64_t begun_us = clock_us();
	scale_plan_make(&model, &plan);
	log_note("planned in %.1f ms", (double)(clock_us() - begun_us) / 1000);
	r = autoscale_print(app, &values->what_if, &model, &plan);
	return r ? r : plan.actions.n ? EXIT_CHANGES : 0;
}

static const struct {
	const char *word;
	int (*run)(struct app *app, const struct autoscale_values *values);
} autoscale_words[] = {
	{"plan", autoscale_plan}, {"run", autoscale_run}, {"manifest", autoscale_manifest}};

static int autoscale_check(const struct autoscale_values *values, const char *word, struct err *err)
{
	const struct {
		const char *option;
		bool is_set;
		const char *words; /* that it is of */
	} options[] = {
		{"--target", values->target != NULL, "plan run"},
		{"--settings", values->settings != NULL, "plan run manifest"},
		{"--groups", values->groups != NULL, "plan"},
		{"--snapshot", values->snapshot != NULL, "plan"},
		{"--save", values->save != NULL, "plan"},
		{"--what-if", values->what_if.n > 0, "plan"},
		{"--apply", values->apply, "run"},
		{"--once", values->once, "run"},
		{"--image", values->image != NULL, "manifest"},
	};

	for (size_t i = 0; i < ARRAY_LEN(options); i++)
		if (options[i].is_set && !str_is_word_of(word, options[i].words))
			return err_set(err, E_USAGE, "%s is not an option of `dlrun autoscale %s`",
				options[i].option, word);
	if (values->snapshot && (values->groups || values->target || values->settings))
		return err_set(err, E_USAGE,
			"--snapshot cannot be used together with --target, --groups or --settings");
	if (values->groups && values->settings)
		return err_set(err, E_USAGE, "--groups and --settings cannot be used together");
	if (str_eq(word, "run") && !values->settings) {
		err_set(err, E_USAGE, "run needs --settings FILE");
		return err_hint(err, "dlrun help dlrun-autoscale.5");
	}
	return 0;
}

static int cmd_autoscale_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct autoscale_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	size_t i = 0;

	if (str_choose(words->v[0], "plan run manifest", "the word behind autoscale", &err) < 0)
		return app_fail(app, &err);
	while (!str_eq(autoscale_words[i].word, words->v[0]))
		i++;
	if (autoscale_check(values, words->v[0], &err) < 0)
		return app_fail(app, &err);
	return autoscale_words[i].run(app, values);
}

const struct cmd cmd_autoscale = {
	.name = "autoscale",
	.summary = "Plan, buy and give back the machines of a cluster",
	.synopsis = "plan|run|manifest [options]",
	.examples = {"dlrun autoscale plan --snapshot lab.json "
		     "# what would be bought and given back, and why",
		"dlrun autoscale plan --snapshot lab.json --what-if '16 x 8 GPUs' # nodes, price, minutes, what is in the way",
		"dlrun autoscale run -t lab --settings autoscale.yaml --apply # buy and give back, until stopped"},
	.opts = opts,
	.values_size = sizeof(struct autoscale_values),
	.min_words = 1,
	.max_words = 1,
	.run = cmd_autoscale_run,
};
