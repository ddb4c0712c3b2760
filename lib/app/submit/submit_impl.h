/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The phases of a submit as a whole, which a sweep has too; and a submit whose target does not
 * answer: the run is accepted here (held.h).
 */
#ifndef DLRUN_APP_SUBMIT_SUBMIT_IMPL_H
#define DLRUN_APP_SUBMIT_SUBMIT_IMPL_H

#include "app/prepare/prepare.h"

/* From the check to the started attempt, or (submit_starts_together) to its row in state queued. On
 * a failure run is NULL, and nothing is left, or its row tells. */
int submit_all(struct submit *submit, struct err *err);
/* After a start that failed with r: 0 if the attempt has begun all the same, else r, and the row
 * tells. */
int submit_recover(struct submit *submit, int r, struct err *err);

/* Whether the submit failed because nobody answered, and may be held instead. */
bool submit_may_hold(const struct submit *submit, const struct err *cause);
/* Whether the target has refused the run before anything was sent there, while it has other places:
 * that is noted, and the run is to be held for them. */
bool submit_may_go_on(struct submit *submit, const struct err *cause);
/* Accept the run here: image in the layout, durable row. cause: why it cannot be sent now. */
int submit_hold(struct submit *submit, const struct err *cause, struct err *err);

#endif
