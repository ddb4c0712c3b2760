/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <sys/stat.h>

#include "app/lifecycle/results_query.h"
#include "app/transfer/mirror.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/runs/summary.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/config/words.h"
#include "core/record/after.h"
#include "core/attempt/attempt.h"
#include "core/plot/svg.h"
#include "core/record/columns.h"
#include "core/record/dirs.h"
#include "core/record/observed.h"
#include "core/record/places.h"
#include "core/record/roles.h"
#include "core/record/runtime.h"
#include "events/series.h"

enum {
	PAGE_MAX = 4 << 20,
	SENTENCE_MAX = 64 << 10,
	SHORT_COMMIT = 12,
	METRICS_MAX = 30,  /* that are shown */
	METRIC_WIDTH = 40, /* longer names do not move the others */
	METRICS_MS = 1000, /* of reading event files */
	RESULTS_MS = 2000, /* for a list of what was made */
};

/*
 * Fields of the page
 */

static void add_fieldf(struct buf *out, const char *label, const char *fmt, ...) ERR_PRINTF(3, 4);
static void add_fieldf(struct buf *out, const char *label, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *value = mem_vprintf(fmt, args);
	va_end(args);
	summary_add_field(out, label, value);
}

/* "a=1 b" of an object. */
static void show_add_pairs(struct buf *out, const char *label, const struct json *object)
{
	AUTO_BUF struct buf line = buf_with(PAGE_MAX);

	for (const struct json *item = json_first(object); item; item = json_next(item)) {
		buf_addf(&line, "%s%s", line.len ? " " : "", json_key(item));
		if (str_empty(json_str(item)) && json_kind(item) == JSON_STRING)
			continue;
		buf_addc(&line, '=');
		columns_add_scalar(item, &line);
	}
	summary_add_field(out, label, line.data);
}

/* A line for each. */
static void show_add_list(struct buf *out, const char *label, const struct json *list)
{
	for (const struct json *item = json_first(list); item; item = json_next(item))
		summary_add_field(out, label, json_str(item));
}

/*
 * Parts
 */

static void add_identity(struct buf *out, const struct run *run)
{
	const struct json *doc = run->doc, *origin = json_get(doc, "origin");
	AUTO_FREE char *command = run_command_line(run), *places = run_places_of(run);
	AUTO_FREE char *after = after_names(json_get(doc, AFTER_RECORD));

	summary_add_field(out, "command", command);
	summary_add_field(out, "launcher", json_get_str(json_get(doc, "launcher"), "line"));
	if (!str_eq(json_get_str(origin, "cwd"), "."))
		summary_add_field(out, "directory", json_get_str(origin, "cwd"));
	summary_add_field(out, "tree", json_get_str(origin, "root"));
	summary_add_field(out, "target", run_target(run));
	summary_add_field(out, "places", places);
	show_add_list(out, "host", json_get(json_get(doc, "target"), "hosts"));
	summary_add_field(out, "user", json_get_str(doc, "user"));
	summary_add_field(out, "group", json_get_str(doc, "group"));
	summary_add_field(out, "parent", json_get_str(doc, "parent"));
	summary_add_field(out, AFTER_RECORD, after);
	show_add_pairs(out, "tags", json_get(doc, "tags"));
	summary_add_field(out, "note", json_get_str(doc, "note"));
	show_add_pairs(out, "params", json_get(doc, "params"));
}

static void add_times(struct buf *out, const struct run *run)
{
	summary_add_time(out, "submitted", run_submitted_ms(run));
	summary_add_time(out, "started", run_started_ms(run));
	summary_add_time(out, "ended", run_ended_ms(run));
	summary_add_field(out, "last known", json_get_str(run->doc, "last_state"));
}

