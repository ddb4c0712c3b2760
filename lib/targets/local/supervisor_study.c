/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "targets/local/study_slot.h"
#include "targets/local/supervisor.h"

/*
 * The slot of a member: the worker waits for those before it, since that blocks; the first of the
 * line waits here for a slot.
 */

bool sup_wants_slot(const struct supervisor *sup)
{
	return sup->job->slots && sup->job->spec.study.parallel > 0 && !sup->slot;
}

static void sup_slot_ignore(struct supervisor *sup)
{
	loop_remove_timer(sup->loop, sup->slot_timer);
	loop_remove_fd(sup->loop, sup->slot_source);
	sup->slot_timer = NULL;
	sup->slot_source = NULL;
}

void sup_slot_free(struct supervisor *sup)
{
	sup_slot_ignore(sup);
	study_slot_free(sup->slot);
	sup->slot = NULL;
}

static void sup_slot_fail(struct supervisor *sup, const struct err *err)
{
	sup_end_worker(sup);
	sup_start_failed(sup, err);
}

static void sup_slot_try(struct supervisor *sup);

static int sup_slot_on_timer(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	sup->slot_timer = NULL;
	if (sup->phase == PHASE_SLOT)
		sup_slot_try(sup);
	return 0;
}

static short sup_slot_prepare(void *ctx)
{
	const struct supervisor *sup = ctx;

	return sup->phase == PHASE_SLOT ? POLLIN : 0;
}

static int sup_slot_on_bell(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	sup_slot_try(ctx);
	return 0;
}

/* Wait for the worker, the bell or the timer. */
static void sup_slot_wait(struct supervisor *sup)
{
	static const struct loop_fd_ops ops = {sup_slot_prepare, sup_slot_on_bell};
	int fd = study_slot_watch_fd(sup->slot);
	AUTO_ERR struct err err = {0};

	sup_wait_as(sup, RUN_QUEUED, study_slot_why(sup->slot));
	loop_remove_timer(sup->loop, sup->slot_timer);
	sup->slot_timer = loop_add_timer(
		sup->loop, clock_ms() + study_slot_wait_ms(sup->slot), sup_slot_on_timer, sup);
	if (fd >= 0 && !sup->slot_source)
		sup->slot_source = loop_add_fd(sup->loop, fd, &ops, sup);
	if (study_slot_is_first(sup->slot) || sup->worker_order)
		return;
	if (sup_order_worker(sup, WORKER_LINE, &err) < 0)
		sup_slot_fail(sup, &err);
}

static void sup_slot_try(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	if (sup_study_over(sup))
		return;
	int r = study_slot_try(sup->slot, &err);
	if (r < 0)
		sup_slot_fail(sup, &err);
	else if (r == 0)
		sup_slot_wait(sup);
	else
		sup_slot_ignore(sup);
	/* A worker that is still in line has seen the last before it go, and is about to reply. */
	if (r > 0 && !sup->worker_order)
		sup_slot_over(sup);
}

void sup_slot_on_reply(struct supervisor *sup, int r, const struct err *err)
{
	if (r < 0)
		sup_slot_fail(sup, err);
	else
		sup_slot_try(sup);
}

void sup_slot_begin(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	if (sup_study_over(sup))
		return;
	if (study_slot_new(sup->job, &sup->slot, &err) < 0)
		sup_slot_fail(sup, &err);
	else
		sup_slot_try(sup);
}

/*
 * A failure, and the other members
 */

bool sup_study_over(struct supervisor *sup)
{
	AUTO_FREE char *failed = study_failed(sup->job, sup->dir);

	if (!failed)
		return false;
	AUTO_FREE char *text = mem_printf("cancelled: %s failed (--fail-fast)", failed);
	sup_cancel_unbegun(sup, text);
	return true;
}

void sup_study_end(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	if (sup->next.dir && sup->slot) {
		sup_slot_ignore(sup);
		study_slot_pass(TAKE(sup->slot), sup->next.slot_fds);
		sup->next.has_slot = true;
	}
	if (sup->end.state != RUN_FAILED || sup->stop == STOP_WITHDRAW || sup->next.dir ||
		!sup->job->slots || !sup->job->spec.study.fail_fast)
		return;
	if (study_fail(sup->job, sup->dir, &err) < 0)
		sup_note(sup, "the others of its study are not told: %s", err.message);
}
