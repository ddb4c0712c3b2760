/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/preflight.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client.h"
#include "kube/api/kinds.h"
#include "kube/job/review.h"
#include "kube/job/rights.h"
#include "kube/status/status_impl.h"

enum subject {
	RIGHTS,
	WHO,
	NAMESPACE,
	JOBSET,
	KUEUE,
	QUEUE,
	CLAIM,
	PULL_SECRET,
	ACCOUNT,
	PRIORITY,
	QUOTAS,
	NODES,
	SUBJECTS,
};

/*
 * Questions
 */

static struct kube_question *add(
	struct kube_questions *list, enum subject subject, const char *name, char *path)
{
	struct kube_question *question = vec_push(list);

	*question = (struct kube_question){
		.path = path, .subject = (int)subject, .name = mem_strdup(name ? name : "")};
	return question;
}

/* The name by which the cluster knows us, and what we may do. */
static void add_reviews(const struct kube_run *run, struct kube_questions *list)
{
	add(list, WHO, "", mem_strdup(KUBE_WHO_PATH))->body = kube_who_ask();
	add(list, RIGHTS, "", mem_strdup(KUBE_RULES_PATH))->body =
		kube_rules_ask(run->kube_namespace);
}

static void add_claim(const struct kube_run *run, struct kube_questions *list, const char *name)
{
	vec_foreach (const struct kube_question, question, list) {
		if (question->subject == CLAIM && str_eq(question->name, name))
			return;
	}
	add(list, CLAIM, name,
		kube_path("/api/v1/namespaces/%s/persistentvolumeclaims/%s", run->kube_namespace,
			name));
}

static void add_places(const struct kube_run *run, struct kube_questions *list)
{
	if (run->results.kind == KUBE_PLACE_PVC)
		add_claim(run, list, run->results.name);
	for (size_t i = 0; i < run->n_data; i++)
		if (run->data[i].place.kind == KUBE_PLACE_PVC)
			add_claim(run, list, run->data[i].place.name);
	for (size_t i = 0; i < run->n_volumes; i++)
		if (run->volumes[i].place.kind == KUBE_PLACE_PVC)
			add_claim(run, list, run->volumes[i].place.name);
}

/* Whether it is installed, knows all that is asked of it, and may be made here: by one that is as
 * that of the run in all that is JobSet's own. */
void kube_preflight_ask_jobset(const struct kube_run *run, struct kube_questions *ret)
{
	static char *words[] = {(char *)"true"};
	static const struct strv command = {.v = words, .n = ARRAY_LEN(words)}, none;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	struct kube_question *question;
	const struct kube_run small = {
		.run_id = run->run_id,
		.job = run->job,
		.attempt = 1,
		.kube_namespace = run->kube_namespace,
		.workdir = "/",
		.cwd = ".",
		.command = &command,
		.env = &none,
		.nodes = run->nodes,
		.retries = run->retries,
		.jobset = true,
	};

	/* Invalid names are reported elsewhere. */
	if (!kube_wants_jobset(run->nodes, run->retries) ||
		kube_job_make(&small, &objects, NULL) < 0)
		return;
	question = add(ret, JOBSET, "JobSet", kube_object_collection(objects.job));
	question->body = TAKE(objects.job);
	question->is_dry_run = true;
}

static void add_names(const struct kube_run *run, struct kube_questions *list)
{
	const char *space = run->kube_namespace;

	if (run->pull_secret)
		add(list, PULL_SECRET, run->pull_secret,
			kube_path("/api/v1/namespaces/%s/secrets/%s", space, run->pull_secret));
	if (run->service_account)
		add(list, ACCOUNT, run->service_account,
			kube_path("/api/v1/namespaces/%s/serviceaccounts/%s", space,
				run->service_account));
	if (run->priority_class)
		add(list, PRIORITY, run->priority_class,
			kube_path("/apis/scheduling.k8s.io/v1/priorityclasses/%s",
				run->priority_class));
	if (!run->queue)
		return;
	add(list, KUEUE, "Kueue", mem_strdup("/apis/kueue.x-k8s.io"));
	add(list, QUEUE, run->queue,
		kube_path("/apis/kueue.x-k8s.io/v1beta1/namespaces/%s/localqueues/%s", space,
			run->queue));
}

