/* SPDX-License-Identifier: Apache-2.0 */
#include "app/top/live_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "host/usage.h"
#include "targets/targets.h"

/*
 * Machines, of each kind.
 */

enum {
	HOST_AGAIN_MS = 3000,
	CLUSTER_AGAIN_MS = 10 * 1000,
	REST_FOR_ANSWER = 4, /* times as long as the answer took */
	CLUSTER_MS = 10 * 1000,
	ITEMS_MAX = 20000,
	GPU_TOOL_MS = 3000,
};

void live_place_free(struct live_place *place)
{
	if (!place)
		return;
	node_cancel(place->asked);
	node_machine_done(&place->node);
	for (size_t i = 0; i < LIVE_LISTS; i++) {
		kube_cancel(place->calls[i]);
		json_free(place->answers[i]);
	}
	machine_list_done(&place->shown);
	free(place->target);
	free(place->host);
	free(place->root);
	free(place->context);
	free(place->kube_namespace);
	free(place);
}

static struct machine *show_one(struct live_place *place, const char *host)
{
	struct machine *machine = vec_push(&place->shown);

	machine_init(machine, place->target, host);
	return machine;
}

static void show_fault(struct live_place *place, const char *host, const struct err *fault)
{
	machine_list_done(&place->shown);
	show_one(place, host)->fault = mem_strdup(fault->message);
}

static void end(struct live_place *place, int64_t again_ms)
{
	int64_t now_ms = clock_ms(), rest_ms = (now_ms - place->begun_ms) * REST_FOR_ANSWER;

	place->next_ms = now_ms + (rest_ms > again_ms ? rest_ms : again_ms);
	live_ended(place->live);
}

/*
 * A host
 */

static int on_machine(void *ctx, int status, struct err *fault, struct err *err)
{
	struct live_place *place = ctx;

	(void)err;
	place->asked = NULL;
	if (status < 0) {
		node_explain(place->opened, fault);
		show_fault(place, place->host, fault);
	} else {
		machine_list_done(&place->shown);
		machine_from_node(&place->node, show_one(place, place->host));
	}
	end(place, HOST_AGAIN_MS);
	return 0;
}

static void ask_host(struct live_place *place)
{
	AUTO_ERR struct err fault = {0};

	place->live->n_open++;
	if (!place->opened && node_open(place->live->session, place->host, place->root,
				      &place->opened, &fault) < 0) {
		show_fault(place, place->host, &fault);
		end(place, CLUSTER_AGAIN_MS);
		return;
	}
	place->asked = node_machine(place->opened->node, &place->node, on_machine, place);
}

/*
 * A cluster
 */

static void show_nodes(struct live_place *place)
{
	struct kube_node_list nodes = {0};

	machine_list_done(&place->shown);
	kube_nodes_of(place->answers[LIVE_NODES], place->answers[LIVE_PODS],
		place->answers[LIVE_METRICS], &nodes);
	for (size_t i = 0; i < nodes.n && i < MACHINES_MAX; i++)
		machine_from_kube(&nodes.v[i], show_one(place, nodes.v[i].name));
	vec_done(&nodes);
}

static int take_list(struct live_place *place, enum live_list list, struct kube_answer *answer)
{
	place->calls[list] = NULL;
	json_free(TAKE(place->answers[list]));
	if (!err_is_set(&answer->fault))
		place->answers[list] = TAKE(answer->object);
	else if (list == LIVE_NODES)
		show_fault(place, "", &answer->fault);
	if (--place->n_open > 0)
		return 0;
	if (place->answers[LIVE_NODES])
		show_nodes(place);
	end(place, CLUSTER_AGAIN_MS);
	return 0;
}

static int on_nodes(void *ctx, struct kube_answer *answer, struct err *err)
{
	(void)err;
	return take_list(ctx, LIVE_NODES, answer);
}

static int on_pods(void *ctx, struct kube_answer *answer, struct err *err)
{
	(void)err;
	return take_list(ctx, LIVE_PODS, answer);
}

static int on_metrics(void *ctx, struct kube_answer *answer, struct err *err)
{
	(void)err;
	return take_list(ctx, LIVE_METRICS, answer);
}

