/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mounts and control groups of a process as proc(5) and cgroups(7) describe them. An engine: texts
 * in, directories out; nothing is opened here. Paths that do not match or lead elsewhere are left
 * out.
 */
#ifndef DLRUN_BASE_OS_CGROUP_H
#define DLRUN_BASE_OS_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

enum { CGROUP_PATH_SIZE = 256 };

/* A line of /proc/PID/mountinfo. */
struct mount {
	char device[32];
	char root[CGROUP_PATH_SIZE], point[CGROUP_PATH_SIZE];
	char type[64];
	char options[CGROUP_PATH_SIZE]; /* of the file system: the controllers of a cgroup v1 */
};
bool mount_parse(const char *line, struct mount *ret);

/* Directories where the groups of a process are visible; empty: none. */
struct cgroup_dirs {
	char unified[CGROUP_PATH_SIZE];                       /* version 2 */
	char top[CGROUP_PATH_SIZE];                           /* the mount that it is in */
	char memory[CGROUP_PATH_SIZE], cpu[CGROUP_PATH_SIZE]; /* of version 1 */
};
/* groups, mounts: the contents of /proc/PID/cgroup and /proc/PID/mountinfo. */
void cgroup_find(const char *groups, const char *mounts, struct cgroup_dirs *ret);

/* Whether a list of words, separated by blanks or commas, has that word. */
bool cgroup_has_word(const char *list, const char *word);
/* The number behind a key at the start of a line, -1: there is none. */
int64_t cgroup_value(const char *text, const char *key);

#endif