void kube_preflight_ask(const struct kube_run *run, struct kube_questions *ret)
{
	const char *space = run->kube_namespace;

	add_reviews(run, ret);
	add(ret, NAMESPACE, space, kube_path("/api/v1/namespaces/%s", space));
	kube_preflight_ask_jobset(run, ret);
	add_places(run, ret);
	add_names(run, ret);
	add(ret, QUOTAS, space, kube_path("/api/v1/namespaces/%s/resourcequotas", space))->is_list =
		true;
	add(ret, NODES, "", mem_strdup("/api/v1/nodes"))->is_list = true;
}

void kube_preflight_ask_rights(const struct kube_run *run, const struct kube_question *answered,
	const struct kube_reply *reply, struct kube_questions *ret)
{
	bool is_good = reply->status / 100 == 2;

	if (answered->subject == RIGHTS && reply->status != 0 && reply->status != 401)
		kube_rights_ask(run, is_good ? reply->object : NULL, ret);
}

void kube_questions_done(struct kube_questions *questions)
{
	if (!questions)
		return;
	vec_foreach (struct kube_question, question, questions) {
		free(question->path);
		json_free(question->body);
		free(question->name);
	}
	vec_done(questions);
}

static bool takes_jobset(const struct kube_questions *questions, const struct kube_reply *replies)
{
	for (size_t i = 0; i < questions->n; i++)
		if (questions->v[i].subject == JOBSET && replies[i].status == 201)
			return true;
	return false;
}

void kube_preflight_surroundings(const struct kube_questions *questions,
	const struct kube_reply *replies, struct kube_surroundings *ret)
{
	*ret = (struct kube_surroundings){0};
	for (size_t i = 0; i < questions->n; i++) {
		if (replies[i].status == 201 && questions->v[i].subject == WHO)
			ret->user = kube_who_name(replies[i].object);
		if (replies[i].status != 200)
			continue;
		if (questions->v[i].subject != NAMESPACE)
			continue;
		ret->enforced = kube_label(replies[i].object, "pod-security.kubernetes.io/enforce");
		if (!ret->enforced)
			ret->enforced = "privileged";
	}
	ret->jobset =
		takes_jobset(questions, replies) && !kube_rights_lack_jobset(questions, replies);
}

/*
 * Answers
 */

struct judge {
	const struct kube_run *run;
	const struct kube_objects *objects;
	const struct kube_question *question;
	const struct kube_reply *reply;
	struct kube_findings *ret;
	bool no_kueue;
};

static struct err *problem(struct judge *judge)
{
	return vec_push(&judge->ret->problems);
}

static void missing(struct judge *judge, const char *kind, const char *hint)
{
	struct err *err = problem(judge);
	AUTO_FREE char *name = str_shown(judge->question->name);

	err_set(err, E_KUBE_NOT_FOUND, "namespace %s has no %s '%s'", judge->run->kube_namespace,
		kind, name);
	err_hint(err, "kubectl get %s -n %s", hint, judge->run->kube_namespace);
}

/* Then it is a Job, and the notes of kube_job_make say what that means. */
static void judge_jobset(struct judge *judge)
{
	const char *space = judge->run->kube_namespace;

	if (judge->reply->status == 403)
		strv_addf(&judge->ret->notes,
			"whether JobSet would restart all nodes together is not known: you may not "
			"create jobsets in namespace %s (dlrun init --rbac prints the Role)",
			space);
	else if (judge->reply->status == 400 || judge->reply->status == 422)
		strv_addf(&judge->ret->notes,
			"the cluster has JobSet, but one that does not take this run: it may be "
			"older than 0.10");
}

