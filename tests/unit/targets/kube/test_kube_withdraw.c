/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/attempt/attempt.h"
#include "targets/kube/kube_reconcile.h"
#include "tests/unit/kubetarget.h"

/*
 * Taking back a Job that waits, in a cluster whose scheduler gives its pod a node at any moment and
 * whose node begins what has a gate, while requests are lost, come late or end their client. What
 * is taken back never ran; what is not runs once.
 */

#define STATUS(code, reason)                                                                       \
	"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"reason\":\"" reason   \
	"\",\"message\":\"no\",\"code\":" #code "}"
#define OK "{\"kind\":\"Status\",\"status\":\"Success\"}"

enum way {
	WORKS,
	DIES_BEFORE, /* the client goes away, the request has no effect */
	DIES_AFTER,  /* it has one */
	IS_LOST,     /* it has one, the answer does not come */
	COMES_LATE,  /* the client goes away, and it has one some requests later */
};

enum pod { NO_POD, POD_WAITS, POD_HAS_NODE };

/* The cluster. */
static struct {
	pthread_mutex_t lock;
	bool has_job, has_gate, has_begun, is_ungated;
	int version, gate_uid;
	enum pod pod;
	int n_requests, bind_at, fault_at;
	enum way way;
	char late_method[16], late_path[1024], late_body[1024];
	int late_by, late_at; /* 0: none */
	int n_runs, n_killed;
	const char *status, *notes; /* of the Job, of its pod */
	bool is_dead;               /* of the client */
} cluster = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What scheduler, node and garbage collector do between two requests. */
static void cluster_turn(void)
{
	if (cluster.bind_at && cluster.n_requests >= cluster.bind_at && cluster.has_job &&
		cluster.pod == POD_WAITS)
		cluster.pod = POD_HAS_NODE;
	if (cluster.pod == POD_HAS_NODE && cluster.has_gate && !cluster.has_begun) {
		cluster.has_begun = true;
		cluster.n_runs++;
	}
	if (!cluster.has_job)
		cluster.pod = NO_POD;
}

static int act_delete(const char *path, const char *body)
{
	AUTO_FREE char *version = mem_printf("\"resourceVersion\":\"%d\"", cluster.version);
	AUTO_FREE char *uid = mem_printf("\"uid\":\"g%d\"", cluster.gate_uid);

	if (strstr(path, "/configmaps/")) {
		if (!cluster.has_gate)
			return 404;
		if (!strstr(body, uid))
			return 409;
		cluster.has_gate = false;
	} else if (strstr(path, "/jobs/" JOB)) {
		if (!cluster.has_job)
			return 404;
		if (!strstr(body, version))
			return 409;
		cluster.has_job = false;
		cluster.n_killed += cluster.has_begun;
	}
	return 200;
}

static int act(const char *method, const char *path, const char *body)
{
	bool is_gate = strstr(path, "/configmaps");

	if (str_eq(method, "DELETE"))
		return act_delete(path, body);
	if (str_eq(method, "PATCH")) {
		if (!cluster.has_job)
			return 404;
		cluster.version++;
	}
	if (str_eq(method, "POST")) {
		if (cluster.has_gate)
			return 409;
		assert_non_null(strstr(body, "\"ownerReferences\""));
		cluster.has_gate = true;
		cluster.gate_uid++;
	}
	if (str_eq(method, "GET") && strstr(path, "/jobs/" JOB) && !is_gate && !cluster.has_job)
		return 404;
	if (str_eq(method, "GET") && is_gate && !cluster.has_gate)
		return 404;
	return 200;
}

/* The caller frees. */
static char *text_of(const char *path)
{
	static const char *const pods[] = {[NO_POD] = "",
		[POD_WAITS] = "",
		[POD_HAS_NODE] = "{\"metadata\":{\"name\":\"p\"},\"spec\":{\"nodeName\":\"n\"}}"};
	static const char begun[] =
		"{\"metadata\":{\"name\":\"p\"},\"spec\":{\"nodeName\":\"n\"},\"status\":"
		"{\"containerStatuses\":[{\"name\":\"program\",\"state\":{\"running\":{}}}]}}";

	if (strstr(path, "/pods") && cluster.pod == POD_WAITS)
		return mem_printf(
			"{\"metadata\":{\"resourceVersion\":\"8\"},\"items\":[{\"metadata\":{"
			"\"name\":\"p\",\"annotations\":{%s}},\"spec\":{}}]}",
			cluster.notes);
	if (strstr(path, "/pods"))
		return mem_printf("{\"metadata\":{\"resourceVersion\":\"8\"},\"items\":[%s]}",
			cluster.has_begun && cluster.pod == POD_HAS_NODE ? begun
									 : pods[cluster.pod]);
	if (strstr(path, "/configmaps/"))
		return mem_printf("{\"metadata\":{\"uid\":\"g%d\"}}", cluster.gate_uid);
	return mem_printf("{\"apiVersion\":\"batch/v1\",\"kind\":\"Job\",\"metadata\":{\"name\":"
			  "\"" JOB
			  "\",\"uid\":\"u\",\"resourceVersion\":\"%d\",\"creationTimestamp\":"
			  "\"2026-01-01T00:00:00Z\",\"annotations\":%s},\"status\":{%s}}",
		cluster.version,
		cluster.is_ungated ? "{}" : "{\"dlrun.io/gate\":\"" JOB "-begin\"}",
		cluster.status);
}

