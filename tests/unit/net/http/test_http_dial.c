/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "tests/unit/httpclient.h"
#include "tests/unit/httpfix.h"
#include "tests/unit/until.h"

/* Only calls before libcurl is loaded have connections of their own: each case is a process. */
enum { LOOK_US = 1000, N_CALLS = HTTP_CONNECTIONS_MAX + 3 };

static struct client client;
static struct fix_server *server;
static pid_t parent;

static bool answer_ok(struct fix_conn *conn)
{
	return fix_say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

/* cmocka goes on with the next test where an assertion of a case has failed. */
static int only_parent(void **state)
{
	(void)state;
	if (getpid() != parent)
		_exit(1);
	return 0;
}

static void as_process(void (*run)(void))
{
	int status = -1;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		client_init(&client);
		server = fix_start(answer_ok);
		run();
		client_done(&client);
		fix_stop(server);
		exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void start(const char *path, struct result *result)
{
	AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u%s", server->port, path);

	client_start_url(&client, url, result);
}

static int count_conns(void)
{
	pthread_mutex_lock(&server->lock);
	int n = server->n_conns;
	pthread_mutex_unlock(&server->lock);
	return n;
}

/* The loop, and so libcurl, has not done anything yet. */
static void wait_conns(int n)
{
	UNTIL(count_conns() >= n);
}

static void is_ok(struct result *result)
{
	assert_int_equal(result->n_done, 1);
	assert_int_equal(result->status, 200);
	assert_string_equal(result->body, "ok");
	result_done(result);
}

static void use(void)
{
	struct result result = {0}, next = {0};

	start("/x", &result);
	wait_conns(1);
	client_run(&client);
	is_ok(&result);
	/* libcurl keeps it as one of its own. */
	start("/y", &next);
	client_run(&client);
	is_ok(&next);
	assert_int_equal(server->n_conns, 1);
	assert_int_equal(server->heads.n, 2);
}

static void test_connection_is_used(void **state)
{
	(void)state;
	as_process(use);
}

/* All connections are in use before one is free again. */
static bool answer_together(struct fix_conn *conn)
{
	int64_t end_ms = clock_ms() + PATIENCE_MS;

	while (atomic_load(&conn->server->n_requests) < HTTP_CONNECTIONS_MAX && clock_ms() < end_ms)
		usleep(LOOK_US);
	return answer_ok(conn);
}

static void use_many(void)
{
	struct result results[N_CALLS] = {0};

	server->answer = answer_together;
	for (size_t i = 0; i < N_CALLS; i++)
		start("/x", &results[i]);
	wait_conns(HTTP_CONNECTIONS_MAX - 1);
	client_run(&client);
	for (size_t i = 0; i < N_CALLS; i++)
		is_ok(&results[i]);
	assert_int_equal(server->n_conns, HTTP_CONNECTIONS_MAX);
}

static void test_as_many_as_a_host_may_have(void **state)
{
	(void)state;
	as_process(use_many);
}

static void free_unused(void)
{
	struct result freed = {0}, canceled = {0};

	start("/x", &freed);
	start("/y", &canceled);
	wait_conns(2);
	http_cancel(canceled.call);
	client_run(&client);
	assert_int_equal(server->heads.n, 1);
	assert_int_equal(canceled.n_done, 0);
	is_ok(&freed);
	result_done(&canceled);
}

static void free_at_once(void)
{
	struct result result = {0};

	start("/x", &result);
	wait_conns(1);
}

static void test_calls_that_are_given_up(void **state)
{
	(void)state;
	as_process(free_unused);
	as_process(free_at_once);
}

/* What a held call waits for. */
struct release {
	struct result *result;
	int lost; /* the server has closed the connection by then */
};

static int authorize(void *ctx, struct err *err)
{
	struct release *release = ctx;

	(void)err;
	http_authorize(release->result->call, "Bearer t0k");
	return 0;
}

static void release_held(struct release *release)
{
	release->result->request.held = true;
	start("/x", release->result);
	wait_conns(1);
	if (release->lost)
		shutdown(server->conns[0]->fd, SHUT_RDWR);
	loop_add_timer(client.loop, clock_ms() + 100, authorize, release);
	client_run(&client);
	assert_non_null(strstr(server->heads.v[0], "\r\nAuthorization: Bearer t0k\r\n"));
	is_ok(release->result);
}

static void hold(void)
{
	struct result result = {0};

	release_held(&(struct release){.result = &result});
	assert_int_equal(server->n_conns, 1);
}

static void hold_and_lose(void)
{
	struct result result = {0};

	release_held(&(struct release){.result = &result, .lost = 1});
	assert_int_equal(server->n_conns, 2);
}

static void test_held(void **state)
{
	(void)state;
	as_process(hold);
	as_process(hold_and_lose);
}

static void be_refused(void)
{
	AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u/", fix_closed_port());
	struct result ahead = {0}, by_libcurl = {0};

	client_start_url(&client, url, &ahead);
	client_run(&client);
	client_start_url(&client, url, &by_libcurl);
	client_run(&client);
	assert_int_equal(ahead.n_done, 1);
	assert_int_not_equal(ahead.fault, E_NONE);
	assert_int_equal(ahead.fault, by_libcurl.fault);
	assert_string_equal(ahead.message, by_libcurl.message);
	result_done(&ahead);
	result_done(&by_libcurl);
}

/* In the words of libcurl's fault. */
static void test_nobody_there(void **state)
{
	(void)state;
	as_process(be_refused);
}

static void keep_off(void)
{
	struct result zone = {.request = {.has_zone = true, .zone = ADDRESS_PUBLIC}}, proxied = {0};
	AUTO_FREE char *none = mem_printf("http://127.0.0.1:%u", fix_closed_port());

	proxied.request.proxy = none;
	start("/zone", &zone);
	start("/proxy", &proxied);
	client_run(&client);
	assert_int_equal(zone.n_done, 1);
	assert_int_equal(proxied.n_done, 1);
	assert_int_not_equal(zone.fault, E_NONE);
	assert_int_not_equal(proxied.fault, E_NONE);
	assert_int_equal(count_conns(), 0);
	result_done(&zone);
	result_done(&proxied);
}

/* Where an address has to be looked at first, or a proxy goes there. */
static void test_not_everywhere(void **state)
{
	(void)state;
	as_process(keep_off);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_connection_is_used, only_parent),
		cmocka_unit_test_teardown(test_as_many_as_a_host_may_have, only_parent),
		cmocka_unit_test_teardown(test_calls_that_are_given_up, only_parent),
		cmocka_unit_test_teardown(test_held, only_parent),
		cmocka_unit_test_teardown(test_nobody_there, only_parent),
		cmocka_unit_test_teardown(test_not_everywhere, only_parent),
	};

	parent = getpid();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
