/* SPDX-License-Identifier: Apache-2.0 */
#include "app/runs/deliver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/runs/background.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "core/record/group.h"
#include "core/record/reply.h"
#include "core/study/study.h"

#define DELIVER_LOCK "deliver.lock"
/* Of the process, where it fails: a reply (core/record/reply.h). */
#define DELIVER_ERROR "deliver.error"

/* LOCK_MS: others only look for a moment. AGAIN_MS: between two starts for one attempt. */
enum { LOCK_MS = 200, AGAIN_MS = 5000 };

/* Members of a study that have one node have one Job, and its pods get their code from one. */
static char *deliver_path(const struct session *session, const struct run *run, const char *name)
{
	const char *of = run_study(run);
	bool is_alone = json_get_int(json_get(run->doc, "resources"), "nodes", 1) <= 1;
	bool is_shared = of && is_alone && run_attempts(run) <= 1;
	AUTO_FREE char *dir =
		is_shared ? dirs_study(&session->dirs, of)
			  : dirs_attempt(&session->dirs, run_id(run), run_attempts(run));

	return fs_join(dir, name);
}

static bool deliver_is_here(const struct run *run)
{
	const char *machine = json_get_str(json_get(run->doc, "origin"), "machine");
	char own[OS_ID_SIZE];

	return machine && os_machine_id(own) && str_eq(machine, own);
}

int deliver_lock(struct session *session, const struct run *run, int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = deliver_path(session, run, DELIVER_LOCK);

	return fs_lock(path, true, LOCK_MS, ret_fd, err);
}

void deliver_report(struct session *session, const struct run *run, const struct err *error)
{
	AUTO_FREE char *path = deliver_path(session, run, DELIVER_ERROR);
	AUTO_FREE char *made = deliver_path(session, run, DELIVER_ERROR ".new");

	if (!err_is_set(error)) {
		(void)unlink(path);
		return;
	}
	AUTO_FD int fd = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	reply_write(fd, -(int)error->code, error, NULL);
	(void)rename(made, path);
}

static void deliver_replace(char **text, char *by)
{
	free(*text);
	*text = by;
}

void deliver_explain(struct session *session, const struct run *run, struct target_status *status)
{
	AUTO_FREE char *path = deliver_path(session, run, DELIVER_ERROR), *text = NULL;
	AUTO_ERR struct err error = {0};
	AUTO_BUF struct buf line = buf_with(REPLY_MAX);
	bool is_missing;

	if (!status->waits_for_code || !status->text)
		return;
	if (!deliver_is_here(run)) {
		text = mem_printf("%s, which the machine that submitted it sends", status->text);
		deliver_replace(&status->text, TAKE(text));
		return;
	}
	if (fs_read(path, REPLY_MAX, &line, &is_missing, NULL) < 0 || is_missing || !line.len)
		return;
	int r = reply_parse(line.data, line.len, "it", NULL, &error);
	/* E_RUN_START: the file is no reply. */
	if (r == 0 || error.id == E_RUN_START)
		return;
	text = mem_printf("%s: %s", status->text, error.message);
	deliver_replace(&status->text, TAKE(text));
	if (error.hint)
		deliver_replace(&status->hint, TAKE(error.hint));
}

/* A process that was started here: it may not have its lock yet, or has just failed. */
struct deliver_child {
	char *lock;
	pid_t pid; /* 0: it has ended */
	int64_t begin_ms;
};

static struct VEC_OF(struct deliver_child) deliver_children;

static bool deliver_has_started(const char *lock)
{
	bool is_found = false;

	for (size_t i = deliver_children.n; i-- > 0;) {
		struct deliver_child *child = &deliver_children.v[i];
		if (child->pid > 0 && waitpid(child->pid, NULL, WNOHANG) != 0)
			child->pid = 0;
		if (child->pid == 0 && clock_ms() - child->begin_ms >= AGAIN_MS) {
			free(child->lock);
			*child = deliver_children.v[--deliver_children.n];
		} else if (str_eq(child->lock, lock)) {
			is_found = true;
		}
	}
	return is_found;
}

void deliver_kick(struct session *session, const struct run *run)
{
	const char *const argv[] = {session->env.self, "__deliver", run_id(run), NULL};
	AUTO_ERR struct err err = {0};
	pid_t child;

	if (!run_is_streamed(run) || run_state_is_final(run_state(run)) || !run_handle(run) ||
		run_cancelling(run) || session->ends_runs || !session->env.self ||
		!deliver_is_here(run))
		return;
	AUTO_FREE char *lock = deliver_path(session, run, DELIVER_LOCK);
	if (deliver_has_started(lock) || fs_is_locked(lock))
		return;
	if (background_start(session, argv, &child, &err) < 0)
		log_note("the code of %s is not sent: %s", run_id(run), err.message);
	else
		*vec_push(&deliver_children) =
			(struct deliver_child){TAKE(lock), child, clock_ms()};
}
