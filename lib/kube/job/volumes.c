/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "kube/job/job_impl.h"
#include "kube/job/overlay.h"

/*
 * Volumes of a pod: results, data, the user's own, and those that every run has.
 */

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
			run->kube_namespace,
			(place->kind == KUBE_PLACE_NFS ? "NFS" : "a directory of the node"));
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
	struct json *volume;

	if (place->kind == KUBE_PLACE_PVC || place->kind == KUBE_PLACE_CLAIM) {
		AUTO_FREE char *own = kube_job_claim_name(
			job->run->claim_of ? job->run->claim_of : job->run->run_id);
		volume = json_make("{'persistentVolumeClaim': {'claimName': %s}}",
			place->kind == KUBE_PLACE_PVC ? place->name : own);
	} else if (place->kind == KUBE_PLACE_NFS) {
		volume = json_make("{'nfs': {'server': %s, 'path': %s}}", place->name, place->path);
	} else if (place->kind == KUBE_PLACE_HOST) {
		return json_make("{'hostPath': {'path': %s}}", place->path);
	} else {
		volume = json_make("{'emptyDir': {}}");
		if (place->size_bytes)
			job_set_bytes(json_sub(volume, "emptyDir"), "sizeLimit", place->size_bytes);
		return volume;
	}
	if (place->read_only)
		json_set_bool(json_sub(volume, json_key(json_first(volume))), "readOnly", true);
	return volume;
}

static void add_volume(struct job *job, const char *name, const char *kind, struct json *take)
{
	json_add(job->volumes, json_make("{'name': %s, %s: %p}", name, kind, (void *)take));
}

/* The name of the volume for a source: one for all mounts of it. The caller frees. */
static char *use_volume(struct job *job, const char *hint, struct json *take)
{
	AUTO_JSON struct json *volume = take;
	const struct json *wanted = json_first(volume);
	char *name = NULL;

	json_foreach (item, job->volumes) {
		const struct json *source = json_next(json_first(item));
		if (str_eq(json_key(source), json_key(wanted)) &&
			!str_eq(json_key(source), "emptyDir") && overlay_is_same(source, wanted))
			return mem_strdup(json_get_str(item, "name"));
	}
	name = hint ? mem_strdup(hint) : mem_printf("volume-%zu", json_count(job->volumes));
	add_volume(job, name, json_key(wanted), json_clone(wanted));
	return name;
}

/*
 * Mounts
 */

struct sub_path {
	const char *key, *path; /* path: NULL or empty: none */
};

/* below: NULL: the whole volume. */
static struct json *job_new_mount(
	const char *volume, const char *path, const struct sub_path *below, bool read_only)
{
	struct json *mount = json_make("{'name': %s, 'mountPath': %s}", volume, path);

	if (below && !str_empty(below->path))
		json_set_str(mount, below->key, below->path);
	if (read_only)
		json_set_bool(mount, "readOnly", true);
	return mount;
}

static int add_mount_below(struct job *job, const char *volume, const char *path,
	const struct sub_path *below, bool read_only, struct err *err)
{
	AUTO_FREE char *shown = str_shown(path);

	json_foreach (item, job->mounts)
		if (str_eq(json_get_str(item, "mountPath"), path))
			return err_set(err, E_KUBE_STORAGE, "%s would be two volumes", shown);
	json_add(job->mounts, job_new_mount(volume, path, below, read_only));
	if (strchr(path, ':') || *path != '/')
		return err_set(err, E_KUBE_STORAGE,
			"%s cannot be a volume: its path has a ':' or is not absolute", shown);
	if (json_count(job->mounts) > MOUNTS_MAX)
		return err_set(err, E_DATA_LIMIT, "the run has more than %d volumes", MOUNTS_MAX);
	return job_check_text(path, "the path", err);
}

static int add_mount(struct job *job, const char *volume, const char *path, const char *sub_path,
	bool read_only, struct err *err)
{
	const struct sub_path below = {"subPath", sub_path};

	return add_mount_below(job, volume, path, &below, read_only, err);
}

