/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/objects.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/snapshot.h"

#define NOW (INT64_C(1795755600) * 1000)
#define GIB (INT64_C(1) << 30)

static const char *const keys[OBJECTS_KINDS] = {"nodes", "pods", "jobs", "claims", "volumes",
	"jobsets", "workloads", "podgroups", "volcano"};

static struct json *parsed(const char *text)
{
	struct json *json;
	AUTO_FREE char *quoted = mem_strdup(text);

	for (char *c = quoted; *c; c++)
		*c = *c == '\'' ? '"' : *c;
	assert_int_equal(json_parse(quoted, strlen(quoted), 4 << 20, "text", &json, NULL), 0);
	return json;
}

/* text: {'nodes': [object, …], …} and 'groups' as in a snapshot, ' for ". */
static void read_objects(const char *text, struct scale_model *model)
{
	AUTO_JSON struct json *all = parsed(text), *lists = json_object();
	const struct json *of[OBJECTS_KINDS] = {0};

	scale_model_init(model);
	model->now_ms = NOW;
	for (const struct json *m = json_first(json_get(all, "groups")); m; m = json_next(m))
		assert_int_equal(snapshot_read_group(m, model, NULL), 0);
	for (int kind = 0; kind < OBJECTS_KINDS; kind++) {
		if (!json_get(all, keys[kind]))
			continue;
		json_set(json_sub(lists, keys[kind]), "items",
			json_clone(json_get(all, keys[kind])));
		of[kind] = json_get(lists, keys[kind]);
	}
	/* As collected: nothing that is looked at is trimmed. */
	for (int kind = 0; kind < OBJECTS_KINDS; kind++)
		for (const struct json *m = json_first(json_get(of[kind], "items")); m;
			m = json_next(m))
			objects_trim((struct json *)(uintptr_t)m);
	objects_read(of, model);
}

/* Of one pod with that spec, in namespace n with label app=a. */
static const struct scale_shape *shape_of(const char *spec, struct scale_model *model)
{
	AUTO_FREE char *text = mem_printf(
		"{'pods': [{'metadata': {'namespace': 'n', 'name': 'p', 'labels': {'app': 'a'}},"
		" 'spec': %s}], 'claims': [{'metadata': {'namespace': 'n', 'name': 'free'},"
		" 'spec': {'volumeName': 'v1'}}, {'metadata': {'namespace': 'n', 'name': 'bound'},"
		" 'spec': {'volumeName': 'v2'}}], 'volumes': [{'metadata': {'name': 'v1'}},"
		" {'metadata': {'name': 'v2'}, 'spec': {'nodeAffinity': {'required': {}}}}]}",
		spec);

	read_objects(text, model);
	assert_int_equal(model->pods.n, 1);
	return &model->shapes.v[model->pods.v[0].shape];
}

static int64_t of(
	const struct scale_model *model, const struct scale_amounts *amounts, const char *name)
{
	for (int r = 0; r < SCALE_RESOURCES_MAX && model->resources[r]; r++)
		if (str_eq(model->resources[r], name))
			return amounts->of[r];
	return -1;
}

