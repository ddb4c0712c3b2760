/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/keep.h"

#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/target/target.h"
#include "targets/targets.h"

/*
 * Keeping the logs of runs that have ended elsewhere.
 */

struct keep {
	struct target_call call;
	struct keeper *keeper;
	struct target *target;
	const struct run *run;
};

struct keeper {
	struct session *session;
	struct keep *keeps;
	size_t n, n_open;
};

static void on_done(struct target_call *call, int status, struct err *err)
{
	struct keep *keep = (struct keep *)call;

	if (status < 0)
		log_note("the log of %s is not kept: %s", run_id(keep->run), err->message);
	err_clear(err);
	if (--keep->keeper->n_open == 0)
		loop_stop(session_loop(keep->keeper->session));
}

static int on_late(void *ctx, struct err *err)
{
	(void)err;
	loop_stop(session_loop(((struct keeper *)ctx)->session));
	return 0;
}

static bool is_kept_elsewhere(const struct run *run)
{
	return target_ops_recorded(run)->keep && run_state_is_final(run_state(run)) &&
	       run_handle(run);
}

static void start(struct keeper *keeper, const struct run *run, int64_t deadline_ms)
{
	struct keep *keep = &keeper->keeps[keeper->n++];
	AUTO_ERR struct err err = {0};

	*keep = (struct keep){.keeper = keeper, .run = run};
	keep->call = (struct target_call){.deadline_ms = deadline_ms, .done = on_done};
	int r = target_open_run(keeper->session, run, &keep->target, &err);
	if (r == 0 && !keep->target->ops->keep)
		return;
	if (r == 0)
		r = keep->target->ops->keep(
			keep->target, run_handle(run), false, &keep->call, &err);
	if (r == 0)
		keeper->n_open++;
	else
		log_note("the log of %s is not kept: %s", run_id(run), err.message);
}

void runs_keep(struct session *session, const struct run_list *runs, int64_t timeout_ms)
{
	struct keeper keeper = {.session = session};
	int64_t deadline_ms = clock_ms() + timeout_ms;

	keeper.keeps = mem_alloc(runs->n + 1, sizeof(*keeper.keeps));
	vec_foreach (struct run *, run, runs)
		if (is_kept_elsewhere(*run))
			start(&keeper, *run, deadline_ms);
	if (keeper.n_open > 0) {
		struct loop *loop = session_loop(session);
		struct loop_timer *timer = loop_add_timer(loop, deadline_ms, on_late, &keeper);
		loop_run(loop, NULL);
		loop_remove_timer(loop, timer);
	}
	for (size_t i = 0; i < keeper.n; i++) {
		target_call_cancel(&keeper.keeps[i].call);
		target_free(keeper.keeps[i].target);
	}
	free(keeper.keeps);
}
