/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/attempt/attempt.h"
#include "core/target/fetch_sink.h"
#include "targets/kube/kube_facts.h"
#include "targets/kube/kube_reconcile.h"
#include "tests/unit/kubetarget.h"
#include "tests/unit/kubewanted.h"

/*
 * A study in a cluster that keeps what it was sent: one Job, of which each member is an index.
 */

#define STUDY "s-22222"
#define OK    "{\"kind\":\"Status\",\"status\":\"Success\"}"
#define STATUS(code, reason)                                                                       \
	"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"reason\":\"" reason   \
	"\",\"message\":\"no\",\"code\":" #code "}"
#define POD_DELETED                                                                                \
	",\"deletionTimestamp\":\"2026-08-01T12:00:30Z\",\"deletionGracePeriodSeconds\":30"

enum kind { A_JOB, A_CONFIG, A_POD, KINDS };
enum { N = 5, MANY = 3000 };

static const char *const plurals[KINDS] = {"/jobs/jobs", "/jobs/configmaps", "/jobs/pods"};

static struct {
	pthread_mutex_t lock;
	struct json *job, *config;
	bool runs[MANY], ended[MANY], deleted[MANY]; /* pods, by index */
	int n, n_pods, n_lists;                      /* n_pods: that were listed */
	int counts[KINDS];                           /* of requests */
	const char *method; /* of the request that something happens to, once */
	enum kind kind;
	int status; /* 0: its response is lost */
} cluster = {.lock = PTHREAD_MUTEX_INITIALIZER};

static enum kind kind_of(const char *path)
{
	for (enum kind kind = A_JOB; kind < KINDS; kind++)
		if (strstr(path, plurals[kind]) && !strstr(path, "/jobsets"))
			return kind;
	return KINDS;
}

static struct json *parsed(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), 16 << 20, "it", &json, NULL), 0);
	return json;
}

/* application/merge-patch+json */
static void merge(struct json *to, const struct json *patch)
{
	for (const struct json *item = json_first(patch); item; item = json_next(item)) {
		if (json_kind(item) == JSON_OBJECT)
			merge(json_sub(to, json_key(item)), item);
		else if (json_kind(item) == JSON_NULL)
			json_remove(to, json_key(item));
		else
			json_set(to, json_key(item), json_clone(item));
	}
}

static struct json **object_of(enum kind kind)
{
	return kind == A_JOB ? &cluster.job : &cluster.config;
}

static void add_pod(struct buf *out, int index)
{
	const char *time = "2026-08-01T12:00:05Z";
	AUTO_FREE char *state =
		cluster.ended[index]
			? mem_printf("\"terminated\":{\"exitCode\":0,\"startedAt\":\"%s\","
				     "\"finishedAt\":\"%s\"}",
				  time, time)
			: mem_printf("\"running\":{\"startedAt\":\"%s\"}", time);

	cluster.n_pods++;
	buf_addf(out,
		"%s{\"metadata\":{\"name\":\"" STUDY "-%d-abcde\",\"uid\":\"p%d\","
		"\"creationTimestamp\":\"2026-08-01T12:00:00Z\",\"labels\":{"
		"\"dlrun.io/study\":\"" STUDY "\",\"batch.kubernetes.io/job-name\":\"" STUDY
		"\",\"batch.kubernetes.io/job-completion-index\":\"%d\"},\"annotations\":{"
		"\"batch.kubernetes.io/job-completion-index\":\"%d\"},"
		"\"ownerReferences\":[{\"uid\":\"j\"}]%s},\"spec\":{\"nodeName\":"
		"\"n\",\"containers\":[{\"name\":\"program\",\"args\":[\"much\"]}]},"
		"\"status\":{\"phase\":\"%s\",\"containerStatuses\":[{\"name\":"
		"\"program\",\"state\":{%s}}]}}",
		out->data[out->len - 1] == '[' ? "" : ",", index, index, index, index,
		cluster.deleted[index] ? POD_DELETED : "",
		cluster.ended[index] ? "Succeeded" : "Running", state);
}

/* What the selectors of a list say of an index: "index=3", "index in (3,4)", and its phase. */
static bool is_selected(const char *path, int index)
{
	const char *one = strstr(path, "job-completion-index%3D");
	const char *some = strstr(path, "job-completion-index%20in%20%28");

	if (strstr(path, "status.phase%21%3DSucceeded") && cluster.ended[index])
		return false;
	if (one)
		return strtol(one + strlen("job-completion-index%3D"), NULL, 10) == index;
	if (!some)
		return true;
	for (some += strlen("job-completion-index%20in"); *some && *some != '&'; some++)
		if ((str_starts(some, "%28") || str_starts(some, "%2C")) &&
			strtol(some + 3, NULL, 10) == index)
			return true;
	return false;
}

