/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a working tree to a run: snapshot, image, record, start. The order makes every instant
 * safe: checks → row `preparing` with the handle → image (blobs, manifest durable) → row `queued`
 * with the image, durable → target started → row repaired by whoever looks next. What comes after
 * the start (git record, times) is kept beside the run until then (finish.h).
 *
 * While it works a submit holds RUN_SUBMIT_LOCK in the run's directory, so that a killed one is
 * told from one that takes long (attempt.h), and session_lock until the row has the image. In
 * the local layout the image is called by the run's id.
 */
#ifndef DLRUN_APP_SUBMIT_SUBMIT_H
#define DLRUN_APP_SUBMIT_SUBMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "app/prepare/submit_options.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "snap/tree/snapshot.h"

/* Preview of a submit: nothing is written. */
struct submit_preview {
	struct snapshot *snapshot; /* NULL with --from */
	struct json *doc;          /* dlrun/run/v1 as it would be */
	/* Objects that would be created in a cluster (target_ops.preview), where objects were
	 * requested. */
	struct json *objects;
	struct strv notes;
	struct strv notices; /* as of submit_events */
};
int submit_preview(struct session *session, const struct submit_options *options, bool objects,
	struct submit_preview *ret, struct err *err);
void submit_preview_done(struct submit_preview *preview);

/* Returns when the target has accepted the run (its supervisor is started), or, where nobody
 * answers, when it is held here (app/runs/held.h); on failure after the row was written *ret is set
 * too and its state tells. The git record is written last: submit_finish. */
int submit_run(struct session *session, const struct submit_options *options,
	const struct submit_events *events, struct run **ret, struct err *err);
/* Finish what may come after the start: git record, spare trees' upkeep. Failures are warnings. */
void submit_finish(struct session *session, struct run *run, const struct submit_events *events);

#endif
