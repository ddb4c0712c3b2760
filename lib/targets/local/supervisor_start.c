/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervisor_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect.h"
#include "targets/local/program.h"

enum { DEFAULT_PORT = 29500 /* torchrun's */, SPARE_MS = 2000 };

/* Choose a port that is free now; if another process takes it meanwhile, the program fails with a
 * clear message. */
static int free_port(void)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	AUTO_FD int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		getsockname(fd, (struct sockaddr *)&address, &len) < 0)
		return DEFAULT_PORT;
	return ntohs(address.sin_port);
}

/* Whether name is a path of a file that is there, seen from the program's directory. */
static bool is_file(const struct supervisor *sup, const char *name)
{
	AUTO_FREE char *cwd = fs_join(ATTEMPT_TREE, sup->job->cwd), *path = fs_join(cwd, name);

	return strchr(name, '/') && access(path, F_OK) == 0;
}

static void exec_failed(struct supervisor *sup, int errnum)
{
	const char *name = sup->job->shell ? "/bin/sh" : sup->job->command.v[0];
	bool missing = errnum == ENOENT || errnum == ENOTDIR;
	AUTO_FREE char *shown = str_escaped(name), *text = NULL, *line = NULL;

	if (missing && is_file(sup, name))
		text = mem_printf("%s: its interpreter or loader is missing", shown);
	else if (missing)
		text = mem_printf(
			"%s: %s", shown, strchr(name, '/') ? "no such file" : "command not found");
	else
		text = mem_printf("%s: %s", shown, strerror(errnum));
	line = mem_printf("dlrun: %s\n", text);
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, line, strlen(line), NULL);
	/* Until it is gone its cgroup cannot be removed. */
	waitpid(sup->state.program.pid, NULL, 0);
	sup_finish_as(
		sup, RUN_FAILED, missing ? 127 : 126, missing ? "NotFound" : "NotExecutable", text);
}

void sup_start_failed(struct supervisor *sup, const struct err *err)
{
	const char *text = err->message ? err->message : "it could not be started";
	AUTO_FREE char *line = mem_printf("dlrun: %s\n", text);

	sup_note(sup, "not started: %s", text);
	/* Half a tree is of no use, and may be what the disk is full of. */
	fs_remove_tree(AT_FDCWD, ATTEMPT_TEMP, NULL);
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, line, strlen(line), NULL);
	sup_finish_as(sup, RUN_FAILED, 125, "StartFailed", text);
}

/* Warn of limits that the run requested and that are not enforced. */
static void warn_of_limits(struct supervisor *sup)
{
	const struct os_limits *limits = &sup->job->limits;
	unsigned enforced = sup->state.family.enforced;
	bool memory = limits->memory_bytes && !(enforced & OS_LIMIT_MEMORY);
	bool cpus = limits->cpus_milli && !(enforced & OS_LIMIT_CPUS);

	if (!memory && !cpus)
		return;
	snprintf(sup->state.warning, sizeof(sup->state.warning),
		"%s%s%s: not enforced, no writable cgroup here has the %s%s%s controller%s",
		memory ? "--memory" : "", memory && cpus ? " and " : "", cpus ? "--cpus" : "",
		memory ? "memory" : "", memory && cpus ? " and " : "", cpus ? "cpu" : "",
		memory && cpus ? "s" : "");
	sup_note(sup, "%s", sup->state.warning);
}

void sup_make_family(struct supervisor *sup)
{
	/* Include our pid: another state directory may have a run of the same id. */
	AUTO_FREE char *name = mem_printf("dlrun-%s-%d-%ld", sup->job->run_id, sup->job->attempt,
		(long)sup->state.supervisor.pid);

	/* The setup may have made it. */
	if (os_family_is(&sup->state.family))
		return;
	sup->state.family = (struct os_family){{0}};
	if (sup->job->cgroup)
		os_family_create(&sup->state.family, name, &sup->job->limits);
	warn_of_limits(sup);
}

/* Remove a cgroup that the program could not enter, or has left already: it does not show the
 * family. */
void sup_check_family(struct supervisor *sup)
{
	if (!os_family_is(&sup->state.family) || !os_family_is_empty(&sup->state.family))
		return;
	/* A program that has ended already was in the cgroup, whose count of OOM kills is still
	 * needed. */
	if (!attempt_process_alive(&sup->state.program))
		return;
	os_family_remove(&sup->state.family);
	attempt_state_write(".", &sup->state, NULL);
}

static void set_env(const struct supervisor *sup, struct strv *ret)
{
	AUTO_FREE char *port = mem_printf("MASTER_PORT=%d", free_port());

	program_env(sup->job, sup->inherited, sup->tree, ret);
	sup_setup_env(sup, ret);
	sup_gpus_env(sup, ret);
	env_set(ret, port, true);
}

static int fork_program(struct supervisor *sup, struct program *ret, struct err *err)
{
	AUTO_FREE char *cwd = fs_join(sup->tree, sup->job->cwd);
	AUTO_STRV struct strv env = {0}, command = {0};
	size_t n_keep;
	const int *keep = sup_gpus_fds(sup, &n_keep);

	set_env(sup, &env);
	program_command(sup->job, &env, sup->tree, &command);
	sup_make_family(sup);
	sup_count_kills(sup);
	struct program_spec spec = {
		.command = &command,
		.env = &env,
		.cwd = cwd,
		.output_fd = sup->log_fd,
		.lock_fd = sup->lock_fd,
		.keep = keep,
		.n_keep = n_keep,
		.family = &sup->state.family,
	};
	return program_fork(&spec, ret, err);
}

static int on_spare_due(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)err;
	sup_ask_spare(sup);
	return 0;
}

void sup_ask_spare(struct supervisor *sup)
{
	if (!sup->wants_spare)
		return;
	sup->wants_spare = false;
	if (write(sup->worker_fd, (char[]){WORKER_SPARE}, 1) < 0)
		sup_note(sup, "no spare tree is made: %s", strerror(errno));
}

void sup_start_program(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};
	struct program program;

	if (fork_program(sup, &program, &err) < 0) {
		sup_start_failed(sup, &err);
		return;
	}
	sup->phase = PHASE_RUNNING;
	sup->child = program.pid;
	sup->state.state = RUN_RUNNING;
	sup->state.text[0] = '\0';
	sup->state.program = (struct attempt_process){
		.pid = program.pid, .start = os_process_start(program.pid)};
	sup->state.started_ms = clock_wall_ms();
	if (attempt_state_write(".", &sup->state, &err) < 0)
		sup_note(sup, "%s", err.message);
	sup_mark_log(sup);
	collect_pass_mark(".");
	int errnum = program_release(&program);
	if (errnum) {
		exec_failed(sup, errnum);
		return;
	}
	sup_note(sup, "started, pid %ld", (long)program.pid);
	sup_check_family(sup);
	sup_set_limit(sup);
	sup_observe_begin(sup);
	sup->wants_spare = sup->job->spares != NULL;
	loop_add_timer(sup->loop, clock_ms() + SPARE_MS, on_spare_due, sup);
	sup_look_for_cancel(sup);
}
