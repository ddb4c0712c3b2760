/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/job.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "kube/job/job_impl.h"
#include "kube/job/job_objects.h"

enum {
	NODES_MAX = 1024,
	NOTES_MAX = 200 << 10,
	TTL_MS = 7 * 24 * 3600 * 1000,
	DNS_LABEL_MAX = 63,
	POD_SUFFIX = 6, /* "-x7k2p" */
};

static enum kube_kind kind_of(const struct job *job)
{
	return job->is_jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB;
}

/* Without the end that its pod has. */
static char *host_name(const struct job *job, int rank)
{
	AUTO_FREE char *name = kube_kind_job(kind_of(job), job->run->job);

	return mem_printf("%s-%d", name, rank);
}

char *job_host(const struct job *job, int rank)
{
	AUTO_FREE char *name = host_name(job, rank);

	if (!job->is_gang)
		return mem_strdup("127.0.0.1");
	return mem_printf("%s.%s", name, job->run->job);
}

bool kube_wants_jobset(int nodes, int retries)
{
	return nodes > 1 && retries > 0;
}

/*
 * Checks
 */

static bool is_dns_label(const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > DNS_LABEL_MAX || name[0] == '-' || name[len - 1] == '-')
		return false;
	return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

/* A pod is called <job>-<rank>-<five letters>, and that is its host name. */
static int check_names(const struct job *job, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_FREE char *longest = host_name(job, run->nodes - 1);

	if (!is_dns_label(run->job) || strlen(longest) + POD_SUFFIX > DNS_LABEL_MAX) {
		AUTO_FREE char *shown = str_shown(run->job);
		err_set(err, E_KUBE_NAME,
			"'%s' cannot be the name of a Job: its pods have %zu of "
			"%d letters",
			shown, strlen(longest) + POD_SUFFIX, DNS_LABEL_MAX);
		return err_hint(err, "dlrun submit --name %.20s …", run->job);
	}
	if (is_dns_label(run->kube_namespace))
		return 0;
	AUTO_FREE char *shown = str_shown(run->kube_namespace);
	return err_set(err, E_KUBE_NAME, "'%s' cannot be the name of a namespace", shown);
}

static int check_size(const struct kube_run *run, struct err *err)
{
	size_t notes =
		(run->spec ? strlen(run->spec) : 0) + (run->record ? strlen(run->record) : 0);

	if (notes > NOTES_MAX)
		return err_set(err, E_DATA_LIMIT,
			"the specification of the run has %zu bytes, a Job takes %d", notes,
			NOTES_MAX);
	if (run->nodes > NODES_MAX)
		return err_set(
			err, E_DATA_LIMIT, "%d nodes are more than %d", run->nodes, NODES_MAX);
	return 0;
}

/*
 * Job
 */

static void set_notes(const struct kube_run *run, struct json *metadata)
{
	const struct {
		const char *key, *value;
	} notes[] = {{KUBE_NOTE_COMMIT, run->commit}, {KUBE_NOTE_IMAGE, run->image_ref},
		{KUBE_NOTE_RECORD, run->record}, {KUBE_NOTE_SPEC, run->spec},
		{KUBE_NOTE_USER, run->user}};
	struct json *annotations = json_sub(metadata, "annotations");

	for (size_t i = 0; i < ARRAY_LEN(notes); i++)
		if (notes[i].value)
			json_set_str(annotations, notes[i].key, notes[i].value);
}

static void set_queue(const struct kube_run *run, struct json *object)
{
	struct json *labels = json_sub(json_sub(object, "metadata"), "labels");

	if (!run->queue)
		return;
	json_set_str(labels, "kueue.x-k8s.io/queue-name", run->queue);
	if (run->queue_priority)
		json_set_str(labels, "kueue.x-k8s.io/priority-class", run->queue_priority);
	/* Kueue starts it; without Kueue it is not to start past the queue. */
	json_set_bool(json_sub(object, "spec"), "suspend", true);
}

static struct json *disruption_rule(const char *action)
{
	struct json *rule = json_object(), *conditions = json_array(), *condition = json_object();

	json_set_str(rule, "action", action);
	json_set_str(condition, "type", "DisruptionTarget");
	json_set_str(condition, "status", "True");
	json_add(conditions, condition);
	json_set(rule, "onPodConditions", conditions);
	return rule;
}

/* Do not retry failures that are not the program's own: time limit, setup, no such program. */
static struct json *status_rule(const struct job *job, const char *action)
{
	static const int statuses[] = {125, 126, 127, 128};
	struct json *rule = json_object(), *values = json_array(), *codes;

