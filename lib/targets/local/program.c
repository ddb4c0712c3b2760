/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "targets/local/runtime_mount.h"

enum { FD_SCAN_MAX = 4096, PYTHONPATH_MAX = 128 << 10 };

/* Behind `before`, which may have made another PATH. */
static const char exec_lines[] =
	"case $1 in */*) ;; *) command -v -- \"$1\" >/dev/null || {\n"
	"printf 'dlrun: %s: command not found\\n' \"$1\" >&2; exit 127; } ;; esac\n"
	"exec \"$@\"";

/*
 * The environment
 */

static void add_python_paths(const struct attempt_job *job, const char *tree, struct strv *env)
{
	const struct strv *paths = &job->spec.runtime.python_paths;
	const char *before = env->n ? env_get((const char *const *)env->v, "PYTHONPATH") : NULL;
	AUTO_BUF struct buf value = buf_with(PYTHONPATH_MAX);

	if (paths->n == 0 && job->spec.runtime.python_aliases.n == 0)
		return;
	buf_adds(&value, "PYTHONPATH=");
	if (job->spec.runtime.python_aliases.n > 0) {
		AUTO_FREE char *packages = runtime_packages_dir(tree);
		buf_addf(&value, "%s%s", packages, paths->n ? ":" : "");
	}
	for (size_t i = 0; i < paths->n; i++) {
		AUTO_FREE char *path = fs_join(tree, paths->v[i]);
		buf_addf(&value, "%s%s", i ? ":" : "", path);
	}
	if (!str_empty(before))
		buf_addf(&value, ":%s", before);
	if (buf_check(&value, "PYTHONPATH", NULL) == 0)
		env_set(env, value.data, false);
}

void program_env(const struct attempt_job *job, const char *const *inherited, const char *tree,
	struct strv *ret)
{
	AUTO_FREE char *cwd = fs_join(tree, job->spec.cwd);
	AUTO_FREE char *pwd = mem_printf("PWD=%s", cwd);

	for (; inherited && *inherited; inherited++)
		strv_add(ret, *inherited);
	for (size_t i = 0; i < job->defaults.n; i++)
		env_set(ret, job->defaults.v[i], true);
	for (size_t i = 0; i < job->spec.env.n; i++) {
		AUTO_FREE char *pair = words_in_tree(job->spec.env.v[i], tree);
		env_set(ret, pair, false);
	}
	add_python_paths(job, tree, ret);
	env_set(ret, pwd, false);
	env_unset(ret, "OLDPWD");
}

#define PROGRAM_HOSTFILE "DLRUN_HOSTFILE"

static const char *program_hostfile(const struct attempt_job *job)
{
	const struct strv *env = &job->spec.env;
	const char *path = env->n ? env_get((const char *const *)env->v, PROGRAM_HOSTFILE) : NULL;

	return path ? path : "";
}

int program_write_hosts(const struct attempt_job *job, struct err *err)
{
	return attempt_write_hosts(program_hostfile(job), job->spec.resources.nodes, err);
}

int program_role_job(
	const struct attempt_job *job, int rank, struct attempt_job *ret, struct err *err)
{
	AUTO_STRV struct strv addresses = {0}, own = {0}, pairs = {0};
	struct roles_part part;

	roles_of_rank(&job->spec, rank, &part);
	for (int i = 0; i < job->spec.resources.nodes; i++)
		strv_add(&addresses, ATTEMPT_ADDRESS);
	for (int i = 0; i < part.nodes; i++)
		strv_add(&own, ATTEMPT_ADDRESS);
	AUTO_FREE char *group = strv_join(&own, ",");
	*ret = *job;
	int r = spec_of_role(&job->spec, part.index, &addresses, &ret->spec, err);
	if (r < 0)
		return r;
	roles_add_env(&job->spec, rank, &addresses, &pairs);
	strv_addf(&pairs, "DLRUN_NODE_ADDRS=%s", group);
	strv_addf(&pairs, PROGRAM_HOSTFILE "=%s-%s", program_hostfile(job), part.name);
	for (size_t i = 0; i < pairs.n; i++)
		env_set(&ret->spec.env, pairs.v[i], false);
	return 0;
}

