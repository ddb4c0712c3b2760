/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/status/status.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "kube/status/status_impl.h"

enum { CODE_TIMEOUT = 124, CODE_NONE = 125, CODE_CANCELLED = 143, SLOW_MS = 10 * 1000 };
enum { RESTARTS_MAX = 1000 * 1000 };

const char *kube_phase_name(enum kube_phase phase)
{
	static const char *const names[KUBE_PHASES] = {
		"queued", "starting", "running", "succeeded", "failed", "cancelled", "lost"};

	return names[phase];
}

bool kube_phase_is_final(enum kube_phase phase)
{
	return phase >= KUBE_SUCCEEDED;
}

void kube_status_done(struct kube_status *status)
{
	if (!status)
		return;
	vec_foreach (struct kube_rank, rank, &status->ranks) {
		free(rank->pod);
		free(rank->node);
		free(rank->reported);
		free(rank->versions);
	}
	vec_done(&status->ranks);
	free(status->results_lost);
	free(status->results_unsent);
	free(status->sentence);
	strv_done(&status->evidence);
	free(status->hint);
	*status = (struct kube_status){0};
}

/*
 * Summary
 */

struct sum {
	struct kube_case c;
	const struct json *job; /* as it is, or as it was when it had ended */
	struct kube_pod_list pods;
	struct kube_pod **newest; /* by rank; NULL: no pod */
	struct kube_pod **failed; /* by rank: the newest that failed by itself or by the cluster */
	int n_ranks;
	struct kube_why why;
	struct kube_status *out;
};

static int sum_count_ranks(const struct sum *sum)
{
	int64_t n = kube_ranks_of(sum->job);

	vec_foreach (struct kube_pod, pod, &sum->pods)
		if (pod->rank >= n)
			n = pod->rank + 1;
	return (int)n;
}

static bool sum_is_newer(const struct kube_pod *pod, const struct kube_pod *than)
{
	if (!than || pod->created_ms != than->created_ms)
		return !than || pod->created_ms > than->created_ms;
	if (pod->attempt != than->attempt)
		return pod->attempt > than->attempt;
	return !kube_phase_is_final(pod->phase) && kube_phase_is_final(than->phase);
}

/* Pods that a JobSet has made before its last restart are on their way out. */
static bool sum_is_of_job(const struct sum *sum, const struct json *pod)
{
	const char *now = kube_label(sum->job, KUBE_JOBSET_RESTART);
	const char *then = kube_label(pod, KUBE_JOBSET_RESTART);

	return !now || !then || str_eq(now, then);
}

static void sum_read_pods(struct sum *sum)
{
	const struct kube_items *items = &sum->c.facts->pods;
	size_t n = items->n < KUBE_RANKS_MAX ? items->n : KUBE_RANKS_MAX;

	for (size_t i = 0; i < n; i++)
		if (sum_is_of_job(sum, items->v[i]))
			kube_pod_read(&sum->c, items->v[i], vec_push(&sum->pods));
	sum->n_ranks = sum_count_ranks(sum);
	sum->newest = mem_alloc((size_t)sum->n_ranks, sizeof(struct kube_pod *));
	sum->failed = mem_alloc((size_t)sum->n_ranks, sizeof(struct kube_pod *));
	vec_foreach (struct kube_pod, pod, &sum->pods) {
		int64_t until_ms = kube_pod_lingers(pod->json);
		if (until_ms > sum->out->results_until_ms)
			sum->out->results_until_ms = until_ms;
		if (sum_is_newer(pod, sum->newest[pod->rank]))
			sum->newest[pod->rank] = pod;
		if (pod->phase == KUBE_FAILED && !pod->is_victim &&
			sum_is_newer(pod, sum->failed[pod->rank]))
			sum->failed[pod->rank] = pod;
	}
	vec_foreach (const struct kube_pod, pod, &sum->pods)
		if (pod == sum->newest[pod->rank] && !sum->out->results_unsent)
			sum->out->results_unsent = kube_pod_unsent(pod->json);
	if (!sum->out->results_until_ms)
		sum->out->results_lost = kube_pods_lost(sum->c.facts, sum->job, &sum->pods);
}

/*
 * Ranks
 */

/* Pods that failed before and were replaced, where the Job does not count by index. */
static void sum_count_attempts(struct sum *sum)
{
	vec_foreach (struct kube_pod, pod, &sum->pods)
		if (pod != sum->newest[pod->rank] && pod->phase == KUBE_FAILED && !pod->disrupted)
			sum->out->ranks.v[pod->rank].attempt++;
	for (int i = 0; i < sum->n_ranks; i++) {
		struct kube_rank *rank = &sum->out->ranks.v[i];

		if (sum->newest[i] && sum->newest[i]->attempt > rank->attempt)
			rank->attempt = sum->newest[i]->attempt;
		if (rank->attempt > sum->out->attempt)
			sum->out->attempt = rank->attempt;
	}
}

