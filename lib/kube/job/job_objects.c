/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects beside the Job of a run: names, labels, Secret, Service, claim.
 */
#include <stdlib.h>
#include <string.h>

#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client.h"
#include "kube/api/kinds.h"
#include "kube/job/job_impl.h"
#include "kube/job/job_objects.h"

enum { LABEL_MAX = 63, SECRET_MAX = 1 << 20 };

/*
 * Names
 */

char *kube_job_name(const char *run_id, int attempt)
{
	return attempt > 1 ? mem_printf("%s-%d", run_id, attempt) : mem_strdup(run_id);
}

char *kube_job_secret_name(const char *job)
{
	return mem_printf("%s-env", job);
}

char *kube_job_claim_name(const char *run_id)
{
	return mem_printf("%s-results", run_id);
}

static bool is_alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || str_is_digit(c);
}

char *kube_label_value(const char *text)
{
	char *value = mem_strndup(text, LABEL_MAX);
	char *begin = value;
	size_t len;

	for (char *c = value; *c; c++)
		if (!is_alnum(*c) && !strchr("-_.", *c))
			*c = '-';
	while (*begin && !is_alnum(*begin))
		begin++;
	len = strlen(begin);
	while (len && !is_alnum(begin[len - 1]))
		len--;
	memmove(value, begin, len);
	value[len] = '\0';
	return value;
}

void job_set_bytes(struct json *object, const char *key, uint64_t bytes)
{
	static const char *const units[] = {"", "Ki", "Mi", "Gi", "Ti"};
	size_t unit = 0;

	while (bytes && bytes % 1024 == 0 && unit + 1 < ARRAY_LEN(units)) {
		bytes /= 1024;
		unit++;
	}
	AUTO_FREE char *text = mem_printf("%llu%s", (unsigned long long)bytes, units[unit]);
	json_set_str(object, key, text);
}

/*
 * Metadata
 */

static void set_label(struct json *labels, const char *key, const char *value)
{
	AUTO_FREE char *shown = kube_label_value(value ? value : "");

	if (*shown)
		json_set_str(labels, key, shown);
}

static void merge(struct json *to, const struct json *from)
{
	for (const struct json *item = from ? json_first(from) : NULL; item; item = json_next(item))
		json_set(to, json_key(item), json_clone(item));
}

void job_set_labels(const struct kube_run *run, struct json *metadata)
{
	struct json *labels = json_sub(metadata, "labels");
	AUTO_FREE char *attempt = mem_printf("%d", run->attempt);

	merge(labels, run->labels);
	json_set_str(labels, "app.kubernetes.io/name", "dlrun-run");
	set_label(labels, "app.kubernetes.io/instance", run->run_id);
	json_set_str(labels, "app.kubernetes.io/managed-by", KUBE_MANAGED_BY);
	set_label(labels, KUBE_LABEL_ATTEMPT, attempt);
	set_label(labels, KUBE_LABEL_RUN, run->run_id);
	set_label(labels, KUBE_LABEL_TREE, run->tree);
	set_label(labels, KUBE_LABEL_USER, run->user);
	if (run->annotations)
		merge(json_sub(metadata, "annotations"), run->annotations);
}

struct json *job_metadata(const struct kube_run *run, const char *name)
{
	struct json *metadata = json_object();

	json_set_str(metadata, "name", name);
	json_set_str(metadata, "namespace", run->kube_namespace);
	job_set_labels(run, metadata);
	return metadata;
}

static struct json *object(
	const struct kube_run *run, const char *version, const char *kind, const char *name)
{
	struct json *json = json_object();

	json_set_str(json, "apiVersion", version);
	json_set_str(json, "kind", kind);
	json_set(json, "metadata", job_metadata(run, name));
	return json;
}

/*
 * Objects
 */

int job_secret(const struct kube_run *run, struct json **ret, struct err *err)
{
	AUTO_FREE char *name = kube_job_secret_name(run->job);
	AUTO_JSON struct json *secret = object(run, "v1", "Secret", name);
	struct json *data = json_sub(secret, "data");
	size_t size = 0;

	json_set_str(secret, "type", "Opaque");
	json_set_bool(secret, "immutable", true);
	for (size_t i = 0; i < run->secret_env->n; i++) {
		const char *pair = run->secret_env->v[i];
		AUTO_FREE char *key = mem_strndup(pair, strcspn(pair, "="));
		const char *value = pair + strlen(key) + (pair[strlen(key)] == '=');
		AUTO_BUF struct buf encoded = {0};

		size += strlen(value);
		if (size > SECRET_MAX)
			return err_set(err, E_DATA_LIMIT,
				"the values of the run's secrets are over 1 MiB, which is all "
				"that a Secret holds");
		int r = job_check_text(value, "a value of", err);
		if (r < 0)
			return err_set(err, E_SECRET,
				"the value of %s is not UTF-8, and no variable of a pod can be",
				key);
		buf_init(&encoded, SECRET_MAX * 2);
		base64_encode(value, strlen(value), &encoded);
		json_set_str(data, key, encoded.data);
	}
	*ret = TAKE(secret);
	return 0;
}

