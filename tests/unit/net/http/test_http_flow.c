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
#include "tests/unit/httpclient.h"
#include "tests/unit/httpfix.h"

enum { LARGE = 50 << 20, STREAM = 9 << 20, LINES = 40000 };

static uint64_t sum_of(const unsigned char *data, size_t len, uint64_t at)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < len; i++)
		sum += data[i] * ((at + i) % 251 + 1);
	return sum;
}

static unsigned char byte_at(uint64_t at)
{
	return (unsigned char)(at * 7 + at / 4096);
}

/* The sum of the body, as text. */
static bool response_sum(struct fix_conn *conn)
{
	uint64_t at = 0, sum = 0;
	unsigned char data[65536];
	char text[256], digits[32];

	while (at < conn->size) {
		size_t len = conn->size - at < sizeof(data) ? conn->size - at : sizeof(data);
		ssize_t n = fix_recv(conn, data, len);
		if (n <= 0)
			return false;
		sum += sum_of(data, (size_t)n, at);
		at += (uint64_t)n;
	}
	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)sum);
	snprintf(text, sizeof(text), "HTTP/1.1 201 Created\r\nContent-Length: %zu\r\n\r\n%s",
		strlen(digits), digits);
	return fix_print(conn, text);
}

static bool response_stream(struct fix_conn *conn)
{
	unsigned char data[65536];
	char head[128];

	snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", STREAM);
	if (!fix_print(conn, head))
		return false;
	for (uint64_t at = 0; at < STREAM; at += sizeof(data)) {
		for (size_t i = 0; i < sizeof(data); i++)
			data[i] = byte_at(at + i);
		if (!fix_send(conn, data, sizeof(data)))
			return false;
	}
	return true;
}

/* As logs come: each line in a chunk of its own. */
static bool response_lines(struct fix_conn *conn)
{
	char line[32];

	fix_print(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
	for (int i = 0; i < LINES; i++) {
		snprintf(line, sizeof(line), "8\r\n%07d\n\r\n", i);
		if (!fix_print(conn, line))
			return false;
	}
	return fix_print(conn, "0\r\n\r\n");
}

/* After some of the body: no. Servers then wait for a moment before they close. */
static bool response_early(struct fix_conn *conn)
{
	char data[4096];

	if (strcasestr(conn->head, "expect:"))
		fix_print(conn, "HTTP/1.1 100 Continue\r\n\r\n");
	fix_recv(conn, data, sizeof(data));
	fix_print(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 8\r\n\r\ntoo much");
	if (str_eq(conn->path, "/abrupt"))
		return false;
	struct pollfd pollfd = {.fd = conn->fd, .events = POLLRDHUP};
	shutdown(conn->fd, SHUT_WR);
	poll(&pollfd, 1, 10000);
	return false;
}

static bool response_silent(struct fix_conn *conn)
{
	if (str_eq(conn->path, "/half"))
		fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
	else if (str_eq(conn->path, "/headers"))
		fix_print(conn, "HTTP/1.1 200 OK\r\nContent-");
	fix_wait_end(conn);
	return false;
}

enum { SLOW_MS = 250, N_DRIPS = 12 };

/* A byte now and then: slow, but going on. */
static bool response_drip(struct fix_conn *conn)
{
	int backoff_ms = str_eq(conn->path, "/slow") ? SLOW_MS : 50;

	fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n");
	for (int i = 0; i < N_DRIPS; i++) {
		poll(NULL, 0, backoff_ms);
		if (!fix_print(conn, "x"))
			return false;
	}
	return true;
}

/* Says nothing and never will, but takes all. */
static bool response_half_closed(struct fix_conn *conn)
{
	shutdown(conn->fd, SHUT_WR);
	fix_wait_end(conn);
	return false;
}

/* Reads nothing. */
static bool response_deaf(struct fix_conn *conn)
{
	struct pollfd pollfd = {.fd = conn->fd, .events = POLLRDHUP};

	poll(&pollfd, 1, 10000);
	return false;
}

/* Proxies that know nothing of it: then without. Who waited too long for them is sending already
 * and gives this connection up. */
static bool response_no_expect(struct fix_conn *conn)
{
	char first = 0;

	if (!strcasestr(conn->head, "expect:"))
		return response_sum(conn);
	if (str_eq(conn->path, "/no-expect-late"))
		recv(conn->fd, &first, 1, MSG_PEEK);
	fix_print(conn, "HTTP/1.1 417 No\r\nX-A: b\r\nContent-Length: 4\r\n\r\nno!\n");
	if (conn->n_rest > 0 || recv(conn->fd, &first, 1, MSG_PEEK) != 1 || first != 'P')
		fix_wait_end(conn);
	return true;
}

static bool response_any(struct fix_conn *conn)
{
	static const struct {
		const char *path;
		fix_response_fn *response;
	} rows[] = {{"/sum", response_sum}, {"/stream", response_stream},
		{"/lines", response_lines}, {"/no-expect", response_no_expect},
		{"/no-expect-late", response_no_expect}, {"/half-closed", response_half_closed},
		{"/deaf", response_deaf}, {"/early", response_early}, {"/abrupt", response_early},
		{"/silent", response_silent}, {"/half", response_silent},
		{"/headers", response_silent}, {"/drip", response_drip}, {"/slow", response_drip}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i].path, conn->path))
			return rows[i].response(conn);
	return fix_print(conn, "HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n");
}