static void ask_cluster(struct live_place *place)
{
	static const char *const alive[] = {
		"fieldSelector", "status.phase!=Succeeded,status.phase!=Failed", NULL};
	static const struct {
		const char *path;
		const char *const *query;
		kube_done_fn *done;
	} lists[LIVE_LISTS] = {
		[LIVE_NODES] = {"/api/v1/nodes", NULL, on_nodes},
		[LIVE_PODS] = {"/api/v1/pods", alive, on_pods},
		[LIVE_METRICS] = {KUBE_METRICS_GROUP "/nodes", NULL, on_metrics},
	};
	AUTO_ERR struct err fault = {0};

	place->live->n_open++;
	if (!place->cluster && kube_open(place->live->session, place->context,
				       place->kube_namespace, &place->cluster, &fault) < 0) {
		show_fault(place, "", &fault);
		end(place, CLUSTER_AGAIN_MS);
		return;
	}
	place->n_open = LIVE_LISTS;
	for (size_t i = 0; i < LIVE_LISTS; i++)
		place->calls[i] = kube_list(place->cluster->client, lists[i].path, lists[i].query,
			ITEMS_MAX, clock_ms() + CLUSTER_MS, lists[i].done, place);
}

void live_place_begin(struct live_place *place)
{
	if (place->asked || place->n_open || clock_ms() < place->next_ms)
		return;
	place->begun_ms = clock_ms();
	if (place->kind == LIVE_HOST)
		ask_host(place);
	else if (place->kind == LIVE_CLUSTER)
		ask_cluster(place);
}

/*
 * This machine
 */

static const char *path_of(const struct session *session)
{
	for (const char *const *e = session->env.env; e && *e; e++)
		if (str_starts(*e, "PATH="))
			return *e + strlen("PATH=");
	return NULL;
}

/* The tools are asked once. */
static void find_gpus(struct live *live, struct machine *machine)
{
	const char *path = path_of(live->session);
	AUTO_ERR struct err fault = {0};

	if (live->gpus_known)
		return;
	live->gpus_known = true;
	if (gpu_may_exist(path) && gpu_find(path, GPU_TOOL_MS, &live->gpus, &fault) < 0)
		machine->fault = mem_strdup(fault.message);
	const struct gpu_meter_spec spec = {.gpus = &live->gpus};
	live->meter = gpu_meter_new(&spec);
}

static void add_gpu(struct live *live, size_t i, struct machine *machine)
{
	const struct gpu *known = &live->gpus.v[i];
	struct machine_gpu *gpu = vec_push(&machine->gpus);
	struct gpu_reading reading;

	gpu_meter_read(live->meter, i, &reading);
	*gpu = (struct machine_gpu){
		.index = known->index,
		.used = known->used,
		.busy = reading.busy,
		.power_w = reading.power_w,
		.memory_bytes = known->memory_bytes ? (int64_t)known->memory_bytes : -1,
		.memory_used_bytes = reading.memory_bytes,
	};
	snprintf(gpu->vendor, sizeof(gpu->vendor), "%s",
		known->vendor == GPU_NVIDIA ? "nvidia" : "amd");
	snprintf(gpu->model, sizeof(gpu->model), "%s", known->model);
}

static void set_holder(struct live *live, const struct run *run, struct machine *machine)
{
	AUTO_FREE char *dir = dirs_attempt(&live->session->dirs, run_id(run), run_attempts(run));
	struct gpu_list given;

	attempt_gpus(dir, &given);
	for (size_t i = 0; i < given.n; i++)
		for (size_t j = 0; j < machine->gpus.n; j++)
			if (str_eq(given.v[i].id, live->gpus.v[j].id))
				snprintf(machine->gpus.v[j].holder,
					sizeof(machine->gpus.v[j].holder), "%s", run_id(run));
}

static bool is_here(const struct run *run)
{
	return target_ops_recorded(run)->is_here && run_state(run) == RUN_RUNNING;
}

void live_local(struct live *live, const struct live_place *place, const struct run_list *runs,
	struct machine *ret)
{
	struct host_load load;

	machine_init(ret, place->target, place->host);
	host_load_read(NULL, &load);
	ret->answered = true;
	ret->cpus = os_processors();
	ret->load = load.load;
	ret->memory_bytes = load.memory_bytes;
	if (load.memory_bytes >= load.memory_free_bytes && load.memory_free_bytes >= 0)
		ret->memory_used_bytes = load.memory_bytes - load.memory_free_bytes;
	find_gpus(live, ret);
	for (size_t i = 0; i < live->gpus.n; i++)
		add_gpu(live, i, ret);
	vec_foreach (struct run *, run, runs)
		if (live->gpus.n && is_here(*run))
			set_holder(live, *run, ret);
	if (!ret->fault)
		machine_count_gpus(ret);
}
