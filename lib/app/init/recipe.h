/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipes for machines: text that makes a host pass `dlrun doctor`, or tells the autoscaler of a
 * cluster what its nodes would have. By the configuration of the target alone; nothing is asked.
 */
#ifndef DLRUN_APP_INIT_RECIPE_H
#define DLRUN_APP_INIT_RECIPE_H

#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/context/session.h"

/* Words of --recipe. */
#define RECIPE_FORMS "cloud-init ansible terraform"

/* Append the recipe of that form for a target; name: NULL: the default target. cloud-init and
 * ansible are for hosts, terraform for clusters. E_TARGET: there is no such target, E_USAGE: its
 * kind has no such recipe. */
int recipe_text(struct session *session, const char *name, const char *form, struct buf *out,
	struct err *err);

#endif