static struct fix_server *server;
static struct client client;

static int set_up(void **state)
{
	server = fix_start(response_any);
	client_init(&client);
	return 0;
}

static int tear_down(void **state)
{
	client_done(&client);
	fix_stop(server);
	return 0;
}

/*
 * Sending
 */

static int make_file(uint64_t size)
{
	int fd = memfd_create("body", MFD_CLOEXEC);
	AUTO_FREE unsigned char *data = mem_alloc(1, size);

	for (uint64_t i = 0; i < size; i++)
		data[i] = byte_at(i);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, size), size);
	return fd;
}

static uint64_t sum_wanted(uint64_t size)
{
	AUTO_FREE unsigned char *data = mem_alloc(1, size);

	for (uint64_t i = 0; i < size; i++)
		data[i] = byte_at(i);
	return sum_of(data, size, 0);
}

static void assert_sum(const struct result *result, uint64_t size)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)sum_wanted(size));
	assert_int_equal(result->status, 201);
	assert_string_equal(result->body, text);
	assert_int_equal(result->bytes_up, size);
}

static void test_send_file(void **state)
{
	AUTO_FD int fd = make_file(STREAM);
	struct result result = {
		.request = {.method = "PUT", .body = {.fd = fd, .has_fd = true, .size = STREAM}}};

	client_get(&client, server->port, "/sum", &result);
	assert_sum(&result, STREAM);
	result_done(&result);
}

/* Small bodies go at once; large ones ask first, and do not wait long for an answer to that. */
static void test_expect(void **state)
{
	AUTO_FD int fd = make_file(STREAM);
	static const uint64_t sizes[] = {2 << 20, 8 << 20, (8 << 20) + 1};

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct result result = {
			.request = {.method = "POST",
				.body = {.fd = fd, .has_fd = true, .size = sizes[i]}}};
		int64_t start_ms = clock_ms();
		client_get(&client, server->port, "/sum", &result);
		assert_sum(&result, sizes[i]);
		assert_in_range(clock_ms() - start_ms, 0, 15000);
		assert_int_equal(
			strcasestr(server->heads.v[i], "\r\nexpect: 100-continue") != NULL, i == 2);
		result_done(&result);
	}
}

static void test_expect_is_not_known(void **state)
{
	AUTO_FD int fd = make_file(STREAM);
	struct result result = {
		.request = {.method = "PUT", .body = {.fd = fd, .has_fd = true, .size = STREAM}}};

	client_get(&client, server->port, "/no-expect", &result);
	assert_sum(&result, STREAM);
	assert_int_equal(result.headers.n, 1);
	assert_int_equal(server->n_requests, 2);
	result_done(&result);
}

