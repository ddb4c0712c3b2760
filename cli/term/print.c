/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/app.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/cmd.h"
#include "cli/term/opt.h"
#include "cli/term/ui.h"

enum { EXIT_DLRUN = 125, EXIT_INTERRUPTED = 130, RETYPED_MAX = 4096 };

/*
 * Errors
 */

/* "dlrun COMMAND OPTIONS …" stands for the command as it was typed, with these options. Where it
 * cannot be shown again, the options alone are the advice. */
static char *complete_hint(const struct app *app, const char *hint)
{
	static const char rest[] = " …", name[] = "dlrun ";
	const char *at = hint ? strstr(hint, name) : NULL;
	AUTO_BUF struct buf out = buf_with(RETYPED_MAX);

	if (!at || !str_ends(hint, rest))
		return hint ? mem_strdup(hint) : NULL;
	size_t word = strlen(name) + strcspn(at + strlen(name), " ");
	if (strlen(at) < word + 1 + strlen(rest))
		return mem_strdup(hint);
	AUTO_FREE char *options = mem_strndup(at + word + 1, strlen(at) - word - 1 - strlen(rest));
	AUTO_FREE char *command = mem_strndup(at + strlen(name), word - strlen(name));
	struct opt_request request = {.common = app_opts};

	buf_add(&out, hint, (size_t)(at - hint));
	buf_adds(&out, "dlrun");
	for (size_t i = 0; i < app->n_before; i++) {
		buf_addc(&out, ' ');
		str_shell_quote(&out, app->typed[i]);
	}
	if (app->cmd && str_eq(app->cmd->name, command)) {
		request.opts = app->cmd->opts;
		request.stop_at_word = app->cmd->flags & CMD_PROGRAM;
		if (opt_retype(&request, app->typed + app->n_before, options, &out))
			return buf_take(&out);
	}
	return mem_printf("add %s", options);
}

void app_error_text(const struct app *app, const struct err *err, struct buf *out)
{
	AUTO_FREE char *message = ui_clean(err->message), *hint = NULL;
	AUTO_FREE char *whole = complete_hint(app, err->hint);
	AUTO_FREE char *first =
		mem_printf(UI_RED "error:" UI_OFF " %s   [%s]\n", message, err_info(err->id)->name);

	ui_fit(app, UI_ERR, first, 2, out);
	for (size_t i = 0; i < err->n_evidence; i++) {
		AUTO_FREE char *clean = ui_clean(err->evidence[i]);
		AUTO_FREE char *line = mem_printf("  %s\n", clean);
		ui_fit(app, UI_ERR, line, 4, out);
	}
	if (!whole)
		return;
	hint = ui_clean(whole);
	AUTO_FREE char *last = mem_printf("  " UI_BOLD "hint:" UI_OFF " %s\n", hint);
	ui_fit(app, UI_ERR, last, 8, out);
}

static struct json *print_error_json(const struct app *app, const struct err *err, int status)
{
	AUTO_FREE char *hint = complete_hint(app, err->hint);
	struct json *json = app_json("error");
	struct json *body = json_sub(json, "error");
	struct json *evidence = json_array();

	json_set_str(body, "id", err_info(err->id)->name);
	json_set_str(body, "message", err->message);
	for (size_t i = 0; i < err->n_evidence; i++)
		json_add_str(evidence, err->evidence[i]);
	json_set(body, "evidence", evidence);
	json_set_str(body, "hint", hint);
	json_set_int(body, "exit", status);
	return json;
}

static int print_status_of(const struct app *app, const struct err *err)
{
	if (err->code == ERR_CANCELED)
		return EXIT_INTERRUPTED;
	return app->accepted ? EXIT_DLRUN : err_exit_status(err->code);
}

int app_fail(struct app *app, const struct err *err)
{
	int status = print_status_of(app, err);
	AUTO_BUF struct buf text = buf_with(UI_TEXT_MAX);

	app_error_text(app, err, &text);
	ui_print(app, UI_ERR, text.data, text.len);
	if (app->options.json && !app->json_done)
		app_print_json(app, print_error_json(app, err, status));
	return status;
}

/*
 * JSON
 */

struct json *app_json(const char *kind)
{
	struct json *json = json_object();
	AUTO_FREE char *schema = mem_printf("dlrun/%s/v1", kind);

	json_set_str(json, "schema", schema);
	return json;
}

/* On a terminal the filter has the last word, valid JSON or not. */
static int print_write_json(struct app *app, struct json *json, bool pretty)
{
	AUTO_BUF struct buf text = buf_with(UI_TEXT_MAX);

	if (pretty)
		json_print_pretty(json, &text);
	else
		json_print(json, &text);
	buf_addc(&text, '\n');
	json_free(json);
	if (app->out_tty)
		return ui_print(app, UI_OUT, text.data, text.len) < 0;
	return ui_write(app, text.data, text.len) < 0;
}

int app_print_json(struct app *app, struct json *json)
{
	app->json_done = true;
	return print_write_json(app, json, app->out_tty);
}

int app_print_json_line(struct app *app, struct json *json)
{
	return print_write_json(app, json, false);
}

/*
 * Sentences
 */

/* Print a single line: the text formatted into it may hold anything. */
static void term_print(struct app *app, const char *before, size_t indent, const char *fmt,
	va_list args) ERR_PRINTF(4, 0);
static void term_print(
	struct app *app, const char *before, size_t indent, const char *fmt, va_list args)
{
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	AUTO_FREE char *line = ui_clean(text);

	ui_printf_fit(app, UI_ERR, indent, "%s%s\n", before, line);
}

void app_warn(struct app *app, const char *fmt, ...)
{
	va_list args;

	if (app->options.quiet)
		return;
	va_start(args, fmt);
	term_print(app, UI_YELLOW "warning:" UI_OFF " ", 2, fmt, args);
	va_end(args);
}

void app_note(struct app *app, const char *fmt, ...)
{
	va_list args;

	if (app->options.quiet || app->options.json)
		return;
	va_start(args, fmt);
	term_print(app, "", 2, fmt, args);
	va_end(args);
}

void app_note_interrupted(struct app *app, const char *fmt, ...)
{
	va_list args;

	if (app->options.quiet || app->options.json)
		return;
	va_start(args, fmt);
	term_print(app, app->err_tty ? "\n" : "", 2, fmt, args);
	va_end(args);
}

void app_phase(struct app *app, const char *label, const char *fmt, ...)
{
	AUTO_FREE char *before = NULL;
	int64_t ms = clock_ms() - app->started_ms;
	va_list args;

	if (app->progress == PROGRESS_NONE)
		return;
	if (app->progress == PROGRESS_PLAIN)
		before = mem_printf("t=+%lld.%llds %-*s", (long long)(ms / 1000),
			(long long)(ms % 1000 / 100), UI_LABEL, label);
	else
		before = mem_printf(UI_BOLD "%-*s" UI_OFF, UI_LABEL, label);
	va_start(args, fmt);
	term_print(app, before, UI_LABEL, fmt, args);
	va_end(args);
}
