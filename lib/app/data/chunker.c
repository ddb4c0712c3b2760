/* SPDX-License-Identifier: Apache-2.0 */
#include "app/data/chunker.h"

#include "base/util/enc.h"

/* Zero bits that a cut needs: below the average size two more than its 19, above it two fewer. They
 * are the upper ones, which the last 64 bytes have gone into. */
#define CHUNK_MASK_SMALL (~0ULL << (64 - 21))
#define CHUNK_MASK_LARGE (~0ULL << (64 - 17))

/* SplitMix64: the table is the same everywhere, since the chunks of an earlier version are. */
void chunker_init(struct chunker *chunker)
{
	uint64_t state = 0;

	for (size_t i = 0; i < 256; i++) {
		uint64_t z = state += 0x9e3779b97f4a7c15ULL;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
		z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
		chunker->gear[i] = z ^ z >> 31;
	}
}

size_t chunk_cut(const struct chunker *chunker, const uint8_t *data, size_t len)
{
	size_t end = len < CHUNK_MAX ? len : CHUNK_MAX;
	size_t middle = end < CHUNK_AVERAGE ? end : CHUNK_AVERAGE;
	uint64_t hash = 0;
	size_t i = CHUNK_MIN;

	for (; i < middle; i++) {
		hash = (hash << 1) + chunker->gear[data[i]];
		if (!(hash & CHUNK_MASK_SMALL))
			return i + 1;
	}
	for (; i < end; i++) {
		hash = (hash << 1) + chunker->gear[data[i]];
		if (!(hash & CHUNK_MASK_LARGE))
			return i + 1;
	}
	return end;
}

/*
 * XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md)
 */

#define XXH_1 0x9e3779b185ebca87ULL
#define XXH_2 0xc2b2ae3d27d4eb4fULL
#define XXH_3 0x165667b19e3779f9ULL
#define XXH_4 0x85ebca77c2b2ae63ULL
#define XXH_5 0x27d4eb2f165667c5ULL

static inline uint64_t chunk_rotate(uint64_t value, unsigned bits)
{
	return value << bits | value >> (64 - bits);
}

static inline uint64_t chunk_round(uint64_t lane, uint64_t input)
{
	return chunk_rotate(lane + input * XXH_2, 31) * XXH_1;
}

static uint64_t chunk_merge(uint64_t hash, uint64_t lane)
{
	return (hash ^ chunk_round(0, lane)) * XXH_1 + XXH_4;
}

static uint64_t chunk_tail(uint64_t hash, const uint8_t *data, size_t len)
{
	for (; len >= 8; data += 8, len -= 8)
		hash = chunk_rotate(hash ^ chunk_round(0, get_le64(data)), 27) * XXH_1 + XXH_4;
	if (len >= 4) {
		hash = chunk_rotate(hash ^ get_le32(data) * XXH_1, 23) * XXH_2 + XXH_3;
		data += 4;
		len -= 4;
	}
	for (; len; data++, len--)
		hash = chunk_rotate(hash ^ *data * XXH_5, 11) * XXH_1;
	hash = (hash ^ hash >> 33) * XXH_2;
	hash = (hash ^ hash >> 29) * XXH_3;
	return hash ^ hash >> 32;
}

uint64_t chunk_hash(const uint8_t *data, size_t len)
{
	uint64_t lanes[4] = {XXH_1 + XXH_2, XXH_2, 0, 0 - XXH_1}, hash = XXH_5;
	const uint8_t *at = data;

	if (len >= 32) {
		for (; (size_t)(data + len - at) >= 32; at += 32)
			for (unsigned i = 0; i < 4; i++)
				lanes[i] = chunk_round(lanes[i], get_le64(at + 8 * i));
		hash = chunk_rotate(lanes[0], 1) + chunk_rotate(lanes[1], 7) +
		       chunk_rotate(lanes[2], 12) + chunk_rotate(lanes[3], 18);
		for (unsigned i = 0; i < 4; i++)
			hash = chunk_merge(hash, lanes[i]);
	}
	return chunk_tail(hash + len, at, (size_t)(data + len - at));
}
