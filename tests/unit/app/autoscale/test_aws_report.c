/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "app/autoscale/aws_report.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/snapshot.h"

static void tag(struct aws_group *group, const char *key, const char *value)
{
	struct aws_tag *added = vec_push(&group->tags);

	added->key = mem_strdup(key);
	added->value = mem_strdup(value);
}

static void instance(struct aws_group *group, const char *id, const char *state, const char *type)
{
	struct aws_instance *added = vec_push(&group->instances);

	added->id = mem_strdup(id);
	added->state = mem_strdup(state);
	added->type = mem_strdup(type);
}

static struct aws_group *group_new(struct aws_groups *groups)
{
	struct aws_group *group = vec_push(groups);

	group->name = mem_strdup("gpu@a");
	group->max = 10;
	group->desired = 3;
	group->template_id = mem_strdup("lt-1");
	strv_add(&group->zones, "us-east-1a");
	return group;
}

static void know_type(struct aws_facts *facts, const char *region, const char *name, int64_t cpus,
	int64_t memory_mib, int64_t gpus, const char *arch)
{
	struct aws_type type = {.name = mem_strdup(name),
		.arch = mem_strdup(arch),
		.gpu = mem_strdup(gpus ? "NVIDIA" : NULL),
		.cpus = cpus,
		.memory_mib = memory_mib,
		.gpus = gpus,
		.interfaces = 4,
		.addresses = 15};

	aws_facts_add_type(facts, region, &type);
}

static void know_template(struct aws_facts *facts, const char *key, const char *type, bool is_spot)
{
	struct aws_template *template = mem_alloc(1, sizeof(*template));

	*template = (struct aws_template){.type = mem_strdup(type), .is_spot = is_spot};
	map_put(&facts->templates, key, template);
}

/* The planner's reader takes every report. */
static void read_back(const struct aws_facts *facts, const struct aws_group *group,
	const char *silent, const char *note, struct scale_model *model)
{
	AUTO_JSON struct json *json = aws_group_json(facts, "us-east-1", group, silent, note);
	AUTO_ERR struct err err = {0};

	scale_model_init(model);
	if (snapshot_read_group(json, model, &err) < 0)
		fail_msg("%s", err.message);
}

static const char *label(const struct scale_group *group, const char *key)
{
	vec_foreach (const struct scale_pair, pair, &group->labels)
		if (str_eq(pair->key, key))
			return pair->value;
	return NULL;
}

static void test_by_type(void **state)
{
	AUTO(aws_facts_done) struct aws_facts facts = {0};
	AUTO(aws_groups_done) struct aws_groups groups = {0};
	AUTO_SCALE_MODEL struct scale_model model = {0};
	struct aws_group *raw = group_new(&groups);

	know_template(&facts, "us-east-1/lt-1/$Default", "g5.2xlarge", true);
	know_type(&facts, "us-west-2", "g5.2xlarge", 0, 0, 0, NULL);
	know_type(&facts, "us-east-1", "g5.2xlarge", 8, 32768, 1, "x86_64");
	know_type(&facts, "us-east-1", "g5.2xlarge", 4, 1024, 0, "arm64");
	instance(raw, "i-1", "InService", "g5.2xlarge");
	instance(raw, "i-2", "Pending:Wait", "g5.2xlarge");
	instance(raw, "i-3", "Terminating", "g5.2xlarge");
	instance(raw, "i-4", "Standby", "g5.2xlarge");
	instance(raw, "i-5", "Warmed:Stopped", "g5.2xlarge");
	map_put(&facts.launched, "i-1", (void *)(intptr_t)1795770000);
	assert_int_equal(aws_group_live(raw), 2);
	read_back(&facts, raw, NULL, NULL, &model);
	const struct scale_group *group = &model.groups.v[0];
	assert_string_equal(group->id, "gpu@a@us-east-1");
	assert_int_equal(group->desired, 3);
	assert_string_equal(group->zone, "us-east-1a");
	assert_true(group->is_spot && group->has_template && !group->refused);
	assert_string_equal(label(group, "node.kubernetes.io/instance-type"), "g5.2xlarge");
	assert_string_equal(label(group, "kubernetes.io/arch"), "amd64");
	assert_string_equal(label(group, "topology.kubernetes.io/zone"), "us-east-1a");
	assert_int_equal(group->room.of[SCALE_CPU], 8000 - 60 - 10 - 5 - 5 - 10);
	assert_int_equal(group->room.of[SCALE_PODS], 4 * 14 + 2);
	assert_int_equal(group->room.of[SCALE_MEMORY],
		(INT64_C(32768) * 925 / 1000 - 255 - 100 - 11 * 58) << 20);
	assert_int_equal(group->room.of[scale_resource(&model, "nvidia.com/gpu")], 1);
	assert_int_equal(group->instances.n, 3);
	assert_int_equal(group->instances.v[0].since_ms, INT64_C(1795770000000));
	assert_int_equal(group->instances.v[1].state, SCALE_PENDING);
	assert_int_equal(group->instances.v[1].since_ms, 0);
	assert_int_equal(group->instances.v[2].state, SCALE_STOPPING);
}

