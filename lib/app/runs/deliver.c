/* SPDX-License-Identifier: Apache-2.0 */
#include "app/runs/deliver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "core/study/study.h"

#define DELIVER_LOCK "deliver.lock"

enum { LOCK_MS = 200 }; /* others only look for a moment */

/* The members of a study that were started together have one Job: that of the first. */
static char *deliver_lock_path(const struct session *session, const struct run *run)
{
	const struct json *study = json_get(run->doc, "study");
	const char *of = json_get_str(study, "id");
	bool is_shared = of && run_attempts(run) <= 1;
	AUTO_FREE char *dir =
		is_shared ? dirs_study(&session->dirs, of)
			  : dirs_attempt(&session->dirs, run_id(run), run_attempts(run));

	return fs_join(dir, DELIVER_LOCK);
}

static bool deliver_is_here(const struct run *run)
{
	const char *machine = json_get_str(json_get(run->doc, "origin"), "machine");
	char own[OS_ID_SIZE];

	return machine && os_machine_id(own) && str_eq(machine, own);
}

int deliver_lock(struct session *session, const struct run *run, int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = deliver_lock_path(session, run);

	return fs_lock(path, true, LOCK_MS, ret_fd, err);
}

void deliver_kick(struct session *session, const struct run *run)
{
	static struct VEC_OF(pid_t) children; /* to be reaped */
	AUTO_FREE char *lock = deliver_lock_path(session, run);
	const char *const argv[] = {session->env.self, "__deliver", run_id(run), NULL};
	const struct proc_spec spec = {
		.argv = argv,
		.env = session->env.env,
		.dir = "/",
		.stdin_fd = -1,
		.stdout_fd = -1,
		.stderr_fd = -1,
		.new_session = true,
	};
	AUTO_ERR struct err err = {0};
	pid_t child;

	if (!run_is_streamed(run) || run_state_is_final(run_state(run)) || !run_handle(run) ||
		run_cancelling(run) || session->ends_runs || !session->env.self ||
		!deliver_is_here(run) || fs_is_locked(lock))
		return;
	for (size_t i = children.n; i-- > 0;)
		if (waitpid(children.v[i], NULL, WNOHANG) != 0)
			children.v[i] = children.v[--children.n];
	if (proc_spawn(&spec, &child, &err) < 0)
		log_note("the code of %s is not sent: %s", run_id(run), err.message);
	else
		*vec_push(&children) = child;
}