static void sum_fill_rank(struct sum *sum, int i, struct kube_rank *rank)
{
	const struct kube_pod *pod = sum->newest[i];
	const struct json *status = json_get(sum->job, "status");
	const char *message, *reported;

	*rank = (struct kube_rank){.rank = i, .attempt = 1, .wait = KUBE_WAIT_PODS};
	if (kube_in_indexes(json_get_str(status, "completedIndexes"), i)) {
		rank->phase = KUBE_SUCCEEDED;
		rank->exit =
			(struct kube_exit){.known = true, .origin = "job", .reason = "Completed"};
		rank->wait = KUBE_WAIT_NONE;
	}
	if (!pod)
		return;
	message = json_get_str(kube_at(kube_pod_program(pod->json), "state.terminated"), "message");
	rank->pod = kube_text(pod->name, 253);
	rank->node = pod->node ? kube_text(pod->node, 253) : NULL;
	rank->restarts = pod->restarts;
	rank->started_ms = pod->started_ms;
	rank->ended_ms = pod->ended_ms;
	rank->is_victim = pod->is_victim;
	reported = strstr(message ? message : "", KUBE_JOB_RESULTS);
	rank->reported = reported ? mem_strdup(reported) : NULL;
	rank->versions = kube_pod_versions(pod->json);
	if (rank->phase == KUBE_SUCCEEDED)
		return;
	rank->phase = pod->phase;
	rank->wait = pod->wait;
	rank->exit = pod->exit;
}

static void sum_fill_ranks(struct sum *sum)
{
	struct kube_status *out = sum->out;

	out->n_ranks = sum->n_ranks;
	out->has_roles = kube_annotation(sum->job, KUBE_ANNOTATION_ROLES);
	for (int i = 0; i < sum->n_ranks; i++) {
		struct kube_rank *rank = vec_push(&out->ranks);

		sum_fill_rank(sum, i, rank);
		out->n_running += rank->phase == KUBE_RUNNING;
		if (rank->started_ms && (!out->started_ms || rank->started_ms < out->started_ms))
			out->started_ms = rank->started_ms;
	}
	sum_count_attempts(sum);
}

static int sum_ranks_in(const struct sum *sum, enum kube_phase phase)
{
	int n = 0;

	vec_foreach (struct kube_rank, rank, &sum->out->ranks)
		n += rank->phase == phase;
	return n;
}

/*
 * Ends
 */

/* Times have whole seconds: of two in the same one, that which chose to fail comes first. */
static bool sum_failed_before(const struct kube_pod *a, const struct kube_pod *b)
{
	if (!b || a->failed_ms != b->failed_ms)
		return !b || (a->failed_ms && (!b->failed_ms || a->failed_ms < b->failed_ms));
	return !a->disrupted && !a->exit.signal && (b->disrupted || b->exit.signal);
}

static struct kube_pod *sum_first_failure(const struct sum *sum)
{
	struct kube_pod *first = NULL;

	for (int i = 0; i < sum->n_ranks; i++)
		if (sum->failed[i] && sum->out->ranks.v[i].phase != KUBE_SUCCEEDED &&
			sum_failed_before(sum->failed[i], first))
			first = sum->failed[i];
	return first;
}

/* KILL, or one that asks a program to end: TERM, or what the run has instead (stop_signal). */
static bool sum_is_stop(int signal)
{
	static const int signals[] = {SIGTERM, SIGKILL, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2};

	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		if (signal == signals[i])
			return true;
	return false;
}

/* "rank 3 of 13", of a run with roles "actors.3". The caller frees. */
static char *sum_rank(const struct sum *sum, int rank)
{
	AUTO_FREE char *name = kube_rank_name(sum->job, rank);

	return kube_annotation(sum->job, KUBE_ANNOTATION_ROLES)
		       ? TAKE(name)
		       : mem_printf("%s of %d", name, sum->n_ranks);
}

