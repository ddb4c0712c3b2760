/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_watcher.h"

#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/watch.h"

enum { ASKS_BEFORE = 3, EVENTS_MS = 5000, FRESH_MS = 10 * 1000, OBJECTS_MAX = 20000 };

/* State of one watch. */
struct side {
	struct kube_watch *watch;
	struct map objects; /* uid → struct json */
	bool synced, troubled, over;
	int64_t heard_ms; /* clock_ms() when it was known to be current */
};

struct kube_watcher {
	char *key; /* namespace and run */
	int asks;
	struct side jobs, pods, jobsets; /* jobsets: where it is one */
	int64_t events_ms;               /* clock_ms() of the last look; 0: none yet */
};

/*
 * Watches
 */

static const char *uid_of(const struct json *object)
{
	return json_get_str(json_get(object, "metadata"), "uid");
}

static void on_put(void *ctx, const struct json *object)
{
	struct side *side = ctx;

	side->heard_ms = clock_ms();
	if (uid_of(object))
		json_free(map_put(&side->objects, uid_of(object), json_clone(object)));
}

/* A map only grows: what is gone is there as null. */
static void on_gone(void *ctx, const struct json *object)
{
	struct side *side = ctx;

	side->heard_ms = clock_ms();
	if (uid_of(object) && map_get(&side->objects, uid_of(object)))
		json_free(map_put(&side->objects, uid_of(object), json_null()));
}

static void on_synced(void *ctx)
{
	struct side *side = ctx;

	side->heard_ms = clock_ms();
	side->synced = true;
}

static void on_trouble(void *ctx, const struct err *fault, int64_t since_ms)
{
	(void)since_ms;
	((struct side *)ctx)->troubled = fault != NULL;
}

static int on_failed(void *ctx, struct err *fault, struct err *err)
{
	(void)fault;
	(void)err;
	((struct side *)ctx)->over = true;
	return 0;
}

static void start(
	struct side *side, struct kube_client *client, const char *path, const char *run_id)
{
	AUTO_FREE char *selector = mem_printf(KUBE_LABEL_RUN "=%s", run_id);
	const char *const query[] = {"labelSelector", selector, NULL};
	const struct kube_watch_request request = {
		.path = path,
		.query = query,
		.max_objects = OBJECTS_MAX,
		.events = {.put = on_put,
			.gone = on_gone,
			.synced = on_synced,
			.trouble = on_trouble,
			.failed = on_failed,
			.ctx = side},
	};

	side->watch = kube_watch_start(client, &request);
}

static void side_done(struct side *side)
{
	size_t pos = 0;
	const char *key;
	void *value;

	kube_watch_free(side->watch);
	while (map_each(&side->objects, &pos, &key, &value))
		json_free(value);
	map_done(&side->objects);
	*side = (struct side){0};
}

static bool is_live(const void *value)
{
	return json_kind(value) == JSON_OBJECT;
}

static struct json *list_of(const struct side *side)
{
	struct json *list = json_object(), *items = json_array();
	size_t pos = 0;
	const char *key;
	void *value;

	while (map_each(&side->objects, &pos, &key, &value))
		if (is_live(value))
			json_add(items, json_clone(value));
	json_set(list, "items", items);
	return list;
}

static const char *version_of(const struct json *object)
{
	return json_get_str(json_get(object, "metadata"), "resourceVersion");
}

/* Whether it tells what a list tells that was just asked for. */
static bool agrees(const struct side *side, const struct json *list)
{
	const struct json *items = json_get(list, "items");
	size_t pos = 0, n = 0;
	const char *key;
	void *value;

	while (map_each(&side->objects, &pos, &key, &value))
		n += is_live(value);
	if (n != json_count(items))
		return false;
	for (const struct json *item = json_first(items); item; item = json_next(item)) {
		const char *uid = uid_of(item);
		const struct json *known = uid ? map_get(&side->objects, uid) : NULL;
		if (!is_live(known) || !str_eq(version_of(known), version_of(item)))
			return false;
	}
	return true;
}

/* A watch that has fallen behind may be dead without anybody noticing: drop it. */
static void compare(struct side *side, const struct json *list, int64_t now_ms)
{
	if (!side->synced || !list)
		return;
	if (agrees(side, list))
		side->heard_ms = now_ms;
	else
		side_done(side);
}

