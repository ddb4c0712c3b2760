/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/os/os.h"
#include "net/httpd/httpd_impl.h"
#include "tests/unit/httpdfix.h"

#define H   "Host: @\r\n"
#define GET "GET / HTTP/1.1\r\n" H

static size_t count(const char *text, const char *part)
{
	size_t n = 0;

	for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
		n++;
	return n;
}

static bool has(const struct peer *peer, const char *part)
{
	return strstr(peer->got.data, part) != NULL;
}

/* And nothing else. */
static void hears(struct peer *peer, const char *text)
{
	RUN_UNTIL(peer->runtime, peer->got.len >= strlen(text));
	assert_string_equal(peer->got.data, text);
	buf_reset(&peer->got);
}

static void hears_part(struct peer *peer, const char *part)
{
	RUN_UNTIL(peer->runtime, has(peer, part) || peer->ended);
	if (!has(peer, part))
		fail_msg("no \"%s\" in: %s", part, peer->got.data);
}

static int settle_once(void *ctx, struct err *err)
{
	((struct runtime *)ctx)->is_settled = true;
	loop_stop(((struct runtime *)ctx)->loop);
	return 0;
}

/* Rounds of the loop until it has nothing to do at once. */
static void settle(struct runtime *runtime)
{
	runtime->is_settled = false;
	loop_add_timer(runtime->loop, clock_ms() + 2, settle_once, runtime);
	while (!runtime->is_settled)
		assert_int_equal(loop_run(runtime->loop, NULL), 0);
}

/*
 * Answers of its own
 */

static void test_response(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	hears_part(client, "\r\n\r\nhello");
	assert_true(str_starts(client->got.data, "HTTP/1.1 200 OK\r\nDate: "));
	assert_true(has(client, "\r\nContent-Length: 5\r\nConnection: keep-alive\r\n"));
	assert_true(has(client, "\r\nX-Content-Type-Options: nosniff\r\n"));
	assert_true(has(client, "\r\nReferrer-Policy: no-referrer\r\n"));
	buf_reset(&client->got);
	says(client, "HEAD /a?b HTTP/1.1\r\n" H "\r\n" GET "Connection: close\r\n\r\n");
	RUN_UNTIL(&runtime, client->ended);
	assert_int_equal(count(client->got.data, "Content-Length: 5\r\n"), 2);
	assert_int_equal(count(client->got.data, "hello"), 1);
	assert_int_equal(runtime.seen.n, 3);
	AUTO_FREE char *seen = mem_printf("HEAD localhost:%u /a?b", httpd_port(runtime.httpd));
	assert_string_equal(runtime.seen.v[1], seen);
	runtime_close(&runtime);
}

static void test_pipeline(void **state)
{
	AUTO_BUF struct buf out = {0};
	struct runtime runtime;

	runtime_open(&runtime);
	buf_init(&out, PEER_MAX);
	struct peer *client = client_new(&runtime);
	for (int i = 0; i < 500; i++)
		buf_addf(&out, "GET /%d HTTP/1.1\r\n" H "\r\n", i);
	says(client, out.data);
	RUN_UNTIL(&runtime, count(client->got.data, "hello") == 500);
	assert_int_equal(runtime.seen.n, 500);
	for (int i = 0; i < 500; i++) {
		AUTO_FREE char *end = mem_printf(" /%d", i);
		assert_true(str_ends(runtime.seen.v[i], end));
	}
	runtime_close(&runtime);
}

/* Each byte by itself, and the rest of it cut off behind each. */
static void test_pieces(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	AUTO_FREE char *text = mem_printf("POST /a HTTP/1.1\r\nHost: localhost:%u\r\n"
					  "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		httpd_port(runtime.httpd));
	size_t len = strlen(text);
	for (size_t i = 1; i <= len; i++) {
		runtime.n_peers = 0;
		struct peer *client = client_new(&runtime);
		assert_int_equal(send(client->fd, text, i, 0), i);
		settle(&runtime);
		assert_true(i == len || !has(client, "100"));
		shutdown(client->fd, SHUT_WR);
		RUN_UNTIL(&runtime, client->ended);
		assert_false(client->was_reset);
		peer_close(client);
	}
	struct peer *client = client_new(&runtime);
	for (size_t i = 0; i < len; i++) {
		assert_int_equal(send(client->fd, text + i, 1, 0), 1);
		settle(&runtime);
	}
	hears_part(client, "hello");
	runtime_close(&runtime);
}

/*
 * Answers bit by bit
 */

static void test_bit_by_bit(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_nothing;
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.exchange);
	httpd_begin(runtime.exchange, 200, NULL, -1);
	assert_true(httpd_write(runtime.exchange, "abc", 3));
	hears_part(
		client, "Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n3\r\nabc\r\n");
	assert_true(httpd_write(runtime.exchange, "", 0));
	assert_true(httpd_write(runtime.exchange, "de", 2));
	httpd_end(TAKE(runtime.exchange), false);
	hears_part(client, "abc\r\n2\r\nde\r\n0\r\n\r\n");
	buf_reset(&client->got);
	/* More than was said is not sent, and nothing after it. */
	says(client, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.exchange);
	httpd_begin(runtime.exchange, 200, NULL, 4);
	httpd_write(runtime.exchange, "abcdef", 6);
	httpd_end(TAKE(runtime.exchange), false);
	RUN_UNTIL(&runtime, client->ended);
	assert_true(str_ends(client->got.data, "\r\n\r\nabcd"));
	assert_int_equal(runtime.n_gone, 0);
	runtime_close(&runtime);
}

