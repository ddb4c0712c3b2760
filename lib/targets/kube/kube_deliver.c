/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/watch.h"
#include "kube/status/object.h"
#include "oci/layout/layout.h"
#include "targets/kube/pod_copy.h"
#include "targets/kube/target_kube.h"

/*
 * target_ops.deliver: the layers of the code go to each pod of a Job whose init container waits
 * for them, one after the other. Before each try the pod reports how much of a layer it has, so
 * that the next connection continues where the last one was cut.
 */

enum {
	STREAMS_MAX = 16, /* at once */
	RETRY_MIN_MS = 200,
	RETRY_MAX_MS = 10000,
	STALL_MS = 30000,
	FAILING_TRIES = 3, /* until it is reported */
	RESPONSE_MAX = 64,
};

extern const char kube_deliver_script[]; /* deliver.sh */

struct delivery;

/* A pod that waits. */
struct delivery_pod {
	struct delivery *of;
	char *name, *uid;
	size_t layer;
	bool is_waiting; /* the container runs, as far as is known */
	bool has_all;    /* each layer has come once */
	bool is_taking;  /* output is a stream of the layer, from fd */
	int fd;
	int64_t at;       /* in fd, when progress was last checked */
	int64_t had;      /* bytes of the layer, when it was last asked */
	unsigned n_tries; /* since the last progress */
	struct pod_output *output;
	struct buf response;
	struct loop_timer *timer; /* until the next try, or until it stalls */
};

struct delivery {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct kube_handle handle;
	struct layout *layout;
	struct target_delivery_events events;
	bool is_reported; /* something fails; at first by the process before this one */
	const struct delivery_pod *failing; /* that fails; NULL: not known, or none */
	struct VEC_OF(struct descriptor) layers;
	struct VEC_OF(struct delivery_pod *) pods;
	struct kube_watch *pod_watch, *job_watch;
	size_t n_streams;
	bool has_job;
	struct loop_timer *end;
	struct err error;
};

static void delivery_stop(struct delivery_pod *pod)
{
	if (pod->output)
		pod->of->n_streams--;
	pod_output_cancel(TAKE(pod->output));
	loop_remove_timer(pod->of->kube->target.loop, TAKE(pod->timer));
	auto_fd(&pod->fd);
	pod->fd = -1;
	buf_reset(&pod->response);
}

static void delivery_drop(struct target_work *work)
{
	struct delivery *delivery = (struct delivery *)work;

	kube_watch_free(delivery->pod_watch);
	kube_watch_free(delivery->job_watch);
	vec_foreach (struct delivery_pod *, at, &delivery->pods) {
		struct delivery_pod *pod = *at;

		delivery_stop(pod);
		buf_done(&pod->response);
		free(pod->name);
		free(pod->uid);
		free(pod);
	}
	vec_done(&delivery->pods);
	vec_done(&delivery->layers);
	loop_remove_timer(delivery->kube->target.loop, delivery->end);
	err_done(&delivery->error);
	free(delivery);
}

/*
 * End
 */

static int delivery_on_end(void *ctx, struct err *err UNUSED)
{
	struct delivery *delivery = ctx;

	delivery->end = NULL;
	target_call_end_as(delivery->call, &delivery->error);
	return 0;
}

/* Not from within an event of a watch. */
static void delivery_finish(struct delivery *delivery)
{
	if (!delivery->end)
		delivery->end =
			loop_add_timer(delivery->kube->target.loop, 0, delivery_on_end, delivery);
}

/*
 * A pod
 */

static void delivery_try(struct delivery_pod *pod);

static int delivery_on_timer(void *ctx, struct err *err UNUSED)
{
	struct delivery_pod *pod = ctx;

	pod->timer = NULL;
	delivery_try(pod);
	return 0;
}

static void delivery_wait(struct delivery_pod *pod, int64_t ms)
{
	delivery_stop(pod);
	pod->timer =
		loop_add_timer(pod->of->kube->target.loop, clock_ms() + ms, delivery_on_timer, pod);
}

