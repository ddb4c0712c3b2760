/* SPDX-License-Identifier: Apache-2.0 */
#include "app/forward/forwarder.h"

#include <stdlib.h>
#include <unistd.h>

#include "app/runs/refresh.h"
#include "base/util/mem.h"
#include "targets/targets.h"

/* A connection that is forwarded. */
struct carried {
	struct target_call call;
	struct forwarder *forwarder;
	struct carried *next, **at;
	forwarder_done_fn *done;
	void *ctx;
};

struct forwarder {
	struct session *session;
	struct target *target;
	const struct run *run;
	struct run *taken; /* what run points to; or NULL: it is borrowed */
	struct carried *carried;
	size_t n_carried;
};

static struct carried *link_carried(struct forwarder *forwarder)
{
	struct carried *carried = mem_alloc(1, sizeof(*carried));

	*carried = (struct carried){
		.forwarder = forwarder, .next = forwarder->carried, .at = &forwarder->carried};
	if (carried->next)
		carried->next->at = &carried->next;
	forwarder->carried = carried;
	forwarder->n_carried++;
	return carried;
}

static void unlink_carried(struct carried *carried)
{
	*carried->at = carried->next;
	if (carried->next)
		carried->next->at = carried->at;
	carried->forwarder->n_carried--;
	free(carried);
}

static void forwarder_on_carried(struct target_call *call, int status, struct err *err)
{
	struct carried ended = *(struct carried *)call;

	unlink_carried((struct carried *)call);
	if (ended.done)
		ended.done(ended.ctx, status, err);
}

int forwarder_relay(struct forwarder *forwarder, int rank, uint16_t port, int fd,
	forwarder_done_fn *done, void *ctx, struct err *err)
{
	const char *handle = run_handle(forwarder->run);
	struct carried *carried;

	int r = forwarder_check(forwarder, err);
	if (r == 0 && !handle)
		r = err_set(err, E_RUN_START, "%s has not begun yet", run_id(forwarder->run));
	if (r < 0) {
		close(fd);
		return r;
	}
	carried = link_carried(forwarder);
	carried->call.done = forwarder_on_carried;
	carried->done = done;
	carried->ctx = ctx;
	r = forwarder->target->ops->relay(
		forwarder->target, handle, rank, port, fd, &carried->call, err);
	if (r < 0)
		unlink_carried(carried);
	return r;
}

/* A target call that is given up tells nobody, so it is done here. */
static void end_carried(struct carried *carried)
{
	const struct run *run = carried->forwarder->run;
	AUTO_ERR struct err error = {0};

	err_set(&error, E_RUN_ENDED, "%s has ended (%s)", run_id(run),
		run_state_name(run_state(run)));
	target_call_cancel(&carried->call);
	forwarder_on_carried(&carried->call, -(int)error.code, &error);
}

void forwarder_end(struct forwarder *forwarder)
{
	while (forwarder->carried)
		end_carried(forwarder->carried);
}

int forwarder_open(const struct forwarder_options *options, struct forwarder **ret, struct err *err)
{
	AUTO(forwarder_free_auto) struct forwarder *forwarder = mem_alloc(1, sizeof(*forwarder));

	*forwarder = (struct forwarder){.session = options->session, .run = options->run};
	int r = target_open_run(options->session, options->run, &forwarder->target, err);
	if (r < 0)
		return r;
	forwarder->target->notice = options->notice;
	forwarder->target->notice_ctx = options->ctx;
	*ret = TAKE(forwarder);
	return 0;
}

void forwarder_free(struct forwarder *forwarder)
{
	if (!forwarder)
		return;
	while (forwarder->carried) {
		target_call_cancel(&forwarder->carried->call);
		unlink_carried(forwarder->carried);
	}
	run_free(forwarder->taken);
	target_free(forwarder->target);
	free(forwarder);
}

int forwarder_check(const struct forwarder *forwarder, struct err *err)
{
	if (forwarder->target->ops->relay)
		return 0;
	return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s cannot forward ports",
		forwarder->target->ops->kind);
}

int forwarder_check_rank(const struct run *run, int rank, struct err *err)
{
	int64_t n = json_get_int(json_get(run->doc, "resources"), "nodes", 0);

	if (n <= 0 || rank < n)
		return 0;
	if (n > 1)
		return err_set(
			err, E_USAGE, "%s has the ranks 0 to %lld", run_id(run), (long long)n - 1);
	return err_set(err, E_USAGE, "%s has only rank 0", run_id(run));
}

size_t forwarder_count(const struct forwarder *forwarder)
{
	return forwarder->n_carried;
}

const struct run *forwarder_run(const struct forwarder *forwarder)
{
	return forwarder->run;
}

struct target *forwarder_target(const struct forwarder *forwarder)
{
	return forwarder->target;
}

void forwarder_take(struct forwarder *forwarder, struct run *run)
{
	run_free(forwarder->taken);
	forwarder->run = forwarder->taken = run;
}

int forwarder_poll(struct forwarder *forwarder, struct err *err)
{
	struct run *run = NULL;

	int r = runs_find(forwarder->session, run_id(forwarder->run), &run, err);
	if (r == 0)
		forwarder_take(forwarder, run);
	return r;
}
