/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "targets/local/supervisor.h"

/*
 * The runs that it begins after: the worker runs `dlrun __after DIR`, which waits for them,
 * wherever they are, with the submitter's environment. That process changes nothing but the
 * records of other runs, so that it is started again whenever it dies or cannot tell.
 */

enum { AFTER_PAUSE_MS = 500, AFTER_PAUSE_MAX_MS = 60000 };

bool sup_wants_after(const struct supervisor *sup)
{
	return sup->job->spec.after.n > 0;
}

static void sup_after_order(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	sup->after_begun_ms = clock_ms();
	if (sup_order_worker(sup, WORKER_AFTER, &err) == 0)
		return;
	sup_end_worker(sup);
	sup_start_failed(sup, &err);
}

static int sup_after_on_timer(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	if (sup->phase == PHASE_AFTER)
		sup_after_order(sup);
	return 0;
}

static void sup_after_try_again(struct supervisor *sup, const struct err *why)
{
	AUTO_FREE char *what = after_text(&sup->job->spec.after);
	AUTO_FREE char *text = mem_printf("%s: %s", what, why->message);

	sup_note(sup, "%s", text);
	/* A process that was killed is none of the user's business. */
	if (why->id != E_RUN_START)
		sup_wait_as(sup, RUN_QUEUED, text);
	if (clock_ms() - sup->after_begun_ms > AFTER_PAUSE_MAX_MS)
		sup->after_pause_ms = 0;
	sup->after_pause_ms = sup->after_pause_ms ? sup->after_pause_ms * 2 : AFTER_PAUSE_MS;
	if (sup->after_pause_ms > AFTER_PAUSE_MAX_MS)
		sup->after_pause_ms = AFTER_PAUSE_MAX_MS;
	loop_add_timer(sup->loop, clock_ms() + sup->after_pause_ms, sup_after_on_timer, sup);
}

void sup_after_on_reply(
	struct supervisor *sup, int r, const struct json *result, const struct err *err)
{
	const char *never = json_get_str(result, AFTER_NEVER_TEXT);

	if (r < 0) {
		sup_after_try_again(sup, err);
	} else if (never) {
		sup_end_worker(sup);
		sup_finish_as(sup, RUN_CANCELLED, 143, AFTER_REASON, never);
	} else {
		sup_after_over(sup);
	}
}

void sup_after_begin(struct supervisor *sup)
{
	AUTO_FREE char *text = after_text(&sup->job->spec.after);

	sup_wait_as(sup, RUN_QUEUED, text);
	sup_after_order(sup);
}

/*
 * In the worker
 */

extern char **environ;

/* The environment as the submit had it, but for secrets, which are the program's, and for the mark
 * of the attempt: what that process starts belongs to other runs. */
static void after_waiter_env(const struct attempt_job *job, struct strv *ret)
{
	for (const char *const *pair = (const char *const *)environ; *pair; pair++) {
		AUTO_FREE char *name = mem_strndup(*pair, strcspn(*pair, "="));
		if (strv_find(&job->spec.secrets, name) < 0)
			strv_add(ret, *pair);
	}
	env_set(ret, "DLRUN_ATTEMPT_DIR=", false);
}

static int after_waiter_start(const char *self, int fd, pid_t *ret, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_STRV struct strv env = {0};
	AUTO_FREE char *dir = NULL;
	/* The program as it is installed now; it may have been removed. */
	const char *path = access(self, X_OK) == 0 ? self : "/proc/self/exe";

	int r = attempt_job_read(".", &job, err);
	if (r == 0)
		r = fs_realpath(".", &dir, err);
	if (r < 0)
		return r;
	const char *const argv[] = {path, "__after", dir, NULL};
	after_waiter_env(&job, &env);
	const struct proc_spec spec = {
		.argv = argv,
		.env = (const char *const *)env.v,
		.dir = "/",
		.stdin_fd = -1,
		.stdout_fd = fd,
		.stderr_fd = STDERR_FILENO,
	};
	return proc_spawn(&spec, ret, err);
}

void after_waiter_run(const char *self, int fd)
{
	AUTO_ERR struct err err = {0};
	int status = -1;
	pid_t pid;

	int r = after_waiter_start(self, fd, &pid, &err);
	while (r == 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		continue;
	if (r == 0 && status != 0)
		r = err_set(&err, E_RUN_START, "the process that waits for other runs has ended");
	/* A process that ended well has replied by itself. */
	if (r < 0)
		reply_write(fd, r, &err, NULL);
}
