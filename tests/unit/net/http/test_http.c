/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "tests/unit/httpclient.h"
#include "tests/unit/httpfix.h"

static const char ok_response[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

static bool response_ok(struct fix_conn *conn)
{
	free(fix_body(conn));
	return fix_print(conn, ok_response);
}

/*
 * Requests
 */

static void test_two_requests_one_connection(void **state)
{
	struct fix_server *server = fix_start(response_ok);
	struct client client;

	client_init(&client);
	for (int i = 0; i < 2; i++) {
		struct result result = {0};
		client_get(&client, server->port, "/v2/?secret=1", &result);
		assert_int_equal(result.n_done, 1);
		assert_int_equal(result.status, 200);
		assert_string_equal(result.body, "ok");
		assert_int_equal(result.zone, ADDRESS_LOOPBACK);
		assert_int_equal(result.bytes_down, 2);
		assert_true(result.sent);
		assert_string_equal(result.headers.v[0], "content-length: 2");
		result_done(&result);
	}
	assert_int_equal(server->n_conns, 1);
	assert_int_equal(client.events.n, 2);
	AUTO_FREE char *line = mem_printf("GET http://localhost:%u/v2/ 200 0 2", server->port);
	assert_string_equal(client.events.v[0], line);
	client_done(&client);
	fix_stop(server);
}

static int n_at_once;

static bool response_together(struct fix_conn *conn)
{
	/* Once all that the client lets in are there. */
	for (int i = 0; i < 2000 && atomic_load(&conn->server->n_open) < n_at_once; i++)
		poll(NULL, 0, 1);
	return response_ok(conn);
}

static void test_parallel_limit(void **state)
{
	n_at_once = HTTP_CONNECTIONS_MAX;
	struct fix_server *server = fix_start(response_together);
	struct result results[20] = {0};
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(results); i++)
		client_start(&client, server->port, "/", &results[i]);
	client_run(&client);
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		assert_int_equal(results[i].status, 200);
		result_done(&results[i]);
	}
	assert_int_equal(server->n_open_max, HTTP_CONNECTIONS_MAX);
	assert_int_equal(server->n_conns, HTTP_CONNECTIONS_MAX);
	assert_int_equal(server->n_requests, 20);
	client_done(&client);
	fix_stop(server);
}