/* The others: stopped because of it, or failed after it by themselves. */
static void sum_count_victims(struct sum *sum, const struct kube_pod *first)
{
	int after = 0;

	for (int i = 0; i < sum->n_ranks; i++) {
		struct kube_rank *rank = &sum->out->ranks.v[i];

		if (i == first->rank || rank->phase == KUBE_SUCCEEDED)
			continue;
		rank->is_victim = rank->is_victim || rank->phase != KUBE_FAILED ||
				  sum_is_stop(rank->exit.signal) ||
				  !str_eq(rank->exit.origin, "job");
		sum->out->n_victims += rank->is_victim;
		after += !rank->is_victim;
	}
	if (sum->n_ranks < 2)
		return;
	AUTO_FREE char *later = after ? mem_printf("; %d failed after it", after) : mem_strdup("");
	AUTO_FREE char *rank = sum_rank(sum, first->rank);
	const char *shown = str_starts(rank, "rank ") ? rank + strlen("rank ") : rank;
	if (sum->out->n_victims)
		kube_why_evidence(&sum->why,
			"first rank to fail: %s (%d other%s stopped because of it)%s", shown,
			sum->out->n_victims, sum->out->n_victims == 1 ? " was" : "s were", later);
	else
		kube_why_evidence(&sum->why, "first rank to fail: %s%s", shown, later);
}

static void sum_take_why(struct sum *sum, struct kube_why *from)
{
	REPLACE(sum->why.sentence, TAKE(from->sentence));
	sum->why.id = from->id;
	for (size_t i = 0; i < from->evidence.n; i++)
		kube_why_evidence(&sum->why, "%s", from->evidence.v[i]);
	if (from->hint)
		REPLACE(sum->why.hint, TAKE(from->hint));
	sum->why.never_fits = from->never_fits;
	sum->why.needs_help = from->needs_help;
	sum->why.is_stranded = from->is_stranded;
	sum->why.waits_for_code = from->waits_for_code;
}

static void sum_end_with(struct sum *sum, int code, const char *origin, const char *reason)
{
	sum->out->exit =
		(struct kube_exit){.known = true, .code = code, .origin = origin, .reason = reason};
}

static void sum_fail_by_deadline(struct sum *sum)
{
	sum_end_with(sum, CODE_TIMEOUT, "dlrun", "Timeout");
	kube_why_timeout(json_get(sum->job, "spec"), &sum->why);
	if (sum->c.facts->run_id)
		kube_why_hint(&sum->why, "dlrun logs %s", sum->c.facts->run_id);
	vec_foreach (struct kube_rank, rank, &sum->out->ranks)
		rank->is_victim = rank->phase == KUBE_FAILED;
}

static const char *sum_kind_name(const struct sum *sum)
{
	return kube_kinds[sum->c.facts->is_jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB].name;
}

/* The rule of a gang has ended its Job, and a disruption is what it stands for. */
static bool sum_is_by_disruption(const struct json *condition)
{
	const char *message = json_get_str(condition, "message");

	return str_eq(json_get_str(condition, "reason"), "PodFailurePolicy") && message &&
	       strstr(message, "DisruptionTarget");
}

/* A gang ends with its first failure. A pod that has failed stays until its Job is removed, so that
 * one that is not there, or was on its way out before it ended, was deleted by somebody. */
static bool sum_is_by_deletion(const struct sum *sum, const struct json *condition)
{
	const struct json *spec = json_get(sum->job, "spec");

	return sum->n_ranks > 1 && !sum->c.facts->is_jobset && sum->c.facts->pods.known &&
	       !json_get(spec, "backoffLimitPerIndex") &&
	       str_eq(json_get_str(condition, "reason"), "BackoffLimitExceeded");
}

static void sum_fail_by_cluster(struct sum *sum, const char *reason, const char *sentence)
{
	sum_end_with(sum, CODE_NONE, "cluster", reason);
	kube_why_set(&sum->why, E_JOB_EVICTED, "%s", sentence);
	if (sum->c.facts->run_id)
		kube_why_hint(&sum->why, "dlrun restart %s", sum->c.facts->run_id);
}

static void sum_fail_unexplained(struct sum *sum, const char *said)
{
	bool hidden = sum->c.facts->job && !sum->c.facts->pods.known;

	sum_end_with(sum, CODE_NONE, "cluster", "Error");
	kube_why_set(&sum->why, E_JOB_FAILED, "its %s failed, and %s: %s", sum_kind_name(sum),
		hidden ? "how is not known, as its pods may not be listed" : "its pods are gone",
		said);
	if (hidden)
		kube_why_hint(&sum->why, "dlrun init --rbac   # prints the Role to ask for");
}

