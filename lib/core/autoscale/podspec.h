/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shape from the spec of a pod, as the scheduler counts it: the larger of what any init container
 * asks for (with the sidecars before it) and of all containers and sidecars together, what the pod
 * itself says instead (KEP-2837), and the overhead. An engine. Preferences are ignored; constraints
 * that the planner does not know are named in unsupported.
 */
#ifndef DLRUN_CORE_AUTOSCALE_PODSPEC_H
#define DLRUN_CORE_AUTOSCALE_PODSPEC_H

#include "base/data/json.h"
#include "base/util/map.h"
#include "core/autoscale/model.h"

/* A term of required anti-affinity: which pods it is against. */
struct podspec_mark {
	char *text;     /* of the mark */
	char *topology; /* the label of nodes that it is by, where it is not the host's; or NULL */
	struct strv namespaces;      /* of the pods; none: each */
	struct scale_shape selector; /* its affinity has what their labels are */
};
struct podspec_marks VEC_OF(struct podspec_mark);

struct podspec {
	struct scale_model *model; /* its resources are added to */
	/* PersistentVolumeClaims and volumes by "NAMESPACE/NAME", as podspec_index leaves
	 * them; what is not there is not known. */
	struct map claims, volumes;
	struct podspec_marks marks; /* of all pods that were read */
};
void podspec_done(struct podspec *podspec);
/* Objects of an array, which are borrowed, by "NAMESPACE/NAME" ("/NAME" of those without one). */
void podspec_index(const struct json *objects, struct map *ret);
/* metadata is the pod's, for its namespace and labels. */
void podspec_shape(struct podspec *podspec, const struct json *metadata, const struct json *spec,
	struct scale_shape *ret);
/* Remember what the anti-affinity of a pod is against, before shapes are made of others. node: the
 * labels of its node; NULL: it waits. False: there are too many terms. */
bool podspec_find_marks(struct podspec *podspec, const struct json *metadata,
	const struct json *spec, const struct scale_pairs *node);
/* Marks of such a pod by which those are kept apart from it, by the host; what keeps it apart from
 * pods that run, by something else, is not supported. */
void podspec_set_marks(
	const struct podspec *podspec, const struct json *metadata, struct scale_shape *ret);

/* As in a snapshot: taints and labels of objects. */
void podspec_taints(const struct json *taints, struct scale_taints *ret);
void podspec_pairs(const struct json *object, struct scale_pairs *ret);

#endif
