#include "run/kube_record_read.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "kube/job.h"
#include "run/spec.h"
#include "run/target_kube.h"

enum { TEXT_MAX = 4096, MEMBERS_MAX = 1000 };

/*
 * Values
 */

static bool is_text(const struct json *value)
{
	const char *text = json_str(value);

	return text && json_kind(value) == JSON_STRING && strlen(text) <= TEXT_MAX;
}

static bool is_scalar(const struct json *value)
{
	enum json_kind kind = json_kind(value);

	return kind == JSON_BOOL || kind == JSON_NUMBER || is_text(value);
}

/* A list or object of plain values. */
static bool is_flat(const struct json *value, enum json_kind kind)
{
	if (json_kind(value) != kind || json_count(value) > MEMBERS_MAX)
		return false;
	for (const struct json *item = json_first(value); item; item = json_next(item))
		if (kind == JSON_ARRAY ? !is_text(item) : !is_scalar(item))
			return false;
	return true;
}

static bool is_of_kind(const struct json *value, enum json_kind kind)
{
	if (kind == JSON_STRING)
		return is_text(value);
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

static void take_image(struct json *doc, const struct json *record)
{
	const char *ref = json_get_str(json_get(record, "image"), "ref");
	const char *base = json_get_str(json_get(record, "image"), "base");
	const char *at = ref ? strrchr(ref, '@') : NULL;

	if (at && str_starts(at, "@sha256:") && strlen(at) == 1 + strlen("sha256:") + 64 &&
		strspn(at + 8, "0123456789abcdef") == 64 && strlen(ref) <= TEXT_MAX)
		json_set_str(json_sub(doc, "image"), "ref", ref);
	if (base && strlen(base) <= TEXT_MAX)
		json_set_str(json_sub(doc, "image"), "base", base);
}

static void take_ports(struct json *doc, const struct json *record)
{
	struct ports ports;

	ports_from_json(json_get(record, "ports"), &ports);
	if (ports.n)
		json_set(doc, "ports", ports_to_json(&ports));
}

static void take_time(struct run *run, const struct json *record)
{
	const char *text = json_get_str(json_get(record, "times"), "submitted");
	int64_t ms = 0;

	if (text && strlen(text) < CLOCK_TEXT_SIZE && clock_parse(text, &ms, NULL) == 0)
		run_set_time(json_sub(run->doc, "times"), "submitted", ms);
}

static void take_record(struct run *run, const struct json *record)
{
	static const struct member members[] = {{"command", JSON_ARRAY}, {"shell", JSON_BOOL},
		{"params", JSON_OBJECT}, {"tags", JSON_OBJECT}, {"group", JSON_STRING},
		{"user", JSON_STRING}, {"note", JSON_STRING}};
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
	take_ports(run->doc, record);
	take_image(run->doc, record);
	take_time(run, record);
}

static struct json *parse(const struct json *notes, const char *key)
{
	const char *text = json_get_str(notes, key);
	struct json *json = NULL;

	if (!text || json_parse(text, strlen(text), KUBE_RECORD_MAX, key, &json, NULL) < 0)
		return NULL;
	if (json_kind(json) == JSON_OBJECT)
		return json;
	json_free(json);
	return NULL;
}

/* Only one that a run could be started by. */
static struct json *parse_spec(const struct json *notes)
{
	AUTO_JSON struct json *json = parse(notes, KUBE_NOTE_SPEC);
	AUTO_SPEC struct spec spec = {0};

	return json && spec_from_json(json, &spec, NULL) == 0 ? TAKE(json) : json_object();
}

/*
 * Runs
 */

static bool is_own(const struct kube_record_place *place, const char *user)
{
	return user && (str_eq(user, place->cluster_user) || str_eq(user, place->login));
}

/* All attempts up to the newest that there is a Job of. */
static void add_attempts(
	struct run *run, const struct kube_record_place *place, const struct kube_handle *newest)
{
	for (int i = 1; i <= newest->attempt && i <= KUBE_RECORD_ATTEMPTS_MAX; i++) {
		AUTO_FREE char *name = kube_job_name(newest->run_id, i);
		AUTO_FREE char *handle = kube_handle_text(
			place->server_id, place->kube_namespace, newest->kind, name);
		run_add_attempt(run, handle);
	}
}

static struct run *make(const struct json *object, const struct kube_handle *handle,
	const struct kube_record_place *place)
{
	const struct json *notes = json_get(json_get(object, "metadata"), "annotations");
	const char *user = json_get_str(notes, KUBE_NOTE_USER);
	AUTO_JSON struct json *record = parse(notes, KUBE_NOTE_RECORD);
	AUTO_FREE char *name = mem_strndup(handle->run_id, strlen(handle->run_id) - RUN_SUFFIX - 1);
	struct run *run = run_new(handle->run_id, name);
	struct json *adopted;

	if (record)
		take_record(run, record);
	json_free(run->spec);
	run->spec = parse_spec(notes);
	json_set(run->doc, "target", json_clone(place->target));
	if (!json_get(json_get(run->doc, "target"), "hosts"))
		json_set(json_sub(run->doc, "target"), "hosts", json_array());
	adopted = json_sub(run->doc, "adopted");
	json_set_str(adopted, "user", user && strlen(user) <= TEXT_MAX ? user : NULL);
	json_set_bool(adopted, "own", is_own(place, user));
	run_set_state(run, RUN_QUEUED);
	add_attempts(run, place, handle);
	return run;
}

/* What its name and its labels say alike. */
static bool read_handle(const struct json *object, enum kube_kind list,
	const struct kube_record_place *place, struct kube_handle *ret)
{
	const struct json *metadata = json_get(object, "metadata");
	const struct json *labels = json_get(metadata, "labels");
	const char *name = json_get_str(metadata, "name");
	const char *jobset =
		list == KUBE_KIND_JOBSET ? name : json_get_str(labels, KUBE_JOBSET_NAME);
	enum kube_kind kind = jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB;
	struct kube_cluster cluster = {0};
	const struct target_kube kube = {.cluster = &cluster};

	if (!name || !str_eq(json_get_str(labels, "app.kubernetes.io/managed-by"), KUBE_MANAGED_BY))
		return false;
	AUTO_FREE char *text = kube_handle_text(
		place->server_id, place->kube_namespace, kind, jobset ? jobset : name);
	memcpy(cluster.server_id, place->server_id, strlen(place->server_id) + 1);
	return kube_handle_parse(&kube, text, ret, NULL) == 0 &&
	       (list == KUBE_KIND_JOBSET || str_eq(ret->job, name)) &&
	       str_eq(json_get_str(labels, KUBE_LABEL_RUN), ret->run_id);
}

/* An attempt that is older than the one that is known already says nothing new. */
static bool is_known(struct run_list *runs, const struct kube_handle *handle)
{
	for (size_t i = 0; i < runs->n; i++) {
		if (!str_eq(run_id(runs->v[i]), handle->run_id))
			continue;
		if (run_attempts(runs->v[i]) >= handle->attempt)
			return true;
		run_free(runs->v[i]);
		runs->v[i] = runs->v[--runs->n];
		return false;
	}
	return false;
}

void kube_record_read(const struct json *objects, enum kube_kind kind, const char *id,
	const struct kube_record_place *place, struct run_list *ret)
{
	const struct json *items = json_get(objects, "items");

	for (const struct json *at = items ? json_first(items) : NULL; at; at = json_next(at)) {
		struct kube_handle handle;

		if (!read_handle(at, kind, place, &handle) || (id && !str_eq(id, handle.run_id)) ||
			is_known(ret, &handle))
			continue;
		*vec_push(ret) = make(at, &handle, place);
	}
}
