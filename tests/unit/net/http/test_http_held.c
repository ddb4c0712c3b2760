/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "tests/unit/httpclient.h"
#include "tests/unit/httpfix.h"

/* Longer than libcurl gives the first address of a name before it tries the next one. */
enum { POLL_MS = 2, KEPT_MS = 300, LIMIT_MS = 20000 };

/* Looks until the loop has told of it for sure. */
enum { POLLS_AFTER_LOSS = 3 };

static struct client client;
static struct fix_server *server;

static bool response_ok(struct fix_conn *conn)
{
	return fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

static int set_up(void **state)
{
	client_init(&client);
	server = fix_start(response_ok);
	return 0;
}

static int tear_down(void **state)
{
	client_done(&client);
	if (server)
		fix_stop(server);
	return 0;
}

/* What a held call waits for, and what it is then sent with. */
struct release {
	struct result *result;
	const char *authorization;
	int n_conns; /* that the server has seen by then */
	int lost;    /* of them, the number of one that it closes before; 0: none */
	int n_polls; /* that saw it closed */
	struct result *to;
	const char *path; /* of it, when it goes there */
	int64_t from_ms;
};

static void retarget(struct release *release)
{
	AUTO_URL struct url url = {0};
	AUTO_FREE char *host = mem_printf("127.0.0.1:%u", server->port);

	assert_int_equal(url_make(false, host, release->path, &url, NULL), 0);
	release->to->client = &client;
	http_retarget(release->result->call, &url, release->to);
}

static int observe(void *ctx, struct err *err)
{
	struct release *release = ctx;
	int64_t now_ms = clock_ms();

	pthread_mutex_lock(&server->lock);
	bool is_due = server->n_conns >= release->n_conns && now_ms >= release->from_ms;
	if (is_due && release->lost && server->conns[release->lost - 1]->fd < 0)
		release->n_polls++;
	pthread_mutex_unlock(&server->lock);
	is_due = is_due && (!release->lost || release->n_polls > POLLS_AFTER_LOSS);
	if (!is_due && now_ms > release->from_ms + LIMIT_MS)
		fail_msg("no connection, or it is not lost");
	if (is_due && release->to)
		retarget(release);
	if (is_due)
		http_authorize(release->result->call, release->authorization);
	else
		loop_add_timer(client.loop, now_ms + POLL_MS, observe, release);
	return 0;
}

/* By its address, so that nothing else is tried. */
static void start_at(uint16_t port, const char *path, struct result *result)
{
	AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u%s", port, path);

	client_start_url(&client, url, result);
}

/* For a while nothing is sent, though there is a connection. */
static void start_held(const char *path, int n_conns, struct release *release)
{
	release->result->request.held = true;
	release->n_conns = n_conns;
	release->from_ms = clock_ms() + KEPT_MS;
	start_at(server->port, path, release->result);
	loop_add_timer(client.loop, clock_ms(), observe, release);
}

static void test_sent_when_released(void **state)
{
	struct result result = {.request = {.method = "POST", .body = {.data = "abc", .size = 3}}};
	struct release release = {.result = &result, .authorization = "Bearer t0k"};

	start_held("/x", 1, &release);
	client_run(&client);
	assert_int_equal(result.n_done, 1);
	assert_int_equal(result.status, 200);
	assert_int_equal(server->n_conns, 1);
	assert_int_equal(server->heads.n, 1);
	assert_non_null(strstr(server->heads.v[0], "\r\nAuthorization: Bearer t0k\r\n"));
	assert_int_equal(client.events.n, 1);
	result_done(&result);
}

static void test_without_authorization(void **state)
{
	struct result result = {0};
	struct release release = {.result = &result};

	start_held("/x", 1, &release);
	client_run(&client);
	assert_int_equal(result.status, 200);
	assert_null(strcasestr(server->heads.v[0], "authorization"));
	result_done(&result);
}

/* Before the loop has begun with it. */
static void test_released_at_once(void **state)
{
	struct result result = {.request.held = true};

	start_at(server->port, "/x", &result);
	http_authorize(result.call, "Basic eA==");
	http_authorize(result.call, "Basic eQ==");
	http_authorize(NULL, NULL);
	client_run(&client);
	assert_int_equal(result.status, 200);
	assert_int_equal(server->heads.n, 1);
	assert_non_null(strstr(server->heads.v[0], "\r\nAuthorization: Basic eA==\r\n"));
	result_done(&result);
}

/* One that waits to be used is left to those who send at once. */
static void test_kept_connection(void **state)
{
	struct result before = {0}, beside = {0}, result = {0};
	struct release release = {.result = &result, .authorization = "Bearer t0k"};

	start_at(server->port, "/before", &before);
	client_run(&client);
	start_held("/x", 2, &release);
	start_at(server->port, "/beside", &beside);
	client_run(&client);
	assert_int_equal(server->n_conns, 2);
	assert_int_equal(result.status, 200);
	assert_int_equal(beside.status, 200);
	assert_int_equal(server->heads.n, 3);
	/* The server notes them in any order. */
	const char *beside_head = server->heads.v[1], *head = server->heads.v[2];
	if (str_starts(beside_head, "GET /x "))
		head = beside_head;
	assert_true(str_starts(head, "GET /x "));
	assert_non_null(strstr(head, "\r\nAuthorization: Bearer t0k\r\n"));
	assert_int_equal(client.events.n, 3);
	result_done(&before);
	result_done(&beside);
	result_done(&result);
}

static int lost_conn;

static bool close_first(struct fix_conn *conn)
{
	if (conn->server->n_conns != lost_conn)
		return true;
	fix_reset(conn);
	return false;
}

/* What is sent in the end, and who gets the answer, is known when it is released; also where the
 * connection was lost meanwhile. */
static void test_retargeted(void **state)
{
	for (int lost = 0; lost < 2; lost++) {
		struct result first = {.request.method = "POST"}, result = {0};
		struct release release = {.result = &first,
			.authorization = "Bearer t0k",
			.to = &result,
			.path = "/y?mount=sha256%3Aab&from=c"};

		server->handshake = lost ? close_first : NULL;
		lost_conn = server->n_conns + 1;
		release.lost = lost ? lost_conn : 0;
		start_held("/x", server->n_conns + 1, &release);
		client_run(&client);
		assert_int_equal(first.n_done, 0);
		assert_int_equal(result.n_done, 1);
		assert_int_equal(result.status, 200);
		assert_non_null(strstr(result.url, "/y?mount=sha256%3Aab&from=c"));
		assert_int_equal(server->heads.n, lost + 1);
		assert_true(str_starts(
			server->heads.v[lost], "POST /y?mount=sha256%3Aab&from=c HTTP/1.1\r\n"));
		assert_non_null(strstr(server->heads.v[lost], "\r\nAuthorization: Bearer t0k\r\n"));
		result_done(&result);
	}
}

/* All of them together. */
static void test_many(void **state)
{
	struct result results[HTTP_CONNECTIONS_MAX + 2] = {0};
	struct release releases[ARRAY_LEN(results)];

	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		releases[i] =
			(struct release){.result = &results[i], .authorization = "Bearer t0k"};
		start_held("/x", HTTP_CONNECTIONS_MAX, &releases[i]);
	}
	client_run(&client);
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		assert_int_equal(results[i].status, 200);
		assert_non_null(strstr(server->heads.v[i], "\r\nAuthorization: Bearer t0k\r\n"));
		result_done(&results[i]);
	}
	assert_int_equal(server->heads.n, ARRAY_LEN(results));
}

