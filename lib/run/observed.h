/*
 * What was seen of a program (dlrun/observed/v1, run/observe.h) as a part of its run's record.
 */
#ifndef DLRUN_RUN_OBSERVED_H
#define DLRUN_RUN_OBSERVED_H

#include "base/json.h"

enum { OBSERVED_TEXTS_MAX = 64 };

/* Into doc (dlrun/run/v1): usage and metrics replace what is known, links and the warning (what the
 * target says of its own) are added, params only where the command has none of that name,
 * resources (what the target has given) are set. observed may be NULL, and members may be missing
 * or of any form. */
void observed_merge(const struct json *observed, struct json *doc);

#endif
