/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "core/attempt/attempt.h"
#include "targets/kube/kube_reconcile.h"
#include "targets/kube/kube_facts.h"
#include "tests/unit/kubetarget.h"
#include "tests/unit/kubewanted.h"

/*
 * What is left of a submit or a cancel that ended in the middle, in a cluster that keeps what it
 * was sent: a Job is never without what goes with it, and nothing stays without a Job.
 */

#define UID "0e-1"
#define OK  "{\"kind\":\"Status\",\"status\":\"Success\"}"
#define STATUS(code, reason)                                                                       \
	"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"reason\":\"" reason   \
	"\",\"message\":\"no\",\"code\":" #code "}"

enum kind { A_JOB, A_SECRET, A_SERVICE, KINDS };

/* Below namespace jobs. */
static const char *const plurals[KINDS] = {"/jobs/jobs", "/jobs/secrets", "/jobs/services"};

enum way {
	WORKS,
	DIES_BEFORE, /* the client goes away, the request has no effect */
	DIES_AFTER,  /* it has one */
	IS_LOST,     /* it has one, the answer does not come */
	IS_REFUSED,
	FAILS,
};

/* The cluster. */
static struct {
	pthread_mutex_t lock;
	struct json *objects[KINDS];
	bool owned[KINDS];  /* by the Job, which takes them with it */
	bool is_naked;      /* the Job was seen without something that goes with it */
	const char *method; /* of the request that something happens to, once */
	enum kind kind;
	enum way way;
	int n_deletes;
	bool is_dead; /* of the client */
} cluster = {.lock = PTHREAD_MUTEX_INITIALIZER};

static enum kind kind_of(const char *path)
{
	for (enum kind kind = A_JOB; kind < KINDS; kind++)
		if (strstr(path, plurals[kind]))
			return kind;
	return KINDS;
}

static void drop(enum kind kind)
{
	json_free(TAKE(cluster.objects[kind]));
	cluster.owned[kind] = false;
}

static bool create(enum kind kind, const char *body)
{
	if (cluster.objects[kind])
		return false;
	assert_int_equal(
		json_parse(body, strlen(body), 1 << 20, "it", &cluster.objects[kind], NULL), 0);
	json_set_str(json_sub(cluster.objects[kind], "metadata"), "uid", UID);
	json_set_str(json_sub(cluster.objects[kind], "metadata"), "resourceVersion", "7");
	return true;
}

static bool change(enum kind kind, const char *body)
{
	if (!cluster.objects[kind])
		return false;
	assert_non_null(strstr(body, "\"uid\":\"" UID "\""));
	cluster.owned[kind] = true;
	return true;
}

static bool delete (enum kind kind)
{
	bool was = cluster.objects[kind];

	cluster.n_deletes++;
	drop(kind);
	for (enum kind other = A_SECRET; kind == A_JOB && other < KINDS; other++)
		if (cluster.owned[other])
			drop(other);
	return was;
}

static void poll_for_need(void)
{
	if (cluster.objects[A_JOB] && !(cluster.objects[A_SECRET] && cluster.objects[A_SERVICE]))
		cluster.is_naked = true;
}

/* The caller frees. */
static char *object_text(enum kind kind)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	json_print(cluster.objects[kind], &out);
	return buf_take(&out);
}

static char *list_text(enum kind kind)
{
	AUTO_FREE char *item =
		kind < KINDS && cluster.objects[kind] ? object_text(kind) : mem_strdup("");

	return mem_printf("{\"metadata\":{\"resourceVersion\":\"8\"},\"items\":[%s]}", item);
}

static bool act(struct fix_conn *conn, const char *body)
{
	enum kind kind = kind_of(conn->path);
	bool done = true;

	if (str_eq(conn->method, "POST"))
		done = create(kind, body);
	else if (str_eq(conn->method, "PATCH"))
		done = change(kind, body);
	else if (str_eq(conn->method, "DELETE"))
		done = delete (kind);
	poll_for_need();
	return done;
}

static bool response(struct fix_conn *conn, bool done)
{
	enum kind kind = kind_of(conn->path);
	bool is_list = strchr(conn->path, '?') && str_eq(conn->method, "GET");

	if (!done && str_eq(conn->method, "POST"))
		return print_json(conn, 409, STATUS(409, "AlreadyExists"));
	if (!is_list && (!done || (kind < KINDS && !cluster.objects[kind] &&
					  !str_eq(conn->method, "DELETE"))))
		return print_json(conn, 404, STATUS(404, "NotFound"));
	AUTO_FREE char *text = is_list                                 ? list_text(kind)
			       : kind < KINDS && cluster.objects[kind] ? object_text(kind)
								       : mem_strdup(OK);
	return print_json(conn, 200, text);
}

static bool is_meant(const struct fix_conn *conn)
{
	return cluster.way != WORKS && str_eq(conn->method, cluster.method) &&
	       kind_of(conn->path) == cluster.kind;
}

