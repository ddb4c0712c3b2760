/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/objects.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/podspec.h"
#include "core/autoscale/snapshot.h"
#include "kube/api/kinds.h"
#include "kube/status/object.h"

enum { SHAPE_TEXT_MAX = 1 << 20, REMARKS_MAX = 50, COUNT_MAX = 1000 * 1000 };
/* So far ahead of the server's clock a time may be. */
enum { AHEAD_NOTED_MS = 60 * 1000, AHEAD_CREATED_MS = 24 * 60 * 60 * 1000 };
#define JOBSET_PART         "jobset.sigs.k8s.io/replicatedjob-name"
#define JOBSET_APART        "alpha.jobset.sigs.k8s.io/exclusive-topology"
#define CLUSTER_API_MACHINE "cluster.x-k8s.io/machine"
#define KUEUE_QUEUE         "kueue.x-k8s.io/queue-name"
#define KUEUE_PODS          "kueue.x-k8s.io/pod-group-name"
#define KUEUE_GATE          "kueue.x-k8s.io/admission"
#define POD_GROUP           "scheduling.x-k8s.io/pod-group"
#define VOLCANO_GROUP       "scheduling.k8s.io/group-name"
#define JOB_NAME            "batch.kubernetes.io/job-name"
#define JOB_NAME_BEFORE     "job-name" /* until 1.27 */

static const struct {
	const char *path;
	bool is_optional;
} objects_kinds[OBJECTS_KINDS] = {
	[OBJECTS_NODES] = {"/api/v1/nodes", false},
	[OBJECTS_PODS] = {"/api/v1/pods", false},
	[OBJECTS_JOBS] = {"/apis/batch/v1/jobs", true},
	[OBJECTS_CLAIMS] = {"/api/v1/persistentvolumeclaims", true},
	[OBJECTS_VOLUMES] = {"/api/v1/persistentvolumes", true},
	[OBJECTS_JOBSETS] = {"/apis/jobset.x-k8s.io/v1alpha2/jobsets", true},
	[OBJECTS_WORKLOADS] = {"/apis/kueue.x-k8s.io/v1beta1/workloads", true},
	[OBJECTS_POD_GROUPS] = {"/apis/scheduling.x-k8s.io/v1alpha1/podgroups", true},
	[OBJECTS_VOLCANO] = {"/apis/scheduling.volcano.sh/v1beta1/podgroups", true},
};

const char *objects_path(enum objects_kind kind)
{
	return objects_kinds[kind].path;
}

bool objects_is_optional(enum objects_kind kind)
{
	return objects_kinds[kind].is_optional;
}

static void objects_trim_containers(const struct json *containers)
{
	static const char *const unused[] = {"args", "command", "env", "envFrom", "image",
		"lifecycle", "livenessProbe", "readinessProbe", "securityContext", "startupProbe",
		"volumeMounts"};

	for (const struct json *c = json_first(containers); c; c = json_next(c))
		for (size_t i = 0; json_kind(c) == JSON_OBJECT && i < ARRAY_LEN(unused); i++)
			json_remove((struct json *)(uintptr_t)c, unused[i]);
}

static void objects_trim_member(struct json *item, const char *member, const char *key)
{
	const struct json *found = json_get(item, member);

	if (found && json_kind(found) == JSON_OBJECT)
		json_remove((struct json *)(uintptr_t)found, key);
}

void objects_trim(struct json *item)
{
	static const char *const of_status[] = {
		"containerStatuses", "images", "initContainerStatuses", "podIPs", "volumesInUse"};

	objects_trim_member(item, "metadata", "managedFields");
	for (size_t i = 0; i < ARRAY_LEN(of_status); i++)
		objects_trim_member(item, "status", of_status[i]);
	objects_trim_containers(kube_at(item, "spec.containers"));
	objects_trim_containers(kube_at(item, "spec.initContainers"));
}

struct objects_daemon_set {
	int64_t pods;  /* on nodes that are ready */
	int32_t shape; /* of one of them */
};

/* Of a pod of the model as its shape does not say. */
struct objects_pod {
	struct podspec_pod of;
	bool is_leaving;
	int32_t tie; /* of the podspec */
};

struct objects {
	struct scale_model *model;
	struct podspec podspec;
	struct map shapes, nodes, gangs, daemon_sets; /* numbers from 1 */
	struct VEC_OF(struct objects_daemon_set) of_daemon_sets;
	struct map counted; /* pods that are there, by the name of their Job or part */
	/* names of Workloads, borrowed from their lists, by that of their Job */
	struct map admitted;
	struct map tied; /* groups of Volcano whose pods have to be near each other, by name */
	struct VEC_OF(struct objects_pod) pods; /* as those of the model */
	size_t first_node;
};

static void objects_remark(struct objects *o, char *take_text)
{
	if (o->model->remarks.n < REMARKS_MAX)
		strv_add_take(&o->model->remarks, take_text);
	else
		free(take_text);
}

/* "NAMESPACE/NAME" of what has that name in the namespace of an object. */
static char *objects_key(const struct json *object, const char *name)
{
	const char *kube_namespace = kube_str_at(object, "metadata.namespace");

	return mem_printf("%s/%s", kube_namespace ? kube_namespace : "", name);
}

/* The same of a part of a JobSet. */
static char *objects_part_key(const struct json *object, const char *set, const char *part)
{
	AUTO_FREE char *of_set = objects_key(object, set);

	return mem_printf("%s/%s", of_set, part);
}

static char *objects_name(const struct json *object)
{
	const char *name = kube_str_at(object, "metadata.name");

	return objects_key(object, name ? name : "?");
}

static void objects_count(struct map *map, const char *key, int64_t more)
{
	map_put(map, key, (void *)((intptr_t)map_get(map, key) + (intptr_t)more));
}

static int64_t objects_counted(const struct objects *o, const char *key)
{
	return (int64_t)(intptr_t)map_get(&o->counted, key);
}

/* Nodes. */

static bool objects_is_of_cordon(const char *key)
{
	return str_eq(key, "node.kubernetes.io/unschedulable") ||
	       str_eq(key, "node.kubernetes.io/not-ready") ||
	       str_eq(key, "node.kubernetes.io/unreachable");
}

