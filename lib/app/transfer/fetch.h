/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of a run in a directory here (fetch_dir.h). Programs are not trusted: their files
 * never get out of the directory, nor through a link of it.
 */
#ifndef DLRUN_APP_TRANSFER_FETCH_H
#define DLRUN_APP_TRANSFER_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/transfer/outputs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/dirs.h"
#include "core/record/run.h"
#include "core/target/fetch_sink.h"

struct fetch_report {
	size_t files, skipped; /* written; there already. Links are files */
	uint64_t bytes;        /* written */
	uint64_t begun;        /* of a file that the next fetch goes on with */
	size_t in_git;         /* files of .git directories, which are not written */
};

struct fetch_progress {
	size_t files, files_done;   /* those that are wanted, as far as they are known */
	uint64_t bytes, bytes_done; /* of their contents, that have or had to come */
};
typedef void fetch_progress_fn(void *ctx, const struct fetch_progress *progress);

struct fetch_options {
	const struct strv *paths; /* what of the results, see below; empty: all */
	const char *dir;          /* seen from the session's; NULL: the run's id there */
	bool hides;               /* dir from git, if it is new */
	bool force;               /* replace files that did not come from a fetch, too */
	bool from_tree;           /* the tree that the newest attempt runs in; dir: ID-tree */
	bool takes;               /* for take_run: what waits for that may end then */
	bool ending;              /* the same: as fetch_sink.ending */
	struct buf *taken;        /* the same */
	const volatile int *interrupted; /* may be NULL */
	fetch_progress_fn *progress;     /* now and then; may be NULL */
	void *ctx;
};

/* The results of a run, ended or not; or what it wrote to its tree, while that is there. *ret says
 * what was done, and *ret_dir (absolute, the caller frees) where, on failure too. A file that
 * cannot be read or must not be replaced does not keep the others: E_IO_READ or E_FETCH_KEPT at the
 * end, E_FETCH_PATH for a path that matched nothing. Only a directory that is called after the run
 * (or with hides), and new, is hidden from git (.gitignore). One that was made for nothing is
 * removed again. */
int run_fetch(struct session *session, struct run *run, const struct fetch_options *options,
	char **ret_dir, struct fetch_report *ret, struct err *err);

/* The regular files that run_fetch would bring, without bringing them; dir and force do not
 * count. */
int run_list_files(struct session *session, const struct run *run,
	const struct fetch_options *options, struct outputs_files *ret, struct err *err);

/* Whether results of a run that has ended can be fetched yet: with a configuration that keeps none
 * in a cluster they ended with its pods. Asks nobody. */
bool run_keeps_results(struct session *session, const struct run *run);

/* Whether results do not end with the pods: they are no cluster's, or its target has storage. */
bool run_has_storage(struct session *session, const struct run *run);

/*
 * Results that lie nowhere but in the pods of a run that has ended: they wait there for a while,
 * and are taken to the directory of the run here, from where they are fetched from then on.
 */

/* Take them, and let the pods end. While the program runs: take what there is by now. 0 when there
 * is nothing. */
int take_run(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err);
/* Behind that, when the run is being cancelled: once its program has ended, what it has written
 * since. */
int take_ending(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err);
/* The run goes on after all: what is here is not what it leaves. */
void take_undo(struct session *session, const struct run *run);
/* Let the pods end without that. */
int take_give_up(struct session *session, struct run *run, int64_t timeout_ms, struct err *err);
/* All that wait; notice (may be NULL) says what could not be taken. */
void take_runs(struct session *session, const struct run_list *runs,
	const volatile int *interrupted, void (*notice)(void *ctx, const char *text), void *ctx);

#endif
