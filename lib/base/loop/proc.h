/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child processes: started without a shell, with only the descriptors that are named.
 */
#ifndef DLRUN_BASE_LOOP_PROC_H
#define DLRUN_BASE_LOOP_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/util/buf.h"
#include "base/util/err.h"

struct proc_spec {
	const char *const *argv; /* argv[0] is looked up on PATH unless it has a slash */
	const char *const *env;  /* NULL: this process's */
	const char *dir;         /* NULL: stay */
	int stdin_fd;            /* -1: /dev/null */
	int stdout_fd;           /* -1: /dev/null; 0…2 are copied as they are */
	int stderr_fd;
	bool new_session;
	bool is_command; /* of a user, who wants to know how exec failed: see proc_spawn */
};

/* The child starts with every signal at its default and none blocked. PATH is env's; the empty
 * elements of it and a relative argv[0] mean dir. As with execvp, a file that the kernel cannot run
 * goes to /bin/sh. exec's own failure is reported here, not as an exit status: E_RUN_EXEC, or
 * E_EXEC_NOT_FOUND and E_EXEC_NOT_EXECUTABLE of a command, with errno's text; a dir that cannot be
 * entered is E_IO. Blocks until exec. */
int proc_spawn(const struct proc_spec *spec, pid_t *ret_pid, struct err *err);

/* Run argv to its end in dir (NULL: here) with stdin from /dev/null and stdout into out; stderr is
 * thrown away. status: as wait(2). It runs in a session of its own, whose process group is killed
 * after timeout_ms (-1: no limit) or when its output cannot be read (both E_IO) or does not fit
 * into out (E_DATA_LIMIT). Blocks. */
int proc_capture(const char *const *argv, const char *dir, int64_t timeout_ms, struct buf *out,
	int *ret_status, struct err *err);

/* The same with more to say. */
struct proc_capture_spec {
	const char *const *argv, *const *env; /* as in struct proc_spec */
	const char *dir;
	int64_t timeout_ms;
	struct buf *errors; /* gets stderr; NULL: it is thrown away */
	bool drops;         /* what does not fit into the buffers is read and dropped */
	int cancel_fd;      /* when it can be read or is at its end: E_CANCELED; -1: none */
};
int proc_capture_with(
	const struct proc_capture_spec *spec, struct buf *out, int *ret_status, struct err *err);

/* In a forked child, before exec: every signal at its default. One that is ignored here would stay
 * ignored in the program. */
void proc_reset_signals(void);

/* The file that exec would take for name on the PATH of env (NULL: ours), or NULL. */
char *proc_find(const char *name, const char *path);

/* SIGTERM from "TERM", "SIGTERM" or "15"; 0 if there is no such signal. */
int proc_signal_number(const char *name);
/* "TERM"; "34" for one without a name. The buffer is static text or `out`. */
const char *proc_signal_name(int sig, char out[static 8]);

#endif
