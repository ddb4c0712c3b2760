/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/runs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/forward/forward.h"
#include "app/lifecycle/follow.h"
#include "app/lifecycle/hint_excluded.h"
#include "app/lifecycle/results_query.h"
#include "app/lifecycle/why.h"
#include "app/runs/refresh.h"
#include "app/transfer/fetch.h"
#include "app/transfer/mirror.h"
#include "base/loop/loop.h"
#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/logview.h"
#include "cli/term/ui.h"
#include "core/record/roles.h"
#include "core/record/after.h"
#include "core/config/ports.h"
#include "core/record/dirs.h"
#include "core/record/group.h"
#include "core/record/results.h"
#include "core/store/store.h"
#include "core/study/study.h"
#include "targets/targets.h"

enum { SENTENCE_MAX = 64 << 10, GRACE_MS = 10000, HOLD_MS = 30000 };

/* A member of the study in place of its name. */
static void runs_hint_member(struct app *app, struct err *err)
{
	static const char show[] = "dlrun show ";
	AUTO_FREE char *hint = TAKE(err->hint);

	if (hint && str_starts(hint, show))
		err_hint(err, "dlrun %s %s", app->cmd->name, hint + strlen(show));
}

int runs_get(struct app *app, const char *word, struct run **ret, struct err *err)
{
	struct session *session;
	int r = app_session(app, &session, err);

	if (r == 0)
		r = runs_find(session, word ? word : "@", ret, err);
	if (r < 0 && err && err->id == E_RUN_STUDY)
		runs_hint_member(app, err);
	return r;
}

int runs_get_code(struct app *app, const char *word, struct run **ret, struct err *err)
{
	struct session *session;
	int r;

	if (!strstr(word, "@sha256:"))
		return runs_get(app, word, ret, err);
	r = app_session(app, &session, err);
	if (r < 0)
		return r;
	*ret = run_new(word, "image");
	json_set_str(json_sub((*ret)->doc, "image"), "ref", word);
	return 0;
}

int runs_get_named(struct app *app, const struct strv *words, struct run_list *ret,
	char **ret_study, struct err *err)
{
	AUTO_STRV struct strv newest = {0};
	struct session *session;
	int r = app_session(app, &session, err);

	strv_add(&newest, "@");
	return r < 0 ? r : runs_find_all(session, words->n ? words : &newest, ret, ret_study, err);
}

int runs_get_study(
	struct app *app, const char *word, struct run_list *ret, char **ret_study, struct err *err)
{
	AUTO_STRV struct strv words = {0};

	if (word)
		strv_add(&words, word);
	return runs_get_named(app, &words, ret, ret_study, err);
}

int runs_get_all(struct app *app, const struct strv *words, struct run_list *ret, struct err *err)
{
	AUTO_FREE char *study = NULL;

	return runs_get_named(app, words, ret, &study, err);
}

void runs_held_done(struct runs_held *held)
{
	vec_foreach (struct runs_study, study, held)
		close(study->fd);
	vec_done(held);
}

static bool runs_has_member(const struct run_list *runs, const char *study)
{
	vec_foreach (struct run *, run, runs)
		if (str_eq(run_group(*run), study))
			return true;
	return false;
}

int runs_hold_studies(struct app *app, const struct strv *words, struct run_list *runs,
	char **ret_study, struct runs_held *ret, struct err *err)
{
	const struct dirs *dirs = &app->session.dirs;
	int r = 0;

	for (size_t i = 0; r == 0 && i < words->n; i++) {
		struct runs_study study = {0};
		if (study_find(dirs, words->v[i], study.id, NULL) < 0 ||
			!runs_has_member(runs, study.id))
			continue;
		r = study_set_cancelled(dirs, study.id, true, err);
		if (r == 0)
			r = study_hold(dirs, study.id, HOLD_MS, &study.fd, err);
		if (r == 0 && study.fd > 0)
			*vec_push(ret) = study;
	}
	if (r < 0 || ret->n == 0)
		return r;
	run_list_done(runs);
	*runs = (struct run_list){0};
	free(TAKE(*ret_study));
	return runs_get_named(app, words, runs, ret_study, err);
}