/* The caller frees. */
static char *list_text(const struct fix_conn *conn, enum kind kind)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 16 << 20);
	buf_adds(&out, "{\"metadata\":{\"resourceVersion\":\"8\"},\"items\":[");
	for (int i = 0; kind == A_POD && i < cluster.n; i++)
		if (cluster.runs[i] && is_selected(conn->path, i))
			add_pod(&out, i);
	if (kind < A_POD && *object_of(kind))
		json_print(*object_of(kind), &out);
	buf_adds(&out, "]}");
	return buf_take(&out);
}

static bool print_object(struct fix_conn *conn, const struct json *object)
{
	AUTO_BUF struct buf out = {0};

	if (!object)
		return print_json(conn, 404, STATUS(404, "NotFound"));
	buf_init(&out, 16 << 20);
	json_print(object, &out);
	return print_json(conn, 200, out.data);
}

static bool remove_pod(struct fix_conn *conn)
{
	const char *at = strstr(conn->path, STUDY "-");
	int index = (int)strtol(at + strlen(STUDY "-"), NULL, 10);

	cluster.deleted[index] = true;
	return print_json(conn, 200, OK);
}

static bool act(struct fix_conn *conn, const char *body)
{
	enum kind kind = kind_of(conn->path);
	struct json **object = kind < A_POD ? object_of(kind) : NULL;
	bool is_list = str_eq(conn->method, "GET") && strchr(conn->path, '?');

	if (is_list && strstr(conn->path, "/log?"))
		return fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
				       "Content-Length: 35\r\n\r\n"
				       "2026-08-01T12:00:05.000000000Z done");
	cluster.n_lists += is_list;
	if (is_list) {
		AUTO_FREE char *text = list_text(conn, kind);
		return print_json(conn, 200, text);
	}
	if (str_eq(conn->method, "DELETE") && kind == A_POD)
		return remove_pod(conn);
	if (!object)
		return print_json(conn, 404, STATUS(404, "NotFound"));
	if (str_eq(conn->method, "POST")) {
		if (*object)
			return print_json(conn, 409, STATUS(409, "AlreadyExists"));
		*object = parsed(body);
		json_set_str(json_sub(*object, "metadata"), "uid", "j");
		json_set_str(json_sub(*object, "metadata"), "resourceVersion", "7");
	} else if (*object && str_eq(conn->method, "PATCH")) {
		AUTO_JSON struct json *patch = parsed(body);
		merge(*object, patch);
	} else if (*object && str_eq(conn->method, "DELETE")) {
		json_free(TAKE(*object));
		return print_json(conn, 200, OK);
	}
	return print_object(conn, *object);
}

static bool on_request(struct fix_conn *conn)
{
	AUTO_FREE char *body = fix_body(conn);
	enum kind kind = kind_of(conn->path);

	pthread_mutex_lock(&cluster.lock);
	bool is_meant =
		cluster.method && kind == cluster.kind && str_eq(conn->method, cluster.method);
	int status = cluster.status;
	if (kind < KINDS)
		cluster.counts[kind]++;
	if (is_meant)
		cluster.method = NULL;
	bool r = is_meant && status ? print_json(conn, status, STATUS(403, "Forbidden"))
				    : !is_meant && act(conn, body);
	if (is_meant && !status) {
		struct json **object = object_of(kind);
		*object = parsed(body);
		json_set_str(json_sub(*object, "metadata"), "uid", "j");
		fix_reset(conn);
	}
	pthread_mutex_unlock(&cluster.lock);
	return r;
}

static void happens(const char *method, enum kind kind, int status)
{
	pthread_mutex_lock(&cluster.lock);
	cluster.method = method;
	cluster.kind = kind;
	cluster.status = status;
	pthread_mutex_unlock(&cluster.lock);
}

static int n_requests(void)
{
	int n = 0;

	pthread_mutex_lock(&cluster.lock);
	for (enum kind kind = A_JOB; kind < KINDS; kind++) {
		n += cluster.counts[kind];
		cluster.counts[kind] = 0;
	}
	pthread_mutex_unlock(&cluster.lock);
	return n;
}

static void begin(struct place *place, int n)
{
	json_free(TAKE(cluster.job));
	json_free(TAKE(cluster.config));
	memset(cluster.runs, 0, sizeof(cluster.runs));
	memset(cluster.ended, 0, sizeof(cluster.ended));
	memset(cluster.deleted, 0, sizeof(cluster.deleted));
	cluster.n_pods = cluster.n_lists = 0;
	cluster.n = n;
	cluster.method = NULL;
	place_init(place, on_request);
	n_requests();
}

/*
 * The client
 */

