/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/clock.h"
#include "base/util/str.h"
#include "kube/portforward/podforward.h"
#include "tests/unit/spdyfix.h"

/*
 * A pod behind an API server, at the other end of a socket pair. What it does depends on the port.
 */

enum {
	PORT_ECHO = 7,
	PORT_REFUSE = 9,  /* as often as site.refusals says, then it echoes */
	PORT_SMALL = 13,  /* answers at once, and ends */
	PORT_BULK = 19,   /* sends site.bulk bytes */
	PORT_ERROR = 20,  /* sends a little, then an error */
	PORT_SILENT = 21, /* takes everything, says nothing */
	PORT_DRIP = 22,   /* sends site.drips bytes, one by one, and ends */
	PORT_HALF = 23,   /* sends a little and ends, its error stream does not */
	PORT_GONE = 66,   /* the whole tunnel ends */
	PORT_RST = 67,    /* the stream is reset */
	PORT_BAD = 68,    /* garbage */
	TUNNELS = 64,
	CLIENTS = 300,
	STREAMS = 4000,
	POLL_MS = 100,
	DRIP_MS = 20,
	PING_MS = 1500,
};

struct tunnel {
	struct site *site;
	int fd;
	struct loop_fd *source;
	struct spdy_unpacker *unpacker;
	struct spdy_packer *packer;
	struct buf in, out;
	int ports[STREAMS]; /* by id / 2 */
	size_t left;        /* of the bulk that is being sent */
	uint32_t bulk_id, drip_id;
	struct loop_timer *drip;
	bool dead, mute;
	size_t streams;
};

struct client {
	struct site *site;
	int fd;
	struct loop_fd *source;
	struct buf got, send;
	size_t sent;
	bool half_close, hold; /* hold: does not read */
	bool eof, reset, done;
	struct podforward_end end;
	char *error;
};

struct site {
	struct loop *loop;
	struct podforward *forward;
	struct tunnel tunnels[TUNNELS];
	size_t n_tunnels;
	struct client clients[CLIENTS];
	size_t n_clients;
	int refusals, resolved, dial_errors;
	size_t bulk, drips;
	bool no_pod, mute, is_gone, is_endless; /* endless: bulk has no end */
	int64_t drip_due_ms;
	bool stood_still; /* the whole process, so that a byte was late */
	int polls;
	struct buf said;
	bool (*wanted)(struct site *site);
	int64_t until_ms;
	bool timed_out;
	size_t seen_left;
	int64_t rest_ms;
	int rest_ticks;
	size_t n_unanswered; /* bytes for PORT_SILENT */
	struct loop_timer *watch;
};

static void serve_end(struct tunnel *tunnel, uint32_t data_id)
{
	fix_data(&tunnel->out, data_id - 2, "", 0, true);
	fix_data(&tunnel->out, data_id, "", 0, true);
}

static void serve_error(struct tunnel *tunnel, uint32_t data_id, const char *text)
{
	fix_data(&tunnel->out, data_id - 2, text, strlen(text), true);
	fix_data(&tunnel->out, data_id, "", 0, true);
}

static void kill_tunnel(struct tunnel *tunnel)
{
	loop_remove_fd(tunnel->site->loop, tunnel->source);
	tunnel->source = NULL;
	if (tunnel->fd >= 0)
		close(tunnel->fd);
	tunnel->fd = -1;
	tunnel->dead = true;
}

static int serve_drip(void *ctx, struct err *err)
{
	struct tunnel *tunnel = ctx;
	struct site *site = tunnel->site;

	tunnel->drip = NULL;
	if (site->drip_due_ms && clock_ms() - site->drip_due_ms > POLL_MS / 2)
		site->stood_still = true;
	if (tunnel->dead)
		return 0;
	if (site->drips > 0) {
		site->drips--;
		fix_data(&tunnel->out, tunnel->drip_id, "d", 1, false);
		site->drip_due_ms = clock_ms() + DRIP_MS;
		tunnel->drip = loop_add_timer(site->loop, site->drip_due_ms, serve_drip, tunnel);
	} else {
		serve_end(tunnel, tunnel->drip_id);
	}
	return 0;
}

