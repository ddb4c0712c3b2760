/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time. Deadlines are milliseconds of a clock that goes on during sleep and never steps
 * (CLOCK_BOOTTIME where there is one); only what people read is wall-clock time.
 */
#ifndef DLRUN_BASE_UTIL_CLOCK_H
#define DLRUN_BASE_UTIL_CLOCK_H

#include <stdint.h>

#include "base/util/err.h"

enum { CLOCK_TEXT_SIZE = 32 };

/* Milliseconds since an arbitrary start; for deadlines and durations. */
int64_t clock_ms(void);
/* Microseconds of the same clock; for phases. */
int64_t clock_us(void);
/* clock_ms() as it will be in timeout_ms. INT64_MAX, which never comes, for a negative timeout and
 * for one that ends later than that. */
int64_t clock_deadline(int64_t timeout_ms);
/* Milliseconds since 1970 UTC. */
int64_t clock_wall_ms(void);

/* RFC 3339 in UTC with milliseconds: 2026-08-01T12:00:00.123Z. Times outside of the years 0000 to
 * 9999 become the first or last millisecond of them. */
void clock_format(int64_t wall_ms, char out[static CLOCK_TEXT_SIZE]);
/* RFC 3339 with any offset, fraction optional (cut to milliseconds); E_DATA otherwise. */
int clock_parse(const char *s, int64_t *ret_wall_ms, struct err *err);

/* 90s, 15m, 1h30m, 7d, 250ms: to milliseconds, 36,500 days at most. Units from d to ms, each once,
 * largest first; only 0 needs none. E_USAGE otherwise. */
int duration_parse(const char *s, int64_t *ret_ms, struct err *err);
/* For people, two units at most: "30 ms", "0.3 s", "4 min 12 s", "2 h", "3 d 4 h". Less than 0 is
 * "0 s". */
const char *duration_text(int64_t ms, char out[static 32]);

/*
 * How long to wait between two tries. failures: how often it failed in a row, from 1; 0 is no
 * wait. The wait is first_ms after the first failure and doubles up to max_ms.
 */

int64_t backoff_ms(unsigned failures, int64_t first_ms, int64_t max_ms);
/* Between half of it and all of it, so that clients that failed together do not return together. */
int64_t backoff_jitter_ms(unsigned failures, int64_t first_ms, int64_t max_ms);

#endif