static void judge_namespace(struct judge *judge)
{
	const char *name = judge->run->kube_namespace;

	if (judge->reply->status == 404) {
		struct err *err = problem(judge);
		err_set(err, E_KUBE_NOT_FOUND, "the cluster has no namespace %s", name);
		err_hint(err, "kubectl get namespaces");
	} else if (str_eq(kube_str_at(judge->reply->object, "status.phase"), "Terminating")) {
		err_set(problem(judge), E_KUBE_NOT_FOUND, "namespace %s is being deleted", name);
	}
}

static void judge_claim(struct judge *judge)
{
	const struct json *claim = judge->reply->object;
	const char *name = judge->question->name;
	const struct json *modes = json_get(json_get(claim, "spec"), "accessModes");
	const char *mode = modes ? json_str(json_first(modes)) : NULL;

	if (judge->reply->status == 404) {
		missing(judge, "claim", "persistentvolumeclaims");
		return;
	}
	if (judge->reply->status != 200)
		return;
	if (str_eq(kube_str_at(claim, "status.phase"), "Lost"))
		err_set(problem(judge), E_KUBE_STORAGE, "claim %s has lost its volume", name);
	if (kube_str_at(claim, "metadata.deletionTimestamp"))
		err_set(problem(judge), E_KUBE_STORAGE, "claim %s is being deleted", name);
	if (judge->run->nodes > 1 && json_count(modes) == 1 && mode &&
		str_starts(mode, "ReadWriteOnce"))
		strv_addf(&judge->ret->notes,
			"claim %s is for one node at a time (%s): all %d must fit on one", name,
			mode, judge->run->nodes);
}

static void judge_pull_secret(struct judge *judge)
{
	const char *type = json_get_str(judge->reply->object, "type");

	if (judge->reply->status == 404)
		missing(judge, "Secret", "secrets");
	else if (judge->reply->status == 200 && type && !strstr(type, "docker"))
		strv_addf(&judge->ret->notes,
			"Secret %s is of type %s, nodes log in with kubernetes.io/dockerconfigjson",
			judge->question->name, type);
}

static void judge_account(struct judge *judge)
{
	if (judge->reply->status == 404)
		missing(judge, "service account", "serviceaccounts");
}

static void judge_priority(struct judge *judge)
{
	struct err *err;

	if (judge->reply->status != 404)
		return;
	AUTO_FREE char *name = str_shown(judge->question->name);
	err = problem(judge);
	err_set(err, E_KUBE_NOT_FOUND, "the cluster has no priority class '%s'", name);
	err_hint(err, "kubectl get priorityclasses");
}

static void judge_kueue(struct judge *judge)
{
	struct err *err;

	if (judge->reply->status != 404)
		return;
	judge->no_kueue = true;
	err = problem(judge);
	err_set(err, E_KUBE_NOT_FOUND, "queue %s: the cluster has no Kueue", judge->run->queue);
	err_hint(err, "dlrun submit --queue '' …");
}

/* A version that is not served gives a 404 without Status. */
static void judge_queue(struct judge *judge)
{
	const struct json *active = kube_condition(judge->reply->object, "Active");

	if (judge->reply->status == 404 && !judge->no_kueue &&
		str_eq(json_get_str(judge->reply->object, "reason"), "NotFound")) {
		missing(judge, "queue", "localqueues");
	} else if (judge->reply->status == 200 && active &&
		   str_eq(json_get_str(active, "status"), "False")) {
		const char *why = json_get_str(active, "message");
		AUTO_FREE char *shown = str_escaped(why ? why : "it does not say why");
		strv_addf(&judge->ret->notes, "queue %s admits nothing now: %.200s",
			judge->question->name, shown);
	}
}

/*
 * Amounts
 */

static const struct json *pod_spec(const struct kube_objects *objects)
{
	if (!objects)
		return NULL;
	return kube_at(kube_kind_template(
			       objects->is_jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB, objects->job),
		"spec.template.spec");
}

