/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "net/websocket/upgrade.h"
#include "tests/unit/httpclient.h"
#include "tests/unit/httpfix.h"
#include "tests/unit/tmpfix.h"

/*
 * Upgrades, and what became of them
 */

struct upgraded {
	struct upgrade_request request;
	struct upgrade *upgrade;
	int n_done, status;
	struct strv headers;
	char *body;
	char *url;
	enum err_id error;
	bool is_transient;
	char *message;
	struct stream *stream;
};

static int note(void *ctx, struct stream *stream, struct http_response *response, struct err *err)
{
	struct upgraded *up = ctx;

	up->n_done++;
	up->upgrade = NULL;
	up->stream = stream;
	up->status = response->status;
	up->is_transient = response->is_transient;
	strv_copy(&up->headers, &response->headers);
	up->body = mem_strdup(response->body.data);
	up->url = url_text(&response->url);
	up->error = response->error.id;
	up->message = mem_strdup(response->error.message);
	return 0;
}

static void upgraded_done(struct upgraded *up)
{
	stream_free(up->stream);
	strv_done(&up->headers);
	free(up->body);
	free(up->url);
	free(up->message);
	*up = (struct upgraded){0};
}

static void start(struct client *client, const char *text, struct upgraded *up)
{
	AUTO_URL struct url url = {0};

	assert_int_equal(url_parse(text, "the URL", &url, NULL), 0);
	up->request.url = &url;
	up->request.done = note;
	up->request.ctx = up;
	if (!up->request.method)
		up->request.method = "GET";
	if (!up->request.protocol)
		up->request.protocol = "echo/1";
	up->upgrade = upgrade_start(client->http, &up->request);
	up->request.url = NULL;
}

static void upgrade_to(struct client *client, uint16_t port, struct upgraded *up)
{
	AUTO_FREE char *url = mem_printf("http://localhost:%u/up?q=1", port);

	start(client, url, up);
	client_run(client);
	assert_int_equal(up->n_done, 1);
}

static void is_error(const struct upgraded *up, enum err_id id, const char *end)
{
	if (up->error != id || !str_ends(up->message, end))
		print_error("%s (status %d)\n", up->message ? up->message : "no fault", up->status);
	assert_int_equal(up->error, id);
	assert_true(str_ends(up->message, end));
	assert_int_equal(up->status, 0);
	assert_null(up->stream);
}

/*
 * Servers
 */

#define SWITCH                                                                                     \
	"HTTP/1.1 101 Switching Protocols\r\nConnection: keep-alive, Upgrade\r\n"                  \
	"Upgrade: ECHO/1\r\nX-A: b\r\n\r\n"

static void echo(struct fix_conn *conn)
{
	char data[65536];
	ssize_t n;

	while ((n = fix_recv(conn, data, sizeof(data))) > 0 && fix_send(conn, data, (size_t)n))
		;
}

static bool response_echo(struct fix_conn *conn)
{
	if (fix_print(conn, SWITCH))
		echo(conn);
	return false;
}

static bool response_early(struct fix_conn *conn)
{
	if (fix_print(conn,
		    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" SWITCH
		    "early bytes;"))
		echo(conn);
	return false;
}

/* Byte for byte. */
static bool response_slowly(struct fix_conn *conn)
{
	for (const char *at = SWITCH "slow;"; *at; at++)
		if (!fix_send(conn, at, 1))
			return false;
	echo(conn);
	return false;
}

/* What a test says the server answers, and closes. */
static const char *said;

static bool response_said(struct fix_conn *conn)
{
	fix_print(conn, said);
	shutdown(conn->fd, SHUT_WR);
	fix_wait_end(conn);
	return false;
}

static bool response_said_and_waits(struct fix_conn *conn)
{
	fix_print(conn, said);
	fix_wait_end(conn);
	return false;
}

static bool response_endless(struct fix_conn *conn)
{
	if (!fix_print(conn, said))
		return false;
	while (fix_print(conn, "X-Filler: 0123456789012345678901234567890123456789\r\n"))
		;
	return false;
}

/*
 * Streams
 */

static ssize_t read_once(struct stream *stream, char *out, size_t len, struct err *err)
{
	ssize_t n;

	while ((n = stream->ops->read(stream, out, len, err)) == STREAM_AGAIN) {
		struct pollfd pollfd = {
			.fd = stream->fd, .events = stream->ops->events(stream, true, false)};
		assert_int_equal(poll(&pollfd, 1, 20000), 1);
	}
	return n;
}

