/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about a project, read from its files for a first dlrun.yaml. Nothing of it is run; what
 * cannot be read or understood is unknown.
 */
#ifndef DLRUN_APP_INIT_INIT_PROJECT_H
#define DLRUN_APP_INIT_INIT_PROJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"

enum {
	INIT_COMMANDS_MAX = 6,
	INIT_DATA_MAX = 8,
	INIT_FILE_MAX = 1 << 20, /* bytes of a file that is read */
};

/* Tool that creates the environment of the program. */
enum init_env { INIT_ENV_NONE, INIT_ENV_UV, INIT_ENV_POETRY, INIT_ENV_CONDA, INIT_ENV_PIP };

/* Something that can be started. */
struct init_command {
	struct strv words;
	char *from; /* the file that says so */
};

/* A directory or file that git ignores. */
struct init_data {
	char *path; /* from the root of the tree */
	uint64_t bytes;
	bool at_least;   /* there is more than that */
	bool has_events; /* a program has written curves there: results, not data */
};

struct init_project {
	char *dir;    /* where dlrun.yaml goes: absolute */
	char *prefix; /* the same from the root of the tree; "." is the root */
	char *root;   /* of the tree */
	char name[RUN_NAME_MAX + 1];
	char *name_from;                             /* NULL: no name was found */
	struct VEC_OF(struct init_command) commands; /* the likeliest first */
	enum init_env env;
	struct strv env_files; /* those that key its contents, from the root of the tree */
	bool env_tool;         /* the program that makes it is on PATH */
	bool env_active;       /* this shell is in a virtual or conda environment: runs have it */
	char *conda_name;
	char *image, *image_from;
	struct VEC_OF(struct init_data) data;
	struct strv outputs;  /* from the root of the tree */
	struct strv contexts; /* of the kubeconfig, the current one first */
	struct strv hosts;    /* of ~/.ssh/config */
	struct strv notes;    /* one sentence each: what could not be looked at */
};

/* Looks at the nearest directory from the session's upwards, within the tree, that has a file of
 * the kinds that are known here; the root of the tree if there is none. E_SNAPSHOT_ROOT and what
 * else session_place says. Blocks for a walk of the tree. */
int init_project_read(struct session *session, struct init_project **ret, struct err *err);
void init_project_free(struct init_project *project);
AUTO_POINTER(struct init_project, init_project_free)
#define AUTO_INIT_PROJECT AUTO(init_project_free_auto)

#endif
