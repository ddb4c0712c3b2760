/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local record of a run that the cluster has no object of any more.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_RECORD_H
#define DLRUN_TARGETS_KUBE_KUBE_RECORD_H

#include "base/data/json.h"
#include "base/util/err.h"
#include "targets/kube/target_kube.h"

/* The Job of an attempt as it would be made now, by its specification and the target's definition.
 * E_RUN_NOT_FOUND without a record here. */
int kube_record_job(const struct target_kube *kube, const struct kube_handle *handle,
	struct json **ret, struct err *err);

#endif
