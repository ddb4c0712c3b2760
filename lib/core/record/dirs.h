/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directories of dlrun (cli.md, "Directories"). All of them are made on first use, 0700.
 */
#ifndef DLRUN_CORE_RECORD_DIRS_H
#define DLRUN_CORE_RECORD_DIRS_H

#include <stdbool.h>

#include "base/util/err.h"

struct dirs {
	char *home;    /* HOME, or NULL */
	char *config;  /* XDG_CONFIG_HOME, without /dlrun; NULL when it and HOME are missing */
	char *state;   /* …/dlrun: runs.db, runs/ID/ */
	char *cache;   /* …/dlrun: may be deleted at any time */
	char *data;    /* …/dlrun: oci/ */
	char *runtime; /* …/dlrun: sockets; below /tmp without XDG_RUNTIME_DIR: check its owner */
};

/* The variables that decide; NULL: not set. Relative values are ignored (XDG base directory
 * specification). */
struct dirs_env {
	const char *home, *xdg_config_home, *xdg_state_home, *xdg_cache_home, *xdg_data_home,
		*xdg_runtime_dir;
};

/* Computes paths, makes nothing. E_IO_HOME when HOME is needed and missing (or relative). */
int dirs_find(const struct dirs_env *env, struct dirs *ret, struct err *err);
void dirs_done(struct dirs *dirs);

/* state/runs/ID and what lies below it; the caller frees. */
char *dirs_run(const struct dirs *dirs, const char *run_id);
char *dirs_outputs(const struct dirs *dirs, const char *run_id);
char *dirs_attempt(const struct dirs *dirs, const char *run_id, int attempt);
/* state/studies/ID: what is kept of a study. */
char *dirs_study(const struct dirs *dirs, const char *study);
/* data/oci: the local image layout. */
char *dirs_layout(const struct dirs *dirs);
/* state/spares: trees made ahead (beside runs/, so that one is taken by rename). */
char *dirs_spares(const struct dirs *dirs);
/* cache/plans: which layers an edited tree builds on. */
char *dirs_plans(const struct dirs *dirs);
/* cache/registry: cached facts about registries, and manifests of bases. */
char *dirs_registries(const struct dirs *dirs);
/* cache/mirror: event files of runs elsewhere (mirror.h); cache/mirror-scalars: what curves
 * need of them. */
char *dirs_mirror(const struct dirs *dirs, bool scalars_only);
/* cache/setups: what is made once for many runs (setup.h). */
char *dirs_setups(const struct dirs *dirs);

#endif
