/* SPDX-License-Identifier: Apache-2.0 */
#include "events/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/os/fs.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "events/event_files.h"

struct scalar {
	char *tag;
	size_t dir, file;
	double value, wall_time_s;
	int64_t step;
	struct extreme {
		double value; /* NaN: there was no finite one */
		int64_t step;
	} lowest, highest;
};

struct scalar_list VEC_OF(struct scalar *);

struct metrics {
	struct event_files *files;
	struct scalar_list scalars; /* in the order of their appearance */
	struct map by_key;
};

static struct scalar *metrics_add_scalar(
	struct metrics *metrics, const char *key, size_t dir, const char *tag)
{
	if (metrics->scalars.n >= METRICS_SCALARS || strlen(tag) > METRICS_NAME_MAX ||
		!str_is_plain(tag))
		return NULL;
	struct scalar *scalar = mem_alloc(1, sizeof(*scalar));
	*scalar = (struct scalar){.tag = mem_strdup(tag),
		.dir = dir,
		.wall_time_s = -INFINITY,
		.lowest = {.value = NAN},
		.highest = {.value = NAN}};
	map_put(&metrics->by_key, key, scalar);
	*vec_push(&metrics->scalars) = scalar;
	return scalar;
}

static void metrics_on_scalar(
	void *ctx, size_t dir, size_t file, const struct tfevents_scalar *event)
{
	struct metrics *metrics = ctx;
	char key[TFEVENT_TAG_MAX + 32];

	snprintf(key, sizeof(key), "%zu/%s", dir, event->tag);
	struct scalar *scalar = map_get(&metrics->by_key, key);
	if (!scalar)
		scalar = metrics_add_scalar(metrics, key, dir, event->tag);
	if (!scalar)
		return;
	if (isfinite(event->value)) {
		const struct extreme now = {event->value, event->step};
		if (!(scalar->lowest.value <= now.value))
			scalar->lowest = now;
		if (!(scalar->highest.value >= now.value))
			scalar->highest = now;
	}
	/* Within a file the order of writing counts, between files only the clock. */
	if (scalar->file != file && event->wall_time_s < scalar->wall_time_s)
		return;
	scalar->file = file;
	scalar->value = event->value;
	scalar->step = event->step;
	scalar->wall_time_s = event->wall_time_s;
}

struct metrics *metrics_new(const char *dir)
{
	struct metrics *metrics = mem_alloc(1, sizeof(*metrics));
	const struct event_files_spec spec = {
		.dir = dir,
		.depth_max = METRICS_DEPTH,
		.dirs_max = METRICS_DIRS,
		.files_max = METRICS_FILES,
		.entries_max = METRICS_ENTRIES,
		.bytes_max = METRICS_POLL_BYTES,
		.record_max = METRICS_RECORD_MAX,
		.scalar = metrics_on_scalar,
		.ctx = metrics,
	};

	metrics->files = event_files_new(&spec);
	return metrics;
}

bool metrics_poll(struct metrics *metrics)
{
	return event_files_poll(metrics->files);
}

/*
 * The result
 */

static bool is_split(const char *name)
{
	static const char *const names[] = {"val", "valid", "validation", "dev", "eval", "test"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_eq(name, names[i]))
			return true;
	return false;
}

/* A sub-run that is named by its time, as of hparams, says nothing. */
static char *metrics_name_of(const struct metrics *metrics, const struct scalar *scalar)
{
	const char *path = event_files_dir(metrics->files, scalar->dir);
	const char *name = fs_basename(path);
	const char *nested = event_files_nested(metrics->files, scalar->dir);

	if (nested && !str_is_digit(*nested) && str_is_plain(nested))
		name = nested;
	else if (!is_split(name))
		return mem_strdup(scalar->tag);
	return mem_printf("%s/%s", name, scalar->tag);
}

/* Values are floats mostly: 0.1, not the double next to that float. */
static double shortest(double value)
{
	enum { FLOAT_DIGITS_MIN = 6, FLOAT_DIGITS_MAX = 9 };
	char text[32];

	if (!isfinite(value) || (double)(float)value != value)
		return value;
	for (int digits = FLOAT_DIGITS_MIN; digits <= FLOAT_DIGITS_MAX; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, value);
		if ((double)strtof(text, NULL) == value)
			return strtod(text, NULL);
	}
	return value;
}

static struct json *metrics_value_json(const struct scalar *scalar)
{
	struct json *json = json_object();

	json_set_num(json, "value", shortest(scalar->value));
	json_set_int(json, "step", scalar->step);
	if (isnan(scalar->value))
		json_set_str(json, "not_finite", "nan");
	else if (isinf(scalar->value))
		json_set_str(json, "not_finite", scalar->value < 0 ? "-inf" : "inf");
	if (isfinite(scalar->lowest.value)) {
		json_set_num(json, "min", shortest(scalar->lowest.value));
		json_set_int(json, "min_step", scalar->lowest.step);
		json_set_num(json, "max", shortest(scalar->highest.value));
		json_set_int(json, "max_step", scalar->highest.step);
	}
	return json;
}

struct json *metrics_json(const struct metrics *metrics)
{
	struct json *json = json_object();
	struct map shown = {0};

	vec_foreach (struct scalar *, scalar, &metrics->scalars) {
		AUTO_FREE char *name = metrics_name_of(metrics, *scalar);
		const struct scalar *other = map_get(&shown, name);

		if (other && !((*scalar)->wall_time_s >= other->wall_time_s))
			continue;
		if (!other && shown.n >= METRICS_MAX)
			continue;
		map_put(&shown, name, *scalar);
		json_set(json, name, metrics_value_json(*scalar));
	}
	map_done(&shown);
	return json;
}

void metrics_free(struct metrics *metrics)
{
	if (!metrics)
		return;
	event_files_free(metrics->files);
	vec_foreach (struct scalar *, scalar, &metrics->scalars) {
		free((*scalar)->tag);
		free(*scalar);
	}
	vec_done(&metrics->scalars);
	map_done(&metrics->by_key);
	free(metrics);
}
