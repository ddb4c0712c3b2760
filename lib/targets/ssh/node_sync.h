/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data of the tree that a node is sent once and keeps by its content (data: sync).
 */
#ifndef DLRUN_TARGETS_SSH_NODE_SYNC_H
#define DLRUN_TARGETS_SSH_NODE_SYNC_H

#include <sys/types.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/target/target.h"

#define NODE_SYNC "sync" /* as a place of data */

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
/* Where the node has it, for link_data (protocol.h); NULL: path is none of them. */
char *node_sync_place(const struct node_syncs *syncs, const char *path);
/* A stream of its files, in tar's form, as node_data wants it; ctx: a struct node_sync. */
int node_sync_open(void *ctx, struct err *err);

#endif
