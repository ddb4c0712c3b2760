/* SPDX-License-Identifier: Apache-2.0 */
#include "core/target/target.h"
#include "base/loop/loop.h"

#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/target/target_work.h"
#include "net/stream/pump.h"

void target_status_done(struct target_status *status)
{
	if (!status)
		return;
	free(status->results_lost);
	free(status->results_unsent);
	free(status->text);
	free(status->hint);
	json_free(status->evidence);
	json_free(status->ranks);
	json_free(status->observed);
	free(status->next_handle);
	free(status->handle);
	json_free(status->where);
	*status = (struct target_status){0};
}

void target_room_done(struct target_room *room)
{
	strv_done(&room->nodes);
	free(room->text);
	*room = (struct target_room){0};
}

void target_free(struct target *target)
{
	if (target)
		target->ops->free(target);
}

/*
 * Calls
 */

void target_call_cancel(struct target_call *call)
{
	struct target_work *work = call->private;

	call->private = NULL;
	if (work)
		work->drop(work);
}

void target_call_end(struct target_call *call, int status, struct err *err)
{
	target_call_cancel(call);
	call->done(call, status, err);
}

void target_call_end_as(struct target_call *call, struct err *err)
{
	AUTO_ERR struct err own = {0};
	int r = err_is_set(err) ? err_move(&own, err) : 0;

	target_call_end(call, r, &own);
}

void target_call_end_pumped(struct target_call *call, struct pump_end *end)
{
	target_call_end_as(call, &end->error);
}

struct soon {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	struct loop_timer *timer;
};

static void drop_soon(struct target_work *work)
{
	struct soon *soon = (struct soon *)work;

	loop_remove_timer(soon->loop, soon->timer);
	free(soon);
}

static int on_soon(void *ctx, struct err *err)
{
	struct soon *soon = ctx;

	target_call_end(soon->call, 0, err);
	return 0;
}

void target_call_end_soon(struct target_call *call, struct loop *loop)
{
	struct soon *soon = mem_alloc(1, sizeof(*soon));

	*soon = (struct soon){.work = {drop_soon}, .call = call, .loop = loop};
	soon->timer = loop_add_timer(loop, 0, on_soon, soon);
	target_call_begin(call, &soon->work);
}

/*
 * Waiting
 */

struct wait {
	struct target_call call;
	struct loop_wait loop;
	int status;
	struct err err;
};

static void target_on_done(struct target_call *call, int status, struct err *err)
{
	struct wait *wait = (struct wait *)call;

	wait->status = status;
	if (status < 0)
		err_move(&wait->err, err);
	loop_wait_done(&wait->loop);
}

void target_log_gap(const struct target_log_events *events, const char *text)
{
	if (events->gap)
		events->gap(events->ctx, text);
	else if (events->notice)
		events->notice(events->ctx, text);
}

void target_log_waits(const struct target_log_events *events, const char *text, char **reported)
{
	if (!events->notice || str_empty(text) || str_eq(text, *reported))
		return;
	REPLACE(*reported, mem_strdup(text));
	AUTO_FREE char *reason = words_reason_now(text);
	events->notice(events->ctx, reason);
}

static void wait_init(struct wait *wait, struct target *target, int64_t timeout_ms)
{
	*wait = (struct wait){.loop = {.loop = target->loop, .n_open = 1}};
	wait->call.deadline_ms = timeout_ms < 0 ? 0 : clock_ms() + timeout_ms;
	wait->call.done = target_on_done;
}

bool target_slept(const struct target *target, int64_t begin_ms, const struct err *err)
{
	return err && err->code == ERR_NET && loop_woke_ms(target->loop) >= begin_ms;
}

/* r: what the starting call returned, with err. */
static int target_wait_over(struct wait *wait, int r, struct err *err)
{
	if (r < 0)
		return r;
	r = loop_wait_run(&wait->loop, err);
	if (wait->loop.n_open > 0) {
		target_call_cancel(&wait->call);
		return r;
	}
	if (wait->status < 0)
		err_move(err, &wait->err);
	err_clear(&wait->err);
	return wait->status;
}

/* study: or NULL, then job. */
static int target_start(struct target *target, const struct target_job *job,
	const struct target_study *study, int64_t timeout_ms, struct err *err)
{
	const struct target_ops *ops = target->ops;
	struct wait wait;
	int64_t begin_ms;
	int r;

	do {
		err_clear(err);
		begin_ms = clock_ms();
		wait_init(&wait, target, timeout_ms);
		r = study ? ops->submit_study(target, study, &wait.call, err)
			  : ops->submit(target, job, &wait.call, err);
		r = target_wait_over(&wait, r, err);
	} while (r < 0 && target_slept(target, begin_ms, err));
	return r;
}

int target_check_job(struct target *target, const struct target_job *job, int64_t timeout_ms,
	struct strv *ret_notes, struct err *err)
{
	struct wait wait;

	wait_init(&wait, target, timeout_ms);
	return target_wait_over(
		&wait, target->ops->check(target, job, ret_notes, &wait.call, err), err);
}

