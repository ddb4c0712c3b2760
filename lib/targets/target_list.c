/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/target_list.h"

#include <stdlib.h>

#include "base/os/env.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config.h"
#include "core/config/target_names.h"
#include "core/target/target.h"
#include "host/gpu.h"
#include "targets/kube/kube_open.h"
#include "targets/kube/target_kube.h"
#include "targets/local/target_local.h"
#include "targets/ssh/target_node.h"
#include "targets/targets.h"

enum { UNASKED_OVER = 32, WARM_MAX = 32, GPU_FIND_MS = 5000 };

void target_list_done(struct target_list *list)
{
	vec_foreach (struct target_item, item, &list->items) {
		free(item->name);
		free(item->context);
		free(item->kube_namespace);
		free(item->why_not);
		kube_poll_done(&item->poll);
		for (size_t i = 0; item->node_probes && i < item->hosts.n; i++)
			node_probe_done(&item->node_probes[i]);
		free(item->node_probes);
		strv_done(&item->hosts);
		free(item->dir);
	}
	vec_done(&list->items);
	free(TAKE(list->error));
}

/*
 * Names
 */

static struct target_item *list_add(
	struct target_list *list, const char *name, const struct target_ops *ops)
{
	struct target_item *item = vec_push(&list->items);

	item->name = mem_strdup(name);
	item->ops = ops;
	item->is_cluster = ops == &target_kube_ops;
	item->is_configured = true;
	return item;
}

/* By what target_open makes of the name: what it refuses has no hosts. */
static void list_set_hosts(struct session *session, struct target_item *item)
{
	AUTO(target_free_auto) struct target *target = NULL;

	if (target_open(session, item->name, &target, &item->poll.error) < 0)
		return;
	strv_copy(&item->hosts, &target_node_of(target)->hosts);
	item->dir = mem_strdup(target_node_of(target)->root);
	item->node_probes = mem_alloc(item->hosts.n + 1, sizeof(*item->node_probes));
}

static void list_add_named(struct session *session, const struct config *config, const char *name,
	struct target_list *list)
{
	const struct json *definition = config_target(config, name);
	const struct target_ops *ops = target_ops_named(config, name);
	struct target_item *item = list_add(list, name, ops ? ops : &target_local_ops);

	if (item->ops == &target_node_ops) {
		list_set_hosts(session, item);
	} else if (item->is_cluster) {
		kube_name_read(session, name, definition, &item->context, &item->kube_namespace);
		item->poll.queue = json_get_str(definition, "queue");
		item->poll.pull_secret = json_get_str(definition, "image_pull_secret");
	}
}

static bool target_list_is_named(
	const struct target_list *list, const char *context, const char *current)
{
	vec_foreach (const struct target_item, item, &list->items) {
		const char *has = item->context ? item->context : current;
		if (item->is_cluster && str_eq(has, context))
			return true;
	}
	return false;
}

static void add_context(const char *context, const char *current, struct target_list *list)
{
	AUTO_FREE char *name = mem_printf("kube:%s", context);
	struct target_item *item;

	if (target_list_is_named(list, context, current))
		return;
	item = list_add(list, name, &target_kube_ops);
	item->is_configured = false;
	item->context = mem_strdup(context);
}

static void target_list_add_contexts(struct session *session, struct target_list *list)
{
	const struct kubeconfig *kubeconfig;
	AUTO_STRV struct strv names = {0};
	AUTO_ERR struct err error = {0};
	const char *current;

	if (kube_open_config(session, &kubeconfig, &error) < 0) {
		if (error.id != E_KUBE_NO_CONFIG)
			list->error = mem_strdup(error.message);
		return;
	}
	kubeconfig_contexts(kubeconfig, &names);
	current = kubeconfig_current(kubeconfig);
	if (current && strv_find(&names, current) >= 0)
		add_context(current, current, list);
	vec_foreach (char *, name, &names)
		add_context(*name, current, list);
}

/* The names that `target:` has, of a list that is not valid none. */
static void target_list_defaults(const struct config *config, struct strv *ret)
{
	const char *text = config_str(config, "target");

	if (text && target_names_split(config, text, ret, NULL) < 0)
		strv_done(ret);
}

static void target_list_add_all(
	struct session *session, const struct config *config, struct target_list *list)
{
	AUTO_STRV struct strv names = {0}, defaults = {0};

	target_list_defaults(config, &defaults);
	config_target_names(config, &names);
	if (strv_find(&names, target_local_ops.kind) < 0)
		strv_add(&names, target_local_ops.kind);
	vec_foreach (char *, name, &defaults)
		if ((kube_name_is(*name) || target_node_is(*name)) && strv_find(&names, *name) < 0)
			strv_add(&names, *name);
	vec_foreach (char *, name, &names)
		list_add_named(session, config, *name, list);
	target_list_add_contexts(session, list);
}

int target_list_make(struct session *session, const struct strv *wanted, struct target_list *ret,
	struct err *err)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_STRV struct strv defaults = {0};
	struct config *config;
	int r = session_config(session, &config, err);

	for (size_t i = 0; r == 0 && i < wanted->n; i++) {
		r = target_check(config, wanted->v[i], err);
		if (r == 0)
			list_add_named(session, config, wanted->v[i], &list);
	}
	if (r < 0)
		return r;
	if (wanted->n == 0)
		target_list_add_all(session, config, &list);
	target_list_defaults(config, &defaults);
	vec_foreach (struct target_item, item, &list.items)
		item->is_default = strv_find(&defaults, item->name) >= 0;
	*ret = list;
	list = (struct target_list){0};
	return 0;
}