static void serve_open(struct tunnel *tunnel, uint32_t id, int port)
{
	struct site *site = tunnel->site;

	switch (port) {
	case PORT_REFUSE:
		if (site->refusals-- > 0)
			serve_error(tunnel, id,
				"failed to execute portforward: dial tcp4 127.0.0.1:9: connect: "
				"connection refused");
		break;
	case PORT_SMALL:
		fix_data(&tunnel->out, id, "small", 5, false);
		serve_end(tunnel, id);
		break;
	case PORT_BULK:
		tunnel->left = site->bulk;
		tunnel->bulk_id = id;
		break;
	case PORT_DRIP:
		tunnel->drip_id = id;
		tunnel->drip = loop_add_timer(site->loop, 0, serve_drip, tunnel);
		break;
	case PORT_HALF:
		fix_data(&tunnel->out, id, "half", 4, true);
		break;
	case PORT_ERROR:
		fix_data(&tunnel->out, id, "begun", 5, false);
		serve_error(tunnel, id, "read tcp: \x1b[31mreset by peer");
		break;
	case PORT_GONE:
		kill_tunnel(tunnel);
		break;
	case PORT_RST:
		fix_words(&tunnel->out, FIX_RST, id, 2, 2);
		break;
	case PORT_BAD:
		buf_add(&tunnel->out, "\x80\7garbage.garbage", 18);
		break;
	default:
		break;
	}
}

static const char *field(const struct spdy_field *fields, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (str_eq(fields[i].name, name))
			return fields[i].value;
	return "";
}

static void serve_syn(struct tunnel *tunnel, const struct fix_frame *frame)
{
	const struct spdy_field *fields;
	size_t n;

	assert_int_equal(spdy_unpack(tunnel->unpacker, frame->payload + 10, frame->len - 10,
				 &fields, &n, NULL),
		0);
	int port = atoi(field(fields, n, "port"));
	bool is_error = str_eq(field(fields, n, "streamtype"), "error");
	assert_true(is_error || str_eq(field(fields, n, "streamtype"), "data"));
	assert_true(*field(fields, n, "requestid"));
	/* The error stream comes first, and nothing is sent on it. */
	assert_int_equal(frame->id % 4, is_error ? 1 : 3);
	assert_int_equal(frame->end, is_error);
	assert_true(frame->id / 2 < STREAMS);
	tunnel->ports[frame->id / 2] = port;
	fix_reply(&tunnel->out, tunnel->packer, frame->id, NULL, 0);
	tunnel->streams++;
	if (!is_error)
		serve_open(tunnel, frame->id, port);
}

static void serve_data(struct tunnel *tunnel, const struct fix_frame *frame)
{
	int port = tunnel->ports[frame->id / 2];

	if (port == PORT_SILENT)
		tunnel->site->n_unanswered += frame->len;
	if (port != PORT_ECHO && port != PORT_REFUSE)
		return;
	if (frame->len)
		fix_data(&tunnel->out, frame->id, frame->payload, frame->len, false);
	if (frame->end)
		serve_end(tunnel, frame->id);
}

static void serve_frames(struct tunnel *tunnel)
{
	struct fix_frame frame;
	size_t at = 0;

	while (!tunnel->dead && fix_frame(tunnel->in.data + at, tunnel->in.len - at, &frame)) {
		at += frame.size;
		if (!frame.control)
			serve_data(tunnel, &frame);
		else if (frame.type == FIX_SYN)
			serve_syn(tunnel, &frame);
		else if (frame.type == FIX_PING && !tunnel->mute)
			fix_words(&tunnel->out, FIX_PING, frame.id, 0, 1);
	}
	buf_consume(&tunnel->in, at);
}

static void serve_bulk(struct tunnel *tunnel)
{
	static const char zeros[32 << 10];

	while (tunnel->left && tunnel->out.len < 1 << 20) {
		size_t len = tunnel->left < sizeof(zeros) ? tunnel->left : sizeof(zeros);

		fix_data(&tunnel->out, tunnel->bulk_id, zeros, len, false);
		tunnel->left -= len;
		if (!tunnel->left && !tunnel->site->is_endless)
			serve_end(tunnel, tunnel->bulk_id);
	}
}

static short tunnel_prepare(void *ctx)
{
	struct tunnel *tunnel = ctx;

	serve_bulk(tunnel);
	return (short)(POLLIN | (tunnel->out.len ? POLLOUT : 0));
}

static int tunnel_dispatch(void *ctx, short revents, struct err *err)
{
	struct tunnel *tunnel = ctx;
	static char piece[256 << 10];
	ssize_t n = 0;

	if (revents & (POLLIN | POLLHUP)) {
		n = recv(tunnel->fd, piece, sizeof(piece), MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN)) {
			kill_tunnel(tunnel);
			return 0;
		}
		if (n > 0)
			buf_add(&tunnel->in, piece, (size_t)n);
		serve_frames(tunnel);
	}
	if (!tunnel->dead && tunnel->out.len && (revents & POLLOUT)) {
		n = send(
			tunnel->fd, tunnel->out.data, tunnel->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n > 0)
			buf_consume(&tunnel->out, (size_t)n);
	}
	return 0;
}

/*
 * The transport
 */

struct dial {
	struct site *site;
	struct loop_timer *timer;
	void (*done)(void *ctx, struct stream *stream, bool is_websocket, struct err *error);
	void *ctx;
};

