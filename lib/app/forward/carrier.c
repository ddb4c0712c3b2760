/* SPDX-License-Identifier: Apache-2.0 */
#include "app/forward/carrier.h"

#include <stdlib.h>
#include <unistd.h>

#include "app/runs/refresh.h"
#include "base/util/mem.h"
#include "targets/targets.h"

/* A connection that is forwarded. */
struct carried {
	struct target_call call;
	struct carrier *carrier;
	struct carried *next, **at;
	carrier_done_fn *done;
	void *ctx;
};

struct carrier {
	struct session *session;
	struct target *target;
	const struct run *run;
	struct run *taken; /* what run points to; or NULL: it is borrowed */
	struct carried *carried;
	size_t n_carried;
};

static struct carried *link_carried(struct carrier *carrier)
{
	struct carried *carried = mem_alloc(1, sizeof(*carried));

	*carried = (struct carried){
		.carrier = carrier, .next = carrier->carried, .at = &carrier->carried};
	if (carried->next)
		carried->next->at = &carried->next;
	carrier->carried = carried;
	carrier->n_carried++;
	return carried;
}

static void unlink_carried(struct carried *carried)
{
	*carried->at = carried->next;
	if (carried->next)
		carried->next->at = carried->at;
	carried->carrier->n_carried--;
	free(carried);
}

static void carrier_on_carried(struct target_call *call, int status, struct err *err)
{
	struct carried ended = *(struct carried *)call;

	unlink_carried((struct carried *)call);
	if (ended.done)
		ended.done(ended.ctx, status, err);
}

int carrier_carry(struct carrier *carrier, int rank, uint16_t port, int fd, carrier_done_fn *done,
	void *ctx, struct err *err)
{
	const char *handle = run_handle(carrier->run);
	struct carried *carried;

	int r = carrier_check(carrier, err);
	if (r == 0 && !handle)
		r = err_set(err, E_RUN_START, "%s has not begun yet", run_id(carrier->run));
	if (r < 0) {
		close(fd);
		return r;
	}
	carried = link_carried(carrier);
	carried->call.done = carrier_on_carried;
	carried->done = done;
	carried->ctx = ctx;
	r = carrier->target->ops->carry(
		carrier->target, handle, rank, port, fd, &carried->call, err);
	if (r < 0)
		unlink_carried(carried);
	return r;
}

/* A target call that is given up tells nobody, so it is done here. */
static void end_carried(struct carried *carried)
{
	const struct run *run = carried->carrier->run;
	AUTO_ERR struct err error = {0};

	err_set(&error, E_RUN_ENDED, "%s has ended (%s)", run_id(run),
		run_state_name(run_state(run)));
	target_call_cancel(&carried->call);
	carrier_on_carried(&carried->call, -(int)error.code, &error);
}

void carrier_end(struct carrier *carrier)
{
	while (carrier->carried)
		end_carried(carrier->carried);
}

int carrier_open(const struct carrier_options *options, struct carrier **ret, struct err *err)
{
	AUTO(carrier_free_auto) struct carrier *carrier = mem_alloc(1, sizeof(*carrier));

	*carrier = (struct carrier){.session = options->session, .run = options->run};
	int r = target_open_run(options->session, options->run, &carrier->target, err);
	if (r < 0)
		return r;
	carrier->target->notice = options->notice;
	carrier->target->notice_ctx = options->ctx;
	*ret = TAKE(carrier);
	return 0;
}

void carrier_free(struct carrier *carrier)
{
	if (!carrier)
		return;
	while (carrier->carried) {
		target_call_cancel(&carrier->carried->call);
		unlink_carried(carrier->carried);
	}
	run_free(carrier->taken);
	target_free(carrier->target);
	free(carrier);
}

int carrier_check(const struct carrier *carrier, struct err *err)
{
	if (carrier->target->ops->carry)
		return 0;
	return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s cannot forward ports",
		carrier->target->ops->kind);
}

int carrier_check_rank(const struct run *run, int rank, struct err *err)
{
	int64_t n = json_get_int(json_get(run->doc, "resources"), "nodes", 0);

	if (n <= 0 || rank < n)
		return 0;
	if (n > 1)
		return err_set(
			err, E_USAGE, "%s has the ranks 0 to %lld", run_id(run), (long long)n - 1);
	return err_set(err, E_USAGE, "%s has only rank 0", run_id(run));
}

size_t carrier_count(const struct carrier *carrier)
{
	return carrier->n_carried;
}

const struct run *carrier_run(const struct carrier *carrier)
{
	return carrier->run;
}

struct target *carrier_target(const struct carrier *carrier)
{
	return carrier->target;
}

void carrier_take(struct carrier *carrier, struct run *run)
{
	run_free(carrier->taken);
	carrier->run = carrier->taken = run;
}

int carrier_poll(struct carrier *carrier, struct err *err)
{
	struct run *run = NULL;

	int r = runs_find(carrier->session, run_id(carrier->run), &run, err);
	if (r == 0)
		carrier_take(carrier, run);
	return r;
}