static void come_late(void)
{
	if (!cluster.late_at || cluster.n_requests < cluster.late_at)
		return;
	cluster.late_at = 0;
	act(cluster.late_method, cluster.late_path, cluster.late_body);
}

static bool respond(struct fix_conn *conn, int status)
{
	AUTO_FREE char *text = text_of(conn->path);

	if (status == 404)
		return print_json(conn, 404, STATUS(404, "NotFound"));
	if (status == 409)
		return print_json(conn, 409,
			str_eq(conn->method, "POST") ? STATUS(409, "AlreadyExists")
						     : STATUS(409, "Conflict"));
	return print_json(conn, 200, str_eq(conn->method, "DELETE") ? OK : text);
}

static void keep_for_later(const struct fix_conn *conn, const char *body)
{
	snprintf(cluster.late_method, sizeof(cluster.late_method), "%s", conn->method);
	snprintf(cluster.late_path, sizeof(cluster.late_path), "%s", conn->path);
	snprintf(cluster.late_body, sizeof(cluster.late_body), "%s", body);
	cluster.late_at = cluster.n_requests + cluster.late_by;
}

static bool on_request(struct fix_conn *conn)
{
	AUTO_FREE char *body = fix_body(conn);
	int status = 0;

	pthread_mutex_lock(&cluster.lock);
	cluster.n_requests++;
	cluster_turn();
	come_late();
	enum way way = cluster.n_requests == cluster.fault_at ? cluster.way : WORKS;
	if (way == COMES_LATE)
		keep_for_later(conn, body);
	else if (way != DIES_BEFORE)
		status = act(conn->method, conn->path, body);
	cluster_turn();
	cluster.is_dead |= way == DIES_BEFORE || way == DIES_AFTER || way == COMES_LATE;
	bool r = way == WORKS && respond(conn, status);
	pthread_mutex_unlock(&cluster.lock);
	if (way == IS_LOST)
		fix_reset(conn);
	else if (way != WORKS)
		fix_wait_end(conn);
	return r;
}

static bool is_dead(void)
{
	pthread_mutex_lock(&cluster.lock);
	bool dead = cluster.is_dead;
	pthread_mutex_unlock(&cluster.lock);
	return dead;
}

static void cluster_init(void)
{
	cluster.has_job = cluster.has_gate = true;
	cluster.has_begun = cluster.is_ungated = cluster.is_dead = false;
	cluster.version = 7;
	cluster.gate_uid = 1;
	cluster.pod = POD_WAITS;
	cluster.n_requests = cluster.bind_at = cluster.fault_at = cluster.late_at = 0;
	cluster.way = WORKS;
	cluster.status = cluster.notes = "";
	cluster.n_runs = cluster.n_killed = 0;
}

/*
 * The client
 */

static const struct kube_handle *handle_of(struct place *place)
{
	static struct kube_handle handle;

	assert_int_equal(
		kube_handle_parse(target_kube_of(place->target), place->handle, &handle, NULL), 0);
	return &handle;
}

