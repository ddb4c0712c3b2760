/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * Before there are pods: Kueue's Workload (kueue.x-k8s.io), a suspended Job, and pods that the
 * Job's controller is not allowed to make.
 */

enum { UNSEEN_MS = 10 * 1000 };

/* The object that Kueue takes into its queues. */
static const struct json *queued_of(const struct kube_case *c)
{
	return c->facts->jobset ? c->facts->jobset : c->facts->job;
}

static const char *queue_name(const struct kube_case *c)
{
	const char *queue = kube_str_at(c->facts->workload, "spec.queueName");

	if (!queue)
		queue = kube_label(queued_of(c), "kueue.x-k8s.io/queue-name");
	return queue;
}

static const char *message_of(const struct json *condition)
{
	const char *message = json_get_str(condition, "message");

	return str_empty(message) ? "it does not say why" : message;
}

/*
 * Kueue
 */

/* An empty cluster queue would not admit it either. */
static bool is_too_large(const char *message)
{
	return strstr(message, "maximum capacity") || strstr(message, "exceeds the maximum") ||
	       strstr(message, "exceeds maximum");
}

/* The queue itself is what has to be mended. */
static bool is_misconfigured(const char *message, const char *reason)
{
	return str_eq(reason, "Inadmissible") || strstr(message, "doesn't exist") ||
	       strstr(message, "is inactive") || strstr(message, "is stopped");
}

static void queue_pending(
	const struct kube_case *c, const struct json *reserved, struct kube_why *why)
{
	const char *message = message_of(reserved), *queue = queue_name(c);

	why->since_ms = kube_time_at(reserved, "lastTransitionTime");
	if (is_too_large(message)) {
		kube_why_set(why, E_SCHED_IMPOSSIBLE,
			"queue \"%s\" can never admit it: more is asked for than its quota",
			queue ? queue : "?");
		kube_why_evidence(why, "%s", message);
		why->never_fits = why->needs_help = true;
		return;
	}
	why->needs_help = is_misconfigured(message, json_get_str(reserved, "reason"));
	kube_why_set(why, E_SCHED_QUEUE, "queue \"%s\" has not admitted it: %s",
		queue ? queue : "?", message);
	if (why->needs_help)
		kube_why_hint(why, "kubectl get localqueues");
}

static void queue_evicted(
	const struct kube_case *c, const struct json *evicted, struct kube_why *why)
{
	const char *reason = json_get_str(evicted, "reason"), *queue = queue_name(c);
	const struct json *preempted = kube_condition(c->facts->workload, "Preempted");

	why->since_ms = kube_time_at(evicted, "lastTransitionTime");
	if (str_eq(reason, "Preempted"))
		kube_why_set(why, E_SCHED_QUEUE,
			"it was stopped to make room for another run and waits in queue \"%s\" again",
			queue ? queue : "?");
	else
		kube_why_set(why, E_SCHED_QUEUE, "queue \"%s\" has taken it back: %s",
			queue ? queue : "?", message_of(evicted));
	if (preempted)
		kube_why_evidence(why, "%s", message_of(preempted));
}

static bool queue_checks(const struct kube_case *c, struct kube_why *why)
{
	const struct json *list = kube_at(c->facts->workload, "status.admissionChecks");

	if (!list || json_kind(list) != JSON_ARRAY)
		return false;
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const char *name = json_get_str(m, "name"), *state = json_get_str(m, "state");
		const char *message = json_get_str(m, "message");

		if (str_empty(state) || str_eq(state, "Ready"))
			continue;
		kube_why_set(why, E_SCHED_QUEUE,
			"it has its quota and waits for the check \"%s\" "
			"(%s)%s%s",
			name ? name : "", state, str_empty(message) ? "" : ": ",
			str_empty(message) ? "" : message);
		why->needs_help = str_eq(state, "Rejected");
		why->since_ms = kube_time_at(m, "lastTransitionTime");
		return true;
	}
	return false;
}

