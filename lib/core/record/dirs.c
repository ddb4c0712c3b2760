/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/dirs.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/util/mem.h"

/* Relative values count as not set (XDG base directory specification, "Basics"). */
static const char *absolute(const char *path)
{
	return path && path[0] == '/' ? path : NULL;
}

/* value, or fallback below home; NULL without both. */
static char *dirs_choose(
	const char *value, const char *home, const char *fallback, const char *below)
{
	if (absolute(value))
		return mem_printf("%s%s", value, below);
	return home ? mem_printf("%s/%s%s", home, fallback, below) : NULL;
}

int dirs_find(const struct dirs_env *env, struct dirs *ret, struct err *err)
{
	const char *home = absolute(env->home);
	struct dirs dirs = {
		.home = mem_strdup(home),
		.config = dirs_choose(env->xdg_config_home, home, ".config", ""),
		.state = dirs_choose(env->xdg_state_home, home, ".local/state", "/dlrun"),
		.cache = dirs_choose(env->xdg_cache_home, home, ".cache", "/dlrun"),
		.data = dirs_choose(env->xdg_data_home, home, ".local/share", "/dlrun"),
	};

	if (!dirs.state || !dirs.cache || !dirs.data) {
		dirs_done(&dirs);
		err_set(err, E_IO_HOME, "HOME is not set, so dlrun cannot keep its files");
		return err_hint(err, "export HOME=/path/to/your/home");
	}
	dirs.runtime = absolute(env->xdg_runtime_dir)
			       ? mem_printf("%s/dlrun", env->xdg_runtime_dir)
			       : mem_printf("/tmp/dlrun-%lu", (unsigned long)geteuid());
	*ret = dirs;
	return 0;
}

void dirs_done(struct dirs *dirs)
{
	if (!dirs)
		return;
	free(dirs->home);
	free(dirs->config);
	free(dirs->state);
	free(dirs->cache);
	free(dirs->data);
	free(dirs->runtime);
	*dirs = (struct dirs){0};
}

char *dirs_run(const struct dirs *dirs, const char *run_id)
{
	return mem_printf("%s/runs/%s", dirs->state, run_id);
}

char *dirs_outputs(const struct dirs *dirs, const char *run_id)
{
	return mem_printf("%s/runs/%s/outputs", dirs->state, run_id);
}

char *dirs_attempt(const struct dirs *dirs, const char *run_id, int attempt)
{
	return mem_printf("%s/runs/%s/attempts/%d", dirs->state, run_id, attempt);
}

char *dirs_study(const struct dirs *dirs, const char *id)
{
	return mem_printf("%s/studies/%s", dirs->state, id);
}

char *dirs_layout(const struct dirs *dirs)
{
	return mem_printf("%s/oci", dirs->data);
}

char *dirs_spares(const struct dirs *dirs)
{
	return mem_printf("%s/spares", dirs->state);
}

char *dirs_plans(const struct dirs *dirs)
{
	return mem_printf("%s/plans", dirs->cache);
}

char *dirs_registries(const struct dirs *dirs)
{
	return mem_printf("%s/registry", dirs->cache);
}

char *dirs_mirror(const struct dirs *dirs, bool scalars_only)
{
	return mem_printf("%s/mirror%s", dirs->cache, scalars_only ? "-scalars" : "");
}

char *dirs_setups(const struct dirs *dirs)
{
	return mem_printf("%s/setups", dirs->cache);
}
