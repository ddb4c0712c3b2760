/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/report.h"
#include "core/autoscale/snapshot.h"

/* Snapshots of tests/unit/data/autoscale, and what has to follow from each. What the tests of
 * kubernetes-ec2-autoscaler say, its faults, and what users of other autoscalers suffered from (by
 * project and number of the issue). */
static const struct plan_case {
	const char *name, *sentence;
	const char *actions;
	int64_t helped;
	const char *reason; /* one of those that are given; "": none is looked for */
} cases[] = {{"original-dead-node-waits", "a node that is silent for less than an hour stays", "",
		     0, ""},
	{"original-dead-node-goes", "one that is silent for longer goes", "cordon n", 0, ""},
	{"original-ceiling", "the ceiling removes the longest idle one, not none", "remove n2", 0,
		""},
	{"original-selector", "a selector that no group has buys nothing", "", 0,
		"a: it has no label tier (gold is asked for)"},
	{"original-fits", "a pod that fits is bought for", "grow a 0>1", 1, ""},
	{"original-oversized", "a pod that is too large is told why, the others are helped",
		"grow a 0>1", 2, "a: a machine of it has 16 cpu, not 17"},
	{"original-timed-out", "a group that waits after a failure is not asked", "", 0,
		"a: it is not asked for 600 s more, after a failure: capacity"},
	{"original-idle", "an idle node is cordoned", "cordon n", 0, ""},
	{"original-grace", "one that is idle for a short time stays", "", 0, ""},
	{"original-busy", "a busy node stays", "", 0, ""},
	{"original-undrainable", "a busy node stays, though its mark says that it is idle", "", 0,
		""},
	{"original-drainable", "a nearly empty node stays as well: nothing that runs is ended", "",
		0, ""},
	{"original-priority", "groups are asked by their weight", "grow b 0>1", 1, ""},
	{"fault-1-age-is-not-idle",
		"an old node that became idle now stays; one that is idle for over a day goes",
		"cordon n2", 0, ""},
	{"fault-2-idle-is-reached",
		"idle and schedulable is a state that a node can have, at 0 of use", "cordon n", 0,
		""},
	{"fault-3-buckets-add-up", "two kinds of pods that need a group add up", "grow a 0>2", 2,
		""},
	{"fault-4-one-pod-one-node", "one pod buys one machine", "grow a 0>1", 1, ""},
	{"fault-5-a-match-holds-nothing", "a pod that no node holds keeps no idle node", "cordon n",
		0, "a: a machine of it has 16 cpu, not 17"},
	{"fault-6-over-50-groups", "the last of 60 groups is used", "grow g59 0>1", 1, ""},
	{"fault-7-an-empty-region", "groups without a machine or a past work", "grow a 0>1", 1, ""},
	{"fault-8-nodes-of-others", "a node of nobody's group is used, and left alone", "", 1, ""},
	{"fault-9-nobody-is-evicted",
		"who came to a node that was to go keeps it: nothing is left to evict",
		"uncordon n", 0, ""},
	{"fault-10-apart", "pods that are apart by host get a machine each", "grow a 0>3", 3, ""},
	{"fault-11-gpus-of-any-type", "GPUs count that no table knows", "grow a 0>2", 2, ""},
	{"fault-12-late-machines", "machines that never became nodes count under the ceiling",
		"terminate i-1", 0, ""},
	{"fault-13-tolerations", "a toleration of another value is none", "grow b 0>1", 1, ""},
	{"pain-karpenter-5505", "2,000 pods are planned at once", "grow a 0>500", 2000, ""},
	{"pain-autoscaler-5769", "several groups grow in one plan",
		"grow a 0>10, grow b 0>10, grow c 0>5", 100, ""},
	{"pain-karpenter-2200", "what a limit leaves out is told", "grow a 0>2", 8,
		"a: the limit is 2 nodes"},
	{"pain-autoscaler-3241", "after a failure the next group is asked", "grow b 0>1", 1, ""},
	{"pain-autoscaler-3042", "an empty spot group is not waited for, and told",
		"grow on-demand 0>2, shrink spot 2>0", 8, ""},
	{"pain-autoscaler-6810", "a GPU machine that came to nothing is given back",
		"terminate i-9", 0, ""},
	{"pain-karpenter-2275", "the pool to fall back on is tried", "grow fallback 0>4", 4, ""},
	{"pain-karpenter-701", "a job that runs is never ended to pack better", "", 0, ""},
	{"pain-karpenter-742", "a gang is never half bought", "", 0,
		"a: its maximum is 3: 3 of the 4 machines that would hold all of the gang"},
	{"pain-autoscaler-9805", "free GPUs count for a gang", "grow a 6>8", 8, ""},
	{"pain-volcano-2558", "pods that do not exist yet are bought for", "grow a 0>16", 16, ""},
	{"pain-karpenter-6459", "what boots is waited for", "", 16, ""},
	{"coming-is-for-whom-it-was-bought",
		"pods without GPUs take no GPU machine on its way from the one it was bought for",
		"", 3, "p4d: its machines have GPUs, which are not asked for"},
	{"pain-autoscaler-1471", "a group of another autoscaler is left alone", "", 0,
		"a: it has tags of the Cluster Autoscaler"},
	{"pain-autoscaler-1802", "a gang of one zone goes to the zone that has it all",
		"grow b 0>4", 4, ""},
	{"pain-runs-on-317", "region 1 has nothing: region 2", "grow east 0>1", 1, ""},
	{"pain-karpenter-7658", "how much runs already does not matter for what waits",
		"grow a 3>7", 13, ""},
	{"pain-karpenter-2756",
		"where four spot groups have nothing, all that wait go to the others at once",
		"grow spot-e 0>5, grow on-demand 0>18", 90, ""},
	{"pain-karpenter-3778", "a cordoned node that has a job comes back", "uncordon n", 0, ""},
	{"pain-karpenter-3152", "pods that are all different are planned at once", "grow a 0>6", 40,
		""},
	{"pain-karpenter-983",
		"pods whose affinity was changed are bought for, though old nodes "
		"have room",
		"grow new 0>3", 12, ""},
	{"pain-autoscaler-3835", "as many groups as it takes grow in one plan",
		"grow small-a 0>2, grow small-b 0>2, grow small-c 0>2, grow large-a 0>2, grow "
		"large-b 0>2, grow large-c 0>2",
		45, ""},
	{"pain-autoscaler-687", "one group grows by all that it takes in one plan", "grow a 0>100",
		398, ""},
	{"pain-autoscaler-6784", "of a hundred groups the one that fits is found", "grow m77 0>1",
		1, ""},
	{"pain-autoscaler-4438", "a zone without capacity is passed over, and told",
		"grow b 0>1, grow c 0>1, shrink a 2>0", 8, ""},
	{"pain-autoscaler-3490", "a group is asked again when its time is over", "grow spot 0>1", 4,
		""},
	{"pain-kueue-5133", "the parts of a gang are bought together, each of its own group",
		"grow cpu 0>2, grow gpu 0>4", 6, ""},
	{"pain-kueue-14700", "a part that cannot be bought leaves the others unbought", "", 0,
		"cpu: its maximum is 1: 1 of the 2 machines that would hold all of the gang"},
	{"pain-kueue-3245", "a group that has owed a gang for a day is passed over, and told",
		"grow b 0>4, shrink a 4>0", 4, ""},
	{"pain-volcano-3000", "the room of a pod that is still leaving is not waited for",
		"grow a 1>2", 1, ""},
	{"pain-volcano-3910", "a group of pods that do not exist yet keeps a node, and buys more",
		"grow a 1>3", 3, ""},
	{"pain-volcano-3976", "a pod that has room and waits for its gang counts for it",
		"grow b 0>1", 2, ""},
	{"pain-reformatters-945", "of nodes that could be packed closer only the idle one goes",
		"cordon n3", 0, ""},
	{"pain-skypilot-975", "a gang goes to the first region that has all of it", "grow eu 0>2",
		2, ""},
	{"pain-openai-95", "of 29 idle nodes the first three go",
		"remove n00, remove n01, remove n02", 0, ""},
	{"pain-openai-94", "a cordoned node is not uncordoned without need", "", 0, ""},
	{"pain-openai-68", "a group of which nothing is known says so", "", 0,
		"a: it is not known what its machines are like"},
	{"pain-volcano-4710", "pods with a constraint that is not known are named", "", 0,
		"not supported: schedulingGates"},
	{"uncordon-before-buying", "own cordoned nodes come back before a machine is bought",
		"uncordon n", 4, ""},
	{"no-gpus-for-cpus", "pods without GPUs buy none while others fit", "grow cpu 0>1", 1, ""},
	{"cheapest", "of equal weight the cheapest packing", "grow big 0>1", 4, ""},
	{"spot-first", "spot before on-demand at the same price", "grow b 0>1", 1, ""},
	{"spares", "so many idle nodes of a kind stay", "cordon n1", 0, ""},
	{"minimum", "a group keeps its minimum", "", 0, ""},
	{"gang-min", "of a gang with a least number the rest is helped as far as it goes",
		"grow a 0>3", 3, "a: its maximum is 3"},
	{"price-limit", "the limit of the price holds", "grow a 0>3", 3,
		"a: the limit is 100.00 for an hour"},
	{"absurd-amounts", "amounts that cannot be read are named", "", 0,
		"not supported: a request of cpu: \"1e300\""},
	{"gang-of-two-priorities", "a gang is whole though its pods have different priorities", "",
		0, "g: another pod of the gang finds no room"},
	{"gang-min-in-one-zone", "what is beyond the least number stays in the gang's zone",
		"grow a 0>4", 4, "b: all of the gang has to be in one zone"},
	{"priority-before-number", "a pod of higher priority is not given up for more of lower",
		"grow g 0>2", 4, ""},
	{"nameless-node",
		"a machine is not given back while it may be a node's whose machine is not known",
		"", 0, ""},
	{"deleted-node", "a machine that may have been a node is not ended because it is none", "",
		0, ""},
	{"minimum-of-nodes", "late machines do not count for the minimum",
		"terminate i-x, uncordon n3", 0, ""},
	{"dead-node-at-the-minimum", "a dead node goes though its group has its least number",
		"cordon n", 0, ""},
	{"kept-nodes-block-nothing", "a node that its group keeps comes back, and blocks no other",
		"uncordon a1, cordon b1", 0, ""},
	{"pain-karpenter-6459-devices",
		"a new node whose GPUs are not registered yet is waited for", "", 1, ""},
	{"new-node-without-its-label",
		"a new node may still get its labels, and lose taints of its start", "", 1, ""},
	{"old-node-without-its-label", "a node of which nothing is known is as it is", "grow a 1>2",
		1, ""},
	{"mismatch-holds-what-asks-for-it",
		"nodes that came without a label are bought for others only", "grow a 1>2", 2,
		"a: node n came without label pool=gpu, which is in the template"},
	{"group-of-an-unknown-type", "why nothing is known of machines is said", "", 0,
		"a: it is not known what its machines are like: AWS has no type z9.metal"},
	{"stopping-machine", "a node whose machine stops holds nobody", "grow a 0>1", 1, ""},
	{"late-without-id",
		"machines that are late and have no id are not asked for any more, and others are",
		"grow b 0>1, shrink a 4>1", 8, ""},
	{"late-without-id-at-the-minimum", "a group that owes its minimum is not asked for more",
		"", 0, "a: it owes 2 machines that did not come in time"},
	{"texts-are-told-apart", "two values are not one with a blank", "grow b 0>1", 1, ""}};

