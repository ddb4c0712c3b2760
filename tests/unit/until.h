/* SPDX-License-Identifier: Apache-2.0 */
/* Wait for something that comes, without a fixed sleep. */
#ifndef DLRUN_TESTS_UNIT_UNTIL_H
#define DLRUN_TESTS_UNIT_UNTIL_H

#include <poll.h>

#include "base/util/clock.h"

enum { TIMEOUT_MS = 20000 };

#define UNTIL(condition)                                                                           \
	do {                                                                                       \
		int64_t deadline_ = clock_ms() + TIMEOUT_MS;                                       \
		while (!(condition)) {                                                             \
			if (clock_ms() > deadline_)                                                \
				fail_msg("waited in vain: %s", #condition);                        \
			poll(NULL, 0, 5);                                                          \
		}                                                                                  \
	} while (0)

#endif
