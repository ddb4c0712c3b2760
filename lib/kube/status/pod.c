/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop/proc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * Pods: what one waits for, how it ended, and what becomes of a Job with such pods.
 */

enum {
	SLOW_MS = 10 * 1000,
	SILENT_GRACE_MS = 30 * 1000,
	SECOND_MS = 1000,
	CODE_TIMEOUT = 124,
	CODE_NONE = 125,
	CODE_KILLED = 137,
	SIGNALS_MAX = 64,
	INDEXES_MAX = 10000,
};

int64_t kube_pod_lingers(const struct json *pod)
{
	static const char path[] = "status.containerStatuses";
	const struct json *ended =
		kube_at(kube_named(pod, path, KUBE_CONTAINER), "state.terminated");
	const char *linger = kube_annotation(pod, KUBE_ANNOTATION_LINGER);

	if (!ended || kube_deleted_ms(pod) || !linger ||
		!kube_at(kube_named(pod, path, KUBE_KEEPER), "state.running"))
		return 0;
	return kube_time_at(ended, "finishedAt") + kube_number(linger, 0) * 1000;
}

/* The phase; that of the program if only results wait. */
static const char *pod_phase(const struct json *pod)
{
	const struct json *program = kube_pod_program(pod);

	if (!kube_pod_lingers(pod))
		return kube_str_at(pod, "status.phase");
	return json_get_int(kube_at(program, "state.terminated"), "exitCode", 0) ? "Failed"
										 : "Succeeded";
}

static bool pod_may_linger(const struct kube_facts *facts, const struct json *job)
{
	if (job)
		return kube_annotation(kube_at(job, "spec.template"), KUBE_ANNOTATION_LINGER);
	return !facts->jobset && !facts->was_cancelled;
}

char *kube_pod_unsent(const struct json *pod)
{
	const struct json *keeper = kube_named(pod, "status.containerStatuses", KUBE_KEEPER);
	const struct json *ended = kube_at(keeper, "state.terminated");
	const char *message = json_get_str(ended, "message");
	int code = (int)json_get_int(ended, "exitCode", 0);

	/* A container without arguments waits for somebody who takes results. */
	bool sends = kube_at(kube_named(pod, "spec.containers", KUBE_KEEPER), "args");
	if (!sends || (str_empty(message) && !code))
		return NULL;
	if (!str_empty(message))
		return kube_text(message, KUBE_SENTENCE_MAX / 2);
	AUTO_FREE char *reason = kube_text(json_get_str(ended, "reason"), KUBE_SENTENCE_MAX / 2);
	return mem_printf(
		"not all results are in S3: what sends them has ended with %d (%s)", code, reason);
}

/* Of messages, each of 4 KiB at most. */
enum { VERSIONS_MAX = 16 << 10 };

char *kube_pod_versions(const struct json *pod)
{
	static const char *const names[] = {KUBE_VERSIONS, KUBE_S3};
	AUTO_BUF struct buf out = buf_with(VERSIONS_MAX);

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const struct json *init = kube_named(pod, "status.initContainerStatuses", names[i]);
		const struct json *ended = kube_at(init, "state.terminated");
		const char *message = json_get_str(ended, "message");
		if (message && json_get_int(ended, "exitCode", 1) == 0)
			buf_addf(&out, "%s\n", message);
	}
	return out.len ? buf_take(&out) : NULL;
}

char *kube_pods_lost(
	const struct kube_facts *facts, const struct json *job, const struct kube_pod_list *pods)
{
	if (!facts->pods.known || !pod_may_linger(facts, job))
		return NULL;
	vec_foreach (const struct kube_pod, pod, pods) {
		AUTO_FREE char *name = kube_text(pod->name, KUBE_SENTENCE_MAX / 4);

		if (!kube_annotation(pod->json, KUBE_ANNOTATION_LINGER))
			continue;
		if (pod->disrupted || str_eq(kube_str_at(pod->json, "status.reason"), "Evicted"))
			return mem_printf("pod %s was evicted from its node", name);
		if (pod->deleted_ms)
			return mem_printf("pod %s was removed", name);
	}
	return pods->n ? NULL : mem_strdup("its pod was removed");
}

/*
 * Outlook: predict the result that the Job controller will report for a Job. The controller counts
 * pods about a second after their phase is final, which is another second after their containers
 * have ended, and then sets its condition. The deciding facts cannot change any more: the rules of
 * a Job cannot be edited, a final phase stays, and a pod whose containers have all exited with 0
 * and are not restarted becomes Succeeded, also when it is removed meanwhile; only the loss of its
 * node within that second would be in the way. A failure needs the phase, because a disruption
 * until then would make it one that is ignored. The rules are the controller's own
 * (matchPodFailurePolicy and isIndexFailed of its source) for the Jobs that dlrun makes; nothing
 * is predicted for any other Job.
 */

