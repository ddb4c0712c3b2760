/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/registry_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { FORMAT = 1, NAME_MAX_BYTES = 512 };

static void registry_cache_list_done(struct registry_cache_list *list)
{
	vec_foreach (struct registry_cache_entry, entry, list) {
		free(entry->name);
		free(entry->value);
	}
	vec_done(list);
}

void registry_cache_done(struct registry_cache *cache)
{
	if (!cache)
		return;
	registry_cache_list_done(&cache->blobs);
	registry_cache_list_done(&cache->manifests);
	registry_cache_list_done(&cache->tags);
	free(cache->challenge);
	*cache = (struct registry_cache){0};
}

/*
 * Hints
 */

const struct registry_cache_entry *registry_cache_entry_find(
	const struct registry_cache_list *list, const char *name)
{
	vec_foreach (const struct registry_cache_entry, entry, list)
		if (strcmp(entry->name, name) == 0)
			return entry;
	return NULL;
}

bool registry_cache_entry_is_fresh(
	const struct registry_cache_entry *entry, int64_t now_ms, int64_t trust_ms)
{
	return entry && entry->seen_ms <= now_ms && now_ms - entry->seen_ms <= trust_ms;
}

static void drop_at(struct registry_cache_list *list, size_t i)
{
	free(list->v[i].name);
	free(list->v[i].value);
	list->v[i] = list->v[--list->n];
}

static void drop_oldest(struct registry_cache_list *list)
{
	size_t oldest = 0;

	for (size_t i = 1; i < list->n; i++)
		if (list->v[i].seen_ms < list->v[oldest].seen_ms)
			oldest = i;
	drop_at(list, oldest);
}

static struct registry_cache_entry *registry_cache_add(
	struct registry_cache_list *list, const char *name)
{
	if (list->n >= REGISTRY_CACHE_ITEMS)
		drop_oldest(list);
	struct registry_cache_entry *entry = vec_push(list);
	entry->name = mem_strdup(name);
	return entry;
}

struct registry_cache_entry *registry_cache_put(struct registry_cache *cache,
	struct registry_cache_list *list, const char *name, const char *value, int64_t now_ms)
{
	struct registry_cache_entry *entry =
		(struct registry_cache_entry *)registry_cache_entry_find(list, name);

	if (!entry)
		entry = registry_cache_add(list, name);
	if (value && !str_eq(entry->value, value))
		REPLACE(entry->value, mem_strdup(value));
	entry->seen_ms = now_ms;
	cache->changed = true;
	return entry;
}

void registry_cache_drop(
	struct registry_cache *cache, struct registry_cache_list *list, const char *name)
{
	const struct registry_cache_entry *entry = registry_cache_entry_find(list, name);

	if (!entry)
		return;
	drop_at(list, (size_t)(entry - list->v));
	cache->changed = true;
}

void registry_cache_set(struct registry_cache *cache, enum registry_ability *which, bool able)
{
	enum registry_ability now = able ? ABILITY_YES : ABILITY_NO;

	cache->changed |= *which != now;
	*which = now;
}

/*
 * The file
 */

/* Names of an entry's members in the file. */
#define NAME   "name"
#define SEEN   "seen"
#define NEWEST "newest"
#define VALUE  "digest"

static struct json *registry_cache_list_json(const struct registry_cache_list *list)
{
	struct json *json = json_array();

	vec_foreach (const struct registry_cache_entry, entry, list) {
		struct json *row = json_object();
		json_set_str(row, NAME, entry->name);
		json_set_int(row, SEEN, entry->seen_ms);
		if (entry->in_newest)
			json_set_bool(row, NEWEST, true);
		if (entry->value)
			json_set_str(row, VALUE, entry->value);
		json_add(json, row);
	}
	return json;
}

static bool registry_cache_list_parse(const struct json *json, struct registry_cache_list *ret)
{
	if (json_count(json) > REGISTRY_CACHE_ITEMS)
		return false;
	for (const struct json *row = json_first(json); row; row = json_next(row)) {
		const char *name = json_get_str(row, NAME), *value = json_get_str(row, VALUE);
		uint8_t sha256[SHA256_SIZE];
		if (str_empty(name) || strlen(name) > NAME_MAX_BYTES ||
			(value && !digest_parse(value, sha256)))
			return false;
		struct registry_cache_entry *entry = vec_push(ret);
		entry->name = mem_strdup(name);
		entry->value = value ? mem_strdup(value) : NULL;
		entry->seen_ms = json_get_int(row, SEEN, 0);
		entry->in_newest = json_get_bool(row, NEWEST, false);
	}
	return true;
}

static enum registry_ability ability_parse(const struct json *json, const char *key)
{
	const struct json *value = json_get(json, key);

	if (!value || json_kind(value) != JSON_BOOL)
		return ABILITY_UNKNOWN;
	return json_get_bool(json, key, false) ? ABILITY_YES : ABILITY_NO;
}

static void ability_set(struct json *json, const char *key, enum registry_ability ability)
{
	if (ability != ABILITY_UNKNOWN)
		json_set_bool(json, key, ability == ABILITY_YES);
}

bool registry_cache_parse(const char *text, size_t len, struct registry_cache *ret)
{
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};
	AUTO_JSON struct json *json = NULL;

	if (json_parse(text, len, REGISTRY_CACHE_MAX, "the memory of a registry", &json, NULL) <
			0 ||
		json_get_int(json, "format", 0) != FORMAT)
		return false;
	const char *challenge = json_get_str(json, "challenge");
	if (!registry_cache_list_parse(json_get(json, "blobs"), &cache.blobs) ||
		!registry_cache_list_parse(json_get(json, "manifests"), &cache.manifests) ||
		!registry_cache_list_parse(json_get(json, "tags"), &cache.tags))
		return false;
	cache.single_post = ability_parse(json, "single_post");
	cache.chunks = ability_parse(json, "chunks");
	cache.http = json_get_bool(json, "http", false);
	cache.open = json_get_bool(json, "open", false);
	cache.mute_ms = json_get_int(json, "mute", 0);
	cache.challenge = challenge ? mem_strdup(challenge) : NULL;
	*ret = cache;
	cache = (struct registry_cache){0};
	return true;
}

void registry_cache_load(const char *path, struct registry_cache *ret)
{
	AUTO_BUF struct buf text = {0};

	*ret = (struct registry_cache){0};
	if (fs_read(path, REGISTRY_CACHE_MAX, &text, NULL, NULL) == 0)
		registry_cache_parse(text.data, text.len, ret);
}

int registry_cache_save(const char *path, struct registry_cache *cache, struct err *err)
{
	AUTO_JSON struct json *json = json_object();
	AUTO_BUF struct buf text = buf_with(REGISTRY_CACHE_MAX);

	if (!cache->changed)
		return 0;
	json_set_int(json, "format", FORMAT);
	json_set(json, "blobs", registry_cache_list_json(&cache->blobs));
	json_set(json, "manifests", registry_cache_list_json(&cache->manifests));
	json_set(json, "tags", registry_cache_list_json(&cache->tags));
	ability_set(json, "single_post", cache->single_post);
	ability_set(json, "chunks", cache->chunks);
	json_set_bool(json, "http", cache->http);
	json_set_bool(json, "open", cache->open);
	json_set_int(json, "mute", cache->mute_ms);
	if (cache->challenge)
		json_set_str(json, "challenge", cache->challenge);
	json_print(json, &text);
	int r = buf_check(&text, "the memory of a registry", err);
	if (r == 0)
		r = fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, err);
	cache->changed = r < 0;
	return r;
}
