/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop/proc.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * How a pod ended. What the cluster did to it comes before what its containers say: one that is
 * evicted or preempted is killed, too, and sometimes called OOMKilled.
 */

enum { CODE_TIMEOUT = 124, CODE_NONE = 125, CODE_KILLED = 137, SIGNALS_MAX = 64, SECOND_MS = 1000 };

static void ended(
	struct kube_pod *pod, int code, int signal, const char *origin, const char *reason)
{
	pod->phase = KUBE_FAILED;
	pod->exit = (struct kube_exit){
		.known = true, .code = code, .signal = signal, .origin = origin, .reason = reason};
}

static const char *node_text(const struct kube_pod *pod)
{
	return pod->node ? pod->node : "(not known)";
}

static const char *message_of(const struct json *object, const char *otherwise)
{
	const char *message = json_get_str(object, "message");

	return str_empty(message) ? otherwise : message;
}

/*
 * Evictions
 */

static const char hint_disk[] = "resources: {disk: 50Gi} in dlrun.yaml";

/* Evicted because the pod exceeded a limit of its own. */
static bool evicted_by_limit(struct kube_pod *pod, const char *message)
{
	AUTO_FREE char *own = kube_between(message, "local ephemeral storage limit \"", "\"");
	AUTO_FREE char *all = kube_between(message, "total limit of containers ", ".");
	AUTO_FREE char *dir = kube_between(message, "Usage of EmptyDir volume \"", "\"");
	AUTO_FREE char *limit = kube_between(message, "exceeds the limit \"", "\"");

	if (dir && limit) {
		kube_why_set(&pod->why, E_JOB_EVICTED,
			"it was evicted from node %s: volume \"%s\" held more than its %s",
			node_text(pod), dir, limit);
		kube_why_hint(&pod->why, "%s",
			str_eq(dir, "shm")       ? "resources: {shm: 8Gi} in dlrun.yaml"
			: str_eq(dir, "results") ? "results: {claim: 50Gi} of the target"
						 : hint_disk);
		return true;
	}
	if (!own && !all)
		return false;
	kube_why_set(&pod->why, E_JOB_EVICTED,
		"it was evicted from node %s: it wrote more than its %s of disk", node_text(pod),
		own ? own : all);
	kube_why_hint(&pod->why, "%s", hint_disk);
	return true;
}

/* The node had to get rid of something. */
static bool evicted_by_node(struct kube_pod *pod, const char *message)
{
	AUTO_FREE char *low = kube_between(message, "was low on resource: ", ".");
	AUTO_FREE char *condition = kube_between(message, "had condition: [", "]");
	bool is_disk = low && str_eq(low, "ephemeral-storage");

	if (low)
		kube_why_set(&pod->why, E_JOB_EVICTED,
			"it was evicted: node %s had too little %s left", node_text(pod),
			is_disk ? "disk" : low);
	else if (condition)
		kube_why_set(&pod->why, E_JOB_EVICTED, "it was evicted: node %s was under %s",
			node_text(pod), condition);
	if (is_disk)
		kube_why_hint(&pod->why, "%s", hint_disk);
	else if (low && str_eq(low, "memory"))
		kube_why_hint(&pod->why, "resources: {memory: 16Gi} in dlrun.yaml");
	return low || condition;
}

static void evicted(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	bool by_limit = evicted_by_limit(pod, message);

	(void)c;
	ended(pod, CODE_NONE, 0, by_limit ? "job" : "cluster", "Evicted");
	if (by_limit || evicted_by_node(pod, message))
		kube_why_evidence(&pod->why, "%s", message);
	else
		kube_why_set(&pod->why, E_JOB_EVICTED, "it was evicted from node %s: %s",
			node_text(pod),
			str_empty(message) ? "the cluster does not say why" : message);
}

/*
 * Other ends by the cluster
 */

static void node_lost(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	ended(pod, CODE_NONE, 0, "cluster", "NodeLost");
	kube_why_set(&pod->why, E_JOB_NODE, "node %s was lost: %s", node_text(pod),
		str_empty(message) ? "it stopped answering" : message);
	kube_why_hint(&pod->why, "dlrun restart %s", c->facts->run_id ? c->facts->run_id : "@");
}

