/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/target_pool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "targets/ssh/node_open.h"
#include "targets/ssh/target_gang.h"

enum {
	POOL_SETTLE_MS = 1500, /* how long the others are waited for once one has answered */
	POOL_JOIN_MS = 8000,
	POOL_POLL_MS = 1000,
	POOL_EXIT_OURS = 125,
	POOL_NAMED = 4, /* hosts in a sentence */
};

bool node_handle_is_pool(const char *handle)
{
	return strstr(handle, NODE_POOL_BETWEEN) != NULL;
}

void target_pool_set_host(
	const struct node_handle *handle, const char *host, struct target_status *ret)
{
	struct json *hosts = json_array();

	free(ret->handle);
	json_free(ret->where);
	ret->handle = node_handle_text(host, handle->run_id, handle->attempt);
	ret->where = json_object();
	json_add_str(hosts, host);
	json_set(ret->where, "hosts", hosts);
}

/*
 * Requests to all hosts of an attempt
 */

enum pool_verb { POOL_STATE, POOL_CANCEL, POOL_WITHDRAW, POOL_FORGET, POOL_FORGET_ALL };

struct pool;
struct pool_place {
	struct pool *pool;
	struct node_host *host; /* the session's */
	struct node_call *requested;
	struct node_attempts found;
	struct err error;
	bool is_answered;
	enum node_withdrawn withdrawn;
};

struct pool {
	struct target_node *node;
	struct node_handle handle; /* its host: all of them */
	struct strv hosts;
	struct pool_place *places;
	size_t n_open;
	enum pool_verb verb;
	struct loop_timer *timer;
	int64_t settle_ms; /* after the first answer; -1: no limit */
	/* All have answered, or what came is enough. Not from within the call that asked. */
	void (*done)(struct pool *pool);
};

static void pool_close(struct pool *pool)
{
	if (pool->node)
		loop_remove_timer(pool->node->target.loop, pool->timer);
	for (size_t i = 0; pool->places && i < pool->hosts.n; i++) {
		node_cancel(pool->places[i].requested);
		node_attempts_done(&pool->places[i].found);
		err_done(&pool->places[i].error);
	}
	node_handle_done(&pool->handle);
	strv_done(&pool->hosts);
	free(pool->places);
	*pool = (struct pool){0};
}

/* Zeroed before. pool_close accepts one that was not opened. */
static int pool_open(struct target *target, const char *handle, struct pool *pool, struct err *err)
{
	pool->node = target_node_of(target);
	pool->settle_ms = -1;
	int r = node_handle_parse(handle, &pool->handle, err);
	if (r < 0)
		return r;
	node_handle_split(pool->handle.host, &pool->hosts);
	pool->places = mem_alloc(pool->hosts.n + 1, sizeof(*pool->places));
	for (size_t i = 0; i < pool->hosts.n; i++) {
		struct pool_place *place = &pool->places[i];

		*place = (struct pool_place){.pool = pool};
		/* A host whose name is of no use any more does not hide the others. */
		(void)node_open(pool->node->session, pool->hosts.v[i], pool->node->root,
			&place->host, &place->error);
	}
	return 0;
}

static void pool_finish(struct pool *pool)
{
	loop_remove_timer(pool->node->target.loop, pool->timer);
	pool->timer = NULL;
	pool->done(pool);
}

static int pool_on_time(void *ctx, struct err *err UNUSED)
{
	struct pool *pool = ctx;

	pool->timer = NULL;
	pool->done(pool);
	return 0;
}

static void pool_limit(struct pool *pool, int64_t at_ms)
{
	struct loop *loop = pool->node->target.loop;

	loop_remove_timer(loop, pool->timer);
	pool->timer = loop_add_timer(loop, at_ms, pool_on_time, pool);
}

/* The attempt on the host itself; NULL: it is not there, or the host has not answered. */
static const struct node_attempt *pool_attempt(const struct pool_place *place)
{
	const struct node_attempt *attempt = place->found.n ? &place->found.v[0] : NULL;

	return attempt && place->is_answered && !str_eq(attempt->state, "absent") ? attempt : NULL;
}

