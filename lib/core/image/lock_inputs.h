/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inputs of an environment besides its lock file: the files that a requirements file includes
 * (pip, "Requirements File Format"), projects and archives of the working tree that are installed
 * from it, also those of uv.lock (`source = {directory = ...}`), and the manifests of the tools.
 * Nothing is run; a line that is not understood names nothing.
 */
#ifndef DLRUN_CORE_IMAGE_LOCK_INPUTS_H
#define DLRUN_CORE_IMAGE_LOCK_INPUTS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/auto.h"
#include "base/util/vec.h"

enum { LOCK_INPUTS_MAX = 200 };

/* Paths relative to the root of the tree, each once, LOCK_INPUTS_MAX at most. */
struct lock_inputs {
	/* Of a project that is installed as a copy its directory, of one that is imported from the
	 * tree (-e) its manifests. */
	struct strv paths;
	/* Manifests and directories of archives: the subset that a snapshot may lack; submit adds
	 * its .python-version. */
	struct strv optional;
	/* The line that installs a copy of the directory of the lock file, or of one above it,
	 * which runs may import instead of their code: "requirements.txt:3". NULL: none does. */
	char *copied;
};
void lock_inputs_done(struct lock_inputs *inputs);
#define AUTO_LOCK_INPUTS AUTO(lock_inputs_done)

/* Sets ret, which is empty before, to the inputs that are there. dir: of the lock file and of the
 * command that installs, relative to root or ".". */
void lock_inputs_find(const char *root, const char *dir, const char *lock, struct lock_inputs *ret);

/* Engines, for tests. */

/* Paths as they are written, relative to the file that includes, and to the directory of the
 * command. */
struct lock_mentions {
	struct strv files;  /* requirements and constraints */
	struct strv finds;  /* directories of archives that may be installed (--find-links) */
	struct strv copied; /* projects and archives, a copy of which is installed */
	struct strv linked; /* projects that are imported where they are */
	struct strv lines;  /* of each of copied, its number */
};
void lock_mentions_done(struct lock_mentions *mentions);
#define AUTO_LOCK_MENTIONS AUTO(lock_mentions_done)

void lock_mentions_of_requirements(const char *text, size_t len, struct lock_mentions *ret);
/* The same lines as items below `pip:` of a conda environment. */
void lock_mentions_of_conda(const char *text, size_t len, struct lock_mentions *ret);
void lock_mentions_of_uv(const char *text, size_t len, struct lock_mentions *ret);

/* base and path without "." and ".."; NULL: it leads out of the tree. "" is the tree. The caller
 * frees. */
char *lock_path(const char *base, const char *path);

#endif
