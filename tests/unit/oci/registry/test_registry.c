/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/registryfix.h"

#define PATH "/v2/me/x/"

static bool print_status(struct fix_conn *conn, int status, const char *headers, const char *body)
{
	AUTO_FREE char *text = mem_printf("HTTP/1.1 %d X\r\nContent-Length: %zu\r\n%s\r\n%s",
		status, strlen(body), headers, strcmp(conn->method, "HEAD") == 0 ? "" : body);

	return fix_print(conn, text);
}

static bool drain(struct fix_conn *conn)
{
	AUTO_FREE char *body = fix_body(conn);

	return body != NULL;
}

/*
 * One request, one answer
 */

enum { ALL_WAITS_MS = 100 + 300 + 900 + 2500 }; /* at least */

struct row {
	int status;
	const char *headers, *body;
	unsigned accept;
	bool once;
	int n_requests;
	enum err_id error; /* E_NONE: the answer arrives */
	const char *message;
};

static const struct row rows[] = {
	{200, "", "x", 0, false, 1, E_NONE, NULL},
	{201, "", "", 0, false, 1, E_NONE, NULL},
	{202, "", "", 0, false, 1, E_NONE, NULL},
	{204, "", "", 0, false, 1, E_NONE, NULL},
	{206, "", "x", 0, false, 1, E_NONE, NULL},
	{302, "", "", 0, false, 1, E_REGISTRY_RESPONSE, "answers 302 to trying it"},
	{304, "", "", 0, false, 1, E_REGISTRY_RESPONSE, "answers 304"},
	{400, "", "", 0, false, 1, E_REGISTRY_RESPONSE, "answers 400"},
	{400, "", "", REGISTRY_REFUSED, false, 1, E_NONE, NULL},
	{403, "", "", 0, false, 1, E_REGISTRY_DENIED, "may not pull from"},
	{403, "", "", REGISTRY_REFUSED, false, 1, E_NONE, NULL},
	{404, "", "", 0, false, 1, E_REGISTRY_NOT_FOUND, "nothing there"},
	{404, "", "", REGISTRY_REFUSED, false, 1, E_REGISTRY_NOT_FOUND, "nothing there"},
	{404, "", "", REGISTRY_NOT_FOUND, false, 1, E_NONE, NULL},
	{405, "", "", REGISTRY_REFUSED, false, 1, E_NONE, NULL},
	{408, "", "", 0, false, REGISTRY_TRIES, E_REGISTRY_UNREACHABLE, "(5 tries)"},
	{408, "", "", 0, true, 1, E_REGISTRY_RESPONSE, "answers 408"},
	{409, "", "", REGISTRY_REFUSED, false, 1, E_NONE, NULL},
	{412, "", "", REGISTRY_REFUSED, false, 1, E_NONE, NULL},
	{413, "", "", REGISTRY_REFUSED, false, 1, E_REGISTRY_FULL, "uploads of that size"},
	{416, "", "", REGISTRY_REFUSED, false, 1, E_NONE, NULL},
	{416, "", "", 0, false, 1, E_REGISTRY_RESPONSE, "answers 416"},
	{418, "", "", REGISTRY_ANY, false, 1, E_NONE, NULL},
	{429, "", "", 0, false, REGISTRY_TRIES, E_REGISTRY_UNREACHABLE, "answers 429 to trying it"},
	{429, "", "", 0, true, REGISTRY_TRIES, E_REGISTRY_UNREACHABLE, "answers 429"},
	{429, "Retry-After: 0\r\n", "", 0, false, REGISTRY_TRIES, E_REGISTRY_UNREACHABLE, ""},
	{429, "Retry-After: 9999999999999\r\n", "", 0, false, 1, E_REGISTRY_UNREACHABLE, ""},
	{429, "Retry-After: x\r\n", "", 0, false, REGISTRY_TRIES, E_REGISTRY_UNREACHABLE, ""},
	{500, "", "", 0, false, REGISTRY_TRIES, E_REGISTRY_UNREACHABLE, "answers 500"},
	{500, "", "", 0, true, 1, E_REGISTRY_RESPONSE, "answers 500"},
	{500, "", "", REGISTRY_ANY, false, 1, E_NONE, NULL},
	{500, "", "no space left on device", 0, false, 1, E_REGISTRY_FULL, "no room left"},
	{501, "", "", REGISTRY_REFUSED, false, 1, E_NONE, NULL},
	{502, "Content-Type: text/html\r\n", "<title>Bad Gateway</title>", 0, false, REGISTRY_TRIES,
		E_REGISTRY_UNREACHABLE, "answers 502"},
	{503, "", "", 0, false, REGISTRY_TRIES, E_REGISTRY_UNREACHABLE, "answers 503"},
	{504, "", "", REGISTRY_REFUSED, false, REGISTRY_TRIES, E_REGISTRY_UNREACHABLE, ""},
	{507, "", "", 0, false, 1, E_REGISTRY_FULL, "no room left"},
	{599, "", "", 0, false, 1, E_REGISTRY_RESPONSE, "answers 599"},
};

static bool response_row(struct fix_conn *conn)
{
	size_t i = strtoul(conn->path + strlen(PATH), NULL, 10);

	return i < ARRAY_LEN(rows) &&
	       print_status(conn, rows[i].status, rows[i].headers, rows[i].body);
}

static void check_row(struct runtime *runtime, size_t i, const struct outcome *outcome)
{
	const struct row *row = &rows[i];
	AUTO_FREE char *start = mem_printf("GET " PATH "%zu ", i);

	if (outcome->error != row->error || outcome->n_done != 1)
		fail_msg("row %zu (%d): %s", i, row->status,
			outcome->message ? outcome->message : "no fault");
	assert_int_equal(fix_count(runtime->server, start), row->n_requests);
	/* A line that is gone for a second, or a registry that begins anew, is outlasted. */
	if (row->n_requests == REGISTRY_TRIES)
		assert_true(outcome->ms >= ALL_WAITS_MS);
	if (row->error == E_NONE)
		assert_int_equal(outcome->status, row->status);
	else if (!strstr(outcome->message, row->message))
		fail_msg("row %zu: %s", i, outcome->message);
}

