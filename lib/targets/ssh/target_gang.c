/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/target_gang.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/places.h"
#include "core/record/roles.h"
#include "core/record/spec.h"
#include "core/target/rank_line.h"
#include "targets/ssh/node_job.h"
#include "targets/ssh/node_open.h"
#include "targets/ssh/target_pool.h"

enum { GANG_HOLD_MS = 15 * 60 * 1000, ROLES_TEXT_MAX = 4096 };

/*
 * The hosts of a run: queries and requests to all at once.
 */

bool node_handle_is_gang(const char *handle)
{
	return strchr(handle, ',') != NULL;
}

void node_handle_split(const char *text, struct strv *ret)
{
	for (;;) {
		size_t len = strcspn(text, "," NODE_POOL_BETWEEN);
		AUTO_FREE char *host = mem_strndup(text, len);

		strv_add(ret, host);
		if (!text[len])
			return;
		text += len + 1;
	}
}

int node_handle_rank(const char *handle, int rank, char **ret, struct err *err)
{
	AUTO(node_handle_done) struct node_handle parsed = {0};
	AUTO_STRV struct strv hosts = {0};

	int r = node_handle_parse(handle, &parsed, err);
	if (r < 0)
		return r;
	if (node_handle_is_pool(handle)) {
		err_set(err, E_NODE_FAILED, "%s has not begun: no host has taken it yet",
			parsed.run_id);
		return err_hint(err, "dlrun why %s", parsed.run_id);
	}
	node_handle_split(parsed.host, &hosts);
	if (rank < 0 || hosts.n == 1)
		rank = 0;
	if ((size_t)rank >= hosts.n)
		return err_set(
			err, E_USAGE, "%s has the ranks 0 to %zu", parsed.run_id, hosts.n - 1);
	*ret = node_handle_text(hosts.v[rank], parsed.run_id, parsed.attempt);
	return 0;
}

/* How others reach the host: what the configuration connects to. */
static const char *gang_address(const struct node_host *host)
{
	const char *name = host->ssh ? ssh_hostname(host->ssh) : NULL;
	const char *at = strrchr(host->name, '@');

	return name ? name : at ? at + 1 : host->name;
}

/* roles: as of a record (roles.h). */
static void gang_set_roles(struct gang *gang, const struct json *roles)
{
	const char *ends_with = json_get_str(roles, "ends_with");
	int first = 0, n = 0;

	strv_done(&gang->ranks_called);
	for (size_t i = 0; i < gang->hosts.n; i++) {
		AUTO_FREE char *name = roles_rank_text(roles, (int)i);
		strv_add(&gang->ranks_called, name);
	}
	if (!ends_with || roles_find(roles, ends_with, &first, &n, NULL) < 0 ||
		(size_t)(first + n) > gang->hosts.n)
		return;
	gang->ends_first = (size_t)first;
	gang->ends_n = (size_t)n;
}

static void gang_forget_rank(struct gang *gang, size_t i)
{
	gang->ranks[i] = (struct gang_rank){.host = gang->hosts.v[i],
		.name = gang->ranks_called.n ? gang->ranks_called.v[i] : NULL};
}

int gang_open(struct target *target, const char *handle, bool may_lack, struct gang *gang,
	struct err *err)
{
	gang->node = target_node_of(target);
	gang->settle_ms = -1;
	int r = node_handle_parse(handle, &gang->handle, err);
	if (r < 0)
		return r;
	node_handle_split(gang->handle.host, &gang->hosts);
	strv_addf(&gang->names, "%s/%d", gang->handle.run_id, gang->handle.attempt);
	gang->places = mem_alloc(gang->hosts.n, sizeof(*gang->places));
	gang->ranks = mem_alloc(gang->hosts.n, sizeof(*gang->ranks));
	gang->steps = mem_alloc(gang->hosts.n, sizeof(*gang->steps));
	for (size_t i = 0; r == 0 && i < gang->hosts.n; i++) {
		gang->places[i] = (struct gang_place){.gang = gang};
		gang_forget_rank(gang, i);
		int opened = node_open(gang->node->session, gang->hosts.v[i], gang->node->root,
			&gang->places[i].host, may_lack ? &gang->places[i].error : err);
		r = may_lack ? 0 : opened;
	}
	return r;
}

static void forget_responses(struct gang *gang)
{
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		node_cancel(place->requested);
		place->requested = NULL;
		node_attempts_done(&place->found);
		if (place->host)
			err_done(&place->error);
		place->is_answered = false;
	}
	gang->n_open = 0;
}

static void forget_ranks(struct gang *gang)
{
	for (size_t i = 0; i < gang->hosts.n; i++) {
		target_status_done(&gang->ranks[i].status);
		gang_forget_rank(gang, i);
	}
}

