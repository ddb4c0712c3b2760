/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local record of results that were only in the pods of an ended run: until when they wait there,
 * and the list of those that were taken here (app/transfer/fetch.h).
 */
#ifndef DLRUN_CORE_RECORD_TAKEN_H
#define DLRUN_CORE_RECORD_TAKEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "core/record/dirs.h"
#include "core/record/run.h"

#define TAKEN_UNTIL "results_until" /* member of a record: when they end with the pods */

#define TAKEN_LOST "results_lost" /* member: why they do not wait any more, untaken */

/* How long the results still wait; 0: they do not. Makes no request. */
int64_t taken_wait_ms(const struct run *run);
/* Describe that time, or what became of the results, as a part of a sentence; or "". The caller
 * frees. */
char *taken_text(const struct run *run);
/* The file that records that the results are here, once they are. The caller frees. */
char *taken_path(const struct dirs *dirs, const char *run_id, int attempt);
/* Whether the results of that attempt are here. */
bool taken_is_done(const struct dirs *dirs, const char *run_id, int attempt);

/* Read the list of what was taken of the attempt, for carry_over.h: 1; 0: there is none. */
int taken_read(const struct dirs *dirs, const char *run_id, int attempt, struct buf *ret);

enum { TAKEN_MAX = 64 << 20 };

/* Kinds of taken items, in a list of NUL-terminated items. */
enum taken_kind {
	TAKEN_FILE = 'f',      /* or a link */
	TAKEN_NOTE = 'n',      /* of the script: that file comes from the tree */
	TAKEN_NOTE_TREE = 't', /* the same of one that got the name PATH.tree */
};
/* prefix: of the rank here, "" or "rank-3/"; path: below it. */
void taken_add(struct buf *list, enum taken_kind kind, const char *prefix, const char *path);

#endif
