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

#define JOBSET_NAME "jobset.sigs.k8s.io/jobset-name"

/* A term of required affinity or anti-affinity: which pods it selects. */
struct podspec_mark {
	char *text;                  /* of the mark */
	char *topology;              /* the label of nodes that it is by; NULL: the host's */
	struct strv namespaces;      /* of the pods; none: each */
	struct scale_shape selector; /* its affinity has what their labels are */
};
struct podspec_marks VEC_OF(struct podspec_mark);
enum { PODSPEC_UNTIED = -1, PODSPEC_TIES_MAX = 100 * 1000, PODSPEC_WIDE_MAX = 1000 };

struct podspec {
	struct scale_model *model; /* its resources are added to */
	/* PersistentVolumeClaims and volumes by "NAMESPACE/NAME", as podspec_index leaves
	 * them; what is not there is not known. */
	struct map claims, volumes;
	struct podspec_marks marks; /* of all pods that were read */
	/* Affinity of pods to such as themselves: all that one selects have to be in one zone. Of
	 * those that no label with one value tells apart there are n_wide. */
	struct podspec_marks ties;
	size_t n_wide;
	int64_t n_left_out;                 /* pods whose tie was one too many */
	struct map known_marks, known_ties; /* numbers from 1 */
};
void podspec_done(struct podspec *podspec);
/* Objects of an array, which are borrowed, by "NAMESPACE/NAME" ("/NAME" of those without one). */
void podspec_index(const struct json *objects, struct map *ret);
/* A pod, or a template; borrowed. */
struct podspec_pod {
	const char *kube_namespace; /* may be "" */
	const struct json *labels, *spec;
	const char *jobset; /* the JobSet of a template, which has no label of it; or NULL */
};
/* The labels of a pod, in a list that is empty. */
void podspec_labels(const struct podspec_pod *pod, struct scale_pairs *ret);
/* Nodes without that label are none for such pods. */
void podspec_needs_label(struct scale_shape *shape, const char *key);
/* Whether it holds for one value of a label only. */
bool podspec_is_pair(const struct scale_rule *rule);
/* Returns the tie of the pod, or PODSPEC_UNTIED. */
int32_t podspec_shape(
	struct podspec *podspec, const struct podspec_pod *pod, struct scale_shape *ret);
/* Whether a mark or tie selects pods with those labels. */
bool podspec_selects(const struct podspec_mark *mark, const char *kube_namespace,
	const struct scale_pairs *labels);
/* Remember what the anti-affinity of a pod is against, before shapes are made of others. node: the
 * labels of its node; NULL: it waits. False: there are too many terms. */
bool podspec_find_marks(
	struct podspec *podspec, const struct podspec_pod *pod, const struct scale_pairs *node);
/* Marks of such a pod by which those are kept apart from it, by the host; what keeps it apart from
 * pods that run, by something else, is not supported. */
void podspec_set_marks(
	const struct podspec *podspec, const struct podspec_pod *pod, struct scale_shape *ret);

/* As in a snapshot: taints and labels of objects. */
void podspec_taints(const struct json *taints, struct scale_taints *ret);
void podspec_pairs(const struct json *object, struct scale_pairs *ret);

#endif
