/* SPDX-License-Identifier: Apache-2.0 */
/* What an autoscaler tells: what is read is within its limits, and can be asked. */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/growth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char pod[] = "{\"containers\":[{\"resources\":{\"requests\":{\"cpu\":\"1\","
				  "\"nvidia.com/gpu\":\"8\"}}}],\"nodeSelector\":{\"zone\":\"a\"}}";
	AUTO_GROWTH struct growth growth = {0};
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	AUTO_JSON struct json *spec = NULL;
	AUTO_STRV struct strv reasons = {0};
	AUTO_JSON struct json *map = json_object();
	AUTO_FREE char *text = mem_strndup((const char *)data, size);

	json_set_str(json_sub(map, "data"), GROWTH_KEY, text);
	if (growth_read(map, 1795755600000, &growth, NULL) < 0)
		return 0;
	BUG_ON(json_parse(pod, strlen(pod), sizeof(pod), "", &spec, NULL) < 0);
	const struct json *waiting = json_get(growth.json, "waiting");
	const char *name = json_get_str(json_first(waiting), "name");
	BUG_ON(name && json_kind(waiting) == JSON_ARRAY && !growth_waiting(&growth, name));
	int group = growth_group_for(&growth, spec, &reasons);
	BUG_ON(group >= (int)growth.model.groups.n || reasons.n > GROWTH_REASONS_MAX);
	if (group < 0)
		return 0;
	double share = growth_share(&growth, (size_t)group, spec);
	BUG_ON(growth_boot_ms(&growth, (size_t)group) < 0 || !(share >= 0 && share <= 1));
	BUG_ON(growth_group_of(&growth, "n1") >= (int)growth.model.groups.n);
	scale_plan_make(&growth.model, &plan);
	AUTO_JSON struct json *again =
		growth_write(&(struct growth_turn){&growth.model, &plan, 15000, true, &growth});
	AUTO_GROWTH struct growth second = {0};
	AUTO_JSON struct json *map2 = json_object();
	json_set(map2, "data", TAKE(again));
	BUG_ON(growth_read(map2, 1795755600000, &second, NULL) < 0);
	return 0;
}
