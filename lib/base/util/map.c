/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/random.h"

enum { FIRST_CAP = 16 };

struct map_slot {
	char *key; /* NULL: free */
	void *value;
	uint64_t hash;
};

/* Half of the key of this process, made on first use. If several threads make one at once, the
 * first is used. */
static uint64_t key_half(int i)
{
	static _Atomic uint64_t key[2];
	uint64_t half = atomic_load_explicit(&key[i], memory_order_relaxed), none = 0;

	if (half)
		return half;
	random_bytes(&half, sizeof(half));
	half |= 1; /* 0 says that there is none yet */
	return atomic_compare_exchange_strong(&key[i], &none, half) ? half : none;
}

static uint64_t rotate(uint64_t x, int n)
{
	return x << n | x >> (64 - n);
}

static void sip_rounds(uint64_t v[4], int n)
{
	while (n--) {
		v[0] += v[1];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[0] = rotate(v[0], 32);
		v[2] += v[3];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[2] = rotate(v[2], 32);
	}
}

/* SipHash-1-3 under a key of this process: keys come from peers, who must not be able to choose
 * ones that collide. */
static uint64_t hash_of(const char *key)
{
	size_t len = strlen(key);
	const uint8_t *p = (const uint8_t *)key;
	uint8_t tail[8] = {0};

	uint64_t seed[2] = {key_half(0), key_half(1)};
	uint64_t v[4] = {
		seed[0] ^ 0x736f6d6570736575u,
		seed[1] ^ 0x646f72616e646f6du,
		seed[0] ^ 0x6c7967656e657261u,
		seed[1] ^ 0x7465646279746573u,
	};
	for (size_t left = len; left >= 8; left -= 8, p += 8) {
		uint64_t word = get_le64(p);
		v[3] ^= word;
		sip_rounds(v, 1);
		v[0] ^= word;
	}
	memcpy(tail, p, len & 7);
	tail[7] = (uint8_t)len;
	uint64_t word = get_le64(tail);
	v[3] ^= word;
	sip_rounds(v, 1);
	v[0] ^= word;
	v[2] ^= 0xff;
	sip_rounds(v, 3);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The slot of the key, or the free one where it belongs. */
static struct map_slot *map_probe(const struct map *map, const char *key, uint64_t hash)
{
	for (size_t i = hash & (map->cap - 1);; i = (i + 1) & (map->cap - 1)) {
		struct map_slot *slot = &map->slots[i];
		if (!slot->key || (slot->hash == hash && strcmp(slot->key, key) == 0))
			return slot;
	}
}

static void grow(struct map *map)
{
	struct map old = *map;

	map->cap = old.cap ? 2 * old.cap : FIRST_CAP;
	map->slots = mem_alloc(map->cap, sizeof(*map->slots));
	for (size_t i = 0; i < old.cap; i++)
		if (old.slots[i].key)
			*map_probe(map, old.slots[i].key, old.slots[i].hash) = old.slots[i];
	free(old.slots);
}

void *map_put(struct map *map, const char *key, void *value)
{
	uint64_t hash = hash_of(key);

	BUG_ON(!value);
	if (map->n >= map->cap - map->cap / 4)
		grow(map);
	struct map_slot *slot = map_probe(map, key, hash);
	void *old = slot->value;
	if (!slot->key) {
		slot->key = mem_strdup(key);
		slot->hash = hash;
		map->n++;
	}
	slot->value = value;
	return old;
}

void *map_get(const struct map *map, const char *key)
{
	return map->n ? map_probe(map, key, hash_of(key))->value : NULL;
}

int map_each(const struct map *map, size_t *pos, const char **ret_key, void **ret_value)
{
	for (; *pos < map->cap; ++*pos) {
		const struct map_slot *slot = &map->slots[*pos];
		if (!slot->key)
			continue;
		*ret_key = slot->key;
		*ret_value = slot->value;
		++*pos;
		return 1;
	}
	return 0;
}

void map_done(struct map *map)
{
	if (!map)
		return;
	for (size_t i = 0; i < map->cap; i++)
		free(map->slots[i].key);
	free(map->slots);
	*map = (struct map){0};
}