/* Taints of a node until its agents have come up. */
static bool objects_is_of_start(const char *key)
{
	return str_eq(key, "node.cloudprovider.kubernetes.io/uninitialized") ||
	       str_eq(key, "node.kubernetes.io/network-unavailable") ||
	       str_eq(key, "karpenter.sh/unregistered") || str_ends(key, "/agent-not-ready") ||
	       str_starts(key, "startup-taint.cluster-autoscaler.kubernetes.io/");
}

static void objects_node_taints(const struct json *object, struct scale_node *node)
{
	struct scale_taints all = {0};

	podspec_taints(kube_at(object, "spec.taints"), &all);
	vec_foreach (struct scale_taint, taint, &all) {
		bool is_of_start = objects_is_of_start(taint->key);
		node->is_ready = node->is_ready && !is_of_start;
		if (!is_of_start && !objects_is_of_cordon(taint->key)) {
			*vec_push(&node->taints) = *taint;
			continue;
		}
		free(taint->key);
		free(taint->value);
	}
	vec_done(&all);
}

char *objects_kept(const struct json *object)
{
	static const char *const annotations[] = {
		"cluster-autoscaler.kubernetes.io/scale-down-disabled",
		"karpenter.sh/do-not-disrupt"};
	static const char *const labels[] = {"openai/detached", "openai/do-not-drain"};

	for (size_t i = 0; i < ARRAY_LEN(annotations); i++)
		if (str_eq(kube_annotation(object, annotations[i]), "true"))
			return mem_printf("annotation %s", annotations[i]);
	for (size_t i = 0; i < ARRAY_LEN(labels); i++)
		if (kube_label(object, labels[i]))
			return mem_printf("label %s", labels[i]);
	if (kube_label(object, "karpenter.sh/nodepool"))
		return mem_strdup("it is a node of Karpenter");
	return NULL;
}

/* aws:///us-east-1a/i-0abc is i-0abc; others are as they are, without the scheme. */
static const char *objects_instance(const struct json *object)
{
	const char *id = kube_str_at(object, "spec.providerID");
	const char *rest = id ? strstr(id, "://") : NULL;

	if (!rest)
		return id;
	rest += strlen("://");
	const char *last = strrchr(rest, '/');
	return str_starts(id, "aws:") && last ? last + 1 : rest;
}

void objects_ids(const struct json *object, struct strv *ret)
{
	const char *machine = kube_annotation(object, CLUSTER_API_MACHINE);
	const char *const ids[] = {objects_instance(object), kube_str_at(object, "spec.providerID"),
		kube_str_at(object, "metadata.name")};

	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		if (!str_empty(ids[i]))
			strv_add(ret, ids[i]);
	if (machine)
		strv_addf(ret, "machine:%s", machine);
}

static int64_t objects_noted_ms(
	const struct objects *o, const struct json *object, const char *annotation)
{
	const char *text = kube_annotation(object, annotation);
	int64_t wall_ms = 0;

	if (!text || clock_parse(text, &wall_ms, NULL) < 0)
		return 0;
	/* Clocks differ a little; by one that has stepped back the mark says nothing. */
	int64_t ahead_ms = wall_ms - o->model->now_ms;
	return ahead_ms <= 0 ? wall_ms : ahead_ms <= AHEAD_NOTED_MS ? o->model->now_ms : 0;
}

static void objects_node_room(struct objects *o, const struct json *object, struct scale_node *node)
{
	const struct json *room = kube_at(object, "status.allocatable");

	for (const struct json *m = json_first(room); m; m = json_next(m)) {
		int resource = scale_resource(o->model, json_key(m));
		if (resource >= 0 && !snapshot_amount(m, resource, false, &node->room.of[resource]))
			objects_remark(o, mem_printf("node %s: its %s cannot be read", node->name,
						  json_key(m)));
	}
}

/* A machine of a group that its provider does not list any more: it is gone, unless the provider
 * lists none at all though there are some. */
static void objects_node_without_instance(
	struct objects *o, const struct json *object, struct scale_node *node)
{
	const char *id = kube_annotation(object, SCALE_GROUP);

	for (size_t g = 0; id && g < o->model->groups.n; g++) {
		const struct scale_group *group = &o->model->groups.v[g];
		if (!str_eq(group->id, id) || (!group->instances.n && group->desired))
			continue;
		node->group = (int32_t)g;
		node->has_no_instance = true;
	}
}

int objects_cordon(const struct json *node)
{
	if (!json_get_bool(json_get(node, "spec"), "unschedulable", false))
		return SCALE_OPEN;
	return str_eq(kube_annotation(node, SCALE_CORDONED_BY), SCALE_US) ? SCALE_CORDONED_BY_US
									  : SCALE_CORDONED;
}

static const char *objects_group_id(const struct objects *o, const struct scale_node *node)
{
	return node->group >= 0 ? o->model->groups.v[node->group].id : NULL;
}

static void objects_node(struct objects *o, const struct json *object, const struct map *instances)
{
	struct scale_node *node = vec_push(&o->model->nodes);
	bool is_cordoned = json_get_bool(json_get(object, "spec"), "unschedulable", false);
	const struct json *ready = kube_condition(object, "Ready");
	const char *name = kube_str_at(object, "metadata.name");
	AUTO_STRV struct strv ids = {0};

	node->name = mem_strdup(name ? name : "?");
	node->group = -1;
	objects_ids(object, &ids);
	for (size_t i = 0; i < ids.n && node->group < 0; i++) {
		node->group = (int32_t)(intptr_t)map_get(instances, ids.v[i]) - 1;
		if (node->group >= 0)
			node->instance = mem_strdup(ids.v[i]);
	}
	/* The first id there is: a node without providerID has its name. */
	if (!node->instance && ids.n)
		node->instance = mem_strdup(ids.v[0]);
	if (node->instance && node->group < 0)
		objects_node_without_instance(o, object, node);
	podspec_pairs(kube_at(object, "metadata.labels"), &node->labels);
	node->is_ready = str_eq(json_get_str(ready, "status"), "True");
	if (!node->is_ready)
		node->silent_ms = kube_time_at(ready, "lastTransitionTime");
	objects_node_taints(object, node);
	node->cordoned = objects_cordon(object);
	node->cordoned_ms = is_cordoned ? objects_noted_ms(o, object, SCALE_CORDONED_SINCE) : 0;
	node->created_ms = kube_time_at(object, "metadata.creationTimestamp");
	if (node->created_ms - o->model->now_ms > AHEAD_CREATED_MS)
		node->created_ms = 0; /* else it would be new until then */
	node->idle_since_ms = objects_noted_ms(o, object, SCALE_IDLE_SINCE);
	node->version = mem_strdup(kube_str_at(object, "metadata.resourceVersion"));
	/* A node that somebody uncordoned is as if it had just become idle, and its mark would make
	 * their next cordon ours. */
	node->is_taken_back = !is_cordoned && kube_annotation(object, SCALE_CORDONED_BY);
	if (node->is_taken_back)
		node->idle_since_ms = 0;
	node->is_unmarked = node->is_taken_back || !str_eq(kube_annotation(object, SCALE_GROUP),
							   objects_group_id(o, node));
	node->kept = objects_kept(object);
	map_put(&o->nodes, node->name, (void *)(intptr_t)o->model->nodes.n);
}