static void show_add_code(struct buf *out, const struct run *run)
{
	const struct json *snapshot = json_get(run->doc, "snapshot");
	const struct json *image = json_get(run->doc, "image");
	const char *commit = json_get_str(snapshot, "commit");
	long long files = (long long)json_get_int(snapshot, "files", 0);
	char bytes[16];

	summary_add_field(out, "code", json_get_str(snapshot, "id"));
	add_fieldf(out, "", "%lld %s, %s, %lld excluded", files, files == 1 ? "file" : "files",
		str_size((uint64_t)json_get_int(snapshot, "bytes", 0), bytes),
		(long long)json_get_int(snapshot, "left_out", 0));
	if (commit)
		add_fieldf(out, "commit", "%.*s%s", SHORT_COMMIT, commit,
			json_get_bool(snapshot, "dirty", false) ? " and changes on disk" : "");
	if (json_get_str(snapshot, "record"))
		summary_add_field(out, "in git", json_get_str(snapshot, "ref"));
	summary_add_field(out, "not in git", json_get_str(snapshot, "record_why"));
	summary_add_field(out, "image", json_get_str(image, "ref"));
	if (!str_eq(json_get_str(image, "base"), "scratch"))
		summary_add_field(out, "base", json_get_str(image, "base"));
}

/* "4 nodes" */
static void add_count(struct buf *line, int64_t n, const char *one, const char *many)
{
	if (n > 0)
		buf_addf(line, "%s%lld %s", line->len ? ", " : "", (long long)n,
			n == 1 ? one : many);
}

/* Resources requested and granted; a single node is not mentioned. */
static void add_resources(struct buf *out, const struct run *run)
{
	const struct json *resources = json_get(run->doc, "resources");
	const struct json *cpus = json_get(resources, "cpus");
	const struct json *memory = json_get(resources, "memory");
	const char *model = json_get_str(resources, "gpu_model");
	int64_t nodes = json_get_int(resources, "nodes", 1);
	int64_t gpus = json_get_int(resources, "gpus", 0);
	AUTO_BUF struct buf line = buf_with(PAGE_MAX);

	add_count(&line, nodes > 1 ? nodes : 0, "node", "nodes");
	add_count(&line, gpus, "GPU", "GPUs");
	if (gpus > 0 && model)
		buf_addf(&line, " (%s)", model);
	if (json_kind(cpus) == JSON_NUMBER)
		add_count(&line, json_int(cpus, 0), "CPU", "CPUs");
	if (json_kind(memory) == JSON_NUMBER || json_kind(memory) == JSON_STRING) {
		buf_adds(&line, line.len ? ", " : "");
		columns_add_scalar(memory, &line);
		buf_adds(&line, " of memory");
	}
	summary_add_field(out, "resources", line.data);
}

/* "learner  python3 learn.py", a line for each role. */
static void show_add_roles(struct buf *out, const struct run *run)
{
	const struct json *roles = json_get(run->spec, "roles");
	AUTO_FREE char *counts = roles_summary(run->doc);

	summary_add_field(out, "roles", counts);
	for (const struct json *role = json_first(roles); role; role = json_next(role)) {
		AUTO_STRV struct strv words = {0};
		AUTO_BUF struct buf line = buf_with(PAGE_MAX);
		if (words_get(role, "command", &words, NULL) < 0 || !words.n)
			continue;
		buf_addf(&line, "%s: ", json_get_str(role, "name"));
		if (json_get_bool(role, "shell", false))
			buf_adds(&line, words.v[0]);
		else
			str_shell_join(&line, words.v);
		summary_add_field(out, "", line.data);
	}
	summary_add_field(out, "ends with", json_get_str(run->doc, "ends_with"));
}

static void show_add_data(struct buf *out, const struct json *data)
{
	for (const struct json *item = json_first(data); item; item = json_next(item)) {
		AUTO_FREE char *shown = str_shown(json_str(item));
		AUTO_FREE char *line = mem_printf("%s@%s", json_key(item), shown);
		summary_add_field(out, item == json_first(data) ? "data" : "", line);
	}
}

