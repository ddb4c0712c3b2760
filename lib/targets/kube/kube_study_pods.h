/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pods of a study that tell more of its members than its Job does. A study may have thousands of
 * pods of some 20 KiB each, most of which have ended and are in the records already. The Job says
 * which indexes have ended, and pods are made in the order of indexes; so first those are listed
 * that have not ended, then those of members that have ended, or may have, since they were last
 * read, some hundred indexes by one request.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_STUDY_PODS_H
#define DLRUN_TARGETS_KUBE_KUBE_STUDY_PODS_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "targets/kube/target_kube.h"

struct kube_study_pods_request {
	const struct kube_handle *handle; /* of a member; copied */
	const struct json *job; /* of the study; lives until done. NULL: all wanted have ended */
	/* By completion index, so many: whose state is wanted; copied. */
	const bool *wanted;
	int n;
	int64_t deadline_ms;
	/* From the loop, once. items: an array of pods, without their commands and environment;
	 * taken. NULL: error (moved or cleared by the caller) says why. */
	void (*done)(void *ctx, struct json *items, struct err *error);
	void *ctx;
};

struct kube_study_pods;
struct kube_study_pods *kube_study_pods_start(
	struct kube_client *client, const struct kube_study_pods_request *request);
/* NULL is accepted. */
void kube_study_pods_cancel(struct kube_study_pods *pods);

#endif
