/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/watch.h"
#include "base/util/clock.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "kube/api/response.h"

/*
 * Lines
 */

void kube_lines_init(struct kube_lines *lines)
{
	buf_init(&lines->part, KUBE_LINE_MAX);
}

void kube_lines_done(struct kube_lines *lines)
{
	buf_done(&lines->part);
}

static int fail_long(struct err *err)
{
	return err_set(err, E_DATA_LIMIT, "the cluster sends an object of more than %d MiB",
		KUBE_LINE_MAX >> 20);
}

/* A line that lies in data as a whole is not copied. */
static int watch_give(struct kube_lines *lines, const char *data, size_t len, kube_line_fn *fn,
	void *ctx, struct err *err)
{
	if (lines->part.len == 0)
		return len > KUBE_LINE_MAX ? fail_long(err) : len > 0 ? fn(ctx, data, len, err) : 0;
	buf_add(&lines->part, data, len);
	if (lines->part.full)
		return fail_long(err);
	size_t whole = lines->part.len;
	AUTO_FREE char *line = buf_take(&lines->part);
	return fn(ctx, line, whole, err);
}

int kube_lines_add(struct kube_lines *lines, const char *data, size_t len, kube_line_fn *fn,
	void *ctx, struct err *err)
{
	while (len > 0) {
		const char *end = memchr(data, '\n', len);
		if (!end) {
			buf_add(&lines->part, data, len);
			return lines->part.full ? fail_long(err) : 0;
		}
		size_t used = (size_t)(end - data);
		int r = watch_give(lines, data, used, fn, ctx, err);
		if (r != 0)
			return r;
		data += used + 1;
		len -= used + 1;
	}
	return 0;
}

static int fail_event(const char *why, struct err *err)
{
	return err_set(err, E_KUBE_RESPONSE, "the cluster sends %s where an event is due", why);
}

static bool watch_kind_of(const char *type, enum kube_watch_event_kind *ret)
{
	static const struct {
		const char *type;
		enum kube_watch_event_kind kind;
	} kinds[] = {{"ADDED", KUBE_EVENT_PUT}, {"MODIFIED", KUBE_EVENT_PUT},
		{"DELETED", KUBE_EVENT_GONE}, {"BOOKMARK", KUBE_EVENT_BOOKMARK},
		{"ERROR", KUBE_EVENT_ERROR}};

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		if (str_eq(kinds[i].type, type)) {
			*ret = kinds[i].kind;
			return true;
		}
	}
	return false;
}

int kube_watch_event_parse(
	const char *line, size_t len, struct kube_watch_event *ret, struct err *err)
{
	AUTO_KUBE_WATCH_EVENT struct kube_watch_event event = {0};

	if (json_parse(line, len, KUBE_LINE_MAX, "", &event.root, NULL) < 0)
		return fail_event("something that is not JSON", err);
	event.object = json_get(event.root, "object");
	if (!watch_kind_of(json_get_str(event.root, "type"), &event.kind) || !event.object ||
		json_kind(event.object) != JSON_OBJECT)
		return fail_event("something else", err);
	if (event.kind != KUBE_EVENT_ERROR) {
		const struct json *metadata = json_get(event.object, "metadata");
		event.name = json_get_str(metadata, "name");
		event.uid = json_get_str(metadata, "uid");
		event.version = json_get_str(metadata, "resourceVersion");
		if (str_empty(event.version) ||
			(str_empty(event.name) && event.kind != KUBE_EVENT_BOOKMARK))
			return fail_event("an object without a name or resourceVersion", err);
	}
	*ret = event;
	event = (struct kube_watch_event){0};
	return 0;
}

void kube_watch_event_done(struct kube_watch_event *event)
{
	json_free(event->root);
	*event = (struct kube_watch_event){0};
}

/*
 * Watches
 */

