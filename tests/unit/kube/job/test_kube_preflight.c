/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/preflight.h"

enum { QUESTIONS_MAX = 64 };

static const char *const words[] = {"python", "train.py"};
static const struct strv command = {.v = (char **)words, .n = 2};

static struct kube_run plain(void)
{
	return (struct kube_run){.run_id = "a-23456",
		.job = "a-23456",
		.attempt = 1,
		.kube_namespace = "me",
		.image_ref = "x@sha256:0",
		.workdir = "/dlrun/src",
		.cwd = ".",
		.command = &command,
		.nodes = 1,
		.os = "linux",
		.arch = "amd64"};
}

/* What is asked and what is said of it: answers by a part of the path. */
struct flight {
	struct kube_questions questions;
	struct kube_reply replies[QUESTIONS_MAX];
	struct json *owned[QUESTIONS_MAX];
	struct kube_findings findings;
	const struct kube_growth *growth;
};

static void flight_done(struct flight *flight)
{
	kube_questions_done(&flight->questions);
	for (size_t i = 0; i < QUESTIONS_MAX; i++)
		json_free(flight->owned[i]);
	kube_findings_done(&flight->findings);
}
#define AUTO_FLIGHT AUTO(flight_done)
#define JOBSETS     "/jobset.x-k8s.io/v1alpha2/namespaces/me/jobsets"

static void query(struct flight *flight, const struct kube_run *run)
{
	*flight = (struct flight){0};
	kube_preflight_query(run, &flight->questions);
	assert_true(flight->questions.n <= QUESTIONS_MAX);
	for (size_t i = 0; i < flight->questions.n; i++)
		flight->replies[i].status = 200;
}

/* The question with that path. */
static size_t find(const struct flight *flight, const char *what)
{
	for (size_t i = 0; i < flight->questions.n; i++)
		if (str_ends(flight->questions.v[i].path, what))
			return i;
	fail_msg("nothing is asked of %s", what);
	return 0;
}

static void response(struct flight *flight, const char *what, int status, const char *text)
{
	size_t i = find(flight, what);

	flight->replies[i].status = status;
	if (!text)
		return;
	assert_int_equal(
		json_parse(text, strlen(text), JSON_SIZE_MAX, "test", &flight->owned[i], NULL), 0);
	flight->replies[i].object = flight->owned[i];
}

static void evaluate(struct flight *flight, const struct kube_run *run)
{
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_ERR struct err err = {0};

	if (kube_job_make(run, &objects, &err) < 0)
		fail_msg("%s", err.message);
	kube_preflight_evaluate(run, &objects, flight->growth, &flight->questions, flight->replies,
		&flight->findings);
}

static void check_problem(const struct flight *flight, size_t i, enum err_id id, const char *part)
{
	assert_true(i < flight->findings.problems.n);
	const struct err *err = &flight->findings.problems.v[i];
	assert_string_equal(err_info(err->id)->name, err_info(id)->name);
	if (!strstr(err->message, part))
		fail_msg("'%s' is not in: %s", part, err->message);
	if (id != E_KUBE_STORAGE)
		assert_non_null(err->hint);
}

static void check_note(const struct flight *flight, const char *part)
{
	for (size_t i = 0; i < flight->findings.notes.n; i++)
		if (strstr(flight->findings.notes.v[i], part))
			return;
	fail_msg("no note says '%s'", part);
}

static void test_plain(void **state)
{
	static const char *const paths[] = {"/apis/authentication.k8s.io/v1/selfsubjectreviews",
		"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "/api/v1/namespaces/me",
		"/api/v1/namespaces/me/resourcequotas",
		"/api/v1/namespaces/dlrun-system/configmaps/dlrun-autoscale", "/api/v1/nodes"};
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	query(&flight, &run);
	assert_int_equal(flight.questions.n, ARRAY_LEN(paths));
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		assert_string_equal(flight.questions.v[i].path, paths[i]);
	AUTO_BUF struct buf body;
	buf_init(&body, 4096);
	json_print(flight.questions.v[1].body, &body);
	assert_string_equal(body.data,
		"{\"apiVersion\":\"authorization.k8s.io/v1\",\"kind\":\"SelfSubjectRulesReview\","
		"\"spec\":{\"namespace\":\"me\"}}");
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 0);
	assert_int_equal(flight.findings.notes.n, 0);
}