/* No pod tells how: what the Job itself says. */
static void sum_fail_by_message(struct sum *sum, const struct json *condition)
{
	const char *message = json_get_str(condition, "message");
	const char *reason = json_get_str(condition, "reason");
	AUTO_FREE char *code = kube_between(message, "failed with exit code ", " ");
	int64_t number = kube_number(code, 0);

	if (number > 0 && number < 256) {
		sum->out->exit = (struct kube_exit){.known = true,
			.code = (int)number,
			.signal = number > 128 && number <= 192 ? (int)number - 128 : 0,
			.origin = "job",
			.reason = number > 128 && number <= 192 ? "Signal" : "Error"};
		kube_why_set(&sum->why, E_RUN_FAILED, "the program exited with %d", (int)number);
	} else if (sum_is_by_disruption(condition)) {
		sum_fail_by_cluster(
			sum, "Evicted", "one of its pods was taken off its node, and is gone");
		kube_why_evidence(&sum->why, "%s", message);
	} else if (sum_is_by_deletion(sum, condition)) {
		sum_fail_by_cluster(sum, "Deleted", "somebody deleted one of its pods");
	} else {
		sum_fail_unexplained(sum, !str_empty(message) ? message
					  : reason            ? reason
							      : "the cluster does not say why");
	}
}

static void sum_hint_rank(struct sum *sum, int rank)
{
	AUTO_FREE char *name = kube_rank_name(sum->job, rank);
	const char *run = sum->c.facts->run_id, *dot = strrchr(name, '.');

	if (dot)
		kube_why_hint(&sum->why, "dlrun logs %s --role %.*s --rank %s", run,
			(int)(dot - name), name, dot + 1);
	else
		kube_why_hint(&sum->why, "dlrun logs %s --rank %d", run, rank);
}

static void sum_fail(struct sum *sum, const struct json *condition)
{
	struct kube_pod *first = sum_first_failure(sum);
	const char *run = sum->c.facts->run_id;
	bool is_disrupted = false;

	sum->out->phase = KUBE_FAILED;
	if (str_eq(json_get_str(condition, "reason"), "DeadlineExceeded")) {
		sum_fail_by_deadline(sum);
		return;
	}
	vec_foreach (struct kube_pod, pod, &sum->pods)
		is_disrupted = is_disrupted || pod->disrupted;
	/* If the disrupted pod is gone, failures of the others came after it. */
	if (!first || (sum_is_by_disruption(condition) && !is_disrupted)) {
		sum_fail_by_message(sum, condition);
		return;
	}
	sum->out->exit = first->exit;
	sum->out->first_failed = first->rank;
	sum_count_victims(sum, first);
	sum_take_why(sum, &first->why);
	if (sum->why.hint || !run)
		return;
	if (str_eq(first->exit.origin, "cluster"))
		kube_why_hint(&sum->why, "dlrun restart %s", run);
	else if (sum->n_ranks > 1)
		sum_hint_rank(sum, first->rank);
	else
		kube_why_hint(&sum->why, "dlrun logs %s", run);
}

static void sum_succeed(struct sum *sum)
{
	sum->out->phase = KUBE_SUCCEEDED;
	sum_end_with(sum, 0, "job", "Completed");
	for (int i = 0; i < sum->n_ranks; i++)
		if (sum->newest[i] && sum->newest[i]->phase == KUBE_SUCCEEDED &&
			sum->newest[i]->why.sentence) {
			sum_take_why(sum, &sum->newest[i]->why);
			return;
		}
}

static void sum_lose(struct sum *sum)
{
	const struct kube_facts *facts = sum->c.facts;
	const char *last = sum->out->n_running         ? " while it ran"
			   : sum->out->started_ms      ? ""
			   : facts->pods.n || sum->job ? " before it began"
						       : "";

	sum->out->phase = KUBE_LOST;
	sum_end_with(sum, CODE_NONE, "cluster", "Lost");
	kube_why_set(&sum->why, E_RUN_LOST, "its %s %s was removed from namespace %s%s",
		sum_kind_name(sum), facts->job_name ? facts->job_name : "",
		facts->kube_namespace ? facts->kube_namespace : "default", last);
	if (facts->run_id)
		kube_why_hint(&sum->why, "dlrun restart %s", facts->run_id);
}

/* The reason why the study of a member was stopped; NULL: it was not. */
static const char *sum_study_stopped(const struct sum *sum)
{
	const struct json *condition = kube_condition(sum->job, "Failed");
	const char *reason;

	if (!condition)
		condition = kube_condition(sum->job, "FailureTarget");
	reason = json_get_str(condition, "reason");
	return str_eq(reason, KUBE_STOPPED) || str_eq(reason, KUBE_FAILED_FAST) ? reason : NULL;
}

/* Of a member of a study: the last pod has found that it was cancelled, or is gone, and the Job
 * tells. */
