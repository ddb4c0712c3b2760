/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache of a repository's state between pushes, so that the common push does not repeat requests
 * of late: which blobs and manifests it has, what its tags stand for, what it can do.
 *
 * All entries have an age. A wrong entry costs requests, never a wrong image: the registry
 * itself says at the end what it lacks. One JSON file for each repository, replaced by rename; of
 * several processes the last one's stays.
 */
#ifndef DLRUN_OCI_REGISTRY_REGISTRY_CACHE_H
#define DLRUN_OCI_REGISTRY_REGISTRY_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum {
	REGISTRY_CACHE_MAX = 1 << 20, /* bytes of the file */
	REGISTRY_CACHE_ITEMS = 1024,  /* of each kind; the oldest go */
};
/* How long an entry is taken as it is, in ms. */
#define REGISTRY_TRUST_BLOB_MS (60LL * 60 * 1000)
#define REGISTRY_TRUST_TAG_MS  (60LL * 1000)
#define REGISTRY_TRUST_MUTE_MS (10LL * 60 * 1000)

/* Something that the repository had. */
struct registry_cache_entry {
	char *name;      /* a digest, or "TAG PLATFORM" of a tag */
	char *value;     /* of a tag: the digest that it stood for; else NULL */
	int64_t seen_ms; /* wall clock */
	bool in_newest;  /* a blob of the image that was pushed last */
};
struct registry_cache_list VEC_OF(struct registry_cache_entry);

enum registry_ability { ABILITY_UNKNOWN, ABILITY_YES, ABILITY_NO };

struct registry_cache {
	struct registry_cache_list blobs, manifests, tags;
	enum registry_ability single_post; /* a blob in one POST */
	enum registry_ability chunks;      /* PATCH, resumed by Range */
	bool http;                         /* it was reached without TLS */
	bool open;                         /* it did not ask for a login */
	char *challenge;                   /* how it requests a login */
	int64_t mute_ms; /* wall clock: no response said whether blobs are there */
	bool changed;    /* since it was loaded */
};

/* A missing or damaged file is an empty cache. */
void registry_cache_load(const char *path, struct registry_cache *ret);
/* If something changed. */
int registry_cache_save(const char *path, struct registry_cache *cache, struct err *err);
void registry_cache_done(struct registry_cache *cache);
#define AUTO_REGISTRY_CACHE AUTO(registry_cache_done)

/* NULL: not known. */
const struct registry_cache_entry *registry_cache_entry_find(
	const struct registry_cache_list *list, const char *name);
/* Seen at now_ms not longer ago than trust_ms (times of the future do not count). */
bool registry_cache_entry_is_fresh(
	const struct registry_cache_entry *entry, int64_t now_ms, int64_t trust_ms);

/* Seen now; value may be NULL. The returned entry is valid until the next change. */
struct registry_cache_entry *registry_cache_put(struct registry_cache *cache,
	struct registry_cache_list *list, const char *name, const char *value, int64_t now_ms);
void registry_cache_drop(
	struct registry_cache *cache, struct registry_cache_list *list, const char *name);
void registry_cache_set(struct registry_cache *cache, enum registry_ability *which, bool able);

/* The engine below load: false unless text is exactly of that form. */
bool registry_cache_parse(const char *text, size_t len, struct registry_cache *ret);

#endif