static bool on_request(struct fix_conn *conn)
{
	AUTO_FREE char *body = fix_body(conn);

	pthread_mutex_lock(&cluster.lock);
	enum way way = is_meant(conn) ? cluster.way : WORKS;
	if (way == WORKS || way == DIES_AFTER || way == IS_LOST) {
		bool done = act(conn, body);
		bool r = way == WORKS && response(conn, done);
		if (way != WORKS)
			cluster.way = WORKS;
		cluster.is_dead |= way == DIES_AFTER;
		pthread_mutex_unlock(&cluster.lock);
		if (way == DIES_AFTER)
			fix_wait_end(conn);
		if (way == IS_LOST)
			fix_reset(conn);
		return r;
	}
	if (way == DIES_BEFORE) {
		cluster.is_dead = true;
		cluster.way = WORKS;
	}
	pthread_mutex_unlock(&cluster.lock);
	if (way == IS_REFUSED)
		return print_json(conn, 403, STATUS(403, "Forbidden"));
	if (way == FAILS)
		return print_json(conn, 500, STATUS(500, "InternalError"));
	fix_wait_end(conn);
	return false;
}

static void cluster_init(void)
{
	for (enum kind kind = A_JOB; kind < KINDS; kind++)
		drop(kind);
	cluster.is_naked = cluster.is_dead = false;
	cluster.way = WORKS;
	cluster.n_deletes = 0;
}

static void happens(const char *method, enum kind kind, enum way way)
{
	pthread_mutex_lock(&cluster.lock);
	cluster.method = method;
	cluster.kind = kind;
	cluster.way = way;
	cluster.is_dead = false;
	pthread_mutex_unlock(&cluster.lock);
}

static bool is_dead(void)
{
	pthread_mutex_lock(&cluster.lock);
	bool dead = cluster.is_dead;
	pthread_mutex_unlock(&cluster.lock);
	return dead;
}

static int n_there(void)
{
	int n = 0;

	pthread_mutex_lock(&cluster.lock);
	for (enum kind kind = A_JOB; kind < KINDS; kind++)
		n += cluster.objects[kind] != NULL;
	pthread_mutex_unlock(&cluster.lock);
	return n;
}

/*
 * The client
 */

