/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/observed.h"
#include "kube/status/usage.h"
#include "targets/kube/pod/pod_output.h"
#include "targets/kube/pod/pod_sample.h"
#include "targets/kube/target_kube.h"

/*
 * Current resource usage of an attempt's pods: from a command beside each program or, where that is
 * impossible or reports nothing, from the metrics API. Samples are kept beside the attempt's
 * record.
 */

enum {
	LOOK_MS = 10 * 1000,
	PODS_MAX = 10000,
	ASKED_MAX = 16, /* pods that a command is run in */
	KEPT_MAX = 64 << 10,
	METRICS_AGAIN_MS = 60 * 1000, /* of a cluster that has none, or does not show them */
};

struct looking;

/* A pod that is sampled. */
struct rank {
	struct looking *looking;
	char *pod;
	struct pod_output *output; /* NULL: it has ended, or none was begun */
	struct buf text;
};

struct looking {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct kube_handle handle;
	struct json **ret;
	struct kube_call *find, *metrics_call;
	struct json *metrics;
	struct VEC_OF(struct rank) ranks;
	struct loop_timer *end;
	size_t n_open;
};

static void drop(struct target_work *work)
{
	struct looking *looking = (struct looking *)work;

	kube_cancel(looking->find);
	kube_cancel(looking->metrics_call);
	loop_remove_timer(looking->kube->target.loop, looking->end);
	vec_foreach (struct rank, rank, &looking->ranks) {
		pod_output_cancel(rank->output);
		buf_done(&rank->text);
		free(rank->pod);
	}
	vec_done(&looking->ranks);
	json_free(looking->metrics);
	free(looking);
}

/*
 * Results
 */

static void add_metrics(
	const struct looking *looking, const struct rank *rank, struct pod_sample *sample)
{
	struct kube_usage usage;

	kube_usage_of_pod(looking->metrics, rank->pod, KUBE_CONTAINER, &usage);
	if (sample->cpu < 0)
		sample->cpu = usage.cpus;
	if (sample->memory_bytes < 0)
		sample->memory_bytes = usage.memory_bytes;
}

static bool is_known(const struct pod_sample *sample)
{
	return sample->cpu_s >= 0 || sample->cpu >= 0 || sample->memory_bytes >= 0 ||
	       sample->gpu_busy >= 0 || sample->gpu_memory_bytes >= 0;
}

/* Of all pods; NULL: nothing is known of any. */
static struct json *look_of(const struct looking *looking)
{
	struct json *all = NULL;

	vec_foreach (const struct rank, rank, &looking->ranks) {
		struct pod_sample sample;

		pod_sample_parse(rank->text.data, rank->text.len, &sample);
		add_metrics(looking, rank, &sample);
		if (!is_known(&sample))
			continue;
		AUTO_JSON struct json *one = pod_sample_json(&sample, clock_wall_ms());
		if (all)
			observed_add_rank(all, one);
		else
			all = TAKE(one);
	}
	return all;
}

static char *kept_dir(const struct target_kube *kube, const struct kube_handle *handle)
{
	return dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);
}

struct json *kube_observed(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *dir = kept_dir(kube, handle);

	return observed_read(dir);
}

/* Errors are ignored: a sample that cannot be saved is still valid. */
static void write_kept(const struct looking *looking, const struct json *kept)
{
	AUTO_FREE char *dir = kept_dir(looking->kube, &looking->handle);
	AUTO_FREE char *path = fs_join(dir, OBSERVED_FILE);
	AUTO_BUF struct buf text;

	buf_init(&text, KEPT_MAX);
	json_print(kept, &text);
	if (buf_check(&text, path, NULL) == 0 && fs_mkdirs(dir, 0700, NULL) == 0)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}

static void finish(struct looking *looking)
{
	AUTO_JSON struct json *look = look_of(looking);
	AUTO_JSON struct json *kept = kube_observed(looking->kube, &looking->handle);
	AUTO_ERR struct err fault = {0};

	if (look) {
		if (!kept)
			kept = json_object();
		json_set_str(kept, "schema", OBSERVED_SCHEMA);
		observed_keep(kept, look);
		write_kept(looking, kept);
	}
	*looking->ret = TAKE(kept);
	target_call_end(looking->call, 0, &fault);
}

