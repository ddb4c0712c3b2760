/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/logs/runlog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "kube/api/watch.h"
#include "kube/logs/podlog.h"
#include "kube/status/status_impl.h"

enum {
	INSTANCES_MAX = 64, /* of one rank that are waited for */
	TURN_MS = 0,        /* at once, but from the loop */
	LAST_POLL_MS = 200, /* for pods that are not known yet when the Job has ended */
	WAIT_MS = 5000,     /* and for those that have not ended yet */
	PODS_MAX = 256,     /* of which is known how they have ended */
	OPENING_MS = 200,   /* for the first bytes, once pods are known */
	OPENING_MAX_MS = 3000,
};

/* A single run of the container of a pod. */
struct instance {
	char *pod, *uid, *id, *created; /* created: as the API says it, which can be compared */
	int64_t restarts, started_ms;   /* wall clock of the node; 0: not known */
	bool started, ended, replaced;
};

struct rank {
	struct kube_runlog *runlog;
	int number;
	char *name;                                         /* "rank 3", of a role "actors.3" */
	struct instances VEC_OF(struct instance) instances; /* oldest first */
	size_t at;                                          /* the one that is read, or is to be */
	struct podlog *podlog;                              /* of it */
	char *token;                                        /* where to go on in it; or NULL */
	char *last;                                         /* the last point, when none is open */
	bool was_drained;                                   /* the token says so */
	bool is_drained;                                    /* the instance of last */
	bool is_chosen;                                     /* where to begin */
	bool has_begun;                                     /* reading it */
	bool was_heard;                                     /* something has come, or ended */
};

/* json: as it was when it had ended; NULL while it goes on. */
struct seen_pod {
	char *uid;
	struct json *json;
};

struct kube_runlog {
	struct kube_client *client;
	struct loop *loop;
	struct kube_runlog_events events;
	enum kube_kind kind;
	char *kube_namespace, *name;
	bool is_member;
	int index, wanted;
	int64_t tail_lines, since_ms;
	bool follow, has_ended;
	char *token;
	struct kube_watch *pods, *jobs;
	bool synced, job_seen, job_ended;
	struct json *job;                              /* as it is; NULL: not seen */
	struct seen_pods VEC_OF(struct seen_pod) seen; /* beyond PODS_MAX: the first of them */
	int64_t begun_again; /* how often, before the first pod that is seen; -1: none is */
	struct ranks VEC_OF(struct rank *) ranks; /* by number */
	struct loop_timer *turn;
	int64_t begun_ms, synced_ms, ended_ms; /* synced_ms: 0: not yet */
	struct err error;
	bool is_over;
};

static void runlog_turn_at(struct kube_runlog *runlog, int64_t at_ms);

static void runlog_notify(struct kube_runlog *runlog, int rank, const char *text)
{
	if (runlog->events.notice && !runlog->is_over)
		runlog->events.notice(runlog->events.ctx, rank, text);
}

static void runlog_notify_gap(struct kube_runlog *runlog, int rank, const char *text)
{
	if (!runlog->events.gap)
		runlog_notify(runlog, rank, text);
	else if (!runlog->is_over)
		runlog->events.gap(runlog->events.ctx, rank, text);
}

/*
 * Ranks and their instances
 */

static void runlog_rank_free(struct rank *rank)
{
	podlog_free(rank->podlog);
	vec_foreach (struct instance, instance, &rank->instances) {
		free(instance->pod);
		free(instance->uid);
		free(instance->id);
		free(instance->created);
	}
	vec_done(&rank->instances);
	free(rank->name);
	free(rank->token);
	free(rank->last);
	free(rank);
}

/* The part of the token for a rank: "3=POINT", parts with commas between them. */
static char *runlog_token_of(const char *token, int number)
{
	char head[24];
	int n = snprintf(head, sizeof(head), "%d=", number);

	for (const char *at = token; at && *at;) {
		size_t len = strcspn(at, ",");
		if (strncmp(at, head, (size_t)n) == 0)
			return mem_strndup(at + n, len - (size_t)n);
		at += len + (at[len] == ',');
	}
	return NULL;
}

static char *runlog_rank_name(const struct json *pod, int number)
{
	const char *role = kube_label(pod, KUBE_LABEL_ROLE), *index = kube_completion_index(pod);

	return role && index ? mem_printf("%s.%s", role, index) : mem_printf("rank %d", number);
}

