#include <stdlib.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/runs.h"
#include "cli/ui.h"
#include "run/attempt.h"
#include "run/columns.h"
#include "run/dirs.h"

enum { PAGE_MAX = 4 << 20, SENTENCE_MAX = 64 << 10, SHORT_COMMIT = 12 };

/*
 * One line each: "label     value"
 */

static void add_field(struct buf *out, const char *label, const char *value)
{
	AUTO_FREE char *clean = NULL;

	if (str_empty(value))
		return;
	clean = ui_clean(value);
	buf_addf(out, UI_BOLD "%-11s" UI_OFF "%s\n", label, clean);
}

static void add_fieldf(struct buf *out, const char *label, const char *fmt, ...) ERR_PRINTF(3, 4);
static void add_fieldf(struct buf *out, const char *label, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *value = mem_vprintf(fmt, args);
	va_end(args);
	add_field(out, label, value);
}

/* A scalar as people write it. */
static void add_scalar(struct buf *out, const struct json *value)
{
	if (json_kind(value) == JSON_STRING)
		buf_adds(out, json_str(value));
	else
		json_print(value, out);
}

/* "a=1 b" of an object. */
static void add_pairs(struct buf *out, const char *label, const struct json *object)
{
	AUTO_BUF struct buf line = {0};

	buf_init(&line, PAGE_MAX);
	for (const struct json *item = json_first(object); item; item = json_next(item)) {
		buf_addf(&line, "%s%s", line.len ? " " : "", json_key(item));
		if (str_empty(json_str(item)) && json_kind(item) == JSON_STRING)
			continue;
		buf_addc(&line, '=');
		add_scalar(&line, item);
	}
	add_field(out, label, line.data);
}

static void add_time(struct buf *out, const char *label, int64_t wall_ms)
{
	char when[32], age[32];

	if (wall_ms)
		add_fieldf(out, label, "%s (%s ago)", ui_time(wall_ms, when),
			ui_age(clock_wall_ms() - wall_ms, age));
}

/*
 * Parts
 */

static void add_identity(struct buf *out, const struct run *run)
{
	const struct json *doc = run->doc, *origin = json_get(doc, "origin");
	AUTO_FREE char *command = run_command_line(run);

	add_field(out, "command", command);
	if (!str_eq(json_get_str(origin, "cwd"), "."))
		add_field(out, "directory", json_get_str(origin, "cwd"));
	add_field(out, "tree", json_get_str(origin, "root"));
	add_field(out, "target", run_target(run));
	add_field(out, "user", json_get_str(doc, "user"));
	add_field(out, "group", json_get_str(doc, "group"));
	add_field(out, "parent", json_get_str(doc, "parent"));
	add_pairs(out, "tags", json_get(doc, "tags"));
	add_field(out, "note", json_get_str(doc, "note"));
	add_pairs(out, "params", json_get(doc, "params"));
}

static void add_times(struct buf *out, const struct run *run)
{
	add_time(out, "submitted", run_submitted_ms(run));
	add_time(out, "started", run_started_ms(run));
	add_time(out, "ended", run_ended_ms(run));
	add_field(out, "last known", json_get_str(run->doc, "last_state"));
}

static void add_code(struct buf *out, const struct run *run)
{
	const struct json *snapshot = json_get(run->doc, "snapshot");
	const struct json *image = json_get(run->doc, "image");
	const char *commit = json_get_str(snapshot, "commit");
	long long files = (long long)json_get_int(snapshot, "files", 0);
	char bytes[16];

	add_field(out, "code", json_get_str(snapshot, "id"));
	add_fieldf(out, "", "%lld %s, %s, %lld left out", files, files == 1 ? "file" : "files",
		str_size((uint64_t)json_get_int(snapshot, "bytes", 0), bytes),
		(long long)json_get_int(snapshot, "left_out", 0));
	if (commit)
		add_fieldf(out, "commit", "%.*s%s", SHORT_COMMIT, commit,
			json_get_bool(snapshot, "dirty", false) ? " and changes on disk" : "");
	if (json_get_str(snapshot, "record"))
		add_field(out, "in git", json_get_str(snapshot, "ref"));
	add_field(out, "not in git", json_get_str(snapshot, "record_why"));
	add_field(out, "image", json_get_str(image, "ref"));
	if (!str_eq(json_get_str(image, "base"), "scratch"))
		add_field(out, "base", json_get_str(image, "base"));
}