void gang_close(struct gang *gang)
{
	if (gang->node)
		loop_remove_timer(gang->node->target.loop, gang->timer);
	if (gang->places) {
		forget_responses(gang);
		forget_ranks(gang);
	}
	for (size_t i = 0; gang->places && i < gang->hosts.n; i++)
		err_done(&gang->places[i].error);
	node_handle_done(&gang->handle);
	strv_done(&gang->hosts);
	strv_done(&gang->names);
	strv_done(&gang->ranks_called);
	free(gang->places);
	free(gang->ranks);
	free(gang->steps);
	*gang = (struct gang){0};
}

static int gang_on_time(void *ctx, struct err *err UNUSED)
{
	struct gang *gang = ctx;

	gang->timer = NULL;
	gang->late(gang);
	return 0;
}

void gang_set_timer(struct gang *gang, int64_t at_ms, void (*late)(struct gang *gang))
{
	struct loop *loop = gang->node->target.loop;

	loop_remove_timer(loop, gang->timer);
	gang->late = late;
	gang->timer = late ? loop_add_timer(loop, at_ms, gang_on_time, gang) : NULL;
}

bool gang_is_submitting(const struct gang *gang)
{
	AUTO_FREE char *run_dir = dirs_run(&gang->node->session->dirs, gang->handle.run_id);
	AUTO_FREE char *lock = fs_join(run_dir, RUN_SUBMIT_LOCK);

	return fs_is_locked(lock);
}

static void gang_read_local(struct gang *gang)
{
	const struct dirs *dirs = &gang->node->session->dirs;
	AUTO_FREE char *dir = dirs_attempt(dirs, gang->handle.run_id, gang->handle.attempt);
	AUTO_FREE char *run_dir = dirs_run(dirs, gang->handle.run_id);
	AUTO_FREE char *accepted = fs_join(dir, ATTEMPT_ACCEPTED);

	gang->view = (struct gang_view){
		.is_ours = access(run_dir, F_OK) == 0,
		.was_accepted = access(accepted, F_OK) == 0,
		.attempt = gang->handle.attempt,
		.now_ms = clock_wall_ms(),
	};
}

static void gang_drop_work(struct target_work *work)
{
	struct gang_work *own = (struct gang_work *)work;

	gang_close(&own->gang);
	target_status_done(&own->found);
	err_done(&own->error);
	free(own);
}

int gang_begin(struct target *target, const char *handle, bool may_lack, struct target_call *call,
	struct gang_work **ret, struct err *err)
{
	struct gang_work *work = mem_alloc(1, sizeof(*work));

	*work = (struct gang_work){.work = {gang_drop_work}, .call = call};
	int r = gang_open(target, handle, may_lack, &work->gang, err);
	if (r < 0) {
		gang_drop_work(&work->work);
		return r;
	}
	target_call_begin(call, &work->work);
	gang_read_local(&work->gang);
	*ret = work;
	return 0;
}

/*
 * Queries
 */

static int target_gang_on_response(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct gang_place *place = ctx;
	struct gang *gang = place->gang;

	place->requested = NULL;
	place->is_answered = status == 0;
	if (status < 0) {
		node_explain(place->host, error);
		err_move(&place->error, error);
	}
	if (--gang->n_open == 0 || (gang->is_enough && gang->is_enough(place))) {
		gang->done(gang);
	} else if (place->is_answered && gang->settle_ms >= 0) {
		gang_set_timer(gang, clock_ms() + gang->settle_ms, gang->done);
		gang->settle_ms = -1;
	}
	return 0;
}

/* Asks all for their attempts. */
static void gang_query(struct gang *gang, void (*done)(struct gang *gang))
{
	forget_responses(gang);
	gang->done = done;
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		gang->n_open++;
		place->requested = node_state(place->host->node, &gang->names, &place->found,
			target_gang_on_response, place);
	}
}

static bool says(const struct node_attempt *attempt, const char *key)
{
	return str_eq(node_attempt_get(attempt, key), "1");
}

/* A rank whose host has not responded may still be running. */
static void take_one(const struct gang_place *place, struct gang_rank *rank)
{
	const struct node_attempt *attempt = place->found.n ? &place->found.v[0] : NULL;

	if (!place->is_answered) {
		rank->status.state = RUN_UNKNOWN;
		return;
	}
	rank->is_absent = !attempt || str_eq(attempt->state, "absent");
	if (rank->is_absent) {
		const struct gang *gang = place->gang;
		rank->status.text = node_machine_other(&gang->node->session->dirs,
			gang->handle.run_id, place->host->name, node_facts(place->host->node));
		rank->is_absent = !rank->status.text;
		rank->status.state = rank->is_absent ? rank->status.state : RUN_UNKNOWN;
		return;
	}
	rank->is_held = says(attempt, "held");
	rank->is_going = says(attempt, "go");
	target_node_status(place->host->node, attempt, &rank->status);
}