static void test_nothing_known(void **state)
{
	static const int statuses[] = {0, 401, 403, 500, 503};
	struct kube_run run = plain();

	run.gpus = 1;
	run.queue = "q";
	run.nodes = 2;
	run.pull_secret = "p";
	run.service_account = "s";
	run.priority_class = "c";
	run.results = (struct kube_place){.kind = KUBE_PLACE_PVC, .name = "v"};
	for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
		AUTO_FLIGHT struct flight flight;
		query(&flight, &run);
		for (size_t j = 0; j < flight.questions.n; j++)
			flight.replies[j].status = statuses[i];
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, 0);
		check_note(&flight, "not known whether it fits on any node: ");
		check_note(&flight, "not known whether there is the volume claim v: ");
	}
}

/* Most users may not list nodes, and it matters only to those who ask for something. */
static void test_ordinary_runs_need_no_nodes(void **state)
{
	static const char review[] = "{\"status\":{\"userInfo\":{\"username\":\"alice\"}}}";
	struct kube_run run = plain();
	struct kube_surroundings found;
	AUTO_FLIGHT struct flight flight;
	AUTO_JSON struct json *who = NULL;

	assert_int_equal(json_parse(review, sizeof(review) - 1, 1000, "it", &who, NULL), 0);
	query(&flight, &run);
	for (size_t i = 0; i < flight.questions.n; i++)
		flight.replies[i].status = 403;
	flight.replies[0] = (struct kube_reply){201, who};
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 0);
	for (size_t i = 0; i < flight.findings.notes.n; i++)
		assert_null(strstr(flight.findings.notes.v[i], "node"));
	kube_preflight_surroundings(&flight.questions, flight.replies, &found);
	assert_string_equal(found.user, "alice");
}

#define RULES(rules) "{\"status\":{\"resourceRules\":[" rules "],\"incomplete\":false}}"
#define RULE(verbs, groups, resources)                                                             \
	"{\"verbs\":[" verbs "],\"apiGroups\":[" groups "],\"resources\":[" resources "]}"
static const char allowed[] = "{\"status\":{\"allowed\":true}}";
static const char denied[] = "{\"status\":{\"allowed\":false,\"reason\":\"no\\u001b[1m\"}}";

/* The review of that deed; -1: it is not asked for. */
static ptrdiff_t find_deed(const struct flight *flight, const char *verb, const char *resource)
{
	for (size_t i = 0; i < flight->questions.n; i++) {
		const struct json *what = json_get(
			json_get(flight->questions.v[i].body, "spec"), "resourceAttributes");
		const char *sub = json_get_str(what, "subresource");
		AUTO_FREE char *full = mem_printf(
			"%s%s%s", json_get_str(what, "resource"), sub ? "/" : "", sub ? sub : "");
		if (what && str_eq(full, resource) && str_eq(json_get_str(what, "verb"), verb))
			return (ptrdiff_t)i;
	}
	return -1;
}

static bool is_pod_connection(const struct flight *flight, size_t i)
{
	const struct json *what =
		json_get(json_get(flight->questions.v[i].body, "spec"), "resourceAttributes");
	const char *sub = json_get_str(what, "subresource");

	return str_eq(sub, "exec") || str_eq(sub, "portforward");
}

static void set_reply(struct flight *flight, size_t i, const char *text)
{
	json_free(flight->owned[i]);
	assert_int_equal(
		json_parse(text, strlen(text), JSON_SIZE_MAX, "test", &flight->owned[i], NULL), 0);
	flight->replies[i] = (struct kube_reply){201, flight->owned[i]};
}

/* All rules are known; what they do not grant is asked for, and allowed until it is denied. */
static void query_rights(
	struct flight *flight, const struct kube_run *run, int status, const char *rules)
{
	size_t i, n;

	query(flight, run);
	i = find(flight, "/selfsubjectrulesreviews");
	n = flight->questions.n;
	set_reply(flight, i, rules);
	flight->replies[i].status = status;
	kube_preflight_query_rights(
		run, &flight->questions.v[i], &flight->replies[i], &flight->questions);
	assert_true(flight->questions.n <= QUESTIONS_MAX);
	for (size_t j = n; j < flight->questions.n; j++)
		set_reply(flight, j, allowed);
}

static void deny(struct flight *flight, const char *verb, const char *resource)
{
	ptrdiff_t i = find_deed(flight, verb, resource);

	assert_true(i >= 0);
	set_reply(flight, (size_t)i, denied);
}

static void test_all_is_granted(void **state)
{
	static const char all[] = RULES(RULE("\"*\"", "\"*\"", "\"*\""));
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	query_rights(&flight, &run, 201, all);
	assert_int_equal(flight.questions.n, 6);
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n + flight.findings.notes.n, 0);
}

