/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * Wait reasons of a pod that has not begun: a place, a volume, its image, its runtime.
 */

enum { SLOW_MS = 10 * 1000 };

struct waiting {
	const struct kube_case *c;
	struct kube_pod *pod;
	const char *reason, *message; /* of the container; message may be NULL */
	const char *container;
};

/*
 * Reasons of containers
 */

/* Older kubelets say only "Back-off pulling image": the event before has what the registry said. */
static const char *pull_text(const struct waiting *w)
{
	const struct kube_event_list *events = &w->c->events;

	if (w->message && strstr(w->message, "rror"))
		return w->message;
	for (size_t i = events->n; i-- > 0;) {
		const struct kube_event *event = &events->v[i];

		if (str_eq(event->name, w->pod->name) && str_eq(event->reason, "Failed") &&
			str_starts(event->message, "Failed to pull image"))
			return event->message;
	}
	return w->message;
}

/* The Secret with the login for it is not there. */
static void say_no_secret(const struct waiting *w, const struct kube_event *event)
{
	AUTO_FREE char *name = kube_between(event->message, "pull secrets (", ")");
	AUTO_FREE char *image =
		kube_image_text(json_get_str(kube_pod_program(w->pod->json), "image"));
	const char *ns = w->c->facts->kube_namespace;

	kube_why_evidence(&w->pod->why, "%s", event->message);
	if (!name || w->pod->why.id != E_IMAGE_PULL_AUTH)
		return;
	kube_why_set(&w->pod->why, E_IMAGE_PULL_AUTH,
		"node %s may not pull %s: there is no Secret \"%s\" in namespace %s",
		w->pod->node ? w->pod->node : "?", image, name, ns ? ns : "default");
	kube_why_hint(&w->pod->why, "kubectl -n %s get secrets", ns ? ns : "default");
}

static void wait_pull(const struct waiting *w)
{
	const struct kube_event *secret = kube_events_newest(
		&w->c->events, "Pod", w->pod->name, "FailedToRetrieveImagePullSecret");

	w->pod->wait = KUBE_WAIT_PULL;
	kube_why_pull(w->c, w->pod, w->reason, pull_text(w), &w->pod->why);
	if (secret)
		say_no_secret(w, secret);
}

static void wait_config(const struct waiting *w)
{
	w->pod->wait = KUBE_WAIT_START;
	kube_why_config(w->c, w->message, &w->pod->why);
}

static void wait_start(const struct waiting *w)
{
	struct kube_exit exit;

	w->pod->wait = KUBE_WAIT_START;
	w->pod->why.needs_help = true;
	if (kube_why_exec(w->message, &exit, &w->pod->why))
		return;
	kube_why_set(&w->pod->why, E_JOB_START, "node %s cannot start container \"%s\": %s",
		w->pod->node ? w->pod->node : "?", w->container,
		str_empty(w->message) ? w->reason : w->message);
	kube_why_hint(&w->pod->why, "kubectl describe pod %s", w->pod->name);
}

static void wait_again(const struct waiting *w)
{
	const struct json *last = kube_at(kube_pod_program(w->pod->json), "lastState.terminated");

	w->pod->wait = KUBE_WAIT_AGAIN;
	if (last)
		kube_why_set(&w->pod->why, E_RUN_FAILED,
			"the program exited with %d and is started again in its pod soon",
			(int)json_get_int(last, "exitCode", 0));
	else
		kube_why_set(&w->pod->why, E_JOB_START, "container \"%s\" keeps failing: %s",
			w->container, str_empty(w->message) ? w->reason : w->message);
}

static bool wait_by_reason(const struct waiting *w)
{
	static const struct {
		const char *reason;
		void (*fn)(const struct waiting *w);
	} rows[] = {
		{"CrashLoopBackOff", wait_again},
		{"CreateContainerConfigError", wait_config},
		{"CreateContainerError", wait_start},
		{"ErrImageNeverPull", wait_pull},
		{"ErrImagePull", wait_pull},
		{"ImageInspectError", wait_pull},
		{"ImagePullBackOff", wait_pull},
		{"InvalidImageName", wait_pull},
		{"PostStartHookError", wait_start},
		{"PreCreateHookError", wait_start},
		{"PreStartHookError", wait_start},
		{"RegistryUnavailable", wait_pull},
		{"RunContainerError", wait_start},
		{"SignatureValidationFailed", wait_pull},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i].reason, w->reason)) {
			rows[i].fn(w);
			return true;
		}
	if (str_empty(w->reason) || str_eq(w->reason, "ContainerCreating") ||
		str_eq(w->reason, "PodInitializing"))
		return false;
	/* The reason is unknown. */
	wait_start(w);
	w->pod->why.needs_help = false;
	return true;
}

/*
 * Events while nothing is said of containers
 */

static void event_pulling(
	const struct kube_case *c, struct kube_pod *pod, const struct kube_event *e)
{
	AUTO_FREE char *quoted = kube_between(e->message, "\"", "\"");
	AUTO_FREE char *image = kube_image_text(quoted ? quoted : c->facts->image);

	pod->wait = KUBE_WAIT_PULL;
	kube_why_set(&pod->why, E_NONE, "node %s pulls %s", pod->node ? pod->node : "?", image);
}

static void event_volume(
	const struct kube_case *c, struct kube_pod *pod, const struct kube_event *e)
{
	(void)c;
	pod->wait = KUBE_WAIT_VOLUME;
	kube_why_volume(pod, e->message, &pod->why);
}

