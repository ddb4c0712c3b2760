/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/metrics.h"
#include "app/autoscale/notice.h"
#include "app/autoscale/turn.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/autoscale/autoscale.h"
#include "cli/term/ui.h"
#include "core/autoscale/report.h"

enum {
	RUN_REPORT_MAX = 64 << 20,
	RUN_BACKOFF_MAX_MS = 60 * 1000,
	RUN_TOLD_MAX = 50, /* of those that are not helped, by one turn */
};

struct run {
	struct app *app;
	const struct autoscale_values *values;
	struct autoscale_place place;
	struct autoscaler *autoscaler;
	struct metrics metrics;
	struct metrics_server *server; /* NULL: nobody asks */
	struct notices *notices;       /* NULL: nobody is told */
	struct strv remarks;           /* of the last turn */
	struct buf shown;              /* the plan that was printed last */
	unsigned n_failures;           /* turns in a row */
	bool has_worked; /* a turn has: what is denied later is a server that starts */
};

static void run_on_event(void *ctx, const struct turn_event *event)
{
	struct run *run = ctx;
	char now[CLOCK_TEXT_SIZE];

	metrics_event(&run->metrics, event);
	if (run->notices) {
		AUTO_FREE char *text = mem_printf("%s%s%s", event->node ? event->node : "",
			event->node ? ": " : "", event->text);
		notices_add(run->notices,
			&(struct notice){.kind = event->what, .group = event->group, .text = text});
	}
	clock_format(clock_wall_ms(), now);
	if (run->app->options.json) {
		struct json *json = app_json("autoscale-event");
		json_set_str(json, "time", now);
		json_set_str(json, "do", event->what);
		if (event->group)
			json_set_str(json, "group", event->group);
		if (event->node)
			json_set_str(json, "node", event->node);
		if (event->failure != SCALE_NO_FAILURE)
			json_set_str(json, "failure", scale_failure_names[event->failure]);
		json_set_bool(json, "problem", event->is_problem);
		json_set_str(json, "text", event->text);
		app_print_json_line(run->app, json);
		return;
	}
	ui_printf_fit(run->app, UI_OUT, AUTOSCALE_INDENT, "%.19sZ %-10s %s%s%s%s\n", now,
		event->what,
		event->node    ? event->node
		: event->group ? event->group
			       : "",
		event->is_problem ? UI_RED " failed" UI_OFF : "",
		str_empty(event->text) ? "" : ": ", event->text);
}

static void run_on_note(void *ctx, const char *text)
{
	const struct run *run = ctx;

	app_note(run->app, "%s", text);
}

/* Print the plan, unless it is the one that was printed last. */
static void run_show(
	struct run *run, const struct scale_model *model, const struct scale_plan *plan)
{
	AUTO_BUF struct buf text = buf_with(RUN_REPORT_MAX);

	plan_text(model, plan, &text);
	if (text.full || str_eq(text.data, run->shown.data))
		return;
	buf_done(&run->shown);
	run->shown = text;
	text = buf_with(0);
	if (run->app->options.json) {
		struct json *json = app_json("autoscale-plan");
		json_set(json, "plan", plan_json(model, plan));
		app_print_json_line(run->app, json);
		return;
	}
	char now[CLOCK_TEXT_SIZE];
	clock_format(clock_wall_ms(), now);
	ui_printf(run->app, UI_OUT, "%.19sZ would:\n", now);
	ui_printf_fit(run->app, UI_OUT, AUTOSCALE_INDENT, "%s", run->shown.data);
}

/* Notices of pods that wait and are not helped. */
static void run_tell_not_helped(
	struct run *run, const struct scale_model *model, const struct scale_plan *plan)
{
	int64_t told = 0;

	vec_foreach (const struct scale_left, left, &plan->left)
		vec_foreach (const struct scale_reason, reason, &plan->reasons.v[left->reasons]) {
			if (!run->notices || ++told > RUN_TOLD_MAX)
				return;
			notices_add(run->notices,
				&(struct notice){.kind = "not_helped",
					.group = reason->group >= 0
							 ? model->groups.v[reason->group].id
							 : NULL,
					.owner = left->gang >= 0 ? model->gangs.v[left->gang].name
								 : model->pods.v[left->pod].name,
					.text = reason->text,
					.is_lasting = true});
		}
}

/* Tell what could not be read or is left alone, when that is news. Without --apply the plan says
 * it. */
static void run_tell_remarks(
	struct run *run, const struct scale_model *model, const struct scale_plan *plan)
{
	AUTO_STRV struct strv all = {0};