/* All that is missing and fatal is in one sentence, and all else in one note. */
static void test_rights(void **state)
{
	static char *pairs[] = {(char *)"A=b"};
	static const struct strv secrets = {.v = pairs, .n = 1};
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	run.nodes = 2;
	run.secret_env = &secrets;
	run.results = (struct kube_place){.kind = KUBE_PLACE_CLAIM, .size_bytes = 1};
	query_rights(&flight, &run, 403, "{}");
	deny(&flight, "create", "jobs");
	deny(&flight, "delete", "jobs");
	deny(&flight, "list", "jobs");
	deny(&flight, "create", "secrets");
	deny(&flight, "create", "persistentvolumeclaims");
	deny(&flight, "get", "pods/log");
	deny(&flight, "list", "events");
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 1);
	check_problem(&flight, 0, E_KUBE_DENIED,
		"you may not create jobs, delete jobs, create secrets, create "
		"persistentvolumeclaims in namespace me");
	assert_string_equal(flight.findings.problems.v[0].evidence[0], "no\\x1b[1m");
	assert_int_equal(flight.findings.notes.n, 1);
	check_note(&flight,
		"you may not get pods/log, list events in namespace me: its output cannot be shown; "
		"less is known of what it waits for (dlrun init --rbac prints the Role)");
}

static void test_rights_to_studies(void **state)
{
	struct kube_run run = plain();
	const struct kube_member members[] = {{run.command, NULL}, {run.command, NULL}};
	AUTO_FLIGHT struct flight flight, none;

	query_rights(&none, &run, 403, "{}");
	assert_int_equal(find_deed(&none, "create", "configmaps"), -1);
	run.members = members;
	run.n_members = 2;
	query_rights(&flight, &run, 403, "{}");
	deny(&flight, "create", "configmaps");
	deny(&flight, "delete", "pods");
	evaluate(&flight, &run);
	check_problem(&flight, 0, E_KUBE_DENIED, "you may not create configmaps in namespace me");
	check_note(&flight, "you may not delete pods in namespace me: single members that run "
			    "cannot be cancelled");
}

static void test_one_verb_of_two_is_enough(void **state)
{
	static const char gets[] = RULES(RULE("\"get\",\"create\",\"delete\",\"watch\"",
		"\"batch\"", "\"jobs\"") "," RULE("\"*\"", "\"\"", "\"*\""));
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight, other;

	query_rights(&flight, &run, 201, gets);
	assert_int_equal(flight.questions.n, 6);
	query_rights(&other, &run, 201, RULES(""));
	deny(&other, "get", "jobs");
	deny(&other, "list", "jobs");
	evaluate(&other, &run);
	check_problem(&other, 0, E_KUBE_DENIED, "you may not get or list jobs in namespace me");
}

static void answer_version(struct flight *flight, const char *version)
{
	AUTO_FREE char *text = mem_printf("{\"gitVersion\":\"%s\"}", version);
	size_t i = find(flight, "/version");

	set_reply(flight, i, text);
	flight->replies[i].status = 200;
}

/* Results that go to S3 are taken from there. */
static void test_rights_of_results_in_s3(void **state)
{
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	run.results = (struct kube_place){.kind = KUBE_PLACE_EMPTY};
	run.results_s3 = "s3://bucket/runs";
	query_rights(&flight, &run, 403, "{}");
	assert_true(find_deed(&flight, "get", "pods/exec") < 0);
}

/* From Kubernetes 1.35 on connections to pods by WebSocket need the right to create, too. */
static void test_connections_to_pods(void **state)
{
	static const uint16_t port = 8080;
	static const struct {
		const char *version;
		bool creates;
	} rows[] = {{"v1.34.9", false}, {"v1.35.0", true}, {"v1.35.1-eks-113cf36", true},
		{"v1.100.0", true}, {"v2.0.0", true}, {"1.36", false}, {"", false}};
	static const char both[] =
		RULES(RULE("\"get\",\"create\"", "\"\"", "\"pods/exec\",\"pods/portforward\""));
	struct kube_surroundings found;
	struct kube_run run = plain();

	run.results = (struct kube_place){.kind = KUBE_PLACE_EMPTY};
	run.code_apart = true;
	run.ports = &port;
	run.n_ports = 1;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FLIGHT struct flight flight;
		query_rights(&flight, &run, 403, "{}");
		answer_version(&flight, rows[i].version);
		for (size_t j = 0; j < flight.questions.n; j++)
			if (str_eq(flight.questions.v[j].name, "create") &&
				is_pod_connection(&flight, j))
				set_reply(&flight, j, denied);
		kube_preflight_surroundings(&flight.questions, flight.replies, &found);
		assert_int_equal(found.no_stream, rows[i].creates);
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, 0);
		assert_int_equal(flight.findings.notes.n, rows[i].creates);
		if (rows[i].creates)
			check_note(&flight,
				"you may not create pods/exec, create pods/portforward in namespace "
				"me: its results cannot be taken; its ports cannot be reached");
	}
	/* A server whose version is not known, and a right that nobody has to ask for. */
	AUTO_FLIGHT struct flight silent, granted;
	query_rights(&silent, &run, 403, "{}");
	silent.replies[find(&silent, "/version")].status = 0;
	deny(&silent, "create", "pods/exec");
	evaluate(&silent, &run);
	assert_int_equal(silent.findings.notes.n, 0);
	query_rights(&granted, &run, 201, both);
	for (size_t j = 0; j < granted.questions.n; j++)
		assert_false(str_eq(granted.questions.v[j].path, "/version"));
}

