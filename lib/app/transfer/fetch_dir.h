/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sink of a fetch: a directory here.
 *
 * It keeps what it has written in mind (DIR/.dlrun-fetch), so that it is cheap to fetch again, and
 * a file that somebody else has put there or changed is told from one of its own. A file appears as
 * a whole, with its mode (no setuid) and time; links stay links. Nothing gets out of the directory,
 * nor through a link of it. The beginning of a large file whose fetch was cut is kept, and the next
 * fetch goes on behind it when size and time agree.
 */
#ifndef DLRUN_APP_TRANSFER_FETCH_DIR_H
#define DLRUN_APP_TRANSFER_FETCH_DIR_H

#include "app/transfer/fetch.h"
#include "core/target/fetch_sink.h"

enum {
	FETCH_RESUME_MIN = 1 << 20,    /* bytes of a file that is worth going on with */
	FETCH_GROW_OVERLAP = 64 << 10, /* of one that has grown; shorter ones come as a whole */
};

/* Makes dir. Waits some seconds for another fetch into it (E_IO_LOCK). paths is borrowed. */
int fetch_dir_open(const char *dir, struct fetch_paths *paths, bool force, struct fetch_sink **ret,
	struct err *err);
/* How far it is, now and then, while content comes. */
void fetch_dir_on_progress(struct fetch_sink *sink, fetch_progress_fn *progress, void *ctx);
/* Keep the directory out of git and snapshots. */
int fetch_dir_hide(struct fetch_sink *sink, struct err *err);
/* Report what was done until now. */
void fetch_dir_report(const struct fetch_sink *sink, struct fetch_report *ret);
/* Whether files are missing that were taken to have only grown: all are to be offered again. */
bool fetch_dir_again(struct fetch_sink *sink);
/* The end: 0, or what was not fetched (see run_fetch). */
int fetch_dir_finish(struct fetch_sink *sink, const char *run_id, struct err *err);

#endif
