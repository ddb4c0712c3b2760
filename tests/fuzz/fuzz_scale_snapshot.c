/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot of anybody: what is read is written as it was read, and has a plan that leads to no
 * other when it is done, but for what limits put off. */
#include <stdint.h>
#include <stdlib.h>

#include "base/util/buf.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/report.h"
#include "core/autoscale/snapshot.h"

enum { TEXT_MAX = 16 << 20, PODS_MAX = 10 * 1000, MACHINES_MAX = 10 * 1000 };

static void check(bool holds)
{
	if (!holds)
		abort();
}

static void check_same(const struct json *json)
{
	AUTO_SCALE_MODEL struct scale_model again;
	AUTO_BUF struct buf first = buf_with(TEXT_MAX), second = buf_with(TEXT_MAX);

	scale_model_init(&again);
	check(snapshot_read(json, &again, NULL) == 0);
	AUTO_JSON struct json *other = snapshot_write(&again);
	json_print(json, &first);
	json_print(other, &second);
	check(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
}

/* Numbers that take long to plan say nothing here. */
static bool is_small(const struct scale_model *model)
{
	int64_t pods = 0, machines = 0;

	vec_foreach (const struct scale_pod, pod, &model->pods)
		pods += pod->count;
	vec_foreach (const struct scale_group, group, &model->groups)
		machines += group->desired;
	return pods <= PODS_MAX && machines <= MACHINES_MAX;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	AUTO_BUF struct buf text = buf_with(TEXT_MAX);

	scale_model_init(&model);
	if (json_parse((const char *)data, size, 1 << 20, "the input", &json, NULL) < 0 ||
		snapshot_read(json, &model, NULL) < 0)
		return 0;
	AUTO_JSON struct json *written = snapshot_write(&model);
	check_same(written);
	if (!is_small(&model))
		return 0;
	scale_plan_make(&model, &plan);
	check(plan.helped >= 0 && plan.helped <= plan.waiting);
	plan_text(&model, &plan, &text);
	AUTO_JSON struct json *report = plan_json(&model, &plan);
	check(report != NULL);
	scale_plan_apply(&plan, &model);
	AUTO_JSON struct json *applied = snapshot_write(&model);
	check(applied != NULL);
	return 0;
}
