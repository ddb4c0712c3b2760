/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The phases of a submit as a whole, which a sweep has too.
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

#endif