/* The first bytes of an answer that has no end. */
static bool response_on(struct fix_conn *conn)
{
	if (strcmp(conn->path, "/stream") != 0)
		return response_ok(conn);
	if (fix_print(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"))
		fix_wait_end(conn);
	return false;
}

enum { STREAMS = HTTP_TURNS_MAX + 5, SHORT = 50 };

static struct result streams[STREAMS];

static int stream_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;
	size_t n = 0;

	(void)data, (void)err;
	result->n_data += len;
	for (size_t i = 0; i < STREAMS; i++)
		n += streams[i].n_data > 0;
	if (n == (size_t)result->step)
		loop_stop(result->client->loop);
	return 0;
}

/* Until n of the streams have begun. */
static void run_until_begun(struct client *client, size_t n)
{
	for (size_t i = 0; i < STREAMS; i++)
		streams[i].step = (int)n;
	client_run(client);
}

static size_t count_waiting(void)
{
	size_t n = 0;

	for (size_t i = 0; i < STREAMS; i++)
		n += streams[i].call && http_waits_for_turn(streams[i].call);
	return n;
}

static int all_done(void *ctx, struct http_response *response, struct err *err)
{
	struct result *result = ctx;
	struct result *first = result->other;

	result_note(ctx, response, err);
	if (++first->step == SHORT)
		loop_stop(result->client->loop);
	return 0;
}

/* However many streams there are, others are answered beside them, over few connections; streams
 * that are too many wait, and who has waited longest is the next. */
static void test_streams_have_their_own_connections(void **state)
{
	struct fix_server *server = fix_start(response_on);
	struct result results[SHORT] = {0};
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < STREAMS; i++) {
		streams[i] = (struct result){
			.request = {.share = HTTP_TURN, .data = stream_data, .idle_ms = 60000}};
		client_start(&client, server->port, "/stream", &streams[i]);
	}
	run_until_begun(&client, HTTP_TURNS_MAX);
	assert_int_equal(count_waiting(), STREAMS - HTTP_TURNS_MAX);
	for (size_t i = 0; i < SHORT; i++) {
		results[i].request.done = all_done;
		results[i].other = &results[0];
		client_start(&client, server->port, "/", &results[i]);
	}
	client_run(&client);
	for (size_t i = 0; i < SHORT; i++) {
		assert_int_equal(results[i].status, 200);
		result_done(&results[i]);
	}
	assert_int_equal(server->n_open_max, HTTP_TURNS_MAX + HTTP_CONNECTIONS_MAX);
	assert_int_equal(server->n_conns, HTTP_TURNS_MAX + HTTP_CONNECTIONS_MAX);
	/* One that must not wait. */
	struct result watch = {.request = {.share = HTTP_STREAM, .data = stream_data}};
	watch.step = HTTP_TURNS_MAX;
	client_start(&client, server->port, "/stream", &watch);
	client_run(&client);
	assert_int_equal(watch.n_data, 1);
	assert_false(http_waits_for_turn(watch.call));
	http_cancel(watch.call);
	for (size_t i = 0; i < STREAMS - HTTP_TURNS_MAX; i++) {
		assert_false(http_waits_for_turn(streams[i].call));
		http_cancel(TAKE(streams[i].call));
		run_until_begun(&client, HTTP_TURNS_MAX + i + 1);
		assert_true(streams[HTTP_TURNS_MAX + i].n_data > 0);
	}
	assert_int_equal(count_waiting(), 0);
	client_done(&client);
	fix_stop(server);
}

static int poll_for_turn(void *ctx, struct err *err)
{
	struct client *client = ctx;

	if (http_is_to_give_way(streams[0].call)) {
		loop_stop(client->loop);
		return 0;
	}
	loop_add_timer(client->loop, clock_ms() + 50, poll_for_turn, client);
	return 0;
}

static void test_turns_have_an_end(void **state)
{
	struct fix_server *server = fix_start(response_on);
	struct client client;
	int64_t begin_ms = clock_ms();

	client_init(&client);
	memset(streams, 0, sizeof(streams));
	for (size_t i = 0; i < HTTP_TURNS_MAX; i++) {
		streams[i] = (struct result){.request = {.share = HTTP_TURN, .data = stream_data}};
		client_start(&client, server->port, "/stream", &streams[i]);
	}
	run_until_begun(&client, HTTP_TURNS_MAX);
	struct result *last = &streams[HTTP_TURNS_MAX];
	*last = (struct result){.request = {.share = HTTP_TURN, .data = stream_data}};
	assert_false(http_is_to_give_way(streams[0].call));
	client_start(&client, server->port, "/stream", last);
	poll_for_turn(&client, NULL);
	client_run(&client);
	assert_true(clock_ms() - begin_ms >= HTTP_TURN_MS);
	assert_true(http_waits_for_turn(last->call));
	http_cancel(streams[0].call);
	run_until_begun(&client, HTTP_TURNS_MAX + 1);
	/* Nobody waits any more. */
	assert_false(http_is_to_give_way(streams[1].call));
	client_done(&client);
	fix_stop(server);
}

static void test_refused(void **state)
{
	struct result result = {0};
	struct client client;
	uint16_t port = fix_closed_port();

	client_init(&client);
	client_get(&client, port, "/", &result);
	result_is_error(&result, E_HTTP_CONNECT, true);
	AUTO_FREE char *text = mem_printf("nothing listens at localhost:%u", port);
	assert_string_equal(result.message, text);
	assert_false(result.sent);
	result_done(&result);
	client_done(&client);
}

