/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/aws_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"

static const char aws_enabled_tag[] = "k8s.io/cluster-autoscaler/enabled";
static const char aws_label_tags[] = "k8s.io/cluster-autoscaler/node-template/label/";
static const char aws_taint_tags[] = "k8s.io/cluster-autoscaler/node-template/taint/";
static const char aws_resource_tags[] = "k8s.io/cluster-autoscaler/node-template/resources/";
static const char aws_old_label_tags[] = "kube/";

enum {
	AWS_PODS_MAX = 110, /* kubelet's --max-pods */
	AWS_NAMES_MAX = 3,  /* of a remark */
	AWS_REMARK_MAX = 4096,
	MIB = 1 << 20,
};

/*
 * Facts
 */

void aws_facts_done(struct aws_facts *facts)
{
	const char *key;
	void *value;

	for (size_t pos = 0; map_each(&facts->templates, &pos, &key, &value);) {
		aws_template_done(value);
		free(value);
	}
	for (size_t pos = 0; map_each(&facts->types, &pos, &key, &value);) {
		aws_type_done(value);
		free(value);
	}
	map_done(&facts->templates);
	map_done(&facts->types);
	map_done(&facts->launched);
}

char *aws_facts_key(const char *region, const struct aws_group *group)
{
	if (str_empty(group->template_id))
		return NULL;
	return mem_printf("%s/%s/%s", region, group->template_id,
		str_empty(group->template_version) ? "$Default" : group->template_version);
}

static const struct aws_template *aws_facts_template(
	const struct aws_facts *facts, const char *region, const struct aws_group *group)
{
	AUTO_FREE char *key = aws_facts_key(region, group);

	return key ? map_get(&facts->templates, key) : NULL;
}

const struct aws_type *aws_facts_type(
	const struct aws_facts *facts, const char *region, const char *name)
{
	AUTO_FREE char *key = mem_printf("%s/%s", region, name);

	return map_get(&facts->types, key);
}

void aws_facts_add_type(struct aws_facts *facts, const char *region, struct aws_type *type)
{
	AUTO_FREE char *key = mem_printf("%s/%s", region, type->name);

	if (map_get(&facts->types, key))
		aws_type_done(type);
	else
		map_put(&facts->types, key, mem_dup(type, sizeof(*type)));
	*type = (struct aws_type){0};
}

void aws_facts_types(const struct aws_facts *facts, const char *region,
	const struct aws_group *group, struct strv *ret)
{
	const struct aws_template *template = aws_facts_template(facts, region, group);

	for (size_t i = 0; i < group->types.n; i++)
		if (strv_find(ret, group->types.v[i]) < 0)
			strv_add(ret, group->types.v[i]);
	if (ret->n || group->has_requirements)
		return;
	if (template && template->type) {
		strv_add(ret, template->type);
		return;
	}
	vec_foreach (const struct aws_instance, instance, &group->instances)
		if (!str_empty(instance->type) && strv_find(ret, instance->type) < 0 &&
			ret->n < AWS_LIST_MAX)
			strv_add(ret, instance->type);
}

/*
 * Room of nodes
 */

struct aws_room {
	int64_t cpu, memory, pods, gpus; /* cpu: thousandths */
	const char *gpu, *arch;
};

static void aws_least(int64_t *value, int64_t other)
{
	if (other < *value)
		*value = other;
}

/* Allocatable, as the images of EKS reserve: 6 % of the first core, 1 % of the second, 0.5 % of
 * the next two, 0.25 % of the others; 255 MiB and 11 MiB for each pod, and 100 MiB of the eviction
 * threshold, of memory that is 7.5 % less than the type's (Karpenter's VM_MEMORY_OVERHEAD_PERCENT).
 * Pods: addresses of its interfaces (max-pods-calculator). Better too small than a machine on which
 * the pod that it is bought for has no room. */
static struct aws_room aws_type_room(const struct aws_type *type)
{
	static const int64_t reserved[] = {60, 10, 5, 5};
	struct aws_room room = {.cpu = type->cpus * 1000,
		.pods = AWS_PODS_MAX,
		.gpus = type->gpus,
		.arch = type->arch};

