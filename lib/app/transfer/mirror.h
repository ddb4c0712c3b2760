/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event files of runs (event_files.h), and what TensorBoard's plugins read beside them
 * (event_files.h; as a whole when it has changed), in a directory here, kept up to date:
 * new bytes only, appended in place, because that is how TensorBoard reads them. From any target,
 * of running and ended runs, many at once; nothing is copied of runs on this machine, their files
 * are linked.
 *
 * DIR/RUN/PATH is the copy of PATH of the run's outputs. What was copied is trusted by its length
 * and its last bytes (and by what DIR/RUN/.dlrun-mirror remembers of it): a file that has become
 * shorter or another one is copied anew, as another file of that name. What is gone there stays
 * here. Programs are not trusted: a path is one of regular files below the outputs, nothing is
 * followed or written through a link. Several commands may keep one mirror: one after the other
 * polls a run.
 *
 * With scalars_only a copy has only the records that curves need, whole and byte for byte
 * (scalars_only.h), and of large others the bytes do not come. Such copies lie in another
 * DIR; files of runs on this machine are linked as they are.
 */
#ifndef DLRUN_APP_TRANSFER_MIRROR_H
#define DLRUN_APP_TRANSFER_MIRROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"

enum {
	MIRROR_RUNS_MAX = 200,
	MIRROR_FILES_MAX = 10000, /* of one run */
	/* Between two polls of a run that goes on; of one elsewhere that writes nothing for long up
	 * to MIRROR_IDLE times that. */
	MIRROR_POLL_MS = 5000,
	MIRROR_IDLE = 4,
	MIRROR_POLLS = 6, /* at the same time */
};
#define MIRROR_BYTES_MAX (UINT64_C(16) << 30) /* of one run */

struct mirror_options {
	const char *dir; /* NULL: in the cache directory, one for all commands */
	bool scalars_only;
	int64_t poll_ms; /* 0: MIRROR_POLL_MS */
	bool once;       /* one poll that ends well, and nothing behind it */
	/* A poll of a run has ended: see mirror_get. May be NULL. */
	void (*polled)(void *ctx, size_t run);
	void *ctx;
};

struct mirror_state {
	const char *run_id, *dir; /* dir: absolute, there once there are files */
	/* Where they are themselves, absolute: the outputs of a run of this machine, else dir. */
	const char *source;
	size_t files;              /* with events */
	uint64_t bytes, bytes_new; /* in them; those that this mirror has brought, of all */
	size_t plugin_files;       /* that TensorBoard's plugins read beside them */
	uint64_t plugin_bytes;
	size_t n_excluded;    /* of these, since they are too many or too large */
	const char *excluded; /* the first; valid until the next poll */
	uint64_t polls;       /* that have ended well */
	int64_t grown_ms;     /* wall clock, when something was new last; 0: never */
	bool is_over; /* the run has ended, and all is here, or (error) cannot be had any more */
	/* Of the last poll, if it failed: E_RUN_…, ERR_NET (it goes on trying). Not set: none. */
	const struct err *error;
};

struct mirror;
/* Nothing is asked yet. */
int mirror_open(struct session *session, const struct mirror_options *options, struct mirror **ret,
	struct err *err);
void mirror_free(struct mirror *mirror);
AUTO_POINTER(struct mirror, mirror_free)
/* Poll run from the next turn of the session's loop on until it has ended. A copy of run is kept.
 * E_USAGE: too many; and the errors of target_open_run. */
int mirror_add(struct mirror *mirror, const struct run *run, size_t *ret_index, struct err *err);
void mirror_get(const struct mirror *mirror, size_t run, struct mirror_state *ret);
/* Whether each run was polled once (or failed). */
bool mirror_is_polled(const struct mirror *mirror);
/* Runs the loop until each run was polled once (or failed: see mirror_get), timeout_ms at most
 * (-1: for ever), or *interrupted (E_CANCELED). */
int mirror_first(struct mirror *mirror, int64_t timeout_ms, const volatile int *interrupted,
	struct err *err);

/*
 * Metrics of runs elsewhere from the copies of their event files that lie on this machine
 * (mirror.h), without asking anybody. A copy that has not changed is not read again: what it
 * said is kept beside it.
 */

/* Beside the copies, like the mirror's own notes. */
#define METRICS_HERE_FILE ".dlrun-metrics"

enum { METRICS_BRING_MAX = 32 };

/* Where event files of the run are on this machine: its outputs, or the copy that is newer, of all
 * or of what curves need; the caller frees. NULL: nowhere. */
char *metrics_here_dir(const struct session *session, const struct run *run);
/* Brings the event files of runs elsewhere here, as far as curves need them: new bytes only, of
 * METRICS_BRING_MAX runs, and of those that go on not more often than every MIRROR_POLL_MS. What
 * does not come within timeout_ms comes with the next call. */
void metrics_bring(struct session *session, const struct run_list *runs, int64_t timeout_ms);
/* Into "metrics" of the records of runs elsewhere. Reads for limit_ms at most; what is not read
 * then stays as it was. */
void metrics_here(const struct session *session, const struct run_list *runs, int64_t limit_ms);

#endif
