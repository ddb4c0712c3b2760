/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

enum { SILENT_GRACE_MS = 30 * 1000 };

void kube_pod_done(struct kube_pod *pod)
{
	kube_why_done(&pod->why);
}

const struct json *kube_pod_program(const struct json *pod)
{
	const struct json *list = kube_at(pod, "status.containerStatuses");
	const struct json *program = kube_named(list, KUBE_CONTAINER);

	if (program || !list || json_kind(list) != JSON_ARRAY)
		return program;
	return json_first(list);
}

const struct kube_event *kube_pods_event(const struct kube_case *c, const char *reason)
{
	const char *job = c->facts->job_name;
	size_t len = job ? strlen(job) : 0;

	for (size_t i = c->events.n; len && i-- > 0;) {
		const struct kube_event *event = &c->events.v[i];

		if (str_eq(event->kind, "Pod") && str_eq(event->reason, reason) &&
			str_starts(event->name, job) && event->name[len] == '-')
			return event;
	}
	return NULL;
}

int64_t kube_pod_lingers(const struct json *pod)
{
	const struct json *list = kube_at(pod, "status.containerStatuses");
	const struct json *ended = kube_at(kube_named(list, KUBE_CONTAINER), "state.terminated");
	const char *linger = kube_annotation(pod, KUBE_NOTE_LINGER);

	if (!ended || kube_deleted_ms(pod) || !linger ||
		!kube_at(kube_named(list, KUBE_KEEPER), "state.running"))
		return 0;
	return kube_time_at(ended, "finishedAt") + kube_number(linger, 0) * 1000;
}

const char *kube_pod_phase(const struct json *pod)
{
	const struct json *program = kube_pod_program(pod);

	if (!kube_pod_lingers(pod))
		return kube_str_at(pod, "status.phase");
	return json_get_int(kube_at(program, "state.terminated"), "exitCode", 0) ? "Failed"
										 : "Succeeded";
}

char *kube_pod_told(const struct json *pod)
{
	const struct json *ended = kube_at(kube_pod_program(pod), "state.terminated");
	const char *message = json_get_str(ended, "message");
	const char *told = message ? strstr(message, KUBE_JOB_RESULTS) : NULL;

	return told ? mem_strdup(told) : NULL;
}

static bool may_linger(const struct kube_facts *facts, const struct json *job)
{
	if (job)
		return kube_annotation(kube_at(job, "spec.template"), KUBE_NOTE_LINGER);
	return !facts->jobset && !facts->was_cancelled;
}

static bool was_evicted(const struct kube_pod *pod)
{
	return pod->disrupted || str_eq(kube_str_at(pod->json, "status.reason"), "Evicted");
}

char *kube_pods_lost(
	const struct kube_facts *facts, const struct json *job, const struct kube_pod_list *pods)
{
	if (!facts->pods.known || !may_linger(facts, job))
		return NULL;
	vec_foreach (const struct kube_pod, pod, pods) {
		AUTO_FREE char *name = kube_text(pod->name, KUBE_SENTENCE_MAX / 4);

		if (!kube_annotation(pod->json, KUBE_NOTE_LINGER))
			continue;
		if (was_evicted(pod))
			return mem_printf("pod %s was evicted from its node", name);
		if (pod->deleted_ms)
			return mem_printf("pod %s was removed", name);
	}
	return pods->n ? NULL : mem_strdup("its pod was removed");
}

static int rank_of(const struct json *pod)
{
	static const char key[] = "batch.kubernetes.io/job-completion-index";
	const char *text = kube_annotation(pod, key);
	int64_t rank = kube_number(text ? text : kube_label(pod, key), 0);

	return rank < KUBE_RANKS_MAX ? (int)rank : 0;
}

static int attempt_of(const struct json *pod)
{
	return 1 + (int)kube_number(
			   kube_annotation(pod, "batch.kubernetes.io/job-index-failure-count"), 0);
}

