/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/growth.h"
#include "core/autoscale/snapshot.h"

static const char cluster[] =
	"{\"dlrun_autoscale\": 1, \"cluster\": \"lab\", \"now\": \"2026-11-27T05:00:00Z\","
	"\"shapes\": {\"one\": {\"request\": {\"cpu\": 1, \"nvidia.com/gpu\": 1}},"
	" \"huge\": {\"request\": {\"cpu\": 1000}}},"
	"\"gangs\": {\"ml/train\": {\"owner\": \"dlrun\"}},"
	"\"groups\": [{\"id\": \"gpu-a\", \"provider\": \"aws\", \"max\": 10, \"desired\": 2,"
	" \"price\": 32.77, \"spot\": true, \"region\": \"us-east-1\", \"failure_text\": \"account 12\","
	" \"template\": {\"labels\": {\"zone\": \"a\"}, \"taints\": [{\"key\": \"gpu\","
	" \"effect\": \"PreferNoSchedule\"}],"
	" \"room\": {\"cpu\": 64, \"memory\": \"512Gi\", \"nvidia.com/gpu\": 8}},"
	" \"instances\": [{\"id\": \"i-1\", \"state\": \"running\", \"since\": \"2026-11-27T04:00:00Z\"},"
	" {\"id\": \"i-2\", \"state\": \"pending\", \"since\": \"2026-11-27T04:58:30Z\"}]}],"
	"\"nodes\": [{\"name\": \"n1\", \"instance\": \"i-1\", \"group\": \"gpu-a\", \"ready\": true,"
	" \"created\": \"2026-11-27T04:03:00Z\","
	" \"room\": {\"cpu\": 64, \"memory\": \"512Gi\"}}],"
	"\"pods\": [{\"name\": \"ml/train-0\", \"shape\": \"one\", \"gang\": \"ml/train\", \"count\": 8},"
	" {\"name\": \"ml/more\", \"shape\": \"one\"},"
	" {\"name\": \"ml/huge\", \"shape\": \"huge\"}]}";

static int64_t at(const char *text)
{
	int64_t ret = 0;

	assert_int_equal(clock_parse(text, &ret, NULL), 0);
	return ret;
}

static void read_model(const char *text, struct scale_model *ret)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err err = {0};

	scale_model_init(ret);
	assert_int_equal(json_parse(text, strlen(text), SCALE_SNAPSHOT_MAX, "it", &json, NULL), 0);
	if (snapshot_read(json, ret, &err) < 0)
		fail_msg("%s", err.message);
}

/* The ConfigMap of a turn on that model. The caller frees. */
static struct json *written(const struct scale_model *model, const struct growth *before)
{
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	struct json *map = json_object();

	scale_plan_make(model, &plan);
	json_set(map, "data",
		growth_write(&(struct growth_turn){model, &plan, 15000, true, before}));
	return map;
}

static const char *text_of(const struct json *map)
{
	return json_get_str(json_get(map, "data"), GROWTH_KEY);
}

static void read_map(const struct json *map, int64_t now_ms, struct growth *ret)
{
	AUTO_ERR struct err err = {0};

	if (growth_read(map, now_ms, ret, &err) < 0)
		fail_msg("%s", err.message);
}

static int read_text(const char *text, int64_t now_ms, struct growth *ret, struct err *err)
{
	AUTO_JSON struct json *map = json_object();

	json_set_str(json_sub(map, "data"), GROWTH_KEY, text);
	return growth_read(map, now_ms, ret, err);
}

static void test_what_is_written_is_read(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_GROWTH struct growth growth = {0};

	read_model(cluster, &model);
	AUTO_JSON struct json *map = written(&model, NULL);
	const char *text = text_of(map);
	read_map(map, at("2026-11-27T05:00:10Z"), &growth);
	assert_false(growth.is_silent);
	assert_true(growth.applies);
	assert_string_equal(growth.model.cluster, "lab");
	assert_int_equal(growth.model.groups.n, 1);
	const struct scale_group *group = &growth.model.groups.v[0];
	assert_string_equal(group->id, "gpu-a");
	assert_string_equal(group->region, "us-east-1");
	assert_true(group->is_spot && group->has_template);
	assert_true(group->price > 32.76 && group->price < 32.78);
	assert_int_equal(group->max, 10);
	assert_int_equal(group->room.of[SCALE_CPU], 64000);
	assert_string_equal(group->labels.v[0].key, "zone");
	assert_int_equal(growth_boot_ms(&growth, 0), 180000);
	/* What only the owner of the account should see stays with him. */
	assert_null(strstr(text, "account 12"));
	assert_null(strstr(text, "i-2"));
	assert_int_equal(growth_group_of(&growth, "n1"), 0);
	assert_int_equal(growth_group_of(&growth, "n2"), -1);
}

