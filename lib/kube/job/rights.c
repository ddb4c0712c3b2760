/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/rights.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/rbac.h"
#include "kube/job/review.h"

enum { VERBS_MAX = 2, TEXT_MAX = 2000, WORD_MAX = 32 };

/* FATAL: the run could not begin, or its state could not be read, or it could not be ended; JOBSET:
 * it is a Job then. */
enum effect { FATAL, COMFORT, JOBSET };

static bool always(const struct kube_run *run)
{
	(void)run;
	return true;
}

static bool has_service(const struct kube_run *run)
{
	return run->nodes > 1 && !run->jobset;
}

static bool wants_jobset(const struct kube_run *run)
{
	return kube_wants_jobset(run->nodes, run->retries);
}

static bool has_secrets(const struct kube_run *run)
{
	return run->secret_env && run->secret_env->n > 0;
}

static bool has_claim(const struct kube_run *run)
{
	return run->results.kind == KUBE_PLACE_CLAIM;
}

static bool leaves_results_in_pods(const struct kube_run *run)
{
	return run->results.kind == KUBE_PLACE_EMPTY || run->results.kind == KUBE_PLACE_NONE;
}

static bool has_ports(const struct kube_run *run)
{
	return run->n_ports > 0;
}

/* Any one of the verbs is enough. Sorted by effect. */
static const struct need {
	const char *group, *resource, *verbs;
	enum effect effect;
	bool (*applies)(const struct kube_run *run);
	const char *lack;
} needs[] = {
	{"batch", "jobs", "create", FATAL, always, "the run cannot be started"},
	{"batch", "jobs", "get list", FATAL, always, "nobody could tell what became of the run"},
	{"batch", "jobs", "delete", FATAL, always, "the run could not be cancelled"},
	{"", "services", "create", FATAL, has_service, "its nodes would not find one another"},
	{"", "secrets", "create", FATAL, has_secrets, "it cannot be given its secrets"},
	{"", "persistentvolumeclaims", "create", FATAL, has_claim, "it has no place for results"},
	{"", "pods", "list", COMFORT, always, "what it waits for and its exit code are not known"},
	{"", "pods/log", "get", COMFORT, always, "its output cannot be shown"},
	{"", "events", "list", COMFORT, always, "less is known of what it waits for"},
	{"batch", "jobs", "watch", COMFORT, always, "its state is asked for every few seconds"},
	{"", "pods", "watch", COMFORT, always, "its pods are asked for every few seconds"},
	{"", "pods/exec", "get", COMFORT, leaves_results_in_pods, "its results cannot be taken"},
	{"", "pods/portforward", "get create", COMFORT, has_ports, "its ports cannot be reached"},
	{"", "services", "patch", COMFORT, has_service, "its Service stays when it is removed"},
	{"", "secrets", "patch", COMFORT, has_secrets, "its Secret stays when it is removed"},
	{"", "secrets", "delete", COMFORT, has_secrets,
		"its Secret stays if the submit is interrupted"},
	{"", "persistentvolumeclaims", "delete", COMFORT, has_claim,
		"its claim stays when it is removed"},
	{"jobset.x-k8s.io", "jobsets", "get list", JOBSET, wants_jobset, ""},
	{"jobset.x-k8s.io", "jobsets", "delete", JOBSET, wants_jobset, ""},
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
 * Asking
 */

static void add(const struct need *need, const struct kube_deed *deed, struct kube_questions *ret)
{
	struct kube_question *question = vec_push(ret);

	*question = (struct kube_question){.path = mem_strdup(KUBE_MAY_PATH),
		.body = kube_may_ask(deed),
		.subject = KUBE_RIGHTS_FROM + (int)(need - needs),
		.name = mem_strdup(deed->verb)};
}

static void ask_need(const struct need *need, const char *kube_namespace, const struct json *rules,
	struct kube_questions *ret)
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
		add(need, &deed, ret);
	}
}

