/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/registry_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { FORMAT = 1, NAME_MAX_BYTES = 512 };

static void hints_done(struct registry_hints *hints)
{
	vec_foreach (struct registry_cache_entry, hint, hints) {
		free(hint->name);
		free(hint->value);
	}
	vec_done(hints);
}

void registry_cache_done(struct registry_cache *memory)
{
	if (!memory)
		return;
	hints_done(&memory->blobs);
	hints_done(&memory->manifests);
	hints_done(&memory->tags);
	free(memory->challenge);
	*memory = (struct registry_cache){0};
}

/*
 * Hints
 */

const struct registry_cache_entry *registry_cache_entry_find(
	const struct registry_hints *hints, const char *name)
{
	vec_foreach (const struct registry_cache_entry, hint, hints)
		if (strcmp(hint->name, name) == 0)
			return hint;
	return NULL;
}

bool registry_cache_entry_is_fresh(
	const struct registry_cache_entry *hint, int64_t now_ms, int64_t trust_ms)
{
	return hint && hint->seen_ms <= now_ms && now_ms - hint->seen_ms <= trust_ms;
}

static void drop_at(struct registry_hints *hints, size_t i)
{
	free(hints->v[i].name);
	free(hints->v[i].value);
	hints->v[i] = hints->v[--hints->n];
}

static void drop_oldest(struct registry_hints *hints)
{
	size_t oldest = 0;

	for (size_t i = 1; i < hints->n; i++)
		if (hints->v[i].seen_ms < hints->v[oldest].seen_ms)
			oldest = i;
	drop_at(hints, oldest);
}

static struct registry_cache_entry *registry_cache_add_hint(
	struct registry_hints *hints, const char *name)
{
	if (hints->n >= REGISTRY_CACHE_ITEMS)
		drop_oldest(hints);
	struct registry_cache_entry *hint = vec_push(hints);
	hint->name = mem_strdup(name);
	return hint;
}

struct registry_cache_entry *registry_remember(struct registry_cache *memory,
	struct registry_hints *hints, const char *name, const char *value, int64_t now_ms)
{
	struct registry_cache_entry *hint =
		(struct registry_cache_entry *)registry_cache_entry_find(hints, name);

	if (!hint)
		hint = registry_cache_add_hint(hints, name);
	if (value && !str_eq(hint->value, value)) {
		free(hint->value);
		hint->value = mem_strdup(value);
	}
	hint->seen_ms = now_ms;
	memory->changed = true;
	return hint;
}

void registry_forget(struct registry_cache *memory, struct registry_hints *hints, const char *name)
{
	const struct registry_cache_entry *hint = registry_cache_entry_find(hints, name);

	if (!hint)
		return;
	drop_at(hints, (size_t)(hint - hints->v));
	memory->changed = true;
}

void registry_cache_set(struct registry_cache *memory, enum registry_ability *which, bool able)
{
	enum registry_ability now = able ? ABILITY_YES : ABILITY_NO;

	memory->changed |= *which != now;
	*which = now;
}

/*
 * The file
 */

/* Names of a hint's members in the file. */
#define NAME   "name"
#define SEEN   "seen"
#define NEWEST "newest"
#define VALUE  "digest"

static struct json *hints_json(const struct registry_hints *hints)
{
	struct json *json = json_array();

	vec_foreach (const struct registry_cache_entry, hint, hints) {
		struct json *row = json_object();
		json_set_str(row, NAME, hint->name);
		json_set_int(row, SEEN, hint->seen_ms);
		if (hint->in_newest)
			json_set_bool(row, NEWEST, true);
		if (hint->value)
			json_set_str(row, VALUE, hint->value);
		json_add(json, row);
	}
	return json;
}

static bool hints_parse(const struct json *json, struct registry_hints *ret)
{
	if (json_count(json) > REGISTRY_CACHE_ITEMS)
		return false;
	for (const struct json *row = json_first(json); row; row = json_next(row)) {
		const char *name = json_get_str(row, NAME), *value = json_get_str(row, VALUE);
		uint8_t sha256[SHA256_SIZE];
		if (str_empty(name) || strlen(name) > NAME_MAX_BYTES ||
			(value && !digest_parse(value, sha256)))
			return false;
		struct registry_cache_entry *hint = vec_push(ret);
		hint->name = mem_strdup(name);
		hint->value = value ? mem_strdup(value) : NULL;
		hint->seen_ms = json_get_int(row, SEEN, 0);
		hint->in_newest = json_get_bool(row, NEWEST, false);
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
	AUTO_REGISTRY_CACHE struct registry_cache memory = {0};
	AUTO_JSON struct json *json = NULL;

	if (json_parse(text, len, REGISTRY_CACHE_MAX, "the memory of a registry", &json, NULL) <
			0 ||
		json_get_int(json, "format", 0) != FORMAT)
		return false;
	const char *challenge = json_get_str(json, "challenge");
	if (!hints_parse(json_get(json, "blobs"), &memory.blobs) ||
		!hints_parse(json_get(json, "manifests"), &memory.manifests) ||
		!hints_parse(json_get(json, "tags"), &memory.tags))
		return false;
	memory.single_post = ability_parse(json, "single_post");
	memory.chunks = ability_parse(json, "chunks");
	memory.http = json_get_bool(json, "http", false);
	memory.open = json_get_bool(json, "open", false);
	memory.mute_ms = json_get_int(json, "mute", 0);
	memory.challenge = challenge ? mem_strdup(challenge) : NULL;
	*ret = memory;
	memory = (struct registry_cache){0};
	return true;
}

void registry_cache_load(const char *path, struct registry_cache *ret)
{
	AUTO_BUF struct buf text = {0};

	*ret = (struct registry_cache){0};
	if (fs_read(path, REGISTRY_CACHE_MAX, &text, NULL, NULL) == 0)
		registry_cache_parse(text.data, text.len, ret);
}

int registry_cache_save(const char *path, struct registry_cache *memory, struct err *err)
{
	AUTO_JSON struct json *json = json_object();
	AUTO_BUF struct buf text = {0};

	if (!memory->changed)
		return 0;
	json_set_int(json, "format", FORMAT);
	json_set(json, "blobs", hints_json(&memory->blobs));
	json_set(json, "manifests", hints_json(&memory->manifests));
	json_set(json, "tags", hints_json(&memory->tags));
	ability_set(json, "single_post", memory->single_post);
	ability_set(json, "chunks", memory->chunks);
	json_set_bool(json, "http", memory->http);
	json_set_bool(json, "open", memory->open);
	json_set_int(json, "mute", memory->mute_ms);
	if (memory->challenge)
		json_set_str(json, "challenge", memory->challenge);
	buf_init(&text, REGISTRY_CACHE_MAX);
	json_print(json, &text);
	int r = buf_check(&text, "the memory of a registry", err);
	if (r == 0)
		r = fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, err);
	memory->changed = r < 0;
	return r;
}