/* A Job that is decided by its pods alone. */
static bool outlook_is_foreseeable(const struct json *job)
{
	static const char *const others[] = {
		"activeDeadlineSeconds", "maxFailedIndexes", "successPolicy"};
	const struct json *spec = json_get(job, "spec");
	const char *controller = json_get_str(spec, "managedBy");
	bool has_roles = kube_annotation(job, KUBE_ANNOTATION_ROLES);
	int64_t completions = json_get_int(spec, "completions", 0);

	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (json_get(spec, others[i]))
			return false;
	return !has_roles && completions > 0 && completions <= INDEXES_MAX &&
	       json_get_int(spec, "parallelism", 0) == completions &&
	       str_eq(json_get_str(spec, "completionMode"), "Indexed") &&
	       (!controller || str_eq(controller, "kubernetes.io/job-controller")) &&
	       !json_get_bool(spec, "suspend", false) && !kube_deleted_ms(job);
}

static bool outlook_is_owned(const struct json *pod, const struct json *job)
{
	const char *uid = kube_str_at(job, "metadata.uid");
	const struct json *owner = kube_first(pod, "metadata.ownerReferences");

	for (; owner; owner = json_next(owner))
		if (uid && str_eq(json_get_str(owner, "uid"), uid))
			return true;
	return false;
}

static bool outlook_may_restart(const struct json *spec)
{
	for (const struct json *m = kube_first(spec, "containers"); m; m = json_next(m))
		if (json_get(m, "restartPolicy") || json_get(m, "restartPolicyRules"))
			return true;
	return !str_eq(json_get_str(spec, "restartPolicy"), "Never");
}

/* A time limit of the pod, and who removes it, may come before its phase. */
static bool outlook_has_succeeded(const struct json *pod)
{
	const struct json *spec = json_get(pod, "spec");
	const struct json *list = kube_at(pod, "status.containerStatuses");
	const char *phase = pod_phase(pod);

	/* A pod that ended before its status was first reported is Pending until then. */
	if (!str_eq(phase, "Running") && !str_eq(phase, "Pending"))
		return str_eq(phase, "Succeeded");
	if (outlook_may_restart(spec) || json_get(spec, "activeDeadlineSeconds") ||
		kube_deleted_ms(pod) || kube_condition_is(pod, "DisruptionTarget", "True") ||
		!list || json_count(list) != json_count(json_get(spec, "containers")))
		return false;
	json_foreach (m, list)
		if (json_get_int(kube_at(m, "state.terminated"), "exitCode", -1) != 0)
			return false;
	return true;
}

static bool outlook_has_value(const struct json *codes, int64_t code)
{
	for (const struct json *m = kube_first(codes, "values"); m; m = json_next(m))
		if (json_int(m, -1) == code)
			return true;
	return false;
}

static bool outlook_matches_codes(const struct json *codes, const struct json *pod)
{
	static const char *const lists[] = {
		"status.containerStatuses", "status.initContainerStatuses"};
	const char *name = json_get_str(codes, "containerName");
	bool is_in = str_eq(json_get_str(codes, "operator"), "In");

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		for (const struct json *m = kube_first(pod, lists[i]); m; m = json_next(m)) {
			int64_t code = json_get_int(kube_at(m, "state.terminated"), "exitCode", 0);
			if (code && (!name || str_eq(json_get_str(m, "name"), name)) &&
				outlook_has_value(codes, code) == is_in)
				return true;
		}
	}
	return false;
}

static bool outlook_matches_conditions(const struct json *rule, const struct json *pod)
{
	for (const struct json *m = kube_first(rule, "onPodConditions"); m; m = json_next(m)) {
		const char *type = json_get_str(m, "type"), *status = json_get_str(m, "status");
		if (type && kube_condition_is(pod, type, status ? status : "True"))
			return true;
	}
	return false;
}

/* The Job's action on that failure, "Count" if no rule matches. */
static const char *outlook_action_on(const struct json *job, const struct json *pod)
{
	const struct json *m = kube_first(job, "spec.podFailurePolicy.rules");

	for (; m; m = json_next(m)) {
		const struct json *codes = json_get(m, "onExitCodes");
		if (codes ? outlook_matches_codes(codes, pod) : outlook_matches_conditions(m, pod))
			return json_get_str(m, "action");
	}
	return "Count";
}

/* Whether no other pod is made in the place of this one, which has failed. */
static bool outlook_is_last(const struct json *job, const struct json *pod)
{
	static const char counter[] = "batch.kubernetes.io/job-index-failure-count";
	const struct json *spec = json_get(job, "spec");
	const char *action = outlook_action_on(job, pod);

	/* A taint may be what it is removed for: that is shown by a condition, which comes late. */
	if (kube_deleted_ms(pod))
		return false;
	if (str_eq(action, "FailJob") || str_eq(action, "FailIndex"))
		return true;
	if (!str_eq(action, "Count"))
		return false;
	if (!json_get(spec, "backoffLimitPerIndex"))
		return json_get_int(spec, "backoffLimit", 1) == 0;
	return kube_number(kube_annotation(pod, counter), 0) >=
	       json_get_int(spec, "backoffLimitPerIndex", INT64_MAX);
}

