/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A submit whose target does not answer: the run is accepted here (held.h).
 */
#ifndef DLRUN_APP_SUBMIT_HOLD_IMPL_H
#define DLRUN_APP_SUBMIT_HOLD_IMPL_H

#include "app/prepare/prepare.h"

/* Whether the submit failed because nobody answered, and may be held instead. */
bool submit_may_hold(const struct submit *submit, const struct err *cause);
/* Whether the target has refused the run before anything was sent there, while it has other places:
 * that is noted, and the run is to be held for them. */
bool submit_may_go_on(struct submit *submit, const struct err *cause);
/* Accept the run here: image in the layout, durable row. cause: why it cannot be sent now. */
int submit_hold(struct submit *submit, const struct err *cause, struct err *err);

#endif