static void set_study(struct spec *spec, int index, int n)
{
	free(spec->study.id);
	spec->study = (struct spec_study){mem_strdup(STUDY), index, n, 2, true};
}

static void member_handle(struct place *place, int index, char handle[TARGET_HANDLE_SIZE])
{
	AUTO_SPEC struct spec spec = {.resources.nodes = 1};
	char id[RUN_ID_SIZE];

	set_study(&spec, index, cluster.n);
	run_member_id(STUDY, (size_t)index, id);
	assert_int_equal(place->target->ops->prepare(place->target, id, 1, &spec, handle, NULL), 0);
	/* The app has made its directory before. */
	AUTO_FREE char *dir = dirs_run(&place->session.dirs, id);
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(lock, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
}

static void wait_for(struct place *place, struct waited *waited)
{
	for (int i = 0; i < 6000 && !waited->over; i++)
		run_for(place, 10);
	assert_true(waited->over);
}

static const bool *left_out; /* of the studies that are started; or NULL */

/* A study of n members, lent to fn. */
static int with_study(struct place *place, int n,
	int (*fn)(struct place *place, const struct target_study *study, struct err *err),
	struct err *err)
{
	struct wanted wanted;
	AUTO_FREE struct strv *commands = mem_alloc((size_t)n, sizeof(*commands));
	AUTO_FREE struct strv *env = mem_alloc((size_t)n, sizeof(*env));
	AUTO_FREE struct json **params = mem_alloc((size_t)n, sizeof(*params));

	member_handle(place, 0, place->handle);
	wanted_init(&wanted);
	set_study(&wanted.spec, 0, n);
	wanted.spec.runtime.linger_ms = 300 * 1000;
	const struct target_study study = {wanted_job(&wanted, place->handle), (size_t)n, commands,
		env, (const struct json *const *)params, left_out};
	for (int i = 0; i < n; i++) {
		AUTO_FREE char *lr = mem_printf("%d", i);
		json_set_str(params[i] = json_object(), "lr", lr);
		strv_add(&commands[i], "train");
		strv_addf(&commands[i], "--lr=%d", i);
		strv_addf(&env[i], "LR=%d", i);
	}
	int r = fn(place, &study, err);
	for (int i = 0; i < n; i++) {
		strv_done(&commands[i]);
		strv_done(&env[i]);
		json_free(params[i]);
	}
	wanted_done(&wanted);
	return r;
}

static int start(struct place *place, const struct target_study *study, struct err *err)
{
	return target_submit_study(place->target, study, 20000, err);
}

static int submit(struct place *place, int n, struct err *err)
{
	return with_study(place, n, start, err);
}

static void make(struct place *place, int n)
{
	AUTO_ERR struct err err = {0};

	begin(place, n);
	if (submit(place, n, &err) < 0)
		fail_msg("%s", err.message);
	n_requests();
}

static int cancel(struct place *place, int index, struct err *err)
{
	char handle[TARGET_HANDLE_SIZE];
	WAITED(call, place);

	member_handle(place, index, handle);
	call.call.deadline_ms = clock_ms() + 20000;
	assert_int_equal(place->target->ops->cancel(place->target, handle, &call.call, NULL), 0);
	wait_for(place, &call);
	return call.status < 0 ? err_move(err, &call.err) : 0;
}

static enum run_state observe(struct place *place, int index)
{
	char handle[TARGET_HANDLE_SIZE];
	AUTO(target_status_done) struct target_status status = {0};
	WAITED(call, place);

	member_handle(place, index, handle);
	call.call.deadline_ms = clock_ms() + 20000;
	assert_int_equal(
		place->target->ops->state(place->target, handle, &status, &call.call, NULL), 0);
	wait_for(place, &call);
	if (call.status < 0)
		fail_msg("%s", call.err.message);
	return status.state;
}

static void set_status(const char *text)
{
	pthread_mutex_lock(&cluster.lock);
	json_set(cluster.job, "status", parsed(text));
	pthread_mutex_unlock(&cluster.lock);
}

static int64_t job_int(const char *key)
{
	return json_get_int(json_get(cluster.job, "spec"), key, -1);
}

static int64_t linger_s(void)
{
	const struct json *pod = json_get(json_get(cluster.job, "spec"), "template");
	const struct json *notes = json_get(json_get(pod, "metadata"), "annotations");
	const char *text = json_get_str(notes, KUBE_ANNOTATION_LINGER);

	return text ? strtol(text, NULL, 10) : -1;
}

static const char *cancelled_list(void)
{
	const struct json *notes = json_get(json_get(cluster.job, "metadata"), "annotations");

	return json_get_str(notes, KUBE_ANNOTATION_CANCELLED);
}

static bool is_marked(int index)
{
	AUTO_FREE char *key = mem_printf("cancel-%d", index);

	return json_get(json_get(cluster.config, "data"), key) != NULL;
}

/*
 * Submit
 */

static void test_submit(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err err = {0};

	begin(&place, N);
	assert_int_equal(submit(&place, N, &err), 0);
	/* ConfigMap, Job, the first belongs to the second. */
	assert_int_equal(n_requests(), 3);
	assert_int_equal(job_int("completions"), N);
	assert_int_equal(job_int("parallelism"), 2);
	assert_int_equal(job_int("maxFailedIndexes"), 0);
	assert_string_equal(cancelled_list(), "");
	const struct json *metadata = json_get(cluster.config, "metadata");
	assert_non_null(json_get(metadata, "ownerReferences"));
	assert_string_equal(json_get_str(metadata, "name"), STUDY);
	const char *lines = json_get_str(json_get(cluster.config, "data"), "members-0");
	assert_non_null(strstr(lines, "set -- \"$@\" 'train' '--lr=4'; export LR='4'\n"));
	/* Results wait in pods, but not for long where others wait for these. */
	assert_int_equal(linger_s(), 120);
	/* Twice is once. */
	assert_int_equal(submit(&place, N, &err), 0);
	assert_int_equal(observe(&place, 3), RUN_QUEUED);
}

static void test_submit_lost(void **state)
{
	for (enum kind kind = A_JOB; kind <= A_CONFIG; kind++) {
		AUTO_PLACE struct place place;
		AUTO_ERR struct err err = {0};

		begin(&place, N);
		happens("POST", kind, 0);
		assert_int_equal(submit(&place, N, &err), 0);
		assert_non_null(json_get(json_get(cluster.config, "metadata"), "ownerReferences"));
		assert_int_equal(job_int("completions"), N);
	}
}

/* An earlier try has left the ConfigMap: it knew of all members, or its response was lost. */
static void test_submit_without_some(void **state)
{
	static const bool some[N] = {false, true, false, true, false};

	for (int tries = 0; tries < 3; tries++) {
		AUTO_PLACE struct place place;
		AUTO_ERR struct err err = {0}, refused = {0};

		begin(&place, N);
		if (tries == 1) {
			happens("POST", A_JOB, 403);
			assert_true(submit(&place, N, &refused) < 0);
			assert_false(is_marked(1));
		}
		if (tries == 2)
			happens("POST", A_CONFIG, 0);
		left_out = some;
		assert_int_equal(submit(&place, N, &err), 0);
		left_out = NULL;
		for (int i = 0; i < N; i++)
			assert_int_equal(is_marked(i), some[i]);
		assert_int_equal(job_int("maxFailedIndexes"), 0);
		assert_string_equal(cancelled_list(), "1,3");
		assert_int_equal(job_int("completions"), N);
	}
}

static void test_submit_refused(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err err = {0}, other = {0};
	struct wanted wanted;
	WAITED(call, &place);

	begin(&place, N);
	happens("POST", A_JOB, 403);
	assert_true(submit(&place, N, &err) < 0);
	assert_int_equal(err.id, E_KUBE_DENIED);
	assert_null(cluster.job);
	/* Any member tells that it never began, and what was sent before the Job goes. */
	assert_int_equal(observe(&place, 2), RUN_FAILED);
	assert_null(cluster.config);
	/* By itself a member is not started. */
	wanted_init(&wanted);
	set_study(&wanted.spec, 0, N);
	assert_true(place.target->ops->submit(place.target, wanted_job(&wanted, place.handle),
			    &call.call, &other) < 0);
	assert_int_equal(other.id, E_TARGET_UNSUPPORTED);
	wanted_done(&wanted);
}

static int preview(struct place *place, const struct target_study *study, struct err *err)
{
	struct target_job job = *study->first;
	AUTO_JSON struct json *list = NULL;
	AUTO_STRV struct strv notes = {0};

	job.study = study;
	int r = place->target->ops->preview(place->target, &job, &list, &notes, err);
	if (r < 0)
		return r;
	assert_int_equal(json_count(list), 2);
	const struct json *config = json_first(list), *made = json_next(config);
	const char *lines = json_get_str(json_get(config, "data"), "members-0");
	assert_non_null(strstr(lines, "'--lr=4'"));
	assert_int_equal(json_get_int(json_get(made, "spec"), "completions", 0), N);
	return 0;
}

static void test_preview(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err err = {0};

	begin(&place, N);
	if (with_study(&place, N, preview, &err) < 0)
		fail_msg("%s", err.message);
}

/*
 * States
 */

static void test_states(void **state)
{
	static const enum run_state states[N] = {
		RUN_SUCCEEDED, RUN_FAILED, RUN_RUNNING, RUN_QUEUED, RUN_RUNNING};
	AUTO_PLACE struct place place;

	make(&place, N);
	set_status("{\"active\":2,\"completedIndexes\":\"0\",\"failedIndexes\":\"1\"}");
	cluster.runs[2] = cluster.runs[4] = true;
	for (int i = 0; i < N; i++)
		assert_int_equal(observe(&place, i), states[i]);
}

struct many {
	struct target_status status[MANY];
	struct waited calls[MANY];
	int n, n_over;
};

static struct many *many;

static void on_one(struct target_call *call, int status, struct err *err)
{
	assert_int_equal(status, 0);
	if (++many->n_over == many->n)
		loop_stop(((struct waited *)call)->place->session.loop);
}

/* The states of members from that index on, asked for in one turn of the loop. */
static void observe_from(struct place *place, int first)
{
	char handle[TARGET_HANDLE_SIZE];

	many = mem_alloc(1, sizeof(*many));
	*many = (struct many){.n = cluster.n - first};
	for (int i = first; i < cluster.n; i++) {
		many->calls[i] = (struct waited){.call = {.done = on_one}, .place = place};
		many->calls[i].call.deadline_ms = clock_ms() + 60000;
		member_handle(place, i, handle);
		assert_int_equal(place->target->ops->state(place->target, handle, &many->status[i],
					 &many->calls[i].call, NULL),
			0);
	}
	assert_int_equal(loop_run(place->session.loop, NULL), 0);
}

static void many_done(void)
{
	for (int i = 0; i < MANY; i++)
		target_status_done(&many->status[i]);
	free(TAKE(many));
}

/* One list of Jobs, one of pods that have not ended, the others by their index in portions; and no
 * member searches the others' pods. */
static void test_many(void **state)
{
	AUTO_PLACE struct place place;

	make(&place, MANY);
	set_status("{\"active\":1500,\"completedIndexes\":\"0-999\"}");
	for (int i = 1000; i < MANY; i++)
		cluster.runs[i] = i % 2;
	observe_from(&place, 0);
	assert_int_equal(n_requests(), 2 + 4);
	assert_int_equal(cluster.n_pods, 1000);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(many->status[i].state, i < 1000 ? RUN_SUCCEEDED
							: i % 2  ? RUN_RUNNING
								 : RUN_QUEUED);
	many_done();
}

/* Those whose ends are known cost nothing more; of those that the Job does not count yet the pod
 * tells. */
static void test_few_of_many(void **state)
{
	AUTO_PLACE struct place place;

	make(&place, MANY);
	set_status("{\"active\":50,\"completedIndexes\":\"0-2499\"}");
	for (int i = 0; i < 2550; i++) {
		cluster.runs[i] = true;
		cluster.ended[i] = i < 2500 || i == 2520;
	}
	observe_from(&place, 2490);
	assert_int_equal(n_requests(), 3);
	assert_int_equal(cluster.n_pods, 49 + 10 + 1);
	for (int i = 2490; i < MANY; i++)
		assert_int_equal(many->status[i].state, cluster.ended[i]  ? RUN_SUCCEEDED
							: cluster.runs[i] ? RUN_RUNNING
									  : RUN_QUEUED);
	many_done();
}

/* As the parallelism of a Job that is being stopped is 0, its annotation limits what may have begun
 * of it; nothing does where that is missing. */
static void test_stopped_with_many(void **state)
{
	static const int n_requests_of[] = {3, 4};

	for (int row = 0; row < 2; row++) {
		AUTO_PLACE struct place place;

		make(&place, MANY);
		set_status("{\"completedIndexes\":\"0-1999\"}");
		for (int i = 0; i < 2050; i++)
			cluster.runs[i] = cluster.ended[i] = true;
		pthread_mutex_lock(&cluster.lock);
		json_set_int(json_sub(cluster.job, "spec"), "parallelism", 0);
		if (row == 0)
			json_set_str(json_sub(json_sub(cluster.job, "metadata"), "annotations"),
				KUBE_ANNOTATION_AT_ONCE, "50");
		pthread_mutex_unlock(&cluster.lock);
		observe_from(&place, 2000);
		assert_int_equal(n_requests(), n_requests_of[row]);
		for (int i = 2000; i < MANY; i++)
			assert_int_equal(
				many->status[i].state, i < 2050 ? RUN_SUCCEEDED : RUN_QUEUED);
		many_done();
	}
}

/*
 * Cancel
 */

static void test_cancel_one(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err err = {0};

	make(&place, N);
	set_status("{\"active\":2}");
	cluster.runs[1] = cluster.runs[2] = true;
	/* It waits: no pod of it begins, nor fails. */
	assert_int_equal(cancel(&place, 3, &err), 0);
	assert_true(is_marked(3));
	assert_int_equal(job_int("maxFailedIndexes"), 0);
	assert_string_equal(cancelled_list(), "3");
	assert_int_equal(observe(&place, 3), RUN_CANCELLED);
	/* It runs: its pod goes, the others' stay; its failure is not that of the study. */
	assert_int_equal(cancel(&place, 1, &err), 0);
	assert_true(is_marked(1) && cluster.deleted[1] && !cluster.deleted[2]);
	assert_int_equal(job_int("maxFailedIndexes"), 1);
	assert_string_equal(cancelled_list(), "1,3");
	assert_int_equal(observe(&place, 1), RUN_RUNNING);
	set_status("{\"active\":1,\"failedIndexes\":\"1\"}");
	cluster.runs[1] = false;
	assert_int_equal(observe(&place, 1), RUN_CANCELLED);
	assert_int_equal(observe(&place, 2), RUN_RUNNING);
	assert_int_equal(job_int("parallelism"), 2);
	/* A node that did not know of it yet has begun it: the next request for its state ends it. */
	cluster.runs[3] = true;
	assert_int_equal(observe(&place, 3), RUN_RUNNING);
	assert_true(cluster.deleted[3]);
	assert_int_equal(job_int("maxFailedIndexes"), 2);
	/* Asked once more, while its pod ends: it fails once. */
	assert_int_equal(cancel(&place, 3, &err), 0);
	assert_int_equal(job_int("maxFailedIndexes"), 2);
}

/* One that has tries left does not fail by the end of its pod. */
static void test_cancel_one_that_is_tried_again(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err err = {0};

	make(&place, N);
	json_set_int(json_sub(cluster.job, "spec"), "backoffLimitPerIndex", 1);
	cluster.runs[1] = true;
	assert_int_equal(cancel(&place, 1, &err), 0);
	assert_true(cluster.deleted[1]);
	assert_int_equal(job_int("maxFailedIndexes"), 0);
}

static void test_cancel_refused(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err err = {0};

	make(&place, N);
	cluster.runs[1] = true;
	happens("DELETE", A_POD, 403);
	assert_true(cancel(&place, 1, &err) < 0);
	assert_int_equal(err.id, E_KUBE_DENIED);
	/* It goes on as if nobody had asked. */
	for (int i = 0; i < 500 && is_marked(1); i++)
		run_for(&place, 10);
	assert_false(is_marked(1));
	assert_int_equal(observe(&place, 1), RUN_RUNNING);
	assert_false(cluster.deleted[1]);
}

/* Where the Job may not be changed, no member that never began is left to end with 0. */
static void test_cancel_refused_by_the_job(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err err = {0};

	make(&place, N);
	json_set_int(json_sub(cluster.job, "spec"), "maxFailedIndexes", 0);
	happens("PATCH", A_JOB, 403);
	assert_true(cancel(&place, 2, &err) < 0);
	assert_int_equal(err.id, E_KUBE_DENIED);
	for (int i = 0; i < 500 && is_marked(2); i++)
		run_for(&place, 10);
	assert_false(is_marked(2));
}

/* Killed behind the mark of its cancel: the next request for its state goes on. */
static void test_cancel_resumed(void **state)
{
	AUTO_PLACE struct place place;

	make(&place, N);
	AUTO_FREE char *dir = dirs_attempt(&place.session.dirs, "s-4-22222", 1);
	AUTO_FREE char *mark = fs_join(dir, ATTEMPT_CANCEL);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(mark, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	assert_int_equal(observe(&place, 4), RUN_CANCELLED);
	assert_true(is_marked(4));
}

/* The last one ends the Job, with the pods of those that have ended. */
static void test_cancel_all(void **state)
{
	static const bool may_patch[] = {true, false};

	for (size_t row = 0; row < ARRAY_LEN(may_patch); row++) {
		AUTO_PLACE struct place place;
		AUTO_ERR struct err err = {0};

		make(&place, N);
		set_status("{\"active\":2,\"completedIndexes\":\"0\"}");
		cluster.runs[1] = true;
		for (int i = 1; i < N - 1; i++)
			assert_int_equal(cancel(&place, i, &err), 0);
		assert_int_equal(job_int("parallelism"), 2);
		happens(may_patch[row] ? "none" : "PATCH", A_JOB, 403);
		assert_int_equal(cancel(&place, N - 1, &err), 0);
		if (may_patch[row]) {
			assert_int_equal(job_int("parallelism"), 0);
			assert_int_equal(job_int("activeDeadlineSeconds"), 1);
		} else {
			assert_null(cluster.job);
		}
		assert_int_equal(observe(&place, N - 1), RUN_CANCELLED);
	}
}

/* In one turn of the loop they share the requests. */
static void test_cancel_together(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_FREE struct waited *calls = mem_alloc(MANY, sizeof(*calls));
	char handle[TARGET_HANDLE_SIZE];
	int n_over = 0;

	make(&place, 40);
	for (int i = 0; i < 40; i++)
		cluster.runs[i] = true;
	for (int i = 0; i < 30; i++) {
		calls[i] = (struct waited){.call = {.done = on_done}, .place = &place};
		calls[i].call.deadline_ms = clock_ms() + 20000;
		member_handle(&place, i, handle);
		assert_int_equal(
			place.target->ops->cancel(place.target, handle, &calls[i].call, NULL), 0);
	}
	/* One is given up. */
	target_call_cancel(&calls[7].call);
	for (int k = 0; k < 2000 && n_over < 29; k++) {
		run_for(&place, 10);
		n_over = 0;
		for (int i = 0; i < 30; i++)
			n_over += calls[i].over;
	}
	assert_int_equal(n_over, 29);
	/* The Job, the marks, the pods, whose ends count, how many may fail, and each pod. */
	assert_int_equal(n_requests(), 5 + 30);
	for (int i = 0; i < 40; i++)
		assert_int_equal(cluster.deleted[i], i < 30);
}

/*
 * Removal
 */

static void insert_as(struct store *store, int index, enum run_state state, int64_t started_ms)
{
	char id[RUN_ID_SIZE];

	run_member_id(STUDY, (size_t)index, id);
	AUTO_RUN struct run *run = run_new(id, "s");
	struct wanted wanted;
	wanted_init(&wanted);
	set_study(&wanted.spec, index, N);
	run->spec = spec_to_json(&wanted.spec);
	run_add_attempt(run, "k");
	run_set_state(run, state);
	if (started_ms)
		run_set_time(json_sub(run->doc, "times"), "started", started_ms);
	assert_int_equal(store_insert(store, run, NULL), 0);
	wanted_done(&wanted);
}

static void insert(struct store *store, int index)
{
	insert_as(store, index, RUN_QUEUED, 0);
}

/* Nothing is left of one that never began, which needs no request. */
static void test_a_cancelled_one_is_kept(void **state)
{
	static const struct {
		enum run_state state;
		int64_t started_ms;
		bool is_asked;
	} rows[] = {{RUN_CANCELLED, 0, false}, {RUN_CANCELLED, 1785590000000, true},
		{RUN_FAILED, 0, true}};
	AUTO_PLACE struct place place;
	struct store *store;

	make(&place, N);
	assert_int_equal(session_store(&place.session, &store, NULL), 0);
	for (int i = 0; i < (int)ARRAY_LEN(rows); i++) {
		char handle[TARGET_HANDLE_SIZE], id[RUN_ID_SIZE];
		struct fetch_sink sink = {.is_brief = true};
		AUTO_ERR struct err err = {0};
		WAITED(keep, &place);
		WAITED(fetch, &place);

		member_handle(&place, i, handle);
		run_member_id(STUDY, (size_t)i, id);
		insert_as(store, i, rows[i].state, rows[i].started_ms);
		AUTO_FREE char *attempt = dirs_attempt(&place.session.dirs, id, 1);
		AUTO_FREE char *ranks = fs_join(attempt, ATTEMPT_RANKS);
		assert_int_equal(
			place.target->ops->keep(place.target, handle, false, &keep.call, NULL), 0);
		wait_for(&place, &keep);
		assert_int_equal(keep.status, 0);
		assert_int_equal(access(ranks, F_OK), 0);
		assert_int_equal(n_requests() > 0, rows[i].is_asked);
		int r = place.target->ops->fetch(place.target, handle, &sink, &fetch.call, &err);
		assert_int_equal(r < 0, !rows[i].is_asked);
		if (r == 0)
			target_call_cancel(&fetch.call);
		else
			assert_int_equal(err.id, E_TARGET_UNSUPPORTED);
	}
}

/* Logs of members that are taken in one turn of the loop: their pods are listed once. */
static void test_kept_together(void **state)
{
	AUTO_PLACE struct place place;
	struct waited calls[N];
	struct store *store;

	make(&place, N);
	set_status("{\"completedIndexes\":\"0-4\"}");
	assert_int_equal(session_store(&place.session, &store, NULL), 0);
	for (int i = 0; i < N; i++) {
		char handle[TARGET_HANDLE_SIZE];

		cluster.runs[i] = cluster.ended[i] = true;
		insert_as(store, i, RUN_SUCCEEDED, 1785590000000);
		calls[i] = (struct waited){.call = {.done = on_done}, .place = &place};
		calls[i].call.deadline_ms = clock_ms() + 20000;
		member_handle(&place, i, handle);
		assert_int_equal(
			place.target->ops->keep(place.target, handle, false, &calls[i].call, NULL),
			0);
	}
	for (int i = 0; i < N; i++) {
		AUTO_BUF struct buf text = {0};
		char id[RUN_ID_SIZE];

		wait_for(&place, &calls[i]);
		assert_int_equal(calls[i].status, 0);
		run_member_id(STUDY, (size_t)i, id);
		AUTO_FREE char *attempt = dirs_attempt(&place.session.dirs, id, 1);
		AUTO_FREE char *log = mem_printf("%s/" ATTEMPT_RANKS "/0/log", attempt);
		assert_int_equal(fs_read(log, 100, &text, NULL, NULL), 0);
		assert_string_equal(text.data, "done");
	}
	assert_int_equal(cluster.n_lists, 1);
}

static void test_forget(void **state)
{
	AUTO_PLACE struct place place;
	struct store *store;

	make(&place, N);
	assert_int_equal(session_store(&place.session, &store, NULL), 0);
	for (int i = 0; i < N; i++)
		insert(store, i);
	for (int k = 0; k < N; k++) {
		int index = (k + 2) % N;
		char handle[TARGET_HANDLE_SIZE], id[RUN_ID_SIZE];
		WAITED(call, &place);

		member_handle(&place, index, handle);
		run_member_id(STUDY, (size_t)index, id);
		assert_non_null(cluster.job);
		call.call.deadline_ms = clock_ms() + 20000;
		assert_int_equal(
			place.target->ops->forget(place.target, handle, true, &call.call, NULL), 0);
		wait_for(&place, &call);
		assert_int_equal(call.status, 0);
		assert_int_equal(n_requests() > 0, k == N - 1);
		assert_int_equal(store_remove(store, id, NULL), 0);
	}
	assert_null(cluster.job);
}

/*
 * Another machine
 */

static int adopt(struct place *place, const char *id, struct run_list *ret)
{
	WAITED(call, place);

	call.call.deadline_ms = clock_ms() + 20000;
	assert_int_equal(place->target->ops->adopt(place->target, id, ret, &call.call, NULL), 0);
	wait_for(place, &call);
	return call.status;
}

static void test_adopt(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0}, none = {0};
	AUTO_PLACE struct place place;

	make(&place, N);
	assert_int_equal(adopt(&place, "s-3-22222", &runs), 0);
	/* Lists of Jobs and ConfigMaps; that of JobSets is not counted. */
	assert_int_equal(n_requests(), 2);
	assert_int_equal(runs.n, 1);
	const struct run *run = runs.v[0];
	const char *handle = run_handle(run);
	assert_string_equal(run_id(run), "s-3-22222");
	assert_true(str_ends(handle, "/jobs/" STUDY "/3"));
	const struct json *words = json_get(run->doc, "command");
	assert_int_equal(json_count(words), 2);
	assert_string_equal(json_str(json_next(json_first(words))), "--lr=3");
	assert_int_equal(json_get_int(json_get(run->doc, "study"), "index", -1), 3);
	assert_int_equal(json_get_int(json_get(run->spec, "study"), "index", -1), 3);
	assert_string_equal(json_get_str(run->doc, "group"), STUDY);
	assert_string_equal(json_get_str(json_get(run->doc, "params"), "lr"), "3");
	/* No run is called as the study is, and no member is beyond its end. */
	assert_true(adopt(&place, STUDY, &none) < 0);
	assert_true(adopt(&place, "s-5-22222", &none) < 0);
	assert_true(adopt(&place, "s-03-22222", &none) < 0);
	/* Words that nobody can read are none. */
	json_set_str(json_sub(cluster.config, "data"), "members-0", "rm -rf /\nset -- \"$@\" 'x\n");
	assert_true(adopt(&place, "s-0-22222", &none) < 0);
	assert_true(adopt(&place, "s-1-22222", &none) < 0);
	assert_int_equal(none.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_submit),
		cmocka_unit_test(test_submit_lost),
		cmocka_unit_test(test_submit_without_some),
		cmocka_unit_test(test_submit_refused),
		cmocka_unit_test(test_preview),
		cmocka_unit_test(test_states),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_few_of_many),
		cmocka_unit_test(test_stopped_with_many),
		cmocka_unit_test(test_cancel_one),
		cmocka_unit_test(test_cancel_one_that_is_tried_again),
		cmocka_unit_test(test_cancel_refused),
		cmocka_unit_test(test_cancel_refused_by_the_job),
		cmocka_unit_test(test_cancel_resumed),
		cmocka_unit_test(test_cancel_all),
		cmocka_unit_test(test_cancel_together),
		cmocka_unit_test(test_a_cancelled_one_is_kept),
		cmocka_unit_test(test_kept_together),
		cmocka_unit_test(test_forget),
		cmocka_unit_test(test_adopt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