static void reads(struct stream *stream, const char *text)
{
	size_t len = strlen(text);
	char data[256];

	for (size_t at = 0; at < len;) {
		ssize_t n = read_once(stream, data, sizeof(data), NULL);
		assert_true(n > 0 && (size_t)n <= len - at);
		assert_memory_equal(data, text + at, (size_t)n);
		at += (size_t)n;
	}
}

static void writes(struct stream *stream, const char *text)
{
	assert_int_equal(stream->ops->write(stream, text, strlen(text), NULL), strlen(text));
}

static char byte_at(size_t i)
{
	return (char)((i * 2654435761U) >> 13);
}

struct flood {
	size_t size, sent, got;
	size_t piece; /* of a write */
	char *data;
};

/* The bytes lie elsewhere each time. */
static void flood_send(struct stream *stream, struct flood *flood)
{
	size_t len = flood->size - flood->sent;
	AUTO_ERR struct err err = {0};

	if (len > flood->piece)
		len = flood->piece;
	char *copy = mem_alloc(1, len);
	for (size_t i = 0; i < len; i++)
		copy[i] = byte_at(flood->sent + i);
	ssize_t n = stream->ops->write(stream, copy, len, &err);
	free(copy);
	assert_true(n > 0 || n == STREAM_AGAIN);
	flood->sent += n > 0 ? (size_t)n : 0;
}

static void flood_read(struct stream *stream, struct flood *flood)
{
	AUTO_ERR struct err err = {0};
	ssize_t n;

	while ((n = stream->ops->read(stream, flood->data, 100000, &err)) > 0)
		for (ssize_t i = 0; i < n; i++)
			if (flood->data[i] != byte_at(flood->got++))
				fail_msg("byte %zu", flood->got - 1);
	assert_int_equal(n, STREAM_AGAIN);
}

/* More than all buffers on the way hold, both ways at once. */
static void floods(struct stream *stream, size_t size, size_t piece)
{
	struct flood flood = {.size = size, .piece = piece, .data = mem_alloc(1, 100000)};

	while (flood.got < size) {
		struct pollfd pollfd = {.fd = stream->fd,
			.events = stream->ops->events(stream, true, flood.sent < size)};
		if (flood.sent < size)
			flood_send(stream, &flood);
		flood_read(stream, &flood);
		if (flood.got < size)
			assert_int_equal(poll(&pollfd, 1, 20000), 1);
	}
	free(flood.data);
}

/*
 * Plain
 */

static void test_echo(void **state)
{
	struct fix_server *server = fix_start(response_echo);
	AUTO_STRV struct strv headers = {0};
	struct upgraded up = {.request = {.headers = &headers, .authorization = "Bearer t0k"}};
	struct client client;
	char data[8];

	strv_add(&headers, "X-Stream-Protocol-Version: v4");
	client_init(&client);
	upgrade_to(&client, server->port, &up);
	assert_int_equal(up.error, E_NONE);
	assert_int_equal(up.status, 101);
	assert_string_equal(field_find(&up.headers, "x-a"), "b");
	AUTO_FREE char *head = mem_printf("GET /up?q=1 HTTP/1.1\r\nHost: localhost:%u\r\n"
					  "User-Agent: dlrun/test\r\nConnection: Upgrade\r\n"
					  "Upgrade: echo/1\r\nAuthorization: Bearer t0k\r\n"
					  "X-Stream-Protocol-Version: v4\r\n",
		server->port);
	assert_string_equal(server->heads.v[0], head);
	AUTO_FREE char *event = mem_printf("GET http://localhost:%u/up 101 0 0", server->port);
	assert_int_equal(client.events.n, 1);
	assert_string_equal(client.events.v[0], event);
	/* It needs nothing of the client any more. */
	client_done(&client);
	writes(up.stream, "hello");
	reads(up.stream, "hello");
	floods(up.stream, 8 << 20, 70000);
	assert_int_equal(up.stream->ops->shutdown(up.stream, NULL), 0);
	assert_int_equal(read_once(up.stream, data, sizeof(data), NULL), 0);
	upgraded_done(&up);
	fix_stop(server);
}

