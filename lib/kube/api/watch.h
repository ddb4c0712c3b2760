/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of a collection and their changes: list, then watch, for ever (Kubernetes API
 * concepts, "Efficient detection of changes"). Bookmarks are requested; 410, an ERROR event in a
 * 200, cut and silent streams lead to a new watch or a new list, with pauses that grow up to 30 s
 * while nothing responds. resourceVersions are opaque. The server is asked to end each stream after
 * 50 s, with a bookmark before, so that a dead one is noticed; after a sleep of this machine the
 * stream is restarted at once. Lists are consistent reads (no resourceVersion is requested), so
 * nothing goes back in time. For a user who may list but not watch, a list every two seconds yields
 * the same events.
 */
#ifndef DLRUN_KUBE_API_WATCH_H
#define DLRUN_KUBE_API_WATCH_H

#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "kube/api/client.h"

struct kube_watch_events {
	/* An object as it is now: of a list, added or modified. */
	void (*put)(void *ctx, const struct json *object);
	/* The object is gone. object: its last state (if a list lacks it: only its metadata). */
	void (*gone)(void *ctx, const struct json *object);
	/* All of a list has been put: what is known is complete as of now. */
	void (*synced)(void *ctx);
	/* The cluster cannot be asked (fault) since the clock_ms of since_ms, or can again (fault
	 * NULL). May be NULL. */
	void (*trouble)(void *ctx, const struct err *fault, int64_t since_ms);
	/* The watch has ended: denied, not found, invalid, more than max_objects, and at the first
	 * list a login that does not work or a TLS error; later a refusal that has lasted for 30 s.
	 * No event follows. A negative return ends loop_run. */
	int (*failed)(void *ctx, struct err *fault, struct err *err);
	void *ctx;
};

struct kube_watch_request {
	const char *path;         /* of the collection */
	const char *const *query; /* labelSelector, fieldSelector; or NULL */
	/* Name of the one object that the query selects: it is read by itself where lists are
	 * denied. NULL: there may be more. */
	const char *name;
	size_t max_objects; /* more are E_DATA_LIMIT; 0: 10,000 */
	int64_t idle_ms;    /* a stream that is silent for so long is dead; 0: 60 s */
	struct kube_watch_events events;
};

struct kube_watch;
/* Copies what it keeps. Events come from the loop. */
struct kube_watch *kube_watch_start(
	struct kube_client *client, const struct kube_watch_request *request);
/* NULL is accepted; also from within an event. */
void kube_watch_free(struct kube_watch *watch);

#endif
