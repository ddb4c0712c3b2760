/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event files of one run, and unless scalars_only what TensorBoard's plugins read beside them
 * (event_files.h), in its directory of a mirror (mirror.h): a sink (fetch_sink.h)
 * that appends. Between begin and end of a poll it holds the run's lock.
 */
#ifndef DLRUN_APP_TRANSFER_MIRROR_FILES_H
#define DLRUN_APP_TRANSFER_MIRROR_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/target/fetch_sink.h"

#define MIRROR_OWN  ".dlrun-mirror" /* in the directory */
#define MIRROR_PART "tfevents"
/* Marker whose mtime is the time of the last poll that ended well. */
#define MIRROR_POLLED MIRROR_OWN "/looked"
/* Of what plugins read of one run. */
#define MIRROR_PLUGIN_BYTES_MAX (UINT64_C(2) << 30)
enum { MIRROR_PLUGIN_FILES_MAX = 2000 };

struct mirror_files;
/* linked: the files are there, and are linked; NULL: they are copied, or with scalars_only what
 * curves need of them (scalars_only.h). Makes nothing yet. */
struct mirror_files *mirror_files_new(const char *dir, const char *linked, bool scalars_only);
void mirror_files_free(struct mirror_files *files);
AUTO_POINTER(struct mirror_files, mirror_files_free)
struct fetch_sink *mirror_files_sink(struct mirror_files *files);

/* E_IO_LOCK at once where another process polls. */
int mirror_files_begin(struct mirror_files *files, struct err *err);
/* Whether all of the attempt of that handle was copied before, and is here; then the poll has
 * nothing else to find. */
bool mirror_files_is_whole(struct mirror_files *files, const char *handle);
/* whole: the handle of an attempt that has ended and was copied; or NULL. Fails as the poll did
 * where that is not the target's matter: E_DATA_LIMIT, E_IO_READ. */
int mirror_files_end(struct mirror_files *files, const char *whole, struct err *err);
/* Give up the poll. */
void mirror_files_drop(struct mirror_files *files);

struct mirror_counts {
	size_t files;                  /* with events */
	uint64_t bytes, bytes_new;     /* in them; that came, of all */
	size_t plugin_files, excluded; /* that plugins read; that are too many or too large */
	uint64_t plugin_bytes;
	bool is_new; /* in the present or last poll: more, or another file */
	/* A file turned out to be another one, or has more than was requested: poll again. */
	bool wants_more;
	bool is_behind; /* there is more already; it may wait for the next poll */
};
void mirror_files_count(const struct mirror_files *files, struct mirror_counts *ret);
/* The first that was left out, or NULL. */
const char *mirror_files_excluded(const struct mirror_files *files);

#endif