static void preempted(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	(void)c;
	ended(pod, CODE_NONE, 0, "cluster", "Preempted");
	kube_why_set(&pod->why, E_JOB_PREEMPTED,
		"something with a higher priority took its place on node %s", node_text(pod));
	kube_why_evidence(&pod->why, "%s", message ? message : "");
}

static void shut_down(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	node_lost(c, pod, "it was shut down");
	kube_why_evidence(&pod->why, "%s", message ? message : "");
}

static void emptied(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	(void)c;
	ended(pod, CODE_NONE, 0, "cluster", "Evicted");
	kube_why_set(&pod->why, E_JOB_EVICTED,
		"it was evicted from node %s through the API (kubectl drain, an autoscaler)",
		node_text(pod));
	kube_why_evidence(&pod->why, "%s", message ? message : "");
}

static bool node_was_silent(const struct kube_case *c, const struct kube_pod *pod)
{
	const struct json *ready = kube_condition(pod->json, "Ready");

	return str_eq(json_get_str(ready, "reason"), "NodeNotReady") ||
	       kube_events_newest(&c->events, "Pod", pod->name, "NodeNotReady");
}

static void tainted(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	if (node_was_silent(c, pod)) {
		node_lost(c, pod, "it stopped answering");
		return;
	}
	ended(pod, CODE_NONE, 0, "cluster", "Evicted");
	kube_why_set(&pod->why, E_JOB_EVICTED,
		"it was evicted: node %s got a taint that it does not tolerate", node_text(pod));
	kube_why_evidence(&pod->why, "%s", message ? message : "");
}

static void gone_node(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	node_lost(c, pod, "it was removed from the cluster");
	kube_why_evidence(&pod->why, "%s", message ? message : "");
}

static void by_kubelet(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	if (message && strstr(message, "shutdown"))
		shut_down(c, pod, message);
	else if (message && strstr(message, "critical pod"))
		preempted(c, pod, message);
	else
		evicted(c, pod, message);
}

static void timed_out(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	int64_t limit_s = json_get_int(json_get(pod->json, "spec"), "activeDeadlineSeconds", 0);
	char text[32];

	(void)c;
	(void)message;
	ended(pod, CODE_TIMEOUT, 0, "dlrun", "Timeout");
	if (limit_s > 0 && limit_s < INT64_MAX / SECOND_MS)
		kube_why_set(&pod->why, E_RUN_TIMEOUT, "it reached its time limit of %s",
			duration_text(limit_s * SECOND_MS, text));
	else
		kube_why_set(&pod->why, E_RUN_TIMEOUT, "it reached its time limit");
}

/* The node has its last word before a container is made. */
static void rejected(const struct kube_case *c, struct kube_pod *pod, const char *message)
{
	ended(pod, CODE_NONE, 0, "cluster", "StartFailed");
	kube_why_set(&pod->why, E_JOB_REJECTED, "node %s sent it back: %s", node_text(pod),
		str_empty(message) ? kube_str_at(pod->json, "status.reason") : message);
	kube_why_hint(&pod->why, "dlrun restart %s", c->facts->run_id ? c->facts->run_id : "@");
}

typedef void end_fn(const struct kube_case *c, struct kube_pod *pod, const char *message);
struct end_row {
	const char *reason;
	end_fn *fn;
};

static end_fn *find_end(const struct end_row *rows, size_t n, const char *reason)
{
	for (size_t i = 0; i < n; i++)
		if (str_eq(rows[i].reason, reason))
			return rows[i].fn;
	return NULL;
}

static bool end_by_pod_reason(const struct kube_case *c, struct kube_pod *pod)
{
	static const struct end_row rows[] = {
		{"DeadlineExceeded", timed_out},
		{"Evicted", evicted},
		{"NodeAffinity", rejected},
		{"NodeLost", node_lost},
		{"NodeShutdown", shut_down},
		{"OutOfPods", rejected},
		{"PodOSNotSupported", rejected},
		{"PodOSSelectorNodeLabelDoesNotMatch", rejected},
		{"Preempting", preempted},
		{"Shutdown", shut_down},
		{"Terminated", shut_down},
		{"TopologyAffinityError", rejected},
		{"UnexpectedAdmissionError", rejected},
	};
	const struct json *status = json_get(pod->json, "status");
	const char *reason = json_get_str(status, "reason");
	end_fn *fn = reason ? find_end(rows, ARRAY_LEN(rows), reason) : NULL;

	if (!fn && reason && str_starts(reason, "OutOf"))
		fn = rejected;
	if (!fn)
		return false;
	fn(c, pod, json_get_str(status, "message"));
	return true;
}

