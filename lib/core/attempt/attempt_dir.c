/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "core/attempt/attempt.h"

/*
 * The directories of attempts: attempts/1, attempts/2, …
 */

#define HOSTFILE "hostfile"

enum { LOCK_WAIT_MS = 2000 }; /* others only look for a moment */

char *attempt_sibling(const char *dir, int number)
{
	const char *slash = strrchr(dir, '/');
	int len = slash ? (int)(slash - dir) + 1 : 0;

	return mem_printf("%.*s%d", len, dir, number);
}

int attempt_make_dirs(const char *dir, const char *outputs, struct err *err)
{
	static const char line[] = ATTEMPT_ADDRESS "\n";
	AUTO_FREE char *files = fs_join(dir, ATTEMPT_FILES);
	AUTO_FREE char *hosts = fs_join(dir, HOSTFILE);

	int r = fs_mkdirs(files, 0700, err);
	if (r == 0 && outputs)
		r = fs_mkdirs(outputs, 0700, err);
	return r < 0 ? r : fs_replace(hosts, line, strlen(line), 0600, FS_SYNC_NONE, err);
}

char *attempt_mark(const char *dir)
{
	return mem_printf("DLRUN_ATTEMPT_DIR=%s/" ATTEMPT_FILES, dir);
}

void attempt_job_place(struct attempt_job *job, const char *dir)
{
	AUTO_FREE char *number = mem_printf("DLRUN_ATTEMPT=%d", job->attempt);
	AUTO_FREE char *files = attempt_mark(dir);
	AUTO_FREE char *hosts = mem_printf("DLRUN_HOSTFILE=%s/" HOSTFILE, dir);

	env_set(&job->env, number, false);
	env_set(&job->env, files, false);
	env_set(&job->env, hosts, false);
}

void attempt_next_done(struct attempt_next *next)
{
	if (next->dir)
		auto_fd(&next->lock_fd);
	free(next->dir);
	*next = (struct attempt_next){0};
}

static int fill_next(const struct attempt_job *job, const char *dir, struct err *err)
{
	AUTO_FREE char *exit_path = fs_join(dir, ATTEMPT_EXIT);

	/* The attempt was given up before it was locked: it can never begin. */
	if (access(exit_path, F_OK) == 0)
		return err_set(err, E_RUN_ENDED, "attempt %d has ended already", job->attempt);
	return attempt_job_write(dir, job, err);
}

int attempt_next_make(const char *dir, struct attempt_next *ret, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO(attempt_next_done) struct attempt_next next = {0};
	AUTO_FREE char *lock = NULL;

	int r = attempt_job_read(dir, &job, err);
	if (r < 0)
		return r;
	job.attempt++;
	job.world.retries--;
	AUTO_FREE char *at = attempt_sibling(dir, job.attempt);
	attempt_job_place(&job, at);
	r = attempt_make_dirs(at, job.outputs, err);
	lock = fs_join(at, ATTEMPT_LOCK);
	if (r == 0)
		r = fs_lock(lock, true, LOCK_WAIT_MS, &next.lock_fd, err);
	if (r < 0)
		return r;
	next.number = job.attempt;
	next.dir = TAKE(at);
	r = fill_next(&job, next.dir, err);
	if (r < 0)
		return r;
	*ret = next;
	next = (struct attempt_next){0};
	return 0;
}