static struct rank *runlog_find_rank(struct kube_runlog *runlog, const struct json *pod, int number)
{
	struct rank *rank;
	size_t i = 0;

	while (i < runlog->ranks.n && runlog->ranks.v[i]->number < number)
		i++;
	if (i < runlog->ranks.n && runlog->ranks.v[i]->number == number)
		return runlog->ranks.v[i];
	if (runlog->ranks.n == KUBE_RUNLOG_RANKS_MAX)
		return NULL;
	rank = mem_alloc(1, sizeof(*rank));
	*rank = (struct rank){.runlog = runlog,
		.number = number,
		.name = runlog_rank_name(pod, number),
		.token = runlog_token_of(runlog->token, number)};
	if (rank->token && str_ends(rank->token, KUBE_RUNLOG_DRAINED)) {
		rank->token[strlen(rank->token) - strlen(KUBE_RUNLOG_DRAINED)] = '\0';
		rank->was_drained = true;
	}
	*vec_push(&runlog->ranks) = NULL;
	memmove(runlog->ranks.v + i + 1, runlog->ranks.v + i,
		(runlog->ranks.n - 1 - i) * sizeof(struct rank *));
	runlog->ranks.v[i] = rank;
	return rank;
}

static bool runlog_is_older(
	const struct instance *a, const char *created, const char *id, int64_t restarts)
{
	int order = strcmp(a->created, created);

	if (order == 0 && strncmp(a->id, id, 8) == 0)
		return a->restarts < restarts;
	return order < 0 || (order == 0 && strcmp(a->id, id) < 0);
}

/* Found, or added at its place; never before one that is being read. */
static struct instance *runlog_find_instance(
	struct rank *rank, const struct json *pod, int64_t restarts)
{
	const struct json *metadata = json_get(pod, "metadata");
	const char *uid = json_get_str(metadata, "uid"), *name = json_get_str(metadata, "name");
	const char *created = json_get_str(metadata, "creationTimestamp");
	char id[40];
	size_t i = rank->at + (rank->podlog ? 1 : 0);

	if (!uid || !name || !created)
		return NULL;
	snprintf(id, sizeof(id), "%.8s.%lld", uid, (long long)restarts);
	vec_foreach (struct instance, old, &rank->instances)
		if (str_eq(old->id, id))
			return old;
	if (rank->instances.n - rank->at >= INSTANCES_MAX)
		return NULL;
	while (i < rank->instances.n &&
		runlog_is_older(&rank->instances.v[i], created, id, restarts))
		i++;
	vec_push(&rank->instances);
	memmove(rank->instances.v + i + 1, rank->instances.v + i,
		(rank->instances.n - 1 - i) * sizeof(struct instance));
	rank->instances.v[i] = (struct instance){.pod = mem_strdup(name),
		.uid = mem_strdup(uid),
		.id = mem_strdup(id),
		.created = mem_strdup(created),
		.restarts = restarts};
	return &rank->instances.v[i];
}

/*
 * Reading one
 */

static int runlog_on_data(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct rank *rank = ctx;
	struct kube_runlog *runlog = rank->runlog;

	rank->was_heard = true;
	if (!runlog->events.data)
		return 0;
	return runlog->events.data(runlog->events.ctx, rank->number, data, len, time_ms, err);
}

static void runlog_on_notice(void *ctx, const char *text)
{
	struct rank *rank = ctx;

	runlog_notify(rank->runlog, rank->number, text);
}

static void runlog_on_gap(void *ctx, const char *text)
{
	struct rank *rank = ctx;

	runlog_notify_gap(rank->runlog, rank->number, text);
}

static void runlog_keep_point(struct rank *rank)
{
	REPLACE(rank->last, mem_alloc(1, PODLOG_TOKEN_SIZE));
	podlog_token(rank->podlog, rank->last);
}

static void runlog_notify_end_lost(
	struct rank *rank, const struct instance *instance, const struct err *error)
{
	char time[CLOCK_TEXT_SIZE] = "";
	struct podlog_point point;
	AUTO_FREE char *text = NULL;

