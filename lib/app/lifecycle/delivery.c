/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/delivery.h"

#include <stdio.h>

#include "app/prepare/prepare.h"
#include "app/runs/deliver.h"
#include "core/store/store.h"
#include "targets/targets.h"

int delivery_run(struct session *session, const char *id, struct err *err)
{
	AUTO(submit_done) struct submit submit = {.session = session};
	AUTO_FD int lock_fd = -1;
	struct target_job job;

	int r = session_store(session, &submit.store, err);
	if (r == 0)
		r = store_get(submit.store, id, &submit.run, err);
	if (r < 0 || !run_is_streamed(submit.run) || run_state_is_final(run_state(submit.run)))
		return r;
	r = deliver_lock(session, submit.run, &lock_fd, err);
	if (r == 0)
		r = spec_from_json(submit.run->spec, &submit.spec, err);
	if (r == 0)
		r = target_open_run(session, submit.run, &submit.target, err);
	if (r == 0 && !submit.target->ops->deliver)
		return 0;
	if (r == 0)
		r = submit_load_image(&submit, submit.run, err);
	if (r < 0)
		return r;
	snprintf(submit.handle, sizeof(submit.handle), "%s", run_handle(submit.run));
	r = submit_make_start(&submit, &job, err);
	return r < 0 ? r : target_deliver(submit.target, &job, err);
}