/* Add the volumes that every run has. */
static int job_add_own(struct job *job, struct err *err)
{
	struct json *shm = json_make("{'medium': 'Memory'}");

	if (job->run->shm_bytes)
		job_set_bytes(shm, "sizeLimit", job->run->shm_bytes);
	add_volume(job, "shm", "emptyDir", shm);
	add_volume(job, "attempt", "emptyDir", json_object());
	add_volume(job, "hosts", "downwardAPI",
		json_make("{'items': [{'path': 'hostfile', 'fieldRef': {'fieldPath': %s}}]}",
			"metadata.annotations['" JOB_HOSTS_NOTE "']"));
	int r = add_mount(job, "shm", "/dev/shm", NULL, false, err);
	if (r == 0)
		r = add_mount(job, "attempt", KUBE_ATTEMPT_DIR, NULL, false, err);
	if (r == 0)
		r = add_mount(job, "hosts", JOB_HOSTS_DIR, NULL, true, err);
	if (r == 0 && job->run->n_members) {
		add_volume(job, "study", "configMap", json_make("{'name': %s}", job->run->job));
		r = add_mount(job, "study", KUBE_STUDY_DIR, NULL, true, err);
	}
	if (r < 0 || !job->is_restricted)
		return r;
	add_volume(job, "home", "emptyDir", json_object());
	return add_mount(job, "home", KUBE_HOME_DIR, NULL, false, err);
}

static char *job_tree_path(const struct job *job, const char *path)
{
	return mem_printf("%s/%s", job->run->workdir, path);
}

/* "me/resnet-3k2f9/out" */
static char *job_join(const char *a, const char *b, const char *c)
{
	return mem_printf("%s%s%s%s%s", a ? a : "", str_empty(a) ? "" : "/", b,
		str_empty(c) ? "" : "/", c ? c : "");
}

/* path: in the results; NULL: all of them. */
static int job_add_result(struct job *job, const char *volume, const char *mount_path,
	const char *prefix, const char *path, struct err *err)
{
	const struct kube_run *run = job->run;
	bool is_study = run->n_members > 0;
	AUTO_FREE char *id = is_study ? job_member_id(run) : mem_strdup(run->run_id);
	AUTO_FREE char *before = kube_escaped(prefix ? prefix : "");
	AUTO_FREE char *behind = kube_escaped(path ? path : "");
	AUTO_FREE char *sub_path =
		is_study ? job_join(before, id, behind) : job_join(prefix, id, path);
	const struct sub_path below = {is_study ? "subPathExpr" : "subPath", sub_path};

	return add_mount_below(job, volume, mount_path, &below, false, err);
}

static int job_add_results(struct job *job, struct err *err)
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
	r = job_add_result(job, volume, KUBE_OUTPUT_DIR, place.sub_path, NULL, err);
	for (size_t i = 0; r == 0 && i < run->n_outputs; i++) {
		const char *output = run->outputs[i].path;
		AUTO_FREE char *path = job_tree_path(job, output);
		r = job_add_result(job, volume, path, place.sub_path, output, err);
	}
	return r;
}

static int job_add_place(struct job *job, const struct kube_mount *mount, const char *path,
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
		AUTO_FREE char *path = job_tree_path(job, data->path);
		if (data->place.kind != KUBE_PLACE_S3)
			r = job_add_place(job, data, path, data->path, err);
		if (data->has_files)
			strv_addf(job->notes,
				"files of the snapshot below data '%s' are hidden by its volume",
				data->path);
	}
	for (size_t i = 0; r == 0 && i < run->n_volumes; i++)
		r = job_add_place(
			job, &run->volumes[i], run->volumes[i].path, run->volumes[i].path, err);
	return r;
}

/*
 * Files of the snapshot below outputs
 */

static struct json *job_find_mount(const struct job *job, const char *path)
{
	json_foreach (item, job->mounts)
		if (str_eq(json_get_str(item, "mountPath"), path))
			return json_clone(item);
	return NULL;
}

