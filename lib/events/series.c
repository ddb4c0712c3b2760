/* SPDX-License-Identifier: Apache-2.0 */
#include "events/series.h"

#include <math.h>
#include <stdlib.h>

#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "events/event_files.h"

enum {
	DIRS_MAX = 100 * 1000,
	ENTRIES_MAX = 2 * 1000 * 1000, /* names that one look reads */
	STARTS_MAX = 1000,             /* that are kept for curves that have not seen them */
};

struct point_list VEC_OF(struct series_point);
struct step_list VEC_OF(int64_t);

struct curve {
	size_t dir;
	char *tag;
	struct point_list points;
	struct step_list seams;
	uint64_t starts_seen; /* of its directory */
};

struct curve_list VEC_OF(struct curve *);

/* A program says that it goes on from step: the number of times it has said so before, and step. */
struct start {
	uint64_t number;
	int64_t step;
};

struct start_list VEC_OF(struct start);

struct place {
	struct curve_list curves;
	struct map by_tag;
	struct curve *last; /* that had a value */
	/* Restarts that some curves may not have seen, with rising steps: of two the earlier counts
	 * only where its step is lower. */
	struct start_list starts;
	uint64_t n_starts; /* ever */
};

struct place_list VEC_OF(struct place *);

struct series {
	char *dir;
	struct event_files *files;
	struct place_list places; /* by the number of the directory; NULL: no curves */
	struct curve_list sorted;
	size_t n_curves, n_points, points_max;
	double newest_s;
	bool changed, is_full;
};

/*
 * A single curve
 */

/* The first point that is not before step. */
static size_t find_step(const struct curve *curve, int64_t step)
{
	return vec_bound(&curve->points, point, point->step < step);
}

/* The program went on from step: points from there on are void. */
static void series_cut(struct series *series, struct curve *curve, int64_t step)
{
	size_t keep = find_step(curve, step);
	struct step_list *seams = &curve->seams;

	series->n_points -= curve->points.n - keep;
	curve->points.n = keep;
	/* Seams that nothing follows any more, or nothing stands before. */
	while (seams->n > 0 && (!keep || seams->v[seams->n - 1] > curve->points.v[keep - 1].step))
		seams->n--;
	if (keep > 0)
		*vec_push(seams) = step;
	series->changed = true;
}

static void catch_up(struct series *series, const struct place *place, struct curve *curve)
{
	size_t at = place->starts.n;

	if (curve->starts_seen == place->n_starts)
		return;
	/* The earliest that it has not seen is the lowest. */
	while (at > 0 && place->starts.v[at - 1].number >= curve->starts_seen)
		at--;
	if (at < place->starts.n)
		series_cut(series, curve, place->starts.v[at].step);
	curve->starts_seen = place->n_starts;
}

static void add_point(struct series *series, struct curve *curve, const struct series_point *point)
{
	const struct series_point *last =
		curve->points.n ? &curve->points.v[curve->points.n - 1] : NULL;

	if (last && point->step < last->step)
		series_cut(series, curve, point->step);
	else if (last && point->step == last->step)
		curve->points.n--, series->n_points--;
	if (series->n_points >= series->points_max) {
		series->is_full = true;
		return;
	}
	*vec_push(&curve->points) = *point;
	series->n_points++;
	series->changed = true;
}

/*
 * Directories
 */

static struct place *series_place_of(struct series *series, size_t dir)
{
	while (series->places.n <= dir)
		*vec_push(&series->places) = NULL;
	if (!series->places.v[dir])
		series->places.v[dir] = mem_alloc(1, sizeof(struct place));
	return series->places.v[dir];
}

static struct curve *series_add_curve(
	struct series *series, struct place *place, size_t dir, const char *tag)
{
	if (series->n_curves >= SERIES_CURVES_MAX) {
		series->is_full = true;
		return NULL;
	}
	struct curve *curve = mem_alloc(1, sizeof(*curve));
	*curve = (struct curve){.dir = dir, .tag = mem_strdup(tag), .starts_seen = place->n_starts};
	*vec_push(&place->curves) = curve;
	map_put(&place->by_tag, tag, curve);
	series->n_curves++;
	return curve;
}

static void series_on_scalar(
	void *ctx, size_t dir, size_t file UNUSED, const struct tfevents_scalar *scalar)
{
	struct series *series = ctx;
	struct place *place = series_place_of(series, dir);
	struct curve *curve = place->last;
	const struct series_point point = {scalar->step, scalar->wall_time_s, scalar->value};

	if (!curve || !str_eq(curve->tag, scalar->tag))
		curve = map_get(&place->by_tag, scalar->tag);
	if (!curve)
		curve = series_add_curve(series, place, dir, scalar->tag);
	if (!curve)
		return;
	place->last = curve;
	catch_up(series, place, curve);
	add_point(series, curve, &point);
	if (!(scalar->wall_time_s <= series->newest_s) && isfinite(scalar->wall_time_s))
		series->newest_s = scalar->wall_time_s;
}