/* error: not set when the pod has got on, or does not wait any more. */
static void delivery_report(struct delivery_pod *pod, const struct err *error)
{
	struct delivery *delivery = pod->of;

	if (!err_is_set(error) &&
		(!delivery->is_reported || (delivery->failing && delivery->failing != pod)))
		return;
	delivery->is_reported = err_is_set(error);
	delivery->failing = delivery->is_reported ? pod : NULL;
	delivery->events.failing(delivery->events.ctx, error);
}

static void delivery_report_progress(struct delivery_pod *pod)
{
	static const struct err none = {0};

	delivery_report(pod, &none);
}

/* Without progress longer each time. error: of the last try, or NULL. */
static void delivery_try_later(struct delivery_pod *pod, const struct err *error)
{
	delivery_wait(pod, backoff_ms(++pod->n_tries, RETRY_MIN_MS, RETRY_MAX_MS));
	if (error && pod->n_tries >= FAILING_TRIES)
		delivery_report(pod, error);
}

/* A connection may be lost without an error at either end. */
static int delivery_on_stall(void *ctx, struct err *err UNUSED)
{
	struct delivery_pod *pod = ctx;
	int64_t at = lseek(pod->fd, 0, SEEK_CUR);

	pod->timer = NULL;
	if (!pod->is_taking || at == pod->at) {
		AUTO_ERR struct err error = {0};
		err_set(&error, E_KUBE_UNREACHABLE, "nothing has come through for %d s",
			STALL_MS / 1000);
		delivery_try_later(pod, &error);
		return 0;
	}
	pod->at = at;
	pod->timer = loop_add_timer(
		pod->of->kube->target.loop, clock_ms() + STALL_MS, delivery_on_stall, pod);
	return 0;
}

static int delivery_on_data(void *ctx, const char *data, size_t len, struct err *err UNUSED)
{
	struct delivery_pod *pod = ctx;

	if (pod->response.len + len <= RESPONSE_MAX)
		buf_add(&pod->response, data, len);
	return 0;
}

static void delivery_take(struct delivery_pod *pod, int64_t offset);

/* "done", or how many bytes are there. */
static void delivery_read_response(struct delivery_pod *pod)
{
	AUTO_FREE char *word = mem_strndup(pod->response.data, strcspn(pod->response.data, "\n"));
	const struct descriptor *layer = &pod->of->layers.v[pod->layer];
	int64_t offset;

	delivery_stop(pod);
	if (str_eq(word, "done")) {
		/* A layer that proves damaged there is requested again. */
		if (++pod->layer == pod->of->layers.n) {
			pod->layer = 0;
			pod->has_all = true;
			delivery_try_later(pod, NULL);
		} else {
			delivery_wait(pod, 0);
		}
		pod->had = 0;
		delivery_report_progress(pod);
	} else if (str_to_int(word, 0, (int64_t)layer->size, "bytes", &offset, NULL) == 0) {
		if (offset > pod->had) {
			pod->n_tries = 0;
			delivery_report_progress(pod);
		}
		pod->had = offset;
		delivery_take(pod, offset);
	} else {
		AUTO_ERR struct err error = {0};
		AUTO_FREE char *shown = str_shown(word);
		err_set(&error, E_KUBE_EXEC, "the pod answers '%s'", shown);
		delivery_try_later(pod, &error);
	}
}

static void delivery_on_done(void *ctx, int status, struct err *error, const char *said)
{
	struct delivery_pod *pod = ctx;
	bool is_taking = pod->is_taking;

	pod->output = NULL;
	pod->of->n_streams--;
	if (status && !err_is_set(error)) {
		AUTO_FREE char *shown = str_shown(said);
		err_set(error, E_KUBE_EXEC, "exit status %d: %s", status, shown);
	}
	if (err_is_set(error))
		log_note("the code of pod %s: %s", pod->name, error->message);
	if (is_taking && !err_is_set(error) && status == 0) {
		pod->n_tries = 0;
		delivery_wait(pod, 0);
	} else if (!is_taking && !err_is_set(error) && status == 0 && pod->response.len) {
		delivery_read_response(pod);
	} else {
		delivery_try_later(pod, err_is_set(error) ? error : NULL);
	}
}

