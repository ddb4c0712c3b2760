/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python interpreter that a command finds, and where it searches for packages. Files are read,
 * no program is started. For host/editable.
 */
#ifndef DLRUN_HOST_EDITABLE_PYTHON_H
#define DLRUN_HOST_EDITABLE_PYTHON_H

#include <stdbool.h>

#include "base/util/vec.h"
#include "host/editable.h"
#include "host/editable_parse.h"

enum { PYTHON_SITES_MAX = 32 };

struct python {
	char *exe;       /* as PATH or #! says; NULL: none was found */
	char *activated; /* the environment that the command activates; NULL: none */
	struct python_options options;
};
void python_done(struct python *python);
/* Of query->prefix, else of the command, else of VIRTUAL_ENV, else the one on PATH. */
void python_find(const struct editable_query *query, struct python *ret);

struct python_sites {
	struct strv dirs; /* in the order of sys.path; they exist */
	char *prefix;     /* sys.prefix: nothing below it is anybody's source */
};
void python_sites_done(struct python_sites *sites);
void python_sites_find(
	const struct python *python, const char *const *env, struct python_sites *ret);

#endif