static void show_add_ports(struct buf *out, const struct json *list)
{
	AUTO_BUF struct buf line = buf_with(PAGE_MAX);

	for (const struct json *item = json_first(list); item; item = json_next(item))
		buf_addf(&line, "%s%lld", line.len ? ", " : "", (long long)json_int(item, 0));
	summary_add_field(out, "ports", line.data);
}

/* "exit 1, the program failed" */
static void add_end(struct buf *line, const struct json *exit)
{
	int64_t code = json_get_int(exit, "code", -1), sig = json_get_int(exit, "signal", 0);
	const struct run_reason *reason = run_reason(json_get_str(exit, "reason"));

	if (code < 0) {
		buf_adds(line, "has not ended");
		return;
	}
	buf_addf(line, "exit %lld", (long long)code);
	if (sig > 0)
		buf_addf(line, ", signal %lld", (long long)sig);
	else if (reason && reason->text)
		buf_addf(line, ", %s", reason->text);
}

static int64_t show_time_of(const struct json *object, const char *key)
{
	const char *text = json_get_str(object, key);
	int64_t ms;

	return text && clock_parse(text, &ms, NULL) == 0 ? ms : 0;
}

static void show_add_attempt(struct buf *out, const struct json *attempt)
{
	int64_t started = show_time_of(attempt, "started"), ended = show_time_of(attempt, "ended");
	AUTO_BUF struct buf line = buf_with(PAGE_MAX);
	char text[32];

	buf_addf(&line, "%lld  ", (long long)json_get_int(attempt, "number", 0));
	add_end(&line, json_get(attempt, "exit"));
	if (started && ended >= started)
		buf_addf(&line, " after %s", duration_text(ended - started, text));
	if (started)
		buf_addf(&line, ", started %s", ui_time(started, text));
	if (started)
		buf_addf(&line, " (%s ago)", ui_age(clock_wall_ms() - started, text));
	summary_add_field(out, "attempt", line.data);
}

/* A single attempt is the run itself. */
static void show_add_attempts(struct buf *out, const struct run *run)
{
	const struct json *list = json_get(run->doc, "attempts");

	if (json_count(list) < 2)
		return;
	for (const struct json *item = json_first(list); item; item = json_next(item))
		show_add_attempt(out, item);
}

/* A column of `ps` as text; NULL: not known. */
static char *column_text(const struct run *run, const char *name)
{
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_COLUMN_VALUE struct column_value value = {0};

	BUG_ON(columns_parse(name, &columns, NULL) < 0);
	column_get(&columns.v[0], run, clock_wall_ms(), &value);
	return TAKE(value.text);
}

/* "A of one, B of another", what is not known left out. */
static void add_used(struct buf *out, const char *label, const struct run *run,
	const char *const (*parts)[2], size_t n)
{
	AUTO_BUF struct buf line = buf_with(PAGE_MAX);

	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *text = column_text(run, parts[i][0]);

		if (text)
			buf_addf(&line, "%s%s %s", line.len ? ", " : "", text, parts[i][1]);
	}
	summary_add_field(out, label, line.data);
}

static void add_usage(struct buf *out, const struct run *run)
{
	static const char *const machine[][2] = {
		{"cpu", "of CPU time"}, {"memory", "of memory at most"}};
	static const char *const gpus[][2] = {
		{"gpu", "of the time busy"}, {"gpu-memory", "of their memory at most"}};

	AUTO_FREE char *energy = column_text(run, "energy");

	add_used(out, "used", run, machine, ARRAY_LEN(machine));
	add_used(out, "GPUs", run, gpus, ARRAY_LEN(gpus));
	summary_add_field(out, "energy", energy);
}

