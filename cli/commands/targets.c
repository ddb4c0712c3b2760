/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/recipe.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "targets/ssh/host_facts.h"
#include "targets/target_list.h"

/* LIMIT_MS: a little less than what people wait for without a thought. */
enum {
	LIMIT_MS = 2000,
	FACTS_LIMIT_MS = 20 * 1000,
	WIDE_COLUMNS = 100,
	FACT_NAME_WIDTH = 15,
	FACT_HOSTS_SHOWN = 4,
	LINES_MAX = 1 << 20
};

struct targets_values {
	bool offline, accept_new_host, gpus, diff;
	const char *recipe;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "offline", struct targets_values, offline),
		.help = "Ask no cluster and no host, only list names"},
	{OPT_MEMBER(OPT_FLAG, 0, "gpus", struct targets_values, gpus),
		.help = "Models of GPUs, how many are free, and what waits in the queue"},
	{OPT_MEMBER(OPT_FLAG, 0, "diff", struct targets_values, diff),
		.help = "What differs between the hosts of a pool"},
	{OPT_MEMBER(OPT_CHOICE, 0, "recipe", struct targets_values, recipe), .arg = "FORM",
		.help = "Print what makes a host fit, or a node group, for a tool that makes them",
		.choices = RECIPE_FORMS},
	{OPT_MEMBER(OPT_FLAG, 0, "accept-new-host", struct targets_values, accept_new_host),
		.help = "Accept the keys of hosts that ssh does not know yet"},
	{OPT_END},
};

static const char *context_of(const struct target_item *item)
{
	const struct kube_cluster *cluster = item->poll.cluster;

	return cluster ? cluster->access.context : item->context;
}

static const char *namespace_of(const struct target_item *item)
{
	const struct kube_cluster *cluster = item->poll.cluster;

	return cluster ? cluster->access.kube_namespace : item->kube_namespace;
}

/*
 * JSON
 */

static struct json *error_json(const struct err *error)
{
	struct json *json = json_object();

	json_set_str(json, "id", err_info(error->id)->name);
	json_set_str(json, "message", error->message);
	json_set_str(json, "hint", error->hint);
	return json;
}

static struct json *hosts_json(const struct target_item *item)
{
	struct json *list = json_array();

	for (size_t i = 0; i < item->hosts.n; i++) {
		struct json *json = json_object();
		const struct node_probe *probe = &item->node_probes[i];
		if (item->requested)
			node_probe_to_json(probe, json);
		else
			json_set_str(json, "host", item->hosts.v[i]);
		if (err_is_set(&probe->error))
			json_set(json, "error", error_json(&probe->error));
		json_add(list, json);
	}
	return list;
}

static struct json *targets_gpus_json(struct app *app, const struct target_item *item)
{
	AUTO(target_gpus_done) struct target_gpus_list list = {0};
	struct json *array = json_array();

	target_item_gpus(&app->session, item, &list);
	vec_foreach (const struct target_gpus, gpus, &list) {
		struct json *json = json_object();
		json_set_str(json, "model", gpus->model);
		json_set_int(json, "all", gpus->all);
		json_set(json, "free", json_null());
		if (gpus->free >= 0)
			json_set_int(json, "free", gpus->free);
		json_add(array, json);
	}
	return array;
}

static struct json *targets_facts_json(const struct target_item *item)
{
	AUTO_HOST_FACTS struct host_facts facts = {0};
	struct json *list = json_array();

	host_facts_compare(item->node_probes, item->hosts.n, &facts);
	vec_foreach (const struct host_fact, fact, &facts) {
		struct json *json = json_object(), *values = json_array();
		json_set_str(json, "name", fact->name);
		vec_foreach (const struct host_fact_value, value, &fact->values) {
			struct json *each = json_object(), *hosts = json_array();
			json_add_strv(hosts, &value->hosts);
			json_set_str(each, "value", value->value);
			json_set(each, "hosts", hosts);
			json_add(values, each);
		}
		json_set(json, "values", values);
		json_add(list, json);
	}
	return list;
}

static struct json *item_json(const struct target_item *item)
{
	struct json *json = json_object();

	json_set_str(json, "name", item->name);
	json_set_str(json, "kind", item->ops->kind);
	json_set_bool(json, "default", item->is_default);
	if (item->hosts.n)
		json_set(json, "hosts", hosts_json(item));
	if (!item->is_cluster)
		return json;
	json_set_bool(json, "configured", item->is_configured);
	json_set_str(json, "context", context_of(item));
	json_set_str(json, "namespace", namespace_of(item));
	if (item->why_not)
		json_set_str(json, "not_asked", item->why_not);
	if (item->requested)
		kube_poll_to_json(&item->poll, json);
	if (err_is_set(&item->poll.error))
		json_set(json, "error", error_json(&item->poll.error));
	return json;
}