/* The gang fills the machine that is on its way since 90 s, the pod behind it buys a new one. */
static void test_who_waits_is_told_when(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_GROWTH struct growth growth = {0};

	read_model(cluster, &model);
	AUTO_JSON struct json *map = written(&model, NULL);
	read_map(map, model.now_ms, &growth);
	const struct json *gang = growth_waiting(&growth, "ml/train");
	assert_string_equal(json_get_str(gang, "group"), "gpu-a");
	assert_string_equal(json_get_str(gang, "expected"), "2026-11-27T05:01:30.000Z");
	assert_null(growth_waiting(&growth, "ml/train-0"));
	const struct json *more = growth_waiting(&growth, "ml/more");
	assert_string_equal(json_get_str(more, "expected"), "2026-11-27T05:03:00.000Z");
	const struct json *huge = growth_waiting(&growth, "ml/huge");
	assert_null(json_get(huge, "group"));
	const char *reason = json_str(json_first(json_get(huge, "reasons")));
	assert_non_null(reason);
	assert_true(str_starts(reason, "gpu-a: "));
	assert_null(growth_waiting(&growth, "ml/none"));
	/* By a clock that has stepped back it was begun in the future. */
	vec_foreach (struct scale_instance, instance, &model.groups.v[0].instances)
		instance->since_ms = model.now_ms + 3600 * 1000;
	const struct scale_placement coming = {.supply = SCALE_ON_ITS_WAY, .group = 0};
	assert_int_equal(growth_expected_ms(&model, &coming, 180000), model.now_ms + 180000);
}

/* Without a machine that has come nobody is promised a time, but by the text before. */
static void test_no_time_is_guessed(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_GROWTH struct growth growth = {0}, before = {0}, after = {0};

	read_model(cluster, &model);
	AUTO_JSON struct json *first = written(&model, NULL);
	read_map(first, model.now_ms, &before);
	model.nodes.v[0].created_ms = 0;
	AUTO_JSON struct json *map = written(&model, NULL);
	read_map(map, model.now_ms, &growth);
	const struct json *more = growth_waiting(&growth, "ml/more");
	assert_string_equal(json_get_str(more, "group"), "gpu-a");
	assert_null(json_get(more, "expected"));
	assert_int_equal(growth_boot_ms(&growth, 0), 0);
	AUTO_JSON struct json *next = written(&model, &before);
	read_map(next, model.now_ms, &after);
	assert_int_equal(growth_boot_ms(&after, 0), 180000);
}

/* What a group says counts, then its last node, then the text before. */
static void test_how_long_machines_take(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_GROWTH struct growth before = {0};

	read_model(cluster, &model);
	AUTO_JSON struct json *map = written(&model, NULL);
	read_map(map, model.now_ms, &before);
	growth_learn_boots(NULL, &model);
	assert_int_equal(model.groups.v[0].boot_ms, 180000);
	model.groups.v[0].boot_ms = 0;
	model.nodes.v[0].created_ms = 0;
	growth_learn_boots(NULL, &model);
	assert_int_equal(model.groups.v[0].boot_ms, 0);
	growth_learn_boots(&before, &model);
	assert_int_equal(model.groups.v[0].boot_ms, 180000);
	model.groups.v[0].boot_ms = 60000;
	growth_learn_boots(&before, &model);
	assert_int_equal(model.groups.v[0].boot_ms, 60000);
	AUTO_JSON struct json *next = written(&model, &before);
	AUTO_GROWTH struct growth after = {0};
	read_map(next, model.now_ms, &after);
	assert_int_equal(growth_boot_ms(&after, 0), 60000);
}

/* A node that is gone is known for a while, by the group that it was of; one that is there counts
 * for the group that has it now. */
