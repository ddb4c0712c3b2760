/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of os_linux.c that only tests include. */
#ifndef DLRUN_BASE_OS_OS_LINUX_H
#define DLRUN_BASE_OS_OS_LINUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/os/cgroup.h"
#include "base/os/os.h"

/* Call fn for a group and all groups below it, the deepest first. */
typedef void os_group_visit(const char *dir, void *ctx);

/* os_family_create and os_family_oom_kills for a process in the groups own. */
bool os_family_create_in(const struct cgroup_dirs *own, struct os_family *family, const char *name,
	const struct os_limits *limits);
int64_t os_family_oom_kills_in(
	const struct cgroup_dirs *own, const struct os_family *family, bool *ret_shared);

#endif