static int cmd_targets_print_json(
	struct app *app, const struct targets_values *options, const struct target_list *targets)
{
	struct json *json = app_json("targets"), *list = json_array();

	vec_foreach (const struct target_item, item, &targets->items) {
		struct json *each = item_json(item);
		if (options->gpus)
			json_set(each, "gpu_models", targets_gpus_json(app, item));
		if (options->diff && item->hosts.n > 1)
			json_set(each, "facts", targets_facts_json(item));
		json_add(list, each);
	}
	json_set(json, "targets", list);
	return app_print_json(app, json);
}

/*
 * The table
 */

static size_t n_responded(const struct target_item *item)
{
	size_t n = 0;

	for (size_t i = 0; i < item->hosts.n; i++)
		n += item->node_probes[i].facts != NULL;
	return n;
}

static bool is_reached(const struct target_item *item)
{
	return item->hosts.n ? n_responded(item) == item->hosts.n : item->poll.reached;
}

/* "2 of 3 hosts answer, 3 of 8 GPUs free" */
static char *pool_text(const struct target_item *item)
{
	size_t n_gpus = 0, n_free = 0;

	for (size_t i = 0; i < item->hosts.n; i++) {
		n_gpus += item->node_probes[i].gpus.n;
		n_free += node_probe_free_gpus(&item->node_probes[i]);
	}
	return mem_printf("%zu of %zu hosts answer, %zu of %zu GPUs free", n_responded(item),
		item->hosts.n, n_free, n_gpus);
}

/* NULL: it was not queried. */
static char *state_text(const struct target_item *item)
{
	if (!item->requested)
		return NULL;
	if (item->hosts.n == 1)
		return node_probe_text(&item->node_probes[0]);
	return item->hosts.n ? pool_text(item) : kube_poll_text(&item->poll);
}

/* "research-a/me", "gpu1", "3 hosts" */
static char *where_text(const struct target_item *item)
{
	const char *context = context_of(item), *space = namespace_of(item);

	if (item->hosts.n == 1)
		return mem_strdup(item->hosts.v[0]);
	if (item->hosts.n)
		return mem_printf("%zu hosts", item->hosts.n);
	if (!item->is_cluster)
		return mem_strdup("");
	return mem_printf("%s%s%s", context ? context : "the current context", space ? "/" : "",
		space ? space : "");
}

static void add_where(const struct target_item *item, struct ui_table *table)
{
	AUTO_FREE char *text = where_text(item);

	ui_table_add(table, "", text);
}

static void add_state(const struct target_item *item, struct ui_table *table)
{
	AUTO_FREE char *text = state_text(item);

	if (item->requested)
		ui_table_add(table, is_reached(item) ? "" : UI_YELLOW, text);
	else
		ui_table_add(table, UI_DIM, item->why_not ? item->why_not : "");
}

static bool cmd_targets_has_place(const struct target_list *targets)
{
	vec_foreach (const struct target_item, item, &targets->items)
		if (item->is_cluster || item->hosts.n)
			return true;
	return false;
}

/* Where columns have no room: lines of their own. */
static int print_states(struct app *app, const struct target_list *targets)
{
	AUTO_BUF struct buf out = buf_with(LINES_MAX);

	vec_foreach (const struct target_item, item, &targets->items) {
		AUTO_FREE char *text = state_text(item);
		const char *state = item->requested ? text : item->why_not;
		if (!item->is_cluster && item->hosts.n == 0)
			continue;
		AUTO_FREE char *where = where_text(item);
		AUTO_FREE char *line = mem_printf(
			"%s: %s%s%s", item->name, where, state ? ", " : "", state ? state : "");
		AUTO_FREE char *clean = ui_clean(line);
		ui_wrap(clean, app->columns - 4, 4, &out);
		buf_addc(&out, '\n');
	}
	return ui_print(app, UI_OUT, out.data, out.len);
}