enum kube_outlook kube_job_outlook(const struct json *job, const struct kube_items *pods)
{
	int64_t wanted = json_get_int(json_get(job, "spec"), "completions", 0);
	int64_t first = kube_number(kube_annotation(job, KUBE_MEMBER), 0);
	bool by_index = json_get(json_get(job, "spec"), "backoffLimitPerIndex") != NULL;
	int64_t n_succeeded = 0, n_failed = 0;

	if (!outlook_is_foreseeable(job))
		return KUBE_OUTLOOK_OPEN;
	for (size_t i = 0; i < pods->n; i++) {
		const struct json *pod = pods->v[i];
		bool succeeded = outlook_has_succeeded(pod);

		if (!outlook_is_owned(pod, job))
			continue;
		int64_t index = kube_number(kube_annotation(pod, KUBE_INDEX), -1);
		if ((!succeeded && !str_eq(pod_phase(pod), "Failed")) || index < first ||
			index - first >= wanted)
			return KUBE_OUTLOOK_OPEN;
		n_succeeded += succeeded;
		n_failed += !succeeded && outlook_is_last(job, pod);
	}
	/* An index is done after one success, or one failure that is not repeated. */
	if (n_succeeded == wanted)
		return KUBE_OUTLOOK_SUCCEEDS;
	return n_failed && (!by_index || n_succeeded + n_failed == wanted) ? KUBE_OUTLOOK_FAILS
									   : KUBE_OUTLOOK_OPEN;
}

bool kube_gang_has_succeeded(const struct json *job, const struct kube_items *pods)
{
	int first, end, n = 0;
	int64_t newest = 0;

	kube_deciding_ranks(job, &first, &end);
	AUTO_FREE bool *marks = mem_alloc((size_t)end, sizeof(*marks));
	for (size_t i = 0; i < pods->n; i++) {
		int64_t restart = kube_number(kube_label(pods->v[i], KUBE_JOBSET_RESTART), 0);
		newest = restart > newest ? restart : newest;
	}
	for (size_t i = 0; i < pods->n; i++) {
		const struct json *pod = pods->v[i];
		int rank = kube_rank_of(pod);

		if (!pod || kube_number(kube_label(pod, KUBE_JOBSET_RESTART), 0) != newest)
			continue;
		if (str_eq(pod_phase(pod), "Failed"))
			return false;
		if (rank < first || rank >= end || marks[rank] || !outlook_has_succeeded(pod))
			continue;
		marks[rank] = true;
		n++;
	}
	return n == end - first;
}

/*
 * Ends. What the cluster did to a pod comes before what its containers say: one that is evicted or
 * preempted is killed, too, and sometimes called OOMKilled.
 */

static void pod_ended(
	struct kube_pod *pod, int code, int signal, const char *origin, const char *reason)
{
	pod->phase = KUBE_FAILED;
	pod->exit = (struct kube_exit){
		.known = true, .code = code, .signal = signal, .origin = origin, .reason = reason};
}

static const char *pod_node(const struct kube_pod *pod)
{
	return pod->node ? pod->node : "(not known)";
}

/* Reasons of a pod's status and of its condition DisruptionTarget; those of evictions at the end
 * are for any. */
#define BY_CLUSTER(name)                                                                           \
	{                                                                                          \
		true, CODE_NONE, 0, "cluster", name                                                \
	}
#define NODE_LOST .id = E_JOB_NODE, .hint = "dlrun restart <run>", .exit = BY_CLUSTER("NodeLost")
#define PREEMPTED                                                                                  \
	.id = E_JOB_PREEMPTED, .exit = BY_CLUSTER("Preempted"), .evidence = "<text>",              \
	.sentence = "something with a higher priority took its place on node <node>"
#define EVICTED .id = E_JOB_EVICTED, .evidence = "<text>", .exit = BY_CLUSTER("Evicted")
#define EVICTED_BY_LIMIT                                                                           \
	.id = E_JOB_EVICTED, .evidence = "<text>", .exit = {true, CODE_NONE, 0, "job", "Evicted"}
#define VOLUME_TOO_LARGE                                                                           \
	EVICTED_BY_LIMIT,                                                                          \
		.cut = {{"Usage of EmptyDir volume \"", "\""}, {"exceeds the limit \"", "\""}},    \
		.sentence =                                                                        \
			"it was evicted from node <node>: volume \"<1>\" held more than its <2>"
#define HINT_DISK "resources: {disk: 50Gi} in dlrun.yaml"