	if (podlog_point_parse(rank->last, &point) && point.time_ns > 0)
		clock_format(point.time_ns / 1000000, time);
	text = mem_printf("%s: lines %s%s may be missing: the end of the log of pod %s cannot "
			  "be read any more: %s",
		rank->name, *time ? "after " : "of its end", time, instance->pod, error->message);
	runlog_notify_gap(rank->runlog, rank->number, text);
}

static int runlog_on_end(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct rank *rank = ctx;
	struct kube_runlog *runlog = rank->runlog;
	const struct instance *instance = &rank->instances.v[rank->at];

	rank->was_heard = true;
	runlog_keep_point(rank);
	rank->is_drained = instance->ended || runlog->has_ended || err_is_set(error);
	podlog_free(TAKE(rank->podlog));
	rank->at++;
	if (error->id == E_KUBE_DENIED || error->id == E_KUBE_AUTH) {
		if (!err_is_set(&runlog->error))
			err_move(&runlog->error, error);
	} else if (err_is_set(error)) {
		runlog_notify_end_lost(rank, instance, error);
	}
	runlog_turn_at(runlog, TURN_MS);
	return 0;
}

static void runlog_notify_other(struct rank *rank, const struct instance *instance)
{
	AUTO_FREE char *text = NULL;

	if (!rank->has_begun || rank->at == 0)
		return;
	if (str_eq(rank->instances.v[rank->at - 1].pod, instance->pod))
		text = mem_printf(
			"%s: the container of pod %s was started again", rank->name, instance->pod);
	else
		text = mem_printf("%s: goes on in pod %s", rank->name, instance->pod);
	runlog_notify_gap(rank->runlog, rank->number, text);
}

static void runlog_read_instance(struct rank *rank, const struct instance *instance)
{
	struct kube_runlog *runlog = rank->runlog;
	AUTO_FREE char *token = TAKE(rank->token);
	struct podlog_request request = {.kube_namespace = runlog->kube_namespace,
		.pod = instance->pod,
		.container = KUBE_CONTAINER,
		.label = rank->name,
		.id = instance->id,
		.uid = instance->uid,
		.previous = instance->replaced,
		.follow = runlog->follow,
		.tail_lines = rank->has_begun ? -1 : runlog->tail_lines,
		.since_ms = runlog->since_ms,
		.started_ms = instance->started_ms,
		.token = token,
		.events = {runlog_on_data, runlog_on_notice, runlog_on_gap, runlog_on_end, rank}};

	runlog_notify_other(rank, instance);
	rank->has_begun = true;
	rank->podlog = podlog_start(runlog->client, runlog->loop, &request);
	if (instance->ended)
		podlog_finish(rank->podlog, false);
}

/* Skip instances that had begun before the last line of the pod that is gone. */
static void runlog_notify_pod_gone(struct rank *rank, const struct podlog_point *point)
{
	char time[CLOCK_TEXT_SIZE];
	AUTO_FREE char *text = NULL;

	rank->has_begun = true;
	while (rank->at < rank->instances.n && rank->instances.v[rank->at].started_ms > 0 &&
		rank->instances.v[rank->at].started_ms < point->time_ns / 1000000)
		rank->at++;
	if (rank->was_drained)
		return;
	clock_format(point->time_ns / 1000000, time);
	text = mem_printf("%s: lines after %s may be missing: the pod that was read before is "
			  "gone",
		rank->name, time);
	runlog_notify_gap(rank->runlog, rank->number, text);
}

/* Begin at the instance of the token, or at the one with the last lines. */
static void runlog_choose_first(struct rank *rank)
{
	struct podlog_point point;
	size_t n = rank->instances.n;

	rank->is_chosen = true;
	if (rank->token && podlog_point_parse(rank->token, &point)) {
		for (size_t i = 0; i < n; i++) {
			if (str_eq(rank->instances.v[i].id, point.id)) {
				rank->at = i;
				return;
			}
		}
		runlog_notify_pod_gone(rank, &point);
		return;
	}
	if (rank->runlog->tail_lines < 0)
		return;
	while (rank->at + 1 < n && rank->instances.v[rank->at + 1].started)
		rank->at++;
}

/* Whether something is being read. */
static bool runlog_turn_rank(struct rank *rank)
{
	if (!rank->is_chosen && rank->instances.n > 0)
		runlog_choose_first(rank);
	while (!rank->podlog && rank->at < rank->instances.n) {
		const struct instance *instance = &rank->instances.v[rank->at];
		if (instance->started)
			runlog_read_instance(rank, instance);
		else if (instance->ended)
			rank->at++;
		else
			break;
	}
	return rank->podlog != NULL;
}