size_t runs_keep_states(struct run_list *runs, unsigned states)
{
	size_t n = 0;

	for (size_t i = 0; i < runs->n; i++) {
		if (states & (1u << run_state(runs->v[i])))
			runs->v[n++] = runs->v[i];
		else
			run_free(runs->v[i]);
	}
	return runs->n = n;
}

size_t runs_keep_failed(struct app *app, const char *study, struct run_list *runs)
{
	size_t before = runs->n, n = runs_keep_states(runs, 1u << RUN_FAILED | 1u << RUN_LOST);

	if (n == 0 && study)
		app_note(app, "none of the %zu runs of %s has failed", before, study);
	else if (n == 0)
		app_note(app, before == 1 ? "it has not failed" : "none has failed");
	return n;
}

static int runs_select_exactly(struct store *store, const struct select_rules *rules,
	struct run_list *ret, struct err *err)
{
	const struct store_filter filter = {.since_ms = rules->since_ms, .group = rules->group};
	int r = store_list(store, &filter, ret, err);

	if (r == 0)
		select_keep(rules, ret);
	return r;
}

/* The whole name of a group that is named by its beginning, or NULL. The caller frees. */
static char *runs_whole_group(struct store *store, const char *name)
{
	AUTO(run_list_done) struct run_list runs = {0};
	char *group;

	return store_resolve_group(store, name, &runs, &group, NULL) == 0 ? group : NULL;
}

int runs_select(struct store *store, const struct select_rules *rules, struct run_list *ret,
	struct err *err)
{
	struct select_rules whole = *rules;
	AUTO_FREE char *group = NULL;
	int r = runs_select_exactly(store, rules, ret, err);

	if (r < 0 || ret->n || !rules->group)
		return r;
	group = runs_whole_group(store, rules->group);
	if (!group || str_eq(group, rules->group))
		return 0;
	whole.group = group;
	return runs_select_exactly(store, &whole, ret, err);
}

/*
 * States and values from targets
 */

enum {
	QUERY_MS = 1000,
	VALUES_MIN_MS = 100, /* for results and event files, however long the states took */
	ENDED_MAX = 16,
};

static bool runs_is_here(const struct run *run)
{
	return target_ops_recorded(run)->is_here;
}

int runs_poll(
	struct session *session, struct run_list *runs, bool values, bool files, struct err *err)
{
	int64_t end_ms = clock_deadline(QUERY_MS), left_ms;
	struct run_list running = {0}, requested = {0};

	if (runs_refresh(session, runs, QUERY_MS, err) < 0)
		return -(int)err->code;
	vec_foreach (struct run *, run, runs)
		if (run_state(*run) == RUN_RUNNING)
			*vec_push(&running) = *run;
		else if (run_state_is_final(run_state(*run)) && (values || files) &&
			 !results_is_valid(json_get((*run)->doc, RESULTS_MEMBER)))
			*vec_push(&requested) = *run;
	left_ms = end_ms - clock_ms();
	if (values)
		metrics_bring(session, &running, left_ms > VALUES_MIN_MS ? left_ms : VALUES_MIN_MS);
	/* Facts of local runs are known already. */
	vec_foreach (struct run *, run, &running)
		if (files && requested.n < ENDED_MAX && !runs_is_here(*run))
			*vec_push(&requested) = *run;
	vec_done(&running);
	left_ms = end_ms - clock_ms();
	/* Many runs that ended since the last look would take requests of their own each. */
	if (requested.n <= ENDED_MAX)
		runs_results(session, &requested, true,
			left_ms > VALUES_MIN_MS ? left_ms : VALUES_MIN_MS);
	vec_done(&requested);
	return 0;
}

/*
 * Facts
 */

int64_t runs_grace(const struct run *run)
{
	return json_get_int(run->spec, "grace_ms", GRACE_MS);
}

int64_t runs_duration(const struct run *run)
{
	int64_t started = run_started_ms(run), ended = run_ended_ms(run);

	if (!started)
		return -1;
	return (ended ? ended : clock_wall_ms()) - started;
}

