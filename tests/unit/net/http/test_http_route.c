/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util/str.h"
#include "tests/unit/httpclient.h"
#include "tests/unit/httpfix.h"

enum { PORT = 5000 };

struct way {
	bool is_closed;
	int n_opened;
	uint16_t from; /* the last one */
};

static int open_way(void *ctx, uint16_t local_port, struct err *err)
{
	struct way *way = ctx;

	way->n_opened++;
	way->from = local_port;
	return way->is_closed ? err_set(err, E_KUBE_NOT_FOUND, "there is no service tea") : 0;
}

static uint16_t seen_from;

static bool response_ok(struct fix_conn *conn)
{
	struct sockaddr_in from;
	socklen_t len = sizeof(from);

	if (getpeername(conn->fd, (struct sockaddr *)&from, &len) == 0)
		seen_from = ntohs(from.sin_port);
	free(fix_body(conn));
	return fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

static void get(struct client *client, const char *host, struct result *result)
{
	AUTO_FREE char *text = mem_printf("http://%s/v2/", host);

	client_start_url(client, text, result);
	client_run(client);
	assert_int_equal(result->n_done, 1);
}

static void test_a_name_that_nobody_knows(void **state)
{
	struct fix_server *server = fix_start(response_ok);
	struct way way = {0};
	struct client client;

	client_init(&client);
	http_add_route(client.http, "tea.cups.svc", PORT, server->port, open_way, &way);
	for (int i = 0; i < 2; i++) {
		struct result result = {0};
		get(&client, i == 0 ? "tea.cups.svc:5000" : "TEA.cups.svc:5000", &result);
		assert_int_equal(result.status, 200);
		assert_string_equal(result.body, "ok");
		assert_int_equal(result.zone, ADDRESS_PUBLIC);
		assert_non_null(strstr(server->heads.v[i], "Host: tea.cups.svc:5000\r\n"));
		result_done(&result);
	}
	assert_int_equal(way.n_opened, 1);
	assert_int_equal(way.from, seen_from);
	client_done(&client);
	fix_stop(server);
}

static void test_other_ports_are_elsewhere(void **state)
{
	struct fix_server *server = fix_start(response_ok);
	AUTO_FREE char *host = mem_printf("localhost:%u", server->port);
	struct result result = {0};
	struct way way = {0};
	struct client client;

	client_init(&client);
	http_add_route(client.http, "localhost", (uint16_t)(server->port + 1), 1, open_way, &way);
	http_add_route(client.http, "localhost", 0, 1, open_way, &way);
	get(&client, host, &result);
	assert_int_equal(result.status, 200);
	assert_int_equal(way.n_opened, 0);
	result_done(&result);
	client_done(&client);
	fix_stop(server);
}

/* No proxy is asked for what has a way of its own. */
static void test_no_proxy(void **state)
{
	const struct proxy_env proxy = {.http_proxy = "http://127.0.0.1:1"};
	struct fix_server *server = fix_start(response_ok);
	struct way way = {0};
	struct result result = {0};
	struct client client;

	client_init_with(&client, &proxy, NULL);
	http_add_route(client.http, "tea.cups.svc", 0, server->port, open_way, &way);
	get(&client, "tea.cups.svc", &result);
	assert_int_equal(result.status, 200);
	result_done(&result);
	client_done(&client);
	fix_stop(server);
}

/* Why there is no way is the fault, and not tried again. */
static void test_no_way(void **state)
{
	struct result result = {0};
	struct way way = {.is_closed = true};
	struct client client;

	client_init(&client);
	http_add_route(client.http, "tea.cups.svc", PORT, 1, open_way, &way);
	get(&client, "tea.cups.svc:5000", &result);
	assert_int_equal(result.error, E_KUBE_NOT_FOUND);
	assert_string_equal(result.message, "there is no service tea");
	assert_false(result.is_transient);
	assert_int_equal(way.n_opened, 1);
	result_done(&result);
	client_done(&client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_name_that_nobody_knows),
		cmocka_unit_test(test_other_ports_are_elsewhere),
		cmocka_unit_test(test_no_proxy),
		cmocka_unit_test(test_no_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
