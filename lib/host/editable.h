/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python packages that are installed from the tree itself (pip install -e, uv sync): the
 * interpreter of a run would import them from the live tree, so the run's own directories must go
 * first in PYTHONPATH. Found by files alone, no Python is started: *.pth (site module), finders of
 * setuptools (__editable___NAME_finder.py) and of the package "editables", direct_url.json
 * (PEP 610), PYTHONPATH itself.
 *
 * The environment is the one that is activated (X/bin/activate) before the command or in it; else
 * that of the first interpreter in the command; else that of its first word that leads into a
 * virtual environment (pyvenv.cfg) or one of conda; else that of VIRTUAL_ENV, else of the python on
 * PATH. Packages are searched in its site-packages and dist-packages of any version, and in those
 * of the user (~/.local).
 */
#ifndef DLRUN_HOST_EDITABLE_H
#define DLRUN_HOST_EDITABLE_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/vec.h"

enum { EDITABLE_PATHS_MAX = 256 };

struct editable_query {
	const struct strv *command; /* arguments, or a line for a shell */
	const char *before;         /* lines of a shell in front of it; NULL: none */
	const char *const *env;     /* of the program, NULL-ended K=V */
	const char *cwd;    /* absolute, in the live tree: where the program would be started */
	const char *root;   /* of the live tree, absolute */
	const char *prefix; /* the environment to search; NULL: that of the command */
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

/* Add the paths of a .pth (their names are empty), or of a finder: MAPPING = {'x': '/p/x'} and
 * NAMESPACES = {'n': ['/p/n']} of setuptools, F.map_module('x', '/p/x/__init__.py') of "editables".
 * At most EDITABLE_PATHS_MAX; any text is accepted. */
void editable_parse(
	const char *text, bool is_finder, struct strv *ret_names, struct strv *ret_paths);

#endif
