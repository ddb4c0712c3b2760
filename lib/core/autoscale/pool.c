/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

static int64_t *pool_row(const struct scale_pool *pool, size_t i)
{
	return pool->most + i * (size_t)pool->n_resources;
}

void pool_done(struct scale_pool *pool)
{
	vec_foreach (struct scale_bin, bin, &pool->bins) {
		vec_done(&bin->marks);
		vec_done(&bin->apart);
	}
	vec_done(&pool->bins);
	REPLACE(pool->most, NULL);
	pool->leaves = 0;
}

static void pool_sum(struct scale_pool *pool, size_t i)
{
	const int64_t *left = pool_row(pool, 2 * i), *right = pool_row(pool, 2 * i + 1);
	int64_t *row = pool_row(pool, i);

	for (int r = 0; r < pool->n_resources; r++)
		row[r] = left[r] > right[r] ? left[r] : right[r];
}

static void pool_sum_up(struct scale_pool *pool, size_t leaf)
{
	for (size_t i = (pool->leaves + leaf) / 2; i >= 1; i /= 2)
		pool_sum(pool, i);
}

static void pool_grow(struct scale_pool *pool)
{
	size_t leaves = pool->leaves ? 2 * pool->leaves : 4;
	size_t row = (size_t)pool->n_resources * sizeof(int64_t);
	int64_t *most = mem_grow(NULL, 2 * leaves, row);

	memset(most, 0xff, 2 * leaves * row); /* -1 */
	if (pool->most)
		memcpy(most + leaves * (size_t)pool->n_resources, pool_row(pool, pool->leaves),
			pool->leaves * row);
	REPLACE(pool->most, most);
	pool->leaves = leaves;
	for (size_t i = leaves - 1; i >= 1; i--)
		pool_sum(pool, i);
}

struct scale_bin *pool_add(struct scale_pool *pool, const struct scale_amounts *free)
{
	if (pool->bins.n == pool->leaves)
		pool_grow(pool);
	struct scale_bin *bin = vec_push(&pool->bins);
	*bin = (struct scale_bin){.node = -1};
	memcpy(pool_row(pool, pool->leaves + pool->bins.n - 1), free->of,
		(size_t)pool->n_resources * sizeof(int64_t));
	pool_sum_up(pool, pool->bins.n - 1);
	return bin;
}

void pool_cut(struct scale_pool *pool, size_t n)
{
	while (pool->bins.n > n) {
		struct scale_bin *bin = &pool->bins.v[--pool->bins.n];
		vec_done(&bin->marks);
		vec_done(&bin->apart);
		memset(pool_row(pool, pool->leaves + pool->bins.n), 0xff,
			(size_t)pool->n_resources * sizeof(int64_t));
		pool_sum_up(pool, pool->bins.n);
	}
}

static bool pool_has(const struct scale_pool *pool, size_t i, const struct scale_amounts *request)
{
	const int64_t *row = pool_row(pool, i);

	for (int r = 0; r < pool->n_resources; r++)
		if (row[r] < request->of[r])
			return false;
	return true;
}

ptrdiff_t pool_find(const struct scale_pool *pool, const struct scale_amounts *request, size_t from)
{
	if (from >= pool->bins.n)
		return -1;
	size_t i = from ? pool->leaves + from : 1;
	for (;;) {
		if (pool_has(pool, i, request)) {
			if (i >= pool->leaves)
				return (ptrdiff_t)(i - pool->leaves);
			i *= 2;
			continue;
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
	const int64_t *row = pool_row(pool, pool->leaves + bin);

	for (int r = 0; r < pool->n_resources; r++)
		if (request->of[r] > 0 && row[r] / request->of[r] < max)
			max = row[r] / request->of[r];
	return max;
}

void pool_take(
	struct scale_pool *pool, size_t bin, const struct scale_amounts *request, int64_t count)
{
	int64_t *row = pool_row(pool, pool->leaves + bin);

	for (int r = 0; r < pool->n_resources; r++)
		row[r] -= count * request->of[r];
	pool->bins.v[bin].placed += count;
	pool_sum_up(pool, bin);
}
