/*
 * The log of a Job or JobSet: that of its container `program` in all ranks, or one, through
 * restarted and replaced pods, until it has ended and all is drained. Bytes of different ranks
 * change over at the ends of lines only (or after half a second without one).
 *
 * Each rank that is followed holds a connection, and the watches hold two: the client's http must
 * allow so many (http_allow_connections), or ranks wait for one another.
 */
#ifndef DLRUN_KUBE_RUNLOG_H
#define DLRUN_KUBE_RUNLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "kube/client.h"
#include "kube/kinds.h"

enum { KUBE_RUNLOG_RANKS_MAX = 4096 };

struct kube_runlog_events {
	/* Raw bytes of one rank in order; time_ms on its node. < 0: stop; that ends loop_run with
	 * err, and the bytes count as not delivered. */
	int (*data)(void *ctx, int rank, const char *data, size_t len, int64_t time_ms,
		struct err *err);
	/* A gap, another pod or attempt, something away; rank -1: all. One sentence. */
	void (*notice)(void *ctx, int rank, const char *text);
	/* All is delivered; no event follows. fault is not set then, or what made it impossible
	 * (E_KUBE_DENIED, …). < 0 ends loop_run. kube_runlog_free may be called from it. */
	int (*end)(void *ctx, struct err *fault, struct err *err);
	void *ctx;
};

struct kube_runlog_request {
	enum kube_kind kind;
	const char *kube_namespace, *name; /* of the Job or JobSet */
	int rank;                          /* -1: all */
	int64_t tail_lines;                /* of each rank; -1: all */
	int64_t since_ms;                  /* wall clock; 0: all */
	bool follow;
	/* Of kube_runlog_token for the same object and rank; NULL: from the start. */
	const char *token;
	struct kube_runlog_events events;
};

struct kube_runlog;
/* Copies what it keeps. Events come from the loop. */
struct kube_runlog *kube_runlog_start(
	struct kube_client *client, struct loop *loop, const struct kube_runlog_request *request);
/* How often all nodes had begun anew (JobSet) before the first pod that it has seen: that much is
 * missing. */
int64_t kube_runlog_restarts(const struct kube_runlog *runlog);
/* The sentence about that. The caller frees. */
char *kube_runlog_restarts_text(int64_t restarts);
/* NULL is accepted. */
void kube_runlog_free(struct kube_runlog *runlog);
/* Where to go on, as text without blanks: less than 128 bytes of one rank, less than 128 for each
 * rank otherwise. Replaces what is in out. */
void kube_runlog_token(const struct kube_runlog *runlog, struct buf *out);

#endif