static bool sum_never_began(const struct sum *sum)
{
	const struct kube_pod *pod = sum->newest[0];
	const struct json *ended =
		pod ? kube_at(kube_pod_program(pod->json), "state.terminated") : NULL;
	const char *message = json_get_str(ended, "message");

	if (!sum->c.facts->is_member)
		return false;
	return pod ? message && str_starts(message, KUBE_JOB_CANCELLED)
		   : kube_annotation(sum->job, KUBE_ANNOTATION_CANCELLED) != NULL;
}

/* Asked to end, and what ended it may be that. */
static bool sum_ended_by_cancel(const struct sum *sum)
{
	const struct kube_pod *first = sum_first_failure(sum);

	if (sum_never_began(sum))
		return true;
	if (!sum->c.facts->was_cancelled && !sum_study_stopped(sum))
		return false;
	return !first || first->disrupted || sum_is_stop(first->exit.signal);
}

static bool sum_any_alive(const struct sum *sum)
{
	vec_foreach (struct kube_pod, pod, &sum->pods)
		if (!kube_phase_is_final(pod->phase) && pod->node)
			return true;
	return false;
}

/* A JobSet makes its Jobs anew until its own limit of restarts. */
static bool sum_begins_again(const struct sum *sum)
{
	const struct json *jobset = sum->c.facts->jobset;

	return jobset && !kube_deleted_ms(jobset) && !kube_condition_is(jobset, "Failed", "True") &&
	       !kube_condition_is(jobset, "Completed", "True");
}

/* The Job had failed, and would have begun again but for the cancel. */
static bool sum_ends_restarts(const struct sum *sum)
{
	const struct json *jobset = sum->c.facts->jobset;

	return sum->c.facts->was_cancelled && jobset &&
	       !kube_condition_is(jobset, "Failed", "True");
}

static bool sum_has_restarts_left(const struct sum *sum)
{
	const struct json *jobset = sum->c.facts->jobset, *status = json_get(jobset, "status");
	int64_t restarts = json_get_int(status, "restarts", 0);

	return json_get_int(status, "restartsCountTowardsMax", restarts) <
	       json_get_int(kube_at(jobset, "spec.failurePolicy"), "maxRestarts", 0);
}

static enum kube_phase sum_end_without_job(const struct sum *sum, const struct json **ret_failed)
{
	const struct json *jobset = sum->c.facts->jobset;

	if (kube_condition_is(jobset, "Completed", "True"))
		return KUBE_SUCCEEDED;
	*ret_failed = kube_condition_true(jobset, "Failed");
	if (*ret_failed)
		return KUBE_FAILED;
	if (sum->pods.n && sum_ranks_in(sum, KUBE_SUCCEEDED) == sum->n_ranks)
		return KUBE_SUCCEEDED;
	return sum->c.facts->was_cancelled ? KUBE_CANCELLED : KUBE_LOST;
}

/* The end of a Job without a condition yet. Whether a JobSet begins again is shown by conditions
 * only; it does not once all that counts has succeeded, of which the results may wait. */
static enum kube_outlook sum_outlook(const struct sum *sum)
{
	const struct kube_facts *facts = sum->c.facts;

	if (!facts->is_jobset && !sum->out->has_roles)
		return kube_job_outlook(facts->job, &facts->pods);
	return facts->pods.known && kube_gang_has_succeeded(facts->job, &facts->pods)
		       ? KUBE_OUTLOOK_SUCCEEDS
		       : KUBE_OUTLOOK_OPEN;
}

static enum kube_phase sum_end_of_pods(const struct sum *sum)
{
	const struct kube_facts *facts = sum->c.facts;
	enum kube_outlook outlook = sum_outlook(sum);

	if (outlook == KUBE_OUTLOOK_FAILS)
		return sum_ended_by_cancel(sum) ? KUBE_CANCELLED : KUBE_FAILED;
	if (outlook == KUBE_OUTLOOK_OPEN && facts->was_cancelled && facts->is_stopped &&
		!sum_any_alive(sum))
		return KUBE_CANCELLED;
	return outlook == KUBE_OUTLOOK_SUCCEEDS ? KUBE_SUCCEEDED : KUBE_QUEUED;
}

/* Conditions of the Job decide; FailureTarget and SuccessCriteriaMet precede Failed and Complete
 * while pods still end. QUEUED: it has not ended. */
static enum kube_phase sum_end_of(const struct sum *sum, const struct json **ret_failed)
{
	bool alive = sum_any_alive(sum);