/* hard is what the namespace may use in all: in thousandths, as want. */
static bool over_quota(struct judge *judge, const struct json *quota, const char *key, int64_t want,
	const char *what)
{
	const struct json *hard = json_get(kube_at(quota, "status.hard"), key);
	const char *name = kube_str_at(quota, "metadata.name"), *has = json_str(hard);
	struct err *err;

	if (!hard || want <= kube_quantity_of(hard))
		return false;
	AUTO_FREE char *shown = str_shown(has ? has : "0"),
		       *quota_name = str_shown(name ? name : "");
	err = problem(judge);
	err_set(err, E_SCHED_QUOTA, "namespace %s may never use so much %s: its quota %s allows %s",
		judge->run->kube_namespace, what, quota_name, shown);
	err_evidence(err, "%d %s, %lld.%03lld of %s in all", judge->run->nodes,
		judge->run->nodes == 1 ? "node" : "nodes", (long long)(want / 1000),
		(long long)(want % 1000), key);
	err_hint(err, "kubectl describe quota -n %s", judge->run->kube_namespace);
	return true;
}

/* Pods that do not say how much they take are refused where a quota counts it, unless a limit range
 * says it for them. */
static void note_unsaid(
	struct judge *judge, const struct json *quota, const struct kube_demand *want)
{
	const struct {
		const char *key, *how;
		bool said;
	} rows[] = {{"requests.cpu", "--cpus", want->cpu_milli > 0},
		{"cpu", "--cpus", want->cpu_milli > 0}, {"limits.cpu", "overlay:", false},
		{"requests.memory", "--memory", want->memory > 0},
		{"memory", "--memory", want->memory > 0},
		{"limits.memory", "--memory", want->memory > 0}};
	const char *name = kube_str_at(quota, "metadata.name");
	AUTO_FREE char *shown = str_shown(name ? name : "");

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (!rows[i].said && json_get(kube_at(quota, "status.hard"), rows[i].key))
			strv_addf(&judge->ret->notes,
				"quota %s counts %s, and the run does not say it (%s): it is "
				"refused unless a limit range does",
				shown, rows[i].key, rows[i].how);
}

static void judge_quota(
	struct judge *judge, const struct json *quota, const struct kube_demand *want)
{
	int64_t nodes = judge->run->nodes;
	AUTO_FREE char *gpus = mem_printf("requests.%s", want->resource);
	int64_t memory =
		want->memory > INT64_MAX / 1000 / nodes ? INT64_MAX : want->memory * 1000 * nodes;

	/* Quotas with scopes are for some pods only. */
	if (kube_at(quota, "spec.scopeSelector") || kube_at(quota, "spec.scopes"))
		return;
	if (*want->resource)
		over_quota(judge, quota, gpus, want->gpus * 1000 * nodes, want->resource);
	if (!over_quota(judge, quota, "requests.cpu", want->cpu_milli * nodes, "CPU"))
		over_quota(judge, quota, "cpu", want->cpu_milli * nodes, "CPU");
	if (!over_quota(judge, quota, "requests.memory", memory, "memory") &&
		!over_quota(judge, quota, "memory", memory, "memory"))
		over_quota(judge, quota, "limits.memory", memory, "memory");
	note_unsaid(judge, quota, want);
}

static void judge_quotas(struct judge *judge)
{
	const struct json *items = json_get(judge->reply->object, "items");
	struct kube_demand want;

	if (judge->reply->status != 200 || !pod_spec(judge->objects))
		return;
	kube_demand_of(pod_spec(judge->objects), &want);
	for (const struct json *item = json_first(items); item; item = json_next(item))
		judge_quota(judge, item, &want);
}

