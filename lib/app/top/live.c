/* SPDX-License-Identifier: Apache-2.0 */
#include "app/top/live.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/loop/loop.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/target/target.h"
#include "host/gpu.h"
#include "host/usage.h"
#include "targets/kube/kube_open.h"
#include "targets/ssh/node_open.h"
#include "targets/ssh/target_gang.h"
#include "targets/ssh/target_node.h"
#include "targets/target_list.h"
#include "targets/targets.h"

enum {
	RUN_AGAIN_MS = 3000,
	RUN_EACH_MS = 250, /* later for each run that is sampled */
	RUN_REST_FOR_RESPONSE = 2,
	HOST_NAME_MAX_BYTES = 256,
};

enum {
	HOST_AGAIN_MS = 3000,
	CLUSTER_AGAIN_MS = 10 * 1000,
	REST_FOR_RESPONSE = 4, /* times as long as the response took */
	CLUSTER_MS = 10 * 1000,
	ITEMS_MAX = 20000,
	GPU_TOOL_MS = 3000,
};

enum { LIVE_PLACES_MAX = 500, LIVE_RUNS_MAX = 200 };

/* Lists that are requested from a cluster. */
enum live_list { LIVE_NODES, LIVE_PODS, LIVE_METRICS, LIVE_LISTS };

enum live_kind { LIVE_LOCAL, LIVE_HOST, LIVE_CLUSTER };

/* Machines that are queried together: one, or the nodes of a cluster. */
struct live_place {
	struct live *live;
	enum live_kind kind;
	char *target;
	char *host, *root;              /* of a host */
	char *context, *kube_namespace; /* of a cluster */
	struct node_host *opened;       /* the session's */
	struct node_call *requested;
	struct node_machine node;
	struct kube_cluster *cluster; /* the session's */
	struct kube_call *calls[LIVE_LISTS];
	struct json *responses[LIVE_LISTS];
	size_t n_open;
	int64_t begun_ms, next_ms;
	struct machine_list shown;
};

/* A run that is sampled. */
struct live_run {
	struct target_call call; /* first */
	struct live *live;
	char *id, *handle;
	struct target *target;
	struct json *came, *seen;
	bool is_open;
	int64_t begun_ms, next_ms;
};

struct live {
	struct session *session;
	struct VEC_OF(struct live_place *) places;
	struct VEC_OF(struct live_run *) runs;
	size_t n_open;
	struct loop_wait *wait; /* of live_wait; NULL: nobody waits */
	bool gpus_known;
	struct gpu_list gpus; /* of this machine */
	struct gpu_meter *meter;
};

/* A place or run has responded, or could not be queried. */
static void live_ended(struct live *live)
{
	live->n_open--;
	if (live->wait)
		loop_wait_done(live->wait);
}

/*
 * Machines, of each kind
 */