/*
 * The watcher
 */

static struct kube_watcher *find(struct kube_watchers *watchers, const struct kube_handle *handle)
{
	AUTO_FREE char *key = mem_printf("%s/%s", handle->kube_namespace, handle->run_id);

	vec_foreach (struct kube_watcher *, watcher, watchers)
		if (str_eq((*watcher)->key, key))
			return *watcher;
	struct kube_watcher *watcher = mem_alloc(1, sizeof(*watcher));
	*watcher = (struct kube_watcher){.key = TAKE(key)};
	*vec_push(watchers) = watcher;
	return watcher;
}

static void begin(
	struct kube_watcher *watcher, struct kube_client *client, const struct kube_handle *handle)
{
	const char *space = handle->kube_namespace;
	AUTO_FREE char *jobs = kube_kind_collection(KUBE_KIND_JOB, space);
	AUTO_FREE char *jobsets = kube_kind_collection(KUBE_KIND_JOBSET, space);
	AUTO_FREE char *pods = kube_path("/api/v1/namespaces/%s/pods", space);

	if (!watcher->jobs.watch)
		start(&watcher->jobs, client, jobs, handle->run_id);
	if (!watcher->pods.watch)
		start(&watcher->pods, client, pods, handle->run_id);
	if (handle->kind == KUBE_KIND_JOBSET && !watcher->jobsets.watch)
		start(&watcher->jobsets, client, jobsets, handle->run_id);
}

struct kube_watcher *kube_watcher_of(struct kube_watchers *watchers, struct kube_client *client,
	const struct kube_handle *handle)
{
	struct kube_watcher *watcher = find(watchers, handle);

	if (++watcher->asks < ASKS_BEFORE)
		return NULL;
	begin(watcher, client, handle);
	return watcher;
}

static bool is_current(const struct side *side, int64_t now_ms)
{
	return side->synced && !side->troubled && !side->over && now_ms - side->heard_ms < FRESH_MS;
}

bool kube_watcher_lists(const struct kube_watcher *watcher, const struct kube_handle *handle,
	int64_t now_ms, struct json *ret_lists[static KUBE_FACTS_KINDS])
{
	const struct side *sides[KUBE_FACTS_KINDS] = {[KUBE_FACTS_JOB] = &watcher->jobs,
		[KUBE_FACTS_PODS] = &watcher->pods,
		[KUBE_FACTS_JOBSETS] = watcher->jobsets.watch ? &watcher->jobsets : NULL};
	struct json *lists[KUBE_FACTS_KINDS] = {0};
	bool is_known;

	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++)
		if (sides[i] && !is_current(sides[i], now_ms))
			return false;
	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++)
		lists[i] = sides[i] ? list_of(sides[i]) : NULL;
	is_known = kube_facts_made(lists, handle);
	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++) {
		if (is_known && lists[i])
			ret_lists[i] = lists[i];
		else
			json_free(lists[i]);
	}
	return is_known;
}

void kube_watcher_compare(
	struct kube_watcher *watcher, struct json *const lists[static KUBE_FACTS_KINDS])
{
	int64_t now_ms = clock_ms();

	compare(&watcher->jobs, lists[KUBE_FACTS_JOB], now_ms);
	compare(&watcher->pods, lists[KUBE_FACTS_PODS], now_ms);
	compare(&watcher->jobsets, lists[KUBE_FACTS_JOBSETS], now_ms);
}

bool kube_watcher_wants_events(struct kube_watcher *watcher)
{
	int64_t now_ms = clock_ms();

	if (watcher->events_ms && now_ms - watcher->events_ms < EVENTS_MS)
		return false;
	watcher->events_ms = now_ms;
	return true;
}

void kube_watchers_done(struct kube_watchers *watchers)
{
	vec_foreach (struct kube_watcher *, watcher, watchers) {
		side_done(&(*watcher)->jobs);
		side_done(&(*watcher)->pods);
		side_done(&(*watcher)->jobsets);
		free((*watcher)->key);
		free(*watcher);
	}
	vec_done(watchers);
}