void program_rank_env(const struct attempt_job *job, int number, uint16_t port, struct strv *env)
{
	int nodes = job->spec.resources.nodes, gpus = job->spec.runtime.gpus;
	const struct strv *own = &job->spec.env;
	const char *const *typed = own->n ? (const char *const *)own->v : NULL;
	const char *address = typed ? env_get(typed, "MASTER_ADDR") : NULL;
	const char *master_port = typed ? env_get(typed, "MASTER_PORT") : NULL;
	AUTO_FREE char *chosen = port ? mem_printf("%u", port) : NULL;
	AUTO_STRV struct strv pairs = {0};

	master_port = master_port ? master_port : chosen;
	address = address ? address : ATTEMPT_ADDRESS;
	strv_addf(&pairs, "MASTER_ADDR=%s", address);
	strv_addf(&pairs, "PET_MASTER_ADDR=%s", address);
	if (master_port) {
		strv_addf(&pairs, "MASTER_PORT=%s", master_port);
		strv_addf(&pairs, "PET_MASTER_PORT=%s", master_port);
	}
	strv_addf(&pairs, "NNODES=%d", nodes);
	strv_addf(&pairs, "PET_NNODES=%d", nodes);
	strv_addf(&pairs, "NODE_RANK=%d", number);
	strv_addf(&pairs, "PET_NODE_RANK=%d", number);
	if (gpus > 0)
		strv_addf(&pairs, "PET_NPROC_PER_NODE=%d", gpus);
	/* A shell knows nothing of them: whatever it says is left from something else. */
	for (size_t i = 0; i < pairs.n; i++) {
		AUTO_FREE char *name = mem_strndup(pairs.v[i], strcspn(pairs.v[i], "="));
		if (!typed || !env_get(typed, name))
			env_set(env, pairs.v[i], false);
	}
}

/*
 * The command
 */

static void program_add_words(const struct attempt_job *job, const char *tree, struct strv *ret)
{
	AUTO_STRV struct strv words = {0};

	launcher_words(&job->spec.runtime.launcher, &job->spec.command, &words);
	for (size_t i = 0; i < words.n; i++)
		strv_add_take(ret, words_in_tree(words.v[i], tree));
}

void program_command(
	const struct attempt_job *job, const struct strv *env, const char *tree, struct strv *ret)
{
	const char *before = job->spec.runtime.before;
	const char *path = env->n ? env_get((const char *const *)env->v, "PATH") : NULL;
	AUTO_FREE char *bash = before ? proc_find("bash", path ? path : "/bin") : NULL;

	if (!job->spec.shell && !before) {
		program_add_words(job, tree, ret);
		return;
	}
	/* An empty trap keeps the shell alive and is not inherited by what it executes. */
	AUTO_FREE char *trap = job->spec.runtime.signal
				       ? mem_printf("trap : %d\n", job->spec.runtime.signal)
				       : NULL;
	strv_add(ret, bash ? bash : "/bin/sh");
	strv_add(ret, "-c");
	strv_addf(ret, "%s%s%s%s", trap ? trap : "", before ? before : "", before ? "\n" : "",
		job->spec.shell ? job->spec.command.v[0] : exec_lines);
	if (job->spec.shell)
		return;
	strv_add(ret, "dlrun");
	program_add_words(job, tree, ret);
}

char *program_not_found(const struct attempt_job *job, const struct roles_part *part)
{
	const char *name = part->command->v[0];
	const struct runtime *runtime = &job->spec.runtime;
	bool has_shell = runtime->before || runtime->launcher.kind != LAUNCHER_NONE;

	if (part->shell || !has_shell || strchr(name, '/'))
		return NULL;
	return mem_printf("dlrun: %s: command not found\n", name);
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

static _Noreturn void program_child_fail(const struct child *child, int errnum)
{
	while (write(child->report_fd, &errnum, sizeof(errnum)) < 0 && errno == EINTR)
		;
	_exit(127);
}

static int program_child_place_fds(const struct child *child)
{
	AUTO_FD int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(child->spec->output_fd, 1) < 0 ||
		dup2(child->spec->output_fd, 2) < 0)
		return errno;
	for (int fd = os_cloexec_from(3) ? FD_SCAN_MAX : 3; fd < FD_SCAN_MAX; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	for (size_t i = 0; i < child->spec->n_keep; i++)
		fcntl(child->spec->keep[i], F_SETFD, 0);
	return 0;
}

/* Whether the supervisor has let us go; false when it died. */
static bool program_child_wait(const struct child *child)
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
static int program_child_exec(const struct child *child)
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

static _Noreturn void program_child_run(const struct child *child)
{
	sigset_t none;

	close(child->spec->lock_fd);
	setsid();
	if (!program_child_wait(child))
		_exit(125);
	proc_reset_signals();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	int errnum = program_child_place_fds(child);
	if (errnum)
		program_child_fail(child, errnum);
	if (chdir(child->spec->cwd) < 0)
		program_child_fail(child, errno);
	program_child_fail(child, program_child_exec(child));
}

/*
 * The supervisor's side
 */

int program_fork(const struct program_spec *spec, struct program *ret, struct err *err)
{
	int gate[2], report[2];

	int r = fs_pipe(gate, 0, err);
	if (r < 0)
		return r;
	AUTO_FD int gate_read = gate[0], gate_write = gate[1];
	r = fs_pipe(report, 0, err);
	if (r < 0)
		return r;
	AUTO_FD int report_read = report[0], report_write = report[1];
	pid_t pid = os_family_fork(spec->family);
	if (pid < 0)
		return err_set_errno(err, E_RUN_START, errno, "cannot start a process");
	if (pid == 0) {
		/* Else the death of the supervisor would not be seen. */
		close(gate_write);
		program_child_run(&(struct child){
			spec, spec->command->v, spec->env->v, gate_read, report_write});
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
