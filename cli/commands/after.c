/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "app/lifecycle/after_wait.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "core/attempt/attempt.h"
#include "core/record/reply.h"
#include "core/store/store.h"

/* Targets of other runs are named as where this one was submitted. */
static void cmd_after_enter_dir(struct session *session, const char *id, char **ret_dir)
{
	AUTO_RUN struct run *run = NULL;
	struct session_env *env = &session->env;
	struct config *config;
	struct store *store;

	env->shell_dir = env->git_dir = env->git_work_tree = NULL;
	env->must_count = env->has_terminal = false;
	env->print = NULL;
	env->prompt = NULL;
	if (session_store(session, &store, NULL) < 0 || store_get(store, id, &run, NULL) < 0 ||
		after_submit_dir(run, ret_dir, NULL) < 0 || !*ret_dir)
		return;
	env->cwd = *ret_dir;
	/* A file that is being edited stops no run: records say where the others are. */
	if (session_config(session, &config, NULL) < 0)
		env->cwd = "/";
}

static int cmd_after_wait(struct app *app, const char *dir, struct json *result, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_AFTER_CHECK struct after_check check = {0};
	struct session *session;

	int r = attempt_job_read(dir, &job, err);
	if (r == 0)
		r = app_session(app, &session, err);
	if (r < 0)
		return r;
	AUTO_FREE char *submit_dir = NULL;
	cmd_after_enter_dir(session, job.run_id, &submit_dir);
	r = after_wait(session, &job.spec.after, STDOUT_FILENO, &check, err);
	session->env.cwd = "/";
	json_set_str(result, AFTER_NEVER_TEXT, check.text);
	return r;
}

static int cmd_after_run(struct app *app, void *values UNUSED, struct strv *words)
{
	struct json *result = json_object();
	AUTO_ERR struct err err = {0};
	int r;

	os_protect_memory();
	if (words->n == 1)
		r = cmd_after_wait(app, words->v[0], result, &err);
	else
		r = err_set(&err, E_USAGE, "dlrun __after is for dlrun's own use");
	reply_write(STDOUT_FILENO, r, &err, result);
	return 0;
}

const struct cmd cmd___after = {
	.name = "__after",
	.summary = "Wait for the runs that one on this machine begins after",
	.synopsis = "DIR",
	.flags = CMD_HIDDEN | CMD_OWN_ARGS,
	.run = cmd_after_run,
};