/* An init container of the run's image; job_add_init for what is the same in all. */
static struct json *job_new_init(const struct job *job, const char *name)
{
	return json_make("{'name': %s, 'image': %s, 'imagePullPolicy': 'IfNotPresent'}", name,
		job->run->image_ref);
}

/* Behind those that there are. */
static void job_add_init(
	const struct job *job, struct json *pod_spec, struct json *init, struct json *mounts)
{
	const struct json *before = json_get(pod_spec, "initContainers");
	struct json *inits = before ? json_clone(before) : json_array();

	job_resources(job, init, false);
	job_container_security(job, init);
	json_set(init, "volumeMounts", mounts);
	json_set_str(init, "terminationMessagePolicy", "FallbackToLogsOnError");
	json_add(inits, init);
	json_set(pod_spec, "initContainers", inits);
}

/*
 * Code that is not in the image
 */

static uint64_t job_code_size(const struct kube_run *run)
{
	uint64_t size = 0;

	for (size_t i = 0; i < run->n_code; i++)
		size += run->code[i].size;
	return size;
}

bool kube_code_fits(const struct kube_run *run)
{
	return job_code_size(run) <= KUBE_CODE_STORED;
}

/* The volume that has the entries of all objects. */
static struct json *job_code_source(const struct kube_run *run)
{
	struct json *sources = json_array();
	uint64_t size = job_code_size(run);

	for (size_t i = 0; i * KUBE_CODE_EACH < size; i++) {
		AUTO_FREE char *name = kube_job_code_name(run->job, i);
		json_add(sources, json_make("{'configMap': {'name': %s}}", name));
	}
	return json_make("{'sources': %p}", (void *)sources);
}

/* Words that run a script; what is added behind them are its arguments. */
static void job_script_words(const char *script, struct strv *ret)
{
	strv_add(ret, "/bin/sh");
	strv_add(ret, "-c");
	strv_add(ret, script);
	strv_add(ret, "dlrun");
}

static void job_code_words(const struct kube_run *run, struct strv *ret)
{
	job_script_words(job_code_script, ret);
	strv_add(ret, kube_code_fits(run) ? KUBE_CODE_PARTS : "");
	strv_add(ret, run->workdir);
	for (size_t i = 0; i < run->n_code; i++) {
		const char *colon = strchr(run->code[i].digest, ':');
		strv_add(ret, colon ? colon + 1 : "");
	}
}

static int job_add_code(struct job *job, struct json *pod_spec, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_STRV struct strv words = {0};
	AUTO_JSON struct json *init = NULL;
	struct json *mounts;

	if (!run->code_apart)
		return 0;
	if (run->has_no_shell) {
		err_set(err, E_KUBE_SHELL,
			"without a registry the code is unpacked in the pod, and the image has no "
			"shell for that");
		return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
	}
	add_volume(job, "code", "emptyDir", json_object());
	int r = add_mount(job, "code", run->workdir, run->workdir + 1, false, err);
	if (r < 0)
		return r;
	job_code_words(run, &words);
	init = job_new_init(job, KUBE_CODE);
	r = job_set_words(init, "command", &words, err);
	if (r < 0)
		return r;
	mounts = json_array();
	json_add(mounts, job_new_mount("code", KUBE_CODE_DIR, NULL, false));
	if (run->n_code && kube_code_fits(run)) {
		add_volume(job, "code-in", "projected", job_code_source(run));
		json_add(mounts, job_new_mount("code-in", KUBE_CODE_PARTS, NULL, true));
	}
	job_add_init(job, pod_spec, TAKE(init), mounts);
	return 0;
}