/* Who is not asked again, as nobody answers, is not refused. */
static void test_rights_unknown(void **state)
{
	static const int statuses[] = {0, 401};
	struct kube_run run = plain();

	for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
		AUTO_FLIGHT struct flight flight;
		query_rights(&flight, &run, statuses[i], "{}");
		assert_int_equal(flight.questions.n, 6);
	}
	AUTO_FLIGHT struct flight flight;
	query_rights(&flight, &run, 201, RULES(""));
	for (size_t j = 6; j < flight.questions.n; j++)
		flight.replies[j].status = 503;
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n + flight.findings.notes.n, 0);
}

static void test_rules(void **state)
{
	static const struct {
		const char *rules;
		bool jobs, logs;
	} rows[] = {
		{RULES(""), false, false},
		{"{}", false, false},
		{"{\"status\":{\"resourceRules\":[1,{},{\"verbs\":{}}]}}", false, false},
		{RULES(RULE("\"create\"", "\"batch\"", "\"jobs\"")), true, false},
		{RULES(RULE("\"*\"", "\"batch\"", "\"*\"")), true, false},
		{RULES(RULE("\"create\"", "\"\"", "\"jobs\"")), false, false},
		{RULES(RULE("\"get\"", "\"batch\"", "\"jobs\"")), false, false},
		{RULES(RULE("\"create\"", "\"batch\"", "\"jobs/status\"")), false, false},
		{RULES(RULE("\"get\"", "\"\"", "\"pods\"")), false, false},
		{RULES(RULE("\"get\"", "\"\"", "\"pods\",\"pods/log\"")), false, true},
		{RULES(RULE("\"get\"", "\"\"", "\"*\"")), false, true},
		{RULES(RULE("\"get\"", "\"\"", "\"*/log\"")), false, true},
		{RULES(RULE("\"get\"", "\"\"", "\"*/exec\"")), false, false},
		{RULES("{\"verbs\":[\"*\"],\"apiGroups\":[\"*\"],\"resources\":[\"*\"],"
		       "\"resourceNames\":[\"one\"]}"),
			false, false},
	};
	static const struct kube_deed jobs = {"me", "create", "batch", "jobs", NULL};
	static const struct kube_deed logs = {"me", "get", "", "pods", "log"};

	assert_false(kube_rules_grant(NULL, &jobs));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_JSON struct json *review = NULL;
		assert_int_equal(json_parse(rows[i].rules, strlen(rows[i].rules), JSON_SIZE_MAX,
					 "test", &review, NULL),
			0);
		assert_int_equal(kube_rules_grant(review, &jobs), rows[i].jobs);
		assert_int_equal(kube_rules_grant(review, &logs), rows[i].logs);
	}
}

/* One that could not be removed, or not be looked at, is a Job. */
static void test_rights_to_jobsets(void **state)
{
	static const char *const verbs[] = {"", "get", "delete"};

	for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
		for (int status = 201; status <= 404; status += 203) {
			struct kube_surroundings found;
			struct kube_run run = plain();
			AUTO_FLIGHT struct flight flight;

			run.nodes = 2;
			run.retries = 1;
			query_rights(&flight, &run, 201, RULES(""));
			flight.replies[find(&flight, JOBSETS)].status = status;
			if (*verbs[i])
				deny(&flight, verbs[i], "jobsets");
			if (str_eq(verbs[i], "get"))
				deny(&flight, "list", "jobsets");
			kube_preflight_surroundings(&flight.questions, flight.replies, &found);
			assert_int_equal(found.jobset, !*verbs[i] && status == 201);
			evaluate(&flight, &run);
			assert_int_equal(flight.findings.problems.n, 0);
			assert_int_equal(flight.findings.notes.n, *verbs[i] && status == 201);
		}
	}
}

