/* SPDX-License-Identifier: Apache-2.0 */
#include "app/runs/refresh.h"

#include <stdlib.h>
#include <string.h>

#include "app/runs/deliver.h"
#include "app/runs/held.h"
#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/finish.h"
#include "core/record/foreign.h"
#include "core/record/observed.h"
#include "core/record/places.h"
#include "core/record/results.h"
#include "core/store/store.h"
#include "core/target/target.h"
#include "targets/targets.h"

enum { QUERY_MS = 15000 };

/* Whether text is of the form TARGET:ID. Names of targets may have colons:
 * "kube:CONTEXT/NAMESPACE". */
static bool refresh_is_location(const char *text)
{
	const char *colon = strrchr(text, ':');

	return colon && colon > text && run_id_is_valid(colon + 1);
}

static int refresh_open_target(
	struct session *session, const char *name, struct target **ret, struct err *err)
{
	int r = target_open(session, name, ret, err);

	if (r == 0 && !(*ret)->ops->adopt) {
		r = err_set(err, E_TARGET_UNSUPPORTED,
			"targets of kind %s only have runs of this machine", (*ret)->ops->kind);
		target_free(TAKE(*ret));
	}
	return r;
}

/* The run TARGET:ID: the record here if it is of that target, else as the target tells, not
 * refreshed. */
static int refresh_find(
	struct session *session, const char *text, struct run **ret, struct err *err)
{
	const char *id = strrchr(text, ':') + 1;
	AUTO_FREE char *name = mem_strndup(text, (size_t)(id - 1 - text));
	AUTO(target_free_auto) struct target *target = NULL;
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_RUN struct run *own = NULL;
	struct store *store;

	int r = session_store(session, &store, err);
	if (r < 0)
		return r;
	if (store_get(store, id, &own, NULL) == 0 && str_eq(run_target(own), name)) {
		*ret = TAKE(own);
		return 0;
	}
	r = refresh_open_target(session, name, &target, err);
	if (r == 0)
		r = target_adopt(target, id, QUERY_MS, &runs, err);
	if (r == 0)
		*ret = TAKE(runs.v[0]);
	return r;
}

int adopt_own(struct session *session, struct run *run, struct err *err)
{
	const struct json *adopted = json_get(run->doc, "adopted");
	const char *user = json_get_str(adopted, "user");
	struct store *store;

	if (!adopted)
		return 0;
	if (!json_get_bool(adopted, "own", false)) {
		AUTO_FREE char *shown = str_shown(user ? user : "somebody else");
		err_set(err, E_RUN_OTHER, "%s is a run of %s", run_id(run), shown);
		return err_hint(err, "dlrun show %s:%s", run_target(run), run_id(run));
	}
	int r = session_store(session, &store, err);
	if (r < 0)
		return r;
	AUTO_ERR struct err error = {0};

	json_remove(run->doc, "adopted");
	r = store_insert(store, run, &error);
	/* Another process has inserted it meanwhile. */
	if (r < 0 && error.id != E_RUN_NAME)
		return err_move(err, &error);
	return 0;
}

static int by_age(const void *a, const void *b)
{
	int64_t first = run_submitted_ms(*(struct run *const *)a);
	int64_t second = run_submitted_ms(*(struct run *const *)b);

	return (first > second) - (first < second);
}

int adopt_all(struct session *session, const char *name, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	AUTO(run_list_done) struct run_list runs = {0};
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0)
		r = refresh_open_target(session, name, &target, err);
	if (r == 0)
		r = target_adopt(target, NULL, QUERY_MS, &runs, err);
	if (r < 0 || runs.n == 0)
		return r;
	for (size_t i = 0; i < runs.n; i++)
		json_remove(runs.v[i]->doc, "adopted");
	/* The order of records is that of submission. */
	qsort(runs.v, runs.n, sizeof(*runs.v), by_age);
	return store_insert_new(store, &runs, err);
}

/*
 * Asking targets for the state of runs, all at once, and reconciling the store with it.
 */

/* A login may take long, and the user of a single run waits for its current state. */
enum { FIND_MS = 8000 };

struct refresh;

