/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long to wait between two tries. failures: how often it failed in a row, from 1; 0 is no
 * wait. The wait is first_ms after the first failure and doubles up to max_ms.
 */
#ifndef DLRUN_BASE_UTIL_BACKOFF_H
#define DLRUN_BASE_UTIL_BACKOFF_H

#include <stdint.h>

int64_t backoff_ms(unsigned failures, int64_t first_ms, int64_t max_ms);
/* Between half of it and all of it, so that clients that failed together do not return together. */
int64_t backoff_jitter_ms(unsigned failures, int64_t first_ms, int64_t max_ms);

#endif