static void test_nodes_that_are_gone(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_JSON struct json *map = NULL;

	read_model(cluster, &model);
	for (int i = 0; i < GROWTH_GONE_MAX + 3; i++) {
		AUTO_GROWTH struct growth before = {0};
		if (map)
			read_map(map, model.now_ms, &before);
		REPLACE(model.nodes.v[0].name, mem_printf("n%d", i));
		struct json *next = written(&model, map ? &before : NULL);
		json_free(map);
		map = next;
	}
	AUTO_GROWTH struct growth growth = {0};
	read_map(map, model.now_ms, &growth);
	assert_int_equal(growth.nodes.n, GROWTH_GONE_MAX + 1);
	assert_int_equal(growth_group_of(&growth, "n1"), -1);
	assert_int_equal(growth_group_of(&growth, "n2"), 0);
	assert_int_equal(growth_group_of(&growth, "n102"), 0);
	static const char moved[] = "{\"version\":1,\"updated\":\"2026-11-27T05:00:00Z\","
				    "\"every_s\":15,\"groups\":["
				    "{\"id\":\"a\",\"max\":1,\"nodes\":[\"n1\"]},"
				    "{\"id\":\"b\",\"max\":1,\"gone\":[\"n1\",7,\"n2\"]}]}";
	AUTO_GROWTH struct growth other = {0};
	assert_int_equal(read_text(moved, 0, &other, NULL), 0);
	assert_int_equal(growth_group_of(&other, "n1"), 0);
	assert_int_equal(growth_group_of(&other, "n2"), 1);
}

static void test_an_autoscaler_that_is_silent(void **state UNUSED)
{
	static const struct {
		const char *now;
		bool is_silent;
		int every_s;
	} rows[] = {{"2026-11-27T05:05:00Z", false, 15}, {"2026-11-27T05:05:01Z", true, 15},
		{"2026-11-27T04:55:00Z", false, 15}, {"2026-11-27T04:54:59Z", true, 15},
		{"2026-11-27T05:31:00Z", false, 600}, {"2026-11-27T05:31:01Z", true, 600}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_GROWTH struct growth growth = {0};
		AUTO_FREE char *text = mem_printf("{\"version\":1,\"updated\":"
						  "\"2026-11-27T05:00:00Z\",\"every_s\":%d}",
			rows[i].every_s);
		assert_int_equal(read_text(text, at(rows[i].now), &growth, NULL), 0);
		assert_int_equal(growth.is_silent, rows[i].is_silent);
		assert_false(growth.applies);
	}
}

static void test_what_is_no_growth_is_refused(void **state UNUSED)
{
#define HEAD "{\"version\":1,\"updated\":\"2026-11-27T05:00:00Z\",\"every_s\":15"
	static const char *const texts[] = {"", "[]", "{}", "{\"version\":2}",
		"{\"version\":1,\"updated\":\"now\",\"every_s\":15}",
		"{\"version\":1,\"updated\":\"2026-11-27T05:00:00Z\",\"every_s\":0}",
		HEAD ",\"groups\":{}}", HEAD ",\"groups\":[{}]}", HEAD ",\"groups\":[7]}",
		HEAD ",\"groups\":[{\"id\":\"a\"},{\"id\":\"a\"}]}",
		HEAD ",\"groups\":[{\"id\":\"a\",\"max\":-1}]}"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		AUTO_GROWTH struct growth growth = {0};
		AUTO_ERR struct err err = {0};
		assert_true(read_text(texts[i], 0, &growth, &err) < 0);
		assert_int_equal(err.id, E_SCALE_SNAPSHOT);
	}
	/* A later version may say more. */
	static const char later[] =
		HEAD ",\"x\":1,\"waiting\":7,\"groups\":[{\"id\":\"a\",\"y\":[],\"max\":1}]}";
	AUTO_GROWTH struct growth growth = {0};
	assert_int_equal(read_text(later, 0, &growth, NULL), 0);
	assert_null(growth_waiting(&growth, "a"));
}

/* 2,000 groups with long labels and 3,000 pods: the text stays within its bound, and says what it
 * leaves out. */
static void test_the_text_is_bounded(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_GROWTH struct growth growth = {0};

	read_model(cluster, &model);
	for (int i = 0; i < 1999; i++) {
		struct scale_group *group = vec_push(&model.groups);
		group->id = mem_printf("group-%04d", i);
		group->price = -1;
		group->has_template = true;
		*vec_push(&group->labels) = (struct scale_pair){
			mem_strdup("example.com/label"), mem_printf("%0500d", i)};
	}
	for (int i = 0; i < 3000; i++)
		*vec_push(&model.pods) = (struct scale_pod){.name = mem_printf("ml/pod-%04d", i),
			.count = 1,
			.shape = 1,
			.node = -1,
			.gang = -1};
	AUTO_JSON struct json *map = written(&model, NULL);
	assert_true(strlen(text_of(map)) <= GROWTH_MAX);
	read_map(map, model.now_ms, &growth);
	int64_t more = json_get_int(growth.json, "more_groups", 0);
	assert_true(more > 0);
	assert_int_equal(growth.model.groups.n + (size_t)more, 2000);
	more = json_get_int(growth.json, "more_waiting", 0);
	size_t waiting = json_count(json_get(growth.json, "waiting"));
	assert_true(waiting > 0 && waiting <= GROWTH_WAITING_MAX);
	assert_int_equal(waiting + (size_t)more, 3003);
}