static void read_snapshot(const char *name, struct scale_model *ret)
{
	AUTO_FREE char *path = mem_printf("%s/autoscale/%s.json", getenv("UNIT_DATA"), name);
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err err = {0};

	scale_model_init(ret);
	assert_int_equal(fs_read(path, SCALE_SNAPSHOT_MAX, &text, NULL, &err), 0);
	assert_int_equal(json_parse(text.data, text.len, text.len, path, &json, &err), 0);
	int r = snapshot_read(json, ret, &err);
	assert_string_equal(err.message ? err.message : "", "");
	assert_int_equal(r, 0);
}

static void add_action(const struct json *action, struct buf *out)
{
	const char *group = json_get_str(action, "group"), *node = json_get_str(action, "node");
	const char *instance = json_get_str(action, "instance");

	buf_addf(out, "%s%s ", out->len ? ", " : "", json_get_str(action, "do"));
	if (json_get(action, "to"))
		buf_addf(out, "%s %" PRId64 ">%" PRId64, group, json_get_int(action, "from", -1),
			json_get_int(action, "to", -1));
	else
		buf_adds(out, instance ? instance : node);
}

static bool has_reason(const struct json *plan, const char *wanted)
{
	for (const struct json *m = json_first(json_get(plan, "not_helped")); m; m = json_next(m))
		for (const struct json *r = json_first(json_get(m, "reasons")); r;
			r = json_next(r)) {
			const char *group = json_get_str(r, "group");
			AUTO_FREE char *text = mem_printf("%s%s%s", group ? group : "",
				group ? ": " : "", json_get_str(r, "text"));
			if (str_eq(text, wanted))
				return true;
		}
	return false;
}