static bool pool_is_there(const struct pool_place *place)
{
	const struct node_attempt *attempt = pool_attempt(place);

	return attempt && !node_attempt_get(attempt, "pool");
}

static int pool_on_response(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct pool_place *place = ctx;
	struct pool *pool = place->pool;

	place->requested = NULL;
	place->is_answered = status == 0;
	if (status < 0) {
		node_explain(place->host, error);
		err_move(&place->error, error);
	}
	if (--pool->n_open == 0 || (pool->verb == POOL_STATE && pool_is_there(place))) {
		pool_finish(pool);
	} else if (place->is_answered && pool->settle_ms >= 0) {
		pool_limit(pool, clock_ms() + pool->settle_ms);
		pool->settle_ms = -1;
	}
	return 0;
}

static struct node_call *pool_request(struct pool_place *place)
{
	const struct node_handle *handle = &place->pool->handle;
	struct node *node = place->host->node;

	switch (place->pool->verb) {
	case POOL_CANCEL:
		return node_stop(node, handle->run_id, handle->attempt, pool_on_response, place);
	case POOL_WITHDRAW:
		return node_withdraw(node, handle->run_id, handle->attempt, &place->withdrawn,
			pool_on_response, place);
	case POOL_FORGET:
	case POOL_FORGET_ALL:
		return node_forget(node, handle->run_id, handle->attempt,
			place->pool->verb == POOL_FORGET_ALL, pool_on_response, place);
	case POOL_STATE:
		break;
	}
	return node_state_as(node, handle->run_id, handle->attempt, place->host->name,
		&place->found, pool_on_response, place);
}

/* From place `first` on. deadline_ms: clock_ms(); 0: none. */
static void pool_ask(struct pool *pool, size_t first, int64_t deadline_ms)
{
	for (size_t i = first; i < pool->hosts.n; i++) {
		struct pool_place *place = &pool->places[i];

		if (!place->host)
			continue;
		pool->n_open++;
		place->requested = pool_request(place);
	}
	if (pool->n_open == 0)
		pool_limit(pool, 0);
	else if (deadline_ms)
		pool_limit(pool, deadline_ms);
}

static bool pool_was_accepted(const struct pool *pool)
{
	const struct dirs *dirs = &pool->node->session->dirs;
	AUTO_FREE char *dir = dirs_attempt(dirs, pool->handle.run_id, pool->handle.attempt);
	AUTO_FREE char *accepted = fs_join(dir, ATTEMPT_ACCEPTED);

	return access(accepted, F_OK) == 0;
}

/* "gpu1, gpu2 and 3 more"; the caller frees. */
static char *pool_names(const struct strv *hosts)
{
	AUTO_BUF struct buf out = buf_with(64 << 10);
	size_t n = hosts->n > POOL_NAMED + 1 ? POOL_NAMED : hosts->n;

	for (size_t i = 0; i < n; i++)
		buf_addf(&out, "%s%s",
			i == 0                        ? ""
			: i + 1 == n && n == hosts->n ? " and "
						      : ", ",
			hosts->v[i]);
	if (n < hosts->n)
		buf_addf(&out, " and %zu more", hosts->n - n);
	return buf_take(&out);
}

/*
 * State
 */

struct pool_polling {
	struct target_work work;
	struct pool pool;
	struct target_call *call;
	struct target_status *ret;
	bool was_accepted, is_ours; /* read before the hosts are asked */
};

static void pool_drop_polling(struct target_work *work)
{
	struct pool_polling *polling = (struct pool_polling *)work;

	pool_close(&polling->pool);
	free(polling);
}

/* The first error, or of a host that has not answered; NULL: none has failed. */
static struct err *pool_failed(struct pool *pool)
{
	for (size_t i = 0; i < pool->hosts.n; i++) {
		struct pool_place *place = &pool->places[i];

		if (place->requested && !err_is_set(&place->error))
			err_set(&place->error, E_TARGET_SILENT, "%s did not answer in time",
				place->host->name);
		if (err_is_set(&place->error))
			return &place->error;
	}
	return NULL;
}