/* When the refusal comes, a part of the body has gone. libcurl 7.88 asks again on that connection:
 * what cannot end well is over at once, and the next try does not ask. */
static void test_expect_is_refused_late(void **state)
{
	AUTO_FD int fd = make_file(STREAM);
	struct result result = {
		.request = {.method = "PUT", .body = {.fd = fd, .has_fd = true, .size = STREAM}}};
	struct result second = result;

	client_get(&client, server->port, "/no-expect-late", &result);
	if (result.error)
		assert_true(result.is_transient);
	result_done(&result);
	client_get(&client, server->port, "/no-expect-late", &second);
	assert_sum(&second, STREAM);
	assert_null(strcasestr(server->heads.v[server->n_requests - 1], "\r\nexpect:"));
	result_done(&second);
}

static int resume_later(void *ctx, struct err *err)
{
	struct result *result = ctx;

	result->step++;
	http_resume(result->call);
	return 0;
}

/* In pieces, with nothing to give in between. */
static ssize_t read_in_pieces(void *ctx, void *out, size_t len, struct err *err)
{
	struct result *result = ctx;
	unsigned char *bytes = out;

	if (result->n_read / 300000 > (uint64_t)result->step) {
		loop_add_timer(result->client->loop, clock_ms() + 1, resume_later, result);
		return 0;
	}
	if (len > 10007)
		len = 10007;
	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(result->n_read + i);
	result->n_read += len;
	return (ssize_t)len;
}

static void test_send_with_pauses(void **state)
{
	struct result result = {
		.request = {.method = "PATCH", .body = {.read = read_in_pieces, .size = 5000001}}};

	client_get(&client, server->port, "/sum", &result);
	assert_sum(&result, 5000001);
	assert_int_equal(result.step, 16);
	result_done(&result);
}

static void test_short_file(void **state)
{
	AUTO_FD int fd = make_file(1000);
	struct result result = {
		.request = {.method = "PUT", .body = {.fd = fd, .has_fd = true, .size = 100000}}};

	client_get(&client, server->port, "/sum", &result);
	result_is_error(&result, E_IO, false);
	result_done(&result);
}

static ssize_t read_fails(void *ctx, void *out, size_t len, struct err *err)
{
	(void)ctx, (void)out, (void)len;
	return err_set(err, E_DATA, "no more of it");
}

static int data_fails(void *ctx, const void *data, size_t len, struct err *err)
{
	(void)ctx, (void)data, (void)len;
	return err_set(err, E_DATA, "no more of it");
}

static void test_callbacks_fail(void **state)
{
	struct result sent = {
		.request = {.method = "PUT", .body = {.read = read_fails, .size = 100000}}};
	struct result received = {.request = {.data = data_fails}};

	client_get(&client, server->port, "/sum", &sent);
	result_is_error(&sent, E_DATA, false);
	assert_string_equal(sent.message, "no more of it");
	result_done(&sent);
	client_get(&client, server->port, "/stream", &received);
	result_is_error(&received, E_DATA, false);
	result_done(&received);
}

static void test_early_response(void **state)
{
	AUTO_FD int fd = memfd_create("body", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, LARGE), 0);
	for (int i = 0; i < 20; i++) {
		struct result result = {.request = {.method = "PUT",
						.body = {.fd = fd,
							.has_fd = true,
							.size = i % 2 ? LARGE : 1 << 20}}};
		client_get(&client, server->port, "/early", &result);
		assert_int_equal(result.error, E_NONE);
		assert_int_equal(result.status, 413);
		assert_string_equal(result.body, "too much");
		assert_in_range(result.bytes_up, 0, LARGE - 1);
		result_done(&result);
	}
}

