/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/runs/held.h"
#include "app/submit/send.h"
#include "base/loop/loop.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/record/group.h"

/* Between two tries of --serve: at first, and at most. */
enum { RETRY_MS = 5000, RETRY_MAX_MS = 60000, AFTER_MAX_MS = 15000, TICK_MS = 1000 };

struct queue_values {
	bool serve, send, install;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "send", struct queue_values, send),
		.help = "Try once to send what waits here"},
	{OPT_MEMBER(OPT_FLAG, 0, "serve", struct queue_values, serve),
		.help = "Send what waits here whenever its target answers, until Ctrl-C"},
	{OPT_MEMBER(OPT_FLAG, 0, "install", struct queue_values, install),
		.help = "Write a timer of systemd that does it every minute"},
	{OPT_END},
};

/*
 * The list
 */

static const char *why_held(const struct run *run)
{
	const char *why = json_get_str(json_get(json_get(run->doc, RUN_HELD), "error"), "message");

	if (held_is_after(run))
		why = json_get_str(run->doc, "text");
	return why ? why : "";
}

static bool is_unanswered(const struct run *run)
{
	const char *id = json_get_str(json_get(json_get(run->doc, RUN_HELD), "error"), "id");
	enum err_id known = id ? err_find(id) : E_NONE;

	return known != E_NONE && err_info(known)->code == ERR_NET;
}

/* Members of a study that stand behind each other, and wait for the same; else 1. */
static size_t queue_count_alike(const struct run_list *runs, size_t at)
{
	const char *study = run_study(runs->v[at]);
	size_t n = 1;

	for (; study && at + n < runs->n; n++) {
		const struct run *next = runs->v[at + n];
		if (!str_eq(run_study(next), study) ||
			!str_eq(why_held(next), why_held(runs->v[at])))
			break;
	}
	return n;
}

/* The caller frees. */
static char *queue_name(const struct run *run, size_t n)
{
	return n == 1 ? mem_strdup(run_id(run)) : mem_printf("%s (%zu runs)", run_group(run), n);
}

static int queue_print(struct app *app, const struct run_list *runs)
{
	static const struct ui_column columns[] = {
		{"RUN"}, {"TARGET", .cut = true}, {"SINCE", .drop = 1}, {"WAITS FOR"}};
	AUTO_TABLE struct ui_table table = {0};

	if (runs->n == 0) {
		app_note(app, "nothing waits here");
		return 0;
	}
	ui_table_init(&table, columns, ARRAY_LEN(columns));
	for (size_t i = 0, n; i < runs->n; i += n) {
		struct run **run = &runs->v[i];
		int64_t age_ms = clock_wall_ms() - held_since_ms(*run);
		char age[32];
		n = queue_count_alike(runs, i);
		duration_text(age_ms > 1000 ? age_ms - age_ms % 1000 : 0, age);
		AUTO_FREE char *name = queue_name(*run, n);
		AUTO_FREE char *why = ui_clean(why_held(*run));
		AUTO_FREE char *names = held_silent_names(*run);
		AUTO_FREE char *target = ui_clean(names);
		ui_table_add(&table, "", name);
		ui_table_add(&table, "", target);
		ui_table_addf(&table, "", "%s ago", age);
		ui_table_addf(&table, "", "%s%s", is_unanswered(*run) ? "an answer: " : "", why);
	}
	return ui_table_print(app, &table);
}

static int queue_print_json(struct app *app, const struct run_list *runs)
{
	struct json *json = app_json("queue"), *list = json_array();

	vec_foreach (struct run *, run, runs) {
		const struct json *held = json_get((*run)->doc, RUN_HELD);
		struct json *item = json_object();
		json_set_str(item, "id", run_id(*run));
		json_set_str(item, "target", run_target(*run));
		json_set_str(item, "since", json_get_str(held, "since"));
		json_set_str(item, "for", json_get_str(held, "for"));
		if (json_get(held, "error"))
			json_set(item, "error", json_clone(json_get(held, "error")));
		if (json_get((*run)->doc, AFTER_RECORD))
			json_set(item, AFTER_RECORD,
				json_clone(json_get((*run)->doc, AFTER_RECORD)));
		json_add(list, item);
	}
	json_set(json, "waiting", list);
	return app_print_json(app, json);
}

