/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "app/runs/refresh.h"
#include "app/top/live.h"
#include "app/transfer/mirror.h"
#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/screen.h"
#include "cli/term/ui.h"
#include "core/record/columns.h"
#include "core/record/dirs.h"
#include "core/record/machine.h"
#include "core/record/observed.h"
#include "core/record/run.h"
#include "core/store/store.h"
#include "targets/targets.h"

enum {
	QUERY_MS = 500,
	REFRESH_ONCE_MS = 3000, /* a login may take its time */
	RESPONSE_MS = 6000,     /* of machines and of samples of runs, when they are printed once */
	METRICS_MS = 200,       /* of reading event files */
	DRAW_MS = 1000,
	DRAW_FAR_MS = 2000,
	SCREEN_MAX = 1 << 20,
	EXIT_INTERRUPTED = 130,
};

enum {
	STALE_MS = 10 * 60 * 1000,
	METRICS_SHOWN = 4,
	METRIC_WIDTH = 40,
	CELL_MAX = 64 << 10,
};

/*
 * Facts about a run
 */

/* Latest report of the target on the newest attempt, or the copy of it here; or NULL. */
static struct json *seen_of(struct app *app, const struct run *run)
{
	struct session *session;

	if (run->seen)
		return json_clone(run->seen);
	if (run_attempts(run) == 0 || app_session(app, &session, NULL) < 0)
		return NULL;
	AUTO_FREE char *dir = dirs_attempt(&session->dirs, run_id(run), run_attempts(run));
	return observed_read(dir);
}

/* Usage at this moment; NULL: not known. */
static const struct json *now_of(const struct run *run, const struct json *seen)
{
	const char *time = json_get_str(seen, "time");
	int64_t seen_ms;

	if (run_state_is_final(run_state(run)) || !time || clock_parse(time, &seen_ms, NULL) < 0 ||
		clock_wall_ms() - seen_ms > STALE_MS)
		return NULL;
	return json_get(seen, "now");
}

/* A member of the latest report, else of the record. */
static const struct json *member_of(
	const struct run *run, const struct json *seen, const char *name)
{
	const struct json *member = json_get(seen, name);

	return json_count(member) ? member : json_get(run->doc, name);
}

/*
 * Cells
 */

static void add_percent(struct ui_table *table, double value)
{
	if (value < 0)
		ui_table_add(table, UI_DIM, "-");
	else
		ui_table_addf(table, "", "%.0f %%", value * 100);
}

static void add_size(struct ui_table *table, int64_t bytes)
{
	char text[16];

	ui_table_add(
		table, bytes < 0 ? UI_DIM : "", bytes < 0 ? "-" : str_size((uint64_t)bytes, text));
}

/* "12.1 GiB of 64.0 GiB" */
static void add_share(struct ui_table *table, int64_t used, int64_t all)
{
	char used_text[16], all_text[16];

	if (all < 0)
		add_size(table, used);
	else
		ui_table_addf(table, "", "%s of %s",
			used < 0 ? "-" : str_size((uint64_t)used, used_text),
			str_size((uint64_t)all, all_text));
}

static void top_view_add_power(struct ui_table *table, double watts)
{
	if (watts < 0)
		ui_table_add(table, UI_DIM, "-");
	else
		ui_table_addf(table, "", "%.0f W", watts);
}

static void top_view_add_number(struct ui_table *table, double value, int digits)
{
	if (value < 0)
		ui_table_add(table, UI_DIM, "-");
	else
		ui_table_addf(table, "", "%.*f", digits, value);
}

/*
 * Runs
 */

static void top_view_add_metric(const struct json *metric, struct buf *text)
{
	buf_adds(text, text->len ? " · " : "");
	metric_text(metric, METRIC_WIDTH, text);
	buf_addf(text, " @%lld", (long long)json_get_int(metric, "step", 0));
}

/* "loss 2.31 @100 · acc 0.9 @100": the one that stands for the run first. */
static void top_view_add_metrics(struct ui_table *table, const struct json *metrics)
{
	const struct json *first = metric_main(metrics);
	AUTO_BUF struct buf text = buf_with(CELL_MAX);
	size_t n = 1;

	if (first)
		top_view_add_metric(first, &text);
	for (const struct json *m = json_first(metrics); m && n < METRICS_SHOWN; m = json_next(m))
		if (m != first && json_kind(m) == JSON_OBJECT) {
			top_view_add_metric(m, &text);
			n++;
		}
	ui_table_add(table, "", text.data);
}