/* The answers as ranks of gang_evaluate. Whether all have answered. */
static bool gang_take(struct gang *gang)
{
	bool all = true;

	/* Each host knows the roles of all. */
	for (size_t i = 0; i < gang->hosts.n && !gang->ranks_called.n; i++) {
		const struct gang_place *place = &gang->places[i];
		const char *text = place->is_answered && place->found.n
					   ? node_attempt_get(&place->found.v[0], "roles")
					   : NULL;
		AUTO_JSON struct json *roles = NULL;

		if (text &&
			json_parse(text, strlen(text), ROLES_TEXT_MAX, "roles", &roles, NULL) == 0)
			gang_set_roles(gang, roles);
	}
	forget_ranks(gang);
	for (size_t i = 0; i < gang->hosts.n; i++) {
		take_one(&gang->places[i], &gang->ranks[i]);
		all &= gang->places[i].is_answered;
	}
	return all;
}

struct err *gang_failed(struct gang *gang)
{
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		if (place->requested && !err_is_set(&place->error))
			err_set(&place->error, E_TARGET_SILENT, "%s did not answer in time",
				place->host->name);
		if (err_is_set(&place->error))
			return &place->error;
	}
	return NULL;
}

/*
 * Requests
 */

static struct node_call *gang_request(struct gang_place *place, const char *verb)
{
	const struct node_handle *handle = &place->gang->handle;
	struct node *node = place->host->node;
	const char *run = handle->run_id;
	int attempt = handle->attempt;

	if (str_eq(verb, "go"))
		return node_go(node, run, attempt, target_gang_on_response, place);
	if (str_eq(verb, "withdraw"))
		return node_withdraw(
			node, run, attempt, &place->withdrawn, target_gang_on_response, place);
	if (str_eq(verb, "stop"))
		return node_stop(node, run, attempt, target_gang_on_response, place);
	if (str_starts(verb, "forget"))
		return node_forget(
			node, run, attempt, str_ends(verb, "all"), target_gang_on_response, place);
	if (str_eq(verb, "state"))
		return node_state_as(node, run, attempt, place->host->name, &place->found,
			target_gang_on_response, place);
	return node_stop_for(node, run, attempt, verb, target_gang_on_response, place);
}

void gang_tell(struct gang *gang, const char *verb, size_t first, size_t end,
	void (*done)(struct gang *gang))
{
	forget_responses(gang);
	gang->done = done;
	for (size_t i = first; i < end; i++) {
		if (!gang->places[i].host)
			continue;
		gang->n_open++;
		gang->places[i].requested = gang_request(&gang->places[i], verb);
	}
	if (gang->n_open == 0)
		gang_set_timer(gang, 0, done);
}

static void gang_broadcast(struct gang *gang, const char *verb, void (*done)(struct gang *gang))
{
	gang_tell(gang, verb, 0, gang->hosts.n, done);
}

/* Takes the steps; whether there was one: then done is called. */
static bool gang_take_steps(struct gang *gang, void (*done)(struct gang *gang))
{
	static const char *const verbs[] = {
		[GANG_GO] = "go", [GANG_DROP] = "drop", [GANG_END] = "peer", [GANG_OVER] = "role"};

	gang->done = done;
	gang->n_open = 0;
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		node_cancel(place->requested);
		place->requested = NULL;
		if (gang->steps[i] == GANG_NOTHING || !place->is_answered)
			continue;
		gang->n_open++;
		place->requested = gang_request(place, verbs[gang->steps[i]]);
	}
	return gang->n_open > 0;
}

/*
 * How a run of several hosts stands, and what is requested of all of them.
 */

enum { SETTLE_MS = 700 };

/*
 * State
 */

static void end_polling(struct gang_work *polling)
{
	if (!err_is_set(&polling->error)) {
		*polling->ret = polling->found;
		polling->found = (struct target_status){0};
	}
	target_call_end_as(polling->call, &polling->error);
}

/* The outcome of the steps shows at the next poll. A final state is an error until all hosts have
 * been told of it: a run that has ended is not polled again. */
static void end_steps(struct gang *gang)
{
	struct gang_work *polling = gang_work_of(gang);
	const struct err *failed = gang_failed(gang);

	if (failed && run_state_is_final(polling->found.state) && !err_is_set(&polling->error))
		err_copy(&polling->error, failed);
	end_polling(polling);
}

static void target_gang_evaluate(struct gang *gang)
{
	struct gang_work *polling = gang_work_of(gang);
	bool all = gang_take(gang);
	struct err *failed = gang_failed(gang);

	if (failed)
		err_copy(&polling->error, failed);
	/* Whether it has begun may be known only to one that has not answered. */
	if (!all && !gang->view.was_accepted && !gang_is_going(gang->ranks, gang->hosts.n)) {
		end_polling(polling);
		return;
	}
	gang->view.ends_first = gang->ends_first;
	gang->view.ends_n = gang->ends_n;
	gang_evaluate(gang->ranks, gang->hosts.n, &gang->view, &polling->found, gang->steps);
	if (!gang_take_steps(gang, end_steps))
		end_polling(polling);
}