static void objects_nodes(struct objects *o, const struct json *list)
{
	struct map instances = {0};

	for (size_t g = 0; g < o->model->groups.n; g++)
		vec_foreach (
			const struct scale_instance, instance, &o->model->groups.v[g].instances)
			if (!str_empty(instance->id))
				map_put(&instances, instance->id, (void *)(intptr_t)(g + 1));
	o->first_node = o->model->nodes.n;
	for (const struct json *m = kube_first(list, "items"); m; m = json_next(m))
		objects_node(o, m, &instances);
	map_done(&instances);
}

/* When the pods have been read, so that what they ask for has its space among the resources. */
static void objects_rooms(struct objects *o, const struct json *list)
{
	size_t i = o->first_node;

	for (const struct json *m = kube_first(list, "items"); m; m = json_next(m))
		objects_node_room(o, m, &o->model->nodes.v[i++]);
}

/* Shapes. */

/* The number of a shape that is like that one, which is taken, of pods with the same tie. */
static int32_t objects_shape(struct objects *o, struct scale_shape *take, int32_t tie)
{
	AUTO_BUF struct buf text = buf_with(SHAPE_TEXT_MAX);

	buf_addf(&text, "%" PRId32 " ", tie);
	scale_shape_text(take, &text);
	intptr_t known = text.full ? 0 : (intptr_t)map_get(&o->shapes, text.data);
	if (known) {
		scale_shape_done(take);
		return (int32_t)known - 1;
	}
	take->name = mem_printf("shape-%zu", o->model->shapes.n + 1);
	*vec_push(&o->model->shapes) = *take;
	if (!text.full)
		map_put(&o->shapes, text.data, (void *)(intptr_t)o->model->shapes.n);
	return (int32_t)o->model->shapes.n - 1;
}

static struct podspec_pod objects_podspec(const struct json *object)
{
	const char *kube_namespace = kube_str_at(object, "metadata.namespace");

	return (struct podspec_pod){.kube_namespace = kube_namespace ? kube_namespace : "",
		.labels = kube_at(object, "metadata.labels"),
		.spec = json_get(object, "spec")};
}

/* Add a pod of that spec to the model. unsupported: a further constraint, or NULL. */
static void objects_add(
	struct objects *o, struct objects_pod *as, const char *unsupported, struct scale_pod *take)
{
	struct scale_shape shape = {0};

	if (unsupported)
		strv_add(&shape.unsupported, unsupported);
	as->tie = podspec_shape(&o->podspec, &as->of, &shape);
	podspec_set_marks(&o->podspec, &as->of, &shape);
	take->priority = (int32_t)json_get_int(as->of.spec, "priority", 0);
	take->shape = objects_shape(o, &shape, as->tie);
	*vec_push(&o->model->pods) = *take;
	*vec_push(&o->pods) = *as;
}

/* Gangs. */

static int32_t objects_gang(struct objects *o, const char *name, const char *owner)
{
	intptr_t known = (intptr_t)map_get(&o->gangs, name);

	if (!known) {
		struct scale_gang *gang = vec_push(&o->model->gangs);
		gang->name = mem_strdup(name);
		gang->owner = mem_strdup(owner);
		known = (intptr_t)o->model->gangs.n;
		map_put(&o->gangs, name, (void *)known);
	}
	return (int32_t)known - 1;
}

static const char *objects_job_of(const struct json *pod)
{
	const char *job = kube_label(pod, JOB_NAME);

	return job ? job : kube_label(pod, JOB_NAME_BEFORE);
}

/* The Workload with which Kueue has admitted the Job of that name. */
static const char *objects_admitted(
	const struct objects *o, const struct json *object, const char *job)
{
	AUTO_FREE char *key = objects_key(object, job);

	return map_get(&o->admitted, key);
}

/* job: of the object, or its own name; or NULL. */
static int32_t objects_gang_of(struct objects *o, const struct json *object, const char *job)
{
	bool is_of_study = kube_label(object, KUBE_LABEL_STUDY);
	const struct {
		const char *name, *owner;
	} says[] = {
		{kube_label(object, POD_GROUP), "PodGroup"},
		{kube_annotation(object, VOLCANO_GROUP), "Volcano"},
		{kube_label(object, JOBSET_NAME), "JobSet"},
		{kube_label(object, KUEUE_PODS), "Kueue"},
		{is_of_study ? NULL : kube_label(object, KUBE_LABEL_RUN), "dlrun"},
		{is_of_study || !job ? NULL : objects_admitted(o, object, job), "Kueue"},
	};

	for (size_t i = 0; i < ARRAY_LEN(says); i++) {
		if (str_empty(says[i].name))
			continue;
		AUTO_FREE char *name = objects_key(object, says[i].name);
		return objects_gang(o, name, says[i].owner);
	}
	return -1;
}

/* Pods. */

static const char *objects_owner(const struct json *object)
{
	return json_get_str(kube_first(object, "metadata.ownerReferences"), "kind");
}

static bool objects_has_ended(const struct json *object)
{
	const char *phase = kube_str_at(object, "status.phase");

	return str_eq(phase, "Succeeded") || str_eq(phase, "Failed");
}

