/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources of `dlrun plot`: runs and directories of event files, each with its curves.
 */
#ifndef DLRUN_CLI_PLOT_PLOT_SOURCES_H
#define DLRUN_CLI_PLOT_PLOT_SOURCES_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/run.h"
#include "events/series.h"

struct app;

struct plot_source {
	char *name;      /* the id of a run, or the directory as it was named */
	char *label;     /* the same, of directories what they do not have in common */
	char *dir;       /* absolute: where the event files are */
	struct run *run; /* NULL: a directory */
	size_t mirrored; /* the run's number in the mirror */
	struct series *series;
};

struct plot_sources {
	struct plot_source *v; /* as vec.h has it */
	size_t n, cap;
	struct mirror *mirror; /* of runs; NULL: there are none */
};

/* Words are runs and directories (a word with a slash, or one that is no run); none: the newest
 * run. Event files of runs that are elsewhere are brought here (mirror.h): blocks until each
 * run has been asked once. One of several that cannot be asked is warned of; with patient
 * (--watch) it is no failure either way: see plot_sources_fault. */
int plot_sources_open(struct plot_sources *sources, struct app *app, const struct strv *words,
	bool patient, struct err *err);
/* Why a run could not be asked when that was tried last, and *ret_name, which one; NULL: all
 * could. */
const struct err *plot_sources_fault(const struct plot_sources *sources, const char **ret_name);
/* Read new data. */
int plot_sources_look(struct plot_sources *sources, bool *ret_new, struct err *err);
/* How runs go on now: states are asked for again. */
void plot_sources_refresh(struct plot_sources *sources, struct app *app);
/* Whether a run among them has not ended. */
bool plot_sources_go_on(const struct plot_sources *sources);
/* E_EVENTS_NONE where there is no curve at all; it tells what could be done about it. */
int plot_sources_check(const struct plot_sources *sources, struct err *err);
void plot_sources_done(struct plot_sources *sources);

#endif