/* The others are not kept waiting by one that is silent. */
static void target_gang_on_settle(struct gang *gang)
{
	struct gang_work *polling = gang_work_of(gang);

	gang_set_timer(gang, polling->call->deadline_ms, end_steps);
	if (!polling->found.ranks)
		target_gang_evaluate(gang);
}

int target_gang_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	struct gang_work *polling;

	int r = gang_begin(target, handle, false, call, &polling, err);
	if (r < 0)
		return r;
	polling->ret = ret;
	polling->gang.view.is_submitting = gang_is_submitting(&polling->gang);
	if (call->deadline_ms)
		gang_set_timer(
			&polling->gang, call->deadline_ms - SETTLE_MS, target_gang_on_settle);
	gang_query(&polling->gang, target_gang_evaluate);
	return 0;
}

/*
 * Requests to all hosts
 */

/* Where the attempt never came to there is nothing to be stopped, as long as somebody heard it. */
static bool was_heard(const struct gang *gang)
{
	bool heard = false;

	for (size_t i = 0; i < gang->hosts.n; i++) {
		const struct gang_place *place = &gang->places[i];
		heard |= place->is_answered;
		if (!place->is_answered && place->error.id != E_RUN_NOT_FOUND)
			return false;
	}
	return heard;
}

static void end_broadcast(struct gang *gang)
{
	const struct gang_work *broadcast = gang_work_of(gang);
	bool is_done = broadcast->is_stop && was_heard(gang);

	target_call_end_as(broadcast->call, is_done ? NULL : gang_failed(gang));
}

int target_gang_broadcast(struct target *target, const char *handle, const char *verb,
	struct target_call *call, struct err *err)
{
	struct gang_work *broadcast;

	int r = gang_begin(target, handle, false, call, &broadcast, err);
	if (r < 0)
		return r;
	broadcast->is_stop = str_eq(verb, "stop");
	if (call->deadline_ms)
		gang_set_timer(&broadcast->gang, call->deadline_ms, end_broadcast);
	gang_broadcast(&broadcast->gang, verb, end_broadcast);
	return 0;
}

/*
 * Taking back: the first rank decides for all. It is told to go before any other, and they are told
 * when it has answered: when it never goes, none does.
 */

/* A host may be another machine by now, which knows nothing of the rank. */
static void gang_check_machines(struct gang *gang)
{
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		AUTO_FREE char *other = NULL;

		if (!place->is_answered)
			continue;
		other = node_machine_other(&gang->node->session->dirs, gang->handle.run_id,
			place->host->name, node_facts(place->host->node));
		if (other)
			err_set(&place->error, E_TARGET_SILENT, "%s", other);
	}
}

/* All that were accepted once had begun. */
static bool gang_is_withdrawn(const struct gang_place *place)
{
	return place->withdrawn != NODE_HAS_BEGUN && !place->gang->view.was_accepted;
}

static void end_retreat(struct gang *gang)
{
	const struct gang_work *retreat = gang_work_of(gang);
	bool is_taken = true;

	gang_check_machines(gang);
	struct err *failed = gang_failed(gang);
	for (size_t i = 0; i < gang->hosts.n; i++)
		is_taken &= gang_is_withdrawn(&gang->places[i]);
	if (!failed)
		*retreat->ret_taken = is_taken;
	target_call_end_as(retreat->call, failed);
}

static void on_first_retreated(struct gang *gang)
{
	bool is_taken = gang_is_withdrawn(&gang->places[0]);

	gang_check_machines(gang);
	if (is_taken && !err_is_set(&gang->places[0].error))
		gang_tell(gang, "withdraw", 1, gang->hosts.n, end_retreat);
	else
		end_retreat(gang);
}

int target_gang_withdraw(struct target *target, const char *handle, bool *ret_taken,
	struct target_call *call, struct err *err)
{
	struct gang_work *retreat;

	int r = gang_begin(target, handle, false, call, &retreat, err);
	if (r < 0)
		return r;
	retreat->ret_taken = ret_taken;
	if (call->deadline_ms)
		gang_set_timer(&retreat->gang, call->deadline_ms, end_retreat);
	gang_tell(&retreat->gang, "withdraw", 0, 1, on_first_retreated);
	return 0;
}

/*
 * The results of several hosts, one after the other, below rank-N.
 */

struct fetching {
	struct target_work work;
	struct target_call inner;
	struct target *target;
	struct target_call *call;
	struct fetch_sink *sink;
	char *handle;
	int rank, n;
	bool is_open;
};

static void target_gang_drop_fetching(struct target_work *work)
{
	struct fetching *fetching = (struct fetching *)work;

	if (fetching->is_open)
		target_call_cancel(&fetching->inner);
	free(fetching->handle);
	free(fetching);
}

static int begin_rank(struct fetching *fetching, struct err *err);

static void on_rank(struct target_call *call, int status, struct err *err)
{
	struct fetching *fetching = CONTAINER_OF(call, struct fetching, inner);

	fetching->is_open = false;
	if (status == 0 && ++fetching->rank < fetching->n) {
		status = begin_rank(fetching, err);
		if (status == 0)
			return;
	}
	target_call_end(fetching->call, status, err);
}