/* All of them beside each other, so that their waits are too. */
static void test_statuses(void **state)
{
	struct runtime runtime;
	struct outcome outcomes[ARRAY_LEN(rows)] = {0};

	runtime_init(&runtime, response_row);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *path = mem_printf("%zu", i);
		query(&runtime,
			(struct registry_request){
				.path = path, .accept = rows[i].accept, .once = rows[i].once},
			&outcomes[i]);
	}
	runtime_run(&runtime);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		check_row(&runtime, i, &outcomes[i]);
		outcome_done(&outcomes[i]);
	}
	assert_true(registry_has_responded(runtime.registry));
	assert_true(registry_uses_http(runtime.registry));
	runtime_done(&runtime);
}

/*
 * Trying again
 */

static atomic_int n_busy; /* requests that are answered 503 */
static atomic_int n_bodies;

static bool response_busy(struct fix_conn *conn)
{
	AUTO_FREE char *body = fix_body(conn);

	if (!body)
		return false;
	if (conn->size == 100000 && body[0] == 'a' && body[99999] == 'a')
		atomic_fetch_add(&n_bodies, 1);
	if (atomic_fetch_sub(&n_busy, 1) > 0)
		return print_status(conn, 503, "Retry-After: 1\r\n", "");
	return print_status(conn, 201, "", "");
}

static void test_retry_after(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	atomic_store(&n_busy, 1);
	runtime_init(&runtime, response_busy);
	query_now(&runtime, (struct registry_request){.path = "a", .accept = REGISTRY_REFUSED},
		&outcome);
	is_ok(&outcome, 201);
	assert_true(outcome.ms >= 1000 && outcome.ms < 10000);
	assert_int_equal(runtime.notes.n, 1);
	assert_non_null(strstr(runtime.notes.v[0], "answers 503 to trying it, waiting 1 s"));
	outcome_done(&outcome);
	runtime_done(&runtime);
}

/* The same bytes each time. */
static void test_bodies(void **state)
{
	AUTO_FREE char *data = mem_alloc(1, 100000);
	struct runtime runtime;
	struct outcome outcome = {0};
	AUTO_FREE char *path = mem_printf("%s/body", tmp);

	memset(data, 'a', 100000);
	assert_int_equal(fs_replace(path, data, 100000, 0600, FS_SYNC_NONE, NULL), 0);
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct http_body bodies[] = {
		{.size = 100000, .data = data},
		{.size = 100000, .data = data, .copy = true},
		{.size = 100000, .fd = fd, .has_fd = true},
	};
	runtime_init(&runtime, response_busy);
	for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
		atomic_store(&n_busy, 1);
		atomic_store(&n_bodies, 0);
		query(&runtime,
			(struct registry_request){.method = "PUT", .path = "a", .body = bodies[i]},
			&outcome);
		if (bodies[i].copy)
			memset(data, 'b', 100000);
		runtime_run(&runtime);
		is_ok(&outcome, 201);
		assert_int_equal(atomic_load(&n_bodies), 2);
		outcome_done(&outcome);
	}
	runtime_done(&runtime);
}

static ssize_t read_as(void *ctx, void *out, size_t len, struct err *err)
{
	struct outcome *outcome = ctx;

	size_t left = 100000 - outcome->n_read;
	len = len < left ? len : left;
	memset(out, 'a', len);
	outcome->n_read += len;
	return (ssize_t)len;
}

static void test_read_once(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};
	const struct http_body body = {.size = 100000, .read = read_as};

	atomic_store(&n_busy, 1);
	runtime_init(&runtime, response_busy);
	query_now(&runtime, (struct registry_request){.method = "PUT", .path = "a", .body = body},
		&outcome);
	is_error(&outcome, E_REGISTRY_RESPONSE);
	assert_int_equal(fix_count(runtime.server, "PUT "), 1);
	outcome_done(&outcome);
	query_now(&runtime, (struct registry_request){.method = "PUT", .path = "a", .body = body},
		&outcome);
	is_ok(&outcome, 201);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

/* Reads the first request of each path and goes away without an answer. */
static atomic_int n_lost;

static bool response_lost(struct fix_conn *conn)
{
	if (!drain(conn) || atomic_fetch_sub(&n_lost, 1) > 0)
		return false;
	return print_status(conn, 202, "", "");
}

