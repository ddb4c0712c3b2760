/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records from elsewhere: a Job that a colleague made, a directory on a node. An engine: no I/O.
 * Their authors are not trusted: only what has the form of a record is taken over, and nothing in
 * it names anything on this machine: no path, no file of a secret, no handle, no tree.
 */
#ifndef DLRUN_CORE_RECORD_FOREIGN_H
#define DLRUN_CORE_RECORD_FOREIGN_H

#include <stdbool.h>

#include "base/data/json.h"
#include "core/record/run.h"

/* Set what record and spec (either may be NULL) say of a run that was just made. A spec that no run
 * could be started by becomes an empty one. layout: the directory of this machine's images, for
 * records whose image is in one; NULL: only images of registries are taken. */
void foreign_take(
	struct run *run, const struct json *record, const struct json *spec, const char *layout);
/* Whether the record of a run was made by foreign_take, also later on. */
bool foreign_is(const struct run *run);

#endif
