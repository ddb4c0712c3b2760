/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs on their way into one repository of a registry (OCI distribution-spec, "Pushing blobs"):
 * uploads, mounts from other repositories, copies from other registries, proofs that what is
 * remembered is still there. All at once; each ends well, or the whole has failed.
 *
 *	one POST      where the registry has shown that it takes a blob so (and, to find out, for
 *	              the first small one)
 *	POST, PUT     everywhere; the sessions may be opened ahead
 *	POST, PATCH…  large blobs where the registry has shown that it goes on after a cut
 *
 * A lost connection, a lost session, 408, 429 and 5xx are tried again from where the registry says
 * that it is. Sessions that are not used are deleted.
 */
#ifndef DLRUN_OCI_REGISTRY_UPLOADS_H
#define DLRUN_OCI_REGISTRY_UPLOADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "oci/model/blob.h"
#include "oci/registry/registry.h"
#include "oci/registry/registry_cache.h"

enum {
	UPLOAD_SINGLE_MAX = 8 << 20,   /* bytes of a blob that goes in one POST */
	UPLOAD_PROBE_MAX = 64 << 10,   /* of one that finds out whether that is taken */
	UPLOAD_CHUNKED_MIN = 64 << 20, /* of one that goes in pieces */
	UPLOAD_CHUNK = 16 << 20,
	UPLOAD_FIRST_CHUNK = 4 << 20, /* finds out whether pieces are taken */
	UPLOAD_QUEUE_MAX = 256 << 20, /* bytes of files that wait here, while the next is made */
	UPLOAD_LOOK_MIN = 1 << 20,    /* of a file that is looked for while it is sent */
	UPLOAD_TRIES = 5,
	UPLOAD_PROOF_MS = 3000, /* for a response whether a remembered blob is there */
	UPLOAD_CLOSE_MS = 1000, /* for deleting sessions after a failure */
};

struct uploads_options {
	struct loop *loop;
	struct registry *registry; /* where they go */
	struct registry_cache *cache;
	/* The repository of the same registry that bases are mounted from, or NULL. */
	const char *mount_from;
	/* The registry to read bases from that are not mounted; NULL: `registry`, from
	 * mount_from. */
	struct registry *base;
	bool copies;           /* bases that cannot be mounted; else they are a failure */
	const char *base_name; /* for messages */
	uint64_t chunked_min;  /* 0: UPLOAD_CHUNKED_MIN; for tests */
	bool trusts_nothing;   /* what is remembered counts when it is proved only */
};

struct uploads_progress {
	uint64_t bytes_total, bytes_done; /* of what is sent; copies too */
	size_t blobs_total, blobs_done;
	size_t mounts_total, mounts_done;
	uint64_t copied; /* bytes from registry to registry */
	/* Files that the registry had, which are not of what is sent. */
	size_t files_there;
	uint64_t bytes_there;
};

struct uploads;
struct uploads *uploads_new(const struct uploads_options *options);
/* Gives up what is under way. */
void uploads_free(struct uploads *uploads);

/* Have n sessions ready or under way that no upload uses yet. Nothing where one POST does. */
void uploads_open_ahead(struct uploads *uploads, size_t n);
/* Each takes effect once for each digest. A file is closed when it has arrived. Of one of
 * UPLOAD_LOOK_MIN bytes and more the registry is asked for a byte while it is sent, and whether it
 * keeps it: what another machine has sent does not travel again, and does not count as sent. */
void uploads_add_file(struct uploads *uploads, const struct descriptor *blob, int take_fd);
void uploads_add_bytes(struct uploads *uploads, const struct descriptor *blob, const void *data);
void uploads_add_base(struct uploads *uploads, const struct descriptor *blob);
/* Ask for one byte of each remembered blob of the newest image that was last seen too long ago. */
void uploads_prove_old(struct uploads *uploads);

/* Whether the repository has it, as far as is known and trusted; asks for a proof if that is old.
 * done is called at once or from the loop, with 1 or 0, or less than 0 where that is not known. */
typedef void uploads_has_fn(void *ctx, int has);
void uploads_has(
	struct uploads *uploads, const struct descriptor *blob, uploads_has_fn *done, void *ctx);
/* Whether it was seen there not long ago. */
bool uploads_trusts(const struct uploads *uploads, const char *digest);
/* As uploads_has, but whatever is remembered: it was sent or requested since uploads_new, or is
 * now. */
void uploads_prove(
	struct uploads *uploads, const struct descriptor *blob, uploads_has_fn *done, void *ctx);
/* The registry says that it lacks it. */
void uploads_forget(struct uploads *uploads, const char *digest);

/* done once, at once or from the loop, when all that was added has arrived (most: 0), or when of
 * the files no more than `most` bytes and the newest one are on their way; or at the first failure.
 * One wait at a time. */
typedef int uploads_done_fn(void *ctx, struct err *error, struct err *err);
int uploads_wait(
	struct uploads *uploads, uint64_t most, uploads_done_fn *done, void *ctx, struct err *err);
/* Stop waiting: no done of uploads_has and uploads_wait is called from here on. */
void uploads_leave(struct uploads *uploads);
/* Nothing more will be added: give up what is sent and delete all sessions. done (may be NULL)
 * when the registry has responded, or after UPLOAD_CLOSE_MS. */
int uploads_close(struct uploads *uploads, uploads_done_fn *done, void *ctx, struct err *err);

struct uploads_progress uploads_progress(const struct uploads *uploads);

#endif
