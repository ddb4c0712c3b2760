/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts that are reached by ssh, opened once for a command: a login and the first connection with
 * the runner there (node.h) begin with the call and go on beside the caller.
 */
#ifndef DLRUN_TARGETS_SSH_NODE_OPEN_H
#define DLRUN_TARGETS_SSH_NODE_OPEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/dirs.h"
#include "net/ssh/ssh.h"
#include "net/stream/channel.h"
#include "node/hosts.h"
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
void node_explain(const struct node_host *host, struct err *error);

/*
 * Hosts are probed before anything is sent there: whether they answer, what they have, which GPUs
 * are free. All are asked at the same time, a limited number at once; what has no response at the
 * end of the time limit is not known.
 */

struct node_probe {
	/* Input, borrowed; root: NULL: the default. */
	const char *host, *root;
	bool gpus_too, fields_too; /* fields_too: only together with gpus_too */

	struct node_host *opened;       /* the session's; NULL: error says why */
	struct err error;               /* why it was not asked, or did not answer */
	const struct node_facts *facts; /* the node's; NULL: none came */
	int64_t response_ms;            /* until they came; -1: none did */
	struct node_gpus gpus;
	bool has_gpus;             /* gpus is known */
	struct node_fields fields; /* of node_describe; owned */
};
void node_probe_done(struct node_probe *probe);

/* Fills probes, which are zero but for their input. limit_ms: -1: as long as a login takes.
 * settle_ms: how long the others are waited for once one has answered; -1: no less. *interrupted
 * (may be NULL) ends it with E_CANCELED; nothing else is an error. Blocks. */
int node_probe_all(struct session *session, struct node_probe *probes, size_t n, int64_t limit_ms,
	int64_t settle_ms, const volatile int *interrupted, struct err *err);

/* The same without blocking: done is called once, from the loop, after which the probing is gone.
 * Cancelled (NULL is accepted) it is gone without a call, and what has not responded is not
 * known. */
struct node_probing;
struct node_probing *node_probing_start(struct session *session, struct node_probe *probes,
	size_t n, int64_t limit_ms, int64_t settle_ms, void (*done)(void *ctx), void *ctx);
void node_probing_cancel(struct node_probing *probing);

/* GPUs that nobody holds or uses. */
size_t node_probe_free_gpus(const struct node_probe *probe);
/* "linux x86_64, 3 of 8 GPUs free, 64 CPUs, 812 GiB free": one line for people; the caller frees.
 */
char *node_probe_text(const struct node_probe *probe);
/* Adds the members of probe to an object. */
void node_probe_to_json(const struct node_probe *probe, struct json *json);
/* For node_choose; strings are probe's. */
void node_probe_offer(const struct node_probe *probe, struct node_offer *ret);

/*
 * The machine that the name of an SSH host led to when a run was sent there, with the user and
 * directory, kept with the run: one name may lead to several machines, one after the other (two
 * login nodes, another ssh_config, a host that was renamed or reinstalled, another `User`). Reports
 * from another place about a run are no evidence.
 */

/* facts: of the machine that has the run now. */
void node_machine_note(const struct dirs *dirs, const char *run_id, const char *host,
	const struct node_facts *facts);
/* Why what is not known of the run there means nothing; NULL: it is the place, or the first that
 * was asked. The caller frees. */
char *node_machine_other(const struct dirs *dirs, const char *run_id, const char *host,
	const struct node_facts *facts);

#endif
