/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache of a tree's layers at one destination, so that an edit writes a small layer only: the full
 * layer with the list of its entries, and the layers made last, by what went into them.
 *
 * Two files, each replaced by rename, each with the SHA-256 of its content in front, so that a
 * reader needs no lock and a damaged one counts as missing:
 *	PATH         magic, SHA-256, spec, full layer, its entries; changes with that layer only
 *	PATH.recent  magic, SHA-256, layers
 * Both are caches: any loss costs a new full layer, never a wrong one.
 */
#ifndef DLRUN_OCI_IMAGE_PLAN_H
#define DLRUN_OCI_IMAGE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/util/auto.h"
#include "base/util/err.h"

enum {
	PLAN_RECENT_MAX = 128,   /* more than the layers of any image */
	PLAN_SIZE_MAX = 1 << 30, /* bytes; a larger one is not read */
};

/* A layer that was made. key: of everything that its bytes depend on. */
struct plan_layer {
	uint8_t key[SHA256_SIZE];
	uint8_t diff_id[SHA256_SIZE];
	uint8_t digest[SHA256_SIZE]; /* of the compressed blob */
	uint64_t size;               /* of the compressed blob */
};

struct plan {
	bool has_full;
	uint8_t spec[SHA256_SIZE]; /* of what holds for all layers: place, time, compression */
	struct plan_layer full;
	struct entry *entries; /* of the full layer, sorted; strings lie in the file */
	size_t n_entries;
	struct plan_layer recent[PLAN_RECENT_MAX]; /* last used first */
	size_t n_recent;
	struct plan_layer saved[PLAN_RECENT_MAX]; /* as PATH.recent has them */
	size_t n_saved;
	void *map; /* the file */
	size_t map_size;
};

/* Load the plan by mmap. A missing or damaged file counts as empty. */
void plan_load(const char *path, struct plan *ret);
void plan_done(struct plan *plan);
#define AUTO_PLAN AUTO(plan_done)

/* The layer with this key, or NULL. */
const struct plan_layer *plan_find(const struct plan *plan, const uint8_t key[static SHA256_SIZE]);
/* Put layer in front of the recent ones. */
void plan_remember(struct plan *plan, const struct plan_layer *layer);

/* Write PATH: a full layer of these entries. */
int plan_save_full(const char *path, const uint8_t spec[static SHA256_SIZE],
	const struct plan_layer *full, const struct entry *const *entries, size_t n_entries,
	struct err *err);
/* Write PATH.recent unless it says the same already. */
int plan_save_recent(const char *path, struct plan *plan, struct err *err);

/* The engine below plan_load: PATH's bytes behind the checksum. The strings of ret lie in data.
 * false unless data is exactly of that form, with sorted, relative, normal paths. */
bool plan_parse_full(const uint8_t *data, size_t size, struct plan *ret);
bool plan_parse_recent(const uint8_t *data, size_t size, struct plan *ret);

#endif