static void pool_there(struct pool_polling *polling, struct pool_place *place)
{
	const struct node_handle *handle = &polling->pool.handle;
	const struct node_attempt *attempt = pool_attempt(place);
	int64_t next = node_attempt_int(attempt, "next", 0);

	target_node_status(place->host->node, attempt, polling->ret);
	/* An attempt that has not begun may come back to the others, when that host restarts. */
	if (polling->ret->state != RUN_RUNNING && !run_state_is_final(polling->ret->state))
		return;
	target_pool_set_host(handle, place->host->name, polling->ret);
	node_machine_note(&polling->pool.node->session->dirs, handle->run_id, place->host->name,
		node_facts(place->host->node));
	if (polling->ret->state == RUN_FAILED && next > handle->attempt && next < INT32_MAX)
		polling->ret->next_handle =
			node_handle_text(place->host->name, handle->run_id, (int)next);
}

/* An attempt that waits, was taken by a host that says nothing of it yet, or has ended before. */
static void pool_waits(struct pool_polling *polling, const struct pool_place *place)
{
	struct pool *pool = &polling->pool;
	const struct node_attempt *attempt = pool_attempt(place);
	const char *claimed = node_attempt_get(attempt, "claimed");
	struct target_status *ret = polling->ret;
	ptrdiff_t at = str_empty(claimed) ? -1 : strv_find(&pool->hosts, claimed);

	target_node_status(place->host->node, attempt, ret);
	if (run_state_is_final(ret->state))
		return;
	free(ret->text);
	if (!str_empty(claimed)) {
		bool is_silent = at >= 0 && !pool->places[at].is_answered;
		ret->state = is_silent ? RUN_UNKNOWN : RUN_STARTING;
		ret->text = is_silent ? mem_printf("%s has taken it, and does not answer", claimed)
				      : mem_printf("%s has taken it", claimed);
		return;
	}
	AUTO_FREE char *names = pool_names(&pool->hosts);
	const char *text = node_attempt_get(attempt, "text");
	ret->text = mem_printf("waits for the first of %s%s%s", names, str_empty(text) ? "" : ": ",
		text ? text : "");
}

static void pool_absent(struct pool_polling *polling)
{
	const struct dirs *dirs = &polling->pool.node->session->dirs;
	AUTO_FREE char *run_dir = dirs_run(dirs, polling->pool.handle.run_id);
	AUTO_FREE char *lock = fs_join(run_dir, RUN_SUBMIT_LOCK);

	*polling->ret = (struct target_status){.state = RUN_PREPARING};
	if (fs_is_locked(lock))
		return;
	if (polling->was_accepted || !polling->is_ours)
		attempt_set_end(polling->ret, RUN_LOST, POOL_EXIT_OURS, 0, "dlrun", "Lost",
			"its hosts no longer know of it");
	else
		attempt_set_end(polling->ret, RUN_FAILED, POOL_EXIT_OURS, 0, "dlrun", "Interrupted",
			"dlrun was stopped before the run had begun");
	polling->ret->ended_ms = clock_wall_ms();
}

/* The place that tells most: that has the attempt, knows who has it, or lets it wait. */
static struct pool_place *pool_best(struct pool *pool)
{
	struct pool_place *best = NULL;
	int best_rank = 0;

	for (size_t i = 0; i < pool->hosts.n; i++) {
		const struct node_attempt *attempt = pool_attempt(&pool->places[i]);
		int rank = !attempt                                        ? 0
			   : pool_is_there(&pool->places[i])               ? 4
			   : node_attempt_get(attempt, "claimed")          ? 3
			   : !str_empty(node_attempt_get(attempt, "text")) ? 2
									   : 1;

		if (rank > best_rank)
			best = &pool->places[i];
		best_rank = rank > best_rank ? rank : best_rank;
	}
	return best;
}