enum {
	OBJECTS_MAX = 10000,
	/* The server ends each stream after TIMEOUT_S, with a bookmark before; who is silent for
	 * longer is not there any more. */
	TIMEOUT_S = 50,
	IDLE_MS = 60 * 1000,
	LIST_MS = 20 * 1000, /* and longer after each time that was not enough */
	LIST_MAX_MS = 120 * 1000,
	BACKOFF_FIRST_MS = 200,
	BACKOFF_MAX_MS = 30 * 1000,
	WORDS_MAX = 300,
	SHORT_MS = 1000,        /* a stream that ends sooner is none */
	REFUSED_MS = 30 * 1000, /* a restarting server may refuse what it allowed before */
	TICK_MS = 5000,
	DEAD_MIN = 64,
	POLL_MS = 2000,          /* where streams may not be had */
	POLL_FOR_MS = 60 * 1000, /* until the next try of one */
};

/* An object that was put. */
struct known {
	struct json *metadata; /* what is kept of it; NULL: it is gone */
	bool is_listed;        /* in the list that is being taken */
};

struct kube_watch {
	struct kube_client *client;
	struct loop *loop;
	char *path;
	char *only; /* path of the one object; or NULL */
	struct strv query;
	size_t max;
	int64_t idle_ms;
	struct kube_watch_events events;

	struct map objects; /* struct known by uid, or namespace/name */
	size_t n_live, n_dead;
	char *version;   /* resourceVersion of what is known; NULL: list */
	bool has_synced; /* ever */
	struct kube_lines lines;
	struct kube_call *call; /* list or watch */
	struct loop_timer *timer, *tick_timer;
	int64_t stream_ms;      /* when it began */
	int64_t woke_ms;        /* after that sleep it was begun anew */
	bool got_bytes;         /* on this stream */
	unsigned failures;      /* one after the other */
	unsigned expired;       /* resourceVersions, one after the other */
	bool gets;              /* the one object by itself, as lists are denied */
	int64_t polls_until_ms; /* no streams before */
	struct err error;       /* why it is over, to be reported */
	bool in_trouble;
	int64_t trouble_ms;
	unsigned depth; /* in how many calls of events we are */
	bool is_freed;  /* from within them */
};

static void watch_go_on(struct kube_watch *watch);
static int watch_on_timer(void *ctx, struct err *err);

/*
 * Known objects
 */

static void known_free(struct known *known)
{
	json_free(known->metadata);
	free(known);
}

/* The caller frees. */
static char *key_of(const struct json *object)
{
	const struct json *metadata = json_get(object, "metadata");
	const char *uid = json_get_str(metadata, "uid");
	const char *name = json_get_str(metadata, "name");
	const char *space = json_get_str(metadata, "namespace");

	if (!str_empty(uid))
		return mem_strdup(uid);
	return mem_printf("%s/%s", space ? space : "", name ? name : "");
}

/* map.c keeps its keys, so those of objects that are gone are thrown out from time to time. */
static void tidy(struct kube_watch *watch)
{
	struct map live = {0};
	size_t at = 0;
	const char *key;
	void *value;

	if (watch->n_dead < DEAD_MIN || watch->n_dead < watch->n_live)
		return;
	while (map_each(&watch->objects, &at, &key, &value)) {
		struct known *known = value;
		if (known->metadata)
			map_put(&live, key, known);
		else
			known_free(known);
	}
	map_done(&watch->objects);
	watch->objects = live;
	watch->n_dead = 0;
}

static struct known *watch_remember(struct kube_watch *watch, const struct json *object)
{
	AUTO_FREE char *key = key_of(object);
	struct known *known = map_get(&watch->objects, key);

	if (!known) {
		known = mem_alloc(1, sizeof(*known));
		map_put(&watch->objects, key, known);
		watch->n_live++;
	} else if (!known->metadata) {
		watch->n_dead--;
		watch->n_live++;
	}
	json_free(known->metadata);
	static const char *const keys[] = {"name", "namespace", "uid", "resourceVersion", "labels",
		"ownerReferences", "creationTimestamp"};
	const struct json *metadata = json_get(object, "metadata");
	struct json *kept = json_object();

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (json_get(metadata, keys[i]))
			json_set(kept, keys[i], json_clone(json_get(metadata, keys[i])));
	known->metadata = kept;
	return known;
}

