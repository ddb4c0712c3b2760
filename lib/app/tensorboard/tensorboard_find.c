/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_find.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/tensorboard/tensorboard_words.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { HEAD_MAX = 8192 };
#define NAME "tensorboard"

void tensorboard_program_done(struct tensorboard_program *program)
{
	free(program->path);
	strv_done(&program->python);
	free(program->install);
	*program = (struct tensorboard_program){0};
}

/*
 * Where it may be
 */

static void add_bin(struct strv *dirs, const char *prefix, const char *below)
{
	if (!str_empty(prefix) && prefix[0] == '/')
		strv_addf(dirs, "%s/%s", prefix, below);
}

static char *find(const struct tensorboard_places *places)
{
	AUTO_STRV struct strv dirs = {0};
	const char *path = env_get(places->env, "PATH");
	AUTO_FREE char *joined = NULL;

	add_bin(&dirs, env_get(places->env, "VIRTUAL_ENV"), "bin");
	add_bin(&dirs, places->tree, ".venv/bin");
	add_bin(&dirs, places->tree, "venv/bin");
	add_bin(&dirs, env_get(places->env, "CONDA_PREFIX"), "bin");
	if (!str_empty(path))
		strv_add(&dirs, path);
	add_bin(&dirs, places->home, ".local/bin");
	if (dirs.n == 0)
		return NULL;
	joined = strv_join(&dirs, ":");
	return proc_find(NAME, joined);
}

static bool has_program(const struct tensorboard_places *places, const char *name)
{
	AUTO_FREE char *found = proc_find(name, env_get(places->env, "PATH"));

	return found != NULL;
}

static int fail_missing(const struct tensorboard_places *places, struct err *err)
{
	const char *prefix = env_get(places->env, "VIRTUAL_ENV");
	AUTO_FREE char *own = str_empty(prefix) ? NULL : mem_printf("%s/bin/python", prefix);
	AUTO_BUF struct buf command;

	buf_init(&command, HEAD_MAX);
	if (own && access(own, X_OK) == 0) {
		str_shell_quote(&command, own);
		buf_adds(&command, " -m pip install tensorboard");
	} else if (has_program(places, "uv")) {
		buf_adds(&command, "uv tool install tensorboard");
	} else if (has_program(places, "pipx")) {
		buf_adds(&command, "pipx install tensorboard");
	} else {
		buf_adds(&command, "python3 -m venv ~/.venv && ~/.venv/bin/pip install tensorboard "
				   "&& . ~/.venv/bin/activate");
	}
	err_set(err, E_TENSORBOARD_MISSING, "there is no TensorBoard here");
	err_evidence(err, "looked for in the active environment, .venv, conda, PATH and "
			  "~/.local/bin");
	return err_hint(err, "%s   # or read the curves now: dlrun plot %s", command.data,
		places->plot ? places->plot : "@");
}

/*
 * How it is run
 */

static void read_python(struct tensorboard_program *program)
{
	AUTO_FD int fd = open(program->path, O_RDONLY | O_CLOEXEC);
	char head[HEAD_MAX];
	ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof(head));

	if (n > 0)
		(void)tensorboard_python_read(head, (size_t)n, &program->python);
}

/* Environments that uv makes have no pip. */
static char *install_command(
	const struct tensorboard_places *places, const struct tensorboard_program *program)
{
	AUTO_BUF struct buf command = {0};
	AUTO_FREE char *pip = NULL;
	const char *python = program->python.n == 1 ? program->python.v[0] : NULL;

	if (!python)
		return mem_strdup("pip install");
	buf_init(&command, HEAD_MAX);
	pip = mem_printf("%.*s/pip", (int)(strrchr(python, '/') - python), python);
	if (access(pip, X_OK) < 0 && has_program(places, "uv")) {
		buf_adds(&command, "uv pip install -p ");
		str_shell_quote(&command, python);
	} else {
		str_shell_quote(&command, python);
		buf_adds(&command, " -m pip install");
	}
	return buf_take(&command);
}

int tensorboard_find(
	const struct tensorboard_places *places, struct tensorboard_program *ret, struct err *err)
{
	struct tensorboard_program program = {.path = find(places)};

	if (!program.path)
		return fail_missing(places, err);
	if (program.path[0] != '/') {
		char *path = NULL;
		int r = fs_realpath(program.path, &path, err);

		free(program.path);
		if (r < 0)
			return r;
		program.path = path;
	}
	read_python(&program);
	program.install = install_command(places, &program);
	*ret = program;
	return 0;
}
