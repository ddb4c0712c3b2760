/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warming: what a run needs (base, environment, data, the code of the tree as it is) on SSH hosts,
 * or the nodes of a cluster, before there is a run. In a cluster it is one Job, each pod of which
 * is on a node of its own and sleeps; nodes are those that could take the run, whether they are
 * free or not. The Job has an id as that of an environment (setup_key.h), so no list of runs has
 * it. It is removed at the end; where this process was killed it ends after an hour at the latest,
 * and the cluster removes it.
 */
#ifndef DLRUN_APP_ENVIRONMENT_WARM_H
#define DLRUN_APP_ENVIRONMENT_WARM_H

#include <stdint.h>

#include "app/prepare/prepare.h"

/* Strings are owned. */
struct warm_result {
	char *target;
	char *ref;            /* of the image: "HOST/REPO@sha256:…"; NULL: of hosts */
	struct strv warm;     /* names of nodes or hosts that have it */
	struct strv pulling;  /* nodes that were still fetching it */
	struct strv cold;     /* hosts that failed */
	struct strv cold_why; /* each of them: why */
	int wanted;           /* how many should have it */
	char *why;            /* not all of them do; or NULL */
	int64_t total_ms;
};

/* n_nodes: 0: all that could take the run. The options have a command, which nobody starts. Ends
 * when all have it, and when no other node takes a pod; ret says what is cold. Blocks.
 * E_TARGET_UNSUPPORTED: the target is this machine, or no host could take the run; E_CONFIG: it
 * may not be known which nodes there are; E_CANCELED after SIGINT, SIGTERM or SIGHUP; else as
 * environment_push. */
int warm_nodes(struct session *session, const struct submit_options *options, int n_nodes,
	const struct submit_events *events, struct warm_result *ret, struct err *err);
void warm_result_done(struct warm_result *result);
struct json *warm_result_json(const struct warm_result *result); /* dlrun/warm/v1 */

#endif
