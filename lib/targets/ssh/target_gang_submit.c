/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/spec.h"
#include "targets/ssh/node_job.h"
#include "targets/ssh/target_gang.h"

/*
 * Starting a run of several hosts: each gets its rank, which is made ready and held there with its
 * GPUs; then all are told to go. What cannot be ready takes all others back.
 */

enum {
	POLL_MS = 200,
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
	int64_t sent_ms; /* when all had been sent */
	struct loop_timer *timer;
	struct err fault; /* why all are taken back */
};

static struct starting *starting_of(struct gang *gang)
{
	return (struct starting *)((char *)gang - offsetof(struct starting, gang));
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

static void set_timer(struct starting *starting, int64_t ms, loop_timer_fn *fn)
{
	struct loop *loop = starting->gang.node->target.loop;

	loop_remove_timer(loop, starting->timer);
	starting->timer = fn ? loop_add_timer(loop, clock_ms() + ms, fn, starting) : NULL;
}

static void drop_work(struct target_work *work)
{
	struct starting *starting = (struct starting *)work;

	if (starting->gang.node)
		set_timer(starting, 0, NULL);
	drop_starts(starting);
	for (size_t i = 0; starting->starts && i < starting->gang.hosts.n; i++)
		free(starting->starts[i].handle);
	free(starting->starts);
	strv_done(&starting->addresses);
	gang_close(&starting->gang);
	err_done(&starting->fault);
	free(starting);
}

static void end(struct starting *starting)
{
	AUTO_ERR struct err fault = {0};
	int r = err_is_set(&starting->fault) ? err_move(&fault, &starting->fault) : 0;

	target_call_end(starting->call, r, &fault);
}

/*
 * Taking back
 */

static int on_drop_late(void *ctx, struct err *err)
{
	struct starting *starting = ctx;

	(void)err;
	starting->timer = NULL;
	end(starting);
	return 0;
}

static void on_dropped(struct gang *gang)
{
	end(starting_of(gang));
}

/* The fault is set. */
static void take_back(struct starting *starting)
{
	drop_starts(starting);
	set_timer(starting, DROP_MS, on_drop_late);
	gang_tell(&starting->gang, "drop", on_dropped);
}

/*
 * Going
 */

static void on_gone(struct gang *gang)
{
	struct starting *starting = starting_of(gang);
	struct gang_place *failed = gang_failed(gang);

	/* Some may have begun: how that goes on is told by its state. */
	if (failed)
		err_move(&starting->fault, &failed->fault);
	else
		node_note_accepted(gang->node, &gang->handle);
	end(starting);
}

static void go(struct starting *starting)
{
	set_timer(starting, 0, NULL);
	gang_tell(&starting->gang, "go", on_gone);
}

/*
 * Getting ready
 */

static int fail_rank(struct starting *starting, size_t i, enum err_id id, const char *why)
{
	const struct gang_rank *rank = &starting->gang.ranks[i];

	err_set(&starting->fault, id, "%s cannot take rank %zu: %s", rank->host, i, why);
	if (id == E_NODE_BUSY)
		err_hint(&starting->fault, "dlrun targets %s", starting->gang.node->target.name);
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

/* 1: it is ready; 0: not yet; < 0: it never will, the fault is set. */
static int look_at_rank(struct starting *starting, size_t i)
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

static int on_poll(void *ctx, struct err *err);

static void on_polled(struct gang *gang)
{
	struct starting *starting = starting_of(gang);
	bool all = gang_take(gang);
	struct gang_place *failed = gang_failed(gang);
	size_t n_ready = 0;

	if (!all && failed) {
		err_move(&starting->fault, &failed->fault);
		take_back(starting);
		return;
	}
	for (size_t i = 0; i < gang->hosts.n; i++) {
		int r = look_at_rank(starting, i);
		if (r < 0) {
			take_back(starting);
			return;
		}
		n_ready += (size_t)r;
	}
	if (n_ready == gang->hosts.n)
		go(starting);
	else
		set_timer(starting, POLL_MS, on_poll);
}

static int on_poll(void *ctx, struct err *err)
{
	struct starting *starting = ctx;

	(void)err;
	starting->timer = NULL;
	gang_ask(&starting->gang, on_polled);
	return 0;
}

/*
 * Sending
 */

static int on_sent_late(void *ctx, struct err *err)
{
	struct starting *starting = ctx;

	(void)err;
	starting->timer = NULL;
	take_back(starting);
	return 0;
}

/* A submit that was still on its way could not be taken back yet. */
static void on_sent(struct target_call *call, int status, struct err *err)
{
	struct rank_start *start = (struct rank_start *)call;
	struct starting *starting = start->starting;

	start->is_open = false;
	starting->n_open--;
	if (status < 0 && !err_is_set(&starting->fault)) {
		err_move(&starting->fault, err);
		set_timer(starting, SENT_MS, on_sent_late);
	}
	if (starting->n_open > 0)
		return;
	starting->sent_ms = clock_ms();
	if (err_is_set(&starting->fault))
		take_back(starting);
	else
		gang_ask(&starting->gang, on_polled);
}

static int send_rank(struct starting *starting, size_t i, int gpus, struct err *err)
{
	struct rank_start *start = &starting->starts[i];
	struct target *target = &starting->gang.node->target;

	start->job = *starting->job;
	start->handle = node_handle_text(starting->gang.hosts.v[i], starting->gang.handle.run_id,
		starting->gang.handle.attempt);
	start->job.handle = start->handle;
	start->call = (struct target_call){.done = on_sent};
	start->rank = (struct node_rank){.rank = (int)i,
		.gpus = gpus,
		.addresses = &starting->addresses,
		.hold_ms = GANG_HOLD_MS};
	start->starting = starting;
	int r = node_submit_rank(target, &start->job, &start->rank, &start->call, err);
	start->is_open = r == 0;
	starting->n_open += r == 0;
	return r;
}

static int send_all(struct starting *starting, struct err *err)
{
	AUTO_SPEC struct spec spec = {0};
	int r = spec_from_json(starting->job->spec, &spec, err);

	starting->starts = mem_alloc(starting->gang.hosts.n, sizeof(*starting->starts));
	for (size_t i = 0; i < starting->gang.hosts.n; i++) {
		starting->starts[i] = (struct rank_start){.starting = starting};
		strv_add(&starting->addresses, gang_address(starting->gang.places[i].host));
	}
	for (size_t i = 0; r == 0 && i < starting->gang.hosts.n; i++)
		r = send_rank(starting, i, spec.world.gpus, err);
	return r;
}

/* A host that is away is found before anything is sent; and an attempt that goes already. */
static void on_asked(struct gang *gang)
{
	struct starting *starting = starting_of(gang);
	bool all = gang_take(gang);
	struct gang_place *failed = gang_failed(gang);

	if (!all && failed) {
		err_move(&starting->fault, &failed->fault);
		end(starting);
	} else if (gang_is_going(gang->ranks, gang->hosts.n)) {
		go(starting);
	} else if (send_all(starting, &starting->fault) < 0) {
		take_back(starting);
	}
}

int target_gang_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err)
{
	struct starting *starting = mem_alloc(1, sizeof(*starting));

	*starting = (struct starting){.work = {drop_work}, .call = call, .job = job};
	int r = gang_open(target, job->handle, &starting->gang, err);
	if (r < 0) {
		drop_work(&starting->work);
		return r;
	}
	target_call_begin(call, &starting->work);
	gang_ask(&starting->gang, on_asked);
	return 0;
}