/* The plan of a model as JSON; it is made twice, and is the same. */
static struct json *plan_of(const struct scale_model *model, struct scale_plan *ret)
{
	AUTO_SCALE_PLAN struct scale_plan again = {0};
	AUTO_BUF struct buf first = buf_with(64 << 20), second = buf_with(64 << 20);

	scale_plan_make(model, ret);
	scale_plan_make(model, &again);
	struct json *json = plan_json(model, ret);
	AUTO_JSON struct json *other = plan_json(model, &again);
	json_print(json, &first);
	json_print(other, &second);
	assert_string_equal(first.data, second.data);
	return json;
}

static void check_case(const struct plan_case *one)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	AUTO_BUF struct buf actions = buf_with(64 << 10), text = buf_with(1 << 20);

	read_snapshot(one->name, &model);
	AUTO_JSON struct json *json = plan_of(&model, &plan);
	for (const struct json *m = json_first(json_get(json, "actions")); m; m = json_next(m))
		add_action(m, &actions);
	if (!str_eq(actions.data, one->actions))
		print_error("%s: %s\n", one->name, one->sentence);
	assert_string_equal(actions.data, one->actions);
	assert_int_equal(plan.helped, one->helped);
	if (*one->reason && !has_reason(json, one->reason))
		print_error("%s: no reason is '%s'\n", one->name, one->reason);
	assert_true(!*one->reason || has_reason(json, one->reason));
	plan_text(&model, &plan, &text);
	assert_true(text.len > 0);
}

static void test_each_case(void **state UNUSED)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		check_case(&cases[i]);
}

static void test_a_snapshot_is_written_as_it_was_read(void **state UNUSED)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model, again;
		AUTO_BUF struct buf first = buf_with(1 << 20), second = buf_with(1 << 20);
		AUTO_ERR struct err err = {0};

		read_snapshot(cases[i].name, &model);
		scale_model_init(&again);
		AUTO_JSON struct json *json = snapshot_write(&model);
		assert_int_equal(snapshot_read(json, &again, &err), 0);
		AUTO_JSON struct json *other = snapshot_write(&again);
		json_print(json, &first);
		json_print(other, &second);
		assert_string_equal(first.data, second.data);
	}
}

/* Members of a snapshot that say nothing that could be meant, and what is said of each. */
static void test_what_is_no_snapshot(void **state UNUSED)
{
	static const struct {
		const char *members, *error;
	} bad[] = {
		{"\"foo\": 1", "foo is not known"},
		{"\"limits\": {\"nodes\": \"3\"}", "limits.nodes is not a number"},
		{"\"limits\": {\"price\": \"30\"}", "limits.price is not a number"},
		{"\"limits\": {\"price\": -1}", "limits.price is not a price"},
		{"\"limits\": {\"price\": 0}",
			"limits.price must be above 0: nothing could be bought"},
		{"\"limits\": {\"nodes\": 0}",
			"limits.nodes is not a whole number within its range"},
		{"\"limits\": {\"removals\": 0}",
			"limits.removals is not a whole number within its range"},
		{"\"limits\": {\"step\": 2.5}",
			"limits.step is not a whole number within its range"},
		{"\"pods\": {}", "pods is not a list"},
		{"\"pods\": [5]", "pods[0] is not an object"},
		{"\"shapes\": {\"s\": {\"request\": [5]}}", "shapes.s.request is not an object"},
		{"\"shapes\": {\"s\": {\"selector\": {\"a\": 1}}}",
			"shapes.s.selector has a value that is not a string"},
		{"\"shapes\": {\"s\": {\"tolerations\": [{\"key\": 5}]}}",
			"shapes.s.key is not a string"},
		{"\"shapes\": {\"s\": {}}, \"pods\": [{\"name\": \"p\", \"shape\": \"s\", \"count\": \"5\"}]",
			"pods[0].count is not a number"},
		{"\"shapes\": {\"s\": {}}, \"pods\": [{\"name\": \"p\", \"shape\": \"s\", \"kept\": true}]",
			"pods[0].kept is not known"},
		{"\"nodes\": [{\"name\": \"n\", \"ready\": \"true\"}]",
			"nodes[0].ready is neither true nor false"},
		{"\"nodes\": [{\"name\": \"n\", \"kept\": true}]", "nodes[0].kept is not a string"},
		{"\"groups\": [{\"id\": \"a\", \"price\": \"1.5\"}]",
			"groups[0].price is not a number"},
		{"\"groups\": [{\"id\": \"a\"}, {\"id\": \"a\"}]", "groups[1].id is there twice"},
		{"\"groups\": [{\"id\": \"a\", \"boot_s\": 0}]",
			"groups[0].boot_s is not a whole number within its range"},
		{"\"groups\": [{\"id\": \"a\", \"min\": 8, \"max\": 3}]",
			"groups[0].min is above max"},
		{"\"groups\": [{\"id\": \"a\", \"instances\": [{\"id\": \"i\"}, {\"id\": \"\"}, "
		 "{\"id\": \"\"}, {\"id\": \"i\"}]}]",
			"groups[0].instances has the id i twice"},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_JSON struct json *json = NULL;
		AUTO_ERR struct err err = {0};
		AUTO_FREE char *text = mem_printf("{\"dlrun_autoscale\": 1, \"now\": "
						  "\"2026-11-27T05:00:00Z\", %s}",
			bad[i].members);

		scale_model_init(&model);
		assert_int_equal(
			json_parse(text, strlen(text), strlen(text), "it", &json, &err), 0);
		assert_true(snapshot_read(json, &model, &err) < 0);
		assert_string_equal(err.message, bad[i].error);
	}
}

