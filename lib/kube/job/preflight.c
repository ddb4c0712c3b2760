/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client.h"
#include "kube/api/kinds.h"
#include "kube/job/rbac.h"
#include "kube/status/status_impl.h"

/*
 * Reviews of oneself
 */

struct json *kube_who_query(void)
{
	return json_make("{'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'}");
}

const char *kube_who_name(const struct json *review)
{
	return kube_str_at(review, "status.userInfo.username");
}

struct json *kube_may_query(const struct kube_deed *deed)
{
	return json_make("{'apiVersion': 'authorization.k8s.io/v1', "
			 "'kind': 'SelfSubjectAccessReview', 'spec': {'resourceAttributes': "
			 "{'namespace': %s, 'verb': %s, 'group': %s, 'resource': %s, "
			 "'subresource': %s}}}",
		deed->kube_namespace, deed->verb, deed->group, deed->resource, deed->sub);
}

static bool preflight_has_word(const struct json *list, const char *word)
{
	json_foreach (m, list)
		if (str_eq(json_str(m), word) || str_eq(json_str(m), "*"))
			return true;
	return false;
}

/* "pods", "pods/log", and for all of its kind "*" and "*" "/log". */
static bool has_resource(const struct json *list, const struct kube_deed *deed)
{
	const char *sub = deed->sub ? deed->sub : "";
	AUTO_FREE char *own = mem_printf("%s%s%s", deed->resource, *sub ? "/" : "", sub);
	AUTO_FREE char *any = mem_printf("*/%s", sub);

	return preflight_has_word(list, own) || (*sub && preflight_has_word(list, any));
}

bool kube_rules_grant(const struct json *review, const struct kube_deed *deed)
{
	json_foreach (rule, kube_at(review, "status.resourceRules"))
		if (json_count(json_get(rule, "resourceNames")) == 0 &&
			preflight_has_word(json_get(rule, "verbs"), deed->verb) &&
			preflight_has_word(json_get(rule, "apiGroups"), deed->group) &&
			has_resource(json_get(rule, "resources"), deed))
			return true;
	return false;
}

/*
 * Rights
 */

enum {
	VERBS_MAX = 2,
	TEXT_MAX = 2000,
	WORD_MAX = 32,
	UPGRADE_CREATES = 35, /* 1.35: feature gate AuthorizePodWebsocketUpgradeCreatePermission */
};

/* FATAL: the run could not begin, or its state could not be read, or it could not be ended;
 * NO_JOBSET: it is a Job then; NO_STREAM: its code must not be large. */
enum effect { FATAL, COMFORT, NO_JOBSET, NO_STREAM };

/* Traits of a run that want a right. */
enum trait {
	ALWAYS,
	HAS_SERVICE,
	HAS_JOBSET,
	HAS_SECRETS,
	HAS_CLAIM,
	HAS_CODE_APART,
	HAS_MEMBERS,
	HAS_PORTS,
	MAY_MOVE,
	LEAVES_RESULTS, /* in its pods */
	TRAITS,
};

static bool preflight_has(const struct kube_run *run, enum trait trait)
{
	const enum kube_place_kind results = run->results.kind;
	const bool has[TRAITS] = {
		[ALWAYS] = true,
		[HAS_SERVICE] = (run->nodes > 1 || run->n_roles) && !run->jobset,
		[HAS_JOBSET] = kube_wants_jobset(run->nodes, run->retries, run->n_roles > 0),
		[HAS_SECRETS] = run->secret_env && run->secret_env->n > 0,
		[HAS_CLAIM] = results == KUBE_PLACE_CLAIM,
		[HAS_CODE_APART] = run->code_apart,
		[HAS_MEMBERS] = run->n_members > 0,
		[HAS_PORTS] = run->n_ports > 0,
		[MAY_MOVE] = run->may_move && run->n_members == 0,
		[LEAVES_RESULTS] = !run->results_s3 &&
				   (results == KUBE_PLACE_EMPTY || results == KUBE_PLACE_NONE),
	};

	return has[trait];
}