static void test_lost_reply(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	atomic_store(&n_lost, 1);
	runtime_init(&runtime, response_lost);
	query_now(&runtime, (struct registry_request){.method = "POST", .path = "blobs/uploads/"},
		&outcome);
	is_ok(&outcome, 202);
	assert_int_equal(fix_count(runtime.server, "POST " PATH "blobs/uploads/ "), 2);
	outcome_done(&outcome);
	runtime_done(&runtime);
	/* By a new connection: on an old one libcurl takes that for its end. */
	atomic_store(&n_lost, 1);
	runtime_init(&runtime, response_lost);
	query_now(&runtime, (struct registry_request){.method = "PATCH", .path = "c", .once = true},
		&outcome);
	is_error(&outcome, E_HTTP_CLOSED);
	assert_true(str_starts(outcome.message, "registry 127.0.0.1:"));
	assert_true(str_ends(outcome.message, " closed the connection without an answer"));
	assert_null(strstr(outcome.message, ": "));
	assert_int_equal(fix_count(runtime.server, "PATCH "), 1);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

/* Whatever part of an answer arrives before the connection is cut. */
static const char whole[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\nabc";
static atomic_int n_cuts[sizeof(whole)];

static bool response_part(struct fix_conn *conn)
{
	size_t n = strtoul(conn->path + strlen(PATH), NULL, 10);

	if (n >= sizeof(whole) || atomic_fetch_add(&n_cuts[n], 1) > 0)
		return fix_print(conn, whole);
	fix_send(conn, whole, n);
	if (n % 2)
		fix_reset(conn);
	return false;
}

static void test_cut_everywhere(void **state)
{
	struct runtime runtime;
	struct outcome outcomes[sizeof(whole) - 1] = {0};

	runtime_init(&runtime, response_part);
	for (size_t i = 0; i < ARRAY_LEN(outcomes); i++) {
		AUTO_FREE char *path = mem_printf("%zu", i);
		query(&runtime, (struct registry_request){.path = path}, &outcomes[i]);
	}
	runtime_run(&runtime);
	for (size_t i = 0; i < ARRAY_LEN(outcomes); i++) {
		is_ok(&outcomes[i], 200);
		assert_string_equal(outcomes[i].body, "abc");
		assert_int_equal(atomic_load(&n_cuts[i]), 2);
		outcome_done(&outcomes[i]);
	}
	runtime_done(&runtime);
}

/* Of the first answer of all, which also tells whether http is spoken. */
static void test_cut_first(void **state)
{
	for (size_t i = 0; i < strlen("HTTP/1.1 200"); i++) {
		AUTO_FREE char *path = mem_printf("%zu", i);
		struct runtime runtime;
		struct outcome outcome = {0};
		atomic_store(&n_cuts[i], 0);
		runtime_init(&runtime, response_part);
		query_now(&runtime, (struct registry_request){.path = path}, &outcome);
		is_ok(&outcome, 200);
		assert_true(registry_uses_http(runtime.registry));
		outcome_done(&outcome);
		runtime_done(&runtime);
	}
}

static bool response_cut(struct fix_conn *conn)
{
	fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
	return false;
}

static int take_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct outcome *outcome = ctx;

	(void)data, (void)err;
	outcome->n_data += len;
	return 0;
}

/* What was handed out is not handed out again. */
static void test_data_once(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	runtime_init(&runtime, response_cut);
	query_now(&runtime, (struct registry_request){.path = "a", .data = take_data}, &outcome);
	is_error(&outcome, E_HTTP_CLOSED);
	assert_int_equal(outcome.n_data, 3);
	assert_int_equal(fix_count(runtime.server, "GET "), 1);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

/*
 * Time
 */

/* Beside a call: how long the loop was kept from running by a busy machine. */
struct ticks {
	const struct outcome *outcome;
	int64_t last_ms, lost_ms;
};

enum { TICK_MS = 20, TICK_LATE_MS = 50 };

static int tick(void *ctx, struct err *err)
{
	struct ticks *ticks = ctx;
	int64_t now_ms = clock_ms(), late_ms = now_ms - ticks->last_ms - TICK_MS;

	if (late_ms > TICK_LATE_MS)
		ticks->lost_ms += late_ms;
	ticks->last_ms = now_ms;
	if (ticks->outcome->n_done == 0)
		loop_add_timer(ticks->outcome->runtime->loop, now_ms + TICK_MS, tick, ticks);
	return 0;
}

/* How long it took, without what the machine took. */
static int64_t query_timed(
	struct runtime *runtime, struct registry_request request, struct outcome *outcome)
{
	struct ticks ticks = {.outcome = outcome, .last_ms = clock_ms()};

	query(runtime, request, outcome);
	loop_add_timer(runtime->loop, ticks.last_ms + TICK_MS, tick, &ticks);
	runtime_run(runtime);
	assert_int_equal(outcome->n_done, 1);
	return outcome->ms - ticks.lost_ms;
}

static void test_refused_connection(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};
	uint16_t port = fix_closed_port();

	runtime_init(&runtime, response_busy);
	free(runtime.host);
	runtime.host = mem_printf("127.0.0.1:%u", port);
	struct registry_options options = runtime_options(&runtime);
	options.deadline_ms = INT64_MAX;
	runtime_open(&runtime, &options);
	int64_t took_ms = query_timed(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_REGISTRY_UNREACHABLE);
	assert_non_null(strstr(outcome.message, "cannot be reached"));
	assert_string_equal(outcome.hint, "dlrun doctor");
	assert_true(took_ms < 3500);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

static void test_unknown_host(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	runtime_init(&runtime, response_busy);
	free(runtime.host);
	runtime.host = mem_strdup("no-such-host.invalid:5000");
	struct registry_options options = runtime_options(&runtime);
	runtime_open(&runtime, &options);
	assert_false(registry_uses_http(runtime.registry));
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_HTTP_RESOLVE);
	assert_true(str_starts(
		outcome.message, "registry no-such-host.invalid:5000 could not be resolved"));
	outcome_done(&outcome);
	runtime_done(&runtime);
}

static bool response_never(struct fix_conn *conn)
{
	fix_wait_end(conn);
	return false;
}

static void test_deadline(void **state)
{
	struct runtime runtime;
	struct outcome outcomes[3] = {0};

	runtime_init(&runtime, response_never);
	struct registry_options options = runtime_options(&runtime);
	options.deadline_ms = clock_ms() + 2000;
	runtime_open(&runtime, &options);
	/* The others wait for the first. */
	for (size_t i = 0; i < 3; i++)
		query(&runtime, (struct registry_request){.path = "a", .doing = "dreaming"},
			&outcomes[i]);
	runtime_run(&runtime);
	for (size_t i = 0; i < 3; i++) {
		is_error(&outcomes[i], E_REGISTRY_TIMEOUT);
		assert_non_null(strstr(outcomes[i].message, "(dreaming)"));
		int64_t late_ms = outcomes[i].began_ms + outcomes[i].ms - options.deadline_ms;
		assert_true(late_ms >= 0 && late_ms < 10000);
		outcome_done(&outcomes[i]);
	}
	assert_int_equal(fix_count(runtime.server, "GET "), 1);
	runtime_done(&runtime);
}

/* The second try soon, the third late. */
static bool response_503(struct fix_conn *conn)
{
	return print_status(
		conn, 503, atomic_fetch_sub(&n_busy, 1) > 0 ? "" : "Retry-After: 25\r\n", "slowly");
}

static bool response_429(struct fix_conn *conn)
{
	return print_status(conn, 429, "Retry-After: 3600\r\n", "slowly");
}

static void test_long_wait(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	runtime_init(&runtime, response_429);
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_REGISTRY_UNREACHABLE);
	assert_string_equal(outcome.evidence, "answer: 429 slowly");
	assert_string_equal(outcome.evidence2, "another try, in 30 s, would come too late");
	assert_true(outcome.ms < 10000);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

/* No wait is begun that would go beyond it. */
static void test_deadline_of_tries(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	atomic_store(&n_busy, 1);
	runtime_init(&runtime, response_503);
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_REGISTRY_UNREACHABLE);
	assert_string_equal(outcome.evidence2, "another try, in 25 s, would come too late");
	assert_int_equal(fix_count(runtime.server, "GET "), 2);
	assert_true(outcome.ms < 10000);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

static void test_idle(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	runtime_init(&runtime, response_never);
	struct registry_options options = runtime_options(&runtime);
	options.idle_ms = 100;
	options.deadline_ms = clock_ms() + 2500;
	runtime_open(&runtime, &options);
	int64_t took_ms = query_timed(&runtime, (struct registry_request){.path = "a"}, &outcome);
	/* By chance a try is under way when the time is up. */
	is_error(&outcome,
		outcome.error == E_REGISTRY_TIMEOUT ? E_REGISTRY_TIMEOUT : E_REGISTRY_UNREACHABLE);
	assert_true(fix_count(runtime.server, "GET ") > 1);
	assert_true(took_ms < 3500);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

/*
 * Logins
 */

#define WANT_BASIC "WWW-Authenticate: Basic realm=\"x\"\r\n"
#define ME_SECRET  "bWU6c2VjcmV0" /* me:secret */

static bool response_basic(struct fix_conn *conn)
{
	const char *login = fix_header(conn, "\r\nAuthorization: Basic ");

	if (!login || !str_starts(login, ME_SECRET "\r\n"))
		return print_status(conn, 401, WANT_BASIC, "");
	return print_status(conn, 200, "", "");
}

static void query_five(struct runtime *runtime, enum err_id error, int n_requests)
{
	struct outcome outcomes[5] = {0};
	int before = fix_count(runtime->server, "GET ");

	for (size_t i = 0; i < 5; i++)
		query(runtime, (struct registry_request){.path = "a"}, &outcomes[i]);
	runtime_run(runtime);
	for (size_t i = 0; i < 5; i++) {
		if (error == E_NONE)
			is_ok(&outcomes[i], 200);
		else
			is_error(&outcomes[i], error);
		outcome_done(&outcomes[i]);
	}
	assert_int_equal(fix_count(runtime->server, "GET ") - before, n_requests);
}

/* One of several finds out that a login is wanted. */
static void test_gate(void **state)
{
	struct runtime runtime;

	runtime_init(&runtime, response_basic);
	runtime_login(&runtime, ME_SECRET);
	struct registry_options options = runtime_options(&runtime);
	runtime_open(&runtime, &options);
	query_five(&runtime, E_NONE, 6);
	query_five(&runtime, E_NONE, 5);
	/* What is remembered is no promise. */
	options.remembered_open = options.remembered_http = true;
	runtime_open(&runtime, &options);
	query_five(&runtime, E_NONE, 10);
	options.remembered_challenge = "Basic realm=\"x\"";
	runtime_open(&runtime, &options);
	query_five(&runtime, E_NONE, 5);
	runtime_done(&runtime);
}

static void test_wrong_password(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	runtime_init(&runtime, response_basic);
	runtime_login(&runtime, "bWU6d3Jvbmc="); /* me:wrong */
	struct registry_options options = runtime_options(&runtime);
	runtime_open(&runtime, &options);
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_REGISTRY_AUTH);
	assert_non_null(strstr(outcome.message, "me (from "));
	assert_null(strstr(outcome.message, "wrong"));
	assert_string_equal(outcome.evidence, "answer: 401, without a message");
	assert_true(str_starts(outcome.hint, "docker login 127.0.0.1:"));
	assert_int_equal(fix_count(runtime.server, "GET "), 2);
	outcome_done(&outcome);
	/* Refusals that are asked for are answers. */
	query_now(&runtime, (struct registry_request){.path = "a", .accept = REGISTRY_REFUSED},
		&outcome);
	is_ok(&outcome, 401);
	outcome_done(&outcome);
	outcome.evaluation = true;
	query_now(
		&runtime, (struct registry_request){.path = "a", .accept = REGISTRY_ANY}, &outcome);
	assert_int_equal(outcome.status, 401);
	assert_int_equal(outcome.error, E_REGISTRY_AUTH);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

static void test_no_login(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	runtime_init(&runtime, response_basic);
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_REGISTRY_AUTH);
	assert_int_equal(fix_count(runtime.server, "GET "), 1);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

/* The registry is its own token server; the first token is refused when `expire`. */
static atomic_int n_tokens;
static atomic_bool expire;

static bool response_token(struct fix_conn *conn)
{
	int n = atomic_load(&n_tokens);

	if (str_starts(conn->path, "/token?")) {
		AUTO_FREE char *body =
			mem_printf("{\"token\":\"t%d\"}", atomic_fetch_add(&n_tokens, 1) + 1);
		return print_status(conn, 200, "Content-Type: application/json\r\n", body);
	}
	AUTO_FREE char *want = mem_printf("\r\nAuthorization: Bearer t%d\r\n", n);
	if (n > 0 && strstr(conn->head, want) && !atomic_exchange(&expire, false))
		return print_status(conn, 200, "", "");
	AUTO_FREE char *challenge =
		mem_printf("WWW-Authenticate: Bearer "
			   "realm=\"http://127.0.0.1:%u/token\",service=\"s\"\r\n",
			conn->server->port);
	return print_status(conn, 401, challenge, "");
}

static void test_token(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	atomic_store(&n_tokens, 0);
	atomic_store(&expire, false);
	runtime_init(&runtime, response_token);
	registry_add_source(runtime.registry, "base/y", true);
	registry_add_source(runtime.registry, "me/x", true);
	query_five(&runtime, E_NONE, 1 + 1 + 5);
	assert_true(fix_saw(runtime.server, "scope=repository%3Ame%2Fx%3Apull%2Cpush") ||
		    fix_saw(runtime.server, "scope=repository:me/x:pull,push"));
	assert_true(fix_saw(runtime.server, "base/y:pull") ||
		    fix_saw(runtime.server, "base%2Fy%3Apull"));
	/* It expires in between: one new one. */
	atomic_store(&expire, true);
	query_now(&runtime, (struct registry_request){.path = "b"}, &outcome);
	is_ok(&outcome, 200);
	assert_int_equal(fix_count(runtime.server, "GET " PATH "b "), 2);
	assert_int_equal(atomic_load(&n_tokens), 2);
	outcome_done(&outcome);
	runtime_done(&runtime);
}

enum { AHEAD_LIMIT_MS = 10000 };

/* What is waited for comes when so many connections are there. */
static atomic_int n_wanted;

static void wait_for_wanted(struct fix_server *server)
{
	int64_t end_ms = clock_ms() + AHEAD_LIMIT_MS;

	while (atomic_load(&server->n_open) < atomic_load(&n_wanted) && clock_ms() < end_ms)
		usleep(1000);
}

static bool response_late_token(struct fix_conn *conn)
{
	if (str_starts(conn->path, "/token?"))
		wait_for_wanted(conn->server);
	return response_token(conn);
}

static void test_connects_beside_the_token(void **state)
{
	struct runtime runtime;
	struct outcome outcomes[2] = {0};

	atomic_store(&n_tokens, 0);
	atomic_store(&expire, false);
	atomic_store(&n_wanted, 3);
	runtime_init(&runtime, response_late_token);
	AUTO_FREE char *challenge = mem_printf(
		"Bearer realm=\"http://127.0.0.1:%u/token\",service=\"s\"", runtime.server->port);
	struct registry_options options = runtime_options(&runtime);
	options.remembered_open = options.remembered_http = true;
	options.remembered_challenge = challenge;
	runtime_open(&runtime, &options);
	int64_t begin_ms = clock_ms();
	for (size_t i = 0; i < ARRAY_LEN(outcomes); i++)
		query(&runtime, (struct registry_request){.path = "a"}, &outcomes[i]);
	runtime_run(&runtime);
	assert_true(clock_ms() - begin_ms < AHEAD_LIMIT_MS);
	for (size_t i = 0; i < ARRAY_LEN(outcomes); i++) {
		is_ok(&outcomes[i], 200);
		outcome_done(&outcomes[i]);
	}
	assert_int_equal(fix_count(runtime.server, "GET "), 1 + 2);
	assert_int_equal(runtime.server->n_conns, 3);
	runtime_done(&runtime);
}

/* Those for requests that will come, too. */
enum { N_TO_COME = 3, N_CAME = 4 };
static struct outcome came[N_CAME];

static int come(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct runtime *runtime = ctx;

	assert_null(error);
	assert_int_equal(response->status, 200);
	for (size_t i = 0; i < N_CAME; i++) {
		AUTO_FREE char *path = mem_printf("blobs/uploads/?mount=%zu", i);
		const struct registry_request request = {
			.method = "POST",
			.path = path,
			.doing = "trying it",
			.done = outcome_note,
			.ctx = &came[i],
		};
		came[i] = (struct outcome){.runtime = runtime, .began_ms = clock_ms()};
		came[i].call = registry_start(runtime->registry, &request);
	}
	registry_expect(runtime->registry, 0);
	return 0;
}

static void start_expecting_at(
	struct runtime *runtime, fix_response_fn *response, unsigned n, registry_done_fn *done)
{
	const struct registry_request request = {
		.method = "GET", .path = "a", .doing = "trying it", .done = done, .ctx = runtime};

	atomic_store(&n_tokens, 0);
	atomic_store(&expire, false);
	runtime_init(runtime, response);
	registry_expect(runtime->registry, n);
	registry_start(runtime->registry, &request);
	runtime_run(runtime);
}

static void start_expecting(struct runtime *runtime, unsigned n, registry_done_fn *done)
{
	start_expecting_at(runtime, response_late_token, n, done);
}

/* They are sent by the connections that were made for them. */
static void test_connects_for_those_to_come(void **state)
{
	struct runtime runtime;

	atomic_store(&n_wanted, 1 + N_TO_COME);
	int64_t begin_ms = clock_ms();
	start_expecting(&runtime, N_TO_COME, come);
	assert_true(clock_ms() - begin_ms < AHEAD_LIMIT_MS);
	for (size_t i = 0; i < N_CAME; i++) {
		AUTO_FREE char *line = mem_printf("POST " PATH "blobs/uploads/?mount=%zu ", i);
		is_ok(&came[i], 200);
		assert_int_equal(fix_count(runtime.server, line), 1);
		outcome_done(&came[i]);
	}
	assert_int_equal(fix_count(runtime.server, "POST "), N_CAME);
	assert_int_equal(runtime.server->n_conns, 1 + N_TO_COME);
	runtime_done(&runtime);
}

/* Nobody asks for a login. */
static bool response_late(struct fix_conn *conn)
{
	if (str_eq(conn->method, "GET"))
		wait_for_wanted(conn->server);
	return fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

static void test_connects_before_the_first_response(void **state)
{
	struct runtime runtime;

	atomic_store(&n_wanted, 1 + N_TO_COME);
	int64_t begin_ms = clock_ms();
	start_expecting_at(&runtime, response_late, N_TO_COME, come);
	assert_true(clock_ms() - begin_ms < AHEAD_LIMIT_MS);
	for (size_t i = 0; i < N_CAME; i++) {
		is_ok(&came[i], 200);
		outcome_done(&came[i]);
	}
	assert_int_equal(fix_count(runtime.server, "POST "), N_CAME);
	assert_int_equal(runtime.server->n_conns, 1 + N_TO_COME);
	runtime_done(&runtime);
}

static int stop(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct runtime *runtime = ctx;

	assert_null(error);
	loop_stop(runtime->loop);
	return 0;
}

/* The token's own server is one of those that they go to. Nobody uses them. */
static void test_connections_that_were_not_needed(void **state)
{
	struct runtime runtime;

	atomic_store(&n_wanted, HTTP_CONNECTIONS_MAX - 1);
	start_expecting(&runtime, 100, stop);
	assert_int_equal(runtime.server->n_conns, HTTP_CONNECTIONS_MAX - 1);
	assert_int_equal(fix_count(runtime.server, "POST "), 0);
	runtime_done(&runtime);
}

static int send_body(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct runtime *runtime = ctx;

	assert_null(error);
	came[0] = (struct outcome){.runtime = runtime, .began_ms = clock_ms()};
	query(runtime,
		(struct registry_request){
			.method = "PUT", .path = "b", .body = {.data = "abc", .size = 3}},
		&came[0]);
	return 0;
}

/* Those that are left by then are given back: the loop ends. */
static void test_connections_until_a_body(void **state)
{
	struct runtime runtime;

	atomic_store(&n_wanted, 1 + N_TO_COME);
	start_expecting(&runtime, N_TO_COME, send_body);
	is_ok(&came[0], 200);
	outcome_done(&came[0]);
	assert_int_equal(runtime.server->n_conns, 1 + N_TO_COME);
	runtime_done(&runtime);
}

/*
 * Elsewhere
 */

static atomic_int other_port;

static bool response_elsewhere(struct fix_conn *conn)
{
	AUTO_FREE char *location = NULL;

	if (!drain(conn))
		return false;
	if (!fix_header(conn, "\r\nAuthorization: Basic "))
		return print_status(conn, 401, WANT_BASIC, "");
	location = mem_printf(
		"Location: http://127.0.0.1:%d/up?state=1\r\n", atomic_load(&other_port));
	if (str_starts(conn->path, "/v2/me/x/blobs/r"))
		return print_status(conn, 307, location, "");
	return print_status(conn, 202, location, "");
}

static bool response_other(struct fix_conn *conn)
{
	return drain(conn) && print_status(conn, 201, "", "");
}

static bool response_other_401(struct fix_conn *conn)
{
	return drain(conn) && print_status(conn, 401, WANT_BASIC, "");
}

/* The login stays with the registry. */
static void test_elsewhere(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0}, upload = {0};
	struct fix_server *other = fix_start(response_other);

	atomic_store(&other_port, other->port);
	runtime_init(&runtime, response_elsewhere);
	runtime_login(&runtime, ME_SECRET);
	struct registry_options options = runtime_options(&runtime);
	runtime_open(&runtime, &options);
	query_now(&runtime, (struct registry_request){.path = "blobs/r"}, &outcome);
	is_ok(&outcome, 201);
	outcome_done(&outcome);
	query_now(&runtime,
		(struct registry_request){
			.method = "PUT", .path = "blobs/r", .body = {.size = 3, .data = "abc"}},
		&outcome);
	is_ok(&outcome, 201);
	outcome_done(&outcome);
	query_now(&runtime, (struct registry_request){.method = "POST", .path = "u"}, &outcome);
	is_ok(&outcome, 202);
	assert_string_equal(outcome.location.path, "/up?state=1");
	query_now(&runtime,
		(struct registry_request){.method = "PUT",
			.url = &outcome.location,
			.body = {.size = 3, .data = "abc"}},
		&upload);
	is_ok(&upload, 201);
	assert_int_equal(fix_count(other, "PUT /up?state=1 "), 2);
	assert_false(fix_saw(other, "authorization"));
	assert_false(fix_saw(other, ME_SECRET));
	outcome_done(&upload);
	outcome_done(&outcome);
	runtime_done(&runtime);
	fix_stop(other);
}

/* Somebody else's wish for a login is not fulfilled. */
static void test_elsewhere_login(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};
	struct fix_server *other = fix_start(response_other_401);
	AUTO_URL struct url url = {0};
	AUTO_FREE char *text = mem_printf("http://127.0.0.1:%u/x", other->port);

	atomic_store(&other_port, other->port);
	runtime_init(&runtime, response_elsewhere);
	runtime_login(&runtime, ME_SECRET);
	struct registry_options options = runtime_options(&runtime);
	runtime_open(&runtime, &options);
	query_now(&runtime, (struct registry_request){.path = "blobs/r"}, &outcome);
	is_error(&outcome, E_REGISTRY_AUTH);
	outcome_done(&outcome);
	assert_int_equal(url_parse(text, "x", &url, NULL), 0);
	query_now(&runtime, (struct registry_request){.url = &url}, &outcome);
	is_error(&outcome, E_REGISTRY_AUTH);
	assert_int_equal(fix_count(other, "GET "), 2);
	assert_false(fix_saw(other, "authorization"));
	outcome_done(&outcome);
	runtime_done(&runtime);
	fix_stop(other);
}

static const char *hostile;

static bool response_hostile(struct fix_conn *conn)
{
	AUTO_FREE char *location = mem_printf("Location: %s\r\n", hostile);

	return drain(conn) &&
	       print_status(conn, str_eq(conn->method, "POST") ? 202 : 307, location, "");
}

static void test_hostile(void **state)
{
	static const char *const urls[] = {"http://169.254.169.254/latest/meta-data/",
		"http://[fe80::1]/", "http://0.0.0.0:1/"};
	static const char *const bad[] = {
		"ftp://127.0.0.1/x", "http://me:pw@127.0.0.1/x", "http://a b/", "http:///x"};
	struct runtime runtime;
	struct outcome outcome = {0}, second = {0};

	runtime_init(&runtime, response_hostile);
	for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
		hostile = urls[i];
		query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
		is_error(&outcome, E_HTTP_ZONE);
		outcome_done(&outcome);
		query_now(&runtime, (struct registry_request){.method = "POST", .path = "a"},
			&outcome);
		is_ok(&outcome, 202);
		assert_non_null(outcome.location.host);
		query_now(&runtime,
			(struct registry_request){.method = "PUT", .url = &outcome.location},
			&second);
		is_error(&second, E_HTTP_ZONE);
		assert_true(second.ms < 10000);
		outcome_done(&second);
		outcome_done(&outcome);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		hostile = bad[i];
		query_now(&runtime, (struct registry_request){.method = "POST", .path = "a"},
			&outcome);
		is_ok(&outcome, 202);
		assert_null(outcome.location.host);
		outcome_done(&outcome);
	}
	runtime_done(&runtime);
}

