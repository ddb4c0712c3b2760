/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/group.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/columns.h"

const char *run_group(const struct run *run)
{
	return json_get_str(run->doc, "group");
}

const char *run_study(const struct run *run)
{
	return json_get_str(json_get(run->doc, "study"), "id");
}

int64_t run_member_index(const struct run *run)
{
	const char *group = run_group(run), *id = run_id(run);
	char member[RUN_ID_SIZE];
	size_t len;
	int64_t index;

	if (!group || !run_id_is_valid(group) || strlen(group) + 2 > sizeof(member))
		return -1;
	/* With the '-'. */
	len = strlen(group) - RUN_SUFFIX;
	if (strncmp(id, group, len) != 0)
		return -1;
	AUTO_FREE char *digits = mem_strndup(id + len, strspn(id + len, "0123456789"));
	if (strlen(digits) >= RUN_INDEX_MAX ||
		str_to_int(digits, 0, INT32_MAX, "", &index, NULL) < 0)
		return -1;
	if (strlen(group) + 1 + strlen(digits) >= sizeof(member))
		return -1;
	run_member_id(group, (size_t)index, member);
	return str_eq(member, id) ? index : -1;
}

/*
 * Order
 */

struct group_place {
	struct run *run;
	int64_t index;
	size_t at; /* in the list as it was */
};

static int group_compare_places(const void *a, const void *b)
{
	const struct group_place *one = a, *other = b;
	bool is_numbered = one->index >= 0;

	if (is_numbered != (other->index >= 0))
		return is_numbered ? -1 : 1;
	if (one->index != other->index)
		return one->index < other->index ? -1 : 1;
	return (one->at > other->at) - (one->at < other->at);
}

void group_sort(struct run_list *runs)
{
	AUTO_FREE struct group_place *places = mem_alloc(runs->n + 1, sizeof(*places));

	for (size_t i = 0; i < runs->n; i++)
		places[i] = (struct group_place){runs->v[i], run_member_index(runs->v[i]), i};
	qsort(places, runs->n, sizeof(*places), group_compare_places);
	for (size_t i = 0; i < runs->n; i++)
		runs->v[i] = places[i].run;
}

/*
 * States
 */

void group_count(const struct run_list *runs, struct group_counts *ret)
{
	*ret = (struct group_counts){0};
	vec_foreach (struct run *, run, runs)
		ret->states[run_state(*run)]++;
}

enum run_state group_state(const struct group_counts *counts)
{
	static const enum run_state order[] = {RUN_RUNNING, RUN_STARTING, RUN_QUEUED, RUN_PREPARING,
		RUN_UNKNOWN, RUN_FAILED, RUN_LOST, RUN_CANCELLED};

	for (size_t i = 0; i < ARRAY_LEN(order); i++)
		if (counts->states[order[i]])
			return order[i];
	return RUN_SUCCEEDED;
}

static const enum run_state group_shown[] = {RUN_SUCCEEDED, RUN_FAILED, RUN_LOST, RUN_CANCELLED,
	RUN_RUNNING, RUN_STARTING, RUN_QUEUED, RUN_PREPARING, RUN_UNKNOWN};

void group_counts_text(const struct group_counts *counts, struct buf *out)
{
	const char *between = "";

	for (size_t i = 0; i < ARRAY_LEN(group_shown); i++) {
		size_t n = counts->states[group_shown[i]];

		if (!n)
			continue;
		buf_addf(out, "%s%zu %s", between, n, run_state_name(group_shown[i]));
		between = ", ";
	}
}

struct json *group_counts_json(const struct group_counts *counts)
{
	struct json *json = json_object();

	for (size_t i = 0; i < ARRAY_LEN(group_shown); i++)
		if (counts->states[group_shown[i]])
			json_set_int(json, run_state_name(group_shown[i]),
				(int64_t)counts->states[group_shown[i]]);
	return json;
}

/*
 * Parameters
 */

static bool group_is_number(const char *text, double *ret)
{
	char *end;

	*ret = strtod(text, &end);
	return end != text && !*end && *ret == *ret;
}

int group_compare_values(const char *a, const char *b)
{
	double x, y;

	if (!a || !b)
		return (a == NULL) - (b == NULL);
	bool a_is = group_is_number(a, &x), b_is = group_is_number(b, &y);
	if (a_is != b_is)
		return a_is ? -1 : 1;
	if (a_is && x != y)
		return x < y ? -1 : 1;
	return strcmp(a, b);
}

static int group_by_value(const void *a, const void *b)
{
	return group_compare_values(*(char *const *)a, *(char *const *)b);
}

/* The values of a parameter, each once. Returns whether a member has none. */
static bool group_values(const struct run_list *runs, const char *key, struct strv *ret)
{
	AUTO_STRV struct strv all = {0};
	bool is_missing = false;

	vec_foreach (struct run *, run, runs) {
		char *value = columns_param(*run, key);

		is_missing |= !value;
		if (value)
			strv_add_take(&all, value);
	}
	vec_sort(&all, group_by_value);
	for (size_t i = 0; i < all.n; i++)
		if (i == 0 || !str_eq(all.v[i], all.v[i - 1]))
			strv_add(ret, all.v[i]);
	return is_missing;
}

struct json *group_axes(const struct run_list *runs)
{
	struct json *axes = json_object();
	AUTO_JSON struct json *seen = json_object();

	vec_foreach (struct run *, run, runs) {
		const struct json *params = json_get((*run)->doc, "params");

		for (const struct json *item = json_first(params); item; item = json_next(item)) {
			AUTO_STRV struct strv values = {0};

			if (!json_key(item) || json_get(seen, json_key(item)))
				continue;
			json_set_bool(seen, json_key(item), true);
			bool is_missing = group_values(runs, json_key(item), &values);
			if (values.n + is_missing < 2)
				continue;
			struct json *list = json_array();
			for (size_t i = 0; i < values.n; i++)
				json_add_str(list, values.v[i]);
			if (is_missing)
				json_add(list, json_null());
			json_set(axes, json_key(item), list);
		}
	}
	return axes;
}
