/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/config/config_trust.h"

enum { VALUE_MAX = 1 << 20 };

struct config_values {
	bool show_origin, yes;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "show-origin", struct config_values, show_origin),
		.help = "Show where each value comes from, with file and line"},
	{OPT_MEMBER(OPT_FLAG, 'y', "yes", struct config_values, yes),
		.help = "With trust: confirm without asking"},
	{OPT_END},
};

static int check_key(const char *word, struct err *err)
{
	for (size_t i = 0; i < config_keys_n; i++)
		if (str_eq(config_keys[i].name, word))
			return 0;
	AUTO_FREE char *shown = str_shown(word);
	AUTO_STRV struct strv names = {0};
	const char *near;

	for (size_t i = 0; i < config_keys_n; i++)
		strv_add(&names, config_keys[i].name);
	near = str_suggest(word, (const char *const *)names.v, names.n);
	err_set(err, E_CONFIG_KEY, "unknown key '%s'", shown);
	if (near)
		return err_hint(err, "dlrun config %s", near);
	return err_hint(err, "dlrun help dlrun.yaml");
}

/* Whether key is the one that word names, or below it. */
static bool cmd_config_is_wanted(const char *key, const char *word)
{
	size_t len = word ? strlen(word) : 0;

	return !word || (strncmp(key, word, len) == 0 && (key[len] == '\0' || key[len] == '.'));
}

static bool cmd_config_has_any(const struct json *values, const char *word)
{
	for (const struct json *item = json_first(values); item; item = json_next(item))
		if (cmd_config_is_wanted(json_key(item), word))
			return true;
	return false;
}

/* Text as it is, all else as JSON, which is YAML too. */
static char *value_text(const struct json *value)
{
	AUTO_BUF struct buf out = buf_with(VALUE_MAX);

	if (json_kind(value) == JSON_STRING)
		buf_adds(&out, json_str(value));
	else
		json_print(value, &out);
	return buf_take(&out);
}

static char *origin_text(const struct json *item)
{
	const char *file = json_get_str(item, "file"), *source = json_get_str(item, "source");
	int64_t line = json_get_int(item, "line", 0);

	if (!file)
		return mem_strdup(source);
	if (line)
		return mem_printf("%s:%lld", file, (long long)line);
	return mem_printf("%s %s", source, file);
}

static void cmd_config_add_line(struct ui_table *table, const struct json *item)
{
	AUTO_FREE char *value = value_text(json_get(item, "value"));
	AUTO_FREE char *origin = origin_text(item);

	ui_table_add(table, "", json_key(item));
	if (table->n_columns == 3)
		ui_table_add(table, "", origin);
	ui_table_add(table, "", value);
}

/* `dlrun config KEY` prints the value alone, for scripts. */
static int cmd_config_print_value(struct app *app, const struct json *item)
{
	AUTO_FREE char *value = value_text(json_get(item, "value"));
	AUTO_FREE char *clean = ui_clean(value);

	return ui_printf(app, UI_OUT, "%s\n", clean) < 0;
}

static int cmd_config_print_table(
	struct app *app, const struct json *values, const char *word, bool show_origin)
{
	static const struct ui_column with_origin[] = {{"KEY"}, {"FROM", .cut = true}, {"VALUE"}};
	static const struct ui_column plain[] = {{"KEY"}, {"VALUE"}};
	AUTO_TABLE struct ui_table table;

	ui_table_init(&table, show_origin ? with_origin : plain, show_origin ? 3 : 2);
	for (const struct json *item = json_first(values); item; item = json_next(item))
		if (cmd_config_is_wanted(json_key(item), word))
			cmd_config_add_line(&table, item);
	return ui_table_print(app, &table) < 0;
}

static int cmd_config_print_json(struct app *app, const struct json *values, const char *word)
{
	struct json *json = app_json("config");
	struct json *wanted = json_sub(json, "values");

	for (const struct json *item = json_first(values); item; item = json_next(item))
		if (cmd_config_is_wanted(json_key(item), word))
			json_set(wanted, json_key(item), json_clone(item));
	return app_print_json(app, json);
}

/*
 * trust
 */

static int print_claims(struct app *app, const struct config_project *project)
{
	int r = 0;

	vec_foreach (struct config_claim, claim, &project->claims) {
		AUTO_FREE char *line =
			mem_printf("%s: %s: %s", claim->where, claim->key, claim->value);
		AUTO_FREE char *shown = str_escaped(line);
		r = r < 0 ? r : ui_printf(app, UI_OUT, "%s\n", shown);
	}
	return r;
}