static char *location_of(const struct registry *registry, const char *text, struct err *err)
{
	struct http_response response = {.status = 202};
	AUTO_URL struct url url = {0};
	char *shown = NULL;

	assert_int_equal(
		url_parse("https://reg.example.com:5000/v2/a/", "x", &response.url, NULL), 0);
	if (text)
		strv_addf(&response.headers, "location: %s", text);
	if (registry_location(registry, &response, &url, err) == 0)
		shown = url_text(&url);
	strv_done(&response.headers);
	url_done(&response.url);
	return shown;
}

static void test_location(void **state)
{
	static const struct {
		const char *text, *url;
		enum err_id error;
	} cases[] = {
		{"/v2/x?y=1", "https://reg.example.com:5000/v2/x?y=1", E_NONE},
		{"x", "https://reg.example.com:5000/v2/a/x", E_NONE},
		{"https://other.example.com/x", "https://other.example.com/x", E_NONE},
		{"http://reg.example.com:5000/x", "https://reg.example.com:5000/x", E_NONE},
		{"http://reg.example.com/x", "https://reg.example.com:5000/x", E_NONE},
		{"http://other.example.com/x", NULL, E_REGISTRY_RESPONSE},
		{"http://reg.example.com:81/x", NULL, E_REGISTRY_RESPONSE},
		{NULL, NULL, E_REGISTRY_RESPONSE},
		{"", NULL, E_REGISTRY_RESPONSE},
		{"gopher://x/", NULL, E_HTTP_URL},
	};
	struct runtime runtime;

	runtime_init(&runtime, response_other);
	struct registry_options options = runtime_options(&runtime);
	options.host = "reg.example.com:5000";
	runtime_open(&runtime, &options);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ERR struct err err = {0};
		AUTO_FREE char *url = location_of(runtime.registry, cases[i].text, &err);
		assert_int_equal(err.id, cases[i].error);
		if (cases[i].url)
			assert_string_equal(url, cases[i].url);
		else
			assert_non_null(strstr(err.message, "reg.example.com:5000"));
	}
	runtime_done(&runtime);
}

