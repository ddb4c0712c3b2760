/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at hosts before anything is sent there: whether they answer, what they have, which GPUs
 * are free. All are asked at the same time, a limited number at once; what has no answer at the end
 * of the time limit is not known.
 */
#ifndef DLRUN_TARGETS_SSH_NODE_LOOK_H
#define DLRUN_TARGETS_SSH_NODE_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "node/hosts.h"
#include "node/node.h"
#include "targets/ssh/node_open.h"

struct node_look {
	/* Input, borrowed; root: NULL: the default. */
	const char *host, *root;
	bool gpus_too;

	struct node_host *opened;       /* the session's; NULL: fault says why */
	struct err fault;               /* why it was not asked, or did not answer */
	const struct node_facts *facts; /* the node's; NULL: none came */
	int64_t answer_ms;              /* until they came; -1: none did */
	struct node_gpus gpus;
	bool has_gpus; /* gpus is known */
};
void node_look_done(struct node_look *look);

/* Fills looks, which are zero but for what to look at. limit_ms: -1: as long as a login takes.
 * settle_ms: how long the others are waited for once one has answered; -1: no less. *interrupted
 * (may be NULL) ends it with E_CANCELED; nothing else is an error. Blocks. */
int node_look_all(struct session *session, struct node_look *looks, size_t n, int64_t limit_ms,
	int64_t settle_ms, const volatile int *interrupted, struct err *err);

/* GPUs that nobody holds or uses. */
size_t node_look_free_gpus(const struct node_look *look);
/* "linux x86_64, 3 of 8 GPUs free, 64 CPUs, 812 GiB free": one line for people; the caller frees.
 */
char *node_look_text(const struct node_look *look);
/* Adds the members of look to an object. */
void node_look_to_json(const struct node_look *look, struct json *json);
/* For node_choose; strings are look's. */
void node_look_offer(const struct node_look *look, struct node_offer *ret);

#endif
