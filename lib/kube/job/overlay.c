/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/overlay.h"

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"

#define PATCH "$patch"

enum patch { PATCH_MERGE, PATCH_REPLACE, PATCH_DELETE };

static int read_patch(const struct json *map, enum patch *ret, struct err *err)
{
	const struct json *member = json_get(map, PATCH);
	const char *word = json_str(member);

	*ret = str_eq(word, "delete")    ? PATCH_DELETE
	       : str_eq(word, "replace") ? PATCH_REPLACE
					 : PATCH_MERGE;
	if (!member || *ret != PATCH_MERGE)
		return 0;
	AUTO_FREE char *shown = str_shown(word ? word : "");
	err_set(err, E_KUBE_OVERLAY, "the overlay has $patch: '%s'", shown);
	return err_hint(err, "$patch: replace   # or delete");
}

static struct json *without_patch(const struct json *value)
{
	struct json *copy = json_clone(value);

	if (json_kind(copy) == JSON_OBJECT)
		json_remove(copy, PATCH);
	return copy;
}

/*
 * Lists
 */

static bool all_have(const struct json *list, const char *key)
{
	json_foreach (item, list)
		if (json_kind(item) != JSON_OBJECT || !json_get(item, key))
			return false;
	return true;
}

/* The key that names the items of both lists; NULL: there is none. */
static const char *name_key(const struct json *list, const struct json *overlay)
{
	static const char *const keys[] = {"mountPath", "name", "containerPort"};

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (all_have(list, keys[i]) && all_have(overlay, keys[i]))
			return keys[i];
	return NULL;
}

static bool overlay_same_name(const struct json *a, const struct json *b, const char *key)
{
	const struct json *x = json_get(a, key), *y = json_get(b, key);

	if (json_str(x) || json_str(y))
		return str_eq(json_str(x), json_str(y));
	return json_int(x, -1) == json_int(y, -2);
}

static int merge_map(struct json *to, const struct json *overlay, struct err *err);

/* Merge over into an item of a list. *ret: the new item, NULL when it is removed. */
static int merge_item(const struct json *item, const struct json *over, bool replaces,
	struct json **ret, struct err *err)
{
	AUTO_JSON struct json *copy = NULL;
	enum patch patch;

	int r = read_patch(over, &patch, err);
	if (r < 0)
		return r;
	if (patch == PATCH_DELETE) {
		*ret = NULL;
		return 0;
	}
	copy = patch == PATCH_REPLACE || replaces || !item ? json_object() : json_clone(item);
	r = merge_map(copy, over, err);
	if (r == 0)
		*ret = TAKE(copy);
	return r;
}

static const struct json *find_named(
	const struct json *list, const struct json *item, const char *key)
{
	const struct json *found = json_first(list);

	while (found && !overlay_same_name(found, item, key))
		found = json_next(found);
	return found;
}

static void overlay_add_all(struct json *out, const struct json *first)
{
	for (; first; first = json_next(first))
		json_add(out, without_patch(first));
}

/* The program's container needs no name in an overlay. */
static struct json *name_containers(const struct json *overlay)
{
	AUTO_JSON struct json *list = json_array();

	json_foreach (item, overlay) {
		struct json *copy = json_clone(item);
		if (json_kind(copy) == JSON_OBJECT && !json_get(copy, "name") &&
			!json_get(copy, PATCH))
			json_set_str(copy, "name", KUBE_CONTAINER);
		json_add(list, copy);
	}
	return TAKE(list);
}

/* {$patch: replace} or delete in front of the others. */
static int list_patch(const struct json *overlay, enum patch *ret, struct err *err)
{
	const struct json *first = json_first(overlay);

	*ret = PATCH_MERGE;
	if (!first || json_kind(first) != JSON_OBJECT || json_count(first) != 1)
		return 0;
	return read_patch(first, ret, err);
}