static bool end_by_disruption(const struct kube_case *c, struct kube_pod *pod, int64_t finished_ms)
{
	static const struct end_row rows[] = {
		{"DeletionByPodGC", gone_node},
		{"DeletionByTaintManager", tainted},
		{"EvictionByEvictionAPI", emptied},
		{"PreemptionByScheduler", preempted},
		{"TerminationByKubelet", by_kubelet},
	};
	const struct json *condition = kube_condition(pod->json, "DisruptionTarget");
	const char *reason = json_get_str(condition, "reason");
	int64_t at = kube_time_at(condition, "lastTransitionTime");
	end_fn *fn = find_end(rows, ARRAY_LEN(rows), reason);

	/* The pod had failed by itself before the disruption. */
	if (!pod->disrupted || (at && finished_ms && finished_ms + SECOND_MS < at))
		return false;
	(fn ? fn : evicted)(c, pod, message_of(condition, reason));
	if (at)
		pod->failed_ms = at;
	return true;
}

/*
 * Ends by themselves
 */

static void hint_memory(struct kube_pod *pod)
{
	int64_t bytes = kube_pod_memory(pod->json);
	char limit[24];

	if (bytes)
		kube_why_hint(&pod->why, "dlrun submit --memory %s …",
			kube_bytes_text(bytes < INT64_MAX / 2 ? 2 * bytes : bytes, limit));
	else
		kube_why_hint(&pod->why, "resources: {memory: 16Gi} in dlrun.yaml");
}

static void out_of_memory(struct kube_pod *pod)
{
	int64_t bytes = kube_pod_memory(pod->json);
	char limit[24];

	ended(pod, CODE_KILLED, SIGKILL, "job", "OutOfMemory");
	if (bytes)
		kube_why_set(&pod->why, E_JOB_OOM,
			"it was killed: it used more than its memory limit of %s",
			kube_bytes_text(bytes, limit));
	else
		kube_why_set(&pod->why, E_JOB_OOM,
			"it was killed: node %s had no memory left, and the run has no limit of "
			"its own",
			node_text(pod));
	hint_memory(pod);
}

/* Kubelets say so of a container when the kernel killed any of its processes: the program may have
 * lived on, and its own end counts. end: what is said of that. */
static void say_killed_process(struct kube_pod *pod, enum err_id id, const char *end)
{
	int64_t bytes = kube_pod_memory(pod->json);
	char limit[24];

	kube_why_set(&pod->why, id,
		"the kernel killed one of its processes for memory (%s%s), then %s",
		bytes ? "limit " : "no limit of its own",
		bytes ? kube_bytes_text(bytes, limit) : "", end);
}

/* The end of what a container left as its last words: the last line that is not empty. */
static void add_last_words(struct kube_pod *pod, const char *message)
{
	size_t len = message && !strstr(message, KUBE_JOB_RESULTS) ? strlen(message) : 0;
	const char *line = message;

	while (len && strchr(" \t\r\n", message[len - 1]))
		len--;
	for (size_t i = 0; i < len; i++)
		if (message[i] == '\n')
			line = message + i + 1;
	if (len)
		kube_why_evidence(&pod->why, "%.*s", (int)(len - (size_t)(line - message)), line);
}

static void by_signal(struct kube_pod *pod, int signal)
{
	int64_t bytes = kube_pod_memory(pod->json);
	char name[8], limit[24];

	ended(pod, 128 + signal, signal, "job", "Signal");
	kube_why_set(&pod->why, E_RUN_FAILED, "the program was killed by SIG%s",
		proc_signal_name(signal, name));
	if (signal != 9 || pod->deleted_ms)
		return;
	if (bytes)
		kube_why_evidence(&pod->why,
			"nobody says who sent it; a child over the memory limit of %s looks like this",
			kube_bytes_text(bytes, limit));
	else
		kube_why_evidence(&pod->why,
			"nobody says who sent it; a node without memory looks like this");
}

