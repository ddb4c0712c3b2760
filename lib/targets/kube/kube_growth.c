/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_growth.h"

#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/growth.h"
#include "kube/status/object.h"

enum { GROUPS_SHOWN_MAX = 200, MS_PER_HOUR = 3600 * 1000 };
#define AMOUNT_MAX 1e12

struct kube_call *kube_growth_query(
	const struct kube_cluster *cluster, int64_t deadline_ms, kube_done_fn *done, void *ctx)
{
	const struct kube_request request = {.method = "GET",
		.path = KUBE_GROWTH_PATH,
		.deadline_ms = deadline_ms,
		.is_idempotent = true,
		.done = done,
		.ctx = ctx};

	return kube_start(cluster->client, &request);
}

void kube_growth_free(struct growth *growth)
{
	if (!growth)
		return;
	growth_done(growth);
	free(growth);
}

void kube_growth_keep(struct kube_cluster *cluster, int status, const struct json *object)
{
	struct growth *growth;

	if (status != 200 && status != 403 && status != 404)
		return;
	growth = mem_alloc(1, sizeof(*growth));
	bool is_good = status == 200 && growth_read(object, clock_wall_ms(), growth, NULL) == 0;
	kube_growth_free(TAKE(cluster->growth));
	if (is_good)
		cluster->growth = TAKE(growth);
	kube_growth_free(growth);
	cluster->growth_ms = clock_ms();
}

bool kube_growth_is_fresh(const struct kube_cluster *cluster, int64_t fresh_ms)
{
	return cluster->growth_ms && clock_ms() - cluster->growth_ms < fresh_ms;
}

static struct kube_growth kube_growth_like(const struct growth *growth)
{
	return (struct kube_growth){.is_silent = growth->is_silent,
		.applies = growth->applies,
		.updated_ms = growth->updated_ms,
		.price = -1};
}

/* The group of which a machine would be bought for such a pod, or why none is. */
static void kube_growth_choose(
	struct growth *growth, const struct json *spec, struct kube_growth *ret)
{
	int group = growth_group_for(growth, spec, &ret->reasons);

	ret->may_later = group >= 0 || json_get_int(growth->json, "more_groups", 0) > 0;
	if (group < 0 || !growth_may_buy(growth, (size_t)group))
		return;
	int64_t boot_ms = growth_boot_ms(growth, (size_t)group);
	ret->group = mem_strdup(growth->model.groups.v[group].id);
	ret->price = growth->model.groups.v[group].price;
	ret->expected_ms = boot_ms ? ret->updated_ms + boot_ms : 0;
}

struct kube_growth *kube_growth_for(const struct kube_cluster *cluster, const struct kube_run *run,
	const struct kube_objects *objects, size_t *ret_n)
{
	struct kube_growth *ret;
	const struct json *spec;
	int64_t nodes;
	size_t n = 0;

	if (!cluster->growth)
		return NULL;
	while (kube_objects_pods(run, objects, n, &nodes))
		n++;
	ret = mem_alloc(n + 1, sizeof(*ret));
	for (size_t i = 0; (spec = kube_objects_pods(run, objects, i, &nodes)); i++) {
		ret[i] = kube_growth_like(cluster->growth);
		kube_growth_choose(cluster->growth, spec, &ret[i]);
	}
	*ret_n = n;
	return ret;
}

/* The member of "waiting" of the run as a gang, or of a pod of it. */
static const struct json *kube_growth_find(
	const struct growth *growth, const struct kube_facts *facts)
{
	const char *const names[] = {facts->run_id, facts->job_name};
	const struct json *found = NULL;

	for (size_t i = 0; !found && !facts->is_member && i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *name = mem_printf("%s/%s", facts->kube_namespace, names[i]);
		found = growth_waiting(growth, name);
	}
	for (size_t i = 0; !found && i < facts->pods.n; i++) {
		const char *pod = kube_str_at(facts->pods.v[i], "metadata.name");
		AUTO_FREE char *name = mem_printf("%s/%s", facts->kube_namespace, pod ? pod : "");
		if (str_empty(kube_str_at(facts->pods.v[i], "spec.nodeName")))
			found = growth_waiting(growth, name);
	}
	return found;
}

bool kube_growth_of(
	const struct kube_cluster *cluster, const struct kube_facts *facts, struct kube_growth *ret)
{
	if (!cluster->growth)
		return false;
	const struct json *waiting = kube_growth_find(cluster->growth, facts);
	*ret = kube_growth_like(cluster->growth);
	ret->may_later = true;
	ret->group = mem_strdup(json_get_str(waiting, "group"));
	ret->expected_ms = kube_time_at(waiting, "expected");
	for (const struct json *m = kube_first(waiting, "reasons");
		m && ret->reasons.n < GROWTH_REASONS_MAX; m = json_next(m))
		if (json_str(m))
			strv_add(&ret->reasons, json_str(m));
	return true;
}

/*
 * Cost
 */

struct kube_growth_sum {
	double per_hour, nodes;
	struct buf *groups; /* "gpu-a, gpu-b" */
	bool *is_named;     /* of each group, in groups */
};

/* false: the price of the node is not known. */
static bool kube_growth_add_rank(struct growth *growth, const struct kube_rank *rank,
	const struct json *pod, struct kube_growth_sum *sum)
{
	int number = rank->node ? growth_group_of(growth, rank->node) : -1;

	if (number < 0 || !pod || growth->model.groups.v[number].price < 0)
		return false;
	const struct scale_group *group = &growth->model.groups.v[number];
	double share = growth_share(growth, (size_t)number, json_get(pod, "spec"));
	sum->per_hour += share * group->price;
	sum->nodes += share;
	if (!sum->is_named[number])
		buf_addf(sum->groups, "%s%s", sum->groups->len ? ", " : "", group->id);
	sum->is_named[number] = true;
	return true;
}

struct json *kube_growth_cost(const struct kube_cluster *cluster, const struct kube_facts *facts,
	const struct kube_status *status)
{
	struct growth *growth = cluster->growth;
	AUTO(map_done) struct map pods = {0};
	AUTO_BUF struct buf groups = buf_with(GROUPS_SHOWN_MAX);
	double hours = (double)(status->ended_ms - status->started_ms) / MS_PER_HOUR;

	if (!growth || status->started_ms <= 0 || hours < 0)
		return NULL;
	AUTO_FREE bool *is_named = mem_alloc(growth->model.groups.n + 1, sizeof(*is_named));
	struct kube_growth_sum sum = {.groups = &groups, .is_named = is_named};
	for (size_t i = 0; i < facts->pods.n; i++)
		if (kube_str_at(facts->pods.v[i], "metadata.name"))
			map_put(&pods, kube_str_at(facts->pods.v[i], "metadata.name"),
				(void *)(uintptr_t)facts->pods.v[i]);
	bool is_known = status->ranks.n > 0;
	vec_foreach (const struct kube_rank, rank, &status->ranks)
		is_known = is_known && kube_growth_add_rank(growth, rank,
					       rank->pod ? map_get(&pods, rank->pod) : NULL, &sum);
	if (!is_known || sum.per_hour * hours > AMOUNT_MAX)
		return NULL;
	struct json *cost = json_object();
	json_set_num(cost, "amount", sum.per_hour * hours);
	json_set_num(cost, "per_hour", sum.per_hour);
	json_set_num(cost, "nodes", sum.nodes);
	json_set_str(cost, "group", groups.data);
	return cost;
}