const char *runs_state_style(enum run_state state)
{
	static const char *const styles[RUN_STATES] = {
		[RUN_PREPARING] = UI_CYAN,
		[RUN_QUEUED] = UI_CYAN,
		[RUN_STARTING] = UI_CYAN,
		[RUN_RUNNING] = UI_CYAN,
		[RUN_SUCCEEDED] = UI_GREEN,
		[RUN_FAILED] = UI_RED,
		[RUN_CANCELLED] = UI_YELLOW,
		[RUN_LOST] = UI_RED,
		[RUN_UNKNOWN] = UI_YELLOW,
	};

	return styles[state];
}

/*
 * Ports that a run names, reachable on this machine while it is followed
 */

enum { WORDS_MAX = PORTS_MAX * 8 };

struct reach {
	struct app *app;
	const struct run *run;
};

static bool get_ports(const struct run *run, struct ports *ret)
{
	ports_from_json(json_get(run->doc, "ports"), ret);
	return ret->n > 0 && !run_state_is_final(run_state(run));
}

static void print_port(struct app *app, const struct run *run, const struct forward_port *port)
{
	app_note(
		app, "port %u of %s: http://127.0.0.1:%u/", port->remote, run_id(run), port->local);
}

static void reach_on_listening(void *ctx, const struct forward_port *port)
{
	const struct reach *reach = ctx;

	print_port(reach->app, reach->run, port);
}

static void print_command(struct app *app, const struct run *run, const struct ports *ports)
{
	AUTO_BUF struct buf words = buf_with(WORDS_MAX);

	for (size_t i = 0; i < ports->n; i++)
		buf_addf(&words, " %u", ports->v[i]);
	app_note(app, "%s: dlrun forward %s%s", ports->n == 1 ? "its port" : "its ports",
		run_id(run), words.data);
}

static void print_here(struct app *app, const struct run *run, const struct ports *ports)
{
	for (size_t i = 0; i < ports->n; i++)
		print_port(app, run, &(struct forward_port){ports->v[i], ports->v[i]});
}

/* Listens while the session's loop runs, until forward_free, and prints one line for each port. Of
 * a run on this machine the lines are all that is needed. NULL: nothing to listen for; a failure is
 * printed, not returned, because whoever follows wants the log above all. run is borrowed. */
static struct forward *reach_open(struct app *app, const struct run *run, int rank)
{
	struct reach reach = {app, run};
	struct forward_port wanted[PORTS_MAX];
	AUTO_ERR struct err err = {0};
	struct forward *forward = NULL;
	struct ports ports;

	if (!get_ports(run, &ports))
		return NULL;
	if (runs_is_here(run)) {
		print_here(app, run, &ports);
		return NULL;
	}
	for (size_t i = 0; i < ports.n; i++)
		wanted[i] = (struct forward_port){.remote = ports.v[i]};
	/* Set no notice: messages about connections would mix with the output of the program. */
	const struct forward_options options = {.ports = wanted,
		.n_ports = ports.n,
		.rank = rank < 0 ? 0 : rank,
		.listening = reach_on_listening,
		.ctx = &reach};
	if (forward_open(&app->session, run, &options, &forward, &err) < 0) {
		app_note(app, "ports of %s cannot be reached here: %s", run_id(run), err.message);
		print_command(app, run, &ports);
	}
	return forward;
}

void reach_print(struct app *app, const struct run *run)
{
	struct ports ports;

	if (!get_ports(run, &ports))
		return;
	if (runs_is_here(run))
		print_here(app, run, &ports);
	else
		print_command(app, run, &ports);
}

/*
 * The end
 */

/* Into the last line if there is room for it there (columns, 0: any), else into the next. */
static void runs_add_piece(
	struct strv *lines, const char *between, const char *piece, size_t columns)
{
	char **last = lines->n ? &lines->v[lines->n - 1] : NULL;
	char *longer = last ? mem_printf("%s%s%s", *last, between, piece) : NULL;

	if (!last || (columns && str_columns(longer) > columns)) {
		free(longer);
		strv_add(lines, piece);
		return;
	}
	free(*last);
	*last = longer;
}