static int on_dialled(void *ctx, struct err *err)
{
	static const struct loop_fd_ops ops = {tunnel_prepare, tunnel_dispatch};
	struct dial dial = *(struct dial *)ctx;
	struct site *site = dial.site;
	AUTO_ERR struct err error = {0};
	int fds[2];

	free(ctx);
	if (site->dial_errors-- > 0) {
		err_set(&error, E_KUBE_UNREACHABLE, "no cluster today");
		dial.done(dial.ctx, NULL, false, &error);
		return 0;
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	assert_true(site->n_tunnels < TUNNELS);
	struct tunnel *tunnel = &site->tunnels[site->n_tunnels++];
	*tunnel = (struct tunnel){.site = site, .fd = fds[1], .mute = site->mute};
	tunnel->unpacker = spdy_unpacker_new();
	tunnel->packer = spdy_packer_new();
	buf_init(&tunnel->in, 1 << 26);
	buf_init(&tunnel->out, 1 << 26);
	tunnel->source = loop_add_fd(site->loop, fds[1], &ops, tunnel);
	dial.done(dial.ctx, stream_from_fd(fds[0]), false, NULL);
	return 0;
}

static void *dial_begin(void *ctx, const char *kube_namespace, const char *pod,
	void (*done)(void *done_ctx, struct stream *stream, bool is_websocket, struct err *error),
	void *done_ctx)
{
	struct dial *dial = mem_alloc(1, sizeof(*dial));

	assert_string_equal(kube_namespace, "space");
	assert_true(str_starts(pod, "pod-"));
	*dial = (struct dial){.site = ctx, .done = done, .ctx = done_ctx};
	dial->timer = loop_add_timer(dial->site->loop, clock_ms() + 1, on_dialled, dial);
	return dial;
}

static void dial_cancel(void *ptr)
{
	struct dial *dial = ptr;

	loop_remove_timer(dial->site->loop, dial->timer);
	free(dial);
}

static void resolve(void *ctx, struct podforward *forward)
{
	struct site *site = ctx;
	AUTO_FREE char *pod = mem_printf("pod-%d", ++site->resolved);
	AUTO_ERR struct err error = {0};

	if (site->no_pod) {
		err_set(&error, E_RUN_ENDED, "the run has ended");
		podforward_no_pod(forward, &error, true);
		return;
	}
	podforward_pod(forward, "space", pod);
}

static void notice(void *ctx, const char *text)
{
	struct site *site = ctx;

	buf_addf(&site->said, "%s\n", text);
}

/*
 * Clients
 */

static short client_prepare(void *ctx)
{
	struct client *client = ctx;

	return (short)((!client->hold && !client->eof && !client->reset ? POLLIN : 0) |
		       (client->sent < client->send.len ? POLLOUT : 0));
}

static void client_write(struct client *client)
{
	ssize_t n = send(client->fd, client->send.data + client->sent,
		client->send.len - client->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (n > 0)
		client->sent += (size_t)n;
	else if (errno != EAGAIN)
		client->sent = client->send.len;
	if (client->sent == client->send.len && client->half_close)
		shutdown(client->fd, SHUT_WR);
}

static int client_dispatch(void *ctx, short revents, struct err *err)
{
	struct client *client = ctx;
	static char piece[64 << 10];

	if (revents & POLLOUT)
		client_write(client);
	if (client->hold || client->eof || client->reset)
		return 0;
	ssize_t n = recv(client->fd, piece, sizeof(piece), MSG_DONTWAIT);
	if (n > 0)
		buf_add(&client->got, piece, (size_t)n);
	else if (n == 0)
		client->eof = shutdown(client->fd, SHUT_WR) <= 0;
	else if (errno != EAGAIN)
		client->reset = true;
	return 0;
}

static int on_done(void *ctx, struct podforward_end *end, struct err *err)
{
	struct client *client = ctx;

	assert_false(client->done);
	client->done = true;
	client->end = *end;
	client->end.error = (struct err){0};
	client->error = mem_strdup(end->error.message);
	return 0;
}

static void tcp_pair(int fds[2])
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t len = sizeof(address);
	int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(server, (struct sockaddr *)&address, len), 0);
	assert_int_equal(listen(server, 1), 0);
	assert_int_equal(getsockname(server, (struct sockaddr *)&address, &len), 0);
	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fds[0], (struct sockaddr *)&address, len), 0);
	fds[1] = accept(server, NULL, NULL);
	assert_true(fds[1] >= 0);
	close(server);
}

static struct client *connect_to(struct site *site, uint16_t port, const void *data, size_t len)
{
	static const struct loop_fd_ops ops = {client_prepare, client_dispatch};
	struct client *client = &site->clients[site->n_clients++];
	int fds[2];

	assert_true(site->n_clients <= CLIENTS);
	tcp_pair(fds);
	*client = (struct client){.site = site, .fd = fds[0]};
	buf_init(&client->got, 1 << 26);
	buf_init(&client->send, 1 << 26);
	buf_add(&client->send, data, len);
	client->source = loop_add_fd(site->loop, fds[0], &ops, client);
	podforward_relay(site->forward, fds[1], port, on_done, client);
	return client;
}

