/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes of a pod: results, data, the user's own, and those that every run has.
 */
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job_impl.h"

enum { MOUNTS_MAX = 1000 };

/* Arguments: paths in the tree. What is in the volume already stays; whatever is copied is whole or
 * not there. Two pods of a gang may do it at the same time. */
static const char copy_lines[] =
	"umask 002\n"
	"copy() (\n"
	"\tmkdir -p -- \"$2\" || exit\n"
	"\tfor f in \"$1\"/* \"$1\"/.[!.]* \"$1\"/..?*; do\n"
	"\t\tto=$2/${f##*/}\n"
	"\t\tif [ -d \"$f\" ] && [ ! -L \"$f\" ]; then\n"
	"\t\t\tcopy \"$f\" \"$to\" || exit\n"
	"\t\telif [ -e \"$f\" ] || [ -L \"$f\" ]; then\n"
	"\t\t\t[ ! -e \"$to\" ] && [ ! -L \"$to\" ] || continue\n"
	"\t\t\tcp -RP -- \"$f\" \"$2/.dlrun-$HOSTNAME-$$\" || exit\n"
	"\t\t\tmv -f -- \"$2/.dlrun-$HOSTNAME-$$\" \"$to\" || exit\n"
	"\t\tfi\n"
	"\tdone\n"
	")\n"
	"for path; do copy \"$path\" \"" KUBE_OUTPUT_DIR "/$path\" || exit; done";

/*
 * Places
 */

static const char *place_kind(const struct kube_place *place)
{
	return place->kind == KUBE_PLACE_NFS ? "NFS" : "a directory of the node";
}

/* Check a place against Pod Security levels and allow_host_path. */
static int check_place(
	const struct job *job, const struct kube_place *place, const char *what, struct err *err)
{
	const struct kube_run *run = job->run;
	bool restricted = str_eq(run->enforced, "restricted");
	bool baseline = restricted || str_eq(run->enforced, "baseline");
	AUTO_FREE char *shown = str_shown(what);

	if (place->kind == KUBE_PLACE_HOST && !run->allow_host_path) {
		err_set(err, E_KUBE_HOST_PATH, "%s would be the node's own %s", shown, place->path);
		return err_hint(err, "host_path: true   # of the target");
	}
	if ((place->kind == KUBE_PLACE_HOST && baseline) ||
		(place->kind == KUBE_PLACE_NFS && restricted)) {
		err_set(err, E_KUBE_STORAGE, "%s: namespace %s takes no pod with %s in it", shown,
			run->kube_namespace, place_kind(place));
		err_evidence(err, "pod-security.kubernetes.io/enforce: %s", run->enforced);
		return err_hint(err, "{pvc: datasets}   # a claim instead");
	}
	return 0;
}

static int check_sub_path(const char *sub_path, const char *what, struct err *err)
{
	if (str_empty(sub_path))
		return 0;
	if (*sub_path != '/' && !str_starts(sub_path, "../") && !str_ends(sub_path, "/..") &&
		!strstr(sub_path, "/../") && !str_eq(sub_path, ".."))
		return job_check_text(sub_path, "the path", err);
	AUTO_FREE char *shown = str_shown(sub_path), *what_shown = str_shown(what);
	return err_set(
		err, E_KUBE_STORAGE, "%s: '%s' is not a valid path in a volume", what_shown, shown);
}

static struct json *place_source(const struct job *job, const struct kube_place *place)
{
	struct json *volume = json_object(), *source;

	if (place->kind == KUBE_PLACE_PVC || place->kind == KUBE_PLACE_CLAIM) {
		AUTO_FREE char *own = kube_job_claim_name(job->run->run_id);
		source = json_sub(volume, "persistentVolumeClaim");
		json_set_str(
			source, "claimName", place->kind == KUBE_PLACE_PVC ? place->name : own);
	} else if (place->kind == KUBE_PLACE_NFS) {
		source = json_sub(volume, "nfs");
		json_set_str(source, "server", place->name);
		json_set_str(source, "path", place->path);
	} else if (place->kind == KUBE_PLACE_HOST) {
		source = json_sub(volume, "hostPath");
		json_set_str(source, "path", place->path);
	} else {
		source = json_sub(volume, "emptyDir");
		if (place->size_bytes)
			job_set_bytes(source, "sizeLimit", place->size_bytes);
	}
	if (place->read_only && place->kind != KUBE_PLACE_EMPTY && place->kind != KUBE_PLACE_HOST)
		json_set_bool(source, "readOnly", true);
	return volume;
}