static const struct kube_reason pod_ends[] = {
	{.reasons = "NodeLost",
		NODE_LOST,
		.otherwise = "it stopped answering",
		.sentence = "node <node> was lost: <text>"},
	{.reasons = "NodeShutdown Shutdown Terminated",
		NODE_LOST,
		.sentence = "node <node> was lost: it was shut down",
		.evidence = "<text>"},
	{.reasons = "TerminationByKubelet",
		.words = {"shutdown"},
		NODE_LOST,
		.sentence = "node <node> was lost: it was shut down",
		.evidence = "<text>"},
	{.reasons = "DeletionByPodGC",
		NODE_LOST,
		.sentence = "node <node> was lost: it was removed from the cluster",
		.evidence = "<text>"},
	{.reasons = "TerminationByKubelet", .words = {"critical pod"}, PREEMPTED},
	{.reasons = "Preempting PreemptionByScheduler", PREEMPTED},
	{.reasons = "EvictionByEvictionAPI",
		EVICTED,
		.sentence =
			"it was evicted from node <node> through the API (kubectl drain, an autoscaler)"},
	{.reasons = "DeletionByTaintManager",
		EVICTED,
		.sentence = "it was evicted: node <node> got a taint that it does not tolerate"},
	{.reasons = "NodeAffinity OutOf PodOSNotSupported PodOSSelectorNodeLabelDoesNotMatch "
		    "TopologyAffinityError UnexpectedAdmissionError",
		.id = E_JOB_REJECTED,
		.sentence = "node <node> sent it back: <text>",
		.hint = "dlrun restart <run>",
		.exit = BY_CLUSTER("StartFailed")},
	{.words = {"Usage of EmptyDir volume \"shm\""},
		VOLUME_TOO_LARGE,
		.hint = "resources: {shm: 8Gi} in dlrun.yaml"},
	{.words = {"Usage of EmptyDir volume \"results\""},
		VOLUME_TOO_LARGE,
		.hint = "results: {claim: 50Gi} of the target"},
	{.words = {"Usage of EmptyDir volume \""}, VOLUME_TOO_LARGE, .hint = HINT_DISK},
	{.words = {"local ephemeral storage limit \""},
		EVICTED_BY_LIMIT,
		.cut = {{"local ephemeral storage limit \"", "\""}},
		.sentence = "it was evicted from node <node>: it wrote more than its <1> of disk",
		.hint = HINT_DISK},
	{.words = {"total limit of containers "},
		EVICTED_BY_LIMIT,
		.cut = {{"total limit of containers ", "."}},
		.sentence = "it was evicted from node <node>: it wrote more than its <1> of disk",
		.hint = HINT_DISK},
	{.words = {"was low on resource: ephemeral-storage"},
		EVICTED,
		.sentence = "it was evicted: node <node> had too little disk left",
		.hint = HINT_DISK},
	{.words = {"was low on resource: memory"},
		EVICTED,
		.sentence = "it was evicted: node <node> had too little memory left",
		.hint = "resources: {memory: 16Gi} in dlrun.yaml"},
	{.words = {"was low on resource: "},
		EVICTED,
		.cut = {{"was low on resource: ", "."}},
		.sentence = "it was evicted: node <node> had too little <1> left"},
	{.words = {"had condition: ["},
		EVICTED,
		.cut = {{"had condition: [", "]"}},
		.sentence = "it was evicted: node <node> was under <1>"},
	{.id = E_JOB_EVICTED,
		.exit = BY_CLUSTER("Evicted"),
		.otherwise = "the cluster does not say why",
		.sentence = "it was evicted from node <node>: <text>"},
};

/* only_known: false for a reason that the table does not name. */
static bool pod_end_by_reason(const struct kube_case *c, struct kube_pod *pod, const char *reason,
	const char *text, bool only_known)
{
	const char *known = reason && str_starts(reason, "OutOf") ? "OutOf" : reason;
	const struct kube_reason *row =
		kube_reason_find(pod_ends, ARRAY_LEN(pod_ends), known, text);
	struct kube_about about = {.c = c, .pod = pod, .reason = reason, .text = text};

	if (only_known && !row->reasons && !str_eq(reason, "Evicted"))
		return false;
	pod->phase = KUBE_FAILED;
	pod->exit = row->exit;
	kube_why_fill(row, &about, &pod->why);
	return true;
}

static void pod_timed_out(struct kube_pod *pod)
{
	pod_ended(pod, CODE_TIMEOUT, 0, "dlrun", "Timeout");
	kube_why_timeout(json_get(pod->json, "spec"), &pod->why);
}

static bool pod_end_by_status(const struct kube_case *c, struct kube_pod *pod)
{
	const struct json *status = json_get(pod->json, "status");
	const char *reason = json_get_str(status, "reason");

	if (!str_eq(reason, "DeadlineExceeded"))
		return pod_end_by_reason(c, pod, reason, json_get_str(status, "message"), true);
	pod_timed_out(pod);
	return true;
}

static bool pod_end_by_disruption(
	const struct kube_case *c, struct kube_pod *pod, int64_t finished_ms)
{
	const struct json *condition = kube_condition(pod->json, "DisruptionTarget");
	const struct json *ready = kube_condition(pod->json, "Ready");
	const char *reason = json_get_str(condition, "reason");
	const char *message = json_get_str(condition, "message");
	int64_t at = kube_time_at(condition, "lastTransitionTime");

	/* The pod had failed by itself before the disruption. */
	if (!pod->disrupted || (at && finished_ms && finished_ms + SECOND_MS < at))
		return false;
	if (str_eq(reason, "DeletionByTaintManager") &&
		(str_eq(json_get_str(ready, "reason"), "NodeNotReady") ||
			kube_events_newest(&c->events, "Pod", pod->name, "NodeNotReady")))
		pod_end_by_reason(c, pod, "NodeLost", NULL, false);
	else
		pod_end_by_reason(c, pod, reason, str_empty(message) ? reason : message, false);
	if (at)
		pod->failed_ms = at;
	return true;
}

