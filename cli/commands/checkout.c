/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "core/image/code.h"

static int checkout_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	const char *dir = words->v[1];
	AUTO_FREE char *whole = NULL;
	struct json *json;

	if (runs_get_code(app, words->v[0], &run, &err) < 0 ||
		run_checkout(&app->session, run, dir, &err) < 0)
		return app_fail(app, &err);
	/* After -C the name alone would be looked for in the wrong directory. */
	whole = fs_join(app->shell_dir && *dir != '/' ? app->cwd : "", dir);
	app_note(app, "the code of %s is in %s", run_id(run), whole);
	if (!app->options.json)
		return 0;
	json = app_json("checkout");
	json_set_str(json, "id", run_id(run));
	json_set_str(json, "snapshot", json_get_str(json_get(run->doc, "snapshot"), "id"));
	json_set_str(json, "dir", dir);
	return app_print_json(app, json);
}

const struct cmd cmd_checkout = {
	.name = "checkout",
	.summary = "Put the exact code of a run into a new directory",
	.synopsis = "[options] RUN DIR",
	.examples = {"dlrun checkout @ ../old # the newest run's code into a new directory",
		"dlrun checkout resnet-3k2f9 /tmp/resnet # the same for one run",
		"dlrun checkout @-1 before # to look at what the run before was made of"},
	.min_words = 2,
	.max_words = 2,
	.words = VALUE_RUN_DIR,
	.run = checkout_run,
};
