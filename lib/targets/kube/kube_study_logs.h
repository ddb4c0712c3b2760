/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs of members of a study that are archived at the same time: they share the requests that tell
 * of their pods and of the Job. While they run these are two watches, of which that of pods leaves
 * out those that have ended before; of members that have ended it is a list of their pods.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_STUDY_LOGS_H
#define DLRUN_TARGETS_KUBE_KUBE_STUDY_LOGS_H

#include <stdbool.h>

#include "kube/logs/runlog.h"
#include "targets/kube/target_kube.h"

struct kube_study_log;
/* Feed the log of a member, which was started for that. Those that join in one turn of the loop
 * share the requests. */
struct kube_study_log *kube_study_log_join(struct target_kube *kube,
	const struct kube_handle *handle, bool follow, int64_t deadline_ms,
	struct kube_runlog *runlog);
/* Before the log is freed. NULL is accepted. */
void kube_study_log_leave(struct kube_study_log *log);

/* A log of any run that is saved while the run goes on. What removes pods may take along what has
 * not begun to come: it waits for a moment (kube_runlog_is_opening). */
struct kube_saving {
	struct kube_saving *next;
	struct kube_handle handle;
	const struct kube_runlog *runlog;
};
void kube_saving_begin(struct target_kube *kube, struct kube_saving *saving);
void kube_saving_end(struct target_kube *kube, const struct kube_saving *saving);
/* Whether a log of a pod of that Job has not begun to come. */
bool kube_logs_are_opening(const struct target_kube *kube, const struct kube_handle *handle);

/* For the target's end. NULL is accepted. */
void kube_study_logs_free(struct kube_study_logs *logs);

#endif
