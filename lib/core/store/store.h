/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of runs: one SQLite database (rollback journal, synchronous EXTRA, defensive), and
 * the laptop's own view: targets are the truth, `runs_refresh` repairs what is written here.
 * Only this module includes sqlite3.h.
 */
#ifndef DLRUN_CORE_STORE_STORE_H
#define DLRUN_CORE_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/record/run.h"

struct store;

/* dir/runs.db; made (0600) and migrated when needed. Every call waits up to 30 s for other
 * processes. A file that may only be read is opened for reading: writes fail with E_IO_PERMISSION.
 * Damaged: E_STORE naming the file; of a newer dlrun: E_STORE_VERSION; full disk: E_IO_FULL. */
int store_open(const char *dir, struct store **ret, struct err *err);
void store_close(struct store *store);
AUTO_POINTER(struct store, store_close)
#define AUTO_STORE AUTO(store_close_auto)
/* Set the user whose runs @ means; NULL (as at first): everybody's. */
void store_set_user(struct store *store, const char *user);
/* The kind of network file system that the database lies on ("nfs"), or NULL: worth a warning. */
const char *store_network(const struct store *store);

/* Writes are one transaction each and durable when the call returns, except for store_insert, which
 * survives the death of the process while a power cut may undo it: it is the first of the two
 * transactions of a submit, and nothing has been started before the second. */
int store_insert(struct store *store, struct run *run, struct err *err); /* E_RUN_NAME: id taken */
/* Insert the runs whose ids are not taken, in one transaction. */
int store_insert_new(struct store *store, const struct run_list *runs, struct err *err);
/* Fails with E_STORE_CHANGED (ERR_CONFLICT) if the row has changed since it was read (revision) or
 * is gone. A power cut may bring back the row as it was before: for steps of runs that the power
 * cut ends too. What was written earlier (the store_insert) is durable then. */
int store_update_known(struct store *store, struct run *run, struct err *err);
/* Update all runs in one transaction; rows that have changed since they were read are left as they
 * are. */
int store_update_all(struct store *store, const struct run_list *runs, struct err *err);
/* Read, change by fn, write, in one transaction; run is the row as written. fn returns 1 to write,
 * 0 for no change. */
typedef int store_change_fn(void *ctx, struct run *run, struct err *err);
/* ret may be NULL. */
int store_change(struct store *store, const char *id, store_change_fn *fn, void *ctx,
	struct run **ret, struct err *err);
/* The same, and insert others, as store_insert_new does: all of it or nothing. */
int store_change_and_insert(struct store *store, const char *id, store_change_fn *fn, void *ctx,
	const struct run_list *others, struct run **ret, struct err *err);
/* The same as store_change for many, all in one transaction; where fn fails nothing is written. The
 * runs become as written. */
int store_change_all(struct store *store, struct run_list *runs, store_change_fn *fn, void *ctx,
	struct err *err);
int store_remove(struct store *store, const char *id, struct err *err);
/* Many, in one transaction; those that are not there are no error. */
int store_remove_all(struct store *store, const struct strv *ids, struct err *err);

/* Get a run by exact id; E_RUN_NOT_FOUND. */
int store_get(struct store *store, const char *id, struct run **ret, struct err *err);
/* RUN as users write it, in this order: @, @-N; an id; a group, which names all of its runs (a
 * study, group.h); the name of one run; a unique beginning of ids. Where all ids that begin so are
 * of one group that begins so, too, that is the group; so is the beginning of a group that no id
 * has. Members in their order; *ret_group: set where text names a group, the caller frees.
 * E_RUN_NOT_FOUND with the nearest ids as evidence; ambiguous: E_USAGE with the candidates. */
int store_resolve_all(struct store *store, const char *text, struct run_list *ret, char **ret_group,
	struct err *err);
/* The same where only a group can be meant: its name, or a beginning that no other has. */
int store_resolve_group(struct store *store, const char *text, struct run_list *ret,
	char **ret_group, struct err *err);
/* The same where one run is meant: E_RUN_STUDY for a group of several. */
int store_resolve(struct store *store, const char *text, struct run **ret, struct err *err);

struct store_filter {
	bool unfinished_only;
	int64_t since_ms;      /* submitted at or after; 0: any */
	size_t limit;          /* 0: all */
	const char *target;    /* NULL: any */
	const char *id_prefix; /* NULL: any; of a-z, 0-9 and - */
	const char *name;      /* NULL: any; the same */
	const char *group;     /* NULL: any */
	const char *user;      /* NULL: anybody's */
	size_t skip;           /* that many of the newest */
};
/* Newest first, by the order of submission. A damaged row is left out and noted in the log. */
int store_list(struct store *store, const struct store_filter *filter, struct run_list *ret,
	struct err *err);
/* The number of runs in the store. */
int store_count(struct store *store, size_t *ret, struct err *err);
/* Read every page of the database: E_STORE when it is damaged. Takes as long as that takes. */
int store_check(struct store *store, struct err *err);

#endif