static int add_copy(struct job *job, struct json *pod_spec, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_STRV struct strv words = {0}, paths = {0};

	for (size_t i = 0; i < run->n_outputs; i++)
		if (run->outputs[i].has_files)
			strv_add(&paths, run->outputs[i].path);
	if (paths.n == 0)
		return 0;
	if (run->has_no_shell) {
		err_set(err, E_KUBE_SHELL,
			"the snapshot has files below an output, and the image no shell to copy "
			"them");
		return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
	}
	AUTO_JSON struct json *init = job_new_init(job, "outputs");
	struct json *mounts;

	json_set_str(init, "workingDir", run->workdir);
	job_script_words(copy_lines, &words);
	int r = job_set_words(init, "command", &words, err);
	if (r == 0)
		r = job_set_words(init, "args", &paths, err);
	if (r < 0)
		return r;
	mounts = json_array();
	json_add(mounts, job_find_mount(job, KUBE_OUTPUT_DIR));
	if (run->code_apart)
		json_add(mounts, job_find_mount(job, run->workdir));
	job_add_init(job, pod_spec, TAKE(init), mounts);
	return 0;
}

/*
 * The version of data behind `current`
 */

#define VERSIONS_DIR "/dlrun/versions"

/* The node follows the link when it mounts: the root of the mount is the version (proc(5)). */
static const char version_lines[] =
	"i=0\n"
	"for p; do\n"
	"\twhile read -r x x x from at x; do\n"
	"\t\t[ \"$at\" != " VERSIONS_DIR "/$i ] || printf '" KUBE_JOB_DATA
	" %s %s\\n' \"${from##*/}\" \"$p\"\n"
	"\tdone </proc/self/mountinfo\n"
	"\ti=$((i + 1))\n"
	"done >/dev/termination-log\n"
	"exit 0\n";

static int job_add_versions(struct job *job, struct json *pod_spec, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_STRV struct strv words = {0}, paths = {0};
	AUTO_JSON struct json *mounts = json_array();

	for (size_t i = 0; i < run->n_data; i++) {
		const struct kube_mount *data = &run->data[i];
		const char *sub_path = data->place.sub_path;
		if (!sub_path || !str_ends(sub_path, ".dlrun/current"))
			continue;
		AUTO_FREE char *path = job_tree_path(job, data->path);
		AUTO_FREE char *at = mem_printf(VERSIONS_DIR "/%zu", paths.n);
		struct json *mount = job_find_mount(job, path);
		json_set_str(mount, "mountPath", at);
		json_set_bool(mount, "readOnly", true);
		json_add(mounts, mount);
		strv_add(&paths, data->path);
	}
	if (paths.n == 0 || run->is_warming || run->has_no_shell ||
		(run->lacks_shell && !run->has_shell))
		return 0;
	AUTO_JSON struct json *init = job_new_init(job, KUBE_VERSIONS);
	job_script_words(version_lines, &words);
	int r = job_set_words(init, "command", &words, err);
	if (r == 0)
		r = job_set_words(init, "args", &paths, err);
	if (r == 0)
		job_add_init(job, pod_spec, TAKE(init), TAKE(mounts));
	return r;
}

/*
 * Data in S3
 */

#define S3_RUN "s3/runs/$(" JOB_POD ")/"

static const char python_check[] = "command -v python3 >/dev/null || {\n"
				   "\techo 'dlrun: data in S3 need an image with python3' >&2\n"
				   "\texit 125\n"
				   "}\n";

/* Of the pod's own disk: lists and the like need some room, too. */
static void job_set_s3_size(const struct kube_run *run, struct kube_place *place)
{
	bool has_limit = true;

	for (size_t i = 0; i < run->n_data; i++) {
		const struct kube_place *data = &run->data[i].place;
		has_limit &= data->kind != KUBE_PLACE_S3 || data->size_bytes;
		if (data->kind == KUBE_PLACE_S3)
			place->size_bytes += data->size_bytes + data->size_bytes / 64;
	}
	place->size_bytes = has_limit ? (place->size_bytes | 0xfffffff) + 1 : 0;
}

