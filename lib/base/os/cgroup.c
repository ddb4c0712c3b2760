/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/cgroup.h"

#include <stdio.h>
#include <string.h>

/* Id, parent, major:minor, root, mount point, options, tags …, "-", type, source, options. */
bool mount_parse(const char *line, struct mount *ret)
{
	size_t len = strcspn(line, "\n");
	char text[4096];

	if (len >= sizeof(text))
		return false;
	memcpy(text, line, len);
	text[len] = '\0';
	const char *dash = strstr(text, " - ");
	ret->options[0] = '\0';
	return dash &&
	       sscanf(text, "%*s %*s %31s %255s %255s", ret->device, ret->root, ret->point) == 3 &&
	       sscanf(dash, " - %63s %*s %255s", ret->type, ret->options) >= 1;
}

bool cgroup_has_word(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (;;) {
		size_t n = strcspn(list, " ,\n");

		if (n == len && strncmp(list, word, n) == 0)
			return true;
		if (!list[n])
			return false;
		list += n + 1;
	}
}

/* The part of path below root, "" for root itself; NULL if path is not below it. */
static const char *cgroup_path_below(const char *root, const char *path)
{
	size_t len = strcmp(root, "/") == 0 ? 0 : strlen(root);

	if (strncmp(path, root, len) != 0 || (path[len] && path[len] != '/'))
		return NULL;
	return strcmp(path + len, "/") == 0 ? "" : path + len;
}

/* A path that was cut, or that leads up: a group outside of a namespace is shown as /../x. */
static bool cgroup_is_usable(const char *path)
{
	const char *up = strstr(path, "/..");

	while (up && up[3] && up[3] != '/')
		up = strstr(up + 3, "/..");
	return path[0] == '/' && !up && strlen(path) < CGROUP_PATH_SIZE - 1;
}

/* Find the path in a line "id:controllers:path": that of the hierarchy that has the controller; for
 * "" that of version 2, which has no list. */
static bool find_group(const char *groups, const char *controller, char *ret)
{
	for (const char *line = groups; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		char list[CGROUP_PATH_SIZE] = "";

		if (sscanf(line, "%*[0-9]:%255[^:\n]:%255[^\n]", list, ret) != 2 &&
			(list[0] || sscanf(line, "0::%255[^\n]", ret) != 1))
			continue;
		if ((*controller ? cgroup_has_word(list, controller) : !list[0]) &&
			cgroup_is_usable(ret))
			return true;
	}
	return false;
}

static bool cgroup_is_of(const struct mount *mount, const char *controller)
{
	if (!*controller)
		return strcmp(mount->type, "cgroup2") == 0;
	return strcmp(mount->type, "cgroup") == 0 && cgroup_has_word(mount->options, controller);
}

/* A mount may show only a part of the hierarchy. The last matching mount covers the others. */
static void find_dir(
	const char *groups, const char *mounts, const char *controller, char *ret, char *ret_top)
{
	char group[CGROUP_PATH_SIZE], path[2 * CGROUP_PATH_SIZE];
	struct mount mount;

	if (!find_group(groups, controller, group))
		return;
	for (const char *line = mounts; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		if (!mount_parse(line, &mount) || !cgroup_is_of(&mount, controller))
			continue;
		const char *below = cgroup_path_below(mount.root, group);
		if (!below || !cgroup_is_usable(mount.point) || !cgroup_is_usable(mount.root))
			continue;
		snprintf(path, sizeof(path), "%s%s", mount.point, below);
		if (!cgroup_is_usable(path))
			continue;
		memcpy(ret, path, strlen(path) + 1);
		if (ret_top)
			memcpy(ret_top, mount.point, strlen(mount.point) + 1);
	}
}

void cgroup_find(const char *groups, const char *mounts, struct cgroup_dirs *ret)
{
	*ret = (struct cgroup_dirs){{0}};
	find_dir(groups, mounts, "", ret->unified, ret->top);
	find_dir(groups, mounts, "memory", ret->memory, NULL);
	find_dir(groups, mounts, "cpu", ret->cpu, NULL);
}

int64_t cgroup_value(const char *text, const char *key)
{
	size_t len = strlen(key);
	long long value;

	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
		if (strncmp(line, key, len) == 0 && line[len] == ' ' &&
			sscanf(line + len, "%18lld", &value) == 1 && value >= 0)
			return value;
	return -1;
}
