/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/help.h"
#include "cli/term/ui.h"

enum { TEXT_MAX = 64 << 10 };

static int explain_not_found(const char *word, struct err *err)
{
	AUTO_FREE char *shown = str_shown(word);
	const char *names[E_COUNT];
	const char *near;

	for (enum err_id id = E_NONE + 1; id < E_COUNT; id++)
		names[id - 1] = err_info(id)->name;
	near = str_suggest(word, names, E_COUNT - 1);
	err_set(err, E_USAGE, "there is no error with the id '%s'", shown);
	if (cmd_find(word))
		return err_hint(err, "dlrun help %s", word);
	if (near)
		return err_hint(err, "dlrun explain %s", near);
	return err_hint(err, "dlrun explain");
}

static struct json *info_json(enum err_id id)
{
	const struct err_info *info = err_info(id);
	struct json *json = json_object();

	json_set_str(json, "id", info->name);
	json_set_str(json, "title", info->title);
	json_set_str(json, "text", info->text);
	if (help_exit_status(id) >= 0)
		json_set_int(json, "exit", help_exit_status(id));
	else
		json_set(json, "exit", json_null());
	return json;
}

/* only: E_NONE for all. */
static int explain_print_json(struct app *app, enum err_id only)
{
	struct json *json = app_json("errors"), *list = json_array();

	for (enum err_id id = E_NONE + 1; id < E_COUNT; id++)
		if (only == E_NONE || only == id)
			json_add(list, info_json(id));
	json_set(json, "errors", list);
	return app_print_json(app, json);
}

static int print_all(struct app *app)
{
	static const struct ui_column columns[] = {{"ID"}, {"WHAT"}};
	AUTO_TABLE struct ui_table table;

	ui_table_init(&table, columns, ARRAY_LEN(columns));
	for (enum err_id id = E_NONE + 1; id < E_COUNT; id++) {
		ui_table_add(&table, "", err_info(id)->name);
		ui_table_add(&table, "", err_info(id)->title);
	}
	return ui_table_print(app, &table) < 0;
}

static int print_one(struct app *app, enum err_id id)
{
	const struct err_info *info = err_info(id);
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);

	buf_addf(&out, UI_BOLD "%s" UI_OFF ": %s\n\n", info->name, info->title);
	ui_wrap(info->text, app->columns - 1, 0, &out);
	buf_addc(&out, '\n');
	if (help_exit_status(id) >= 0)
		buf_addf(&out, "\nexit status: %d\n", help_exit_status(id));
	return ui_print(app, UI_OUT, out.data, out.len) < 0;
}

static int explain_run(struct app *app, void *values UNUSED, struct strv *words)
{
	enum err_id id = words->n ? err_find(words->v[0]) : E_NONE;
	AUTO_ERR struct err err = {0};

	if (words->n && id == E_NONE) {
		explain_not_found(words->v[0], &err);
		return app_fail(app, &err);
	}
	if (app->options.json)
		return explain_print_json(app, id);
	return id ? print_one(app, id) : print_all(app);
}

const struct cmd cmd_explain = {
	.name = "explain",
	.summary = "Explain an error by its id, shown in brackets after it",
	.synopsis = "[options] [ID]",
	.examples = {"dlrun explain snapshot.secret # what it means and what to do",
		"dlrun explain # all ids", "dlrun explain --json # all of them with their texts"},
	.max_words = 1,
	.words = VALUE_ERROR,
	.run = explain_run,
};
