/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a target has the paths of `data:`, for work there outside of any run: directories of hosts
 * or of this machine, and volumes of a cluster, which a pod has mounted as long as the place is
 * open. There all of it is done by one script (runner/73-store.sh); in buckets by requests.
 */
#ifndef DLRUN_APP_DATA_PLACE_H
#define DLRUN_APP_DATA_PLACE_H

#include <stddef.h>

#include "app/data/version.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/target/target.h"

/* Exit codes of the script. */
enum data_status {
	DATA_OK = 0,
	DATA_NO_PLACE = 40,   /* it is no directory of ours, and cannot be made */
	DATA_HAS_FILES = 41,  /* that are no version's; stderr: the first */
	DATA_NO_TOOL = 43,    /* stderr: which */
	DATA_NO_VERSION = 44, /* there is none of that name */
	DATA_DIFFERS = 45,    /* what was put together is not that, or was changed */
	DATA_CUT = 46,        /* the stream ended early */
	DATA_FAILED = 47,     /* a tool failed; stderr: why */
	DATA_REPLACES = 48,   /* a version that was changed, and that a run may read */
	DATA_FULL = 49,       /* there is no room; what was sent is removed; stderr: why */
};

struct place_bucket;
struct place_pod;

struct data_place {
	struct session *session;
	struct target *target;
	const volatile int *interrupted;
	struct strv paths; /* of data:, that the target has places for */
	struct strv dirs;  /* of each: as the script is told */
	char *sub_path;    /* that runs need where a volume names no version; or NULL */
	size_t host;       /* of the target's */
	struct place_pod *pod;
	struct place_bucket *bucket; /* NULL: not opened yet */
};

/* path: of data:, in the form of runtime_path; NULL: all that the target has places for, which may
 * be none. note (or NULL) is called while something is waited for. Blocks. E_RUN_DATA: the target
 * does not say where it is. */
int data_place_open(struct session *session, const char *target, const char *path,
	void (*note)(void *ctx, const char *text), void *ctx, const volatile int *interrupted,
	struct data_place *ret, struct err *err);
void data_place_done(struct data_place *place);

size_t data_place_hosts(const struct data_place *place);
/* VERB and ARGS for the i-th path. in_fd: stdin, -1: none. *out (initialised) gets what is printed.
 * Returns a data_status, or an error of the connection. said (initialised, or NULL): stderr. */
int data_place_run(struct data_place *place, size_t i, const struct strv *words, int in_fd,
	struct buf *out, struct buf *said, struct err *err);
/* The error that a status means. */
int data_place_fail(
	struct data_place *place, size_t i, int status, const struct buf *said, struct err *err);
/* The same in one call: all but DATA_OK is an error. */
int data_place_do(struct data_place *place, size_t i, const struct strv *words, struct buf *out,
	struct err *err);

/* The pod of a cluster (place_pod.c). */
int place_pod_open(struct data_place *place, const struct strv *froms,
	void (*note)(void *ctx, const char *text), void *ctx, struct err *err);
int place_pod_run(struct data_place *place, const struct strv *words, const int fds[3],
	int *ret_status, struct err *err);
void place_pod_close(struct data_place *place);

/* Buckets (place_bucket.c). */
bool data_place_is_bucket(const struct data_place *place, size_t i);
/* The verbs of the script but for put. */
int place_bucket_run(struct data_place *place, size_t i, const struct strv *words, struct buf *out,
	struct err *err);
void place_bucket_close(struct place_bucket *bucket);

/* Send a version whose files all have digests. base: another version that the bucket has, or NULL.
 * Blocks. Returns 1 where the version is known and no object is missing or has another size. */
struct bucket_put {
	const char *dir;
	const struct version *now, *base;
	const char *id, *base_id;
	const char *key;   /* tells pushes of the same version apart */
	const char *list;  /* now as text */
	const char *notes; /* a directory here: what has arrived of large files */
	bool is_known;     /* its list is there */
	void (*progress)(void *ctx, uint64_t done, uint64_t total);
	void *ctx;
	size_t n_sent; /* files that were not there under any name */
	uint64_t bytes_sent;
};
int place_bucket_put(struct data_place *place, size_t i, struct bucket_put *put, struct err *err);

#endif