static void objects_count_daemon(
	struct objects *o, const struct json *object, const struct scale_pod *pod)
{
	const struct json *owner = kube_first(object, "metadata.ownerReferences");
	const char *name = json_get_str(owner, "name");

	if (!str_eq(json_get_str(owner, "kind"), "DaemonSet") || pod->node < 0 ||
		!o->model->nodes.v[pod->node].is_ready)
		return;
	AUTO_FREE char *key = objects_key(object, name ? name : "");
	intptr_t known = (intptr_t)map_get(&o->daemon_sets, key);
	if (!known) {
		vec_push(&o->of_daemon_sets);
		known = (intptr_t)o->of_daemon_sets.n;
		map_put(&o->daemon_sets, key, (void *)known);
	}
	o->of_daemon_sets.v[known - 1].pods++;
	o->of_daemon_sets.v[known - 1].shape = pod->shape;
}

/* Pods that a Job, or a part of a JobSet, has already. */
static void objects_count_pod(struct objects *o, const struct json *object)
{
	const char *job = objects_job_of(object);
	const char *set = kube_label(object, JOBSET_NAME), *part = kube_label(object, JOBSET_PART);

	if (job) {
		AUTO_FREE char *key = objects_key(object, job);
		objects_count(&o->counted, key, 1);
	}
	if (set && part) {
		AUTO_FREE char *key = objects_part_key(object, set, part);
		objects_count(&o->counted, key, 1);
	}
}

static bool objects_is_hard(const struct json *spec)
{
	const struct json *topology = json_get(spec, "networkTopology");

	return topology && !str_eq(json_get_str(topology, "mode"), "soft");
}

static void objects_find_tied(struct objects *o, const struct json *list)
{
	for (const struct json *m = kube_first(list, "items"); m; m = json_next(m)) {
		AUTO_FREE char *name = objects_name(m);
		const struct json *part = kube_first(m, "spec.subGroupPolicy");
		bool is_tied = objects_is_hard(json_get(m, "spec"));

		for (; part && !is_tied; part = json_next(part))
			is_tied = objects_is_hard(part);
		if (is_tied)
			map_put(&o->tied, name, (void *)m);
	}
}

static bool objects_is_tied(const struct objects *o, const struct json *pod)
{
	const char *group = kube_annotation(pod, VOLCANO_GROUP);
	AUTO_FREE char *name = objects_key(pod, group ? group : "");

	return group && map_get(&o->tied, name);
}

/* Whether a Workload speaks for the object. */
static bool objects_is_gated_by_kueue(const struct json *object)
{
	const struct json *gates = kube_at(object, "spec.schedulingGates");

	return json_count(gates) == 1 &&
	       str_eq(json_get_str(json_first(gates), "name"), KUEUE_GATE);
}

bool objects_is_daemon(const struct json *pod)
{
	const char *owner = objects_owner(pod);

	return str_eq(owner, "DaemonSet") || str_eq(owner, "Node");
}

/* Where it runs, or is about to when others have made room; -1: nowhere that is known. */
static int32_t objects_node_of(const struct objects *o, const struct json *pod)
{
	const char *node = kube_str_at(pod, "spec.nodeName");

	node = node ? node : kube_str_at(pod, "status.nominatedNodeName");
	return node ? (int32_t)(intptr_t)map_get(&o->nodes, node) - 1 : -1;
}

static void objects_pod(struct objects *o, const struct json *object)
{
	const char *node = kube_str_at(object, "spec.nodeName");
	bool is_leaving = kube_at(object, "metadata.deletionTimestamp");
	int32_t at = objects_node_of(o, object);

	if (objects_has_ended(object) || (!node && is_leaving) || (node && at < 0) ||
		objects_is_gated_by_kueue(object))
		return;
	objects_count_pod(o, object);
	struct scale_pod pod = {.name = objects_name(object),
		.count = 1,
		.node = at,
		.gang = objects_gang_of(o, object, objects_job_of(object)),
		.is_daemon = objects_is_daemon(object)};
	struct objects_pod of = {.of = objects_podspec(object), .is_leaving = is_leaving};
	objects_add(o, &of, objects_is_tied(o, object) ? "networkTopology" : NULL, &pod);
	objects_count_daemon(o, object, &pod);
}

/* Marks are known when all pods that have anti-affinity have been read. */
static void objects_find_marks(struct objects *o, const struct json *list)
{
	bool all = true;

	for (const struct json *m = kube_first(list, "items"); m; m = json_next(m)) {
		const struct podspec_pod pod = objects_podspec(m);
		int32_t at = objects_node_of(o, m);
		if (!objects_has_ended(m))
			all &= podspec_find_marks(
				&o->podspec, &pod, at < 0 ? NULL : &o->model->nodes.v[at].labels);
	}
	if (!all)
		objects_remark(o, mem_strdup("podAntiAffinity of some pods is left out: there is "
					     "too much of it"));
}

/* Pods that do not exist yet. */

static void objects_add_missing(struct objects *o, const struct json *owner, const char *name,
	const struct json *template, int64_t count, int32_t gang, const char *unsupported)
{
	if (count <= 0)
		return;
	if (o->model->pods.n >= SCALE_PODS_LIMIT) {
		objects_remark(o, mem_printf("%s is left out: there are %zu pods already", name,
					  o->model->pods.n));
		return;
	}
	struct scale_pod pod = {.name = mem_strdup(name),
		.count = count < COUNT_MAX ? count : COUNT_MAX,
		.node = -1,
		.gang = gang};
	struct objects_pod of = {.of = objects_podspec(template)};
	of.of.kube_namespace = objects_podspec(owner).kube_namespace;
	if (kube_at(owner, "spec.replicatedJobs"))
		of.of.jobset = kube_str_at(owner, "metadata.name");
	objects_add(o, &of, unsupported, &pod);
}

static bool objects_is_over(const struct json *object)
{
	static const char *const ends[] = {"Complete", "Completed", "Failed", "Finished"};

	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (kube_condition_is(object, ends[i], "True"))
			return true;
	return kube_at(object, "metadata.deletionTimestamp") != NULL;
}

/* 0 to COUNT_MAX. */
static int64_t objects_number(const struct json *object, const char *key, int64_t fallback)
{
	int64_t number = json_get_int(object, key, fallback);

	return number < 0 ? 0 : number < COUNT_MAX ? number : COUNT_MAX;
}

