/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/machine.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

void machine_init(struct machine *machine, const char *target, const char *host)
{
	*machine = (struct machine){
		.target = mem_strdup(target),
		.host = mem_strdup(host),
		.cpus = -1,
		.load = -1,
		.memory_bytes = -1,
		.memory_used_bytes = -1,
		.n_gpus = -1,
		.gpus_free = -1,
	};
}

void machine_done(struct machine *machine)
{
	if (!machine)
		return;
	free(machine->target);
	free(machine->host);
	free(machine->error);
	free(machine->model);
	vec_done(&machine->gpus);
	*machine = (struct machine){0};
}

void machine_list_done(struct machine_list *list)
{
	if (!list)
		return;
	vec_foreach (struct machine, machine, list)
		machine_done(machine);
	vec_done(list);
}

void machine_count_gpus(struct machine *machine)
{
	machine->n_gpus = (int64_t)machine->gpus.n;
	machine->gpus_free = 0;
	vec_foreach (const struct machine_gpu, gpu, &machine->gpus)
		machine->gpus_free += !gpu->used && !*gpu->holder;
	REPLACE(machine->model, mem_strdup(machine->gpus.n ? machine->gpus.v[0].model : NULL));
}

static int64_t difference(int64_t all, int64_t rest)
{
	return all >= 0 && rest >= 0 && rest <= all ? all - rest : -1;
}

void machine_from_node(const struct node_machine *node, struct machine *ret)
{
	ret->answered = true;
	ret->cpus = node->cpus ? (double)node->cpus : -1;
	ret->load = node->load;
	ret->memory_bytes = node->memory_bytes;
	ret->memory_used_bytes = difference(node->memory_bytes, node->memory_free_bytes);
	vec_foreach (const struct node_meter, meter, &node->gpus) {
		struct machine_gpu *gpu = vec_push(&ret->gpus);

		*gpu = (struct machine_gpu){
			.index = meter->gpu.index,
			.used = meter->gpu.used,
			.busy = meter->busy,
			.power_w = meter->power_w,
			.memory_bytes =
				meter->gpu.memory_bytes && meter->gpu.memory_bytes <= INT64_MAX
					? (int64_t)meter->gpu.memory_bytes
					: -1,
			.memory_used_bytes = meter->memory_used_bytes,
		};
		snprintf(gpu->vendor, sizeof(gpu->vendor), "%s", meter->gpu.vendor);
		snprintf(gpu->model, sizeof(gpu->model), "%s", meter->gpu.model);
		snprintf(gpu->holder, sizeof(gpu->holder), "%s", meter->gpu.holder);
	}
	if (node->error)
		ret->error = mem_strdup(node->error);
	else
		machine_count_gpus(ret);
}

void machine_from_kube(const struct kube_node *node, struct machine *ret)
{
	ret->answered = true;
	ret->cpus = node->cpus;
	ret->load = node->usage.cpus;
	ret->memory_bytes = node->memory_bytes;
	ret->memory_used_bytes = node->usage.memory_bytes;
	ret->n_gpus = node->gpus;
	ret->model = mem_strdup(node->model);
	if (!node->takes_pods)
		ret->gpus_free = 0;
	else if (node->gpus_taken >= 0)
		ret->gpus_free = node->gpus > node->gpus_taken ? node->gpus - node->gpus_taken : 0;
}

/*
 * JSON
 */

static void machine_set_num(struct json *json, const char *key, double value)
{
	if (value < 0)
		json_set(json, key, json_null());
	else
		json_set_num(json, key, value);
}

static void machine_set_int(struct json *json, const char *key, int64_t value)
{
	if (value < 0)
		json_set(json, key, json_null());
	else
		json_set_int(json, key, value);
}

static struct json *gpu_json(const struct machine_gpu *gpu)
{
	struct json *json = json_object();

	json_set_int(json, "index", gpu->index);
	json_set_str(json, "vendor", gpu->vendor);
	json_set_str(json, "model", gpu->model);
	machine_set_num(json, "busy", gpu->busy);
	machine_set_int(json, "memory_bytes", gpu->memory_bytes);
	machine_set_int(json, "memory_used_bytes", gpu->memory_used_bytes);
	machine_set_num(json, "power_w", gpu->power_w);
	json_set_bool(json, "used", gpu->used);
	json_set_str(json, "holder", *gpu->holder ? gpu->holder : NULL);
	return json;
}

struct json *machine_json(const struct machine *machine)
{
	struct json *json = json_object(), *gpus = json_array();

	json_set_str(json, "target", machine->target);
	json_set_str(json, "host", machine->host);
	json_set_bool(json, "reachable", machine->answered);
	json_set_str(json, "error", machine->error);
	machine_set_num(json, "cpus", machine->cpus);
	machine_set_num(json, "load", machine->load);
	machine_set_int(json, "memory_bytes", machine->memory_bytes);
	machine_set_int(json, "memory_used_bytes", machine->memory_used_bytes);
	machine_set_int(json, "gpus_all", machine->n_gpus);
	machine_set_int(json, "gpus_free", machine->gpus_free);
	json_set_str(json, "gpu_model", machine->model);
	vec_foreach (const struct machine_gpu, gpu, &machine->gpus)
		json_add(gpus, gpu_json(gpu));
	json_set(json, "gpus", gpus);
	return json;
}
