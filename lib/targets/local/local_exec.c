/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/attempt/attempt.h"
#include "targets/local/program.h"
#include "targets/local/target_local.h"

enum { LOOK_MS = 20, SIGNAL_STATUS = 128 };

struct exec {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	struct loop_timer *timer;
	pid_t pid;
	int *ret_status;
};

static void drop(struct target_work *work)
{
	struct exec *exec = (struct exec *)work;

	loop_remove_timer(exec->loop, exec->timer);
	if (exec->pid > 0) {
		kill(exec->pid, SIGHUP);
		waitpid(exec->pid, NULL, WNOHANG);
	}
	free(exec);
}

static int on_look(void *ctx, struct err *err)
{
	struct exec *exec = ctx;
	int status;

	exec->timer = NULL;
	if (waitpid(exec->pid, &status, WNOHANG) == 0) {
		exec->timer = loop_add_timer(exec->loop, clock_ms() + LOOK_MS, on_look, exec);
		return 0;
	}
	exec->pid = 0;
	*exec->ret_status =
		WIFSIGNALED(status) ? SIGNAL_STATUS + WTERMSIG(status) : WEXITSTATUS(status);
	target_call_end(exec->call, 0, err);
	return 0;
}

/* Start the command like the supervisor starts the program, whose command is in the job. */
static int spawn(const struct attempt_place *place, const struct target_local *local,
	const struct target_exec_request *request, pid_t *ret, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_STRV struct strv env = {0}, command = {0};
	AUTO_FREE char *tree = fs_join(place->dir, ATTEMPT_TREE), *cwd = NULL;

	int r = attempt_job_read(place->dir, &job, err);
	if (r < 0)
		return r;
	if (access(tree, F_OK) < 0)
		return err_set(
			err, E_RUN_ENDED, "the tree of %s is not there any more", place->run_id);
	attempt_job_place(&job, place->dir);
	for (size_t i = 0; request->secret_env && i < request->secret_env->n; i++)
		strv_add(&job.env, request->secret_env->v[i]);
	program_env(&job, local->session->env.env, tree, &env);
	attempt_setup_env_read(place->dir, &env);
	job.shell = false;
	strv_done(&job.command);
	if (request->command->n)
		strv_copy(&job.command, request->command);
	else
		strv_add(&job.command, env_get((const char *const *)env.v, "SHELL")
					       ? env_get((const char *const *)env.v, "SHELL")
					       : "/bin/sh");
	program_command(&job, &env, tree, &command);
	cwd = fs_join(tree, job.cwd);
	const struct proc_spec spec = {.argv = (const char *const *)command.v,
		.env = (const char *const *)env.v,
		.dir = cwd,
		.stdin_fd = request->fds[0],
		.stdout_fd = request->fds[1],
		.stderr_fd = request->fds[2],
		.is_command = true};
	return proc_spawn(&spec, ret, err);
}

int local_exec(struct target *target, const char *handle, const struct target_exec_request *request,
	int *ret_status, struct target_call *call, struct err *err)
{
	struct target_local *local = target_local_of(target);
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};
	struct exec *exec;
	pid_t pid;

	int r = local_place_find(local, handle, &place, err);
	if (r == 0 && place.foreign)
		r = err_set(
			err, E_TARGET_UNSUPPORTED, "%s belongs to another machine", place.run_id);
	if (r == 0)
		r = spawn(&place, local, request, &pid, err);
	if (r < 0)
		return r;
	exec = mem_alloc(1, sizeof(*exec));
	*exec = (struct exec){.work = {drop},
		.call = call,
		.loop = target->loop,
		.pid = pid,
		.ret_status = ret_status};
	target_call_begin(call, &exec->work);
	exec->timer = loop_add_timer(target->loop, clock_ms() + LOOK_MS, on_look, exec);
	return 0;
}