static void watch_forget(struct kube_watch *watch, struct known *known)
{
	if (!known || !known->metadata)
		return;
	json_free(TAKE(known->metadata));
	watch->n_live--;
	watch->n_dead++;
}

/*
 * Reporting
 */

static void really_free(struct kube_watch *watch)
{
	struct map *objects = &watch->objects;
	size_t at = 0;
	const char *key;
	void *value;

	while (map_each(objects, &at, &key, &value))
		known_free(value);
	map_done(objects);
	*objects = (struct map){0};
	free(watch->path);
	free(watch->only);
	strv_done(&watch->query);
	free(watch->version);
	kube_lines_done(&watch->lines);
	err_done(&watch->error);
	free(watch);
}

static void watch_enter(struct kube_watch *watch)
{
	watch->depth++;
}

/* true: the watch is no more. */
static bool watch_leave(struct kube_watch *watch)
{
	if (--watch->depth > 0 || !watch->is_freed)
		return watch->is_freed;
	really_free(watch);
	return true;
}

static void watch_stop(struct kube_watch *watch)
{
	kube_cancel(TAKE(watch->call));
	loop_remove_timer(watch->loop, TAKE(watch->timer));
	loop_remove_timer(watch->loop, TAKE(watch->tick_timer));
}

void kube_watch_free(struct kube_watch *watch)
{
	if (!watch || watch->is_freed)
		return;
	trace_note(TRACE_KUBE, "watch %s: stopped", watch->path);
	watch_stop(watch);
	if (watch->depth > 0)
		watch->is_freed = true;
	else
		really_free(watch);
}

static int watch_on_failed(void *ctx, struct err *err)
{
	struct kube_watch *watch = ctx;
	AUTO_ERR struct err error = {0};

	watch->timer = NULL;
	err_move(&error, &watch->error);
	watch_enter(watch);
	int r = watch->events.failed(watch->events.ctx, &error, err);
	watch_leave(watch);
	return r;
}

/* End the watch. failed is called from the loop, not from within the data of a call. */
static void watch_fail(struct kube_watch *watch, struct err *error)
{
	watch_stop(watch);
	err_move(&watch->error, error);
	watch->timer = loop_add_timer(watch->loop, clock_ms(), watch_on_failed, watch);
}

/*
 * Again
 */

static void again_in(struct kube_watch *watch, int64_t wait_ms)
{
	kube_cancel(TAKE(watch->call));
	loop_remove_timer(watch->loop, watch->timer);
	watch->timer = loop_add_timer(watch->loop, clock_ms() + wait_ms, watch_on_timer, watch);
}

static int64_t watch_backoff_ms(unsigned times)
{
	return backoff_jitter_ms(times + 1, BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
}

static void list_anew(struct kube_watch *watch)
{
	free(TAKE(watch->version));
}

/* Retry after a failure that need not be reported yet. */
static void retry(struct kube_watch *watch)
{
	again_in(watch, watch_backoff_ms(watch->failures++));
}

/* The known state is too old to resume from: list at once, unless that keeps happening. */
static void expire(struct kube_watch *watch)
{
	int64_t wait_ms = watch->expired == 0 ? 0 : watch_backoff_ms(watch->expired);

	watch->expired++;
	list_anew(watch);
	again_in(watch, wait_ms);
}

static bool watch_has_id(const enum err_id *ids, size_t n, enum err_id id)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] == id)
			return true;
	return false;
}

static bool watch_is_final(const struct kube_watch *watch, enum err_id id)
{
	static const enum err_id refusals[] = {E_KUBE_DENIED, E_KUBE_NOT_FOUND, E_KUBE_INVALID};
	static const enum err_id passing[] = {E_KUBE_UNREACHABLE, E_KUBE_BUSY, E_KUBE_SERVER,
		E_KUBE_RESPONSE, E_KUBE_GONE, E_KUBE_CONFLICT};

	if (id == E_DATA_LIMIT)
		return true;
	if (!watch->has_synced)
		return !watch_has_id(passing, ARRAY_LEN(passing), id);
	return watch_has_id(refusals, ARRAY_LEN(refusals), id) && watch->in_trouble &&
	       clock_ms() >= watch->trouble_ms + REFUSED_MS;
}