	json_set_str(rule, "action", action);
	codes = json_sub(rule, "onExitCodes");
	json_set_str(codes, "containerName", KUBE_CONTAINER);
	json_set_str(codes, "operator", "In");
	if (job->keeps_limit)
		json_add_int(values, 124);
	for (size_t i = 0; i < ARRAY_LEN(statuses); i++)
		json_add_int(values, statuses[i]);
	json_set(codes, "values", values);
	return rule;
}

static void set_failures(const struct job *job, struct json *spec)
{
	struct json *rules = json_array();

	if (job->is_gang) {
		json_set_int(spec, "backoffLimit", 0);
		json_add(rules, disruption_rule("FailJob"));
		if (job->is_jobset)
			json_add(rules, status_rule(job, "FailJob"));
	} else {
		json_set_int(spec, "backoffLimitPerIndex", job->run->retries);
		json_add(rules, disruption_rule("Ignore"));
		if (job->run->retries > 0)
			json_add(rules, status_rule(job, "FailIndex"));
	}
	json_set(json_sub(spec, "podFailurePolicy"), "rules", rules);
}

static int64_t ttl_s(const struct kube_run *run)
{
	return (run->ttl_ms > 0 ? run->ttl_ms : TTL_MS) / 1000;
}

/* JobSpec; pod is taken over. */
static void set_job_spec(const struct job *job, struct json *spec, struct json *pod)
{
	json_set_str(spec, "completionMode", "Indexed");
	json_set_int(spec, "completions", job->run->nodes);
	json_set_int(spec, "parallelism", job->run->nodes);
	set_failures(job, spec);
	json_set_str(spec, "podReplacementPolicy", "Failed");
	json_set(spec, "template", pod);
}

static struct json *object(const struct kube_run *run, enum kube_kind kind)
{
	struct json *json = json_object();

	json_set_str(json, "apiVersion", kube_kinds[kind].version);
	json_set_str(json, "kind", kube_kinds[kind].name);
	json_set(json, "metadata", job_metadata(run, run->job));
	set_notes(run, json_sub(json, "metadata"));
	return json;
}

static struct json *make_job(const struct job *job, struct json *pod)
{
	struct json *json = object(job->run, KUBE_KIND_JOB), *spec = json_sub(json, "spec");

	json_set_int(spec, "ttlSecondsAfterFinished", ttl_s(job->run));
	set_job_spec(job, spec, pod);
	set_queue(job->run, json);
	return json;
}

/*
 * JobSet
 */

/* For a Job that its podFailurePolicy has ended. */
static struct json *restart_rule(const char *name, const char *action)
{
	struct json *rule = json_object(), *reasons = json_array();

	json_set_str(rule, "name", name);
	json_set_str(rule, "action", action);
	json_add_str(reasons, "PodFailurePolicy");
	json_set(rule, "onJobFailureReasons", reasons);
	return rule;
}

/* A disruption is not a failure of the program: such a restart is not counted. Which of the rules
 * has ended the Job is told by its message only. */
static void set_restarts(const struct job *job, struct json *spec)
{
	struct json *policy = json_sub(spec, "failurePolicy"), *rules = json_array();
	struct json *by_status = restart_rule("status", "FailJobSet"), *patterns = json_array();

	json_set_int(policy, "maxRestarts", job->run->retries);
	json_add_str(patterns, "failed with exit code");
	json_set(by_status, "onJobFailureMessagePatterns", patterns);
	json_add(rules, by_status);
	json_add(rules, restart_rule("disruption", "RestartJobSetAndIgnoreMaxRestarts"));
	json_set(policy, "rules", rules);
}

static struct json *make_jobset(const struct job *job, struct json *pod)
{
	struct json *json = object(job->run, KUBE_KIND_JOBSET);
	struct json *spec = json_sub(json, "spec"), *gangs = json_array(), *gang = json_object();
	struct json *network = json_sub(spec, "network"), *template;

	json_set_str(json_sub(spec, "successPolicy"), "operator", "All");
	json_set_str(json_sub(spec, "startupPolicy"), "startupPolicyOrder", "AnyOrder");
	json_set_bool(network, "enableDNSHostnames", true);
	json_set_bool(network, "publishNotReadyAddresses", true);
	json_set_str(network, "subdomain", job->run->job);
	json_set_int(spec, "ttlSecondsAfterFinished", ttl_s(job->run));
	set_restarts(job, spec);
	json_set_str(gang, "name", JOB_GANG);
	json_set_int(gang, "replicas", 1);
	template = json_sub(gang, "template");
	job_set_labels(job->run, json_sub(template, "metadata"));
	/* The Job gets the annotations, too, so that one list of Jobs describes all runs. */
	set_notes(job->run, json_sub(template, "metadata"));
	set_job_spec(job, json_sub(template, "spec"), pod);
	json_add(gangs, gang);
	json_set(spec, "replicatedJobs", gangs);
	set_queue(job->run, json);
	return json;
}