static int lay_on(struct json *out, const struct json *list, const char *member,
	const struct json *overlay, struct err *err)
{
	bool replaces = str_eq(member, "env") || str_eq(member, "volumes");
	AUTO_JSON struct json *named =
		str_eq(member, "containers") ? name_containers(overlay) : json_clone(overlay);
	const char *key = name_key(list, named);

	if (key) {
		/* Items of list, each with the overlay's of its name on it, then the overlay's
		 * others. */
		int r = 0;

		for (const struct json *item = json_first(list); r == 0 && item;
			item = json_next(item)) {
			const struct json *over = find_named(named, item, key);
			struct json *merged = NULL;
			if (over)
				r = merge_item(item, over, replaces, &merged, err);
			else
				merged = json_clone(item);
			if (merged)
				json_add(out, merged);
		}
		for (const struct json *over = json_first(named); r == 0 && over;
			over = json_next(over)) {
			struct json *merged = NULL;
			if (find_named(list, over, key))
				continue;
			r = merge_item(NULL, over, true, &merged, err);
			if (merged)
				json_add(out, merged);
		}
		return r;
	}
	overlay_add_all(out, json_first(list));
	overlay_add_all(out, json_first(named));
	return 0;
}

static int merge_list(
	struct json *to, const char *member, const struct json *overlay, struct err *err)
{
	AUTO_JSON struct json *out = json_array(), *none = json_array();
	const struct json *old = json_get(to, member);
	const struct json *list = old && json_kind(old) == JSON_ARRAY ? old : none;
	enum patch patch;

	int r = list_patch(overlay, &patch, err);
	if (r == 0 && patch == PATCH_REPLACE)
		overlay_add_all(out, json_next(json_first(overlay)));
	else if (r == 0 && patch == PATCH_MERGE)
		r = lay_on(out, list, member, overlay, err);
	if (r < 0)
		return r;
	if (patch == PATCH_DELETE)
		json_remove(to, member);
	else
		json_set(to, member, TAKE(out));
	return 0;
}

/*
 * Maps
 */

static int merge_object(
	struct json *to, const char *member, const struct json *overlay, struct err *err)
{
	const struct json *old = json_get(to, member);
	AUTO_JSON struct json *copy = NULL;
	enum patch patch;

	int r = read_patch(overlay, &patch, err);
	if (r < 0)
		return r;
	if (patch == PATCH_DELETE) {
		json_remove(to, member);
		return 0;
	}
	copy = patch == PATCH_MERGE && old && json_kind(old) == JSON_OBJECT ? json_clone(old)
									    : json_object();
	r = merge_map(copy, overlay, err);
	if (r == 0)
		json_set(to, member, TAKE(copy));
	return r;
}

static int merge_map(struct json *to, const struct json *overlay, struct err *err)
{
	int r = 0;

	for (const struct json *item = json_first(overlay); r == 0 && item;
		item = json_next(item)) {
		const char *key = json_key(item);

		if (str_eq(key, PATCH))
			continue;
		if (json_kind(item) == JSON_NULL)
			json_remove(to, key);
		else if (json_kind(item) == JSON_OBJECT)
			r = merge_object(to, key, item, err);
		else if (json_kind(item) == JSON_ARRAY)
			r = merge_list(to, key, item, err);
		else
			json_set(to, key, json_clone(item));
	}
	return r;
}

/*
 * Protected members
 */

bool overlay_is_same(const struct json *a, const struct json *b)
{
	AUTO_BUF struct buf x = {0}, y = {0};

	if (!a || !b)
		return a == b;
	buf_init(&x, JSON_SIZE_MAX);
	buf_init(&y, JSON_SIZE_MAX);
	json_print(a, &x);
	json_print(b, &y);
	return str_eq(x.data, y.data);
}

static int check_members(const struct json *before, const struct json *after,
	const char *const *keys, size_t n, const char *where, struct err *err)
{
	for (size_t i = 0; i < n; i++)
		if (!overlay_is_same(json_get(before, keys[i]), json_get(after, keys[i])))
			return err_set(err, E_KUBE_OVERLAY,
				"the overlay changes %s.%s, which dlrun needs as it is", where,
				keys[i]);
	return 0;
}

