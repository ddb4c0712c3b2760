/* SPDX-License-Identifier: Apache-2.0 */
/* What a cluster may answer: {"nodes": List, "pods": List, …} of any shape. Whatever it is, there is
 * a model that is a snapshot, and a plan of it. */
#include <stdint.h>
#include <stdlib.h>

#include "base/util/mem.h"
#include "core/autoscale/objects.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/snapshot.h"

static void check(bool holds)
{
	if (!holds)
		abort();
}

static void check_model(const struct scale_model *model)
{
	vec_foreach (const struct scale_pod, pod, &model->pods) {
		check(pod->count >= 1 && pod->count <= 1000 * 1000);
		check(pod->shape >= 0 && (size_t)pod->shape < model->shapes.n);
		check(pod->node < (int32_t)model->nodes.n && pod->gang < (int32_t)model->gangs.n);
	}
	vec_foreach (const struct scale_shape, shape, &model->shapes)
		for (int r = 0; r < SCALE_RESOURCES_MAX; r++)
			check(shape->request.of[r] >= 0 && shape->request.of[r] <= INT64_MAX / 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const keys[OBJECTS_KINDS] = {"nodes", "pods", "jobs", "claims",
		"volumes", "jobsets", "workloads", "podgroups", "volcano"};
	const struct json *lists[OBJECTS_KINDS];
	AUTO_JSON struct json *json = NULL;
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};

	scale_model_init(&model);
	if (json_parse((const char *)data, size, 1 << 20, "the input", &json, NULL) < 0)
		return 0;
	model.now_ms = INT64_C(1795755600) * 1000;
	for (const struct json *m = json_first(json_get(json, "groups")); m; m = json_next(m))
		snapshot_read_group(m, &model, NULL);
	for (int kind = 0; kind < OBJECTS_KINDS; kind++)
		lists[kind] = json_get(json, keys[kind]);
	objects_read(lists, &model);
	for (const struct json *m = json_first(json_get(lists[OBJECTS_PODS], "items")); m;
		m = json_next(m))
		objects_trim((struct json *)(uintptr_t)m);
	check_model(&model);
	AUTO_JSON struct json *snapshot = snapshot_write(&model);
	check(snapshot);
	scale_plan_make(&model, &plan);
	check(plan.helped <= plan.waiting);
	return 0;
}
