/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot/spark.h"

#include <math.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { HEIGHTS = 8 };

struct bucket {
	double sum;
	size_t n;
};

/* Whether a metric of that name may be that curve. */
static bool spark_is_called(const struct series_curve *curve, const char *name)
{
	const char *last = fs_basename(curve->dir);
	AUTO_FREE char *in_last = mem_printf("%s/%s", last, curve->tag);
	AUTO_FREE char *in_nested =
		curve->nested ? mem_printf("%s/%s", curve->nested, curve->tag) : NULL;

	return str_eq(curve->tag, name) || str_eq(in_last, name) || str_eq(in_nested, name);
}

bool spark_find(const struct series *series, const char *name, struct series_curve *ret)
{
	double newest_s = -INFINITY;
	bool found = false;

	for (size_t i = 0; i < series_count(series); i++) {
		struct series_curve curve;

		series_get(series, i, &curve);
		if (curve.n == 0 || !spark_is_called(&curve, name) ||
			(found && !(curve.points[curve.n - 1].wall_time_s > newest_s)))
			continue;
		*ret = curve;
		newest_s = curve.points[curve.n - 1].wall_time_s;
		found = true;
	}
	return found;
}

/* By steps; returns how many values are finite. */
static size_t spark_fill(const struct series_point *points, size_t n, struct bucket *buckets)
{
	double first = (double)points[0].step, last = (double)points[n - 1].step;
	size_t finite = 0;

	for (size_t i = 0; i < n; i++) {
		double part = last > first ? ((double)points[i].step - first) / (last - first)
					   : (double)i / (double)n;
		size_t at = (size_t)(part * SPARK_WIDTH);
		struct bucket *bucket = &buckets[at < SPARK_WIDTH ? at : SPARK_WIDTH - 1];

		if (!isfinite(points[i].value))
			continue;
		bucket->sum += points[i].value;
		bucket->n++;
		finite++;
	}
	return finite;
}

static void add_block(double part, struct buf *out)
{
	int height = (int)(part * HEIGHTS);

	if (!(part > 0))
		height = 0;
	else if (height >= HEIGHTS)
		height = HEIGHTS - 1;
	/* U+2581 to U+2588 */
	buf_addf(out, "\xe2\x96%c", 0x81 + height);
}

bool spark_add(const struct series_point *points, size_t n, struct buf *out)
{
	struct bucket buckets[SPARK_WIDTH] = {0};
	double low = INFINITY, high = -INFINITY;

	if (n < 2 || spark_fill(points, n, buckets) < 2)
		return false;
	for (size_t i = 0; i < SPARK_WIDTH; i++) {
		double mean = buckets[i].n ? buckets[i].sum / (double)buckets[i].n : NAN;
		low = fmin(low, mean);
		high = fmax(high, mean);
	}
	/* Few points: as many blocks as there are. */
	for (size_t i = 0; i < SPARK_WIDTH; i++) {
		if (buckets[i].n)
			add_block(
				(buckets[i].sum / (double)buckets[i].n - low) / (high - low), out);
		else if (n >= SPARK_WIDTH)
			buf_addc(out, ' ');
	}
	return true;
}
