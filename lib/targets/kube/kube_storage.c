/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_storage.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job.h"

enum { RANK_MAX = 1000000, ATTEMPT_MAX = 9999 };

static const struct json *items_of(const struct json *object, const char *key)
{
	const struct json *list = json_get(object, key);

	return list && json_kind(list) == JSON_ARRAY ? json_first(list) : NULL;
}

static const struct json *find(
	const struct json *object, const char *list, const char *key, const char *value)
{
	for (const struct json *item = items_of(object, list); item; item = json_next(item))
		if (str_eq(json_get_str(item, key), value))
			return item;
	return NULL;
}

bool kube_storage_of(const struct json *pod_spec, struct kube_storage *ret)
{
	const struct json *container = find(pod_spec, "containers", "name", KUBE_CONTAINER);
	const struct json *mount = find(container, "volumeMounts", "mountPath", KUBE_OUTPUT_DIR);
	const char *name = json_get_str(mount, "name");
	const struct json *volume = name ? find(pod_spec, "volumes", "name", name) : NULL;

	if (!volume)
		return false;
	*ret = (struct kube_storage){
		.volume = volume,
		.sub_path = json_get_str(mount, "subPath"),
		.container = container,
		.is_kept = json_get(volume, "persistentVolumeClaim") || json_get(volume, "nfs") ||
			   json_get(volume, "hostPath"),
		.is_host = json_get(volume, "hostPath") != NULL,
	};
	return true;
}

/*
 * Readers
 */

static void copy_members(
	struct json *to, const struct json *from, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct json *value = json_get(from, names[i]);
		if (value)
			json_set(to, names[i], json_clone(value));
	}
}

static void set_label(struct json *labels, const char *key, const char *value)
{
	AUTO_FREE char *text = kube_label_value(value ? value : "");

	if (*text)
		json_set_str(labels, key, text);
}

static void set_owner(const struct json *job, struct json *metadata)
{
	AUTO_JSON struct json *patch = kube_job_owner(job);
	const struct json *owners = json_get(json_get(patch, "metadata"), "ownerReferences");

	json_set(metadata, "ownerReferences", json_clone(owners));
}

static void set_metadata(const struct kube_reader *reader, struct json *metadata)
{
	struct json *labels = json_sub(metadata, "labels");
	struct json *notes = json_sub(metadata, "annotations");

	json_set_str(metadata, "name", reader->name);
	json_set_str(metadata, "namespace", reader->kube_namespace);
	json_set_str(labels, "app.kubernetes.io/name", KUBE_READER_NAME);
	json_set_str(labels, "app.kubernetes.io/managed-by", KUBE_MANAGED_BY);
	json_set_str(labels, "sidecar.istio.io/inject", "false");
	set_label(labels, "app.kubernetes.io/instance", reader->run_id);
	set_label(labels, KUBE_LABEL_RUN, reader->run_id);
	set_label(labels, KUBE_LABEL_USER, reader->user);
	json_set_str(notes, KUBE_READER_OWNER, reader->owner);
	if (reader->job)
		set_owner(reader->job, metadata);
}

/* The program's own user and groups, so that its files can be read, and nothing beyond. */
static void set_security(
	const struct kube_reader *reader, struct json *spec, struct json *container)
{
	static const char *const members[] = {
		"runAsUser", "runAsGroup", "runAsNonRoot", "supplementalGroups", "seLinuxOptions"};
	const struct json *of_pod = json_get(reader->pod_spec, "securityContext");
	struct json *pod = json_sub(spec, "securityContext"), *drop = json_array();
	struct json *own = json_sub(container, "securityContext");

	copy_members(pod, of_pod, members, ARRAY_LEN(members));
	json_set_str(json_sub(pod, "seccompProfile"), "type", "RuntimeDefault");
	json_set_bool(own, "allowPrivilegeEscalation", false);
	json_add_str(drop, "ALL");
	json_set(json_sub(own, "capabilities"), "drop", drop);
}

static void set_resources(struct json *container)
{
	struct json *resources = json_sub(container, "resources");
	struct json *requests = json_sub(resources, "requests");
	struct json *limits = json_sub(resources, "limits");

	json_set_str(requests, "cpu", "50m");
	json_set_str(requests, "memory", "64Mi");
	json_set_str(limits, "cpu", "1");
	json_set_str(limits, "memory", "512Mi");
}

/* The reader waits until it is removed or its lifetime is over; TERM ends it at once. */
static void set_words(struct json *container)
{
	struct json *words = json_array();
	AUTO_FREE char *shell =
		mem_printf("trap 'exit 0' TERM; sleep %d & wait", (int)KUBE_READER_LIFE_S);

	json_add_str(words, "sh");
	json_add_str(words, "-c");
	json_add_str(words, shell);
	json_set(container, "command", words);
}

static struct json *volume_of(const struct kube_storage *storage)
{
	static const char *const members[] = {"name", "persistentVolumeClaim", "nfs", "hostPath"};
	struct json *volume = json_object();

	copy_members(volume, storage->volume, members, ARRAY_LEN(members));
	return volume;
}