/*
 * The test's own turns
 */

static int on_watch(void *ctx, struct err *err)
{
	struct site *site = ctx;

	site->watch = NULL;
	site->timed_out = clock_ms() > site->until_ms;
	if (site->wanted(site) || site->timed_out)
		loop_stop(site->loop);
	else
		site->watch = loop_add_timer(site->loop, clock_ms() + 2, on_watch, site);
	return 0;
}

static bool never(struct site *site)
{
	return false;
}

static void run_until(struct site *site, bool (*wanted)(struct site *site))
{
	site->wanted = wanted;
	site->until_ms = clock_ms() + 20000;
	site->watch = loop_add_timer(site->loop, 0, on_watch, site);
	assert_int_equal(loop_run(site->loop, NULL), 0);
	assert_false(site->timed_out);
}

static void run_for(struct site *site, int64_t ms)
{
	site->wanted = never;
	site->until_ms = clock_ms() + ms;
	site->watch = loop_add_timer(site->loop, 0, on_watch, site);
	assert_int_equal(loop_run(site->loop, NULL), 0);
	site->timed_out = false;
}

enum { REST_MS = 300, REST_TICKS = 100 };

/* A standstill of the whole process is no rest. */
static bool has_come_to_rest(struct site *site)
{
	int64_t now_ms = clock_ms();

	site->rest_ticks++;
	if (site->seen_left != site->tunnels[0].left) {
		site->seen_left = site->tunnels[0].left;
		site->rest_ms = now_ms;
		site->rest_ticks = 0;
	}
	return now_ms - site->rest_ms > REST_MS && site->rest_ticks >= REST_TICKS;
}

/* Until the sender of the bulk has been stopped for some time. */
static void run_to_rest(struct site *site)
{
	site->rest_ms = clock_ms();
	site->rest_ticks = 0;
	run_until(site, has_come_to_rest);
}

static bool all_done(struct site *site)
{
	for (size_t i = 0; i < site->n_clients; i++) {
		const struct client *client = &site->clients[i];

		if (!client->done || !(client->eof || client->reset))
			return false;
	}
	return true;
}

/* As long as it has ended the answer comes at once, else later. */
static int response_poll(void *ctx, struct err *err)
{
	struct site *site = ctx;

	podforward_polled(site->forward, "pod-1", false);
	return 0;
}

static void observe(void *ctx, struct podforward *forward, const char *pod)
{
	struct site *site = ctx;

	site->polls++;
	if (site->is_gone)
		podforward_polled(forward, pod, str_eq(pod, "pod-1"));
	else
		loop_add_timer(site->loop, 0, response_poll, site);
}

static int setup_with(void **state, int64_t hold_ms, int64_t ping_ms)
{
	struct site *site = mem_alloc(1, sizeof(*site));

	site->loop = loop_new();
	buf_init(&site->said, 1 << 20);
	site->forward = podforward_new(&(struct podforward_options){.loop = site->loop,
		.transport = {dial_begin, dial_cancel, site},
		.resolve = resolve,
		.poll = observe,
		.poll_ms = POLL_MS,
		.notice = notice,
		.ctx = site,
		.hold_ms = hold_ms,
		.ping_ms = ping_ms});
	*state = site;
	return 0;
}

static int setup(void **state)
{
	return setup_with(state, 0, 0);
}

static int setup_short_hold(void **state)
{
	return setup_with(state, 300, 0);
}

static int setup_ping(void **state)
{
	return setup_with(state, 0, PING_MS);
}

static int teardown(void **state)
{
	struct site *site = *state;

	podforward_free(site->forward);
	for (size_t i = 0; i < site->n_clients; i++) {
		struct client *client = &site->clients[i];

		loop_remove_fd(site->loop, client->source);
		close(client->fd);
		buf_done(&client->got);
		buf_done(&client->send);
		free(client->error);
	}
	for (size_t i = 0; i < site->n_tunnels; i++) {
		kill_tunnel(&site->tunnels[i]);
		spdy_packer_free(site->tunnels[i].packer);
		spdy_unpacker_free(site->tunnels[i].unpacker);
		buf_done(&site->tunnels[i].in);
		buf_done(&site->tunnels[i].out);
	}
	buf_done(&site->said);
	loop_free(site->loop);
	free(site);
	return 0;
}

static void expect_got(const struct client *client, const void *data, size_t len)
{
	assert_int_equal(client->got.len, len);
	assert_memory_equal(client->got.data, data, len);
}

/*
 * Tests
 */

