/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kube/logs/runlog.h"
#include "tests/unit/kubefix.h"

/*
 * The log of a Job of two ranks, from an API server that knows paths: whole, in parts, refused and
 * given up.
 */

#define T           "2026-11-21T08:21:00.00000000"
#define LIST(items) "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[" items "]}"
#define META(name, uid)                                                                            \
	"\"metadata\":{\"name\":\"" name "\",\"uid\":\"" uid "\",\"resourceVersion\":\"1\","       \
	"\"creationTimestamp\":\"2026-11-21T08:20:00Z\""
#define POD(name, index)                                                                                   \
	"{" META(name,                                                                                     \
		"1234567" index) ",\"labels\":{\"batch.kubernetes.io/"                                     \
				 "job-completion-index\":\"" index                                         \
				 "\"}},\"status\":{\"phase\":\"Succeeded\","                               \
				 "\"containerStatuses\":[{\"name\":\"program\",\"state\":{\"terminated\":" \
				 "{\"exitCode\":0}}}]}}"
#define ENDED_JOB                                                                                  \
	"{" META("a", "j") "},\"status\":{\"conditions\":[{\"type\":\"Complete\",\"status\":"      \
			   "\"True\"}]}}"
#define ENDED_JOBSET                                                                               \
	"{" META("a", "s") "},\"status\":{\"conditions\":[{\"type\":\"Completed\",\"status\":"     \
			   "\"True\"}]}}"
/* Results wait in the pods, which keep the JobSet from completing. */
#define LINGERING(name, index)                                                                     \
	"{" META(name, "1234567" index) ",\"annotations\":{\"dlrun.io/linger\":\"300\","           \
					"\"batch.kubernetes.io/job-completion-index\":\"" index    \
					"\"}},\"status\":{\"phase\":\"Running\","                  \
					"\"containerStatuses\":[{\"name\":\"program\",\"state\":{" \
					"\"terminated\":{\"exitCode\":0}}},{\"name\":"             \
					"\"results\",\"state\":{\"running\":{}}}]}}"
#define LINGERING_JOBSET                                                                           \
	"{" META("a", "s") "},\"spec\":{\"replicatedJobs\":[{\"template\":{\"spec\":{"             \
			   "\"completions\":2}}}]}}"
#define FORBIDDEN                                                                                  \
	"{\"kind\":\"Status\",\"status\":\"Failure\",\"reason\":\"Forbidden\",\"message\":\"no\"," \
	"\"code\":403}"
#define MAX_BYTES 4096

static const char *refused;               /* a part of paths; NULL: none */
static const char *job = "job-name%3Da&"; /* whose pods there are */
static bool lingers;                      /* they, and the JobSet goes on */
static atomic_int n_first;                /* requests for the log of rank 0 */

static bool print(struct fix_conn *conn, int status, const char *type, const char *body)
{
	AUTO_FREE char *text = mem_printf("HTTP/1.1 %d X\r\nContent-Type: %s\r\n"
					  "Content-Length: %zu\r\n\r\n%s",
		status, type, strlen(body), body);

	return fix_print(conn, text);
}

static bool on_request(struct fix_conn *conn)
{
	bool is_first = strstr(conn->path, "/pods/p0/");

	free(fix_body(conn));
	if (refused && strstr(conn->path, refused))
		return print(conn, 403, "application/json", FORBIDDEN);
	if (strstr(conn->path, "watch=1")) {
		if (fix_print(conn, "HTTP/1.1 200 X\r\nConnection: close\r\n\r\n"))
			fix_wait_end(conn);
		return false;
	}
	if (strstr(conn->path, "/log?")) {
		atomic_fetch_add(&n_first, is_first);
		return print(conn, 200, "text/plain",
			is_first ? T "1Z one\n" T "3Z three\n" : T "2Z two\n");
	}
	if (strstr(conn->path, "/jobsets?"))
		return print(conn, 200, "application/json",
			lingers ? LIST(LINGERING_JOBSET) : LIST(ENDED_JOBSET));
	if (strstr(conn->path, "/pods?") && lingers)
		return print(conn, 200, "application/json",
			LIST(LINGERING("p0", "0") "," LINGERING("p1", "1")));
	if (strstr(conn->path, "/pods?") && !strstr(conn->path, job))
		return print(conn, 200, "application/json", LIST(""));
	return print(conn, 200, "application/json",
		strstr(conn->path, "/jobs?") ? LIST(ENDED_JOB)
					     : LIST(POD("p0", "0") "," POD("p1", "1")));
}

struct runtime {
	struct kube kube;
	struct kube_runlog *runlog;
	struct buf ranks[2];
	int n_ends;
	enum err_id error;
	bool stops, frees;
	enum kube_kind kind;
};