/* Where the reset comes along with the answer it may be seen first: that is worth another try. */
static void test_early_response_and_reset(void **state)
{
	AUTO_FD int fd = memfd_create("body", MFD_CLOEXEC);
	int n_responses = 0;

	assert_int_equal(ftruncate(fd, LARGE), 0);
	for (int i = 0; i < 30; i++) {
		struct result result = {.request = {.method = "PUT",
						.body = {.fd = fd, .has_fd = true, .size = LARGE}}};
		client_get(&client, server->port, "/abrupt", &result);
		if (result.error)
			result_is_error(&result, E_HTTP_CLOSED, true);
		else
			assert_string_equal(result.body, "too much");
		n_responses += result.status == 413;
		result_done(&result);
	}
	assert_in_range(n_responses, 20, 30);
}

/* The end is there to be read for ever: that must not keep anything from going on. */
static void test_half_closed(void **state)
{
	AUTO_FD int fd = make_file(1 << 20);

	for (int i = 0; i < 5; i++) {
		struct result result = {
			.request = {.method = "PUT",
				.idle_ms = 5000,
				.body = {.fd = fd, .has_fd = true, .size = 1 << 20}}};
		client_get(&client, server->port, "/half-closed", &result);
		result_is_error(&result, E_HTTP_CLOSED, true);
		result_done(&result);
	}
}

/*
 * Receiving
 */

/* A pause at each MiB. */
static int take_slowly(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;
	const unsigned char *bytes = data;

	assert_false(result->step);
	for (size_t i = 0; i < len; i++)
		assert_int_equal(bytes[i], byte_at(result->n_data + i));
	uint64_t before = result->n_data;
	result->n_data += len;
	if (before >> 20 == result->n_data >> 20)
		return 0;
	result->step = 1;
	return 1;
}

static int poll_after_backoff(void *ctx, struct err *err)
{
	struct result *result = ctx;

	if (result->step) {
		result->step = 0;
		result->n_read++;
		http_resume(result->call);
	}
	if (result->n_done == 0)
		loop_add_timer(result->client->loop, clock_ms() + 20, poll_after_backoff, result);
	return 0;
}

static void test_receive_with_pauses(void **state)
{
	struct result result = {.request = {.data = take_slowly, .idle_ms = 5000}};

	client_start(&client, server->port, "/stream", &result);
	loop_add_timer(client.loop, clock_ms() + 20, poll_after_backoff, &result);
	client_run(&client);
	assert_int_equal(result.error, E_NONE);
	assert_int_equal(result.status, 200);
	assert_int_equal(result.n_data, STREAM);
	assert_in_range(result.n_read, 8, 9);
	assert_int_equal(result.body_len, 0);
	result_done(&result);
}

static int fail_after_backoff(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;

	(void)data, (void)len;
	if (result->n_data++)
		return err_set(err, E_DATA, "no more of it");
	loop_add_timer(result->client->loop, clock_ms() + 20, resume_later, result);
	return 1;
}

/* libcurl hands out what it has kept as soon as it is told to go on. */
static void test_fail_after_backoff(void **state)
{
	struct result result = {.request = {.data = fail_after_backoff}};

	client_get(&client, server->port, "/stream", &result);
	result_is_error(&result, E_DATA, false);
	assert_int_equal(result.n_data, 2);
	result_done(&result);
}

static int go_on(void *ctx, struct err *err)
{
	struct result *result = ctx;

	result->other = NULL;
	http_resume(result->call);
	return 0;
}

/* Lines in order; a pause now and then, and an end at the line of `step`. */
static int take_lines(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;
	const char *text = data;
	char line[16];

	for (size_t i = 0; i < len; i++, result->n_data++) {
		snprintf(line, sizeof(line), "%07d\n", (int)(result->n_data / 8));
		assert_int_equal(text[i], line[result->n_data % 8]);
	}
	assert_null(result->other);
	if (result->step && result->n_data > 8 * (uint64_t)result->step)
		return err_set(err, E_DATA, "no more of it");
	if (result->n_data < (result->n_read + 1) * 8 * (LINES / 10))
		return 0;
	result->n_read++;
	result->other = result;
	loop_add_timer(result->client->loop, clock_ms() + 5, go_on, result);
	return 1;
}