/*
 * State of the cluster
 */

static void runlog_finish_if_read(struct rank *rank, const struct instance *instance, bool previous)
{
	if (rank->podlog && instance == &rank->instances.v[rank->at])
		podlog_finish(rank->podlog, previous);
}

/* state: running, or terminated, or NULL. */
static void runlog_note_started(struct instance *instance, const struct json *state)
{
	const char *text = json_get_str(state, "startedAt");

	if (!text || clock_parse(text, &instance->started_ms, NULL) < 0)
		instance->started_ms = 0;
}

/* The instance before this one: it can be had as the previous one. */
static void runlog_note_replaced(struct rank *rank, const struct json *pod, int64_t restarts)
{
	const struct json *last =
		json_get(kube_named(pod, "status.containerStatuses", KUBE_CONTAINER), "lastState");
	struct instance *before = runlog_find_instance(rank, pod, restarts - 1);

	if (!before || before->replaced)
		return;
	before->started = before->ended = before->replaced = true;
	if (!before->started_ms)
		runlog_note_started(before, json_get(last, "terminated"));
	runlog_finish_if_read(rank, before, true);
}

static bool runlog_has_ended(const struct json *pod, const struct json *state)
{
	const char *phase = kube_str_at(pod, "status.phase");

	return json_get(state, "terminated") || str_eq(phase, "Succeeded") ||
	       str_eq(phase, "Failed");
}

static void runlog_note_restarts(struct kube_runlog *runlog, const struct json *pod)
{
	const char *text = kube_label(pod, KUBE_JOBSET_RESTART);
	int64_t number = 0;

	if (runlog->synced ||
		(text && str_to_int(text, 0, INT32_MAX, "restart", &number, NULL) < 0))
		return;
	if (runlog->begun_again < 0 || number < runlog->begun_again)
		runlog->begun_again = number;
}

static struct instance *runlog_note_pod(
	struct kube_runlog *runlog, const struct json *pod, struct rank **ret_rank)
{
	const struct json *status = kube_named(pod, "status.containerStatuses", KUBE_CONTAINER),
			  *state = json_get(status, "state");
	const struct json *running = json_get(state, "running");
	const struct json *terminated = json_get(state, "terminated");
	int64_t restarts = json_get_int(status, "restartCount", 0);
	int number = runlog->is_member ? 0 : kube_rank_of(pod);
	struct instance *instance;

	runlog_note_restarts(runlog, pod);
	if (number < 0 || (runlog->wanted >= 0 && number != runlog->wanted))
		return NULL;
	*ret_rank = runlog_find_rank(runlog, pod, number);
	if (!*ret_rank)
		return NULL;
	if (restarts > 0)
		runlog_note_replaced(*ret_rank, pod, restarts);
	instance = runlog_find_instance(*ret_rank, pod, restarts);
	if (!instance)
		return NULL;
	instance->started = instance->started || running || terminated;
	if (!instance->started_ms)
		runlog_note_started(instance, running ? running : terminated);
	instance->ended = instance->ended || runlog_has_ended(pod, state);
	return instance;
}

static void runlog_note_seen(struct kube_runlog *runlog, const struct json *pod)
{
	const char *uid = kube_str_at(pod, "metadata.uid");
	const struct json *state =
		json_get(kube_named(pod, "status.containerStatuses", KUBE_CONTAINER), "state");
	size_t i = 0;

	while (i < runlog->seen.n && !str_eq(runlog->seen.v[i].uid, uid))
		i++;
	if (!uid || i > PODS_MAX)
		return;
	if (i == runlog->seen.n)
		*vec_push(&runlog->seen) = (struct seen_pod){.uid = mem_strdup(uid)};
	json_free(runlog->seen.v[i].json);
	runlog->seen.v[i].json = runlog_has_ended(pod, state) ? json_clone(pod) : NULL;
}

static void runlog_on_pod(void *ctx, const struct json *pod)
{
	struct kube_runlog *runlog = ctx;
	struct rank *rank;
	struct instance *instance = runlog_note_pod(runlog, pod, &rank);

	runlog_note_seen(runlog, pod);
	if (instance && instance->ended)
		runlog_finish_if_read(rank, instance, false);
	runlog_turn_at(runlog, TURN_MS);
}