static void test_early_and_slow(void **state)
{
	static const struct {
		fix_response_fn *response;
		const char *early;
	} rows[] = {{response_early, "early bytes;"}, {response_slowly, "slow;"}};
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct fix_server *server = fix_start(rows[i].response);
		struct upgraded up = {.request.method = "POST"};
		upgrade_to(&client, server->port, &up);
		assert_int_equal(up.status, 101);
		assert_true(str_ends(server->heads.v[0], "Content-Length: 0\r\n"));
		assert_true(up.stream->ops->pending(up.stream));
		reads(up.stream, rows[i].early);
		writes(up.stream, "x");
		reads(up.stream, "x");
		upgraded_done(&up);
		fix_stop(server);
	}
	client_done(&client);
}

/*
 * Other answers
 */

static void test_responses(void **state)
{
	static const struct {
		const char *said;
		int status;
		const char *body;
	} rows[] = {
		{"HTTP/1.1 401 Unauthorized\r\nContent-Length: 6\r\n\r\nsecretBEHIND", 401,
			"secret"},
		{"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\nBEHIND", 400, ""},
		{"HTTP/1.1 403 \r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nno", 403, "no"},
		{"HTTP/1.0 404 Not Found\r\n\r\nto the end", 404, "to the end"},
		{"HTTP/1.1 500\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nfour\r\n2\r\n56\r\n0\r\n\r\n",
			500, "four56"},
		{"HTTP/1.1 204 None\r\n\r\nBEHIND", 204, ""},
		{"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 1\r\n\r\n.", 302, "."},
		{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n.", 200,
			"."},
	};
	struct fix_server *server = fix_start(response_said);
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct upgraded up = {0};
		said = rows[i].said;
		upgrade_to(&client, server->port, &up);
		assert_int_equal(up.error, E_NONE);
		assert_int_equal(up.status, rows[i].status);
		assert_string_equal(up.body, rows[i].body);
		assert_null(up.stream);
		upgraded_done(&up);
	}
	client_done(&client);
	fix_stop(server);
}

static const struct {
	const char *said;
	enum err_id id;
	const char *end;
} bad_responses[] = {
	{"", E_HTTP_CLOSED, "without an answer"},
	{"HTTP/1.1 10", E_HTTP_CLOSED, "in the middle of an answer"},
	{"HTTP/1.1 101 x\r\nUpgrade: echo/1\r\n", E_HTTP_CLOSED, "in the middle of an answer"},
	{"HTTP/1.1 400 x\r\nContent-Length: 9\r\n\r\nshort", E_HTTP_CLOSED,
		"in the middle of an answer"},
	{"HTTP/1.1 400 x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nshort", E_HTTP_CLOSED,
		"in the middle of an answer"},
	{"SSH-2.0-OpenSSH\r\n", E_HTTP_PROTOCOL, "does not answer as HTTP/1 does"},
	{"HTTP/2 101 x\r\n\r\n", E_HTTP_PROTOCOL, "does not answer as HTTP/1 does"},
	{"HTTP/1.1 1x1 x\r\n\r\n", E_HTTP_PROTOCOL, "answers without a status"},
	{"HTTP/1.1 1011 x\r\n\r\n", E_HTTP_PROTOCOL, "a status that makes no sense"},
	{"HTTP/1.1 042 x\r\n\r\n", E_HTTP_PROTOCOL, "a status that makes no sense"},
	{"HTTP/1.1 101 x\n\n", E_HTTP_PROTOCOL, "ends a line of its headers as HTTP does not"},
	{"HTTP/1.1 200 x\r\nA: b\r\n c\r\n\r\n", E_HTTP_PROTOCOL, "sends a header that is none"},
	{"HTTP/1.1 200 x\r\nA : b\r\n\r\n", E_HTTP_PROTOCOL, "sends a header that is none"},
	{"HTTP/1.1 200 x\r\nno colon\r\n\r\n", E_HTTP_PROTOCOL, "sends a header that is none"},
	{"HTTP/1.1 200 x\r\nA: b\rc\r\n\r\n", E_HTTP_PROTOCOL,
		"sends a control character in a header"},
	{"HTTP/1.1 200 x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", E_HTTP_PROTOCOL,
		"gives two lengths of one answer"},
	{"HTTP/1.1 200 x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		E_HTTP_PROTOCOL, "gives two lengths of one answer"},
	{"HTTP/1.1 200 x\r\nContent-Length: -1\r\n\r\n", E_HTTP_PROTOCOL,
		"gives a length that is not a number"},
	{"HTTP/1.1 200 x\r\nTransfer-Encoding: gzip\r\n\r\n", E_HTTP_PROTOCOL,
		"encodes an answer in a way that is unknown"},
	{"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", E_HTTP_PROTOCOL,
		"sends a broken chunk of an answer"},
	{"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", E_HTTP_PROTOCOL,
		"sends a broken chunk of an answer"},
	{"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: echo/12\r\n\r\n", E_HTTP_PROTOCOL,
		"changes to another protocol than echo/1"},
	{"HTTP/1.1 101 x\r\nConnection: close\r\nUpgrade: echo/1\r\n\r\n", E_HTTP_PROTOCOL,
		"changes to another protocol than echo/1"},
};

static void test_bad_responses(void **state)
{
	struct fix_server *server = fix_start(response_said);
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(bad_responses); i++) {
		struct upgraded up = {0};
		said = bad_responses[i].said;
		upgrade_to(&client, server->port, &up);
		is_error(&up, bad_responses[i].id, bad_responses[i].end);
		assert_int_equal(up.is_transient, bad_responses[i].id == E_HTTP_CLOSED);
		upgraded_done(&up);
	}
	client_done(&client);
	fix_stop(server);
}

