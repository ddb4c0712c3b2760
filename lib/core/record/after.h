/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that a run begins after, in its record and, as long as it may have to wait for them, in its
 * specification: a list of
 *
 *	{"run": "lion-4k2x9", "when": "ok"}     or "study": every run of it
 *
 * when: "ok", its success; "any", its end. All of them were there when the run was made, and the
 * list is never changed: no run can come to wait for itself.
 */
#ifndef DLRUN_CORE_RECORD_AFTER_H
#define DLRUN_CORE_RECORD_AFTER_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"

#define AFTER_RECORD "after"
/* In exit.reason of a run that has not begun, since one of them ended otherwise. */
#define AFTER_REASON "Dependency"
/* In the reply of the process that waits for them: why the run cannot begin. */
#define AFTER_NEVER_TEXT "never"

enum { AFTER_MAX = 1000 };

struct after {
	char *id;
	bool is_study, any;
};
struct after_list VEC_OF(struct after);

/* NULL for an empty list. */
struct json *after_to_json(const struct after_list *list);
/* NULL is an empty list. E_DATA. */
int after_from_json(const struct json *json, struct after_list *ret, struct err *err);
/* A run that is there is not added; "ok" wins. */
void after_add(struct after_list *list, const char *id, bool is_study, bool any);
/* "after lion-4k2x9", "after lion-4k2x9 and 3 others"; the caller frees. */
char *after_text(const struct after_list *list);
/* "lion-4k2x9, bear-8m3kd (any end)" of the list in a record, NULL if there is none; the caller
 * frees. */
char *after_names(const struct json *json);
void after_done(struct after_list *list);
#define AUTO_AFTER AUTO(after_done)

#endif