void runs_results_lines(struct app *app, const struct run *run, size_t columns, struct strv *ret)
{
	AUTO_STRV struct strv words = {0};
	AUTO_FREE char *fetch = NULL, *dir = NULL;
	const struct json *results = json_get(run->doc, RESULTS_MEMBER);
	struct session *session;

	if (app_session(app, &session, NULL) < 0)
		return;
	results_words(results, &words);
	for (size_t i = 0; i < words.n; i++)
		runs_add_piece(ret, " · ", words.v[i], columns);
	/* The list of results could not be fetched in time. */
	bool is_unknown = !results_is_valid(results) && run_handle(run) && !runs_is_here(run) &&
			  run_keeps_results(session, run);
	if (is_unknown)
		strv_add(ret, "not listed yet");
	fetch = mem_printf("dlrun fetch %s%s", is_unknown ? "--list " : "", run_id(run));
	if (words.n || is_unknown)
		runs_add_piece(ret, "   ", fetch, columns);
	AUTO_FREE char *waits = taken_text(run);
	if (*waits)
		strv_add(ret, waits);
	if (!words.n || !runs_is_here(run))
		return;
	AUTO_FREE char *outputs = dirs_outputs(&session->dirs, run_id(run));
	dir = mem_printf("in %s", outputs);
	strv_add(ret, dir);
}

static void runs_print_results(struct app *app, const struct run *run)
{
	AUTO_STRV struct strv lines = {0};
	size_t columns = app->err_tty && app->columns > UI_LABEL ? app->columns - UI_LABEL : 0;

	runs_results_lines(app, run, columns, &lines);
	for (size_t i = 0; i < lines.n; i++)
		app_phase(app, i ? "" : "results", "%s", lines.v[i]);
	for (const struct json *text =
			json_first(json_get(json_get(run->doc, RESULTS_MEMBER), "warnings"));
		text; text = json_next(text))
		app_warn(app, "%s", json_str(text) ? json_str(text) : "");
}

static enum err_id end_id(const struct run *run)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	if (run_state(run) == RUN_LOST || run_state(run) == RUN_UNKNOWN)
		return E_RUN_LOST;
	const struct run_reason *reason = run_reason(exit.reason);
	return reason ? reason->id : E_RUN_FAILED;
}

bool runs_why(struct app *app, const struct run *run, struct buf *sentence, struct buf *hint)
{
	struct session *session;

	if (app_session(app, &session, NULL) == 0)
		return run_why_all(session, run, sentence, hint);
	run_why(run, sentence, hint);
	return false;
}

static void runs_print_failure(struct app *app, const struct run *run)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf sentence = buf_with(SENTENCE_MAX), hint = buf_with(SENTENCE_MAX),
			    text = buf_with(SENTENCE_MAX);

	bool known = runs_why(app, run, &sentence, &hint);
	err_set(&err, end_id(run), "%s", sentence.data);
	/* A program that never began has no output to inspect. */
	if (err.id == E_RUN_EXEC && !known)
		err_hint(&err, "dlrun explain run.exec");
	else if (hint.len)
		err_hint(&err, "%s", hint.data);
	app_error_text(app, &err, &text);
	ui_print(app, UI_ERR, text.data, text.len);
}

int runs_print_end(struct app *app, const struct run *run)
{
	struct run_exit exit;
	char took[32];

	switch (run_state(run)) {
	case RUN_SUCCEEDED:
		app_phase(app, "done", "%s in %s", run_id(run),
			duration_text(runs_duration(run), took));
		runs_print_results(app, run);
		break;
	case RUN_CANCELLED:
		run_get_exit(run, &exit);
		if (str_eq(exit.reason, AFTER_REASON))
			app_phase(app, "cancelled", "%s: %s", run_id(run),
				json_get_str(run->doc, "text"));
		else
			app_phase(app, "cancelled", "%s after %s", run_id(run),
				duration_text(runs_duration(run), took));
		runs_print_results(app, run);
		break;
	default:
		runs_print_results(app, run);
		runs_print_failure(app, run);
	}
	return run_exit_status(run);
}

int runs_print_json(struct app *app, const struct run_list *runs)
{
	struct json *json = app_json("runs"), *list = json_array();

	vec_foreach (struct run *, run, runs)
		json_add(list, json_clone((*run)->doc));
	json_set(json, "runs", list);
	return app_print_json(app, json);
}

