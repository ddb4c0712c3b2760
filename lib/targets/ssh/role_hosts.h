/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hosts for the ranks of a run whose roles want different things. An engine.
 */
#ifndef DLRUN_TARGETS_SSH_ROLE_HOSTS_H
#define DLRUN_TARGETS_SSH_ROLE_HOSTS_H

#include "base/util/vec.h"
#include "node/hosts.h"

/* Of a run without roles there is one, whose name is NULL. */
struct role_wish {
	const char *name;
	struct node_requirements wanted;
};
struct role_wishes VEC_OF(struct role_wish);
void role_wishes_done(struct role_wishes *wishes);

/* As node_choose, for all roles at once: each rank gets a host of its own, and roles that want the
 * most GPUs choose first. *ret: the hosts in the order of the ranks. */
void role_hosts_choose(const struct node_offer *offers, size_t n, const struct role_wishes *roles,
	struct node_choice *ret);

#endif