/*
 * Sending
 */

/* Lines of a kind that a turn prints at most. */
enum { QUEUE_LINES = 20 };

/* Held runs that stay for one reason. */
struct queue_stay {
	char *names, *why, *first;
	size_t n;
};

struct queue_turn {
	struct app *app;
	size_t n_sent, n_failed, n_others;
	struct VEC_OF(struct queue_stay) stays;
};

static void queue_turn_done(struct queue_turn *turn)
{
	vec_foreach (struct queue_stay, stay, &turn->stays) {
		free(stay->names);
		free(stay->why);
		free(stay->first);
	}
	vec_done(&turn->stays);
}

static void queue_on_sent(void *ctx, const struct run *run, size_t n)
{
	struct queue_turn *turn = ctx;
	AUTO_FREE char *name = queue_name(run, n);

	if (turn->n_sent++ < QUEUE_LINES)
		app_phase(turn->app, "sent", "%s to %s", name, run_target(run));
}

static void queue_warn(struct queue_turn *turn, const struct run *run, const char *what)
{
	if (turn->n_failed++ < QUEUE_LINES)
		app_warn(turn->app, "%s%s", run_id(run), what);
}

static void queue_on_refused(void *ctx, const struct run *run, const struct err *why)
{
	AUTO_FREE char *text = mem_printf(" has failed: %s", why->message);

	queue_warn(ctx, run, text);
}

static void queue_on_moved(void *ctx, const struct run *run, const char *text)
{
	const struct queue_turn *turn = ctx;

	app_note(turn->app, "%s: %s", run_id(run), text);
}

static void queue_on_ended(void *ctx, const struct run *run)
{
	AUTO_FREE char *text = mem_printf(" is cancelled: %s", json_get_str(run->doc, "text"));

	queue_warn(ctx, run, text);
}

static void queue_on_failed(void *ctx, const struct run *run, const struct err *why)
{
	AUTO_FREE char *text = mem_printf(": %s", why->message);

	queue_warn(ctx, run, text);
}

static void queue_on_kept(void *ctx, const struct run *run, const struct err *why)
{
	struct queue_turn *turn = ctx;
	AUTO_FREE char *names = held_silent_names(run);

	if (!run_is_held(run)) {
		app_note(turn->app, "%s waits for %s: %s", run_id(run), names, why->message);
		return;
	}
	bool is_known = false;
	vec_foreach (struct queue_stay, stay, &turn->stays) {
		is_known |= str_eq(stay->names, names);
		if (str_eq(stay->names, names) && str_eq(stay->why, why->message)) {
			stay->n++;
			return;
		}
	}
	if (turn->stays.n < QUEUE_LINES)
		*vec_push(&turn->stays) = (struct queue_stay){
			TAKE(names), mem_strdup(why->message), mem_strdup(run_id(run)), 1};
	else
		turn->n_others += !is_known;
}

/* Runs that were not tried, since what they need did not answer, and those that would be a line too
 * many. */
static void queue_count_more(struct queue_turn *turn, const struct run_list *held)
{
	vec_foreach (struct queue_stay, stay, &turn->stays) {
		size_t n = 0;
		vec_foreach (struct run *, run, held) {
			AUTO_FREE char *names = held_silent_names(*run);
			n += !held_is_after(*run) && str_eq(names, stay->names);
		}
		for (size_t i = 0; i < turn->stays.n; i++)
			if (str_eq(turn->stays.v[i].names, stay->names))
				n = n > turn->stays.v[i].n ? n - turn->stays.v[i].n : 0;
		stay->n += n;
	}
}

