/* SPDX-License-Identifier: Apache-2.0 */
/*
 * params.json beside the fetched results of a run: its parameters as the record has them, one
 * object, so that a directory of many runs can be read without dlrun. A file of that name among the
 * results goes first.
 */
#ifndef DLRUN_APP_TRANSFER_FETCH_PARAMS_H
#define DLRUN_APP_TRANSFER_FETCH_PARAMS_H

#include "base/util/err.h"
#include "core/record/run.h"

/* Before a fetch into dir: remove the file that fetch_params_write has left there, unless somebody
 * has changed it, so that one of the results can take its place. */
void fetch_params_clear(const char *dir);
/* After the fetch: write it, unless there is a file of that name. Makes dir. */
int fetch_params_write(const char *dir, const struct run *run, struct err *err);

#endif