static void end_one(struct looking *looking)
{
	if (--looking->n_open == 0)
		finish(looking);
}

/* Timeout: finish with the samples received so far. */
static int on_end(void *ctx, struct err *err)
{
	struct looking *looking = ctx;

	(void)err;
	looking->end = NULL;
	finish(looking);
	return 0;
}

/*
 * Asking
 */

static int on_data(void *ctx, const char *data, size_t len, struct err *err)
{
	struct rank *rank = ctx;

	buf_add(&rank->text, data, len);
	return buf_check(&rank->text, "what a look beside the program says", err);
}

static void on_said(void *ctx, int status, struct err *fault, const char *said)
{
	struct rank *rank = ctx;

	(void)status;
	(void)said;
	rank->output = NULL;
	/* If exec is denied or there is no shell, this command does not try it again. */
	if (fault->id == E_KUBE_DENIED || err_cannot_exec(fault))
		rank->looking->kube->no_exec = true;
	end_one(rank->looking);
}

static void ask_pod(struct looking *looking, struct rank *rank, const struct strv *words)
{
	const struct pod_output_request request = {
		.loop = looking->kube->target.loop,
		.client = looking->kube->cluster->client,
		.kube_namespace = looking->handle.kube_namespace,
		.pod = rank->pod,
		.container = KUBE_CONTAINER,
		.command = words,
		.stdin_fd = -1,
		.data = on_data,
		.done = on_said,
		.ctx = rank,
	};

	if (pod_output_start(&request, &rank->output, NULL) == 0)
		looking->n_open++;
}

static int on_pods(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct looking *looking = ctx;
	struct kube_names names = {0};
	AUTO_STRV struct strv words = {0};

	(void)err;
	looking->find = NULL;
	pod_sample_words(&words);
	kube_running_pods(answer->object, &names);
	vec_reserve(&looking->ranks, names.n); /* their addresses stay */
	vec_foreach (const char *, name, &names) {
		struct rank *rank = vec_push(&looking->ranks);

		*rank = (struct rank){.looking = looking, .pod = mem_strdup(*name)};
		buf_init(&rank->text, POD_SAMPLE_MAX);
		if (looking->ranks.n <= ASKED_MAX && !looking->kube->no_exec)
			ask_pod(looking, rank, &words);
	}
	vec_done(&names);
	end_one(looking);
	return 0;
}

static int on_metrics(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct looking *looking = ctx;

	(void)err;
	looking->metrics_call = NULL;
	if (err_is_set(&answer->fault))
		looking->kube->no_metrics_ms = clock_ms();
	else
		looking->metrics = TAKE(answer->object);
	end_one(looking);
	return 0;
}

static struct kube_call *list(struct looking *looking, const char *group, kube_done_fn *done)
{
	AUTO_FREE char *inside = kube_path("/namespaces/%s/pods", looking->handle.kube_namespace);
	AUTO_FREE char *path = mem_printf("%s%s", group, inside);
	AUTO_FREE char *label = mem_printf(KUBE_LABEL_RUN "=%s", looking->handle.run_id);
	const char *const query[] = {"labelSelector", label, NULL};

	looking->n_open++;
	return kube_list(looking->kube->cluster->client, path, query, PODS_MAX,
		looking->call->deadline_ms, done, looking);
}

int kube_sample(struct target *target, const char *handle, struct json **ret,
	struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct looking *looking = mem_alloc(1, sizeof(*looking));

	*looking = (struct looking){.work = {drop}, .kube = kube, .call = call, .ret = ret};
	int r = kube_handle_parse(kube, handle, &looking->handle, err);
	if (r < 0) {
		free(looking);
		return r;
	}
	if (!call->deadline_ms)
		call->deadline_ms = clock_ms() + LOOK_MS;
	target_call_begin(call, &looking->work);
	looking->end = loop_add_timer(target->loop, call->deadline_ms, on_end, looking);
	looking->find = list(looking, "/api/v1", on_pods);
	if (!kube->no_metrics_ms || clock_ms() - kube->no_metrics_ms > METRICS_AGAIN_MS)
		looking->metrics_call = list(looking, KUBE_METRICS_GROUP, on_metrics);
	return 0;
}
