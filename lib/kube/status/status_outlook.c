/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * Predict the result that the Job controller will report for a Job. The controller counts pods
 * about a second after their phase is final, which is another second after their containers have
 * ended, and then sets its condition. The deciding facts cannot change any more: the rules of a Job
 * cannot be edited, a final phase stays, and a pod whose containers have all exited with 0 and are
 * not restarted becomes Succeeded, also when it is removed meanwhile; only the loss of its node
 * within that second would be in the way. A failure needs the phase, because a disruption until
 * then would make it one that is ignored. The rules are the controller's own (matchPodFailurePolicy
 * and isIndexFailed of its source) for the Jobs that dlrun makes; nothing is predicted for any
 * other Job.
 */

enum { INDEXES_MAX = 10000 };

/* A Job that is decided by its pods alone. */
static bool is_foreseeable(const struct json *job)
{
	static const char *const others[] = {
		"activeDeadlineSeconds", "maxFailedIndexes", "successPolicy"};
	const struct json *spec = json_get(job, "spec");
	const char *controller = json_get_str(spec, "managedBy");
	int64_t completions = json_get_int(spec, "completions", 0);

	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (json_get(spec, others[i]))
			return false;
	return completions > 0 && completions <= INDEXES_MAX &&
	       json_get_int(spec, "parallelism", 0) == completions &&
	       str_eq(json_get_str(spec, "completionMode"), "Indexed") &&
	       (!controller || str_eq(controller, "kubernetes.io/job-controller")) &&
	       !json_get_bool(spec, "suspend", false) && !kube_deleted_ms(job);
}

static bool is_owned(const struct json *pod, const struct json *job)
{
	const char *uid = kube_str_at(job, "metadata.uid");
	const struct json *owners = kube_at(pod, "metadata.ownerReferences");

	for (const struct json *owner = owners ? json_first(owners) : NULL; owner;
		owner = json_next(owner))
		if (uid && str_eq(json_get_str(owner, "uid"), uid))
			return true;
	return false;
}

static bool may_restart(const struct json *spec)
{
	const struct json *containers = json_get(spec, "containers");

	for (const struct json *m = containers ? json_first(containers) : NULL; m; m = json_next(m))
		if (json_get(m, "restartPolicy") || json_get(m, "restartPolicyRules"))
			return true;
	return !str_eq(json_get_str(spec, "restartPolicy"), "Never");
}

/* A time limit of the pod, and who removes it, may come before its phase. */
static bool has_succeeded(const struct json *pod)
{
	const struct json *spec = json_get(pod, "spec");
	const struct json *list = kube_at(pod, "status.containerStatuses");
	const char *phase = kube_pod_phase(pod);

	/* A pod that ended before its status was first reported is Pending until then. */
	if (!str_eq(phase, "Running") && !str_eq(phase, "Pending"))
		return str_eq(phase, "Succeeded");
	if (may_restart(spec) || json_get(spec, "activeDeadlineSeconds") || kube_deleted_ms(pod) ||
		kube_condition_is(pod, "DisruptionTarget", "True") || !list ||
		json_count(list) != json_count(json_get(spec, "containers")))
		return false;
	for (const struct json *m = json_first(list); m; m = json_next(m))
		if (json_get_int(kube_at(m, "state.terminated"), "exitCode", -1) != 0)
			return false;
	return true;
}

/*
 * podFailurePolicy
 */

static bool has_value(const struct json *values, int64_t code)
{
	for (const struct json *m = values ? json_first(values) : NULL; m; m = json_next(m))
		if (json_int(m, -1) == code)
			return true;
	return false;
}

static bool matches_codes(const struct json *codes, const struct json *pod)
{
	static const char *const lists[] = {
		"status.containerStatuses", "status.initContainerStatuses"};
	const char *name = json_get_str(codes, "containerName");
	bool is_in = str_eq(json_get_str(codes, "operator"), "In");

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		const struct json *list = kube_at(pod, lists[i]);
		for (const struct json *m = list ? json_first(list) : NULL; m; m = json_next(m)) {
			int64_t code = json_get_int(kube_at(m, "state.terminated"), "exitCode", 0);
			if (code && (!name || str_eq(json_get_str(m, "name"), name)) &&
				has_value(json_get(codes, "values"), code) == is_in)
				return true;
		}
	}
	return false;
}

static bool matches_conditions(const struct json *patterns, const struct json *pod)
{
	for (const struct json *m = patterns ? json_first(patterns) : NULL; m; m = json_next(m)) {
		const char *type = json_get_str(m, "type"), *status = json_get_str(m, "status");
		if (type && kube_condition_is(pod, type, status ? status : "True"))
			return true;
	}
	return false;
}

/* The Job's action on that failure, "Count" if no rule matches. */
static const char *action_on(const struct json *job, const struct json *pod)
{
	const struct json *rules = kube_at(job, "spec.podFailurePolicy.rules");

	for (const struct json *m = rules ? json_first(rules) : NULL; m; m = json_next(m)) {
		const struct json *codes = json_get(m, "onExitCodes");
		if (codes ? matches_codes(codes, pod)
			  : matches_conditions(json_get(m, "onPodConditions"), pod))
			return json_get_str(m, "action");
	}
	return "Count";
}

/* Whether no other pod is made in the place of this one, which has failed. */
static bool is_last(const struct json *job, const struct json *pod)
{
	static const char counter[] = "batch.kubernetes.io/job-index-failure-count";
	const struct json *spec = json_get(job, "spec");
	const char *action = action_on(job, pod);

	/* A taint may be what it is removed for: that is told by a condition, which comes late. */
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

/*
 * The whole
 */

enum kube_outlook kube_job_outlook(const struct json *job, const struct kube_items *pods)
{
	static const char index[] = "batch.kubernetes.io/job-completion-index";
	int64_t wanted = json_get_int(json_get(job, "spec"), "completions", 0);
	bool by_index = json_get(json_get(job, "spec"), "backoffLimitPerIndex") != NULL;
	int64_t n_succeeded = 0, n_failed = 0;

	if (!is_foreseeable(job))
		return KUBE_OUTLOOK_OPEN;
	for (size_t i = 0; i < pods->n; i++) {
		const struct json *pod = pods->v[i];
		bool succeeded = has_succeeded(pod);

		if (!is_owned(pod, job))
			continue;
		if ((!succeeded && !str_eq(kube_pod_phase(pod), "Failed")) ||
			kube_number(kube_annotation(pod, index), wanted) >= wanted)
			return KUBE_OUTLOOK_OPEN;
		n_succeeded += succeeded;
		n_failed += !succeeded && is_last(job, pod);
	}
	/* An index is done after one success, or one failure that is not repeated. */
	if (n_succeeded == wanted)
		return KUBE_OUTLOOK_SUCCEEDS;
	return n_failed && (!by_index || n_succeeded + n_failed == wanted) ? KUBE_OUTLOOK_FAILS
									   : KUBE_OUTLOOK_OPEN;
}