/* The memory limit of the program in bytes; 0: none. */
static int64_t pod_memory(const struct json *pod)
{
	static const char path[] = "spec.containers";
	const struct json *program = kube_named(pod, path, KUBE_CONTAINER);

	if (!program)
		program = kube_first(pod, path);
	return kube_quantity_of(kube_at(program, "resources.limits.memory")) / 1000;
}

static void pod_hint_memory(struct kube_pod *pod)
{
	int64_t bytes = pod_memory(pod->json);
	char limit[24];

	if (bytes)
		kube_why_hint(&pod->why, "dlrun submit --memory %s …",
			kube_bytes_text(bytes < INT64_MAX / 2 ? 2 * bytes : bytes, limit));
	else
		kube_why_hint(&pod->why, "resources: {memory: 16Gi} in dlrun.yaml");
}

static void pod_out_of_memory(struct kube_pod *pod)
{
	int64_t bytes = pod_memory(pod->json);
	char limit[24];

	pod_ended(pod, CODE_KILLED, SIGKILL, "job", "OutOfMemory");
	if (bytes)
		kube_why_set(&pod->why, E_JOB_OOM,
			"it was killed: it used more than its memory limit of %s",
			kube_bytes_text(bytes, limit));
	else
		kube_why_set(&pod->why, E_JOB_OOM,
			"it was killed: node %s had no memory left, and the run has no limit of "
			"its own",
			pod_node(pod));
	pod_hint_memory(pod);
}

/* Kubelets say so of a container when the kernel killed any of its processes: the program may have
 * lived on, and its own end counts. end: what is said of that. */
static void pod_set_killed_process(struct kube_pod *pod, enum err_id id, const char *end)
{
	int64_t bytes = pod_memory(pod->json);
	char limit[24];

	kube_why_set(&pod->why, id,
		"the kernel killed one of its processes for memory (%s%s), then %s",
		bytes ? "limit " : "no limit of its own",
		bytes ? kube_bytes_text(bytes, limit) : "", end);
}

/* The last line that is not empty of what a container left as its last words; *ret_len: 0 when
 * there is none. */
static const char *pod_last_words(const char *message, size_t *ret_len)
{
	size_t len = message && !strstr(message, KUBE_JOB_RESULTS) ? strlen(message) : 0;
	const char *line = message;

	while (len && strchr(" \t\r\n", message[len - 1]))
		len--;
	for (size_t i = 0; i < len; i++)
		if (message[i] == '\n')
			line = message + i + 1;
	*ret_len = len ? len - (size_t)(line - message) : 0;
	return line;
}

static void pod_add_last_words(struct kube_pod *pod, const char *message)
{
	size_t len;
	const char *line = pod_last_words(message, &len);

	if (len)
		kube_why_evidence(&pod->why, "%.*s", (int)len, line);
}