static void event_sandbox(
	const struct kube_case *c, struct kube_pod *pod, const struct kube_event *e)
{
	(void)c;
	kube_why_set(&pod->why, E_JOB_START, "node %s cannot set up the network of its pod: %s",
		pod->node ? pod->node : "?", e->message);
	kube_why_hint(&pod->why, "kubectl describe pod %s", pod->name);
}

static void event_nothing(
	const struct kube_case *c, struct kube_pod *pod, const struct kube_event *e)
{
	(void)c;
	(void)pod;
	(void)e;
}

typedef void event_fn(const struct kube_case *c, struct kube_pod *pod, const struct kube_event *e);

static event_fn *find_event(const char *reason)
{
	static const struct {
		const char *reason;
		event_fn *fn;
	} rows[] = {
		{"Created", event_nothing},
		{"FailedAttachVolume", event_volume},
		{"FailedCreatePodSandBox", event_sandbox},
		{"FailedMapVolume", event_volume},
		{"FailedMount", event_volume},
		{"FailedPrepareDynamicResources", event_sandbox},
		{"NetworkNotReady", event_sandbox},
		{"Pulled", event_nothing},
		{"Pulling", event_pulling},
		{"Started", event_nothing},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i].reason, reason))
			return rows[i].fn;
	return NULL;
}

static bool wait_by_event(const struct kube_case *c, struct kube_pod *pod)
{
	for (size_t i = c->events.n; i-- > 0;) {
		const struct kube_event *event = &c->events.v[i];
		event_fn *fn = str_eq(event->name, pod->name) ? find_event(event->reason) : NULL;

		if (!fn)
			continue;
		pod->why.since_ms = event->first_ms;
		fn(c, pod, event);
		return pod->why.sentence;
	}
	return false;
}

/*
 * Containers
 */

/* A sidecar goes on beside the program and is not waited for. */
static bool is_sidecar(const struct kube_pod *pod, const char *name)
{
	const struct json *spec = kube_named(kube_at(pod->json, "spec.initContainers"), name);

	return str_eq(json_get_str(spec, "restartPolicy"), "Always");
}

static bool wait_by_init(const struct kube_case *c, struct kube_pod *pod)
{
	const struct json *list = kube_at(pod->json, "status.initContainerStatuses");

	if (!list || json_kind(list) != JSON_ARRAY)
		return false;
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const struct json *state = kube_at(m, "state.waiting");
		const char *name = json_get_str(m, "name");
		struct waiting w = {.c = c,
			.pod = pod,
			.reason = json_get_str(state, "reason"),
			.message = json_get_str(state, "message"),
			.container = name ? name : ""};

		if (kube_at(m, "state.terminated") || is_sidecar(pod, w.container))
			continue;
		if (kube_at(m, "state.running")) {
			pod->wait = KUBE_WAIT_INIT;
			kube_why_set(&pod->why, E_NONE, "init container \"%s\" runs", w.container);
			pod->why.since_ms = kube_time_at(m, "state.running.startedAt");
			return true;
		}
		return wait_by_reason(&w);
	}
	return false;
}

static bool wait_by_program(const struct kube_case *c, struct kube_pod *pod)
{
	const struct json *program = kube_pod_program(pod->json);
	const struct json *state = kube_at(program, "state.waiting");
	const char *name = json_get_str(program, "name");
	struct waiting w = {.c = c,
		.pod = pod,
		.reason = json_get_str(state, "reason"),
		.message = json_get_str(state, "message"),
		.container = name ? name : KUBE_CONTAINER};

	return wait_by_reason(&w);
}

static void wait_on_node(const struct kube_case *c, struct kube_pod *pod)
{
	const struct json *scheduled = kube_condition(pod->json, "PodScheduled");

	pod->wait = KUBE_WAIT_START;
	pod->why.since_ms = kube_time_at(scheduled, "lastTransitionTime");
	if (wait_by_init(c, pod) || wait_by_program(c, pod) || wait_by_event(c, pod))
		return;
	if (pod->why.since_ms && c->facts->now_ms - pod->why.since_ms > SLOW_MS)
		kube_why_set(&pod->why, E_NONE, "node %s prepares its pod", pod->node);
}

/*
 * Without a node
 */

static void wait_for_node(struct kube_case *c, struct kube_pod *pod)
{
	const struct json *scheduled = kube_condition(pod->json, "PodScheduled");
	const struct kube_event *event =
		kube_events_newest(&c->events, "Pod", pod->name, "FailedScheduling");
	const char *text = json_get_str(scheduled, "message");
	const char *reason = json_get_str(scheduled, "reason");

	pod->wait = KUBE_WAIT_SCHEDULE;
	pod->why.since_ms = kube_time_at(scheduled, "lastTransitionTime");
	if (!pod->why.since_ms)
		pod->why.since_ms = pod->created_ms;
	if (str_eq(reason, "SchedulingGated")) {
		pod->wait = KUBE_WAIT_QUEUE;
		kube_why_set(&pod->why, E_SCHED_QUEUE,
			"something holds its pod back from being scheduled: %s",
			str_empty(text) ? "a scheduling gate" : text);
		return;
	}
	if (str_empty(text) && event)
		text = event->message;
	if (!str_empty(text) || str_eq(reason, "Unschedulable"))
		kube_why_schedule(c, text, &pod->why);
}

void kube_pod_wait(struct kube_case *c, struct kube_pod *pod)
{
	if (pod->deleted_ms)
		return;
	if (pod->node)
		wait_on_node(c, pod);
	else
		wait_for_node(c, pod);
}