static void test_a_list_is_no_snapshot(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_JSON struct json *json = json_array();
	AUTO_ERR struct err err = {0};

	scale_model_init(&model);
	assert_true(snapshot_read(json, &model, &err) < 0);
	assert_string_equal(err.message, "this is not a snapshot: it is not an object");
}

/* What a provider lists again is counted once, and told once. */
/* Errors name the group of a provider, which has no place in a list that people see. */
static void test_what_is_no_group(void **state UNUSED)
{
	static const struct {
		const char *json, *message;
	} none[] = {
		{"{\"id\": \"a\", \"min\": 2, \"max\": 1}", "group a: min is above max"},
		{"{\"max\": 1}", "group without an id: id is missing"},
		{"7", "group without an id is not an object"},
		{"{\"id\": \"a\", \"max\": 1, \"template\": {\"taints\": [\"x\"]}}",
			"group a: taints has one that is not an object"},
	};

	for (size_t i = 0; i < ARRAY_LEN(none); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_JSON struct json *json = NULL;
		AUTO_ERR struct err err = {0};

		scale_model_init(&model);
		assert_int_equal(
			json_parse(none[i].json, strlen(none[i].json), 1000, "", &json, NULL), 0);
		assert_true(snapshot_read_group(json, &model, &err) < 0);
		assert_string_equal(err.message, none[i].message);
		assert_int_equal(model.groups.n, 0);
	}
}

static void test_a_machine_that_is_listed_twice(void **state UNUSED)
{
	static const char text[] =
		"{\"id\": \"a\", \"max\": 9, \"instances\": [{\"id\": \"i\", \"state\": \"pending\"},"
		" {\"id\": \"i\"}, {\"id\": \"k\"}, {\"id\": \"\"}, {\"id\": \"\"}, {\"id\": \"k\"}]}";
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_JSON struct json *json = NULL;

	scale_model_init(&model);
	assert_int_equal(json_parse(text, strlen(text), strlen(text), "it", &json, NULL), 0);
	assert_int_equal(snapshot_read_group(json, &model, NULL), 0);
	const struct scale_instances *all = &model.groups.v[0].instances;
	assert_int_equal(all->n, 4);
	assert_string_equal(all->v[0].id, "i");
	assert_int_equal(all->v[0].state, SCALE_PENDING);
	assert_string_equal(all->v[1].id, "k");
	assert_int_equal(model.remarks.n, 1);
	assert_string_equal(model.remarks.v[0], "group a has the id i twice");
}

/* A snapshot of as many pods as it may have, with more values than other JSON may have. */
static void test_the_largest_snapshot(void **state UNUSED)
{
	AUTO_BUF struct buf text = buf_with(SCALE_SNAPSHOT_MAX);

	for (int more = 0; more <= 1; more++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_JSON struct json *json = NULL;
		AUTO_ERR struct err err = {0};
		buf_reset(&text);
		buf_adds(&text,
			"{\"dlrun_autoscale\": 1, \"now\": \"2026-11-27T05:00:00Z\", \"shapes\": "
			"{\"s\": {}}, \"gangs\": {\"g\": {\"owner\": \"dlrun\"}}, \"pods\": [");
		for (int i = 0; i < SCALE_PODS_LIMIT + more; i++)
			buf_addf(&text,
				"%s{\"name\": \"p%d\", \"shape\": \"s\", \"gang\": \"g\", "
				"\"priority\": 1, \"count\": 2}",
				i ? "," : "", i);
		buf_adds(&text, "]}");
		scale_model_init(&model);
		assert_int_equal(
			json_parse(text.data, text.len, SCALE_SNAPSHOT_MAX, "it", &json, &err), 0);
		assert_int_equal(snapshot_read(json, &model, &err), more ? -ERR_LIMIT : 0);
		if (more)
			assert_string_equal(err.message, "a snapshot has at most 200000 pods");
		else
			assert_int_equal(model.pods.n, SCALE_PODS_LIMIT);
	}
}

/*
 * Properties of plans of any model
 */

static uint64_t seed;
static int64_t any(int64_t n)
{
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (int64_t)((seed >> 33) % (uint64_t)n);
}

enum { GPU = SCALE_RESOURCES_FIXED, HOURS_MS = 3600 * 1000 };

static void add_pair(struct scale_pairs *pairs, const char *key, int64_t value)
{
	*vec_push(pairs) = (struct scale_pair){mem_strdup(key), mem_printf("%" PRId64, value)};
}

