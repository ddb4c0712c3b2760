#include "run/program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/proc.h"
#include "base/str.h"
#include "run/words.h"

enum { FD_SCAN_MAX = 4096 };

void program_env(const struct attempt_job *job, const char *const *inherited, const char *cwd,
	struct strv *ret)
{
	AUTO_FREE char *pwd = mem_printf("PWD=%s", cwd);

	for (; inherited && *inherited; inherited++)
		strv_add(ret, *inherited);
	for (size_t i = 0; i < job->defaults.n; i++)
		env_set(ret, job->defaults.v[i], true);
	for (size_t i = 0; i < job->env.n; i++)
		env_set(ret, job->env.v[i], false);
	env_set(ret, pwd, false);
	env_unset(ret, "OLDPWD");
}

/*
 * The child. This process has one thread, so that memory may be allocated after the fork.
 */

struct child {
	const struct program_spec *spec;
	char **argv;
	char **env;
	int gate_fd, report_fd;
};

static _Noreturn void child_fail(const struct child *child, int errnum)
{
	while (write(child->report_fd, &errnum, sizeof(errnum)) < 0 && errno == EINTR)
		;
	_exit(127);
}

/* What the supervisor ignores would stay ignored in the program. */
static void child_reset_signals(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;

	sigemptyset(&action.sa_mask);
	for (int sig = 1; sig < NSIG; sig++)
		sigaction(sig, &action, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static int child_place_fds(const struct child *child)
{
	AUTO_FD int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(child->spec->output_fd, 1) < 0 ||
		dup2(child->spec->output_fd, 2) < 0)
		return errno;
	if (os_cloexec_from(3))
		return 0;
	for (int fd = 3; fd < FD_SCAN_MAX; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	return 0;
}

/* Whether the supervisor has let us go; false when it died. */
static bool child_wait(const struct child *child)
{
	ssize_t n;
	char c;

	do
		n = read(child->gate_fd, &c, 1);
	while (n < 0 && errno == EINTR);
	return n == 1;
}

/* A script without #! is one for sh, as for execvp. */
static void child_exec_sh(const struct child *child, const char *path)
{
	size_t n = 0;

	while (child->argv[n])
		n++;
	char **argv = mem_alloc(n + 2, sizeof(*argv));
	memcpy(argv + 1, child->argv, n * sizeof(*argv));
	argv[0] = (char[]){"/bin/sh"};
	argv[1] = (char *)path;
	execve(argv[0], argv, child->env);
	free(argv);
}

/* Returns an errno. PATH is the program's, and its relative parts are seen from its directory. */
static int child_exec(const struct child *child)
{
	const char *name = child->argv[0];
	const char *path = env_get((const char *const *)child->env, "PATH");
	AUTO_FREE char *found = proc_find(name, path ? path : "/bin:/usr/bin");

	if (!found)
		return strchr(name, '/') && access(name, F_OK) == 0 ? EACCES : ENOENT;
	execve(found, child->argv, child->env);
	if (errno == ENOEXEC)
		child_exec_sh(child, found);
	return errno;
}

static _Noreturn void child_run(const struct child *child)
{
	close(child->spec->lock_fd);
	setsid();
	os_family_enter(child->spec->family);
	if (!child_wait(child))
		_exit(125);
	child_reset_signals();
	int errnum = child_place_fds(child);
	if (errnum)
		child_fail(child, errnum);
	if (chdir(child->spec->cwd) < 0)
		child_fail(child, errno);
	child_fail(child, child_exec(child));
}

/*
 * The supervisor's side
 */

static int make_pipe(int fds[2], struct err *err)
{
	int r = os_pipe(fds, 0);

	return r < 0 ? err_set_errno(err, E_IO, -r, "cannot make a pipe") : 0;
}

static void set_command(const struct attempt_job *job, struct strv *ret)
{
	if (!job->shell) {
		strv_copy(ret, &job->command);
		return;
	}
	strv_add(ret, "/bin/sh");
	strv_add(ret, "-c");
	strv_add(ret, job->command.v[0]);
}

int program_fork(const struct program_spec *spec, struct program *ret, struct err *err)
{
	AUTO_STRV struct strv command = {0};
	int gate[2], report[2];

	set_command(spec->job, &command);
	int r = make_pipe(gate, err);
	if (r < 0)
		return r;
	AUTO_FD int gate_read = gate[0], gate_write = gate[1];
	r = make_pipe(report, err);
	if (r < 0)
		return r;
	AUTO_FD int report_read = report[0], report_write = report[1];
	pid_t pid = fork();
	if (pid < 0)
		return err_set_errno(err, E_RUN_START, errno, "cannot start a process");
	if (pid == 0) {
		/* Else the death of the supervisor would not be seen. */
		close(gate_write);
		child_run(&(struct child){spec, command.v, spec->env->v, gate_read, report_write});
	}
	*ret = (struct program){
		.pid = pid, .gate_fd = TAKE_FD(gate_write), .report_fd = TAKE_FD(report_read)};
	return 0;
}

int program_release(struct program *program)
{
	int errnum = 0;
	ssize_t n;

	do
		n = write(program->gate_fd, "", 1);
	while (n < 0 && errno == EINTR);
	close(program->gate_fd);
	do
		n = read(program->report_fd, &errnum, sizeof(errnum));
	while (n < 0 && errno == EINTR);
	close(program->report_fd);
	program->gate_fd = program->report_fd = -1;
	return n == sizeof(errnum) ? errnum : 0;
}
