/*
 * Starting the program of an attempt: its environment, and a process in a session and cgroup of its
 * own that executes it once the supervisor has written down who it is.
 */
#ifndef DLRUN_RUN_PROGRAM_H
#define DLRUN_RUN_PROGRAM_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/os.h"
#include "base/vec.h"
#include "run/attempt.h"

/* What the program gets: inherited (NULL-ended), then the job's defaults where nothing is set, then
 * its env. PWD is cwd, OLDPWD goes. */
void program_env(const struct attempt_job *job, const char *const *inherited, const char *cwd,
	struct strv *ret);

struct program {
	pid_t pid;
	int gate_fd;   /* until program_release: the child waits for a byte */
	int report_fd; /* tells of a failing exec, or closes */
};

struct program_spec {
	const struct attempt_job *job;
	const struct strv *env;
	const char *cwd; /* absolute */
	int output_fd;   /* its stdout and stderr */
	int lock_fd;     /* closed in the child at once: nobody else may seem to hold the lock */
	const struct os_family *family; /* may be empty */
};

/* Fork. The child stops before exec; if this process dies before program_release, it ends. */
int program_fork(const struct program_spec *spec, struct program *ret, struct err *err);
/* Let it go on. Returns 0 when exec succeeded, else its errno. */
int program_release(struct program *program);

#endif