/*
 * https and http
 */

/* A server of http only, which says so to TLS. */
struct plain {
	int fd;
	uint16_t port;
	pthread_t thread;
	atomic_int n_tls, n_http;
	bool wants_tls; /* it says that it does */
};

static void plain_response(struct plain *plain, int fd)
{
	char head[4096] = "";
	ssize_t n = recv(fd, head, sizeof(head) - 1, 0);
	const char *text = "HTTP/1.1 401 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

	if (n > 0 && head[0] == 0x16) {
		atomic_fetch_add(&plain->n_tls, 1);
		text = "HTTP/1.1 400 Bad Request\r\n\r\n";
	} else if (n > 0) {
		atomic_fetch_add(&plain->n_http, 1);
		if (plain->wants_tls)
			text = "HTTP/1.1 400 X\r\nContent-Length: 46\r\nConnection: close\r\n\r\n"
			       "Client sent an HTTP request to an HTTPS server";
		else if (strstr(head, "/v2/me/x/"))
			text = "HTTP/1.1 200 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
	}
	send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static void *plain_serve(void *ctx)
{
	struct plain *plain = ctx;
	int fd;

	while ((fd = accept(plain->fd, NULL, NULL)) >= 0) {
		plain_response(plain, fd);
		close(fd);
	}
	return NULL;
}

static void plain_start(struct plain *plain)
{
	*plain = (struct plain){0};
	plain->fd = fix_listen(&plain->port);
	pthread_create(&plain->thread, NULL, plain_serve, plain);
}

static void plain_stop(struct plain *plain)
{
	shutdown(plain->fd, SHUT_RDWR);
	pthread_join(plain->thread, NULL);
	close(plain->fd);
}

/* ca_file: of a registry of this machine, so that it is asked by https. */
static void plain_open(struct runtime *runtime, const struct plain *plain, bool insecure, bool http)
{
	AUTO_FREE char *ca_file = mem_printf("%s/ca.crt", tmp);

	assert_int_equal(fs_replace(ca_file, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	free(runtime->host);
	runtime->host = mem_printf("127.0.0.1:%u", plain->port);
	struct registry_options options = runtime_options(runtime);
	options.ca_file = insecure ? ca_file : "/etc/ssl/certs/ca-certificates.crt";
	options.insecure = insecure;
	options.remembered_http = http;
	runtime_open(runtime, &options);
}

static void test_insecure(void **state)
{
	struct runtime runtime;
	struct outcome outcomes[3] = {0};
	struct plain plain;

	plain_start(&plain);
	runtime_init(&runtime, response_other);
	plain_open(&runtime, &plain, true, false);
	assert_false(registry_uses_http(runtime.registry));
	for (size_t i = 0; i < 3; i++)
		query(&runtime, (struct registry_request){.path = "a"}, &outcomes[i]);
	runtime_run(&runtime);
	for (size_t i = 0; i < 3; i++) {
		is_ok(&outcomes[i], 200);
		outcome_done(&outcomes[i]);
	}
	assert_true(registry_uses_http(runtime.registry));
	assert_int_equal(atomic_load(&plain.n_tls), 1);
	plain_open(&runtime, &plain, true, true);
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcomes[0]);
	is_ok(&outcomes[0], 200);
	assert_int_equal(atomic_load(&plain.n_tls), 1);
	outcome_done(&outcomes[0]);
	runtime_done(&runtime);
	plain_stop(&plain);
}

static void test_plain_refused(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};
	struct plain plain;

	plain_start(&plain);
	runtime_init(&runtime, response_other);
	plain_open(&runtime, &plain, false, false);
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_REGISTRY_INSECURE);
	assert_non_null(strstr(outcome.message, "speaks http only"));
	assert_non_null(strstr(outcome.hint, "insecure: true}"));
	assert_int_equal(atomic_load(&plain.n_http), 1);
	outcome_done(&outcome);
	runtime_done(&runtime);
	plain_stop(&plain);
}

