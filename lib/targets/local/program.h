/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting the program of an attempt: its environment, and a process in a session and cgroup of its
 * own that executes it once the supervisor has written down who it is.
 */
#ifndef DLRUN_TARGETS_LOCAL_PROGRAM_H
#define DLRUN_TARGETS_LOCAL_PROGRAM_H

#include <stdint.h>
#include <sys/types.h>

#include "base/os/os.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/attempt/attempt.h"

/* The environment of the program: inherited (NULL-ended), then the job's defaults where nothing is
 * set, then its env; its python_paths below tree in front of PYTHONPATH. PWD is its directory below
 * tree (absolute), OLDPWD is removed. */
void program_env(const struct attempt_job *job, const char *const *inherited, const char *tree,
	struct strv *ret);

/* The job of a rank whose run has roles, as of a run that has only its role, with the variables
 * that tell of roles in its env. All but ret->spec stays job's: end it by spec_done(&ret->spec). */
int program_role_job(
	const struct attempt_job *job, int rank, struct attempt_job *ret, struct err *err);

/* Write $DLRUN_HOSTFILE of such a job. */
int program_write_hosts(const struct attempt_job *job, struct err *err);

/* Set the variables of a rank, of a job of several nodes; port: where the ranks meet, 0: keep that
 * of env. Those that the user set stay. */
void program_rank_env(const struct attempt_job *job, int number, uint16_t port, struct strv *env);

/* The words to execute: the job's own or its launcher's, a line for /bin/sh, or with `before` a
 * line for bash (on the PATH of env; else /bin/sh) that ends in them. A shell that stays in front
 * of a line takes no notice of the job's signal, which is meant for what it has started. */
void program_command(
	const struct attempt_job *job, const struct strv *env, const char *tree, struct strv *ret);
/* The line that the shell in front of the words of a part of the job's run prints before it exits
 * with 127, if the program is not on the PATH that `before` has made, or that a launcher has. NULL:
 * the shell prints no such line. The caller frees. */
char *program_not_found(const struct attempt_job *job, const struct roles_part *part);

struct program {
	pid_t pid;
	int gate_fd;   /* until program_release: the child waits for a byte */
	int report_fd; /* tells of a failing exec, or closes */
};

struct program_spec {
	const struct strv *command; /* argv[0] is looked up on the PATH of env, from cwd */
	const struct strv *env;
	const char *cwd; /* absolute */
	int output_fd;   /* its stdout and stderr */
	int lock_fd; /* closed in the child at once: no other process may seem to hold the lock */
	const int *keep; /* further descriptors that it inherits; above 2 */
	size_t n_keep;
	const struct os_family *family; /* may be empty */
};

/* Fork. The child stops before exec; if this process dies before program_release, it ends. */
int program_fork(const struct program_spec *spec, struct program *ret, struct err *err);
/* Let the child continue. Returns 0 when exec succeeded, else its errno. */
int program_release(struct program *program);

#endif
