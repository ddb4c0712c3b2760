/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <unistd.h>

#include "base/util/clock.h"
#include "kube/logs/podlog.h"
#include "tests/unit/kubefix.h"

#define T   "2026-11-21T08:21:00."
#define L1  T "000000001Z one\n"
#define L2  T "000000002Z two\n"
#define L3  T "100000000Z three\n"
#define END T "200000000Z END\n"
#define STATUS(code, reason, message)                                                              \
	"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"reason\":\"" reason   \
	"\",\"message\":\"" message "\",\"code\":" #code "}"
#define WAITING                                                                                    \
	STATUS(400, "BadRequest",                                                                  \
		"container \\\"program\\\" in pod \\\"p\\\" is waiting to start: ContainerCreating")

struct runtime {
	struct kube kube;
	struct podlog *podlog;
	struct buf out;
	struct strv notices;
	enum err_id error;
	int n_ends;
	int response; /* of data */
	int64_t beat_ms;
};

enum { BEAT_MS = 100, STILL_MS = 500 };

/* This process did not run for a while: a request that is repeated then takes a step that was meant
 * for another one. */
static bool stood_still;

static int on_data(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct runtime *runtime = ctx;

	assert_in_range(time_ms, INT64_C(1795249260000), INT64_C(1795249261000));
	buf_add(&runtime->out, data, len);
	if (str_ends(runtime->out.data, "END\n"))
		podlog_finish(runtime->podlog, false);
	return runtime->response < 0 ? err_set(err, E_IO, "no") : runtime->response;
}

static void on_notice(void *ctx, const char *text)
{
	strv_add(&((struct runtime *)ctx)->notices, text);
}

static int on_end(void *ctx, struct err *error, struct err *err)
{
	struct runtime *runtime = ctx;

	runtime->n_ends++;
	runtime->error = error->id;
	podlog_free(TAKE(runtime->podlog));
	loop_stop(runtime->kube.loop);
	return 0;
}

static int on_beat(void *ctx, struct err *err)
{
	struct runtime *runtime = ctx;
	int64_t now_ms = clock_ms();

	stood_still = stood_still || now_ms > runtime->beat_ms + STILL_MS;
	runtime->beat_ms = now_ms + BEAT_MS;
	loop_add_timer(runtime->kube.loop, runtime->beat_ms, on_beat, runtime);
	return 0;
}

static void begin(struct runtime *runtime, const struct step *steps, size_t n,
	const struct podlog_request *more)
{
	struct podlog_request request = {.follow = true, .tail_lines = -1};

	if (more)
		request = *more;
	request.kube_namespace = "jobs";
	request.pod = "p";
	request.container = "program";
	request.id = "abc.0";
	request.events = (struct podlog_events){on_data, on_notice, NULL, on_end, runtime};
	buf_init(&runtime->out, 1 << 20);
	kube_init(&runtime->kube, steps, n);
	kube_connect(&runtime->kube);
	runtime->podlog = podlog_start(runtime->kube.client, runtime->kube.loop, &request);
	runtime->beat_ms = clock_ms();
	loop_add_timer(runtime->kube.loop, runtime->beat_ms, on_beat, runtime);
}

static void run(struct runtime *runtime)
{
	assert_int_equal(loop_run(runtime->kube.loop, NULL), 0);
	assert_int_equal(runtime->n_ends, 1);
}

static void runtime_done(struct runtime *runtime)
{
	podlog_free(runtime->podlog);
	kube_done(&runtime->kube);
	buf_done(&runtime->out);
	strv_done(&runtime->notices);
}

#define AUTO_RUNTIME AUTO(runtime_done)

static bool requested(const struct runtime *runtime, size_t i, const char *what)
{
	assert_true(i < runtime->kube.server->heads.n);
	return strstr(runtime->kube.server->heads.v[i], what);
}

