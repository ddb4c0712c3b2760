/* SPDX-License-Identifier: Apache-2.0 */
#include "core/study/axes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/axes_impl.h"

/*
 * The list of axes
 */

struct axes *axes_new(void)
{
	return mem_alloc(1, sizeof(struct axes));
}

void axes_free(struct axes *axes)
{
	if (!axes)
		return;
	vec_foreach (struct axis, axis, axes)
		axis_done(axis);
	vec_done(axes);
	free(axes);
}

size_t axes_count(const struct axes *axes)
{
	return axes->n;
}

static int axes_check_name(const struct axes *axes, const char *name,
	const struct axis_source *source, struct err *err)
{
	if (!axis_name_is_valid(name, strlen(name))) {
		axis_error(err, source,
			"a name begins with a letter or \"_\", followed by letters, digits and "
			"_ . - /, %d at most",
			AXES_NAME_MAX);
		return axis_hint(err, source, "0.1,0.03", "[0.1, 0.03]");
	}
	if (axis_name_is_reserved(name))
		return axis_error(
			err, source, "{%s} has a meaning of its own: another name is needed", name);
	vec_foreach (const struct axis, axis, axes)
		if (str_eq(axis->name, name))
			return axis_error(err, source, "the axis %s is there already", name);
	if (axes->n == AXES_MAX)
		return axis_error(err, source, "there are %d axes already", AXES_MAX);
	return 0;
}

static int axes_add_list(struct axes *axes, const char *name, const char *list,
	const struct axis_source *source, struct err *err)
{
	struct axis axis = {.name = mem_strdup(name),
		.list = mem_strdup(list),
		.where = mem_strdup(source->where),
		.is_yaml = source->is_yaml};
	int r = axes_check_name(axes, name, source, err);

	if (r == 0)
		r = axis_parse(&axis, source, err);
	if (r < 0)
		axis_done(&axis);
	else
		*vec_push(axes) = axis;
	return r;
}

static const char *axes_hint_name(const char *name)
{
	return axis_name_is_valid(name, strlen(name)) ? name : "lr";
}

int axes_add(struct axes *axes, const char *text, struct err *err)
{
	const char *equals = strchr(text, '=');
	AUTO_FREE char *name = mem_strndup(text, equals ? (size_t)(equals - text) : strlen(text));
	AUTO_FREE char *shown = str_shown(text);
	struct axis_source source = {.id = E_USAGE,
		.where = mem_printf("--over %s", shown),
		.name = axes_hint_name(name)};
	int r;

	if (equals) {
		r = axes_add_list(axes, name, equals + 1, &source, err);
	} else {
		axis_error(err, &source, "\"=\" and a list of values are missing");
		r = axis_hint(err, &source, "0.1,0.03", "");
	}
	axis_source_done(&source);
	return r;
}

/*
 * The form in dlrun.yaml
 */

static void axes_json_list(const struct json *json, struct buf *out)
{
	for (const struct json *item = json_first(json); item; item = json_next(item)) {
		AUTO_BUF struct buf text = buf_with(JSON_SIZE_MAX);

		axis_json_text(item, &text);
		if (item != json_first(json))
			buf_addc(out, ',');
		axis_quote(out, text.data);
	}
}

static int axes_bad_map(const struct axis_source *source, struct err *err)
{
	axis_error(err, source,
		"a map has one of lin, log, uniform and loguniform with two "
		"numbers in a list, and n, the number of values");
	return axis_hint(err, source, "log:1e-4..1e-1:12", "{log: [1e-4, 1e-1], n: 12}");
}

/* {log: [1e-4, 1e-1], n: 12} becomes "log:1e-4..1e-1:12". */
static int axes_json_map(
	const struct json *json, const struct axis_source *source, struct buf *out, struct err *err)
{
	const struct json *ends = NULL, *n = json_get(json, "n");

	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		if (m == n)
			continue;
		if (ends || !str_is_word_of(json_key(m), "lin log uniform loguniform") ||
			json_kind(m) != JSON_ARRAY || json_count(m) != 2)
			return axes_bad_map(source, err);
		ends = m;
	}
	if (!ends)
		return axes_bad_map(source, err);
	buf_addf(out, "%s:", json_key(ends));
	axis_json_text(json_first(ends), out);
	buf_adds(out, "..");
	axis_json_text(json_next(json_first(ends)), out);
	if (n) {
		buf_addc(out, ':');
		axis_json_text(n, out);
	}
	/* Text in the place of a number cannot begin another item. */
	return strpbrk(out->data, ",\"'\\[]{}() ") ? axes_bad_map(source, err) : 0;
}