/* It is not asked without TLS again because TLS with it fails. */
static void test_tls_fails(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};
	struct plain plain;

	plain_start(&plain);
	plain.wants_tls = true;
	runtime_init(&runtime, response_other);
	free(runtime.host);
	runtime.host = mem_printf("127.0.0.1:%u", plain.port);
	struct registry_options options = runtime_options(&runtime);
	runtime_open(&runtime, &options);
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_HTTP_TLS);
	assert_true(str_starts(outcome.hint, "registry: {push: 127.0.0.1:"));
	assert_int_equal(atomic_load(&plain.n_http), 1);
	assert_int_equal(atomic_load(&plain.n_tls), 1);
	outcome_done(&outcome);
	runtime_done(&runtime);
	plain_stop(&plain);
}

static bool response_says_tls(struct fix_conn *conn)
{
	print_status(conn, 400, "", "Client sent an HTTP request to an HTTPS server.\n");
	/* So that TLS, which follows, finds nobody. */
	shutdown(conn->server->fd, SHUT_RDWR);
	return false;
}

/* A server of this machine that wants TLS gets it. */
static void test_tls_wanted(void **state)
{
	struct runtime runtime;
	struct outcome outcome = {0};

	runtime_init(&runtime, response_says_tls);
	query_now(&runtime, (struct registry_request){.path = "a"}, &outcome);
	is_error(&outcome, E_REGISTRY_UNREACHABLE);
	assert_false(registry_uses_http(runtime.registry));
	outcome_done(&outcome);
	runtime_done(&runtime);
}