static void test_small_pieces(void **state)
{
	struct result result = {.request = {.data = take_lines}};
	struct result refused = {.request = {.data = take_lines}, .step = LINES / 2};

	client_get(&client, server->port, "/lines", &result);
	assert_int_equal(result.error, E_NONE);
	assert_int_equal(result.status, 200);
	assert_int_equal(result.n_data, 8 * LINES);
	assert_int_equal(result.bytes_down, 8 * LINES);
	result_done(&result);
	client_get(&client, server->port, "/lines", &refused);
	result_is_error(&refused, E_DATA, false);
	assert_in_range(refused.n_data, 8 * LINES / 2, 8 * LINES - 1);
	result_done(&refused);
}

/*
 * Limits of time
 */

static void test_idle(void **state)
{
	static const char *const paths[] = {"/silent", "/headers", "/half"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct result result = {.request.idle_ms = 150};
		int64_t start_ms = clock_ms();
		client_get(&client, server->port, paths[i], &result);
		result_is_error(&result, E_HTTP_TIMEOUT, true);
		assert_in_range(clock_ms() - start_ms, 150, 10000);
		assert_true(str_starts(result.message, "localhost:"));
		result_done(&result);
	}
}

/* Far longer than from one byte to the next, but all of them take longer. */
enum { SLOW_IDLE_MS = SLOW_MS * N_DRIPS * 2 / 3 };

static void test_slow_is_not_idle(void **state)
{
	struct result result = {.request.idle_ms = SLOW_IDLE_MS};

	client_get(&client, server->port, "/slow", &result);
	assert_int_equal(result.status, 200);
	assert_string_equal(result.body, "xxxxxxxxxxxx");
	result_done(&result);
}

static void test_idle_while_sending(void **state)
{
	AUTO_FD int fd = memfd_create("body", MFD_CLOEXEC);
	struct result result = {.request = {.method = "PUT",
					.idle_ms = 2500,
					.body = {.fd = fd, .has_fd = true, .size = LARGE}}};

	assert_int_equal(ftruncate(fd, LARGE), 0);
	client_get(&client, server->port, "/deaf", &result);
	result_is_error(&result, E_HTTP_TIMEOUT, true);
	assert_in_range(result.bytes_up, 1, LARGE - 1);
	result_done(&result);
}

/* What only waits for a connection is not idle. */
static void test_queue_is_not_idle(void **state)
{
	struct result results[HTTP_CONNECTIONS_MAX + 1] = {0};

	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		bool waits = i == HTTP_CONNECTIONS_MAX;
		results[i].request.idle_ms = SLOW_IDLE_MS;
		client_start(&client, server->port, waits ? "/sum" : "/slow", &results[i]);
	}
	client_run(&client);
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		assert_int_equal(results[i].status, i == HTTP_CONNECTIONS_MAX ? 201 : 200);
		result_done(&results[i]);
	}
	assert_int_equal(server->n_conns, HTTP_CONNECTIONS_MAX);
}

static void test_deadline(void **state)
{
	static const char *const paths[] = {"/silent", "/half", "/drip"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct result result = {.request.deadline_ms = clock_ms() + 100};
		client_get(&client, server->port, paths[i], &result);
		result_is_error(&result, E_HTTP_TIMEOUT, true);
		assert_in_range(clock_ms(), result.request.deadline_ms, INT64_MAX);
		result_done(&result);
	}
	struct result late = {.request.deadline_ms = clock_ms() - 1};
	client_get(&client, server->port, "/sum", &late);
	result_is_error(&late, E_HTTP_TIMEOUT, true);
	assert_false(late.sent);
	result_done(&late);
}

