/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/delivery.h"

#include <stdio.h>

#include "app/prepare/prepare.h"
#include "app/runs/deliver.h"
#include "core/store/store.h"
#include "targets/targets.h"

static void delivery_on_failing(void *ctx, const struct err *error)
{
	const struct submit *submit = ctx;

	deliver_report(submit->session, submit->run, error);
}

static int delivery_send(struct submit *submit, struct err *err)
{
	const struct target_delivery_events events = {delivery_on_failing, submit};
	struct target_job job;

	int r = spec_from_json(submit->run->spec, &submit->spec, err);
	if (r == 0)
		r = target_open_run(submit->session, submit->run, &submit->target, err);
	if (r == 0 && !submit->target->ops->deliver)
		return 0;
	if (r == 0)
		r = submit_load_image(submit, submit->run, err);
	if (r < 0)
		return r;
	snprintf(submit->handle, sizeof(submit->handle), "%s", run_handle(submit->run));
	r = submit_make_start(submit, &job, err);
	return r < 0 ? r : target_deliver(submit->target, &job, &events, err);
}

int delivery_run(struct session *session, const char *id, struct err *err)
{
	AUTO(submit_done) struct submit submit = {.session = session};
	AUTO_FD int lock_fd = -1;

	int r = session_store(session, &submit.store, err);
	if (r == 0)
		r = store_get(submit.store, id, &submit.run, err);
	if (r < 0 || !run_is_streamed(submit.run) || run_state_is_final(run_state(submit.run)))
		return r;
	r = deliver_lock(session, submit.run, &lock_fd, err);
	if (r < 0)
		return r;
	r = delivery_send(&submit, err);
	/* The run waits, and who looks at it is told why. */
	if (r < 0)
		deliver_report(session, submit.run, err);
	return r;
}
