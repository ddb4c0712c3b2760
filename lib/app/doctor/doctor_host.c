/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/doctor/doctor_checks.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu.h"

/*
 * Checks of the machine and the shell.
 */

enum { ASK_MS = 3000, GPU_MS = 6000, ANSWER_MAX = 64 << 10, GPUS_SHOWN = 8 };
enum { FILES_FEW = 1024, FILES_WANTED = 4096 };

static const char *variable(const struct doctor *doctor, const char *name)
{
	const char *value = env_get(doctor->session->env.env, name);

	return str_empty(value) ? NULL : value;
}

/* The first line that a program prints, or NULL: it is not there, fails or hangs. */
static char *first_line(const char *const *argv)
{
	AUTO_BUF struct buf out;
	int status;

	buf_init(&out, ANSWER_MAX);
	if (proc_capture(argv, "/", ASK_MS, &out, &status, NULL) < 0 || status != 0)
		return NULL;
	return mem_strndup(out.data, strcspn(out.data, "\n"));
}

/*
 * git
 */

int doctor_git(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_FREE char *path = proc_find("git", variable(doctor, "PATH"));
	AUTO_FREE char *version = NULL;

	(void)err;
	if (!path) {
		doctor_found(row, "none on PATH");
		doctor_blame(row, DOCTOR_WARNING, "install git: https://git-scm.com/downloads",
			"repositories of newer formats (SHA-256, reftable) are read by git");
		return 0;
	}
	version = first_line((const char *const[]){path, "--version", NULL});
	doctor_found(row, "%s (%s)", version ? version : "git", path);
	if (!version)
		doctor_blame(row, DOCTOR_WARNING, "git --version", "git does not answer");
	return 0;
}

/*
 * program
 */

static void check_venv(const struct doctor *doctor, struct doctor_row *row)
{
	const char *venv = variable(doctor, "VIRTUAL_ENV");
	AUTO_FREE char *python = venv ? fs_join(venv, "bin/python") : NULL;

	if (python && access(python, X_OK) < 0)
		doctor_blame(row, DOCTOR_WARNING, "deactivate",
			"VIRTUAL_ENV names an environment without a Python: %s", venv);
}

/* The first word of `command:`, when PATH is to have it. */
static void check_command(const struct doctor *doctor, struct doctor_row *row)
{
	struct config *config;
	bool shell = false;

	if (session_config(doctor->session, &config, NULL) < 0)
		return;
	const struct strv *words = config_command(config, &shell);
	if (words->n == 0 || shell || strchr(words->v[0], '/'))
		return;
	AUTO_FREE char *found = proc_find(words->v[0], variable(doctor, "PATH"));
	if (!found)
		doctor_blame(row, DOCTOR_PROBLEM, "dlrun config --show-origin command",
			"the program of `command:` is not on PATH: %s", words->v[0]);
}

int doctor_program(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	static const char *const names[] = {"python", "python3"};
	const char *venv = variable(doctor, "VIRTUAL_ENV");
	AUTO_FREE char *path = NULL;

	(void)err;
	for (size_t i = 0; i < ARRAY_LEN(names) && !path; i++)
		path = proc_find(names[i], variable(doctor, "PATH"));
	AUTO_FREE char *version =
		path ? first_line((const char *const[]){path, "--version", NULL}) : NULL;
	if (!path)
		doctor_found(row, "no Python on PATH");
	else
		doctor_found(row, "%s (%s)%s%s", version ? version : "a Python", path,
			venv ? " in " : "", venv ? venv : "");
	if (path && !version)
		doctor_blame(row, DOCTOR_WARNING, NULL, "%s does not answer", path);
	check_venv(doctor, row);
	check_command(doctor, row);
	return 0;
}

/*
 * gpu
 */

static void list_gpus(const struct gpu_list *list, struct doctor_row *row)
{
	AUTO_BUF struct buf found;

	buf_init(&found, ANSWER_MAX);
	buf_addf(&found, "%zu", list->n);
	for (size_t i = 0; i < list->n && i < GPUS_SHOWN; i++) {
		const struct gpu *gpu = &list->v[i];
		char size[16];
		buf_addf(&found, "%s %u %s %s%s", i ? "," : ":", gpu->index, gpu->model,
			gpu->memory_bytes ? str_size(gpu->memory_bytes, size) : "",
			gpu->used ? " (in use)" : "");
	}
	if (list->n > GPUS_SHOWN)
		buf_adds(&found, " and more");
	doctor_found(row, "%s", found.data);
}

