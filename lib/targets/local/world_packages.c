/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/world_packages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/attempt/attempt.h"

char *world_packages_dir(const char *tree)
{
	AUTO_FREE char *dir = mem_strndup(tree, (size_t)(strrchr(tree, '/') - tree));

	return fs_join(dir, ATTEMPT_PACKAGES);
}

static int link_package(const char *dir, const char *tree, const char *alias, struct err *err)
{
	size_t len = strcspn(alias, "=");
	AUTO_FREE char *name = mem_strndup(alias, len);
	AUTO_FREE char *link = fs_join(dir, name), *target = fs_join(tree, alias + len + 1);

	if (!alias[len] || strchr(name, '/'))
		return err_set(err, E_DATA, "'%s' is not a package of the run", name);
	unlink(link);
	return symlink(target, link) < 0 ? fs_error(err, errno, "linking %s", link) : 0;
}

int world_packages_link(const char *tree, const struct world *world, struct err *err)
{
	AUTO_FREE char *dir = world_packages_dir(tree);
	int r = 0;

	if (world->python_aliases.n == 0)
		return 0;
	r = fs_mkdirs(dir, 0700, err);
	for (size_t i = 0; r == 0 && i < world->python_aliases.n; i++)
		r = link_package(dir, tree, world->python_aliases.v[i], err);
	return r;
}
