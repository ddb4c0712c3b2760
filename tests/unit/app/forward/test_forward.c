/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/forward/forward.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/store/store.h"
#include "tests/unit/silentfix.h"

/* What a forwarded port does beside something else that runs the loop: the program is a socket of
 * this test, of a run on this machine. */

enum { TIMEOUT_MS = 20000, LISTENED_MAX = 4 };

struct heard {
	struct forward_port ports[LISTENED_MAX];
	size_t n, notices;
	char notice[300];
};

static void on_listening(void *ctx, const struct forward_port *port)
{
	struct heard *heard = ctx;

	assert_true(heard->n < LISTENED_MAX);
	heard->ports[heard->n++] = *port;
}

static void on_notice(void *ctx, const char *text)
{
	struct heard *heard = ctx;

	snprintf(heard->notice, sizeof(heard->notice), "%s", text);
	heard->notices++;
}

static int on_tick(void *ctx, struct err *err)
{
	loop_stop(ctx);
	return 0;
}

/* Let the loop do what it has to. */
static void turn(void)
{
	struct loop *loop = session_loop(&session);
	struct loop_timer *timer = loop_add_timer(loop, clock_ms() + 5, on_tick, loop);

	assert_int_equal(loop_run(loop, NULL), 0);
	loop_remove_timer(loop, timer);
}

static int listen_here(uint16_t *ret_port)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
	*ret_port = ntohs(address.sin_port);
	return fd;
}