static void set_storage(const struct kube_reader *reader, struct json *spec, struct json *container)
{
	const struct kube_storage *storage = reader->storage;
	struct json *volumes = json_array(), *mounts = json_array(), *mount = json_object();

	json_add(volumes, volume_of(storage));
	json_set(spec, "volumes", volumes);
	json_set_str(mount, "name", json_get_str(storage->volume, "name"));
	json_set_str(mount, "mountPath", KUBE_OUTPUT_DIR);
	if (storage->sub_path)
		json_set_str(mount, "subPath", storage->sub_path);
	json_set_bool(mount, "readOnly", true);
	json_add(mounts, mount);
	json_set(container, "volumeMounts", mounts);
}

/* Selectors for GPUs are left out: any node that has the storage will do. */
static void set_selector(const struct kube_reader *reader, struct json *spec)
{
	static const char *const members[] = {"kubernetes.io/os", "kubernetes.io/arch"};
	const struct json *wanted = json_get(reader->pod_spec, "nodeSelector");
	AUTO_JSON struct json *selector = json_object();

	copy_members(selector, wanted, members, ARRAY_LEN(members));
	if (json_count(selector))
		json_set(spec, "nodeSelector", TAKE(selector));
}

struct json *kube_reader_make(const struct kube_reader *reader)
{
	static const char *const members[] = {
		"imagePullSecrets", "serviceAccountName", "tolerations"};
	struct json *pod = json_object(), *spec, *container = json_object();
	struct json *containers = json_array();

	json_set_str(pod, "apiVersion", "v1");
	json_set_str(pod, "kind", "Pod");
	set_metadata(reader, json_sub(pod, "metadata"));
	spec = json_sub(pod, "spec");
	json_set_str(spec, "restartPolicy", "Never");
	json_set_int(spec, "activeDeadlineSeconds", KUBE_READER_LIFE_S);
	json_set_int(spec, "terminationGracePeriodSeconds", 1);
	json_set_bool(spec, "automountServiceAccountToken", false);
	json_set_bool(spec, "enableServiceLinks", false);
	copy_members(spec, reader->pod_spec, members, ARRAY_LEN(members));
	set_selector(reader, spec);
	json_set_str(container, "name", KUBE_READER_CONTAINER);
	json_set_str(container, "image", json_get_str(reader->storage->container, "image"));
	json_set_str(container, "imagePullPolicy", "IfNotPresent");
	json_set_str(container, "workingDir", "/");
	set_words(container);
	set_resources(container);
	set_security(reader, spec, container);
	set_storage(reader, spec, container);
	json_add(containers, container);
	json_set(spec, "containers", containers);
	return pod;
}

bool kube_reader_is_one(const struct json *pod)
{
	const struct json *labels = json_get(json_get(pod, "metadata"), "labels");

	return str_eq(json_get_str(labels, "app.kubernetes.io/name"), KUBE_READER_NAME) &&
	       str_eq(json_get_str(labels, "app.kubernetes.io/managed-by"), KUBE_MANAGED_BY);
}

/*
 * Ranks
 */

static int number(const char *text, int64_t max)
{
	int64_t value = 0;

	return text && str_to_int(text, 0, max, "number", &value, NULL) == 0 ? (int)value : 0;
}

static const struct json *state_of(const struct json *pod, const char *container, const char *state)
{
	const struct json *of =
		find(json_get(pod, "status"), "containerStatuses", "name", container);

	return json_get(json_get(of, "state"), state);
}

/* The container that has its results; NULL: none runs. */
static const char *running_container(const struct json *pod, bool ending)
{
	bool ends = json_get(json_get(pod, "metadata"), "deletionTimestamp");

	/* With ending, a pod counts although its removal, which follows its Job's, may be yet to
	 * come. */
	if (kube_reader_is_one(pod) || (ends && !ending))
		return NULL;
	if (ending)
		return state_of(pod, KUBE_KEEPER, "running") ? KUBE_KEEPER : NULL;
	if (state_of(pod, KUBE_CONTAINER, "running"))
		return KUBE_CONTAINER;
	return state_of(pod, KUBE_CONTAINER, "terminated") && state_of(pod, KUBE_KEEPER, "running")
		       ? KUBE_KEEPER
		       : NULL;
}

static int by_rank(const void *a, const void *b)
{
	const struct kube_rank_pod *one = a, *other = b;

	return (one->rank > other->rank) - (one->rank < other->rank);
}

static void add_pod(struct kube_rank_pods *list, const struct kube_rank_pod *pod)
{
	vec_foreach (struct kube_rank_pod, other, list) {
		if (other->rank != pod->rank)
			continue;
		if (pod->attempt > other->attempt)
			*other = *pod;
		return;
	}
	*vec_push(list) = *pod;
}

void kube_rank_pods_of(const struct json *pods, bool ending, struct kube_rank_pods *ret)
{
	for (const struct json *pod = items_of(pods, "items"); pod; pod = json_next(pod)) {
		const struct json *metadata = json_get(pod, "metadata");
		const struct json *labels = json_get(metadata, "labels");
		const char *container = running_container(pod, ending);
		const struct kube_rank_pod found = {
			.rank = number(
				json_get_str(labels, "batch.kubernetes.io/job-completion-index"),
				RANK_MAX),
			.attempt = number(json_get_str(labels, KUBE_LABEL_ATTEMPT), ATTEMPT_MAX),
			.name = json_get_str(metadata, "name"),
			.container = container,
			.lingers = str_eq(container, KUBE_KEEPER),
		};
		if (found.name && container)
			add_pod(ret, &found);
	}
	vec_sort(ret, by_rank);
}