static void queue_report(struct queue_turn *turn)
{
	struct app *app = turn->app;
	AUTO(run_list_done) struct run_list held = {0};

	if (turn->n_sent > QUEUE_LINES)
		app_phase(app, "sent", "%zu more", turn->n_sent - QUEUE_LINES);
	if (turn->n_failed > QUEUE_LINES)
		app_warn(app, "%zu more did not go; see `dlrun ps -a`",
			turn->n_failed - QUEUE_LINES);
	if (turn->stays.n && queue_list(&app->session, &held, NULL) == 0)
		queue_count_more(turn, &held);
	vec_foreach (const struct queue_stay, stay, &turn->stays) {
		if (stay->n > 1)
			app_note(app, "%s and %zu more wait for %s: %s", stay->first, stay->n - 1,
				stay->names, stay->why);
		else
			app_note(app, "%s waits for %s: %s", stay->first, stay->names, stay->why);
	}
	if (turn->n_others)
		app_note(app, "%zu more wait; see `dlrun queue`", turn->n_others);
}

static int queue_try(struct app *app, struct err *err)
{
	AUTO(queue_turn_done) struct queue_turn turn = {.app = app};
	const struct queue_events events = {.sent = queue_on_sent,
		.refused = queue_on_refused,
		.moved = queue_on_moved,
		.ended = queue_on_ended,
		.failed = queue_on_failed,
		.kept = queue_on_kept,
		.ctx = &turn};
	int r = queue_send(&app->session, &events, &app_interrupted, err);

	if (!app->options.quiet)
		queue_report(&turn);
	return r;
}

static int queue_count(const struct app *app)
{
	AUTO_STRV struct strv ids = {0};

	held_any(&app->session.dirs, &ids);
	return (int)ids.n;
}

static int queue_try_once(struct app *app, struct err *err)
{
	AUTO(run_list_done) struct run_list runs = {0};
	bool any = queue_count(app) > 0;
	int r = queue_try(app, err);

	if (r < 0 || app->options.quiet || queue_list(&app->session, &runs, NULL) < 0)
		return r;
	if (!any)
		app_note(app, "nothing waits here");
	/* Runs that begin after others were not tried. */
	for (size_t i = 0, n; i < runs.n; i += n) {
		n = queue_count_alike(&runs, i);
		AUTO_FREE char *name = queue_name(runs.v[i], n);
		if (held_is_after(runs.v[i]))
			app_note(app, "%s waits: %s", name, why_held(runs.v[i]));
	}
	return 0;
}

/* The ends of other runs are looked for more often. */
static int64_t queue_pause_max(struct app *app)
{
	AUTO(run_list_done) struct run_list runs = {0};

	if (queue_list(&app->session, &runs, NULL) == 0)
		vec_foreach (struct run *, run, &runs)
			if (held_is_after(*run))
				return AFTER_MAX_MS;
	return RETRY_MAX_MS;
}

static int queue_sleep(struct app *app, int64_t ms, struct err *err)
{
	struct loop_wait delay = {
		.loop = session_loop(&app->session), .n_open = 1, .deadline_ms = clock_ms() + ms};

	return loop_wait_run(&delay, err);
}

/* A run that is new here, or a pause that is over. */
static int queue_pause(struct app *app, int64_t pause_ms, struct err *err)
{
	int64_t end_ms = clock_ms() + pause_ms;
	int before = queue_count(app), r = 0;

	while (r == 0 && !app_interrupted && clock_ms() < end_ms && queue_count(app) <= before)
		r = queue_sleep(app, TICK_MS, err);
	return r;
}

static int queue_serve(struct app *app, struct err *err)
{
	AUTO_FREE char *dir = held_dir(&app->session.dirs), *path = fs_join(dir, "serve.lock");
	AUTO_FD int lock = -1;
	int64_t pause_ms = RETRY_MS;

	int r = fs_mkdirs(dir, 0700, err);
	if (r == 0)
		r = fs_lock(path, true, 0, &lock, err);
	if (r < 0)
		return err_prefix(err, "another dlrun queue --serve");
	app_catch_signals();
	while (!app_interrupted) {
		AUTO_ERR struct err error = {0};
		int before = queue_count(app);
		/* A command that looks sends, too. */
		r = queue_try(app, &error);
		if (r < 0 && error.id != E_IO_LOCK && error.code != ERR_CANCELED)
			return err_move(err, &error);
		int left = queue_count(app);
		pause_ms = left < before || left == 0 ? RETRY_MS : pause_ms;
		r = queue_pause(app, pause_ms, err);
		if (r < 0)
			return r;
		int64_t max_ms = queue_pause_max(app);
		pause_ms = pause_ms * 2 > max_ms ? max_ms : pause_ms * 2;
	}
	return 0;
}

