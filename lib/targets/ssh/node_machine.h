/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine that the name of an SSH host led to when a run was sent there, with the user and
 * directory, kept with the run: one name may lead to several machines, one after the other (two
 * login nodes, another ssh_config, a host that was renamed or reinstalled, another `User`). Reports
 * from another place about a run are no evidence.
 */
#ifndef DLRUN_TARGETS_SSH_NODE_MACHINE_H
#define DLRUN_TARGETS_SSH_NODE_MACHINE_H

#include "core/record/dirs.h"
#include "node/node.h"

/* Of a run: lines HOST MACHINE PLACE NAME, for node_machine.c only. */
#define RUN_MACHINES "machines"

/* facts: of the machine that has the run now. */
void node_machine_note(const struct dirs *dirs, const char *run_id, const char *host,
	const struct node_facts *facts);
/* Why what is not known of the run there means nothing; NULL: it is the place, or the first that
 * was asked. The caller frees. */
char *node_machine_other(const struct dirs *dirs, const char *run_id, const char *host,
	const struct node_facts *facts);

#endif
