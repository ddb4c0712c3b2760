/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python packages that are installed from the tree itself (pip install -e, uv sync): the
 * interpreter of a run would import them from the live tree, so the run's own directories must go
 * first in PYTHONPATH. Found by files alone, no Python is started: *.pth (site module), finders of
 * setuptools (__editable___NAME_finder.py) and of the package "editables", *.egg-link,
 * direct_url.json (PEP 610), PYTHONPATH itself.
 *
 * The interpreter is the one that the command finds: python, a console script by its #!, the first
 * of a shell line; pyenv's shims are resolved, and what "source X/bin/activate" in front of it puts
 * on PATH counts. For any other command (make, a shell script) it is that of VIRTUAL_ENV, else of
 * PATH. Packages are searched in its prefix (pyvenv.cfg, lib/python3.X/site-packages,
 * dist-packages) and in that of the user (~/.local).
 */
#ifndef DLRUN_HOST_EDITABLE_H
#define DLRUN_HOST_EDITABLE_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/vec.h"

enum { EDITABLE_PATHS_MAX = 256 };

struct editable_query {
	const struct strv *command;
	bool shell;             /* command is one line for a shell */
	const char *before;     /* lines of a shell in front of it; NULL: none */
	const char *const *env; /* of the program, NULL-ended K=V */
	const char *cwd;        /* absolute, in the live tree: where the program would be started */
	const char *root;       /* of the live tree, absolute */
	const char *prefix;     /* the environment to look at; NULL: that of the command */
};

struct editable {
	/* For PYTHONPATH, relative to root, in the order in which Python has them; "." is root.
	 * They need not be in the snapshot. */
	struct strv paths;
	/* NAME=PATH: packages whose directory, relative to root, has another name. */
	struct strv aliases;
	/* "package x is installed from this tree (editable): the run imports its own copy (src)";
	 * NULL when there is nothing to say. */
	char *sentence;
	/* Packages and modules that are imported from root all the same; one sentence for each. */
	struct strv fixed, warnings;
};

/* Files that cannot be read count as missing. Takes some milliseconds for hundreds of packages. */
void editable_find(const struct editable_query *query, struct editable *ret);
void editable_done(struct editable *editable);
#define AUTO_EDITABLE AUTO(editable_done)

#endif