static void any_room(struct scale_amounts *ret)
{
	*ret = (struct scale_amounts){.of = {[SCALE_CPU] = 1000 * (4 + any(60)),
					      [SCALE_MEMORY] = (16 + any(200)) << 30,
					      [SCALE_PODS] = 4 + any(40),
					      [GPU] = any(3) ? 0 : 8}};
}

static void any_shapes(struct scale_model *model)
{
	for (int64_t n = 1 + any(8); n > 0; n--) {
		struct scale_shape *shape = vec_push(&model->shapes);
		shape->name = mem_printf("s%" PRId64, n);
		shape->request = (struct scale_amounts){.of = {[SCALE_CPU] = 100 * any(90),
								[SCALE_MEMORY] = any(30) << 30,
								[SCALE_PODS] = 1,
								[GPU] = any(3) ? 0 : 1 + any(8)}};
		if (!any(3))
			add_pair(&shape->selector, "kind", any(3));
		if (!any(5))
			strv_add(&shape->unsupported, "hostPort");
		if (!any(4))
			strv_add(&shape->apart, "m");
		if (!any(3))
			strv_add(&shape->marks, "m");
	}
}

static void any_groups(struct scale_model *model)
{
	for (int64_t n = any(6); n > 0; n--) {
		struct scale_group *group = vec_push(&model->groups);
		group->id = mem_printf("g%" PRId64, n);
		group->max = any(20);
		group->price = any(4) ? 0.5 + (double)any(40) : -1;
		group->weight = any(3);
		group->has_template = any(8) != 0;
		group->wait_until_ms = any(6) ? 0 : model->now_ms + 1000;
		group->failure = group->wait_until_ms ? SCALE_FAILED_CAPACITY : SCALE_NO_FAILURE;
		group->refused = any(8) ? NULL : mem_strdup("not ours");
		any_room(&group->room);
		add_pair(&group->labels, "kind", any(3));
		if (any(3))
			add_pair(&group->labels, "topology.kubernetes.io/zone", any(2));
		for (int64_t late = any(4) ? 0 : any(3); late > 0; late--) {
			group->desired++;
			group->max += group->max < group->desired;
			*vec_push(&group->instances) = (struct scale_instance){.id = mem_strdup(""),
				.state = SCALE_PENDING,
				.since_ms = model->now_ms - any(2) * HOURS_MS};
		}
	}
}

static void any_nodes(struct scale_model *model)
{
	for (int64_t n = any(12); n > 0; n--) {
		struct scale_node *node = vec_push(&model->nodes);
		node->name = mem_printf("n%" PRId64, n);
		node->instance = mem_printf("i%" PRId64, n);
		node->group = any(4) ? (int32_t)any((int64_t)model->groups.n + 1) - 1 : -1;
		node->is_ready = any(5) != 0;
		node->cordoned = any(3) ? SCALE_OPEN : (int)any(3);
		node->cordoned_ms =
			node->cordoned == SCALE_OPEN ? 0 : model->now_ms - any(2) * 60000;
		node->idle_since_ms = model->now_ms - any(3) * HOURS_MS;
		node->silent_ms = node->is_ready ? 0 : model->now_ms - any(3) * HOURS_MS;
		any_room(&node->room);
		add_pair(&node->labels, "kind", any(3));
		if (node->group < 0)
			continue;
		struct scale_group *group = &model->groups.v[node->group];
		group->desired++;
		group->max += group->max < group->desired;
		*vec_push(&group->instances) =
			(struct scale_instance){.id = mem_strdup(node->instance),
				.state = SCALE_RUNNING,
				.since_ms = model->now_ms - 9 * HOURS_MS};
	}
}

static void any_pods(struct scale_model *model)
{
	for (int64_t n = any(3); n > 0; n--) {
		struct scale_gang *gang = vec_push(&model->gangs);
		gang->name = mem_printf("gang%" PRId64, n);
		gang->owner = mem_strdup("dlrun");
		gang->same = (int)any(3);
		gang->min = any(2) ? 0 : any(6);
	}
	for (int64_t n = any(25); n > 0; n--) {
		struct scale_pod *pod = vec_push(&model->pods);
		pod->name = mem_printf("ns/p%" PRId64, n);
		pod->count = any(4) ? 1 : 1 + any(50);
		pod->shape = (int32_t)any((int64_t)model->shapes.n);
		pod->node = any(3) || !model->nodes.n ? -1 : (int32_t)any((int64_t)model->nodes.n);
		pod->gang = any(3) ? -1 : (int32_t)any((int64_t)model->gangs.n + 1) - 1;
		pod->priority = (int32_t)any(2);
		pod->is_daemon = pod->node >= 0 && !any(3);
		if (pod->node >= 0)
			pod->count = 1;
	}
}

static void any_model(struct scale_model *ret)
{
	scale_model_init(ret);
	ret->now_ms = 1000 * (int64_t)HOURS_MS;
	assert_int_equal(scale_resource(ret, "nvidia.com/gpu"), GPU);
	ret->limits.nodes = any(3) ? 0 : any(30);
	ret->limits.step = any(3) ? 0 : 1 + any(10);
	ret->limits.price = any(3) ? 0 : 50 + (double)any(500);
	ret->limits.removals = 1 + any(5);
	ret->limits.spares = any(2);
	any_shapes(ret);
	any_groups(ret);
	any_nodes(ret);
	any_pods(ret);
}