/* below: of what the init container makes for this pod. */
static int job_add_s3_mount(struct job *job, const char *volume, const char *path,
	const char *below, bool read_only, struct err *err)
{
	const char *prefix = job->run->s3_cache.sub_path;
	AUTO_FREE char *escaped = kube_escaped(prefix ? prefix : "");
	AUTO_FREE char *sub_path = job_join(escaped, S3_RUN, NULL);
	AUTO_FREE char *whole = mem_printf("%s%s", sub_path, below);
	const struct sub_path expression = {"subPathExpr", whole};

	return add_mount_below(job, volume, path, &expression, read_only, err);
}

static int job_add_s3_init(struct job *job, const char *volume, struct json *pod_spec,
	const struct json *container, struct json *args, struct err *err)
{
	const struct sub_path below = {"subPath", job->run->s3_cache.sub_path};
	AUTO_JSON struct json *init = job_new_init(job, KUBE_S3);
	struct json *mounts = json_array(), *env = json_array();
	AUTO_STRV struct strv words = {0};

	json_set(init, "args", args);
	job_add_field(env, JOB_POD, "metadata.uid");
	job_s3_env(container, env);
	json_set(init, "env", env);
	json_add(mounts, job_new_mount(volume, KUBE_S3_DIR, &below, false));
	job_python_words(job, python_check, job_download_script, &words);
	int r = job_set_words(init, "command", &words, err);
	job_add_init(job, pod_spec, TAKE(init), mounts);
	return r;
}

/* An init container fetches the objects into the cache, and makes of it a tree for this pod. */
static int job_add_s3(
	struct job *job, struct json *pod_spec, const struct json *container, struct err *err)
{
	const struct kube_run *run = job->run;
	struct kube_place place = run->s3_cache;
	bool is_shared = place.kind != KUBE_PLACE_NONE;
	AUTO_JSON struct json *args = json_array();
	size_t n = 0;

	if (!job_reads_s3(run))
		return 0;
	int r = check_place(job, &place, "caches", err);
	if (r == 0)
		r = check_sub_path(place.sub_path, "caches", err);
	if (r < 0)
		return r;
	if (!is_shared)
		job_set_s3_size(run, &place);
	AUTO_FREE char *volume = use_volume(job, "s3", place_source(job, &place));
	json_add_str(args, is_shared ? "shared" : "own");
	json_add_str(args, "$(" JOB_POD ")");
	r = job_add_s3_mount(job, volume, KUBE_S3_DIR, "state", false, err);
	for (size_t i = 0; r == 0 && i < run->n_data; i++) {
		const struct kube_mount *data = &run->data[i];
		if (data->place.kind != KUBE_PLACE_S3)
			continue;
		AUTO_FREE char *path = job_tree_path(job, data->path);
		AUTO_FREE char *name = kube_escaped(data->path);
		AUTO_FREE char *address = kube_escaped(data->place.path);
		AUTO_FREE char *below = mem_printf("%zu", n++);
		AUTO_FREE char *size =
			mem_printf("%llu", (unsigned long long)data->place.size_bytes);
		json_add_str(args, name);
		json_add_str(args, address);
		json_add_str(args, size);
		r = job_check_text(address, "the address", err);
		if (r == 0)
			r = job_add_s3_mount(job, volume, path, below, true, err);
	}
	return r < 0 ? r : job_add_s3_init(job, volume, pod_spec, container, TAKE(args), err);
}

/* Volumes of the pod, mounts of the container, init containers. */
int job_storage(struct job *job, struct json *pod_spec, struct json *container, struct err *err)
{
	job->volumes = json_array();
	job->mounts = json_array();
	json_set(pod_spec, "volumes", job->volumes);
	json_set(container, "volumeMounts", job->mounts);
	int r = job_add_code(job, pod_spec, err);
	if (r == 0)
		r = job_add_own(job, err);
	if (r == 0)
		r = job_add_results(job, err);
	if (r == 0)
		r = add_mounts(job, err);
	if (r == 0)
		r = job_add_s3(job, pod_spec, container, err);
	if (r == 0)
		r = add_copy(job, pod_spec, err);
	return r < 0 ? r : job_add_versions(job, pod_spec, err);
}
