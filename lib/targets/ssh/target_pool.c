/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/target_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
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

/* The attempt on the host itself; NULL: it is not there, or the host has not answered. */
static const struct node_attempt *pool_attempt(const struct gang_place *place)
{
	const struct node_attempt *attempt = place->found.n ? &place->found.v[0] : NULL;

	return attempt && place->is_answered && !str_eq(attempt->state, "absent") ? attempt : NULL;
}

static bool pool_is_there(const struct gang_place *place)
{
	const struct node_attempt *attempt = pool_attempt(place);

	return attempt && !node_attempt_get(attempt, "pool");
}

/* From host `first` on. deadline_ms: clock_ms(); 0: none. */
static void pool_ask(struct gang *pool, const char *verb, size_t first, int64_t deadline_ms,
	void (*done)(struct gang *pool))
{
	if (deadline_ms)
		gang_set_timer(pool, deadline_ms, done);
	gang_tell(pool, verb, first, pool->hosts.n, done);
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

static void pool_there(struct gang_work *polling, struct gang_place *place)
{
	const struct node_handle *handle = &polling->gang.handle;
	const struct node_attempt *attempt = pool_attempt(place);
	int64_t next = node_attempt_int(attempt, "next", 0);

	target_node_status(place->host->node, attempt, polling->ret);
	/* An attempt that has not begun may come back to the others, when that host restarts. */
	if (polling->ret->state != RUN_RUNNING && !run_state_is_final(polling->ret->state))
		return;
	target_pool_set_host(handle, place->host->name, polling->ret);
	node_machine_note(&polling->gang.node->session->dirs, handle->run_id, place->host->name,
		node_facts(place->host->node));
	if (polling->ret->state == RUN_FAILED && next > handle->attempt && next < INT32_MAX)
		polling->ret->next_handle =
			node_handle_text(place->host->name, handle->run_id, (int)next);
}

/* An attempt that waits, was taken by a host that says nothing of it yet, or has ended before. */
static void pool_waits(struct gang_work *polling, const struct gang_place *place)
{
	struct gang *pool = &polling->gang;
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

static void pool_absent(struct gang_work *polling)
{
	*polling->ret = (struct target_status){.state = RUN_PREPARING};
	if (gang_is_submitting(&polling->gang))
		return;
	if (polling->gang.view.was_accepted || !polling->gang.view.is_ours)
		attempt_set_end(polling->ret, RUN_LOST, POOL_EXIT_OURS, 0, "dlrun", "Lost",
			"its hosts no longer know of it");
	else
		attempt_set_end(polling->ret, RUN_FAILED, POOL_EXIT_OURS, 0, "dlrun", "Interrupted",
			"dlrun was stopped before the run had begun");
	polling->ret->ended_ms = clock_wall_ms();
}

/* The place that tells most: that has the attempt, knows who has it, or lets it wait. */
static struct gang_place *pool_best(struct gang *pool)
{
	struct gang_place *best = NULL;
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

static void pool_on_states(struct gang *pool)
{
	struct gang_work *polling = gang_work_of(pool);
	struct gang_place *best = pool_best(pool);
	struct err *failed = best ? NULL : gang_failed(pool);

	if (best && pool_is_there(best))
		pool_there(polling, best);
	else if (best)
		pool_waits(polling, best);
	else if (!failed)
		pool_absent(polling);
	target_call_end_as(polling->call, failed);
}

int target_pool_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	struct gang_work *polling;

	int r = gang_begin(target, handle, true, call, &polling, err);
	if (r < 0)
		return r;
	polling->ret = ret;
	polling->gang.is_enough = pool_is_there;
	polling->gang.settle_ms = POOL_SETTLE_MS;
	pool_ask(&polling->gang, "state", 0, call->deadline_ms, pool_on_states);
	return 0;
}

/*
 * Cancel and forget
 */

/* A host that says "done" has done it: the attempt is there, or is nobody's any more. */
static void pool_on_told(struct gang *pool)
{
	const struct gang_work *telling = gang_work_of(pool);
	struct err *failed = gang_failed(pool);

	for (size_t i = 0; i < pool->hosts.n; i++)
		if (pool->places[i].is_answered)
			failed = NULL;
	target_call_end_as(telling->call, failed);
}

/* Taken back by whoever says so; where nobody has heard of it, by all of them. */
static void pool_on_withdrawn(struct gang *pool)
{
	const struct gang_work *telling = gang_work_of(pool);
	struct err *failed = gang_failed(pool);
	bool is_taken = false, has_begun = false;

	for (size_t i = 0; i < pool->hosts.n; i++) {
		const struct gang_place *place = &pool->places[i];

		is_taken |= place->is_answered && place->withdrawn == NODE_WITHDRAWN;
		has_begun |= place->is_answered && place->withdrawn == NODE_HAS_BEGUN;
	}
	bool is_known = is_taken || has_begun;
	if (is_known || !failed)
		*telling->ret_taken = is_known ? is_taken : !pool->view.was_accepted;
	target_call_end_as(telling->call, is_known ? NULL : failed);
}

int target_pool_tell(struct target *target, const char *handle, const char *verb, bool *ret_taken,
	struct target_call *call, struct err *err)
{
	struct gang_work *telling;

	int r = gang_begin(target, handle, true, call, &telling, err);
	if (r < 0)
		return r;
	telling->ret_taken = ret_taken;
	/* Only the host that has it can say that it has begun. */
	telling->gang.settle_ms = ret_taken ? -1 : POOL_SETTLE_MS;
	pool_ask(&telling->gang, verb, 0, call->deadline_ms,
		ret_taken ? pool_on_withdrawn : pool_on_told);
	return 0;
}

/*
 * Submit: the first host gets the ticket; then the others are told of it.
 */

struct pool_submit {
	struct target_work work;
	struct gang pool;
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
	gang_close(&submit->pool);
	free(submit->handle);
	free(submit);
}

/* Prints one sentence, and one about each host that has no part in it. */
static void pool_print(struct gang *pool)
{
	const struct session_env *env = &pool->node->session->env;
	AUTO_STRV struct strv joined = {0};

	if (!env->print)
		return;
	for (size_t i = 0; i < pool->hosts.n; i++) {
		struct gang_place *place = &pool->places[i];

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

static void pool_on_joined(struct gang *pool)
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
	pool_ask(&submit->pool, "state", 1, clock_ms() + POOL_JOIN_MS, pool_on_joined);
}

int target_pool_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err)
{
	struct pool_submit *submit = mem_alloc(1, sizeof(*submit));

	*submit = (struct pool_submit){.work = {pool_drop_submit},
		.call = call,
		.inner = {.deadline_ms = call->deadline_ms, .done = pool_on_submitted},
		.job = *job};
	int r = gang_open(target, job->handle, true, &submit->pool, err);
	submit->pool.is_enough = pool_is_there;
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
	target_log_waits(&reading->request.events, status < 0 ? err->message : found->text,
		&reading->reported);
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
