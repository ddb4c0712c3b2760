#include "base/auto.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/ui.h"

enum { VALUE_MAX = 1 << 20 };

struct config_values {
	bool show_origin;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "show-origin", struct config_values, show_origin),
		.help = "Say of each value where it comes from"},
	{OPT_END},
};

static int unknown_key(const char *word, struct err *err)
{
	AUTO_FREE char *shown = str_shown(word);
	AUTO_STRV struct strv names = {0};
	const char *near;

	for (size_t i = 0; i < config_keys_n; i++)
		strv_add(&names, config_keys[i].name);
	near = str_suggest(word, (const char *const *)names.v, names.n);
	err_set(err, E_CONFIG_KEY, "there is no key '%s'", shown);
	if (near)
		return err_hint(err, "dlrun config %s", near);
	return err_hint(err, "dlrun help dlrun.yaml");
}

static int check_key(const char *word, struct err *err)
{
	for (size_t i = 0; i < config_keys_n; i++)
		if (str_eq(config_keys[i].name, word))
			return 0;
	return unknown_key(word, err);
}

/* Whether key is what word asks for, or below it. */
static bool is_wanted(const char *key, const char *word)
{
	size_t len = word ? strlen(word) : 0;

	return !word || (strncmp(key, word, len) == 0 && (key[len] == '\0' || key[len] == '.'));
}

static bool has_any(const struct json *values, const char *word)
{
	for (const struct json *item = json_first(values); item; item = json_next(item))
		if (is_wanted(json_key(item), word))
			return true;
	return false;
}

/* Text as it is, all else as JSON, which is YAML too. */
static char *value_text(const struct json *value)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, VALUE_MAX);
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

static void add_line(struct ui_table *table, const struct json *item)
{
	AUTO_FREE char *value = value_text(json_get(item, "value"));
	AUTO_FREE char *origin = origin_text(item);

	ui_table_add(table, "", json_key(item));
	if (table->n_columns == 3)
		ui_table_add(table, "", origin);
	ui_table_add(table, "", value);
}

/* `dlrun config KEY` prints the value alone, for scripts. */
static int print_value(struct app *app, const struct json *item)
{
	AUTO_FREE char *value = value_text(json_get(item, "value"));
	AUTO_FREE char *clean = ui_clean(value);

	return ui_printf(app, UI_OUT, "%s\n", clean) < 0;
}

static int print_table(
	struct app *app, const struct json *values, const char *word, bool show_origin)
{
	static const struct ui_column with_origin[] = {{"KEY"}, {"FROM", .cut = true}, {"VALUE"}};
	static const struct ui_column plain[] = {{"KEY"}, {"VALUE"}};
	AUTO_TABLE struct ui_table table;

	ui_table_init(&table, show_origin ? with_origin : plain, show_origin ? 3 : 2);
	for (const struct json *item = json_first(values); item; item = json_next(item))
		if (is_wanted(json_key(item), word))
			add_line(&table, item);
	return ui_table_print(app, &table) < 0;
}

static int print_json(struct app *app, const struct json *values, const char *word)
{
	struct json *json = app_json("config");
	struct json *wanted = json_sub(json, "values");

	for (const struct json *item = json_first(values); item; item = json_next(item))
		if (is_wanted(json_key(item), word))
			json_set(wanted, json_key(item), json_clone(item));
	return app_print_json(app, json);
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct config_values *values = values_ptr;
	const char *word = words->n ? words->v[0] : NULL;
	AUTO_ERR struct err err = {0};
	AUTO_JSON struct json *all = NULL;
	struct config *config;

	if ((word && check_key(word, &err) < 0) || app_config(app, NULL, values, &config, &err) < 0)
		return app_fail(app, &err);
	all = config_to_json(config);
	if (app->options.json)
		return print_json(app, all, word);
	if (word && json_get(all, word) && !values->show_origin)
		return print_value(app, json_get(all, word));
	if (!has_any(all, word)) {
		app_note(app, "%s is not set and has no default", word);
		return 0;
	}
	return print_table(app, all, word, values->show_origin);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun config # every value that is set",
	"dlrun config --show-origin # with file and line",
	"dlrun config target # one value alone",
};

const struct cmd cmd_config = {
	.name = "config",
	.summary = "Show the configuration and where each value comes from",
	.synopsis = "[options] [KEY]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct config_values),
	.max_words = 1,
	.words = VALUE_KEY,
	.run = run,
};