/* Messages of dlrun's own script in the pod (job.h). */
static bool by_script(struct kube_pod *pod, const char *message, int code)
{
	if (message && str_starts(message, KUBE_JOB_TIMEOUT)) {
		timed_out(NULL, pod, NULL);
		return true;
	}
	if (!message || !str_starts(message, KUBE_JOB_SETUP))
		return false;
	ended(pod, code ? code : CODE_NONE, 0, "setup", "SetupFailed");
	kube_why_set(&pod->why, E_RUN_SETUP, "its setup exited with %d", code);
	return true;
}

static void by_code(struct kube_pod *pod, int code)
{
	ended(pod, code, 0, "job", "Error");
	kube_why_set(&pod->why, E_RUN_FAILED, "the program exited with %d", code);
	if (code == 127)
		kube_why_evidence(&pod->why, "a shell says 127 when it finds no such command");
	else if (code == 126)
		kube_why_evidence(&pod->why, "a shell says 126 when a file cannot be executed");
}

static bool is_start_error(const char *reason)
{
	return str_eq(reason, "StartError") || str_eq(reason, "ContainerCannotRun") ||
	       str_eq(reason, "RunContainerError") || str_eq(reason, "CreateContainerError");
}

static bool end_by_start(struct kube_pod *pod, const struct json *terminated)
{
	const char *reason = json_get_str(terminated, "reason");
	const char *message = json_get_str(terminated, "message");
	struct kube_exit exit = {0};
	bool starts = is_start_error(reason);

	/* runc says this one in the log, which is the message then. */
	if (!starts &&
		!(message && str_starts(message, "exec ") && strstr(message, "exec format error")))
		return false;
	ended(pod, CODE_NONE, 0, "cluster", "StartFailed");
	if (kube_why_exec(message, &exit, &pod->why)) {
		pod->exit = exit;
		return true;
	}
	kube_why_set(&pod->why, E_JOB_START, "node %s cannot start its container: %s",
		node_text(pod), str_empty(message) ? reason : message);
	return true;
}

static void by_program(struct kube_pod *pod, int code, int signal)
{
	if (signal > 0 && signal <= SIGNALS_MAX) {
		by_signal(pod, signal);
	} else if (code) {
		by_code(pod, code);
	} else {
		ended(pod, CODE_NONE, 0, "cluster", "Error");
		kube_why_set(&pod->why, E_JOB_FAILED,
			"the program exited with 0, but another container of its pod failed");
	}
}

static void end_by_container(
	const struct kube_case *c, struct kube_pod *pod, const struct json *terminated)
{
	const char *reason = json_get_str(terminated, "reason");
	int64_t code = json_get_int(terminated, "exitCode", 0);
	int64_t signal = json_get_int(terminated, "signal", 0);
	bool is_killed = str_eq(reason, "OOMKilled");

	code = code < 0 || code > 255 ? 255 : code;
	if (!signal && code > 128 && code <= 128 + SIGNALS_MAX)
		signal = code - 128;
	if (by_script(pod, json_get_str(terminated, "message"), (int)code))
		return;
	if (is_killed && (signal == SIGKILL || !code)) {
		out_of_memory(pod);
	} else if (str_eq(reason, "ContainerStatusUnknown")) {
		node_lost(c, pod, "it does not know any more how the container ended");
	} else if (end_by_start(pod, terminated)) {
		return;
	} else {
		by_program(pod, (int)code, (int)signal);
	}
	if (is_killed && pod->why.id == E_RUN_FAILED) {
		AUTO_FREE char *end = mem_strdup(pod->why.sentence);
		say_killed_process(pod, E_RUN_FAILED, end);
		hint_memory(pod);
	}
	add_last_words(pod, json_get_str(terminated, "message"));
}

