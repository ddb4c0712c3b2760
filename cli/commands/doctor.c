/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>
#include <unistd.h>

#include "app/doctor/doctor.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "cli/term/embed.h"

enum { STATUS_WIDTH = 9, TITLE_WIDTH = 18, LINE_BYTES = 1 << 20 };

struct doctor_values {
	const char *report;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 0, "report", struct doctor_values, report), .arg = "[=FILE]",
		.help = "Write one text file for a bug report, without secrets (-: print it)",
		.values = VALUE_FILE},
	{OPT_END},
};

static const char *cmd_doctor_style_of(enum doctor_status status)
{
	static const char *const styles[] = {UI_GREEN, UI_YELLOW, UI_RED};

	return styles[status];
}

static void add_below(const char *before, const char *text, struct buf *out)
{
	AUTO_FREE char *clean = text ? ui_clean(text) : NULL;

	if (clean)
		buf_addf(out, "%*s%s%s\n", STATUS_WIDTH, "", before, clean);
}

static void cmd_doctor_add_row(const struct doctor_row *row, struct buf *out)
{
	AUTO_FREE char *found = ui_clean(row->found ? row->found : "");

	buf_addf(out, "%s%-*s" UI_OFF "%-*s%s\n", cmd_doctor_style_of(row->status), STATUS_WIDTH,
		doctor_status_name(row->status), TITLE_WIDTH, doctor_title(row->id), found);
	add_below("", row->cause, out);
	add_below("fix: ", row->fix, out);
	vec_foreach (const struct doctor_row, more, &row->more)
		cmd_doctor_add_row(more, out);
}

static size_t count_row(const struct doctor_row *row, enum doctor_status status)
{
	size_t n = row->status == status;

	vec_foreach (const struct doctor_row, more, &row->more)
		n += count_row(more, status);
	return n;
}

static size_t cmd_doctor_count(const struct doctor_row *rows, enum doctor_status status)
{
	size_t n = 0;

	for (size_t i = 0; i < doctor_checks_n; i++)
		n += count_row(&rows[i], status);
	return n;
}

static void print_rows(struct app *app, const struct doctor_row *rows)
{
	size_t problems = cmd_doctor_count(rows, DOCTOR_PROBLEM),
	       warnings = cmd_doctor_count(rows, DOCTOR_WARNING);
	AUTO_BUF struct buf out = buf_with(LINE_BYTES), fitted = buf_with(LINE_BYTES);

	for (size_t i = 0; i < doctor_checks_n; i++)
		cmd_doctor_add_row(&rows[i], &out);
	ui_fit(app, UI_OUT, out.data, STATUS_WIDTH + 2, &fitted);
	ui_print(app, UI_OUT, fitted.data, fitted.len);
	app_note(app, "%zu %s, %zu %s", problems, problems == 1 ? "problem" : "problems", warnings,
		warnings == 1 ? "warning" : "warnings");
}

static void cmd_doctor_add_json(struct json *list, const struct doctor_row *row)
{
	struct json *json = doctor_row_to_json(row);

	json_remove(json, "more");
	json_add(list, json);
	vec_foreach (const struct doctor_row, more, &row->more)
		cmd_doctor_add_json(list, more);
}

static void cmd_doctor_print_json(struct app *app, const struct doctor_row *rows)
{
	struct json *json = app_json("doctor"), *list = json_array();

	for (size_t i = 0; i < doctor_checks_n; i++)
		cmd_doctor_add_json(list, &rows[i]);
	json_set(json, "checks", list);
	app_print_json(app, json);
}

/* The caller frees. */
static char *report_path(void)
{
	time_t now = time(NULL);
	struct tm tm;
	char date[32];

	localtime_r(&now, &tm);
	strftime(date, sizeof(date), "%Y%m%d-%H%M%S", &tm);
	return mem_printf("dlrun-report-%s.txt", date);
}

static int cmd_doctor_write_report(
	struct app *app, const char *wanted, const struct doctor_row *rows)
{
	AUTO_FREE char *path = *wanted ? mem_strdup(wanted) : report_path();
	AUTO_ERR struct err error = {0}, err = {0};
	AUTO_BUF struct buf out = buf_with(DOCTOR_REPORT_MAX);
	struct session *session = &app->session;
	struct doctor doctor = {.session = session};

	/* Redaction goes by the environment, which the session lacks when the current directory was
	 * removed. */
	if (app_session(app, &session, &error) < 0) {
		doctor.error = &error;
		app->session.env.env = (const char *const *)environ;
	}
	doctor_report(&doctor, dlrun_version, rows, &out);
	if (doctor.error)
		session_done(&app->session);
	if (str_eq(path, "-"))
		return ui_print(app, UI_OUT, out.data, out.len) < 0;
	if (fs_replace(path, out.data, out.len, 0600, FS_SYNC_NONE, &err) < 0)
		return app_fail(app, &err);
	app_phase(app, "wrote", "%s", path);
	app_phase(app, "next", "read it, then attach it to the bug report");
	return 0;
}

/* Not even directories are needed here: what is missing is for the checks to report. */
static int cmd_doctor_run(struct app *app, void *values_ptr, struct strv *words UNUSED)
{
	const struct doctor_values *values = values_ptr;
	const char *const command[] = {app->self, "__check", NULL};
	AUTO_FREE struct doctor_row *rows = mem_alloc(doctor_checks_n, sizeof(*rows));
	AUTO_ERR struct err err = {0};
	int status;

	if (values->report && app->options.json) {
		err_set(&err, E_USAGE, "--report and --json cannot be used together");
		return app_fail(app, &err);
	}
	app_catch_signals();
	if (doctor_run_all(command, DOCTOR_TIMEOUT_MS, &app_interrupted, rows, &err) < 0)
		status = app_fail(app, &err);
	else
		status = cmd_doctor_count(rows, DOCTOR_PROBLEM) > 0;
	if (!err_is_set(&err) && values->report)
		status = cmd_doctor_write_report(app, values->report, rows);
	else if (!err_is_set(&err) && app->options.json)
		cmd_doctor_print_json(app, rows);
	else if (!err_is_set(&err))
		print_rows(app, rows);
	for (size_t i = 0; i < doctor_checks_n; i++)
		doctor_row_done(&rows[i]);
	return status;
}

const struct cmd cmd_doctor = {
	.name = "doctor",
	.summary = "Diagnose problems and suggest fixes",
	.synopsis = "[options]",
	.examples = {"dlrun doctor # look at everything that runs need here",
		"dlrun doctor -C ../other # the same for another working tree",
		"dlrun doctor --report # one file to attach to a bug report"},
	.opts = opts,
	.values_size = sizeof(struct doctor_values),
	.run = cmd_doctor_run,
};