static void live_place_free(struct live_place *place)
{
	if (!place)
		return;
	node_cancel(place->requested);
	node_machine_done(&place->node);
	for (size_t i = 0; i < LIVE_LISTS; i++) {
		kube_cancel(place->calls[i]);
		json_free(place->responses[i]);
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

static void show_error(struct live_place *place, const char *host, const struct err *error)
{
	machine_list_done(&place->shown);
	show_one(place, host)->error = mem_strdup(error->message);
}

static void live_end(struct live_place *place, int64_t again_ms)
{
	int64_t now_ms = clock_ms(), rest_ms = (now_ms - place->begun_ms) * REST_FOR_RESPONSE;

	place->next_ms = now_ms + (rest_ms > again_ms ? rest_ms : again_ms);
	live_ended(place->live);
}

/*
 * A host
 */

static int on_machine(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct live_place *place = ctx;

	place->requested = NULL;
	if (status < 0) {
		node_explain(place->opened, error);
		show_error(place, place->host, error);
	} else {
		machine_list_done(&place->shown);
		machine_from_node(&place->node, show_one(place, place->host));
	}
	live_end(place, HOST_AGAIN_MS);
	return 0;
}

static void query_host(struct live_place *place)
{
	AUTO_ERR struct err error = {0};

	place->live->n_open++;
	if (!place->opened && node_open(place->live->session, place->host, place->root,
				      &place->opened, &error) < 0) {
		show_error(place, place->host, &error);
		live_end(place, CLUSTER_AGAIN_MS);
		return;
	}
	place->requested = node_machine(place->opened->node, &place->node, on_machine, place);
}

/*
 * A cluster
 */

static int live_take_list(
	struct live_place *place, enum live_list list, struct kube_response *response)
{
	place->calls[list] = NULL;
	json_free(TAKE(place->responses[list]));
	if (!err_is_set(&response->error))
		place->responses[list] = TAKE(response->object);
	else if (list == LIVE_NODES)
		show_error(place, "", &response->error);
	if (--place->n_open > 0)
		return 0;
	if (place->responses[LIVE_NODES]) {
		struct kube_node_list nodes = {0};

		machine_list_done(&place->shown);
		kube_nodes_of(place->responses[LIVE_NODES], place->responses[LIVE_PODS],
			place->responses[LIVE_METRICS], &nodes);
		for (size_t i = 0; i < nodes.n && i < MACHINES_MAX; i++)
			machine_from_kube(&nodes.v[i], show_one(place, nodes.v[i].name));
		vec_done(&nodes);
	}
	live_end(place, CLUSTER_AGAIN_MS);
	return 0;
}

static int live_on_nodes(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	return live_take_list(ctx, LIVE_NODES, response);
}

static int live_on_pods(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	return live_take_list(ctx, LIVE_PODS, response);
}

static int live_on_metrics(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	return live_take_list(ctx, LIVE_METRICS, response);
}

static void query_cluster(struct live_place *place)
{
	static const char *const alive[] = {
		"fieldSelector", "status.phase!=Succeeded,status.phase!=Failed", NULL};
	static const struct {
		const char *path;
		const char *const *query;
		kube_done_fn *done;
	} lists[LIVE_LISTS] = {
		[LIVE_NODES] = {"/api/v1/nodes", NULL, live_on_nodes},
		[LIVE_PODS] = {"/api/v1/pods", alive, live_on_pods},
		[LIVE_METRICS] = {KUBE_METRICS_GROUP "/nodes", NULL, live_on_metrics},
	};
	AUTO_ERR struct err error = {0};

	place->live->n_open++;
	if (!place->cluster && kube_open(place->live->session, place->context,
				       place->kube_namespace, &place->cluster, &error) < 0) {
		show_error(place, "", &error);
		live_end(place, CLUSTER_AGAIN_MS);
		return;
	}
	place->n_open = LIVE_LISTS;
	for (size_t i = 0; i < LIVE_LISTS; i++)
		place->calls[i] = kube_list(place->cluster->client, lists[i].path, lists[i].query,
			ITEMS_MAX, clock_ms() + CLUSTER_MS, lists[i].done, place);
}

static void live_place_begin(struct live_place *place)
{
	if (place->requested || place->n_open || clock_ms() < place->next_ms)
		return;
	place->begun_ms = clock_ms();
	if (place->kind == LIVE_HOST)
		query_host(place);
	else if (place->kind == LIVE_CLUSTER)
		query_cluster(place);
}

/*
 * This machine
 */

static const char *live_path_of(const struct session *session)
{
	for (const char *const *e = session->env.env; e && *e; e++)
		if (str_starts(*e, "PATH="))
			return *e + strlen("PATH=");
	return NULL;
}

/* The tools are run once. */
static void live_find_gpus(struct live *live, struct machine *machine)
{
	const char *path = live_path_of(live->session);
	AUTO_ERR struct err error = {0};

	if (live->gpus_known)
		return;
	live->gpus_known = true;
	if (gpu_may_exist(path) && gpu_find(path, GPU_TOOL_MS, &live->gpus, &error) < 0)
		machine->error = mem_strdup(error.message);
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

static bool live_is_here(const struct run *run)
{
	return target_ops_recorded(run)->is_here && run_state(run) == RUN_RUNNING;
}

static void live_local(struct live *live, const struct live_place *place,
	const struct run_list *runs, struct machine *ret)
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
	live_find_gpus(live, ret);
	for (size_t i = 0; i < live->gpus.n; i++)
		add_gpu(live, i, ret);
	vec_foreach (struct run *, run, runs)
		if (live->gpus.n && live_is_here(*run))
			set_holder(live, *run, ret);
	if (!ret->error)
		machine_count_gpus(ret);
}

/*
 * Runs
 */

struct live *live_new(struct session *session)
{
	struct live *live = mem_alloc(1, sizeof(*live));

	live->session = session;
	return live;
}

static void free_run(struct live_run *run)
{
	target_call_cancel(&run->call);
	target_free(run->target);
	json_free(run->came);
	json_free(run->seen);
	free(run->id);
	free(run->handle);
	free(run);
}

void live_free(struct live *live)
{
	if (!live)
		return;
	vec_foreach (struct live_place *, place, &live->places)
		live_place_free(*place);
	vec_foreach (struct live_run *, run, &live->runs)
		free_run(*run);
	vec_done(&live->places);
	vec_done(&live->runs);
	gpu_meter_free(live->meter);
	free(live);
}

/*
 * Places
 */

static bool live_has_place(const struct live *live, enum live_kind kind, const char *host)
{
	vec_foreach (struct live_place *, place, &live->places)
		if ((*place)->kind == kind && str_eq((*place)->host, host))
			return true;
	return false;
}

static struct live_place *live_add_place(
	struct live *live, enum live_kind kind, const char *target, const char *host)
{
	struct live_place *place;

	if (live->places.n >= LIVE_PLACES_MAX || (host && live_has_place(live, kind, host)))
		return NULL;
	place = mem_alloc(1, sizeof(*place));
	*place = (struct live_place){
		.live = live, .kind = kind, .target = mem_strdup(target), .host = mem_strdup(host)};
	node_machine_init(&place->node);
	*vec_push(&live->places) = place;
	return place;
}

static void add_local(struct live *live, const char *target)
{
	char name[HOST_NAME_MAX_BYTES] = "";

	if (gethostname(name, sizeof(name)) < 0 || !*name)
		name[0] = '-';
	name[sizeof(name) - 1] = '\0';
	live_add_place(live, LIVE_LOCAL, target, name);
}

static void live_add_host(struct live *live, const char *target, const char *host, const char *root)
{
	struct live_place *place = live_add_place(live, LIVE_HOST, target, host);

	if (place)
		place->root = mem_strdup(root);
}

static void live_add_item(struct live *live, const struct target_item *item)
{
	struct live_place *place;

	for (size_t i = 0; i < item->hosts.n; i++)
		live_add_host(live, item->name, item->hosts.v[i], item->dir);
	if (item->is_cluster) {
		place = live_add_place(live, LIVE_CLUSTER, item->name, NULL);
		if (!place)
			return;
		place->context = mem_strdup(item->context);
		place->kube_namespace = mem_strdup(item->kube_namespace);
	} else if (item->hosts.n == 0) {
		add_local(live, item->name);
	}
}

int live_add_target(struct live *live, const char *name, struct err *err)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_STRV struct strv wanted = {0};

	strv_add(&wanted, name);
	int r = target_list_make(live->session, &wanted, &list, err);
	if (r < 0)
		return r;
	vec_foreach (struct target_item, item, &list.items) {
		if (err_is_set(&item->poll.error))
			return err_move(err, &item->poll.error);
		live_add_item(live, item);
	}
	return 0;
}

/* As its handle says: the record's list may name more. */
static void add_hosts_of(struct live *live, const struct run *run)
{
	const struct json *target = json_get(run->doc, "target");
	struct node_handle handle;
	AUTO_STRV struct strv hosts = {0};

	if (!run_handle(run) || node_handle_parse(run_handle(run), &handle, NULL) < 0)
		return;
	node_handle_split(handle.host, &hosts);
	for (size_t i = 0; i < hosts.n; i++)
		live_add_host(live, run_target(run), hosts.v[i], json_get_str(target, "dir"));
	node_handle_done(&handle);
}

void live_add_places(struct live *live, const struct run_list *runs)
{
	vec_foreach (struct run *, run, runs) {
		const struct target_ops *ops = target_ops_recorded(*run);

		if (run_state_is_final(run_state(*run)))
			continue;
		if (ops->is_here)
			add_local(live, run_target(*run));
		else if (ops->has_login)
			add_hosts_of(live, *run);
	}
}

/*
 * Runs
 */

static struct live_run *find_run(const struct live *live, const struct run *run)
{
	vec_foreach (struct live_run *, known, &live->runs)
		if (str_eq((*known)->id, run_id(run)) && str_eq((*known)->handle, run_handle(run)))
			return *known;
	return NULL;
}

/* NULL: it is not sampled. */
static struct live_run *get_run(struct live *live, const struct run *run)
{
	struct live_run *known = find_run(live, run);

	if (known || live->runs.n >= LIVE_RUNS_MAX || !run_handle(run))
		return known;
	known = mem_alloc(1, sizeof(*known));
	*known = (struct live_run){
		.live = live, .id = mem_strdup(run_id(run)), .handle = mem_strdup(run_handle(run))};
	*vec_push(&live->runs) = known;
	if (target_open_run(live->session, run, &known->target, NULL) < 0)
		known->target = NULL;
	return known;
}

static void on_sampled(struct target_call *call, int status, struct err *err UNUSED)
{
	struct live_run *run = (struct live_run *)call;
	int64_t now_ms = clock_ms(), rest_ms = (now_ms - run->begun_ms) * RUN_REST_FOR_RESPONSE;
	int64_t again_ms = RUN_AGAIN_MS + RUN_EACH_MS * (int64_t)run->live->runs.n;

	if (status == 0 && run->came) {
		json_free(run->seen);
		run->seen = TAKE(run->came);
	}
	run->is_open = false;
	run->next_ms = now_ms + (rest_ms > again_ms ? rest_ms : again_ms);
	live_ended(run->live);
}

static void begin_run(struct live_run *run)
{
	if (!run->target || !run->target->ops->sample || run->is_open || clock_ms() < run->next_ms)
		return;
	run->begun_ms = clock_ms();
	run->call = (struct target_call){.done = on_sampled};
	if (run->target->ops->sample(run->target, run->handle, &run->came, &run->call, NULL) < 0) {
		run->next_ms = INT64_MAX;
		return;
	}
	run->is_open = true;
	run->live->n_open++;
}

void live_begin(struct live *live, const struct run_list *runs)
{
	vec_foreach (struct run *, run, runs) {
		struct live_run *known =
			run_state(*run) == RUN_RUNNING ? get_run(live, *run) : NULL;

		if (known)
			begin_run(known);
	}
	vec_foreach (struct live_place *, place, &live->places)
		live_place_begin(*place);
}

void live_store_samples(const struct live *live, const struct run_list *runs)
{
	vec_foreach (struct run *, run, runs) {
		const struct live_run *known = run_handle(*run) ? find_run(live, *run) : NULL;

		if (!known || !known->seen)
			continue;
		json_free((*run)->seen);
		(*run)->seen = json_clone(known->seen);
	}
}

int live_wait(struct live *live, int64_t limit_ms, const volatile int *interrupted, struct err *err)
{
	struct loop_wait wait = {.loop = session_loop(live->session),
		.n_open = live->n_open,
		.deadline_ms = clock_ms() + limit_ms,
		.interrupted = interrupted};

	live->wait = &wait;
	int r = loop_wait_run(&wait, err);
	live->wait = NULL;
	/* The caller knows that itself, and shows what is there. */
	if (r < 0 && interrupted && *interrupted) {
		err_clear(err);
		r = 0;
	}
	return r;
}

/*
 * Results
 */

static void live_add_silent(const struct live_place *place, struct machine_list *ret)
{
	struct machine *machine = vec_push(ret);

	machine_init(machine, place->target, place->host ? place->host : "");
	machine->error =
		mem_printf("%s has not answered yet", place->host ? place->host : "the cluster");
}

static void copy_machine(const struct machine *from, struct machine *to)
{
	machine_init(to, from->target, from->host);
	to->error = mem_strdup(from->error);
	to->model = mem_strdup(from->model);
	to->answered = from->answered;
	to->cpus = from->cpus;
	to->load = from->load;
	to->memory_bytes = from->memory_bytes;
	to->memory_used_bytes = from->memory_used_bytes;
	to->n_gpus = from->n_gpus;
	to->gpus_free = from->gpus_free;
	vec_foreach (const struct machine_gpu, gpu, &from->gpus)
		*vec_push(&to->gpus) = *gpu;
}

void live_machines(struct live *live, const struct run_list *runs, struct machine_list *ret)
{
	machine_list_done(ret);
	vec_foreach (struct live_place *, place, &live->places) {
		if ((*place)->kind == LIVE_LOCAL)
			live_local(live, *place, runs, vec_push(ret));
		else if ((*place)->begun_ms == 0 || (!(*place)->next_ms && !(*place)->shown.n))
			live_add_silent(*place, ret);
		vec_foreach (const struct machine, machine, &(*place)->shown)
			copy_machine(machine, vec_push(ret));
	}
}
