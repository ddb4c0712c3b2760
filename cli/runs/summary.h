/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A study in a few lines, or as dlrun/group/v1: its runs by state, its axes, its times.
 */
#ifndef DLRUN_CLI_RUNS_SUMMARY_H
#define DLRUN_CLI_RUNS_SUMMARY_H

#include <stdint.h>

#include "base/util/buf.h"
#include "core/record/run.h"

struct app;

enum { SUMMARY_FIELD = 11 }; /* columns of a label */

/* Lines of a page about a run or a study: "label      value", nothing where there is no value. */
void summary_add_field(struct buf *out, const char *label, const char *value);
void summary_add_time(struct buf *out, const char *label, int64_t wall_ms);
/* Print the page; returns the exit status. */
int summary_print_page(struct app *app, const struct buf *page);

/* Print it; returns the exit status. runs: the members in their order, at least one. */
int summary_print(struct app *app, const char *study, const struct run_list *runs);

#endif
