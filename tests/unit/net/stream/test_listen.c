/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/listen.h"

enum { ACCEPTED_MAX = 64 };

struct runtime {
	struct loop *loop;
	struct listener *listener;
	struct loop_timer *limit;
	int n, wanted;
	int fds[ACCEPTED_MAX];
	char *peers[ACCEPTED_MAX];
	bool frees, fails;
};

static int on_accept(void *ctx, int fd, const char *peer, struct err *err)
{
	struct runtime *runtime = ctx;

	assert_true(runtime->n < ACCEPTED_MAX);
	runtime->fds[runtime->n] = fd;
	runtime->peers[runtime->n++] = mem_strdup(peer);
	if (runtime->fails)
		return err_set(err, E_IO, "enough");
	if (runtime->frees)
		listener_free(TAKE(runtime->listener));
	if (runtime->n == runtime->wanted)
		loop_stop(runtime->loop);
	return 0;
}

static int too_late(void *ctx, struct err *err)
{
	return err_set(err, E_IO, "nobody came");
}

static struct runtime *open_runtime(void)
{
	struct runtime *runtime = mem_alloc(1, sizeof(*runtime));

	runtime->loop = loop_new();
	runtime->limit = loop_add_timer(runtime->loop, clock_ms() + 20000, too_late, NULL);
	return runtime;
}

static void close_runtime(struct runtime *runtime)
{
	listener_free(runtime->listener);
	for (int i = 0; i < runtime->n; i++) {
		close(runtime->fds[i]);
		free(runtime->peers[i]);
	}
	loop_free(runtime->loop);
	free(runtime);
}

static int try_listen(struct runtime *runtime, const char *address, uint16_t port, bool is_exact,
	struct listener **ret, struct err *err)
{
	const struct listen_options options = {.loop = runtime->loop,
		.address = address,
		.port = port,
		.is_exact = is_exact,
		.accept = on_accept,
		.ctx = runtime};

	return listener_open(&options, ret, err);
}

static uint16_t start(struct runtime *runtime, const char *address, uint16_t port)
{
	assert_int_equal(try_listen(runtime, address, port, false, &runtime->listener, NULL), 0);
	return listener_port(runtime->listener);
}

static void runs_until(struct runtime *runtime, int wanted)
{
	AUTO_ERR struct err err = {0};

	runtime->wanted = wanted;
	assert_int_equal(loop_run(runtime->loop, &err), 0);
	assert_int_equal(runtime->n, wanted);
}

/* -1: there is no such family, or nobody listens. */
static int connect_to(const char *address, uint16_t port)
{
	struct sockaddr_in ip4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 ip6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	bool is_ip4 = inet_pton(AF_INET, address, &ip4.sin_addr) == 1;

	if (!is_ip4)
		assert_int_equal(inet_pton(AF_INET6, address, &ip6.sin6_addr), 1);
	int fd = socket(is_ip4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	int r = is_ip4 ? connect(fd, (struct sockaddr *)&ip4, sizeof(ip4))
		       : connect(fd, (struct sockaddr *)&ip6, sizeof(ip6));
	if (r == 0)
		return fd;
	close(fd);
	return -1;
}

static bool has_ip6(void)
{
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	AUTO_FD int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof(any)) == 0;
}

