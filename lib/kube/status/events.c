/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/status/events.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/object.h"

enum { NAME_TEXT_MAX = 253, REASON_TEXT_MAX = 128, SEPARATOR = '\x1f', COUNT_MAX = 1000 * 1000 };

/*
 * Text
 */

static bool event_is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Append one character of text, made printable; returns the bytes that it takes in text. */
static size_t event_add_char(struct buf *out, const char *text, size_t len)
{
	uint32_t cp;
	size_t n = unicode_decode(text, len, &cp);

	if (!n) {
		buf_addf(out, "\\x%02x", (unsigned char)*text);
		return 1;
	}
	if (unicode_is_control(cp) || unicode_is_hidden(cp))
		buf_addf(out, "\\u%04x", cp);
	else
		buf_add(out, text, n);
	return n;
}

char *kube_text(const char *text, size_t max)
{
	static const char more[] = "…";
	AUTO_BUF struct buf out;
	size_t len = text ? strlen(text) : 0,
	       keep = max < sizeof(more) ? 0 : max - sizeof(more) + 1;
	size_t fits = 0, at = 0;

	buf_init(&out, max + 16);
	while (at < len && out.len <= max) {
		if (out.len <= keep)
			fits = out.len;
		if (!event_is_blank(text[at])) {
			at += event_add_char(&out, text + at, len - at);
			continue;
		}
		while (at < len && event_is_blank(text[at]))
			at++;
		if (out.len && at < len)
			buf_addc(&out, ' ');
	}
	if (out.len > max) {
		buf_truncate(&out, fits);
		buf_adds(&out, max >= sizeof(more) ? more : "");
	}
	return buf_take(&out);
}

/*
 * Single events
 */

static void event_done(struct kube_event *event)
{
	free(event->kind);
	free(event->name);
	free(event->uid);
	free(event->reason);
	free(event->message);
	free(event->reporter);
}

void kube_event_list_done(struct kube_event_list *list)
{
	if (!list)
		return;
	vec_foreach (struct kube_event, event, list)
		event_done(event);
	vec_done(list);
}

static int64_t event_first_of(int64_t a, int64_t b, int64_t c)
{
	return a ? a : b ? b : c;
}

static const struct json *event_either(
	const struct json *object, const char *one, const char *other)
{
	const struct json *value = json_get(object, one);

	return value && json_kind(value) != JSON_NULL ? value : json_get(object, other);
}

static char *event_reporter_of(const struct json *object)
{
	const char *name = json_get_str(object, "reportingController");

	if (str_empty(name))
		name = json_get_str(object, "reportingComponent");
	if (str_empty(name))
		name = json_get_str(
			event_either(object, "source", "deprecatedSource"), "component");
	return kube_text(name, REASON_TEXT_MAX);
}

/* firstTimestamp and lastTimestamp are null in events of the new form, eventTime in the old one;
 * series has the newest time where there is one. */
static void event_read_times(const struct json *object, struct kube_event *event)
{
	const struct json *series = json_get(object, "series");
	int64_t created = kube_time_at(object, "metadata.creationTimestamp");
	int64_t first = event_first_of(kube_time_at(object, "firstTimestamp"),
		kube_time_at(object, "deprecatedFirstTimestamp"),
		kube_time_at(object, "eventTime"));
	int64_t last = event_first_of(kube_time_at(series, "lastObservedTime"),
		kube_time_at(object, "lastTimestamp"),
		kube_time_at(object, "deprecatedLastTimestamp"));
	int64_t count = json_get_int(
		series, "count", json_int(event_either(object, "count", "deprecatedCount"), 1));

	event->first_ms = event_first_of(first, last, created);
	event->last_ms = event_first_of(last, event->first_ms, created);
	if (event->last_ms < event->first_ms)
		event->last_ms = event->first_ms;
	event->count = count < 1 ? 1 : count > COUNT_MAX ? COUNT_MAX : (int)count;
}