	for (int64_t i = 0; i < type->cpus && i < (int64_t)ARRAY_LEN(reserved); i++)
		room.cpu -= reserved[i];
	if (type->cpus > (int64_t)ARRAY_LEN(reserved))
		room.cpu -= (type->cpus - (int64_t)ARRAY_LEN(reserved)) * 5 / 2;
	if (type->interfaces > 0 && type->interfaces < AWS_PODS_MAX && type->addresses > 1)
		aws_least(&room.pods, type->interfaces * (type->addresses - 1) + 2);
	room.memory = type->memory_mib * 925 / 1000 - 255 - 100 - 11 * room.pods;
	room.memory = room.memory > 0 ? room.memory * MIB : 0;
	if (type->gpus > 0)
		room.gpu = str_eq(type->gpu, "NVIDIA") ? "nvidia.com/gpu"
			   : str_eq(type->gpu, "AMD")  ? "amd.com/gpu"
						       : NULL;
	return room;
}

/* Of each resource the least that a machine of the group may have; false: not known. */
static bool aws_types_room(const struct aws_facts *facts, const char *region,
	const struct strv *types, struct aws_room *ret)
{
	for (size_t i = 0; i < types->n; i++) {
		const struct aws_type *type = aws_facts_type(facts, region, types->v[i]);

		if (!type || type->cpus == 0 || type->memory_mib == 0)
			return false;
		struct aws_room room = aws_type_room(type);
		if (i == 0) {
			*ret = room;
			continue;
		}
		aws_least(&ret->cpu, room.cpu);
		aws_least(&ret->memory, room.memory);
		aws_least(&ret->pods, room.pods);
		aws_least(&ret->gpus, room.gpus);
		if (!str_eq(ret->gpu, room.gpu))
			ret->gpu = NULL;
		if (!str_eq(ret->arch, room.arch))
			ret->arch = NULL;
	}
	return types->n > 0;
}

/*
 * Templates
 */

static void aws_taint_add(struct json *taints, const char *key, const char *text)
{
	const char *colon = strrchr(text, ':');

	/* Of another form: the Cluster Autoscaler passes over it, too. */
	if (!colon || !*key || !str_is_word_of(colon + 1, "NoSchedule PreferNoSchedule NoExecute"))
		return;
	AUTO_FREE char *value = mem_strndup(text, (size_t)(colon - text));
	struct json *taint = json_object();
	json_set_str(taint, "key", key);
	json_set_str(taint, "value", value);
	json_set_str(taint, "effect", colon + 1);
	json_add(taints, taint);
}

static void aws_template_tags(
	const struct aws_group *group, struct json *labels, struct json *taints, struct json *room)
{
	vec_foreach (const struct aws_tag, tag, &group->tags) {
		const char *value = tag->value ? tag->value : "";

		if (str_empty(tag->key))
			continue;
		if (str_starts(tag->key, aws_label_tags))
			json_set_str(labels, tag->key + strlen(aws_label_tags), value);
		else if (str_starts(tag->key, aws_old_label_tags))
			json_set_str(labels, tag->key + strlen(aws_old_label_tags), value);
		else if (str_starts(tag->key, aws_taint_tags))
			aws_taint_add(taints, tag->key + strlen(aws_taint_tags), value);
		else if (str_starts(tag->key, aws_resource_tags))
			json_set_str(room, tag->key + strlen(aws_resource_tags), value);
	}
}

static const char *aws_group_zone(const struct aws_group *group)
{
	return group->zones.n == 1 ? group->zones.v[0] : NULL;
}