static void test_cut_responses(void **state)
{
	static const struct {
		const char *version;
		int64_t length;
		bool cut, is_reset;
	} rows[] = {{"1.1", -1, true, false}, {"1.1", 9, false, false}, {"1.1", 9, true, false},
		{"1.0", -1, true, true}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct runtime runtime;
		runtime_open(&runtime);
		runtime.query = query_nothing;
		struct peer *client = client_new(&runtime);
		AUTO_FREE char *text = mem_printf("GET / HTTP/%s\r\n" H "\r\n", rows[i].version);
		says(client, text);
		RUN_UNTIL(&runtime, runtime.exchange);
		httpd_begin(runtime.exchange, 200, NULL, rows[i].length);
		httpd_write(runtime.exchange, "abc", 3);
		hears_part(client, "abc");
		httpd_end(TAKE(runtime.exchange), rows[i].cut);
		RUN_UNTIL(&runtime, client->ended);
		assert_false(has(client, "\r\n0\r\n"));
		assert_int_equal(client->was_reset, rows[i].is_reset);
		runtime_close(&runtime);
	}
}

static void on_writable(void *ctx)
{
	struct runtime *runtime = ctx;

	runtime->n_writable++;
	loop_stop(runtime->loop);
}

static void test_writable(void **state)
{
	enum { PIECES = 32 };
	AUTO_FREE char *piece = mem_alloc(HTTPD_PENDING, 1);
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_nothing;
	struct peer *client = client_new(&runtime);
	client->is_paused = client->is_flooded = true;
	says(client, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.exchange);
	httpd_on_writable(runtime.exchange, on_writable, &runtime);
	httpd_begin(runtime.exchange, 200, NULL, (int64_t)PIECES * HTTPD_PENDING);
	size_t written = 0;
	int n_writable = -1;
	/* Until nothing moves. */
	for (; written < PIECES && n_writable < runtime.n_writable; written++) {
		n_writable = runtime.n_writable;
		if (httpd_write(runtime.exchange, piece, HTTPD_PENDING))
			n_writable--;
		settles(&runtime);
	}
	assert_true(written < PIECES);
	n_writable = runtime.n_writable;
	client->is_paused = false;
	RUN_UNTIL(&runtime, runtime.n_writable > n_writable);
	for (; written < PIECES; written++)
		httpd_write(runtime.exchange, piece, HTTPD_PENDING);
	httpd_end(TAKE(runtime.exchange), false);
	RUN_UNTIL(&runtime, client->n_got > PIECES * (uint64_t)HTTPD_PENDING);
	runtime_close(&runtime);
}

static void test_gone(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_nothing;
	struct peer *a = client_new(&runtime), *b = client_new(&runtime), *c = client_new(&runtime),
		    *d = client_new(&runtime);
	says(a, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.exchange);
	peer_close(a);
	RUN_UNTIL(&runtime, runtime.n_gone == 1);
	says(b, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.exchange);
	httpd_begin(runtime.exchange, 200, NULL, -1);
	httpd_write(runtime.exchange, "a", 1);
	hears_part(b, "a\r\n");
	peer_close(b);
	RUN_UNTIL(&runtime, runtime.n_gone == 2);
	/* One that has sent much more than is read ahead. */
	AUTO_FREE char *much = mem_alloc(HTTPD_HEAD_MAX + 1000, 1);
	memset(much, 'x', HTTPD_HEAD_MAX + 999);
	says(d, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.exchange);
	says(d, much);
	settles(&runtime);
	peer_close(d);
#ifdef POLLRDHUP
	RUN_UNTIL(&runtime, runtime.n_gone == 3);
#endif
	/* The server is freed while a client waits: no gone. */
	int n_gone = runtime.n_gone;
	says(c, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.seen.n == 4);
	runtime_close(&runtime);
	assert_int_equal(runtime.n_gone, n_gone);
}

/*
 * Who is refused
 */