/* true: it waits for Kueue. */
static bool why_kueue(const struct kube_case *c, struct kube_why *why)
{
	const struct json *workload = c->facts->workload;
	const struct json *reserved = kube_condition(workload, "QuotaReserved");

	if (!workload || kube_condition_is(workload, "Admitted", "True") ||
		kube_condition_is(workload, "Finished", "True"))
		return false;
	if (!json_get_bool(json_get(workload, "spec"), "active", true)) {
		kube_why_set(why, E_SCHED_QUEUE, "Kueue has given it up: %s",
			message_of(kube_condition(workload, "Evicted")));
		why->needs_help = true;
		return true;
	}
	if (queue_checks(c, why))
		return true;
	if (kube_condition_is(workload, "Evicted", "True") &&
		!kube_condition_is(workload, "QuotaReserved", "True"))
		queue_evicted(c, kube_condition(workload, "Evicted"), why);
	else if (reserved)
		queue_pending(c, reserved, why);
	else
		kube_why_set(why, E_SCHED_QUEUE, "it waits in queue \"%s\"",
			queue_name(c) ? queue_name(c) : "?");
	return true;
}

bool kube_why_queue(const struct kube_case *c, struct kube_why *why)
{
	const struct json *job = queued_of(c);
	const char *queue = queue_name(c);
	int64_t created = kube_time_at(job, "metadata.creationTimestamp");

	if (why_kueue(c, why))
		return true;
	if (!json_get_bool(json_get(job, "spec"), "suspend", false))
		return false;
	why->since_ms = kube_time_at(kube_condition(job, "Suspended"), "lastTransitionTime");
	if (!why->since_ms)
		why->since_ms = created;
	if (c->facts->workload ||
		(queue && (c->facts->workload_hidden || c->facts->now_ms - created < UNSEEN_MS))) {
		kube_why_set(why, E_NONE, "it waits for queue \"%s\"", queue ? queue : "?");
		return true;
	}
	why->needs_help = true;
	if (queue)
		kube_why_set(why, E_SCHED_QUEUE,
			"nothing has taken it into queue \"%s\": does Kueue run here?", queue);
	else
		kube_why_set(why, E_SCHED_SUSPENDED, "its Job is suspended by somebody");
	if (!queue && c->facts->job_name)
		kube_why_hint(why, "kubectl patch %s %s -p '{\"spec\":{\"suspend\":false}}'",
			c->facts->is_jobset ? "jobset --type merge" : "job", c->facts->job_name);
	return true;
}

/*
 * Pods that are not made
 */

/* "a=1,b=2": the value of key, as far as the next comma. */
static char *value_of(const char *list, const char *key)
{
	AUTO_FREE char *with_equals = mem_printf("%s=", key);
	const char *at = list;

	while (at && (at = strstr(at, with_equals))) {
		if (at == list || at[-1] == ',' || at[-1] == ' ')
			return mem_strndup(
				at + strlen(with_equals), strcspn(at + strlen(with_equals), ", "));
		at++;
	}
	return NULL;
}

/* The usual name of a resource of a quota. */
static const char *resource_words(const char *key)
{
	static const char *const rows[][2] = {
		{"requests.nvidia.com/gpu", "GPUs"},
		{"requests.amd.com/gpu", "GPUs"},
		{"limits.nvidia.com/gpu", "GPUs"},
		{"requests.cpu", "CPUs"},
		{"cpu", "CPUs"},
		{"limits.cpu", "CPUs (limit)"},
		{"requests.memory", "memory"},
		{"memory", "memory"},
		{"limits.memory", "memory (limit)"},
		{"count/jobs.batch", "Jobs"},
		{"requests.ephemeral-storage", "disk"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i][0], key))
			return rows[i][1];
	return key;
}

struct quota {
	char *name, *key, *asked, *used, *limit;
};

static void quota_done(struct quota *quota)
{
	free(quota->name);
	free(quota->key);
	free(quota->asked);
	free(quota->used);
	free(quota->limit);
}