static void test_echo(void **state)
{
	struct site *site = *state;
	struct client *client = connect_to(site, PORT_ECHO, "hello", 5);

	client->half_close = true;
	run_until(site, all_done);
	expect_got(client, "hello", 5);
	assert_true(client->eof);
	assert_null(client->error);
	assert_int_equal(client->end.bytes_up, 5);
	assert_int_equal(client->end.bytes_down, 5);
	assert_int_equal(site->resolved, 1);
	assert_int_equal(site->n_tunnels, 1);
	assert_string_equal(site->said.data, "");
}

static void test_megabytes(void **state)
{
	struct site *site = *state;
	static unsigned char big[8 << 20];

	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (unsigned char)(i * 2654435761u >> 13);
	struct client *client = connect_to(site, PORT_ECHO, big, sizeof(big));
	client->half_close = true;
	run_until(site, all_done);
	expect_got(client, big, sizeof(big));
	assert_true(client->eof);
}

static void test_server_ends(void **state)
{
	struct site *site = *state;
	struct client *client = connect_to(site, PORT_SMALL, "", 0);

	run_until(site, all_done);
	expect_got(client, "small", 5);
	assert_true(client->eof);
	assert_null(client->error);
}

static void test_many_at_once(void **state)
{
	struct site *site = *state;
	char text[200][32];

	for (int i = 0; i < 200; i++) {
		snprintf(text[i], sizeof(text[i]), "number %d", i);
		connect_to(site, PORT_ECHO, text[i], strlen(text[i]))->half_close = true;
	}
	run_until(site, all_done);
	for (int i = 0; i < 200; i++) {
		expect_got(&site->clients[i], text[i], strlen(text[i]));
		assert_true(site->clients[i].eof);
	}
	assert_int_equal(site->n_tunnels, 1);
}

static void test_late_port(void **state)
{
	struct site *site = *state;

	site->refusals = 3;
	struct client *client = connect_to(site, PORT_REFUSE, "again", 5);
	client->half_close = true;
	run_until(site, all_done);
	/* Once, though it was sent four times. */
	expect_got(client, "again", 5);
	assert_true(client->eof);
	assert_null(client->error);
	assert_int_equal(site->refusals, -1);
	assert_int_equal(site->n_tunnels, 1);
}

static void test_port_never_opens(void **state)
{
	struct site *site = *state;
	int64_t begun_ms = clock_ms();

	site->refusals = 1000;
	struct client *client = connect_to(site, PORT_REFUSE, "again", 5);
	run_until(site, all_done);
	assert_true(clock_ms() - begun_ms >= 300);
	assert_true(client->reset);
	assert_string_equal(client->error, "nothing listens on port 9 of pod pod-1");
	assert_string_equal(site->said.data,
		"a connection to port 9 ended: nothing listens on port 9 of pod pod-1\n");
}

static void test_error_stream(void **state)
{
	struct site *site = *state;
	struct client *client = connect_to(site, PORT_ERROR, "x", 1);
	struct client *other = connect_to(site, PORT_ECHO, "y", 1);

	other->half_close = true;
	run_until(site, all_done);
	/* What came before it is passed on, but it is no orderly end. */
	assert_true(client->reset);
	assert_string_equal(client->error, "read tcp: \\x1b[31mreset by peer");
	assert_true(other->eof);
}

static void test_stream_reset(void **state)
{
	struct site *site = *state;
	struct client *client = connect_to(site, PORT_RST, "x", 1);
	struct client *other = connect_to(site, PORT_ECHO, "y", 1);

	other->half_close = true;
	run_until(site, all_done);
	assert_true(client->reset);
	assert_non_null(client->error);
	assert_true(other->eof);
	assert_int_equal(site->n_tunnels, 1);
}

static void test_client_goes_away(void **state)
{
	struct site *site = *state;
	const struct linger linger = {.l_onoff = 1};
	struct client *client = connect_to(site, PORT_SILENT, "x", 1);

	run_for(site, 50);
	setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	loop_remove_fd(site->loop, client->source);
	client->source = NULL;
	close(client->fd);
	client->fd = -1;
	client->eof = true;
	run_until(site, all_done);
	assert_null(client->error);
	connect_to(site, PORT_SMALL, "", 0);
	run_until(site, all_done);
	assert_int_equal(site->n_tunnels, 1);
}

static bool first_has_data(struct site *site)
{
	return site->clients[0].got.len > 0;
}

static bool has_two_tunnels(struct site *site)
{
	return site->n_tunnels == 2;
}