static void test_follows(void **state)
{
	static const struct step steps[] = {{200, L1 L2 L3 END, .is_stream = true}, {200, END}};
	AUTO_RUNTIME struct runtime runtime = {0};

	begin(&runtime, steps, 2, NULL);
	run(&runtime);
	assert_string_equal(runtime.out.data, "one\ntwo\nthree\nEND\n");
	assert_int_equal(runtime.error, E_NONE);
	assert_int_equal(runtime.notices.n, 0);
	assert_true(
		requested(&runtime, 0, "/api/v1/namespaces/jobs/pods/p/log?container=program&"));
	assert_true(requested(&runtime, 0, "timestamps=true"));
	assert_true(requested(&runtime, 0, "follow=true"));
	assert_false(requested(&runtime, 0, "sinceTime"));
	assert_true(requested(&runtime, 1, "tailLines=1"));
	/* The rest is read once more where the stream ends after that response. */
	assert_in_range(runtime.kube.server->heads.n, 2, 4);
	for (size_t i = 1; i < runtime.kube.server->heads.n; i++)
		assert_false(requested(&runtime, i, "follow=true"));
}

static void test_cut(void **state)
{
	static const struct step steps[] = {
		{200, L1 L2 T "1000", .is_stream = true, .is_cut = true},
		{200, L1 L2 T "100000000Z thr", .is_stream = true, .is_cut = true},
		{0},
		{200, L1 L2 L3 END, .is_stream = true},
		{200, END},
	};
	AUTO_RUNTIME struct runtime runtime = {0};

	begin(&runtime, steps, 5, NULL);
	run(&runtime);
	assert_string_equal(runtime.out.data, "one\ntwo\nthree\nEND\n");
	assert_int_equal(runtime.notices.n, 0);
}

/* An end in order is the program's, most likely: no hurry to read what may be its successor's. */
static void test_ends_in_order(void **state)
{
	static const struct step steps[] = {
		{200, L1, .is_stream = true},
		{200, L1, .is_stream = true},
		{200, L1 L3 END, .is_stream = true},
		{200, END},
	};
	AUTO_RUNTIME struct runtime runtime = {0};
	int64_t begin_ms = clock_ms();

	begin(&runtime, steps, 4, NULL);
	run(&runtime);
	assert_string_equal(runtime.out.data, "one\nthree\nEND\n");
	assert_int_equal(runtime.notices.n, 0);
	assert_true(clock_ms() - begin_ms >= 1000 + 2000);
}

static void test_rotated(void **state)
{
	static const struct step steps[] = {
		{200, L1, .is_stream = true, .is_cut = true},
		{200, L3 END, .is_stream = true},
		{200, END},
	};
	AUTO_RUNTIME struct runtime runtime = {0};

	begin(&runtime, steps, 3, NULL);
	run(&runtime);
	assert_string_equal(runtime.out.data, "one\nthree\nEND\n");
	assert_int_equal(runtime.notices.n, 1);
	assert_string_equal(runtime.notices.v[0],
		"p: lines between 2026-11-21T08:21:00.000Z and 2026-11-21T08:21:00.100Z (99 ms) "
		"may be missing: its node rotated the log");
}

enum { BEFORE_LINE_MS = 3000, LONG_LINES = 600, LONG_LINE = 1000, STREAMS_MAX = 3 };

static const struct late {
	const char *name;
	bool is_visited; /* before a line is written: it is empty */
	bool is_cut;     /* the stream that was open then */
	bool is_stuck;   /* it is: the line is there, and does not come */
	bool is_soon;    /* after that look, and much of it */
	bool is_ended;   /* the container, before all */
	bool is_slow;    /* to bring what has been there from the beginning */
	bool is_notified;
} lates[] = {
	{"unread", .is_notified = true},
	{"empty", .is_visited = true},
	{"empty, then cut", .is_visited = true, .is_cut = true, .is_notified = true},
	{"empty, cut, much", .is_visited = true, .is_cut = true, .is_soon = true,
		.is_notified = true},
	{"empty, then stuck", .is_visited = true, .is_stuck = true, .is_notified = true},
	{"much, after a pause", .is_visited = true, .is_soon = true},
	{"ended", .is_ended = true},
	{"ended, slow", .is_ended = true, .is_slow = true},
};
static const struct late *late;
static atomic_int n_streams, n_polls;
static atomic_bool is_written;

static void print_long_lines(struct fix_conn *conn)
{
	char line[sizeof(L3) + LONG_LINE];

	snprintf(line, sizeof(line), T "100000000Z %0*d\n", LONG_LINE, 0);
	for (int i = 0; i < LONG_LINES; i++)
		fix_print(conn, line);
}