/* As of now, where the quota itself is known: the event may be old. */
static void quota_refresh(const struct kube_case *c, struct quota *quota)
{
	for (size_t i = 0; i < c->facts->quotas.n; i++) {
		const struct json *json = c->facts->quotas.v[i];
		const char *used = json_get_str(kube_at(json, "status.used"), quota->key);

		if (!used || !str_eq(kube_str_at(json, "metadata.name"), quota->name))
			continue;
		free(quota->used);
		quota->used = mem_strdup(used);
		return;
	}
}

/* exceeded quota: NAME, requested: K=V,…, used: K=V,…, limited: K=V,… */
static bool read_quota(const struct kube_case *c, const char *text, struct quota *ret)
{
	AUTO_FREE char *asked = kube_between(text, "requested: ", ", used:");
	AUTO_FREE char *used = kube_between(text, "used: ", ", limited:");
	AUTO_FREE char *limited = kube_between(text, "limited: ", "");

	*ret = (struct quota){0};
	if (!asked || !used || !limited || !strchr(asked, '='))
		return false;
	ret->name = kube_between(text, "exceeded quota: ", ",");
	ret->key = mem_strndup(asked, strcspn(asked, "="));
	ret->asked = value_of(asked, ret->key);
	ret->used = value_of(used, ret->key);
	ret->limit = value_of(limited, ret->key);
	if (!ret->name || !ret->asked || !ret->used || !ret->limit)
		return false;
	quota_refresh(c, ret);
	return true;
}

/* "1500m" of CPUs is 1.5; other quantities are as people write them. */
static char *amount_text(const char *key, const char *amount)
{
	int64_t milli;

	if (!str_ends(key, "cpu") || !kube_quantity(amount, &milli))
		return mem_strdup(amount);
	return mem_printf("%.4g", (double)milli / 1000);
}

static void quota_used_up(const struct quota *quota, const char *ns, struct kube_why *why)
{
	AUTO_FREE char *used = amount_text(quota->key, quota->used);
	AUTO_FREE char *limit = amount_text(quota->key, quota->limit);
	AUTO_FREE char *asked = amount_text(quota->key, quota->asked);

	kube_why_set(why, E_SCHED_QUOTA,
		"quota \"%s\" of namespace %s is used up: %s of %s %s are taken, this needs %s",
		quota->name, ns, used, limit, resource_words(quota->key), asked);
}

static void create_quota(const struct kube_case *c, const char *text, struct kube_why *why)
{
	const char *ns = c->facts->kube_namespace ? c->facts->kube_namespace : "default";
	struct quota quota;
	int64_t asked, limit;

	if (!read_quota(c, text, &quota)) {
		kube_why_set(why, E_SCHED_QUOTA, "a quota of namespace %s does not allow it: %s",
			ns, text);
	} else if (kube_quantity(quota.asked, &asked) && kube_quantity(quota.limit, &limit) &&
		   asked > limit) {
		kube_why_set(why, E_SCHED_IMPOSSIBLE,
			"quota \"%s\" of namespace %s allows %s %s, this needs %s", quota.name, ns,
			quota.limit, resource_words(quota.key), quota.asked);
		why->never_fits = why->needs_help = true;
	} else {
		quota_used_up(&quota, ns, why);
	}
	kube_why_hint(why, "kubectl -n %s describe quota", ns);
	quota_done(&quota);
}

static void create_unlimited(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *what = kube_between(text, "must specify ", "");
	size_t len = what ? strcspn(what, " ;") : 0;

	(void)c;
	kube_why_set(why, E_JOB_DENIED, "a quota of the namespace wants every pod to say its %.*s",
		(int)len, what ? what : "");
	kube_why_evidence(why, "%s", text);
	kube_why_hint(why, "resources: {cpus: 4, memory: 16Gi} in dlrun.yaml");
	why->needs_help = true;
}

static void create_security(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *level = kube_between(text, "violates PodSecurity \"", "\"");
	AUTO_FREE char *rules = kube_between(text, "\": ", "");

	if (level)
		level[strcspn(level, ":")] = '\0';
	kube_why_set(why, E_JOB_DENIED, "namespace %s allows only %s pods (Pod Security)",
		c->facts->kube_namespace ? c->facts->kube_namespace : "default",
		level ? level : "restricted");
	kube_why_evidence(why, "%s", rules ? rules : text);
	kube_why_hint(why, "security: restricted in the target of dlrun.yaml");
	why->needs_help = true;
}