static void test_tunnel_lost(void **state)
{
	struct site *site = *state;
	struct client *client = connect_to(site, PORT_ECHO, "in flight", 9);

	run_until(site, first_has_data);
	struct client *idle = connect_to(site, PORT_SILENT, "", 0);
	run_for(site, 20);
	kill_tunnel(&site->tunnels[0]);
	run_until(site, has_two_tunnels);
	run_for(site, 100);
	assert_true(client->reset);
	assert_non_null(client->error);
	/* It had sent nothing, so it goes on over the next tunnel. */
	assert_false(idle->done);
	assert_false(idle->eof || idle->reset);
	assert_true(site->n_tunnels >= 2);
	idle->done = idle->eof = true;
	struct client *after = connect_to(site, PORT_SMALL, "", 0);
	run_until(site, all_done);
	assert_true(after->eof);
	assert_true(site->resolved >= 2);
	assert_non_null(strstr(site->said.data, "the connection to pod pod-1 was lost"));
	assert_non_null(strstr(site->said.data, "connected again, to pod pod-"));
}

static bool has_polled(struct site *site)
{
	return site->polls > 0;
}

/* It is asked for, with growing pauses, while an answer is waited for. */
static void test_pod_lives(void **state)
{
	struct site *site = *state;

	connect_to(site, PORT_SILENT, "x", 1);
	run_until(site, has_polled);
	run_for(site, 7 * POLL_MS);
	assert_in_range(site->polls, 1, 4);
	assert_false(site->clients[0].done);
	assert_int_equal(site->n_tunnels, 1);
}

static bool has_been_requested(struct site *site)
{
	return site->n_unanswered > 0;
}

/* Not before what was sent is there: else it would be sent to the next one. */
static void lose_pod(struct site *site)
{
	run_until(site, has_been_requested);
	site->is_gone = true;
}

/* Nobody tells those who wait, nor those who have an answer and might get more. */
static void test_pod_ends_without_its_tunnel(void **state)
{
	struct site *site = *state;
	struct client *answered = connect_to(site, PORT_ECHO, "x", 1);

	run_until(site, first_has_data);
	run_for(site, 4 * POLL_MS);
	assert_false(answered->done);
	struct client *requested = connect_to(site, PORT_SILENT, "y", 1);
	lose_pod(site);
	run_until(site, all_done);
	assert_true(answered->reset && requested->reset);
	assert_string_equal(requested->error, "pod pod-1 has ended");
	assert_string_equal(answered->error, "pod pod-1 has ended");
	expect_got(answered, "x", 1);
	/* Those that come later go to the next one. */
	struct client *after = connect_to(site, PORT_SMALL, "", 0);
	run_until(site, all_done);
	assert_true(after->eof);
	expect_got(after, "small", 5);
	assert_int_equal(site->n_tunnels, 2);
	assert_int_equal(site->resolved, 2);
}

/* What has sent nothing goes on there. */
static void test_idle_ones_move(void **state)
{
	struct site *site = *state;
	struct client *idle = connect_to(site, PORT_SILENT, "", 0);

	site->is_gone = true;
	run_until(site, has_two_tunnels);
	run_for(site, 2 * POLL_MS);
	assert_false(idle->done);
	assert_int_equal(site->n_tunnels, 2);
}

static bool first_is_done(struct site *site)
{
	return site->clients[0].done;
}

/* false: the machine gave no turn for so long that nothing came. */
static bool bytes_come(struct site *site)
{
	struct client *requested = connect_to(site, PORT_SILENT, "y", 1);
	struct client *dripped = connect_to(site, PORT_DRIP, "", 0);

	site->drips = SIZE_MAX;
	lose_pod(site);
	run_until(site, first_is_done);
	assert_string_equal(requested->error, "pod pod-1 has ended");
	run_for(site, 4 * POLL_MS);
	bool was_done = dripped->done;
	site->drips = 3;
	size_t got = dripped->got.len;
	run_until(site, all_done);
	if (site->stood_still)
		return false;
	assert_false(was_done);
	assert_true(dripped->eof && !dripped->error);
	assert_in_range(dripped->got.len, got + 3, got + 4 + 1000 / DRIP_MS);
	return true;
}

/* What still comes is waited for, however long, and ends as it should. */
static void test_pod_gone_while_bytes_come(void **state)
{
	while (!bytes_come(*state)) {
		teardown(state);
		setup(state);
	}
}

/* Its end had come: no reset, which could cost what is not read yet. */
static void test_pod_gone_behind_an_end(void **state)
{
	struct site *site = *state;
	struct client *requested = connect_to(site, PORT_SILENT, "y", 1);
	struct client *half = connect_to(site, PORT_HALF, "", 0);

	half->hold = true;
	lose_pod(site);
	run_until(site, first_is_done);
	assert_string_equal(requested->error, "pod pod-1 has ended");
	run_for(site, 4 * POLL_MS);
	half->hold = false;
	run_until(site, all_done);
	assert_true(half->eof && !half->error);
	expect_got(half, "half", 4);
}

static int chatter(void *ctx, struct err *err)
{
	struct client *client = ctx;

	if (client->done)
		return 0;
	buf_addc(&client->send, 'c');
	loop_add_timer(client->site->loop, clock_ms() + DRIP_MS, chatter, client);
	return 0;
}