static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct runtime *runtime = ctx;

	assert_in_range(rank, 0, 1);
	assert_int_equal(time_ms, INT64_C(1795249260000));
	if (runtime->stops)
		return err_set(err, E_CANCELED, "stopped");
	buf_add(&runtime->ranks[rank], data, len);
	return 0;
}

static int on_end(void *ctx, struct err *error, struct err *err)
{
	struct runtime *runtime = ctx;

	runtime->n_ends++;
	runtime->error = error->id;
	if (runtime->frees)
		kube_runlog_free(TAKE(runtime->runlog));
	loop_stop(runtime->kube.loop);
	return 0;
}

static int too_late(void *ctx, struct err *err)
{
	fail_msg("it has no end");
	return 0;
}

static void begin(struct runtime *runtime, int rank, bool follow, const char *token)
{
	static const struct step none[] = {{200, ""}};
	const struct kube_runlog_request request = {.kind = runtime->kind,
		.kube_namespace = "jobs",
		.name = "a",
		.pods = runtime->kind == KUBE_KIND_JOBSET ? "job-name=a-w-0" : "job-name=a",
		.rank = rank,
		.tail_lines = -1,
		.follow = follow,
		.token = token,
		.events = {.data = on_data, .end = on_end, .ctx = runtime}};

	atomic_store(&n_first, 0);
	kube_init(&runtime->kube, none, 1);
	runtime->kube.server->response = on_request;
	kube_connect(&runtime->kube);
	for (size_t i = 0; i < 2; i++)
		buf_init(&runtime->ranks[i], MAX_BYTES);
	runtime->runlog = kube_runlog_start(runtime->kube.client, runtime->kube.loop, &request);
}

static int run(struct runtime *runtime, struct err *err)
{
	struct loop_timer *timer =
		loop_add_timer(runtime->kube.loop, clock_ms() + 20000, too_late, NULL);
	int r = loop_run(runtime->kube.loop, err);

	loop_remove_timer(runtime->kube.loop, timer);
	return r;
}

static void done(struct runtime *runtime)
{
	kube_runlog_free(runtime->runlog);
	kube_done(&runtime->kube);
	for (size_t i = 0; i < 2; i++)
		buf_done(&runtime->ranks[i]);
}

static const char *text_of(const struct runtime *runtime, int rank)
{
	return runtime->ranks[rank].data ? runtime->ranks[rank].data : "";
}

static void test_whole(void **state)
{
	refused = NULL;
	for (int follow = 0; follow < 2; follow++) {
		AUTO(done) struct runtime runtime = {.frees = follow};

		begin(&runtime, -1, follow, NULL);
		assert_int_equal(run(&runtime, NULL), 0);
		assert_int_equal(runtime.n_ends, 1);
		assert_int_equal(runtime.error, E_NONE);
		assert_true(atomic_load(&n_first) > 0);
		assert_string_equal(text_of(&runtime, 0), "one\nthree\n");
		assert_string_equal(text_of(&runtime, 1), "two\n");
	}
}

/* Its pods are those of its Job; it has ended when it says so itself. */
static void test_of_a_jobset(void **state)
{
	AUTO(done) struct runtime runtime = {.kind = KUBE_KIND_JOBSET};

	refused = "/jobs?";
	job = "job-name%3Da-w-0&";
	begin(&runtime, -1, true, NULL);
	assert_int_equal(run(&runtime, NULL), 0);
	job = "job-name%3Da&";
	assert_int_equal(runtime.error, E_NONE);
	assert_string_equal(text_of(&runtime, 0), "one\nthree\n");
	assert_string_equal(text_of(&runtime, 1), "two\n");
}

/* The end of the programs is known before their logs have been read. */
static void test_of_a_jobset_whose_results_wait(void **state)
{
	AUTO(done) struct runtime runtime = {.kind = KUBE_KIND_JOBSET};

	refused = NULL;
	lingers = true;
	begin(&runtime, -1, true, NULL);
	assert_int_equal(run(&runtime, NULL), 0);
	lingers = false;
	assert_int_equal(runtime.n_ends, 1);
	assert_string_equal(text_of(&runtime, 0), "one\nthree\n");
	assert_string_equal(text_of(&runtime, 1), "two\n");
}

static void test_one_rank(void **state)
{
	AUTO(done) struct runtime runtime = {0};

	refused = NULL;
	begin(&runtime, 1, false, NULL);
	assert_int_equal(run(&runtime, NULL), 0);
	assert_string_equal(text_of(&runtime, 0), "");
	assert_string_equal(text_of(&runtime, 1), "two\n");
	assert_int_equal(atomic_load(&n_first), 0);
}