static int group_for(struct growth *growth, const char *spec, struct strv *ret_reasons)
{
	AUTO_JSON struct json *json = NULL;

	assert_int_equal(json_parse(spec, strlen(spec), 1 << 16, "it", &json, NULL), 0);
	return growth_group_for(growth, json, ret_reasons);
}

static void test_a_group_for_a_pod(void **state UNUSED)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_GROWTH struct growth growth = {0};
	AUTO_STRV struct strv reasons = {0};

	read_model(cluster, &model);
	AUTO_JSON struct json *map = written(&model, NULL);
	read_map(map, model.now_ms, &growth);
#define POD(requests, more)                                                                        \
	"{\"containers\":[{\"name\":\"main\",\"resources\":{\"requests\":{" requests "}}}]" more "}"
	assert_int_equal(group_for(&growth, POD("\"nvidia.com/gpu\":\"8\"", ""), &reasons), 0);
	assert_true(growth_may_buy(&growth, 0));
	AUTO_JSON struct json *spec = NULL;
	static const char two[] = POD("\"cpu\":\"4\",\"nvidia.com/gpu\":\"2\"", "");
	assert_int_equal(json_parse(two, strlen(two), 1 << 16, "it", &spec, NULL), 0);
	assert_true(
		growth_share(&growth, 0, spec) > 0.249 && growth_share(&growth, 0, spec) < 0.251);
	assert_int_equal(reasons.n, 0);
	assert_int_equal(group_for(&growth, POD("\"nvidia.com/gpu\":\"16\"", ""), &reasons), -1);
	assert_int_equal(reasons.n, 1);
	assert_string_equal(reasons.v[0], "gpu-a: a machine of it has 8 nvidia.com/gpu, not 16");
	strv_done(&reasons);
	assert_int_equal(
		group_for(&growth, POD("\"cpu\":\"1\"", ",\"nodeSelector\":{\"zone\":\"b\"}"),
			&reasons),
		-1);
	assert_int_equal(reasons.n, 1);
	assert_non_null(strstr(reasons.v[0], "zone"));
#define NEAR(key)                                                                                  \
	",\"affinity\":{\"podAffinity\":{\"requiredDuringSchedulingIgnoredDuringExecution\":["     \
	"{\"topologyKey\":\"" key "\",\"labelSelector\":{\"matchLabels\":{\"run\":\"r\"}}}]}}"
#define NEAR_BY(key) group_for(&growth, POD("\"cpu\":\"1\"", NEAR(key)), &reasons)
	/* A group in no zone is none for pods of one; other places than zones are not planned. */
	strv_done(&reasons);
	assert_int_equal(NEAR_BY("topology.kubernetes.io/zone"), -1);
	assert_string_equal(reasons.v[0], "gpu-a: it has no label topology.kubernetes.io/zone");
	scale_pairs_add(&growth.model.groups.v[0].labels, "topology.kubernetes.io/zone", "z");
	scale_pairs_sort(&growth.model.groups.v[0].labels);
	assert_int_equal(NEAR_BY("topology.kubernetes.io/zone"), 0);
	assert_int_equal(NEAR_BY("rack"), -1);
	assert_string_equal(reasons.v[0], "gpu-a: podAffinity by rack is not supported");
}
int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_written_is_read),
		cmocka_unit_test(test_who_waits_is_told_when),
		cmocka_unit_test(test_no_time_is_guessed),
		cmocka_unit_test(test_how_long_machines_take),
		cmocka_unit_test(test_nodes_that_are_gone),
		cmocka_unit_test(test_an_autoscaler_that_is_silent),
		cmocka_unit_test(test_what_is_no_growth_is_refused),
		cmocka_unit_test(test_the_text_is_bounded),
		cmocka_unit_test(test_a_group_for_a_pod),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