static void begin(struct place *place)
{
	cluster_init();
	place_init(place, on_request);
	AUTO_FREE char *dir = dirs_run(&place->session.dirs, JOB);
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(lock, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
}

static const struct kube_handle *handle_of(struct place *place)
{
	static struct kube_handle handle;

	assert_int_equal(
		kube_handle_parse(target_kube_of(place->target), place->handle, &handle, NULL), 0);
	return &handle;
}

/* Until it has an answer or the client is to die. */
static void wait_for(struct place *place, struct waited *waited)
{
	for (int i = 0; i < 2000 && !waited->over && !is_dead(); i++)
		run_for(place, 10);
	assert_true(waited->over || is_dead());
	target_call_cancel(&waited->call);
}

static void submit(struct place *place)
{
	AUTO_STRV struct strv secrets = {0};
	AUTO_ERR struct err err = {0};
	struct wanted wanted;
	WAITED(call, place);

	wanted_init(&wanted);
	wanted.spec.resources.nodes = 2;
	strv_add(&secrets, "TOKEN=x");
	wanted_job(&wanted, place->handle);
	wanted.job.secret_env = &secrets;
	call.call.deadline_ms = clock_ms() + 20000;
	if (kube_submit(place->target, &wanted.job, &call.call, &err) < 0)
		fail_msg("%s", err.message);
	wait_for(place, &call);
	if (call.over && call.status < 0)
		fail_msg("%s", call.err.message);
	wanted_done(&wanted);
}

static int cancel(struct place *place)
{
	WAITED(call, place);

	call.call.deadline_ms = clock_ms() + 2000;
	assert_int_equal(
		place->target->ops->cancel(place->target, place->handle, &call.call, NULL), 0);
	wait_for(place, &call);
	return call.over ? call.status : 0;
}

static enum run_state observe(struct place *place)
{
	AUTO(target_status_done) struct target_status status = {0};
	WAITED(call, place);

	call.call.deadline_ms = clock_ms() + 20000;
	assert_int_equal(
		place->target->ops->state(place->target, place->handle, &status, &call.call, NULL),
		0);
	wait_for(place, &call);
	assert_true(call.over);
	if (call.status < 0)
		fail_msg("%s", call.err.message);
	return status.state;
}

static void live_anew(struct place *place)
{
	place_close(place);
	place_open(place);
	cluster.is_dead = false;
}

/* As if somebody had looked a while ago. */
static void pass_time(struct place *place)
{
	AUTO_FREE char *dir = dirs_attempt(&place->session.dirs, JOB, 1);
	AUTO_FREE char *path = fs_join(dir, "missed");
	const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/*
 * Submit
 */

static const enum way ways[] = {DIES_BEFORE, DIES_AFTER, IS_LOST};

/* Whoever looks next finishes it, or says that it never began and cleans up. */
static void settle(struct place *place)
{
	if (n_there() == KINDS && cluster.objects[A_JOB]) {
		assert_int_equal(observe(place), RUN_QUEUED);
		assert_true(cluster.owned[A_SECRET] && cluster.owned[A_SERVICE]);
		assert_int_equal(cluster.n_deletes, 0);
		return;
	}
	assert_int_equal(observe(place), RUN_PREPARING);
	pass_time(place);
	assert_int_equal(observe(place), RUN_FAILED);
	assert_int_equal(n_there(), 0);
}

static void submit_with(const char *method, enum kind kind, enum way way)
{
	AUTO_PLACE struct place place;

	begin(&place);
	happens(method, kind, way);
	submit(&place);
	if (way == IS_LOST) {
		assert_int_equal(n_there(), KINDS);
		assert_true(cluster.owned[A_SECRET] && cluster.owned[A_SERVICE]);
	} else {
		assert_true(is_dead());
	}
	live_anew(&place);
	settle(&place);
	assert_false(cluster.is_naked);
}

static void test_submits_that_end_in_the_middle(void **state)
{
	static const struct {
		const char *method;
		enum kind kind;
	} points[] = {{"POST", A_SECRET}, {"POST", A_SERVICE}, {"POST", A_JOB}, {"PATCH", A_SECRET},
		{"PATCH", A_SERVICE}};

	for (size_t i = 0; i < ARRAY_LEN(points); i++)
		for (size_t k = 0; k < ARRAY_LEN(ways); k++)
			submit_with(points[i].method, points[i].kind, ways[k]);
}

/*
 * Cancel
 */

/* A submit that could not give the Job what goes with it. */
static void submit_unadopted(struct place *place)
{
	happens("PATCH", A_SECRET, IS_REFUSED);
	submit(place);
	assert_int_equal(n_there(), KINDS);
	assert_false(kube_is_adopted(target_kube_of(place->target), handle_of(place)));
	happens("", A_JOB, WORKS);
}

static void cancel_with(enum kind kind, enum way way)
{
	AUTO_PLACE struct place place;

	begin(&place);
	submit_unadopted(&place);
	happens("DELETE", kind, way);
	assert_int_equal(cancel(&place), 0);
	live_anew(&place);
	observe(&place);
	assert_int_equal(observe(&place), RUN_CANCELLED);
	assert_int_equal(n_there(), 0);
	assert_false(cluster.is_naked);
}

static void test_cancels_that_end_in_the_middle(void **state)
{
	for (enum kind kind = A_JOB; kind < KINDS; kind++)
		for (size_t k = 0; k < ARRAY_LEN(ways); k++)
			cancel_with(kind, ways[k]);
}

/* It runs on with all that it needs. */
static void test_cancels_that_are_not_done(void **state)
{
	static const enum way failures[] = {IS_REFUSED, FAILS};

	for (size_t i = 0; i < ARRAY_LEN(failures); i++) {
		AUTO_PLACE struct place place;

		begin(&place);
		submit_unadopted(&place);
		happens("DELETE", A_JOB, failures[i]);
		assert_true(cancel(&place) < 0);
		assert_int_equal(n_there(), KINDS);
		assert_int_equal(cluster.n_deletes, 0);
		assert_int_equal(kube_is_cancelled(target_kube_of(place.target), handle_of(&place)),
			failures[i] == FAILS);
	}
}

static void test_cancel_before_the_job(void **state)
{
	AUTO_PLACE struct place place;

	begin(&place);
	happens("POST", A_JOB, DIES_BEFORE);
	submit(&place);
	live_anew(&place);
	assert_int_equal(n_there(), 2);
	assert_int_equal(cancel(&place), 0);
	assert_int_equal(n_there(), 0);
	observe(&place);
	pass_time(&place);
	assert_int_equal(observe(&place), RUN_CANCELLED);
}

/*
 * What came between a question and its answer
 */

static int accept_now(void *ctx, struct err *err)
{
	struct place *place = ctx;

	kube_annotation_accepted(target_kube_of(place->target), handle_of(place), false);
	return 0;
}

/* A Job that the cluster took while it was being asked is neither lost nor left over. */
static void test_accepted_meanwhile(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	AUTO_PLACE struct place place;

	begin(&place);
	happens("POST", A_JOB, DIES_BEFORE);
	submit(&place);
	live_anew(&place);
	WAITED(call, &place);
	call.call.deadline_ms = clock_ms() + 20000;
	assert_int_equal(
		place.target->ops->state(place.target, place.handle, &status, &call.call, NULL), 0);
	/* Runs behind the timer that asks. */
	struct loop_timer *timer =
		loop_add_timer(place.session.loop, clock_ms(), accept_now, &place);
	(void)timer;
	wait_for(&place, &call);
	assert_int_equal(status.state, RUN_PREPARING);
	assert_int_equal(n_there(), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_submits_that_end_in_the_middle),
		cmocka_unit_test(test_cancels_that_end_in_the_middle),
		cmocka_unit_test(test_cancels_that_are_not_done),
		cmocka_unit_test(test_cancel_before_the_job),
		cmocka_unit_test(test_accepted_meanwhile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