static void test_both_families(void **state)
{
	struct runtime *runtime = open_runtime();
	uint16_t port = start(runtime, NULL, 0);

	assert_true(port >= 1024);
	AUTO_FD int four = connect_to("127.0.0.1", port);
	assert_true(four >= 0);
	runs_until(runtime, 1);
	assert_true(str_starts(runtime->peers[0], "127.0.0.1:"));
	assert_true(fcntl(runtime->fds[0], F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(runtime->fds[0], F_GETFD) & FD_CLOEXEC);
	AUTO_FD int six = connect_to("::1", port);
	assert_int_equal(six >= 0, has_ip6());
	if (six >= 0) {
		runs_until(runtime, 2);
		assert_true(str_starts(runtime->peers[1], "[::1]:"));
	}
	close_runtime(runtime);
}

/* Loopback is all that is listened to. */
static void test_not_from_outside(void **state)
{
	struct runtime *runtime = open_runtime();
	uint16_t port = start(runtime, NULL, 0);
	AUTO_FD int fd = connect_to("127.0.0.2", port);

	assert_int_equal(fd, -1);
	listener_free(TAKE(runtime->listener));
	port = start(runtime, "0.0.0.0", 0);
	AUTO_FD int other = connect_to("127.0.0.2", port);
	AUTO_FD int six = connect_to("::1", port);
	assert_true(other >= 0);
	assert_int_equal(six, -1);
	runs_until(runtime, 1);
	listener_free(TAKE(runtime->listener));
	port = start(runtime, "*", 0);
	AUTO_FD int again = connect_to("127.0.0.2", port);
	AUTO_FD int both = connect_to("::1", port);
	assert_true(again >= 0);
	assert_int_equal(both >= 0, has_ip6());
	runs_until(runtime, both >= 0 ? 3 : 2);
	close_runtime(runtime);
}

static void test_taken_ports(void **state)
{
	struct runtime *runtime = open_runtime();
	struct listener *next = NULL, *exact = NULL;
	AUTO_ERR struct err err = {0};
	uint16_t port = start(runtime, NULL, 0);

	assert_int_equal(try_listen(runtime, NULL, port, true, &exact, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_LISTEN_TAKEN);
	AUTO_FREE char *wanted = mem_printf("port %u of localhost is taken", port);
	assert_string_equal(err.message, wanted);
	assert_int_equal(try_listen(runtime, NULL, port, false, &next, NULL), 0);
	assert_int_not_equal(listener_port(next), port);
	/* Free again at once, even though connections of it are still closing. */
	AUTO_FD int fd = connect_to("127.0.0.1", port);
	runs_until(runtime, 1);
	close(runtime->fds[0]);
	runtime->fds[0] = dup(fd);
	listener_free(TAKE(runtime->listener));
	assert_int_equal(try_listen(runtime, NULL, port, true, &exact, NULL), 0);
	assert_int_equal(listener_port(exact), port);
	listener_free(exact);
	listener_free(next);
	close_runtime(runtime);
}

/* Taken in one family only is taken, or a browser would reach another program there. */
static void test_half_taken(void **state)
{
	struct runtime *runtime = open_runtime();
	struct listener *exact = NULL;
	uint16_t port;

	if (has_ip6()) {
		port = start(runtime, "::1", 0);
		assert_int_equal(
			try_listen(runtime, NULL, port, true, &exact, NULL), -ERR_CONFLICT);
	}
	close_runtime(runtime);
}

static void test_errors(void **state)
{
	static const struct {
		const char *address, *message;
	} rows[] = {
		{"here", "\"here\" is not an address"},
		{"", "\"\" is not an address"},
		{"127.0.0.1:80", "\"127.0.0.1:80\" is not an address"},
		{"192.0.2.1", "192.0.2.1 is not an address of this machine"},
	};
	struct runtime *runtime = open_runtime();

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_ERR struct err err = {0};
		int r = try_listen(runtime, rows[i].address, 0, false, &runtime->listener, &err);
		assert_int_equal(r, -ERR_IO);
		assert_int_equal(err.id, E_LISTEN);
		assert_string_equal(err.message, rows[i].message);
	}
	close_runtime(runtime);
}

static int let_in(void *ctx, struct err *err)
{
	struct runtime *runtime = ctx;

	assert_int_equal(runtime->n, 0);
	listener_hold(runtime->listener, false);
	return 0;
}

static void test_hold(void **state)
{
	struct runtime *runtime = open_runtime();
	uint16_t port = start(runtime, NULL, 0);
	int fds[20];

	listener_hold(runtime->listener, true);
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		assert_true((fds[i] = connect_to("127.0.0.1", port)) >= 0);
	loop_add_timer(runtime->loop, clock_ms() + 50, let_in, runtime);
	runs_until(runtime, ARRAY_LEN(fds));
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		close(fds[i]);
	close_runtime(runtime);
}

static void test_end_in_callback(void **state)
{
	struct runtime *runtime = open_runtime();
	uint16_t port = start(runtime, NULL, 0);
	AUTO_FD int a = connect_to("127.0.0.1", port), b = connect_to("127.0.0.1", port);
	AUTO_ERR struct err err = {0};

	assert_true(a >= 0 && b >= 0);
	runtime->frees = true;
	runs_until(runtime, 1);
	runtime->frees = false;
	runtime->fails = true;
	port = start(runtime, NULL, 0);
	AUTO_FD int c = connect_to("127.0.0.1", port);
	assert_true(c >= 0);
	assert_int_equal(loop_run(runtime->loop, &err), -ERR_IO);
	assert_string_equal(err.message, "enough");
	close_runtime(runtime);
}

static int allow_files(void *ctx, struct err *err)
{
	const struct runtime *runtime = ctx;
	struct rlimit limit;

	assert_int_equal(runtime->n, 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit);
}

/* It waits, and neither fails nor spins. */
static void test_no_descriptors(void **state)
{
	struct runtime *runtime = open_runtime();
	uint16_t port = start(runtime, NULL, 0);
	AUTO_FD int fd = connect_to("127.0.0.1", port);
	struct rlimit limit, before;
	int next = dup(fd);

	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = (rlim_t)next;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	loop_add_timer(runtime->loop, clock_ms() + 50, allow_files, runtime);
	runs_until(runtime, 1);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	close_runtime(runtime);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_families),
		cmocka_unit_test(test_not_from_outside),
		cmocka_unit_test(test_taken_ports),
		cmocka_unit_test(test_half_taken),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_hold),
		cmocka_unit_test(test_end_in_callback),
		cmocka_unit_test(test_no_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