static const struct {
	const char *text;
	int status;
} refused[] = {
	{"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
	{"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 403},
	{"GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n", 403},
	{"GET / HTTP/1.1\r\nHost: \r\n\r\n", 403},
	{"GET / HTTP/1.1\r\n\r\n", 400},
	{"GET http://evil.example/ HTTP/1.1\r\n" H "\r\n", 400},
	{"CONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", 403},
	{"CONNECT 192.168.0.1:80 HTTP/1.0\r\n\r\n", 403},
	{GET "Sec-Fetch-Site: cross-site\r\n\r\n", 403},
	{GET "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\r\n", 403},
	{GET "Origin: http://evil.example\r\n\r\n", 403},
	{GET "Origin: null\r\n\r\n", 403},
	{"POST / HTTP/1.1\r\n" H "Origin: http://evil.example\r\n\r\n", 403},
	{"POST / HTTP/1.1\r\n" H "Origin: https://@\r\nContent-Length: 3\r\n\r\nabc", 403},
	{GET "Connection: Upgrade\r\nUpgrade: websocket\r\nOrigin: http://evil.example\r\n\r\n",
		403},
	{"POST / HTTP/1.1\r\n" H "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
	{"POST / HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n", 501},
	{"TRACE / HTTP/1.1\r\n" H "\r\n", 405},
	{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
	{"GET / HTTP/1.1\n", 400},
	{"\x16\x03\x01", 400},
};

static void test_refused(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		struct runtime runtime;
		runtime_open(&runtime);
		struct peer *client = client_new(&runtime);
		says(client, refused[i].text);
		AUTO_FREE char *line = mem_printf("HTTP/1.1 %d ", refused[i].status);
		hears_part(client, "</p>");
		if (!str_starts(client->got.data, line))
			fail_msg("%s: %s", refused[i].text, client->got.data);
		assert_true(has(client, "\r\nContent-Security-Policy: default-src 'none'"));
		assert_true(has(client, "\r\nX-Content-Type-Options: nosniff\r\n"));
		assert_false(has(client, "hello"));
		runtime_close(&runtime);
	}
}

/* What stands behind a request that is refused is no request. */
static void test_refused_as_a_whole(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	struct peer *client = client_new(&runtime);
	says(client,
		"POST / HTTP/1.1\r\n" H "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
		"0\r\n\r\nGET /admin HTTP/1.1\r\n" H "\r\n");
	RUN_UNTIL(&runtime, client->ended);
	assert_int_equal(runtime.seen.n, 0);
	assert_int_equal(count(client->got.data, "HTTP/1.1 "), 1);
	assert_true(has(client, "\r\nConnection: close\r\n"));
	runtime_close(&runtime);
}

static void test_refuse_page(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_nothing;
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.exchange);
	httpd_refuse(TAKE(runtime.exchange), 404, "no <run> \"a&b'\x1b[m\xff", "dlrun\nps");
	hears_part(client, "<p>no &lt;run&gt; &quot;a&amp;b&#39;?[m?</p>\n<p>dlrun<br>ps</p>\n");
	assert_true(str_starts(client->got.data, "HTTP/1.1 404 Not Found\r\n"));
	runtime_close(&runtime);
}

static void test_other_user(void **state)
{
	struct runtime runtime;
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fds[2];

	if (geteuid() != 0) {
		print_message("not root: the connection of another user is not tried\n");
		skip();
	}
	runtime_open(&runtime);
	address.sin_port = htons(httpd_port(runtime.httpd));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		static const char text[] = "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n";
		char data[64];
		if (setuid(54321) < 0)
			_exit(1);
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
			_exit(2);
		(void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
		_exit(recv(fd, data, sizeof(data), 0) > 0 ? 3 : 0);
	}
	close(fds[1]);
	struct peer *child = &runtime.programs[0];
	peer_open(&runtime, child, fds[0]);
	RUN_UNTIL(&runtime, child->ended);
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	uid_t uid;
	struct peer *client = client_new(&runtime);
	settle(&runtime);
	if (os_peer_uid(client->fd, &uid) >= 0) {
		assert_int_equal(status, 0);
		assert_int_equal(runtime.notices.n, 1);
		assert_non_null(
			strstr(runtime.notices.v[0], "another user of this machine (54321)"));
	}
	runtime_close(&runtime);
}

/* Where the system tells whose connections are, one that it does not tell of is refused: here
 * because there is no descriptor left to ask with. */
static void test_unknown_peer(void **state)
{
	struct runtime runtime;
	struct rlimit limit, few;

	if (!httpd_peers_are_known()) {
		print_message("the system does not tell whose connections are\n");
		skip();
	}
	runtime_open(&runtime);
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	int next = dup(client->fd);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	few = (struct rlimit){.rlim_cur = (rlim_t)next + 1, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	RUN_UNTIL(&runtime, client->ended);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(client->got.len, 0);
	assert_int_equal(runtime.seen.n, 0);
	assert_int_equal(runtime.notices.n, 1);
	assert_non_null(strstr(runtime.notices.v[0], "the system does not tell whose it is"));
	says(client = client_new(&runtime), GET "\r\n");
	hears_part(client, "\r\n\r\nhello");
	runtime_close(&runtime);
}

/*
 * The token, where the system does not tell whose connections are
 */

static void open_with_token(struct runtime *runtime)
{
	if (httpd_peers_are_known()) {
		print_message("the system tells whose connections are: there is no token\n");
		skip();
	}
	runtime_open_with(runtime, false);
	assert_non_null(httpd_token(runtime->httpd));
}

/* A new client says that, TOKEN being the token and COOKIE what a browser sends of it. */
static struct peer *client_says(struct runtime *runtime, const char *text)
{
	struct peer *client = client_new(runtime);
	char of_host[HTTPD_TOKEN_SIZE];
	AUTO_BUF struct buf out;

	buf_init(&out, PEER_MAX);
	httpd_token_of(httpd_token(runtime->httpd), "localhost", of_host);
	while (*text) {
		if (str_starts(text, "TOKEN"))
			buf_adds(&out, httpd_token(runtime->httpd));
		else if (str_starts(text, "COOKIE"))
			buf_addf(&out, "Cookie: a=b; dlrun-token-%u=%s\r\n",
				httpd_port(runtime->httpd), of_host);
		else
			buf_addc(&out, *text);
		text += str_starts(text, "TOKEN") ? 5 : str_starts(text, "COOKIE") ? 6 : 1;
	}
	says(client, out.data);
	return client;
}

#define TO_WEBSOCKET "Connection: Upgrade\r\nUpgrade: websocket\r\n"

static void test_no_token(void **state)
{
	static const struct {
		const char *text, *response;
	} rows[] = {
		{GET "\r\n", "HTTP/1.1 403 "},
		{"POST / HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\nx", "HTTP/1.1 403 "},
		{"GET /?dlrun_token=0123456789abcdef0123456789abcdef HTTP/1.1\r\n" H "\r\n",
			"HTTP/1.1 403 "},
		{GET TO_WEBSOCKET "\r\n", "HTTP/1.1 403 "},
		/* A WebSocket does not follow to where it would be led. */
		{"GET /?dlrun_token=TOKEN HTTP/1.1\r\n" H TO_WEBSOCKET "\r\n", "HTTP/1.1 403 "},
		{"GET http://@/ HTTP/1.1\r\n" H "\r\n", "HTTP/1.1 407 "},
		{"CONNECT a.localhost:80 HTTP/1.1\r\nHost: a.localhost:80\r\n\r\n",
			"\r\nProxy-Authenticate: Basic realm=\"dlrun\"\r\n"},
		{"CONNECT a.localhost:80 HTTP/1.1\r\nHost: a.localhost:80\r\n"
		 "Proxy-Authorization: Basic eDp5\r\n\r\n",
			"HTTP/1.1 407 "},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct runtime runtime;

		open_with_token(&runtime);
		struct peer *client = client_says(&runtime, rows[i].text);
		hears_part(client, rows[i].response);
		RUN_UNTIL(&runtime, client->ended);
		assert_true(has(client, " needs a token"));
		assert_int_equal(runtime.seen.n, 0);
		runtime_close(&runtime);
	}
}

static void test_token_leads_on(void **state)
{
	static const char *const first[] = {"GET //evil.example/?a&dlrun_token=TOKEN&b HTTP/1.1",
		"POST //evil.example/?a&b&dlrun_token=TOKEN HTTP/1.1",
		"GET //evil.example/?a&b&dlrun_token=old HTTP/1.1\r\nCOOKIEX: y"};
	struct runtime runtime;

	open_with_token(&runtime);
	for (size_t i = 0; i < ARRAY_LEN(first); i++) {
		AUTO_FREE char *text = mem_printf("%s\r\n" H "\r\n", first[i]);
		struct peer *client = client_says(&runtime, text);
		AUTO_FREE char *location =
			mem_printf("\r\nLocation: http://localhost:%u//evil.example/?a&b\r\n",
				httpd_port(runtime.httpd));

		hears_part(client, "\r\n\r\n");
		assert_true(str_starts(client->got.data, "HTTP/1.1 307 "));
		assert_true(has(client, location));
		assert_true(has(client, "\r\nCache-Control: no-store\r\n"));
		assert_true(has(client, "\r\nReferrer-Policy: origin\r\n"));
		assert_true(has(client, "; Path=/; HttpOnly; SameSite=Lax\r\n"));
		assert_false(has(client, httpd_token(runtime.httpd)));
	}
	assert_int_equal(runtime.seen.n, 0);
	says(client_says(&runtime, GET "COOKIE"), "\r\n");
	hears_part(&runtime.peers[ARRAY_LEN(first)], "\r\n\r\nhello");
	assert_int_equal(runtime.seen.n, 1);
	runtime_close(&runtime);
}

static void test_token_is_not_passed_on(void **state)
{
	struct runtime runtime;

	open_with_token(&runtime);
	runtime.query = query_relay;
	client_says(&runtime, "GET /ws?dlrun_token=TOKEN HTTP/1.1\r\n" H TO_WEBSOCKET "COOKIE\r\n");
	RUN_UNTIL(&runtime, runtime.n_programs > 0 && has(&runtime.programs[0], "\r\n\r\n"));
	const struct peer *program = &runtime.programs[0];
	assert_true(str_starts(program->got.data, "GET /ws HTTP/1.1\r\n"));
	assert_true(has(program, "\r\ncookie: a=b\r\n"));
	assert_false(has(program, "oken"));
	runtime_close(&runtime);
}

/*
 * Carried requests
 */

static struct peer *program_of(struct runtime *runtime, size_t at, const char *part)
{
	RUN_UNTIL(runtime, runtime->n_programs > at && has(&runtime->programs[at], part));
	return &runtime->programs[at];
}

#define OK2 "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok"

static void test_keep_alive(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	for (int i = 0; i < 3; i++) {
		says(client, GET "\r\n");
		struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
		buf_reset(&program->got);
		says(program, "HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok");
		hears(client, OK2);
	}
	assert_int_equal(runtime.n_programs, 1);
	assert_int_equal(runtime.n_freed, 3);
	/* Another program. */
	runtime.key = "other";
	says(client, GET "\r\n");
	says(program_of(&runtime, 1, "\r\n\r\n"), "HTTP/1.1 204 No\r\n\r\n");
	hears(client, "HTTP/1.1 204 No Content\r\nconnection: keep-alive\r\n\r\n");
	RUN_UNTIL(&runtime, runtime.programs[0].ended);
	runtime_close(&runtime);
}

/* As TensorBoard answers: the browser's connection stays. */
static void test_program_closes(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	for (size_t i = 0; i < 4; i++) {
		says(client, GET "\r\n");
		struct peer *program = program_of(&runtime, i, "\r\n\r\n");
		says(program,
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
		peer_close(program);
		hears(client, OK2);
	}
	runtime_close(&runtime);
}

static void test_pipelined_relay(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client, "POST /1 HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc"
		     "GET /2 HTTP/1.1\r\n" H "\r\n");
	struct peer *program = program_of(&runtime, 0, "\r\n\r\nabc");
	assert_false(has(program, "/2"));
	says(program, "HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok");
	RUN_UNTIL(&runtime, has(program, "GET /2"));
	hears(client, OK2);
	says(program, "HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok");
	hears(client, OK2);
	runtime_close(&runtime);
}

static void test_what_goes_on(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	runtime.strip = "/secret";
	struct peer *client = client_new(&runtime);
	says(client, "GET /secret/a?b HTTP/1.1\r\n" H "Connection: keep-alive\r\nKeep-Alive: 5\r\n"
		     "Cookie: c\r\nOrigin: http://@\r\n\r\n");
	struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
	AUTO_FREE char *head =
		mem_printf("GET /a?b HTTP/1.1\r\nhost: localhost:%u\r\ncookie: c\r\n"
			   "origin: http://localhost:%u\r\nconnection: keep-alive\r\n\r\n",
			httpd_port(runtime.httpd), httpd_port(runtime.httpd));
	assert_string_equal(program->got.data, head);
	runtime_close(&runtime);
}

static void test_origin_of_route(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *a = client_new(&runtime), *b = client_new(&runtime);
	says(a, GET "Origin: http://a.localhost:1\r\n\r\n");
	hears_part(a, "HTTP/1.1 403 ");
	assert_int_equal(runtime.n_programs, 0);
	runtime.any_origin = true;
	says(b, GET "Origin: http://a.localhost:1\r\n\r\n");
	program_of(&runtime, 0, "origin: http://a.localhost:1\r\n");
	runtime_close(&runtime);
	assert_int_equal(runtime.n_freed, 2);
}

/*
 * Bodies
 */

enum { FLOOD = 64 << 20 };

static void check_flood(const struct peer *peer)
{
	assert_int_equal(peer->n_wrong, 0);
	assert_int_equal(peer->n_got, FLOOD);
}

static void test_large_request(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	AUTO_FREE char *head =
		mem_printf("PUT / HTTP/1.1\r\n" H "Content-Length: %d\r\n\r\n", FLOOD);
	says(client, head);
	struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
	program->is_flooded = true;
	client->to_send = FLOOD;
	RUN_UNTIL(&runtime, program->n_got == FLOOD);
	check_flood(program);
	says(program, "HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok");
	hears(client, OK2);
	runtime_close(&runtime);
}

/* With its length, and up to the end of the connection: then it comes in chunks, or for HTTP/1.0 as
 * it is. */
static void test_large_response(void **state)
{
	static const char *const versions[] = {"1.1", "1.0"};

	for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
		struct runtime runtime;
		runtime_open(&runtime);
		runtime.query = query_relay;
		struct peer *client = client_new(&runtime);
		AUTO_FREE char *head = mem_printf("GET / HTTP/%s\r\n" H "\r\n", versions[i]);
		AUTO_FREE char *response = mem_printf("HTTP/1.1 200 OK\r\n%s%.*d\r\n\r\n",
			i ? "A: " : "Content-Length: ", 8, FLOOD);
		says(client, head);
		struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
		AUTO_FREE char *sent = mem_strdup(response);
		says(program, sent);
		hears_part(client, "\r\n\r\n");
		client->is_flooded = true;
		program->to_send = FLOOD;
		RUN_UNTIL(&runtime, program->to_send == 0);
		if (i == 1)
			peer_close(program);
		RUN_UNTIL(&runtime, client->n_got == FLOOD);
		check_flood(client);
		if (i == 1)
			RUN_UNTIL(&runtime, client->ended);
		assert_false(client->was_reset);
		runtime_close(&runtime);
	}
}

static void test_to_end_in_chunks(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
	says(program, "HTTP/1.0 200 OK\r\n\r\nabc");
	hears_part(client, "\r\ntransfer-encoding: chunked\r\n");
	hears_part(client, "\r\n\r\n3\r\nabc\r\n");
	says(program, "de");
	hears_part(client, "abc\r\n2\r\nde\r\n");
	peer_close(program);
	hears_part(client, "de\r\n0\r\n\r\n");
	buf_reset(&client->got);
	says(client, GET "\r\n");
	program_of(&runtime, 1, "\r\n\r\n");
	runtime_close(&runtime);
}

/* What waits is bounded by the buffers of sockets and of the server. */
static void test_slow_reader(void **state)
{
	enum { WAITING_MAX = 16 << 20 };
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	client->is_paused = client->is_flooded = true;
	says(client, GET "\r\n");
	struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
	says(program, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
	program->to_send = 1000000000;
	settles(&runtime);
	assert_true(program->n_sent > 0 && program->n_sent < WAITING_MAX);
	uint64_t sent = program->n_sent;
	settles(&runtime);
	assert_int_equal(program->n_sent, sent);
	runtime_close(&runtime);
	/* The other way. */
	runtime_open(&runtime);
	runtime.query = query_relay;
	client = client_new(&runtime);
	says(client, "PUT / HTTP/1.1\r\n" H "Content-Length: 1000000000\r\n\r\n");
	program = program_of(&runtime, 0, "\r\n\r\n");
	program->is_paused = true;
	client->to_send = 1000000000;
	settles(&runtime);
	assert_true(client->n_sent > 0 && client->n_sent < WAITING_MAX);
	runtime_close(&runtime);
}

static void test_chunked_request(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *a = client_new(&runtime), *b = client_new(&runtime);
	says(a, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
	struct peer *program = program_of(&runtime, 0, "3\r\nabc\r\n");
	assert_true(has(program, "transfer-encoding: chunked\r\n"));
	says(a, "0\r\n\r\n");
	program_of(&runtime, 0, "abc\r\n0\r\n\r\n");
	/* Broken ones get no further. */
	says(b, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n");
	hears_part(b, "HTTP/1.1 400 ");
	RUN_UNTIL(&runtime, b->ended && runtime.n_programs == 2 && runtime.programs[1].ended);
	assert_false(has(&runtime.programs[1], "abc"));
	runtime_close(&runtime);
}

static void test_expect(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client, "POST / HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
	struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
	assert_true(has(program, "\r\nexpect: 100-continue\r\n"));
	says(program, "HTTP/1.1 100 Continue\r\n\r\n");
	hears_part(client, "HTTP/1.1 100 Continue\r\n");
	says(client, "abc");
	program_of(&runtime, 0, "\r\n\r\nabc");
	says(program, "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
		      "HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok");
	hears_part(client, OK2);
	assert_true(has(client, "HTTP/1.1 103 Early Hints\r\nlink: a\r\n"));
	runtime_close(&runtime);
}

/* An answer before the end of the request's body. */
static void test_early_response(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client, "POST / HTTP/1.1\r\n" H "Content-Length: 1000000\r\n\r\nabc");
	struct peer *program = program_of(&runtime, 0, "\r\n\r\nabc");
	says(program, "HTTP/1.1 413 Too large\r\nContent-Length: 3\r\n\r\nbig");
	peer_close(program);
	hears_part(client, "\r\n\r\nbig");
	RUN_UNTIL(&runtime, client->ended);
	assert_false(client->was_reset);
	assert_int_equal(runtime.seen.n, 1);
	runtime_close(&runtime);
}

/*
 * Programs that fail
 */

static void test_no_program(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	runtime.refuses = true;
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	hears_part(client, "<p>there is no &lt;run&gt;</p>\n<p>dlrun ps</p>\n");
	assert_true(str_starts(client->got.data, "HTTP/1.1 502 Bad Gateway\r\n"));
	buf_reset(&client->got);
	runtime.refuses = false;
	says(client, GET "\r\n");
	peer_close(program_of(&runtime, 0, "\r\n\r\n"));
	hears_part(client, "<p>nothing listens at &lt;6006&gt;</p>\n<p>wait &amp; see</p>\n");
	assert_true(str_starts(client->got.data, "HTTP/1.1 502 Bad Gateway\r\n"));
	assert_int_equal(runtime.n_freed, 2);
	runtime_close(&runtime);
}

static void test_broken_responses(void **state)
{
	static const struct {
		const char *response, *page;
	} rows[] = {
		{"SSH-2.0-OpenSSH_9.2\r\n", "none of HTTP"},
		{"HTTP/1.1 200 OK\nA: b\n\n", "CR LF"},
		{"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: a\r\n\r\n",
			"another protocol"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
			"more than once"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct runtime runtime;
		runtime_open(&runtime);
		runtime.query = query_relay;
		struct peer *client = client_new(&runtime);
		says(client, GET "\r\n");
		says(program_of(&runtime, 0, "\r\n\r\n"), rows[i].response);
		hears_part(client, rows[i].page);
		assert_true(str_starts(client->got.data, "HTTP/1.1 502 Bad Gateway\r\n"));
		RUN_UNTIL(&runtime, runtime.programs[0].ended);
		runtime_close(&runtime);
	}
}

/* The client sees that it is not whole. */
static void test_broken_off(void **state)
{
	static const struct {
		const char *version, *response;
		bool fails, is_reset;
	} rows[] = {
		{"1.1", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", false, false},
		{"1.1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc", false,
			false},
		{"1.1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcx", false,
			false},
		{"1.1", "HTTP/1.0 200 OK\r\n\r\nabc", true, false},
		{"1.0", "HTTP/1.0 200 OK\r\n\r\nabc", true, true},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct runtime runtime;
		runtime_open(&runtime);
		runtime.query = query_relay;
		struct peer *client = client_new(&runtime);
		AUTO_FREE char *text = mem_printf(
			"POST / HTTP/%s\r\n" H "Content-Length: 3\r\n\r\nab", rows[i].version);
		says(client, text);
		struct peer *program = program_of(&runtime, 0, "\r\n\r\nab");
		/* With what it has not read its end is no orderly one. */
		if (rows[i].fails) {
			program->is_paused = true;
			says(client, "c");
			settles(&runtime);
		}
		says(program, rows[i].response);
		hears_part(client, "\r\n\r\n");
		settles(&runtime);
		peer_close(program);
		RUN_UNTIL(&runtime, client->ended);
		assert_int_equal(client->was_reset, rows[i].is_reset);
		assert_false(has(client, "\r\n0\r\n\r\n"));
		runtime_close(&runtime);
	}
}

/* A connection that was there before may have ended while the request was on its way. */
static void test_again(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	says(program_of(&runtime, 0, "\r\n\r\n"), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	hears(client, OK2);
	buf_reset(&runtime.programs[0].got);
	says(client, GET "\r\n");
	peer_close(program_of(&runtime, 0, "\r\n\r\n"));
	says(program_of(&runtime, 1, "\r\n\r\n"), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	hears(client, OK2);
	/* What may change something does not come twice. */
	buf_reset(&runtime.programs[1].got);
	says(client, "POST / HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n");
	peer_close(program_of(&runtime, 1, "\r\n\r\n"));
	hears_part(client, "HTTP/1.1 502 ");
	assert_int_equal(runtime.n_programs, 2);
	runtime_close(&runtime);
}

static void test_more_than_an_response(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	says(program_of(&runtime, 0, "\r\n\r\n"),
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n"
		"Content-Length: 4\r\n\r\nevil");
	hears(client, OK2);
	RUN_UNTIL(&runtime, runtime.programs[0].ended);
	says(client, GET "\r\n");
	says(program_of(&runtime, 1, "\r\n\r\n"), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	hears(client, OK2);
	runtime_close(&runtime);
}

/* Said between two requests, while the server was at work on one of its own. */
static void test_unasked_response(void **state)
{
	static const char evil[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
	struct runtime runtime;

	for (int closes = 0; closes < 2; closes++) {
		runtime_open(&runtime);
		runtime.query = query_relay;
		struct peer *client = client_new(&runtime);
		says(client, GET "\r\n");
		says(program_of(&runtime, 0, "\r\n\r\n"),
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
		hears(client, OK2);
		runtime.query = query_nothing;
		runtime.exchange = NULL;
		says(client, GET "\r\n");
		RUN_UNTIL(&runtime, runtime.exchange);
		if (closes)
			peer_close(&runtime.programs[0]);
		else
			says(&runtime.programs[0], evil);
		settle(&runtime);
		httpd_respond(runtime.exchange, 204, NULL, "", 0);
		hears_part(client, "HTTP/1.1 204 ");
		buf_reset(&client->got);
		runtime.query = query_relay;
		/* Not one that may be asked twice. */
		says(client, "POST / HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n");
		says(program_of(&runtime, 1, "\r\n\r\n"),
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
		hears(client, OK2);
		runtime_close(&runtime);
	}
}

static void test_client_leaves(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *a = client_new(&runtime), *b = client_new(&runtime);
	says(a, GET "\r\n");
	struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
	peer_close(a);
	RUN_UNTIL(&runtime, program->ended);
	says(b, GET "\r\n");
	program = program_of(&runtime, 1, "\r\n\r\n");
	says(program, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
	hears_part(b, "\r\n\r\n");
	b->is_paused = true;
	program->to_send = 1000000000;
	settles(&runtime);
	peer_close(b);
	RUN_UNTIL(&runtime, program->ended);
	assert_int_equal(runtime.n_freed, 2);
	assert_int_equal(runtime.n_gone, 0);
	runtime_close(&runtime);
}

/*
 * Streams
 */

#define UPGRADE GET "Connection: Upgrade\r\nUpgrade: websocket\r\nOrigin: http://@\r\n\r\n"

static void test_upgrade(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client, UPGRADE "early");
	struct peer *program = program_of(&runtime, 0, "\r\n\r\n");
	assert_true(has(program, "\r\nupgrade: websocket\r\n"));
	assert_true(has(program, "\r\nconnection: Upgrade\r\n"));
	settle(&runtime);
	assert_false(has(program, "early"));
	buf_reset(&program->got);
	says(program,
		"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst");
	hears(client, "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n"
		      "connection: Upgrade\r\n\r\nfirst");
	hears(program, "early");
	says(client, "ping");
	hears(program, "ping");
	/* One way ends, the other goes on. */
	shutdown(client->fd, SHUT_WR);
	RUN_UNTIL(&runtime, program->ended);
	says(program, "pong");
	hears(client, "pong");
	peer_close(program);
	RUN_UNTIL(&runtime, client->ended);
	assert_false(client->was_reset);
	assert_int_equal(runtime.n_freed, 1);
	runtime_close(&runtime);
}

static void test_no_upgrade(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client, UPGRADE);
	says(program_of(&runtime, 0, "\r\n\r\n"), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	hears(client, OK2);
	says(client, GET "\r\n");
	program_of(&runtime, 0, "\r\nconnection: keep-alive\r\n\r\n");
	runtime_close(&runtime);
}

static void test_connect(void **state)
{
	struct runtime runtime;

	runtime_open(&runtime);
	runtime.query = query_relay;
	struct peer *client = client_new(&runtime);
	says(client,
		"CONNECT 6006.run.localhost:7 HTTP/1.1\r\nHost: 6006.run.localhost:7\r\n\r\nearly");
	hears(client, "HTTP/1.1 200 Connected\r\n\r\n");
	assert_string_equal(runtime.seen.v[0], "CONNECT 6006.run.localhost:7 6006.run.localhost:7");
	hears(program_of(&runtime, 0, "early"), "early");
	says(&runtime.programs[0], "hello");
	hears(client, "hello");
	peer_close(client);
	RUN_UNTIL(&runtime, runtime.programs[0].ended);
	/* One that cannot be had. */
	runtime.refuses = true;
	client = client_new(&runtime);
	says(client, "CONNECT a.localhost:7 HTTP/1.0\r\n\r\n");
	hears_part(client, "HTTP/1.1 502 ");
	/* One that is open when the server ends. */
	runtime.refuses = false;
	client = client_new(&runtime);
	says(client, "CONNECT a.localhost:7 HTTP/1.0\r\n\r\nearly");
	program_of(&runtime, 1, "early");
	runtime_close(&runtime);
}

/*
 * Many
 */

static int connect_raw(const struct runtime *runtime)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(httpd_port(runtime->httpd)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static bool allows_files(rlim_t n)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_cur >= n)
		return true;
	limit.rlim_cur = n;
	return limit.rlim_max >= n && setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/* The one that has waited longest gives way; where all are at work the next one waits. */
static void test_many(void **state)
{
	static int fds[HTTPD_CONNS_MAX];
	struct runtime runtime;

	if (!allows_files(3 * HTTPD_CONNS_MAX))
		skip();
	runtime_open(&runtime);
	struct peer *client = client_new(&runtime);
	settle(&runtime);
	for (size_t i = 0; i < HTTPD_CONNS_MAX; i++) {
		fds[i] = connect_raw(&runtime);
		settle(&runtime);
	}
	RUN_UNTIL(&runtime, client->ended);
	struct peer *next = client_new(&runtime);
	says(next, GET "\r\n");
	hears_part(next, "hello");
	for (size_t i = 0; i < HTTPD_CONNS_MAX; i++)
		close(fds[i]);
	runtime_close(&runtime);
	runtime_open(&runtime);
	runtime.query = query_nothing;
	AUTO_FREE char *text = mem_printf(
		"GET / HTTP/1.1\r\nHost: localhost:%u\r\n\r\n", httpd_port(runtime.httpd));
	for (size_t i = 0; i < HTTPD_CONNS_MAX; i++) {
		fds[i] = connect_raw(&runtime);
		assert_int_equal(send(fds[i], text, strlen(text), 0), strlen(text));
		RUN_UNTIL(&runtime, runtime.seen.n == i + 1);
	}
	runtime.query = query_handshake;
	client = client_new(&runtime);
	says(client, GET "\r\n");
	settle(&runtime);
	settle(&runtime);
	assert_int_equal(client->got.len, 0);
	close(fds[7]);
	hears_part(client, "hello");
	for (size_t i = 0; i < HTTPD_CONNS_MAX; i++)
		if (i != 7)
			close(fds[i]);
	runtime_close(&runtime);
}

/*
 * For anybody
 */

static const struct httpd_options public = {.address = "*"};

/* Whatever name it is reached by; upgrades are plain requests. */
static void test_public(void **state)
{
	static const char *const heads[] = {
		"GET / HTTP/1.1\r\nHost: 10.1.2.3:9090\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: node.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: [fd00::1]:9090\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a:9090\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
	};

	for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
		struct runtime runtime;
		runtime_open_as(&runtime, public);
		assert_null(httpd_token(runtime.httpd));
		struct peer *client = client_new(&runtime);
		says(client, heads[i]);
		hears_part(client, "\r\n\r\nhello");
		assert_true(str_starts(client->got.data, "HTTP/1.1 200 OK\r\n"));
		runtime_close(&runtime);
	}
}

static const struct {
	const char *text;
	int status;
} public_refused[] = {
	{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 405},
	{"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 405},
	{"OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n", 405},
	{"DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405},
	{"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost:22\r\n\r\n", 405},
	{"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405},
	{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 413},
	{"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413},
	{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
		400},
	{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
	{"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
	{"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
	{"GET / HTTP/1.1\nHost: a\n\n", 400},
	{"GET / HTTP/1.1\r\n\r\n", 400},
	{"GET / HTTP/1.1\r\nHost: a\r\nOrigin: http://evil.example\r\n\r\n", 403},
	{"GET / HTTP/1.1\r\nHost: a\r\nSec-Fetch-Site: cross-site\r\n\r\n", 403},
};

/* And what comes behind it is no request. */
static void test_public_refused(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(public_refused); i++) {
		struct runtime runtime;
		runtime_open_as(&runtime, public);
		struct peer *client = client_new(&runtime);
		AUTO_FREE char *line = mem_printf("HTTP/1.1 %d ", public_refused[i].status);
		AUTO_FREE char *text = mem_printf(
			"%sGET /admin HTTP/1.1\r\nHost: a\r\n\r\n", public_refused[i].text);
		says(client, text);
		RUN_UNTIL(&runtime, client->ended);
		if (!str_starts(client->got.data, line))
			fail_msg("%s: %s", public_refused[i].text, client->got.data);
		assert_true(has(client, "\r\nConnection: close\r\n"));
		assert_int_equal(count(client->got.data, "HTTP/1.1 "), 1);
		assert_int_equal(has(client, "\r\nAllow: GET, HEAD\r\n"),
			public_refused[i].status == 405 &&
				!str_starts(public_refused[i].text, "TRACE"));
		assert_false(has(client, "hello"));
		runtime_close(&runtime);
	}
}

static void test_public_long_head(void **state)
{
	AUTO_BUF struct buf text = buf_with(PEER_MAX);
	struct runtime runtime;

	runtime_open_as(&runtime, public);
	struct peer *client = client_new(&runtime);
	buf_adds(&text, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
	for (size_t i = 0; i < HTTPD_HEAD_MAX; i++)
		buf_addc(&text, 'x');
	says(client, text.data);
	RUN_UNTIL(&runtime, client->ended);
	assert_true(str_starts(client->got.data, "HTTP/1.1 431 "));
	assert_int_equal(runtime.seen.n, 0);
	runtime_close(&runtime);
}

static void query_flood(struct runtime *runtime, struct httpd_exchange *exchange,
	const struct httpd_request *request)
{
	static char data[PEER_MAX];

	httpd_respond(exchange, 200, NULL, data, sizeof(data));
}

/* Who does not send its head, and who does not take its response. */
static void test_public_slow(void **state)
{
	struct runtime runtime;

	runtime_open_as(&runtime, (struct httpd_options){.address = "127.0.0.1", .public_ms = 50});
	struct peer *client = client_new(&runtime);
	says(client, "GET / HTTP/1.1\r\nHost:");
	RUN_UNTIL(&runtime, client->ended);
	assert_true(str_starts(client->got.data, "HTTP/1.1 408 "));
	runtime.query = query_flood;
	client = client_new(&runtime);
	client->is_paused = true;
	says(client, GET "\r\n");
	RUN_UNTIL(&runtime, runtime.seen.n == 1);
	for (int64_t until_ms = clock_ms() + LIMIT_MS;
		clock_ms() < until_ms && !client->was_reset;) {
		/* What was sent so far is read when the connection is gone only. */
		settle(&runtime);
		int error = 0;
		socklen_t len = sizeof(error);
		getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &error, &len);
		client->was_reset = error == ECONNRESET;
	}
	assert_true(client->was_reset);
	runtime_close(&runtime);
}

/* Those that do not send their heads hold nobody up: the oldest gives way. */
static void test_public_many(void **state)
{
	static int fds[HTTPD_PUBLIC_CONNS_MAX];
	struct runtime runtime;
	char byte;

	(void)state;
	runtime_open_as(&runtime,
		(struct httpd_options){.address = "127.0.0.1", .public_ms = 100 * LIMIT_MS});
	for (size_t i = 0; i < HTTPD_PUBLIC_CONNS_MAX; i++) {
		fds[i] = connect_raw(&runtime);
		assert_int_equal(send(fds[i], "GET", 3, 0), 3);
		settle(&runtime);
	}
	struct peer *client = client_new(&runtime);
	says(client, GET "\r\n");
	hears_part(client, "hello");
	assert_int_equal(runtime.seen.n, 1);
	/* One more than there is room for, and the client: the first two are gone, the third is there. */
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(recv(fds[i], &byte, 1, MSG_DONTWAIT), i < 2 ? 0 : -1);
	for (size_t i = 0; i < HTTPD_PUBLIC_CONNS_MAX; i++)
		close(fds[i]);
	runtime_close(&runtime);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_response),
		cmocka_unit_test(test_pipeline),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_bit_by_bit),
		cmocka_unit_test(test_cut_responses),
		cmocka_unit_test(test_writable),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_refused_as_a_whole),
		cmocka_unit_test(test_refuse_page),
		cmocka_unit_test(test_other_user),
		cmocka_unit_test(test_unknown_peer),
		cmocka_unit_test(test_no_token),
		cmocka_unit_test(test_token_leads_on),
		cmocka_unit_test(test_token_is_not_passed_on),
		cmocka_unit_test(test_keep_alive),
		cmocka_unit_test(test_program_closes),
		cmocka_unit_test(test_pipelined_relay),
		cmocka_unit_test(test_what_goes_on),
		cmocka_unit_test(test_origin_of_route),
		cmocka_unit_test(test_large_request),
		cmocka_unit_test(test_large_response),
		cmocka_unit_test(test_to_end_in_chunks),
		cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_chunked_request),
		cmocka_unit_test(test_expect),
		cmocka_unit_test(test_early_response),
		cmocka_unit_test(test_no_program),
		cmocka_unit_test(test_broken_responses),
		cmocka_unit_test(test_broken_off),
		cmocka_unit_test(test_again),
		cmocka_unit_test(test_more_than_an_response),
		cmocka_unit_test(test_unasked_response),
		cmocka_unit_test(test_client_leaves),
		cmocka_unit_test(test_upgrade),
		cmocka_unit_test(test_no_upgrade),
		cmocka_unit_test(test_connect),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_public),
		cmocka_unit_test(test_public_refused),
		cmocka_unit_test(test_public_long_head),
		cmocka_unit_test(test_public_slow),
		cmocka_unit_test(test_public_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