/* Pods that are placed fit on each machine together with what runs there. */
static void check_room(const struct scale_model *model, const struct scale_plan *plan)
{
	AUTO_FREE struct scale_amounts *used = mem_alloc(model->nodes.n + 1, sizeof(*used));
	AUTO_FREE bool *gets = mem_alloc(model->nodes.n + 1, sizeof(*gets));

	vec_foreach (const struct scale_pod, pod, &model->pods)
		for (int r = 0; pod->node >= 0 && r < SCALE_RESOURCES_MAX; r++)
			used[pod->node].of[r] += model->shapes.v[pod->shape].request.of[r];
	vec_foreach (const struct scale_placement, placed, &plan->placements) {
		if (placed->supply == SCALE_NOT_HELPED || placed->node < 0)
			continue;
		const struct scale_pod *pod = &model->pods.v[placed->pod];
		const struct scale_node *node = &model->nodes.v[placed->node];
		const struct scale_shape *shape = &model->shapes.v[pod->shape];
		gets[placed->node] = true;
		assert_true(node->is_ready && node->cordoned != SCALE_CORDONED);
		assert_int_equal(shape->unsupported.n, 0);
		for (int r = 0; r < SCALE_RESOURCES_MAX; r++) {
			used[placed->node].of[r] += placed->pods * shape->request.of[r];
			if (shape->request.of[r])
				assert_true(used[placed->node].of[r] <= node->room.of[r]);
		}
	}
	vec_foreach (const struct scale_action, action, &plan->actions)
		if (action->kind == SCALE_CORDON || action->kind == SCALE_REMOVE)
			assert_false(gets[action->node]);
}

static void check_actions(const struct scale_model *model, const struct scale_plan *plan)
{
	AUTO_FREE bool *is_busy = mem_alloc(model->nodes.n + 1, sizeof(*is_busy));
	int64_t bought = 0, removed = 0;

	vec_foreach (const struct scale_pod, pod, &model->pods)
		if (pod->node >= 0 && !pod->is_daemon)
			is_busy[pod->node] = true;
	vec_foreach (const struct scale_action, action, &plan->actions) {
		const struct scale_group *group =
			action->group >= 0 ? &model->groups.v[action->group] : NULL;
		assert_true(!group || !group->refused || action->kind == SCALE_UNCORDON);
		if (action->kind == SCALE_GROW) {
			assert_true(group->has_template && group->wait_until_ms <= model->now_ms);
			assert_true(action->to <= group->max && action->to > action->from);
			assert_true(action->pods > 0);
			bought += action->bought;
		} else if (action->kind == SCALE_SHRINK) {
			assert_true(action->to < action->from && action->to >= group->min);
		} else if (action->kind == SCALE_REMOVE || action->kind == SCALE_CORDON) {
			assert_false(is_busy[action->node]);
			assert_true(model->nodes.v[action->node].cordoned != SCALE_CORDONED);
			removed += action->kind == SCALE_REMOVE;
		}
	}
	assert_true(removed <= model->limits.removals);
	assert_true(!model->limits.step || bought <= model->limits.step);
	assert_true(!bought || !model->limits.nodes || plan->nodes_after <= model->limits.nodes);
	assert_int_equal(plan->bound.nodes, bought);
	assert_true(plan->bound.nodes_least <= bought);
	assert_true(plan->bound.price < 0 || plan->bound.price_least <= plan->bound.price + 1e-6);
}

/* Of a gang with running ones the rest, of others all or none, unless it has a least number. */
static void check_gangs(const struct scale_model *model, const struct scale_plan *plan)
{
	for (size_t g = 0; g < model->gangs.n; g++) {
		int64_t helped = 0, left = 0, runs = 0;
		vec_foreach (const struct scale_pod, pod, &model->pods)
			runs += pod->gang == (int32_t)g && pod->node >= 0 ? pod->count : 0;
		vec_foreach (const struct scale_placement, placed, &plan->placements) {
			const struct scale_pod *pod = &model->pods.v[placed->pod];
			if (pod->gang != (int32_t)g)
				continue;
			if (placed->supply == SCALE_NOT_HELPED)
				left += placed->pods;
			else
				helped += placed->pods;
		}
		int64_t min = model->gangs.v[g].min;
		assert_true(!helped || !left || (min && helped + runs >= min));
	}
}

static void check_all_are_told(const struct scale_model *model, const struct scale_plan *plan)
{
	int64_t helped = 0, left = 0;

	vec_foreach (const struct scale_placement, placed, &plan->placements) {
		const struct scale_pod *pod = &model->pods.v[placed->pod];
		bool is_told = false;
		if (placed->supply != SCALE_NOT_HELPED) {
			helped += placed->pods;
			continue;
		}
		left += placed->pods;
		vec_foreach (const struct scale_left, one, &plan->left)
			is_told = is_told || (one->shape == pod->shape && one->gang == pod->gang &&
						     plan->reasons.v[one->reasons].n);
		assert_true(is_told);
	}
	assert_int_equal(helped, plan->helped);
	assert_int_equal(helped + left, plan->waiting);
}

static bool buys(const struct scale_plan *plan)
{
	vec_foreach (const struct scale_action, action, &plan->actions)
		if (action->kind == SCALE_GROW || action->kind == SCALE_UNCORDON)
			return true;
	return false;
}

/* Of a group that does not wait, machines are no longer asked for that did not come: it may be asked
 * for others. */
static bool gives_back(const struct scale_model *model, const struct scale_plan *plan)
{
	vec_foreach (const struct scale_action, action, &plan->actions)
		if (action->kind == SCALE_REMOVE || action->kind == SCALE_TERMINATE ||
			(action->kind == SCALE_SHRINK &&
				model->groups.v[action->group].wait_until_ms <= model->now_ms))
			return true;
	return false;
}