int axes_add_json(struct axes *axes, const char *name, const struct json *json, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);
	struct axis_source source = {.id = E_CONFIG,
		.where = mem_printf("sweep.over.%s", shown),
		.is_yaml = true,
		.name = axes_hint_name(name)};
	AUTO_BUF struct buf list = buf_with(JSON_SIZE_MAX);
	int r = 0;

	switch (json_kind(json)) {
	case JSON_OBJECT:
		r = axes_json_map(json, &source, &list, err);
		break;
	case JSON_ARRAY:
		axes_json_list(json, &list);
		break;
	case JSON_NULL:
		break;
	default:
		axis_json_text(json, &list);
	}
	if (r == 0)
		r = buf_check(&list, source.where, err);
	if (r == 0)
		r = axes_add_list(axes, name, list.data, &source, err);
	axis_source_done(&source);
	return r;
}

struct json *axes_to_json(const struct axes *axes)
{
	struct json *object = json_object();

	vec_foreach (const struct axis, axis, axes)
		json_set_str(object, axis->name, axis->list);
	return object;
}

char *axes_describe(const struct axes *axes)
{
	struct buf out;

	buf_init(&out, AXES_MAX * (AXES_NAME_MAX + 32));
	vec_foreach (const struct axis, axis, axes) {
		if (axis != axes->v)
			buf_adds(&out, " × ");
		if (axis->n)
			buf_addf(&out, "%" PRIu64 " ", axis->n);
		buf_adds(&out, axis->name);
	}
	return out.data;
}

/*
 * The number of combinations
 */

/* An axis without a count, or NULL. */
static const struct axis *axes_drawn(const struct axes *axes)
{
	vec_foreach (const struct axis, axis, axes)
		if (axis->n == 0)
			return axis;
	return NULL;
}

static int axes_check_lengths(const struct axes *axes, uint64_t *ret, struct err *err)
{
	const struct axis *first = NULL;

	vec_foreach (const struct axis, axis, axes) {
		if (first && axis->n && axis->n != first->n) {
			err_set(err, E_USAGE,
				"--zip: %s has %" PRIu64 " value%s and %s has %" PRIu64,
				first->name, first->n, first->n == 1 ? "" : "s", axis->name,
				axis->n);
			return err_hint(err, "without --zip all combinations are made");
		}
		if (!first && axis->n)
			first = axis;
	}
	*ret = first ? first->n : 1;
	return 0;
}

/* Of a grid; UINT64_MAX: more than can be counted. */
static uint64_t axes_product(const struct axes *axes)
{
	uint64_t product = 1;

	vec_foreach (const struct axis, axis, axes)
		if (axis->n && __builtin_mul_overflow(product, axis->n, &product))
			return UINT64_MAX;
	return product;
}

static int axes_too_many(const struct axes *axes, uint64_t total, struct err *err)
{
	AUTO_FREE char *shown = axes_describe(axes);

	if (total == UINT64_MAX)
		return err_set(err, E_USAGE, "%s are more combinations than can be counted", shown);
	err_set(err, E_USAGE, "%s are %" PRIu64 " combinations; a study has at most %d members",
		shown, total, CASES_MAX);
	return err_hint(err, "dlrun sweep --sample 100 …");
}

static int axes_check_sample(const struct axes *axes, const struct cases_options *options,
	uint64_t total, struct err *err)
{
	const struct axis *drawn = axes_drawn(axes);

	if (options->sample > CASES_MAX)
		return err_set(err, E_USAGE, "--sample %zu: a study has at most %d members",
			options->sample, CASES_MAX);
	if (total == UINT64_MAX)
		return axes_too_many(axes, total, err);
	if (!drawn && options->sample > total) {
		err_set(err, E_USAGE, "--sample %zu: there are only %" PRIu64 " combinations",
			options->sample, total);
		return err_hint(err, "without --sample all of them are made");
	}
	return 0;
}

static int axes_check_all(const struct axes *axes, uint64_t total, struct err *err)
{
	const struct axis *drawn = axes_drawn(axes);

	if (drawn) {
		struct axis_source source = {E_USAGE, drawn->where, drawn->is_yaml, drawn->name};
		AUTO_FREE char *list = mem_printf("%s:12", drawn->list);
		axis_error(err, &source, "without a number of values it needs --sample");
		return axis_hint(err, &source, list, list);
	}
	return total > CASES_MAX ? axes_too_many(axes, total, err) : 0;
}

