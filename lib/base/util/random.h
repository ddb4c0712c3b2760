/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the system, good for keys. */
#ifndef DLRUN_BASE_UTIL_RANDOM_H
#define DLRUN_BASE_UTIL_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Ends the process if the system has no random numbers. */
void random_bytes(void *out, size_t len);
/* Below n, each equally likely. */
uint32_t random_below(uint32_t n);

#endif
