/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/observed.h"

#include <stdbool.h>

#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/params.h"
#include "core/record/results.h"
#include "core/record/runtime.h"

enum { SAMPLES_MAX = 1000 * 1000 * 1000 };

/* A member of that kind, or NULL. */
static const struct json *part(const struct json *object, const char *key, enum json_kind kind)
{
	const struct json *value = json_get(object, key);

	return value && json_kind(value) == kind && json_count(value) > 0 ? value : NULL;
}

static void merge_known(const struct json *from, struct json *to)
{
	for (const struct json *item = from ? json_first(from) : NULL; item; item = json_next(item))
		if (json_kind(item) != JSON_NULL)
			json_set(to, json_key(item), json_clone(item));
}

static bool observed_has_text(const struct json *array, const char *text)
{
	for (const struct json *item = json_first(array); item; item = json_next(item))
		if (str_eq(json_str(item), text))
			return true;
	return false;
}

static void observed_add_text(struct json *doc, const char *key, const char *text)
{
	const struct json *before = part(doc, key, JSON_ARRAY);
	struct json *all;

	if (!text || (before && observed_has_text(before, text)) ||
		json_count(before) >= OBSERVED_TEXTS_MAX)
		return;
	all = before ? json_clone(before) : json_array();
	json_add_str(all, text);
	json_set(doc, key, all);
}

void observed_merge(const struct json *observed, struct json *doc)
{
	const struct json *metrics = part(observed, "metrics", JSON_OBJECT);
	const struct json *results = part(observed, RESULTS_MEMBER, JSON_OBJECT);
	const struct json *links = part(observed, "links", JSON_ARRAY);
	const struct json *warnings = part(observed, "warnings", JSON_ARRAY);

	merge_known(part(observed, "usage", JSON_OBJECT), json_sub(doc, "usage"));
	merge_known(part(observed, "resources", JSON_OBJECT), json_sub(doc, "resources"));
	params_complete(part(observed, "params", JSON_OBJECT), json_sub(doc, "params"));
	const struct json *data = part(observed, RUNTIME_DATA, JSON_OBJECT);
	for (const struct json *one = data ? json_first(data) : NULL; one; one = json_next(one))
		json_set(json_sub(doc, RUNTIME_DATA), json_key(one), json_clone(one));
	if (results_is_valid(results))
		json_set(doc, RESULTS_MEMBER, json_clone(results));
	if (part(observed, OBSERVED_COST, JSON_OBJECT))
		json_set(doc, OBSERVED_COST, json_clone(json_get(observed, OBSERVED_COST)));
	if (metrics)
		json_set(doc, "metrics", json_clone(metrics));
	for (const struct json *link = links ? json_first(links) : NULL; link;
		link = json_next(link))
		observed_add_text(doc, "links", json_str(link));
	observed_add_text(doc, "warnings", json_get_str(observed, "warning"));
	for (const struct json *text = warnings ? json_first(warnings) : NULL; text;
		text = json_next(text))
		observed_add_text(doc, "warnings", json_str(text));
}

/*
 * Several ranks
 */

static void add_up(struct json *usage, const struct json *more, const char *key, bool is_sum)
{
	double value = json_get_num(more, key, -1), before = json_get_num(usage, key, -1);

	if (value < 0)
		return;
	if (before < 0)
		json_set_num(usage, key, value);
	else if (is_sum || value > before)
		json_set_num(usage, key, is_sum ? value + before : value);
}

void observed_add_rank(struct json *all, const struct json *one)
{
	static const struct {
		const char *part, *key;
		bool is_sum;
	} members[] = {
		{"usage", "cpu_s", true},
		{"usage", "energy_j", true},
		{"usage", "memory_peak_bytes", false},
		{"usage", "gpu_busy", false},
		{"usage", "gpu_memory_peak_bytes", false},
		{"now", "cpu", true},
		{"now", "power_w", true},
		{"now", "memory_bytes", false},
		{"now", "gpu_busy", false},
		{"now", "gpu_memory_bytes", false},
	};

	if (!json_get(all, "warning") && json_get(one, "warning"))
		json_set(all, "warning", json_clone(json_get(one, "warning")));
	if (!json_get(all, RUNTIME_DATA) && json_get(one, RUNTIME_DATA))
		json_set(all, RUNTIME_DATA, json_clone(json_get(one, RUNTIME_DATA)));
	for (size_t i = 0; i < ARRAY_LEN(members); i++)
		add_up(json_sub(all, members[i].part), json_get(one, members[i].part),
			members[i].key, members[i].is_sum);
}

/*
 * Samples
 */

static void keep_most(struct json *usage, const char *key, double value)
{
	if (value >= 0 && value > json_get_num(usage, key, -1))
		json_set_num(usage, key, value);
}

void observed_keep(struct json *kept, const struct json *sample)
{
	const struct json *now = json_get(sample, "now");
	struct json *usage = json_sub(kept, "usage");

	json_set_str(kept, "time", json_get_str(sample, "time"));
	json_set(kept, "now", now ? json_clone(now) : json_null());
	keep_most(usage, "cpu_s", json_get_num(json_get(sample, "usage"), "cpu_s", -1));
	keep_most(usage, "memory_peak_bytes", json_get_num(now, "memory_bytes", -1));
	keep_most(usage, "gpu_memory_peak_bytes", json_get_num(now, "gpu_memory_bytes", -1));
	double value = json_get_num(now, "gpu_busy", -1);
	int64_t samples = json_get_int(kept, "gpu_looks", 0);
	double mean = json_get_num(usage, "gpu_busy", 0);

	if (value < 0)
		return;
	if (samples < 0 || samples > SAMPLES_MAX)
		samples = 0;
	json_set_num(usage, "gpu_busy", (mean * (double)samples + value) / (double)(samples + 1));
	json_set_int(kept, "gpu_looks", samples + 1);
}

struct json *observed_read(const char *attempt_dir)
{
	AUTO_FREE char *path = fs_join(attempt_dir, OBSERVED_FILE);
	AUTO_BUF struct buf text = {0};
	struct json *json;

	if (fs_read(path, OBSERVED_MAX, &text, NULL, NULL) < 0 ||
		json_parse(text.data, text.len, OBSERVED_MAX, OBSERVED_FILE, &json, NULL) < 0)
		return NULL;
	if (json_kind(json) == JSON_OBJECT)
		return json;
	json_free(json);
	return NULL;
}