/* The name of the volume for a source: one for all mounts of it. The caller frees. */
static char *use_volume(struct job *job, const char *hint, struct json *take)
{
	AUTO_JSON struct json *volume = take, *named = json_object();
	AUTO_BUF struct buf wanted, other;
	char *name = NULL;

	buf_init(&wanted, JSON_SIZE_MAX);
	buf_init(&other, JSON_SIZE_MAX);
	json_print(json_first(volume), &wanted);
	for (const struct json *item = json_first(job->volumes); item; item = json_next(item)) {
		const struct json *source = json_next(json_first(item));
		buf_reset(&other);
		json_print(source, &other);
		if (str_eq(json_key(source), json_key(json_first(volume))) &&
			!str_eq(json_key(source), "emptyDir") && str_eq(other.data, wanted.data))
			return mem_strdup(json_get_str(item, "name"));
	}
	name = hint ? mem_strdup(hint) : mem_printf("volume-%zu", json_count(job->volumes));
	json_set_str(named, "name", name);
	json_set(named, json_key(json_first(volume)), json_clone(json_first(volume)));
	json_add(job->volumes, TAKE(named));
	return name;
}

/*
 * Mounts
 */

static int add_mount(struct job *job, const char *volume, const char *path, const char *sub_path,
	bool read_only, struct err *err)
{
	struct json *mount = json_object();
	AUTO_FREE char *shown = str_shown(path);

	json_set_str(mount, "name", volume);
	json_set_str(mount, "mountPath", path);
	if (!str_empty(sub_path))
		json_set_str(mount, "subPath", sub_path);
	if (read_only)
		json_set_bool(mount, "readOnly", true);
	for (const struct json *item = json_first(job->mounts); item; item = json_next(item))
		if (str_eq(json_get_str(item, "mountPath"), path)) {
			json_free(mount);
			return err_set(err, E_KUBE_STORAGE, "%s would be two volumes", shown);
		}
	json_add(job->mounts, mount);
	if (strchr(path, ':') || *path != '/')
		return err_set(err, E_KUBE_STORAGE,
			"%s cannot be a volume: its path has a ':' or is not absolute", shown);
	if (json_count(job->mounts) > MOUNTS_MAX)
		return err_set(err, E_DATA_LIMIT, "the run has more than %d volumes", MOUNTS_MAX);
	return job_check_text(path, "the path", err);
}

static void add_volume(struct job *job, const char *name, const char *kind, struct json *take)
{
	struct json *volume = json_object();

	json_set_str(volume, "name", name);
	json_set(volume, kind, take);
	json_add(job->volumes, volume);
}

/* Add the volumes that every run has. */
static int add_own(struct job *job, struct err *err)
{
	struct json *shm = json_object(), *hosts = json_object();
	struct json *items = json_array(), *item = json_object();

	json_set_str(shm, "medium", "Memory");
	if (job->run->shm_bytes)
		job_set_bytes(shm, "sizeLimit", job->run->shm_bytes);
	add_volume(job, "shm", "emptyDir", shm);
	add_volume(job, "attempt", "emptyDir", json_object());
	json_set_str(item, "path", "hostfile");
	json_set_str(json_sub(item, "fieldRef"), "fieldPath",
		"metadata.annotations['" JOB_HOSTS_NOTE "']");
	json_add(items, item);
	json_set(hosts, "items", items);
	add_volume(job, "hosts", "downwardAPI", hosts);
	int r = add_mount(job, "shm", "/dev/shm", NULL, false, err);
	if (r == 0)
		r = add_mount(job, "attempt", KUBE_ATTEMPT_DIR, NULL, false, err);
	if (r == 0)
		r = add_mount(job, "hosts", JOB_HOSTS_DIR, NULL, true, err);
	if (r < 0 || !job->is_restricted)
		return r;
	add_volume(job, "home", "emptyDir", json_object());
	return add_mount(job, "home", KUBE_HOME_DIR, NULL, false, err);
}

static char *tree_path(const struct job *job, const char *path)
{
	return mem_printf("%s/%s", job->run->workdir, path);
}

/* "me/resnet-3k2f9/out" */
static char *join(const char *a, const char *b, const char *c)
{
	return mem_printf("%s%s%s%s%s", a ? a : "", str_empty(a) ? "" : "/", b,
		str_empty(c) ? "" : "/", c ? c : "");
}