/* A request for the state of a run. */
struct query {
	struct target_call call;
	struct refresh *refresh;
	struct run *run;
	struct target_status status;
	struct err err;
	int result;
	bool went_on; /* attempts were added that the target began by itself */
};

/* A target, and a run that lives there. */
struct known_target {
	struct target *target;
	const struct run *run;
};
struct target_list VEC_OF(struct known_target);

struct refresh {
	struct session *session;
	struct target_list targets;
	struct query *queries;
	size_t n_queries, n_open;
	struct loop_timer *end; /* at the deadline, or at once: all have responded */
	struct run_list changed;
	char machine[OS_ID_SIZE];
	refresh_done_fn *done;
	void *ctx;
};

void refresh_cancel(struct refresh *refresh)
{
	if (!refresh)
		return;
	loop_remove_timer(session_loop(refresh->session), refresh->end);
	for (size_t i = 0; i < refresh->n_queries; i++) {
		target_call_cancel(&refresh->queries[i].call);
		target_status_done(&refresh->queries[i].status);
		err_done(&refresh->queries[i].err);
	}
	free(refresh->queries);
	vec_foreach (struct known_target, known, &refresh->targets)
		target_free(known->target);
	vec_done(&refresh->targets);
	vec_done(&refresh->changed);
	free(refresh);
}

void run_replace(struct run *run, struct run *now)
{
	struct run old = *run;

	*run = *now;
	*now = old;
	run_free(now);
}

int runs_unfinished(struct session *session, bool (*is_wanted)(const struct run *run),
	struct run_list *ret, struct err *err)
{
	const struct store_filter filter = {.unfinished_only = true};
	AUTO(run_list_done) struct run_list runs = {0};
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0)
		r = store_list(store, &filter, &runs, err);
	for (size_t i = runs.n; r == 0 && i-- > 0;)
		if (!is_wanted || is_wanted(runs.v[i]))
			*vec_push(ret) = TAKE(runs.v[i]);
	return r;
}

int run_change_row(
	struct session *session, struct run *run, store_change_fn *fn, void *ctx, struct err *err)
{
	struct run *now = NULL;
	struct store *store;
	int r = session_store(session, &store, err);

	if (r == 0)
		r = store_change(store, run_id(run), fn, ctx, &now, err);
	if (r == 0)
		run_replace(run, now);
	return r;
}

int run_read_row(struct session *session, struct run *run, struct err *err)
{
	struct run *now = NULL;
	struct store *store;
	int r = session_store(session, &store, err);

	if (r == 0)
		r = store_get(store, run_id(run), &now, err);
	if (r == 0)
		run_replace(run, now);
	return r;
}

bool runs_have_one_target(const struct run *a, const struct run *b)
{
	static const char *const members[] = {"kind", "name", "context", "namespace", "dir"};
	const struct json *one = json_get(a->doc, "target"), *other = json_get(b->doc, "target");

	for (size_t i = 0; i < ARRAY_LEN(members); i++)
		if (!str_eq(json_get_str(one, members[i]), json_get_str(other, members[i])))
			return false;
	return true;
}

static int get_target(
	struct refresh *refresh, const struct run *run, struct target **ret, struct err *err)
{
	struct target *target;

	vec_foreach (struct known_target, known, &refresh->targets) {
		if (runs_have_one_target(known->run, run)) {
			*ret = known->target;
			return 0;
		}
	}
	int r = target_open_run(refresh->session, run, &target, err);
	if (r < 0)
		return r;
	*vec_push(&refresh->targets) = (struct known_target){target, run};
	*ret = target;
	return 0;
}

/*
 * Responses
 */

/* Not a step of the run: the record keeps the last known state, only this command shows it. */
static void set_unknown(struct run *run, const char *why)
{
	json_set_str(run->doc, "last_state", run_state_name(run_state(run)));
	json_set_str(run->doc, "text", why);
	json_set_str(run->doc, "state", run_state_name(RUN_UNKNOWN));
}

static void set_end(struct run *run, const struct target_status *status)
{
	run_set_attempt_exit(run, &status->exit, status->started_ms, status->ended_ms);
	run_set_exit(run, &status->exit);
}

