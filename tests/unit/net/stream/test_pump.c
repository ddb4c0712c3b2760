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

#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/pump.h"

/*
 * A pump between two connections, whose other ends are the test's
 */

struct world {
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
	struct world *world = ctx;

	(void)err;
	world->n_done++;
	world->pump = NULL;
	world->bytes_ab = end->bytes_ab;
	world->bytes_ba = end->bytes_ba;
	world->error = end->error.id;
	world->faulty = end->faulty;
	loop_stop(world->loop);
	return 0;
}

static void start(struct world *world, struct stream *a, struct stream *b)
{
	const struct pump_options options = {
		.loop = world->loop, .a = a, .b = b, .done = on_done, .ctx = world};

	world->pump = pump_start(&options);
}

static void open_world(struct world *world)
{
	int a[2], b[2];

	*world = (struct world){.loop = loop_new()};
	tcp_pair(a);
	tcp_pair(b);
	world->a = a[0];
	world->b = b[0];
	start(world, stream_from_fd(a[1]), stream_from_fd(b[1]));
}

static void close_world(struct world *world)
{
	pump_cancel(world->pump);
	close(world->a);
	close(world->b);
	loop_free(world->loop);
}

static int too_late(void *ctx, struct err *err)
{
	(void)ctx;
	return err_set(err, E_IO, "too late");
}

static void runs(struct world *world)
{
	AUTO_ERR struct err err = {0};
	struct loop_timer *limit = loop_add_timer(world->loop, clock_ms() + 60000, too_late, NULL);

	while (world->n_done == 0)
		assert_int_equal(loop_run(world->loop, &err), 0);
	loop_remove_timer(world->loop, limit);
}

static int stop_due(void *ctx, struct err *err)
{
	struct world *world = ctx;

	(void)err;
	loop_stop(world->loop);
	return 0;
}

/* In a row: in the one that follows a stall of the machine nothing may have moved yet. */
enum { QUIET_ROUNDS = 3 };

