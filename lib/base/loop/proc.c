/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"

extern char **environ;

enum { FD_SCAN_MAX = 4096, CHUNK = 16 << 10 };

/* Directories that execvp searches without a PATH, except the current one. */
static const char default_path[] = "/bin:/usr/bin";

/*
 * Looking up
 */

/* List every file that name may mean, in the order of path. */
static void list_candidates(const char *name, const char *path, struct strv *ret)
{
	if (strchr(name, '/')) {
		strv_add(ret, name);
		return;
	}
	for (const char *at = path;; at++) {
		size_t len = strcspn(at, ":");

		/* An empty element is the current directory. */
		if (len == 0)
			strv_addf(ret, "./%s", name);
		else
			strv_addf(ret, "%.*s/%s", (int)len, at, name);
		at += len;
		if (!*at)
			return;
	}
}

static const char *proc_path_of(const char *const *env)
{
	for (; *env; env++)
		if (str_starts(*env, "PATH="))
			return *env + strlen("PATH=");
	return default_path;
}

static const char *proc_own_path(void)
{
	return proc_path_of((const char *const *)environ);
}

static bool proc_is_program(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

char *proc_find(const char *name, const char *path)
{
	AUTO_STRV struct strv candidates = {0};

	if (!*name)
		return NULL;
	list_candidates(name, path ? path : proc_own_path(), &candidates);
	for (size_t i = 0; i < candidates.n; i++)
		if (proc_is_program(candidates.v[i]))
			return TAKE(candidates.v[i]);
	return NULL;
}

/*
 * Starting. Until exec the child makes async-signal-safe calls only (os_start_child), so everything
 * is made ready before.
 */

enum stage { STAGE_FDS, STAGE_DIR, STAGE_EXEC };

struct report {
	enum stage stage;
	int errnum;
};

struct child {
	const struct proc_spec *spec;
	struct strv candidates;
	const char **sh_argv; /* for a script without #!, as execvp does: [1] is filled in */
	char *const *env;
	int fds[3];
	int report_fd;
};

static _Noreturn void proc_child_fail(const struct child *child, enum stage stage)
{
	struct report report = {.stage = stage, .errnum = errno};

	while (write(child->report_fd, &report, sizeof(report)) < 0 && errno == EINTR)
		;
	_exit(127);
}

void proc_reset_signals(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};

	sigemptyset(&action.sa_mask);
	for (int sig = 1; sig < NSIG; sig++)
		sigaction(sig, &action, NULL);
}

/* A copy of the descriptor that is out of the way of 0 to 2. */
static int child_lift(struct child *child, int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	if (copy < 0)
		proc_child_fail(child, STAGE_FDS);
	return copy;
}

static void proc_child_place_fds(struct child *child)
{
	if (child->report_fd < 3)
		child->report_fd = child_lift(child, child->report_fd);
	for (int i = 0; i < 3; i++)
		if (child->fds[i] < 3 && child->fds[i] != i)
			child->fds[i] = child_lift(child, child->fds[i]);
	for (int i = 0; i < 3; i++) {
		int r = child->fds[i] == i ? fcntl(i, F_SETFD, 0) : dup2(child->fds[i], i);
		if (r < 0)
			proc_child_fail(child, STAGE_FDS);
	}
}

