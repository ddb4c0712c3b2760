/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in one-line files below /sys. For host/gpu_meter and host/usage. */
#ifndef DLRUN_HOST_SYSFS_H
#define DLRUN_HOST_SYSFS_H

#include <stdint.h>

#include "base/util/vec.h"

enum { SYSFS_LINE_MAX = 255 };

/* The number in the file dir/name, scaled; below 0: there is none. */
double sysfs_number(const char *dir, const char *name, double scale);
/* The first line of dir/name without its end, or NULL; the caller frees. */
char *sysfs_line(const char *dir, const char *name);
/* Paths of the entries of dir that begin with prefix, sorted. */
void sysfs_list(const char *dir, const char *prefix, struct strv *ret);

#endif
