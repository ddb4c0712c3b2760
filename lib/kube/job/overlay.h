/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pod overlay: what the user lays over the pods of runs (overlay: FILE of a target), a document
 * with metadata and spec as in a Pod. An engine. All its rules:
 *	maps	are merged key by key; a value null removes the key
 *	lists	of maps that all have a mountPath, a name or a containerPort (the first of
 *		these that fits) are merged by it: an item of that name is merged, others are
 *		added behind. An item of env or volumes takes the place of the one of its name,
 *		because their kinds exclude each other
 *	lists	of anything else (tolerations, args): the overlay's items are added behind
 *	$patch	in a map: "replace" puts it (without $patch) in place of what was there,
 *		"delete" removes what was there, in a list the item of its name. A list whose
 *		first item is {$patch: replace} takes the place of the list
 *	others	are replaced
 * An item of containers without a name is meant for the program's, which is called "program".
 *
 * What dlrun needs stays, else E_KUBE_OVERLAY names the path: labels and annotations of dlrun.io,
 * labels of app.kubernetes.io, names, restartPolicy, hostname, subdomain, and of the container
 * "program" name, image, command, args and workingDir.
 */
#ifndef DLRUN_KUBE_JOB_OVERLAY_H
#define DLRUN_KUBE_JOB_OVERLAY_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/err.h"

/* pod: {metadata, spec}; on failure it is as it was. E_KUBE_OVERLAY also for what is no such
 * document (other keys at its top than apiVersion, kind, metadata, spec; a $patch of another
 * kind). */
int kube_overlay(struct json *pod, const struct json *overlay, struct err *err);
/* Whether two values are printed alike; NULL is as NULL only. */
bool overlay_is_same(const struct json *a, const struct json *b);

#endif