/* Both ways: an own one may neither be changed nor be added. */
static int check_own(
	const struct json *from, const struct json *in, const char *where, struct err *err)
{
	json_foreach (item, from) {
		const char *key = json_key(item);
		if (str_starts(key, "dlrun.io/") || str_starts(key, "app.kubernetes.io/"))
			if (!overlay_is_same(item, json_get(in, key))) {
				AUTO_FREE char *shown = str_shown(key);
				return err_set(err, E_KUBE_OVERLAY,
					"the overlay changes the %s %s, which is dlrun's own",
					where, shown);
			}
	}
	return 0;
}

static int check_maps(const struct json *before, const struct json *after, const char *member,
	const char *where, struct err *err)
{
	const struct json *old = json_get(before, member), *new = json_get(after, member);
	int r = check_own(old, new, where, err);

	return r < 0 ? r : check_own(new, old, where, err);
}

static const struct json *overlay_program_of(const struct json *pod)
{
	const struct json *list = json_get(json_get(pod, "spec"), "containers");

	json_foreach (item, list)
		if (str_eq(json_get_str(item, "name"), KUBE_CONTAINER))
			return item;
	return NULL;
}

static int check_kept(const struct json *before, const struct json *after, struct err *err)
{
	static const char *const names[] = {"name", "generateName", "namespace"};
	static const char *const spec[] = {"restartPolicy", "hostname", "subdomain"};
	static const char *const program[] = {"name", "image", "command", "args", "workingDir"};
	const struct json *old = json_get(before, "metadata"), *new = json_get(after, "metadata");

	int r = check_members(old, new, names, ARRAY_LEN(names), "metadata", err);
	if (r == 0)
		r = check_maps(old, new, "labels", "label", err);
	if (r == 0)
		r = check_maps(old, new, "annotations", "annotation", err);
	if (r == 0)
		r = check_members(json_get(before, "spec"), json_get(after, "spec"), spec,
			ARRAY_LEN(spec), "spec", err);
	if (r == 0)
		r = check_members(overlay_program_of(before), overlay_program_of(after), program,
			ARRAY_LEN(program), "spec.containers[" KUBE_CONTAINER "]", err);
	return r;
}

static int check_top(const struct json *overlay, struct err *err)
{
	if (json_kind(overlay) != JSON_OBJECT)
		return err_set(
			err, E_KUBE_OVERLAY, "the overlay is not a map with metadata and spec");
	json_foreach (item, overlay) {
		const char *key = json_key(item);
		bool is_map = str_eq(key, "metadata") || str_eq(key, "spec");
		AUTO_FREE char *shown = str_shown(key);

		if (is_map && json_kind(item) == JSON_OBJECT)
			continue;
		if (is_map)
			return err_set(
				err, E_KUBE_OVERLAY, "%s of the overlay is not a map", shown);
		if (str_eq(key, "apiVersion") ||
			(str_eq(key, "kind") &&
				str_starts(json_str(item) ? json_str(item) : "", "Pod")))
			continue;
		return err_set(err, E_KUBE_OVERLAY,
			"the overlay has '%s' beside metadata and spec: put it below spec, as in a "
			"Pod",
			shown);
	}
	return 0;
}

int kube_overlay(struct json *pod, const struct json *overlay, struct err *err)
{
	AUTO_JSON struct json *merged = json_clone(pod);

	int r = check_top(overlay, err);
	for (const struct json *item = r == 0 ? json_first(overlay) : NULL; r == 0 && item;
		item = json_next(item))
		if (json_kind(item) == JSON_OBJECT)
			r = merge_object(merged, json_key(item), item, err);
	if (r == 0)
		r = check_kept(pod, merged, err);
	if (r < 0)
		return r;
	json_foreach (item, merged)
		json_set(pod, json_key(item), json_clone(item));
	return 0;
}