static void test_by_tags(void **state)
{
	AUTO(aws_facts_done) struct aws_facts facts = {0};
	AUTO(aws_groups_done) struct aws_groups groups = {0};
	AUTO_SCALE_MODEL struct scale_model model = {0};
	struct aws_group *raw = group_new(&groups);

#define TAGS "k8s.io/cluster-autoscaler/node-template/"
	tag(raw, TAGS "label/example.com/pool", "a");
	tag(raw, TAGS "label/node.kubernetes.io/instance-type", "own");
	tag(raw, "kube/role", "train");
	tag(raw, TAGS "taint/gpu", "yes:NoSchedule");
	tag(raw, TAGS "taint/empty", ":NoExecute");
	tag(raw, TAGS "taint/bad", "NoSchedule");
	tag(raw, TAGS "taint/worse", "a:Never");
	tag(raw, TAGS "resources/cpu", "7910m");
	tag(raw, TAGS "resources/memory", "28Gi");
	tag(raw, TAGS "resources/example.com/fpga", "2");
	strv_add(&raw->zones, "us-east-1b");
	read_back(&facts, raw, NULL, "not allowed", &model);
	const struct scale_group *group = &model.groups.v[0];
	assert_true(group->has_template);
	assert_null(group->zone);
	assert_null(group->failure_text);
	assert_string_equal(label(group, "example.com/pool"), "a");
	assert_string_equal(label(group, "role"), "train");
	assert_string_equal(label(group, "node.kubernetes.io/instance-type"), "own");
	assert_int_equal(group->taints.n, 2);
	assert_string_equal(group->taints.v[0].value, "yes");
	assert_int_equal(group->taints.v[1].effect, SCALE_NO_EXECUTE);
	assert_int_equal(group->room.of[SCALE_CPU], 7910);
	assert_int_equal(group->room.of[SCALE_MEMORY], INT64_C(28) << 30);
	assert_int_equal(group->room.of[scale_resource(&model, "example.com/fpga")], 2);
}

/* Of several types a node has what the smallest has. */
static void test_mixed(void **state)
{
	AUTO(aws_facts_done) struct aws_facts facts = {0};
	AUTO(aws_groups_done) struct aws_groups groups = {0};
	AUTO_SCALE_MODEL struct scale_model model = {0};
	AUTO_SCALE_MODEL struct scale_model partly = {0};
	struct aws_group *raw = group_new(&groups);

	know_type(&facts, "us-east-1", "big", 16, 65536, 0, "arm64");
	know_type(&facts, "us-east-1", "small", 4, 32768, 0, "x86_64");
	strv_add(&raw->types, "big");
	strv_add(&raw->types, "small");
	raw->is_mixed = true;
	raw->on_demand_percent = 50;
	read_back(&facts, raw, NULL, NULL, &model);
	const struct scale_group *group = &model.groups.v[0];
	assert_false(group->is_spot);
	assert_int_equal(group->room.of[SCALE_CPU], 4000 - 80);
	assert_null(label(group, "kubernetes.io/arch"));
	assert_null(label(group, "node.kubernetes.io/instance-type"));
	strv_add(&raw->types, "unknown");
	know_type(&facts, "us-east-1", "unknown", 0, 0, 0, NULL);
	raw->on_demand_percent = 0;
	read_back(&facts, raw, NULL, NULL, &partly);
	assert_true(partly.groups.v[0].is_spot);
	assert_false(partly.groups.v[0].has_template);
	assert_int_equal(partly.groups.v[0].failure, SCALE_FAILED_CONFIG);
	assert_string_equal(
		partly.groups.v[0].failure_text, "AWS has no type unknown in us-east-1");
}

