/* SPDX-License-Identifier: Apache-2.0 */
/* Wait for something that comes, without a fixed sleep. */
#ifndef DLRUN_TESTS_UNIT_UNTIL_H
#define DLRUN_TESTS_UNIT_UNTIL_H

#include <poll.h>

enum { TIMEOUT_MS = 20000, TURN_MS = 5, TURNS_MAX = 2 * TIMEOUT_MS / TURN_MS };

/* Turns are counted, each of TURN_MS at least, which a process only takes while it runs: of time on
 * a clock a machine that stands still takes any amount. */
#define UNTIL_BY(turn, condition)                                                                  \
	do {                                                                                       \
		for (int turns_ = 0; !(condition); turns_++) {                                     \
			if (turns_ == TURNS_MAX)                                                   \
				fail_msg("waited in vain: %s", #condition);                        \
			turn;                                                                      \
		}                                                                                  \
	} while (0)

#define UNTIL(condition) UNTIL_BY(poll(NULL, 0, TURN_MS), condition)

#endif