	strv_copy(&all, &model->remarks);
	for (size_t i = 0; i < plan->remarks.n; i++)
		strv_add(&all, plan->remarks.v[i]);
	for (size_t i = 0; run->values->apply && i < all.n; i++) {
		const char *remark = all.v[i];
		if (run->notices)
			notices_add(run->notices,
				&(struct notice){
					.kind = "remark", .text = remark, .is_lasting = true});
		if (strv_find(&run->remarks, remark) < 0)
			app_warn(run->app, "%s", remark);
	}
	strv_done(&run->remarks);
	run->remarks = all;
	all = (struct strv){0};
}

static int run_turn(struct run *run, struct err *err)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	int64_t begun_ms = clock_ms();

	scale_model_init(&model);
	int r = autoscaler_turn(run->autoscaler, &model, &plan, err);
	if (r == 0 && !run->values->apply)
		run_show(run, &model, &plan);
	if (r == 0)
		run_tell_not_helped(run, &model, &plan);
	run_tell_remarks(run, &model, &plan);
	metrics_turn(&run->metrics, clock_ms() - begun_ms, clock_wall_ms(), r < 0);
	run->metrics.lost_notices = run->notices ? notices_lost(run->notices) : 0;
	if (run->server) {
		AUTO_BUF struct buf text = buf_with(METRICS_MAX);
		metrics_print(&run->metrics, settings_cluster(run->place.settings),
			r < 0 ? NULL : &model, r < 0 ? NULL : &plan, &text);
		metrics_server_set(run->server, &text);
	}
	return r;
}

/* Whether another turn can help. */
static bool run_is_lasting(const struct run *run, const struct err *err)
{
	if (run->values->once)
		return true;
	if (run->has_worked)
		return false;
	return err->id == E_KUBE_DENIED || err->id == E_KUBE_AUTH || err->code == ERR_CONFIG ||
	       err->code == ERR_USAGE || err->id == E_DATA;
}

static int run_turns(struct run *run)
{
	struct loop *loop = session_loop(&run->app->session);

	while (!run->app->out_lost) {
		AUTO_ERR struct err err = {0};
		int r = run_turn(run, &err);
		if (err.id == E_CANCELED)
			return 0;
		if (r < 0 && run_is_lasting(run, &err))
			return autoscale_fail(run->app, &err);
		run->has_worked = run->has_worked || r == 0;
		run->n_failures = r < 0 ? run->n_failures + 1 : 0;
		int64_t wait_ms = autoscaler_wait_ms(run->autoscaler);
		if (r < 0) {
			app_warn(run->app, "%s", err.message);
			int64_t more_ms = backoff_ms(run->n_failures, 1000, RUN_BACKOFF_MAX_MS);
			wait_ms = wait_ms < more_ms ? more_ms : wait_ms;
		}
		if (run->values->once || loop_pause(loop, wait_ms, &app_interrupted, NULL) < 0)
			return 0;
	}
	return 1;
}

static void run_on_problem(void *ctx, const char *text)
{
	const struct run *run = ctx;

	app_warn(run->app, "%s", text);
}

static int run_open(struct run *run, struct err *err)
{
	ERR_TRY(autoscale_open(run->app, run->values, &run->place, err));
	const struct scale_settings *settings = run->place.settings;
	struct loop *loop = session_loop(&run->app->session);
	int port = settings_metrics_port(settings);

	if (port)
		ERR_TRY(metrics_serve(loop, port, &run->server, err));
	if (settings_notify(settings))
		run->notices = notices_new(&(struct notices_options){.loop = loop,
			.argv = settings_notify(settings),
			.cluster = settings_cluster(settings),
			.problem = run_on_problem,
			.ctx = run});
	run->autoscaler = autoscaler_new(&(struct autoscaler_options){.cluster = run->place.cluster,
		.settings = settings,
		.supply = run->place.supply,
		.apply = run->values->apply,
		.patience_ms = run->values->once ? TURN_PATIENCE_MS : 0,
		.interrupted = &app_interrupted,
		.event = run_on_event,
		.note = run_on_note,
		.ctx = run});
	return 0;
}

int autoscale_run(struct app *app, const struct autoscale_values *values)
{
	struct run run = {.app = app, .values = values, .shown = buf_with(RUN_REPORT_MAX)};
	AUTO_ERR struct err err = {0};

	int status = run_open(&run, &err) < 0 ? autoscale_fail(app, &err) : run_turns(&run);
	autoscaler_free(run.autoscaler);
	notices_free(run.notices);
	metrics_server_free(run.server);
	metrics_done(&run.metrics);
	autoscale_place_done(&run.place);
	strv_done(&run.remarks);
	buf_done(&run.shown);
	return status;
}
