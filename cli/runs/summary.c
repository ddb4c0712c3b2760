/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/summary.h"

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"
#include "core/record/columns.h"
#include "core/record/group.h"

enum {
	PAGE_MAX = 4 << 20,
	VALUES_SHOWN = 12, /* of an axis */
	NAMES_SHOWN = 8,   /* of members, targets */
};

struct summary {
	const struct run_list *runs;
	struct group_counts counts;
	enum run_state state;
	struct json *axes;
	struct strv targets;
	int64_t submitted_ms, started_ms, ended_ms; /* first, first, last; 0: not yet */
};

static void summary_done(struct summary *summary)
{
	json_free(summary->axes);
	strv_done(&summary->targets);
}

static int64_t summary_earlier(int64_t a, int64_t b)
{
	return !a || (b && b < a) ? b : a;
}

static void summary_make(const struct run_list *runs, struct summary *ret)
{
	*ret = (struct summary){.runs = runs};
	group_count(runs, &ret->counts);
	ret->state = group_state(&ret->counts);
	ret->axes = group_axes(runs);
	vec_foreach (struct run *, run, runs) {
		const char *target = run_target(*run);
		int64_t ended_ms = run_ended_ms(*run);

		if (target && strv_find(&ret->targets, target) < 0)
			strv_add(&ret->targets, target);
		ret->submitted_ms = summary_earlier(ret->submitted_ms, run_submitted_ms(*run));
		ret->started_ms = summary_earlier(ret->started_ms, run_started_ms(*run));
		ret->ended_ms = ended_ms > ret->ended_ms ? ended_ms : ret->ended_ms;
	}
	if (!run_state_is_final(ret->state))
		ret->ended_ms = 0;
}

/*
 * JSON
 */

static struct json *summary_member_json(const struct summary *summary, const struct run *run)
{
	struct json *json = json_object(), *params = json_object();
	int64_t index = run_member_index(run);

	json_set_str(json, "id", run_id(run));
	json_set(json, "index", json_null());
	if (index >= 0)
		json_set_int(json, "index", index);
	json_set_str(json, "state", run_state_name(run_state(run)));
	for (const struct json *axis = json_first(summary->axes); axis; axis = json_next(axis)) {
		const struct json *value = json_get(json_get(run->doc, "params"), json_key(axis));
		json_set(params, json_key(axis), value ? json_clone(value) : json_null());
	}
	json_set(json, "params", params);
	return json;
}

static int summary_print_json(struct app *app, const char *study, const struct summary *summary)
{
	struct json *json = app_json("group"), *targets = json_array(), *members = json_array();

	json_set_str(json, "id", study);
	json_set_str(json, "state", run_state_name(summary->state));
	json_set_int(json, "n", (int64_t)summary->runs->n);
	json_set(json, "states", group_counts_json(&summary->counts));
	for (size_t i = 0; i < summary->targets.n; i++)
		json_add_str(targets, summary->targets.v[i]);
	json_set(json, "targets", targets);
	json_set_str(json, "user", json_get_str(summary->runs->v[0]->doc, "user"));
	run_set_time(json, "submitted", summary->submitted_ms);
	run_set_time(json, "started", summary->started_ms);
	run_set_time(json, "ended", summary->ended_ms);
	json_set(json, "axes", json_clone(summary->axes));
	vec_foreach (struct run *, run, summary->runs)
		json_add(members, summary_member_json(summary, *run));
	json_set(json, "members", members);
	return app_print_json(app, json);
}

/*
 * Text: a field a line
 */

void summary_add_field(struct buf *out, const char *label, const char *value)
{
	AUTO_FREE char *clean = NULL;

	if (str_empty(value))
		return;
	clean = ui_clean(value);
	buf_addf(out, UI_BOLD "%-*s" UI_OFF "%s\n", SUMMARY_FIELD, label, clean);
}

void summary_add_time(struct buf *out, const char *label, int64_t wall_ms)
{
	char when[32], age[32];

	if (!wall_ms)
		return;
	AUTO_FREE char *value = mem_printf(
		"%s (%s ago)", ui_time(wall_ms, when), ui_age(clock_wall_ms() - wall_ms, age));
	summary_add_field(out, label, value);
}