static void pool_on_states(struct pool *pool)
{
	struct pool_polling *polling = CONTAINER_OF(pool, struct pool_polling, pool);
	struct pool_place *best = pool_best(pool);
	AUTO_ERR struct err error = {0};
	struct err *failed = best ? NULL : pool_failed(pool);
	int r = 0;

	if (failed)
		r = err_move(&error, failed);
	else if (!best)
		pool_absent(polling);
	else if (pool_is_there(best))
		pool_there(polling, best);
	else
		pool_waits(polling, best);
	target_call_end(polling->call, r, &error);
}

static void pool_read_local(struct pool_polling *polling)
{
	const struct dirs *dirs = &polling->pool.node->session->dirs;
	AUTO_FREE char *run_dir = dirs_run(dirs, polling->pool.handle.run_id);

	polling->is_ours = access(run_dir, F_OK) == 0;
	polling->was_accepted = pool_was_accepted(&polling->pool);
}

int target_pool_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	struct pool_polling *polling = mem_alloc(1, sizeof(*polling));

	*polling = (struct pool_polling){.work = {pool_drop_polling}, .call = call, .ret = ret};
	int r = pool_open(target, handle, &polling->pool, err);
	if (r < 0) {
		pool_drop_polling(&polling->work);
		return r;
	}
	target_call_begin(call, &polling->work);
	pool_read_local(polling);
	polling->pool.done = pool_on_states;
	polling->pool.settle_ms = POOL_SETTLE_MS;
	pool_ask(&polling->pool, 0, call->deadline_ms);
	return 0;
}

/*
 * Cancel and forget
 */

struct pool_telling {
	struct target_work work;
	struct pool pool;
	struct target_call *call;
	bool *ret_taken; /* of withdraw */
	bool was_accepted;
};

static void pool_drop_telling(struct target_work *work)
{
	struct pool_telling *telling = (struct pool_telling *)work;

	pool_close(&telling->pool);
	free(telling);
}

/* A host that says "done" has done it: the attempt is there, or is nobody's any more. */
static void pool_on_told(struct pool *pool)
{
	struct pool_telling *telling = CONTAINER_OF(pool, struct pool_telling, pool);
	AUTO_ERR struct err error = {0};
	struct err *failed = pool_failed(pool);
	bool is_done = false;

	for (size_t i = 0; i < pool->hosts.n; i++)
		is_done |= pool->places[i].is_answered;
	target_call_end(telling->call, failed && !is_done ? err_move(&error, failed) : 0, &error);
}

/* Taken back by whoever says so; where nobody has heard of it, by all of them. */
static void pool_on_withdrawn(struct pool *pool)
{
	struct pool_telling *telling = CONTAINER_OF(pool, struct pool_telling, pool);
	AUTO_ERR struct err error = {0};
	struct err *failed = pool_failed(pool);
	bool is_taken = false, has_begun = false;
	int r = 0;

	for (size_t i = 0; i < pool->hosts.n; i++) {
		const struct pool_place *place = &pool->places[i];

		is_taken |= place->is_answered && place->withdrawn == NODE_WITHDRAWN;
		has_begun |= place->is_answered && place->withdrawn == NODE_HAS_BEGUN;
	}
	if (is_taken || has_begun)
		*telling->ret_taken = is_taken;
	else if (failed)
		r = err_move(&error, failed);
	else
		*telling->ret_taken = !telling->was_accepted;
	target_call_end(telling->call, r, &error);
}

/* ret_taken: of POOL_WITHDRAW. */
static int pool_tell(struct target *target, const char *handle, enum pool_verb verb,
	bool *ret_taken, struct target_call *call, struct err *err)
{
	struct pool_telling *telling = mem_alloc(1, sizeof(*telling));

	*telling = (struct pool_telling){
		.work = {pool_drop_telling}, .call = call, .ret_taken = ret_taken};
	int r = pool_open(target, handle, &telling->pool, err);
	if (r < 0) {
		pool_drop_telling(&telling->work);
		return r;
	}
	target_call_begin(call, &telling->work);
	telling->was_accepted = pool_was_accepted(&telling->pool);
	telling->pool.verb = verb;
	telling->pool.done = ret_taken ? pool_on_withdrawn : pool_on_told;
	/* Only the host that has it can say that it has begun. */
	telling->pool.settle_ms = ret_taken ? -1 : POOL_SETTLE_MS;
	pool_ask(&telling->pool, 0, call->deadline_ms);
	return 0;
}

