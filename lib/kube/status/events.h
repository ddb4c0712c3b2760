/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of a cluster (events.k8s.io/v1 and core v1, which are the same objects in two forms):
 * repeated ones as one, in the order of time. An engine, no I/O. Reporters are unordered, late and
 * many-voiced, and events go away after an hour: they explain, they never decide a state.
 */
#ifndef DLRUN_KUBE_STATUS_EVENTS_H
#define DLRUN_KUBE_STATUS_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/vec.h"

enum { KUBE_EVENTS_MAX = 1000, KUBE_EVENT_TEXT_MAX = 600 };

/* Objects in an array of the caller's, who keeps it up to date. */
struct kube_items {
	const struct json *const *v;
	size_t n;
	bool known; /* it was requested and came; false: not allowed, not requested */
};

/* Strings are owned, never NULL; message is one printable line of at most KUBE_EVENT_TEXT_MAX
 * bytes. */
struct kube_event {
	char *kind, *name, *uid; /* of what it is about */
	char *reason, *message;
	char *reporter; /* "kubelet", "default-scheduler" */
	bool warning;
	int64_t first_ms, last_ms; /* wall clock of the cluster; 0: it does not say */
	int count;
};
struct kube_event_list VEC_OF(struct kube_event);
void kube_event_list_done(struct kube_event_list *list);
#define AUTO_KUBE_EVENT_LIST AUTO(kube_event_list_done)

/* Oldest first by last_ms; those with the same object, reason and message are one. The newest
 * KUBE_EVENTS_MAX at most. What is no event is left out. ret is filled anew. */
void kube_events_collect(const struct kube_items *items, struct kube_event_list *ret);
/* The newest about the object of that kind (NULL: any) and name (NULL: any) with that reason (NULL:
 * any warning); or NULL. Lives as long as list. */
const struct kube_event *kube_events_newest(
	const struct kube_event_list *list, const char *kind, const char *name, const char *reason);

/* Text of a server as one printable line: blanks for whitespace, escapes for what is unprintable,
 * at most max bytes with "…" at the end of what was cut. NULL counts as "". The caller frees. */
char *kube_text(const char *text, size_t max);

#endif
