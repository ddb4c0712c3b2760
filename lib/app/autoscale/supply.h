/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The providers of an autoscaler: opened from its settings, asked for their groups all at once, and
 * found by the name that a group has.
 *
 * A provider that does not respond must not make what it has seem absent: machines on their way
 * would be bought a second time elsewhere. Its last response counts for SUPPLY_KEEP_MS, and its
 * groups are not changed meanwhile; after that they are unknown, which is a remark.
 *
 * The name of a program is its path; of further ones of the same path, with other arguments, PATH#2
 * and so on, in the order of the settings.
 */
#ifndef DLRUN_APP_AUTOSCALE_SUPPLY_H
#define DLRUN_APP_AUTOSCALE_SUPPLY_H

#include <stdbool.h>

#include "app/autoscale/provider.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/autoscale/settings.h"

enum {
	SUPPLY_KEEP_MS = 10 * 60 * 1000,
	SUPPLY_ID_MAX = 253,
	SUPPLY_REMARKS_MAX = 100,
	SUPPLY_PROGRAMS_MAX = 8, /* that run at once, or one for each provider */
};

struct supply;
/* settings and env are borrowed. Errors of the providers. */
int supply_open(struct loop *loop, const char *const *env, const struct scale_settings *settings,
	struct supply **ret, struct err *err);
/* NULL is accepted. */
void supply_free(struct supply *supply);
AUTO_POINTER(struct supply, supply_free)
#define AUTO_SUPPLY AUTO(supply_free_auto)

/* Ask each for its groups; wait counts them. */
void supply_ask(struct supply *supply, struct loop_wait *wait);
/* After the wait: the groups, with what the settings say of them, and remarks. now_ms of the model
 * is set. */
void supply_take(struct supply *supply, struct scale_model *model);
/* Whether the groups of a provider are not known at all. */
bool supply_is_blind(const struct supply *supply);
/* A group's provider; NULL: it is not one of these. */
struct provider *supply_provider(const struct supply *supply, const struct scale_group *group);

#endif
