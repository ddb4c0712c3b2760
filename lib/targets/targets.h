/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the kind of target that a name or a record stands for, and opens the target. Other rooms
 * depend on capabilities of the kind, not on its name.
 */
#ifndef DLRUN_TARGETS_TARGETS_H
#define DLRUN_TARGETS_TARGETS_H

#include "base/util/err.h"
#include "core/config/config.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target.h"

/* The operations and capabilities of a target's kind: by the target's name (NULL: there is none of
 * that name; config may be NULL), or by a run's record (a kind that is not known has none). */
const struct target_ops *target_ops_named(const struct config *config, const char *name);
const struct target_ops *target_ops_recorded(const struct run *run);
/* Whether there is a target of that name: E_TARGET with the near match. */
int target_check(struct config *config, const char *name, struct err *err);
/* By name: a target of the configuration, "local", kube[:CONTEXT[/NAMESPACE]], ssh:HOST[,HOST…];
 * E_TARGET as target_check. */
int target_open(struct session *session, const char *name, struct target **ret, struct err *err);
/* The target that a run was sent to, as its record says. */
int target_open_run(
	struct session *session, const struct run *run, struct target **ret, struct err *err);

#endif