static int begin_rank(struct fetching *fetching, struct err *err)
{
	AUTO_FREE char *one = NULL, *prefix = mem_printf("rank-%d/", fetching->rank);

	fetching->inner = (struct target_call){.done = on_rank};
	int r = node_handle_rank(fetching->handle, fetching->rank, &one, err);
	if (r == 0)
		r = node_fetch_rank(
			fetching->target, one, prefix, fetching->sink, &fetching->inner, err);
	fetching->is_open = r == 0;
	return r;
}

int target_gang_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err)
{
	struct fetching *fetching = mem_alloc(1, sizeof(*fetching));

	*fetching = (struct fetching){.work = {target_gang_drop_fetching},
		.target = target,
		.call = call,
		.sink = sink,
		.handle = mem_strdup(handle),
		.n = 1};
	for (const char *s = handle; *s; s++)
		fetching->n += *s == ',';
	int r = begin_rank(fetching, err);
	if (r < 0)
		target_gang_drop_fetching(&fetching->work);
	else
		target_call_begin(call, &fetching->work);
	return r;
}

/*
 * The output of several hosts at once, line by line. A place in it is the offset of each rank, by
 * rank, with commas. While it is followed, the run is polled: its ranks end with each other.
 */

enum {
	FOLLOW_TIMEOUT_MS = 24 * 60 * 60 * 1000,
	TIMEOUT_MS = 20000,
	POLL_MS = 10000,
	POLL_SOON_MS = 1000, /* when one has ended */
};

struct reading;
struct source {
	struct reading *reading;
	struct node_host *host;
	struct node_call *requested;
	int rank;
	struct rank_line line;
	uint64_t offset; /* behind what was handed over */
	bool has_begun;  /* offset is known */
};

struct reading {
	struct target_work work;
	struct target_node *node;
	struct target_call *call, poll;
	struct target_log_request request;
	char *token, *handle;
	struct node_handle parsed;
	struct strv hosts;
	struct source *sources;
	size_t n, n_open;
	struct loop_timer *flush, *timer;
	struct target_status status;
	struct err error; /* of a rank; the others are read to their ends */
	bool is_polling;
};

static void target_gang_drop_reading(struct target_work *work)
{
	struct reading *reading = (struct reading *)work;
	struct loop *loop = reading->node->target.loop;

	loop_remove_timer(loop, reading->flush);
	loop_remove_timer(loop, reading->timer);
	if (reading->is_polling)
		target_call_cancel(&reading->poll);
	target_status_done(&reading->status);
	for (size_t i = 0; i < reading->n; i++) {
		node_cancel(reading->sources[i].requested);
		rank_line_done(&reading->sources[i].line);
	}
	free(reading->sources);
	free(reading->handle);
	node_handle_done(&reading->parsed);
	strv_done(&reading->hosts);
	err_done(&reading->error);
	free(reading);
}

/*
 * Lines
 */

static void keep_token(struct reading *reading)
{
	char text[TARGET_TOKEN_SIZE] = "";
	size_t len = 0;

	for (size_t i = 0; i < reading->n; i++) {
		int n = snprintf(text + len, sizeof(text) - len, "%s%" PRIu64, i ? "," : "",
			reading->sources[i].offset);
		if (n < 0 || (size_t)n >= sizeof(text) - len)
			return;
		len += (size_t)n;
	}
	memcpy(reading->token, text, len + 1);
}

static int target_gang_hand_over(
	void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct source *source = ctx;
	struct reading *reading = source->reading;
	const struct target_log_events *events = &reading->request.events;
	int r = 0;

	if (events->data && time_ms >= reading->request.since_ms)
		r = events->data(events->ctx, source->rank, data, len, time_ms, err);
	if (r < 0)
		return r;
	source->offset += len;
	keep_token(reading);
	return 0;
}

static int target_gang_on_data(
	void *ctx, uint64_t offset, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct source *source = ctx;

	if (!source->has_begun)
		source->offset = offset;
	source->has_begun = true;
	if (source->reading->n > 1)
		return rank_line_add(&source->line, data, len, time_ms, err);
	return len ? target_gang_hand_over(source, data, len, time_ms, err) : 0;
}

static int on_flush(void *ctx, struct err *err)
{
	struct reading *reading = ctx;
	int r = 0;

	for (size_t i = 0; r == 0 && i < reading->n; i++)
		r = rank_line_flush_late(&reading->sources[i].line, err);
	reading->flush = loop_add_timer(
		reading->node->target.loop, clock_ms() + RANK_LINE_TURN_MS, on_flush, reading);
	return r;
}

static void target_gang_on_notice(void *ctx, const char *text)
{
	const struct source *source = ctx;
	const struct target_log_events *events = &source->reading->request.events;

	if (events->notice)
		events->notice(events->ctx, text);
}

/*
 * The state of the run meanwhile
 */