	*ret_failed = kube_condition_true(sum->job, "Failed");
	if (kube_condition_true(sum->job, "Complete"))
		return KUBE_SUCCEEDED;
	if (!*ret_failed && !alive) {
		if (kube_condition_true(sum->job, "SuccessCriteriaMet"))
			return KUBE_SUCCEEDED;
		*ret_failed = kube_condition_true(sum->job, "FailureTarget");
	}
	if ((*ret_failed || !sum->c.facts->job) && sum_begins_again(sum))
		return KUBE_QUEUED;
	if (*ret_failed)
		return sum_ended_by_cancel(sum) || sum_ends_restarts(sum) ? KUBE_CANCELLED
									  : KUBE_FAILED;
	if (!sum->c.facts->job)
		return sum_end_without_job(sum, ret_failed);
	if (sum->c.facts->was_cancelled && !alive && kube_deleted_ms(sum->job))
		return KUBE_CANCELLED;
	return sum_end_of_pods(sum);
}

/* true: it has ended. */
static bool sum_end(struct sum *sum)
{
	const struct json *failed;
	enum kube_phase end = sum_end_of(sum, &failed);

	if (end == KUBE_SUCCEEDED && sum_never_began(sum))
		end = KUBE_CANCELLED;
	if (end == KUBE_SUCCEEDED)
		sum_succeed(sum);
	else if (end == KUBE_FAILED)
		sum_fail(sum, failed);
	else if (end == KUBE_LOST)
		sum_lose(sum);
	if (end == KUBE_CANCELLED) {
		sum->out->phase = KUBE_CANCELLED;
		sum_end_with(sum, CODE_CANCELLED, "dlrun", "Cancelled");
		bool is_by_other = !sum->c.facts->was_cancelled &&
				   str_eq(sum_study_stopped(sum), KUBE_FAILED_FAST);
		kube_why_set(&sum->why, E_NONE, "%s",
			is_by_other ? "another member of its study failed (--fail-fast)"
				    : "it was cancelled");
	}
	return kube_phase_is_final(end);
}

/* The run has ended by the end of another role (ends_with). */
static void sum_end_role(struct kube_rank *rank)
{
	rank->phase = KUBE_CANCELLED;
	rank->exit = (struct kube_exit){
		.known = true, .code = CODE_CANCELLED, .origin = "dlrun", .reason = "RoleEnded"};
}

/* Ranks whose pods are gone have ended with their run. */
static void sum_settle_ranks(struct sum *sum)
{
	vec_foreach (struct kube_rank, rank, &sum->out->ranks) {
		rank->wait = KUBE_WAIT_NONE;
		if (kube_phase_is_final(rank->phase))
			continue;
		rank->phase = sum->out->phase;
		rank->is_victim = rank->phase == KUBE_FAILED;
		if (rank->phase == KUBE_SUCCEEDED && sum->out->has_roles)
			sum_end_role(rank);
	}
	sum->out->n_running = 0;
}

static void sum_end_time(struct sum *sum)
{
	struct kube_status *out = sum->out;
	static const char *const types[] = {"Complete", "Failed", "FailureTarget"};

	vec_foreach (struct kube_rank, rank, &out->ranks)
		if (rank->ended_ms > out->ended_ms)
			out->ended_ms = rank->ended_ms;
	if (!out->ended_ms)
		out->ended_ms = kube_time_at(sum->job, "status.completionTime");
	for (size_t i = 0; !out->ended_ms && i < ARRAY_LEN(types); i++)
		out->ended_ms =
			kube_time_at(kube_condition_true(sum->job, types[i]), "lastTransitionTime");
	if (!out->ended_ms)
		out->ended_ms = sum->c.facts->now_ms;
	if (out->ended_ms < out->started_ms)
		out->ended_ms = out->started_ms;
}

/*
 * On the way
 */

static int sum_weight(const struct kube_why *why)
{
	return why->never_fits ? 4 : why->needs_help ? 3 : why->id ? 2 : why->sentence ? 1 : 0;
}

/* The rank that has most to say, and how many say the same; NULL: nothing is said. */
static struct kube_pod *sum_loudest(const struct sum *sum, int *ret_same)
{
	struct kube_pod *best = NULL;

	for (int i = 0; i < sum->n_ranks; i++) {
		struct kube_pod *pod = sum->newest[i];

		if (pod && !kube_phase_is_final(pod->phase) &&
			(!best || sum_weight(&pod->why) > sum_weight(&best->why)))
			best = pod;
	}
	*ret_same = 0;
	for (int i = 0; best && i < sum->n_ranks; i++)
		*ret_same += sum->newest[i] && sum->newest[i]->phase == best->phase &&
			     sum->newest[i]->wait == best->wait &&
			     sum->newest[i]->why.id == best->why.id;
	return best;
}

