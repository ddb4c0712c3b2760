/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/pump.h"

/*
 * A pump between two connections, whose other ends are the test's
 */

struct runtime {
	struct loop *loop;
	struct pump *pump;
	int a, b; /* the far ends, blocking */
	int n_done;
	uint64_t bytes_ab, bytes_ba;
	enum err_id error;
	char faulty;
};

static void tcp_pair(int fds[static 2])
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	AUTO_FD int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(listening, (struct sockaddr *)&address, len), 0);
	assert_int_equal(listen(listening, 1), 0);
	assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &len), 0);
	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fds[0], (struct sockaddr *)&address, len), 0);
	fds[1] = accept(listening, NULL, NULL);
	assert_true(fds[1] >= 0);
}

static int on_done(void *ctx, struct pump_end *end, struct err *err)
{
	struct runtime *runtime = ctx;

	runtime->n_done++;
	runtime->pump = NULL;
	runtime->bytes_ab = end->bytes_ab;
	runtime->bytes_ba = end->bytes_ba;
	runtime->error = end->error.id;
	runtime->faulty = end->faulty;
	loop_stop(runtime->loop);
	return 0;
}

static void start(struct runtime *runtime, struct stream *a, struct stream *b)
{
	const struct pump_options options = {
		.loop = runtime->loop, .a = a, .b = b, .done = on_done, .ctx = runtime};

	runtime->pump = pump_start(&options);
}

static void open_runtime(struct runtime *runtime)
{
	int a[2], b[2];

	*runtime = (struct runtime){.loop = loop_new()};
	tcp_pair(a);
	tcp_pair(b);
	runtime->a = a[0];
	runtime->b = b[0];
	start(runtime, stream_from_fd(a[1]), stream_from_fd(b[1]));
}

static void close_runtime(struct runtime *runtime)
{
	pump_cancel(runtime->pump);
	close(runtime->a);
	close(runtime->b);
	loop_free(runtime->loop);
}

static int too_late(void *ctx, struct err *err)
{
	return err_set(err, E_IO, "too late");
}

static void runs(struct runtime *runtime)
{
	AUTO_ERR struct err err = {0};
	struct loop_timer *limit =
		loop_add_timer(runtime->loop, clock_ms() + 60000, too_late, NULL);

	while (runtime->n_done == 0)
		assert_int_equal(loop_run(runtime->loop, &err), 0);
	loop_remove_timer(runtime->loop, limit);
}

static int stop_due(void *ctx, struct err *err)
{
	struct runtime *runtime = ctx;

	loop_stop(runtime->loop);
	return 0;
}

/* In a row: in the one that follows a stall of the machine nothing may have moved yet. */
enum { QUIET_ROUNDS = 3 };

/* Until nothing moves any more. */
static void settles(struct runtime *runtime)
{
	uint64_t ab, ba, before;

	pump_count(runtime->pump, &ab, &ba);
	for (int quiet = 0; quiet < QUIET_ROUNDS;) {
		before = ab + ba;
		loop_add_timer(runtime->loop, clock_ms() + 20, stop_due, runtime);
		assert_int_equal(loop_run(runtime->loop, NULL), 0);
		if (runtime->n_done)
			return;
		pump_count(runtime->pump, &ab, &ba);
		quiet = ab + ba == before ? quiet + 1 : 0;
	}
}

static void says(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static void hears(int fd, const char *text)
{
	const struct timeval limit = {.tv_sec = 20};
	char data[256];

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	assert_int_equal(recv(fd, data, strlen(text), MSG_WAITALL), strlen(text));
	assert_memory_equal(data, text, strlen(text));
}

/*
 * Much, both ways
 */

enum { FLOOD = 64 << 20 };

struct end {
	pthread_t thread;
	int fd;
	size_t piece;
	unsigned seed;
	uint64_t bytes;
	uint8_t hash[SHA256_SIZE];
};

/* A program that was stopped for a while sends a part. */
static bool send_all(int fd, const char *data, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
		if (n <= 0)
			return false;
		data += n;
		len -= (size_t)n;
	}
	return true;
}

