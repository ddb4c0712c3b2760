/*
 * Results of a run in a directory here. The target walks what the run has written and offers it;
 * the sink decides what is wanted and writes it. Programs are not trusted: their files never get
 * out of the directory, nor through a link of it.
 *
 * The sink keeps what it has written in mind (DIR/.dlrun-fetch), so that it is cheap to fetch
 * again, and a file that somebody else has put there or changed is told from one of its own. A file
 * appears as a whole, with its mode (no setuid) and time; links stay links.
 */
#ifndef DLRUN_RUN_FETCH_H
#define DLRUN_RUN_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/auto.h"
#include "base/err.h"
#include "base/vec.h"
#include "run/run.h"
#include "run/session.h"

enum { FETCH_PATHS_MAX = 1000 };
#define FETCH_OWN ".dlrun-fetch" /* of the sink, in DIR */

struct fetch_report {
	size_t files, skipped; /* written; there already. Links are files */
	uint64_t bytes;        /* written */
};

struct fetch_options {
	const struct strv *paths;        /* what of the results, see below; empty: all */
	const char *dir;                 /* seen from the session's; NULL: the run's id there */
	bool force;                      /* replace files that did not come from a fetch, too */
	const volatile int *interrupted; /* may be NULL */
};

/* The results of a run, ended or not. *ret says what was done, and *ret_dir (absolute, the caller
 * frees) where, on failure too. A file that cannot be read or must not be replaced does not keep
 * the others: E_IO_READ or E_FETCH_KEPT at the end, E_FETCH_PATH for a path that matched nothing.
 * Only a directory that is called after the run, and new, is hidden from git (.gitignore). One that
 * was made for nothing is removed again. */
int run_fetch(struct session *session, const struct run *run, const struct fetch_options *options,
	char **ret_dir, struct fetch_report *ret, struct err *err);

/* Whether results of a run that has ended can be fetched yet: with a configuration that keeps none
 * in a cluster they ended with its pods. Asks nobody. */
bool run_keeps_results(struct session *session, const struct run *run);

/*
 * Which paths are wanted. An engine: a path is that of a file or directory below the results, or a
 * pattern of `?`, `*`, `[…]` (not `/`) and `**` (any directories); a directory is all below it.
 */
struct fetch_paths;
/* E_USAGE for one that is absolute, leads up, or is one too many. */
int fetch_paths_new(const struct strv *paths, struct fetch_paths **ret, struct err *err);
void fetch_paths_free(struct fetch_paths *paths);
AUTO_POINTER(struct fetch_paths, fetch_paths_free)
/* Whether the file or directory is wanted; what wanted it counts as found. */
bool fetch_paths_want(struct fetch_paths *paths, const char *path);
/* Whether something below the directory may be. */
bool fetch_paths_lead_into(const struct fetch_paths *paths, const char *dir);
/* The first that has wanted nothing, as it was written, or NULL. */
const char *fetch_paths_unused(const struct fetch_paths *paths);

/*
 * The sink. Paths are relative to the results; one with "." or ".." is refused as one that cannot
 * be read is. One thing after the other.
 */
struct fetch_sink;
struct fetch_item {
	const char *path;
	mode_t mode;
	uint64_t size; /* of a file, as far as it is known */
	int64_t mtime_ns;
	bool changing;      /* it may be changed yet without getting another time */
	const char *target; /* of a link */
};
/* Makes dir. Waits some seconds for another fetch into it (E_IO_LOCK). paths is borrowed. */
int fetch_sink_open(const char *dir, struct fetch_paths *paths, bool force, struct fetch_sink **ret,
	struct err *err);
void fetch_sink_free(struct fetch_sink *sink);
AUTO_POINTER(struct fetch_sink, fetch_sink_free)
struct fetch_paths *fetch_sink_paths(struct fetch_sink *sink);
/* Whether it writes into that directory: a target here must not walk into it. */
bool fetch_sink_is_in(const struct fetch_sink *sink, const struct stat *dir);
int fetch_sink_dir(struct fetch_sink *sink, const char *path, mode_t mode, struct err *err);
/* Whether the file (its content comes later, by fetch_sink_begin) is to be written: 1; 0: it is
 * there already or must stay as it is, which is counted and noted now. */
int fetch_sink_wants(struct fetch_sink *sink, const struct fetch_item *item, struct err *err);
int fetch_sink_link(struct fetch_sink *sink, const struct fetch_item *item, struct err *err);
/* 1: *ret_fd wants the content, which fetch_sink_end or another begin ends; 0: it is there already
 * or must stay as it is. */
int fetch_sink_begin(
	struct fetch_sink *sink, const struct fetch_item *item, int *ret_fd, struct err *err);
int fetch_sink_end(struct fetch_sink *sink, const struct fetch_item *item, struct err *err);
/* A path that the target could not read. */
void fetch_sink_unread(struct fetch_sink *sink, const char *path, int errnum);
/* Keep the directory out of git and snapshots. */
int fetch_sink_hide(struct fetch_sink *sink, struct err *err);
/* What was done until now. */
void fetch_sink_report(const struct fetch_sink *sink, struct fetch_report *ret);
/* The end: 0, or what was not fetched (see run_fetch). */
int fetch_sink_finish(struct fetch_sink *sink, const char *run_id, struct err *err);

#endif
