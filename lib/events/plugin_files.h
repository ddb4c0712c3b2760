/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that TensorBoard's plugins read besides event files: the profiles of TensorFlow and JAX
 * (plugins/profile/…), traces of PyTorch's profiler, dumps of the debugger, and the projector's
 * configuration with what it names. An engine: paths and texts in, results out.
 */
#ifndef DLRUN_EVENTS_PLUGIN_FILES_H
#define DLRUN_EVENTS_PLUGIN_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/vec.h"

#define PLUGIN_FILES_PROJECTOR "projector_config.pbtxt"
enum { PLUGIN_FILES_TEXT_MAX = 1 << 20 }; /* of one that names others */

/* Patterns of fnmatch(3) for names, or with a slash for "./" and the path. */
void plugin_files_patterns(struct strv *ret);
/* Whether path matches one of these. */
bool plugin_files_is_one(const char *path);
/* Whether it only ever grows at its end. */
bool plugin_files_is_appended(const char *path);
/* Whether files beside it are read because it names them. */
bool plugin_files_names_others(const char *path);
/* Find the files that the text of path names: patterns for "./" and a path, in which ? stands for
 * characters with a meaning there. Files elsewhere (an absolute path, one that leads out) are left
 * out. */
void plugin_files_named(const char *path, const char *text, size_t len, struct strv *ret);

#endif