static void *send_flood(void *ctx)
{
	struct end *end = ctx;
	struct digest digest = {0};
	char *data = mem_alloc(1, end->piece);

	digest_begin(&digest, DIGEST_SHA256);
	while (end->bytes < FLOOD) {
		for (size_t i = 0; i < end->piece; i += sizeof(end->seed)) {
			end->seed = end->seed * 1103515245 + 12345;
			memcpy(data + i, &end->seed, sizeof(end->seed));
		}
		if (!send_all(end->fd, data, end->piece))
			break;
		digest_add(&digest, data, end->piece);
		end->bytes += end->piece;
	}
	shutdown(end->fd, SHUT_WR);
	digest_end(&digest, end->hash);
	digest_done(&digest);
	free(data);
	return NULL;
}

static void *take_flood(void *ctx)
{
	struct end *end = ctx;
	struct digest digest = {0};
	char *data = mem_alloc(1, end->piece);
	ssize_t n;

	digest_begin(&digest, DIGEST_SHA256);
	while ((n = recv(end->fd, data, end->piece, 0)) > 0) {
		digest_add(&digest, data, (size_t)n);
		end->bytes += (uint64_t)n;
	}
	digest_end(&digest, end->hash);
	digest_done(&digest);
	free(data);
	return NULL;
}

/* One way in large pieces; the other way read in small ones, more slowly than they are sent. */
static void test_flood(void **state)
{
	struct runtime runtime;

	open_runtime(&runtime);
	struct end ends[] = {
		{.fd = runtime.a, .piece = 1 << 16, .seed = 1},
		{.fd = runtime.b, .piece = 1 << 16},
		{.fd = runtime.b, .piece = 1 << 12, .seed = 2},
		{.fd = runtime.a, .piece = 700},
	};
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		pthread_create(&ends[i].thread, NULL, i % 2 ? take_flood : send_flood, &ends[i]);
	runs(&runtime);
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		pthread_join(ends[i].thread, NULL);
	assert_int_equal(runtime.error, E_NONE);
	assert_int_equal(runtime.bytes_ab, FLOOD);
	assert_int_equal(runtime.bytes_ba, FLOOD);
	for (size_t i = 0; i < ARRAY_LEN(ends); i += 2) {
		assert_int_equal(ends[i + 1].bytes, FLOOD);
		assert_memory_equal(ends[i].hash, ends[i + 1].hash, SHA256_SIZE);
	}
	close_runtime(&runtime);
}