static bool response_by_path(struct fix_conn *conn);

/* The only head that the server got. */
static const char *only_head(const struct fix_server *server)
{
	assert_int_equal(server->heads.n, 1);
	return server->heads.v[0];
}

static void test_what_is_sent(void **state)
{
	struct fix_server *server = fix_start(response_ok);
	char *lines[] = {"Accept: b/1", "Accept: a/2", "X-Empty:", "X-Last: 3", NULL};
	struct strv headers = {.v = lines, .n = 4};
	struct result result = {.request = {.headers = &headers, .authorization = "Bearer t0k"}};
	struct client client;

	client_init(&client);
	client_get(&client, server->port, "/a/../b%2F?q=1", &result);
	assert_int_equal(result.status, 200);
	AUTO_FREE char *wanted = mem_printf("GET /a/../b%%2F?q=1 HTTP/1.1\r\n"
					    "Host: localhost:%u\r\n"
					    "User-Agent: dlrun/test\r\n"
					    "Authorization: Bearer t0k\r\n"
					    "Accept: b/1\r\n"
					    "Accept: a/2\r\n"
					    "X-Empty:\r\n"
					    "X-Last: 3\r\n",
		server->port);
	assert_string_equal(only_head(server), wanted);
	result_done(&result);
	client_done(&client);
	fix_stop(server);
}

static void test_line_breaks_are_refused(void **state)
{
	struct fix_server *server = fix_start(response_ok);
	char *lines[] = {"X-A: b\r\nX-C: d", NULL};
	char *no_header[] = {"X-A", NULL};
	struct strv headers = {.v = lines, .n = 1};
	struct strv wrong = {.v = no_header, .n = 1};
	struct result results[3] = {
		{.request.headers = &headers},
		{.request.authorization = "Bearer a\nb"},
		{.request.headers = &wrong},
	};
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		client_get(&client, server->port, "/", &results[i]);
		result_is_error(&results[i], E_HTTP_PROTOCOL, false);
		assert_false(results[i].sent);
		result_done(&results[i]);
	}
	assert_int_equal(server->n_conns, 0);
	client_done(&client);
	fix_stop(server);
}

static void test_methods_without_body(void **state)
{
	static const struct {
		const char *method;
		bool has_length;
	} rows[] = {
		{"POST", true}, {"PUT", true}, {"PATCH", true}, {"DELETE", false}, {"GET", false}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct fix_server *server = fix_start(response_ok);
		struct result result = {.request.method = rows[i].method};
		struct client client;
		client_init(&client);
		client_get(&client, server->port, "/", &result);
		assert_int_equal(result.status, 200);
		const char *head = only_head(server);
		assert_true(str_starts(head, rows[i].method));
		assert_int_equal(
			strstr(head, "\r\nContent-Length: 0\r\n") != NULL, rows[i].has_length);
		assert_null(strcasestr(head, "content-type"));
		assert_null(strcasestr(head, "expect"));
		assert_null(strcasestr(head, "accept-encoding"));
		result_done(&result);
		client_done(&client);
		fix_stop(server);
	}
}

/* A HEAD says how long a body would be and sends none; the connection is good for more. */
static void test_head(void **state)
{
	struct fix_server *server = fix_start(response_by_path);
	struct result head = {.request.method = "HEAD", .request.max_body = 10};
	struct result get = {0};
	struct client client;

	client_init(&client);
	client_get(&client, server->port, "/head", &head);
	assert_int_equal(head.status, 200);
	assert_int_equal(head.body_len, 0);
	assert_string_equal(field_find(&head.headers, "content-length"), "12345");
	client_get(&client, server->port, "/ok", &get);
	assert_int_equal(get.status, 200);
	assert_int_equal(server->n_conns, 1);
	result_done(&head);
	result_done(&get);
	client_done(&client);
	fix_stop(server);
}

/*
 * Answers
 */