int summary_print_page(struct app *app, const struct buf *page)
{
	AUTO_BUF struct buf fitted = buf_with(PAGE_MAX);

	ui_fit(app, UI_OUT, page->data, SUMMARY_FIELD, &fitted);
	return ui_print(app, UI_OUT, fitted.data, fitted.len) < 0;
}

static void summary_add_axes(struct buf *out, const struct json *axes)
{
	for (const struct json *axis = json_first(axes); axis; axis = json_next(axis)) {
		size_t n = 0;
		AUTO_BUF struct buf line = buf_with(PAGE_MAX);

		buf_adds(&line, json_key(axis));
		for (const struct json *value = json_first(axis); value;
			value = json_next(value), n++)
			if (n < VALUES_SHOWN)
				buf_addf(&line, "%s%s", n ? ", " : "  ",
					json_str(value) ? json_str(value) : "none");
		if (n > VALUES_SHOWN)
			buf_addf(&line, ", … (%zu values)", n);
		summary_add_field(out, axis == json_first(axes) ? "axes" : "", line.data);
	}
}

/* Names of members in that state. */
static void summary_add_members(
	struct buf *out, const char *label, const struct run_list *runs, enum run_state state)
{
	AUTO_BUF struct buf line = buf_with(PAGE_MAX);
	size_t n = 0;

	vec_foreach (struct run *, run, runs)
		if (run_state(*run) == state && n++ < NAMES_SHOWN)
			buf_addf(&line, "%s%s", n > 1 ? ", " : "",
				run_member_index(*run) >= 0 ? run_name(*run) : run_id(*run));
	if (n > NAMES_SHOWN)
		buf_addf(&line, " and %zu more", n - NAMES_SHOWN);
	summary_add_field(out, label, line.data);
}

static void summary_add_headline(struct buf *out, const char *study, const struct summary *summary)
{
	AUTO_FREE char *name = ui_clean(study);
	size_t failed = summary->counts.states[RUN_FAILED];

	buf_addf(out, "%s%s: ", runs_state_style(summary->state), name);
	group_counts_text(&summary->counts, out);
	buf_adds(out, UI_OFF "\n");
	if (failed || summary->counts.states[RUN_LOST])
		buf_addf(out, "  " UI_BOLD "hint:" UI_OFF " dlrun why %s\n", name);
	buf_addc(out, '\n');
}

static void summary_text(const char *study, const struct summary *summary, struct buf *out)
{
	const struct run *first = summary->runs->v[0];
	AUTO_FREE char *command = run_command_line(first);
	AUTO_FREE char *targets = strv_join(&summary->targets, ", ");
	AUTO_FREE char *n = mem_printf("%zu", summary->runs->n);

	summary_add_headline(out, study, summary);
	summary_add_field(out, "runs", n);
	summary_add_axes(out, summary->axes);
	summary_add_field(out, "first", command);
	summary_add_field(out, "tree", json_get_str(json_get(first->doc, "origin"), "root"));
	summary_add_field(out, "target", targets);
	summary_add_field(out, "user", json_get_str(first->doc, "user"));
	summary_add_time(out, "submitted", summary->submitted_ms);
	summary_add_time(out, "started", summary->started_ms);
	summary_add_time(out, "ended", summary->ended_ms);
	summary_add_members(out, "failed", summary->runs, RUN_FAILED);
	summary_add_members(out, "lost", summary->runs, RUN_LOST);
	summary_add_members(out, "running", summary->runs, RUN_RUNNING);
}

int summary_print(struct app *app, const char *study, const struct run_list *runs)
{
	AUTO(summary_done) struct summary summary = {0};
	AUTO_BUF struct buf out = buf_with(PAGE_MAX);

	summary_make(runs, &summary);
	if (app->options.json)
		return summary_print_json(app, study, &summary);
	summary_text(study, &summary, &out);
	return summary_print_page(app, &out);
}
