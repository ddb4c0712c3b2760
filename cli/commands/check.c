/* SPDX-License-Identifier: Apache-2.0 */
#include "app/doctor/doctor.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"

static int print_row(struct app *app, const struct doctor_check *check)
{
	AUTO_DOCTOR_ROW struct doctor_row row = {0};
	AUTO_ERR struct err error = {0};
	struct session *session = &app->session;
	struct doctor doctor = {0};

	/* Without directories the session still has the environment. */
	if (app_session(app, &session, &error) < 0) {
		session = &app->session;
		doctor.error = &error;
	}
	doctor.session = session;
	doctor_run_check(&doctor, check, &row);
	if (doctor.error)
		session_done(session);
	return app_print_json_line(app, doctor_row_to_json(&row));
}

static int check_run(struct app *app, void *values UNUSED, struct strv *words)
{
	const struct doctor_check *check = words->n == 1 ? doctor_find(words->v[0]) : NULL;
	AUTO_ERR struct err err = {0};

	if (check)
		return print_row(app, check);
	err_set(&err, E_USAGE, "dlrun __check is for the use of dlrun doctor");
	return app_fail(app, &err);
}

const struct cmd cmd___check = {
	.name = "__check",
	.summary = "Run one check of `dlrun doctor`",
	.synopsis = "ID",
	.flags = CMD_HIDDEN | CMD_OWN_ARGS,
	.run = check_run,
};
