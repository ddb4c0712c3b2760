/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/delivery.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"

static int cmd_deliver_run(struct app *app, void *values, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	struct session *session;

	(void)values;
	os_protect_memory();
	int r = words->n == 1 ? app_session(app, &session, &err)
			      : err_set(&err, E_USAGE, "dlrun __deliver is for dlrun's own use");
	if (r == 0)
		r = delivery_run(session, words->v[0], &err);
	return r < 0 ? app_fail(app, &err) : 0;
}

const struct cmd cmd___deliver = {
	.name = "__deliver",
	.summary = "Send the code of a run to its nodes",
	.synopsis = "RUN",
	.flags = CMD_HIDDEN | CMD_OWN_ARGS,
	.run = cmd_deliver_run,
};