/*
 * The timer
 */

/* systemd.syntax(7): a word in double quotes. */
static void add_word(struct buf *out, const char *prefix, const char *text)
{
	buf_addf(out, "\"%s", prefix);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			buf_adds(out, "\\");
		if (*text == '%')
			buf_adds(out, "%");
		buf_add(out, text, 1);
	}
	buf_adds(out, "\"");
}

/* A line in a value would be a line of the unit. */
static void add_environment(const struct app *app, struct buf *out)
{
	static const char *const names[] = {"XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
		"XDG_CACHE_HOME", "KUBECONFIG", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE",
		"DLRUN_SSH_CONFIG", "PATH"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *value = env_get(app->session.env.env, names[i]);
		AUTO_FREE char *prefix = mem_printf("%s=", names[i]);
		if (str_empty(value) || strpbrk(value, "\n\r"))
			continue;
		buf_adds(out, "Environment=");
		add_word(out, prefix, value);
		buf_adds(out, "\n");
	}
}

static int write_unit(const char *dir, const char *name, const struct buf *text, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, name);

	return fs_replace(path, text->data, text->len, 0600, FS_SYNC_FILE, err);
}

static int queue_install(struct app *app, struct err *err)
{
	const char *config = app->session.dirs.config;
	AUTO_BUF struct buf service = buf_with(64 << 10), timer = buf_with(64 << 10);

	if (!config || strpbrk(app->self, "\n\r"))
		return err_set(err, E_IO_HOME, "there is no directory for units of systemd");
	AUTO_FREE char *dir = mem_printf("%s/systemd/user", config);
	buf_adds(&service, "[Unit]\nDescription=Send runs that wait here (dlrun queue)\n\n"
			   "[Service]\nType=oneshot\n");
	add_environment(app, &service);
	buf_adds(&service, "ExecStart=");
	add_word(&service, "", app->self);
	buf_adds(&service, " queue --send\n");
	buf_adds(&timer, "[Unit]\nDescription=Send runs that wait here (dlrun queue)\n\n"
			 "[Timer]\nOnBootSec=1min\nOnUnitInactiveSec=1min\n\n"
			 "[Install]\nWantedBy=timers.target\n");
	int r = fs_mkdirs(dir, 0700, err);
	if (r == 0)
		r = write_unit(dir, "dlrun-queue.service", &service, err);
	if (r == 0)
		r = write_unit(dir, "dlrun-queue.timer", &timer, err);
	if (r < 0)
		return r;
	app_note(app, "wrote %s/dlrun-queue.timer and .service; to start it:", dir);
	app_note(app, "systemctl --user enable --now dlrun-queue.timer");
	return 0;
}

static int queue_run(struct app *app, void *values_ptr, struct strv *words UNUSED)
{
	const struct queue_values *values = values_ptr;
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_ERR struct err err = {0};
	bool is_list = !values->serve && !values->send && !values->install;
	struct session *session;
	int r = 0;

	if (values->serve + values->send + values->install > 1) {
		err_set(&err, E_USAGE, "--send, --serve and --install cannot be used together");
		return app_fail(app, &err);
	}
	if (app_session(app, &session, &err) < 0)
		return app_fail(app, &err);
	if (values->install)
		r = queue_install(app, &err);
	else if (values->serve)
		r = queue_serve(app, &err);
	else if (values->send)
		r = queue_try_once(app, &err);
	if (r == 0 && (is_list || app->options.json))
		r = queue_list(session, &runs, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return queue_print_json(app, &runs);
	return is_list ? queue_print(app, &runs) : 0;
}

const struct cmd cmd_queue = {
	.name = "queue",
	.summary = "List or send the runs that wait here for their target to answer",
	.synopsis = "[options]",
	.examples = {"dlrun queue # what waits here until its target answers",
		"dlrun queue --send # try now",
		"dlrun queue --serve # send whenever a target answers"},
	.opts = opts,
	.values_size = sizeof(struct queue_values),
	.run = queue_run,
};
