/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the files of a run go to. The target walks what the run has written and offers it; the sink
 * says which files it wants, and from which byte on, and takes them. There are three sinks: the
 * directory of a fetch (fetch_dir.h), the mirror of event files (mirror.h), and a list or a single
 * file that is only displayed (outputs.h).
 *
 * Programs are not trusted. Paths are relative to the results; a path with "." or ".." is refused
 * like one that cannot be read. Files come one after the other: between begin and end nothing else.
 */
#ifndef DLRUN_CORE_TARGET_FETCH_SINK_H
#define DLRUN_CORE_TARGET_FETCH_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

#define FETCH_OWN ".dlrun-fetch" /* in the directory of a fetch: what its sink keeps in mind */

struct fetch_item {
	const char *path;
	mode_t mode;
	uint64_t size; /* of a file, as far as it is known */
	int64_t mtime_ns;
	bool changing;      /* it may be changed yet without getting another time */
	const char *target; /* of a link */
};

/* The part of a file's content that is wanted: offset + len is item.size at most. */
struct fetch_range {
	uint64_t offset, len;
};

struct fetch_paths;
struct fetch_sink;
struct fetch_sink_ops {
	int (*dir)(struct fetch_sink *sink, const char *path, mode_t mode, struct err *err);
	int (*link)(struct fetch_sink *sink, const struct fetch_item *item, struct err *err);
	/* dir and link may be NULL: only regular files are wanted. */
	int (*wants)(struct fetch_sink *sink, const struct fetch_item *item,
		struct fetch_range *ret, struct err *err);
	int (*begin)(struct fetch_sink *sink, const struct fetch_item *item,
		const struct fetch_range *range, struct err *err);
	int (*write)(struct fetch_sink *sink, const void *data, size_t len, struct err *err);
	int (*end)(struct fetch_sink *sink, const struct fetch_item *item, struct err *err);
	void (*unread)(struct fetch_sink *sink, const char *path, int errnum);
	/* The following may be NULL. */
	bool (*is_in)(const struct fetch_sink *sink, const struct stat *dir);
	void (*free)(struct fetch_sink *sink);
};
/* First member of each sink. What it points to is borrowed. */
struct fetch_sink {
	const struct fetch_sink_ops *ops;
	struct fetch_paths *paths; /* NULL: all */
	/* Select regular files whose names match one of these patterns of fnmatch(3), or a pattern
	 * with a slash "./" and their path (* is any bytes), so that targets check fewer files.
	 * NULL: all. */
	const struct strv *like;
	/* Select only the file with that path, and no link. NULL: all. */
	const char *only;
	/* Start nothing that takes long (a pod) for this sink: E_TARGET_UNSUPPORTED instead. */
	bool is_brief;
	bool takes;  /* all of it is kept here: what waits for that there may end */
	bool ending; /* with takes: of what is being removed, once the program has ended */
	/* List of the files that the next attempt must have again (carry_over.h); or NULL. */
	struct buf *taken;
	bool from_tree; /* what lies in the tree of the attempt, instead of its results */
};

void fetch_sink_free(struct fetch_sink *sink);
AUTO_POINTER(struct fetch_sink, fetch_sink_free)

/* Whether path is relative, has no empty name, no "." or "..", and is no longer than any path here
 * may be. */
bool fetch_path_is_proper(const char *path);

/* Whether the file, link or directory is wanted by its path; the path that selects it counts as
 * found. */
bool fetch_sink_names(const struct fetch_sink *sink, const char *path);
/* Whether something below the directory may be wanted. */
bool fetch_sink_leads_into(const struct fetch_sink *sink, const char *dir);
/* Whether a regular file of that name in the directory is one of sink.like; cheap. */
bool fetch_sink_is_like(const struct fetch_sink *sink, const char *dir, const char *name);
/* Whether only regular files are wanted. */
static inline bool fetch_sink_is_narrow(const struct fetch_sink *sink)
{
	return !sink->ops->link;
}
/* Whether the sink writes into that directory: a target here must not walk into it. */
bool fetch_sink_is_in(const struct fetch_sink *sink, const struct stat *dir);

int fetch_sink_dir(struct fetch_sink *sink, const char *path, mode_t mode, struct err *err);
int fetch_sink_link(struct fetch_sink *sink, const struct fetch_item *item, struct err *err);
/* 1: *ret of the file's content is wanted, which comes later; 0: the sink has it already or must
 * leave it as it is, which is counted and noted now. */
int fetch_sink_wants(struct fetch_sink *sink, const struct fetch_item *item,
	struct fetch_range *ret, struct err *err);
/* 1: fetch_sink_write wants that range of the content, which fetch_sink_end or another begin ends;
 * 0: not any more. The range is that of wants, or begins further on in it. */
int fetch_sink_begin(struct fetch_sink *sink, const struct fetch_item *item,
	const struct fetch_range *range, struct err *err);
/* A negative return ends the whole fetch. */
int fetch_sink_write(struct fetch_sink *sink, const void *data, size_t len, struct err *err);
/* item->changing is what turned out: set if less came than was requested, or of another moment. */
int fetch_sink_end(struct fetch_sink *sink, const struct fetch_item *item, struct err *err);
/* A path that the target could not read. */
void fetch_sink_unread(struct fetch_sink *sink, const char *path, int errnum);

/*
 * The paths that a fetch selects. An engine: a path names a file or directory below the results, or
 * is a pattern of `?`, `*`, `[…]` (not `/`) and `**` (any directories); a directory selects
 * everything below it.
 */

enum { FETCH_PATHS_MAX = 1000 };

struct fetch_paths;
/* E_USAGE for a path that is absolute or leads up, and for one path too many. */
int fetch_paths_new(const struct strv *paths, struct fetch_paths **ret, struct err *err);
void fetch_paths_free(struct fetch_paths *paths);
AUTO_POINTER(struct fetch_paths, fetch_paths_free)
/* Whether the file or directory is wanted; the path that selects it counts as found. */
bool fetch_paths_want(struct fetch_paths *paths, const char *path);
/* Whether something below the directory may be wanted. */
bool fetch_paths_lead_into(const struct fetch_paths *paths, const char *dir);
/* The first path that has selected nothing, as the user wrote it, or NULL. */
const char *fetch_paths_unused(const struct fetch_paths *paths);
/* E_FETCH_PATH if a path has selected nothing. */
int fetch_paths_check(
	const struct fetch_paths *paths, const char *run_id, bool from_tree, struct err *err);

#endif