/* NULL: how much a machine has is not known. */
static struct json *aws_template_json(
	const struct aws_facts *facts, const char *region, const struct aws_group *group)
{
	AUTO_STRV struct strv types = {0};
	struct json *template = json_object(), *labels = json_sub(template, "labels"),
		    *taints = json_array(), *amounts = json_sub(template, "room");
	struct aws_room room = {0};

	aws_facts_types(facts, region, group, &types);
	json_set_str(labels, "kubernetes.io/os", "linux");
	json_set_str(labels, "topology.kubernetes.io/region", region);
	if (aws_group_zone(group))
		json_set_str(labels, KUBE_LABEL_ZONE, aws_group_zone(group));
	if (types.n == 1)
		json_set_str(labels, "node.kubernetes.io/instance-type", types.v[0]);
	if (aws_types_room(facts, region, &types, &room)) {
		AUTO_FREE char *cpu = mem_printf("%" PRId64 "m", room.cpu);

		json_set_str(amounts, "cpu", cpu);
		json_set_int(amounts, "memory", room.memory);
		json_set_int(amounts, "pods", room.pods);
		if (room.gpu && room.gpus > 0)
			json_set_int(amounts, room.gpu, room.gpus);
	}
	if (room.arch)
		json_set_str(labels, "kubernetes.io/arch",
			str_eq(room.arch, "x86_64") ? "amd64" : room.arch);
	aws_template_tags(group, labels, taints, amounts);
	json_set(template, "taints", taints);
	if (json_get(amounts, "cpu") && json_get(amounts, "memory"))
		return template;
	json_free(template);
	return NULL;
}

/*
 * Groups
 */

char *aws_group_id(const char *region, const struct aws_group *group)
{
	return mem_printf("%s@%s", group->name, region);
}

enum aws_finding {
	AWS_IS_OTHERS,
	AWS_IS_DELETED,
	AWS_IS_WEIGHTED,
	AWS_NEVER_LAUNCHES,
	AWS_REBALANCES_ZONES,
	AWS_REFUSALS, /* those before */
	AWS_MAY_BE_OTHERS = AWS_REFUSALS,
	AWS_HAS_KARPENTER,
	AWS_HAS_POLICY,
	AWS_IS_UNPROTECTED,
	AWS_REPLACES_SPOT,
	AWS_REPLACES_OLD,
	AWS_REPLACES_SICK,
	AWS_NEVER_ENDS,
	AWS_IS_WARM,
	AWS_IS_PARTLY_SPOT,
	AWS_FINDINGS,
};
static const char *const aws_findings[] = {
	[AWS_IS_OTHERS] =
		"it has tags of the Cluster Autoscaler (k8s.io/cluster-autoscaler/enabled)",
	[AWS_IS_DELETED] = "it is being deleted",
	[AWS_IS_WEIGHTED] = "its size is not a number of machines, but of weights",
	[AWS_NEVER_LAUNCHES] = "its process Launch is suspended",
	[AWS_REBALANCES_ZONES] =
		"its process AZRebalance ends machines that are in use: suspend it",
	[AWS_MAY_BE_OTHERS] = "the Cluster Autoscaler may take it for its own by the tag "
			      "k8s.io/cluster-autoscaler/enabled, whatever that says: remove it",
	[AWS_HAS_KARPENTER] = "it has tags of Karpenter, which must not buy for the same pods",
	[AWS_HAS_POLICY] = "a scaling policy changes its size, too: remove the policy",
	[AWS_IS_UNPROTECTED] = "AWS may end new machines that are in use: turn on scale-in "
			       "protection of new instances",
	[AWS_REPLACES_SPOT] = "AWS replaces spot machines that are in use: turn off "
			      "CapacityRebalance",
	[AWS_REPLACES_OLD] = "AWS replaces machines that are in use: remove MaxInstanceLifetime",
	[AWS_REPLACES_SICK] = "AWS replaces machines that are in use by health checks of a load "
			      "balancer: leave those of EC2 only",
	[AWS_NEVER_ENDS] = "no machine can be given back: its process Terminate is suspended",
	[AWS_IS_WARM] = "machines of its warm pool are neither counted nor priced",
	[AWS_IS_PARTLY_SPOT] = "some of its machines are spot, and all count as on-demand",
};

static bool aws_is_suspended(const struct aws_group *group, const char *process)
{
	return strv_find(&group->suspended, process) >= 0;
}