static bool set_started(struct run *run, int64_t started_ms)
{
	struct json *times = json_sub(run->doc, "times");

	if (started_ms <= 0 || json_get_str(times, "started"))
		return false;
	run_set_time(times, "started", started_ms);
	return true;
}

/* A target that has removed what it had made tells of one rank only: the others stay known. */
static void set_ranks(struct run *run, const struct target_status *status)
{
	struct json *ranks = json_clone(status->ranks);
	int64_t n = (int64_t)json_count(ranks);
	int64_t nodes = json_get_int(json_get(run->doc, "resources"), "nodes", 0);
	const struct json *rank = json_first(json_get(run->doc, "ranks"));

	for (; rank; rank = json_next(rank)) {
		int64_t number = json_get_int(rank, "rank", -1);
		if (number < n || number >= nodes)
			continue;
		struct json *own = json_clone(rank);
		if (run_state_is_final(status->state))
			json_set_str(own, "state", run_state_name(status->state));
		json_add(ranks, own);
	}
	json_set(run->doc, "ranks", ranks);
}

/* Set the text and what goes along with it; returns whether the text has changed. */
static bool set_reason(struct run *run, const struct target_status *status)
{
	bool changed = !str_eq(json_get_str(run->doc, "text"), status->text);

	if (status->ranks)
		set_ranks(run, status);
	if (!changed && !status->evidence)
		return false;
	json_set_str(run->doc, "text", status->text);
	/* With the same text, evidence has times and amounts that change all the time. */
	json_remove(run->doc, "hint");
	json_remove(run->doc, "evidence");
	if (status->hint)
		json_set_str(run->doc, "hint", status->hint);
	if (status->evidence)
		json_set(run->doc, "evidence", json_clone(status->evidence));
	return changed;
}

/* Takes over where the attempt is, once a place of several has taken it. Whether that is new. */
static bool refresh_set_place(struct run *run, const struct target_status *status)
{
	if (!status->handle || str_eq(status->handle, run_handle(run)))
		return false;
	run_set_handle(run, status->handle);
	for (const struct json *item = json_first(status->where); item; item = json_next(item))
		json_set(json_sub(run->doc, "target"), json_key(item), json_clone(item));
	return true;
}

/* Whether the record had to change. */
static bool refresh_apply(struct run *run, const struct target_status *status)
{
	enum run_state before = run_state(run);
	bool changed = set_started(run, status->started_ms);

	changed |= refresh_set_place(run, status);
	observed_merge(status->observed, run->doc);
	/* A cancel is in the row before its target knows of it, where the run may move. */
	if (run_cancelling(run) != status->cancelling && !run_state_is_final(status->state) &&
		!(run_cancelling(run) && run_may_move(run))) {
		json_set_bool(run->doc, "cancelling", status->cancelling);
		changed = true;
	}
	changed |= set_reason(run, status);
	if (status->state == before || !run_state_may_follow(before, status->state))
		return changed;
	run_set_state(run, status->state);
	if (run_state_is_final(status->state))
		set_end(run, status);
	if (run_state_is_final(status->state) && status->results_until_ms)
		run_set_time(run->doc, TAKEN_UNTIL, status->results_until_ms);
	if (run_state_is_final(status->state) && status->results_unsent)
		json_set_str(run->doc, TAKEN_UNSENT, status->results_unsent);
	return true;
}

/* Whether the record had to change. */
static bool refresh_take_status(struct query *query)
{
	deliver_explain(query->refresh->session, query->run, &query->status);
	bool changed = refresh_apply(query->run, &query->status);

	json_free(query->run->seen);
	query->run->seen = TAKE(query->status.observed);
	return changed || query->went_on;
}

/* Of an ended run: its results may not be waiting any more: they are lost, or its pods have ended
 * since, as there was nothing to take. */
static bool refresh_take_results(struct query *query)
{
	const struct target_status *status = &query->status;
	bool is_over = run_state_is_final(status->state) && status->state != RUN_LOST;

	if (query->result < 0 || status->results_until_ms || !(is_over || status->results_lost))
		return false;
	json_remove(query->run->doc, TAKEN_UNTIL);
	if (status->results_lost)
		json_set_str(query->run->doc, TAKEN_LOST, status->results_lost);
	return true;
}