/* A port that takes no more connections and refuses none. */
static int listen_full(uint16_t *ret_port, int fillers[static 4])
{
	int fd = fix_listen(ret_port);
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(*ret_port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	listen(fd, 0);
	for (int i = 0; i < 4; i++) {
		fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		connect(fillers[i], (struct sockaddr *)&address, sizeof(address));
	}
	return fd;
}

static void test_deadline_while_connecting(void **state)
{
	struct result result = {.request.deadline_ms = clock_ms() + 300};
	int fillers[4];
	uint16_t port;
	AUTO_FD int fd = listen_full(&port, fillers);

	assert_true(fd >= 0);
	client_get(&client, port, "/", &result);
	result_is_error(&result, E_HTTP_TIMEOUT, true);
	assert_false(result.sent);
	assert_true(str_starts(result.message, "no connection to localhost:"));
	result_done(&result);
	for (int i = 0; i < 4; i++)
		close(fillers[i]);
}

/*
 * Giving up
 */

static int cancel_it(void *ctx, struct err *err)
{
	struct result *result = ctx;

	http_cancel(TAKE(result->call));
	return 0;
}

static ssize_t read_cancels(void *ctx, void *out, size_t len, struct err *err)
{
	struct result *result = ctx;

	assert_int_equal(result->n_read++, 0);
	memset(out, 0, len);
	cancel_it(result, err);
	return result->other ? (ssize_t)len : 0;
}

static int data_cancels(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;

	assert_int_equal(result->n_data, 0);
	result->n_data += len;
	return cancel_it(result, err);
}

static int data_cancels_other(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;

	result->n_data += len;
	return cancel_it(result->other, err);
}

static int done_cancels(void *ctx, struct http_response *response, struct err *err)
{
	struct result *result = ctx;

	http_resume(result->call);
	http_cancel(result->call); /* its own: too late */
	cancel_it(result->other, err);
	return result_note(ctx, response, err);
}

static int cancel_after_backoff(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;

	(void)data, (void)len;
	if (result->n_data++)
		return cancel_it(result, err);
	loop_add_timer(result->client->loop, clock_ms() + 20, resume_later, result);
	return 1;
}

static void test_cancel_after_backoff(void **state)
{
	struct result result = {.request = {.data = cancel_after_backoff}};

	client_get(&client, server->port, "/stream", &result);
	assert_int_equal(result.n_done, 0);
	assert_int_equal(result.n_data, 2);
}

static void test_cancel_before_it_begins(void **state)
{
	struct result result = {0};

	client_start(&client, server->port, "/sum", &result);
	http_cancel(TAKE(result.call));
	http_cancel(NULL);
	client_run(&client);
	assert_int_equal(result.n_done, 0);
	assert_int_equal(server->n_conns, 0);
}

/* At any moment, by a timer. */
static void test_cancel_from_outside(void **state)
{
	static const char *const paths[] = {"/silent", "/headers", "/half", "/drip", "/stream"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		for (int ms = 0; ms <= 8; ms += 2) {
			struct result result = {.request.max_body = STREAM};
			client_start(&client, server->port, paths[i], &result);
			loop_add_timer(client.loop, clock_ms() + ms, cancel_it, &result);
			client_run(&client);
			assert_true(result.n_done == 0 || i == 4);
			result_done(&result);
		}
	}
}

static void test_cancel_while_connecting(void **state)
{
	struct result result = {0}, unknown = {0};
	int fillers[4];
	uint16_t port;
	AUTO_FD int fd = listen_full(&port, fillers);

	assert_true(fd >= 0);
	client_start(&client, port, "/", &result);
	client_start_url(&client, "http://no-such-name.invalid/", &unknown);
	loop_add_timer(client.loop, clock_ms() + 50, cancel_it, &result);
	loop_add_timer(client.loop, clock_ms(), cancel_it, &unknown);
	client_run(&client);
	assert_int_equal(result.n_done + unknown.n_done, 0);
	for (int i = 0; i < 4; i++)
		close(fillers[i]);
}

static void test_cancel_in_callbacks(void **state)
{
	struct result other = {0};
	struct result reads[2] = {
		{.request = {.method = "PUT", .body = {.read = read_cancels, .size = 1000000}}},
		{.request = {.method = "PUT", .body = {.read = read_cancels, .size = 1000000}},
			.other = &other}};
	struct result data = {.request.data = data_cancels};

	for (int i = 0; i < 2; i++) {
		client_get(&client, server->port, "/sum", &reads[i]);
		assert_int_equal(reads[i].n_done, 0);
		assert_int_equal(reads[i].n_read, 1);
	}
	client_get(&client, server->port, "/stream", &data);
	assert_int_equal(data.n_done, 0);
	assert_in_range(data.n_data, 1, STREAM - 1);
}

static void test_cancel_others(void **state)
{
	struct result silent = {0}, stream = {.request.data = data_cancels_other, .other = &silent};
	struct result last = {0}, first = {.request = {.done = done_cancels}, .other = &last};

	client_start(&client, server->port, "/silent", &silent);
	client_start(&client, server->port, "/stream", &stream);
	client_run(&client);
	assert_int_equal(silent.n_done, 0);
	assert_int_equal(stream.n_data, STREAM);
	result_done(&stream);
	client_start(&client, server->port, "/sum", &first);
	client_start(&client, server->port, "/half", &last);
	client_run(&client);
	assert_int_equal(first.n_done, 1);
	assert_int_equal(last.n_done, 0);
	result_done(&first);
}

/* Those that wait for a connection go on when others are given up. */
static void test_cancel_in_the_queue(void **state)
{
	struct result silent[HTTP_CONNECTIONS_MAX] = {0}, queued[3] = {0};

	for (size_t i = 0; i < ARRAY_LEN(silent); i++)
		client_start(&client, server->port, "/silent", &silent[i]);
	for (size_t i = 0; i < ARRAY_LEN(queued); i++)
		client_start(&client, server->port, "/sum", &queued[i]);
	loop_add_timer(client.loop, clock_ms() + 30, cancel_it, &queued[1]);
	for (size_t i = 0; i < ARRAY_LEN(silent); i++)
		loop_add_timer(client.loop, clock_ms() + 60, cancel_it, &silent[i]);
	client_run(&client);
	assert_int_equal(queued[0].status, 201);
	assert_int_equal(queued[1].n_done, 0);
	assert_int_equal(queued[2].status, 201);
	result_done(&queued[0]);
	result_done(&queued[2]);
}

static ssize_t read_nothing(void *ctx, void *out, size_t len, struct err *err)
{
	(void)out, (void)len, (void)err;
	((struct result *)ctx)->n_read++;
	return 0;
}

static int take_one(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;

	(void)data, (void)err;
	result->n_data += len;
	result->n_read++;
	return 1;
}

static int resume_paused(void *ctx, struct err *err)
{
	const struct result *result = ctx;

	return result->call ? resume_later(ctx, err) : 0;
}

/* Its time was over before it was paused, or paused again: the machine was busy. */
static bool was_kept_waiting(const struct result *result)
{
	return result->n_read == 0 ||
	       (result->error == E_HTTP_TIMEOUT && result->n_read <= (uint64_t)result->step);
}

/* false: the machine was too busy for such an idle_ms. */
static bool cancels_paused(int64_t idle_ms)
{
	struct result sends = {.request = {.method = "PUT",
				       .idle_ms = idle_ms,
				       .body = {.read = read_nothing, .size = 10}}};
	struct result takes = {.request = {.data = take_one, .idle_ms = idle_ms}};
	int64_t start_ms = clock_ms();

	client_start(&client, server->port, "/sum", &sends);
	client_start(&client, server->port, "/stream", &takes);
	loop_add_timer(client.loop, start_ms + 4 * idle_ms, resume_paused, &sends);
	loop_add_timer(client.loop, start_ms + 4 * idle_ms, resume_paused, &takes);
	loop_add_timer(client.loop, start_ms + 6 * idle_ms, cancel_it, &sends);
	loop_add_timer(client.loop, start_ms + 6 * idle_ms, cancel_it, &takes);
	client_run(&client);
	bool is_valid = !was_kept_waiting(&sends) && !was_kept_waiting(&takes);
	if (is_valid) {
		assert_int_equal(sends.n_done + takes.n_done, 0);
		assert_in_range(takes.n_data, 1, 1 << 20);
	}
	result_done(&sends);
	result_done(&takes);
	return is_valid;
}

/* A pause is not idle; and a call can be given up in it, or resumed as it is. */
static void test_cancel_paused(void **state)
{
	int64_t idle_ms = 50;

	while (!cancels_paused(idle_ms)) {
		idle_ms *= 4;
		assert_true(idle_ms <= 3200);
	}
}

static int stop_it(void *ctx, struct err *err)
{
	loop_stop(ctx);
	return 0;
}

static void test_free_gives_up(void **state)
{
	static const char *const paths[] = {"/silent", "/half", "/stream", "/sum"};
	struct result results[8] = {0};

	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		results[i].request.data = take_one;
		client_start(&client, server->port, paths[i % 4], &results[i]);
	}
	loop_add_timer(client.loop, clock_ms() + 20, stop_it, client.loop);
	client_run(&client);
	struct result never = {0};
	client_start(&client, server->port, "/sum", &never);
	http_free(TAKE(client.http));
	client_run(&client);
	assert_int_equal(never.n_done, 0);
	for (size_t i = 0; i < ARRAY_LEN(results); i++)
		result_done(&results[i]);
}

