/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "app/runs/refresh.h"
#include "app/top/live.h"
#include "app/transfer/metrics_here.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/commands/top_view.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/screen.h"
#include "cli/term/ui.h"
#include "core/store/store.h"
#include "targets/targets.h"

enum {
	ASK_MS = 500,
	ASK_ONCE_MS = 3000, /* a login may take its time */
	ANSWER_MS = 6000,   /* of machines, and looks at runs, when it is printed once */
	METRICS_MS = 200,   /* of reading event files */
	DRAW_MS = 1000,
	DRAW_FAR_MS = 2000,
	SCREEN_MAX = 1 << 20,
	EXIT_INTERRUPTED = 130,
};

/*
 * Subject of the command, and its runs
 */

struct top {
	struct app *app;
	struct session *session;
	const char *word; /* a run, a target, or NULL: every run that has not ended */
	bool is_target;
	char *id; /* of the run, once it is found */
	int64_t ask_ms;
	struct live *live;
};

static void top_done(struct top *top)
{
	live_free(top->live);
	free(top->id);
}

static bool is_target(struct app *app, const char *word)
{
	struct config *config = NULL;

	app_config(app, NULL, NULL, &config, NULL);
	return target_ops_named(config, word) != NULL;
}

static int top_init(struct top *top, struct app *app, const char *word, struct err *err)
{
	*top = (struct top){.app = app, .word = word, .ask_ms = ASK_ONCE_MS};
	int r = app_session(app, &top->session, err);

	if (r < 0)
		return r;
	top->live = live_new(top->session);
	top->is_target = word && is_target(app, word);
	return top->is_target ? live_add_target(top->live, word, err) : 0;
}

static int list_unfinished(struct top *top, struct run_list *ret, struct err *err)
{
	const struct store_filter filter = {
		.unfinished_only = true, .target = top->is_target ? top->word : NULL};
	struct store *store;
	int r = session_store(top->session, &store, err);

	if (r == 0)
		r = store_list(store, &filter, ret, err);
	return r < 0 ? r : runs_refresh(top->session, ret, top->ask_ms, err);
}

/* Again, without waiting for long. */
static int list_known(struct top *top, struct run_list *ret, struct err *err)
{
	struct store *store;
	struct run *run;
	int r = session_store(top->session, &store, err);

	if (r == 0)
		r = store_resolve(store, top->id, &run, err);
	if (r < 0)
		return r;
	*vec_push(ret) = run;
	return runs_refresh(top->session, ret, top->ask_ms, err);
}

static int list(struct top *top, struct run_list *ret, struct err *err)
{
	struct run *run;

	if (!top->word || top->is_target)
		return list_unfinished(top, ret, err);
	if (top->id)
		return list_known(top, ret, err);
	int r = runs_get(top->app, top->word, &run, err);
	if (r < 0)
		return r;
	top->id = mem_strdup(run_id(run));
	*vec_push(ret) = run;
	return 0;
}

/* List the runs, and request what is to be shown of them and of machines. */
static int look(struct top *top, struct run_list *ret, struct err *err)
{
	int r = list(top, ret, err);

	if (r < 0)
		return r;
	metrics_here(top->session, ret, METRICS_MS);
	if (!top->word)
		live_add_places(top->live, ret);
	live_begin(top->live, ret);
	return 0;
}

/*
 * Once
 */

static int print_tables(
	struct app *app, const struct run_list *runs, const struct machine_list *machines)
{
	AUTO_BUF struct buf text;
	int r = 0;

	buf_init(&text, SCREEN_MAX);
	top_view_format(app, runs, machines, app->out_tty ? app->columns : 0, &text);
	if (text.len)
		r = ui_print(app, UI_OUT, text.data, text.len);
	if (!runs->n)
		app_note(app, "no run is unfinished: dlrun submit -- python3 train.py");
	return r < 0;
}

static int show_once(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_MACHINES struct machine_list machines = {0};
	AUTO(top_done) struct top top = {0};

	app_catch_signals();
	int r = top_init(&top, app, word, &err);
	if (r == 0)
		r = look(&top, &runs, &err);
	if (r == 0)
		r = live_wait(top.live, ANSWER_MS, &app_interrupted, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (app_interrupted)
		return EXIT_INTERRUPTED;
	live_tell(top.live, &runs);
	live_machines(top.live, &runs, &machines);
	return app->options.json ? top_view_json(app, &runs, &machines)
				 : print_tables(app, &runs, &machines);
}

/*
 * A terminal
 */

/* *ret_far: what is shown comes from elsewhere. */
static int draw_all(struct screen *screen, struct top *top, bool *ret_far, struct err *err)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_MACHINES struct machine_list machines = {0};
	AUTO_BUF struct buf text = {0};
	int r = look(top, &runs, err);

	if (r < 0)
		return r;
	buf_init(&text, SCREEN_MAX);
	screen_measure(screen);
	live_tell(top->live, &runs);
	live_machines(top->live, &runs, &machines);
	top_view_format(top->app, &runs, &machines, screen->columns, &text);
	if (!runs.n)
		buf_adds(&text, text.len ? "\nno run is unfinished\n" : "no run is unfinished\n");
	buf_adds(&text, "\n" UI_DIM "q: quit" UI_OFF);
	screen_draw(screen, text.data);
	*ret_far = false;
	vec_foreach (struct run *, run, &runs)
		*ret_far |= !target_ops_recorded(*run)->is_here;
	return 0;
}

static int watch(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};
	AUTO(top_done) struct top top = {0};
	struct screen screen;
	bool is_far = false;

	app_catch_signals();
	int r = top_init(&top, app, word, &err);
	if (r < 0)
		return app_fail(app, &err);
	top.ask_ms = ASK_MS;
	screen_begin(&screen, app);
	while (r == 0 && !app_interrupted && !app->out_lost && !screen.quit) {
		r = draw_all(&screen, &top, &is_far, &err);
		if (r == 0 && !app_interrupted)
			r = screen_wait(&screen, session_loop(top.session),
				is_far ? DRAW_FAR_MS : DRAW_MS, &err);
	}
	screen_end(&screen);
	if (r < 0)
		return app_fail(app, &err);
	return app_interrupted ? EXIT_INTERRUPTED : 0;
}

static int run(struct app *app, void *values, struct strv *words)
{
	const char *word = words->n ? words->v[0] : NULL;

	(void)values;
	if (app->out_tty && !app->options.json)
		return watch(app, word);
	return show_once(app, word);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun top # what runs use now, until q",
	"dlrun top pool # the runs of a target, its hosts and their GPUs",
	"dlrun top --json # once, for a script",
};

const struct cmd cmd_top = {
	.name = "top",
	.summary = "Show what runs and machines use now: GPU, CPU, memory, power",
	.synopsis = "[options] [RUN|TARGET]",
	.examples = examples,
	.max_words = 1,
	.words = VALUE_RUN_TARGET,
	.run = run,
};