/* Pods that a Job has at once, ended: so many of its pods have succeeded. */
static int64_t objects_at_once(const struct json *job_spec, int64_t ended)
{
	int64_t parallelism = objects_number(job_spec, "parallelism", 1);
	int64_t left = objects_number(job_spec, "completions", parallelism) - ended;

	return left < 0 ? 0 : left < parallelism ? left : parallelism;
}

static bool objects_is_suspended(const struct json *object)
{
	return json_get_bool(json_get(object, "spec"), "suspend", false);
}

/* Held by Kueue: its Workload says what is waited for. */
static bool objects_is_queued(const struct json *object)
{
	return kube_label(object, KUEUE_QUEUE) && objects_is_suspended(object);
}

static void objects_job(struct objects *o, const struct json *job)
{
	const char *own = kube_str_at(job, "metadata.name");
	const char *set = kube_label(job, JOBSET_NAME), *part = kube_label(job, JOBSET_PART);
	AUTO_FREE char *name = objects_name(job);
	int64_t ended = objects_number(json_get(job, "status"), "succeeded", 0);

	if (str_eq(objects_owner(job), "JobSet")) {
		AUTO_FREE char *key = objects_part_key(job, set ? set : "", part ? part : "");
		objects_count(&o->counted, key, ended);
		return;
	}
	bool is_ours = kube_label(job, KUBE_LABEL_RUN);
	if (!own || objects_is_over(job) || objects_is_queued(job) ||
		!(is_ours || (objects_admitted(o, job, own) && !objects_is_suspended(job))))
		return;
	objects_add_missing(o, job, name, kube_at(job, "spec.template"),
		objects_at_once(json_get(job, "spec"), ended) - objects_counted(o, name),
		objects_gang_of(o, job, own), NULL);
}

/* Jobs of a part that begins when another has ended. */
static bool objects_is_later(const struct json *part)
{
	for (const struct json *m = kube_first(part, "dependsOn"); m; m = json_next(m))
		if (str_eq(json_get_str(m, "status"), "Complete"))
			return true;
	return false;
}

static void objects_jobset(struct objects *o, const struct json *set)
{
	AUTO_FREE char *name = objects_name(set);

	if (objects_is_over(set) || objects_is_queued(set) ||
		(objects_is_suspended(set) && !kube_label(set, KUBE_LABEL_RUN)))
		return;
	for (const struct json *part = kube_first(set, "spec.replicatedJobs"); part;
		part = json_next(part)) {
		const struct json *job = kube_at(part, "template.spec");
		AUTO_FREE char *key = mem_printf("%s/%s", name,
			json_get_str(part, "name") ? json_get_str(part, "name") : "?");
		bool is_apart = kube_annotation(set, JOBSET_APART) ||
				kube_annotation(json_get(part, "template"), JOBSET_APART);
		if (objects_is_later(part))
			continue;
		objects_add_missing(o, set, key, json_get(job, "template"),
			objects_number(part, "replicas", 1) * objects_at_once(job, 0) -
				objects_counted(o, key),
			objects_gang(o, name, "JobSet"), is_apart ? JOBSET_APART : NULL);
	}
}

static void objects_find_admitted(struct objects *o, const struct json *list)
{
	for (const struct json *m = kube_first(list, "items"); m; m = json_next(m)) {
		const char *job = json_get_str(kube_first(m, "metadata.ownerReferences"), "name");
		const char *name = kube_str_at(m, "metadata.name");
		if (!job || !name || !str_eq(objects_owner(m), "Job") ||
			!kube_condition_is(m, "Admitted", "True"))
			continue;
		AUTO_FREE char *key = objects_key(m, job);
		map_put(&o->admitted, key, (void *)name);
	}
}

static void objects_workload(struct objects *o, const struct json *workload, int64_t *ret_queued)
{
	AUTO_FREE char *name = objects_name(workload);
	bool has_quota = kube_condition_is(workload, "QuotaReserved", "True");

	if (objects_is_over(workload) || kube_condition_is(workload, "Admitted", "True"))
		return;
	*ret_queued += !has_quota;
	if (!has_quota)
		return;
	for (const struct json *set = kube_first(workload, "spec.podSets"); set;
		set = json_next(set)) {
		const struct json *template = json_get(set, "template");
		const char *required = kube_str_at(set, "topologyRequest.required");
		bool is_zone = scale_is_zone(required);
		int32_t gang = kube_label(template, KUBE_LABEL_STUDY)
				       ? -1
				       : objects_gang(o, name, "Kueue");
		if (is_zone && gang >= 0)
			o->model->gangs.v[gang].same = SCALE_SAME_ZONE;
		AUTO_FREE char *unsupported =
			required && !is_zone ? mem_printf("one %.100s for all", required) : NULL;
		objects_add_missing(o, workload, name, template, objects_number(set, "count", 1),
			gang, unsupported);
	}
}

struct objects_there {
	int64_t n;
	size_t like; /* one of them */
};

/* Missing pods of a group are like what is there of it; of a group without pods nothing is
 * known. */
static void objects_pod_group(struct objects *o, const struct json *group, const char *owner,
	const struct objects_there *all)
{
	AUTO_FREE char *name = objects_name(group);
	const struct json *status = json_get(group, "status");
	int64_t min = objects_number(json_get(group, "spec"), "minMember", 0);
	int32_t gang = (int32_t)(intptr_t)map_get(&o->gangs, name) - 1;
	const char *phase = json_get_str(status, "phase");
	int64_t there = gang < 0 ? 0 : all[gang].n;
	int64_t missing = min - there - objects_number(status, "succeeded", 0);

	if (gang >= 0)
		o->model->gangs.v[gang].min = min;
	if (missing <= 0 || str_eq(phase, "Completed") || str_eq(phase, "Finished"))
		return;
	if (!there) {
		objects_remark(o, mem_printf("%s %s has none of its %" PRId64
					     " pods: what they ask for is not known, and "
					     "nothing is planned for them",
					  owner, name, min));
		return;
	}
	struct scale_pod pod = o->model->pods.v[all[gang].like];
	pod.name = mem_strdup(name);
	pod.count = missing;
	pod.node = -1;
	*vec_push(&o->model->pods) = pod;
	struct objects_pod like = o->pods.v[all[gang].like];
	like.is_leaving = false;
	*vec_push(&o->pods) = like;
}