static void child_close_rest(void)
{
	if (os_cloexec_from(3))
		return;
	long max = sysconf(_SC_OPEN_MAX);
	if (max < 0 || max > FD_SCAN_MAX)
		max = FD_SCAN_MAX;
	for (int fd = 3; fd < max; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Whether execvp tries the next directory of PATH after this error. */
static bool proc_is_elsewhere(int errnum)
{
	return errnum == ENOENT || errnum == ENOTDIR || errnum == EACCES || errnum == ESTALE ||
	       errnum == ENODEV || errnum == ETIMEDOUT;
}

static _Noreturn void proc_child_exec(struct child *child)
{
	bool is_path = strchr(child->spec->argv[0], '/') != NULL;
	bool denied = false;

	for (size_t i = 0; i < child->candidates.n; i++) {
		const char *path = child->candidates.v[i];

		execve(path, (char *const *)child->spec->argv, child->env);
		if (errno == ENOEXEC) {
			child->sh_argv[1] = path;
			execve(child->sh_argv[0], (char *const *)child->sh_argv, child->env);
			errno = ENOEXEC;
		}
		denied |= errno == EACCES;
		if (is_path || !proc_is_elsewhere(errno))
			proc_child_fail(child, STAGE_EXEC);
	}
	errno = denied ? EACCES : ENOENT;
	proc_child_fail(child, STAGE_EXEC);
}

static int proc_child_run(void *ctx)
{
	struct child *child = ctx;
	sigset_t none;

	proc_reset_signals();
	proc_child_place_fds(child);
	child_close_rest();
	if (child->spec->new_session)
		setsid();
	if (child->spec->dir && chdir(child->spec->dir) < 0)
		proc_child_fail(child, STAGE_DIR);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	proc_child_exec(child);
}

/* Signals are blocked meanwhile, so that no handler of ours runs in the child. */
static pid_t start_child(struct child *child)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid_t pid = os_start_child(proc_child_run, child);
	int saved = errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = saved;
	return pid;
}

static int wait_status(pid_t pid)
{
	int status = 0;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

/* ENOENT for a file that exists means the interpreter that the file names. */
static bool is_interpreter_missing(const struct proc_spec *spec, int errnum)
{
	return errnum == ENOENT && strchr(spec->argv[0], '/') &&
	       (spec->argv[0][0] == '/' || !spec->dir) && access(spec->argv[0], F_OK) == 0;
}

static int fail_report(const struct proc_spec *spec, const struct report *report, struct err *err)
{
	AUTO_FREE char *name = str_escaped(spec->argv[0]);
	enum err_id id;

	if (report->stage == STAGE_DIR) {
		AUTO_FREE char *dir = str_escaped(spec->dir);
		return err_set_errno(err, E_IO, report->errnum, "cannot start %s in %s", name, dir);
	}
	if (report->stage == STAGE_FDS)
		return err_set_errno(
			err, E_IO, report->errnum, "cannot pass descriptors on to %s", name);
	id = !spec->is_command          ? E_RUN_EXEC
	     : report->errnum == ENOENT ? E_EXEC_NOT_FOUND
					: E_EXEC_NOT_EXECUTABLE;
	err_set_errno(err, id, report->errnum, "cannot run %s", name);
	if (is_interpreter_missing(spec, report->errnum))
		return err_evidence(err, "the file is there, but the interpreter of its first line "
					 "or its loader is not");
	return -(int)err_info(id)->code;
}

/* The pipe closes without a report when exec succeeds. */
static int read_report(const struct proc_spec *spec, int fd, pid_t pid, struct err *err)
{
	struct report report;
	ssize_t n;

	do
		n = read(fd, &report, sizeof(report));
	while (n < 0 && errno == EINTR);
	if (n == 0)
		return 0;
	if (n < 0) {
		/* The state of the child is not known. */
		report = (struct report){.stage = STAGE_FDS, .errnum = errno};
		kill(pid, SIGKILL);
	}
	wait_status(pid);
	return fail_report(spec, &report, err);
}

static int spawn_ready(struct child *child, pid_t *ret_pid, struct err *err)
{
	int report[2];
	int r = fs_pipe(report, 0, err);

	if (r < 0)
		return r;
	AUTO_FD int read_end = report[0];
	child->report_fd = report[1];
	pid_t pid = start_child(child);
	int saved = errno;
	close(report[1]);
	if (pid < 0)
		return err_set_errno(err, E_IO, saved, "cannot start a process");
	r = read_report(child->spec, read_end, pid, err);
	if (r == 0)
		*ret_pid = pid;
	return r;
}

static size_t proc_count_words(const char *const *argv)
{
	size_t n = 0;

	while (argv[n])
		n++;
	return n;
}

int proc_spawn(const struct proc_spec *spec, pid_t *ret_pid, struct err *err)
{
	struct child child = {
		.spec = spec,
		.env = spec->env ? (char *const *)spec->env : environ,
		.fds = {spec->stdin_fd, spec->stdout_fd, spec->stderr_fd},
	};
	size_t n = proc_count_words(spec->argv);
	AUTO_FD int null_fd = -1;

	BUG_ON(n == 0);
	for (int i = 0; i < 3; i++) {
		if (child.fds[i] >= 0)
			continue;
		if (null_fd < 0)
			null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (null_fd < 0)
			return err_set_errno(err, E_IO, errno, "cannot open /dev/null");
		child.fds[i] = null_fd;
	}
	AUTO_FREE const char **sh_argv = mem_alloc(n + 2, sizeof(*sh_argv));
	sh_argv[0] = "/bin/sh";
	memcpy(&sh_argv[2], &spec->argv[1], (n - 1) * sizeof(*sh_argv));
	child.sh_argv = sh_argv;
	if (*spec->argv[0])
		list_candidates(spec->argv[0], proc_path_of((const char *const *)child.env),
			&child.candidates);
	int r = spawn_ready(&child, ret_pid, err);
	strv_done(&child.candidates);
	return r;
}

/*
 * Capturing
 */

enum { CAPTURE_OUT, CAPTURE_ERRORS, CAPTURES };

struct capture {
	const struct proc_capture_spec *spec;
	const char *name; /* of the program, as it may be shown */
	int64_t deadline_ms;
	int fds[CAPTURES]; /* -1: at its end, or none */
	struct buf *texts[CAPTURES];
};

/* Milliseconds for one wait: a second at most, because a laptop may sleep meanwhile. */
static int ms_left(const struct capture *capture)
{
	int64_t left = capture->deadline_ms - clock_ms();

	return left < 0 ? 0 : left > 1000 ? 1000 : (int)left;
}

static int proc_fail_late(const struct capture *capture, struct err *err)
{
	char time[32];

	return err_set(err, E_IO, "%s did not end within %s", capture->name,
		duration_text(capture->spec->timeout_ms, time));
}

static int proc_fail_read(const struct capture *capture, struct err *err)
{
	return err_set_errno(err, E_IO, errno, "cannot read the output of %s", capture->name);
}

static int proc_read_some(struct capture *capture, int i, struct err *err)
{
	char chunk[CHUNK];
	ssize_t n = read(capture->fds[i], chunk, sizeof(chunk));

	if (n < 0)
		return errno == EINTR ? 0 : proc_fail_read(capture, err);
	if (n == 0)
		close(TAKE_FD(capture->fds[i]));
	buf_add(capture->texts[i], chunk, (size_t)n);
	if (!capture->texts[i]->full || capture->spec->drops)
		return 0;
	AUTO_FREE char *what = mem_printf("the output of %s", capture->name);
	return buf_check(capture->texts[i], what, err);
}

/* Read everything until the end of both pipes. */
static int proc_read_all(struct capture *capture, struct err *err)
{
	while (capture->fds[CAPTURE_OUT] >= 0 || capture->fds[CAPTURE_ERRORS] >= 0) {
		struct pollfd fds[CAPTURES + 1] = {
			{.fd = capture->spec->cancel_fd, .events = POLLIN}};
		int left = ms_left(capture);

		for (int i = 0; i < CAPTURES; i++)
			fds[i + 1] = (struct pollfd){.fd = capture->fds[i], .events = POLLIN};
		int n = poll(fds, CAPTURES + 1, left);
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return proc_fail_read(capture, err);
		if (n == 0 && left == 0)
			return proc_fail_late(capture, err);
		if (n > 0 && fds[0].revents)
			return err_set(err, E_CANCELED, "running %s: interrupted", capture->name);
		for (int i = 0; i < CAPTURES; i++)
			if (n > 0 && fds[i + 1].revents)
				ERR_TRY(proc_read_some(capture, i, err));
	}
	return 0;
}

/* POSIX has no wait with a deadline. A program that has closed its output is about to end, so poll
 * quickly at first. */
static int wait_end(const struct capture *capture, pid_t pid, int *ret_status, struct err *err)
{
	long pause_us = 100;

	for (;;) {
		pid_t r = waitpid(pid, ret_status, WNOHANG);

		if (r == pid)
			return 0;
		if (r < 0 && errno != EINTR) {
			/* With SIGCHLD ignored the status is lost; do not report success. */
			*ret_status = 255 << 8;
			return 0;
		}
		if (ms_left(capture) == 0)
			return proc_fail_late(capture, err);
		nanosleep(&(struct timespec){.tv_nsec = pause_us * 1000}, NULL);
		pause_us = pause_us < 10000 ? pause_us * 2 : pause_us;
	}
}

static int proc_capture_start(struct capture *capture, pid_t *ret_pid, struct err *err)
{
	const struct proc_capture_spec *spec = capture->spec;
	int theirs[CAPTURES] = {-1, -1}, r = 0;

	for (int i = 0; i < CAPTURES && r == 0; i++) {
		int fds[2] = {-1, -1};

		if (capture->texts[i])
			r = fs_pipe(fds, 0, err);
		capture->fds[i] = fds[0];
		theirs[i] = fds[1];
	}
	if (r == 0)
		r = proc_spawn(&(struct proc_spec){.argv = spec->argv,
				       .env = spec->env,
				       .dir = spec->dir,
				       .stdin_fd = -1,
				       .stdout_fd = theirs[CAPTURE_OUT],
				       .stderr_fd = theirs[CAPTURE_ERRORS],
				       .new_session = true},
			ret_pid, err);
	for (int i = 0; i < CAPTURES; i++)
		if (theirs[i] >= 0)
			close(theirs[i]);
	return r;
}

int proc_capture_with(
	const struct proc_capture_spec *spec, struct buf *out, int *ret_status, struct err *err)
{
	AUTO_FREE char *name = str_escaped(spec->argv[0]);
	struct capture capture = {.spec = spec,
		.name = name,
		.deadline_ms = clock_deadline(spec->timeout_ms),
		.fds = {-1, -1},
		.texts = {out, spec->errors}};
	int status = 0;
	pid_t pid = 0;
	int r = proc_capture_start(&capture, &pid, err);

	if (r == 0)
		r = proc_read_all(&capture, err);
	if (r == 0)
		r = wait_end(&capture, pid, &status, err);
	if (r < 0 && pid > 0) {
		/* The program leads its own session and process group: its children end with it. */
		kill(-pid, SIGKILL);
		wait_status(pid);
	}
	for (int i = 0; i < CAPTURES; i++)
		if (capture.fds[i] >= 0)
			close(capture.fds[i]);
	if (r == 0)
		*ret_status = status;
	return r;
}

int proc_capture(const char *const *argv, const char *dir, int64_t timeout_ms, struct buf *out,
	int *ret_status, struct err *err)
{
	const struct proc_capture_spec spec = {
		.argv = argv, .dir = dir, .timeout_ms = timeout_ms, .cancel_fd = -1};

	return proc_capture_with(&spec, out, ret_status, err);
}

/*
 * Names of signals
 */

static const struct {
	int sig;
	const char *name;
} signal_names[] = {
	{SIGABRT, "ABRT"},
	{SIGALRM, "ALRM"},
	{SIGBUS, "BUS"},
	{SIGCHLD, "CHLD"},
	{SIGCONT, "CONT"},
	{SIGFPE, "FPE"},
	{SIGHUP, "HUP"},
	{SIGILL, "ILL"},
	{SIGINT, "INT"},
	{SIGKILL, "KILL"},
	{SIGPIPE, "PIPE"},
	{SIGPROF, "PROF"},
#ifdef SIGPWR
	{SIGPWR, "PWR"},
#endif
	{SIGQUIT, "QUIT"},
	{SIGSEGV, "SEGV"},
	{SIGSTOP, "STOP"},
#ifdef SIGSTKFLT
	{SIGSTKFLT, "STKFLT"},
#endif
	{SIGSYS, "SYS"},
	{SIGTERM, "TERM"},
	{SIGTRAP, "TRAP"},
	{SIGTSTP, "TSTP"},
	{SIGTTIN, "TTIN"},
	{SIGTTOU, "TTOU"},
	{SIGURG, "URG"},
	{SIGUSR1, "USR1"},
	{SIGUSR2, "USR2"},
	{SIGVTALRM, "VTALRM"},
#ifdef SIGIO
	{SIGIO, "IO"},
#endif
#ifdef SIGWINCH
	{SIGWINCH, "WINCH"},
#endif
	{SIGXCPU, "XCPU"},
	{SIGXFSZ, "XFSZ"},
};

int proc_signal_number(const char *name)
{
	int64_t number;

	if (!name)
		return 0;
	if (str_to_int(name, 1, NSIG - 1, "signal", &number, NULL) == 0)
		return (int)number;
	if (strncasecmp(name, "SIG", 3) == 0)
		name += 3;
	for (size_t i = 0; i < ARRAY_LEN(signal_names); i++)
		if (strcasecmp(name, signal_names[i].name) == 0)
			return signal_names[i].sig;
	return 0;
}

const char *proc_signal_name(int sig, char out[static 8])
{
	for (size_t i = 0; i < ARRAY_LEN(signal_names); i++)
		if (sig == signal_names[i].sig)
			return signal_names[i].name;
	snprintf(out, 8, "%d", sig);
	return out;
}