/* The sender settles a run that has begun and is to be cancelled: it asks the target for the end
 * before the run counts as sent. */
static bool is_cancel_due(const struct query *query)
{
	return run_cancelling(query->run) && !run_state_is_final(query->status.state);
}

/* A held run whose sender was stopped: where the target does not have it, it is sent again. */
static bool is_still_held(const struct query *query)
{
	const struct target_status *status = &query->status;

	return run_is_held(query->run) &&
	       (query->result < 0 || is_cancel_due(query) || status->state == RUN_UNKNOWN ||
		       status->state == RUN_PREPARING || attempt_never_began(status));
}

/* Whether the answer shows that the program of the attempt has begun. */
static bool refresh_has_begun(const struct query *query)
{
	return query->result == 0 &&
	       (query->status.started_ms || query->status.state == RUN_RUNNING);
}

/* An attempt that is taken back looks lost, or as if it had never begun, until its row says so:
 * only the one who moves it knows. */
static bool refresh_is_moving(struct refresh *refresh, struct query *query)
{
	const struct target_status *status = &query->status;
	struct run *run = query->run;

	if (refresh_has_begun(query) || query->went_on || !run_has_choice(run) ||
		run_state_is_final(run_state(run)))
		return false;
	AUTO_FREE char *asked = mem_strdup(run_handle(run));
	/* The row may have changed since it was asked about, and the run be elsewhere by now. */
	if (query->result == 0 && run_state_is_final(status->state))
		run_read_row(refresh->session, run, NULL);
	if (!str_eq(asked, run_handle(run)))
		return true;
	if (run_is_moving(run) && run_cancelling(run) && query->result == 0 &&
		run_state_is_final(status->state)) {
		json_remove(run->doc, RUN_MOVING);
		held_end(run);
		*vec_push(&refresh->changed) = run;
	}
	return run_is_moving(run) || run_is_unsent(run) || run_state_is_final(run_state(run));
}

/* Of a run of another machine: whether that one may have moved it, or has. */
static bool refresh_is_elsewhere(const struct query *query)
{
	const struct target_status *status = &query->status;
	bool is_gone = status->state == RUN_LOST || attempt_never_began(status);

	if (query->result < 0 || !is_gone || status->started_ms || !foreign_is(query->run))
		return false;
	return run_may_be_elsewhere(query->run) || str_eq(status->text, ATTEMPT_WITHDRAWN);
}

static void refresh_take_response(struct refresh *refresh, struct query *query)
{
	if (is_still_held(query) || refresh_is_moving(refresh, query))
		return;
	if (run_is_held(query->run))
		held_clear(query->run);

	bool merged = finish_merge(&refresh->session->dirs, query->run);

	if (run_state_is_final(run_state(query->run))) {
		if (refresh_take_results(query))
			*vec_push(&refresh->changed) = query->run;
	} else if (query->result < 0)
		set_unknown(query->run, query->err.message);
	else if (query->status.state == RUN_UNKNOWN)
		set_unknown(query->run, query->status.text);
	else if (refresh_is_elsewhere(query))
		set_unknown(query->run,
			"it is not there any more: the machine that submitted it may have sent "
			"it to another target");
	else if (refresh_take_status(query) || merged)
		*vec_push(&refresh->changed) = query->run;
	held_watch(&refresh->session->dirs, query->run);
	deliver_kick(refresh->session, query->run);
}

/*
 * Asking
 */

static void start_query(struct refresh *refresh, struct query *query, int64_t deadline_ms);

/* The target began another attempt after this one, maybe long ago, and may have begun more. */
static void query_next(struct query *query)
{
	AUTO(target_status_done) struct target_status status = query->status;

	query->status = (struct target_status){0};
	observed_merge(status.observed, query->run->doc);
	set_started(query->run, status.started_ms);
	refresh_set_place(query->run, &status);
	set_end(query->run, &status);
	run_add_attempt(query->run, status.next_handle);
	run_set_state(query->run, RUN_QUEUED);
	query->went_on = true;
	start_query(query->refresh, query, query->call.deadline_ms);
}