/* The cluster could not be reached. What was missed is found by a list, whose response also says
 * that it is there again. */
static void watch_on_error(struct kube_watch *watch, struct err *error)
{
	if (watch_is_final(watch, error->id)) {
		watch_fail(watch, error);
		return;
	}
	watch_enter(watch);
	const struct kube_watch_events *events = &watch->events;

	if (!watch->in_trouble)
		watch->trouble_ms = clock_ms();
	watch->in_trouble = true;
	if (events->trouble)
		events->trouble(events->ctx, error, watch->trouble_ms);
	if (watch_leave(watch))
		return;
	list_anew(watch);
	retry(watch);
}

/* Poll with lists, for a user who may list but not watch. */
static void poll_later(struct kube_watch *watch)
{
	list_anew(watch);
	again_in(watch, POLL_MS);
}

/*
 * Lists
 */

static void watch_start_list(struct kube_watch *watch);

/* Report removed objects before new ones are put, which may have the same name. */
static void watch_notify_gone(struct kube_watch *watch)
{
	size_t at = 0;
	const char *key;
	void *value;

	while (!watch->is_freed && map_each(&watch->objects, &at, &key, &value)) {
		struct known *known = value;
		if (!known->metadata || known->is_listed)
			continue;
		AUTO_JSON struct json *object = json_object();
		json_set(object, "metadata", json_clone(known->metadata));
		watch_forget(watch, known);
		watch->events.gone(watch->events.ctx, object);
	}
}

static void watch_take_list(struct kube_watch *watch, const struct json *list)
{
	const struct json *items = json_get(list, "items");

	watch_enter(watch);
	const struct kube_watch_events *events = &watch->events;

	watch->failures = 0;
	if (watch->in_trouble) {
		watch->in_trouble = false;
		if (events->trouble)
			events->trouble(events->ctx, NULL, watch->trouble_ms);
	}
	size_t at = 0;
	const char *key;
	void *value;

	while (map_each(&watch->objects, &at, &key, &value))
		((struct known *)value)->is_listed = false;
	json_foreach (item, items) {
		AUTO_FREE char *name = key_of(item);
		struct known *known = map_get(&watch->objects, name);
		if (known)
			known->is_listed = true;
	}
	if (!watch->is_freed)
		watch_notify_gone(watch);
	for (const struct json *item = json_first(items); item && !watch->is_freed;
		item = json_next(item)) {
		if (!json_get_str(json_get(item, "metadata"), "name"))
			continue;
		watch_remember(watch, item);
		watch->events.put(watch->events.ctx, item);
	}
	if (!watch->is_freed) {
		watch->has_synced = true;
		watch->events.synced(watch->events.ctx);
	}
	if (watch_leave(watch))
		return;
	tidy(watch);
	if (watch->gets || clock_ms() < watch->polls_until_ms)
		poll_later(watch);
	else
		watch_go_on(watch);
}

static int watch_on_got(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct kube_watch *watch = ctx;
	AUTO_JSON struct json *list = json_object();
	struct json *items = json_array();

	watch->call = NULL;
	json_set(list, "items", items);
	if (err_is_set(&response->error) && response->error.id != E_KUBE_NOT_FOUND) {
		watch_on_error(watch, &response->error);
		return 0;
	}
	if (!err_is_set(&response->error))
		json_add(items, TAKE(response->object));
	watch_take_list(watch, list);
	return 0;
}

static void start_get(struct kube_watch *watch, int64_t deadline_ms)
{
	const struct kube_request request = {.method = "GET",
		.path = watch->only,
		.deadline_ms = deadline_ms,
		.done = watch_on_got,
		.ctx = watch};

	watch->call = kube_start(watch->client, &request);
}

static int watch_on_list(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct kube_watch *watch = ctx;
	const char *version =
		json_get_str(json_get(response->object, "metadata"), "resourceVersion");

	watch->call = NULL;
	if (!err_is_set(&response->error) && str_empty(version))
		err_set(&response->error, E_KUBE_RESPONSE,
			"a list of the cluster has no resourceVersion");
	if (response->error.id == E_KUBE_DENIED && watch->only) {
		watch->gets = true;
		watch_start_list(watch);
		return 0;
	}
	if (err_is_set(&response->error)) {
		watch_on_error(watch, &response->error);
		return 0;
	}
	REPLACE(watch->version, mem_strdup(version));
	watch_take_list(watch, response->object);
	return 0;
}