static void target_gang_poll_after(struct reading *reading, int64_t ms);

static void target_gang_on_polled(struct target_call *call, int status UNUSED, struct err *err)
{
	struct reading *reading = CONTAINER_OF(call, struct reading, poll);

	err_clear(err);
	reading->is_polling = false;
	target_gang_poll_after(reading, reading->n_open < reading->n || reading->status.cancelling
						? POLL_SOON_MS
						: POLL_MS);
}

static int target_gang_on_poll_timer(void *ctx, struct err *err UNUSED)
{
	struct reading *reading = ctx;
	AUTO_ERR struct err error = {0};

	reading->timer = NULL;
	target_status_done(&reading->status);
	reading->status = (struct target_status){0};
	reading->poll = (struct target_call){
		.deadline_ms = clock_ms() + POLL_MS, .done = target_gang_on_polled};
	reading->is_polling = target_gang_state(&reading->node->target, reading->handle,
				      &reading->status, &reading->poll, &error) == 0;
	return 0;
}

static void target_gang_poll_after(struct reading *reading, int64_t ms)
{
	struct loop *loop = reading->node->target.loop;

	if (!reading->request.follow || reading->is_polling)
		return;
	loop_remove_timer(loop, reading->timer);
	reading->timer = loop_add_timer(loop, clock_ms() + ms, target_gang_on_poll_timer, reading);
}

/*
 * All of them
 */

static int target_gang_on_end(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct source *source = ctx;
	struct reading *reading = source->reading;
	source->requested = NULL;
	if (status == 0)
		status = rank_line_flush(&source->line, error);
	node_explain(source->host, error);
	if (status < 0 && !err_is_set(&reading->error))
		err_move(&reading->error, error);
	if (--reading->n_open > 0) {
		target_gang_poll_after(reading, 0);
		return 0;
	}
	target_call_end_as(reading->call, &reading->error);
	return 0;
}

static void begin_source(struct source *source)
{
	struct reading *reading = source->reading;
	const struct target_log_request *request = &reading->request;
	const struct node_log_request wanted = {
		.run = reading->parsed.run_id,
		.attempt = reading->parsed.attempt,
		.offset = source->offset,
		.tail_lines = request->token ? -1 : request->tail_lines,
		.follow = request->follow,
		.timeout_ms = request->follow ? FOLLOW_TIMEOUT_MS : TIMEOUT_MS,
		.events = {.data = target_gang_on_data,
			.notice = target_gang_on_notice,
			.ctx = source},
	};

	reading->n_open++;
	source->requested = node_log(source->host->node, &wanted, target_gang_on_end, source);
}

static int add_source(struct reading *reading, int rank, struct err *err)
{
	struct source *source = &reading->sources[reading->n];

	*source = (struct source){.reading = reading, .rank = rank};
	rank_line_init(&source->line, target_gang_hand_over, source);
	reading->n++;
	return node_open(reading->node->session, reading->hosts.v[rank], reading->node->root,
		&source->host, err);
}

/* The token of one rank is like that of a run with one host. */
static int target_gang_parse_token(struct reading *reading, const char *token, struct err *err)
{
	AUTO_STRV struct strv offsets = {0};
	int r = 0;

	node_handle_split(token, &offsets);
	if (offsets.n != reading->n)
		return err_set(err, E_USAGE, "the place in the log is of another number of ranks");
	for (size_t i = 0; r == 0 && i < offsets.n; i++) {
		int64_t offset = 0;
		r = str_to_int(offsets.v[i], 0, INT64_MAX, "the place in the log", &offset, err);
		reading->sources[i].offset = (uint64_t)offset;
		reading->sources[i].has_begun = true;
	}
	return r;
}

static int open_sources(struct reading *reading, struct err *err)
{
	int wanted = reading->request.rank, r = 0;

	node_handle_split(reading->parsed.host, &reading->hosts);
	if (wanted >= 0 && (size_t)wanted >= reading->hosts.n)
		return err_set(err, E_USAGE, "%s has the ranks 0 to %zu", reading->parsed.run_id,
			reading->hosts.n - 1);
	reading->sources = mem_alloc(reading->hosts.n, sizeof(*reading->sources));
	if (wanted >= 0)
		r = add_source(reading, wanted, err);
	for (size_t i = 0; wanted < 0 && r == 0 && i < reading->hosts.n; i++)
		r = add_source(reading, (int)i, err);
	if (r == 0 && reading->request.token)
		r = target_gang_parse_token(reading, reading->request.token, err);
	return r;
}