static void top_view_add_run(struct app *app, struct ui_table *table, const struct run *run)
{
	AUTO_JSON struct json *seen = seen_of(app, run);
	const struct json *now = now_of(run, seen);
	enum run_state state = run_state(run);
	int64_t duration_ms = runs_duration(run);
	char age[32];

	ui_table_add(table, "", run_id(run));
	ui_table_add(table, runs_state_style(state), run_state_name(state));
	ui_table_add(table, "", duration_ms < 0 ? "" : ui_age(duration_ms, age));
	add_percent(table, json_get_num(now, "cpu", -1));
	add_size(table, json_get_int(now, "memory_bytes", -1));
	add_percent(table, json_get_num(now, "gpu_busy", -1));
	add_size(table, json_get_int(now, "gpu_memory_bytes", -1));
	top_view_add_power(table, json_get_num(now, "power_w", -1));
	top_view_add_metrics(table, member_of(run, seen, "metrics"));
}

static void fill_runs(struct app *app, const struct run_list *runs, struct ui_table *table)
{
	static const struct ui_column columns[] = {
		{"RUN"},
		{"STATE"},
		{"TIME", .right = true, .drop = 2},
		{"CPU", .right = true, .drop = 1},
		{"MEMORY", .right = true, .drop = 1},
		{"GPU", .right = true},
		{"GPU MEM", .right = true},
		{"POWER", .right = true, .drop = 4},
		{"METRICS", .drop = 3},
	};

	ui_table_init(table, columns, ARRAY_LEN(columns));
	vec_foreach (struct run *, run, runs)
		top_view_add_run(app, table, *run);
}

/*
 * Machines
 */

/* "3 of 8 free (A100-80GB)" */
static void top_view_add_gpus(struct ui_table *table, const struct machine *machine)
{
	const char *model = machine->model;

	if (machine->error)
		ui_table_add(table, UI_YELLOW, machine->error);
	else if (machine->n_gpus < 0)
		ui_table_add(table, UI_DIM, "-");
	else if (machine->n_gpus == 0)
		ui_table_add(table, "", "none");
	else if (machine->gpus_free < 0)
		ui_table_addf(table, "", "%lld%s%s%s", (long long)machine->n_gpus,
			model ? " (" : "", model ? model : "", model ? ")" : "");
	else
		ui_table_addf(table, "", "%lld of %lld free%s%s%s", (long long)machine->gpus_free,
			(long long)machine->n_gpus, model ? " (" : "", model ? model : "",
			model ? ")" : "");
}

static void fill_machines(const struct machine_list *machines, struct ui_table *table)
{
	static const struct ui_column columns[] = {
		{"HOST"},
		{"CPUS", .right = true, .drop = 1},
		{"LOAD", .right = true},
		{"MEMORY", .right = true},
		{"GPUS", .cut = true},
	};

	ui_table_init(table, columns, ARRAY_LEN(columns));
	vec_foreach (const struct machine, machine, machines) {
		ui_table_add(table, "", *machine->host ? machine->host : machine->target);
		top_view_add_number(table, machine->cpus, 0);
		top_view_add_number(table, machine->load, 1);
		add_share(table, machine->memory_used_bytes, machine->memory_bytes);
		top_view_add_gpus(table, machine);
	}
}

static void top_view_add_gpu(
	struct ui_table *table, const struct machine *machine, const struct machine_gpu *gpu)
{
	bool in_use = gpu->used || *gpu->holder;

	ui_table_add(table, "", machine->host);
	ui_table_addf(table, "", "%u", gpu->index);
	add_percent(table, gpu->busy);
	add_share(table, gpu->memory_used_bytes, gpu->memory_bytes);
	top_view_add_power(table, gpu->power_w);
	ui_table_add(table, in_use ? "" : UI_DIM,
		*gpu->holder ? gpu->holder
		: in_use     ? "other"
			     : "-");
	ui_table_add(table, "", gpu->model);
}

static void fill_gpus(const struct machine_list *machines, struct ui_table *table)
{
	static const struct ui_column columns[] = {
		{"HOST"},
		{"GPU", .right = true},
		{"BUSY", .right = true},
		{"GPU MEM", .right = true},
		{"POWER", .right = true, .drop = 2},
		{"RUN"},
		{"MODEL", .cut = true, .drop = 1},
	};

	ui_table_init(table, columns, ARRAY_LEN(columns));
	vec_foreach (const struct machine, machine, machines)
		vec_foreach (const struct machine_gpu, gpu, &machine->gpus)
			top_view_add_gpu(table, machine, gpu);
}

/*
 * All
 */