int doctor_gpu(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	const char *path = variable(doctor, "PATH");
	AUTO_ERR struct err fault = {0};
	struct gpu_list list = {0};

	(void)err;
	if (!gpu_may_exist(path)) {
		doctor_found(row, "none");
		return 0;
	}
	if (gpu_find(path, GPU_MS, &list, &fault) < 0) {
		doctor_found(row, "not known");
		doctor_blame(row, DOCTOR_PROBLEM, fault.hint ? fault.hint : "nvidia-smi", "%s%s%s",
			fault.message, fault.n_evidence ? ": " : "",
			fault.n_evidence ? fault.evidence[0] : "");
		return 0;
	}
	if (list.n)
		list_gpus(&list, row);
	else
		doctor_found(row, "none, though there is a tool that lists them");
	return 0;
}

/*
 * logout
 */

static bool is_in(const char *group, const char *prefix)
{
	return group && strstr(group, prefix) != NULL;
}

void doctor_judge_logout(struct doctor_row *row, const char *group, bool kill, bool linger)
{
	if (!is_in(group, "/user.slice")) {
		doctor_found(row, "no login session: runs go on");
		return;
	}
	/* Processes started by a user's service manager end with it, unless the user lingers
	 * (loginctl(1)); those started by a session end with it only where logind.conf(5) says
	 * so. */
	if (is_in(group, "/user@")) {
		doctor_found(
			row, linger ? "runs go on (linger)" : "runs end with the last session");
		if (!linger)
			doctor_blame(row, DOCTOR_WARNING, "loginctl enable-linger",
				"this shell belongs to your service manager, which is stopped when "
				"you log out");
		return;
	}
	doctor_found(row, kill ? "runs end with the session" : "runs go on");
	if (kill)
		doctor_blame(row, DOCTOR_WARNING,
			"loginctl enable-linger && systemd-run --user --scope dlrun submit …",
			"KillUserProcesses is set: systemd-logind ends what a session leaves");
}

/* The path of the hierarchy that systemd keeps (cgroups(7)), or NULL. */
static char *read_group(void)
{
	AUTO_BUF struct buf text = {0};

	if (fs_read("/proc/self/cgroup", ANSWER_MAX, &text, NULL, NULL) < 0)
		return NULL;
	const char *line = strstr(text.data, "name=systemd:");
	if (!line)
		line = strstr(text.data, "0::");
	const char *path = line ? strchr(line, '/') : NULL;
	return path ? mem_strndup(path, strcspn(path, "\n")) : NULL;
}

static bool kills_processes(void)
{
	AUTO_FREE char *answer = first_line((const char *const[]){"busctl", "get-property",
		"org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", "KillUserProcesses", NULL});

	return str_eq(answer, "b true");
}

int doctor_logout(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_FREE char *group = read_group();
	AUTO_FREE char *linger =
		mem_printf("/var/lib/systemd/linger/%s", doctor->session->env.user);
	bool kill = is_in(group, "/user.slice") && kills_processes();

	(void)err;
	doctor_judge_logout(row, group, kill, access(linger, F_OK) == 0);
	return 0;
}

/*
 * limits
 */

static bool is_limited(int resource, rlim_t *ret)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit) < 0)
		return false;
	*ret = limit.rlim_cur;
	return limit.rlim_cur != RLIM_INFINITY;
}

static void check_files(struct doctor_row *row)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	rlim_t most = limit.rlim_max < FILES_WANTED ? limit.rlim_max : FILES_WANTED;
	AUTO_FREE char *fix = mem_printf("ulimit -n %llu", (unsigned long long)most);
	doctor_found(row, "%llu open files", (unsigned long long)limit.rlim_cur);
	if (limit.rlim_cur < FILES_FEW)
		doctor_blame(row, DOCTOR_WARNING, fix,
			"a program with several data loaders needs more than %llu open files",
			(unsigned long long)limit.rlim_cur);
}

int doctor_limits(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	static const struct {
		int resource;
		const char *what, *fix;
	} others[] = {
		{RLIMIT_FSIZE, "bytes are all that a file may have", "ulimit -f unlimited"},
		{RLIMIT_CPU, "seconds of CPU time are all that a program may use",
			"ulimit -t unlimited"},
		{RLIMIT_AS, "bytes are all the address space of a program, and CUDA reserves much",
			"ulimit -v unlimited"},
	};
	rlim_t value;

	(void)doctor;
	(void)err;
	check_files(row);
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (is_limited(others[i].resource, &value))
			doctor_blame(row, DOCTOR_WARNING, others[i].fix, "%llu %s",
				(unsigned long long)value, others[i].what);
	return 0;
}

/*
 * terminal
 */

int doctor_terminal(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
	const char *locale = NULL, *term = variable(doctor, "TERM");

	(void)err;
	for (size_t i = 0; i < ARRAY_LEN(names) && !locale; i++)
		locale = variable(doctor, names[i]);
	doctor_found(row, "locale %s, terminal %s", locale ? locale : "not set",
		term ? term : "not known");
	if (!locale || (!strcasestr(locale, "utf-8") && !strcasestr(locale, "utf8")))
		doctor_blame(row, DOCTOR_WARNING, "export LC_ALL=C.UTF-8",
			"names beyond ASCII are shown escaped");
	return 0;
}
