/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of a Job or JobSet, or of a member of a study, which has one rank, 0: that of its
 * container `program` in all ranks, or one, through
 * restarted and replaced pods, until it has ended and all is drained. Bytes of different ranks
 * change over at the ends of lines only (or after half a second without one).
 *
 * Each rank that is followed holds a connection, and the watches hold two. Of more ranks than
 * HTTP_TURNS_MAX each is read for HTTP_TURN_MS at a time, from where it was left.
 */
#ifndef DLRUN_KUBE_LOGS_RUNLOG_H
#define DLRUN_KUBE_LOGS_RUNLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "kube/api/client.h"
#include "kube/api/kinds.h"
#include "kube/api/watch.h"

enum { KUBE_RUNLOG_RANKS_MAX = 4096 };

struct kube_runlog_events {
	/* Raw bytes of one rank in order; time_ms on its node. < 0: stop; that ends loop_run with
	 * err, and the bytes count as not delivered. */
	int (*data)(void *ctx, int rank, const char *data, size_t len, int64_t time_ms,
		struct err *err);
	/* Something is away for now; rank -1: all. One sentence. */
	void (*notice)(void *ctx, int rank, const char *text);
	/* Remarks that belong to the log for ever: output is missing from here, another pod goes
	 * on. One sentence that names the rank. NULL: notice is called. */
	void (*gap)(void *ctx, int rank, const char *text);
	/* All is delivered; no event follows. error is not set then, or what made it impossible
	 * (E_KUBE_DENIED, …). < 0 ends loop_run. kube_runlog_free may be called from it. */
	int (*end)(void *ctx, struct err *error, struct err *err);
	void *ctx;
};

struct kube_runlog_request {
	enum kube_kind kind;
	const char *kube_namespace, *name; /* of the Job or JobSet */
	bool is_member;                    /* of a study, whose Job that is */
	int index;                         /* its completion index */
	const char *pods;                  /* label selector of its own; not heeded if is_fed */
	int rank;                          /* -1: all */
	int64_t tail_lines;                /* of each rank; -1: all */
	int64_t since_ms;                  /* wall clock; 0: all */
	bool follow;
	bool has_ended; /* as is known elsewhere: what is there now is all */
	/* The caller watches its pods and its Job, and passes the events on. */
	bool is_fed;
	/* The text of kube_runlog_token for the same object and rank; NULL or empty: from the
	 * start. */
	const char *token;
	struct kube_runlog_events events;
};

struct kube_runlog;
/* Copies what it keeps. Events come from the loop. */
struct kube_runlog *kube_runlog_start(
	struct kube_client *client, struct loop *loop, const struct kube_runlog_request *request);
/* For one that is fed: what to call with its pods, and with its Job (if it follows). None of them
 * ends the log at once; what ends it comes from the loop. */
struct kube_watch_events kube_runlog_pod_events(struct kube_runlog *runlog);
struct kube_watch_events kube_runlog_job_events(struct kube_runlog *runlog);
/* Whether nothing has come yet of some rank that is read, or its pods are not known: what removes
 * the pods now may take their logs along. Not for longer than a moment, as a program may be silent.
 */
bool kube_runlog_is_opening(const struct kube_runlog *runlog);
/* NULL is accepted. */
void kube_runlog_free(struct kube_runlog *runlog);
/* The places to resume from, as text without blanks: "RANK=PLACE" with commas between them, less
 * than 128 bytes for each. PLACE ends with KUBE_RUNLOG_DRAINED if all of its pod was read, or it
 * was reported that it cannot be. Replaces what is in out. */
#define KUBE_RUNLOG_DRAINED "."
void kube_runlog_token(const struct kube_runlog *runlog, struct buf *out);

#endif