/* Who does not read stops who writes: what is on its way is bounded, and nothing spins. */
static void test_back_pressure(void **state)
{
	AUTO_FREE char *data = mem_alloc(1, 1 << 16);
	struct runtime runtime;
	size_t sent = 0, got = 0;
	ssize_t n = 1;

	open_runtime(&runtime);
	while (n > 0 && sent < FLOOD) {
		while ((n = send(runtime.a, data, 1 << 16, MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
			sent += (size_t)n;
		settles(&runtime);
		n = send(runtime.a, data, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		sent += n > 0 ? 1 : 0;
	}
	assert_true(sent < FLOOD);
	clock_t cpu = clock();
	loop_add_timer(runtime.loop, clock_ms() + 100, stop_due, &runtime);
	assert_int_equal(loop_run(runtime.loop, NULL), 0);
	assert_true(clock() - cpu < CLOCKS_PER_SEC / 20);
	shutdown(runtime.a, SHUT_WR);
	shutdown(runtime.b, SHUT_WR);
	while (got < sent) {
		if ((n = recv(runtime.b, data, 1 << 16, MSG_DONTWAIT)) > 0)
			got += (size_t)n;
		else if (runtime.pump)
			settles(&runtime);
	}
	if (runtime.n_done == 0)
		runs(&runtime);
	assert_int_equal(runtime.bytes_ab, sent);
	close_runtime(&runtime);
}

/*
 * Ends
 */

static void check_half_close(bool from_a)
{
	struct runtime runtime;
	char c;

	open_runtime(&runtime);
	int first = from_a ? runtime.a : runtime.b, second = from_a ? runtime.b : runtime.a;
	says(first, "question");
	shutdown(first, SHUT_WR);
	settles(&runtime);
	hears(second, "question");
	assert_int_equal(recv(second, &c, 1, 0), 0);
	assert_int_equal(runtime.n_done, 0);
	says(second, "long answer");
	settles(&runtime);
	hears(first, "long answer");
	assert_int_equal(runtime.n_done, 0);
	close(second);
	runs(&runtime);
	assert_int_equal(recv(first, &c, 1, 0), 0);
	assert_int_equal(runtime.error, E_NONE);
	assert_int_equal(runtime.faulty, 0);
	assert_int_equal(runtime.bytes_ab, from_a ? 8 : 11);
	assert_int_equal(runtime.bytes_ba, from_a ? 11 : 8);
	*(from_a ? &runtime.b : &runtime.a) = dup(0);
	close_runtime(&runtime);
}

static void test_half_close(void **state)
{
	check_half_close(true);
	check_half_close(false);
}

static void resets(int fd)
{
	const struct linger linger = {.l_onoff = 1};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(fd);
}

static void is_reset(int fd)
{
	char c;

	assert_int_equal(recv(fd, &c, 1, 0), -1);
	assert_int_equal(errno, ECONNRESET);
}

/* A connection that broke does not look like one that ended. */
static void test_reset(void **state)
{
	for (int i = 0; i < 2; i++) {
		struct runtime runtime;
		open_runtime(&runtime);
		int *broken = i ? &runtime.b : &runtime.a, *other = i ? &runtime.a : &runtime.b;
		says(*broken, "half of");
		settles(&runtime);
		hears(*other, "half of");
		resets(*broken);
		*broken = dup(0);
		runs(&runtime);
		is_reset(*other);
		assert_int_equal(runtime.error, E_IO);
		assert_int_equal(runtime.faulty, i ? 'b' : 'a');
		assert_int_equal(i ? runtime.bytes_ba : runtime.bytes_ab, 7);
		close_runtime(&runtime);
	}
}

static void test_cancel(void **state)
{
	struct runtime runtime;

	open_runtime(&runtime);
	pump_cancel(NULL);
	says(runtime.a, "x");
	settles(&runtime);
	pump_cancel(TAKE(runtime.pump));
	hears(runtime.b, "x");
	is_reset(runtime.a);
	is_reset(runtime.b);
	assert_int_equal(runtime.n_done, 0);
	close_runtime(&runtime);
}

/*
 * Streams that are no sockets
 */

struct fake {
	struct stream stream;
	struct pump **pump;
	const char *in; /* to be read, in pieces of 3 bytes */
	size_t n_in;
	bool in_ended, can_write, write_fails, was_shut, was_reset;
	struct buf out;
};

static ssize_t fake_read(struct stream *stream, void *out, size_t len, struct err *err)
{
	struct fake *fake = (struct fake *)stream;
	size_t n = fake->n_in < 3 ? fake->n_in : 3;

	assert_true(len >= n);
	if (n == 0)
		return fake->in_ended ? 0 : STREAM_AGAIN;
	memcpy(out, fake->in, n);
	fake->in += n;
	fake->n_in -= n;
	return (ssize_t)n;
}

static ssize_t fake_write(struct stream *stream, const void *data, size_t len, struct err *err)
{
	struct fake *fake = (struct fake *)stream;

	if (fake->write_fails)
		return err_set(err, E_HTTP_CLOSED, "gone");
	if (!fake->can_write)
		return STREAM_AGAIN;
	fake->can_write = false;
	len = len < 4 ? len : 4;
	buf_add(&fake->out, data, len);
	return (ssize_t)len;
}

static int fake_shutdown(struct stream *stream, struct err *err)
{
	((struct fake *)stream)->was_shut = true;
	return 0;
}

static bool fake_pending(const struct stream *stream)
{
	return ((const struct fake *)stream)->n_in > 0;
}

static void fake_free(struct stream *stream)
{
}

static void fake_reset(struct stream *stream)
{
	((struct fake *)stream)->was_reset = true;
}

static const struct stream_ops fake_ops = {
	.read = fake_read,
	.write = fake_write,
	.shutdown = fake_shutdown,
	.pending = fake_pending,
	.free = fake_free,
	.reset = fake_reset,
};

static void start_fakes(struct runtime *runtime, struct fake *a, struct fake *b)
{
	*runtime = (struct runtime){.loop = loop_new(), .a = -1, .b = -1};
	a->stream = b->stream = (struct stream){.ops = &fake_ops, .fd = -1};
	buf_init(&a->out, 1000);
	buf_init(&b->out, 1000);
	start(runtime, &a->stream, &b->stream);
}

static void end_fakes(struct runtime *runtime, struct fake *a, struct fake *b)
{
	pump_cancel(runtime->pump);
	loop_free(runtime->loop);
	buf_done(&a->out);
	buf_done(&b->out);
}

static void test_streams_without_descriptor(void **state)
{
	struct fake a = {.in = "0123456789", .n_in = 10}, b = {0};
	struct runtime runtime;

	start_fakes(&runtime, &a, &b);
	settles(&runtime);
	assert_int_equal(b.out.len, 0);
	/* What was read went together; each call of write takes four. */
	for (int i = 0; i < 3; i++) {
		b.can_write = true;
		pump_wake(runtime.pump);
		pump_wake(runtime.pump);
		settles(&runtime);
	}
	assert_string_equal(b.out.data, "0123456789");
	assert_false(b.was_shut);
	a.in_ended = true;
	pump_wake(runtime.pump);
	settles(&runtime);
	assert_true(b.was_shut);
	assert_false(a.was_shut);
	b.in_ended = true;
	pump_wake(runtime.pump);
	runs(&runtime);
	assert_true(a.was_shut);
	assert_false(a.was_reset || b.was_reset);
	assert_int_equal(runtime.bytes_ab, 10);
	end_fakes(&runtime, &a, &b);
}

/* A server that refuses the rest may have said why. */
static void test_last_words(void **state)
{
	struct fake a = {.in = "request", .n_in = 7}, b = {.write_fails = true};
	struct runtime runtime;

	b.in = "no";
	b.n_in = 2;
	a.can_write = true;
	start_fakes(&runtime, &a, &b);
	runs(&runtime);
	assert_string_equal(a.out.data, "no");
	assert_true(a.was_reset && b.was_reset);
	assert_false(a.was_shut);
	assert_int_equal(runtime.error, E_HTTP_CLOSED);
	assert_int_equal(runtime.faulty, 'b');
	assert_int_equal(runtime.bytes_ab, 0);
	assert_int_equal(runtime.bytes_ba, 2);
	end_fakes(&runtime, &a, &b);
}

static void test_both_fail(void **state)
{
	struct fake a = {.in = "xyz", .n_in = 3, .write_fails = true};
	struct fake b = {.in = "uvw", .n_in = 3, .write_fails = true};
	struct runtime runtime;

	start_fakes(&runtime, &a, &b);
	runs(&runtime);
	assert_int_equal(runtime.n_done, 1);
	assert_int_equal(runtime.error, E_HTTP_CLOSED);
	assert_true(a.was_reset && b.was_reset);
	end_fakes(&runtime, &a, &b);
}

/*
 * Many at once
 */

enum { N_PUMPS = 100 };

static void test_many(void **state)
{
	struct runtime worlds[N_PUMPS];
	struct loop *loop = loop_new();
	int pairs[N_PUMPS][4], n_done = 0;

	for (int i = 0; i < N_PUMPS; i++) {
		worlds[i] = (struct runtime){.loop = loop};
		tcp_pair(pairs[i]);
		tcp_pair(pairs[i] + 2);
		start(&worlds[i], stream_from_fd(pairs[i][1]), stream_from_fd(pairs[i][3]));
		AUTO_FREE char *text = mem_printf("pump %d", i);
		says(pairs[i][0], text);
		shutdown(pairs[i][0], SHUT_WR);
		shutdown(pairs[i][2], SHUT_WR);
	}
	for (int i = 0; i < N_PUMPS; i++)
		while (worlds[i].n_done == 0)
			assert_int_equal(loop_run(loop, NULL), 0);
	for (int i = 0; i < N_PUMPS; i++) {
		AUTO_FREE char *text = mem_printf("pump %d", i);
		hears(pairs[i][2], text);
		n_done += worlds[i].n_done;
		assert_int_equal(worlds[i].bytes_ab, strlen(text));
		close(pairs[i][0]);
		close(pairs[i][2]);
	}
	assert_int_equal(n_done, N_PUMPS);
	loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_flood),
		cmocka_unit_test(test_back_pressure),
		cmocka_unit_test(test_half_close),
		cmocka_unit_test(test_reset),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_streams_without_descriptor),
		cmocka_unit_test(test_last_words),
		cmocka_unit_test(test_both_fail),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
