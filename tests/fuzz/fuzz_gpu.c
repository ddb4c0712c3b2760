/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tools and the kernel say of GPUs. Whatever it is, a list comes out that can be used: ids
 * that name files and no two alike, sorted, and the same after a round through JSON.
 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu.h"
#include "host/gpu_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char id_chars[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:";

static void check_gpu(const struct gpu *gpu)
{
	BUG_ON(!memchr(gpu->id, '\0', GPU_ID_SIZE) || !memchr(gpu->model, '\0', GPU_MODEL_SIZE));
	BUG_ON(!gpu->id[0] || strspn(gpu->id, id_chars) != strlen(gpu->id));
	BUG_ON(!str_is_utf8(gpu->model, strlen(gpu->model)));
	BUG_ON(gpu->memory_bytes > INT64_MAX);
}

static void check_order(const struct gpu_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		for (size_t j = 0; j < i; j++) {
			const struct gpu *a = &list->v[j], *b = &list->v[i];
			BUG_ON(strcmp(a->id, b->id) == 0 || a->vendor > b->vendor);
			BUG_ON(a->vendor == b->vendor && a->index > b->index);
		}
}

static void check_same(const struct gpu *a, const struct gpu *b)
{
	BUG_ON(a->vendor != b->vendor || a->index != b->index || a->used != b->used);
	BUG_ON(a->memory_bytes != b->memory_bytes);
	BUG_ON(strcmp(a->id, b->id) != 0 || strcmp(a->model, b->model) != 0);
}

static void check_json(const struct gpu_list *list)
{
	AUTO_JSON struct json *json = gpu_list_to_json(list);
	struct gpu_list back;

	BUG_ON(gpu_list_from_json(json, &back, NULL) < 0 || back.n != list->n);
	for (size_t i = 0; i < list->n; i++)
		check_same(&list->v[i], &back.v[i]);
}

static void check_match(const struct gpu_list *list)
{
	uint64_t all = list->n == 64 ? UINT64_MAX : (UINT64_C(1) << list->n) - 1;

	BUG_ON(gpu_list_match(list, NULL) != all);
	for (size_t i = 0; i < list->n; i++) {
		AUTO_STRV struct strv words = {0};

		strv_add(&words, list->v[i].id);
		BUG_ON(!(gpu_list_match(list, &words) & UINT64_C(1) << i));
	}
}

static void check_list(const struct gpu_found_list *found)
{
	struct gpu_list list;

	BUG_ON(found->n > GPU_MAX);
	if (gpu_found_finish(found, &list, NULL) < 0)
		return;
	BUG_ON(list.n != found->n);
	for (size_t i = 0; i < list.n; i++)
		check_gpu(&list.v[i]);
	check_order(&list);
	check_json(&list);
	check_match(&list);
}

static void check_tools(const char *text, size_t size)
{
	struct gpu_found_list list = {.n = 0};

	if (gpu_parse_nvidia(text, size, &list, NULL) == 0) {
		gpu_parse_nvidia_apps(text, size, &list);
		check_list(&list);
	}
	list.n = 0;
	if (gpu_parse_rocm(text, size, &list, NULL) == 0)
		check_list(&list);
}

static void check_kfd(const char *text, size_t size)
{
	struct gpu_found_list list = {.n = 1};
	char again[GPU_PCI_SIZE];

	memset(&list.v[0], 0, sizeof(list.v[0]));
	BUG_ON(gpu_parse_kfd_bank(text, size) > INT64_MAX);
	if (!gpu_parse_kfd(text, size, &list.v[0]))
		return;
	const char *pci = list.v[0].pci;
	BUG_ON(!gpu_pci_normal(pci, strlen(pci), again) || strcmp(pci, again) != 0);
	check_list(&list);
}

static void check_pci(const char *text, size_t size)
{
	char once[GPU_PCI_SIZE], twice[GPU_PCI_SIZE];

	if (!gpu_pci_normal(text, size, once))
		return;
	BUG_ON(!gpu_pci_normal(once, strlen(once), twice) || strcmp(once, twice) != 0);
}

static void check_given(const char *text, size_t size)
{
	AUTO_JSON struct json *json = NULL;
	struct gpu_list list;

	if (json_parse(text, size, 1 << 20, "input", &json, NULL) < 0 ||
		gpu_list_from_json(json, &list, NULL) < 0)
		return;
	check_json(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	AUTO_FREE char *string = mem_strndup(text, size);

	check_tools(text, size);
	check_kfd(text, size);
	check_pci(text, size);
	check_given(text, size);
	gpu_says_no_driver(string);
	return 0;
}