static void test_surroundings(void **state)
{
	struct kube_run run = plain();
	struct kube_surroundings found;
	AUTO_FLIGHT struct flight flight;

	run.nodes = 2;
	run.retries = 1;
	query(&flight, &run);
	response(&flight, JOBSETS, 201, "{}");
	response(&flight, "/namespaces/me", 200,
		"{\"metadata\":{\"labels\":{\"pod-security.kubernetes.io/enforce\":"
		"\"restricted\"}}}");
	kube_preflight_surroundings(&flight.questions, flight.replies, &found);
	assert_string_equal(found.enforced, "restricted");
	assert_true(found.jobset);
	flight.replies[find(&flight, JOBSETS)].status = 404;
	flight.replies[find(&flight, "/namespaces/me")].object = NULL;
	kube_preflight_surroundings(&flight.questions, flight.replies, &found);
	assert_string_equal(found.enforced, "privileged");
	assert_false(found.jobset);
	flight.replies[find(&flight, "/namespaces/me")].status = 403;
	kube_preflight_surroundings(&flight.questions, flight.replies, &found);
	assert_null(found.enforced);
}

/* Asked by one that is made with all that is JobSet's own. */
static void test_jobset_question(void **state)
{
	static const struct {
		int nodes, retries;
		bool queries;
	} cases[] = {{2, 1, true}, {2, 0, false}, {1, 3, false}};
	static const struct {
		int status;
		const char *note;
	} responses[] = {{201, NULL}, {404, NULL}, {0, NULL}, {403, "you may not create jobsets"},
		{400, "older than"}, {422, "older than"}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_KUBE_QUESTIONS struct kube_questions questions = {0};
		struct kube_run run = plain();

		run.nodes = cases[i].nodes;
		run.retries = cases[i].retries;
		kube_preflight_query_jobset(&run, &questions);
		assert_int_equal(questions.n, cases[i].queries);
		if (!cases[i].queries)
			continue;
		assert_true(questions.v[0].is_dry_run);
		assert_string_equal(json_get_str(questions.v[0].body, "kind"), "JobSet");
		assert_non_null(strstr(questions.v[0].path, JOBSETS));
	}
	for (size_t i = 0; i < ARRAY_LEN(responses); i++) {
		struct kube_run run = plain();
		AUTO_FLIGHT struct flight flight;

		run.nodes = 2;
		run.retries = 1;
		query(&flight, &run);
		flight.replies[find(&flight, JOBSETS)].status = responses[i].status;
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, 0);
		if (responses[i].note)
			check_note(&flight, responses[i].note);
	}
}

/* A JobSet makes its own. */
static void test_services_of_jobsets(void **state)
{
	struct kube_run run = plain();

	run.nodes = 2;
	run.retries = 1;
	for (int jobset = 0; jobset < 2; jobset++) {
		AUTO_FLIGHT struct flight flight;

		run.jobset = false;
		query_rights(&flight, &run, 201, RULES(""));
		deny(&flight, "create", "services");
		run.jobset = jobset;
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, !jobset);
	}
}

/* The Job of all roles has a Service, though it be of one rank. */
static void test_service_of_one_role(void **state)
{
	static const struct strv none;
	static const struct kube_role roles[] = {
		{.name = "learner", .nodes = 1, .command = &command, .env = &none}};
	struct kube_run run = plain();

	run.roles = roles;
	for (run.n_roles = 0; run.n_roles < 2; run.n_roles++) {
		AUTO_FLIGHT struct flight flight;

		query_rights(&flight, &run, 201, RULES(""));
		if (run.n_roles)
			deny(&flight, "create", "services");
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, run.n_roles);
	}
}

static void test_missing(void **state)
{
	static const char gone[] = "{\"kind\":\"Status\",\"reason\":\"NotFound\"}";
	static const struct kube_mount data[] = {
		{.path = "a", .place = {.kind = KUBE_PLACE_PVC, .name = "results"}},
		{.path = "b", .place = {.kind = KUBE_PLACE_PVC, .name = "../datasets"}}};
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	run.queue = "gpu";
	run.pull_secret = "regcred";
	run.service_account = "trainer";
	run.priority_class = "high";
	run.results = data[0].place;
	run.data = data;
	run.n_data = 2;
	query(&flight, &run);
	response(&flight, "/namespaces/me", 404, gone);
	response(&flight, "/persistentvolumeclaims/results", 404, gone);
	response(&flight, "/persistentvolumeclaims/..%2Fdatasets", 404, gone);
	response(&flight, "/secrets/regcred", 404, gone);
	response(&flight, "/serviceaccounts/trainer", 404, gone);
	response(&flight, "/priorityclasses/high", 404, gone);
	response(&flight, "/localqueues/gpu", 404, gone);
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 7);
	check_problem(&flight, 0, E_KUBE_NOT_FOUND, "no namespace me");
	check_problem(&flight, 1, E_KUBE_NOT_FOUND, "namespace me has no claim 'results'");
	check_problem(&flight, 3, E_KUBE_NOT_FOUND, "Secret 'regcred'");
	check_problem(&flight, 4, E_KUBE_NOT_FOUND, "service account 'trainer'");
	check_problem(&flight, 5, E_KUBE_NOT_FOUND, "no priority class 'high'");
	check_problem(&flight, 6, E_KUBE_NOT_FOUND, "no queue 'gpu'");
}