static int cmd_targets_print_table(struct app *app, const struct target_list *targets)
{
	static const struct ui_column columns[] = {
		{"NAME", .cut = true}, {"KIND"}, {"DEFAULT"}, {"WHERE", .cut = true}, {"STATE"}};
	AUTO_TABLE struct ui_table table = {0};
	bool any = cmd_targets_has_place(targets);
	bool wide = any && (!app->out_tty || app->columns >= WIDE_COLUMNS);

	ui_table_init(&table, columns, wide ? 5 : 3);
	vec_foreach (const struct target_item, item, &targets->items) {
		ui_table_add(&table, "", item->name);
		ui_table_add(&table, "", item->ops->kind);
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

/*
 * The table of GPUs
 */

/* "queue gpu: 3 wait"; of a target without a queue, or where it is not known, nothing. The caller
 * frees. */
static char *targets_queue_text(const struct target_item *item)
{
	const struct kube_poll *poll = &item->poll;

	if (!poll->queue)
		return mem_strdup("");
	if (poll->queue_pending < 0)
		return mem_printf("queue %s", poll->queue);
	return mem_printf("queue %s: %lld wait", poll->queue, (long long)poll->queue_pending);
}

static void targets_add_gpus(
	const struct target_item *item, const struct target_gpus *gpus, struct ui_table *table)
{
	AUTO_FREE char *queue = targets_queue_text(item);

	ui_table_add(table, "", item->name);
	ui_table_add(table, "", gpus->model ? gpus->model : "?");
	if (gpus->free >= 0)
		ui_table_addf(table, "", "%lld", (long long)gpus->free);
	else
		ui_table_add(table, "", "?");
	ui_table_addf(table, "", "%lld", (long long)gpus->all);
	ui_table_add(table, "", queue);
}

/* A target without GPUs, or of which none are known. */
static void targets_add_none(const struct target_item *item, struct ui_table *table)
{
	bool is_known = item->ops->is_here || (item->hosts.n && is_reached(item)) ||
			item->poll.capacity_known;
	AUTO_FREE char *text = is_known ? NULL : state_text(item);

	ui_table_add(table, "", item->name);
	ui_table_add(table, UI_DIM, is_known ? "none" : "not known");
	ui_table_add(table, "", "-");
	ui_table_add(table, "", "-");
	ui_table_add(table, UI_YELLOW, text ? text : item->why_not ? item->why_not : "");
}

static int targets_print_gpus(struct app *app, const struct target_list *targets)
{
	static const struct ui_column columns[] = {{"NAME", .cut = true}, {"GPU"},
		{"FREE", .right = true}, {"ALL", .right = true}, {"STATE", .cut = true}};
	AUTO_TABLE struct ui_table table = {0};

	ui_table_init(&table, columns, ARRAY_LEN(columns));
	vec_foreach (const struct target_item, item, &targets->items) {
		AUTO(target_gpus_done) struct target_gpus_list list = {0};
		target_item_gpus(&app->session, item, &list);
		vec_foreach (const struct target_gpus, gpus, &list)
			targets_add_gpus(item, gpus, &table);
		if (list.n == 0)
			targets_add_none(item, &table);
	}
	return ui_table_print(app, &table) < 0;
}

/*
 * Differences between the hosts of a pool
 */

/* "550.54.15 on 12 hosts; 535.183.01 on gpu3, gpu7; none on gpu9"; the caller frees. */
static char *targets_fact_text(const struct host_fact *fact)
{
	AUTO_STRV struct strv parts = {0};

	vec_foreach (const struct host_fact_value, value, &fact->values) {
		AUTO_FREE char *hosts = strv_join(&value->hosts, ", ");
		if (value->hosts.n > FACT_HOSTS_SHOWN)
			strv_addf(&parts, "%s on %zu hosts", value->value, value->hosts.n);
		else
			strv_addf(&parts, "%s on %s", value->value, hosts);
	}
	return strv_join(&parts, "; ");
}

static void targets_add_diff(struct app *app, const struct target_item *item, struct buf *out)
{
	AUTO_HOST_FACTS struct host_facts facts = {0};
	size_t n_differ = 0, n_hosts = n_responded(item);

	host_facts_compare(item->node_probes, item->hosts.n, &facts);
	vec_foreach (const struct host_fact, fact, &facts)
		n_differ += fact->values.n > 1;
	AUTO_FREE char *name = ui_clean(item->name);
	buf_addf(out, UI_BOLD "%s" UI_OFF ": %zu hosts, ", name, n_hosts);
	if (n_differ == 0)
		buf_addf(out, "alike in %zu things\n", facts.n);
	else
		buf_addf(out, "%zu of %zu things differ\n", n_differ, facts.n);
	vec_foreach (const struct host_fact, fact, &facts) {
		if (fact->values.n == 1)
			continue;
		AUTO_FREE char *text = targets_fact_text(fact);
		AUTO_FREE char *clean = ui_clean(text);
		buf_addf(out, "  %-*s", FACT_NAME_WIDTH, fact->name);
		ui_wrap(clean, app->columns - FACT_NAME_WIDTH - 2, FACT_NAME_WIDTH + 2, out);
		buf_addc(out, '\n');
	}
}

static int targets_print_diff(struct app *app, const struct target_list *targets)
{
	AUTO_BUF struct buf out = buf_with(LINES_MAX);
	size_t n = 0;

	vec_foreach (const struct target_item, item, &targets->items) {
		if (n_responded(item) < 2)
			continue;
		targets_add_diff(app, item, &out);
		n++;
	}
	if (n == 0)
		app_note(app, "no target has two hosts that answer: there is nothing to compare");
	return ui_print(app, UI_OUT, out.data, out.len) < 0;
}

/* Hosts of a pool, one line each: why a run goes to one of them, or only what is wrong. */
static void print_hosts(struct app *app, const struct target_item *item, bool wrong_only)
{
	for (size_t i = 0; item->requested && i < item->hosts.n; i++) {
		const struct err *error = &item->node_probes[i].error;
		AUTO_FREE char *text = node_probe_text(&item->node_probes[i]);
		if (item->hosts.n > 1 && (!wrong_only || err_is_set(error)))
			app_note(app, "%s: %s: %s", item->name, item->hosts.v[i], text);
		if (error->hint)
			app_note(app, "%s: %s", item->hosts.v[i], error->hint);
	}
}

/* Print what the table has no room for, once for each target. */
static void print_hints(struct app *app, const struct target_list *targets, bool wrong_only)
{
	vec_foreach (const struct target_item, item, &targets->items) {
		print_hosts(app, item, wrong_only);
		const struct err *error = &item->poll.error;
		AUTO_FREE char *name = ui_clean(item->name);
		AUTO_FREE char *hint = error->hint ? ui_clean(error->hint) : NULL;
		if (hint && item->is_configured)
			app_note(app, "%s: %s", name, hint);
	}
}

static int cmd_targets_list(struct app *app, const struct targets_values *values,
	const struct strv *words, struct target_list *ret, struct err *err)
{
	struct session *session;
	int r = app_session(app, &session, err);

	if (r == 0)
		r = target_list_make(session, words, ret, err);
	if (r < 0 || values->offline)
		return r;
	app_catch_signals();
	session->env.accept_new_host = values->accept_new_host;
	ret->facts_too = values->diff;
	return target_list_query(session, ret, words->n > 0,
		values->diff ? FACTS_LIMIT_MS : LIMIT_MS, &app_interrupted, err);
}

/* No target is asked: a name that is none is an error all the same. */
static int targets_print_recipe(
	struct app *app, const struct targets_values *options, const struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO_TARGET_LIST struct target_list targets = {0};
	AUTO_BUF struct buf text = buf_with(LINES_MAX);
	struct session *session;
	int r = 0;

	if (app->options.json || options->gpus || options->diff || words->n > 1)
		r = err_set(&err, E_USAGE, "--recipe %s",
			words->n > 1 ? "is for one target"
				     : "cannot be used together with --gpus, --diff and --json");
	if (r == 0)
		r = app_session(app, &session, &err);
	if (r == 0)
		r = target_list_make(session, words, &targets, &err);
	if (r == 0)
		r = recipe_text(
			session, words->n ? words->v[0] : NULL, options->recipe, &text, &err);
	return r < 0 ? app_fail(app, &err) : ui_print(app, UI_OUT, text.data, text.len) < 0;
}

static int cmd_targets_run(struct app *app, void *values, struct strv *words)
{
	const struct targets_values *options = values;
	AUTO_ERR struct err err = {0};
	AUTO_TARGET_LIST struct target_list targets = {0};

	if (options->recipe)
		return targets_print_recipe(app, options, words);

	if (options->gpus + options->diff + options->offline > 1) {
		err_set(&err, E_USAGE, "%s and %s cannot be used together",
			options->gpus ? "--gpus" : "--diff",
			options->offline ? "--offline" : "--diff");
		return app_fail(app, &err);
	}
	if (cmd_targets_list(app, values, words, &targets, &err) < 0)
		return app_fail(app, &err);
	if (targets.error)
		app_warn(app, "no contexts are listed: %s", targets.error);
	if (app->options.json)
		return cmd_targets_print_json(app, options, &targets);
	int status = options->gpus   ? targets_print_gpus(app, &targets)
		     : options->diff ? targets_print_diff(app, &targets)
				     : cmd_targets_print_table(app, &targets);
	print_hints(app, &targets, options->diff);
	return status;
}

const struct cmd cmd_targets = {
	.name = "targets",
	.summary = "List the places where runs can go",
	.synopsis = "[options] [TARGET...]",
	.examples = {"dlrun targets # where runs can go, and what is free there",
		"dlrun targets --gpus # models, free ones and queues",
		"dlrun targets lab --diff # what its hosts do not have in common"},
	.opts = opts,
	.values_size = sizeof(struct targets_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_TARGET,
	.run = cmd_targets_run,
};