/* Any one of the verbs is enough. Sorted by effect. */
static const struct need {
	const char *group, *resource, *verbs;
	enum effect effect;
	enum trait trait;
	const char *lack;
	bool is_upgrade; /* only where kube_upgrade_creates */
} needs[] = {
	{"batch", "jobs", "create", FATAL, ALWAYS, "the run cannot be started"},
	{"batch", "jobs", "get list", FATAL, ALWAYS, "nobody could tell what became of the run"},
	{"batch", "jobs", "delete", FATAL, ALWAYS, "the run could not be cancelled"},
	{"", "services", "create", FATAL, HAS_SERVICE, "its nodes would not find one another"},
	{"", "secrets", "create", FATAL, HAS_SECRETS, "it cannot be given its secrets"},
	{"", "configmaps", "create", FATAL, HAS_MEMBERS,
		"its members cannot be given their commands"},
	{"", "configmaps", "create", FATAL, HAS_CODE_APART,
		"its code cannot go there without a registry"},
	{"", "configmaps", "create", FATAL, MAY_MOVE, "it could not go on to its next target"},
	{"", "persistentvolumeclaims", "create", FATAL, HAS_CLAIM, "it has no place for results"},
	{"", "pods", "list", COMFORT, ALWAYS, "what it waits for and its exit code are not known"},
	{"", "pods/log", "get", COMFORT, ALWAYS, "its output cannot be shown"},
	{"", "events", "list", COMFORT, ALWAYS, "less is known of what it waits for"},
	{"batch", "jobs", "watch", COMFORT, ALWAYS, "its state is asked for every few seconds"},
	{"", "pods", "watch", COMFORT, ALWAYS, "its pods are asked for every few seconds"},
	{"", "pods/exec", "get", COMFORT, LEAVES_RESULTS, "its results cannot be taken"},
	{"", "pods/exec", "create", COMFORT, LEAVES_RESULTS, "its results cannot be taken", true},
	{"", "pods/portforward", "get create", COMFORT, HAS_PORTS, "its ports cannot be reached"},
	{"", "pods/portforward", "create", COMFORT, HAS_PORTS, "its ports cannot be reached", true},
	{"", "configmaps", "patch", COMFORT, HAS_MEMBERS,
		"single members cannot be cancelled, and its ConfigMap stays when it is removed"},
	{"", "configmaps", "delete", COMFORT, HAS_MEMBERS,
		"its ConfigMap stays if the submit is interrupted"},
	{"", "configmaps", "patch", COMFORT, HAS_CODE_APART, "its code stays when it is removed"},
	{"", "configmaps", "delete", COMFORT, HAS_CODE_APART,
		"its code stays if the submit is interrupted"},
	{"", "configmaps", "delete", COMFORT, MAY_MOVE, "it will not go on to its next target"},
	{"", "pods", "delete", COMFORT, HAS_MEMBERS, "single members that run cannot be cancelled"},
	{"batch", "jobs", "patch", COMFORT, HAS_MEMBERS, "logs of its members end with its cancel"},
	{"", "services", "patch", COMFORT, HAS_SERVICE, "its Service stays when it is removed"},
	{"", "secrets", "patch", COMFORT, HAS_SECRETS, "its Secret stays when it is removed"},
	{"", "secrets", "delete", COMFORT, HAS_SECRETS,
		"its Secret stays if the submit is interrupted"},
	{"", "persistentvolumeclaims", "delete", COMFORT, HAS_CLAIM,
		"its claim stays when it is removed"},
	{"jobset.x-k8s.io", "jobsets", "get list", NO_JOBSET, HAS_JOBSET, ""},
	{"jobset.x-k8s.io", "jobsets", "delete", NO_JOBSET, HAS_JOBSET, ""},
	{"", "pods/exec", "get", NO_STREAM, HAS_CODE_APART, ""},
	{"", "pods/exec", "create", NO_STREAM, HAS_CODE_APART, "", true},
	{"", "pods", "list", NO_STREAM, HAS_CODE_APART, ""},
};

/* The verb at *at, which goes on behind it; false: there is none. */
static bool next_verb(const char **at, char ret[static WORD_MAX])
{
	size_t len = strcspn(*at, " ");

	BUG_ON(len >= WORD_MAX);
	memcpy(ret, *at, len);
	ret[len] = '\0';
	*at += len + ((*at)[len] == ' ');
	return len > 0;
}

/*
 * Requests
 */

static void query_need(const struct need *need, const char *kube_namespace,
	const struct json *rules, struct kube_questions *ret)
{
	const char *slash = strchr(need->resource, '/'), *at;
	AUTO_FREE char *resource =
		slash ? mem_strndup(need->resource, (size_t)(slash - need->resource))
		      : mem_strdup(need->resource);
	char verb[WORD_MAX];
	struct kube_deed deed = {.kube_namespace = kube_namespace,
		.verb = verb,
		.group = need->group,
		.resource = resource,
		.sub = slash ? slash + 1 : NULL};

	for (at = need->verbs; next_verb(&at, verb);)
		if (kube_rules_grant(rules, &deed))
			return;
	for (at = need->verbs; next_verb(&at, verb);) {
		BUG_ON(!kube_rule_allows(KUBE_TIERS - 1, need->group, need->resource, verb));
		struct kube_question *question = vec_push(ret);

		*question = (struct kube_question){.path = mem_strdup(KUBE_MAY_PATH),
			.body = kube_may_query(&deed),
			.subject = KUBE_RIGHTS_FROM + (int)(need - needs),
			.name = mem_strdup(deed.verb)};
	}
}

