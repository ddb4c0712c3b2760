/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/watch_lines.h"

#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"

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
static int give(struct kube_lines *lines, const char *data, size_t len, kube_line_fn *fn, void *ctx,
	struct err *err)
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
		int r = give(lines, data, used, fn, ctx, err);
		if (r != 0)
			return r;
		data += used + 1;
		len -= used + 1;
	}
	return 0;
}

static int fail_event(const char *why, struct err *err)
{
	return err_set(err, E_KUBE_ANSWER, "the cluster sends %s where an event is due", why);
}

static bool kind_of(const char *type, enum kube_event_kind *ret)
{
	static const struct {
		const char *type;
		enum kube_event_kind kind;
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

int kube_event_parse(const char *line, size_t len, struct kube_event *ret, struct err *err)
{
	AUTO_KUBE_EVENT struct kube_event event = {0};

	if (json_parse(line, len, KUBE_LINE_MAX, "", &event.root, NULL) < 0)
		return fail_event("something that is not JSON", err);
	event.object = json_get(event.root, "object");
	if (!kind_of(json_get_str(event.root, "type"), &event.kind) || !event.object ||
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
	event = (struct kube_event){0};
	return 0;
}

void kube_event_done(struct kube_event *event)
{
	json_free(event->root);
	*event = (struct kube_event){0};
}