int target_gang_logs(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err)
{
	struct reading *reading = mem_alloc(1, sizeof(*reading));

	*reading = (struct reading){.work = {target_gang_drop_reading},
		.node = target_node_of(target),
		.call = call,
		.request = *request,
		.token = token,
		.handle = mem_strdup(handle)};
	int r = node_handle_parse(handle, &reading->parsed, err);
	if (r == 0)
		r = open_sources(reading, err);
	if (r < 0) {
		target_gang_drop_reading(&reading->work);
		return r;
	}
	target_call_begin(call, &reading->work);
	for (size_t i = 0; i < reading->n; i++)
		begin_source(&reading->sources[i]);
	if (reading->n > 1)
		reading->flush = loop_add_timer(
			target->loop, clock_ms() + RANK_LINE_TURN_MS, on_flush, reading);
	target_gang_poll_after(reading, POLL_MS);
	return 0;
}

/*
 * Starting a run of several hosts: each gets its rank, which is made ready and held there with its
 * GPUs; then all are told to go. What cannot be ready takes all others back.
 */

enum {
	START_POLL_MS = 200,
	QUEUE_MS = 8000, /* somebody else has the GPUs by now */
	PREPARE_MS = 10 * 60 * 1000,
	SENT_MS = 30000, /* how long others are waited for that would be taken back */
	DROP_MS = 10000,
};

struct starting;
struct rank_start {
	struct target_call call; /* first member */
	struct starting *starting;
	struct target_job job;
	struct node_rank rank;
	char *handle;
	bool is_open;
	int64_t queued_ms; /* since when it waits for GPUs; 0: it does not */
};

struct starting {
	struct target_work work;
	struct gang gang;
	struct target_call *call;
	const struct target_job *job;
	struct strv addresses;
	struct rank_start *starts; /* as many as hosts */
	size_t n_open;
	int64_t sent_ms;  /* when all had been sent */
	struct err error; /* why all are taken back */
};

static struct starting *starting_of(struct gang *gang)
{
	return CONTAINER_OF(gang, struct starting, gang);
}

static void drop_starts(struct starting *starting)
{
	for (size_t i = 0; starting->starts && i < starting->gang.hosts.n; i++)
		if (starting->starts[i].is_open) {
			starting->starts[i].is_open = false;
			target_call_cancel(&starting->starts[i].call);
		}
	starting->n_open = 0;
}

static void target_gang_drop_start(struct target_work *work)
{
	struct starting *starting = (struct starting *)work;

	drop_starts(starting);
	for (size_t i = 0; starting->starts && i < starting->gang.hosts.n; i++)
		free(starting->starts[i].handle);
	free(starting->starts);
	strv_done(&starting->addresses);
	gang_close(&starting->gang);
	err_done(&starting->error);
	free(starting);
}

static void target_gang_end(struct gang *gang)
{
	struct starting *starting = starting_of(gang);

	target_call_end_as(starting->call, &starting->error);
}

/*
 * Taking back
 */

/* The error is set. */
static void target_gang_take_back(struct gang *gang)
{
	drop_starts(starting_of(gang));
	gang_set_timer(gang, clock_ms() + DROP_MS, target_gang_end);
	gang_broadcast(gang, "drop", target_gang_end);
}

/*
 * Going
 */

static void target_gang_on_gone(struct gang *gang)
{
	struct starting *starting = starting_of(gang);
	struct err *failed = gang_failed(gang);

	/* Some may have begun: how that goes on is told by its state. */
	if (failed)
		err_move(&starting->error, failed);
	else
		node_note_accepted(gang->node, &gang->handle);
	target_gang_end(gang);
}

static void target_gang_on_first_gone(struct gang *gang)
{
	if (gang_failed(gang))
		target_gang_on_gone(gang);
	else
		gang_tell(gang, "go", 1, gang->hosts.n, target_gang_on_gone);
}

/* The first host alone begins of a run that may be taken back: that one is asked about all. */
static void go(struct starting *starting)
{
	const struct run *run = starting->job->run;

	gang_set_timer(&starting->gang, 0, NULL);
	if (run && json_get(run->doc, RUN_PLACES))
		gang_tell(&starting->gang, "go", 0, 1, target_gang_on_first_gone);
	else
		gang_broadcast(&starting->gang, "go", target_gang_on_gone);
}

/*
 * Getting ready
 */

static int fail_rank(struct starting *starting, size_t i, enum err_id id, const char *why)
{
	const struct gang_rank *rank = &starting->gang.ranks[i];
	AUTO_FREE char *name = gang_rank_text(i, rank);

	err_set(&starting->error, id, "%s cannot take %s: %s", rank->host, name, why);
	if (id == E_NODE_BUSY)
		err_hint(&starting->error, "dlrun targets %s", starting->gang.node->target.name);
	return -1;
}

static bool is_late(struct rank_start *start, bool is_queued)
{
	if (!is_queued)
		start->queued_ms = 0;
	else if (!start->queued_ms)
		start->queued_ms = clock_ms();
	return is_queued && clock_ms() - start->queued_ms > QUEUE_MS;
}