static void test_goes_on(void **state)
{
	AUTO(done) struct runtime first = {0}, second = {0};
	AUTO_BUF struct buf token;

	refused = NULL;
	buf_init(&token, MAX_BYTES);
	begin(&first, -1, false, NULL);
	assert_int_equal(run(&first, NULL), 0);
	kube_runlog_token(first.runlog, &token);
	assert_null(strchr(token.data, ' '));
	begin(&second, -1, false, token.data);
	assert_int_equal(run(&second, NULL), 0);
	assert_int_equal(second.error, E_NONE);
	assert_string_equal(text_of(&second, 0), "");
	assert_string_equal(text_of(&second, 1), "");
}

static void test_refused(void **state)
{
	static const char *const paths[] = {"/pods?", "/log?"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		AUTO(done) struct runtime runtime = {0};

		refused = paths[i];
		begin(&runtime, -1, false, NULL);
		assert_int_equal(run(&runtime, NULL), 0);
		assert_int_equal(runtime.n_ends, 1);
		assert_int_equal(runtime.error, E_KUBE_DENIED);
	}
}

static void test_stopped(void **state)
{
	AUTO(done) struct runtime runtime = {.stops = true};
	AUTO_ERR struct err err = {0};

	refused = NULL;
	begin(&runtime, -1, false, NULL);
	assert_int_equal(run(&runtime, &err), -ERR_CANCELED);
	assert_int_equal(runtime.n_ends, 0);
}

/*
 * More ranks than can be read at the same time
 */

enum { MANY = HTTP_TURNS_MAX + 10 };

static int n_lines[MANY], n_ranks;

static char *many_pods(void)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, 1 << 20);
	for (int i = 0; i < MANY; i++)
		buf_addf(&out,
			"%s{\"metadata\":{\"name\":\"p%d\",\"uid\":\"1234567%d\","
			"\"resourceVersion\":\"1\",\"creationTimestamp\":\"2026-11-21T08:20:00Z\","
			"\"labels\":{\"batch.kubernetes.io/job-completion-index\":\"%d\"}},"
			"\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":"
			"\"program\",\"state\":{\"running\":{}}}]}}",
			i ? "," : "", i, i, i);
	return mem_printf("{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[%s]}", out.data);
}

/* Logs of one line, of programs that go on. */
static bool on_many(struct fix_conn *conn)
{
	static const char head[] = "HTTP/1.1 200 X\r\nConnection: close\r\n\r\n";
	bool is_log = strstr(conn->path, "/log?"), follows = strstr(conn->path, "follow=true");

	free(fix_body(conn));
	if (strstr(conn->path, "watch=1") || (is_log && follows)) {
		if (fix_print(conn, head) && (!is_log || fix_print(conn, T "1Z one\n")))
			fix_wait_end(conn);
		return false;
	}
	if (is_log)
		return print(conn, 200, "text/plain", T "1Z one\n");
	AUTO_FREE char *pods = many_pods();
	return print(conn, 200, "application/json",
		strstr(conn->path, "/jobs?") ? LIST("{" META("a", "j") ",\"status\":{}}") : pods);
}

static int on_line(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct runtime *runtime = ctx;

	(void)time_ms, (void)err;
	assert_in_range(rank, 0, MANY - 1);
	for (size_t i = 0; i < len; i++)
		n_lines[rank] += data[i] == '\n';
	if (n_lines[rank] == 1 && len > 0 && ++n_ranks == MANY)
		loop_stop(runtime->kube.loop);
	return 0;
}

static void test_many_ranks_take_turns(void **state)
{
	static const struct step none[] = {{200, ""}};
	AUTO(done) struct runtime runtime = {0};
	const struct kube_runlog_request request = {.kube_namespace = "jobs",
		.name = "a",
		.pods = "job-name=a",
		.rank = -1,
		.tail_lines = -1,
		.follow = true,
		.events = {.data = on_line, .end = on_end, .ctx = &runtime}};

	kube_init(&runtime.kube, none, 1);
	runtime.kube.server->response = on_many;
	kube_connect(&runtime.kube);
	runtime.runlog = kube_runlog_start(runtime.kube.client, runtime.kube.loop, &request);
	assert_int_equal(run(&runtime, NULL), 0);
	assert_int_equal(runtime.n_ends, 0);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(n_lines[i], 1);
	/* And two watches. */
	assert_true(runtime.kube.server->n_open_max <= HTTP_TURNS_MAX + 2 + HTTP_CONNECTIONS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_of_a_jobset),
		cmocka_unit_test(test_of_a_jobset_whose_results_wait),
		cmocka_unit_test(test_one_rank),
		cmocka_unit_test(test_goes_on),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_many_ranks_take_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