static bool aws_has_tags(const struct aws_group *group, const char *prefix)
{
	vec_foreach (const struct aws_tag, tag, &group->tags)
		if (tag->key && str_starts(tag->key, prefix))
			return true;
	return false;
}

static void aws_group_find_out(const struct aws_group *group, bool found[AWS_FINDINGS])
{
	const char *enabled = aws_group_tag(group, aws_enabled_tag);

	found[AWS_IS_OTHERS] = enabled && !str_eq(enabled, "false");
	found[AWS_IS_DELETED] = !str_empty(group->status);
	found[AWS_IS_WEIGHTED] = group->is_weighted;
	found[AWS_NEVER_LAUNCHES] = aws_is_suspended(group, "Launch");
	found[AWS_REBALANCES_ZONES] = group->zones.n > 1 && !aws_is_suspended(group, "AZRebalance");
	found[AWS_MAY_BE_OTHERS] = enabled;
	found[AWS_HAS_KARPENTER] = aws_has_tags(group, "karpenter.sh/");
	found[AWS_HAS_POLICY] = group->has_policy && !aws_is_suspended(group, "AlarmNotification");
	found[AWS_IS_UNPROTECTED] = !group->is_protected;
	found[AWS_REPLACES_SPOT] = group->is_rebalanced;
	found[AWS_REPLACES_OLD] = group->has_lifetime;
	found[AWS_REPLACES_SICK] = group->is_watched && !aws_is_suspended(group, "HealthCheck") &&
				   !aws_is_suspended(group, "ReplaceUnhealthy");
	found[AWS_NEVER_ENDS] = aws_is_suspended(group, "Terminate");
	found[AWS_IS_WARM] = group->has_warm_pool;
	found[AWS_IS_PARTLY_SPOT] = group->is_mixed && group->on_demand_percent < 100 &&
				    group->on_demand_base + group->on_demand_percent > 0;
}

static enum aws_finding aws_first_refusal(const bool found[AWS_FINDINGS])
{
	int i = 0;

	while (i < AWS_REFUSALS && !found[i])
		i++;
	return i;
}

const char *aws_group_refused(const struct aws_group *group)
{
	bool found[AWS_FINDINGS];

	aws_group_find_out(group, found);
	enum aws_finding first = aws_first_refusal(found);
	return first < AWS_REFUSALS ? aws_findings[first] : NULL;
}

/* Findings that are told: of a group that is not changed its first reason is enough. */
static void aws_group_told(const struct aws_group *group, bool told[AWS_FINDINGS])
{
	aws_group_find_out(group, told);
	enum aws_finding first = aws_first_refusal(told);
	if (first == AWS_REFUSALS)
		return;
	memset(told, 0, AWS_FINDINGS * sizeof(*told));
	told[first] = first != AWS_IS_DELETED;
}

/* The groups of which the finding is told; names has the first of them. */
struct aws_remark {
	struct buf names;
	size_t n;
};

static void aws_remark_add(struct aws_remark *remark, const char *name, const char *region)
{
	if (++remark->n == 1)
		remark->names = buf_with(AWS_REMARK_MAX);
	if (remark->n <= AWS_NAMES_MAX)
		buf_addf(&remark->names, "%s%s@%s", remark->n > 1 ? ", " : "", name, region);
}

void aws_groups_remarks(
	const char *cluster, const char *region, const struct aws_groups *groups, struct json *list)
{
	struct aws_remark remarks[AWS_FINDINGS] = {0};

	vec_foreach (const struct aws_group, group, groups) {
		bool told[AWS_FINDINGS];
		if (!str_eq(aws_group_tag(group, AWS_CLUSTER_TAG), cluster))
			continue;
		aws_group_told(group, told);
		for (int i = 0; i < AWS_FINDINGS; i++)
			if (told[i])
				aws_remark_add(&remarks[i], group->name, region);
	}
	for (int i = 0; i < AWS_FINDINGS; i++) {
		struct aws_remark *remark = &remarks[i];
		if (!remark->n)
			continue;
		if (remark->n > AWS_NAMES_MAX)
			buf_addf(&remark->names, " and %zu more", remark->n - AWS_NAMES_MAX);
		AUTO_FREE char *text = mem_printf("%s: %s%s", remark->names.data,
			i < AWS_REFUSALS ? "not changed, " : "", aws_findings[i]);
		json_add_str(list, text);
		buf_done(&remark->names);
	}
}