/*
 * The loop
 */

static int done_fails(void *ctx, struct http_response *response, struct err *err)
{
	result_note(ctx, response, err);
	return err_set(err, E_CONFIG, "enough");
}

static void test_done_ends_the_loop(void **state)
{
	AUTO_ERR struct err err = {0};
	struct result results[5] = {0};
	int n_done = 0;

	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		results[i].request.done = done_fails;
		client_start(&client, server->port, "/sum", &results[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(results); i++)
		assert_int_equal(loop_run(client.loop, &err), -ERR_CONFIG);
	err_clear(&err);
	assert_int_equal(loop_run(client.loop, &err), 0);
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		n_done += results[i].n_done;
		result_done(&results[i]);
	}
	assert_int_equal(n_done, 5);
}

static int done_starts(void *ctx, struct http_response *response, struct err *err)
{
	struct result *result = ctx;

	client_start(&client, server->port, "/sum", result->other);
	return result_note(ctx, response, err);
}

static int data_starts(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;

	(void)data, (void)err;
	if (result->n_data == 0)
		client_start(&client, server->port, "/sum", result->other);
	result->n_data += len;
	return 0;
}

static void test_start_in_callbacks(void **state)
{
	struct result second = {0}, first = {.request.done = done_starts, .other = &second};
	struct result beside = {0}, stream = {.request.data = data_starts, .other = &beside};

	client_get(&client, server->port, "/sum", &first);
	assert_int_equal(first.n_done, 1);
	assert_int_equal(second.status, 201);
	assert_int_equal(server->n_conns, 1);
	client_get(&client, server->port, "/stream", &stream);
	assert_int_equal(stream.status, 200);
	assert_int_equal(beside.status, 201);
	result_done(&first);
	result_done(&second);
	result_done(&stream);
	result_done(&beside);
}

static void test_unknown_name(void **state)
{
	struct result result = {0};

	client_start_url(&client, "http://no-such-name.invalid/", &result);
	client_run(&client);
	result_is_error(&result, E_HTTP_RESOLVE, false);
	assert_non_null(strstr(result.message, "no-such-name.invalid"));
	result_done(&result);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_send_file, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_expect, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_expect_is_not_known, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_expect_is_refused_late, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_send_with_pauses, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_short_file, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_callbacks_fail, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_early_response, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_early_response_and_reset, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_half_closed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_receive_with_pauses, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fail_after_backoff, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_small_pieces, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_idle, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_slow_is_not_idle, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_idle_while_sending, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_queue_is_not_idle, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deadline, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deadline_while_connecting, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_after_backoff, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_before_it_begins, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_from_outside, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_while_connecting, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_in_callbacks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_others, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_in_the_queue, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_paused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_free_gives_up, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_done_ends_the_loop, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_start_in_callbacks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_unknown_name, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