static void test_states(void **state)
{
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	run.nodes = 2;
	run.queue = "gpu";
	run.pull_secret = "regcred";
	run.results = (struct kube_place){.kind = KUBE_PLACE_PVC, .name = "results"};
	query(&flight, &run);
	response(&flight, "/namespaces/me", 200, "{\"status\":{\"phase\":\"Terminating\"}}");
	response(&flight, "/persistentvolumeclaims/results", 200,
		"{\"spec\":{\"accessModes\":[\"ReadWriteOnce\"]},\"status\":{\"phase\":\"Lost\"}}");
	response(&flight, "/secrets/regcred", 200, "{\"type\":\"Opaque\"}");
	response(&flight, "/apis/kueue.x-k8s.io", 404, NULL);
	response(&flight, "/localqueues/gpu", 404, NULL);
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 3);
	assert_non_null(strstr(flight.findings.problems.v[0].message, "is being deleted"));
	check_problem(&flight, 1, E_KUBE_STORAGE, "has lost its volume");
	check_problem(&flight, 2, E_KUBE_NOT_FOUND, "no Kueue");
	check_note(&flight, "for one node at a time (ReadWriteOnce): all 2 must fit on one");
	check_note(&flight, "Secret regcred is of type Opaque");
}

/* A claim that is written: that of results and that of caches, not one that a program may read. */
static void test_claims_that_are_written(void **state)
{
	static const char reads[] = "{\"spec\":{\"accessModes\":[\"ReadOnlyMany\"]}}";
	static const char both[] =
		"{\"spec\":{\"accessModes\":[\"ReadOnlyMany\",\"ReadWriteMany\"]}}";
	static const char one[] = "{\"spec\":{\"accessModes\":[\"ReadWriteOnce\"]}}";
	struct kube_mount volumes[] = {{.path = "/caches",
					       .is_shared = true,
					       .place = {.kind = KUBE_PLACE_PVC, .name = "caches"}},
		{.path = "/sets", .place = {.kind = KUBE_PLACE_PVC, .name = "sets"}}};
	struct kube_run run = plain();

	run.volumes = volumes;
	run.n_volumes = 2;
	run.results = (struct kube_place){.kind = KUBE_PLACE_PVC, .name = "results"};
	{
		AUTO_FLIGHT struct flight flight;
		query(&flight, &run);
		response(&flight, "/persistentvolumeclaims/caches", 200, reads);
		response(&flight, "/persistentvolumeclaims/results", 200, reads);
		response(&flight, "/persistentvolumeclaims/sets", 200, reads);
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, 2);
		check_problem(&flight, 0, E_KUBE_STORAGE,
			"claim results can only be read (ReadOnlyMany), and results: is written");
		check_problem(&flight, 1, E_KUBE_STORAGE,
			"claim caches can only be read (ReadOnlyMany), and caches: is written");
	}
	{
		AUTO_FLIGHT struct flight flight;
		query(&flight, &run);
		response(&flight, "/persistentvolumeclaims/caches", 200,
			"{\"spec\":{\"accessModes\":[1]}}");
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, 0);
	}
	AUTO_FLIGHT struct flight flight;
	query(&flight, &run);
	response(&flight, "/persistentvolumeclaims/caches", 200, one);
	response(&flight, "/persistentvolumeclaims/results", 200, both);
	response(&flight, "/persistentvolumeclaims/sets", 200, one);
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 0);
	check_note(&flight, "claim caches is for one node at a time (ReadWriteOnce): runs that");
}

static void test_queue(void **state)
{
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	run.queue = "gpu";
	query(&flight, &run);
	response(&flight, "/localqueues/gpu", 200,
		"{\"status\":{\"conditions\":[{\"type\":\"Active\",\"status\":\"False\","
		"\"message\":\"ClusterQueue is\\nstopped\"}]}}");
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 0);
	check_note(&flight, "queue gpu admits nothing now: ClusterQueue is\\nstopped");
}

#define NODE(arch, gpus)                                                                           \
	"{\"metadata\":{\"name\":\"n\",\"labels\":{\"kubernetes.io/os\":\"linux\","                \
	"\"kubernetes.io/arch\":\"" arch "\"}},\"spec\":{},\"status\":{\"conditions\":["           \
	"{\"type\":\"Ready\",\"status\":\"True\"}],\"allocatable\":{\"cpu\":\"8\",\"memory\":"     \
	"\"64Gi\",\"pods\":\"110\",\"ephemeral-storage\":\"100Gi\",\"nvidia.com/gpu\":\"" gpus     \
	"\"}}}"

