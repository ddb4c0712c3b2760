/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python that the files of a project name, and the public image that has it. Nothing is run; a
 * file that cannot be read or understood names none.
 */
#ifndef DLRUN_CORE_IMAGE_PYTHON_BASE_H
#define DLRUN_CORE_IMAGE_PYTHON_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "snap/tree/snapshot.h"

/* The Python 3 that is usual now, where a project names none or a lower bound alone. */
enum { PYTHON_MINOR = 12 };

struct python_named {
	int minor; /* of Python 3 */
	/* "the Python of uv.lock"; of false: why .python-version names none, or NULL. */
	char *from;
	bool is_any; /* there is a file of dependencies, and none names a version */
	/* A file that `environment.lock` takes, beside it; NULL: there is none. */
	const char *lock;
};
void python_named_done(struct python_named *named);
#define AUTO_PYTHON_NAMED AUTO(python_named_done)

/* By .python-version, pyproject.toml, then the lock files of dir. false: none is there, or none is
 * about a Python 3. Sets ret (python_named_done), whatever it was. */
bool python_find(const char *dir, struct python_named *ret);

/* By the nearest directory that tells, from the one of the caller up to the root of its tree. */
bool python_find_above(const struct tree_place *place, struct python_named *ret);

/* The image with that Python, in repository, or in its usual one (NULL): that of uv where the
 * program is uv. The caller frees. */
char *python_base_image(const char *repository, int minor, const char *program);

/* The image for a run of program: of the repositories of `bases:` the first that responds and has
 * it; where none does, that of the first. *ret_shown: it, where its Python is named, and what the
 * first of those before it said. What a registry has had of late is not requested again. Each
 * request ends after four seconds; blocks. The caller frees both. */
int python_base_choose(struct session *session, const struct python_named *named,
	const char *program, char **ret, char **ret_shown, struct err *err);

/* Engines, for tests. */

/* The version that a text asks for: "3.12.4", "cpython-3.12", "~=3.9", ">=3.8,<3.11". A lower bound
 * alone, or with "<4", is met by what is usual now, and so is an upper one that is above it; -1: it
 * asks for none. */
int python_wanted(const char *text);
/* The same of what a lock file of that name says. */
int python_of_lock(const char *name, const char *text, size_t len);

#endif