/* "about 12.40 (2 nodes of gpu-a for 12 min)" */
static void show_add_cost(struct buf *out, const struct run *run)
{
	const struct json *cost = json_get(run->doc, OBSERVED_COST);
	double amount = json_get_num(cost, "amount", -1),
	       per_hour = json_get_num(cost, "per_hour", 0);
	double nodes = json_get_num(cost, "nodes", -1);
	const char *group = json_get_str(cost, "group");
	char time[32];

	if (!(amount >= 0 && nodes >= 0 && group))
		return;
	AUTO_FREE char *shown = str_shown(group);
	double ms = per_hour > 0 ? amount / per_hour * 3600 * 1000 : 0;
	AUTO_FREE char *line = mem_printf("about %.2f (%.3g node%s of %s%s%s)", amount, nodes,
		nodes > 0.995 && nodes < 1.005 ? "" : "s", shown,
		ms > 0 && ms < 1e15 ? " for " : "",
		ms > 0 && ms < 1e15 ? duration_text((int64_t)ms, time) : "");
	summary_add_field(out, "cost", line);
}

static size_t widest_key(const struct json *object)
{
	size_t widest = 0;

	for (const struct json *item = json_first(object); item; item = json_next(item)) {
		size_t wide = str_columns(json_key(item));

		widest = wide > widest && wide <= METRIC_WIDTH ? wide : widest;
	}
	return widest;
}

static void add_metric(struct buf *out, const char *label, const struct json *metric, size_t widest)
{
	int64_t step = json_get_int(metric, "step", -1);
	size_t wide = str_columns(json_key(metric));
	AUTO_BUF struct buf line = buf_with(PAGE_MAX);

	buf_addf(&line, "%s%*s  ", json_key(metric), wide < widest ? (int)(widest - wide) : 0, "");
	columns_add_scalar(json_get(metric, "value"), &line);
	if (step >= 0)
		buf_addf(&line, "  (step %lld)", (long long)step);
	summary_add_field(out, label, line.data);
}

static void show_add_curve(struct buf *out, const struct series_curve *curve, const char *name)
{
	const struct series_point *first = &curve->points[0], *last = &curve->points[curve->n - 1];
	AUTO_BUF struct buf line = buf_with(PAGE_MAX);

	if (!spark_add(curve->points, curve->n, &line))
		return;
	buf_addf(&line, "  %s: %.4g to %.4g, steps %lld to %lld", name, first->value, last->value,
		(long long)first->step, (long long)last->step);
	summary_add_field(out, "", line.data);
}

/* The curve of one, where its event files are on this machine. */
static void add_spark(struct app *app, struct buf *out, const struct run *run)
{
	const struct json *metric = metric_main(json_get(run->doc, "metrics"));
	AUTO_FREE char *dir = metric && !app->plain ? metrics_here_dir(&app->session, run) : NULL;
	struct series_curve curve;
	bool is_new;

	if (!dir)
		return;
	AUTO(series_free_auto) struct series *series = series_new(dir);
	/* Over a limit there are some all the same. */
	(void)series_poll(series, &is_new, NULL);
	if (spark_find(series, json_key(metric), &curve))
		show_add_curve(out, &curve, json_key(metric));
}

/* The last value of each. */
static void show_add_metrics(struct buf *out, const struct run *run)
{
	const struct json *metrics = json_get(run->doc, "metrics");
	size_t widest = widest_key(metrics), n = 0;

	for (const struct json *item = json_first(metrics); item; item = json_next(item), n++)
		if (n < METRICS_MAX)
			add_metric(out, n ? "" : "metrics", item, widest);
	if (n > METRICS_MAX)
		add_fieldf(out, "", "and %zu more: dlrun show --json %s", n - METRICS_MAX,
			run_id(run));
}

static void show_add_path(struct buf *out, const char *label, const char *path)
{
	struct stat st;

	if (stat(path, &st) == 0)
		summary_add_field(out, label, path);
}

