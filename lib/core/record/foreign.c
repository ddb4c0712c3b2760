/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/foreign.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/places.h"
#include "core/record/runtime.h"
#include "core/record/spec.h"
#include "oci/model/ref.h"

#define MARK "elsewhere"

enum { TEXT_MAX = 4096, MEMBERS_MAX = 1000 };

/*
 * Values
 */

static bool foreign_is_text(const struct json *value)
{
	const char *text = json_str(value);

	return text && json_kind(value) == JSON_STRING && strlen(text) <= TEXT_MAX;
}

static bool is_scalar(const struct json *value)
{
	enum json_kind kind = json_kind(value);

	return kind == JSON_BOOL || kind == JSON_NUMBER || foreign_is_text(value);
}

/* A list or object of plain values. */
static bool is_flat(const struct json *value, enum json_kind kind)
{
	if (json_kind(value) != kind || json_count(value) > MEMBERS_MAX)
		return false;
	for (const struct json *item = json_first(value); item; item = json_next(item))
		if (kind == JSON_ARRAY ? !foreign_is_text(item) : !is_scalar(item))
			return false;
	return true;
}

static bool is_of_kind(const struct json *value, enum json_kind kind)
{
	if (kind == JSON_STRING)
		return foreign_is_text(value);
	if (kind == JSON_ARRAY || kind == JSON_OBJECT)
		return is_flat(value, kind);
	return json_kind(value) == kind;
}

struct member {
	const char *key;
	enum json_kind kind;
};

static void take_members(
	struct json *to, const struct json *from, const struct member *members, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct json *value = json_get(from, members[i].key);

		if (value && is_of_kind(value, members[i].kind))
			json_set(to, members[i].key, json_clone(value));
	}
}

/*
 * Members
 */

/* Take an image of a registry as it is; search an image of a directory in this machine's own. */
static void take_ref(struct json *image, const char *text, const char *layout)
{
	AUTO_REF struct ref ref = {0};

	if (!text || strlen(text) > TEXT_MAX || ref_parse(text, &ref, NULL) < 0 || !ref.digest)
		return;
	AUTO_FREE char *own = ref.kind == REF_LAYOUT && layout
				      ? mem_printf("oci:%s@%s", layout, ref.digest)
				      : NULL;
	if (ref.kind == REF_REGISTRY || own)
		json_set_str(image, "ref", own ? own : text);
}

static void foreign_take_image(struct json *doc, const struct json *record, const char *layout)
{
	const char *base = json_get_str(json_get(record, "image"), "base");
	AUTO_REF struct ref ref = {0};

	take_ref(json_sub(doc, "image"), json_get_str(json_get(record, "image"), "ref"), layout);
	if (base && strlen(base) <= TEXT_MAX &&
		(str_eq(base, "scratch") ||
			(ref_parse(base, &ref, NULL) == 0 && ref.kind == REF_REGISTRY)))
		json_set_str(json_sub(doc, "image"), "base", base);
}

/* Decisions of the machine that chooses among them. */
static void foreign_take_places(struct json *doc, const struct json *record)
{
	AUTO_RUN_PLACES struct run_places places = {0};

	run_places_from_json(json_get(record, RUN_PLACES), &places);
	vec_foreach (const struct run_place, place, &places)
		if (strlen(place->target) > TEXT_MAX ||
			(place->server && strlen(place->server) > TEXT_MAX) ||
			(place->text && strlen(place->text) > TEXT_MAX))
			return;
	if (places.n > 1)
		json_set(doc, RUN_PLACES, run_places_to_json(&places));
}

static void foreign_take_record(struct run *run, const struct json *record, const char *layout)
{
	static const struct member members[] = {{"command", JSON_ARRAY}, {"shell", JSON_BOOL},
		{"params", JSON_OBJECT}, {"tags", JSON_OBJECT}, {"group", JSON_STRING},
		{"user", JSON_STRING}, {"note", JSON_STRING}, {AFTER_RECORD, JSON_ARRAY},
		{"launcher", JSON_OBJECT}, {"roles", JSON_OBJECT}, {"ends_with", JSON_STRING},
		{RUNTIME_DATA, JSON_OBJECT}};
	static const struct member snapshot[] = {{"id", JSON_STRING}, {"commit", JSON_STRING},
		{"dirty", JSON_BOOL}, {"files", JSON_NUMBER}, {"bytes", JSON_NUMBER},
		{"left_out", JSON_NUMBER}};
	static const struct member resources[] = {{"nodes", JSON_NUMBER}, {"gpus", JSON_NUMBER},
		{"gpu_model", JSON_STRING}, {"cpus", JSON_NUMBER}, {"memory", JSON_NUMBER}};
	static const struct member origin[] = {{"cwd", JSON_STRING}};
	const char *parent = json_get_str(record, "parent");

	take_members(run->doc, record, members, ARRAY_LEN(members));
	take_members(json_sub(run->doc, "snapshot"), json_get(record, "snapshot"), snapshot,
		ARRAY_LEN(snapshot));
	take_members(json_sub(run->doc, "resources"), json_get(record, "resources"), resources,
		ARRAY_LEN(resources));
	take_members(json_sub(run->doc, "origin"), json_get(record, "origin"), origin,
		ARRAY_LEN(origin));
	if (parent && run_id_is_valid(parent))
		json_set_str(run->doc, "parent", parent);
	struct ports ports;

	ports_from_json(json_get(record, "ports"), &ports);
	if (ports.n)
		json_set(run->doc, "ports", ports_to_json(&ports));
	foreign_take_places(run->doc, record);
	foreign_take_image(run->doc, record, layout);
	const char *text = json_get_str(json_get(record, "times"), "submitted");
	int64_t ms = 0;

	if (text && strlen(text) < CLOCK_TEXT_SIZE && clock_parse(text, &ms, NULL) == 0)
		run_set_time(json_sub(run->doc, "times"), "submitted", ms);
}

/*
 * The specification
 */

/* Written anew, so that nothing is in it that dlrun does not know. */
static struct json *take_spec(const struct json *json)
{
	AUTO_SPEC struct spec spec = {0};

	if (!json || spec_from_json(json, &spec, NULL) < 0)
		return json_object();
	/* Keep names of variables only, and no item that says where a value is. */
	struct strv *names = &spec.secrets;
	AUTO_STRV struct strv kept = {0};

	for (size_t i = 0; i < names->n; i++)
		if (!strchr(names->v[i], '=') &&
			words_check_name(names->v[i], "--secret", NULL) == 0)
			strv_add(&kept, names->v[i]);
	strv_done(names);
	*names = kept;
	kept = (struct strv){0};
	return spec_to_json(&spec);
}

void foreign_take(
	struct run *run, const struct json *record, const struct json *spec, const char *layout)
{
	if (record)
		foreign_take_record(run, record, layout);
	json_free(run->spec);
	run->spec = take_spec(spec);
	json_set_bool(run->doc, MARK, true);
}

bool foreign_is(const struct run *run)
{
	return json_get_bool(run->doc, MARK, false);
}