/* Silent for longer than a rotation takes; the last line is asked for in the meantime. */
static bool response_late(struct fix_conn *conn)
{
	if (!strstr(conn->head, "tailLines")) {
		int n_before = atomic_fetch_add(&n_streams, 1);
		bool is_first = n_before == 0;
		bool is_prompt = late->is_soon || late->is_stuck || n_before >= STREAMS_MAX;

		/* The second look begins when the first one's answer was read. */
		while (late->is_visited && atomic_load(&n_polls) < 2)
			poll(NULL, 0, 10);
		if (late->is_cut && is_first) {
			fix_reset(conn);
			return false;
		}
		if (late->is_stuck && is_first) {
			atomic_store(&is_written, true);
			while (atomic_load(&n_streams) < 2)
				poll(NULL, 0, 10);
			return false;
		}
		fix_print(conn, "HTTP/1.1 200 X\r\nConnection: close\r\n\r\n");
		poll(NULL, 0, is_prompt ? 0 : late->is_slow ? 4000 : 3100);
		atomic_store(&is_written, true);
		if (late->is_soon)
			print_long_lines(conn);
		fix_print(conn, L3 END);
		return false;
	}
	bool has_line = atomic_load(&is_written);
	bool is_early = atomic_fetch_add(&n_polls, 1) < 2;
	bool is_known = late->is_visited && (is_early || !late->is_cut);
	if (has_line)
		return fix_print(conn, "HTTP/1.1 200 X\r\nContent-Length: 35\r\n\r\n" END);
	return fix_print(conn, is_known ? "HTTP/1.1 200 X\r\nContent-Length: 0\r\n\r\n"
					: "HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n");
}

/* Nothing could be read for long: what was there first may be gone. */
static void test_lost_beginning(void **state)
{
	static const struct step steps[] = {{200, ""}};

	for (late = lates; late < lates + ARRAY_LEN(lates); late++) {
		AUTO_RUNTIME struct runtime runtime = {0};

		atomic_store(&n_polls, 0);
		atomic_store(&n_streams, 0);
		atomic_store(&is_written, late->is_slow);
		begin(&runtime, steps, 1,
			&(struct podlog_request){.follow = true,
				.tail_lines = -1,
				.started_ms = INT64_C(1795249260100) - BEFORE_LINE_MS});
		runtime.kube.server->response = response_late;
		if (late->is_ended)
			podlog_finish(runtime.podlog, false);
		run(&runtime);
		assert_true(str_ends(runtime.out.data, "three\nEND\n"));
		if (late->is_slow)
			assert_true(atomic_load(&n_streams) <= STREAMS_MAX);
		if (runtime.notices.n != late->is_notified)
			fail_msg("%s: %zu notices", late->name, runtime.notices.n);
		if (late->is_notified)
			assert_string_equal(runtime.notices.v[0],
				"p: lines before 2026-11-21T08:21:00.100Z (3 s) may be missing: "
				"its node keeps the newest part of a log only");
	}
}

static void test_waits(void **state)
{
	static const struct step steps[] = {
		{400, WAITING}, {400, WAITING}, {200, END, .is_stream = true}, {200, END}};
	AUTO_RUNTIME struct runtime runtime = {0};

	begin(&runtime, steps, 4, NULL);
	run(&runtime);
	assert_string_equal(runtime.out.data, "END\n");
	assert_int_equal(runtime.notices.n, 0);
}

static void test_ends(void **state)
{
	static const struct {
		struct step step;
		enum err_id error;
		bool previous;
	} rows[] = {
		{{404, STATUS(404, "NotFound", "pods \\\"p\\\" not found")}, E_KUBE_NOT_FOUND,
			false},
		{{403, STATUS(403, "Forbidden", "no")}, E_KUBE_DENIED, false},
		{{400, STATUS(400, "BadRequest", "container x is not valid for pod p")},
			E_KUBE_INVALID, false},
		{{400, STATUS(400, "BadRequest", "previous terminated container not found")},
			E_NONE, true},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_RUNTIME struct runtime runtime = {0};
		begin(&runtime, &rows[i].step, 1,
			&(struct podlog_request){
				.follow = true, .tail_lines = -1, .previous = rows[i].previous});
		run(&runtime);
		assert_int_equal(runtime.error, rows[i].error);
		assert_int_equal(runtime.out.len, 0);
		assert_int_equal(requested(&runtime, 0, "previous=true"), rows[i].previous);
	}
}