static void objects_pod_groups(struct objects *o, const struct json *list, const char *owner)
{
	AUTO_FREE struct objects_there *all = mem_alloc(o->model->gangs.n + 1, sizeof(*all));

	for (size_t i = 0; i < o->model->pods.n; i++) {
		const struct scale_pod *pod = &o->model->pods.v[i];
		if (pod->gang >= 0) {
			all[pod->gang].n += pod->count;
			all[pod->gang].like = i;
		}
	}
	for (const struct json *m = kube_first(list, "items"); m; m = json_next(m))
		objects_pod_group(o, m, owner, all);
}

static void objects_gangs(struct objects *o, const struct json *const lists[OBJECTS_KINDS])
{
	int64_t queued = 0;

	for (const struct json *m = kube_first(lists[OBJECTS_JOBS], "items"); m; m = json_next(m))
		objects_job(o, m);
	for (const struct json *m = kube_first(lists[OBJECTS_JOBSETS], "items"); m;
		m = json_next(m))
		objects_jobset(o, m);
	for (const struct json *m = kube_first(lists[OBJECTS_WORKLOADS], "items"); m;
		m = json_next(m))
		objects_workload(o, m, &queued);
	if (queued)
		objects_remark(o, mem_printf("%" PRId64 " workloads of Kueue wait for quota: no "
					     "node would let them start",
					  queued));
	objects_pod_groups(o, lists[OBJECTS_POD_GROUPS], "PodGroup");
	objects_pod_groups(o, lists[OBJECTS_VOLCANO], "PodGroup of Volcano");
}

/* Ties. */

struct objects_tie {
	int64_t n, waiting; /* pods that it selects */
	int32_t gang;       /* theirs */
	size_t entries;     /* those pods without their counts */
	int32_t next;       /* the number, from 1, of the next one with that key; 0: the last */
	const char *zone;   /* where they run; or NULL */
	bool is_apart;      /* not in one */
	bool is_broken;     /* more than one gang, or pods that wait and do not have it */
};

static void objects_see_tied(struct objects *o, struct objects_tie *ties, int32_t t,
	const struct scale_pod *pod, bool has_it)
{
	struct objects_tie *tie = &ties[t];

	if (pod->node >= 0) {
		const char *zone = scale_pair(
			&o->model->nodes.v[pod->node].labels, o->podspec.ties.v[t].topology);
		tie->is_apart |= !zone || (tie->zone && !str_eq(tie->zone, zone));
		tie->zone = zone;
	}
	tie->is_broken |= (tie->n && tie->gang != pod->gang) || (pod->node < 0 && !has_it);
	tie->gang = pod->gang;
	tie->n += pod->count;
	tie->waiting += pod->node < 0 ? pod->count : 0;
	tie->entries++;
}

/* The labels that a tie selects, as keys of an index. */
static void objects_tie_keys(const struct podspec_mark *tie, struct strv *ret)
{
	vec_foreach (const struct scale_term, term, &tie->selector.affinity)
		vec_foreach (const struct scale_rule, rule, term)
			if (podspec_is_pair(rule))
				strv_addf(ret, "%s/%s=%s", tie->namespaces.v[0], rule->key,
					rule->values.v[0]);
}

/* ret: the number, from 1, of the first tie at each key: that which the fewest ties select, or the
 * namespace of those without any. */
static void objects_index_ties(
	const struct podspec_marks *all, struct objects_tie *ties, struct map *ret)
{
	struct map known = {0}; /* so many ties select a key */

	vec_foreach (const struct podspec_mark, tie, all) {
		AUTO_STRV struct strv keys = {0};
		objects_tie_keys(tie, &keys);
		for (size_t i = 0; i < keys.n; i++)
			map_put(&known, keys.v[i],
				(void *)((intptr_t)map_get(&known, keys.v[i]) + 1));
	}
	for (size_t t = 0; t < all->n; t++) {
		AUTO_STRV struct strv keys = {0};
		const char *best = all->v[t].namespaces.v[0];
		intptr_t least = INTPTR_MAX;
		objects_tie_keys(&all->v[t], &keys);
		for (size_t i = 0; i < keys.n; i++)
			if ((intptr_t)map_get(&known, keys.v[i]) < least) {
				best = keys.v[i];
				least = (intptr_t)map_get(&known, best);
			}
		ties[t].next = (int32_t)(intptr_t)map_put(ret, best, (void *)(intptr_t)(t + 1));
	}
	map_done(&known);
}

/* Of the ties at a key the one that selects the pod. Two of them are too many. */
static void objects_look(struct objects *o, struct objects_tie *ties, int32_t first, size_t i,
	const struct scale_pairs *labels, int32_t *of_pods)
{
	const struct objects_pod *pod = &o->pods.v[i];

	for (int32_t t = first - 1; t >= 0; t = ties[t].next - 1) {
		const struct podspec_mark *tie = &o->podspec.ties.v[t];
		if (!podspec_selects(tie, pod->of.kube_namespace, labels))
			continue;
		objects_see_tied(o, ties, t, &o->model->pods.v[i], pod->tie == t);
		if (of_pods[i] != PODSPEC_UNTIED)
			ties[t].is_broken = ties[of_pods[i]].is_broken = true;
		of_pods[i] = t;
	}
}

/* Sets for each pod the tie that selects it. */
static void objects_see_ties(struct objects *o, struct objects_tie *ties, int32_t *of_pods)
{
	struct map index = {0};

	objects_index_ties(&o->podspec.ties, ties, &index);
	for (size_t i = 0; i < o->model->pods.n; i++) {
		AUTO(scale_pairs_done) struct scale_pairs labels = {0};
		const struct objects_pod *pod = &o->pods.v[i];
		of_pods[i] = PODSPEC_UNTIED;
		if (pod->is_leaving || !o->podspec.ties.n)
			continue;
		podspec_labels(&pod->of, &labels);
		objects_look(o, ties, (int32_t)(intptr_t)map_get(&index, pod->of.kube_namespace), i,
			&labels, of_pods);
		vec_foreach (const struct scale_pair, pair, &labels) {
			AUTO_FREE char *key = mem_printf(
				"%s/%s=%s", pod->of.kube_namespace, pair->key, pair->value);
			objects_look(o, ties, (int32_t)(intptr_t)map_get(&index, key), i, &labels,
				of_pods);
		}
	}
	map_done(&index);
}