static void test_requests(void **state UNUSED)
{
	static const struct {
		const char *spec;
		int64_t cpu, memory;
	} cases[] = {
		{"{'containers': [{'resources': {'requests': {'cpu': '500m', 'memory': '1Gi'}}},"
		 " {'resources': {'requests': {'cpu': 1}}}]}",
			1500, GIB},
		/* An init container that is larger than all that come after it. */
		{"{'initContainers': [{'resources': {'requests': {'cpu': 4}}},"
		 " {'resources': {'requests': {'cpu': 3, 'memory': '1Gi'}}}],"
		 " 'containers': [{'resources': {'requests': {'cpu': 1, 'memory': '2Gi'}}}]}",
			4000, 2 * GIB},
		/* A sidecar counts with those behind it, and with the containers; not with one before. */
		{"{'initContainers': [{'resources': {'requests': {'cpu': 4}}},"
		 " {'restartPolicy': 'Always', 'resources': {'requests': {'cpu': 2}}},"
		 " {'resources': {'requests': {'cpu': 3}}}],"
		 " 'containers': [{'resources': {'requests': {'cpu': 1}}}]}",
			5000, 0},
		{"{'initContainers': [{'restartPolicy': 'Always',"
		 " 'resources': {'requests': {'cpu': 2}}}],"
		 " 'containers': [{'resources': {'requests': {'cpu': 9}}}]}",
			11000, 0},
		{"{'overhead': {'cpu': '250m'}, 'containers': [{'resources': {'limits': {'cpu': 1}}}]}",
			1250, 0},
		/* KEP-2837: what the pod says counts; its limits only where nothing is asked for. */
		{"{'resources': {'requests': {'cpu': 2}, 'limits': {'cpu': 8, 'memory': '4Gi'}},"
		 " 'overhead': {'cpu': 1}, 'containers': [{'resources': {'requests': {'cpu': 1}}}]}",
			3000, 4 * GIB},
		{"{'resources': {'limits': {'cpu': 8}},"
		 " 'containers': [{'resources': {'requests': {'cpu': 1}}}]}",
			1000, 0},
		{"{}", 0, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		const struct scale_shape *shape = shape_of(cases[i].spec, &model);
		assert_int_equal(shape->request.of[SCALE_CPU], cases[i].cpu);
		assert_int_equal(shape->request.of[SCALE_MEMORY], cases[i].memory);
		assert_int_equal(shape->request.of[SCALE_PODS], 1);
		assert_int_equal(shape->unsupported.n, 0);
	}
}

static void test_constraints_that_are_not_known(void **state UNUSED)
{
	static const struct {
		const char *spec, *name; /* NULL: it is known, or only preferred */
	} cases[] = {
		{"{'topologySpreadConstraints': [{'whenUnsatisfiable': 'ScheduleAnyway'}]}", NULL},
		{"{'topologySpreadConstraints': [{'whenUnsatisfiable': 'ScheduleAnyway'},"
		 " {'whenUnsatisfiable': 'DoNotSchedule'}]}",
			"topologySpreadConstraints"},
		{"{'topologySpreadConstraints': [{}]}", "topologySpreadConstraints"},
		{"{'resourceClaims': [{'name': 'x'}]}", "resourceClaims"},
		{"{'schedulingGates': [{'name': 'x'}]}", "schedulingGates"},
		{"{'containers': [{'ports': [{'containerPort': 1}]}]}", NULL},
		{"{'containers': [{'ports': [{'hostPort': 1}]}]}", "hostPort"},
		{"{'initContainers': [{'ports': [{'hostPort': 1}]}]}", "hostPort"},
		{"{'schedulerName': 'default-scheduler'}", NULL},
		{"{'schedulerName': 'mine'}", "the scheduler mine"},
		{"{'volumes': [{'emptyDir': {}}, {'persistentVolumeClaim': {'claimName': 'free'}}]}",
			NULL},
		{"{'volumes': [{'persistentVolumeClaim': {'claimName': 'bound'}}]}",
			"the claim bound"},
		{"{'volumes': [{'persistentVolumeClaim': {'claimName': 'none'}}]}",
			"the claim none"},
		{"{'volumes': [{'ephemeral': {}}]}", "an ephemeral volume claim"},
		{"{'containers': [{'resources': {'requests': {'cpu': '-1'}}}]}",
			"a request of cpu"},
		{"{'containers': [{'resources': {'requests': {'memory': '1e300'}}}]}",
			"a request of memory"},
		{"{'affinity': {'podAffinity': {'requiredDuringSchedulingIgnoredDuringExecution':"
		 " [{'topologyKey': 'zone'}]}}}",
			"podAffinity by zone"},
		{"{'affinity': {'podAntiAffinity': {'requiredDuringSchedulingIgnoredDuringExecution':"
		 " [{'topologyKey': 'zone', 'labelSelector': {'matchLabels': {'app': 'a'}}}]}}}",
			"podAntiAffinity by zone"},
		{"{'affinity': {'podAntiAffinity': {'requiredDuringSchedulingIgnoredDuringExecution':"
		 " [{'topologyKey': 'kubernetes.io/hostname'}]}}}",
			"podAntiAffinity by kubernetes.io/hostname"},
		{"{'workloadRef': {'name': 'w', 'podGroup': 'g'}}", "workloadRef"},
		{"{'schedulingGroup': {'podGroupName': 'g'}}", "schedulingGroup"},
		{"{'volumes': [{'awsElasticBlockStore': {'volumeID': 'v'}}]}",
			"a volume of awsElasticBlockStore"},
		{"{'volumes': [{'nfs': {'server': 's'}}]}", NULL},
		{"{'tolerations': [{'key': 'k', 'operator': 'Gt', 'value': '5'}]}",
			"tolerations with the operator Gt"},
		{"{'tolerations': [{'key': 'k', 'operator': 'Equal', 'value': '5'}]}", NULL},
		{"{'affinity': {'podAntiAffinity': {'preferredDuringSchedulingIgnoredDuringExecution':"
		 " [{'weight': 1}]}}}",
			NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		const struct scale_shape *shape = shape_of(cases[i].spec, &model);
		assert_int_equal(shape->unsupported.n, cases[i].name ? 1 : 0);
		if (cases[i].name)
			assert_string_equal(shape->unsupported.v[0], cases[i].name);
	}
}

static void test_affinity_and_marks(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	const struct scale_shape *shape = shape_of(
		"{'nodeSelector': {'b': '2', 'a': '1'}, 'tolerations': [{'operator': 'Exists'},"
		" {'key': 'k', 'value': 'v', 'effect': 'NoExecute'}],"
		" 'affinity': {'nodeAffinity': {'requiredDuringSchedulingIgnoredDuringExecution':"
		" {'nodeSelectorTerms': [{'matchExpressions': [{'key': 'x', 'operator': 'Gt',"
		" 'values': ['3']}], 'matchFields': [{'key': 'metadata.name', 'operator': 'In',"
		" 'values': ['node-7']}]}, {}]}},"
		" 'podAntiAffinity': {'requiredDuringSchedulingIgnoredDuringExecution':"
		" [{'topologyKey': 'kubernetes.io/hostname',"
		" 'labelSelector': {'matchLabels': {'app': 'a'}}}]}}}",
		&model);

	assert_int_equal(shape->unsupported.n, 0);
	assert_string_equal(shape->selector.v[0].key, "a");
	assert_int_equal(shape->affinity.n, 2);
	assert_int_equal(shape->affinity.v[0].n, 2);
	assert_int_equal(shape->affinity.v[0].v[0].op, SCALE_GREATER);
	assert_string_equal(shape->affinity.v[0].v[1].key, SCALE_NODE_NAME);
	assert_null(shape->tolerations.v[0].key);
	assert_int_equal(shape->tolerations.v[1].effect, SCALE_NO_EXECUTE);
	assert_int_equal(shape->apart.n, 1);
	assert_int_equal(shape->marks.n, 1);
	assert_string_equal(shape->apart.v[0], shape->marks.v[0]);
}

#define ANTI(topology, term)                                                                       \
	"{'podAntiAffinity': {'requiredDuringSchedulingIgnoredDuringExecution':"                   \
	" [{'topologyKey': '" topology "', " term "}]}}"
#define IN_APP                                                                                     \
	"'labelSelector': {'matchExpressions': [{'key': 'app', 'operator': 'In', 'values': ['x', 'y']}]}"

/* Required anti-affinity of a pod that runs (or waits, where node is "") against pods with the label
 * app=x or app=z in the namespace n, and others there and elsewhere. */
static void test_anti_affinity_of_others(void **state UNUSED)
{
	static const char zone[] = "podAntiAffinity by zone";
	static const struct {
		const char *node, *affinity;
		const char *x, *z, *elsewhere; /* what is said of app=x, app=z, of x elsewhere */
	} cases[] = {
		{"n1", ANTI("kubernetes.io/hostname", IN_APP), "mark", "", ""},
		{"", ANTI("kubernetes.io/hostname", IN_APP), "mark", "", ""},
		{"n1", ANTI("kubernetes.io/hostname", "'labelSelector': {}"), "mark", "mark", ""},
		{"n1",
			ANTI("kubernetes.io/hostname", "'namespaceSelector': {}, 'labelSelector':"
						       " {'matchLabels': {'app': 'z'}}"),
			"", "mark", ""},
		{"n1", ANTI("kubernetes.io/hostname", "'namespaces': ['m'], " IN_APP), "", "",
			"mark"},
		{"n1", ANTI("zone", IN_APP), zone, "", ""},
		{"n1", ANTI("zone", "'namespaceSelector': {'matchLabels': {'a': 'b'}}, " IN_APP),
			zone, "", zone},
		{"n1",
			ANTI("zone", "'labelSelector': {'matchExpressions':"
				     " [{'key': 'app', 'operator': 'NotIn', 'values': ['x']}]}"),
			"", zone, ""},
		/* It is nowhere yet, its node is in none, it is against nobody. */
		{"", ANTI("zone", IN_APP), "", "", ""},
		{"n1", ANTI("rack", IN_APP), "", "", ""},
		{"n1", ANTI("zone", "'namespaces': ['n']"), "", "", ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		const char *node = cases[i].node;
		AUTO_FREE char *text = mem_printf(
			"{'nodes': [{'metadata': {'name': 'n1', 'labels': {'zone': 'a'}}}], 'pods': ["
			"{'metadata': {'namespace': 'n', 'name': 'x', 'labels': {'app': 'x'}}, 'spec': {}},"
			"{'metadata': {'namespace': 'n', 'name': 'z', 'labels': {'app': 'z'}}, 'spec': {}},"
			"{'metadata': {'namespace': 'm', 'name': 'x', 'labels': {'app': 'x'}}, 'spec': {}},"
			"{'metadata': {'namespace': 'n', 'name': 'r'}, 'spec': {%s%s%s'affinity': %s}}]}",
			*node ? "'nodeName': '" : "", node, *node ? "', " : "", cases[i].affinity);
		const char *wanted[] = {cases[i].x, cases[i].z, cases[i].elsewhere};

		read_objects(text, &model);
		assert_int_equal(model.pods.n, 4);
		for (size_t k = 0; k < ARRAY_LEN(wanted); k++) {
			const struct scale_shape *shape = &model.shapes.v[model.pods.v[k].shape];
			const struct scale_shape *of = &model.shapes.v[model.pods.v[3].shape];
			bool is_mark = str_eq(wanted[k], "mark");
			bool is_told = !is_mark && *wanted[k];

			assert_int_equal(shape->marks.n, is_mark);
			if (is_mark)
				assert_string_equal(shape->marks.v[0], of->apart.v[0]);
			assert_int_equal(shape->unsupported.n, is_told);
			if (is_told)
				assert_string_equal(shape->unsupported.v[0], wanted[k]);
		}
	}
}

/* It is about to run where others make room for it: no machine is bought. */
static void test_a_nominated_pod(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects("{'nodes': [{'metadata': {'name': 'n1'}, 'status': {'allocatable': {'cpu': 4},"
		     " 'conditions': [{'type': 'Ready', 'status': 'True'}]}}], 'pods': ["
		     "{'metadata': {'namespace': 'n', 'name': 'a'}, 'spec': {},"
		     " 'status': {'nominatedNodeName': 'n1'}},"
		     "{'metadata': {'namespace': 'n', 'name': 'b'}, 'spec': {},"
		     " 'status': {'nominatedNodeName': 'gone'}}]}",
		&model);
	assert_int_equal(model.pods.v[0].node, 0);
	assert_int_equal(model.pods.v[1].node, -1);
	assert_int_equal(model.nodes.v[0].idle_since_ms, 0);
}

static void test_pods_share_shapes(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects(
		"{'nodes': [{'metadata': {'name': 'n1'}}], 'pods': ["
		"{'metadata': {'namespace': 'a', 'name': '1'}, 'spec': {}},"
		"{'metadata': {'namespace': 'b', 'name': '2', 'labels': {'x': 'y'}}, 'spec': {}},"
		"{'metadata': {'namespace': 'b', 'name': 'ended'}, 'status': {'phase': 'Failed'}},"
		"{'metadata': {'namespace': 'b', 'name': 'leaves', 'deletionTimestamp': 't'}},"
		"{'metadata': {'namespace': 'b', 'name': 'd', 'ownerReferences':"
		" [{'kind': 'DaemonSet'}]}, 'spec': {'nodeName': 'n1'}},"
		"{'metadata': {'namespace': 'b', 'name': 'elsewhere'}, 'spec': {'nodeName': 'n2'}}]}",
		&model);
	assert_int_equal(model.pods.n, 3);
	assert_int_equal(model.shapes.n, 1);
	assert_int_equal(model.pods.v[2].node, 0);
	assert_true(model.pods.v[2].is_daemon && !model.pods.v[0].is_daemon);
	assert_int_equal(model.nodes.v[0].idle_since_ms, NOW);
}

static void test_nodes(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects(
		"{'groups': [{'id': 'g', 'provider': 'p', 'min': 0, 'max': 9, 'desired': 1,"
		" 'instances': [{'id': 'i-1', 'state': 'running'}]}], 'nodes': ["
		"{'metadata': {'name': 'aws', 'annotations': {'dlrun/cordoned-by': 'autoscale',"
		" 'dlrun/cordoned-since': '2026-11-27T04:00:00Z',"
		" 'dlrun/idle-since': '2026-11-27T03:00:00Z'}}, 'spec':"
		" {'providerID': 'aws:///us-east-1a/i-1', 'unschedulable': true, 'taints':"
		" [{'key': 'node.kubernetes.io/unschedulable', 'effect': 'NoSchedule'},"
		" {'key': 'gpu', 'effect': 'NoSchedule'}]},"
		" 'status': {'conditions': [{'type': 'Ready', 'status': 'True'}]}},"
		"{'metadata': {'name': 'starts'}, 'spec': {'providerID': 'kwok://starts', 'taints':"
		" [{'key': 'node.cilium.io/agent-not-ready', 'effect': 'NoExecute'}]},"
		" 'status': {'conditions': [{'type': 'Ready', 'status': 'True'}]}},"
		"{'metadata': {'name': 'silent', 'annotations': {'dlrun/idle-since': 'yesterday'}},"
		" 'spec': {'unschedulable': true}, 'status': {'conditions': [{'type': 'Ready',"
		" 'status': 'Unknown', 'lastTransitionTime': '2026-11-27T03:00:00Z'}]}},"
		"{'metadata': {'name': 'karpenter', 'labels': {'karpenter.sh/nodepool': 'p'}}},"
		"{'metadata': {'name': 'kept', 'labels': {'openai/do-not-drain': ''}}}]}",
		&model);
	const struct scale_node *node = model.nodes.v;
	assert_string_equal(node[0].instance, "i-1");
	assert_int_equal(node[0].group, 0);
	assert_int_equal(node[0].cordoned, SCALE_CORDONED_BY_US);
	assert_int_equal(node[0].taints.n, 1);
	assert_true(node[0].cordoned_ms > node[0].idle_since_ms && node[0].idle_since_ms > 0);
	assert_string_equal(node[1].instance, "starts");
	assert_int_equal(node[1].group, -1);
	assert_true(!node[1].is_ready && !node[1].taints.n && node[0].is_ready);
	assert_int_equal(node[2].cordoned, SCALE_CORDONED);
	assert_true(node[2].silent_ms > 0 && !node[2].is_ready);
	assert_int_equal(node[2].idle_since_ms, NOW);
	assert_non_null(node[3].kept);
	assert_non_null(node[4].kept);
	assert_null(node[0].kept);
}

/* Marks from the future are made anew: else it would be idle, or cordoned, a moment ago until then. */
static void test_nodes_by_a_clock_that_stepped(void **state UNUSED)
{
#define THEN "'2027-11-27T00:00:00Z'"
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects("{'groups': [{'id': 'g', 'provider': 'p', 'min': 0, 'max': 9, 'desired': 2,"
		     " 'instances': [{'id': 'i-1', 'state': 'running'}]}], 'nodes': ["
		     "{'metadata': {'name': 'i-1', 'creationTimestamp': " THEN ", 'annotations':"
		     " {'dlrun/group': 'g', 'dlrun/cordoned-by': 'autoscale',"
		     " 'dlrun/cordoned-since': " THEN ", 'dlrun/idle-since': " THEN "}},"
		     " 'spec': {'unschedulable': true}, 'status': {'conditions':"
		     " [{'type': 'Ready', 'status': 'Unknown', 'lastTransitionTime': " THEN
		     "}]}}]}",
		&model);
	const struct scale_node *node = model.nodes.v;
	assert_int_equal(node->cordoned, SCALE_CORDONED_BY_US);
	assert_true(node->cordoned_ms < NOW && node->is_unmarked);
	assert_int_equal(node->idle_since_ms, NOW);
	assert_int_equal(node->silent_ms, NOW);
	assert_int_equal(node->created_ms, 0);
}

/* A node that has been idle for long is not silent for as long where the clock of the API server is two
 * seconds ahead. */
static void test_a_node_that_is_silent_by_a_clock_ahead(void **state UNUSED)
{
	static const struct {
		const char *since;
		int64_t silent_ms;
	} rows[] = {
		{"2026-11-27T05:00:02Z", NOW},
		{"2026-11-27T05:00:59Z", NOW},
		{"2026-11-27T05:02:00Z", NOW - 5 * 3600 * INT64_C(1000)},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_FREE char *text = mem_printf(
			"{'nodes': [{'metadata': {'name': 'n', 'annotations': {'dlrun/idle-since':"
			" '2026-11-27T00:00:00Z'}}, 'status': {'conditions': [{'type': 'Ready',"
			" 'status': 'Unknown', 'lastTransitionTime': '%s'}]}}]}",
			rows[i].since);
		read_objects(text, &model);
		assert_int_equal(model.nodes.v[0].silent_ms, rows[i].silent_ms);
	}
}

/* A machine and its node are one also where they have each other's name, or the annotation of Cluster
 * API. */
static void test_ids_of_nodes(void **state UNUSED)
{
	static const char *const ids[] = {"x://z/1", "named", "machine:m-3", "z/4"};
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects(
		"{'groups': [{'id': 'g', 'provider': 'p', 'min': 0, 'max': 9, 'desired': 4,"
		" 'instances': [{'id': 'x://z/1'}, {'id': 'named'}, {'id': 'machine:m-3'},"
		" {'id': 'z/4'}, {'id': '5'}]}], 'nodes': ["
		"{'metadata': {'name': 'a'}, 'spec': {'providerID': 'x://z/1'}},"
		"{'metadata': {'name': 'named'}},"
		"{'metadata': {'name': 'c', 'annotations': {'cluster.x-k8s.io/machine': 'm-3'}},"
		" 'spec': {'providerID': 'x://z/3'}},"
		"{'metadata': {'name': 'named-2'}, 'spec': {'providerID': 'x://z/4'}},"
		"{'metadata': {'name': 'e'}, 'spec': {'providerID': 'x://z/5'}}]}",
		&model);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		assert_string_equal(model.nodes.v[i].instance, ids[i]);
		assert_int_equal(model.nodes.v[i].group, 0);
	}
	assert_string_equal(model.nodes.v[4].instance, "z/5");
	assert_int_equal(model.nodes.v[4].group, -1);
}

/* A node of a group whose machine has gone, by whatever id that was known. */
static void test_a_node_without_provider_id(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects("{'groups': [{'id': 'g', 'provider': 'p', 'min': 0, 'max': 9, 'desired': 1,"
		     " 'instances': [{'id': 'there'}]}], 'nodes': ["
		     "{'metadata': {'name': 'gone', 'annotations': {'dlrun/group': 'g'}}},"
		     "{'metadata': {'name': 'of-nobody'}}]}",
		&model);
	assert_string_equal(model.nodes.v[0].instance, "gone");
	assert_int_equal(model.nodes.v[0].group, 0);
	assert_true(model.nodes.v[0].has_no_instance);
	assert_int_equal(model.nodes.v[1].group, -1);
	assert_false(model.nodes.v[1].has_no_instance);
}

static void test_a_group_is_like_its_nodes(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects(
		"{'groups': [{'id': 'g', 'provider': 'p', 'min': 0, 'max': 9, 'desired': 2,"
		" 'instances': [{'id': 'i-1', 'state': 'running'}, {'id': 'i-2', 'state': 'running'}]}],"
		" 'nodes': [{'metadata': {'name': 'a', 'labels': {'kubernetes.io/hostname': 'a',"
		" 'pool': 'gpu', 'rack': '1', 'topology.kubernetes.io/zone': 'z'}}, 'spec':"
		" {'providerID': 'x://i-1', 'taints': [{'key': 'gpu', 'effect': 'NoSchedule'},"
		" {'key': 'node.kubernetes.io/disk-pressure', 'effect': 'NoSchedule'}]},"
		" 'status': {'allocatable': {'cpu': '8', 'pods': '10'},"
		" 'conditions': [{'type': 'Ready', 'status': 'True'}]}},"
		" {'metadata': {'name': 'b', 'labels': {'pool': 'gpu', 'rack': '2'}}, 'spec':"
		" {'providerID': 'x://i-2'}, 'status': {'allocatable': {'cpu': '7', 'pods': '20'},"
		" 'conditions': [{'type': 'Ready', 'status': 'True'}]}}],"
		" 'pods': [{'metadata': {'namespace': 'n', 'name': 'd', 'ownerReferences':"
		" [{'kind': 'DaemonSet'}]}, 'spec': {'nodeName': 'a', 'containers':"
		" [{'resources': {'requests': {'cpu': '2'}}}]}}]}",
		&model);
	const struct scale_group *group = model.groups.v;
	assert_true(group->has_template);
	assert_int_equal(group->room.of[SCALE_CPU], 6000);
	assert_int_equal(group->room.of[SCALE_PODS], 9);
	assert_int_equal(group->labels.n, 1);
	assert_string_equal(group->labels.v[0].key, "pool");
	assert_int_equal(group->taints.n, 1);
}

/* Of a group: NODE with its creation, readiness and room; OTHER is of none. */
#define READY(STATUS) "'conditions': [{'type': 'Ready', 'status': '" STATUS "'}]"
#define OLD           "'creationTimestamp': '2026-11-27T03:00:00Z'"
#define YOUNG         "'creationTimestamp': '2026-11-27T04:50:00Z'"
#define NODE(ID, CREATED, STATUS, ROOM)                                                            \
	"{'metadata': {'name': '" ID "', " CREATED "}, 'spec': {'providerID': 'x://" ID            \
	"'}, 'status': {'allocatable': {'pods': 50, 'memory': '9Gi', " ROOM                        \
	"}, " READY(STATUS) "}}"
#define DAEMON(KIND, NAME, NODE, CPU, MORE)                                                        \
	"{'metadata': {'namespace': 'n', 'name': '" NAME "-" NODE                                  \
	"', 'ownerReferences': [{'kind': '" KIND "', 'name': '" NAME                               \
	"'}]}, 'spec': {'nodeName': '" NODE "', " MORE                                             \
	"'containers': [{'resources': {'requests': {'cpu': '" CPU "'}}}]}}"
#define GROUP_OF_GPUS                                                                              \
	"'groups': [{'id': 'g', 'provider': 'p', 'min': 0, 'max': 9, 'desired': 2, 'instances':"   \
	" [{'id': 'i-1', 'state': 'running'}, {'id': 'i-2', 'state': 'running'}], 'template':"     \
	" {'labels': {'pool': 'gpu'}, 'room': {'cpu': '3920m', 'memory': '8Gi', 'pods': 58,"       \
	" 'nvidia.com/gpu': 1}}}]"

static void test_a_template_that_says_too_much(void **state UNUSED)
{
	static const struct {
		const char *nodes, *pods;
		int64_t cpu, gpus, disk;
	} cases[] = {
		{"", "", 3920, 1, 0},
		{NODE("i-1", OLD, "True", "'cpu': '3920m', 'nvidia.com/gpu': 1"),
			DAEMON("DaemonSet", "cni", "i-1", "50m", "") ", " DAEMON(
				"Node", "proxy", "i-1", "100m", ""),
			3770, 1, 0},
		/* A machine may be of the larger of several types; of the disk only it knows. */
		{NODE("i-1", OLD, "True",
			 "'cpu': 8, 'nvidia.com/gpu': 2, 'ephemeral-storage': '1k'"),
			"", 3920, 1, 1000},
		{NODE("i-1", OLD, "True", "'cpu': 1, 'nvidia.com/gpu': 0") ", " NODE(
			 "i-2", YOUNG, "True", "'cpu': 3, 'nvidia.com/gpu': 1"),
			"", 3000, 1, 0},
		/* Its devices are not registered yet, or never will be. */
		{NODE("i-1", YOUNG, "True", "'cpu': 3"), "", 3000, 1, 0},
		{NODE("i-1", OLD, "True", "'cpu': 3"), "", 3000, 0, 0},
		{NODE("i-1", OLD, "True", "'cpu': 2, 'nvidia.com/gpu': 1") ", " NODE(
			 "i-2", YOUNG, "True", "'cpu': 3"),
			"", 3000, 1, 0},
		/* Before it is ready; one that is no more says nothing. */
		{NODE("i-1", YOUNG, "False", "'cpu': 3"), "", 3000, 1, 0},
		{NODE("i-1", OLD, "Unknown", "'cpu': 3"), "", 3920, 1, 0},
		/* No nodes of its own: DaemonSets that every other node runs. */
		{NODE("a", OLD, "True", "'cpu': 4") ", " NODE(
			 "b", OLD, "True", "'cpu': 4") ", " NODE("c", OLD, "False", "'cpu': 4"),
			DAEMON("DaemonSet", "cni", "a", "50m", "") ", " DAEMON(
				"DaemonSet", "cni", "b", "50m", "") ", " DAEMON("DaemonSet", "some",
				"a", "1", "") ", " DAEMON("DaemonSet", "else", "a", "1",
				"'nodeSelector': {'pool': 'x'},") ", " DAEMON("DaemonSet", "else",
				"b", "1", "'nodeSelector': {'pool': 'x'},"),
			3870, 1, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_FREE char *text =
			mem_printf("{" GROUP_OF_GPUS ", 'nodes': [%s], 'pods': [%s]}",
				cases[i].nodes, cases[i].pods);
		read_objects(text, &model);
		const struct scale_group *group = model.groups.v;
		assert_int_equal(group->room.of[SCALE_CPU], cases[i].cpu);
		assert_int_equal(group->room.of[SCALE_MEMORY], 8 * GIB);
		assert_int_equal(of(&model, &group->room, "nvidia.com/gpu"), cases[i].gpus);
		assert_int_equal(group->room.of[SCALE_DISK], cases[i].disk);
		assert_int_equal(group->labels.n, 1);
	}
}

/* A pod that does not fit on a machine that was bought for it gets no further one. */
static void test_a_pod_that_fits_only_the_template(void **state UNUSED)
{
#define BIG                                                                                        \
	"{'metadata': {'namespace': 'n', 'name': 'big'}, 'spec': {'containers': [{'resources':"    \
	" {'requests': {'cpu': '3800m', 'nvidia.com/gpu': 1}}}]}}"
	static const struct {
		const char *node;
		size_t actions, helped;
	} turns[] = {
		{"", 1, 1},
		/* It has registered, and is not ready. */
		{NODE("i-1", YOUNG, "False", "'cpu': '3920m'"), 0, 0},
		{NODE("i-1", YOUNG, "True", "'cpu': '3920m'"), 0, 0},
		{NODE("i-1", OLD, "True", "'cpu': '3920m', 'nvidia.com/gpu': 1"), 0, 0},
		/* Without its GPU it is waited for, and then never bought again. */
		{NODE("i-1", YOUNG, "True", "'cpu': 5"), 0, 1},
		{NODE("i-1", OLD, "True", "'cpu': 5"), 0, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(turns); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_SCALE_PLAN struct scale_plan plan = {0};
		AUTO_FREE char *text = mem_printf(
			"{'groups': [{'id': 'g', 'provider': 'p', 'min': 0,"
			" 'max': 9, 'desired': %d, 'instances': [%s], 'template': {'room': {'cpu':"
			" '3920m', 'memory': '8Gi', 'nvidia.com/gpu': 1}}}], 'nodes': [%s], 'pods':"
			" [" BIG "%s]}",
			i ? 1 : 0, i ? "{'id': 'i-1', 'state': 'running'}" : "", turns[i].node,
			i ? ", " DAEMON("DaemonSet", "cni", "i-1", "150m", "") : "");
		read_objects(text, &model);
		scale_plan_make(&model, &plan);
		assert_int_equal(plan.actions.n, turns[i].actions);
		assert_int_equal(plan.helped, turns[i].helped);
		assert_int_equal(plan.left.n, !turns[i].helped);
	}
}

/* What pods ask for has its space, however much nodes offer. */
static void test_nodes_with_many_resources(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects("{'nodes': [{'metadata': {'name': 'n'}, 'status': {'allocatable': {'a/1': '1',"
		     " 'a/2': '1', 'a/3': '1', 'a/4': '1', 'a/5': '1', 'a/6': '1', 'a/7': '1',"
		     " 'a/8': '1', 'a/9': '1', 'a/10': '1', 'a/11': '1', 'a/12': '1', 'a/13': '1',"
		     " 'nvidia.com/gpu': '8'}}}], 'pods': [{'metadata': {'name': 'p'}, 'spec':"
		     " {'containers': [{'resources': {'limits': {'nvidia.com/gpu': 4}}}]}}]}",
		&model);
	assert_int_equal(model.shapes.v[0].unsupported.n, 0);
	assert_int_equal(of(&model, &model.nodes.v[0].room, "nvidia.com/gpu"), 8);
	assert_int_equal(of(&model, &model.shapes.v[0].request, "nvidia.com/gpu"), 4);
}

/* Gangs: what waits, by the name of its gang. */

static const struct scale_gang *gang_of(const struct scale_model *model, const char *name)
{
	vec_foreach (const struct scale_gang, gang, &model->gangs)
		if (str_eq(gang->name, name))
			return gang;
	return NULL;
}

/* name NULL: of those that are in none. */
static int64_t waiting(const struct scale_model *model, const char *name)
{
	int64_t n = 0;

	vec_foreach (const struct scale_pod, pod, &model->pods) {
		const char *of_pod = pod->gang < 0 ? NULL : model->gangs.v[pod->gang].name;
		if (pod->node < 0 && (name ? str_eq(of_pod, name) : !of_pod))
			n += pod->count;
	}
	return n;
}

#define RUN_JOB(NAME, LABELS, SPEC)                                                                \
	"{'metadata': {'namespace': 'n', 'name': '" NAME "', 'labels': {" LABELS                   \
	"}}, 'spec': {'template': {'spec': {}}, " SPEC "}"
#define RUN_POD(NAME, LABELS)                                                                      \
	"{'metadata': {'namespace': 'n', 'name': '" NAME "', 'labels': {" LABELS "}}, 'spec': {}}"

static void test_gangs_of_dlrun(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects("{'jobs': ["
		/* Two of its pods are not there yet. */
		RUN_JOB("j1", "'dlrun.io/run-id': 'r1'", "'completions': 4, 'parallelism': 4") "}, "
		/* Two Jobs, one for each role. */
		RUN_JOB("j2", "'dlrun.io/run-id': 'r2'",
			"'completions': 2, 'parallelism': 2") "}, " RUN_JOB("j3",
			"'dlrun.io/run-id': 'r2'", "'suspend': true, 'parallelism': 3") "}, "
		/* Of 100 members 97 have ended, 5 might run at once, and one is there. */
		RUN_JOB("j4", "'dlrun.io/run-id': 's', 'dlrun.io/study': 's'",
			"'completions': 100, 'parallelism': 5") ", 'status': {'succeeded': 97}}, " RUN_JOB("j5",
			"'dlrun.io/run-id': 'r5'",
			"'parallelism': 1") ", 'status': {'conditions': [{'type': 'Complete', 'status': 'True'}]}}, " RUN_JOB("j6",
			"'dlrun.io/run-id': 'r6'", "'parallelism': 1") "}, " RUN_JOB("others", "",
			"'parallelism': 7") "}], 'pods': [" RUN_POD("j1-0",
			"'dlrun.io/run-id': 'r1', 'batch.kubernetes.io/job-name': 'j1'") ", " RUN_POD("j1-1",
			"'dlrun.io/run-id': 'r1', 'job-name': 'j1'") ", " RUN_POD("j4-0",
			"'dlrun.io/run-id': 's', 'dlrun.io/study': 's', 'job-name': 'j4'") "]}",
		&model);
	assert_int_equal(waiting(&model, "n/r1"), 4);
	assert_string_equal(gang_of(&model, "n/r1")->owner, "dlrun");
	assert_int_equal(waiting(&model, "n/r2"), 5);
	assert_int_equal(waiting(&model, NULL), 3 + 1);
}

static void test_jobsets(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

#define PART(NAME, REPLICAS)                                                                       \
	"{'name': '" NAME "', 'replicas': " REPLICAS                                               \
	", 'template': {'spec': {'parallelism': 4, 'completions': 4, 'template': {'spec': {}}}}}"
#define OF_SET(PART)                                                                               \
	"'jobset.sigs.k8s.io/jobset-name': 's1', 'jobset.sigs.k8s.io/replicatedjob-name': '" PART  \
	"'"
	read_objects(
		"{'jobsets': [{'metadata': {'namespace': 'n', 'name': 's1'}, 'spec':"
		" {'replicatedJobs': [" PART("w", "2") ", " PART("ps",
			"1") "]}},"
			     "{'metadata': {'namespace': 'n', 'name': 'held'}, 'spec': {'suspend': true,"
			     " 'replicatedJobs': [" PART("w",
				     "1") "]}},"
					  "{'metadata': {'namespace': 'n', 'name': 'apart', 'annotations':"
					  " {'alpha.jobset.sigs.k8s.io/exclusive-topology': 'rack'}}, 'spec':"
					  " {'replicatedJobs': [" PART("w",
						  "1") "]}}], 'jobs': [{'metadata':"
						       " {'namespace': 'n', 'name': 's1-w-0', 'labels': {" OF_SET(
							       "w") "},"
								    " 'ownerReferences': [{'kind': 'JobSet'}]}, 'status': {'succeeded': 3}}],"
								    " 'pods': [" RUN_POD("s1-w-0-0",
									    OF_SET("w")) "]}",
		&model);
	assert_int_equal(waiting(&model, "n/s1"), 2 * 4 - 3 + 4);
	assert_null(gang_of(&model, "n/held"));
	assert_int_equal(waiting(&model, "n/apart"), 4);
	const struct scale_shape *shape = &model.shapes.v[model.pods.v[model.pods.n - 1].shape];
	assert_string_equal(shape->unsupported.v[0], "alpha.jobset.sigs.k8s.io/exclusive-topology");
}

static void test_workloads(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

#define WORKLOAD(NAME, JOB, MORE, CONDITION)                                                       \
	"{'metadata': {'namespace': 'n', 'name': '" NAME "', 'ownerReferences': [{'kind': 'Job',"  \
	" 'name': '" JOB "'}]}, 'spec': {'podSets': [{'count': 3, 'template': {'spec': {}}" MORE   \
	"}]}, 'status': {'conditions': [{'type': '" CONDITION "', 'status': 'True'}]}}"
	read_objects(
		"{'workloads': [" WORKLOAD("queued", "q", "", "Evicted") ", " WORKLOAD("reserved",
			"r", ", 'topologyRequest': {'required': 'topology.kubernetes.io/zone'}",
			"QuotaReserved") ", " WORKLOAD("racks", "k",
			", 'topologyRequest': {'required': 'rack'}",
			"QuotaReserved") ", " WORKLOAD("admitted", "a", "",
			"Admitted") ", " WORKLOAD("over", "o", "", "Finished") "], 'jobs': ["
		/* A run of dlrun in a queue is its Workload's, not counted twice. */
		RUN_JOB("r", "'dlrun.io/run-id': 'run', 'kueue.x-k8s.io/queue-name': 'q'",
			"'suspend': true, 'parallelism': 3") "}, " RUN_JOB("a",
			"'kueue.x-k8s.io/queue-name': 'q'",
			"'parallelism': 3") "}],"
					    " 'pods': [" RUN_POD("a-0",
						    "'batch.kubernetes.io/job-name': 'a'") ", "
											   "{'metadata': {'namespace': 'n', 'name': 'gated'}, 'spec': {'schedulingGates':"
											   " [{'name': 'kueue.x-k8s.io/admission'}]}}]}",
		&model);
	assert_int_equal(waiting(&model, "n/reserved"), 3);
	assert_int_equal(gang_of(&model, "n/reserved")->same, SCALE_SAME_ZONE);
	assert_int_equal(waiting(&model, "n/racks"), 3);
	assert_int_equal(waiting(&model, "n/admitted"), 3);
	assert_int_equal(waiting(&model, NULL), 0);
	assert_null(gang_of(&model, "n/queued"));
	assert_null(gang_of(&model, "n/run"));
	assert_int_equal(model.remarks.n, 1);
	assert_true(str_starts(model.remarks.v[0], "1 workloads of Kueue wait for quota"));
	for (size_t i = 0; i < model.pods.n; i++) {
		const struct scale_pod *pod = &model.pods.v[i];
		bool is_rack = str_eq(model.gangs.v[pod->gang].name, "n/racks");
		assert_int_equal(model.shapes.v[pod->shape].unsupported.n, is_rack);
	}
}

static void test_pod_groups(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;

	read_objects(
		"{'podgroups': [{'metadata': {'namespace': 'n', 'name': 'g'}, 'spec': {'minMember': 5},"
		" 'status': {'succeeded': 1}}, {'metadata': {'namespace': 'n', 'name': 'none'},"
		" 'spec': {'minMember': 2}}], 'volcano': [{'metadata': {'namespace': 'n', 'name': 'v'},"
		" 'spec': {'minMember': 2}}], 'pods': [" RUN_POD(
			"a", "'scheduling.x-k8s.io/pod-group': 'g'") ", " RUN_POD("b",
			"'scheduling.x-k8s.io/pod-group': 'g'") ", "
								"{'metadata': {'namespace': 'n', 'name': 'v', 'annotations':"
								" {'scheduling.k8s.io/group-name': 'v'}}, 'spec': {}}, "
								"{'metadata': {'namespace': 'n', 'name': 'v2', 'annotations':"
								" {'scheduling.k8s.io/group-name': 'v'}}, 'spec': {}}, "
								"{'metadata': {'namespace': 'n', 'name': 'v3', 'annotations':"
								" {'scheduling.k8s.io/group-name': 'v'}}, 'spec': {}}]}",
		&model);
	assert_int_equal(waiting(&model, "n/g"), 4);
	assert_int_equal(gang_of(&model, "n/g")->min, 5);
	assert_int_equal(waiting(&model, "n/v"), 3);
	assert_int_equal(gang_of(&model, "n/v")->min, 2);
	assert_int_equal(model.remarks.n, 1);
	assert_non_null(strstr(model.remarks.v[0], "n/none has none of its 2 pods"));
}

/* Pods of a group of Volcano that have to be near each other; those that are missing, too. */
static void test_network_topology(void **state UNUSED)
{
	static const struct {
		const char *spec;
		bool is_told;
	} cases[] = {
		{"'networkTopology': {'mode': 'hard', 'highestTierAllowed': 1}", true},
		{"'networkTopology': {'highestTierAllowed': 1}", true}, /* hard by default */
		{"'networkTopology': {'mode': 'soft'}", false},
		{"'subGroupPolicy': [{'name': 'a'}, {'networkTopology': {'mode': 'hard'}}]", true},
		{"'queue': 'q'", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_FREE char *text = mem_printf(
			"{'volcano': [{'metadata': {'namespace': 'n', 'name': 'v'},"
			" 'spec': {'minMember': 3, %s}}], 'pods': [{'metadata': {'namespace': 'n',"
			" 'name': 'v', 'annotations': {'scheduling.k8s.io/group-name': 'v'}},"
			" 'spec': {}}]}",
			cases[i].spec);

		read_objects(text, &model);
		assert_int_equal(waiting(&model, "n/v"), 3);
		vec_foreach (const struct scale_pod, pod, &model.pods) {
			const struct strv *said = &model.shapes.v[pod->shape].unsupported;
			assert_int_equal(said->n, cases[i].is_told);
			if (said->n)
				assert_string_equal(said->v[0], "networkTopology");
		}
	}
}

/* Pods that have to be near each other. */

#define ZONE "topology.kubernetes.io/zone"
#define NEAR(KEY, TERM)                                                                            \
	"'affinity': {'podAffinity': {'requiredDuringSchedulingIgnoredDuringExecution':"           \
	" [{'topologyKey': '" KEY "', " TERM "}]}}"
#define SELECTS(LABELS) "'labelSelector': {'matchLabels': {" LABELS "}}"
#define APP             "'app': 'a'"
#define BY_APP          NEAR(ZONE, SELECTS(APP))
#define TIED(NAME, LABELS, META, SPEC)                                                             \
	"{'metadata': {'namespace': 'n', 'name': '" NAME "', 'labels': {" LABELS "}" META          \
	"}, 'spec': {" SPEC "}}"
#define PODS(LABELS, SPEC)                                                                         \
	"'pods': [" TIED("1", LABELS, "", SPEC) ", " TIED("2", LABELS, "", SPEC) "]"
#define RUN              "'dlrun.io/run-id': 'r', 'dlrun.io/attempt': '2'"
#define OLD_RUN          "'dlrun.io/run-id': 'r', 'dlrun.io/attempt': '1'"
#define IN_GROUP         "'scheduling.x-k8s.io/pod-group': 'g'"
#define ON_N1            ", 'nodeName': 'n1'"
#define ON_N2            ", 'nodeName': 'n2'"
#define ON_N3            ", 'nodeName': 'n3'"
#define IN_ZONE(NAME, Z) "{'metadata': {'name': '" NAME "', 'labels': {'" ZONE "': '" Z "'}}}"
#define IS_DELETED       ", 'deletionTimestamp': '2026-11-27T04:00:00Z'"
#define JOB_OF_4                                                                                   \
	"'jobs': [{'metadata': {'namespace': 'n', 'name': 'j', 'labels': {" RUN "}}, 'spec':"      \
	" {'parallelism': 4, 'template': {'metadata': {'labels': {" RUN ", 'job-name': 'j'}},"     \
	" 'spec': {" NEAR(ZONE, SELECTS(RUN)) "}}}}]"

static void test_pods_of_one_zone(void **state UNUSED)
{
#define BETA  "failure-domain.beta.kubernetes.io/zone"
#define APART "podAffinity by " ZONE " to pods that do not all run in one zone"
	static const char zone[] = "podAffinity by " ZONE;
	static const struct {
		const char *lists;
		const char *gang; /* all that wait are of it, in one zone; NULL: none is */
		int64_t waiting, min;
		const char *unsupported; /* of all that wait; or NULL */
	} cases[] = {
		{PODS(APP, BY_APP), "n/app=a", 2, 1, NULL},
		{PODS(APP, NEAR(BETA, SELECTS(APP))), "n/app=a", 2, 1, NULL},
		{PODS(APP, NEAR(ZONE, SELECTS(APP) ", 'namespaces': ['n']")), "n/app=a", 2, 1,
			NULL},
		{PODS(APP ", 'v': '1'",
			 NEAR(ZONE, "'labelSelector': {'matchExpressions': [{'key': 'app',"
				    " 'operator': 'In', 'values': ['a', 'b']}, {'key': 'v',"
				    " 'operator': 'Exists'}]}")),
			"n/app In =a|b,v Exists ", 2, 1, NULL},
		/* As in a template, and as the API server leaves it in a pod. */
		{"'pods': [" TIED("1", APP ", 'v': '1'", "",
			 NEAR(ZONE, SELECTS(APP) ", 'matchLabelKeys': ['v', 'w']")) ", " TIED("2",
			 APP ", 'v': '1'", "",
			 NEAR(ZONE, "'matchLabelKeys': ['v', 'w'], 'labelSelector': {'matchLabels':"
				    " {" APP "}, 'matchExpressions': [{'key': 'v', 'operator':"
				    " 'In', 'values': ['1']}]}")) "]",
			"n/app=a,v=1", 2, 1, NULL},
		/* The first of a series may go anywhere. */
		{"'pods': [" TIED("1", APP, "", BY_APP) "]", NULL, 1, 0, NULL},
		/* Others, of which one runs, and one is of another namespace. */
		{"'pods': [" TIED("1", APP, "", BY_APP) ", " TIED("2", APP, "",
			 "'x': 1" ON_N1) ", {'metadata': {'namespace': 'm', 'name': '3', 'labels':"
					 " {" APP "}}, 'spec': {'nodeName': 'n1'}}]",
			"n/app=a", 1, 1, NULL},
		/* They run in two zones, or outside of any. */
		{"'pods': [" TIED("1", APP, "", BY_APP) ", " TIED(
			 "2", APP, "", "'x': 1" ON_N1) ", " TIED("3", APP, "", "'x': 1" ON_N2) "]",
			NULL, 1, 0, APART},
		{"'pods': [" TIED("1", APP, "", BY_APP) ", " TIED(
			 "2", APP, "", "'x': 1" ON_N3) ", " TIED("3", APP, "", "'x': 1" ON_N1) "]",
			NULL, 1, 0, APART},
		{PODS(APP, NEAR("kubernetes.io/hostname", SELECTS(APP))), NULL, 2, 0,
			"podAffinity by kubernetes.io/hostname"},
		{PODS(APP, NEAR(BETA, SELECTS(APP) "}, {'topologyKey': '" ZONE "', " SELECTS(APP))),
			NULL, 2, 0, zone},
		{PODS(APP, NEAR("rack", SELECTS(APP))), NULL, 2, 0, "podAffinity by rack"},
		{PODS("'app': 'b'", BY_APP), NULL, 2, 0, zone},
		{PODS(APP, NEAR(ZONE, "'x': 1")), NULL, 2, 0, zone},
		{PODS(APP, NEAR(ZONE, SELECTS(APP) ", 'namespaces': ['m']")), NULL, 2, 0, zone},
		{PODS(APP, NEAR(ZONE, SELECTS(APP) ", 'namespaces': ['m', 'n']")), NULL, 2, 0,
			zone},
		{PODS(APP, NEAR(ZONE, SELECTS(APP) ", 'namespaceSelector': {}")), NULL, 2, 0, zone},
		{PODS(APP, NEAR(ZONE, SELECTS(APP) ", 'mismatchLabelKeys': ['v']")), NULL, 2, 0,
			zone},
		{PODS(APP, NEAR(ZONE, SELECTS(APP) "}, {'topologyKey': '" ZONE "', " SELECTS(""))),
			NULL, 2, 0, zone},
		/* A run: of its Job as much as is not there, without what is left of the attempt before. */
		{JOB_OF_4 ", 'pods': [" TIED("1", RUN ", 'job-name': 'j'", "",
			 NEAR(ZONE, SELECTS(RUN)) ON_N1) ", " TIED("2", RUN ", 'job-name': 'j'", "",
			 NEAR(ZONE, SELECTS(RUN))) ", " TIED("old", OLD_RUN, IS_DELETED,
			 NEAR(ZONE, SELECTS(OLD_RUN)) ON_N1) "]",
			"n/r", 3, 0, NULL},
		/* Pods of a gang that do not have it, or that it does not select, or of two gangs. */
		{JOB_OF_4 ", 'pods': [" TIED(
			 "1", RUN ", 'job-name': 'j'", "", "'nodeName': 'n1'") "]",
			"n/r", 3, 0, NULL},
		{JOB_OF_4 ", 'pods': [" TIED("1", OLD_RUN, "", "'nodeName': 'n1'") "]", NULL, 4, 0,
			zone},
		{"'pods': [" TIED("1", IN_GROUP ", " APP, "", BY_APP) ", " TIED(
			 "2", APP, "", BY_APP) "]",
			NULL, 2, 0, zone},
		{"'podgroups': [{'metadata': {'namespace': 'n', 'name': 'g'}, 'spec':"
		 " {'minMember': 5}}], " PODS(IN_GROUP ", " APP, BY_APP),
			"n/g", 5, 5, NULL},
		{"'jobsets': [{'metadata': {'namespace': 'n', 'name': 's1'}, 'spec':"
		 " {'replicatedJobs': [{'name': 'w', 'replicas': 2, 'template': {'spec':"
		 " {'parallelism': 4, 'template': {'spec': {" NEAR(ZONE,
			 SELECTS("'jobset.sigs.k8s.io/jobset-name': 's1'")) "}}}}}]}}], 'pods': [" TIED("1",
			 OF_SET("w"), "",
			 NEAR(ZONE, SELECTS("'jobset.sigs.k8s.io/jobset-name': 's1'")) ON_N1) "]",
			"n/s1", 7, 0, NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_FREE char *text =
			mem_printf("{'nodes': [" IN_ZONE("n1", "a") ", " IN_ZONE(
					   "n2", "b") ", "
						      "{'metadata': {'name': 'n3'}}], %s}",
				cases[i].lists);
		int64_t n = 0;

		read_objects(text, &model);
		vec_foreach (const struct scale_pod, pod, &model.pods) {
			const struct strv *said = &model.shapes.v[pod->shape].unsupported;
			if (pod->node >= 0)
				continue;
			n += pod->count;
			assert_int_equal(said->n, cases[i].unsupported ? 1 : 0);
			if (said->n)
				assert_string_equal(said->v[0], cases[i].unsupported);
		}
		if (n != cases[i].waiting)
			print_error("case %zu\n", i);
		assert_int_equal(n, cases[i].waiting);
		for (size_t g = 0; g < model.gangs.n; g++)
			assert_int_equal(model.gangs.v[g].same == SCALE_SAME_ZONE,
				str_eq(model.gangs.v[g].name, cases[i].gang));
		if (!cases[i].gang)
			continue;
		assert_int_equal(waiting(&model, cases[i].gang), n);
		assert_int_equal(gang_of(&model, cases[i].gang)->min, cases[i].min);
	}
}

/* Of each that a label tells apart, though all select another label, too: each pod is compared with
 * its own only. The number is over what marks may have. */
static void test_many_ties(void **state UNUSED)
{
	enum { RUNS = 2000 };
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_BUF struct buf text = buf_with(8 << 20);

	buf_adds(&text, "{'pods': [");
	for (int i = 0; i < 2 * RUNS; i++)
		buf_addf(&text,
			"%s{'metadata': {'namespace': 'n', 'name': '%d', 'labels': {'attempt': '1',"
			" 'run': 'r%d'}}, 'spec': {" NEAR(
				ZONE, SELECTS("'attempt': '1', 'run': 'r%d'")) "}}",
			i ? ", " : "", i, i / 2, i / 2);
	buf_adds(&text, "]}");
	read_objects(text.data, &model);
	assert_int_equal(model.gangs.n, RUNS);
	vec_foreach (const struct scale_pod, pod, &model.pods) {
		assert_int_equal(model.gangs.v[pod->gang].same, SCALE_SAME_ZONE);
		assert_int_equal(model.shapes.v[pod->shape].unsupported.n, 0);
	}
}

/* Pods beyond the ceiling are not planned for, and a remark says why. */
static void test_too_many_ties(void **state UNUSED)
{
	enum { MOST = 1000, MORE = 2 };
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_BUF struct buf text = buf_with(8 << 20);
	size_t n_unsupported = 0;

	buf_adds(&text, "{'pods': [");
	for (int i = 0; i < 2 * (MOST + MORE); i++)
		buf_addf(&text,
			"%s{'metadata': {'namespace': 'n', 'name': '%d', 'labels': {'k%d': '1'}},"
			" 'spec': {" NEAR(ZONE,
				"'labelSelector': {'matchExpressions': [{'key': 'k%d', 'operator':"
				" 'Exists'}]}") "}}",
			i ? ", " : "", i, i / 2, i / 2);
	buf_adds(&text, "]}");
	read_objects(text.data, &model);
	vec_foreach (const struct scale_pod, pod, &model.pods)
		n_unsupported += model.shapes.v[pod->shape].unsupported.n;
	assert_int_equal(n_unsupported, 2 * MORE);
	assert_int_equal(model.remarks.n, 1);
	assert_string_equal(model.remarks.v[0],
		"4 pods have an affinity by zone that is one too many: 100000 selectors are planned "
		"for, and 1000 that select no label by its value");
}

/* A pod that leaves binds the others of its Workload to no zone, whatever else there is. */
static void test_a_pod_that_leaves_its_zone(void **state UNUSED)
{
#define OF_W "'kueue.x-k8s.io/pod-group-name': 'w'"
#define ONE_ZONE_FOR_W                                                                             \
	"{'metadata': {'namespace': 'n', 'name': 'w'}, 'spec': {'podSets': [{'count': 2,"          \
	" 'topologyRequest': {'required': '" ZONE "'}, 'template': {'spec': {}}}]},"               \
	" 'status': {'conditions': [{'type': 'QuotaReserved', 'status': 'True'}]}}"
	static const char *const others[] = {"", ", " TIED("other", APP, "", BY_APP)};

	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_FREE char *text = mem_printf(
			"{'nodes': [" IN_ZONE("n1",
				"a") "], 'workloads': [" ONE_ZONE_FOR_W "], 'pods': [" TIED("old",
				OF_W, IS_DELETED,
				"'x': 1" ON_N1) ", " TIED("new", OF_W, "", "'x': 1") "%s]}",
			others[i]);
		read_objects(text, &model);
		assert_string_equal(model.pods.v[0].name, "n/old");
		assert_int_equal(model.pods.v[0].gang, -1);
		assert_true(model.pods.v[1].gang >= 0);
		assert_int_equal(model.gangs.v[model.pods.v[1].gang].same, SCALE_SAME_ZONE);
	}
}

/* In each of its own terms that select anything, and two keys are two ties. */
static void test_a_label_that_has_to_be_there(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	const struct scale_shape *shape = shape_of(
		"{'affinity': {'podAffinity': {'requiredDuringSchedulingIgnoredDuringExecution': ["
		"{'topologyKey': '" BETA "', " SELECTS(
			APP) "}]}, 'nodeAffinity':"
			     " {'requiredDuringSchedulingIgnoredDuringExecution': {'nodeSelectorTerms': ["
			     "{'matchExpressions': [{'key': 'a', 'operator': 'Exists'}]}, {}]}}}}",
		&model);
	assert_int_equal(shape->unsupported.n, 0);
	assert_int_equal(shape->affinity.n, 2);
	assert_int_equal(shape->affinity.v[0].n, 2);
	assert_string_equal(shape->affinity.v[0].v[1].key, BETA);
	assert_int_equal(shape->affinity.v[0].v[1].op, SCALE_EXISTS);
	assert_int_equal(shape->affinity.v[1].n, 0);
}

/* Two zones, each with room for two of four pods, and machines to buy in one or both. */
static void test_a_plan_of_one_zone(void **state UNUSED)
{
#define ROOM "{'cpu': 2, 'memory': '8Gi', 'pods': 9}"
#define NODE_OF(NAME, Z)                                                                           \
	"{'metadata': {'name': '" NAME "', 'labels': {'" ZONE "': '" Z "'}}, 'status':"            \
	" {'allocatable': " ROOM ", 'conditions': [{'type': 'Ready', 'status': 'True'}]}}"
#define GROUP_OF(ID, Z, MAX, PRICE)                                                                \
	"{'id': '" ID "', 'provider': 'p', 'min': 0, 'max': " MAX ", 'desired': 0, 'zone': '" Z    \
	"', 'price': " PRICE ", 'template': {'labels': {'" ZONE "': '" Z "'}, 'room': " ROOM "}}"
#define NO_LABEL                                                                                   \
	"{'id': 'gn', 'provider': 'p', 'min': 0, 'max': 9, 'desired': 0, 'zone': 'a', 'price': 1," \
	" 'template': {'room': " ROOM "}}"
#define CPU_OF_1(MORE)                                                                             \
	NEAR(ZONE, SELECTS(RUN)) MORE ", 'containers': [{'resources': {'requests': {'cpu': 1}}}]"
#define RANKS(MORE)                                                                                \
	TIED("1", RUN, "", CPU_OF_1(MORE))                                                         \
	", " TIED("2", RUN, "", CPU_OF_1(MORE)) ", " TIED("3", RUN, "", CPU_OF_1("")) ", " TIED(   \
		"4", RUN, "", CPU_OF_1(""))
	static const struct {
		const char *groups, *pods;
		int64_t helped;
		const char *bought; /* of a group; NULL: nothing is */
	} cases[] = {
		/* Free room for all, but not in one zone. */
		{"", RANKS(""), 0, NULL},
		{GROUP_OF("ga", "a", "0", "1"), RANKS(""), 0, NULL},
		{GROUP_OF("ga", "a", "1", "2") ", " GROUP_OF("gb", "b", "1", "1"), RANKS(""), 4,
			"gb"},
		{GROUP_OF("gc", "c", "1", "1"), RANKS(""), 0, NULL},
		/* Half of it runs in zone a. */
		{GROUP_OF("ga", "a", "1", "2") ", " GROUP_OF("gb", "b", "1", "1"),
			RANKS(", 'nodeName': 'na'"), 2, "ga"},
		{GROUP_OF("gb", "b", "9", "1"), RANKS(", 'nodeName': 'na'"), 0, NULL},
		/* The scheduler wants the label on the node, also for the first pod. */
		{NO_LABEL, RANKS(""), 0, NULL},
		{NO_LABEL, TIED("1", RUN, "", CPU_OF_1("") ", 'nodeSelector': {'x': 'y'}"), 0,
			NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_SCALE_PLAN struct scale_plan plan = {0};
		AUTO_FREE char *text =
			mem_printf("{'groups': [%s], 'nodes': [" NODE_OF("na", "a") ", " NODE_OF(
					   "nb", "b") "], 'pods': [%s]}",
				cases[i].groups, cases[i].pods);

		read_objects(text, &model);
		scale_plan_make(&model, &plan);
		if (plan.helped != cases[i].helped)
			print_error("case %zu\n", i);
		assert_int_equal(plan.helped, cases[i].helped);
		assert_int_equal(plan.actions.n, cases[i].bought ? 1 : 0);
		if (cases[i].bought)
			assert_string_equal(
				model.groups.v[plan.actions.v[0].group].id, cases[i].bought);
	}
}

/* What was read is a snapshot that is read again as the same, and planned. */
static void test_a_snapshot_of_it(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model, again;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};

	read_objects(
		"{'groups': [{'id': 'g', 'provider': 'p', 'min': 0, 'max': 9, 'desired': 0,"
		" 'template': {'room': {'cpu': '8', 'memory': '32Gi'}}}], 'jobs': ["
		"{'metadata': {'namespace': 'n', 'name': 'j', 'labels': {'dlrun.io/run-id': 'r'}},"
		" 'spec': {'parallelism': 4, 'template': {'spec': {'containers': [{'resources':"
		" {'requests': {'cpu': '8'}}}]}}}}]}",
		&model);
	AUTO_JSON struct json *json = snapshot_write(&model);
	scale_model_init(&again);
	assert_int_equal(snapshot_read(json, &again, NULL), 0);
	AUTO_JSON struct json *twice = snapshot_write(&again);
	AUTO_BUF struct buf first = buf_with(1 << 20), second = buf_with(1 << 20);
	json_print(json, &first);
	json_print(twice, &second);
	assert_string_equal(first.data, second.data);
	scale_plan_make(&model, &plan);
	assert_int_equal(plan.waiting, 4);
	assert_int_equal(plan.helped, 4);
	assert_int_equal(plan.actions.v[0].to, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_constraints_that_are_not_known),
		cmocka_unit_test(test_affinity_and_marks),
		cmocka_unit_test(test_anti_affinity_of_others),
		cmocka_unit_test(test_a_nominated_pod),
		cmocka_unit_test(test_pods_share_shapes),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_nodes_by_a_clock_that_stepped),
		cmocka_unit_test(test_a_node_that_is_silent_by_a_clock_ahead),
		cmocka_unit_test(test_ids_of_nodes),
		cmocka_unit_test(test_a_node_without_provider_id),
		cmocka_unit_test(test_a_group_is_like_its_nodes),
		cmocka_unit_test(test_a_template_that_says_too_much),
		cmocka_unit_test(test_a_pod_that_fits_only_the_template),
		cmocka_unit_test(test_nodes_with_many_resources),
		cmocka_unit_test(test_gangs_of_dlrun),
		cmocka_unit_test(test_jobsets),
		cmocka_unit_test(test_workloads),
		cmocka_unit_test(test_pod_groups),
		cmocka_unit_test(test_network_topology),
		cmocka_unit_test(test_pods_of_one_zone),
		cmocka_unit_test(test_a_label_that_has_to_be_there),
		cmocka_unit_test(test_many_ties),
		cmocka_unit_test(test_too_many_ties),
		cmocka_unit_test(test_a_pod_that_leaves_its_zone),
		cmocka_unit_test(test_a_plan_of_one_zone),
		cmocka_unit_test(test_a_snapshot_of_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