static void delivery_run(struct delivery_pod *pod, const char *mode, int64_t bytes)
{
	struct target_kube *kube = pod->of->kube;
	AUTO_STRV struct strv words = {0};
	AUTO_ERR struct err error = {0};
	const struct pod_output_request request = {
		.loop = kube->target.loop,
		.client = kube->cluster->client,
		.kube_namespace = pod->of->handle.kube_namespace,
		.pod = pod->name,
		.container = KUBE_CODE,
		.command = &words,
		.stdin_fd = pod->fd,
		.data = delivery_on_data,
		.done = delivery_on_done,
		.ctx = pod,
	};

	strv_add(&words, "/bin/sh");
	strv_add(&words, "-c");
	strv_add(&words, kube_deliver_script);
	strv_add(&words, "dlrun");
	strv_add(&words, mode);
	strv_addf(&words, "%zu", pod->layer);
	strv_addf(&words, "%lld", (long long)bytes);
	if (pod_output_start(&request, &pod->output, &error) < 0) {
		log_note("the code of pod %s: %s", pod->name, error.message);
		delivery_try_later(pod, &error);
		return;
	}
	pod->of->n_streams++;
	pod->timer =
		loop_add_timer(kube->target.loop, clock_ms() + STALL_MS, delivery_on_stall, pod);
}

static void delivery_take(struct delivery_pod *pod, int64_t offset)
{
	const struct descriptor *layer = &pod->of->layers.v[pod->layer];
	AUTO_ERR struct err error = {0};

	/* A layer that is requested again may be damaged here, and would be sent for ever. */
	int r = pod->has_all ? layout_check_blob(pod->of->layout, layer, &error) : 0;
	if (r == 0)
		r = layout_open_blob(pod->of->layout, layer, &pod->fd, &error);
	if (r == 0 && lseek(pod->fd, offset, SEEK_SET) < 0)
		r = fs_error(&error, errno, "%s", layer->digest);
	if (r < 0) {
		/* The code is not here any more, or not as it was. */
		if (!err_is_set(&pod->of->error))
			err_move(&pod->of->error, &error);
		delivery_finish(pod->of);
		return;
	}
	pod->is_taking = true;
	pod->at = offset;
	delivery_run(pod, "take", (int64_t)layer->size - offset);
}

static void delivery_try(struct delivery_pod *pod)
{
	if (!pod->is_waiting)
		return;
	if (pod->of->n_streams >= STREAMS_MAX) {
		delivery_wait(pod, RETRY_MIN_MS);
		return;
	}
	pod->is_taking = false;
	delivery_run(pod, "have", (int64_t)pod->of->layers.v[pod->layer].size);
}

/*
 * Pods and the Job
 */

static bool delivery_is_waiting(const struct json *object)
{
	const struct json *status = kube_first(object, "status.initContainerStatuses");

	if (kube_str_at(object, "metadata.deletionTimestamp"))
		return false;
	for (; status; status = json_next(status))
		if (str_eq(json_get_str(status, "name"), KUBE_CODE))
			return kube_at(status, "state.running") != NULL;
	return false;
}

static struct delivery_pod *delivery_find(struct delivery *delivery, const char *uid)
{
	vec_foreach (struct delivery_pod *, pod, &delivery->pods)
		if (str_eq((*pod)->uid, uid))
			return *pod;
	return NULL;
}

static void delivery_stop_waiting(struct delivery_pod *pod)
{
	delivery_stop(pod);
	delivery_report_progress(pod);
}

static void delivery_on_pod(void *ctx, const struct json *object)
{
	struct delivery *delivery = ctx;
	const char *name = kube_str_at(object, "metadata.name");
	const char *uid = kube_str_at(object, "metadata.uid");
	bool is_waiting = delivery_is_waiting(object);
	struct delivery_pod *pod = uid ? delivery_find(delivery, uid) : NULL;

	if (!pod && (!is_waiting || !name || !uid))
		return;
	if (!pod) {
		pod = mem_alloc(1, sizeof(*pod));
		*pod = (struct delivery_pod){
			.of = delivery, .name = mem_strdup(name), .uid = mem_strdup(uid), .fd = -1};
		buf_init(&pod->response, RESPONSE_MAX);
		*vec_push(&delivery->pods) = pod;
	}
	if (is_waiting == pod->is_waiting)
		return;
	pod->is_waiting = is_waiting;
	if (is_waiting)
		delivery_wait(pod, 0);
	else
		delivery_stop_waiting(pod);
}

