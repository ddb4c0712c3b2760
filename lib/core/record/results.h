/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Summary of a run's results, made from the list of its files: member "results" of its record,
 *	{"files": 13, "bytes": 46137344, "is_cut": false, "more": 0, "warnings": [], "entries":
 *	 [{"path": "lightning_logs/", "files": 12, "bytes": 3250585}, {"path": "model.pt", …}]}
 * entries: the largest of the names at the top, in the order of their bytes, a directory with a
 * slash at its end; more: how many names were left out of them. is_cut: there are more files than a
 * list holds. warnings: sentences that are said with the results. null: not known.
 */
#ifndef DLRUN_CORE_RECORD_RESULTS_H
#define DLRUN_CORE_RECORD_RESULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/vec.h"
#include "core/record/dirs.h"
#include "core/record/params.h"
#include "core/record/run.h"

#define RESULTS_MEMBER "results"

enum { RESULTS_KEPT = 20, RESULTS_SHOWN = 4 };

/* files: sorted by path. The caller frees. */
struct json *results_json(const struct outputs_files *files, bool is_cut);
/* The same from what the pods of a run reported at their end (KUBE_JOB_RESULTS of job.h): texts,
 * one for each rank, or NULL. A missing report sets is_cut; returns NULL if that of the first rank
 * is missing. *ret_params: the content of files of parameters (params.h). The caller frees both. */
struct json *results_reported(char *const *texts, size_t n, struct json **ret_params);
/* Whether results is valid: from elsewhere it may be anything. */
bool results_is_valid(const struct json *results);
/* For people: "lightning_logs/ 12 files 3.1 MiB", "model.pt 41 MiB", "and 5 more"; the largest
 * RESULTS_SHOWN, names escaped and cut. Nothing when there are no files, or none are known. */
void results_words(const struct json *results, struct strv *ret);

/*
 * Local record of results that were only in the pods of an ended run: until when they wait there,
 * and the list of those that were taken here (app/transfer/fetch.h).
 */
#define TAKEN_UNTIL "results_until" /* member of a record: when they end with the pods */

#define TAKEN_LOST "results_lost" /* member: why they do not wait any more, untaken */

#define TAKEN_UNSENT "results_unsent" /* member: why a pod could not send them to S3 */

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
