/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts that are reached by ssh, opened once for a command: a login and the first conversation with
 * the runner there (node.h) begin with the call and go on beside the caller.
 */
#ifndef DLRUN_TARGETS_SSH_NODE_OPEN_H
#define DLRUN_TARGETS_SSH_NODE_OPEN_H

#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "net/ssh/ssh.h"
#include "net/stream/channel.h"
#include "node/node.h"

struct node_host {
	char *name, *root;
	const char *config; /* for ssh -F, or NULL; lives as the session does */
	struct ssh *ssh;    /* NULL where the session brings channels of its own */
	struct channel_opener opener;
	struct node *node;
	int64_t begun_ms; /* clock_ms() */
};

/* The host in a directory there (NULL: NODE_ROOT_DEFAULT). Belongs to the session. Does not block;
 * what becomes of the login is told by whatever is asked. E_USAGE: no name of a host; E_CONFIG:
 * ssh_config:, root. */
int node_open(struct session *session, const char *host, const char *root, struct node_host **ret,
	struct err *err);

/* Adds to an error that concerns the host what is missing: its name, a hint what to do next. */
void node_explain(const struct node_host *host, struct err *fault);

#endif