static void format(struct app *app, const struct ui_table *table, size_t width, struct buf *out)
{
	/* The first row is that of the titles. */
	if (table->cells.n <= table->n_columns)
		return;
	if (out->len)
		buf_addc(out, '\n');
	ui_table_format(app, table, width, out);
}

/* Tables that have rows, an empty line between two, formatted for width columns (0: any). */
static void top_view_format(struct app *app, const struct run_list *runs,
	const struct machine_list *machines, size_t width, struct buf *out)
{
	AUTO_TABLE struct ui_table of_runs = {0}, of_machines = {0}, of_gpus = {0};

	fill_runs(app, runs, &of_runs);
	fill_machines(machines, &of_machines);
	fill_gpus(machines, &of_gpus);
	format(app, &of_runs, width, out);
	format(app, &of_machines, width, out);
	format(app, &of_gpus, width, out);
}

static struct json *run_json(struct app *app, const struct run *run)
{
	static const char *const members[] = {"usage", "metrics"};
	struct json *json = json_object();
	AUTO_JSON struct json *seen = seen_of(app, run);
	const struct json *now = now_of(run, seen);

	json_set_str(json, "id", run_id(run));
	json_set_str(json, "state", run_state_name(run_state(run)));
	json_set_str(json, "target", run_target(run));
	json_set_int(json, "attempt", run_attempts(run));
	json_set_str(json, "time", json_get_str(seen, "time"));
	json_set(json, "now", now ? json_clone(now) : json_null());
	for (size_t i = 0; i < ARRAY_LEN(members); i++) {
		const struct json *member = member_of(run, seen, members[i]);

		json_set(json, members[i], member ? json_clone(member) : json_null());
	}
	return json;
}

/* dlrun/top/v1 (json_done is set); returns the exit status. */
static int top_view_json(
	struct app *app, const struct run_list *runs, const struct machine_list *machines)
{
	struct json *json = app_json("top"), *list = json_array(), *hosts = json_array();

	vec_foreach (struct run *, run, runs)
		json_add(list, run_json(app, *run));
	vec_foreach (const struct machine, machine, machines)
		json_add(hosts, machine_json(machine));
	json_set(json, "runs", list);
	json_set(json, "machines", hosts);
	return app_print_json(app, json);
}

/*
 * Subject of the command, and its runs
 */

struct top {
	struct app *app;
	struct session *session;
	const char *word; /* a run, a target, or NULL: every run that has not ended */
	bool is_target;
	char *id; /* of the run that word names */
	struct run_list runs;
	struct live *live;
	/* On a terminal: a refresh, or the time until the next one. */
	struct screen screen;
	struct refresh *refresh;
	struct loop_timer *turn;
};

static void top_done(struct top *top)
{
	if (top->session)
		loop_remove_timer(session_loop(top->session), top->turn);
	refresh_cancel(top->refresh);
	live_free(top->live);
	run_list_done(&top->runs);
	free(top->id);
}

static bool is_target(struct app *app, const char *word)
{
	struct config *config = NULL;

	app_config(app, NULL, NULL, &config, NULL);
	return target_ops_named(config, word) != NULL;
}

static int top_find(struct top *top, struct err *err)
{
	struct run *run;
	int r = runs_get(top->app, top->word, &run, err);

	if (r < 0)
		return r;
	top->id = mem_strdup(run_id(run));
	*vec_push(&top->runs) = run;
	return 0;
}

/* A run that word names has been found and refreshed then. */
static int top_init(struct top *top, struct app *app, const char *word, struct err *err)
{
	*top = (struct top){.app = app, .word = word};
	int r = app_session(app, &top->session, err);

	if (r < 0)
		return r;
	top->live = live_new(top->session);
	top->is_target = word && is_target(app, word);
	if (top->is_target)
		return live_add_target(top->live, word, err);
	return word ? top_find(top, err) : 0;
}

static int top_read_rows(struct top *top, struct err *err)
{
	const struct store_filter filter = {
		.unfinished_only = true, .target = top->is_target ? top->word : NULL};
	struct store *store;
	struct run *run;
	int r = session_store(top->session, &store, err);

	run_list_done(&top->runs);
	if (r == 0 && !top->id)
		return store_list(store, &filter, &top->runs, err);
	if (r == 0)
		r = store_resolve(store, top->id, &run, err);
	if (r == 0)
		*vec_push(&top->runs) = run;
	return r;
}

/* Request what is to be shown of the runs, which have been refreshed, and of machines. */
static void top_begin(struct top *top)
{
	metrics_here(top->session, &top->runs, METRICS_MS);
	if (!top->word)
		live_add_places(top->live, &top->runs);
	live_begin(top->live, &top->runs);
}