static int print_trust(struct app *app, const struct config_project *project, bool confirmed)
{
	struct json *json = app_json("trust"), *keys = json_array();

	json_set_str(json, "file", project->path);
	json_set_bool(json, "confirmed", confirmed);
	json_set_bool(json, "foreign", project->is_foreign);
	vec_foreach (struct config_claim, claim, &project->claims) {
		struct json *item = json_object();
		json_set_str(item, "where", claim->where);
		json_set_str(item, "key", claim->key);
		json_set_str(item, "value", claim->value);
		json_add(keys, item);
	}
	json_set(json, "keys", keys);
	return app_print_json(app, json);
}

static int cmd_config_prompt_trust(
	struct app *app, const struct config_project *project, bool *ret, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(project->path);
	AUTO_FREE char *question = mem_printf("%s%s: trust this file as it is now?", shown,
		project->is_foreign ? ", which belongs to another user" : "");

	if (!app->session.env.prompt) {
		err_set(err, E_CONFIG_TRUST,
			"%s is not confirmed, and there is no terminal to ask on", shown);
		return err_hint(err, "dlrun config trust --yes");
	}
	return prompt_yes(app, question, false, ret, err);
}

static int confirm(struct app *app, const struct config *config, const char *dir, bool yes,
	bool *ret_confirmed, struct err *err)
{
	const struct config_project *project = config_project(config);
	int r = 0;

	*ret_confirmed = project->is_confirmed;
	if (!app->options.json && print_claims(app, project) < 0)
		return err_set(err, E_IO, "the output is gone");
	if (project->is_confirmed || (project->claims.n == 0 && !project->is_foreign))
		return 0;
	if (app->options.json && !yes)
		return 0;
	if (!yes)
		r = cmd_config_prompt_trust(app, project, &yes, err);
	if (r >= 0 && yes)
		r = config_confirm(config, dir, err);
	*ret_confirmed = r >= 0 && yes;
	return r;
}

static int report_trust(struct app *app, const struct config_project *project, bool confirmed)
{
	AUTO_FREE char *shown = str_escaped(project->path);

	if (app->options.json)
		return print_trust(app, project, confirmed);
	if (confirmed)
		app_note(app, "%s is confirmed as it is now", shown);
	else if (project->claims.n || project->is_foreign)
		app_note(app, "%s is not confirmed", shown);
	else
		app_note(app, "nothing in %s needs to be confirmed", shown);
	return 0;
}

static int run_trust(struct app *app, const struct config_values *values)
{
	AUTO_ERR struct err err = {0};
	AUTO_CONFIG struct config *config = NULL;
	AUTO_FREE char *dir = NULL;
	struct session *session;
	bool confirmed = false;
	int r = app_session(app, &session, &err);

	if (r == 0)
		r = session_review(session, &config, &dir, &err);
	if (r == 0 && !config_project(config)->path) {
		err_set(&err, E_CONFIG_TRUST, "there is no dlrun.yaml here to confirm");
		r = err_hint(&err, "dlrun config --show-origin");
	}
	if (r == 0)
		r = confirm(app, config, dir, values->yes, &confirmed, &err);
	return r < 0 ? app_fail(app, &err) : report_trust(app, config_project(config), confirmed);
}

static int cmd_config_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct config_values *values = values_ptr;
	const char *word = words->n ? words->v[0] : NULL;
	AUTO_ERR struct err err = {0};
	AUTO_JSON struct json *all = NULL;
	struct config *config;

	if (str_eq(word, "trust"))
		return run_trust(app, values);
	if ((word && check_key(word, &err) < 0) || app_config(app, NULL, values, &config, &err) < 0)
		return app_fail(app, &err);
	all = config_to_json(config);
	if (app->options.json)
		return cmd_config_print_json(app, all, word);
	if (word && json_get(all, word) && !values->show_origin)
		return cmd_config_print_value(app, json_get(all, word));
	if (!cmd_config_has_any(all, word)) {
		app_note(app, "%s is not set and has no default", word);
		return 0;
	}
	return cmd_config_print_table(app, all, word, values->show_origin);
}

const struct cmd cmd_config = {
	.name = "config",
	.summary = "Show the configuration and where each value comes from",
	.synopsis = "[options] [KEY|trust]",
	.examples = {"dlrun config # every value that is set",
		"dlrun config --show-origin # the same, and where each comes from",
		"dlrun config trust # review and confirm what dlrun.yaml sets"},
	.opts = opts,
	.values_size = sizeof(struct config_values),
	.max_words = 1,
	.words = VALUE_KEY,
	.run = cmd_config_run,
};