static void test_limits(void **state)
{
	static const char *const starts[] = {"HTTP/1.1 101 x\r\n", "HTTP/1.1 200 x\r\nA: ", ""};
	struct fix_server *server = fix_start(response_endless);
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
		struct upgraded up = {0};
		said = starts[i];
		upgrade_to(&client, server->port, &up);
		if (*said)
			is_error(&up, E_HTTP_LIMIT, "sends more than 64 KiB of headers");
		else
			is_error(&up, E_HTTP_PROTOCOL, "does not answer as HTTP/1 does");
		upgraded_done(&up);
	}
	/* A body without an end is cut. */
	struct upgraded up = {0};
	said = "HTTP/1.1 200 OK\r\n\r\n";
	upgrade_to(&client, server->port, &up);
	assert_int_equal(up.status, 200);
	assert_int_equal(strlen(up.body), HTTP_ERROR_BODY_MAX);
	upgraded_done(&up);
	client_done(&client);
	fix_stop(server);
}

/* Within a time that is enough for a connection, which depends on how busy the machine is. */
static void waits_in_vain(struct client *client, uint16_t port, const char *head)
{
	said = head;
	for (int64_t limit_ms = 100;; limit_ms *= 4) {
		struct upgraded up = {.request.deadline_ms = clock_ms() + limit_ms};
		upgrade_to(client, port, &up);
		bool is_connected =
			up.error != E_HTTP_TIMEOUT || !str_starts(up.message, "no connection to ");
		if (is_connected || limit_ms >= 6400)
			is_error(&up, E_HTTP_TIMEOUT, " has not answered within the time for it");
		upgraded_done(&up);
		if (is_connected)
			return;
	}
}

static void test_no_response(void **state)
{
	static const char *const heads[] = {"", "HTTP/1.1 101 x\r\n"};
	struct fix_server *server = fix_start(response_said_and_waits);
	struct upgraded refused = {0}, unknown = {0}, bad = {0};
	AUTO_STRV struct strv headers = {0};
	struct client client;
	uint16_t closed = fix_closed_port();

	strv_add(&headers, "A: b\r\nC: d");
	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(heads); i++)
		waits_in_vain(&client, server->port, heads[i]);
	upgrade_to(&client, closed, &refused);
	assert_int_equal(refused.error, E_HTTP_CONNECT);
	start(&client, "http://no-such-host.invalid/", &unknown);
	client_run(&client);
	assert_int_equal(unknown.error, E_HTTP_RESOLVE);
	bad.request.headers = &headers;
	upgrade_to(&client, server->port, &bad);
	assert_int_equal(bad.error, E_HTTP_PROTOCOL);
	upgraded_done(&refused);
	upgraded_done(&unknown);
	upgraded_done(&bad);
	client_done(&client);
	fix_stop(server);
}

static int cancel_due(void *ctx, struct err *err)
{
	struct upgraded *up = ctx;

	upgrade_cancel(TAKE(up->upgrade));
	return 0;
}

static void test_cancel(void **state)
{
	struct fix_server *server = fix_start(response_said_and_waits);
	struct upgraded at_once = {0}, later = {0};
	struct client client;

	said = "HTTP/1.1 101 x\r\n";
	client_init(&client);
	AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u/", server->port);
	start(&client, url, &at_once);
	upgrade_cancel(at_once.upgrade);
	upgrade_cancel(NULL);
	start(&client, url, &later);
	loop_add_timer(client.loop, clock_ms() + 100, cancel_due, &later);
	client_run(&client);
	assert_int_equal(at_once.n_done + later.n_done, 0);
	client_done(&client);
	fix_stop(server);
}

