/* SPDX-License-Identifier: Apache-2.0 */
#include "app/top/live_impl.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/loop/loop.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/ssh/target_gang.h"
#include "targets/ssh/target_node.h"
#include "targets/target_list.h"
#include "targets/targets.h"

enum {
	RUN_AGAIN_MS = 3000,
	RUN_EACH_MS = 250, /* later for each run that is looked at */
	REST_FOR_ANSWER = 2,
	INTERRUPT_LOOK_MS = 100,
	HOST_NAME_MAX_BYTES = 256,
};

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

void live_ended(struct live *live)
{
	if (--live->n_open == 0 && live->is_waited_for)
		loop_stop(session_loop(live->session));
}

/*
 * Places
 */

static bool has_place(const struct live *live, enum live_kind kind, const char *host)
{
	vec_foreach (struct live_place *, place, &live->places)
		if ((*place)->kind == kind && str_eq((*place)->host, host))
			return true;
	return false;
}

static struct live_place *add_place(
	struct live *live, enum live_kind kind, const char *target, const char *host)
{
	struct live_place *place;

	if (live->places.n >= LIVE_PLACES_MAX || (host && has_place(live, kind, host)))
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
	add_place(live, LIVE_LOCAL, target, name);
}

static void add_host(struct live *live, const char *target, const char *host, const char *root)
{
	struct live_place *place = add_place(live, LIVE_HOST, target, host);

	if (place)
		place->root = mem_strdup(root);
}

static void add_item(struct live *live, const struct target_item *item)
{
	struct live_place *place;

	for (size_t i = 0; i < item->hosts.n; i++)
		add_host(live, item->name, item->hosts.v[i], item->dir);
	if (item->is_cluster) {
		place = add_place(live, LIVE_CLUSTER, item->name, NULL);
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
		if (err_is_set(&item->look.fault))
			return err_move(err, &item->look.fault);
		add_item(live, item);
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
		add_host(live, run_target(run), hosts.v[i], json_get_str(target, "dir"));
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

/* NULL: it needs no look. */
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

static void on_sampled(struct target_call *call, int status, struct err *err)
{
	struct live_run *run = (struct live_run *)call;
	int64_t now_ms = clock_ms(), rest_ms = (now_ms - run->begun_ms) * REST_FOR_ANSWER;
	int64_t again_ms = RUN_AGAIN_MS + RUN_EACH_MS * (int64_t)run->live->runs.n;

	(void)err;
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

void live_tell(const struct live *live, const struct run_list *runs)
{
	vec_foreach (struct run *, run, runs) {
		const struct live_run *known = run_handle(*run) ? find_run(live, *run) : NULL;

		if (!known || !known->seen)
			continue;
		json_free((*run)->seen);
		(*run)->seen = json_clone(known->seen);
	}
}

/*
 * Waiting
 */

struct waiting {
	struct live *live;
	const volatile int *interrupted;
	struct loop_timer *end, *look;
};

static int on_end(void *ctx, struct err *err)
{
	struct waiting *waiting = ctx;

	(void)err;
	waiting->end = NULL;
	loop_stop(session_loop(waiting->live->session));
	return 0;
}

static int on_look(void *ctx, struct err *err)
{
	struct waiting *waiting = ctx;
	struct loop *loop = session_loop(waiting->live->session);

	(void)err;
	waiting->look = NULL;
	if (*waiting->interrupted)
		loop_stop(loop);
	else
		waiting->look =
			loop_add_timer(loop, clock_ms() + INTERRUPT_LOOK_MS, on_look, waiting);
	return 0;
}

int live_wait(struct live *live, int64_t limit_ms, const volatile int *interrupted, struct err *err)
{
	struct loop *loop = session_loop(live->session);
	struct waiting waiting = {.live = live, .interrupted = interrupted};

	if (live->n_open == 0)
		return 0;
	live->is_waited_for = true;
	waiting.end = loop_add_timer(loop, clock_ms() + limit_ms, on_end, &waiting);
	if (interrupted)
		on_look(&waiting, err);
	int r = loop_run(loop, err);
	loop_remove_timer(loop, waiting.end);
	loop_remove_timer(loop, waiting.look);
	live->is_waited_for = false;
	return r;
}

/*
 * Telling
 */

static void add_silent(const struct live_place *place, struct machine_list *ret)
{
	struct machine *machine = vec_push(ret);

	machine_init(machine, place->target, place->host ? place->host : "");
	machine->fault =
		mem_printf("%s has not answered yet", place->host ? place->host : "the cluster");
}

static void copy_machine(const struct machine *from, struct machine *to)
{
	machine_init(to, from->target, from->host);
	to->fault = mem_strdup(from->fault);
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
			add_silent(*place, ret);
		vec_foreach (const struct machine, machine, &(*place)->shown)
			copy_machine(machine, vec_push(ret));
	}
}