struct script {
	const char *path;
	const char *text;
	bool ends; /* the connection is closed behind it */
};

static const struct script scripts[] = {
	{"/ok", ok_response, false},
	{"/head", "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n", false},
	{"/fields",
		"HTTP/1.1 200 OK\r\nX-B: 1\r\nx-a:\t 2 \t\r\nX-B: 3\r\n  more\r\nEmpty:\r\n"
		"Content-Length: 0\r\n\r\n",
		false},
	{"/informed",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		false},
	{"/close", "HTTP/1.1 200 OK\r\n\r\nuntil the end", true},
	{"/chunked",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n"
		"0\r\nX-Trailer: 1\r\nHTTP/1.1 500 x: y\r\n\r\n",
		false},
	{"/404", "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone", false},
	{"/no-reason", "HTTP/1.1 204\r\n\r\n", false},
	/* What is wrong */
	{"/nothing", "", true},
	{"/half-status", "HTTP/1.", true},
	{"/half-headers", "HTTP/1.1 200 OK\r\nContent-Le", true},
	{"/half-body", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", true},
	{"/half-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc", true},
	{"/no-last-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		true},
	{"/no-http", "SSH-2.0-OpenSSH_9.2\r\n", true},
	{"/two-lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
		true},
	{"/no-length", "HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok", true},
	{"/minus", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok", true},
	{"/bad-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc", true},
	{"/other-protocol", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", true},
	{"/no-status", "HTTP/1.1 xyz OK\r\nContent-Length: 0\r\n\r\n", true},
};

static bool response_by_path(struct fix_conn *conn)
{
	for (size_t i = 0; i < ARRAY_LEN(scripts); i++) {
		if (!str_eq(conn->path, scripts[i].path))
			continue;
		return fix_print(conn, scripts[i].text) && !scripts[i].ends;
	}
	return fix_print(conn, "HTTP/1.1 500 No Script\r\nContent-Length: 0\r\n\r\n");
}

static void get_script(const char *path, struct result *result)
{
	struct fix_server *server = fix_start(response_by_path);
	struct client client;

	client_init(&client);
	client_get(&client, server->port, path, result);
	client_done(&client);
	fix_stop(server);
}

static void test_responses(void **state)
{
	static const struct {
		const char *path;
		int status;
		const char *body;
	} rows[] = {
		{"/ok", 200, "ok"},
		{"/informed", 200, "ok"},
		{"/close", 200, "until the end"},
		{"/chunked", 200, "abcde"},
		{"/404", 404, "gone"},
		{"/no-reason", 204, ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct result result = {0};
		get_script(rows[i].path, &result);
		assert_int_equal(result.error, E_NONE);
		assert_int_equal(result.status, rows[i].status);
		assert_string_equal(result.body, rows[i].body);
		assert_null(field_find(&result.headers, "link"));
		assert_null(field_find(&result.headers, "x-trailer"));
		result_done(&result);
	}
}

static void test_fields(void **state)
{
	static const char *const wanted[] = {
		"x-b: 1", "x-a: 2", "x-b: 3 more", "empty: ", "content-length: 0"};
	struct result result = {0};

	get_script("/fields", &result);
	assert_int_equal(result.headers.n, ARRAY_LEN(wanted));
	for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
		assert_string_equal(result.headers.v[i], wanted[i]);
	result_done(&result);
}

static void test_broken_responses(void **state)
{
	static const struct {
		const char *path;
		enum err_id id;
		bool is_transient;
	} rows[] = {
		{"/nothing", E_HTTP_CLOSED, true},
		{"/half-status", E_HTTP_CLOSED, true},
		{"/half-headers", E_HTTP_CLOSED, true},
		{"/half-body", E_HTTP_CLOSED, true},
		{"/half-chunk", E_HTTP_CLOSED, true},
		{"/no-last-chunk", E_HTTP_CLOSED, true},
		{"/no-http", E_HTTP_PROTOCOL, false},
		{"/two-lengths", E_HTTP_PROTOCOL, false},
		{"/no-length", E_HTTP_PROTOCOL, false},
		{"/minus", E_HTTP_PROTOCOL, false},
		{"/bad-chunk", E_HTTP_PROTOCOL, false},
		{"/other-protocol", E_HTTP_PROTOCOL, false},
		{"/no-status", E_HTTP_PROTOCOL, false},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct result result = {0};
		get_script(rows[i].path, &result);
		if (result.error != rows[i].id || result.is_transient != rows[i].is_transient)
			print_error("%s: %s (%s)\n", rows[i].path, result.message, result.evidence);
		result_is_error(&result, rows[i].id, rows[i].is_transient);
		assert_true(str_starts(result.message, "localhost:"));
		assert_true(result.sent);
		result_done(&result);
	}
}

/* An answer that is cut at any byte is never taken for a whole one. */
static size_t cut_at;

static bool response_cut(struct fix_conn *conn)
{
	fix_send(conn, ok_response, cut_at);
	return false;
}

static void test_cut_at_each_byte(void **state)
{
	struct fix_server *server = fix_start(response_cut);
	struct client client;

	client_init(&client);
	for (cut_at = 0; cut_at <= strlen(ok_response); cut_at++) {
		struct result result = {0};
		client_get(&client, server->port, "/", &result);
		if (cut_at == strlen(ok_response))
			assert_int_equal(result.status, 200);
		else
			result_is_error(&result, E_HTTP_CLOSED, true);
		result_done(&result);
	}
	client_done(&client);
	fix_stop(server);
}

static bool response_reset(struct fix_conn *conn)
{
	fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
	fix_reset(conn);
	return false;
}

static void test_reset(void **state)
{
	struct fix_server *server = fix_start(response_reset);
	struct result result = {0};
	struct client client;

	client_init(&client);
	client_get(&client, server->port, "/", &result);
	result_is_error(&result, E_HTTP_CLOSED, true);
	result_done(&result);
	client_done(&client);
	fix_stop(server);
}

/* A connection that was kept and has died meanwhile costs nothing: the request goes out again. */
static bool response_and_go(struct fix_conn *conn)
{
	free(fix_body(conn));
	fix_print(conn, ok_response);
	return false;
}

static void test_kept_connection_has_died(void **state)
{
	struct fix_server *server = fix_start(response_and_go);
	struct client client;
	int n_cut = 0;

	client_init(&client);
	for (int i = 0; i < 3; i++) {
		struct result result = {
			.request = {.method = "PUT",
				.body = {.data = "12345", .size = 5, .copy = true}}};
		client_get(&client, server->port, "/", &result);
		if (result.is_transient) { /* it died between the head and the body */
			n_cut++;
		} else {
			assert_int_equal(result.status, 200);
			assert_int_equal(result.bytes_up, 5);
		}
		result_done(&result);
	}
	assert_true(n_cut < 3);
	assert_int_equal(server->n_conns, 3 - n_cut);
	client_done(&client);
	fix_stop(server);
}

/*
 * Ceilings
 */

static bool flood(struct fix_conn *conn, const char *head, const char *line)
{
	char many[8192] = "";

	while (strlen(many) + strlen(line) < sizeof(many))
		strcat(many, line);
	if (fix_print(conn, head))
		while (fix_print(conn, many))
			;
	return false;
}

static bool response_floods(struct fix_conn *conn)
{
	static const struct {
		const char *path, *head, *line;
	} rows[] = {
		{"/headers", "HTTP/1.1 200 OK\r\n", "X-Some-Header: some value\r\n"},
		{"/line", "HTTP/1.1 200 OK\r\nX-Long: ", "xxxxxxxxxxxxxxxxxxxxxx"},
		{"/no-end", "HTTP/1.1 200 ", "xxxxxxxxxxxxxxxxxxxxxx"},
		{"/informed", "", "HTTP/1.1 102 Processing\r\n\r\n"},
		{"/trailers",
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n",
			"X-Some-Header: some value\r\n"},
		{"/chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
			"10\r\n0123456789abcdef\r\n"},
		{"/error", "HTTP/1.1 500 Error\r\nTransfer-Encoding: chunked\r\n\r\n",
			"10\r\n0123456789abcdef\r\n"},
		{"/close", "HTTP/1.1 200 OK\r\n\r\n", "0123456789abcdef"},
		{"/declared", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "0123456"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i].path, conn->path))
			return flood(conn, rows[i].head, rows[i].line);
	return false;
}

static void test_floods_end(void **state)
{
	static const char *const paths[] = {"/headers", "/line", "/no-end", "/informed",
		"/trailers", "/chunks", "/close", "/declared"};
	struct fix_server *server = fix_start(response_floods);
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct result result = {.request.max_body = 1 << 20};
		client_get(&client, server->port, paths[i], &result);
		if (result.error != E_HTTP_LIMIT)
			print_error("%s\n", paths[i]);
		result_is_error(&result, E_HTTP_LIMIT, false);
		assert_in_range(result.bytes_down, 0, (1 << 20) + 65536);
		result_done(&result);
	}
	client_done(&client);
	fix_stop(server);
}

/* Of an error's body the beginning is enough. */
static void test_long_error(void **state)
{
	struct fix_server *server = fix_start(response_floods);
	struct result result = {.request.max_body = 10};
	struct client client;

	client_init(&client);
	client_get(&client, server->port, "/error", &result);
	assert_int_equal(result.error, E_NONE);
	assert_int_equal(result.status, 500);
	assert_int_equal(result.body_len, HTTP_ERROR_BODY_MAX);
	result_done(&result);
	client_done(&client);
	fix_stop(server);
}

static void test_body_at_the_limit(void **state)
{
	struct fix_server *server = fix_start(response_by_path);
	struct client client;

	client_init(&client);
	for (size_t max = 4; max <= 6; max++) {
		struct result result = {.request.max_body = max};
		client_get(&client, server->port, "/chunked", &result);
		if (max < 5)
			result_is_error(&result, E_HTTP_LIMIT, false);
		else
			assert_string_equal(result.body, "abcde");
		result_done(&result);
	}
	client_done(&client);
	fix_stop(server);
}

/*
 * Redirects
 */

static uint16_t other_port;

/* /N/STATUS/PATH: N more redirects by STATUS; /to?URL: there. */
static bool response_redirect(struct fix_conn *conn)
{
	AUTO_FREE char *body = fix_body(conn);
	AUTO_FREE char *text = NULL;
	unsigned hops, status;

	if (sscanf(conn->path, "/%u/%u", &hops, &status) == 2 && hops > 0)
		text = mem_printf("HTTP/1.1 %u X\r\nLocation: /%u/%u\r\nContent-Length: 4\r\n\r\n"
				  "body",
			status, hops - 1, status);
	else if (str_starts(conn->path, "/to?"))
		text = mem_printf("HTTP/1.1 307 X\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n",
			conn->path + strlen("/to?"));
	else if (str_starts(conn->path, "/other"))
		text = mem_printf("HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:%u/there\r\n"
				  "Content-Length: 0\r\n\r\n",
			other_port);
	else
		text = mem_printf("HTTP/1.1 200 X\r\nContent-Length: %zu\r\n\r\n%s",
			strlen(body ? body : ""), body ? body : "");
	return fix_print(conn, text);
}

static void test_which_redirects_are_followed(void **state)
{
	static const struct {
		const char *method;
		int status;
		bool is_followed;
	} rows[] = {
		{"GET", 301, true},
		{"GET", 302, true},
		{"GET", 303, true},
		{"GET", 307, true},
		{"GET", 308, true},
		{"HEAD", 301, true},
		{"HEAD", 307, true},
		{"GET", 300, false},
		{"GET", 304, false},
		{"POST", 301, false},
		{"POST", 302, false},
		{"POST", 303, false},
		{"POST", 307, true},
		{"PUT", 303, false},
		{"PUT", 307, true},
		{"PUT", 308, true},
		{"PATCH", 307, true},
		{"DELETE", 302, false},
		{"DELETE", 308, true},
	};
	struct fix_server *server = fix_start(response_redirect);
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct result result = {.request = {.method = rows[i].method, .follow = true}};
		AUTO_FREE char *path = mem_printf("/1/%d", rows[i].status);
		client_get(&client, server->port, path, &result);
		if (result.status != (rows[i].is_followed ? 200 : rows[i].status))
			print_error("%s %d\n", rows[i].method, rows[i].status);
		assert_int_equal(result.status, rows[i].is_followed ? 200 : rows[i].status);
		result_done(&result);
	}
	struct result result = {0};
	client_get(&client, server->port, "/1/302", &result);
	assert_int_equal(result.status, 302);
	assert_string_equal(field_find(&result.headers, "location"), "/0/302");
	assert_string_equal(result.body, "body");
	result_done(&result);
	client_done(&client);
	fix_stop(server);
}

static void test_redirects_have_a_limit(void **state)
{
	struct fix_server *server = fix_start(response_redirect);
	struct result five = {.request.follow = true}, six = {.request.follow = true};
	struct client client;

	client_init(&client);
	client_get(&client, server->port, "/5/301", &five);
	assert_int_equal(five.status, 200);
	assert_true(str_ends(five.url, "/0/301"));
	assert_int_equal(client.events.n, 6);
	client_get(&client, server->port, "/6/301", &six);
	result_is_error(&six, E_HTTP_REDIRECT, false);
	assert_int_equal(server->n_requests, 12);
	result_done(&five);
	result_done(&six);
	client_done(&client);
	fix_stop(server);
}

static void test_body_is_sent_again(void **state)
{
	struct fix_server *server = fix_start(response_redirect);
	AUTO_FD int fd = memfd_create("body", MFD_CLOEXEC);
	struct result results[2] = {
		{.request = {.method = "PUT",
			 .follow = true,
			 .body = {.data = "content", .size = 7}}},
		{.request = {.method = "PUT",
			 .follow = true,
			 .body = {.fd = fd, .has_fd = true, .offset = 3, .size = 7}}},
	};
	struct client client;

	assert_int_equal(write(fd, "???content???", 13), 13);
	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		client_get(&client, server->port, "/2/307", &results[i]);
		assert_int_equal(results[i].status, 200);
		assert_string_equal(results[i].body, "content");
		assert_int_equal(results[i].bytes_up, 21);
		result_done(&results[i]);
	}
	client_done(&client);
	fix_stop(server);
}

static void test_other_origin_gets_no_login(void **state)
{
	struct fix_server *server = fix_start(response_redirect);
	struct fix_server *other = fix_start(response_redirect);
	char *lines[] = {"Accept: a/b", NULL};
	struct strv headers = {.v = lines, .n = 1};
	struct result result = {
		.request = {
			.follow = true, .authorization = "Basic c2VjcmV0", .headers = &headers}};
	struct client client;

	other_port = other->port;
	client_init(&client);
	client_get(&client, server->port, "/other", &result);
	assert_int_equal(result.status, 200);
	assert_non_null(strstr(only_head(server), "c2VjcmV0"));
	assert_null(strcasestr(only_head(other), "authorization"));
	assert_non_null(strstr(only_head(other), "Accept: a/b"));
	result_done(&result);

	/* And it stays away on the way back. */
	struct result back = {.request = {.follow = true, .authorization = "Basic c2VjcmV0"}};
	AUTO_FREE char *path = mem_printf(
		"/to?http://127.0.0.1:%u/to?http://localhost:%u/0/1", other->port, server->port);
	client_get(&client, server->port, path, &back);
	assert_int_equal(back.status, 200);
	assert_int_equal(server->heads.n, 3);
	assert_non_null(strstr(server->heads.v[1], "c2VjcmV0"));
	assert_null(strcasestr(server->heads.v[2], "authorization"));
	assert_int_equal(other->heads.n, 2);
	assert_null(strcasestr(other->heads.v[1], "authorization"));
	result_done(&back);
	client_done(&client);
	fix_stop(server);
	fix_stop(other);
}

static void test_bad_redirects(void **state)
{
	static const struct {
		const char *to;
		enum err_id id;
	} rows[] = {
		{"/to?ftp://localhost/", E_HTTP_URL},
		{"/to?http://user:pw@localhost/", E_HTTP_URL},
		{"/to?http://", E_HTTP_URL},
		{"/to?file:///etc/passwd", E_HTTP_URL},
		{"/to?http://169.254.169.254/latest", E_HTTP_ZONE},
		{"/to?http://[fe80::1]/", E_HTTP_ZONE},
		{"/to?http://0.0.0.0/", E_HTTP_ZONE},
	};
	struct fix_server *server = fix_start(response_redirect);
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct result result = {.request.follow = true};
		client_get(&client, server->port, rows[i].to, &result);
		if (result.error != rows[i].id)
			print_error("%s\n", rows[i].to);
		result_is_error(&result, rows[i].id, false);
		result_done(&result);
	}
	client_done(&client);
	fix_stop(server);
}

