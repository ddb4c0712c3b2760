/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selection of runs for a list, by what their submit recorded.
 */
#ifndef DLRUN_CORE_RECORD_SELECT_H
#define DLRUN_CORE_RECORD_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/run.h"

struct select_rules {
	const struct strv *tags; /* "K": has that tag; "K=V": with that value; all must hold */
	const char *group;       /* NULL: any */
	int64_t since_ms;        /* submitted then or later, wall clock; 0: any */
};

/* Whether any rule is set. */
bool select_is_set(const struct select_rules *rules);
bool select_matches(const struct select_rules *rules, const struct run *run);
/* Free and drop the runs that do not match; the order stays. */
void select_keep(const struct select_rules *rules, struct run_list *runs);

/* "2h", "7d": that long before now_ms; "2026-08-01" or "2026-08-01 12:00" in local time; a time
 * as of clock_parse. E_USAGE with examples otherwise. */
int select_parse_since(const char *text, int64_t now_ms, int64_t *ret_ms, struct err *err);

#endif