static void show_add_results(struct app *app, struct buf *out, const struct run *run)
{
	AUTO_STRV struct strv lines = {0};
	size_t columns =
		app->out_tty && app->columns > SUMMARY_FIELD ? app->columns - SUMMARY_FIELD : 0;

	runs_results_lines(app, run, columns, &lines);
	for (size_t i = 0; i < lines.n; i++)
		summary_add_field(out, i ? "" : "results", lines.v[i]);
}

/* Of runs on this machine. */
static void show_add_places(struct app *app, struct buf *out, const struct run *run)
{
	const struct dirs *dirs = &app->session.dirs;
	AUTO_FREE char *attempt = dirs_attempt(dirs, run_id(run), run_attempts(run));
	AUTO_FREE char *log = mem_printf("%s/%s", attempt, ATTEMPT_LOG);
	AUTO_FREE char *tree = mem_printf("%s/%s", attempt, ATTEMPT_TREE);
	AUTO_FREE char *notes = mem_printf("%s/%s", attempt, ATTEMPT_NOTES);

	show_add_path(out, "log", log);
	show_add_path(out, "runs in", tree);
	if (app->options.verbose)
		show_add_path(out, "supervisor", notes);
}

static void add_headline(struct app *app, struct buf *out, const struct run *run)
{
	enum run_state state = run_state(run);
	AUTO_BUF struct buf sentence = buf_with(SENTENCE_MAX), hint = buf_with(SENTENCE_MAX);

	runs_why(app, run, &sentence, &hint);
	AUTO_FREE char *why = ui_clean(sentence.data);
	AUTO_FREE char *next = ui_clean(hint.data);
	buf_addf(out, "%s%s" UI_OFF "\n", runs_state_style(state), why);
	if (*next && state != RUN_SUCCEEDED)
		buf_addf(out, "  " UI_BOLD "hint:" UI_OFF " %s\n", next);
	buf_addc(out, '\n');
}

static int show_one(struct app *app, struct run *run)
{
	const struct run_list one = {.v = &run, .n = 1};
	AUTO_BUF struct buf out = buf_with(PAGE_MAX);

	runs_results(&app->session, &one, true, RESULTS_MS);
	if (run_state(run) == RUN_RUNNING)
		metrics_bring(&app->session, &one, RESULTS_MS);
	metrics_here(&app->session, &one, METRICS_MS);
	if (app->options.json)
		return app_print_json(app, json_clone(run->doc));
	add_headline(app, &out, run);
	add_identity(&out, run);
	add_resources(&out, run);
	show_add_roles(&out, run);
	show_add_ports(&out, json_get(run->doc, "ports"));
	add_times(&out, run);
	show_add_attempts(&out, run);
	add_usage(&out, run);
	show_add_cost(&out, run);
	show_add_metrics(&out, run);
	add_spark(app, &out, run);
	show_add_list(&out, "link", json_get(run->doc, "links"));
	show_add_code(&out, run);
	show_add_data(&out, json_get(run->doc, RUNTIME_DATA));
	show_add_results(app, &out, run);
	show_add_places(app, &out, run);
	show_add_list(&out, "warning", json_get(run->doc, "warnings"));
	return summary_print_page(app, &out);
}

static int cmd_show_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *study = NULL;

	if (runs_get_named(app, words, &runs, &study, &err) < 0)
		return app_fail(app, &err);
	return study ? summary_print(app, study, &runs) : show_one(app, runs.v[0]);
}

const struct cmd cmd_show = {
	.name = "show",
	.summary = "Show one run in full, and where its results and log are",
	.synopsis = "[options] [RUN|STUDY]",
	.examples = {"dlrun show # the newest run in full",
		"dlrun show resnet-3k2f9 # one run: command, code, times, where its results are",
		"dlrun show --json tiger-4k2x9 # a study: its runs by state, its axes; for a script"},
	.max_words = 1,
	.words = VALUE_RUN,
	.flags = CMD_STUDIES,
	.run = cmd_show_run,
};
