/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run of several hosts: what the states of its ranks say of the whole, and what whoever looks has
 * to do about it. An engine.
 *
 * All ranks are prepared first, each is held there, and only then all are told to go: of a run that
 * may be taken back (one with several places) the first one before the others. From the first `go`
 * on the run is going: who finds ranks that are still held, and nobody who submits, passes the word
 * on; before, whoever finds that takes all of them back. A rank that ends as anything but succeeded
 * ends the others, and so do the ranks that the run ends with.
 */
#ifndef DLRUN_TARGETS_SSH_GANG_H
#define DLRUN_TARGETS_SSH_GANG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/target/target.h"

/* Reasons of ranks that were ended with another one: it failed, or the run had succeeded. */
#define GANG_PEER "PeerEnded"
#define GANG_ROLE "RoleEnded"

struct gang_rank {
	const char *host;
	const char *name;            /* "actors.3"; NULL: by its number */
	bool is_absent;              /* the node does not know it */
	bool is_held, is_going;      /* ready; told to go */
	struct target_status status; /* unless absent */
};
/* "actors.3", or "rank 3" of one without a name; the caller frees. */
char *gang_rank_text(size_t i, const struct gang_rank *rank);

/* State known here, read before the nodes were asked. */
struct gang_view {
	bool is_submitting; /* somebody submits it: nothing is to be done */
	bool is_ours;       /* it is submitted from here, if from anywhere */
	bool was_accepted;  /* all were told to go once */
	int attempt;
	int64_t now_ms; /* wall clock */
	/* When these ranks have succeeded the run has: the others are ended; n 0: all have to. */
	size_t ends_first, ends_n;
};
enum { GANG_LATE_MS = 3000 };
enum gang_step { GANG_NOTHING, GANG_GO, GANG_DROP, GANG_END, GANG_OVER };

/* *ret (target_status_done) and what is to be done for each rank. The first rank that failed, was
 * lost or was cancelled by the user decides how the run ended, unless those that it ends with have
 * succeeded by GANG_LATE_MS afterwards: they may have been about to go. It has ended when all
 * have. */
void gang_evaluate(const struct gang_rank *ranks, size_t n, const struct gang_view *view,
	struct target_status *ret, enum gang_step *steps);

/* Whether any of them was told to go. */
bool gang_is_going(const struct gang_rank *ranks, size_t n);

#endif
