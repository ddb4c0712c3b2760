/* SPDX-License-Identifier: Apache-2.0 */
#include "host/gpu.h"

#include <stdio.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu_impl.h"

static const char *const vendor_names[] = {[GPU_NVIDIA] = "nvidia", [GPU_AMD] = "amd"};

enum { INDEX_MAX = 1 << 20 };

struct json *gpu_list_to_json(const struct gpu_list *list)
{
	struct json *array = json_array();

	for (size_t i = 0; i < list->n; i++) {
		const struct gpu *gpu = &list->v[i];
		struct json *object = json_object();

		json_set_str(object, "vendor", vendor_names[gpu->vendor]);
		json_set_int(object, "index", gpu->index);
		json_set_str(object, "id", gpu->id);
		json_set_str(object, "model", gpu->model);
		json_set_int(object, "memory_bytes", (int64_t)gpu->memory_bytes);
		json_set_bool(object, "used", gpu->used);
		json_add(array, object);
	}
	return array;
}

static bool vendor_from(const char *name, enum gpu_vendor *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(vendor_names); i++) {
		if (!str_eq(name, vendor_names[i]))
			continue;
		*ret = (enum gpu_vendor)i;
		return true;
	}
	return false;
}

static bool copy_str(const char *from, char *to, size_t size)
{
	size_t len = from ? strlen(from) : size;

	if (len >= size)
		return false;
	memcpy(to, from, len + 1);
	return true;
}

static bool gpu_from_json(const struct json *json, struct gpu *ret)
{
	int64_t index = json_get_int(json, "index", -1);
	int64_t memory = json_get_int(json, "memory_bytes", -1);

	if (!vendor_from(json_get_str(json, "vendor"), &ret->vendor) || index < 0 ||
		index > INDEX_MAX || memory < 0)
		return false;
	ret->index = (unsigned)index;
	ret->memory_bytes = (uint64_t)memory;
	ret->used = json_get_bool(json, "used", false);
	return copy_str(json_get_str(json, "id"), ret->id, sizeof(ret->id)) && ret->id[0] &&
	       copy_str(json_get_str(json, "model"), ret->model, sizeof(ret->model));
}

int gpu_list_from_json(const struct json *json, struct gpu_list *ret, struct err *err)
{
	struct gpu_list list = {.n = 0};

	if (json_kind(json) != JSON_ARRAY)
		return err_set(err, E_DATA, "a list of GPUs is not an array");
	if (json_count(json) > GPU_MAX)
		return err_set(err, E_DATA_LIMIT, "a list of GPUs has more than %d", GPU_MAX);
	for (const struct json *item = json_first(json); item; item = json_next(item))
		if (!gpu_from_json(item, &list.v[list.n++]))
			return err_set(err, E_DATA, "GPU %zu of a list is not described", list.n);
	*ret = list;
	return 0;
}

/* CUDA too takes the beginning of a UUID. */
static bool is_named(const struct gpu *gpu, const char *word)
{
	char index[16];

	snprintf(index, sizeof(index), "%u", gpu->index);
	return str_eq(word, index) || str_eq(word, gpu->id) ||
	       (str_starts(word, "GPU-") && str_starts(gpu->id, word));
}

static bool is_named_by(const struct gpu *gpu, const struct strv *words)
{
	for (size_t i = 0; i < words->n; i++)
		if (is_named(gpu, words->v[i]))
			return true;
	return false;
}

uint64_t gpu_list_match(const struct gpu_list *list, const struct strv *words)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < list->n; i++)
		if (!words || words->n == 0 || is_named_by(&list->v[i], words))
			mask |= UINT64_C(1) << i;
	return mask;
}
