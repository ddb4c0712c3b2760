#include "run/kube_watcher.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "kube/watch.h"

enum { ASKS_BEFORE = 3, EVENTS_MS = 5000, OBJECTS_MAX = 20000 };

/* What one of the two watches has told. */
struct side {
	struct kube_watch *watch;
	struct map objects; /* uid → struct json */
	bool synced, troubled, over;
};

struct kube_watcher {
	char *key; /* namespace and run */
	int asks;
	struct side jobs, pods;
	int64_t events_ms; /* clock_ms() of the last look; 0: none yet */
};

/*
 * One side
 */

static const char *uid_of(const struct json *object)
{
	return json_get_str(json_get(object, "metadata"), "uid");
}

static void on_put(void *ctx, const struct json *object)
{
	struct side *side = ctx;

	if (uid_of(object))
		json_free(map_put(&side->objects, uid_of(object), json_clone(object)));
}

/* A map only grows: what is gone is there as null. */
static void on_gone(void *ctx, const struct json *object)
{
	struct side *side = ctx;

	if (uid_of(object) && map_get(&side->objects, uid_of(object)))
		json_free(map_put(&side->objects, uid_of(object), json_null()));
}

static void on_synced(void *ctx)
{
	((struct side *)ctx)->synced = true;
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
}

static struct json *list_of(const struct side *side)
{
	struct json *list = json_object(), *items = json_array();
	size_t pos = 0;
	const char *key;
	void *value;

	while (map_each(&side->objects, &pos, &key, &value))
		if (json_kind(value) == JSON_OBJECT)
			json_add(items, json_clone(value));
	json_set(list, "items", items);
	return list;
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

struct kube_watcher *kube_watcher_of(struct kube_watchers *watchers, struct kube_client *client,
	const struct kube_handle *handle)
{
	struct kube_watcher *watcher = find(watchers, handle);

	if (++watcher->asks < ASKS_BEFORE)
		return NULL;
	if (!watcher->jobs.watch) {
		AUTO_FREE char *jobs =
			kube_path("/apis/batch/v1/namespaces/%s/jobs", handle->kube_namespace);
		AUTO_FREE char *pods =
			kube_path("/api/v1/namespaces/%s/pods", handle->kube_namespace);
		start(&watcher->jobs, client, jobs, handle->run_id);
		start(&watcher->pods, client, pods, handle->run_id);
	}
	return watcher;
}

static bool is_current(const struct side *side)
{
	return side->synced && !side->troubled && !side->over;
}

bool kube_watcher_lists(
	const struct kube_watcher *watcher, struct json *ret_lists[static KUBE_FACTS_KINDS])
{
	if (!is_current(&watcher->jobs) || !is_current(&watcher->pods))
		return false;
	ret_lists[KUBE_FACTS_JOB] = list_of(&watcher->jobs);
	ret_lists[KUBE_FACTS_PODS] = list_of(&watcher->pods);
	return true;
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
		free((*watcher)->key);
		free(*watcher);
	}
	vec_done(watchers);
}