static int connect_to(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* One byte from fd, or 0 at its end, or -1 when it was reset. */
static int get_byte(int fd)
{
	int64_t deadline_ms = clock_ms() + TIMEOUT_MS;
	unsigned char byte;

	while (clock_ms() < deadline_ms) {
		ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
		if (n > 0)
			return byte;
		if (n == 0)
			return 0;
		if (errno != EAGAIN)
			return -1;
		turn();
	}
	fail_msg("nothing came");
	return -2;
}

static int accept_at(int listener)
{
	int64_t deadline_ms = clock_ms() + TIMEOUT_MS;

	while (clock_ms() < deadline_ms) {
		struct pollfd wait = {listener, POLLIN, 0};
		if (poll(&wait, 1, 0) > 0)
			return accept(listener, NULL, NULL);
		turn();
	}
	fail_msg("nobody came");
	return -1;
}

static struct run *running(void)
{
	struct run *run = run_new("a-22222", "a");

	json_set_str(json_sub(run->doc, "target"), "kind", "local");
	json_set_str(json_sub(run->doc, "target"), "name", "local");
	return run;
}

static void hand_over(struct run *run)
{
	char machine[OS_ID_SIZE] = "";

	os_machine_id(machine);
	AUTO_FREE char *handle = mem_printf("%s:a-22222/1", machine);
	run_add_attempt(run, handle);
}

static uint16_t free_port(void)
{
	uint16_t port;

	close(listen_here(&port));
	return port;
}

static struct forward *open_one(const struct run *run, uint16_t remote, struct heard *heard)
{
	const struct forward_port port = {.local = free_port(), .remote = remote};
	const struct forward_options options = {.ports = &port,
		.n_ports = 1,
		.listening = on_listening,
		.notice = on_notice,
		.ctx = heard};
	struct forward *forward = NULL;

	assert_int_equal(forward_open(&session, run, &options, &forward, NULL), 0);
	assert_int_equal(heard->n, 1);
	assert_int_equal(heard->ports[0].remote, remote);
	return forward;
}

static void test_bytes_go_both_ways(void **state)
{
	AUTO(forward_free_auto) struct forward *forward = NULL;
	AUTO_RUN struct run *run = running();
	struct heard heard = {0};
	uint16_t port;
	AUTO_FD int listener = listen_here(&port);

	hand_over(run);
	forward = open_one(run, port, &heard);
	AUTO_FD int client = connect_to(heard.ports[0].local);
	AUTO_FD int server = accept_at(listener);
	assert_int_equal(write(client, "?", 1), 1);
	assert_int_equal(get_byte(server), '?');
	assert_int_equal(write(server, "!", 1), 1);
	assert_int_equal(get_byte(client), '!');
	assert_int_equal(heard.notices, 0);
	/* Its end is that of all connections. */
	forward_free(TAKE(forward));
	assert_true(get_byte(client) <= 0);
	assert_true(get_byte(server) <= 0);
}

/* Whoever follows a run does so before it has been handed over. */
static void test_attempts_come_later(void **state)
{
	AUTO(forward_free_auto) struct forward *forward = NULL;
	AUTO_RUN struct run *run = running();
	struct heard heard = {0};
	uint16_t port;
	AUTO_FD int listener = listen_here(&port);

	forward = open_one(run, port, &heard);
	AUTO_FD int early = connect_to(heard.ports[0].local);
	assert_true(get_byte(early) <= 0);
	hand_over(run);
	AUTO_FD int client = connect_to(heard.ports[0].local);
	AUTO_FD int server = accept_at(listener);
	assert_int_equal(write(client, "?", 1), 1);
	assert_int_equal(get_byte(server), '?');
}

static void test_what_cannot_be_carried_is_notified(void **state)
{
	AUTO(forward_free_auto) struct forward *forward = NULL;
	AUTO_RUN struct run *run = running();
	struct heard heard = {0};

	run_add_attempt(run, "a-22222");
	forward = open_one(run, 6006, &heard);
	AUTO_FD int client = connect_to(heard.ports[0].local);
	assert_true(get_byte(client) <= 0);
	assert_int_equal(heard.notices, 1);
	assert_non_null(strstr(heard.notice, "'a-22222' is not a handle"));
	/* And goes on. */
	AUTO_FD int other = connect_to(heard.ports[0].local);
	assert_true(get_byte(other) <= 0);
}

/* Whether the program of a run on this machine finds its number free. */
static bool leaves_number_alone(void)
{
	AUTO(forward_free_auto) struct forward *forward = NULL;
	AUTO_RUN struct run *run = running();
	struct heard heard = {0};
	uint16_t number = free_port();
	const struct forward_port wanted[] = {
		{.remote = number}, {.local = number, .remote = number}};
	const struct forward_options options = {
		.ports = wanted, .n_ports = 2, .listening = on_listening, .ctx = &heard};

	assert_int_equal(forward_open(&session, run, &options, &forward, NULL), 0);
	assert_int_equal(heard.n, 2);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(heard.ports[i].local, number);
	AUTO_FD int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(number),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	return bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
}

/* Others may take a number that was free: not five times. */
static void test_its_own_number_is_left_alone(void **state)
{
	bool is_left = false;

	for (int i = 0; i < 5 && !is_left; i++)
		is_left = leaves_number_alone();
	assert_true(is_left);
}

static void expect_rank(int64_t nodes, int rank, const char *message)
{
	AUTO_RUN struct run *run = running();
	const struct forward_options options = {
		.rank = rank, .listening = on_listening, .n_ports = 0};
	AUTO_ERR struct err err = {0};

	run_set_state(run, RUN_RUNNING);
	json_set_int(json_sub(run->doc, "resources"), "nodes", nodes);
	assert_int_equal(run_forward(&session, run, &options, &err), -ERR_USAGE);
	assert_string_equal(err.message, message);
}

static void test_ranks_that_it_has_not(void **state)
{
	expect_rank(1, 1, "--rank 1: a-22222 has only rank 0");
	expect_rank(4, 4, "--rank 4: a-22222 has the ranks 0 to 3");
}

static void test_an_exact_number_that_is_taken(void **state)
{
	struct forward *forward = NULL;
	AUTO_RUN struct run *run = running();
	AUTO_ERR struct err err = {0};
	struct heard heard = {0};
	uint16_t port;
	AUTO_FD int listener = listen_here(&port);
	const struct forward_port wanted[] = {
		{.local = free_port(), .remote = 6006}, {.local = port, .remote = 6006}};
	const struct forward_options options = {
		.ports = wanted, .n_ports = 2, .listening = on_listening, .ctx = &heard};

	(void)listener;
	assert_true(forward_open(&session, run, &options, &forward, &err) < 0);
	assert_int_equal(err.id, E_LISTEN_TAKEN);
	assert_string_equal(err.hint, "dlrun forward a-22222 6006   # at another number");
	assert_null(forward);
	assert_int_equal(heard.n, 1);
}

static volatile int interrupted;

static int on_interrupt(void *ctx, struct err *err)
{
	interrupted = 1;
	return 0;
}

/* Ctrl-C ends it though the target, which is asked whether the run has begun, is silent. */
static void test_an_interrupt_while_the_target_is_silent(void **state)
{
	AUTO_RUN struct run *run = silent_run("b-22222");
	AUTO_ERR struct err err = {0};
	const struct forward_port port = {.remote = 6006};
	const struct forward_options options = {
		.ports = &port, .n_ports = 1, .interrupted = &interrupted};
	int64_t begin_ms = clock_ms();

	interrupted = 0;
	run_set_state(run, RUN_QUEUED);
	ok(store_insert(open_store(), run, error));
	loop_add_timer(session_loop(&session), begin_ms + 50, on_interrupt, NULL);
	assert_int_equal(run_forward(&session, run, &options, &err), -ERR_CANCELED);
	assert_true(clock_ms() - begin_ms < 4000);
}

static void test_a_run_that_has_ended(void **state)
{
	AUTO_RUN struct run *run = new_run("c-22222");
	AUTO_ERR struct err err = {0};
	struct heard heard = {0};
	const struct forward_port port = {.remote = 6006};
	const struct forward_options options = {
		.ports = &port, .n_ports = 1, .listening = on_listening, .ctx = &heard};

	ok(store_insert(open_store(), run, error));
	assert_int_equal(run_forward(&session, run, &options, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_RUN_ENDED);
	assert_string_equal(err.message, "c-22222 has ended (succeeded): its ports are closed");
	assert_int_equal(heard.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_go_both_ways),
		cmocka_unit_test(test_attempts_come_later),
		cmocka_unit_test(test_what_cannot_be_carried_is_notified),
		cmocka_unit_test(test_its_own_number_is_left_alone),
		cmocka_unit_test(test_ranks_that_it_has_not),
		cmocka_unit_test(test_an_exact_number_that_is_taken),
		cmocka_unit_test(test_an_interrupt_while_the_target_is_silent),
		cmocka_unit_test(test_a_run_that_has_ended),
	};

	return cmocka_run_group_tests(tests, make_silent_session, remove_session);
}