#define NO_POD STATUS(404, "NotFound", "pods \\\"p\\\" not found")
#define OURS   "{\"metadata\":{\"name\":\"p\",\"uid\":\"abc-1\"}}"
#define OTHERS "{\"metadata\":{\"name\":\"p\",\"uid\":\"abc-2\"}}"

/* Whatever a starting kubelet, its runtime or a starting API server say of the log: the pod is
 * there, unless the API server says otherwise of the pod. */
static void test_only_the_pod_itself_is_gone(void **state)
{
	static const struct {
		const char *name;
		struct step steps[3]; /* after the first stream */
		enum err_id error;    /* E_NONE: it goes on */
	} rows[] = {
		{"404 of a kubelet", {{404, NO_POD}, {200, OURS}}, E_NONE},
		{"404 again", {{404, NO_POD}, {200, OURS}, {404, NO_POD}}, E_NONE},
		{"404 without a word", {{404, ""}, {200, OURS}}, E_NONE},
		{"404 of a proxy for both", {{404, ""}, {404, "<html></html>"}}, E_NONE},
		{"the pod cannot be read", {{404, NO_POD}, {403, STATUS(403, "Forbidden", "no")}},
			E_NONE},
		{"no kubelet",
			{{500, STATUS(500, "InternalError", "Get \\\"https://n:10250/c\\\": EOF")}},
			E_NONE},
		{"TLS", {{500, STATUS(500, "InternalError", "tls: internal error")}}, E_NONE},
		{"502", {{502, "bad gateway"}}, E_NONE},
		{"no container yet",
			{{400, STATUS(400, "BadRequest", "container c in pod p is not available")}},
			E_NONE},
		{"no runtime",
			{{400, STATUS(400, "BadRequest",
				       "unable to retrieve container logs for containerd://1")}},
			E_NONE},
		{"refused for now", {{403, STATUS(403, "Forbidden", "no")}}, E_NONE},
		{"gone", {{404, NO_POD}, {404, NO_POD}}, E_KUBE_NOT_FOUND},
		{"another one", {{404, NO_POD}, {200, OTHERS}}, E_KUBE_NOT_FOUND},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct step steps[8] = {{200, L1, .is_stream = true, .is_cut = true}};
		AUTO_RUNTIME struct runtime runtime = {0};
		size_t n = 1;

		for (size_t k = 0; k < 3 && rows[i].steps[k].status; k++)
			steps[n++] = rows[i].steps[k];
		if (str_eq(rows[i].name, "404 again"))
			steps[n++] = (struct step){200, OURS};
		steps[n++] = (struct step){200, L1 L2 END, .is_stream = true};
		steps[n++] = (struct step){200, END};
		begin(&runtime, steps, n,
			&(struct podlog_request){.follow = true, .tail_lines = -1, .uid = "abc-1"});
		run(&runtime);
		if (runtime.error != rows[i].error)
			fail_msg("%s: %s", rows[i].name,
				runtime.error ? err_info(runtime.error)->name : "no error");
		assert_string_equal(runtime.out.data, rows[i].error ? "one\n" : "one\ntwo\nEND\n");
		assert_int_equal(runtime.notices.n, str_eq(rows[i].name, "404 again"));
	}
}

/* The last line was not in the stream: what is left is read. */
static void test_drains(void **state)
{
	static const struct step steps[] = {
		{200, L1 L2 T "150000000Z END\n", .is_stream = true},
		{200, END},
		{200, L1 L2 T "150000000Z END\n" END},
		{200, END},
	};
	AUTO_RUNTIME struct runtime runtime = {0};

	begin(&runtime, steps, 4, NULL);
	run(&runtime);
	assert_string_equal(runtime.out.data, "one\ntwo\nEND\nEND\n");
	assert_false(requested(&runtime, 2, "follow"));
	assert_int_equal(runtime.kube.server->heads.n, 4);
}