static void test_fit(void **state)
{
	static const char nodes[] = "{\"items\":[" NODE("amd64", "4") "," NODE("amd64", "2") "]}";
	static const struct {
		int gpus;
		uint64_t memory_gib;
		const char *arch;
		enum err_id id; /* E_NONE: it fits */
		const char *part;
	} cases[] = {
		{4, 0, "amd64", E_NONE, NULL},
		{5, 0, "amd64", E_SCHED_IMPOSSIBLE, "5"},
		{0, 64, "amd64", E_NONE, NULL},
		{0, 65, "amd64", E_SCHED_IMPOSSIBLE, "64Gi"},
		{0, 0, "arm64", E_SCHED_ARCH, "arm64"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct kube_run run = plain();
		AUTO_FLIGHT struct flight flight;

		run.gpus = cases[i].gpus;
		run.memory_bytes = cases[i].memory_gib << 30;
		run.arch = cases[i].arch;
		query(&flight, &run);
		response(&flight, "/api/v1/nodes", 200, nodes);
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, cases[i].id != E_NONE);
		if (cases[i].id != E_NONE)
			check_problem(&flight, 0, cases[i].id, cases[i].part);
	}
}

/* A run that no node holds is no problem where one that holds it is bought, or may be. */
static void test_a_cluster_that_grows(void **state UNUSED)
{
	static const char nodes[] = "{\"items\":[" NODE("amd64", "4") "]}";
	static const char pool[] = "{\"items\":[{\"metadata\":{\"name\":\"n\",\"labels\":{"
				   "\"eks.amazonaws.com/nodegroup\":\"a\"}},\"status\":"
				   "{\"allocatable\":{\"cpu\":\"4\"}}}]}";
	static char gpu_a[] = "gpu-a", *reasons[] = {"gpu-a: a machine of it has 8 GPUs, not 9"};
	static const struct {
		int gpus;
		const char *nodes;
		struct kube_growth growth;
		const char *note, *evidence; /* NULL: none; evidence: of a problem */
	} cases[] = {
		{8, nodes,
			{.applies = true,
				.group = gpu_a,
				.updated_ms = 1000,
				.expected_ms = 181000,
				.price = 32.77},
			"no node is there that could run it: one of group gpu-a is bought (about 3 "
			"min, 32.77 an hour)",
			NULL},
		{8, nodes, {.applies = true, .group = gpu_a, .price = -1},
			"one of group gpu-a is bought", NULL},
		{8, pool, {.applies = true, .group = gpu_a, .price = -1},
			"one of group gpu-a is bought", NULL},
		{9, nodes, {.applies = true, .reasons = {.v = reasons, .n = 1}}, NULL,
			"no node is bought of gpu-a: a machine of it has 8 GPUs, not 9"},
		{9, nodes, {.applies = true, .may_later = true}, NULL, NULL},
		{8, nodes, {.group = gpu_a}, NULL,
			"would buy a node of group gpu-a, but only plans"},
		{8, nodes, {.applies = true, .is_silent = true, .group = gpu_a}, NULL,
			"has been silent since 1970-01-01 00:00 UTC"},
		{4, nodes, {.applies = true, .group = gpu_a}, NULL, NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct kube_run run = plain();
		AUTO_FLIGHT struct flight flight;

		run.gpus = cases[i].gpus;
		query(&flight, &run);
		flight.growth = &cases[i].growth;
		response(&flight, "/api/v1/nodes", 200, cases[i].nodes);
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n, cases[i].evidence != NULL);
		if (cases[i].note)
			check_note(&flight, cases[i].note);
		else
			assert_int_equal(flight.findings.notes.n, 0);
		if (!cases[i].evidence)
			continue;
		check_problem(&flight, 0, E_SCHED_IMPOSSIBLE, "no node has");
		const struct err *err = &flight.findings.problems.v[0];
		bool is_there = false;
		for (size_t k = 0; k < err->n_evidence; k++)
			is_there |= strstr(err->evidence[k], cases[i].evidence) != NULL;
		assert_true(is_there);
	}
}