/* A value that stands twice makes members that cannot be told from each other. */
static int axes_check_twice(const struct axis *axis, uint64_t seed, struct err *err)
{
	struct map seen = {0};
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < axis->n; i++) {
		AUTO_FREE char *value = axis_value(axis, i, seed);
		AUTO_FREE char *shown = str_shown(value);

		if (!map_put(&seen, value, &seen))
			continue;
		err_set(err, E_USAGE, "the axis %s has the value \"%s\" twice", axis->name, shown);
		r = err_hint(err, "--over repeat=1..5");
	}
	map_done(&seen);
	return r;
}

static int axes_check(const struct axes *axes, const struct cases_options *options,
	uint64_t *ret_total, struct err *err)
{
	int r = 0;

	if (!axes->n) {
		err_set(err, E_USAGE, "a study needs an axis");
		return err_hint(err, "dlrun sweep --over lr=0.1,0.03 …");
	}
	if (options->zip)
		r = axes_check_lengths(axes, ret_total, err);
	else
		*ret_total = axes_product(axes);
	if (r == 0)
		r = options->sample ? axes_check_sample(axes, options, *ret_total, err)
				    : axes_check_all(axes, *ret_total, err);
	vec_foreach (const struct axis, axis, axes)
		if (r == 0 && !options->zip && axis->n <= CASES_MAX)
			r = axes_check_twice(axis, options->seed, err);
	return r;
}

/*
 * A sample
 */

/* Each below n is equally likely. */
static uint64_t axes_random_below(uint64_t *state, uint64_t n)
{
	uint64_t over = UINT64_MAX % n + 1, x;

	do
		x = axis_random_next(state);
	while (over != n && x > UINT64_MAX - over);
	return x % n;
}

/* A shuffle of the numbers below total of which only the places that were exchanged are kept. */
struct axes_shuffle {
	struct map moved;
	uint64_t *values;
};

static uint64_t axes_shuffle_get(const struct axes_shuffle *shuffle, uint64_t place)
{
	AUTO_FREE char *key = mem_printf("%" PRIu64, place);
	const uint64_t *moved = map_get(&shuffle->moved, key);

	return moved ? *moved : place;
}

/* Fill n numbers below total: all different, as long as there are such; then another shuffle. */
static void axes_sample(uint64_t total, size_t n, uint64_t seed, uint64_t *ret)
{
	struct axes_shuffle shuffle = {.values = mem_alloc(n, sizeof(*ret))};
	uint64_t state = seed;

	for (size_t i = 0; i < n; i++) {
		uint64_t at = i % total, other = at + axes_random_below(&state, total - at);
		AUTO_FREE char *key = mem_printf("%" PRIu64, other);

		if (at == 0)
			map_done(&shuffle.moved);
		ret[i] = axes_shuffle_get(&shuffle, other);
		shuffle.values[i] = axes_shuffle_get(&shuffle, at);
		map_put(&shuffle.moved, key, &shuffle.values[i]);
	}
	map_done(&shuffle.moved);
	free(shuffle.values);
}

/*
 * Rows
 */

static void axes_add_row(const struct axes *axes, const struct cases_options *options,
	uint64_t combination, struct cases *to)
{
	uint64_t at[AXES_MAX];

	for (size_t k = axes->n; k-- > 0;) {
		uint64_t n = axes->v[k].n;

		at[k] = n == 0 ? to->n : options->zip ? combination : combination % n;
		if (n && !options->zip)
			combination /= n;
	}
	for (size_t k = 0; k < axes->n; k++)
		strv_add_take(&to->values, axis_value(&axes->v[k], at[k], options->seed));
	to->n++;
}

int cases_make(const struct axes *axes, const struct cases_options *options, struct cases *ret,
	struct err *err)
{
	AUTO_FREE uint64_t *sample = NULL;
	struct cases cases = {0};
	uint64_t total = 0;
	int r = axes_check(axes, options, &total, err);

	if (r < 0)
		return r;
	size_t n = options->sample ? options->sample : (size_t)total;
	if (options->sample) {
		sample = mem_alloc(n, sizeof(*sample));
		axes_sample(total, n, options->seed, sample);
	}
	vec_foreach (const struct axis, axis, axes)
		strv_add(&cases.keys, axis->name);
	for (size_t i = 0; i < n; i++)
		axes_add_row(axes, options, sample ? sample[i] : i, &cases);
	*ret = cases;
	return 0;
}