/*
 * The whole
 */

static bool is_kept(const struct kube_place *place)
{
	return place->kind != KUBE_PLACE_NONE && place->kind != KUBE_PLACE_EMPTY;
}

static void set_job(struct job *job)
{
	const struct kube_run *run = job->run;
	const char *user = run->image_user;

	job->is_gang = run->nodes > 1;
	job->is_jobset = job->is_gang && run->jobset;
	job->is_restricted =
		run->security == KUBE_SECURITY_RESTRICTED ||
		(run->security == KUBE_SECURITY_AUTO && str_eq(run->enforced, "restricted"));
	job->is_root = !job->is_restricted &&
		       (str_empty(user) || str_eq(user, "root") || str_eq(user, "0") ||
			       str_starts(user, "0:") || str_starts(user, "root:"));
	job->keeps_limit = run->timeout_ms > 0 && !run->has_no_shell;
	job->counts = run->retries > 0 && (!job->is_gang || job->is_jobset);
	job->keeps_results = is_kept(&run->results);
	job->shares_results = job->is_gang && job->keeps_results;
	job_choose_collector(job, !job->keeps_results);
}

static void say_results(const struct job *job)
{
	const struct kube_run *run = job->run;
	char time[32];

	if (run->collects && !job->collects)
		strv_add(job->notes,
			"only what the program writes to $DLRUN_OUTPUT_DIR is a result, because "
			"the image has no shell as far as can be told");
	if (is_kept(&run->results))
		return;
	if (!job->lingers)
		strv_add(job->notes,
			"the target has no results: storage, so results end with the pod: fetch "
			"them while it runs");
	else
		strv_addf(job->notes,
			"the target has no results: storage: if there are results, the pod%s "
			"%s for %s after the program's end until a dlrun here has taken them "
			"(submit -f, logs -f, wait, fetch)",
			run->nodes > 1 ? "s" : "", run->gpus > 0 ? "keeps its GPUs" : "waits",
			duration_text(run->linger_ms, time));
	if (run->retries > 0)
		strv_add(job->notes,
			"a retry starts without the files of the attempt before: without results: "
			"storage they end with its pod");
}

static void say_limits(const struct job *job)
{
	const struct kube_run *run = job->run;

	if (kube_wants_jobset(run->nodes, run->retries) && !job->is_jobset)
		strv_addf(job->notes,
			"nothing in the cluster restarts all %d nodes together: a failure is "
			"repeated only while dlrun follows or waits for it, or by dlrun restart %s",
			run->nodes, run->run_id);
	if (run->timeout_ms > 0 && run->has_no_shell)
		strv_add(job->notes,
			"the time limit begins when the node takes the pod, because the image "
			"has no shell that could keep it");
	if (job->counts && run->has_no_shell)
		strv_addf(job->notes,
			"DLRUN_ATTEMPT stays %d in retries, because the image has no shell that "
			"could count",
			run->attempt);
}

static int make_before(const struct job *job, struct kube_objects *objects, struct err *err)
{
	const struct kube_run *run = job->run;

	if (job->is_gang && !job->is_jobset)
		objects->service = job_service(run);
	if (run->results.kind == KUBE_PLACE_CLAIM)
		objects->claim = job_claim(run);
	if (!run->secret_env || run->secret_env->n == 0)
		return 0;
	return job_secret(run, &objects->secret, err);
}

int kube_job_make(const struct kube_run *run, struct kube_objects *ret, struct err *err)
{
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	struct job job = {.run = run, .notes = &objects.notes};
	struct json *pod = NULL;

	set_job(&job);
	int r = check_names(&job, err);
	if (r == 0)
		r = check_size(run, err);
	if (r == 0)
		r = job_pod(&job, &pod, err);
	if (r < 0)
		return r;
	objects.job = job.is_jobset ? make_jobset(&job, pod) : make_job(&job, pod);
	objects.is_jobset = job.is_jobset;
	say_results(&job);
	say_limits(&job);
	r = make_before(&job, &objects, err);
	if (r < 0)
		return r;
	*ret = objects;
	objects = (struct kube_objects){0};
	return 0;
}
