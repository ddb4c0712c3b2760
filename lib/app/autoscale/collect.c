/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/collect.h"

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/objects.h"
#include "core/autoscale/snapshot.h"
#include "core/config/config.h"
#include "net/stream/field.h"

struct collect {
	struct loop_wait wait;
	struct scale_model *model;
	struct collect_list {
		struct collect *collect;
		enum objects_kind kind;
		struct kube_call *call;
		struct json *list;
		struct err error;
	} lists[OBJECTS_KINDS];
};

static int collect_on_list(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct collect_list *list = ctx;

	list->call = NULL;
	/* The times of its objects are of the server's clock, and ours may be wrong or jump. */
	const char *date = response->http ? field_find(&response->http->headers, "date") : NULL;
	if (list->kind == OBJECTS_NODES && date && field_date(date) > 0)
		list->collect->model->now_ms = field_date(date);
	if (response->error.id == E_NONE)
		list->list = TAKE(response->object);
	else
		err_move(&list->error, &response->error);
	loop_wait_done(&list->collect->wait);
	return 0;
}

static void collect_start(struct collect *collect, struct kube_client *client)
{
	/* Ended pods need no room, and there may be many. */
	static const char *const alive[] = {
		"fieldSelector", "status.phase!=Succeeded,status.phase!=Failed", NULL};

	for (int kind = 0; kind < OBJECTS_KINDS; kind++) {
		struct collect_list *list = &collect->lists[kind];
		list->collect = collect;
		list->kind = (enum objects_kind)kind;
		collect->wait.n_open++;
		list->call = kube_list(client, objects_path(list->kind),
			kind == OBJECTS_PODS ? alive : NULL,
			kind == OBJECTS_NODES ? SCALE_NODES_LIMIT : SCALE_PODS_LIMIT,
			collect->wait.deadline_ms, collect_on_list, list);
		kube_list_trim(list->call, objects_trim);
	}
}

/* A list that is absent means nothing where the cluster has no such kind. */
static int collect_judge(struct collect *collect, struct err *err)
{
	for (int kind = 0; kind < OBJECTS_KINDS; kind++) {
		struct collect_list *list = &collect->lists[kind];
		if (list->list || list->error.id == E_KUBE_NOT_FOUND)
			continue;
		if (!objects_is_optional(list->kind)) {
			if (list->error.id == E_NONE)
				return err_set(err, E_KUBE_UNREACHABLE, "%s: no response in time",
					objects_path(list->kind));
			err_move(err, &list->error);
			return err_prefix(err, "%s", objects_path(list->kind));
		}
		strv_addf(&collect->model->remarks, "%s is not known: %s", objects_path(list->kind),
			list->error.message ? list->error.message : "no response in time");
	}
	return 0;
}

static void collect_read(struct collect *collect)
{
	const struct json *lists[OBJECTS_KINDS];

	for (int kind = 0; kind < OBJECTS_KINDS; kind++)
		lists[kind] = collect->lists[kind].list;
	objects_read(lists, collect->model);
}

int collect_open(
	struct session *session, const char *target, struct kube_cluster **ret, struct err *err)
{
	struct config *config;
	AUTO_FREE char *context = NULL, *kube_namespace = NULL;

	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	const struct json *definition = config_target(config, target);
	if (!config_target_is_cluster(config, target)) {
		AUTO_FREE char *shown = str_shown(target);
		err_set(err, E_TARGET_UNSUPPORTED, "target %s is not a cluster", shown);
		return err_hint(err, "dlrun autoscale plan -t kube");
	}
	kube_name_read(session, target, definition, &context, &kube_namespace);
	return kube_open(session, context, kube_namespace, ret, err);
}

int collect_cluster(struct kube_cluster *cluster, struct supply *supply,
	const volatile int *interrupted, struct scale_model *model, struct err *err)
{
	struct collect collect = {.model = model,
		.wait = {.loop = kube_client_loop(cluster->client),
			.deadline_ms = clock_deadline(COLLECT_MS),
			.interrupted = interrupted}};

	model->now_ms = clock_wall_ms();
	if (supply)
		supply_ask(supply, &collect.wait);
	collect_start(&collect, cluster->client);
	int r = loop_wait_run(&collect.wait, err);
	for (int kind = 0; kind < OBJECTS_KINDS; kind++)
		kube_cancel(collect.lists[kind].call);
	if (supply)
		supply_take(supply, model);
	if (r == 0)
		r = collect_judge(&collect, err);
	if (r == 0)
		collect_read(&collect);
	for (int kind = 0; kind < OBJECTS_KINDS; kind++) {
		json_free(collect.lists[kind].list);
		err_clear(&collect.lists[kind].error);
	}
	return r;
}