/* Says one thing, and is gone with a reset when it has heard another. */
static bool response_reset(struct fix_conn *conn)
{
	char c;

	if (fix_print(conn, SWITCH "x") && fix_recv(conn, &c, 1) == 1)
		fix_reset(conn);
	return false;
}

static void test_reset(void **state)
{
	struct fix_server *server = fix_start(response_reset);
	struct upgraded up = {0};
	AUTO_ERR struct err err = {0};
	struct client client;
	char data[8];

	client_init(&client);
	upgrade_to(&client, server->port, &up);
	reads(up.stream, "x");
	writes(up.stream, "y");
	assert_int_equal(read_once(up.stream, data, sizeof(data), &err), -ERR_NET);
	assert_int_equal(err.id, E_HTTP_CLOSED);
	upgraded_done(&up);
	client_done(&client);
	fix_stop(server);
}

/*
 * TLS, by programs that may be missing: then these tests are left out
 */

static const char make_certificate[] =
	"exec >log 2>&1; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
	"-keyout key.pem -out cert.pem -subj /CN=x -addext subjectAltName=DNS:up.test -days 2";

/* TLS before a port, as long as its input. */
static const char tls_relay[] =
	"import os, select, socket, ssl, sys, threading\n"
	"def copy(a, b):\n"
	"	try:\n"
	"		while True:\n"
	"			data = a.recv(65536)\n"
	"			if not data: break\n"
	"			b.sendall(data)\n"
	"	except OSError: pass\n"
	"	try: b.shutdown(socket.SHUT_WR)\n"
	"	except OSError: pass\n"
	"def serve(raw):\n"
	"	try: tls = context.wrap_socket(raw, server_side=True)\n"
	"	except OSError: return\n"
	"	plain = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
	"	threading.Thread(target=copy, args=(tls, plain), daemon=True).start()\n"
	"	copy(plain, tls)\n"
	"context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
	"context.load_cert_chain('cert.pem', 'key.pem')\n"
	"server = socket.create_server(('127.0.0.1', 0))\n"
	"print(server.getsockname()[1], flush=True)\n"
	"def accept():\n"
	"	while True: threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()\n"
	"threading.Thread(target=accept, daemon=True).start()\n"
	"sys.stdin.read()\n"
	"os._exit(0)\n";

struct relay {
	pid_t pid;
	int in;
	uint16_t port;
	char *ca;
};

