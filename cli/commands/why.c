/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/causes.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/record/group.h"
#include "core/record/places.h"

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
	if (json_get(run->doc, RUN_PLACES))
		json_set(json, "places", json_clone(json_get(run->doc, RUN_PLACES)));
	json_set_str(json, "hint", hint->len ? hint->data : NULL);
	return app_print_json(app, json);
}

/* Whether the line of a place says it, too. */
static bool why_has_place(const struct run_places *places, const char *text)
{
	vec_foreach (const struct run_place, place, places)
		if (text && place->text && str_ends(text, place->text))
			return true;
	return false;
}

static void print_evidence(struct app *app, const struct run *run, const struct run_places *places)
{
	const struct json *list = json_get(run->doc, "evidence");

	for (const struct json *item = list ? json_first(list) : NULL; item;
		item = json_next(item)) {
		AUTO_FREE char *line = ui_clean(json_str(item) ? json_str(item) : "");
		if (!why_has_place(places, json_str(item)))
			ui_printf_fit(app, UI_OUT, 4, "  %s\n", line);
	}
}

static const char *why_place_words(enum run_place_state state)
{
	static const char *const words[] = {
		[RUN_PLACE_UNTRIED] = "was not asked",
		[RUN_PLACE_NOW] = "has room",
		[RUN_PLACE_LATER] = "would take it later",
		[RUN_PLACE_NEVER] = "cannot take it",
		[RUN_PLACE_SILENT] = "does not answer",
		[RUN_PLACE_LEFT] = "was left",
		[RUN_PLACE_REFUSED] = "refused it",
		[RUN_PLACE_CHOSEN] = "was chosen",
	};

	return words[state];
}

/* Decisions about the places of a run that has several. */
static void why_print_places(struct app *app, const struct run_places *places)
{
	vec_foreach (const struct run_place, place, places) {
		AUTO_FREE char *line =
			mem_printf("%s %s%s%s", place->target, why_place_words(place->state),
				place->text ? ": " : "", place->text ? place->text : "");
		AUTO_FREE char *clean = ui_clean(line);
		ui_printf_fit(app, UI_OUT, 4, "  %s\n", clean);
	}
}

static void why_print_hint(struct app *app, const struct buf *hint)
{
	AUTO_FREE char *next = ui_clean(hint->data);

	if (hint->len)
		ui_printf_fit(app, UI_OUT, 8, "  " UI_BOLD "hint:" UI_OFF " %s\n", next);
}

/*
 * A study
 */

static void why_hint_study(const char *study, const struct group_counts *counts, struct buf *hint)
{
	enum run_state state = group_state(counts);

	if (counts->states[RUN_FAILED])
		buf_addf(hint, "dlrun logs --failed --tail 20 %s", study);
	else if (counts->states[RUN_LOST])
		buf_addf(hint, "dlrun restart --failed %s", study);
	else if (state == RUN_SUCCEEDED)
		buf_addf(hint, "dlrun compare %s", study);
	else if (!run_state_is_final(state) && state != RUN_UNKNOWN)
		buf_addf(hint, "dlrun wait %s", study);
}

static struct json *why_cause_json(const struct cause *cause)
{
	struct json *json = json_object(), *ids = json_array();

	json_set_str(json, "state", run_state_name(cause->state));
	json_set_str(json, "why", cause->text);
	json_set_int(json, "n", (int64_t)cause->runs.n);
	vec_foreach (struct run *, run, &cause->runs)
		json_add_str(ids, run_id(*run));
	json_set(json, "runs", ids);
	return json;
}

static int why_print_study_json(struct app *app, const char *study,
	const struct group_counts *counts, const struct causes *causes, const struct buf *hint)
{
	struct json *json = app_json("why"), *list = json_array();
	AUTO_BUF struct buf sentence = buf_with(SENTENCE_MAX);

	buf_addf(&sentence, "%s: ", study);
	causes_text(causes, &sentence);
	json_set_str(json, "id", study);
	json_set_str(json, "state", run_state_name(group_state(counts)));
	json_set_str(json, "why", sentence.data);
	json_set_str(json, "hint", hint->len ? hint->data : NULL);
	json_set(json, "states", group_counts_json(counts));
	vec_foreach (struct cause, cause, causes)
		json_add(list, why_cause_json(cause));
	json_set(json, "causes", list);
	return app_print_json(app, json);
}

static int why_study(struct app *app, const char *study, const struct run_list *runs)
{
	AUTO_CAUSES struct causes causes = {0};
	AUTO_BUF struct buf text = buf_with(SENTENCE_MAX), hint = buf_with(SENTENCE_MAX);
	struct group_counts counts;

	group_count(runs, &counts);
	runs_causes(&app->session, runs, &causes);
	why_hint_study(study, &counts, &hint);
	if (app->options.json)
		return why_print_study_json(app, study, &counts, &causes, &hint);
	group_counts_text(&counts, &text);
	AUTO_FREE char *name = ui_clean(study);
	ui_printf_fit(app, UI_OUT, 2, "%s: %s\n", name, text.data);
	vec_foreach (struct cause, cause, &causes) {
		if (!cause->text)
			continue;
		buf_reset(&text);
		cause_text(cause, &text);
		AUTO_FREE char *line = ui_clean(text.data);
		ui_printf_fit(app, UI_OUT, 4, "  %s\n", line);
	}
	why_print_hint(app, &hint);
	return 0;
}

static int why_one(struct app *app, const struct run *run)
{
	AUTO_BUF struct buf sentence = buf_with(SENTENCE_MAX), hint = buf_with(SENTENCE_MAX);
	AUTO_RUN_PLACES struct run_places places = {0};

	runs_why(app, run, &sentence, &hint);
	if (app->options.json)
		return cmd_why_print_json(app, run, &sentence, &hint);
	AUTO_FREE char *line = ui_clean(sentence.data);
	ui_printf_fit(app, UI_OUT, 2, "%s\n", line);
	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	print_evidence(app, run, &places);
	why_print_places(app, &places);
	why_print_hint(app, &hint);
	return 0;
}

static int cmd_why_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *study = NULL;

	if (runs_get_named(app, words, &runs, &study, &err) < 0)
		return app_fail(app, &err);
	return study ? why_study(app, study, &runs) : why_one(app, runs.v[0]);
}

const struct cmd cmd_why = {
	.name = "why",
	.summary = "Say in one sentence why a run is in its state, and what to do",
	.synopsis = "[options] [RUN|STUDY]",
	.examples = {"dlrun why # why is the newest run in its state",
		"dlrun why tiger-4k2x9 # the same for a study: its runs by cause",
		"dlrun why --json @-1 # for a script"},
	.max_words = 1,
	.words = VALUE_RUN,
	.flags = CMD_STUDIES,
	.run = cmd_why_run,
};