/* The word of a snapshot; NULL: it does not count (standby, a warm pool, detached). Source: "Amazon
 * EC2 Auto Scaling instance lifecycle". */
static const char *aws_instance_state(const struct aws_instance *instance)
{
	if (str_starts(instance->state, "Pending"))
		return "pending";
	if (str_eq(instance->state, "InService"))
		return "running";
	return str_starts(instance->state, "Terminat") ? "stopping" : NULL;
}

bool aws_instance_counts(const struct aws_instance *instance)
{
	const char *state = aws_instance_state(instance);

	return state && !str_eq(state, "stopping");
}

int64_t aws_group_live(const struct aws_group *group)
{
	int64_t n = 0;

	vec_foreach (const struct aws_instance, instance, &group->instances)
		n += aws_instance_counts(instance);
	return n;
}

static struct json *aws_instances_json(const struct aws_facts *facts, const struct aws_group *group)
{
	struct json *list = json_array();

	vec_foreach (const struct aws_instance, instance, &group->instances) {
		const char *state = aws_instance_state(instance);
		int64_t launched = (intptr_t)map_get(&facts->launched, instance->id);
		char since[CLOCK_TEXT_SIZE];

		if (!state)
			continue;
		struct json *json = json_object();
		json_set_str(json, "id", instance->id);
		json_set_str(json, "state", state);
		clock_format(launched * 1000, since);
		if (launched)
			json_set_str(json, "since", since);
		json_add(list, json);
	}
	return list;
}

static bool aws_group_is_spot(
	const struct aws_facts *facts, const char *region, const struct aws_group *group)
{
	const struct aws_template *template = aws_facts_template(facts, region, group);

	if (group->is_mixed)
		return group->on_demand_base == 0 && group->on_demand_percent == 0;
	return template && template->is_spot;
}

/* Why a machine of the group is not known. */
static char *aws_why_unknown(
	const struct aws_facts *facts, const char *region, const struct aws_group *group)
{
	AUTO_STRV struct strv types = {0};

	aws_facts_types(facts, region, group, &types);
	for (size_t i = 0; i < types.n; i++) {
		const struct aws_type *type = aws_facts_type(facts, region, types.v[i]);

		if (type && type->cpus == 0)
			return mem_printf("AWS has no type %s in %s", types.v[i], region);
	}
	return mem_strdup("neither its tags nor its launch template tell what its machines are");
}

struct json *aws_group_json(const struct aws_facts *facts, const char *region,
	const struct aws_group *group, const char *silent, const char *note)
{
	AUTO_FREE char *id = aws_group_id(region, group);
	struct json *json = json_object(), *template = aws_template_json(facts, region, group);
	const char *refused = aws_group_refused(group);

	json_set_str(json, "id", id);
	json_set_int(json, "min", group->min);
	json_set_int(json, "max", group->max);
	json_set_int(json, "desired", group->desired);
	json_set_str(json, "region", region);
	if (aws_group_zone(group))
		json_set_str(json, "zone", aws_group_zone(group));
	json_set_bool(json, "spot", aws_group_is_spot(facts, region, group));
	if (template)
		json_set(json, "template", template);
	json_set(json, "instances", aws_instances_json(facts, group));
	if (refused || silent)
		json_set_str(json, "refused", refused ? refused : silent);
	if (!template) {
		AUTO_FREE char *why =
			note ? mem_strdup(note) : aws_why_unknown(facts, region, group);

		json_set_str(json, "failure", "config");
		json_set_str(json, "failure_text", why);
	}
	return json;
}
