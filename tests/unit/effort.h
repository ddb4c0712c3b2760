/* SPDX-License-Identifier: Apache-2.0 */
/* What something costs this process, which another one on the machine does not make more. */
#ifndef DLRUN_TESTS_UNIT_EFFORT_H
#define DLRUN_TESTS_UNIT_EFFORT_H

#include <stdint.h>
#include <time.h>

/* Milliseconds of CPU that this process has used in all its threads. */
static inline int64_t effort_ms(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (int64_t)used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

#endif
