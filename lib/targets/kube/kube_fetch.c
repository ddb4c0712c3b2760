/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/results.h"
#include "core/target/fetch_sink.h"
#include "kube/job/job.h"
#include "kube/status/object.h"
#include "kube/status/status.h"
#include "targets/kube/kube_storage.h"
#include "targets/kube/pod_copy.h"
#include "targets/kube/s3_copy.h"
#include "targets/kube/target_kube.h"

/*
 * Storage of results
 */

enum { RANK_MAX = 1000000, ATTEMPT_MAX = 9999 };

bool kube_storage_of(const struct json *pod_spec, struct kube_storage *ret)
{
	const struct json *container = kube_named(pod_spec, "containers", KUBE_CONTAINER);
	const struct json *keeper = kube_named(pod_spec, "containers", KUBE_KEEPER);
	const struct json *mount = kube_first(container, "volumeMounts");

	while (mount && !str_eq(json_get_str(mount, "mountPath"), KUBE_OUTPUT_DIR))
		mount = json_next(mount);
	const char *name = json_get_str(mount, "name");
	const struct json *volume = name ? kube_named(pod_spec, "volumes", name) : NULL;
	const struct json *arg = kube_first(keeper, "args");

	if (!volume)
		return false;
	*ret = (struct kube_storage){
		.s3 = json_str(arg),
		.volume = volume,
		.sub_path = json_get_str(
			mount, json_get(mount, "subPathExpr") ? "subPathExpr" : "subPath"),
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

static void set_metadata(const struct kube_reader *reader, struct json *metadata)
{
	struct json *labels = json_sub(metadata, "labels");
	struct json *notes = json_sub(metadata, "annotations");

	json_set_str(metadata, "name", reader->name);
	json_set_str(metadata, "namespace", reader->kube_namespace);
	json_set_str(labels, "app.kubernetes.io/name", KUBE_READER_NAME);
	json_set_str(labels, "app.kubernetes.io/managed-by", KUBE_MANAGED_BY);
	json_set_str(labels, "sidecar.istio.io/inject", "false");
	kube_set_label(labels, "app.kubernetes.io/instance", reader->run_id);
	kube_set_label(
		labels, KUBE_LABEL_RUN, reader->owner_id ? reader->owner_id : reader->run_id);
	if (reader->index)
		json_set_str(labels, KUBE_INDEX, reader->index);
	kube_set_label(labels, KUBE_LABEL_USER, reader->user);
	json_set_str(notes, KUBE_READER_OWNER, reader->owner);
	if (reader->job) {
		AUTO_JSON struct json *patch = kube_job_owner(reader->job);

		json_set(metadata, "ownerReferences",
			json_clone(kube_at(patch, "metadata.ownerReferences")));
	}
}

/* The program's own user and groups, so that its files can be read, and nothing beyond. */
static void set_security(const struct kube_reader *reader, struct json *spec)
{
	static const char *const members[] = {
		"runAsUser", "runAsGroup", "runAsNonRoot", "supplementalGroups", "seLinuxOptions"};
	const struct json *of_pod = json_get(reader->pod_spec, "securityContext");
	struct json *pod = json_sub(spec, "securityContext");

	kube_copy_members(pod, of_pod, members, ARRAY_LEN(members));
	json_set(pod, "seccompProfile", json_make("{'type': 'RuntimeDefault'}"));
}

/* Selectors for GPUs are left out: any node that has the storage will do. */
static void set_selector(const struct kube_reader *reader, struct json *spec)
{
	static const char *const members[] = {"kubernetes.io/os", "kubernetes.io/arch"};
	const struct json *wanted = json_get(reader->pod_spec, "nodeSelector");
	AUTO_JSON struct json *selector = json_object();

	kube_copy_members(selector, wanted, members, ARRAY_LEN(members));
	if (json_count(selector))
		json_set(spec, "nodeSelector", TAKE(selector));
}

struct json *kube_reader_make(const struct kube_reader *reader)
{
	static const char *const members[] = {
		"imagePullSecrets", "serviceAccountName", "tolerations"};
	static const char *const kinds[] = {"name", "persistentVolumeClaim", "nfs", "hostPath"};
	const struct kube_storage *storage = reader->storage;
	struct json *volume = json_object();
	struct json *pod = json_make("{'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {}, 'spec': "
				     "{'restartPolicy': 'Never', 'activeDeadlineSeconds': %d, "
				     "'terminationGracePeriodSeconds': 1, "
				     "'automountServiceAccountToken': false, "
				     "'enableServiceLinks': false}}",
		(int)KUBE_READER_LIFE_S);
	struct json *spec = json_sub(pod, "spec");
	/* The reader waits until it is removed or its lifetime is over; TERM ends it at once. */
	AUTO_FREE char *shell =
		mem_printf("trap 'exit 0' TERM; sleep %d & wait", (int)KUBE_READER_LIFE_S);

	set_metadata(reader, json_sub(pod, "metadata"));
	kube_copy_members(spec, reader->pod_spec, members, ARRAY_LEN(members));
	set_selector(reader, spec);
	set_security(reader, spec);
	kube_copy_members(volume, storage->volume, kinds, ARRAY_LEN(kinds));
	json_set(spec, "volumes", json_make("[%p]", (void *)volume));
	json_set(spec, "containers",
		json_make("[{'name': '" KUBE_READER_CONTAINER "', 'image': %s, "
			  "'imagePullPolicy': 'IfNotPresent', 'workingDir': '/', "
			  "'command': ['sh', '-c', %s], "
			  "'resources': {'requests': {'cpu': '50m', 'memory': '64Mi'}, "
			  "'limits': {'cpu': '1', 'memory': '512Mi'}}, "
			  "'securityContext': {'allowPrivilegeEscalation': false, "
			  "'capabilities': {'drop': ['ALL']}}, "
			  "'volumeMounts': [{'name': %s, 'mountPath': '" KUBE_OUTPUT_DIR "', "
			  "'subPath': %s, 'readOnly': true}]}]",
			json_get_str(storage->container, "image"), shell,
			json_get_str(storage->volume, "name"), storage->sub_path));
	return pod;
}

bool kube_reader_is_one(const struct json *pod)
{
	return str_eq(kube_label(pod, "app.kubernetes.io/name"), KUBE_READER_NAME) &&
	       str_eq(kube_label(pod, "app.kubernetes.io/managed-by"), KUBE_MANAGED_BY);
}

/*
 * Ranks
 */

static int number(const char *text, int64_t max)
{
	int64_t value = 0;

	return text && str_to_int(text, 0, max, "number", &value, NULL) == 0 ? (int)value : 0;
}

static const struct json *kube_fetch_state_of(
	const struct json *pod, const char *container, const char *state)
{
	return kube_at(kube_named(pod, "status.containerStatuses", container), state);
}

/* The container that has its results; NULL: none runs. */
static const char *running_container(const struct json *pod, bool ending)
{
	bool ends = kube_at(pod, "metadata.deletionTimestamp");

	/* With ending, a pod counts although its removal, which follows its Job's, may be yet to
	 * come. */
	if (kube_reader_is_one(pod) || (ends && !ending))
		return NULL;
	if (ending)
		return kube_fetch_state_of(pod, KUBE_KEEPER, "state.running") ? KUBE_KEEPER : NULL;
	if (kube_fetch_state_of(pod, KUBE_CONTAINER, "state.running"))
		return KUBE_CONTAINER;
	return kube_fetch_state_of(pod, KUBE_CONTAINER, "state.terminated") &&
			       kube_fetch_state_of(pod, KUBE_KEEPER, "state.running")
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
	for (const struct json *pod = kube_first(pods, "items"); pod; pod = json_next(pod)) {
		const char *container = running_container(pod, ending);
		int rank = kube_rank_of(pod);
		const struct kube_rank_pod found = {
			.rank = rank >= 0 && rank <= RANK_MAX ? rank : 0,
			.attempt = number(kube_label(pod, KUBE_LABEL_ATTEMPT), ATTEMPT_MAX),
			.name = kube_str_at(pod, "metadata.name"),
			.container = container,
			.lingers = str_eq(container, KUBE_KEEPER),
		};
		if (found.name && container)
			add_pod(ret, &found);
	}
	vec_sort(ret, by_rank);
}

/*
 * The results of a run in a cluster. While its pods run they are read there, from one of them where
 * all have the same storage. Afterwards storage that is left is read by a short-lived pod, which is
 * removed whatever happens: here, or by a later command where this one was killed, or with the Job
 * that owns it, or by its own deadline.
 */

enum {
	SPEC_MAX = 1 << 20,
	LIST_MAX = 20000,
	POLL_MS = 300,
	START_MS = 180 * 1000,
	REMOVE_MS = 5000,
	READERS_MAX = 64
};

struct fetching {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct fetch_sink *sink;
	struct kube_handle handle;
	/* The cluster's objects. */
	struct kube_call *list; /* of pods, or Jobs */
	struct json *pods, *jobs;
	const struct json *job; /* of jobs: the newest attempt; or NULL */
	struct kube_rank_pods ranks;
	size_t at; /* of ranks: which is read */
	bool by_rank;
	struct pod_copy *copy;
	struct s3_copy *s3_copy;
	struct pod_output *release; /* of the pod at `at`, behind all that was read */
	/* The pod that reads. */
	struct kube_storage storage;
	struct json *made;           /* what the Job would be, where it is gone */
	const struct json *job_spec; /* of that */
	const struct json *pod_spec;
	char *sub_path; /* of a member of a study, that storage borrows; or NULL */
	char *s3;       /* the address in S3, where the results are there */
	char *reader;   /* its name while there may be one */
	struct kube_call *request;
	struct loop_timer *timer;
	int64_t deadline_ms;
	char *waits_for;
	char *tree; /* that the program runs in; or NULL */
	/* How it went, while the pod is removed. */
	struct err result;
};

static char *pod_path(const struct fetching *fetching, const char *name)
{
	return kube_path("/api/v1/namespaces/%s/pods/%s", fetching->handle.kube_namespace, name);
}

/* The response is not waited for. */
static void kube_fetch_delete_pod(const struct fetching *fetching, const char *name)
{
	AUTO_FREE char *path = pod_path(fetching, name);
	const struct kube_request request = {
		.method = "DELETE",
		.path = path,
		.is_idempotent = true,
		.deadline_ms = clock_ms() + REMOVE_MS,
	};

	kube_start_detached(fetching->kube->cluster->client, &request);
}

static void kube_fetch_drop(struct target_work *work)
{
	struct fetching *fetching = (struct fetching *)work;

	kube_cancel(TAKE(fetching->list));
	kube_cancel(TAKE(fetching->request));
	pod_copy_cancel(TAKE(fetching->copy));
	s3_copy_cancel(TAKE(fetching->s3_copy));
	pod_output_cancel(TAKE(fetching->release));
	loop_remove_timer(fetching->kube->target.loop, TAKE(fetching->timer));
	/* Given up: nobody else would remove it now. */
	if (fetching->reader)
		kube_fetch_delete_pod(fetching, fetching->reader);
	vec_done(&fetching->ranks);
	json_free(fetching->pods);
	json_free(fetching->jobs);
	json_free(fetching->made);
	free(fetching->sub_path);
	free(fetching->s3);
	err_done(&fetching->result);
	free(fetching->reader);
	free(fetching->waits_for);
	free(fetching->tree);
	free(fetching);
}

/*
 * The end
 */

static int kube_fetch_on_removed(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;

	fetching->request = NULL;
	if (err_is_set(&response->error) && response->error.id != E_KUBE_NOT_FOUND)
		log_note("pod %s is left: %s", fetching->reader, response->error.message);
	free(TAKE(fetching->reader));
	target_call_end_as(fetching->call, &fetching->result);
	return 0;
}

static void kube_fetch_start_request(struct fetching *fetching, const char *method,
	const char *path, const struct json *body, kube_done_fn *done)
{
	static const char *const strict[] = {"fieldValidation", "Strict", NULL};
	const struct kube_request request = {
		.method = method,
		.path = path,
		.query = str_eq(method, "POST") ? strict : NULL,
		.body = body,
		.is_idempotent = true,
		.done = done,
		.ctx = fetching,
	};

	fetching->request = kube_start(fetching->kube->cluster->client, &request);
}

/* error: NULL or not set: it has all come. */
static void kube_fetch_finish(struct fetching *fetching, struct err *error)
{
	if (err_is_set(error))
		err_move(&fetching->result, error);
	if (!fetching->reader) {
		target_call_end_as(fetching->call, &fetching->result);
		return;
	}
	AUTO_FREE char *path = pod_path(fetching, fetching->reader);
	kube_fetch_start_request(fetching, "DELETE", path, NULL, kube_fetch_on_removed);
}

/*
 * Reading
 */

static int ignore_data(
	void *ctx UNUSED, const char *data UNUSED, size_t len UNUSED, struct err *err UNUSED)
{
	return 0;
}

static void release_next(struct fetching *fetching);

static void kube_fetch_on_released(
	void *ctx, int status, struct err *error, const char *said UNUSED)
{
	struct fetching *fetching = ctx;

	fetching->release = NULL;
	/* Nothing waited, or it will not wait for ever. */
	if (err_is_set(error) || status)
		log_note("pod %s is not told that its results are here",
			fetching->ranks.v[fetching->at].name);
	err_clear(error);
	fetching->at++;
	release_next(fetching);
}

static int start_release(struct fetching *fetching, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	const struct kube_rank_pod *pod = &fetching->ranks.v[fetching->at];

	strv_add(&words, "/bin/sh");
	strv_add(&words, "-c");
	strv_add(&words, KUBE_RELEASE);
	const struct pod_output_request request = {
		.loop = fetching->kube->target.loop,
		.client = fetching->kube->cluster->client,
		.kube_namespace = fetching->handle.kube_namespace,
		.pod = pod->name,
		.container = pod->container,
		.command = &words,
		.stdin_fd = -1,
		.data = ignore_data,
		.done = kube_fetch_on_released,
		.ctx = fetching,
	};
	return pod_output_start(&request, &fetching->release, err);
}

/* Releases the pods that wait for their results to be read, one after the other. */
static void release_next(struct fetching *fetching)
{
	AUTO_ERR struct err error = {0};
	int r = 0;

	while (fetching->at < fetching->ranks.n && !fetching->ranks.v[fetching->at].lingers)
		fetching->at++;
	if (fetching->at < fetching->ranks.n)
		r = start_release(fetching, &error);
	if (r < 0 || fetching->at == fetching->ranks.n)
		kube_fetch_finish(fetching, &error);
}

static void kube_fetch_read_next(struct fetching *fetching);

static void on_copied(void *ctx, struct err *error)
{
	struct fetching *fetching = ctx;

	fetching->copy = NULL;
	fetching->at++;
	if (err_is_set(error) || fetching->reader) {
		kube_fetch_finish(fetching, error);
	} else if (fetching->at < fetching->ranks.n) {
		kube_fetch_read_next(fetching);
	} else if (fetching->sink->takes) {
		fetching->at = 0;
		release_next(fetching);
	} else {
		kube_fetch_finish(fetching, error);
	}
}

static enum pod_copy_first first_of(const struct fetching *fetching, bool is_program)
{
	const struct fetch_sink *sink = fetching->sink;

	if (sink->ending)
		return POD_COPY_WAIT;
	if (!is_program || fetching->tree)
		return POD_COPY_LIST;
	return sink->takes ? POD_COPY_ANNOUNCE : POD_COPY_COLLECT;
}

static void read_pod(
	struct fetching *fetching, const char *pod, const char *container, const char *prefix)
{
	bool is_program = str_eq(container, KUBE_CONTAINER);

	const struct pod_copy_request request = {
		.loop = fetching->kube->target.loop,
		.client = fetching->kube->cluster->client,
		.kube_namespace = fetching->handle.kube_namespace,
		.pod = pod,
		.container = container,
		.dir = fetching->tree ? fetching->tree : KUBE_OUTPUT_DIR,
		.prefix = prefix,
		.may_change = is_program,
		.first = first_of(fetching, is_program),
		.temp_dir = fetching->kube->session->dirs.state,
		.sink = fetching->sink,
		.done = on_copied,
		.ctx = fetching,
	};

	fetching->copy = pod_copy_start(&request);
}

/* Ranks with a storage each have a directory each. */
static void kube_fetch_read_next(struct fetching *fetching)
{
	const struct kube_rank_pod *pod = &fetching->ranks.v[fetching->at];
	AUTO_FREE char *prefix =
		fetching->by_rank ? mem_printf("rank-%d/", pod->rank) : mem_strdup("");
	const char *only = fetching->sink->only;

	if (only && !str_starts(only, prefix)) {
		on_copied(fetching, NULL);
		return;
	}
	read_pod(fetching, pod->name, pod->container, prefix);
}

/*
 * The pod that reads
 */

/* The reason why the pod waits, in the cluster's words. */
static const char *pod_reason(const struct json *pod)
{
	const struct json *first = kube_first(pod, "status.containerStatuses");
	const char *message = kube_str_at(first, "state.waiting.message");
	const char *reason = message ? message : kube_str_at(first, "state.waiting.reason");

	if (!reason && kube_condition_is(pod, "PodScheduled", "False"))
		reason = json_get_str(kube_condition(pod, "PodScheduled"), "message");
	return reason;
}

static int kube_fetch_on_poll(void *ctx, struct err *err);

static void kube_fetch_check_pod(struct fetching *fetching, const struct json *pod)
{
	const char *phase = kube_str_at(pod, "status.phase"), *reason = pod_reason(pod);
	AUTO_ERR struct err error = {0};

	if (str_eq(phase, "Running")) {
		read_pod(fetching, fetching->reader, KUBE_READER_CONTAINER, "");
		return;
	}
	if (str_eq(phase, "Failed") || str_eq(phase, "Succeeded")) {
		err_set(&error, E_KUBE_SHELL,
			"the image of %s has no shell to read its results with",
			fetching->handle.run_id);
		err_hint(&error, "image: docker.io/library/python:3.12   # has a shell and tar");
		kube_fetch_finish(fetching, &error);
		return;
	}
	free(fetching->waits_for);
	AUTO_FREE char *bounded = reason ? mem_strndup(reason, 400) : NULL;
	fetching->waits_for = bounded ? str_escaped(bounded) : NULL;
	if (clock_ms() > fetching->deadline_ms) {
		err_set(&error, E_KUBE_STORAGE,
			"pod %s, which is to read the results of %s, does not start",
			fetching->reader, fetching->handle.run_id);
		if (fetching->waits_for)
			err_evidence(&error, "%s", fetching->waits_for);
		err_hint(&error, "kubectl -n %s get events", fetching->handle.kube_namespace);
		kube_fetch_finish(fetching, &error);
		return;
	}
	fetching->timer = loop_add_timer(
		fetching->kube->target.loop, clock_ms() + POLL_MS, kube_fetch_on_poll, fetching);
}

static int kube_fetch_on_polled(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;

	fetching->request = NULL;
	if (err_is_set(&response->error))
		kube_fetch_finish(fetching, &response->error);
	else
		kube_fetch_check_pod(fetching, response->object);
	return 0;
}

static int kube_fetch_on_poll(void *ctx, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;
	AUTO_FREE char *path = pod_path(fetching, fetching->reader);

	fetching->timer = NULL;
	kube_fetch_start_request(fetching, "GET", path, NULL, kube_fetch_on_polled);
	return 0;
}

static int kube_fetch_on_made(void *ctx, struct kube_response *response, struct err *err)
{
	struct fetching *fetching = ctx;

	/* A lost answer and a second try: the name is our own. */
	if (response->error.id == E_KUBE_EXISTS) {
		fetching->request = NULL;
		return kube_fetch_on_poll(fetching, err);
	}
	return kube_fetch_on_polled(ctx, response, err);
}

/* MACHINE/PID/START */
static char *owner_text(void)
{
	char machine[OS_ID_SIZE];

	if (!os_machine_id(machine))
		machine[0] = '\0';
	return mem_printf("%s/%lld/%llu", machine, (long long)getpid(),
		(unsigned long long)os_process_start(getpid()));
}

/*
 * Locating the results
 */

static const struct json *find_pod_spec(const struct fetching *fetching)
{
	const struct json *spec =
		fetching->job ? json_get(fetching->job, "spec") : fetching->job_spec;
	const struct json *template = json_get(spec, "template");

	if (template)
		return json_get(template, "spec");
	/* Of a pod of the run: with ranks one that is read. */
	if (fetching->ranks.n)
		return json_get(kube_item(fetching->pods, fetching->ranks.v[0].name), "spec");
	for (const struct json *pod = kube_first(fetching->pods, "items"); pod;
		pod = json_next(pod))
		if (!kube_reader_is_one(pod))
			return json_get(pod, "spec");
	return NULL;
}

/* The program's working directory, less its place in the tree. */
static int find_tree(struct fetching *fetching, struct err *err)
{
	const struct json *program = kube_named(fetching->pod_spec, "containers", KUBE_CONTAINER);
	const char *text = kube_annotation(fetching->job, KUBE_ANNOTATION_SPEC);
	const char *dir = json_get_str(program, "workingDir"), *cwd = NULL;
	AUTO_JSON struct json *spec = NULL;

	if (text && json_parse(text, strlen(text), SPEC_MAX, "spec", &spec, NULL) == 0)
		cwd = json_get_str(spec, "cwd");
	if (!dir || *dir != '/')
		return err_set(err, E_FETCH_PATH, "the pod of %s has no tree of its own",
			fetching->handle.run_id);
	AUTO_FREE char *end = mem_printf("/%s", cwd && !str_eq(cwd, ".") ? cwd : "");
	size_t len = strlen(dir);
	fetching->tree =
		mem_strndup(dir, str_ends(dir, end) && len > strlen(end) ? len - strlen(end) : len);
	return 0;
}

/* The Job says so a moment later than its pods. */
static bool kube_fetch_has_ended(const struct fetching *fetching)
{
	const struct kube_handle *handle = &fetching->handle;

	for (const struct json *pod = kube_first(fetching->pods, "items"); pod;
		pod = json_next(pod)) {
		const char *phase = kube_str_at(pod, "status.phase");

		if (!kube_reader_is_one(pod) &&
			(str_eq(phase, "Succeeded") || str_eq(phase, "Failed")))
			return true;
	}
	if (!fetching->job)
		return true;
	return handle->is_member ? kube_member_has_ended(fetching->job, handle->index)
				 : kube_kind_has_ended(KUBE_KIND_JOB, fetching->job);
}

/* Where results wait it is gone. */
static int evaluate_tree(struct fetching *fetching, struct err *err)
{
	struct kube_rank_pods *ranks = &fetching->ranks;
	size_t n = 0;

	for (size_t i = 0; i < ranks->n; i++)
		if (!ranks->v[i].lingers)
			ranks->v[n++] = ranks->v[i];
	ranks->n = n;
	if (n == 0)
		return err_set(err, E_FETCH_PATH, "the tree of %s ended with its pod",
			fetching->handle.run_id);
	int r = find_tree(fetching, err);
	return r < 0 ? r : 1;
}

static bool kube_fetch_find_storage(struct fetching *fetching)
{
	struct kube_storage *storage = &fetching->storage;

	if (!kube_storage_of(fetching->pod_spec, storage))
		return false;
	if (storage->s3)
		REPLACE(fetching->s3, kube_member_path(storage->s3, fetching->handle.index));
	if (fetching->handle.is_member && storage->sub_path) {
		REPLACE(fetching->sub_path,
			kube_member_path(storage->sub_path, fetching->handle.index));
		storage->sub_path = fetching->sub_path;
	}
	return true;
}

/* 1: there is storage to be read. */
static int kube_fetch_evaluate(struct fetching *fetching, struct err *err)
{
	const struct kube_handle *handle = &fetching->handle;

	fetching->job = kube_item(fetching->jobs, handle->job);
	/* The Job is gone: rebuild it from the record. */
	if (!fetching->ranks.n && !find_pod_spec(fetching)) {
		int r = kube_record_job(fetching->kube, handle, &fetching->made, err);
		if (r < 0)
			return r;
		fetching->job_spec =
			json_get(kube_kind_template(handle->kind, fetching->made), "spec");
	}
	fetching->pod_spec = find_pod_spec(fetching);
	bool has_any = kube_fetch_find_storage(fetching);
	if (fetching->sink->from_tree)
		return evaluate_tree(fetching, err);
	if (fetching->ranks.n || fetching->s3)
		return 1;
	if (has_any && fetching->storage.is_host)
		return err_set(err, E_KUBE_HOST_PATH,
			"the results of %s are in a directory of a node, which is read while it runs only",
			handle->run_id);
	if (has_any && fetching->storage.is_kept)
		return 1;
	/* The run has not started and has written nothing, or there is nothing to take. */
	if (!kube_fetch_has_ended(fetching) || fetching->sink->takes)
		return 0;
	err_set(err, E_KUBE_STORAGE, "the results of %s ended with its pod: target %s keeps none",
		handle->run_id, fetching->kube->target.name);
	return err_hint(err, "results: {claim: 20Gi}   # of the target, for later runs");
}

/* Whether a process of this machine made it that is gone. */
static bool is_left(const struct json *pod)
{
	const char *owner = kube_annotation(pod, KUBE_READER_OWNER);
	const char *slash = owner ? strchr(owner, '/') : NULL;
	char machine[OS_ID_SIZE];
	long long pid;
	unsigned long long start;

	if (!kube_reader_is_one(pod) || !slash || !os_machine_id(machine) ||
		strlen(machine) != (size_t)(slash - owner) ||
		memcmp(machine, owner, strlen(machine)) != 0)
		return false;
	if (sscanf(slash + 1, "%lld/%llu", &pid, &start) != 2 || pid <= 0)
		return false;
	return !os_process_alive((pid_t)pid, start);
}

static void kube_fetch_sweep(struct fetching *fetching)
{
	size_t n = 0;

	for (const struct json *pod = kube_first(fetching->pods, "items"); pod && n < READERS_MAX;
		pod = json_next(pod)) {
		const char *name = kube_str_at(pod, "metadata.name");

		if (!name || !is_left(pod))
			continue;
		kube_fetch_delete_pod(fetching, name);
		n++;
	}
}

/* Objects owned by a Job that is being deleted would be deleted with it, as those of one that is
 * not there: what the Jobs of a JobSet's roles are joined to. */
static bool kube_fetch_owns(const struct fetching *fetching)
{
	bool is_joined = fetching->handle.kind == KUBE_KIND_JOBSET &&
			 kube_annotation(fetching->job, KUBE_ANNOTATION_ROLES);

	return fetching->job && !kube_deleted_ms(fetching->job) && !is_joined;
}

static void kube_fetch_on_s3(void *ctx, struct err *error)
{
	struct fetching *fetching = ctx;

	s3_copy_cancel(TAKE(fetching->s3_copy));
	kube_fetch_finish(fetching, error);
}

static void kube_fetch_from_s3(struct fetching *fetching)
{
	AUTO_ERR struct err error = {0};
	const struct s3_copy_request request = {
		.loop = fetching->kube->target.loop,
		.http = fetching->kube->cluster->http,
		.env = fetching->kube->session->env.env,
		.address = fetching->s3,
		.sink = fetching->sink,
		.done = kube_fetch_on_s3,
		.ctx = fetching,
	};
	int r = s3_copy_start(&request, &fetching->s3_copy, &error);

	if (r < 0)
		kube_fetch_finish(fetching, &error);
}

static void kube_fetch_decide(struct fetching *fetching)
{
	AUTO_ERR struct err error = {0};
	int r = kube_fetch_evaluate(fetching, &error);

	if (r <= 0) {
		kube_fetch_finish(fetching, &error);
		return;
	}
	kube_fetch_sweep(fetching);
	if (fetching->ranks.n) {
		/* Also where only one of the nodes is left: those of several have a domain for
		 * their names. */
		fetching->by_rank =
			(fetching->tree || !fetching->storage.is_kept) &&
			(fetching->ranks.n > 1 || json_get_str(fetching->pod_spec, "subdomain"));
		if (fetching->storage.is_kept && !fetching->tree)
			fetching->ranks.n = 1;
		kube_fetch_read_next(fetching);
		return;
	}
	if (fetching->s3) {
		kube_fetch_from_s3(fetching);
		return;
	}
	if (fetching->sink->is_brief) {
		r = err_set(&error, E_TARGET_UNSUPPORTED,
			"a pod would have to be started to read the storage of %s",
			fetching->handle.run_id);
		kube_fetch_finish(fetching, &error);
		return;
	}
	log_note("a pod is started to read the results of %s", fetching->handle.run_id);
	AUTO_FREE char *owner = owner_text();
	AUTO_FREE char *collection =
		kube_path("/api/v1/namespaces/%s/pods", fetching->handle.kube_namespace);
	char id[RUN_ID_SIZE], index[16];

	snprintf(index, sizeof(index), "%d", fetching->handle.index);
	run_make_id("fetch", id);
	REPLACE(fetching->reader, mem_printf("%s-%s", fetching->handle.run_id, id));
	const struct kube_reader reader = {
		.name = fetching->reader,
		.kube_namespace = fetching->handle.kube_namespace,
		.run_id = fetching->handle.run_id,
		.owner_id = fetching->handle.owner,
		.index = fetching->handle.is_member ? index : NULL,
		.user = fetching->kube->session->env.user,
		.owner = owner,
		.job = kube_fetch_owns(fetching) ? fetching->job : NULL,
		.pod_spec = fetching->pod_spec,
		.storage = &fetching->storage,
	};
	AUTO_JSON struct json *pod = kube_reader_make(&reader);
	fetching->deadline_ms = clock_ms() + START_MS;
	kube_fetch_start_request(fetching, "POST", collection, pod, kube_fetch_on_made);
}

static bool kube_fetch_take_list(
	struct fetching *fetching, struct kube_response *response, struct json **out)
{
	fetching->list = NULL;
	if (err_is_set(&response->error)) {
		kube_fetch_finish(fetching, &response->error);
		return false;
	}
	*out = TAKE(response->object);
	return true;
}

static void kube_fetch_start_list(
	struct fetching *fetching, char *take_path, char *take_selector, kube_done_fn *done)
{
	AUTO_FREE char *selector = take_selector;
	const char *const query[] = {"labelSelector", selector, NULL};

	fetching->list = kube_list(
		fetching->kube->cluster->client, take_path, query, LIST_MAX, 0, done, fetching);
	free(take_path);
}

static int kube_fetch_on_jobs(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;

	if (!kube_fetch_take_list(fetching, response, &fetching->jobs))
		return 0;
	kube_join_roles(fetching->jobs);
	kube_fetch_decide(fetching);
	return 0;
}

/* Pods that run tell all that is needed to read what they have written. */
static int kube_fetch_on_pods(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;
	const struct fetch_sink *sink = fetching->sink;

	if (!kube_fetch_take_list(fetching, response, &fetching->pods))
		return 0;
	kube_rank_pods_of(fetching->pods, sink->ending, &fetching->ranks);
	for (size_t i = 0; fetching->handle.is_member && i < fetching->ranks.n; i++)
		fetching->ranks.v[i].rank = 0;
	if (fetching->ranks.n && !sink->from_tree)
		kube_fetch_decide(fetching);
	else
		kube_fetch_start_list(fetching,
			kube_path("/apis/batch/v1/namespaces/%s/jobs",
				fetching->handle.kube_namespace),
			kube_handle_jobs(&fetching->handle), kube_fetch_on_jobs);
	return 0;
}

int kube_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err)
{
	struct fetching *fetching = mem_alloc(1, sizeof(*fetching));
	const struct dirs *dirs = &target_kube_of(target)->session->dirs;

	*fetching = (struct fetching){.work = {kube_fetch_drop},
		.kube = target_kube_of(target),
		.call = call,
		.sink = sink};
	int r = kube_handle_parse(fetching->kube, handle, &fetching->handle, err);
	if (r == 0 && sink->is_brief && kube_has_left_nothing(fetching->kube, &fetching->handle))
		r = err_set(err, E_TARGET_UNSUPPORTED, "no start of %s was seen before its cancel",
			fetching->handle.run_id);
	if (r < 0) {
		free(fetching);
		return r;
	}
	if (!sink->from_tree && !sink->takes &&
		taken_is_done(dirs, fetching->handle.run_id, fetching->handle.attempt)) {
		AUTO_FREE char *outputs = dirs_outputs(dirs, fetching->handle.run_id);
		free(fetching);
		return attempt_files_fetch(target->loop, outputs, NULL, sink, call, err);
	}
	target_call_begin(call, &fetching->work);
	kube_fetch_start_list(fetching,
		kube_path("/api/v1/namespaces/%s/pods", fetching->handle.kube_namespace),
		kube_handle_pods(&fetching->handle), kube_fetch_on_pods);
	return 0;
}
