/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches of the Job and pods of one run: repeated requests for its state in one command (`wait`,
 * the end of a log) are answered from them, not by a list each time.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_WATCHER_H
#define DLRUN_TARGETS_KUBE_KUBE_WATCHER_H

#include <stdbool.h>

#include "base/data/json.h"
#include "targets/kube/kube_facts.h"

/* The watcher of the run, begun when it is asked for the third time; NULL before that. Belongs to
 * the list, which lives as long as the client. */
struct kube_watcher *kube_watcher_of(struct kube_watchers *watchers, struct kube_client *client,
	const struct kube_handle *handle);
/* Lists of the Job, of the pods and of its JobSet as they are now (clock_ms), as the server would
 * give them. false: they are not known, or not as of now: the watch has been silent for 10 s, so
 * that it may be dead, or it does not know the Job, which may just have been made. */
bool kube_watcher_lists(const struct kube_watcher *watcher, const struct kube_handle *handle,
	int64_t now_ms, struct json *ret_lists[static KUBE_FACTS_KINDS]);
/* With lists that were asked for because of that (NULL: not known): a silent watch that knows the
 * same is current again, another one is begun anew. */
void kube_watcher_compare(
	struct kube_watcher *watcher, struct json *const lists[static KUBE_FACTS_KINDS]);
/* Whether events are worth another look, at most every few seconds. */
bool kube_watcher_wants_events(struct kube_watcher *watcher);
void kube_watchers_done(struct kube_watchers *watchers);

#endif