static bool start_relay(uint16_t port, struct relay *relay)
{
	AUTO_FREE char *command = mem_printf("cd %s && %s", tmp, make_certificate);
	AUTO_FREE char *cert = mem_printf("%s/cert.pem", tmp);
	AUTO_FREE char *port_text = mem_printf("%u", port);
	AUTO_BUF struct buf ca = {0};
	int in[2], out[2];

	if (system(command) != 0)
		return false;
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	relay->pid = fork();
	if (relay->pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		if (chdir(tmp) == 0)
			execlp("python3", "python3", "-c", tls_relay, port_text, NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	relay->in = in[1];
	FILE *ports = fdopen(out[0], "r");
	bool is_ok = fscanf(ports, "%hu", &relay->port) == 1;
	fclose(ports);
	assert_int_equal(fs_read(cert, 1 << 20, &ca, NULL, NULL), 0);
	relay->ca = buf_take(&ca);
	return is_ok;
}

static void stop_relay(struct relay *relay)
{
	if (relay->pid > 0) {
		close(relay->in);
		waitpid(relay->pid, NULL, 0);
	}
	free(relay->ca);
}

static void test_tls(void **state)
{
	struct fix_server *server = fix_start(response_early);
	struct relay relay = {0};
	struct upgraded up = {0}, wrong = {0};
	struct client client;

	if (start_relay(server->port, &relay)) {
		const struct http_tls tls = {.ca_pem = relay.ca, .server_name = "up.test"};
		const struct http_tls unnamed = {.ca_pem = relay.ca};
		AUTO_FREE char *url = mem_printf("https://localhost:%u/up", relay.port);
		AUTO_FREE char *host = mem_printf("\r\nHost: localhost:%u\r\n", relay.port);
		client_init(&client);
		up.request.tls = &tls;
		start(&client, url, &up);
		wrong.request.tls = &unnamed;
		start(&client, url, &wrong);
		client_run(&client);
		assert_int_equal(up.status, 101);
		assert_non_null(strstr(server->heads.v[0], host));
		reads(up.stream, "early bytes;");
		floods(up.stream, 8 << 20, 70000);
		is_error(&wrong, E_HTTP_TLS, " names other hosts");
		upgraded_done(&up);
		upgraded_done(&wrong);
		client_done(&client);
	}
	stop_relay(&relay);
	fix_stop(server);
}

/*
 * Proxies
 */

static uint16_t proxied_port;

static int connect_to(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static void join(struct fix_conn *conn, int fd)
{
	struct pollfd fds[] = {{.fd = conn->fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
	char data[65536];
	ssize_t n = 1;

	while (n > 0 && poll(fds, 2, -1) > 0)
		for (int i = 0; i < 2 && n > 0; i++)
			if (fds[i].revents && (n = recv(fds[i].fd, data, sizeof(data), 0)) > 0)
				n = send(fds[!i].fd, data, (size_t)n, MSG_NOSIGNAL);
}

/* Also for http, or the proxy would read the other protocol as HTTP. */
static bool proxy_tunnels(struct fix_conn *conn)
{
	if (!str_eq(conn->method, "CONNECT"))
		return fix_print(conn, "HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n");
	AUTO_FD int fd = connect_to(proxied_port);
	if (fix_print(conn, "HTTP/1.1 200 Established\r\n\r\n"))
		join(conn, fd);
	return false;
}

static bool proxy_queries(struct fix_conn *conn)
{
	fix_print(conn,
		"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n");
	return false;
}

static bool socks_handshake(struct fix_conn *conn)
{
	unsigned char data[512];

	if (recv(conn->fd, data, 2, MSG_WAITALL) != 2 ||
		recv(conn->fd, data, data[1], MSG_WAITALL) <= 0 || !fix_send(conn, "\5\0", 2) ||
		recv(conn->fd, data, 5, MSG_WAITALL) != 5 || data[3] != 3)
		return false;
	if (recv(conn->fd, data, (size_t)data[4] + 2, MSG_WAITALL) <= 0)
		return false;
	return fix_send(conn, "\5\0\0\1\0\0\0\0\0\0", 10);
}

static void test_proxies(void **state)
{
	struct fix_server *server = fix_start(response_early), *proxy = fix_start(proxy_tunnels);
	struct fix_server *queries = fix_start(proxy_queries), *socks = fix_start(response_early);
	struct client client;

	proxied_port = server->port;
	socks->handshake = socks_handshake;
	AUTO_FREE char *http = mem_printf("http://user:s3cret@127.0.0.1:%u", proxy->port);
	AUTO_FREE char *querying = mem_printf("http://127.0.0.1:%u", queries->port);
	AUTO_FREE char *by_socks = mem_printf("socks5h://127.0.0.1:%u", socks->port);
	const char *const urls[] = {http, by_socks};
	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
		struct upgraded up = {.request.proxy = urls[i]};
		start(&client, "http://up.test/x", &up);
		client_run(&client);
		assert_int_equal(up.error, E_NONE);
		assert_int_equal(up.status, 101);
		reads(up.stream, "early bytes;");
		floods(up.stream, 1 << 20, 70000);
		upgraded_done(&up);
	}
	assert_true(str_starts(proxy->heads.v[0], "CONNECT up.test:80 HTTP/1.1\r\n"));
	assert_non_null(strstr(proxy->heads.v[0], "Proxy-Authorization: Basic dXNlcjpzM2NyZXQ="));
	assert_null(strstr(server->heads.v[0], "Proxy-"));
	struct upgraded refused = {.request.proxy = querying};
	start(&client, "http://up.test/x", &refused);
	client_run(&client);
	is_error(&refused, E_HTTP_PROXY, " asks for a user name and password");
	upgraded_done(&refused);
	client_done(&client);
	fix_stop(server);
	fix_stop(proxy);
	fix_stop(queries);
	fix_stop(socks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_echo),
		cmocka_unit_test(test_early_and_slow),
		cmocka_unit_test(test_responses),
		cmocka_unit_test(test_bad_responses),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_no_response),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_reset),
		cmocka_unit_test(test_tls),
		cmocka_unit_test(test_proxies),
	};

	return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