/* 1: it is ready; 0: not yet; < 0: it never will, the error is set. */
static int check_rank(struct starting *starting, size_t i)
{
	const struct gang_rank *rank = &starting->gang.ranks[i];
	const struct target_status *status = &rank->status;
	const char *text = str_empty(status->text) ? "it has ended" : status->text;

	if (rank->is_absent)
		return fail_rank(starting, i, E_NODE_FAILED, "the node does not know of it");
	if (run_state_is_final(status->state))
		return fail_rank(starting, i, E_NODE_FAILED, text);
	if (status->cancelling)
		return fail_rank(starting, i, E_RUN_ENDED, "it was cancelled");
	if (is_late(&starting->starts[i], status->state == RUN_QUEUED))
		return fail_rank(starting, i, E_NODE_BUSY, text);
	if (!rank->is_held && clock_ms() - starting->sent_ms > PREPARE_MS)
		return fail_rank(starting, i, E_NODE_BUSY, "it was not ready in time");
	return rank->is_held;
}

static void target_gang_poll_start(struct gang *gang);

static void target_gang_on_start_polled(struct gang *gang)
{
	struct starting *starting = starting_of(gang);
	bool all = gang_take(gang);
	struct err *failed = gang_failed(gang);
	size_t n_ready = 0;

	if (!all && failed) {
		err_move(&starting->error, failed);
		target_gang_take_back(gang);
		return;
	}
	for (size_t i = 0; i < gang->hosts.n; i++) {
		int r = check_rank(starting, i);
		if (r < 0) {
			target_gang_take_back(gang);
			return;
		}
		n_ready += (size_t)r;
	}
	if (n_ready == gang->hosts.n)
		go(starting);
	else
		gang_set_timer(gang, clock_ms() + START_POLL_MS, target_gang_poll_start);
}

static void target_gang_poll_start(struct gang *gang)
{
	gang_query(gang, target_gang_on_start_polled);
}

/*
 * Sending
 */

/* A submit that was still on its way could not be taken back yet. */
static void on_sent(struct target_call *call, int status, struct err *err)
{
	struct rank_start *start = (struct rank_start *)call;
	struct starting *starting = start->starting;

	start->is_open = false;
	starting->n_open--;
	if (status < 0 && !err_is_set(&starting->error)) {
		err_move(&starting->error, err);
		gang_set_timer(&starting->gang, clock_ms() + SENT_MS, target_gang_take_back);
	}
	if (starting->n_open > 0)
		return;
	starting->sent_ms = clock_ms();
	if (err_is_set(&starting->error))
		target_gang_take_back(&starting->gang);
	else
		gang_query(&starting->gang, target_gang_on_start_polled);
}

static int send_rank(struct starting *starting, size_t i, struct err *err)
{
	struct rank_start *start = &starting->starts[i];
	struct target *target = &starting->gang.node->target;

	start->job = *starting->job;
	start->handle = node_handle_text(starting->gang.hosts.v[i], starting->gang.handle.run_id,
		starting->gang.handle.attempt);
	start->job.handle = start->handle;
	start->call = (struct target_call){.done = on_sent};
	start->rank = (struct node_rank){
		.rank = (int)i, .addresses = &starting->addresses, .hold_ms = GANG_HOLD_MS};
	start->starting = starting;
	int r = node_submit_rank(target, &start->job, &start->rank, false, &start->call, err);
	start->is_open = r == 0;
	starting->n_open += r == 0;
	return r;
}

static int send_all(struct starting *starting, struct err *err)
{
	int r = 0;

	starting->starts = mem_alloc(starting->gang.hosts.n, sizeof(*starting->starts));
	for (size_t i = 0; i < starting->gang.hosts.n; i++) {
		starting->starts[i] = (struct rank_start){.starting = starting};
		strv_add(&starting->addresses, gang_address(starting->gang.places[i].host));
	}
	for (size_t i = 0; r == 0 && i < starting->gang.hosts.n; i++)
		r = send_rank(starting, i, err);
	return r;
}

/* A host that is away is found before anything is sent; and an attempt that goes already. */
static void gang_submit_on_requested(struct gang *gang)
{
	struct starting *starting = starting_of(gang);
	bool all = gang_take(gang);
	struct err *failed = gang_failed(gang);

	if (!all && failed) {
		err_move(&starting->error, failed);
		target_gang_end(gang);
	} else if (gang_is_going(gang->ranks, gang->hosts.n)) {
		go(starting);
	} else if (send_all(starting, &starting->error) < 0) {
		target_gang_take_back(gang);
	}
}

int target_gang_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err)
{
	struct starting *starting = mem_alloc(1, sizeof(*starting));

	*starting = (struct starting){.work = {target_gang_drop_start}, .call = call, .job = job};
	int r = gang_open(target, job->handle, false, &starting->gang, err);
	if (r < 0) {
		target_gang_drop_start(&starting->work);
		return r;
	}
	if (job->spec->roles.list.n) {
		AUTO_JSON struct json *roles = json_object();
		roles_to_record(&job->spec->roles, roles);
		gang_set_roles(&starting->gang, roles);
	}
	target_call_begin(call, &starting->work);
	gang_query(&starting->gang, gang_submit_on_requested);
	return 0;
}