static void watch_start_list(struct kube_watch *watch)
{
	int64_t limit_ms = (int64_t)LIST_MS * (watch->failures + 1);
	int64_t deadline_ms = clock_ms() + (limit_ms < LIST_MAX_MS ? limit_ms : LIST_MAX_MS);

	trace_note(TRACE_KUBE, "watch %s: list", watch->path);
	if (watch->gets)
		start_get(watch, deadline_ms);
	else
		watch->call =
			kube_list(watch->client, watch->path, (const char *const *)watch->query.v,
				watch->max, deadline_ms, watch_on_list, watch);
}

/*
 * Streams
 */

/* An event in a 200 that is a Status: too old a resourceVersion, mostly. */
static void on_error_event(struct kube_watch *watch, const struct json *status)
{
	AUTO_ERR struct err error = {0};
	const char *said = json_get_str(status, "message");
	AUTO_FREE char *words = kube_words(said ? said : "", said ? strlen(said) : 0, WORDS_MAX);

	if (json_get_int(status, "code", 0) == 410) {
		expire(watch);
		return;
	}
	err_set(&error, E_KUBE_SERVER, "the cluster ends a watch of %s: %s", watch->path, words);
	watch_on_error(watch, &error);
}

static int watch_fail_many(struct kube_watch *watch)
{
	AUTO_ERR struct err error = {0};

	err_set(&error, E_DATA_LIMIT, "there are more than %zu objects at %s", watch->max,
		watch->path);
	watch_fail(watch, &error);
	return 1;
}

/* A malformed event is not taken for the end of the watch: a list gives the current state. */
static int watch_on_line(void *ctx, const char *line, size_t len, struct err *err UNUSED)
{
	struct kube_watch *watch = ctx;
	AUTO_KUBE_WATCH_EVENT struct kube_watch_event event = {0};
	AUTO_ERR struct err error = {0};

	if (kube_watch_event_parse(line, len, &event, &error) == 0) {
		/* 0: go on with the line that follows. */
		const struct kube_watch_events *events = &watch->events;
		AUTO_FREE char *key = key_of(event.object);

		if (event.kind == KUBE_EVENT_ERROR) {
			on_error_event(watch, event.object);
			return 1;
		}
		REPLACE(watch->version, mem_strdup(event.version));
		watch->failures = watch->expired = 0;
		if (event.kind == KUBE_EVENT_BOOKMARK)
			return 0;
		watch_enter(watch);
		if (event.kind == KUBE_EVENT_GONE) {
			watch_forget(watch, map_get(&watch->objects, key));
			events->gone(events->ctx, event.object);
		} else {
			watch_remember(watch, event.object);
			events->put(events->ctx, event.object);
		}
		if (watch_leave(watch))
			return 1;
		tidy(watch);
		return watch->n_live > watch->max ? watch_fail_many(watch) : 0;
	}
	watch_on_error(watch, &error);
	return 1;
}

static int watch_on_data(void *ctx, const void *data, size_t len, struct err *err UNUSED)
{
	struct kube_watch *watch = ctx;
	AUTO_ERR struct err error = {0};

	watch->got_bytes = true;
	/* Only its own failure is negative; the watch may be gone else. */
	if (kube_lines_add(&watch->lines, data, len, watch_on_line, watch, &error) < 0)
		watch_on_error(watch, &error);
	return 0;
}

/* Whether the end of a stream that was good is to be reported. A silent one is; a cut one is only
 * when the next one does not come. */
static bool watch_is_worth_reporting(
	const struct kube_watch *watch, const struct kube_response *response, bool was_long)
{
	if (!err_is_set(&response->error))
		return false;
	if (response->http && response->http->error.id == E_HTTP_TIMEOUT)
		return true;
	return watch->failures > 0 || (!was_long && !watch->got_bytes);
}