static void runlog_on_pod_gone(void *ctx, const struct json *pod)
{
	struct kube_runlog *runlog = ctx;
	const char *uid = kube_str_at(pod, "metadata.uid");

	for (size_t i = 0; uid && i < runlog->ranks.n; i++) {
		struct rank *rank = runlog->ranks.v[i];
		vec_foreach (struct instance, instance, &rank->instances) {
			if (strncmp(instance->id, uid, 8) != 0)
				continue;
			instance->ended = true;
			runlog_finish_if_read(rank, instance, false);
		}
	}
	runlog_turn_at(runlog, TURN_MS);
}

/* Pods of a JobSet are removed when all begin again, and their logs with them. */
static void runlog_notify_begun_again(struct kube_runlog *runlog)
{
	AUTO_FREE char *text = NULL;

	if (runlog->begun_again <= 0 || runlog->token || runlog->tail_lines >= 0)
		return;
	text = mem_printf("the cluster has restarted all nodes %lld time%s: what the program "
			  "wrote before that is gone with its pods",
		(long long)runlog->begun_again, runlog->begun_again == 1 ? "" : "s");
	runlog_notify_gap(runlog, -1, text);
}

static void runlog_on_synced(void *ctx)
{
	struct kube_runlog *runlog = ctx;

	if (!runlog->synced) {
		runlog->synced_ms = clock_ms();
		runlog_notify_begun_again(runlog);
	}
	runlog->synced = true;
	runlog_turn_at(runlog, TURN_MS);
}

static void runlog_on_job(void *ctx, const struct json *job)
{
	struct kube_runlog *runlog = ctx;

	bool is_member = runlog->is_member;

	runlog->job_ended =
		runlog->job_ended || (is_member ? kube_member_has_ended(job, runlog->index)
						: kube_kind_has_ended(runlog->kind, job));
	runlog->job_seen = true;
	json_free(runlog->job);
	runlog->job = is_member ? kube_member_job(job, runlog->index, false) : json_clone(job);
	runlog_turn_at(runlog, TURN_MS);
}

static void runlog_on_job_gone(void *ctx, const struct json *job UNUSED)
{
	struct kube_runlog *runlog = ctx;

	runlog->job_ended = true;
	runlog_turn_at(runlog, TURN_MS);
}

static void runlog_on_jobs_synced(void *ctx)
{
	struct kube_runlog *runlog = ctx;

	/* A missing Job counts as ended: its pods tell the rest. */
	runlog->job_ended = runlog->job_ended || !runlog->job_seen;
	runlog->job_seen = true;
	runlog_turn_at(runlog, TURN_MS);
}

static bool runlog_any_reads(const struct kube_runlog *runlog)
{
	for (size_t i = 0; i < runlog->ranks.n; i++)
		if (runlog->ranks.v[i]->podlog)
			return true;
	return false;
}

static void runlog_on_trouble(void *ctx, const struct err *error, int64_t since_ms UNUSED)
{
	struct kube_runlog *runlog = ctx;
	AUTO_FREE char *text = NULL;

	/* Logs that are being read report trouble of their own. */
	if (!error || runlog_any_reads(runlog))
		return;
	text = mem_printf(
		"the pods of job %s cannot be watched for now: %s", runlog->name, error->message);
	runlog_notify(runlog, -1, text);
}

static int runlog_on_failed(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct kube_runlog *runlog = ctx;

	if (!err_is_set(&runlog->error))
		err_move(&runlog->error, error);
	runlog_turn_at(runlog, TURN_MS);
	return 0;
}

/*
 * Turns
 */

static int runlog_end_now(struct kube_runlog *runlog, struct err *err)
{
	runlog->is_over = true;
	kube_watch_free(TAKE(runlog->pods));
	kube_watch_free(TAKE(runlog->jobs));
	for (size_t i = 0; i < runlog->ranks.n; i++) {
		struct rank *rank = runlog->ranks.v[i];
		if (rank->podlog)
			runlog_keep_point(rank);
		podlog_free(TAKE(rank->podlog));
	}
	return runlog->events.end ? runlog->events.end(runlog->events.ctx, &runlog->error, err) : 0;
}