/*
 * Zones
 */

static void test_zones(void **state)
{
	static const char *const hosts[] = {"127.0.0.1", "localhost", "2130706433", "0x7f.1"};
	struct fix_server *server = fix_start(response_ok);
	struct client client;

	client_init(&client);
	for (int kept = 0; kept < 2; kept++) {
		for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
			struct result result = {
				.request = {.has_zone = true, .zone = ADDRESS_PRIVATE}};
			AUTO_FREE char *url = mem_printf("http://%s:%u/", hosts[i], server->port);
			client_start_url(&client, url, &result);
			client_run(&client);
			result_is_error(&result, E_HTTP_ZONE, false);
			assert_false(result.sent);
			result_done(&result);
		}
		assert_int_equal(server->n_conns, kept);
		assert_int_equal(server->n_requests, kept);
		/* Nor over a connection that is there already. */
		struct result result = {.request = {.has_zone = true, .zone = ADDRESS_LOOPBACK}};
		client_get(&client, server->port, "/", &result);
		assert_int_equal(result.status, 200);
		result_done(&result);
	}
	client_done(&client);
	fix_stop(server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_requests_one_connection),
		cmocka_unit_test(test_parallel_limit),
		cmocka_unit_test(test_streams_have_their_own_connections),
		cmocka_unit_test(test_turns_have_an_end),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_what_is_sent),
		cmocka_unit_test(test_line_breaks_are_refused),
		cmocka_unit_test(test_methods_without_body),
		cmocka_unit_test(test_head),
		cmocka_unit_test(test_responses),
		cmocka_unit_test(test_fields),
		cmocka_unit_test(test_broken_responses),
		cmocka_unit_test(test_cut_at_each_byte),
		cmocka_unit_test(test_reset),
		cmocka_unit_test(test_kept_connection_has_died),
		cmocka_unit_test(test_floods_end),
		cmocka_unit_test(test_long_error),
		cmocka_unit_test(test_body_at_the_limit),
		cmocka_unit_test(test_which_redirects_are_followed),
		cmocka_unit_test(test_redirects_have_a_limit),
		cmocka_unit_test(test_body_is_sent_again),
		cmocka_unit_test(test_other_origin_gets_no_login),
		cmocka_unit_test(test_bad_redirects),
		cmocka_unit_test(test_zones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