/* Ranks look for each other before they are ready. */
struct json *job_service(const struct kube_run *run)
{
	struct json *service = object(run, "v1", "Service", run->job);
	struct json *spec = json_sub(service, "spec");

	json_set_str(spec, "clusterIP", "None");
	json_set_bool(spec, "publishNotReadyAddresses", true);
	json_set_str(json_sub(spec, "selector"), "batch.kubernetes.io/job-name", run->job);
	return service;
}

struct json *job_claim(const struct kube_run *run)
{
	AUTO_FREE char *name = kube_job_claim_name(run->run_id);
	struct json *claim = object(run, "v1", "PersistentVolumeClaim", name);
	struct json *spec = json_sub(claim, "spec"), *modes = json_array();

	/* All attempts share it. */
	json_remove(json_sub(json_sub(claim, "metadata"), "labels"), KUBE_LABEL_ATTEMPT);
	json_add_str(modes, run->nodes > 1 ? "ReadWriteMany" : "ReadWriteOnce");
	json_set(spec, "accessModes", modes);
	job_set_bytes(json_sub(json_sub(spec, "resources"), "requests"), "storage",
		run->results.size_bytes);
	if (run->results.storage_class)
		json_set_str(spec, "storageClassName", run->results.storage_class);
	return claim;
}

/*
 * Requests
 */

size_t kube_objects_before(const struct kube_objects *objects, const struct json *ret[static 3])
{
	const struct json *all[] = {objects->claim, objects->service, objects->secret};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i])
			ret[n++] = all[i];
	return n;
}

size_t kube_objects_adopt(const struct kube_objects *objects, const struct json *ret[static 3])
{
	struct kube_objects owned = {.service = objects->service, .secret = objects->secret};

	return kube_objects_before(&owned, ret);
}

static const struct {
	const char *kind, *resource;
} collections[] = {
	{"PersistentVolumeClaim", "persistentvolumeclaims"},
	{"Secret", "secrets"},
	{"Service", "services"},
};

char *kube_object_collection(const struct json *object)
{
	const char *kind = json_get_str(object, "kind");
	const char *space = json_get_str(json_get(object, "metadata"), "namespace");

	if (!space)
		space = "default";
	for (int i = 0; i < KUBE_KINDS; i++)
		if (str_eq(kube_kinds[i].name, kind))
			return kube_kind_collection((enum kube_kind)i, space);
	for (size_t i = 0; i < ARRAY_LEN(collections); i++)
		if (str_eq(collections[i].kind, kind))
			return kube_path(
				"/api/v1/namespaces/%s/%s", space, collections[i].resource);
	err_bug(__FILE__, __LINE__, "a kind of object that dlrun does not make");
}

char *kube_object_path(const struct json *object)
{
	AUTO_FREE char *collection = kube_object_collection(object);
	const char *name = json_get_str(json_get(object, "metadata"), "name");

	return mem_printf("%s/%s", collection, name ? name : "");
}

struct json *kube_job_owner(const struct json *job)
{
	const struct json *metadata = json_get(job, "metadata");
	const char *version = json_get_str(job, "apiVersion"), *kind = json_get_str(job, "kind");
	struct json *patch = json_object(), *owners = json_array(), *owner = json_object();

	/* Items of lists do not say it. */
	json_set_str(owner, "apiVersion", version ? version : "batch/v1");
	json_set_str(owner, "kind", kind ? kind : "Job");
	json_set_str(owner, "name", json_get_str(metadata, "name"));
	json_set_str(owner, "uid", json_get_str(metadata, "uid"));
	json_add(owners, owner);
	json_set(json_sub(patch, "metadata"), "ownerReferences", owners);
	return patch;
}

void kube_objects_done(struct kube_objects *objects)
{
	if (!objects)
		return;
	json_free(objects->claim);
	json_free(objects->service);
	json_free(objects->secret);
	json_free(objects->job);
	strv_done(&objects->notes);
	*objects = (struct kube_objects){0};
}