/* entries: pods of each gang, without their counts. */
static void objects_tie(
	struct objects *o, struct objects_tie *tie, const char *text, const size_t *entries)
{
	if (tie->gang >= 0 && tie->entries != entries[tie->gang])
		tie->is_broken = true;
	if (tie->is_broken || tie->is_apart || tie->n < 2 || !tie->waiting)
		return;
	if (tie->gang < 0) {
		tie->gang = objects_gang(o, text, "podAffinity");
		o->model->gangs.v[tie->gang].min = 1;
	}
	o->model->gangs.v[tie->gang].same = SCALE_SAME_ZONE;
}

/* by: the tie that selects the pod, own: that which it has; or NULL. A pod that leaves binds the
 * others of its gang to no zone. */
static void objects_tie_pod(
	struct objects *o, size_t i, const struct objects_tie *by, const struct objects_tie *own)
{
	struct scale_pod *pod = &o->model->pods.v[i];
	struct strv *unsupported = &o->model->shapes.v[pod->shape].unsupported;

	if (by && !by->is_broken && !by->is_apart)
		pod->gang = by->gang;
	if (o->pods.v[i].is_leaving && pod->gang >= 0 &&
		o->model->gangs.v[pod->gang].same == SCALE_SAME_ZONE)
		pod->gang = -1;
	if (!own || !(own->is_broken || own->is_apart))
		return;
	AUTO_FREE char *why =
		mem_printf("podAffinity by %s%s", o->podspec.ties.v[o->pods.v[i].tie].topology,
			own->is_broken ? "" : " to pods that do not all run in one zone");
	if (strv_find(unsupported, why) < 0)
		strv_add(unsupported, why);
}

/* A gang that has a tie of its own is in one zone. Pods without a gang that have one become a gang
 * of which each is of use where others are. What else a tie selects is not planned. */
static void objects_set_ties(struct objects *o)
{
	const struct podspec_marks *all = &o->podspec.ties;
	AUTO_FREE struct objects_tie *ties = mem_alloc(all->n + 1, sizeof(*ties));
	AUTO_FREE int32_t *of_pods = mem_alloc(o->model->pods.n + 1, sizeof(*of_pods));
	AUTO_FREE size_t *entries = mem_alloc(o->model->gangs.n + 1, sizeof(*entries));

	objects_see_ties(o, ties, of_pods);
	for (size_t i = 0; i < o->model->pods.n; i++)
		if (o->model->pods.v[i].gang >= 0)
			entries[o->model->pods.v[i].gang] += !o->pods.v[i].is_leaving;
	for (size_t t = 0; t < all->n; t++)
		objects_tie(o, &ties[t], all->v[t].text, entries);
	for (size_t i = 0; i < o->model->pods.n; i++) {
		int32_t by = of_pods[i], own = o->pods.v[i].tie;
		objects_tie_pod(o, i, by == PODSPEC_UNTIED ? NULL : &ties[by],
			own == PODSPEC_UNTIED ? NULL : &ties[own]);
	}
}

/* Nodes and groups: consequences of the pods. */

static void objects_idle(struct objects *o)
{
	AUTO_FREE bool *is_busy = mem_alloc(o->model->nodes.n + 1, sizeof(*is_busy));

	vec_foreach (const struct scale_pod, pod, &o->model->pods)
		if (pod->node >= 0 && !pod->is_daemon)
			is_busy[pod->node] = true;
	for (size_t i = 0; i < o->model->nodes.n; i++) {
		struct scale_node *node = &o->model->nodes.v[i];
		bool is_noted = node->idle_since_ms;
		if (is_busy[i])
			node->idle_since_ms = 0;
		else if (!node->idle_since_ms)
			node->idle_since_ms = o->model->now_ms;
		/* By a clock that stepped back: at least as long as nothing has run there. Clocks
		 * that are a little apart are none that did. */
		if (node->silent_ms > o->model->now_ms + AHEAD_NOTED_MS)
			node->silent_ms = node->idle_since_ms;
		else if (node->silent_ms > o->model->now_ms)
			node->silent_ms = o->model->now_ms;
		bool is_ours = node->group >= 0 && !o->model->groups.v[node->group].refused;
		node->is_unmarked = is_ours && (node->is_unmarked || is_noted == is_busy[i]);
	}
}

/* A label of one machine rather than of each of its group. */
static bool objects_is_of_one(const struct scale_group *group, const char *key)
{
	return str_eq(key, "kubernetes.io/hostname") || str_ends(key, "/instance-id") ||
	       (!group->zone && scale_is_zone(key));
}

static void objects_copy(const struct scale_node *node, struct scale_group *group)
{
	group->has_template = group->is_copied = true;
	vec_foreach (const struct scale_pair, pair, &node->labels)
		if (!objects_is_of_one(group, pair->key))
			scale_pairs_add(&group->labels, pair->key, pair->value);
	vec_foreach (const struct scale_taint, taint, &node->taints)
		if (!str_starts(taint->key, "node.kubernetes.io/"))
			scale_taints_add(&group->taints, taint->key, taint->value, taint->effect);
}

/* No label that is not that of each node. */
static void objects_compare(const struct scale_node *node, struct scale_group *group)
{
	size_t kept = 0;

	vec_foreach (struct scale_pair, pair, &group->labels) {
		if (str_eq(scale_pair(&node->labels, pair->key), pair->value)) {
			group->labels.v[kept++] = *pair;
			continue;
		}
		free(pair->key);
		free(pair->value);
	}
	group->labels.n = kept;
}

/* A group of which nothing is known is like its nodes. */
static void objects_templates(struct objects *o)
{
	vec_foreach (const struct scale_node, node, &o->model->nodes) {
		if (node->group < 0 || !node->is_ready)
			continue;
		struct scale_group *group = &o->model->groups.v[node->group];
		if (group->is_copied)
			objects_compare(node, group);
		else if (!group->has_template)
			objects_copy(node, group);
	}
}