static int add_results(struct job *job, struct err *err)
{
	const struct kube_run *run = job->run;
	struct kube_place place = run->results;

	if (place.kind == KUBE_PLACE_NONE)
		place.kind = KUBE_PLACE_EMPTY;
	int r = check_place(job, &place, "results", err);
	if (r == 0)
		r = check_sub_path(place.sub_path, "results", err);
	if (r < 0)
		return r;
	AUTO_FREE char *volume = use_volume(job, "results", place_source(job, &place));
	AUTO_FREE char *dir = join(place.sub_path, run->run_id, NULL);
	r = add_mount(job, volume, KUBE_OUTPUT_DIR, dir, false, err);
	for (size_t i = 0; r == 0 && i < run->n_outputs; i++) {
		AUTO_FREE char *path = tree_path(job, run->outputs[i].path);
		AUTO_FREE char *sub_path = join(place.sub_path, run->run_id, run->outputs[i].path);
		r = add_mount(job, volume, path, sub_path, false, err);
	}
	return r;
}

static int add_place(struct job *job, const struct kube_mount *mount, const char *path,
	const char *what, struct err *err)
{
	int r = check_place(job, &mount->place, what, err);

	if (r == 0)
		r = check_sub_path(mount->place.sub_path, what, err);
	if (r < 0)
		return r;
	AUTO_FREE char *volume = use_volume(job, NULL, place_source(job, &mount->place));
	return add_mount(job, volume, path, mount->place.sub_path, mount->place.read_only, err);
}

static int add_mounts(struct job *job, struct err *err)
{
	const struct kube_run *run = job->run;
	int r = 0;

	for (size_t i = 0; r == 0 && i < run->n_data; i++) {
		const struct kube_mount *data = &run->data[i];
		AUTO_FREE char *path = tree_path(job, data->path);
		r = add_place(job, data, path, data->path, err);
		if (data->has_files)
			strv_addf(job->notes,
				"files of the snapshot below data '%s' are hidden by its volume",
				data->path);
	}
	for (size_t i = 0; r == 0 && i < run->n_volumes; i++)
		r = add_place(
			job, &run->volumes[i], run->volumes[i].path, run->volumes[i].path, err);
	return r;
}

/*
 * Files of the snapshot below outputs
 */

static struct json *results_mount(const struct job *job)
{
	for (const struct json *item = json_first(job->mounts); item; item = json_next(item))
		if (str_eq(json_get_str(item, "mountPath"), KUBE_OUTPUT_DIR))
			return json_clone(item);
	return NULL;
}

static struct json *copy_words(void)
{
	struct json *words = json_array();
	AUTO_FREE char *script = kube_escaped(copy_lines);

	json_add_str(words, "/bin/sh");
	json_add_str(words, "-c");
	json_add_str(words, script);
	json_add_str(words, "dlrun");
	return words;
}

static int add_copy(struct job *job, struct json *pod_spec, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_JSON struct json *paths = json_array();

	for (size_t i = 0; i < run->n_outputs; i++) {
		AUTO_FREE char *path = kube_escaped(run->outputs[i].path);
		if (run->outputs[i].has_files)
			json_add_str(paths, path);
	}
	if (json_count(paths) == 0)
		return 0;
	if (run->has_no_shell) {
		err_set(err, E_KUBE_SHELL,
			"the snapshot has files below an output, and the image no shell to copy "
			"them");
		return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
	}
	struct json *init = json_object(), *mounts = json_array(), *inits = json_array();
	json_set_str(init, "name", "outputs");
	json_set_str(init, "image", run->image_ref);
	json_set_str(init, "imagePullPolicy", "IfNotPresent");
	json_set_str(init, "workingDir", run->workdir);
	json_set(init, "command", copy_words());
	json_set(init, "args", TAKE(paths));
	job_resources(job, init, false);
	job_container_security(job, init);
	json_add(mounts, results_mount(job));
	json_set(init, "volumeMounts", mounts);
	json_set_str(init, "terminationMessagePolicy", "FallbackToLogsOnError");
	json_add(inits, init);
	json_set(pod_spec, "initContainers", inits);
	return 0;
}

int job_storage(struct job *job, struct json *pod_spec, struct json *container, struct err *err)
{
	job->volumes = json_array();
	job->mounts = json_array();
	json_set(pod_spec, "volumes", job->volumes);
	json_set(container, "volumeMounts", job->mounts);
	int r = add_own(job, err);
	if (r == 0)
		r = add_results(job, err);
	if (r == 0)
		r = add_mounts(job, err);
	return r < 0 ? r : add_copy(job, pod_spec, err);
}
