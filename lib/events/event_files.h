/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event files below a directory, found without configuration: any regular file with "tfevents" in
 * its name, at any depth; symbolic links are not followed. Reads their new bytes, of the files of a
 * directory in the order of their names, as far as they are found by the same look.
 */
#ifndef DLRUN_EVENTS_EVENT_FILES_H
#define DLRUN_EVENTS_EVENT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/vec.h"
#include "events/tfevents.h"

struct event_files_spec {
	const char *dir;
	unsigned depth_max; /* levels below it */
	size_t dirs_max, files_max, entries_max;
	size_t bytes_max; /* that one look reads */
	size_t record_max;
	size_t tags_max; /* of one file: tfevents_spec; 0: 2000 */
	/* dir: which directory the file is in, by number, from 0. file: which file. What is not
	 * wanted is NULL. */
	void (*scalar)(void *ctx, size_t dir, size_t file, const struct tfevents_scalar *scalar);
	void (*restart)(void *ctx, size_t dir, size_t file, int64_t step);
	void *ctx;
};

struct event_files;
struct event_files *event_files_new(const struct event_files_spec *spec);
/* Find new files and data, and read them. Returns whether there is more to read at once. */
bool event_files_poll(struct event_files *files);
/* Path of a directory below the first one, "" for that itself. */
const char *event_files_dir(const struct event_files *files, size_t dir);
/* Path of dir below its nearest parent directory that has event files, too; NULL: there is none. */
const char *event_files_nested(const struct event_files *files, size_t dir);
void event_files_free(struct event_files *files);

/*
 * Files that TensorBoard's plugins read besides event files: the profiles of TensorFlow and JAX
 * (plugins/profile/…), traces of PyTorch's profiler, dumps of the debugger, and the projector's
 * configuration with what it names. An engine: paths and texts in, results out.
 */

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