/*
 * Once
 */

static int print_tables(
	struct app *app, const struct run_list *runs, const struct machine_list *machines)
{
	AUTO_BUF struct buf text = buf_with(SCREEN_MAX);
	int r = 0;

	top_view_format(app, runs, machines, app->out_tty ? app->columns : 0, &text);
	if (text.len)
		r = ui_print(app, UI_OUT, text.data, text.len);
	if (!runs->n)
		app_note(app, "no run is unfinished: dlrun submit -- python3 train.py");
	return r < 0;
}

static int top_show_once(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};
	AUTO_MACHINES struct machine_list machines = {0};
	AUTO(top_done) struct top top = {0};

	app_catch_signals();
	int r = top_init(&top, app, word, &err);
	if (r == 0 && !top.id)
		r = top_read_rows(&top, &err);
	if (r == 0 && !top.id)
		r = runs_refresh(top.session, &top.runs, REFRESH_ONCE_MS, &err);
	if (r == 0) {
		top_begin(&top);
		r = live_wait(top.live, RESPONSE_MS, &app_interrupted, &err);
	}
	if (r < 0)
		return app_fail(app, &err);
	if (app_interrupted)
		return EXIT_INTERRUPTED;
	live_store_samples(top.live, &top.runs);
	live_machines(top.live, &top.runs, &machines);
	return app->options.json ? top_view_json(app, &top.runs, &machines)
				 : print_tables(app, &top.runs, &machines);
}

/*
 * A terminal
 */

static void top_draw(struct top *top)
{
	AUTO_MACHINES struct machine_list machines = {0};
	AUTO_BUF struct buf text = buf_with(SCREEN_MAX);

	screen_measure(&top->screen);
	live_store_samples(top->live, &top->runs);
	live_machines(top->live, &top->runs, &machines);
	top_view_format(top->app, &top->runs, &machines, top->screen.columns, &text);
	if (!top->runs.n)
		buf_adds(&text, text.len ? "\nno run is unfinished\n" : "no run is unfinished\n");
	buf_adds(&text, "\n" UI_DIM "q: quit" UI_OFF);
	screen_draw(&top->screen, text.data);
}

static int top_on_turn(void *ctx, struct err *err);

static int top_on_refreshed(void *ctx, int status, struct err *err UNUSED)
{
	struct top *top = ctx;
	struct loop *loop = session_loop(top->session);
	bool is_far = false;

	top->refresh = NULL;
	if (status < 0)
		return status;
	top_begin(top);
	top_draw(top);
	if (top->app->out_lost)
		loop_stop(loop);
	vec_foreach (struct run *, run, &top->runs)
		is_far |= !target_ops_recorded(*run)->is_here;
	top->turn = loop_add_timer(
		loop, clock_ms() + (is_far ? DRAW_FAR_MS : DRAW_MS), top_on_turn, top);
	return 0;
}

static int top_on_turn(void *ctx, struct err *err)
{
	struct top *top = ctx;
	int r = top_read_rows(top, err);

	if (r == 0)
		top->refresh =
			refresh_start(top->session, &top->runs, QUERY_MS, top_on_refreshed, top);
	return r;
}

static int top_watch(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};
	AUTO(top_done) struct top top = {0};

	app_catch_signals();
	int r = top_init(&top, app, word, &err);
	if (r < 0)
		return app_fail(app, &err);
	screen_begin(&top.screen, app);
	r = top.id ? top_on_refreshed(&top, 0, &err) : top_on_turn(&top, &err);
	if (r == 0)
		r = screen_wait(&top.screen, session_loop(top.session), -1, &err);
	screen_end(&top.screen);
	if (r < 0)
		return app_fail(app, &err);
	return app_interrupted ? EXIT_INTERRUPTED : 0;
}

static int top_run(struct app *app, void *values UNUSED, struct strv *words)
{
	const char *word = words->n ? words->v[0] : NULL;

	if (app->out_tty && !app->options.json)
		return top_watch(app, word);
	return top_show_once(app, word);
}

const struct cmd cmd_top = {
	.name = "top",
	.summary = "Show what runs and machines use now: GPU, CPU, memory, power",
	.synopsis = "[options] [RUN|TARGET]",
	.examples = {"dlrun top # what runs use now, until q",
		"dlrun top pool # the runs of a target, its hosts and their GPUs",
		"dlrun top --json # once, for a script"},
	.max_words = 1,
	.words = VALUE_RUN_TARGET,
	.run = top_run,
};
