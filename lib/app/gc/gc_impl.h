/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of gc_local: what its steps share. Each step removes one kind of thing, or with dry_run
 * only counts it.
 */
#ifndef DLRUN_APP_GC_GC_IMPL_H
#define DLRUN_APP_GC_GC_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "app/gc/gc.h"
#include "base/util/err.h"
#include "base/util/map.h"
#include "base/util/vec.h"
#include "core/store/store.h"

#define SETUP_KEEP_MS (INT64_C(30) * 24 * 3600 * 1000)

struct gc {
	struct session *session;
	struct store *store;
	struct layout *layout;   /* the session's; NULL: there is none yet */
	int64_t keep_ms, now_ms; /* now: wall clock */
	bool dry_run;
	bool alone;           /* no submit is under way: what no row names is nobody's */
	struct run_list runs; /* all of the store */
	struct map ids;       /* of the runs */
	struct gc_report *report;
};

/* Remove path and all below it; *count is one of the report's. What somebody else has removed
 * meanwhile is success. */
int gc_drop(struct gc *gc, const char *path, size_t *count, struct err *err);

/* Whether path was changed more than keep_ms ago. */
bool gc_is_old(const struct gc *gc, const char *path);

/* Remove the files of dir (not below it) that were being written by processes that died. */
int gc_drop_temporary(struct gc *gc, const char *dir, struct err *err);

/* The steps for the cache directory (gc_cache.c): plans whose full layer is gone, stat caches of
 * trees that are gone or have no run any more. */
int gc_plans(struct gc *gc, struct err *err);
int gc_stat_caches(struct gc *gc, struct err *err);
/* Setups that no run uses and that nobody has used for SETUP_KEEP_MS (with keep_ms 0: now), failed
 * ones after keep_ms. */
int gc_setups(struct gc *gc, struct err *err);
/* Copies of event files of runs that are gone. */
int gc_mirrors(struct gc *gc, struct err *err);
/* Cached data of registries that have not been pushed to for long. */
int gc_registries(struct gc *gc, struct err *err);

#endif
