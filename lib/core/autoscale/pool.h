/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines that are alike but for what is free on them, and the first one in their order that has
 * room: a tree of the largest free amounts, so that full machines cost nothing.
 */
#ifndef DLRUN_CORE_AUTOSCALE_POOL_H
#define DLRUN_CORE_AUTOSCALE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/autoscale/model.h"
#include "core/autoscale/plan.h"

/* Marks of anti-affinity, by number. */
struct scale_marks VEC_OF(int32_t);
struct scale_bin {
	int32_t node;   /* of nodes; -1: a machine that is no node yet */
	int64_t placed; /* pods that wait and are placed there */
	/* Of pods there: the marks that they have, and those that they are apart from. */
	struct scale_marks marks, apart;
};
struct scale_bins VEC_OF(struct scale_bin);

/* Shares of amounts as whole numbers. */
enum { POOL_WHOLE = 10 * 1000 };
typedef int16_t pool_lanes __attribute__((vector_size(16), aligned(8)));

struct scale_pool {
	enum scale_supply supply;
	int32_t group; /* -1: none */
	int32_t machine_class;
	int32_t zone; /* a number for its name; -1: none */
	int n_resources;
	const double *scale; /* of each resource: POOL_WHOLE by the most that there is of it */
	struct scale_bins bins;
	size_t leaves;    /* a power of two, at least bins.n */
	int64_t *free;    /* [leaves][n_resources] */
	pool_lanes *most; /* [2 * leaves]: shares of bins from [leaves] on; -1: no bin */
};
void pool_done(struct scale_pool *pool);
/* A new last one. */
struct scale_bin *pool_add(struct scale_pool *pool, const struct scale_amounts *free);
/* Only the first n stay. */
void pool_cut(struct scale_pool *pool, size_t n);
/* A request that is looked for in several pools of the same scale; it is borrowed. */
struct scale_want {
	const struct scale_amounts *request;
	pool_lanes shares[3];
};
void pool_want(const struct scale_amounts *request, const double *scale, int n_resources,
	struct scale_want *ret);
/* The first at from or behind it that has room for one request; -1: none. */
ptrdiff_t pool_find(const struct scale_pool *pool, const struct scale_want *want, size_t from);
/* How many such requests it has room for, at most max. */
int64_t pool_count(const struct scale_pool *pool, size_t bin, const struct scale_amounts *request,
	int64_t max);
/* Take so many requests from it; negative: give them back. */
void pool_take(
	struct scale_pool *pool, size_t bin, const struct scale_amounts *request, int64_t count);

#endif