/* Who goes on sending hears of it, too. */
static void test_pod_gone_while_bytes_are_sent(void **state)
{
	struct site *site = *state;
	struct client *client = connect_to(site, PORT_SILENT, "", 0);

	chatter(client, NULL);
	lose_pod(site);
	run_until(site, all_done);
	assert_string_equal(client->error, "pod pod-1 has ended");
}

static bool other_tunnel_is_used(struct site *site)
{
	for (size_t i = 1; i < site->n_tunnels; i++)
		if (site->tunnels[i].streams == 2)
			return true;
	return false;
}

/* One that has sent nothing does not wait for another's reader. */
static void test_idle_ones_move_past_a_slow_reader(void **state)
{
	struct site *site = *state;
	struct client *idle = connect_to(site, PORT_SILENT, "", 0);

	site->bulk = 64 << 20;
	connect_to(site, PORT_BULK, "", 0)->hold = true;
	run_to_rest(site);
	assert_int_equal(site->tunnels[0].streams, 4);
	site->is_gone = true;
	run_until(site, other_tunnel_is_used);
	assert_false(idle->done);
}

static bool second_has_all(struct site *site)
{
	return site->clients[1].got.len == site->bulk;
}

/* A slow reader gets all that had come, and hears of the end then. */
static void test_pod_gone_before_a_slow_reader(void **state)
{
	struct site *site = *state;
	struct client *requested = connect_to(site, PORT_SILENT, "y", 1);
	struct client *slow = connect_to(site, PORT_BULK, "", 0);

	site->bulk = 24 << 20;
	site->is_endless = slow->hold = true;
	lose_pod(site);
	run_for(site, 6 * POLL_MS);
	assert_false(slow->done);
	slow->hold = false;
	run_until(site, second_has_all);
	run_until(site, all_done);
	assert_true(slow->reset && requested->reset);
	assert_string_equal(slow->error, "pod pod-1 has ended");
	assert_string_equal(requested->error, "pod pod-1 has ended");
}

/* Whose only effect is that the tunnel ends. */
static void test_killer(void **state)
{
	struct site *site = *state;
	struct client *client = connect_to(site, PORT_GONE, "", 0);

	run_until(site, all_done);
	assert_true(client->reset);
	assert_true(site->n_tunnels <= 4);
}

static void test_hostile_server(void **state)
{
	struct site *site = *state;
	struct client *client = connect_to(site, PORT_BAD, "x", 1);

	run_until(site, all_done);
	assert_true(client->reset);
	assert_non_null(strstr(client->error, "SPDY"));
	connect_to(site, PORT_SMALL, "", 0);
	run_until(site, all_done);
	assert_true(site->n_tunnels >= 2);
}

static void test_dial_again(void **state)
{
	struct site *site = *state;

	site->dial_errors = 3;
	struct client *client = connect_to(site, PORT_SMALL, "", 0);
	run_until(site, all_done);
	assert_true(client->eof);
	/* Each time the pod is asked for again. */
	assert_int_equal(site->resolved, 4);
}

static void test_no_pod(void **state)
{
	struct site *site = *state;

	site->no_pod = true;
	struct client *client = connect_to(site, PORT_SMALL, "", 0);
	run_until(site, all_done);
	assert_true(client->reset);
	assert_string_equal(client->error, "the run has ended");
}

/* A reader that does not read holds up nobody else, and what waits for it is bounded. */
static void test_slow_reader(void **state)
{
	struct site *site = *state;

	site->bulk = 64 << 20;
	struct client *bulk = connect_to(site, PORT_BULK, "", 0);
	bulk->hold = true;
	run_to_rest(site);
	size_t left = site->tunnels[0].left;
	int64_t soonest_ms = INT64_MAX;
	/* The sender was stopped: sockets and buffers hold some, but not all. */
	assert_true(left > 40 << 20);
	for (int i = 0; i < 5; i++) {
		int64_t begun_ms = clock_ms();
		struct client *small = connect_to(site, PORT_SMALL, "", 0);

		bulk->done = bulk->eof = true;
		run_until(site, all_done);
		bulk->done = bulk->eof = false;
		assert_true(small->eof);
		if (clock_ms() - begun_ms < soonest_ms)
			soonest_ms = clock_ms() - begun_ms;
	}
	/* Each may be late on a busy machine, but not all of them. */
	assert_true(soonest_ms < 500);
	assert_int_equal(site->tunnels[0].streams, 2);
	assert_int_equal(site->n_tunnels, 2);
	assert_int_equal(site->tunnels[0].left, left);
	bulk->hold = false;
	run_until(site, all_done);
	assert_int_equal(bulk->got.len, site->bulk);
	assert_true(bulk->eof);
}

enum { LONG_RESPONSE = 300 << 10 };

static bool is_answered(struct site *site)
{
	return site->clients[1].got.len == LONG_RESPONSE;
}

