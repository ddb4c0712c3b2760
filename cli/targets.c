#include "base/auto.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/ui.h"
#include "run/target_list.h"

/* A little less than what people wait for without a thought. */
enum { LIMIT_MS = 2000, WIDE_COLUMNS = 100, LINES_MAX = 1 << 20 };

struct targets_values {
	bool offline;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "offline", struct targets_values, offline),
		.help = "Ask no cluster, only list names"},
	{OPT_END},
};

static const char *context_of(const struct target_item *item)
{
	const struct kube_cluster *cluster = item->look.cluster;

	return cluster ? cluster->access.context : item->context;
}

static const char *namespace_of(const struct target_item *item)
{
	const struct kube_cluster *cluster = item->look.cluster;

	return cluster ? cluster->access.kube_namespace : item->kube_namespace;
}

/*
 * JSON
 */

static struct json *fault_json(const struct err *fault)
{
	struct json *json = json_object();

	json_set_str(json, "id", err_info(fault->id)->name);
	json_set_str(json, "message", fault->message);
	json_set_str(json, "hint", fault->hint);
	return json;
}

static struct json *item_json(const struct target_item *item)
{
	struct json *json = json_object();

	json_set_str(json, "name", item->name);
	json_set_str(json, "kind", item->kind);
	json_set_bool(json, "default", item->is_default);
	if (!item->is_cluster)
		return json;
	json_set_bool(json, "configured", item->is_configured);
	json_set_str(json, "context", context_of(item));
	json_set_str(json, "namespace", namespace_of(item));
	if (item->why_not)
		json_set_str(json, "not_asked", item->why_not);
	if (item->asked)
		kube_look_to_json(&item->look, json);
	if (err_is_set(&item->look.fault))
		json_set(json, "error", fault_json(&item->look.fault));
	return json;
}

static int print_json(struct app *app, const struct target_list *targets)
{
	struct json *json = app_json("targets"), *list = json_array();

	vec_foreach (const struct target_item, item, &targets->items)
		json_add(list, item_json(item));
	json_set(json, "targets", list);
	return app_print_json(app, json);
}

/*
 * The table
 */

/* "research-a/me" */
static void add_where(const struct target_item *item, struct ui_table *table)
{
	const char *context = context_of(item), *space = namespace_of(item);

	if (!item->is_cluster)
		ui_table_add(table, "", "");
	else
		ui_table_addf(table, "", "%s%s%s", context ? context : "the current context",
			space ? "/" : "", space ? space : "");
}

static void add_state(const struct target_item *item, struct ui_table *table)
{
	AUTO_FREE char *text = item->asked ? kube_look_text(&item->look) : NULL;

	if (item->asked)
		ui_table_add(table, item->look.reached ? "" : UI_YELLOW, text);
	else
		ui_table_add(table, UI_DIM, item->why_not ? item->why_not : "");
}

static bool has_cluster(const struct target_list *targets)
{
	vec_foreach (const struct target_item, item, &targets->items)
		if (item->is_cluster)
			return true;
	return false;
}

/* Where columns have no room: lines of their own. */
static int print_states(struct app *app, const struct target_list *targets)
{
	AUTO_BUF struct buf out;

	buf_init(&out, LINES_MAX);
	vec_foreach (const struct target_item, item, &targets->items) {
		AUTO_FREE char *text = item->asked ? kube_look_text(&item->look) : NULL;
		const char *state = item->asked ? text : item->why_not;
		const char *context = context_of(item), *space = namespace_of(item);
		if (!item->is_cluster)
			continue;
		AUTO_FREE char *line = mem_printf("%s: %s%s%s%s%s", item->name,
			context ? context : "the current context", space ? "/" : "",
			space ? space : "", state ? ", " : "", state ? state : "");
		AUTO_FREE char *clean = ui_clean(line);
		ui_wrap(clean, app->columns, 4, &out);
		buf_addc(&out, '\n');
	}
	return ui_print(app, UI_OUT, out.data, out.len);
}

static int print_table(struct app *app, const struct target_list *targets)
{
	static const struct ui_column columns[] = {{"NAME", .cut = true}, {"KIND"}, {"DEFAULT"},
		{"CONTEXT/NAMESPACE", .cut = true}, {"STATE"}};
	AUTO_TABLE struct ui_table table = {0};
	bool any = has_cluster(targets);
	bool wide = any && (!app->out_tty || app->columns >= WIDE_COLUMNS);

	ui_table_init(&table, columns, wide ? 5 : 3);
	vec_foreach (const struct target_item, item, &targets->items) {
		ui_table_add(&table, "", item->name);
		ui_table_add(&table, "", item->kind);
		ui_table_add(&table, "", item->is_default ? "yes" : "");
		if (wide) {
			add_where(item, &table);
			add_state(item, &table);
		}
	}
	if (ui_table_print(app, &table) < 0)
		return 1;
	return any && !wide ? print_states(app, targets) < 0 : 0;
}

/* What the table has no room for, once for each target. */
static void say_hints(struct app *app, const struct target_list *targets)
{
	vec_foreach (const struct target_item, item, &targets->items) {
		const struct err *fault = &item->look.fault;
		AUTO_FREE char *name = ui_clean(item->name);
		AUTO_FREE char *hint = fault->hint ? ui_clean(fault->hint) : NULL;
		if (hint && item->is_configured)
			app_note(app, "%s: %s", name, hint);
	}
}

static int list(struct app *app, const struct targets_values *values, const struct strv *words,
	struct target_list *ret, struct err *err)
{
	struct session *session;
	int r = app_session(app, &session, err);

	if (r == 0)
		r = target_list_make(session, words, ret, err);
	if (r < 0 || values->offline)
		return r;
	app_catch_signals();
	return target_list_ask(session, ret, words->n > 0, LIMIT_MS, &app_interrupted, err);
}

static int run(struct app *app, void *values, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO_TARGET_LIST struct target_list targets = {0};

	if (list(app, values, words, &targets, &err) < 0)
		return app_fail(app, &err);
	if (targets.fault)
		app_warn(app, "no contexts are listed: %s", targets.fault);
	if (app->options.json)
		return print_json(app, &targets);
	int status = print_table(app, &targets);
	say_hints(app, &targets);
	return status;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun targets # where runs can go, and what is free there",
	"dlrun targets research --json # one of them, for a script",
	"dlrun targets --offline # only the names",
};

const struct cmd cmd_targets = {
	.name = "targets",
	.summary = "List the places where runs can go",
	.synopsis = "[options] [TARGET...]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct targets_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_TARGET,
	.run = run,
};