static void read_identity(const struct kube_case *c, struct kube_pod *pod)
{
	int64_t restarts = json_get_int(kube_pod_program(pod->json), "restartCount", 0);

	pod->name = kube_str_at(pod->json, "metadata.name");
	if (!pod->name)
		pod->name = c->facts->job_name ? c->facts->job_name : "its pod";
	pod->node = kube_str_at(pod->json, "spec.nodeName");
	if (str_empty(pod->node))
		pod->node = NULL;
	pod->rank = rank_of(pod->json);
	pod->attempt = attempt_of(pod->json);
	pod->restarts = restarts > 0 && restarts < 1000 * 1000 ? (int)restarts : 0;
	pod->created_ms = kube_time_at(pod->json, "metadata.creationTimestamp");
	pod->deleted_ms = kube_deleted_ms(pod->json);
	pod->disrupted = kube_condition_is(pod->json, "DisruptionTarget", "True");
}

/* A node that does not answer cannot say that its programs have ended. */
static bool node_is_silent(const struct kube_case *c, const struct kube_pod *pod)
{
	const struct json *ready = kube_condition(pod->json, "Ready");

	if (str_eq(kube_str_at(pod->json, "status.phase"), "Unknown") ||
		str_eq(kube_str_at(pod->json, "status.reason"), "NodeLost") ||
		str_eq(json_get_str(ready, "reason"), "NodeNotReady"))
		return true;
	for (size_t i = 0; pod->node && i < c->facts->nodes.n; i++) {
		const struct json *node = c->facts->nodes.v[i];

		if (str_eq(kube_str_at(node, "metadata.name"), pod->node))
			return kube_condition_is(node, "Ready", "Unknown") ||
			       kube_condition_is(node, "Ready", "False");
	}
	return false;
}

static void running_why(const struct kube_case *c, struct kube_pod *pod)
{
	int64_t end_ms = kube_time_at(pod->json, "metadata.deletionTimestamp");

	if (node_is_silent(c, pod)) {
		kube_why_set(&pod->why, E_JOB_NODE,
			"node %s does not answer; the cluster gives its pods up after a while",
			pod->node ? pod->node : "of the pod");
		pod->why.needs_help = end_ms && end_ms + SILENT_GRACE_MS < c->facts->now_ms;
		kube_why_hint(&pod->why, "kubectl describe node %s", pod->node ? pod->node : "");
	} else if (pod->disrupted) {
		const struct json *condition = kube_condition(pod->json, "DisruptionTarget");
		const char *message = json_get_str(condition, "message");

		kube_why_set(&pod->why, E_JOB_EVICTED, "it is being taken off node %s: %s",
			pod->node ? pod->node : "?",
			message ? message : json_get_str(condition, "reason"));
	}
}

static bool has_ended(const struct kube_pod *pod)
{
	const char *phase = kube_str_at(pod->json, "status.phase");
	const struct json *program = kube_pod_program(pod->json);
	const char *policy = kube_str_at(pod->json, "spec.restartPolicy");

	if (str_eq(phase, "Succeeded") || str_eq(phase, "Failed"))
		return true;
	/* The other containers may go on for a moment. */
	return str_eq(policy, "Never") && kube_at(program, "state.terminated");
}

void kube_pod_read(struct kube_case *c, const struct json *json, struct kube_pod *ret)
{
	const struct json *program = kube_pod_program(json);

	*ret = (struct kube_pod){.json = json};
	read_identity(c, ret);
	ret->started_ms = kube_time_at(program, "state.running.startedAt");
	if (has_ended(ret)) {
		kube_pod_end(c, ret);
	} else if (kube_at(program, "state.running")) {
		ret->phase = KUBE_RUNNING;
		running_why(c, ret);
	} else {
		ret->phase = ret->node ? KUBE_STARTING : KUBE_QUEUED;
		kube_pod_wait(c, ret);
	}
}