/*
 * Names, and the end
 */

static void test_names(void **state)
{
	struct runtime runtime;

	runtime_init(&runtime, response_other);
	struct registry_options options = runtime_options(&runtime);
	options.host = "docker.io";
	options.repo = "ubuntu";
	runtime_open(&runtime, &options);
	assert_string_equal(registry_name(runtime.registry), "docker.io/ubuntu");
	assert_string_equal(registry_host(runtime.registry), "docker.io");
	AUTO_FREE char *one = registry_repo_path(runtime.registry, "ubuntu");
	AUTO_FREE char *two = registry_repo_path(runtime.registry, "me/ubuntu");
	assert_string_equal(one, "library/ubuntu");
	assert_string_equal(two, "me/ubuntu");
	options.host = "[::1]:5000";
	runtime_open(&runtime, &options);
	assert_true(registry_uses_http(runtime.registry));
	AUTO_FREE char *three = registry_repo_path(runtime.registry, "ubuntu");
	assert_string_equal(three, "ubuntu");
	options.host = "sub.localhost";
	runtime_open(&runtime, &options);
	assert_true(registry_uses_http(runtime.registry));
	options.remembered_open = true;
	runtime_open(&runtime, &options);
	assert_false(registry_uses_http(runtime.registry));
	options.remembered_http = true;
	runtime_open(&runtime, &options);
	assert_true(registry_uses_http(runtime.registry));
	options.host = "10.0.0.1:5000";
	runtime_open(&runtime, &options);
	assert_false(registry_uses_http(runtime.registry));
	runtime_done(&runtime);
}