static bool runlog_any_waits(const struct kube_runlog *runlog)
{
	for (size_t i = 0; i < runlog->ranks.n; i++)
		if (runlog->ranks.v[i]->at < runlog->ranks.v[i]->instances.n)
			return true;
	return false;
}

/* The end of the Job follows from its pods, a second or two before the Job itself says so. */
static bool runlog_is_decided(const struct kube_runlog *runlog)
{
	const struct json *ended[PODS_MAX];
	struct kube_items pods = {.v = ended, .n = runlog->seen.n, .known = true};

	const struct json *job = kube_kind_template(runlog->kind, runlog->job);
	bool is_jobset =
		runlog->kind == KUBE_KIND_JOBSET || kube_annotation(job, KUBE_ANNOTATION_ROLES);

	if (!runlog->job || pods.n > PODS_MAX || (!is_jobset && runlog_any_waits(runlog)))
		return false;
	for (size_t i = 0; i < pods.n; i++) {
		ended[i] = runlog->seen.v[i].json;
		if (!ended[i] && !is_jobset)
			return false;
	}
	if (is_jobset)
		return kube_gang_has_succeeded(job, &pods);
	return kube_job_outlook(runlog->job, &pods) != KUBE_OUTLOOK_OPEN;
}

/* Whether the log of a program that has ended is still being read. */
static bool runlog_any_drains(const struct kube_runlog *runlog)
{
	for (size_t i = 0; i < runlog->ranks.n; i++) {
		const struct rank *rank = runlog->ranks.v[i];

		if (rank->podlog && rank->instances.v[rank->at].ended)
			return true;
	}
	return false;
}

/* Results of the role that ends the run wait in its pods, which keep the cluster from ending the
 * others: the caller takes them at the end of the log. */
static bool runlog_lingers(const struct kube_runlog *runlog)
{
	bool lingers = false;

	if (!runlog->follow || runlog_any_drains(runlog))
		return false;
	vec_foreach (const struct seen_pod, pod, &runlog->seen)
		lingers = lingers || kube_pod_lingers(pod->json);
	return lingers && runlog_is_decided(runlog);
}

/* Nothing is being read. Pods and Jobs are reported separately: the end of the Job may be known
 * before its last pod's. */
static int runlog_turn_idle(struct kube_runlog *runlog, struct err *err)
{
	int64_t now_ms = clock_ms(), until_ms;

	if (runlog->synced && runlog->follow && !runlog->job_ended && runlog_is_decided(runlog))
		return runlog_end_now(runlog, err);
	if (!runlog->synced || (runlog->follow && !runlog->job_ended))
		return 0;
	if (!runlog->follow)
		return runlog_end_now(runlog, err);
	if (!runlog->ended_ms)
		runlog->ended_ms = now_ms;
	until_ms = runlog->ended_ms + (runlog_any_waits(runlog) ? WAIT_MS : LAST_POLL_MS);
	if (now_ms >= until_ms)
		return runlog_end_now(runlog, err);
	runlog_turn_at(runlog, until_ms);
	return 0;
}

static int runlog_on_turn(void *ctx, struct err *err)
{
	struct kube_runlog *runlog = ctx;
	bool reads = false;

	runlog->turn = NULL;
	if (err_is_set(&runlog->error))
		return runlog_end_now(runlog, err);
	for (size_t i = 0; runlog->synced && i < runlog->ranks.n; i++)
		reads = runlog_turn_rank(runlog->ranks.v[i]) || reads;
	if (reads && runlog_lingers(runlog))
		return runlog_end_now(runlog, err);
	return reads ? 0 : runlog_turn_idle(runlog, err);
}

static void runlog_turn_at(struct kube_runlog *runlog, int64_t at_ms)
{
	if (runlog->is_over)
		return;
	loop_remove_timer(runlog->loop, runlog->turn);
	runlog->turn = loop_add_timer(runlog->loop, at_ms, runlog_on_turn, runlog);
}

/*
 * The interface
 */

struct kube_watch_events kube_runlog_pod_events(struct kube_runlog *runlog)
{
	return (struct kube_watch_events){.put = runlog_on_pod,
		.gone = runlog_on_pod_gone,
		.synced = runlog_on_synced,
		.trouble = runlog_on_trouble,
		.failed = runlog_on_failed,
		.ctx = runlog};
}

