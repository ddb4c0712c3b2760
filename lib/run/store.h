/*
 * The records of runs: one SQLite database (rollback journal, synchronous EXTRA, defensive), and
 * the laptop's own view: targets are the truth, `runs_refresh` repairs what is written here.
 * Only this module includes sqlite3.h.
 */
#ifndef DLRUN_RUN_STORE_H
#define DLRUN_RUN_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/err.h"
#include "run/run.h"

struct store;

/* dir/runs.db; made and migrated when needed. Waits up to 30 s for other processes. */
int store_open(const char *dir, struct store **ret, struct err *err);
void store_close(struct store *store);
AUTO_POINTER(struct store, store_close)

/* One durable transaction each. */
int store_insert(struct store *store, struct run *run, struct err *err); /* E_RUN_NAME: id taken */
/* Fails with ERR_CONFLICT if the row has changed since it was read (revision). */
int store_update(struct store *store, struct run *run, struct err *err);
/* Read, change by fn, write, in one transaction; run is the row as written. fn returns 1 to write, 0
 * for no change. */
typedef int store_change_fn(void *ctx, struct run *run, struct err *err);
int store_change(struct store *store, const char *id, store_change_fn *fn, void *ctx,
	struct run **ret, struct err *err);
int store_remove(struct store *store, const char *id, struct err *err);

/* By exact id; E_RUN_NOT_FOUND. */
int store_get(struct store *store, const char *id, struct run **ret, struct err *err);
/* RUN as users write it: id, unique beginning, @, @-N. E_RUN_NOT_FOUND with the nearest ids as
 * evidence; ambiguous: E_USAGE with the candidates. */
int store_resolve(struct store *store, const char *text, struct run **ret, struct err *err);

struct store_filter {
	bool unfinished_only;
	int64_t since_ms;   /* submitted at or after; 0: any */
	size_t limit;       /* 0: all */
	const char *target; /* NULL: any */
	const char *id_prefix;
};
/* Newest first. */
int store_list(struct store *store, const struct store_filter *filter, struct run_list *ret,
	struct err *err);

#endif