/* Put in front of the sentence whom it is about. */
static void sum_add_who(struct sum *sum, int rank, int n)
{
	AUTO_FREE char *sentence = TAKE(sum->why.sentence), *shown = sum_rank(sum, rank);

	if (n > 1)
		kube_why_set(&sum->why, sum->why.id, "%d of %d ranks wait: %s", n, sum->n_ranks,
			sentence);
	else
		kube_why_set(&sum->why, sum->why.id, "%s: %s", shown, sentence);
}

static bool sum_ignores_disruptions(const struct sum *sum)
{
	const struct json *m = kube_first(sum->job, "spec.podFailurePolicy.rules");

	for (; m; m = json_next(m))
		if (str_eq(json_get_str(m, "action"), "Ignore") && json_get(m, "onPodConditions"))
			return true;
	return false;
}

/* The cluster's reaction to a failure. */
static const char *sum_reaction(struct sum *sum, const struct kube_pod *failed)
{
	if (sum_begins_again(sum)) {
		sum->out->wait = KUBE_WAIT_AGAIN;
		return sum_has_restarts_left(sum) ? "all begin again"
						  : "the cluster decides whether all begin again";
	}
	if (kube_condition_true(sum->job, "FailureTarget") ||
		kube_condition_true(sum->job, "Failed"))
		return "the others are being stopped";
	sum->out->wait = KUBE_WAIT_AGAIN;
	if (failed->disrupted && sum_ignores_disruptions(sum))
		return "it begins again on a node that is free";
	return "the cluster decides whether it is tried again";
}

static void sum_set_failure(struct sum *sum, struct kube_pod *failed)
{
	const char *reaction = sum_reaction(sum, failed);
	AUTO_FREE char *sentence = NULL, *rank = sum_rank(sum, failed->rank);

	sum_take_why(sum, &failed->why);
	sentence = TAKE(sum->why.sentence);
	sum->out->first_failed = failed->rank;
	if (sum->n_ranks > 1)
		kube_why_set(&sum->why, sum->why.id, "%s failed: %s; %s", rank,
			sentence ? sentence : "", reaction);
	else
		kube_why_set(&sum->why, sum->why.id, "%s; %s", sentence ? sentence : "", reaction);
}

static void wait_for_pods(struct sum *sum)
{
	int64_t created = kube_time_at(sum->job, "metadata.creationTimestamp");

	if (kube_why_queue(&sum->c, &sum->why)) {
		sum->out->wait = KUBE_WAIT_QUEUE;
		return;
	}
	sum->out->wait = KUBE_WAIT_PODS;
	if (kube_why_create(&sum->c, &sum->why))
		return;
	int64_t active = json_get_int(json_get(sum->job, "status"), "active", 0);
	if (sum->c.facts->is_member && active > 0) {
		kube_why_set(&sum->why, E_NONE, "%lld others of its study run before it",
			(long long)active);
		return;
	}
	if (created && sum->c.facts->now_ms - created > SLOW_MS)
		kube_why_set(&sum->why, E_NONE, "the cluster has not made its pods yet");
}

/* Take the counts of the Job if its pods are not known; false: it says nothing of them. */
static bool sum_counts(struct sum *sum)
{
	const struct json *status = json_get(sum->job, "status");
	int64_t ready = json_get_int(status, "ready", 0);

	if (sum->c.facts->pods.known || sum->c.facts->is_member || !sum->c.facts->job ||
		json_get_int(status, "active", 0) <= 0)
		return false;
	sum->out->phase = ready > 0 ? KUBE_RUNNING : KUBE_STARTING;
	sum->out->n_running = ready < sum->n_ranks ? (int)ready : sum->n_ranks;
	vec_foreach (struct kube_rank, rank, &sum->out->ranks) {
		if (sum->out->n_running == sum->n_ranks)
			rank->phase = KUBE_RUNNING;
		rank->wait = KUBE_WAIT_NONE;
	}
	if (!ready)
		kube_why_set(&sum->why, E_NONE,
			"its pods are there; what they do is not known, as they may not be listed");
	return true;
}

static int sum_missing_pods(const struct sum *sum, int *ret_rank)
{
	int n = 0;

	for (int i = sum->n_ranks; i-- > 0;) {
		if (sum->newest[i] || sum->out->ranks.v[i].phase != KUBE_QUEUED)
			continue;
		*ret_rank = i;
		n++;
	}
	return n;
}