static void pod_by_signal(struct kube_pod *pod, int signal)
{
	int64_t bytes = pod_memory(pod->json);
	char name[8], limit[24];

	pod_ended(pod, 128 + signal, signal, "job", "Signal");
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
static bool pod_by_script(struct kube_pod *pod, const char *message, int code)
{
	if (message && str_starts(message, KUBE_JOB_TIMEOUT)) {
		pod_timed_out(pod);
		return true;
	}
	if (!message || !str_starts(message, KUBE_JOB_SETUP))
		return false;
	pod_ended(pod, code ? code : CODE_NONE, 0, "setup", "SetupFailed");
	kube_why_set(&pod->why, E_RUN_SETUP, "its setup exited with %d", code);
	return true;
}

static void pod_by_program(struct kube_pod *pod, int code, int64_t signal)
{
	if (signal > 0 && signal <= SIGNALS_MAX) {
		pod_by_signal(pod, (int)signal);
		return;
	}
	if (!code) {
		pod_ended(pod, CODE_NONE, 0, "cluster", "Error");
		kube_why_set(&pod->why, E_JOB_FAILED,
			"the program exited with 0, but another container of its pod failed");
		return;
	}
	pod_ended(pod, code, 0, "job", "Error");
	kube_why_set(&pod->why, E_RUN_FAILED, "the program exited with %d", code);
	if (code == 127)
		kube_why_evidence(&pod->why, "a shell says 127 when it finds no such command");
	else if (code == 126)
		kube_why_evidence(&pod->why, "a shell says 126 when a file cannot be executed");
}

static bool pod_end_by_start(
	const struct kube_case *c, struct kube_pod *pod, const struct json *terminated)
{
	const char *reason = json_get_str(terminated, "reason");
	const char *message = json_get_str(terminated, "message");
	struct kube_about about = {.c = c, .pod = pod, .reason = reason, .text = message};

	/* runc says a wrong format in the log, which is the message then. */
	if ((!reason || !str_is_word_of(reason, "StartError ContainerCannotRun RunContainerError "
						"CreateContainerError")) &&
		!(message && str_starts(message, "exec ") && strstr(message, "exec format error")))
		return false;
	pod_ended(pod, CODE_NONE, 0, "cluster", "StartFailed");
	if (!kube_why_exec(&about, &pod->exit, &pod->why))
		kube_why_set(&pod->why, E_JOB_START, "node %s cannot start its container: %s",
			pod_node(pod), str_empty(message) ? reason : message);
	return true;
}

static void pod_end_by_container(
	const struct kube_case *c, struct kube_pod *pod, const struct json *terminated)
{
	const char *reason = json_get_str(terminated, "reason");
	const char *message = json_get_str(terminated, "message");
	int64_t code = json_get_int(terminated, "exitCode", 0);
	int64_t signal = json_get_int(terminated, "signal", 0);
	bool is_killed = str_eq(reason, "OOMKilled");

	code = code < 0 || code > 255 ? 255 : code;
	if (!signal && code > 128 && code <= 128 + SIGNALS_MAX)
		signal = code - 128;
	if (pod_by_script(pod, message, (int)code))
		return;
	if (is_killed && (signal == SIGKILL || !code)) {
		pod_out_of_memory(pod);
	} else if (str_eq(reason, "ContainerStatusUnknown")) {
		pod_end_by_reason(c, pod, "NodeLost",
			"it does not know any more how the container ended", false);
	} else if (pod_end_by_start(c, pod, terminated)) {
		return;
	} else {
		pod_by_program(pod, (int)code, signal);
	}
	if (is_killed && pod->why.id == E_RUN_FAILED) {
		AUTO_FREE char *end = mem_strdup(pod->why.sentence);
		pod_set_killed_process(pod, E_RUN_FAILED, end);
		pod_hint_memory(pod);
	}
	pod_add_last_words(pod, message);
}

/* true: an init container failed, so that the program never began. */
static bool pod_end_by_init(struct kube_pod *pod)
{
	const struct json *m = kube_first(pod->json, "status.initContainerStatuses");
	size_t len;

	while (m && !json_get_int(kube_at(m, "state.terminated"), "exitCode", 0))
		m = json_next(m);
	if (!m)
		return false;
	const struct json *terminated = kube_at(m, "state.terminated");
	const char *name = json_get_str(m, "name") ? json_get_str(m, "name") : "";
	pod_ended(pod, CODE_NONE, 0, "cluster", "StartFailed");
	const char *line = pod_last_words(json_get_str(terminated, "message"), &len);
	kube_why_set(&pod->why, E_JOB_START, "init container \"%s\" exited with %d%s%.*s", name,
		(int)json_get_int(terminated, "exitCode", 0), len ? ": " : "", (int)len,
		len ? line : "");
	kube_why_hint(&pod->why, "kubectl logs %s -c %s", pod->name, name);
	return true;
}

static void pod_end_unexplained(struct kube_pod *pod)
{
	const struct json *status = json_get(pod->json, "status");
	const char *reason = json_get_str(status, "reason");
	const char *message = json_get_str(status, "message");

	pod_ended(pod, CODE_NONE, 0, "cluster", "Error");
	kube_why_set(&pod->why, E_JOB_FAILED, "its pod failed: %s",
		!str_empty(message)  ? message
		: !str_empty(reason) ? reason
				     : "the cluster does not say why");
	kube_why_hint(&pod->why, "kubectl describe pod %s", pod->name);
}

static void pod_read_times(struct kube_pod *pod, const struct json *terminated)
{
	pod->started_ms = kube_time_at(terminated, "startedAt");
	pod->ended_ms = kube_time_at(terminated, "finishedAt");
	if (!pod->ended_ms)
		pod->ended_ms =
			kube_time_at(kube_condition(pod->json, "Ready"), "lastTransitionTime");
	if (pod->started_ms > pod->ended_ms)
		pod->started_ms = 0;
	pod->failed_ms = pod->ended_ms;
}

/* Evicted while only results waited in the pod. */
static bool pod_ended_before(const struct kube_pod *pod, const struct json *terminated)
{
	int64_t at =
		kube_time_at(kube_condition(pod->json, "DisruptionTarget"), "lastTransitionTime");
	int64_t finished_ms = kube_time_at(terminated, "finishedAt");

	return kube_annotation(pod->json, KUBE_ANNOTATION_LINGER) && finished_ms &&
	       json_get_int(terminated, "exitCode", 0) && finished_ms + SECOND_MS < at;
}

static void pod_read_end(const struct kube_case *c, struct kube_pod *pod)
{
	const struct json *program = kube_pod_program(pod->json);
	const struct json *terminated = kube_at(program, "state.terminated");
	const char *phase = kube_str_at(pod->json, "status.phase");
	bool well =
		terminated && !json_get_int(terminated, "exitCode", 0) && !str_eq(phase, "Failed");

	if (!terminated)
		terminated = kube_at(program, "lastState.terminated");
	pod_read_times(pod, terminated);
	if (well || str_eq(phase, "Succeeded")) {
		pod->phase = KUBE_SUCCEEDED;
		pod->exit =
			(struct kube_exit){.known = true, .origin = "job", .reason = "Completed"};
		if (str_eq(json_get_str(terminated, "reason"), "OOMKilled"))
			pod_set_killed_process(pod, E_NONE, "the program exited with 0");
		return;
	}
	if ((!pod_ended_before(pod, terminated) && pod_end_by_status(c, pod)) ||
		pod_end_by_disruption(c, pod, kube_time_at(terminated, "finishedAt")) ||
		pod_end_by_init(pod))
		return;
	if (terminated)
		pod_end_by_container(c, pod, terminated);
	else
		pod_end_unexplained(pod);
	/* Removal was requested before the end, and no disruption is marked. */
	pod->is_victim = pod->deleted_ms && !pod->disrupted && str_eq(pod->exit.origin, "job") &&
			 pod->deleted_ms <= pod->ended_ms;
}

/*
 * Waits of a pod that has not begun: a place, a volume, its image, its runtime
 */

/* A container that waits: reason and message as they came. */
struct waiting {
	const struct kube_case *c;
	struct kube_pod *pod;
	const char *reason, *message; /* message may be NULL */
	const char *container;
};

/* Older kubelets say only "Back-off pulling image": the event before has what the registry said. */
static const char *wait_pull_text(const struct waiting *w)
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

static void wait_start(const struct waiting *w)
{
	struct kube_exit ignored;
	struct kube_about about = {
		.c = w->c, .pod = w->pod, .reason = w->reason, .text = w->message};

	if (kube_why_exec(&about, &ignored, &w->pod->why))
		return;
	kube_why_set(&w->pod->why, E_JOB_START, "node %s cannot start container \"%s\": %s",
		w->pod->node, w->container, str_empty(w->message) ? w->reason : w->message);
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

static bool wait_by_reason(const struct kube_case *c, struct kube_pod *pod,
	const struct json *container, const char *otherwise)
{
	const struct json *state = kube_at(container, "state.waiting");
	const char *name = json_get_str(container, "name"), *reason = json_get_str(state, "reason");
	struct waiting w = {
		c, pod, reason, json_get_str(state, "message"), name ? name : otherwise};

	if (str_empty(reason) || str_is_word_of(reason, "ContainerCreating PodInitializing"))
		return false;
	if (str_is_word_of(reason,
		    "ErrImageNeverPull ErrImagePull ImageInspectError ImagePullBackOff "
		    "InvalidImageName RegistryUnavailable SignatureValidationFailed")) {
		pod->wait = KUBE_WAIT_PULL;
		kube_why_pull(c, pod, reason, wait_pull_text(&w), &pod->why);
	} else if (str_eq(reason, "CrashLoopBackOff")) {
		wait_again(&w);
	} else if (str_eq(reason, "CreateContainerConfigError")) {
		kube_why_config(c, w.message, &pod->why);
	} else {
		wait_start(&w);
		/* An unknown reason may go away by itself. */
		pod->why.needs_help =
			str_is_word_of(reason, "CreateContainerError PostStartHookError "
					       "PreCreateHookError PreStartHookError "
					       "RunContainerError");
	}
	return true;
}

/* While nothing is said of containers; ret_since_ms: of the event that counts. */
static bool wait_by_event(const struct kube_case *c, struct kube_pod *pod, int64_t *ret_since_ms)
{
	static const char volume[] = "FailedAttachVolume FailedMapVolume FailedMount";
	static const char network[] =
		"FailedCreatePodSandBox FailedPrepareDynamicResources NetworkNotReady";

	for (size_t i = c->events.n; i-- > 0;) {
		const struct kube_event *event = &c->events.v[i];
		const char *reason = event->reason;

		if (!str_eq(event->name, pod->name))
			continue;
		if (str_is_word_of(reason, volume)) {
			pod->wait = KUBE_WAIT_VOLUME;
			kube_why_volume(pod, event->message, &pod->why);
		} else if (str_is_word_of(reason, network)) {
			kube_why_set(&pod->why, E_JOB_START,
				"node %s cannot set up the network of its pod: %s", pod->node,
				event->message);
			kube_why_hint(&pod->why, "kubectl describe pod %s", pod->name);
		} else if (str_eq(reason, "Pulling")) {
			pod->wait = KUBE_WAIT_PULL;
			kube_why_pulling(c, pod, event->message, &pod->why);
		} else if (!str_is_word_of(reason, "Created Pulled Started")) {
			continue;
		}
		*ret_since_ms = event->first_ms;
		return pod->why.sentence;
	}
	return false;
}

static bool wait_by_init(const struct kube_case *c, struct kube_pod *pod)
{
	const struct json *m = kube_first(pod->json, "status.initContainerStatuses");

	for (; m; m = json_next(m)) {
		const char *name = json_get_str(m, "name") ? json_get_str(m, "name") : "";
		const struct json *spec = kube_named(pod->json, "spec.initContainers", name);

		/* A sidecar goes on beside the program and is not waited for. */
		if (kube_at(m, "state.terminated") ||
			str_eq(json_get_str(spec, "restartPolicy"), "Always"))
			continue;
		if (!kube_at(m, "state.running"))
			return wait_by_reason(c, pod, m, "");
		pod->wait = KUBE_WAIT_INIT;
		pod->why.waits_for_code = str_eq(name, KUBE_CODE);
		if (pod->why.waits_for_code)
			kube_why_set(&pod->why, E_NONE, "waits for its code");
		else if (str_eq(name, KUBE_S3))
			kube_why_set(&pod->why, E_NONE, "its data come from S3");
		else
			kube_why_set(&pod->why, E_NONE, "init container \"%s\" runs", name);
		return true;
	}
	return false;
}

static void wait_on_node(const struct kube_case *c, struct kube_pod *pod)
{
	int64_t since_ms =
		kube_time_at(kube_condition(pod->json, "PodScheduled"), "lastTransitionTime");

	pod->wait = KUBE_WAIT_START;
	if (wait_by_init(c, pod) ||
		wait_by_reason(c, pod, kube_pod_program(pod->json), KUBE_CONTAINER) ||
		wait_by_event(c, pod, &since_ms))
		return;
	if (since_ms && c->facts->now_ms - since_ms > SLOW_MS)
		kube_why_set(&pod->why, E_NONE, "node %s prepares its pod", pod->node);
}

static void wait_for_node(struct kube_case *c, struct kube_pod *pod)
{
	const struct json *scheduled = kube_condition(pod->json, "PodScheduled");
	const struct kube_event *event =
		kube_events_newest(&c->events, "Pod", pod->name, "FailedScheduling");
	const char *text = json_get_str(scheduled, "message");
	const char *reason = json_get_str(scheduled, "reason");

	pod->wait = KUBE_WAIT_SCHEDULE;
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
		kube_why_schedule(c, pod->json, text, &pod->why);
}

/*
 * All of it
 */

static void pod_read_identity(const struct kube_case *c, struct kube_pod *pod)
{
	static const char failures[] = "batch.kubernetes.io/job-index-failure-count";
	int rank = kube_rank_of(pod->json);
	int64_t restarts = json_get_int(kube_pod_program(pod->json), "restartCount", 0);

	pod->name = kube_str_at(pod->json, "metadata.name");
	if (!pod->name)
		pod->name = c->facts->job_name ? c->facts->job_name : "its pod";
	pod->node = kube_str_at(pod->json, "spec.nodeName");
	if (str_empty(pod->node))
		pod->node = NULL;
	pod->rank = rank >= 0 && rank < KUBE_RANKS_MAX && !c->facts->is_member ? rank : 0;
	pod->attempt = 1 + (int)kube_number(kube_annotation(pod->json, failures), 0);
	pod->restarts = restarts > 0 && restarts < 1000 * 1000 ? (int)restarts : 0;
	pod->created_ms = kube_time_at(pod->json, "metadata.creationTimestamp");
	pod->deleted_ms = kube_deleted_ms(pod->json);
	pod->disrupted = kube_condition_is(pod->json, "DisruptionTarget", "True");
}

/* A node that does not respond cannot report that its programs have ended. */
static bool pod_node_is_silent(const struct kube_case *c, const struct kube_pod *pod)
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

static void pod_running_why(const struct kube_case *c, struct kube_pod *pod)
{
	int64_t end_ms = kube_time_at(pod->json, "metadata.deletionTimestamp");

	if (pod_node_is_silent(c, pod)) {
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

void kube_pod_read(struct kube_case *c, const struct json *json, struct kube_pod *ret)
{
	const struct json *program = kube_pod_program(json);
	const char *phase = kube_str_at(json, "status.phase");

	*ret = (struct kube_pod){.json = json};
	pod_read_identity(c, ret);
	ret->started_ms = kube_time_at(program, "state.running.startedAt");
	/* Once the program has ended, the other containers may go on for a moment. */
	if (str_eq(phase, "Succeeded") || str_eq(phase, "Failed") ||
		(str_eq(kube_str_at(json, "spec.restartPolicy"), "Never") &&
			kube_at(program, "state.terminated"))) {
		pod_read_end(c, ret);
	} else if (kube_at(program, "state.running")) {
		ret->phase = KUBE_RUNNING;
		pod_running_why(c, ret);
	} else {
		ret->phase = ret->node ? KUBE_STARTING : KUBE_QUEUED;
		if (ret->deleted_ms)
			return;
		if (ret->node)
			wait_on_node(c, ret);
		else
			wait_for_node(c, ret);
	}
}