static void test_paths(void **state)
{
	struct runtime runtime;
	struct outcome outcomes[3] = {0};

	runtime_init(&runtime, response_other);
	query_now(&runtime, (struct registry_request){.path = "/v2/"}, &outcomes[0]);
	query_now(&runtime, (struct registry_request){.path = "tags/list", .repo = "a/b"},
		&outcomes[1]);
	query_now(&runtime, (struct registry_request){.path = "tags/list"}, &outcomes[2]);
	assert_int_equal(fix_count(runtime.server, "GET /v2/ "), 1);
	assert_int_equal(fix_count(runtime.server, "GET /v2/a/b/tags/list "), 1);
	assert_int_equal(fix_count(runtime.server, "GET /v2/me/x/tags/list "), 1);
	for (size_t i = 0; i < 3; i++)
		outcome_done(&outcomes[i]);
	runtime_done(&runtime);
}

/* Those behind a pilot that is given up go on. */
static void test_cancel(void **state)
{
	struct runtime runtime;
	struct outcome outcomes[3] = {0};

	runtime_init(&runtime, response_other);
	for (size_t i = 0; i < 3; i++)
		query(&runtime, (struct registry_request){.path = "a"}, &outcomes[i]);
	registry_cancel(outcomes[0].call);
	registry_cancel(NULL);
	runtime_run(&runtime);
	assert_int_equal(outcomes[0].n_done, 0);
	for (size_t i = 1; i < 3; i++) {
		is_ok(&outcomes[i], 201);
		outcome_done(&outcomes[i]);
	}
	/* With requests under way, waiting to be tried again, and behind the gate. */
	for (size_t i = 0; i < 3; i++)
		query(&runtime, (struct registry_request){.path = "a"}, &outcomes[i]);
	registry_free(runtime.registry);
	runtime.registry = NULL;
	runtime_run(&runtime);
	assert_int_equal(outcomes[2].n_done, 0);
	runtime_done(&runtime);
}

static int free_all(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct runtime *runtime = ctx;

	(void)response, (void)error, (void)err;
	registry_free(runtime->registry);
	runtime->registry = NULL;
	return 0;
}

/* done may free the registry, with all of its other calls. */
static void test_free_in_done(void **state)
{
	struct runtime runtime;

	runtime_init(&runtime, response_other);
	const struct registry_request request = {.method = "GET",
		.path = "a",
		.doing = "x",
		.max_body = 10,
		.done = free_all,
		.ctx = &runtime};
	for (int i = 0; i < 4; i++)
		registry_start(runtime.registry, &request);
	runtime_run(&runtime);
	assert_null(runtime.registry);
	runtime_done(&runtime);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_statuses),
		cmocka_unit_test(test_retry_after),
		cmocka_unit_test(test_bodies),
		cmocka_unit_test(test_read_once),
		cmocka_unit_test(test_lost_reply),
		cmocka_unit_test(test_cut_everywhere),
		cmocka_unit_test(test_cut_first),
		cmocka_unit_test(test_data_once),
		cmocka_unit_test(test_refused_connection),
		cmocka_unit_test(test_unknown_host),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_long_wait),
		cmocka_unit_test(test_deadline_of_tries),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_gate),
		cmocka_unit_test(test_wrong_password),
		cmocka_unit_test(test_no_login),
		cmocka_unit_test(test_token),
		cmocka_unit_test(test_connects_beside_the_token),
		cmocka_unit_test(test_connects_for_those_to_come),
		cmocka_unit_test(test_connections_that_were_not_needed),
		cmocka_unit_test(test_connections_until_a_body),
		cmocka_unit_test(test_connects_before_the_first_response),
		cmocka_unit_test(test_elsewhere),
		cmocka_unit_test(test_elsewhere_login),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_location),
		cmocka_unit_test(test_insecure),
		cmocka_unit_test(test_plain_refused),
		cmocka_unit_test(test_tls_fails),
		cmocka_unit_test(test_tls_wanted),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_free_in_done),
	};

	return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