static void test_unknown(void **state)
{
	AUTO(aws_facts_done) struct aws_facts facts = {0};
	AUTO(aws_groups_done) struct aws_groups groups = {0};
	AUTO_SCALE_MODEL struct scale_model model = {0};
	AUTO_SCALE_MODEL struct scale_model denied = {0};
	struct aws_group *raw = group_new(&groups);

	raw->has_requirements = true;
	instance(raw, "i-1", "InService", "any");
	read_back(&facts, raw, "it is silent", NULL, &model);
	assert_false(model.groups.v[0].has_template);
	assert_string_equal(model.groups.v[0].refused, "it is silent");
	assert_string_equal(model.groups.v[0].failure_text,
		"neither its tags nor its launch template tell what its machines are");
	read_back(&facts, raw, NULL, "not allowed", &denied);
	assert_string_equal(denied.groups.v[0].failure_text, "not allowed");
}

static void test_refused(void **state)
{
	AUTO(aws_groups_done) struct aws_groups groups = {0};

	for (int i = 0; i < 6; i++)
		group_new(&groups);
	tag(&groups.v[0], "k8s.io/cluster-autoscaler/enabled", "true");
	tag(&groups.v[1], "k8s.io/cluster-autoscaler/enabled", "false");
	tag(&groups.v[1], "k8s.io/cluster-autoscaler/node-template/label/a", "b");
	groups.v[2].status = mem_strdup("Delete in progress");
	groups.v[3].is_weighted = true;
	strv_add(&groups.v[4].suspended, "Launch");
	strv_add(&groups.v[5].suspended, "AZRebalance");
	for (size_t i = 0; i < groups.n; i++)
		assert_int_equal(!aws_group_refused(&groups.v[i]), i == 1 || i == 5);
	assert_non_null(strstr(aws_group_refused(&groups.v[0]), "Cluster Autoscaler"));
}

static void assert_remarks(const struct aws_groups *groups, const char *const want[])
{
	AUTO_JSON struct json *list = json_array();
	size_t n = 0;

	aws_groups_remarks("lab", "r", groups, list);
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		if (!want[n] || !str_starts(json_str(m), want[n]))
			fail_msg("%s", json_str(m));
		n++;
	}
	assert_null(want[n]);
}

static void test_remarks(void **state)
{
	(void)state;
	AUTO(aws_groups_done) struct aws_groups groups = {0};

	for (int i = 0; i < 6; i++) {
		struct aws_group *group = group_new(&groups);

		group->name[0] = (char)('a' + i);
		group->is_protected = true;
		tag(group, AWS_CLUSTER_TAG, i == 5 ? "other" : "lab");
	}
	assert_remarks(&groups, (const char *const[]){NULL});
	for (size_t i = 0; i < 5; i++)
		groups.v[i].is_protected = false;
	groups.v[5].is_protected = false;
	groups.v[1].has_policy = groups.v[2].has_policy = true;
	strv_add(&groups.v[2].suspended, "AlarmNotification");
	assert_remarks(&groups,
		(const char *const[]){"bpu@a@r: a scaling policy",
			"apu@a@r, bpu@a@r, cpu@a@r and 2 more: AWS may end new machines", NULL});
	/* Of one that is not changed the rest is of no matter; one that goes is no news. */
	strv_add(&groups.v[1].suspended, "Launch");
	groups.v[0].status = mem_strdup("Delete in progress");
	assert_remarks(
		&groups, (const char *const[]){"bpu@a@r: not changed, its process Launch",
				 "cpu@a@r, dpu@a@r, epu@a@r: AWS may end new machines", NULL});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_type),
		cmocka_unit_test(test_by_tags),
		cmocka_unit_test(test_mixed),
		cmocka_unit_test(test_unknown),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_remarks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