/* Nor one that shares the tunnel with it: the answer is fetched from behind what nobody reads. */
static void test_slow_reader_beside(void **state)
{
	struct site *site = *state;

	site->bulk = 64 << 20;
	struct client *bulk = connect_to(site, PORT_BULK, "", 0);
	struct client *echo = connect_to(site, PORT_ECHO, "", 0);
	struct client *silent = connect_to(site, PORT_SILENT, "", 0);
	AUTO_FREE char *words = mem_alloc(1, LONG_RESPONSE);
	bulk->hold = true;
	run_to_rest(site);
	assert_true(site->tunnels[0].left > 40 << 20);
	buf_add(&echo->send, words, LONG_RESPONSE);
	run_until(site, is_answered);
	assert_int_equal(site->tunnels[0].streams, 2 * 3);
	/* Nobody answers: there is an end to what is kept. */
	buf_add(&silent->send, "x", 1);
	run_to_rest(site);
	assert_true(site->tunnels[0].left > 10 << 20);
	silent->done = silent->eof = echo->done = echo->eof = true;
	bulk->hold = false;
	run_until(site, all_done);
	assert_int_equal(bulk->got.len, site->bulk);
}

/* One that moves much is left alone, too. */
static void test_bulk_apart(void **state)
{
	struct site *site = *state;

	site->bulk = 32 << 20;
	struct client *bulk = connect_to(site, PORT_BULK, "", 0);
	run_until(site, all_done);
	assert_int_equal(bulk->got.len, site->bulk);
	/* The spare one was made while it moved. */
	assert_int_equal(site->n_tunnels, 2);
}

static void test_all_busy(void **state)
{
	struct site *site = *state;

	site->bulk = 16 << 20;
	while (site->n_tunnels < PODFORWARD_TUNNELS_MAX) {
		connect_to(site, PORT_BULK, "", 0)->hold = true;
		run_for(site, 60);
	}
	for (int i = 0; i < 5; i++)
		connect_to(site, PORT_BULK, "", 0)->hold = true;
	run_for(site, 200);
	/* There are no more; the last ones share. */
	assert_int_equal(site->n_tunnels, PODFORWARD_TUNNELS_MAX);
}

static void test_ping(void **state)
{
	struct site *site = *state;

	connect_to(site, PORT_SMALL, "", 0);
	run_until(site, all_done);
	run_for(site, 2 * PING_MS);
	/* It answers, so it lives. */
	assert_int_equal(site->n_tunnels, 1);
	assert_false(site->tunnels[0].dead);
	site->tunnels[0].mute = true;
	run_until(site, has_two_tunnels);
	assert_true(site->tunnels[0].dead);
}

static void test_cancel(void **state)
{
	struct site *site = *state;
	int fds[2];
	char byte;

	tcp_pair(fds);
	struct podforward_conn *conn =
		podforward_relay(site->forward, fds[1], PORT_SILENT, on_done, NULL);
	run_for(site, 20);
	podforward_cancel(conn);
	podforward_cancel(NULL);
	run_for(site, 20);
	assert_int_equal(recv(fds[0], &byte, 1, 0), -1);
	assert_int_equal(errno, ECONNRESET);
	close(fds[0]);
}

static void test_free_in_flight(void **state)
{
	struct site *site = *state;

	site->bulk = 8 << 20;
	connect_to(site, PORT_BULK, "", 0);
	connect_to(site, PORT_ECHO, "x", 1);
	run_for(site, 3);
	connect_to(site, PORT_ECHO, "y", 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_echo, setup, teardown),
		cmocka_unit_test_setup_teardown(test_megabytes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_server_ends, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_late_port, setup, teardown),
		cmocka_unit_test_setup_teardown(test_port_never_opens, setup_short_hold, teardown),
		cmocka_unit_test_setup_teardown(test_error_stream, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stream_reset, setup, teardown),
		cmocka_unit_test_setup_teardown(test_client_goes_away, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tunnel_lost, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pod_lives, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pod_ends_without_its_tunnel, setup, teardown),
		cmocka_unit_test_setup_teardown(test_idle_ones_move, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pod_gone_while_bytes_come, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_pod_gone_while_bytes_are_sent, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_idle_ones_move_past_a_slow_reader, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pod_gone_behind_an_end, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_pod_gone_before_a_slow_reader, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killer, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hostile_server, setup, teardown),
		cmocka_unit_test_setup_teardown(test_dial_again, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_pod, setup, teardown),
		cmocka_unit_test_setup_teardown(test_slow_reader, setup, teardown),
		cmocka_unit_test_setup_teardown(test_slow_reader_beside, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bulk_apart, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_busy, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ping, setup_ping, teardown),
		cmocka_unit_test_setup_teardown(test_cancel, setup, teardown),
		cmocka_unit_test_setup_teardown(test_free_in_flight, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