int target_pool_cancel(
	struct target *target, const char *handle, struct target_call *call, struct err *err)
{
	return pool_tell(target, handle, POOL_CANCEL, NULL, call, err);
}

int target_pool_withdraw(struct target *target, const char *handle, bool *ret_taken,
	struct target_call *call, struct err *err)
{
	return pool_tell(target, handle, POOL_WITHDRAW, ret_taken, call, err);
}

int target_pool_forget(struct target *target, const char *handle, bool all,
	struct target_call *call, struct err *err)
{
	return pool_tell(target, handle, all ? POOL_FORGET_ALL : POOL_FORGET, NULL, call, err);
}

/*
 * Submit: the first host gets the ticket; then the others are told of it.
 */

struct pool_submit {
	struct target_work work;
	struct pool pool;
	struct target_call *call, inner;
	struct target_job job;
	char *handle; /* of the first host */
	bool is_open;
};

static void pool_drop_submit(struct target_work *work)
{
	struct pool_submit *submit = (struct pool_submit *)work;

	if (submit->is_open)
		target_call_cancel(&submit->inner);
	pool_close(&submit->pool);
	free(submit->handle);
	free(submit);
}

/* Prints one sentence, and one about each host that has no part in it. */
static void pool_print(struct pool *pool)
{
	const struct session_env *env = &pool->node->session->env;
	AUTO_STRV struct strv joined = {0};

	if (!env->print)
		return;
	for (size_t i = 0; i < pool->hosts.n; i++) {
		struct pool_place *place = &pool->places[i];

		if (i == 0 || pool_attempt(place)) {
			strv_add(&joined, pool->hosts.v[i]);
			continue;
		}
		AUTO_FREE char *text = mem_printf("%s has no part in it: %s", pool->hosts.v[i],
			err_is_set(&place->error) ? place->error.message
			: place->is_answered      ? "it does not see the home of the others"
						  : "it did not answer in time");
		env->print(env->print_ctx, text);
	}
	if (joined.n < 2)
		return;
	AUTO_FREE char *names = pool_names(&joined);
	AUTO_FREE char *text = mem_printf("%s have one home: the first that has its GPUs takes it, "
					  "also while this machine is away",
		names);
	env->print(env->print_ctx, text);
}

static void pool_on_joined(struct pool *pool)
{
	struct pool_submit *submit = CONTAINER_OF(pool, struct pool_submit, pool);

	pool_print(pool);
	target_call_end(submit->call, 0, NULL);
}

static void pool_on_submitted(struct target_call *call, int status, struct err *err)
{
	struct pool_submit *submit = CONTAINER_OF(call, struct pool_submit, inner);

	submit->is_open = false;
	if (status < 0) {
		target_call_end(submit->call, status, err);
		return;
	}
	submit->pool.done = pool_on_joined;
	pool_ask(&submit->pool, 1, clock_ms() + POOL_JOIN_MS);
}

int target_pool_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err)
{
	struct pool_submit *submit = mem_alloc(1, sizeof(*submit));

	*submit = (struct pool_submit){.work = {pool_drop_submit},
		.call = call,
		.inner = {.deadline_ms = call->deadline_ms, .done = pool_on_submitted},
		.job = *job};
	int r = pool_open(target, job->handle, &submit->pool, err);
	if (r == 0) {
		const struct node_handle *handle = &submit->pool.handle;
		submit->handle =
			node_handle_text(submit->pool.hosts.v[0], handle->run_id, handle->attempt);
		submit->job.handle = submit->handle;
		r = node_submit_rank(target, &submit->job, NULL, true, &submit->inner, err);
	}
	if (r < 0) {
		pool_drop_submit(&submit->work);
		return r;
	}
	submit->is_open = true;
	target_call_begin(call, &submit->work);
	return 0;
}