/* Silent, though more was written. */
static void test_stuck(void **state)
{
	static const struct step steps[] = {
		{200, L1 L2, .is_stream = true, .is_silent = true},
		{200, L3},
		{200, L1 L2 L3 END},
		{200, END},
	};
	AUTO_RUNTIME struct runtime runtime = {0};

	begin(&runtime, steps, 4, NULL);
	run(&runtime);
	assert_string_equal(runtime.out.data, "one\ntwo\nthree\nEND\n");
	assert_int_equal(runtime.notices.n, 0);
	assert_true(requested(&runtime, 1, "tailLines=1"));
	assert_false(requested(&runtime, 2, "follow"));
}

static void test_without_follow(void **state)
{
	static const struct step steps[] = {{200, L1 L2 T "100000000Z open"}};
	AUTO_RUNTIME struct runtime runtime = {0};
	struct podlog_request request = {.tail_lines = 3, .since_ms = INT64_C(1795249260000)};

	begin(&runtime, steps, 1, &request);
	run(&runtime);
	assert_string_equal(runtime.out.data, "one\ntwo\nopen");
	assert_true(requested(&runtime, 0, "tailLines=3"));
	assert_true(requested(&runtime, 0, "sinceTime=2026-11-21T08%3A21%3A00.000Z"));
	assert_false(requested(&runtime, 0, "follow"));
	assert_int_equal(runtime.kube.server->heads.n, 1);
}

static void test_only_what_is_new(void **state)
{
	static const struct step steps[] = {
		{200, L2},
		{200, L1 L2 L3 END, .is_stream = true},
		{200, END},
	};
	AUTO_RUNTIME struct runtime runtime = {0};

	begin(&runtime, steps, 3, &(struct podlog_request){.follow = true, .tail_lines = 0});
	run(&runtime);
	assert_string_equal(runtime.out.data, "three\nEND\n");
}

static void test_token(void **state)
{
	static const struct step first[] = {{200, L1 L2}};
	static const struct step second[] = {{200, L1 L2 L3}};
	AUTO_RUNTIME struct runtime runtime = {0};
	char token[PODLOG_TOKEN_SIZE] = "";

	begin(&runtime, first, 1, &(struct podlog_request){.tail_lines = -1});
	struct podlog *podlog = runtime.podlog;
	runtime.podlog = NULL;
	assert_int_equal(loop_run(runtime.kube.loop, NULL), 0);
	podlog_token(podlog, token);
	podlog_free(podlog);
	assert_true(str_starts(token, "1:abc.0:"));
	AUTO_RUNTIME struct runtime next = {0};
	begin(&next, second, 1, &(struct podlog_request){.tail_lines = 5, .token = token});
	run(&next);
	assert_string_equal(next.out.data, "three\n");
	assert_false(requested(&next, 0, "tailLines"));
}

static void test_refused_data(void **state)
{
	static const struct step steps[] = {{200, L1 L2, .is_stream = true}};
	AUTO_RUNTIME struct runtime runtime = {.response = -1};
	AUTO_ERR struct err err = {0};

	begin(&runtime, steps, 1, NULL);
	assert_int_equal(loop_run(runtime.kube.loop, &err), -ERR_IO);
	assert_string_equal(err.message, "no");
	assert_int_equal(runtime.n_ends, 0);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_follows),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_ends_in_order),
		cmocka_unit_test(test_rotated),
		cmocka_unit_test(test_lost_beginning),
		cmocka_unit_test(test_waits),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_only_the_pod_itself_is_gone),
		cmocka_unit_test(test_drains),
		cmocka_unit_test(test_stuck),
		cmocka_unit_test(test_without_follow),
		cmocka_unit_test(test_only_what_is_new),
		cmocka_unit_test(test_token),
		cmocka_unit_test(test_refused_data),
	};

	int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (n_failed > 0 && stood_still && !getenv("PODLOG_AGAIN")) {
		print_error("the process stood still meanwhile: once more\n");
		setenv("PODLOG_AGAIN", "1", 1);
		execv("/proc/self/exe", argv);
	}
	return n_failed;
}
