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

#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "kube/api/client.h"

struct kube_watch_events {
	/* An object as it is now: of a list, added or modified. */
	void (*put)(void *ctx, const struct json *object);
	/* The object is gone. object: its last state (if a list lacks it: only its metadata). */
	void (*gone)(void *ctx, const struct json *object);
	/* All of a list has been put: what is known is complete as of now. */
	void (*synced)(void *ctx);
	/* The cluster cannot be reached (error) since the clock_ms of since_ms, or can again (error
	 * NULL). May be NULL. */
	void (*trouble)(void *ctx, const struct err *error, int64_t since_ms);
	/* The watch has ended: denied, not found, invalid, more than max_objects, and at the first
	 * list a login that does not work or a TLS error; later a refusal that has lasted for 30 s.
	 * No event follows. A negative return ends loop_run. */
	int (*failed)(void *ctx, struct err *error, struct err *err);
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

/*
 * The body of a watch (Kubernetes API concepts, "Watch"): one JSON object {"type", "object"} on
 * each line. An engine.
 */

enum { KUBE_LINE_MAX = 4 << 20 };

struct kube_lines {
	struct buf part; /* of a line that is not complete yet */
};
void kube_lines_init(struct kube_lines *lines);
void kube_lines_done(struct kube_lines *lines);
#define AUTO_KUBE_LINES AUTO(kube_lines_done)

/* 0 to go on; anything else is returned by kube_lines_add. */
typedef int kube_line_fn(void *ctx, const char *line, size_t len, struct err *err);
/* fn for each complete line that is not empty, without its end. E_DATA_LIMIT for one of more than
 * KUBE_LINE_MAX bytes. lines may be gone when fn returns another value than 0. */
int kube_lines_add(struct kube_lines *lines, const char *data, size_t len, kube_line_fn *fn,
	void *ctx, struct err *err);

enum kube_watch_event_kind {
	KUBE_EVENT_PUT,
	KUBE_EVENT_GONE,
	KUBE_EVENT_BOOKMARK,
	KUBE_EVENT_ERROR
};
struct kube_watch_event {
	enum kube_watch_event_kind kind;
	struct json *root; /* owned */
	const struct json *object;
	const char *name, *uid, *version; /* of its metadata; not of an error. uid may be NULL */
};
/* E_KUBE_RESPONSE for what is none. */
int kube_watch_event_parse(
	const char *line, size_t len, struct kube_watch_event *ret, struct err *err);
void kube_watch_event_done(struct kube_watch_event *event);
#define AUTO_KUBE_WATCH_EVENT AUTO(kube_watch_event_done)

#endif