int target_submit(
	struct target *target, const struct target_job *job, int64_t timeout_ms, struct err *err)
{
	return target_start(target, job, NULL, timeout_ms, err);
}

int target_submit_study(struct target *target, const struct target_study *study, int64_t timeout_ms,
	struct err *err)
{
	return target_start(target, NULL, study, timeout_ms, err);
}

int target_state(struct target *target, const char *handle, int64_t timeout_ms,
	struct target_status *ret, struct err *err)
{
	struct wait wait;

	wait_init(&wait, target, timeout_ms);
	return target_wait_over(
		&wait, target->ops->state(target, handle, ret, &wait.call, err), err);
}

int target_room(struct target *target, const struct target_requirements *requirements,
	int64_t timeout_ms, struct target_room *ret, struct err *err)
{
	struct wait wait;

	wait_init(&wait, target, timeout_ms);
	return target_wait_over(
		&wait, target->ops->room(target, requirements, ret, &wait.call, err), err);
}

bool target_knows(struct target *target, const char *handle, int64_t timeout_ms)
{
	AUTO(target_status_done) struct target_status status = {0};

	return target_state(target, handle, timeout_ms, &status, NULL) == 0 &&
	       status.state != RUN_UNKNOWN && status.state != RUN_PREPARING;
}

int target_cancel(struct target *target, const char *handle, int64_t timeout_ms, struct err *err)
{
	struct wait wait;

	wait_init(&wait, target, timeout_ms);
	return target_wait_over(&wait, target->ops->cancel(target, handle, &wait.call, err), err);
}

int target_withdraw(struct target *target, const char *handle, int64_t timeout_ms, bool *ret_taken,
	struct err *err)
{
	struct wait wait;

	if (!target->ops->withdraw)
		return err_set(err, E_TARGET_UNSUPPORTED,
			"targets of kind %s take back no run that waits", target->ops->kind);
	wait_init(&wait, target, timeout_ms);
	return target_wait_over(
		&wait, target->ops->withdraw(target, handle, ret_taken, &wait.call, err), err);
}

int target_forget(
	struct target *target, const char *handle, bool all, int64_t timeout_ms, struct err *err)
{
	struct wait wait;

	wait_init(&wait, target, timeout_ms);
	return target_wait_over(
		&wait, target->ops->forget(target, handle, all, &wait.call, err), err);
}

int target_adopt(struct target *target, const char *id, int64_t timeout_ms, struct run_list *ret,
	struct err *err)
{
	struct wait wait;

	wait_init(&wait, target, timeout_ms);
	return target_wait_over(&wait, target->ops->adopt(target, id, ret, &wait.call, err), err);
}

static int wait_init_interruptible(
	struct wait *wait, struct target *target, const volatile int *interrupted, struct err *err)
{
	wait_init(wait, target, -1);
	wait->loop.interrupted = interrupted;
	return interrupted && *interrupted ? err_set(err, E_CANCELED, "interrupted") : 0;
}

int target_deliver(struct target *target, const struct target_job *job,
	const struct target_delivery_events *events, struct err *err)
{
	struct wait wait;

	int r = wait_init_interruptible(&wait, target, NULL, err);
	if (r == 0)
		r = target->ops->deliver(target, job, events, &wait.call, err);
	return target_wait_over(&wait, r, err);
}

int target_logs(struct target *target, const char *handle, const struct target_log_request *request,
	char token[static TARGET_TOKEN_SIZE], const volatile int *interrupted, struct err *err)
{
	struct wait wait;

	if (!target->ops->logs)
		return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s have no logs",
			target->ops->kind);
	int r = wait_init_interruptible(&wait, target, interrupted, err);
	if (r == 0)
		r = target->ops->logs(target, handle, request, token, &wait.call, err);
	return target_wait_over(&wait, r, err);
}

int target_exec(struct target *target, const char *handle,
	const struct target_exec_request *request, int *ret_status, const volatile int *interrupted,
	struct err *err)
{
	struct wait wait;

	if (!target->ops->exec)
		return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s cannot run commands",
			target->ops->kind);
	int r = wait_init_interruptible(&wait, target, interrupted, err);
	if (r == 0)
		r = target->ops->exec(target, handle, request, ret_status, &wait.call, err);
	return target_wait_over(&wait, r, err);
}

int target_store(struct target *target, const struct target_store_request *request, int *ret_status,
	const volatile int *interrupted, struct err *err)
{
	struct wait wait;

	int r = wait_init_interruptible(&wait, target, interrupted, err);
	if (r == 0)
		r = target->ops->store(target, request, ret_status, &wait.call, err);
	return target_wait_over(&wait, r, err);
}

int target_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	const volatile int *interrupted, struct err *err)
{
	struct wait wait;

	if (!target->ops->fetch)
		return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s cannot fetch results",
			target->ops->kind);
	int r = wait_init_interruptible(&wait, target, interrupted, err);
	if (r == 0)
		r = target->ops->fetch(target, handle, sink, &wait.call, err);
	return target_wait_over(&wait, r, err);
}