static void create_webhook(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *name = kube_between(text, "webhook \"", "\"");
	AUTO_FREE char *said = kube_between(text, "denied the request: ", "");

	(void)c;
	if (said)
		kube_why_set(why, E_JOB_DENIED, "the admission webhook %s refuses its pods: %s",
			name ? name : "", said);
	else
		kube_why_set(why, E_JOB_DENIED, "the admission webhook %s does not answer: %s",
			name ? name : "", text);
	why->needs_help = said;
}

static void create_account(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *name = kube_between(text, "serviceaccount \"", "\"");

	kube_why_set(why, E_JOB_DENIED, "there is no service account \"%s\" in namespace %s",
		name ? name : "?", c->facts->kube_namespace ? c->facts->kube_namespace : "default");
	kube_why_hint(why, "service_account: null in the target of dlrun.yaml");
	why->needs_help = true;
}

static void create_priority(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *name = kube_between(text, "PriorityClass with name ", " ");

	(void)c;
	kube_why_set(
		why, E_JOB_DENIED, "the cluster has no priority class \"%s\"", name ? name : "?");
	kube_why_hint(why, "kubectl get priorityclasses");
	why->needs_help = true;
}

static void create_policy(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *name = kube_between(text, "ValidatingAdmissionPolicy '", "'");
	AUTO_FREE char *said = kube_between(text, "denied request: ", "");

	(void)c;
	kube_why_set(why, E_JOB_DENIED, "the admission policy %s refuses its pods: %s",
		name ? name : "", said ? said : text);
	why->needs_help = true;
}

static void create_range(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *rule = kube_between(text, "forbidden: ", "");

	kube_why_set(why, E_JOB_DENIED, "a limit range of namespace %s refuses its pods: %s",
		c->facts->kube_namespace ? c->facts->kube_namespace : "default",
		rule ? rule : text);
	why->needs_help = true;
}

static void create_ending(const struct kube_case *c, const char *text, struct kube_why *why)
{
	(void)text;
	kube_why_set(why, E_JOB_DENIED, "namespace %s is being removed",
		c->facts->kube_namespace ? c->facts->kube_namespace : "default");
	why->needs_help = true;
}

static void create_other(const struct kube_case *c, const char *text, struct kube_why *why)
{
	(void)c;
	kube_why_set(why, E_JOB_DENIED, "the cluster does not make its pods: %s", text);
	why->needs_help = true;
}

static void why_refusal(const struct kube_case *c, const char *text, struct kube_why *why)
{
	static const struct {
		const char *word;
		void (*fn)(const struct kube_case *c, const char *text, struct kube_why *why);
	} rows[] = {
		{"exceeded quota", create_quota},
		{"must specify ", create_unlimited},
		{"violates PodSecurity", create_security},
		{"webhook \"", create_webhook},
		{"serviceaccount \"", create_account},
		{"ValidatingAdmissionPolicy '", create_policy},
		{"no PriorityClass with name", create_priority},
		{"is being terminated", create_ending},
		{" usage per ", create_range},
		{" limit to request ratio per ", create_range},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strstr(text, rows[i].word)) {
			rows[i].fn(c, text, why);
			return;
		}
	create_other(c, text, why);
}

bool kube_why_create(const struct kube_case *c, struct kube_why *why)
{
	const char *job = c->facts->job_name;
	const struct kube_event *bad = kube_events_newest(&c->events, "Job", job, "FailedCreate");
	const struct kube_event *good =
		kube_events_newest(&c->events, "Job", job, "SuccessfulCreate");
	static const char prefix[] = "Error creating: ";

	if (!bad || (good && good->last_ms > bad->last_ms))
		return false;
	why->since_ms = bad->first_ms;
	why_refusal(c, bad->message + (str_starts(bad->message, prefix) ? strlen(prefix) : 0), why);
	return true;
}