static void add_attempts(struct buf *out, const struct run *run)
{
	const struct json *list = json_get(run->doc, "attempts");

	if (json_count(list) < 2)
		return;
	for (const struct json *item = json_first(list); item; item = json_next(item)) {
		const struct json *exit = json_get(item, "exit");

		add_fieldf(out, "attempt", "%lld  started %s  exit %lld (%s)",
			(long long)json_get_int(item, "number", 0),
			json_get_str(item, "started") ? json_get_str(item, "started") : "-",
			(long long)json_get_int(exit, "code", -1),
			json_get_str(exit, "reason") ? json_get_str(exit, "reason") : "-");
	}
}

static void add_usage(struct buf *out, const struct run *run)
{
	const struct json *usage = json_get(run->doc, "usage");
	double cpu_s = json_get_num(usage, "cpu_s", -1);
	int64_t peak = json_get_int(usage, "memory_peak_bytes", -1);
	char text[32], bytes[16];

	if (cpu_s >= 0 && peak >= 0)
		add_fieldf(out, "used", "%s of processor time, %s of memory at most",
			duration_text((int64_t)(cpu_s * 1000), text),
			str_size((uint64_t)peak, bytes));
	else if (cpu_s >= 0)
		add_fieldf(out, "used", "%s of processor time",
			duration_text((int64_t)(cpu_s * 1000), text));
}

static void add_metrics(struct buf *out, const struct run *run)
{
	const struct json *metrics = json_get(run->doc, "metrics");
	AUTO_BUF struct buf line = {0};

	buf_init(&line, PAGE_MAX);
	for (const struct json *item = json_first(metrics); item; item = json_next(item))
		buf_addf(&line, "%s%s=%g", line.len ? " " : "", json_key(item),
			json_get_num(item, "value", 0));
	add_field(out, "metrics", line.data);
}

static void add_path(struct buf *out, const char *label, const char *path)
{
	struct stat st;

	if (stat(path, &st) == 0)
		add_field(out, label, path);
}

/* Of runs on this machine. */
static void add_places(struct app *app, struct buf *out, const struct run *run)
{
	const struct dirs *dirs = &app->session.dirs;
	AUTO_FREE char *outputs = dirs_outputs(dirs, run_id(run));
	AUTO_FREE char *attempt = dirs_attempt(dirs, run_id(run), run_attempts(run));
	AUTO_FREE char *log = mem_printf("%s/%s", attempt, ATTEMPT_LOG);
	AUTO_FREE char *tree = mem_printf("%s/%s", attempt, ATTEMPT_TREE);
	AUTO_FREE char *notes = mem_printf("%s/%s", attempt, ATTEMPT_NOTES);

	add_path(out, "outputs", outputs);
	add_path(out, "log", log);
	add_path(out, "runs in", tree);
	if (app->options.verbose)
		add_path(out, "supervisor", notes);
}

static void add_warnings(struct buf *out, const struct run *run)
{
	const struct json *list = json_get(run->doc, "warnings");

	for (const struct json *item = json_first(list); item; item = json_next(item))
		add_field(out, "warning", json_str(item));
}

static void add_headline(struct app *app, struct buf *out, const struct run *run)
{
	enum run_state state = run_state(run);
	AUTO_BUF struct buf sentence = {0}, hint = {0};

	buf_init(&sentence, SENTENCE_MAX);
	buf_init(&hint, SENTENCE_MAX);
	runs_why(app, run, &sentence, &hint);
	AUTO_FREE char *why = ui_clean(sentence.data);
	AUTO_FREE char *next = ui_clean(hint.data);
	buf_addf(out, "%s%s" UI_OFF "\n", runs_state_style(state), why);
	if (*next && state != RUN_SUCCEEDED)
		buf_addf(out, "  " UI_BOLD "hint:" UI_OFF " %s\n", next);
	buf_addc(out, '\n');
}

static int run(struct app *app, void *values, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	AUTO_BUF struct buf out = {0};

	(void)values;
	if (runs_get(app, words->n ? words->v[0] : NULL, &run, &err) < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return app_print_json(app, json_clone(run->doc));
	buf_init(&out, PAGE_MAX);
	add_headline(app, &out, run);
	add_identity(&out, run);
	add_times(&out, run);
	add_usage(&out, run);
	add_metrics(&out, run);
	add_attempts(&out, run);
	add_code(&out, run);
	add_places(app, &out, run);
	add_warnings(&out, run);
	return ui_print(app, UI_OUT, out.data, out.len) < 0;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun show # the newest run in full",
	"dlrun show resnet-3k2f9 # one run: command, code, times, where its results are",
	"dlrun show --json @ # the same as JSON, for a script",
};

const struct cmd cmd_show = {
	.name = "show",
	.summary = "Show one run in full, and where its results and log are",
	.synopsis = "[options] [RUN]",
	.examples = examples,
	.max_words = 1,
	.words = VALUE_RUN,
	.run = run,
};