static void catch_up_all(struct series *series, struct place *place)
{
	vec_foreach (struct curve *, curve, &place->curves)
		catch_up(series, place, *curve);
	place->starts.n = 0;
}

/* Curves see it when they get a value or at the end of the look, not now: there may be very many
 * of both. */
static void series_on_restart(void *ctx, size_t dir, size_t file UNUSED, int64_t step)
{
	struct series *series = ctx;
	struct place *place = series_place_of(series, dir);

	if (!place->curves.n)
		return;
	while (place->starts.n && place->starts.v[place->starts.n - 1].step >= step)
		place->starts.n--;
	*vec_push(&place->starts) = (struct start){place->n_starts++, step};
	if (place->starts.n >= STARTS_MAX)
		catch_up_all(series, place);
}

/*
 * All of them
 */

struct series *series_new(const char *dir)
{
	struct series *series = mem_alloc(1, sizeof(*series));
	const struct event_files_spec spec = {
		.dir = dir,
		.depth_max = SERIES_DEPTH,
		.dirs_max = DIRS_MAX,
		.files_max = SERIES_FILES_MAX,
		.entries_max = ENTRIES_MAX,
		.bytes_max = SERIES_PART,
		.record_max = SERIES_RECORD_MAX,
		.tags_max = SERIES_CURVES_MAX,
		.scalar = series_on_scalar,
		.restart = series_on_restart,
		.ctx = series,
	};

	series->points_max = SERIES_POINTS_MAX;
	series->dir = mem_strdup(dir);
	series->newest_s = (double)NAN;
	series->files = event_files_new(&spec);
	return series;
}

struct sort_key {
	struct curve *curve;
	const char *dir;
};

static int by_tag_and_dir(const void *a, const void *b)
{
	const struct sort_key *x = a, *y = b;
	int order = strcmp(x->curve->tag, y->curve->tag);

	return order ? order : strcmp(x->dir, y->dir);
}

static void sort(struct series *series)
{
	struct sort_key *keys = mem_alloc(series->n_curves, sizeof(*keys));
	size_t n = 0;

	for (size_t i = 0; i < series->places.n; i++)
		for (size_t k = 0; series->places.v[i] && k < series->places.v[i]->curves.n; k++)
			keys[n++] = (struct sort_key){series->places.v[i]->curves.v[k],
				event_files_dir(series->files, i)};
	qsort(keys, n, sizeof(*keys), by_tag_and_dir);
	series->sorted.n = 0;
	for (size_t i = 0; i < n; i++)
		*vec_push(&series->sorted) = keys[i].curve;
	free(keys);
}

int series_poll_part(struct series *series, bool *ret_more, struct err *err)
{
	*ret_more = event_files_poll(series->files) && !series->is_full;
	vec_foreach (struct place *, place, &series->places)
		if (*place)
			catch_up_all(series, *place);
	if (series->sorted.n != series->n_curves)
		sort(series);
	if (!series->is_full)
		return 0;
	return err_set(err, E_DATA_LIMIT, "%s has more than %d values or %d curves", series->dir,
		(int)series->points_max, SERIES_CURVES_MAX);
}

int series_poll(struct series *series, bool *ret_new, struct err *err)
{
	bool more = true;
	int r = 0;

	series->changed = false;
	while (r == 0 && more)
		r = series_poll_part(series, &more, err);
	*ret_new = series->changed;
	return r;
}

void series_limit(struct series *series, size_t points)
{
	series->points_max = points < SERIES_POINTS_MAX ? points : SERIES_POINTS_MAX;
}

size_t series_count(const struct series *series)
{
	return series->sorted.n;
}

void series_get(const struct series *series, size_t i, struct series_curve *ret)
{
	const struct curve *curve = series->sorted.v[i];

	*ret = (struct series_curve){
		.dir = event_files_dir(series->files, curve->dir),
		.tag = curve->tag,
		.nested = event_files_nested(series->files, curve->dir),
		.points = curve->points.v,
		.n = curve->points.n,
		.seams = curve->seams.v,
		.n_seams = curve->seams.n,
	};
}

double series_newest_s(const struct series *series)
{
	return series->newest_s;
}

static void free_curve(struct curve *curve)
{
	free(curve->tag);
	vec_done(&curve->points);
	vec_done(&curve->seams);
	free(curve);
}

static void free_place(struct place *place)
{
	if (!place)
		return;
	vec_foreach (struct curve *, curve, &place->curves)
		free_curve(*curve);
	vec_done(&place->curves);
	vec_done(&place->starts);
	map_done(&place->by_tag);
	free(place);
}

void series_free(struct series *series)
{
	if (!series)
		return;
	event_files_free(series->files);
	vec_foreach (struct place *, place, &series->places)
		free_place(*place);
	vec_done(&series->places);
	vec_done(&series->sorted);
	free(series->dir);
	free(series);
}
