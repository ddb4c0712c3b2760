/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of init_project_read: each looks at one kind of file.
 */
#ifndef DLRUN_APP_INIT_INIT_FILES_H
#define DLRUN_APP_INIT_INIT_FILES_H

#include <stdbool.h>

#include "app/init/init_project.h"
#include "base/util/buf.h"
#include "core/image/survey.h"
#include "kube/api/kubeconfig.h"

/* The regular file name below dir; false when there is none, or it is larger than INIT_FILE_MAX.
 * The buffer may be zero. */
bool init_read(const char *dir, const char *name, struct buf *ret);
bool init_is_file(const char *dir, const char *name);
bool init_is_dir(const char *dir, const char *name);
/* name of the project's directory as a path from the root of the tree; the caller frees. */
char *init_tree_path(const struct init_project *project, const char *name);

/* The name and what makes the environment; path: PATH. survey: NULL when there is none. */
void init_find_name(struct init_project *project);
void init_find_env(struct init_project *project, const struct survey *survey, const char *path);
/* After init_find_env. */
void init_find_commands(struct init_project *project, const char *path);
void init_find_image(struct init_project *project);
/* After both: instead of its image an official one with the project's Python, else a usual one. */
void init_set_python_image(struct init_project *project);
void init_find_data(struct init_project *project, const struct survey *survey);
void init_find_outputs(struct init_project *project, const struct survey *survey);
void init_find_contexts(struct init_project *project, const struct kubeconfig *kubeconfig);
/* The names of hosts in ~/.ssh/config and the files that it includes; home: HOME or NULL. */
void init_find_hosts(const char *home, struct strv *ret);

#endif