/* What the ConfigMap of the autoscaler is; that nobody may read it is not said. */
static void test_the_map_of_the_autoscaler(void **state UNUSED)
{
	static const struct {
		int status;
		const char *text;
		bool is_there;
	} cases[] = {{403, "{}", false}, {404, "{}", false}, {0, NULL, false}, {200, "{}", true}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct kube_run run = plain();
		AUTO_FLIGHT struct flight flight;
		struct kube_surroundings found;

		query(&flight, &run);
		response(&flight, "/dlrun-system/configmaps/dlrun-autoscale", cases[i].status,
			cases[i].text);
		kube_preflight_surroundings(&flight.questions, flight.replies, &found);
		assert_int_equal(found.growth_status, cases[i].status);
		assert_int_equal(found.growth != NULL, cases[i].is_there);
		evaluate(&flight, &run);
		assert_int_equal(flight.findings.problems.n + flight.findings.notes.n, 0);
	}
}

static void test_gang_fit(void **state)
{
	static const char nodes[] = "{\"items\":[" NODE("amd64", "4") "]}";
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	run.nodes = 2;
	run.gpus = 8;
	run.jobset = true;
	query(&flight, &run);
	response(&flight, "/api/v1/nodes", 200, nodes);
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 1);
	check_problem(&flight, 0, E_SCHED_IMPOSSIBLE, "8");
}

static void test_quota(void **state)
{
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	run.nodes = 3;
	run.gpus = 2;
	run.memory_bytes = 1ULL << 30;
	run.cpu_milli = 1500;
	query(&flight, &run);
	response(&flight, "/resourcequotas", 200,
		"{\"items\":[{\"metadata\":{\"name\":\"small\"},\"status\":{\"hard\":{"
		"\"requests.nvidia.com/gpu\":\"5\",\"requests.cpu\":\"4500m\","
		"\"requests.memory\":\"2Gi\"}}},"
		"{\"metadata\":{\"name\":\"other\"},\"spec\":{\"scopes\":[\"BestEffort\"]},"
		"\"status\":{\"hard\":{\"cpu\":\"0\"}}}]}");
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 2);
	check_problem(&flight, 0, E_SCHED_QUOTA,
		"namespace me may never use so much nvidia.com/gpu: its quota small allows 5");
	check_problem(&flight, 1, E_SCHED_QUOTA, "memory: its quota small allows 2Gi");
}

/* They can run one after another. */
static void test_quota_of_a_study(void **state)
{
	struct kube_run run = plain();
	const struct kube_member members[] = {{run.command, NULL}, {run.command, NULL}};
	AUTO_FLIGHT struct flight flight;

	run.members = members;
	run.n_members = 2;
	run.gpus = 1;
	query(&flight, &run);
	response(&flight, "/resourcequotas", 200,
		"{\"items\":[{\"metadata\":{\"name\":\"small\"},\"status\":{\"hard\":{"
		"\"requests.nvidia.com/gpu\":\"1\"}}}]}");
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 0);
}

static void test_quota_unsaid(void **state)
{
	struct kube_run run = plain();
	AUTO_FLIGHT struct flight flight;

	run.cpu_milli = 1000;
	query(&flight, &run);
	response(&flight, "/resourcequotas", 200,
		"{\"items\":[{\"metadata\":{\"name\":\"q\"},\"status\":{\"hard\":{"
		"\"requests.cpu\":\"4\",\"limits.cpu\":\"4\",\"limits.memory\":\"2Gi\"}}}]}");
	evaluate(&flight, &run);
	assert_int_equal(flight.findings.problems.n, 0);
	assert_int_equal(flight.findings.notes.n, 2);
	check_note(&flight, "quota q counts limits.cpu, and the run does not say it (overlay:)");
	check_note(&flight, "quota q counts limits.memory, and the run does not say it (--memory)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_nothing_known),
		cmocka_unit_test(test_ordinary_runs_need_no_nodes),
		cmocka_unit_test(test_all_is_granted),
		cmocka_unit_test(test_rights),
		cmocka_unit_test(test_rights_to_studies),
		cmocka_unit_test(test_one_verb_of_two_is_enough),
		cmocka_unit_test(test_connections_to_pods),
		cmocka_unit_test(test_rights_of_results_in_s3),
		cmocka_unit_test(test_rights_unknown),
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_rights_to_jobsets),
		cmocka_unit_test(test_surroundings),
		cmocka_unit_test(test_jobset_question),
		cmocka_unit_test(test_services_of_jobsets),
		cmocka_unit_test(test_service_of_one_role),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_states),
		cmocka_unit_test(test_claims_that_are_written),
		cmocka_unit_test(test_queue),
		cmocka_unit_test(test_fit),
		cmocka_unit_test(test_a_cluster_that_grows),
		cmocka_unit_test(test_the_map_of_the_autoscaler),
		cmocka_unit_test(test_gang_fit),
		cmocka_unit_test(test_quota),
		cmocka_unit_test(test_quota_of_a_study),
		cmocka_unit_test(test_quota_unsaid),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