/* The server ends it each TIMEOUT_S; a cut one is taken up again. */
static int on_stream_end(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct kube_watch *watch = ctx;
	bool was_long = clock_ms() >= watch->stream_ms + SHORT_MS;

	trace_note(TRACE_KUBE, "watch %s: stream ended after %lld ms%s%s", watch->path,
		(long long)(clock_ms() - watch->stream_ms), response->error.message ? ": " : "",
		response->error.message ? response->error.message : "");
	watch->call = NULL;
	if (response->error.id == E_KUBE_GONE) {
		expire(watch);
	} else if (response->error.id == E_KUBE_DENIED) {
		watch->polls_until_ms = clock_ms() + POLL_FOR_MS;
		poll_later(watch);
	} else if (watch_is_worth_reporting(watch, response, was_long)) {
		watch_on_error(watch, &response->error);
	} else if (was_long && !err_is_set(&response->error)) {
		watch->failures = 0;
		again_in(watch, 0);
	} else {
		retry(watch);
	}
	return 0;
}

static void start_stream(struct kube_watch *watch)
{
	struct strv query = {0};
	int64_t now_ms = clock_ms();

	strv_copy(&query, &watch->query);
	const char *const more[] = {
		"watch", "1", "allowWatchBookmarks", "true", "resourceVersion", watch->version};
	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		strv_add(&query, more[i]);
	strv_add(&query, "timeoutSeconds");
	strv_addf(&query, "%d", TIMEOUT_S);
	const struct kube_request request = {.method = "GET",
		.path = watch->path,
		.query = (const char *const *)query.v,
		.deadline_ms = now_ms, /* repeated here */
		.data = watch_on_data,
		.share = HTTP_STREAM,
		.idle_ms = watch->idle_ms,
		.done = on_stream_end,
		.ctx = watch};
	trace_note(TRACE_KUBE, "watch %s: stream from version %s", watch->path, watch->version);
	watch->got_bytes = false;
	watch->stream_ms = now_ms;
	kube_lines_done(&watch->lines);
	kube_lines_init(&watch->lines);
	watch->call = kube_start(watch->client, &request);
	strv_done(&query);
}

static void watch_go_on(struct kube_watch *watch)
{
	if (watch->version)
		start_stream(watch);
	else
		watch_start_list(watch);
}

static int watch_on_timer(void *ctx, struct err *err UNUSED)
{
	struct kube_watch *watch = ctx;

	watch->timer = NULL;
	watch_go_on(watch);
	return 0;
}

/*
 * Sleep
 */

/* After it connections are mostly dead, which would be noticed late only. */
static int watch_on_tick(void *ctx, struct err *err UNUSED)
{
	struct kube_watch *watch = ctx;

	watch->tick_timer = loop_add_timer(watch->loop, clock_ms() + TICK_MS, watch_on_tick, watch);
	if (watch->woke_ms != loop_woke_ms(watch->loop)) {
		watch->woke_ms = loop_woke_ms(watch->loop);
		watch->failures = 0;
		again_in(watch, 0);
	}
	return 0;
}

struct kube_watch *kube_watch_start(
	struct kube_client *client, const struct kube_watch_request *request)
{
	struct kube_watch *watch = mem_alloc(1, sizeof(*watch));

	*watch = (struct kube_watch){.client = client,
		.loop = kube_client_loop(client),
		.path = mem_strdup(request->path),
		.only = request->name ? mem_printf("%s/%s", request->path, request->name) : NULL,
		.max = request->max_objects ? request->max_objects : OBJECTS_MAX,
		.idle_ms = request->idle_ms ? request->idle_ms : IDLE_MS,
		.events = request->events,
		.woke_ms = loop_woke_ms(kube_client_loop(client))};
	for (const char *const *at = request->query; at && *at; at++)
		strv_add(&watch->query, *at);
	kube_lines_init(&watch->lines);
	watch->tick_timer = loop_add_timer(watch->loop, clock_ms() + TICK_MS, watch_on_tick, watch);
	again_in(watch, 0);
	return watch;
}