/* It is made again, and nobody is told. */
static void test_lost_meanwhile(void **state)
{
	struct result result = {0};
	struct release release = {.result = &result, .authorization = "Bearer t0k"};

	server->handshake = close_first;
	lost_conn = release.lost = 1;
	start_held("/x", 1, &release);
	client_run(&client);
	assert_int_equal(result.status, 200);
	assert_int_equal(server->n_conns, 2);
	assert_int_equal(server->heads.n, 1);
	assert_int_equal(client.events.n, 1);
	result_done(&result);
}

static void test_nobody_there(void **state)
{
	struct result result = {.request.held = true};
	struct release release = {.result = &result, .authorization = "Bearer t0k"};

	release.from_ms = clock_ms() + KEPT_MS;
	start_at(fix_closed_port(), "/x", &result);
	loop_add_timer(client.loop, clock_ms(), observe, &release);
	client_run(&client);
	result_is_error(&result, E_HTTP_CONNECT, true);
	assert_int_equal(client.events.n, 1);
	result_done(&result);
}

/* A proxy is not spoken to before it has to be. */
static void test_behind_a_proxy(void **state)
{
	AUTO_FREE char *proxy = mem_printf("http://127.0.0.1:%u", server->port);
	struct result result = {.request.proxy = proxy};
	struct release release = {.result = &result, .authorization = "Bearer t0k"};

	start_held("/x", 0, &release);
	client_run(&client);
	assert_int_equal(result.status, 200);
	assert_int_equal(server->n_conns, 1);
	assert_int_equal(server->heads.n, 1);
	result_done(&result);
}

static void test_no_header(void **state)
{
	struct result result = {0};
	struct release release = {.result = &result, .authorization = "Bearer t0k\r\nX: y"};

	start_held("/x", 1, &release);
	client_run(&client);
	result_is_error(&result, E_HTTP_PROTOCOL, false);
	assert_int_equal(server->heads.n, 0);
	result_done(&result);
}

static void test_deadline(void **state)
{
	struct result result = {
		.request = {.held = true, .deadline_ms = clock_ms() + KEPT_MS, .idle_ms = 60000}};

	start_at(server->port, "/x", &result);
	client_run(&client);
	result_is_error(&result, E_HTTP_TIMEOUT, true);
	assert_int_equal(server->heads.n, 0);
	result_done(&result);
}

static int give_up(void *ctx, struct err *err)
{
	struct result *result = ctx;

	http_cancel(TAKE(result->call));
	return 0;
}

static void test_cancel(void **state)
{
	struct result result = {.request.held = true}, next = {0};

	start_at(server->port, "/x", &result);
	loop_add_timer(client.loop, clock_ms() + KEPT_MS, give_up, &result);
	client_run(&client);
	assert_int_equal(result.n_done, 0);
	client_get(&client, server->port, "/next", &next);
	assert_int_equal(next.status, 200);
	assert_int_equal(server->heads.n, 1);
	result_done(&next);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sent_when_released, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_without_authorization, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_released_at_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_kept_connection, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_retargeted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lost_meanwhile, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_nobody_there, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_behind_a_proxy, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_header, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deadline, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