static int refresh_on_end(void *ctx, struct err *err);

/* The responses are read outside of the calls that brought them, since targets are freed then. */
static void refresh_end_at(struct refresh *refresh, int64_t at_ms)
{
	struct loop *loop = session_loop(refresh->session);

	loop_remove_timer(loop, refresh->end);
	refresh->end = loop_add_timer(loop, at_ms, refresh_on_end, refresh);
}

static void refresh_on_done(struct target_call *call, int status, struct err *err)
{
	struct query *query = (struct query *)call;

	query->result = status;
	if (status < 0)
		err_move(&query->err, err);
	else if (query->status.next_handle)
		query_next(query);
	if (--query->refresh->n_open == 0)
		refresh_end_at(query->refresh, 0);
}

static void start_query(struct refresh *refresh, struct query *query, int64_t deadline_ms)
{
	struct target *target;

	query->call = (struct target_call){.deadline_ms = deadline_ms, .done = refresh_on_done};
	int r = get_target(refresh, query->run, &target, &query->err);
	if (r == 0)
		r = target->ops->state(
			target, run_handle(query->run), &query->status, &query->call, &query->err);
	query->result = r;
	if (r == 0)
		refresh->n_open++;
}

/* A row that no target has heard of: its submit is at work, or was killed. */
static void check_unsubmitted(struct refresh *refresh, struct run *run)
{
	const char *machine = json_get_str(json_get(run->doc, "origin"), "machine");
	AUTO_FREE char *dir = dirs_run(&refresh->session->dirs, run_id(run));
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	struct target_status status = {0};

	if (*refresh->machine && machine && !str_eq(machine, refresh->machine)) {
		set_unknown(run, "it is being submitted on another machine");
		return;
	}
	if (fs_is_locked(lock))
		return;
	attempt_set_end(&status, RUN_FAILED, 125, 0, "dlrun", "Interrupted",
		"dlrun was stopped before the run had begun");
	status.ended_ms = clock_wall_ms();
	if (refresh_apply(run, &status))
		*vec_push(&refresh->changed) = run;
	target_status_done(&status);
}

static void refresh_query_all(struct refresh *refresh, struct run_list *runs, int64_t deadline_ms)
{
	refresh->queries = mem_alloc(runs->n + 1, sizeof(*refresh->queries));
	vec_foreach (struct run *, run, runs) {
		/* The store knows what became of a held run: another process sends it. */
		if (run_is_held(*run) || run_is_moving(*run))
			run_read_row(refresh->session, *run, NULL);
		if (run_is_unsent(*run))
			continue;
		if (run_state_is_final(run_state(*run)) && !taken_wait_ms(*run))
			continue;
		if (!run_handle(*run)) {
			check_unsubmitted(refresh, *run);
			continue;
		}
		struct query *query = &refresh->queries[refresh->n_queries++];
		*query = (struct query){.refresh = refresh, .run = *run};
		start_query(refresh, query, deadline_ms);
	}
}

/* Merge once more: a submit that finishes after the first merge, but before the store knows of the
 * end, leaves its final facts to us. */
static int write_late(struct refresh *refresh, struct store *store, struct err *err)
{
	struct run_list late = {0};

	vec_foreach (struct run *, run, &refresh->changed)
		if (run_state_is_final(run_state(*run)) &&
			finish_merge(&refresh->session->dirs, *run))
			*vec_push(&late) = *run;
	int r = store_update_all(store, &late, err);
	vec_done(&late);
	return r;
}

/* A state that cannot be written down now is true all the same, and asked for again the next
 * time. */
static int write_changes(struct refresh *refresh, struct err *err)
{
	AUTO_ERR struct err failure = {0};
	struct store *store;

	int r = session_store(refresh->session, &store, err);
	if (r < 0)
		return r;
	if (store_update_all(store, &refresh->changed, &failure) == 0 &&
		write_late(refresh, store, &failure) == 0)
		return 0;
	if (failure.id != E_IO_FULL && failure.id != E_IO_PERMISSION)
		return err_move(err, &failure);
	log_note("%s", failure.message);
	return 0;
}

