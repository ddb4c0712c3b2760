#include "base/auto.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/ui.h"

static const char local[] = "local";

static const char *kind_of(const struct config *config, const char *name)
{
	const char *kind = json_get_str(config_target(config, name), "kind");

	return kind ? kind : local;
}

static void list_names(const struct config *config, struct strv *ret)
{
	config_target_names(config, ret);
	if (strv_find(ret, local) < 0)
		strv_add(ret, local);
}

static int print_json(struct app *app, const struct config *config, const struct strv *names)
{
	struct json *json = app_json("targets"), *list = json_array();

	vec_foreach (char *, name, names) {
		struct json *item = json_object();

		json_set_str(item, "name", *name);
		json_set_str(item, "kind", kind_of(config, *name));
		json_set_bool(item, "default", str_eq(config_str(config, "target"), *name));
		json_add(list, item);
	}
	json_set(json, "targets", list);
	return app_print_json(app, json);
}

static int run(struct app *app, void *values, struct strv *words)
{
	static const struct ui_column columns[] = {{"NAME"}, {"KIND"}, {"DEFAULT"}};
	AUTO_ERR struct err err = {0};
	AUTO_STRV struct strv names = {0};
	AUTO_TABLE struct ui_table table = {0};
	struct config *config;

	(void)words;
	if (app_config(app, NULL, values, &config, &err) < 0)
		return app_fail(app, &err);
	list_names(config, &names);
	if (app->options.json)
		return print_json(app, config, &names);
	ui_table_init(&table, columns, ARRAY_LEN(columns));
	vec_foreach (char *, name, &names) {
		bool is_default = str_eq(config_str(config, "target"), *name);

		ui_table_add(&table, "", *name);
		ui_table_add(&table, "", kind_of(config, *name));
		ui_table_add(&table, "", is_default ? "yes" : "");
	}
	return ui_table_print(app, &table) < 0;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun targets # where runs can go",
	"dlrun targets -C ../other # where they can go from another directory",
	"dlrun targets --json # for a script",
};

const struct cmd cmd_targets = {
	.name = "targets",
	.summary = "List the places where runs can go",
	.synopsis = "[options]",
	.examples = examples,
	.run = run,
};