static bool event_read_event(const struct json *object, struct kube_event *ret)
{
	const struct json *about = event_either(object, "involvedObject", "regarding");
	const char *message = json_str(event_either(object, "message", "note"));

	if (!json_get_str(object, "reason") || !about || json_kind(about) != JSON_OBJECT)
		return false;
	*ret = (struct kube_event){
		.kind = kube_text(json_get_str(about, "kind"), REASON_TEXT_MAX),
		.name = kube_text(json_get_str(about, "name"), NAME_TEXT_MAX),
		.uid = kube_text(json_get_str(about, "uid"), REASON_TEXT_MAX),
		.reason = kube_text(json_get_str(object, "reason"), REASON_TEXT_MAX),
		.message = kube_text(message, KUBE_EVENT_TEXT_MAX),
		.reporter = event_reporter_of(object),
		.warning = str_eq(json_get_str(object, "type"), "Warning"),
	};
	event_read_times(object, ret);
	return true;
}

/*
 * Lists
 */

static int event_by_time(const void *a, const void *b)
{
	const struct kube_event *x = a, *y = b;
	int order = (x->last_ms > y->last_ms) - (x->last_ms < y->last_ms);

	if (!order)
		order = (x->first_ms > y->first_ms) - (x->first_ms < y->first_ms);
	if (!order)
		order = strcmp(x->reason, y->reason);
	return order ? order : strcmp(x->message, y->message);
}

static void event_merge(struct kube_event *into, const struct kube_event *from)
{
	if (from->first_ms && (!into->first_ms || from->first_ms < into->first_ms))
		into->first_ms = from->first_ms;
	if (from->last_ms > into->last_ms)
		into->last_ms = from->last_ms;
	into->count = into->count < COUNT_MAX - from->count ? into->count + from->count : COUNT_MAX;
}

/* The same once more: the position in map is one more than that in the list. */
static void event_add_event(
	struct kube_event_list *list, struct map *seen, struct kube_event *event)
{
	AUTO_FREE char *key = mem_printf("%s%c%s%c%s%c%s", event->kind, SEPARATOR, event->name,
		SEPARATOR, event->reason, SEPARATOR, event->message);
	uintptr_t at = (uintptr_t)map_get(seen, key);

	if (at) {
		event_merge(&list->v[at - 1], event);
		event_done(event);
		return;
	}
	*vec_push(list) = *event;
	map_put(seen, key, (void *)list->n);
}

static void event_drop_oldest(struct kube_event_list *list)
{
	size_t drop = list->n > KUBE_EVENTS_MAX ? list->n - KUBE_EVENTS_MAX : 0;

	if (!drop)
		return;
	for (size_t i = 0; i < drop; i++)
		event_done(&list->v[i]);
	memmove(list->v, list->v + drop, (list->n - drop) * sizeof(*list->v));
	list->n -= drop;
}

void kube_events_collect(const struct kube_items *items, struct kube_event_list *ret)
{
	struct map seen = {0};

	*ret = (struct kube_event_list){0};
	for (size_t i = 0; i < items->n; i++) {
		struct kube_event event;

		if (event_read_event(items->v[i], &event))
			event_add_event(ret, &seen, &event);
	}
	map_done(&seen);
	vec_sort(ret, event_by_time);
	event_drop_oldest(ret);
}

static bool event_matches(const char *wanted, const char *is)
{
	return !wanted || str_eq(wanted, is);
}

const struct kube_event *kube_events_newest(
	const struct kube_event_list *list, const char *kind, const char *name, const char *reason)
{
	for (size_t i = list->n; i-- > 0;) {
		const struct kube_event *event = &list->v[i];

		if (event_matches(kind, event->kind) && event_matches(name, event->name) &&
			(reason ? str_eq(reason, event->reason) : event->warning))
			return event;
	}
	return NULL;
}