/*
 * Judging
 */

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
	GROWTH,
	NODES,
	VERSION,
	SUBJECTS,
};

bool kube_upgrade_creates(const struct json *version)
{
	const char *text = json_get_str(version, "gitVersion");
	unsigned major, minor;

	return text && sscanf(text, "v%5u.%5u", &major, &minor) == 2 &&
	       (major > 1 || minor >= UPGRADE_CREATES);
}

/* The reply about the subject, where it has that status; or NULL. */
static const struct kube_reply *preflight_reply(const struct kube_questions *questions,
	const struct kube_reply *replies, enum subject subject, int status)
{
	for (size_t i = 0; i < questions->n; i++)
		if (questions->v[i].subject == (int)subject && replies[i].status == status)
			return &replies[i];
	return NULL;
}

/* Whether all of its verbs were asked for and refused; ret_why: what the server says of one. */
static bool preflight_is_missing(const struct need *need, const struct kube_questions *questions,
	const struct kube_reply *replies, const char **ret_why)
{
	const struct kube_reply *version = preflight_reply(questions, replies, VERSION, 200);
	bool requested = false;

	/* A server that does not tell its version is taken for an older one. */
	if (need->is_upgrade && (!version || !kube_upgrade_creates(version->object)))
		return false;
	for (size_t i = 0; i < questions->n; i++) {
		const struct json *status = json_get(replies[i].object, "status");

		if (questions->v[i].subject != KUBE_RIGHTS_FROM + (int)(need - needs))
			continue;
		if (replies[i].status / 100 != 2 || json_get_bool(status, "allowed", true))
			return false;
		*ret_why = json_get_str(status, "reason");
		requested = true;
	}
	return requested;
}

/* "get or list jobs" */
static char *deed_text(const struct need *need)
{
	AUTO_FREE char *verbs = mem_strdup(need->verbs);
	char *blank = strchr(verbs, ' ');

	if (!blank)
		return mem_printf("%s %s", verbs, need->resource);
	*blank = '\0';
	return mem_printf("%s or %s %s", verbs, blank + 1, need->resource);
}

struct missing {
	struct buf deeds; /* "create jobs, get or list jobs" */
	struct strv lacks;
	char *why;
};

static void missing_done(struct missing *missing)
{
	buf_done(&missing->deeds);
	strv_done(&missing->lacks);
	free(missing->why);
}

static void preflight_find_missing(enum effect effect, const struct kube_run *run,
	const struct kube_questions *questions, const struct kube_reply *replies,
	struct missing *ret)
{
	const char *why = NULL;

	*ret = (struct missing){0};
	buf_init(&ret->deeds, TEXT_MAX);
	for (size_t i = 0; i < ARRAY_LEN(needs); i++) {
		if (needs[i].effect != effect || !preflight_has(run, needs[i].trait) ||
			!preflight_is_missing(&needs[i], questions, replies, &why))
			continue;
		AUTO_FREE char *deed = deed_text(&needs[i]);
		buf_addf(&ret->deeds, "%s%s", ret->lacks.n ? ", " : "", deed);
		if (strv_find(&ret->lacks, needs[i].lack) < 0)
			strv_add(&ret->lacks, needs[i].lack);
		if (!ret->why && !str_empty(why))
			ret->why = str_shown(why);
	}
}

/* Whether a right of that effect is missing. */
static bool kube_rights_lack(enum effect effect, const struct kube_questions *questions,
	const struct kube_reply *replies)
{
	const char *why;

	for (size_t i = 0; i < ARRAY_LEN(needs); i++)
		if (needs[i].effect == effect &&
			preflight_is_missing(&needs[i], questions, replies, &why))
			return true;
	return false;
}

/* Report one problem that names all missing rights that the run cannot do without, and one note for
 * the rest. found_jobset: the cluster would accept the run as a JobSet. */
static void kube_rights_evaluate(const struct kube_run *run, const struct kube_questions *questions,
	const struct kube_reply *replies, bool found_jobset, struct kube_findings *ret)
{
	AUTO(missing_done) struct missing fatal, comfort, jobset;

	preflight_find_missing(FATAL, run, questions, replies, &fatal);
	preflight_find_missing(COMFORT, run, questions, replies, &comfort);
	preflight_find_missing(NO_JOBSET, run, questions, replies, &jobset);
	if (fatal.lacks.n) {
		struct err *err = vec_push(&ret->problems);

		err_set(err, E_KUBE_DENIED, "you may not %s in namespace %s", fatal.deeds.data,
			run->kube_namespace);
		if (fatal.why)
			err_evidence(err, "%s", fatal.why);
		for (size_t i = 0; i < fatal.lacks.n; i++)
			err_evidence(err, "%s", fatal.lacks.v[i]);
		err_hint(err, "dlrun init --rbac   # prints the Role to ask for");
	}
	if (comfort.lacks.n) {
		struct strv *notes = &ret->notes;
		AUTO_FREE char *lacks = strv_join(&comfort.lacks, "; ");

		strv_addf(notes,
			"you may not %s in namespace %s: %s (dlrun init --rbac prints the Role)",
			comfort.deeds.data, run->kube_namespace, lacks);
	}
	if (jobset.lacks.n && found_jobset)
		strv_addf(&ret->notes,
			"it is a Job, and not a JobSet: you may not %s in namespace %s",
			jobset.deeds.data, run->kube_namespace);
}

