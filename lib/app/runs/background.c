/* SPDX-License-Identifier: Apache-2.0 */
#include "app/runs/background.h"

#include <stdlib.h>
#include <string.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/vec.h"

/* Files of KUBECONFIG may be named from this directory. */
static void background_set_kubeconfig(const struct session *session, struct strv *env)
{
	const char *at = env_get(session->env.env, "KUBECONFIG");
	AUTO_STRV struct strv files = {0};

	if (!at)
		return;
	while (*at) {
		size_t len = strcspn(at, ":");
		AUTO_FREE char *name = mem_strndup(at, len);

		if (*name)
			strv_add_take(&files, fs_join(session->env.cwd, name));
		at += len + (at[len] == ':');
	}
	AUTO_FREE char *list = strv_join(&files, ":");
	AUTO_FREE char *pair = mem_printf("KUBECONFIG=%s", list);
	env_set(env, pair, false);
}

int background_start(
	struct session *session, const char *const *argv, pid_t *ret_pid, struct err *err)
{
	AUTO_STRV struct strv env = {0};

	for (const char *const *pair = session->env.env; pair && *pair; pair++)
		strv_add(&env, *pair);
	background_set_kubeconfig(session, &env);
	const struct proc_spec spec = {
		.argv = argv,
		.env = (const char *const *)env.v,
		.dir = "/",
		.stdin_fd = -1,
		.stdout_fd = -1,
		.stderr_fd = -1,
		.new_session = true,
	};
	return proc_spawn(&spec, ret_pid, err);
}
