/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/target_gang.h"

#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/*
 * How a run of several hosts stands, and what all of them are told.
 */

enum { SETTLE_MS = 700 };

/*
 * State
 */

struct looking {
	struct target_work work;
	struct gang gang;
	struct target_call *call;
	struct target_status *ret, found;
	struct loop_timer *timer;
	struct err fault; /* of a host that has not answered */
};

static void drop_looking(struct target_work *work)
{
	struct looking *looking = (struct looking *)work;

	if (looking->gang.node)
		loop_remove_timer(looking->gang.node->target.loop, looking->timer);
	gang_close(&looking->gang);
	target_status_done(&looking->found);
	err_done(&looking->fault);
	free(looking);
}

static void end_looking(struct looking *looking)
{
	AUTO_ERR struct err fault = {0};
	int r = 0;

	if (err_is_set(&looking->fault)) {
		r = err_move(&fault, &looking->fault);
	} else {
		*looking->ret = looking->found;
		looking->found = (struct target_status){0};
	}
	target_call_end(looking->call, r, &fault);
}

static struct looking *looking_of(struct gang *gang)
{
	return (struct looking *)((char *)gang - offsetof(struct looking, gang));
}

/* The outcome of the steps shows at the next poll. A final state is an error until all hosts have
 * been told of it: a run that has ended is not polled again. */
static void end_steps(struct looking *looking)
{
	const struct gang_place *failed = gang_failed(&looking->gang);

	if (failed && run_state_is_final(looking->found.state) && !err_is_set(&looking->fault))
		err_copy(&looking->fault, &failed->fault);
	end_looking(looking);
}

static void on_steps(struct gang *gang)
{
	end_steps(looking_of(gang));
}

/* Whether it has begun may be known only to one that has not answered. */
static bool may_judge(const struct gang *gang, bool all)
{
	return all || gang->view.was_accepted || gang_is_going(gang->ranks, gang->hosts.n);
}

static void judge(struct looking *looking)
{
	struct gang *gang = &looking->gang;
	bool all = gang_take(gang);
	struct gang_place *failed = gang_failed(gang);

	if (failed)
		err_copy(&looking->fault, &failed->fault);
	if (!may_judge(gang, all)) {
		end_looking(looking);
		return;
	}
	gang_judge(gang->ranks, gang->hosts.n, &gang->view, &looking->found, gang->steps);
	if (!gang_take_steps(gang, on_steps))
		end_looking(looking);
}

static void on_asked(struct gang *gang)
{
	judge(looking_of(gang));
}

static int on_deadline(void *ctx, struct err *err)
{
	struct looking *looking = ctx;

	(void)err;
	looking->timer = NULL;
	end_steps(looking);
	return 0;
}

/* The others are not kept waiting by one that is silent. */
static int on_settle(void *ctx, struct err *err)
{
	struct looking *looking = ctx;

	(void)err;
	looking->timer = loop_add_timer(
		looking->gang.node->target.loop, looking->call->deadline_ms, on_deadline, looking);
	if (!looking->found.ranks)
		judge(looking);
	return 0;
}

int target_gang_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	struct looking *looking = mem_alloc(1, sizeof(*looking));

	*looking = (struct looking){.work = {drop_looking}, .call = call, .ret = ret};
	int r = gang_open(target, handle, &looking->gang, err);
	if (r < 0) {
		drop_looking(&looking->work);
		return r;
	}
	target_call_begin(call, &looking->work);
	if (call->deadline_ms)
		looking->timer = loop_add_timer(
			target->loop, call->deadline_ms - SETTLE_MS, on_settle, looking);
	gang_ask(&looking->gang, on_asked);
	return 0;
}

/*
 * Requests to all hosts
 */

struct telling {
	struct target_work work;
	struct gang gang;
	struct target_call *call;
	struct loop_timer *timer;
	bool is_stop;
};

static void drop_telling(struct target_work *work)
{
	struct telling *telling = (struct telling *)work;

	if (telling->gang.node)
		loop_remove_timer(telling->gang.node->target.loop, telling->timer);
	gang_close(&telling->gang);
	free(telling);
}

/* Where the attempt never came to there is nothing to be stopped, as long as somebody heard it. */
static bool is_heard(const struct telling *telling)
{
	bool heard = false;

	for (size_t i = 0; i < telling->gang.hosts.n; i++) {
		const struct gang_place *place = &telling->gang.places[i];
		heard |= place->is_answered;
		if (!place->is_answered && place->fault.id != E_RUN_NOT_FOUND)
			return false;
	}
	return heard;
}

static void end_telling(struct telling *telling)
{
	AUTO_ERR struct err fault = {0};
	struct gang_place *failed = gang_failed(&telling->gang);
	int r = 0;

	if (failed && !(telling->is_stop && is_heard(telling)))
		r = err_move(&fault, &failed->fault);
	target_call_end(telling->call, r, &fault);
}

static void on_told(struct gang *gang)
{
	end_telling((struct telling *)((char *)gang - offsetof(struct telling, gang)));
}

static int on_late(void *ctx, struct err *err)
{
	struct telling *telling = ctx;

	(void)err;
	telling->timer = NULL;
	end_telling(telling);
	return 0;
}

int target_gang_tell(struct target *target, const char *handle, const char *verb,
	struct target_call *call, struct err *err)
{
	struct telling *telling = mem_alloc(1, sizeof(*telling));

	*telling = (struct telling){
		.work = {drop_telling}, .call = call, .is_stop = str_eq(verb, "stop")};
	int r = gang_open(target, handle, &telling->gang, err);
	if (r < 0) {
		drop_telling(&telling->work);
		return r;
	}
	target_call_begin(call, &telling->work);
	if (call->deadline_ms)
		telling->timer = loop_add_timer(target->loop, call->deadline_ms, on_late, telling);
	gang_tell(&telling->gang, verb, on_told);
	return 0;
}
