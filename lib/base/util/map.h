/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash map from byte strings to pointers. Keys are copied, values belong to the caller.
 */
#ifndef DLRUN_BASE_UTIL_MAP_H
#define DLRUN_BASE_UTIL_MAP_H

#include <stddef.h>

struct map_slot;

/* Zero is an empty map. */
struct map {
	struct map_slot *slots;
	size_t n, cap;
};

void map_done(struct map *map);
/* The old value of the key, or NULL. value must not be NULL. */
void *map_put(struct map *map, const char *key, void *value);
void *map_get(const struct map *map, const char *key);
/* Each pair in no particular order: start with *pos = 0; false at the end. The map must not change
 * meanwhile. */
int map_each(const struct map *map, size_t *pos, const char **ret_key, void **ret_value);

#endif