/*
 * The log: of the host that takes it, which is waited for with follow.
 */

struct pool_reading {
	struct target_work work;
	struct target *target;
	struct target_call *call, inner;
	char *handle, *token, *reported;
	struct target_log_request request;
	struct target_status status;
	struct loop_timer *timer;
	bool is_open;
};

static void pool_drop_reading(struct target_work *work)
{
	struct pool_reading *reading = (struct pool_reading *)work;

	if (reading->is_open)
		target_call_cancel(&reading->inner);
	loop_remove_timer(reading->target->loop, reading->timer);
	target_status_done(&reading->status);
	free(reading->reported);
	free(reading->handle);
	free(reading);
}

static void pool_on_read(struct target_call *call, int status, struct err *err)
{
	struct pool_reading *reading = CONTAINER_OF(call, struct pool_reading, inner);

	reading->is_open = false;
	target_call_end(reading->call, status, err);
}

static int pool_read(struct pool_reading *reading, struct err *err)
{
	AUTO_FREE char *handle = mem_strdup(reading->status.handle);

	reading->inner = (struct target_call){
		.deadline_ms = reading->call->deadline_ms, .done = pool_on_read};
	int r = target_node_logs(
		reading->target, handle, &reading->request, reading->token, &reading->inner, err);
	reading->is_open = r == 0;
	return r;
}

static int pool_look(struct pool_reading *reading, struct err *err);

static int pool_on_look(void *ctx, struct err *err UNUSED)
{
	struct pool_reading *reading = ctx;
	AUTO_ERR struct err error = {0};

	reading->timer = NULL;
	int r = pool_look(reading, &error);
	if (r < 0)
		target_call_end(reading->call, r, &error);
	return 0;
}

static void pool_report(struct pool_reading *reading, const char *text)
{
	const struct target_log_events *events = &reading->request.events;

	if (!events->notice || str_empty(text) || str_eq(text, reading->reported))
		return;
	REPLACE(reading->reported, mem_strdup(text));
	AUTO_FREE char *reason = words_reason_now(text);
	events->notice(events->ctx, reason);
}

/* Hosts that do not answer now may do so later. */
static void pool_on_looked(struct target_call *call, int status, struct err *err)
{
	struct pool_reading *reading = CONTAINER_OF(call, struct pool_reading, inner);
	const struct target_status *found = &reading->status;
	AUTO_ERR struct err error = {0};
	int r = status;

	reading->is_open = false;
	if (status == 0 && found->handle) {
		r = pool_read(reading, &error);
		if (r < 0)
			target_call_end(reading->call, r, &error);
		return;
	}
	if (!reading->request.follow || (status == 0 && run_state_is_final(found->state))) {
		target_call_end(reading->call, r, err);
		return;
	}
	pool_report(reading, status < 0 ? err->message : found->text);
	err_clear(err);
	reading->timer = loop_add_timer(
		reading->target->loop, clock_ms() + POOL_POLL_MS, pool_on_look, reading);
}

static int pool_look(struct pool_reading *reading, struct err *err)
{
	target_status_done(&reading->status);
	reading->inner = (struct target_call){
		.deadline_ms = clock_ms() + 2 * POOL_JOIN_MS, .done = pool_on_looked};
	int r = target_pool_state(
		reading->target, reading->handle, &reading->status, &reading->inner, err);
	reading->is_open = r == 0;
	return r;
}

int target_pool_logs(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err)
{
	struct pool_reading *reading = mem_alloc(1, sizeof(*reading));

	*reading = (struct pool_reading){.work = {pool_drop_reading},
		.target = target,
		.call = call,
		.handle = mem_strdup(handle),
		.token = token,
		.request = *request};
	int r = pool_look(reading, err);
	if (r < 0) {
		pool_drop_reading(&reading->work);
		return r;
	}
	target_call_begin(call, &reading->work);
	return 0;
}