static void test_what_is_left_alone_is_told(void **state UNUSED)
{
	static const struct {
		const char *name, *remark;
	} told[] = {
		{"deleted-node", "group a: its machine i-9 is late, and is not ended because it "
				 "may have been a node (so are 1 more)"},
		{"nameless-node",
			"group a: its machine i-1 may be node n by another id: both count"},
		{"fault-12-late-machines", ""}};

	for (size_t i = 0; i < ARRAY_LEN(told); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_SCALE_PLAN struct scale_plan plan = {0};
		AUTO_BUF struct buf text = buf_with(1 << 20);
		read_snapshot(told[i].name, &model);
		scale_plan_make(&model, &plan);
		assert_int_equal(plan.remarks.n, *told[i].remark != '\0');
		if (!plan.remarks.n)
			continue;
		assert_string_equal(plan.remarks.v[0], told[i].remark);
		plan_text(&model, &plan, &text);
		assert_non_null(strstr(text.data, told[i].remark));
	}
}

/* The machines of a plan are on their way, and its pods still wait. */
static void order_machines(const struct scale_plan *plan, struct scale_model *model)
{
	vec_foreach (const struct scale_action, action, &plan->actions) {
		if (action->kind == SCALE_GROW)
			model->groups.v[action->group].desired = action->to;
		else if (action->kind == SCALE_UNCORDON)
			model->nodes.v[action->node].cordoned = SCALE_OPEN;
	}
}

/* While it comes nothing is bought twice: a turn later more is bought by chance only, where another
 * order of pods helps more of them, or where an uncordoned node has another place among the others;
 * and never turn after turn. */
static void test_any_model_while_machines_come(void **state UNUSED)
{
	enum { MODELS = 4000, TURNS = 3 };
	int n_buy = 0, n_again = 0, n_fewer = 0;

	for (uint64_t i = 1; i <= MODELS; i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_SCALE_PLAN struct scale_plan plan = {0};
		int64_t helped = 0;

		seed = i;
		any_model(&model);
		model.limits.step = 0;
		scale_plan_make(&model, &plan);
		bool is_cut = gives_back(&model, &plan);
		n_buy += buys(&plan);
		for (int turn = 0; !is_cut && buys(&plan); turn++) {
			assert_in_range(turn, 0, TURNS);
			n_again += turn > 0;
			helped = plan.helped;
			order_machines(&plan, &model);
			scale_plan_done(&plan);
			scale_plan_make(&model, &plan);
		}
		n_fewer += !is_cut && plan.helped < helped;
	}
	assert_in_range(n_buy, MODELS / 4, MODELS);
	assert_in_range(n_again, 0, n_buy / 100);
	assert_in_range(n_fewer, 0, n_buy / 100);
}

static void test_any_model(void **state UNUSED)
{
	for (uint64_t i = 1; i <= 4000; i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_SCALE_PLAN struct scale_plan plan = {0}, after = {0};

		seed = i;
		any_model(&model);
		json_free(plan_of(&model, &plan));
		check_room(&model, &plan);
		check_actions(&model, &plan);
		check_gangs(&model, &plan);
		check_all_are_told(&model, &plan);
		/* What goes makes space for others below a limit. */
		bool is_cut = model.limits.step || gives_back(&model, &plan);
		scale_plan_apply(&plan, &model);
		scale_plan_make(&model, &after);
		if (!is_cut && buys(&after)) {
			AUTO_BUF struct buf text = buf_with(1 << 20);
			plan_text(&model, &after, &text);
			print_error("the model of seed %" PRIu64 ", applied: %s\n", i, text.data);
		}
		assert_true(is_cut || !buys(&after));
	}
}

/* The same with nodes that came a moment ago, which lack labels and have taints: no pod is placed on
 * what its group's machines will not be. */
static void test_any_model_with_new_nodes(void **state UNUSED)
{
	int n_waited_for = 0;

	for (uint64_t i = 1; i <= 2000; i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_SCALE_PLAN struct scale_plan plan = {0}, after = {0};

		seed = i;
		any_model(&model);
		for (size_t n = 0; n < model.nodes.n; n++) {
			struct scale_node *node = &model.nodes.v[n];
			if (node->group < 0)
				continue;
			node->created_ms = model.now_ms - 60 * 1000;
			if (any(2))
				scale_pairs_done(&node->labels);
			if (any(2))
				scale_taints_add(&node->taints, "agent", "", SCALE_NO_SCHEDULE);
		}
		scale_plan_make(&model, &plan);
		vec_foreach (const struct scale_placement, placed, &plan.placements) {
			const struct scale_node *node =
				placed->node >= 0 ? &model.nodes.v[placed->node] : NULL;
			const struct scale_shape *shape =
				&model.shapes.v[model.pods.v[placed->pod].shape];
			if (!node || scale_fits(&model, shape, &node->labels, &node->taints,
					     &shape->request, NULL))
				continue;
			assert_true(node->group >= 0 && placed->supply == SCALE_ON_ITS_WAY);
			const struct scale_group *group = &model.groups.v[node->group];
			assert_true(group->has_template && node->cordoned == SCALE_OPEN);
			n_waited_for++;
		}
		check_actions(&model, &plan);
		check_gangs(&model, &plan);
		bool is_cut = model.limits.step || gives_back(&model, &plan);
		scale_plan_apply(&plan, &model);
		scale_plan_make(&model, &after);
		assert_true(is_cut || !buys(&after));
	}
	assert_in_range(n_waited_for, 100, INT_MAX);
}

/* Lists of reasons that are alike are one, whatever the pods are. */
static void test_equal_reasons_are_one(void **state UNUSED)
{
	enum { SHAPES = 100 };
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	AUTO_BUF struct buf text = buf_with(1 << 20);

	scale_model_init(&model);
	struct scale_group *group = vec_push(&model.groups);
	group->id = mem_strdup("full");
	group->has_template = true;
	group->room.of[SCALE_CPU] = 1000 * SHAPES;
	for (int i = 1; i <= SHAPES; i++) {
		struct scale_shape *shape = vec_push(&model.shapes);
		shape->name = mem_printf("s%d", i);
		shape->request.of[SCALE_CPU] = i < SHAPES ? 1000 * i : 1001 * SHAPES;
		*vec_push(&model.pods) = (struct scale_pod){.name = mem_printf("n/%d", i),
			.count = 1,
			.shape = i - 1,
			.node = -1,
			.gang = -1};
	}
	AUTO_JSON struct json *json = plan_of(&model, &plan);
	assert_int_equal(plan.left.n, SHAPES);
	assert_int_equal(plan.reasons.n, 2);
	json_print(json, &text);
	int n = 0;
	for (const char *at = text.data; (at = strstr(at, "its maximum is 0")); at++)
		n++;
	assert_int_equal(n, SHAPES - 1);
}

