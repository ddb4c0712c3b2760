/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kube[:CONTEXT[/NAMESPACE]], as -t takes it.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_NAME_H
#define DLRUN_TARGETS_KUBE_KUBE_NAME_H

#include <stdbool.h>

#include "core/context/session.h"

bool kube_name_is(const char *name);
/* The parts of such a name; NULL: not given. Names of contexts may have slashes (those of EKS do):
 * the longest one that the kubeconfig has is meant, else what stands before the first slash. The
 * caller frees both. */
void kube_name_split(
	struct session *session, const char *name, char **ret_context, char **ret_namespace);

#endif