struct kube_watch_events kube_runlog_job_events(struct kube_runlog *runlog)
{
	return (struct kube_watch_events){.put = runlog_on_job,
		.gone = runlog_on_job_gone,
		.synced = runlog_on_jobs_synced,
		.failed = runlog_on_failed,
		.ctx = runlog};
}

static void runlog_start_watches(struct kube_runlog *runlog, const char *selector)
{
	AUTO_FREE char *field = mem_printf("metadata.name=%s", runlog->name);
	AUTO_FREE char *pods = kube_path("/api/v1/namespaces/%s/pods", runlog->kube_namespace);
	AUTO_FREE char *jobs = kube_kind_collection(runlog->kind, runlog->kube_namespace);

	runlog->pods = kube_watch_start(runlog->client,
		&(struct kube_watch_request){.path = pods,
			.query = (const char *const[]){"labelSelector", selector, NULL},
			.events = kube_runlog_pod_events(runlog)});
	if (!runlog->follow)
		return;
	runlog->jobs = kube_watch_start(runlog->client,
		&(struct kube_watch_request){.path = jobs,
			.query = (const char *const[]){"fieldSelector", field, NULL},
			.name = runlog->name,
			.events = kube_runlog_job_events(runlog)});
}

struct kube_runlog *kube_runlog_start(
	struct kube_client *client, struct loop *loop, const struct kube_runlog_request *request)
{
	struct kube_runlog *runlog = mem_alloc(1, sizeof(*runlog));

	*runlog = (struct kube_runlog){.client = client,
		.loop = loop,
		.events = request->events,
		.kind = request->kind,
		.kube_namespace = mem_strdup(request->kube_namespace),
		.name = mem_strdup(request->name),
		.is_member = request->is_member,
		.index = request->index,
		.begun_ms = clock_ms(),
		.begun_again = -1,
		.wanted = request->rank,
		.tail_lines = request->tail_lines,
		.since_ms = request->since_ms,
		.follow = request->follow,
		.has_ended = request->has_ended,
		.token = str_empty(request->token) ? NULL : mem_strdup(request->token)};
	if (!request->is_fed)
		runlog_start_watches(runlog, request->pods);
	return runlog;
}

bool kube_runlog_is_opening(const struct kube_runlog *runlog)
{
	int64_t now_ms = clock_ms();

	if (runlog->is_over || err_is_set(&runlog->error) ||
		now_ms - runlog->begun_ms > OPENING_MAX_MS)
		return false;
	if (!runlog->synced)
		return true;
	for (size_t i = 0; i < runlog->ranks.n; i++) {
		const struct rank *rank = runlog->ranks.v[i];
		bool begins = rank->podlog || rank->at < rank->instances.n;
		if (begins && !rank->was_heard)
			return now_ms - runlog->synced_ms <= OPENING_MS;
	}
	return false;
}

void kube_runlog_free(struct kube_runlog *runlog)
{
	if (!runlog)
		return;
	runlog->is_over = true;
	loop_remove_timer(runlog->loop, runlog->turn);
	kube_watch_free(runlog->pods);
	kube_watch_free(runlog->jobs);
	for (size_t i = 0; i < runlog->ranks.n; i++)
		runlog_rank_free(runlog->ranks.v[i]);
	vec_done(&runlog->ranks);
	vec_foreach (struct seen_pod, pod, &runlog->seen) {
		free(pod->uid);
		json_free(pod->json);
	}
	vec_done(&runlog->seen);
	json_free(runlog->job);
	err_done(&runlog->error);
	free(runlog->kube_namespace);
	free(runlog->name);
	free(runlog->token);
	free(runlog);
}

void kube_runlog_token(const struct kube_runlog *runlog, struct buf *out)
{
	char point[PODLOG_TOKEN_SIZE];

	buf_reset(out);
	for (size_t i = 0; i < runlog->ranks.n; i++) {
		const struct rank *rank = runlog->ranks.v[i];
		const char *text = rank->token ? rank->token : rank->last;
		if (rank->podlog) {
			podlog_token(rank->podlog, point);
			text = point;
		}
		bool is_drained =
			rank->token ? rank->was_drained : !rank->podlog && rank->is_drained;
		if (text)
			buf_addf(out, "%s%d=%s%s", out->len ? "," : "", rank->number, text,
				is_drained ? KUBE_RUNLOG_DRAINED : "");
	}
}