void kube_rights_ask(
	const struct kube_run *run, const struct json *rules, struct kube_questions *ret)
{
	_Static_assert(ARRAY_LEN(needs) * VERBS_MAX <= KUBE_RIGHTS_MAX, "room for all");

	for (size_t i = 0; i < ARRAY_LEN(needs); i++)
		if (needs[i].applies(run))
			ask_need(&needs[i], run->kube_namespace, rules, ret);
}

/*
 * Judging
 */

/* Whether all of its verbs were asked for and refused; ret_why: what the server says of one. */
static bool is_missing(const struct need *need, const struct kube_questions *questions,
	const struct kube_reply *replies, const char **ret_why)
{
	bool asked = false;

	for (size_t i = 0; i < questions->n; i++) {
		const struct json *status = json_get(replies[i].object, "status");

		if (questions->v[i].subject != KUBE_RIGHTS_FROM + (int)(need - needs))
			continue;
		if (replies[i].status / 100 != 2 || json_get_bool(status, "allowed", true))
			return false;
		*ret_why = json_get_str(status, "reason");
		asked = true;
	}
	return asked;
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

static void find_missing(enum effect effect, const struct kube_run *run,
	const struct kube_questions *questions, const struct kube_reply *replies,
	struct missing *ret)
{
	const char *why = NULL;

	*ret = (struct missing){0};
	buf_init(&ret->deeds, TEXT_MAX);
	for (size_t i = 0; i < ARRAY_LEN(needs); i++) {
		if (needs[i].effect != effect || !needs[i].applies(run) ||
			!is_missing(&needs[i], questions, replies, &why))
			continue;
		AUTO_FREE char *deed = deed_text(&needs[i]);
		buf_addf(&ret->deeds, "%s%s", ret->lacks.n ? ", " : "", deed);
		strv_addf(&ret->lacks, "%s", needs[i].lack);
		if (!ret->why && !str_empty(why))
			ret->why = str_shown(why);
	}
}

static void refuse(
	const struct kube_run *run, const struct missing *missing, struct kube_findings *ret)
{
	struct err *err = vec_push(&ret->problems);

	err_set(err, E_KUBE_DENIED, "you may not %s in namespace %s", missing->deeds.data,
		run->kube_namespace);
	if (missing->why)
		err_evidence(err, "%s", missing->why);
	for (size_t i = 0; i < missing->lacks.n; i++)
		err_evidence(err, "%s", missing->lacks.v[i]);
	err_hint(err, "dlrun init --rbac   # prints the Role to ask for");
}

static void note(const struct kube_run *run, const struct missing *missing, struct strv *notes)
{
	AUTO_FREE char *lacks = strv_join(&missing->lacks, "; ");

	strv_addf(notes, "you may not %s in namespace %s: %s (dlrun init --rbac prints the Role)",
		missing->deeds.data, run->kube_namespace, lacks);
}

bool kube_rights_lack_jobset(
	const struct kube_questions *questions, const struct kube_reply *replies)
{
	const char *why;

	for (size_t i = 0; i < ARRAY_LEN(needs); i++)
		if (needs[i].effect == JOBSET && is_missing(&needs[i], questions, replies, &why))
			return true;
	return false;
}

void kube_rights_judge(const struct kube_run *run, const struct kube_questions *questions,
	const struct kube_reply *replies, bool found_jobset, struct kube_findings *ret)
{
	AUTO(missing_done) struct missing fatal, comfort, jobset;

	find_missing(FATAL, run, questions, replies, &fatal);
	find_missing(COMFORT, run, questions, replies, &comfort);
	find_missing(JOBSET, run, questions, replies, &jobset);
	if (fatal.lacks.n)
		refuse(run, &fatal, ret);
	if (comfort.lacks.n)
		note(run, &comfort, &ret->notes);
	if (jobset.lacks.n && found_jobset)
		strv_addf(&ret->notes,
			"it is a Job, and not a JobSet: you may not %s in namespace %s",
			jobset.deeds.data, run->kube_namespace);
}
