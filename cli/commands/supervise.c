/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervise.h"

#include "app/lifecycle/delivery.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"

/* Commands that dlrun starts itself, beside a run. */

enum { EXIT_DLRUN = 125 };

static int cmd_supervise_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_ERR struct err err = {0};

	if (words->n != 1) {
		err_set(&err, E_USAGE, "dlrun __supervise is for dlrun's own use");
		return app_fail(app, &err);
	}
	if (supervise(app->self, words->v[0], &err) < 0) {
		app_fail(app, &err);
		return EXIT_DLRUN;
	}
	return 0;
}

const struct cmd cmd___supervise = {
	.name = "__supervise",
	.summary = "Watch over a run on this machine",
	.synopsis = "DIR",
	.flags = CMD_HIDDEN | CMD_OWN_ARGS,
	.run = cmd_supervise_run,
};

static int cmd_deliver_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	struct session *session;

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