/* $BROWSER is a list with ":"; the first word of it that is a program. */
static char *browser_find_named(void)
{
	const char *list = getenv("BROWSER");

	while (!str_empty(list)) {
		size_t len = strcspn(list, ":");
		AUTO_FREE char *name = mem_strndup(list, len);
		char *found = proc_find(name, NULL);

		if (found)
			return found;
		list += len + (list[len] == ':');
	}
	return NULL;
}

static bool has_display(void)
{
#ifdef __APPLE__
	return !getenv("SSH_CONNECTION");
#else
	return !str_empty(getenv("DISPLAY")) || !str_empty(getenv("WAYLAND_DISPLAY"));
#endif
}

static char *find_browser(void)
{
#ifdef __APPLE__
	static const char *const names[] = {"open"};
#else
	static const char *const names[] = {"wslview", "xdg-open"};
#endif
	char *found = browser_find_named();

	/* Windows below Linux has its own display. */
	bool seen = has_display() || getenv("WSL_DISTRO_NAME");
	for (size_t i = 0; !found && seen && i < ARRAY_LEN(names); i++)
		found = proc_find(names[i], NULL);
	return found;
}

bool browser_open(const char *url)
{
	AUTO_FREE char *browser = find_browser();
	pid_t pid;

	if (!browser)
		return false;
	/* The shell leaves the browser behind, so that it need not be waited for. */
	const char *const argv[] = {
		"/bin/sh", "-c", "\"$@\" >/dev/null 2>&1 &", "sh", browser, url, NULL};
	const struct proc_spec spec = {.argv = argv,
		.stdin_fd = -1,
		.stdout_fd = -1,
		.stderr_fd = -1,
		.new_session = true};
	return proc_spawn(&spec, &pid, NULL) == 0;
}

enum { EXIT_INTERRUPTED = 130, OUT_MAX = 64 << 20, GAPS_MAX = 1000 };

struct follower {
	struct app *app;
	const struct run *run;
	const struct follow_request *request;
	struct loop *loop;
	struct logview view;
	struct loop_timer *timer;
	struct strv *gaps; /* told by JSON at the end */
};

static int runs_follow_write_out(struct follower *follower, struct buf *out, struct err *err)
{
	if (ui_write(follower->app, out->data, out->len) < 0)
		return err_set(err, E_CANCELED, "the output was closed");
	return 0;
}

static void runs_follow_set_timer(struct follower *follower);

static int runs_follow_on_timer(void *ctx, struct err *err)
{
	struct follower *follower = ctx;
	AUTO_BUF struct buf out = buf_with(OUT_MAX);
	int r;

	follower->timer = NULL;
	logview_tick(&follower->view, clock_ms(), &out);
	r = runs_follow_write_out(follower, &out, err);
	runs_follow_set_timer(follower);
	return r;
}

static void runs_follow_set_timer(struct follower *follower)
{
	int64_t due = logview_due(&follower->view);

	if (due >= 0 && !follower->timer)
		follower->timer =
			loop_add_timer(follower->loop, due, runs_follow_on_timer, follower);
}

static void runs_follow_set_rank(struct follower *follower, int rank)
{
	follower->view.rank = follower->view.role_rank = rank;
	follower->view.role = roles_of_record(follower->run->doc, &follower->view.role_rank);
}

static int runs_follow_on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct follower *follower = ctx;
	const struct follow_request *request = follower->request;
	AUTO_BUF struct buf out = buf_with(OUT_MAX);

	if (request->count && (rank < request->first || rank >= request->first + request->count))
		return 0;
	runs_follow_set_rank(follower, rank);
	logview_add(&follower->view, data, len, time_ms, clock_ms(), &out);
	runs_follow_set_timer(follower);
	return runs_follow_write_out(follower, &out, err);
}

static void runs_follow_on_notice(void *ctx, const char *text)
{
	struct follower *follower = ctx;

	app_note(follower->app, "[%s]", text);
}

static void runs_follow_on_gap(void *ctx, const char *text)
{
	struct follower *follower = ctx;

	if (!follower->app->options.json) {
		app_note(follower->app, "[%s]", text);
		return;
	}
	app_warn(follower->app, "%s", text);
	if (follower->gaps->n < GAPS_MAX)
		strv_add(follower->gaps, text);
}

