/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

enum { SENTENCE_MAX = 64 << 10 };

static int cmd_why_print_json(
	struct app *app, const struct run *run, const struct buf *sentence, const struct buf *hint)
{
	struct json *json = app_json("why");

	json_set_str(json, "id", run_id(run));
	json_set_str(json, "state", run_state_name(run_state(run)));
	json_set_str(json, "why", sentence->data);
	if (json_get(run->doc, "evidence"))
		json_set(json, "evidence", json_clone(json_get(run->doc, "evidence")));
	json_set_str(json, "hint", hint->len ? hint->data : NULL);
	return app_print_json(app, json);
}

static void print_evidence(struct app *app, const struct run *run)
{
	const struct json *list = json_get(run->doc, "evidence");

	for (const struct json *item = list ? json_first(list) : NULL; item;
		item = json_next(item)) {
		AUTO_FREE char *line = ui_clean(json_str(item) ? json_str(item) : "");
		ui_printf_fit(app, UI_OUT, 4, "  %s\n", line);
	}
}

static int cmd_why_run(struct app *app, void *values, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	AUTO_BUF struct buf sentence = {0}, hint = {0};

	(void)values;
	buf_init(&sentence, SENTENCE_MAX);
	buf_init(&hint, SENTENCE_MAX);
	if (runs_get(app, words->n ? words->v[0] : NULL, &run, &err) < 0)
		return app_fail(app, &err);
	runs_why(app, run, &sentence, &hint);
	if (app->options.json)
		return cmd_why_print_json(app, run, &sentence, &hint);
	AUTO_FREE char *line = ui_clean(sentence.data);
	ui_printf_fit(app, UI_OUT, 2, "%s\n", line);
	print_evidence(app, run);
	if (hint.len) {
		AUTO_FREE char *next = ui_clean(hint.data);
		ui_printf_fit(app, UI_OUT, 8, "  " UI_BOLD "hint:" UI_OFF " %s\n", next);
	}
	return 0;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun why # why is the newest run in its state",
	"dlrun why resnet-3k2f9 # the same for one run",
	"dlrun why --json @-1 # for a script",
};

const struct cmd cmd_why = {
	.name = "why",
	.summary = "Say in one sentence why a run is in its state, and what to do",
	.synopsis = "[options] [RUN]",
	.examples = examples,
	.max_words = 1,
	.words = VALUE_RUN,
	.run = cmd_why_run,
};