static int64_t objects_less(int64_t room, int64_t taken)
{
	return room > taken ? room - taken : 0;
}

/* The room that the newest node of a group leaves, the least of those that are as new: an older one
 * may have lost a device, or be of a time before a change. */
struct objects_seen {
	struct scale_amounts room, created_ms; /* of that node; 0: none shows the resource */
	bool is_any;
};

static void objects_see(const struct scale_model *model, const struct scale_node *node,
	const struct scale_amounts *taken, struct objects_seen *seen)
{
	bool is_young =
		node->created_ms && model->now_ms - node->created_ms <= model->limits.boot_ms;
	int64_t created_ms = node->created_ms > 0 ? node->created_ms : 1;

	/* Not only when it is ready, lest the next one is bought meanwhile. */
	if (node->has_no_instance || (!node->is_ready && !is_young))
		return;
	for (int r = 0; r < SCALE_RESOURCES_MAX; r++) {
		int64_t room = objects_less(node->room.of[r], taken->of[r]);
		/* Devices are registered after their node. */
		if ((is_young && !node->room.of[r]) || created_ms < seen->created_ms.of[r] ||
			(created_ms == seen->created_ms.of[r] && room >= seen->room.of[r]))
			continue;
		seen->room.of[r] = room;
		seen->created_ms.of[r] = created_ms;
		seen->is_any = true;
	}
}

/* DaemonSets that run on each node of the cluster will run on the first of a group, too. */
static void objects_take_daemons(
	const struct objects *o, int64_t n_ready, struct scale_group *group)
{
	const struct scale_machine machine = {.labels = &group->labels, .taints = &group->taints};

	vec_foreach (const struct objects_daemon_set, set, &o->of_daemon_sets) {
		struct scale_shape shape = o->model->shapes.v[set->shape];
		shape.affinity = (struct scale_terms){0}; /* it names the node */
		if (set->pods < n_ready || !scale_allows(&shape, &machine, NULL))
			continue;
		for (int r = 0; r < SCALE_RESOURCES_MAX; r++)
			group->room.of[r] = objects_less(group->room.of[r], shape.request.of[r]);
	}
}

/* A template may say more than its machines have, and knows no daemons: what nodes leave counts
 * where that is less, or the template says nothing. Else a pod that does not fit on a machine that
 * was bought for it would have the next one bought, and the next. */
static void objects_group_rooms(struct objects *o)
{
	AUTO_FREE struct scale_amounts *taken = mem_alloc(o->model->nodes.n + 1, sizeof(*taken));
	AUTO_FREE struct objects_seen *all = mem_alloc(o->model->groups.n + 1, sizeof(*all));
	int64_t n_ready = 0;

	vec_foreach (const struct scale_pod, pod, &o->model->pods)
		for (int r = 0; pod->node >= 0 && pod->is_daemon && r < SCALE_RESOURCES_MAX; r++)
			taken[pod->node].of[r] = kube_add(taken[pod->node].of[r],
				o->model->shapes.v[pod->shape].request.of[r]);
	for (size_t i = 0; i < o->model->nodes.n; i++) {
		const struct scale_node *node = &o->model->nodes.v[i];
		n_ready += node->is_ready;
		if (node->group >= 0)
			objects_see(o->model, node, &taken[i], &all[node->group]);
	}
	for (size_t g = 0; g < o->model->groups.n; g++) {
		struct scale_group *group = &o->model->groups.v[g];
		if (!group->has_template)
			continue;
		group->told = group->room;
		group->shown_ms = all[g].created_ms;
		if (!all[g].is_any)
			objects_take_daemons(o, n_ready, group);
		for (int r = 0; r < SCALE_RESOURCES_MAX; r++) {
			if (all[g].created_ms.of[r] &&
				(!group->room.of[r] || all[g].room.of[r] < group->room.of[r]))
				group->room.of[r] = all[g].room.of[r];
		}
	}
}

/* A run of one pod is no gang. */
static void objects_drop_single_gangs(struct objects *o)
{
	AUTO_FREE int64_t *pods = mem_alloc(o->model->gangs.n + 1, sizeof(*pods));

	vec_foreach (const struct scale_pod, pod, &o->model->pods)
		if (pod->gang >= 0)
			pods[pod->gang] += pod->count;
	vec_foreach (struct scale_pod, pod, &o->model->pods)
		if (pod->gang >= 0 && pods[pod->gang] == 1)
			pod->gang = -1;
}

void objects_read(const struct json *const lists[OBJECTS_KINDS], struct scale_model *model)
{
	struct objects o = {.model = model, .podspec = {.model = model}};

	podspec_index(json_get(lists[OBJECTS_CLAIMS], "items"), &o.podspec.claims);
	podspec_index(json_get(lists[OBJECTS_VOLUMES], "items"), &o.podspec.volumes);
	objects_find_admitted(&o, lists[OBJECTS_WORKLOADS]);
	objects_find_tied(&o, lists[OBJECTS_VOLCANO]);
	objects_nodes(&o, lists[OBJECTS_NODES]);
	objects_find_marks(&o, lists[OBJECTS_PODS]);
	for (const struct json *m = kube_first(lists[OBJECTS_PODS], "items"); m; m = json_next(m))
		objects_pod(&o, m);
	objects_gangs(&o, lists);
	objects_set_ties(&o);
	if (o.podspec.n_left_out)
		objects_remark(&o,
			mem_printf("%" PRId64 " pods have an affinity by zone that is one too many:"
				   " %d selectors are planned for, and %d that select no label by "
				   "its value",
				o.podspec.n_left_out, PODSPEC_TIES_MAX, PODSPEC_WIDE_MAX));
	objects_rooms(&o, lists[OBJECTS_NODES]);
	objects_idle(&o);
	objects_templates(&o);
	objects_group_rooms(&o);
	objects_drop_single_gangs(&o);
	podspec_done(&o.podspec);
	map_done(&o.admitted);
	map_done(&o.tied);
	map_done(&o.shapes);
	map_done(&o.nodes);
	map_done(&o.gangs);
	map_done(&o.counted);
	map_done(&o.daemon_sets);
	vec_done(&o.of_daemon_sets);
	vec_done(&o.pods);
}
