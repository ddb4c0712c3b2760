/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

/* Columns of a row beside those of the resources: what is free of cpu and memory at once, of these
 * and devices, and of all in sum. A tree over the resources alone leads to many machines that have
 * much of one and little of another. */
enum { POOL_BOTH, POOL_ALL, POOL_SUM, POOL_MORE };
enum { POOL_LANES = sizeof(pool_lanes) / sizeof(int16_t) };

static size_t pool_blocks(int n_resources)
{
	return ((size_t)n_resources + POOL_MORE + POOL_LANES - 1) / POOL_LANES;
}

static pool_lanes *pool_row(const struct scale_pool *pool, size_t i)
{
	return pool->most + i * pool_blocks(pool->n_resources);
}

static int64_t *pool_free(const struct scale_pool *pool, size_t bin)
{
	return pool->free + bin * (size_t)pool->n_resources;
}

static int16_t pool_share(double share)
{
	return share < INT16_MAX ? (int16_t)share : INT16_MAX;
}

/* Shares of amounts. None is smaller for larger amounts, so that rows tell what cannot fit. */
static void pool_shares(const int64_t *amounts, const double *scale, int n, pool_lanes *ret)
{
	int16_t of[SCALE_RESOURCES_MAX + 2 * POOL_LANES] = {0};
	double devices = 0;

	for (int r = 0; r < n; r++) {
		double share = (double)amounts[r] * scale[r];
		of[POOL_MORE + r] = pool_share(share);
		devices += r >= SCALE_RESOURCES_FIXED ? share : 0;
	}
	double cpu = (double)amounts[SCALE_CPU] * scale[SCALE_CPU];
	double memory = (double)amounts[SCALE_MEMORY] * scale[SCALE_MEMORY];
	double both = cpu < memory ? cpu : memory;
	of[POOL_BOTH] = pool_share(both);
	of[POOL_ALL] = pool_share(both < devices ? both : devices);
	of[POOL_SUM] = pool_share(cpu + memory + devices);
	memcpy(ret, of, pool_blocks(n) * sizeof(*ret));
}

void pool_want(const struct scale_amounts *request, const double *scale, int n_resources,
	struct scale_want *ret)
{
	ret->request = request;
	pool_shares(request->of, scale, n_resources, ret->shares);
}

void pool_done(struct scale_pool *pool)
{
	vec_foreach (struct scale_bin, bin, &pool->bins) {
		vec_done(&bin->marks);
		vec_done(&bin->apart);
	}
	vec_done(&pool->bins);
	REPLACE(pool->most, NULL);
	REPLACE(pool->free, NULL);
	pool->leaves = 0;
}

static void pool_sum(struct scale_pool *pool, size_t i)
{
	const pool_lanes *left = pool_row(pool, 2 * i), *right = pool_row(pool, 2 * i + 1);
	pool_lanes *row = pool_row(pool, i);

	for (size_t b = 0; b < pool_blocks(pool->n_resources); b++) {
		pool_lanes is_left = left[b] > right[b];
		row[b] = (left[b] & is_left) | (right[b] & ~is_left);
	}
}

static void pool_sum_up(struct scale_pool *pool, size_t leaf)
{
	for (size_t i = (pool->leaves + leaf) / 2; i >= 1; i /= 2)
		pool_sum(pool, i);
}

/* After a change of what is free. */
static void pool_set(struct scale_pool *pool, size_t bin)
{
	pool_shares(pool_free(pool, bin), pool->scale, pool->n_resources,
		pool_row(pool, pool->leaves + bin));
	pool_sum_up(pool, bin);
}

static void pool_grow(struct scale_pool *pool)
{
	size_t leaves = pool->leaves ? 2 * pool->leaves : 4;
	size_t row = pool_blocks(pool->n_resources) * sizeof(pool_lanes);
	pool_lanes *most = mem_grow(NULL, 2 * leaves, row);

	memset(most, 0xff, 2 * leaves * row); /* -1 */
	if (pool->most)
		memcpy((char *)most + leaves * row, pool_row(pool, pool->leaves),
			pool->leaves * row);
	REPLACE(pool->most, most);
	pool->leaves = leaves;
	pool->free = mem_grow(pool->free, leaves, (size_t)pool->n_resources * sizeof(*pool->free));
	for (size_t i = leaves - 1; i >= 1; i--)
		pool_sum(pool, i);
}

struct scale_bin *pool_add(struct scale_pool *pool, const struct scale_amounts *free)
{
	if (pool->bins.n == pool->leaves)
		pool_grow(pool);
	struct scale_bin *bin = vec_push(&pool->bins);
	*bin = (struct scale_bin){.node = -1};
	memcpy(pool_free(pool, pool->bins.n - 1), free->of,
		(size_t)pool->n_resources * sizeof(int64_t));
	pool_set(pool, pool->bins.n - 1);
	return bin;
}

void pool_cut(struct scale_pool *pool, size_t n)
{
	while (pool->bins.n > n) {
		struct scale_bin *bin = &pool->bins.v[--pool->bins.n];
		vec_done(&bin->marks);
		vec_done(&bin->apart);
		memset(pool_row(pool, pool->leaves + pool->bins.n), 0xff,
			pool_blocks(pool->n_resources) * sizeof(pool_lanes));
		pool_sum_up(pool, pool->bins.n);
	}
}

/* Whether one of the machines under a row may have room. */
static bool pool_may_have(const struct scale_pool *pool, size_t i, const struct scale_want *want)
{
	const pool_lanes *row = pool_row(pool, i);
	pool_lanes lacks = row[0] < want->shares[0];

	for (size_t b = 1; b < pool_blocks(pool->n_resources); b++)
		lacks |= row[b] < want->shares[b];
	uint64_t halves[sizeof(lacks) / sizeof(uint64_t)];
	memcpy(halves, &lacks, sizeof(halves));
	return !(halves[0] | halves[1]);
}

static bool pool_has(const struct scale_pool *pool, size_t bin, const struct scale_amounts *request)
{
	const int64_t *free = pool_free(pool, bin);

	for (int r = 0; r < pool->n_resources; r++)
		if (free[r] < request->of[r])
			return false;
	return true;
}

ptrdiff_t pool_find(const struct scale_pool *pool, const struct scale_want *want, size_t from)
{
	if (from >= pool->bins.n)
		return -1;
	size_t i = from ? pool->leaves + from : 1;
	for (;;) {
		if (pool_may_have(pool, i, want)) {
			if (i < pool->leaves) {
				i *= 2;
				continue;
			}
			if (pool_has(pool, i - pool->leaves, want->request))
				return (ptrdiff_t)(i - pool->leaves);
		}
		while (i & 1)
			i /= 2;
		if (!i)
			return -1;
		i++;
	}
}

int64_t pool_count(
	const struct scale_pool *pool, size_t bin, const struct scale_amounts *request, int64_t max)
{
	const int64_t *free = pool_free(pool, bin);

	for (int r = 0; r < pool->n_resources; r++)
		if (request->of[r] > 0 && free[r] / request->of[r] < max)
			max = free[r] / request->of[r];
	return max;
}

void pool_take(
	struct scale_pool *pool, size_t bin, const struct scale_amounts *request, int64_t count)
{
	int64_t *free = pool_free(pool, bin);

	for (int r = 0; r < pool->n_resources; r++)
		free[r] -= count * request->of[r];
	pool->bins.v[bin].placed += count;
	pool_set(pool, bin);
}