static void delivery_on_pod_gone(void *ctx, const struct json *object)
{
	const char *uid = kube_str_at(object, "metadata.uid");
	struct delivery_pod *pod = uid ? delivery_find(ctx, uid) : NULL;

	if (!pod)
		return;
	pod->is_waiting = false;
	delivery_stop_waiting(pod);
}

static void delivery_on_job(void *ctx, const struct json *object)
{
	struct delivery *delivery = ctx;

	delivery->has_job = true;
	if (kube_kind_has_ended(delivery->handle.kind, object))
		delivery_finish(delivery);
}

static void delivery_on_job_gone(void *ctx, const struct json *object UNUSED)
{
	delivery_finish(ctx);
}

static int delivery_on_failed(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct delivery *delivery = ctx;

	if (!err_is_set(&delivery->error))
		err_move(&delivery->error, error);
	delivery_finish(delivery);
	return 0;
}

static void delivery_on_pods_synced(void *ctx UNUSED)
{
}

static struct kube_watch *delivery_watch_pods(struct delivery *delivery)
{
	AUTO_FREE char *path =
		kube_path("/api/v1/namespaces/%s/pods", delivery->handle.kube_namespace);
	struct kube_handle all = delivery->handle;
	/* Of a member those of its study. */
	all.is_member = false;
	AUTO_FREE char *selector = kube_handle_attempt_pods(&all);
	const char *const query[] = {"labelSelector", selector, NULL};
	const struct kube_watch_request request = {
		.path = path,
		.query = query,
		.max_objects = KUBE_MEMBERS_MAX,
		.events = {delivery_on_pod, delivery_on_pod_gone, delivery_on_pods_synced, NULL,
			delivery_on_failed, delivery},
	};

	return kube_watch_start(delivery->kube->cluster->client, &request);
}

/* A Job that is not there any more is never put: the list without it says so. */
static void delivery_on_synced(void *ctx)
{
	struct delivery *delivery = ctx;

	if (!delivery->has_job)
		delivery_finish(delivery);
}

static struct kube_watch *delivery_watch_job(struct delivery *delivery)
{
	const struct kube_handle *handle = &delivery->handle;
	AUTO_FREE char *path = kube_kind_collection(handle->kind, handle->kube_namespace);
	AUTO_FREE char *selector = mem_printf("metadata.name=%s", handle->name);
	const char *const query[] = {"fieldSelector", selector, NULL};
	const struct kube_watch_request request = {
		.path = path,
		.query = query,
		.name = handle->name,
		.events = {delivery_on_job, delivery_on_job_gone, delivery_on_synced, NULL,
			delivery_on_failed, delivery},
	};

	return kube_watch_start(delivery->kube->cluster->client, &request);
}

int kube_deliver(struct target *target, const struct target_job *job,
	const struct target_delivery_events *events, struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	const struct json *layers = json_get(json_get(job->run->doc, "image"), "layers");
	struct delivery *delivery = mem_alloc(1, sizeof(*delivery));

	*delivery = (struct delivery){.work = {delivery_drop},
		.kube = kube,
		.call = call,
		.layout = job->layout,
		.events = *events,
		.is_reported = true};
	int r = kube_handle_parse(kube, job->handle, &delivery->handle, err);
	if (r < 0) {
		delivery_drop(&delivery->work);
		return r;
	}
	for (const struct json *item = json_first(layers); item; item = json_next(item)) {
		const char *digest = json_get_str(item, "digest");
		if (!digest || str_eq(json_get_str(item, "role"), "base"))
			continue;
		struct descriptor *layer = vec_push(&delivery->layers);
		*layer = (struct descriptor){.size = (uint64_t)json_get_int(item, "size", 0)};
		snprintf(layer->digest, sizeof(layer->digest), "%s", digest);
	}
	target_call_begin(call, &delivery->work);
	delivery->pod_watch = delivery_watch_pods(delivery);
	delivery->job_watch = delivery_watch_job(delivery);
	return 0;
}
