#include <poll.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/runs.h"
#include "cli/ui.h"

enum { ASK_MS = 1000, WATCH_MS = 2000, DAY_MS = 24 * 60 * 60 * 1000, EXIT_INTERRUPTED = 130 };

#define CLEAR "\033[H\033[J"

struct ps_values {
	bool all, offline, watch;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'a', "all", struct ps_values, all),
		.help = "All runs, not only unfinished ones and those of the last 24 hours"},
	{OPT_MEMBER(OPT_FLAG, 0, "offline", struct ps_values, offline),
		.help = "Show what is known here and ask no target"},
	{OPT_MEMBER(OPT_FLAG, 0, "watch", struct ps_values, watch),
		.help = "Show it again every 2 seconds, until Ctrl-C"},
	{OPT_END},
};

static const struct ui_column columns[] = {
	{"ID"},
	{"STATE"},
	{"AGE", .right = true},
	{"TARGET"},
	{"EXIT", .right = true},
	{"COMMAND"},
};

/* Runs that go on, from before since_ms. */
static int add_unfinished(
	struct store *store, int64_t since_ms, struct run_list *ret, struct err *err)
{
	const struct store_filter filter = {.unfinished_only = true};
	struct run_list runs = {0};
	int r = store_list(store, &filter, &runs, err);

	vec_foreach (struct run *, run, &runs)
		if (run_submitted_ms(*run) < since_ms)
			*vec_push(ret) = TAKE(*run);
	run_list_done(&runs);
	return r;
}

static int list_recent(
	struct store *store, struct run_list *ret, size_t *ret_hidden, struct err *err)
{
	const struct store_filter filter = {.since_ms = clock_wall_ms() - DAY_MS};
	size_t all = 0;
	int r = store_list(store, &filter, ret, err);

	if (r == 0)
		r = add_unfinished(store, filter.since_ms, ret, err);
	if (r == 0)
		r = store_count(store, &all, err);
	*ret_hidden = all > ret->n ? all - ret->n : 0;
	return r;
}

static int list(struct app *app, const struct ps_values *values, struct run_list *ret,
	size_t *ret_hidden, struct err *err)
{
	const struct store_filter everything = {0};
	struct session *session;
	struct store *store;
	int r = app_session(app, &session, err);

	if (r == 0)
		r = session_store(session, &store, err);
	if (r == 0)
		r = values->all ? store_list(store, &everything, ret, err)
				: list_recent(store, ret, ret_hidden, err);
	if (r == 0 && !values->offline)
		r = runs_refresh(session, ret, ASK_MS, err);
	return r;
}

static void add_exit(struct ui_table *table, const struct run *run)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	if (exit.known)
		ui_table_addf(table, exit.code ? UI_RED : "", "%d", exit.code);
	else
		ui_table_add(table, "", "");
}

/* "running?" where the target could not be asked now. */
static void add_state(struct ui_table *table, const struct run *run)
{
	enum run_state state = run_state(run);
	const char *last = json_get_str(run->doc, "last_state");
	bool cancelling = run_cancelling(run) && !run_state_is_final(state);

	if (state == RUN_UNKNOWN && last)
		ui_table_addf(table, runs_state_style(state), "%s?", last);
	else
		ui_table_add(table, runs_state_style(state),
			cancelling ? "cancelling" : run_state_name(state));
}

static void print_table(struct app *app, const struct run_list *runs, size_t hidden)
{
	AUTO_TABLE struct ui_table table;
	int64_t now_ms = clock_wall_ms();
	char age[32];

	ui_table_init(&table, columns, ARRAY_LEN(columns));
	vec_foreach (struct run *, run, runs) {
		AUTO_FREE char *command = runs_command(*run);

		ui_table_add(&table, "", run_id(*run));
		add_state(&table, *run);
		ui_table_add(&table, "", ui_age(now_ms - run_submitted_ms(*run), age));
		ui_table_add(&table, "", run_target(*run));
		add_exit(&table, *run);
		ui_table_add(&table, "", command);
	}
	if (runs->n)
		ui_table_print(app, &table);
	else
		app_note(app, hidden ? "no run is unfinished or from the last 24 hours"
				     : "no runs yet: dlrun submit -- PROGRAM");
	if (hidden)
		app_note(app, "%zu older %s not shown: dlrun ps -a", hidden,
			hidden == 1 ? "run is" : "runs are");
}

static int show_once(struct app *app, const struct ps_values *values)
{
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	size_t hidden = 0;

	if (list(app, values, &runs, &hidden, &err) < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return runs_print_json(app, &runs);
	if (values->watch && app->out_tty)
		ui_write(app, CLEAR, sizeof(CLEAR) - 1);
	print_table(app, &runs, hidden);
	return 0;
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct ps_values *values = values_ptr;
	int status = 0;

	(void)words;
	if (!values->watch)
		return show_once(app, values);
	app_catch_signals();
	while (status == 0 && !app_interrupted && !app->out_lost) {
		status = show_once(app, values);
		if (status == 0 && !app_interrupted)
			poll(NULL, 0, WATCH_MS);
	}
	return app_interrupted ? EXIT_INTERRUPTED : status;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun ps # what runs, and what ran today",
	"dlrun ps -a --json # every run, for a script",
	"dlrun ps --watch # what runs, again and again",
};

const struct cmd cmd_ps = {
	.name = "ps",
	.summary = "List runs",
	.synopsis = "[options]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct ps_values),
	.run = run,
};