/* Until nothing moves any more. */
static void settles(struct world *world)
{
	uint64_t ab, ba, before;

	pump_count(world->pump, &ab, &ba);
	for (int quiet = 0; quiet < QUIET_ROUNDS;) {
		before = ab + ba;
		loop_add_timer(world->loop, clock_ms() + 20, stop_due, world);
		assert_int_equal(loop_run(world->loop, NULL), 0);
		if (world->n_done)
			return;
		pump_count(world->pump, &ab, &ba);
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
	struct world world;

	(void)state;
	open_world(&world);
	struct end ends[] = {
		{.fd = world.a, .piece = 1 << 16, .seed = 1},
		{.fd = world.b, .piece = 1 << 16},
		{.fd = world.b, .piece = 1 << 12, .seed = 2},
		{.fd = world.a, .piece = 700},
	};
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		pthread_create(&ends[i].thread, NULL, i % 2 ? take_flood : send_flood, &ends[i]);
	runs(&world);
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		pthread_join(ends[i].thread, NULL);
	assert_int_equal(world.error, E_NONE);
	assert_int_equal(world.bytes_ab, FLOOD);
	assert_int_equal(world.bytes_ba, FLOOD);
	for (size_t i = 0; i < ARRAY_LEN(ends); i += 2) {
		assert_int_equal(ends[i + 1].bytes, FLOOD);
		assert_memory_equal(ends[i].hash, ends[i + 1].hash, SHA256_SIZE);
	}
	close_world(&world);
}

/* Who does not read stops who writes: what is on its way is bounded, and nothing spins. */
static void test_back_pressure(void **state)
{
	AUTO_FREE char *data = mem_alloc(1, 1 << 16);
	struct world world;
	size_t sent = 0, got = 0;
	ssize_t n = 1;

	(void)state;
	open_world(&world);
	while (n > 0 && sent < FLOOD) {
		while ((n = send(world.a, data, 1 << 16, MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
			sent += (size_t)n;
		settles(&world);
		n = send(world.a, data, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		sent += n > 0 ? 1 : 0;
	}
	assert_true(sent < FLOOD);
	clock_t cpu = clock();
	loop_add_timer(world.loop, clock_ms() + 100, stop_due, &world);
	assert_int_equal(loop_run(world.loop, NULL), 0);
	assert_true(clock() - cpu < CLOCKS_PER_SEC / 20);
	shutdown(world.a, SHUT_WR);
	shutdown(world.b, SHUT_WR);
	while (got < sent) {
		if ((n = recv(world.b, data, 1 << 16, MSG_DONTWAIT)) > 0)
			got += (size_t)n;
		else if (world.pump)
			settles(&world);
	}
	if (world.n_done == 0)
		runs(&world);
	assert_int_equal(world.bytes_ab, sent);
	close_world(&world);
}

/*
 * Ends
 */

static void check_half_close(bool from_a)
{
	struct world world;
	char c;

	open_world(&world);
	int first = from_a ? world.a : world.b, second = from_a ? world.b : world.a;
	says(first, "question");
	shutdown(first, SHUT_WR);
	settles(&world);
	hears(second, "question");
	assert_int_equal(recv(second, &c, 1, 0), 0);
	assert_int_equal(world.n_done, 0);
	says(second, "long answer");
	settles(&world);
	hears(first, "long answer");
	assert_int_equal(world.n_done, 0);
	close(second);
	runs(&world);
	assert_int_equal(recv(first, &c, 1, 0), 0);
	assert_int_equal(world.error, E_NONE);
	assert_int_equal(world.faulty, 0);
	assert_int_equal(world.bytes_ab, from_a ? 8 : 11);
	assert_int_equal(world.bytes_ba, from_a ? 11 : 8);
	*(from_a ? &world.b : &world.a) = dup(0);
	close_world(&world);
}

static void test_half_close(void **state)
{
	(void)state;
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
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct world world;
		open_world(&world);
		int *broken = i ? &world.b : &world.a, *other = i ? &world.a : &world.b;
		says(*broken, "half of");
		settles(&world);
		hears(*other, "half of");
		resets(*broken);
		*broken = dup(0);
		runs(&world);
		is_reset(*other);
		assert_int_equal(world.error, E_IO);
		assert_int_equal(world.faulty, i ? 'b' : 'a');
		assert_int_equal(i ? world.bytes_ba : world.bytes_ab, 7);
		close_world(&world);
	}
}

static void test_cancel(void **state)
{
	struct world world;

	(void)state;
	open_world(&world);
	pump_cancel(NULL);
	says(world.a, "x");
	settles(&world);
	pump_cancel(TAKE(world.pump));
	hears(world.b, "x");
	is_reset(world.a);
	is_reset(world.b);
	assert_int_equal(world.n_done, 0);
	close_world(&world);
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

	(void)err;
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
	(void)err;
	((struct fake *)stream)->was_shut = true;
	return 0;
}

static bool fake_pending(const struct stream *stream)
{
	return ((const struct fake *)stream)->n_in > 0;
}

static void fake_free(struct stream *stream)
{
	(void)stream;
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

static void start_fakes(struct world *world, struct fake *a, struct fake *b)
{
	*world = (struct world){.loop = loop_new(), .a = -1, .b = -1};
	a->stream = b->stream = (struct stream){.ops = &fake_ops, .fd = -1};
	buf_init(&a->out, 1000);
	buf_init(&b->out, 1000);
	start(world, &a->stream, &b->stream);
}

static void end_fakes(struct world *world, struct fake *a, struct fake *b)
{
	pump_cancel(world->pump);
	loop_free(world->loop);
	buf_done(&a->out);
	buf_done(&b->out);
}

static void test_streams_without_descriptor(void **state)
{
	struct fake a = {.in = "0123456789", .n_in = 10}, b = {0};
	struct world world;

	(void)state;
	start_fakes(&world, &a, &b);
	settles(&world);
	assert_int_equal(b.out.len, 0);
	/* What was read went together; each call of write takes four. */
	for (int i = 0; i < 3; i++) {
		b.can_write = true;
		pump_wake(world.pump);
		pump_wake(world.pump);
		settles(&world);
	}
	assert_string_equal(b.out.data, "0123456789");
	assert_false(b.was_shut);
	a.in_ended = true;
	pump_wake(world.pump);
	settles(&world);
	assert_true(b.was_shut);
	assert_false(a.was_shut);
	b.in_ended = true;
	pump_wake(world.pump);
	runs(&world);
	assert_true(a.was_shut);
	assert_false(a.was_reset || b.was_reset);
	assert_int_equal(world.bytes_ab, 10);
	end_fakes(&world, &a, &b);
}

/* A server that refuses the rest may have said why. */
static void test_last_words(void **state)
{
	struct fake a = {.in = "request", .n_in = 7}, b = {.write_fails = true};
	struct world world;

	(void)state;
	b.in = "no";
	b.n_in = 2;
	a.can_write = true;
	start_fakes(&world, &a, &b);
	runs(&world);
	assert_string_equal(a.out.data, "no");
	assert_true(a.was_reset && b.was_reset);
	assert_false(a.was_shut);
	assert_int_equal(world.error, E_HTTP_CLOSED);
	assert_int_equal(world.faulty, 'b');
	assert_int_equal(world.bytes_ab, 0);
	assert_int_equal(world.bytes_ba, 2);
	end_fakes(&world, &a, &b);
}

static void test_both_fail(void **state)
{
	struct fake a = {.in = "xyz", .n_in = 3, .write_fails = true};
	struct fake b = {.in = "uvw", .n_in = 3, .write_fails = true};
	struct world world;

	(void)state;
	start_fakes(&world, &a, &b);
	runs(&world);
	assert_int_equal(world.n_done, 1);
	assert_int_equal(world.error, E_HTTP_CLOSED);
	assert_true(a.was_reset && b.was_reset);
	end_fakes(&world, &a, &b);
}

/*
 * Many at once
 */

enum { N_PUMPS = 100 };

static void test_many(void **state)
{
	struct world worlds[N_PUMPS];
	struct loop *loop = loop_new();
	int pairs[N_PUMPS][4], n_done = 0;

	(void)state;
	for (int i = 0; i < N_PUMPS; i++) {
		worlds[i] = (struct world){.loop = loop};
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