int target_list_clusters(struct session *session, struct target_list *ret, struct err *err)
{
	AUTO_STRV struct strv names = {0}, defaults = {0};
	struct config *config;

	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	config_target_names(config, &names);
	target_list_defaults(config, &defaults);
	vec_foreach (char *, name, &defaults)
		if (strv_find(&names, *name) < 0 && target_check(config, *name, NULL) == 0)
			strv_add(&names, *name);
	vec_foreach (char *, name, &names) {
		list_add_named(session, config, *name, ret);
		struct target_item *item = &ret->items.v[ret->items.n - 1];
		item->is_default = strv_find(&defaults, item->name) >= 0;
		item->requested = item->is_cluster;
	}
	return 0;
}

/*
 * Requests
 */

/* NULL: it may be asked unasked for. */
static char *why_not(struct session *session, const struct target_item *item)
{
	const struct kubeconfig *kubeconfig;
	AUTO_KUBE_ACCESS struct kube_access access = {0};

	if (item->is_configured || kube_open_config(session, &kubeconfig, NULL) < 0 ||
		str_eq(kubeconfig_current(kubeconfig), item->context) ||
		kubeconfig_access(kubeconfig, item->context, NULL, &access, NULL) < 0 ||
		!access.exec)
		return NULL;
	AUTO_FREE char *command = str_shown(access.exec->command);
	return mem_printf("not asked, because %s would log in", command);
}

int target_list_query_hosts(struct session *session, struct target_list *list, int64_t limit_ms,
	const volatile int *interrupted, struct err *err)
{
	struct VEC_OF(struct node_probe) probes = {0};
	size_t n = 0;
	int r = 0;

	vec_foreach (struct target_item, item, &list->items) {
		item->requested = item->requested || item->hosts.n > 0;
		for (size_t i = 0; i < item->hosts.n; i++)
			*vec_push(&probes) = (struct node_probe){.host = item->hosts.v[i],
				.root = item->dir,
				.gpus_too = true,
				.fields_too = list->facts_too && item->hosts.n > 1};
	}
	if (probes.n)
		r = node_probe_all(session, probes.v, probes.n, limit_ms, -1, interrupted, err);
	vec_foreach (struct target_item, item, &list->items)
		for (size_t i = 0; i < item->hosts.n; i++)
			item->node_probes[i] = probes.v[n++];
	vec_done(&probes);
	return r;
}

static void warm_hosts(struct session *session, const struct target_list *list)
{
	struct node_host *host;

	vec_foreach (const struct target_item, item, &list->items)
		for (size_t i = 0; i < item->hosts.n && i < WARM_MAX; i++)
			(void)node_open(session, item->hosts.v[i], item->dir, &host, NULL);
}

int target_list_query(struct session *session, struct target_list *list, bool wanted,
	int64_t limit_ms, const volatile int *interrupted, struct err *err)
{
	AUTO_FREE struct kube_poll *polls = mem_alloc(list->items.n + 1, sizeof(*polls));
	AUTO_FREE struct target_item **of = mem_alloc(list->items.n + 1, sizeof(*of));
	size_t n = 0;

	vec_foreach (struct target_item, item, &list->items) {
		if (!item->is_cluster)
			continue;
		if (!wanted && !item->is_configured && n >= UNASKED_OVER)
			item->why_not = mem_strdup("not asked, there are so many");
		else if (!wanted)
			item->why_not = why_not(session, item);
		if (item->why_not)
			continue;
		item->requested = true;
		item->poll.context = item->context;
		item->poll.kube_namespace = item->kube_namespace;
		of[n] = item;
		polls[n++] = item->poll;
	}
	warm_hosts(session, list);
	int r = kube_poll_all(session, polls, n, limit_ms, interrupted, err);
	for (size_t i = 0; i < n; i++)
		of[i]->poll = polls[i];
	return r < 0 ? r : target_list_query_hosts(session, list, limit_ms, interrupted, err);
}

/*
 * GPUs
 */

void target_gpus_done(struct target_gpus_list *list)
{
	vec_foreach (struct target_gpus, gpus, list)
		free(gpus->model);
	vec_done(list);
}

static struct target_gpus *target_gpus_get(struct target_gpus_list *list, const char *model)
{
	struct target_gpus *gpus;

	vec_foreach (struct target_gpus, known, list)
		if (str_eq(known->model, model))
			return known;
	gpus = vec_push(list);
	gpus->model = mem_strdup(model);
	return gpus;
}

static void target_gpus_here(struct session *session, struct target_gpus_list *ret)
{
	const char *path = env_get(session->env.env, "PATH");
	struct gpu_list list = {0};

	if (!gpu_may_exist(path) || gpu_find(path, GPU_FIND_MS, &list, NULL) < 0)
		return;
	for (size_t i = 0; i < list.n; i++)
		target_gpus_get(ret, list.v[i].model)->all++;
	vec_foreach (struct target_gpus, gpus, ret)
		gpus->free = target_local_free_gpus(&list, gpus->model);
}

void target_item_gpus(
	struct session *session, const struct target_item *item, struct target_gpus_list *ret)
{
	if (item->ops->is_here)
		target_gpus_here(session, ret);
	for (size_t i = 0; item->node_probes && i < item->hosts.n; i++)
		vec_foreach (const struct node_gpu, gpu, &item->node_probes[i].gpus) {
			struct target_gpus *gpus = target_gpus_get(ret, gpu->model);
			gpus->all++;
			gpus->free += !gpu->used && !*gpu->holder;
		}
	vec_foreach (const struct kube_gpus, kind, &item->poll.gpus) {
		struct target_gpus *gpus = target_gpus_get(ret, *kind->model ? kind->model : NULL);
		gpus->all = kind->all;
		gpus->free = kind->free;
	}
}
