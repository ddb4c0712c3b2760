/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `dlrun init --rbac`: the Role to request from the administrator of a cluster.
 */
#ifndef DLRUN_CLI_COMMANDS_INIT_RBAC_H
#define DLRUN_CLI_COMMANDS_INIT_RBAC_H

#include <stdbool.h>

#include "cli/term/app.h"

struct init_rbac {
	const char *tier;    /* NULL: the one that holds all */
	const char *target;  /* NULL: the cluster of the configuration, else the current context */
	const char *subject; /* "NAME", "Group:NAME", "ServiceAccount:NAME"; NULL: this user */
	bool cluster_role;
};
/* Returns the exit status. */
int init_rbac(struct app *app, const struct init_rbac *rbac);

#endif
