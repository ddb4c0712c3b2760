#include "run/observed.h"

#include <stdbool.h>

#include "base/str.h"

/* A member of that kind, or NULL. */
static const struct json *part(const struct json *object, const char *key, enum json_kind kind)
{
	const struct json *value = json_get(object, key);

	return value && json_kind(value) == kind && json_count(value) > 0 ? value : NULL;
}

static void merge_known(const struct json *from, struct json *to)
{
	for (const struct json *item = from ? json_first(from) : NULL; item; item = json_next(item))
		if (json_kind(item) != JSON_NULL)
			json_set(to, json_key(item), json_clone(item));
}

static void merge_missing(const struct json *from, struct json *to)
{
	for (const struct json *item = from ? json_first(from) : NULL; item; item = json_next(item))
		if (!json_get(to, json_key(item)))
			json_set(to, json_key(item), json_clone(item));
}

static bool has_text(const struct json *array, const char *text)
{
	for (const struct json *item = json_first(array); item; item = json_next(item))
		if (str_eq(json_str(item), text))
			return true;
	return false;
}

static void add_text(struct json *doc, const char *key, const char *text)
{
	const struct json *before = part(doc, key, JSON_ARRAY);
	struct json *all;

	if (!text || (before && has_text(before, text)) || json_count(before) >= OBSERVED_TEXTS_MAX)
		return;
	all = before ? json_clone(before) : json_array();
	json_add_str(all, text);
	json_set(doc, key, all);
}

void observed_merge(const struct json *observed, struct json *doc)
{
	const struct json *metrics = part(observed, "metrics", JSON_OBJECT);
	const struct json *links = part(observed, "links", JSON_ARRAY);

	merge_known(part(observed, "usage", JSON_OBJECT), json_sub(doc, "usage"));
	merge_known(part(observed, "resources", JSON_OBJECT), json_sub(doc, "resources"));
	merge_missing(part(observed, "params", JSON_OBJECT), json_sub(doc, "params"));
	if (metrics)
		json_set(doc, "metrics", json_clone(metrics));
	for (const struct json *link = links ? json_first(links) : NULL; link;
		link = json_next(link))
		add_text(doc, "links", json_str(link));
	add_text(doc, "warnings", json_get_str(observed, "warning"));
}