/* true: an init container failed, so that the program never began. */
static bool end_by_init(struct kube_pod *pod)
{
	const struct json *list = kube_at(pod->json, "status.initContainerStatuses");

	if (!list || json_kind(list) != JSON_ARRAY)
		return false;
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const struct json *terminated = kube_at(m, "state.terminated");
		const char *name = json_get_str(m, "name");

		if (!terminated || !json_get_int(terminated, "exitCode", 0))
			continue;
		ended(pod, CODE_NONE, 0, "cluster", "StartFailed");
		kube_why_set(&pod->why, E_JOB_START, "init container \"%s\" exited with %d",
			name ? name : "", (int)json_get_int(terminated, "exitCode", 0));
		add_last_words(pod, json_get_str(terminated, "message"));
		kube_why_hint(&pod->why, "kubectl logs %s -c %s", pod->name, name ? name : "");
		return true;
	}
	return false;
}

static void end_unexplained(struct kube_pod *pod)
{
	const struct json *status = json_get(pod->json, "status");
	const char *reason = json_get_str(status, "reason");

	ended(pod, CODE_NONE, 0, "cluster", "Error");
	kube_why_set(&pod->why, E_JOB_FAILED, "its pod failed: %s",
		message_of(status, str_empty(reason) ? "the cluster does not say why" : reason));
	kube_why_hint(&pod->why, "kubectl describe pod %s", pod->name);
}

static void succeeded(struct kube_pod *pod, const struct json *terminated)
{
	pod->phase = KUBE_SUCCEEDED;
	pod->exit = (struct kube_exit){.known = true, .origin = "job", .reason = "Completed"};
	if (str_eq(json_get_str(terminated, "reason"), "OOMKilled"))
		say_killed_process(pod, E_NONE, "the program exited with 0");
}

static void read_times(struct kube_pod *pod, const struct json *terminated)
{
	const struct json *ready = kube_condition(pod->json, "Ready");

	pod->started_ms = kube_time_at(terminated, "startedAt");
	pod->ended_ms = kube_time_at(terminated, "finishedAt");
	if (!pod->ended_ms)
		pod->ended_ms = kube_time_at(ready, "lastTransitionTime");
	if (pod->started_ms > pod->ended_ms)
		pod->started_ms = 0;
	pod->failed_ms = pod->ended_ms;
}

/* A pod whose removal was requested before it ended, and that is not marked as disrupted. */
static bool is_victim(const struct kube_pod *pod)
{
	return pod->phase == KUBE_FAILED && pod->deleted_ms && !pod->disrupted &&
	       str_eq(pod->exit.origin, "job") && pod->deleted_ms <= pod->ended_ms;
}

/* Evicted while only results waited in the pod. */
static bool ended_before(const struct kube_pod *pod, const struct json *terminated)
{
	int64_t at =
		kube_time_at(kube_condition(pod->json, "DisruptionTarget"), "lastTransitionTime");
	int64_t finished_ms = kube_time_at(terminated, "finishedAt");

	return kube_annotation(pod->json, KUBE_NOTE_LINGER) && finished_ms &&
	       json_get_int(terminated, "exitCode", 0) && finished_ms + SECOND_MS < at;
}

void kube_pod_end(const struct kube_case *c, struct kube_pod *pod)
{
	const struct json *program = kube_pod_program(pod->json);
	const struct json *terminated = kube_at(program, "state.terminated");
	bool well = terminated && !json_get_int(terminated, "exitCode", 0) &&
		    !str_eq(kube_str_at(pod->json, "status.phase"), "Failed");

	if (!terminated)
		terminated = kube_at(program, "lastState.terminated");
	read_times(pod, terminated);
	if (well || str_eq(kube_str_at(pod->json, "status.phase"), "Succeeded")) {
		succeeded(pod, terminated);
		return;
	}
	if ((!ended_before(pod, terminated) && end_by_pod_reason(c, pod)) ||
		end_by_disruption(c, pod, kube_time_at(terminated, "finishedAt")) ||
		end_by_init(pod)) {
		pod->is_victim = false;
		return;
	}
	if (terminated)
		end_by_container(c, pod, terminated);
	else
		end_unexplained(pod);
	pod->is_victim = is_victim(pod);
}