static int refresh_on_end(void *ctx, struct err *err)
{
	struct refresh *refresh = ctx;
	refresh_done_fn *done = refresh->done;
	void *done_ctx = refresh->ctx;

	/* Calls that are still in flight have not answered in time. */
	for (size_t i = 0; i < refresh->n_queries; i++) {
		struct query *query = &refresh->queries[i];

		if (query->call.private)
			query->result = err_set(&query->err, E_TARGET_SILENT,
				"target %s did not answer in time", run_target(query->run));
		refresh_take_response(refresh, query);
	}
	int r = refresh->changed.n == 0 ? 0 : write_changes(refresh, err);
	if (refresh->changed.n)
		held_kick_ended(refresh->session, &refresh->changed);
	refresh_cancel(refresh);
	return done(done_ctx, r, err);
}

struct refresh *refresh_start(struct session *session, struct run_list *runs, int64_t timeout_ms,
	refresh_done_fn *done, void *ctx)
{
	int64_t deadline_ms = clock_ms() + timeout_ms;
	struct refresh *refresh = mem_alloc(1, sizeof(*refresh));

	*refresh = (struct refresh){.session = session, .done = done, .ctx = ctx};
	if (!os_machine_id(refresh->machine))
		refresh->machine[0] = '\0';
	held_kick(session);
	refresh_query_all(refresh, runs, deadline_ms);
	refresh_end_at(refresh, refresh->n_open > 0 ? deadline_ms : 0);
	return refresh;
}

static int refresh_on_waited(void *ctx, int status, struct err *err UNUSED)
{
	loop_wait_done(ctx);
	return status;
}

int runs_refresh(
	struct session *session, struct run_list *runs, int64_t timeout_ms, struct err *err)
{
	struct loop_wait wait = {.loop = session_loop(session), .n_open = 1};
	struct refresh *refresh =
		refresh_start(session, runs, timeout_ms, refresh_on_waited, &wait);
	int r = loop_wait_run(&wait, err);

	if (wait.n_open > 0)
		refresh_cancel(refresh);
	return r;
}

int runs_find(struct session *session, const char *text, struct run **ret, struct err *err)
{
	AUTO_RUN struct run *run = NULL;
	struct run_list one = {.n = 1, .cap = 1};
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0 && refresh_is_location(text))
		r = refresh_find(session, text, &run, err);
	else if (r == 0)
		r = store_resolve(store, text, &run, err);
	if (r < 0)
		return r;
	one.v = &run;
	r = runs_refresh(session, &one, FIND_MS, err);
	if (r < 0)
		return r;
	*ret = TAKE(run);
	return 0;
}

/* The runs of one word, not refreshed. */
static int refresh_find_word(struct session *session, const char *word, struct run_list *ret,
	char **ret_study, struct err *err)
{
	struct store *store;
	struct run *run;
	int r = session_store(session, &store, err);

	*ret_study = NULL;
	if (r < 0 || !refresh_is_location(word))
		return r < 0 ? r : store_resolve_all(store, word, ret, ret_study, err);
	r = refresh_find(session, word, &run, err);
	if (r == 0)
		*vec_push(ret) = run;
	return r;
}

int runs_find_all(struct session *session, const struct strv *words, struct run_list *ret,
	char **ret_study, struct err *err)
{
	AUTO_FREE char *study = NULL;
	struct map seen = {0};
	int r = 0;

	for (size_t i = 0; r == 0 && i < words->n; i++) {
		AUTO(run_list_done) struct run_list found = {0};
		AUTO_FREE char *group = NULL;

		r = refresh_find_word(session, words->v[i], &found, &group, err);
		if (i == 0)
			study = TAKE(group);
		for (size_t k = 0; r == 0 && k < found.n; k++)
			if (!map_put(&seen, run_id(found.v[k]), found.v[k]))
				*vec_push(ret) = TAKE(found.v[k]);
	}
	map_done(&seen);
	if (r == 0)
		r = runs_refresh(session, ret, FIND_MS, err);
	if (r == 0)
		*ret_study = TAKE(study);
	return r;
}