static void begin(struct place *place)
{
	cluster_init();
	place_init(place, on_request);
	AUTO_FREE char *dir = dirs_run(&place->session.dirs, JOB);
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(lock, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	kube_annotation_accepted(target_kube_of(place->target), handle_of(place), true);
}

/* 0: answered; 1: the client died. */
static int withdraw(struct place *place, bool *ret_taken, struct err *ret_error)
{
	WAITED(call, place);

	call.call.deadline_ms = clock_ms() + 20000;
	assert_int_equal(place->target->ops->withdraw(
				 place->target, place->handle, ret_taken, &call.call, NULL),
		0);
	for (int i = 0; i < 4000 && !call.over && !is_dead(); i++)
		run_for(place, 5);
	assert_true(call.over || is_dead());
	if (call.over && call.status < 0)
		err_move(ret_error, &call.err);
	return call.over ? call.status : 1;
}

/* Until somebody hears what it is. */
static bool withdraw_at_last(struct place *place)
{
	bool taken = false;

	for (int i = 0; i < 10; i++) {
		AUTO_ERR struct err error = {0};

		if (withdraw(place, &taken, &error) == 0)
			return taken;
		place_close(place);
		place_open(place);
		cluster.is_dead = false;
	}
	fail_msg("no answer");
	return false;
}

static void pass_time(void)
{
	pthread_mutex_lock(&cluster.lock);
	cluster.n_requests += 100;
	come_late();
	cluster.bind_at = 1;
	cluster_turn();
	cluster_turn();
	pthread_mutex_unlock(&cluster.lock);
}

/*
 * Tests
 */

enum { REQUESTS = 7, LATE_STEP = 1, LATE_MAX = 8 };

static void once(int bind_at, int fault_at, enum way way, int late_by, int count[static 2])
{
	AUTO_PLACE struct place place;

	begin(&place);
	cluster.bind_at = bind_at;
	cluster.fault_at = fault_at;
	cluster.way = way;
	cluster.late_by = late_by;
	bool taken = withdraw_at_last(&place);
	assert_int_equal(withdraw_at_last(&place), taken);
	pass_time();
	if (cluster.n_runs + taken != 1 || cluster.n_killed || cluster.has_job == taken)
		fail_msg("node at request %d, way %d at %d (late by %d): ran %d times, %s, %d "
			 "killed, gate %d",
			bind_at, way, fault_at, late_by, cluster.n_runs, taken ? "taken" : "stays",
			cluster.n_killed, cluster.has_gate);
	count[taken]++;
}

static void test_once_whatever_dies(void **state)
{
	int count[2] = {0};

	for (int bind_at = 0; bind_at <= REQUESTS + 2; bind_at++) {
		once(bind_at, 0, WORKS, 0, count);
		for (int fault_at = 1; fault_at <= REQUESTS; fault_at++) {
			for (enum way way = DIES_BEFORE; way < COMES_LATE; way++)
				once(bind_at, fault_at, way, 0, count);
			for (int late_by = 1; late_by <= LATE_MAX; late_by += LATE_STEP)
				once(bind_at, fault_at, COMES_LATE, late_by, count);
		}
	}
	assert_true(count[false] > 100 && count[true] > 100);
}

static void test_what_runs_stays(void **state)
{
	AUTO_PLACE struct place place;

	begin(&place);
	cluster.bind_at = 1;
	assert_false(withdraw_at_last(&place));
	assert_true(cluster.has_job && cluster.has_gate);
	assert_int_equal(cluster.n_runs, 1);
}

/* Pods that had begun are not there any more. */
static void test_what_had_begun_stays(void **state)
{
#define SUSPENDED(time)                                                                            \
	"\"conditions\":[{\"type\":\"Suspended\",\"status\":\"True\","                             \
	"\"lastTransitionTime\":\"2026-01-01T" time "Z\"}]"
	static const struct {
		const char *status, *notes;
		bool is_taken;
	} cases[] = {
		{"\"failed\":1", "", false},
		{"\"restarts\":1", "", false},
		{"", "\"batch.kubernetes.io/job-index-failure-count\":\"1\"", false},
		{"", "\"batch.kubernetes.io/job-index-ignored-failure-count\":\"2\"", false},
		{SUSPENDED("00:00:01"), "", true},
		{SUSPENDED("04:00:00"), "", false},
		{"\"failed\":0", "\"batch.kubernetes.io/job-index-failure-count\":\"0\"", true},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_PLACE struct place place;

		begin(&place);
		cluster.status = cases[i].status;
		cluster.notes = cases[i].notes;
		assert_int_equal(withdraw_at_last(&place), cases[i].is_taken);
		assert_int_equal(cluster.has_job && cluster.has_gate, !cases[i].is_taken);
	}
}

static void test_a_job_without_a_gate(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err error = {0};
	bool taken = false;

	begin(&place);
	cluster.is_ungated = true;
	assert_true(withdraw(&place, &taken, &error) < 0);
	assert_int_equal(error.id, E_TARGET_UNSUPPORTED);
	assert_true(cluster.has_job);
}

/* Somebody else has removed it: nobody knows whether it had begun. */
static void test_a_job_that_is_lost(void **state)
{
	AUTO_PLACE struct place place;

	begin(&place);
	cluster.has_job = false;
	assert_false(withdraw_at_last(&place));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_runs_stays),
		cmocka_unit_test(test_what_had_begun_stays),
		cmocka_unit_test(test_a_job_without_a_gate),
		cmocka_unit_test(test_a_job_that_is_lost),
		cmocka_unit_test(test_once_whatever_dies),
	};

	return cmocka_run_group_tests_name("kube_withdraw", tests, NULL, NULL);
}
