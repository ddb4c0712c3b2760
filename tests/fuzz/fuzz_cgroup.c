/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever proc tells of groups and mounts: directories that are paths and lead nowhere else. */
#include <stdint.h>
#include <string.h>

#include "base/os/cgroup.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *dir)
{
	size_t len = strlen(dir);

	BUG_ON(len >= CGROUP_PATH_SIZE);
	BUG_ON(len && dir[0] != '/');
	BUG_ON(strstr(dir, "/../") || (len >= 3 && strcmp(dir + len - 3, "/..") == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	char *mounts = strstr(text, "\n\n");
	struct cgroup_dirs dirs;

	if (mounts)
		*mounts = '\0';
	cgroup_find(text, mounts ? mounts + 2 : text, &dirs);
	check(dirs.unified);
	check(dirs.top);
	check(dirs.memory);
	check(dirs.cpu);
	BUG_ON(strncmp(dirs.unified, dirs.top, strlen(dirs.top)) != 0);
	BUG_ON(cgroup_value(text, "oom_kill") < -1);
	return 0;
}