/* Pods of which memory is scarce, on machines that no few of them fill. First fit is 2 to 4 % over
 * the bound. */
static void memory_model(struct scale_model *ret)
{
	static const int64_t cpus[] = {16, 32, 64}, gib[] = {128, 256, 256};
	static const double prices[] = {1.28, 2.56, 3.84};

	scale_model_init(ret);
	for (size_t i = 0; i < ARRAY_LEN(cpus); i++) {
		struct scale_group *group = vec_push(&ret->groups);
		group->id = mem_printf("g%zu", i);
		group->max = 100000;
		group->price = prices[i];
		group->has_template = true;
		group->room = (struct scale_amounts){.of = {[SCALE_CPU] = 1000 * cpus[i],
							     [SCALE_MEMORY] = gib[i] << 30,
							     [SCALE_PODS] = 110}};
	}
	for (int32_t i = 0; i < 20; i++) {
		struct scale_shape *shape = vec_push(&ret->shapes);
		shape->name = mem_printf("s%d", i);
		shape->request =
			(struct scale_amounts){.of = {[SCALE_CPU] = 500 * (1 + any(8)),
						       [SCALE_MEMORY] = (4 + any(60)) << 30,
						       [SCALE_PODS] = 1}};
		struct scale_pod *pod = vec_push(&ret->pods);
		*pod = (struct scale_pod){.name = mem_printf("ns/p%d", i),
			.count = 500,
			.shape = i,
			.node = -1,
			.gang = -1};
	}
}

/* Of groups without a price as few machines as can be. */
static void test_little_is_wasted(void **state UNUSED)
{
	for (uint64_t i = 1; i <= 12; i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		AUTO_SCALE_PLAN struct scale_plan plan = {0};

		seed = i;
		memory_model(&model);
		for (size_t g = 0; i % 3 == 0 && g < model.groups.n; g++)
			model.groups.v[g].price = -1;
		scale_plan_make(&model, &plan);
		assert_int_equal(plan.helped, plan.waiting);
		double is = plan.bound.price, least = plan.bound.price_least;
		if (is < 0)
			is = (double)plan.bound.nodes, least = (double)plan.bound.nodes_least;
		if (is > least * 1.01)
			print_error("seed %" PRIu64 ": %.2f, not %.2f\n", i, is, least);
		assert_true(is <= least * 1.01);
	}
}

/* Gangs that have to be in one group, of which only the last of many has machines for them; and in
 * one zone, of which the last is the only one with enough. */
static void test_the_last_place_is_found(void **state UNUSED)
{
	enum { GROUPS = 300 };
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};

	scale_model_init(&model);
	assert_int_equal(scale_resource(&model, "nvidia.com/gpu"), GPU);
	for (int i = 0; i < GROUPS; i++) {
		struct scale_group *group = vec_push(&model.groups);
		group->id = mem_printf("g%03d", i);
		group->zone = mem_printf("z%d", i / 2);
		group->max = i < GROUPS - 2 ? 1 : 4;
		group->has_template = true;
		group->room = (struct scale_amounts){.of = {[SCALE_CPU] = 8000,
							     [SCALE_PODS] = 10,
							     [GPU] = i < GROUPS - 1 ? 0 : 8}};
	}
	for (int32_t i = 0; i < 2; i++) {
		struct scale_shape *shape = vec_push(&model.shapes);
		shape->name = mem_printf("s%d", i);
		shape->request = (struct scale_amounts){
			.of = {[SCALE_CPU] = 8000, [SCALE_PODS] = 1, [GPU] = i ? 0 : 1}};
		struct scale_gang *gang = vec_push(&model.gangs);
		gang->name = mem_printf("ns/g%d", i);
		gang->owner = mem_strdup("dlrun");
		gang->same = i ? SCALE_SAME_ZONE : SCALE_SAME_GROUP;
		struct scale_pod *pod = vec_push(&model.pods);
		*pod = (struct scale_pod){.name = mem_printf("ns/p%d", i),
			.count = i ? 4 : 3,
			.shape = i,
			.node = -1,
			.gang = i};
	}
	json_free(plan_of(&model, &plan));
	assert_int_equal(plan.helped, 7);
	assert_int_equal(plan.actions.n, 2);
	assert_int_equal(plan.actions.v[0].group, GROUPS - 2);
	assert_int_equal(plan.actions.v[0].to, 4);
	assert_int_equal(plan.actions.v[1].group, GROUPS - 1);
	assert_int_equal(plan.actions.v[1].to, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_case),
		cmocka_unit_test(test_a_snapshot_is_written_as_it_was_read),
		cmocka_unit_test(test_what_is_no_snapshot),
		cmocka_unit_test(test_a_list_is_no_snapshot),
		cmocka_unit_test(test_what_is_no_group),
		cmocka_unit_test(test_a_machine_that_is_listed_twice),
		cmocka_unit_test(test_the_largest_snapshot),
		cmocka_unit_test(test_what_is_left_alone_is_told),
		cmocka_unit_test(test_equal_reasons_are_one),
		cmocka_unit_test(test_any_model),
		cmocka_unit_test(test_any_model_with_new_nodes),
		cmocka_unit_test(test_any_model_while_machines_come),
		cmocka_unit_test(test_little_is_wasted),
		cmocka_unit_test(test_the_last_place_is_found),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
