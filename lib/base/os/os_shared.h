/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers shared by both implementations of os.h. */
#ifndef DLRUN_BASE_OS_OS_SHARED_H
#define DLRUN_BASE_OS_OS_SHARED_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/os/os.h"

/* os_open_beneath with nothing but openat, one component at a time. */
int os_walk_beneath(int dirfd, const char *path, int flags, mode_t mode);
/* A machine id made from a text that other programs may not see: a hash with a constant of ours
 * (the idea of sd_id128_get_machine_app_specific). */
void os_hash_id(const char *text, char out[static OS_ID_SIZE]);
/* A machine id made from the host's name. */
bool os_hostname_id(char out[static OS_ID_SIZE]);

#endif