static int runs_follow_read_log(struct follower *follower, struct session *session, struct run *run,
	const struct follow_request *request, struct err *err)
{
	const struct follow_options options = {.tail_lines = request->tail_lines,
		.since_ms = request->since_ms,
		.rank = request->rank,
		.attempt = request->attempt,
		.follow = request->follow,
		.interrupted = &app_interrupted};
	const struct target_log_events events = {.data = runs_follow_on_data,
		.notice = runs_follow_on_notice,
		.gap = runs_follow_on_gap,
		.ctx = follower};
	AUTO_BUF struct buf out = buf_with(OUT_MAX);
	int r = run_follow(session, run, &options, &events, err);

	if (follower->timer)
		loop_remove_timer(follower->loop, follower->timer);
	/* The record that has the name of the role may have been replaced. */
	runs_follow_set_rank(follower, follower->view.rank);
	logview_end(&follower->view, &out);
	if (!follower->app->out_lost)
		ui_write(follower->app, out.data, out.len);
	/* The shell's prompt, or the end of the run, begins a line of its own. */
	if (follower->app->out_tty && follower->app->out_in_line)
		ui_write(follower->app, "\n", 1);
	return r;
}

/* The run, whose warnings tell here of the output that was missing, too. */
static void runs_follow_print_json(struct app *app, const struct run *run, const struct strv *gaps)
{
	struct json *doc = json_clone(run->doc);
	const struct json *before = json_get(doc, "warnings");
	struct json *warnings = before ? json_clone(before) : json_array();

	for (size_t i = 0; i < gaps->n; i++)
		json_add_str(warnings, gaps->v[i]);
	json_set(doc, "warnings", warnings);
	app->json_done = true;
	app_print_json_line(app, doc);
}

static enum logview_kind runs_follow_kind_of(const struct app *app)
{
	if (app->options.json)
		return LOGVIEW_JSON;
	return app->out_tty ? LOGVIEW_TERMINAL : LOGVIEW_RAW;
}

int runs_find_rank(const struct run *run, const char *role, int rank, int *ret, struct err *err)
{
	int first = 0, n = 0;

	if (role) {
		int r = roles_find(run->doc, role, &first, &n, err);
		if (r < 0)
			return err_prefix(err, "%s", run_id(run));
	}
	if (role && rank >= n) {
		err_set(err, E_USAGE, "--rank %d: role %s of %s has the ranks 0 to %d", rank, role,
			run_id(run), n - 1);
		return err_hint(err, "--role %s --rank %d", role, n - 1);
	}
	*ret = first + rank;
	return 0;
}

static bool has_ranks(const struct run *run)
{
	return json_get_int(json_get(run->doc, "resources"), "nodes", 1) > 1;
}

static int detached(struct app *app, const struct run *run)
{
	const char *id = run_id(run);

	app_note_interrupted(app, "detached: %s keeps running.  dlrun logs -f %s", id, id);
	return EXIT_INTERRUPTED;
}

int follow_log(struct app *app, struct run *run, const struct follow_request *request)
{
	AUTO_ERR struct err err = {0};
	AUTO_STRV struct strv gaps = {0};
	struct follower follower = {.app = app, .run = run, .request = request, .gaps = &gaps};
	struct session *session;
	int r = app_session(app, &session, &err);

	if (r < 0)
		return app_fail(app, &err);
	app_catch_signals();
	app->accepted |= request->follow;
	follower.loop = session_loop(session);
	logview_init(&follower.view, runs_follow_kind_of(app), app->out_color, request->timestamps);
	follower.view.ranked = request->rank < 0 && has_ranks(run);
	struct forward *ports = request->follow ? reach_open(app, run, request->rank) : NULL;
	r = runs_follow_read_log(&follower, session, run, request, &err);
	forward_free(ports);
	logview_done(&follower.view);
	if (app->out_lost) {
		if (request->follow && !run_state_is_final(run_state(run)))
			app_note(app, "the output was closed; %s goes on", run_id(run));
		return 1;
	}
	if (app_interrupted && !run_state_is_final(run_state(run)))
		return detached(app, run);
	if (r < 0)
		return app_fail(app, &err);
	if (app->options.json)
		runs_follow_print_json(app, run, &gaps);
	return request->follow ? runs_print_end(app, run) : 0;
}
