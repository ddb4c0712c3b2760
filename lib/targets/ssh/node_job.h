/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job of an attempt on a node, as the texts that its runner reads (protocol.h, "The job").
 */
#ifndef DLRUN_TARGETS_SSH_NODE_JOB_H
#define DLRUN_TARGETS_SSH_NODE_JOB_H

#include <sys/types.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/spec.h"
#include "core/target/target.h"
#include "node/node.h"

/*
 * Data of the tree that a node is sent once and keeps by its content (data: sync).
 */

/* A directory that is being sent. */
struct node_sync {
	char *path; /* in the tree */
	char *dir;  /* absolute */
	char *key;  /* of its content: what it is called there */
	pid_t pid;  /* that packs it; 0: none */
};
struct node_syncs VEC_OF(struct node_sync);

/* Finds the job's data to send and reads its content. E_RUN_DATA: not here, or no directory;
 * E_DATA_LIMIT: too much. Blocks. */
int node_sync_find(const struct target_job *job, struct node_syncs *ret, struct err *err);
void node_syncs_done(struct node_syncs *syncs);
/* A stream of its files, in tar's form, as node_data wants it; ctx: a struct node_sync. */
int node_sync_open(void *ctx, struct err *err);

/* Rank of a job on several hosts. */
struct node_rank {
	int rank, gpus;               /* gpus: of each host; <= 0: not known */
	const struct strv *addresses; /* of all, by rank */
	int64_t hold_ms;              /* how long it may wait for the others */
	unsigned role;                /* which of the roles, for a port of its own */
	const char *roles;            /* all of them, as in a record; NULL: none */
	int number;                   /* within the run */
	int ends_first, ends_n;       /* the run ends with these ranks; 0: with all */
};

/* The job of one rank: that of its role, in which its number and addresses are those within the
 * role. It stays where it was made. */
struct node_part {
	struct target_job job;
	struct node_rank rank;
	struct spec spec;
	struct strv env, addresses;
	struct buf roles;
};

/* number: the rank's within the run. addresses: of all ranks; NULL: not known. *ret: zeroed before,
 * and valid as long as job. E_DATA as for spec_copy. */
int node_part_make(const struct target_job *job, int number, const struct strv *addresses,
	struct node_part *ret, struct err *err);
void node_part_done(struct node_part *part);

/* The script job into text and, if there are any, secrets into the other; both initialized by the
 * caller. runtime: podman or docker, in which the image that the code lies on is run; NULL: on the
 * host itself. facts: of the node, which is a part of what a setup is kept by; NULL: not known.
 * syncs: of the job's data; NULL: none is called by its content. rank: NULL: of one host. slots:
 * how many members of its study run on the host at once; 0: any. With a setup the layers of the
 * run's image are read. E_DATA_LIMIT: too large; E_RUN_SETUP: a key file is not in the tree. */
int node_job_make(struct session *session, const struct target_job *job, const char *runtime,
	const struct node_facts *facts, const struct node_syncs *syncs,
	const struct node_rank *rank, int slots, struct buf *text, struct buf *secrets,
	struct err *err);

#endif