/*
 * Questions
 */

static struct kube_question *preflight_add(
	struct kube_questions *list, enum subject subject, const char *name, char *path)
{
	struct kube_question *question = vec_push(list);

	*question = (struct kube_question){
		.path = path, .subject = (int)subject, .name = mem_strdup(name ? name : "")};
	return question;
}

static void add_claim(const struct kube_run *run, struct kube_questions *list, const char *name)
{
	vec_foreach (const struct kube_question, question, list) {
		if (question->subject == CLAIM && str_eq(question->name, name))
			return;
	}
	preflight_add(list, CLAIM, name,
		kube_path("/api/v1/namespaces/%s/persistentvolumeclaims/%s", run->kube_namespace,
			name));
}

/* Whether it is installed, knows all that is asked of it, and may be made here: by one that is as
 * that of the run in all that is JobSet's own. */
void kube_preflight_query_jobset(const struct kube_run *run, struct kube_questions *ret)
{
	static char *words[] = {(char *)"true"};
	static const struct strv command = {.v = words, .n = ARRAY_LEN(words)}, none;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	struct kube_question *question;
	AUTO_FREE struct kube_role *roles = mem_alloc(run->n_roles + 1, sizeof(*roles));
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
		.roles = roles,
		.n_roles = run->n_roles,
		.ends_with = run->ends_with,
		.jobset = true,
	};

	for (size_t i = 0; i < run->n_roles; i++)
		roles[i] = (struct kube_role){.name = run->roles[i].name,
			.nodes = run->roles[i].nodes,
			.command = &command,
			.env = &none};

	/* Invalid names are reported elsewhere. */
	if (!kube_wants_jobset(run->nodes, run->retries, run->n_roles > 0) ||
		kube_job_make(&small, &objects, NULL) < 0)
		return;
	question = preflight_add(ret, JOBSET, "JobSet", kube_object_collection(objects.job));
	question->body = TAKE(objects.job);
	question->is_dry_run = true;
}

static void preflight_add_names(const struct kube_run *run, struct kube_questions *list)
{
	const char *space = run->kube_namespace;

	if (run->pull_secret)
		preflight_add(list, PULL_SECRET, run->pull_secret,
			kube_path("/api/v1/namespaces/%s/secrets/%s", space, run->pull_secret));
	if (run->service_account)
		preflight_add(list, ACCOUNT, run->service_account,
			kube_path("/api/v1/namespaces/%s/serviceaccounts/%s", space,
				run->service_account));
	if (run->priority_class)
		preflight_add(list, PRIORITY, run->priority_class,
			kube_path("/apis/scheduling.k8s.io/v1/priorityclasses/%s",
				run->priority_class));
	if (!run->queue)
		return;
	preflight_add(list, KUEUE, "Kueue", mem_strdup("/apis/kueue.x-k8s.io"));
	preflight_add(list, QUEUE, run->queue,
		kube_path("/apis/kueue.x-k8s.io/v1beta1/namespaces/%s/localqueues/%s", space,
			run->queue));
}

void kube_preflight_query(const struct kube_run *run, struct kube_questions *ret)
{
	const char *space = run->kube_namespace;

	/* The name by which the cluster knows us, and what we may do. */
	preflight_add(ret, WHO, "", mem_strdup(KUBE_WHO_PATH))->body = kube_who_query();
	preflight_add(ret, RIGHTS, "", mem_strdup(KUBE_RULES_PATH))->body =
		json_make("{'apiVersion': 'authorization.k8s.io/v1', "
			  "'kind': 'SelfSubjectRulesReview', 'spec': {'namespace': %s}}",
			space);
	preflight_add(ret, NAMESPACE, space, kube_path("/api/v1/namespaces/%s", space));
	kube_preflight_query_jobset(run, ret);
	if (run->results.kind == KUBE_PLACE_PVC)
		add_claim(run, ret, run->results.name);
	for (size_t i = 0; i < run->n_data; i++)
		if (run->data[i].place.kind == KUBE_PLACE_PVC)
			add_claim(run, ret, run->data[i].place.name);
	for (size_t i = 0; i < run->n_volumes; i++)
		if (run->volumes[i].place.kind == KUBE_PLACE_PVC)
			add_claim(run, ret, run->volumes[i].place.name);
	preflight_add_names(run, ret);
	preflight_add(ret, QUOTAS, space, kube_path("/api/v1/namespaces/%s/resourcequotas", space))
		->is_list = true;
	preflight_add(ret, GROWTH, "", mem_strdup(KUBE_GROWTH_PATH));
	preflight_add(ret, NODES, "", mem_strdup("/api/v1/nodes"))->is_list = true;
}