static void sum_phase(struct sum *sum)
{
	int done = sum_ranks_in(sum, KUBE_SUCCEEDED), starting = sum_ranks_in(sum, KUBE_STARTING);

	if (sum->out->n_running || (done && done == sum->n_ranks))
		sum->out->phase = KUBE_RUNNING;
	else if (starting || done || sum_ranks_in(sum, KUBE_FAILED))
		sum->out->phase = KUBE_STARTING;
	else
		sum->out->phase = KUBE_QUEUED;
}

static void sum_wait(struct sum *sum)
{
	struct kube_pod *first = sum_first_failure(sum), *pod;
	int same, rank = 0, missing = sum_missing_pods(sum, &rank);

	if (sum_counts(sum))
		return;
	sum_phase(sum);
	if (missing == sum->n_ranks) {
		wait_for_pods(sum);
		return;
	}
	if (first && sum->newest[first->rank] == first) {
		sum_set_failure(sum, first);
		return;
	}
	if (missing && kube_why_create(&sum->c, &sum->why)) {
		sum->out->wait = KUBE_WAIT_PODS;
		sum_add_who(sum, rank, missing);
		return;
	}
	pod = sum_loudest(sum, &same);
	if (!pod)
		return;
	if (sum->out->phase != KUBE_RUNNING || pod->phase != KUBE_RUNNING)
		sum->out->wait = pod->wait;
	sum_take_why(sum, &pod->why);
	if (sum->why.sentence && sum->n_ranks > 1 && same < sum->n_ranks)
		sum_add_who(sum, pod->rank, same);
}

/* Report that the run is being removed, and has not ended yet. */
static void sum_set_removed(struct sum *sum)
{
	const struct kube_facts *facts = sum->c.facts;
	/* A JobSet removes its Job when all begin again. */
	bool is_removed = kube_deleted_ms(facts->is_jobset ? facts->jobset : sum->job);

	sum->out->cancelling =
		is_removed || facts->was_cancelled ||
		(!facts->is_jobset && kube_condition_true(sum->job, "FailureTarget"));
	if (is_removed && !facts->was_cancelled)
		kube_why_set(&sum->why, E_RUN_LOST, "its %s %s is being removed by somebody",
			sum_kind_name(sum), sum->c.facts->job_name ? sum->c.facts->job_name : "");
}

/*
 * All of it
 */

static void sum_hand_out(struct sum *sum)
{
	struct kube_status *out = sum->out;
	const char *again = kube_label(sum->job, KUBE_JOBSET_RESTART);
	int64_t restarts = kube_number(again, 0);

	if (restarts < RESTARTS_MAX) {
		out->attempt += (int)restarts;
		vec_foreach (struct kube_rank, rank, &out->ranks)
			rank->attempt += (int)restarts;
	}
	out->id = sum->why.id;
	out->sentence = TAKE(sum->why.sentence);
	out->evidence = sum->why.evidence;
	sum->why.evidence = (struct strv){0};
	out->hint = TAKE(sum->why.hint);
	out->never_fits = sum->why.never_fits;
	out->needs_help = sum->why.needs_help;
	out->is_stranded = sum->why.is_stranded;
	out->waits_for_code = sum->why.waits_for_code;
}

static void sum_done(struct sum *sum)
{
	vec_foreach (struct kube_pod, pod, &sum->pods)
		kube_why_done(&pod->why);
	vec_done(&sum->pods);
	free(sum->newest);
	free(sum->failed);
	kube_why_done(&sum->why);
	kube_event_list_done(&sum->c.events);
	kube_fits_free(sum->c.fits);
}

/* The next one will be as the JobSet says. */
static const struct json *sum_job_of(const struct kube_facts *facts)
{
	if (facts->job)
		return facts->job;
	if (facts->last_seen)
		return facts->last_seen;
	return kube_kind_template(KUBE_KIND_JOBSET, facts->jobset);
}

void kube_status_of(const struct kube_facts *facts, struct kube_status *ret)
{
	struct sum sum = {.c = {.facts = facts}, .job = sum_job_of(facts), .out = ret};

	*ret = (struct kube_status){.first_failed = -1, .attempt = 1};
	kube_events_collect(&facts->events, &sum.c.events);
	sum_read_pods(&sum);
	sum_fill_ranks(&sum);
	if (sum_end(&sum)) {
		sum_end_time(&sum);
		sum_settle_ranks(&sum);
	} else {
		sum_wait(&sum);
		sum_set_removed(&sum);
	}
	sum_hand_out(&sum);
	sum_done(&sum);
}