static void judge_fit(struct judge *judge, const struct kube_items *nodes)
{
	AUTO_JSON struct json *job = json_object();
	AUTO(kube_why_done) struct kube_why why = {0};
	struct json *template = json_sub(json_sub(job, "spec"), "template");
	struct err *err;

	json_set(template, "spec", json_clone(pod_spec(judge->objects)));
	struct kube_facts facts = {.run_id = judge->run->run_id,
		.job_name = judge->run->job,
		.kube_namespace = judge->run->kube_namespace,
		.job = job,
		.nodes = *nodes};
	struct kube_case c = {.facts = &facts};
	kube_why_schedule(&c, NULL, &why);
	free(c.room);
	if (!why.never_fits || !why.sentence)
		return;
	err = problem(judge);
	err_set(err, why.id, "%s", why.sentence);
	for (size_t i = 0; i < why.evidence.n; i++)
		err_evidence(err, "%s", why.evidence.v[i]);
	if (why.hint)
		err_hint(err, "%s", why.hint);
}

static void judge_nodes(struct judge *judge)
{
	const struct json *items = json_get(judge->reply->object, "items");
	struct VEC_OF(const struct json *) list = {0};

	if (judge->reply->status != 200 || !pod_spec(judge->objects))
		return;
	for (const struct json *item = json_first(items); item; item = json_next(item))
		*vec_push(&list) = item;
	if (list.n)
		judge_fit(judge, &(struct kube_items){list.v, list.n, true});
	vec_done(&list);
}

/*
 * All of it
 */

static const struct {
	void (*judge)(struct judge *judge);
	/* The fact that is not known without a reply; NULL: nothing that matters. */
	const char *unknown;
} subjects[SUBJECTS] = {
	[RIGHTS] = {NULL, NULL},
	[WHO] = {NULL, NULL},
	[NAMESPACE] = {judge_namespace, "what Pod Security level holds in namespace"},
	[JOBSET] = {judge_jobset, NULL},
	[KUEUE] = {judge_kueue, NULL},
	[QUEUE] = {judge_queue, "whether there is the queue"},
	[CLAIM] = {judge_claim, "whether there is the volume claim"},
	[PULL_SECRET] = {judge_pull_secret, "whether there is the pull secret"},
	[ACCOUNT] = {judge_account, "whether there is the service account"},
	[PRIORITY] = {judge_priority, "whether there is the priority class"},
	[QUOTAS] = {judge_quotas, NULL},
	[NODES] = {judge_nodes, "whether it fits on any node"},
};

/* A run that asks for nothing special fits somewhere; most users may not list nodes. */
static bool matters(const struct judge *judge)
{
	const struct kube_run *run = judge->run;

	return judge->question->subject != NODES || run->gpus > 0 || run->memory_bytes > 0 ||
	       run->cpu_milli > 0;
}

static void judge_one(struct judge *judge)
{
	int subject = judge->question->subject, status = judge->reply->status;
	AUTO_FREE char *name = str_shown(judge->question->name);

	if (subject >= KUBE_RIGHTS_FROM)
		return;
	if ((status == 0 || status == 401 || status == 403 || status >= 500) &&
		subjects[subject].unknown && matters(judge))
		strv_addf(&judge->ret->notes, "not known %s%s%s: %s", subjects[subject].unknown,
			*name ? " " : "", name,
			status == 403 ? "you may not read it" : "no answer came");
	else if (subjects[subject].judge)
		subjects[subject].judge(judge);
}

void kube_preflight_judge(const struct kube_run *run, const struct kube_objects *objects,
	const struct kube_questions *questions, const struct kube_reply *replies,
	struct kube_findings *ret)
{
	struct judge judge = {.run = run, .objects = objects, .ret = ret};

	kube_rights_judge(run, questions, replies, takes_jobset(questions, replies), ret);
	for (size_t i = 0; i < questions->n; i++) {
		judge.question = &questions->v[i];
		judge.reply = &replies[i];
		judge_one(&judge);
	}
}

void kube_findings_done(struct kube_findings *findings)
{
	if (!findings)
		return;
	vec_foreach (struct err, err, &findings->problems)
		err_done(err);
	vec_done(&findings->problems);
	strv_done(&findings->notes);
}