void kube_preflight_query_rights(const struct kube_run *run, const struct kube_question *answered,
	const struct kube_reply *reply, struct kube_questions *ret)
{
	bool is_good = reply->status / 100 == 2;

	if (answered->subject == RIGHTS && reply->status != 0 && reply->status != 401) {
		/* Adds at most KUBE_RIGHTS_MAX questions: reviews of one deed each, of all that is
		 * needed and that rules, the response to a SelfSubjectRulesReview (NULL: none),
		 * does not grant. */
		const struct json *rules = is_good ? reply->object : NULL;
		_Static_assert(ARRAY_LEN(needs) * VERBS_MAX < KUBE_RIGHTS_MAX, "room for all");
		bool is_by_version = false;

		for (size_t i = 0; i < ARRAY_LEN(needs); i++) {
			size_t before = ret->n;

			if (preflight_has(run, needs[i].trait))
				query_need(&needs[i], run->kube_namespace, rules, ret);
			is_by_version |= needs[i].is_upgrade && ret->n > before;
		}
		if (is_by_version)
			preflight_add(ret, VERSION, "", mem_strdup("/version"));
	}
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

void kube_preflight_surroundings(const struct kube_questions *questions,
	const struct kube_reply *replies, struct kube_surroundings *ret)
{
	const struct kube_reply *who = preflight_reply(questions, replies, WHO, 201);
	const struct kube_reply *space = preflight_reply(questions, replies, NAMESPACE, 200);

	*ret = (struct kube_surroundings){.user = who ? kube_who_name(who->object) : NULL};
	for (size_t i = 0; i < questions->n; i++) {
		if (questions->v[i].subject != GROWTH)
			continue;
		ret->growth_status = replies[i].status;
		ret->growth = replies[i].status == 200 ? replies[i].object : NULL;
	}
	if (space)
		ret->enforced = kube_label(space->object, "pod-security.kubernetes.io/enforce");
	if (space && !ret->enforced)
		ret->enforced = "privileged";
	ret->jobset = preflight_reply(questions, replies, JOBSET, 201) &&
		      !kube_rights_lack(NO_JOBSET, questions, replies);
	ret->no_stream = kube_rights_lack(NO_STREAM, questions, replies);
}

/*
 * Responses
 */

struct evaluation {
	const struct kube_run *run;
	const struct kube_objects *objects;
	const struct kube_growth *growth; /* by pods of objects; NULL: nothing is known */
	const struct kube_question *question;
	const struct kube_reply *reply;
	struct kube_findings *ret;
	bool no_kueue;
};

static struct err *problem(struct evaluation *evaluation)
{
	return vec_push(&evaluation->ret->problems);
}

static void missing(struct evaluation *evaluation, const char *kind, const char *hint)
{
	struct err *err = problem(evaluation);
	AUTO_FREE char *name = str_shown(evaluation->question->name);

	err_set(err, E_KUBE_NOT_FOUND, "namespace %s has no %s '%s'",
		evaluation->run->kube_namespace, kind, name);
	err_hint(err, "kubectl get %s -n %s", hint, evaluation->run->kube_namespace);
}

/* Then it is a Job, and the notes of kube_job_make say what that means. */
static void evaluate_jobset(struct evaluation *evaluation)
{
	const char *space = evaluation->run->kube_namespace;

	if (evaluation->reply->status == 403)
		strv_addf(&evaluation->ret->notes,
			"whether JobSet would restart all nodes together is not known: you may not "
			"create jobsets in namespace %s (dlrun init --rbac prints the Role)",
			space);
	else if (evaluation->reply->status == 400 || evaluation->reply->status == 422)
		strv_addf(&evaluation->ret->notes,
			"the cluster has JobSet, but one that does not take this run: it may be "
			"older than 0.10");
}

static void evaluate_namespace(struct evaluation *evaluation)
{
	const char *name = evaluation->run->kube_namespace;

	if (evaluation->reply->status == 404) {
		struct err *err = problem(evaluation);
		err_set(err, E_KUBE_NOT_FOUND, "the cluster has no namespace %s", name);
		err_hint(err, "kubectl get namespaces");
	} else if (str_eq(kube_str_at(evaluation->reply->object, "status.phase"), "Terminating")) {
		err_set(problem(evaluation), E_KUBE_NOT_FOUND, "namespace %s is being deleted",
			name);
	}
}

static bool preflight_only_reads(const struct json *modes)
{
	json_foreach (mode, modes)
		if (!str_eq(json_str(mode), "ReadOnlyMany"))
			return false;
	return json_count(modes) > 0;
}

/* Evaluate the access modes of a claim that is written for certain. */
static void evaluate_claim_modes(
	struct evaluation *evaluation, const char *name, const struct json *modes)
{
	const struct kube_run *run = evaluation->run;
	const char *mode = json_str(json_first(modes));
	bool is_results = run->results.kind == KUBE_PLACE_PVC && str_eq(run->results.name, name);
	bool is_shared = false;

	for (size_t i = 0; i < run->n_volumes; i++)
		is_shared |= run->volumes[i].is_shared &&
			     run->volumes[i].place.kind == KUBE_PLACE_PVC &&
			     str_eq(run->volumes[i].place.name, name);
	if ((is_results || is_shared) && preflight_only_reads(modes)) {
		struct err *err = problem(evaluation);
		err_set(err, E_KUBE_STORAGE,
			"claim %s can only be read (ReadOnlyMany), and %s: is "
			"written",
			name, is_results ? "results" : "caches");
		err_hint(err, "kubectl -n %s get persistentvolumeclaims", run->kube_namespace);
	} else if (is_shared && run->nodes == 1 && json_count(modes) == 1 && mode &&
		   str_starts(mode, "ReadWriteOnce")) {
		strv_addf(&evaluation->ret->notes,
			"claim %s is for one node at a time (%s): runs that share its caches wait "
			"for that node",
			name, mode);
	}
}

static void evaluate_claim(struct evaluation *evaluation)
{
	const struct json *claim = evaluation->reply->object;
	const char *name = evaluation->question->name;
	const struct json *modes = json_get(json_get(claim, "spec"), "accessModes");
	const char *mode = json_str(json_first(modes));

	if (evaluation->reply->status == 404) {
		missing(evaluation, "claim", "persistentvolumeclaims");
		return;
	}
	if (evaluation->reply->status != 200)
		return;
	if (str_eq(kube_str_at(claim, "status.phase"), "Lost"))
		err_set(problem(evaluation), E_KUBE_STORAGE, "claim %s has lost its volume", name);
	if (kube_str_at(claim, "metadata.deletionTimestamp"))
		err_set(problem(evaluation), E_KUBE_STORAGE, "claim %s is being deleted", name);
	evaluate_claim_modes(evaluation, name, modes);
	if (evaluation->run->nodes > 1 && json_count(modes) == 1 && mode &&
		str_starts(mode, "ReadWriteOnce"))
		strv_addf(&evaluation->ret->notes,
			"claim %s is for one node at a time (%s): all %d must fit on one", name,
			mode, evaluation->run->nodes);
}

static void preflight_evaluate_pull_secret(struct evaluation *evaluation)
{
	const char *type = json_get_str(evaluation->reply->object, "type");

	if (evaluation->reply->status == 404)
		missing(evaluation, "Secret", "secrets");
	else if (evaluation->reply->status == 200 && type && !strstr(type, "docker"))
		strv_addf(&evaluation->ret->notes,
			"Secret %s is of type %s, nodes log in with kubernetes.io/dockerconfigjson",
			evaluation->question->name, type);
}

static void evaluate_account(struct evaluation *evaluation)
{
	if (evaluation->reply->status == 404)
		missing(evaluation, "service account", "serviceaccounts");
}

static void evaluate_priority(struct evaluation *evaluation)
{
	struct err *err;

	if (evaluation->reply->status != 404)
		return;
	AUTO_FREE char *name = str_shown(evaluation->question->name);
	err = problem(evaluation);
	err_set(err, E_KUBE_NOT_FOUND, "the cluster has no priority class '%s'", name);
	err_hint(err, "kubectl get priorityclasses");
}

static void evaluate_kueue(struct evaluation *evaluation)
{
	struct err *err;

	if (evaluation->reply->status != 404)
		return;
	evaluation->no_kueue = true;
	err = problem(evaluation);
	err_set(err, E_KUBE_NOT_FOUND, "queue %s: the cluster has no Kueue",
		evaluation->run->queue);
	err_hint(err, "dlrun submit --queue '' …");
}

/* A version that is not served gives a 404 without Status. */
static void preflight_evaluate_queue(struct evaluation *evaluation)
{
	const struct json *active = kube_condition(evaluation->reply->object, "Active");

	if (evaluation->reply->status == 404 && !evaluation->no_kueue &&
		str_eq(json_get_str(evaluation->reply->object, "reason"), "NotFound")) {
		missing(evaluation, "queue", "localqueues");
	} else if (evaluation->reply->status == 200 && active &&
		   str_eq(json_get_str(active, "status"), "False")) {
		const char *why = json_get_str(active, "message");
		AUTO_FREE char *shown = str_escaped(why ? why : "it does not say why");
		strv_addf(&evaluation->ret->notes, "queue %s admits nothing now: %.200s",
			evaluation->question->name, shown);
	}
}

/*
 * Amounts
 */

/* hard is what the namespace may use in all: in thousandths, as want. */
static bool over_quota(struct evaluation *evaluation, const struct json *quota, const char *key,
	int64_t want, const char *what)
{
	const struct json *hard = json_get(kube_at(quota, "status.hard"), key);
	const char *name = kube_str_at(quota, "metadata.name"), *has = json_str(hard);
	struct err *err;

	if (!hard || want <= kube_quantity_of(hard))
		return false;
	AUTO_FREE char *shown = str_shown(has ? has : "0"),
		       *quota_name = str_shown(name ? name : "");
	err = problem(evaluation);
	err_set(err, E_SCHED_QUOTA, "namespace %s may never use so much %s: its quota %s allows %s",
		evaluation->run->kube_namespace, what, quota_name, shown);
	err_evidence(err, "%d %s, %lld.%03lld of %s in all", evaluation->run->nodes,
		evaluation->run->nodes == 1 ? "node" : "nodes", (long long)(want / 1000),
		(long long)(want % 1000), key);
	err_hint(err, "kubectl describe quota -n %s", evaluation->run->kube_namespace);
	return true;
}

/* all: of all pods; least: what one says at least. */
static void evaluate_quota(struct evaluation *evaluation, const struct json *quota,
	const struct kube_demand *all, const struct kube_demand *least)
{
	AUTO_FREE char *gpus = mem_printf("requests.%s", all->resource);
	int64_t memory = all->memory > INT64_MAX / 1000 ? INT64_MAX : all->memory * 1000;

	/* Quotas with scopes are for some pods only. */
	if (kube_at(quota, "spec.scopeSelector") || kube_at(quota, "spec.scopes"))
		return;
	if (*all->resource)
		over_quota(evaluation, quota, gpus, all->gpus * 1000, all->resource);
	if (!over_quota(evaluation, quota, "requests.cpu", all->cpu_milli, "CPU"))
		over_quota(evaluation, quota, "cpu", all->cpu_milli, "CPU");
	if (!over_quota(evaluation, quota, "requests.memory", memory, "memory") &&
		!over_quota(evaluation, quota, "memory", memory, "memory"))
		over_quota(evaluation, quota, "limits.memory", memory, "memory");
	/* Pods that do not say how much they take are refused where a quota counts it, unless a
	 * limit range says it for them. */
	const struct {
		const char *key, *how;
		bool said;
	} rows[] = {{"requests.cpu", "--cpus", least->cpu_milli > 0},
		{"cpu", "--cpus", least->cpu_milli > 0}, {"limits.cpu", "overlay:", false},
		{"requests.memory", "--memory", least->memory > 0},
		{"memory", "--memory", least->memory > 0},
		{"limits.memory", "--memory", least->memory > 0}};
	const char *name = kube_str_at(quota, "metadata.name");
	AUTO_FREE char *shown = str_shown(name ? name : "");

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (!rows[i].said && json_get(kube_at(quota, "status.hard"), rows[i].key))
			strv_addf(&evaluation->ret->notes,
				"quota %s counts %s, and the run does not say it (%s): it is "
				"refused unless a limit range does",
				shown, rows[i].key, rows[i].how);
}

static void evaluate_quotas(struct evaluation *evaluation)
{
	const struct json *items = json_get(evaluation->reply->object, "items"), *spec;
	struct kube_demand all = {0}, least = {.cpu_milli = INT64_MAX, .memory = INT64_MAX}, want;
	int64_t nodes;
	size_t n = 0;

	if (evaluation->reply->status != 200)
		return;
	while ((spec = kube_objects_pods(evaluation->run, evaluation->objects, n, &nodes))) {
		kube_demand_of(spec, &want);
		kube_demand_add(&all, &want, nodes);
		least.cpu_milli =
			want.cpu_milli < least.cpu_milli ? want.cpu_milli : least.cpu_milli;
		least.memory = want.memory < least.memory ? want.memory : least.memory;
		n++;
	}
	for (const struct json *item = json_first(items); n && item; item = json_next(item))
		evaluate_quota(evaluation, item, &all, &least);
}

/* "no node is there that could run it: one of group gpu-a is bought (about 3 min, 3.2 an hour)" */
static void preflight_note_bought(struct evaluation *evaluation, const struct kube_growth *growth)
{
	int64_t left_ms = growth->expected_ms - growth->updated_ms;
	AUTO_FREE char *group = str_shown(growth->group);
	AUTO_BUF struct buf text = buf_with(KUBE_SENTENCE_MAX);
	char time[32];

	if (growth->expected_ms)
		buf_addf(&text, "about %s", duration_text(left_ms, time));
	if (growth->price >= 0)
		buf_addf(&text, "%s%.2f an hour", text.len ? ", " : "", growth->price);
	strv_addf(&evaluation->ret->notes,
		"no node is there that could run it: one of group %s is bought%s%s%s", group,
		text.len ? " (" : "", text.data, text.len ? ")" : "");
}

static void evaluate_fit(struct evaluation *evaluation, const struct kube_items *nodes,
	const struct json *spec, const struct kube_growth *growth)
{
	AUTO_JSON struct json *job =
		json_make("{'spec': {'template': {'spec': %p}}}", (void *)json_clone(spec));
	AUTO(kube_why_done) struct kube_why why = {0};
	struct err *err;

	struct kube_facts facts = {.run_id = evaluation->run->run_id,
		.job_name = evaluation->run->job,
		.kube_namespace = evaluation->run->kube_namespace,
		.job = job,
		.nodes = *nodes,
		.growth = growth};
	struct kube_case c = {.facts = &facts};
	kube_why_schedule(&c, NULL, NULL, &why);
	kube_fits_free(c.fits);
	if (why.is_bought)
		preflight_note_bought(evaluation, growth);
	if (!why.never_fits || !why.sentence)
		return;
	err = problem(evaluation);
	err_set(err, why.id, "%s", why.sentence);
	for (size_t i = 0; i < why.evidence.n; i++)
		err_evidence(err, "%s", why.evidence.v[i]);
	if (why.hint)
		err_hint(err, "%s", why.hint);
}

static void evaluate_nodes(struct evaluation *evaluation)
{
	const struct json *items = json_get(evaluation->reply->object, "items"), *spec;
	struct VEC_OF(const struct json *) list = {0};
	int64_t nodes;

	if (evaluation->reply->status != 200)
		return;
	json_foreach (item, items)
		*vec_push(&list) = item;
	for (size_t i = 0; list.n && (spec = kube_objects_pods(
					      evaluation->run, evaluation->objects, i, &nodes));
		i++)
		evaluate_fit(evaluation, &(struct kube_items){list.v, list.n, true}, spec,
			evaluation->growth ? &evaluation->growth[i] : NULL);
	vec_done(&list);
}

/*
 * All of it
 */

static const struct {
	void (*evaluation)(struct evaluation *evaluation);
	/* The fact that is not known without a reply; NULL: nothing that matters. */
	const char *unknown;
} subjects[SUBJECTS] = {
	[RIGHTS] = {NULL, NULL},
	[WHO] = {NULL, NULL},
	[NAMESPACE] = {evaluate_namespace, "what Pod Security level holds in namespace"},
	[JOBSET] = {evaluate_jobset, NULL},
	[KUEUE] = {evaluate_kueue, NULL},
	[QUEUE] = {preflight_evaluate_queue, "whether there is the queue"},
	[CLAIM] = {evaluate_claim, "whether there is the volume claim"},
	[PULL_SECRET] = {preflight_evaluate_pull_secret, "whether there is the pull secret"},
	[ACCOUNT] = {evaluate_account, "whether there is the service account"},
	[PRIORITY] = {evaluate_priority, "whether there is the priority class"},
	[QUOTAS] = {evaluate_quotas, NULL},
	[GROWTH] = {NULL, NULL},
	[NODES] = {evaluate_nodes, "whether it fits on any node"},
};

/* A run that asks for nothing special fits somewhere; most users may not list nodes. */
static bool matters(const struct evaluation *evaluation)
{
	const struct kube_run *run = evaluation->run;

	return evaluation->question->subject != NODES || run->gpus > 0 || run->memory_bytes > 0 ||
	       run->cpu_milli > 0 || run->same;
}

void kube_preflight_evaluate(const struct kube_run *run, const struct kube_objects *objects,
	const struct kube_growth *growth, const struct kube_questions *questions,
	const struct kube_reply *replies, struct kube_findings *ret)
{
	struct evaluation evaluation = {
		.run = run, .objects = objects, .growth = growth, .ret = ret};

	kube_rights_evaluate(
		run, questions, replies, preflight_reply(questions, replies, JOBSET, 201), ret);
	for (size_t i = 0; i < questions->n; i++) {
		evaluation.question = &questions->v[i];
		evaluation.reply = &replies[i];
		int subject = evaluation.question->subject, status = evaluation.reply->status;
		AUTO_FREE char *name = str_shown(evaluation.question->name);

		if (subject < KUBE_RIGHTS_FROM) {
			if ((status == 0 || status == 401 || status == 403 || status >= 500) &&
				subjects[subject].unknown && matters(&evaluation))
				strv_addf(&evaluation.ret->notes, "not known %s%s%s: %s",
					subjects[subject].unknown, *name ? " " : "", name,
					status == 403 ? "you may not read it" : "no answer came");
			else if (subjects[subject].evaluation)
				subjects[subject].evaluation(&evaluation);
		}
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
