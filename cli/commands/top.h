/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output of `top`: tables of runs, machines and GPUs, and the same as JSON.
 */
#ifndef DLRUN_CLI_COMMANDS_TOP_H
#define DLRUN_CLI_COMMANDS_TOP_H

#include "base/data/json.h"
#include "base/util/buf.h"
#include "core/record/machine.h"
#include "core/record/run.h"

struct app;

/* Tables that have rows, an empty line between two, formatted for width columns (0: any). */
void top_view_format(struct app *app, const struct run_list *runs,
	const struct machine_list *machines, size_t width, struct buf *out);
/* dlrun/top/v1 (json_done is set); returns the exit status. */
int top_view_json(
	struct app *app, const struct run_list *runs, const struct machine_list *machines);

#endif
