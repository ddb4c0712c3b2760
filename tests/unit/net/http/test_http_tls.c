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
#include "tests/unit/httpclient.h"
#include "tests/unit/httpfix.h"
#include "tests/unit/tmpfix.h"

/*
 * Certificates and a server with them, by programs that may be missing: then these tests are left
 * out.
 */

static const char make_certificates[] =
	"set -e; exec >log 2>&1\n"
	"key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'\n"
	"for ca in ca stranger; do\n"
	"	openssl req -x509 $key -keyout $ca.key -out $ca.pem -subj /CN=$ca -days 2\n"
	"done\n"
	"leaf() { # name, issuer, names in it, days\n"
	"	openssl req $key -keyout $1.key -out $1.csr -subj /CN=$1\n"
	"	echo \"subjectAltName=$3\" >$1.ext\n"
	"	openssl x509 -req -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial -days $4 \\\n"
	"		-extfile $1.ext -out $1.pem\n"
	"}\n"
	"leaf good ca DNS:localhost,DNS:registry.test,IP:127.0.0.1 2\n"
	"leaf elsewhere ca DNS:elsewhere.test 2\n"
	"leaf expired ca DNS:localhost -1\n"
	"leaf strange stranger DNS:localhost 2\n"
	"leaf alice ca DNS:alice 2; leaf bob ca DNS:bob 2; leaf mallory stranger DNS:mallory 2\n"
	"openssl pkey -in alice.key -aes128 -passout pass:x -out locked.key\n"
	"openssl req -x509 $key -keyout alone.key -out alone.pem -subj /CN=localhost -days 2\n";

/* Prints its ports and lives as long as its input. */
static const char tls_server[] =
	"import http.server, os, ssl, sys, threading\n"
	"class Answer(http.server.BaseHTTPRequestHandler):\n"
	"	protocol_version = 'HTTP/1.1'\n"
	"	def who(self):\n"
	"		certificate = self.connection.getpeercert()\n"
	"		name = certificate['subject'][0][0][1] if certificate else 'nobody'\n"
	"		return '%s %s %s %s' % (name, self.headers['Host'],\n"
	"			getattr(self.connection, 'sni', None), self.client_address[1])\n"
	"	def lines(self):\n"
	"		self.send_response(200)\n"
	"		self.send_header('Transfer-Encoding', 'chunked')\n"
	"		self.end_headers()\n"
	"		for i in range(20000):\n"
	"			for part in (b'8\\r\\n', b'%07d\\n' % i, b'\\r', b'\\n') if i % 5 == 0 else "
	"(b'8\\r\\n%07d\\n\\r\\n' % i,):\n"
	"				self.wfile.write(part)\n"
	"		if self.path == '/whole': self.wfile.write(b'0\\r\\n\\r\\n')\n"
	"		else: self.rfile.read(1)\n"
	"	def do_GET(self):\n"
	"		if self.path in ('/lines', '/whole'): return self.lines()\n"
	"		body = self.who() if self.path == '/who' else 'tls'\n"
	"		self.send_response(302 if self.path == '/down' else 200)\n"
	"		self.send_header('Location', 'http://localhost:9/')\n"
	"		self.send_header('Content-Length', str(len(body)))\n"
	"		self.end_headers()\n"
	"		self.wfile.write(body.encode())\n"
	"	def log_message(self, *args): pass\n"
	"for name in sys.argv[1:]:\n"
	"	context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
	"	if name == 'old':\n"
	"		name = 'good'\n"
	"		context.set_ciphers('ALL:@SECLEVEL=0')\n"
	"		context.minimum_version = ssl.TLSVersion.TLSv1\n"
	"		context.maximum_version = ssl.TLSVersion.TLSv1_1\n"
	"	if name in ('optional', 'required'):\n"
	"		context.verify_mode = getattr(ssl, 'CERT_' + name.upper())\n"
	"		context.load_verify_locations('ca.pem')\n"
	"		name = 'elsewhere' if name == 'optional' else 'good'\n"
	"	context.sni_callback = lambda sock, name, _: setattr(sock, 'sni', name)\n"
	"	context.load_cert_chain(name + '.pem', name + '.key')\n"
	"	server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Answer)\n"
	"	server.handle_error = lambda *args: None\n"
	"	server.socket = context.wrap_socket(server.socket, server_side=True,\n"
	"		do_handshake_on_connect=False)\n"
	"	threading.Thread(target=server.serve_forever, daemon=True).start()\n"
	"	print(server.server_address[1], flush=True)\n"
	"sys.stdin.read()\n"
	"os._exit(0)\n";

enum tls_kind { GOOD, ELSEWHERE, EXPIRED, STRANGE, ALONE, OLD, OPTIONAL, REQUIRED, N_TLS };

static uint16_t tls_ports[N_TLS];
static pid_t tls_pid;
static int tls_stdin = -1;

static bool start_tls_server(void)
{
	int in[2], out[2];

	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	tls_pid = fork();
	if (tls_pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		if (chdir(tmp) == 0)
			execlp("python3", "python3", "-W", "ignore", "-c", tls_server, "good",
				"elsewhere", "expired", "strange", "alone", "old", "optional",
				"required", NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	tls_stdin = in[1];
	FILE *ports = fdopen(out[0], "r");
	int n = 0;
	while (n < N_TLS && fscanf(ports, "%hu", &tls_ports[n]) == 1)
		n++;
	fclose(ports);
	return n == N_TLS;
}

static bool has_tls;

static int set_up_group(void **state)
{
	assert_int_equal(make_tmp(state), 0);
	AUTO_FREE char *command = mem_printf("cd %s && %s", tmp, make_certificates);
	has_tls = system(command) == 0 && start_tls_server();
	return 0;
}

static int tear_down_group(void **state)
{
	if (tls_stdin >= 0)
		close(tls_stdin);
	if (tls_pid > 0)
		waitpid(tls_pid, NULL, 0);
	return remove_tmp(state);
}

static char *in_tmp(const char *name)
{
	return mem_printf("%s/%s", tmp, name);
}

static void get_tls(struct client *client, const char *host, enum tls_kind kind,
	const struct http_tls *tls, struct result *result)
{
	AUTO_FREE char *url = mem_printf("https://%s:%u/", host, tls_ports[kind]);

	result->request.tls = tls;
	client_start_url(client, url, result);
	client_run(client);
}

static char *read_in_tmp(const char *name)
{
	AUTO_FREE char *path = in_tmp(name);
	AUTO_BUF struct buf buf = {0};

	assert_int_equal(fs_read(path, 1 << 20, &buf, NULL, NULL), 0);
	return buf_take(&buf);
}

/*
 * TLS
 */

enum { LINES = 20000 };

/* Lines in order, all of them; then nobody waits for more. */
static int take_lines(void *ctx, const void *data, size_t len, struct err *err)
{
	struct result *result = ctx;
	const char *text = data;
	char line[16];

	for (size_t i = 0; i < len; i++, result->n_data++) {
		snprintf(line, sizeof(line), "%07d\n", (int)(result->n_data / 8));
		assert_int_equal(text[i], line[result->n_data % 8]);
	}
	if (result->n_data == 8 * LINES && result->step)
		http_cancel(TAKE(result->call));
	return 0;
}

/* What was read ahead is not kept back while the server is silent, nor from the next answer over
 * the same connection. */
static void test_small_records(void **state)
{
	AUTO_FREE char *ca = in_tmp("ca.pem");
	const struct http_tls tls = {.ca_file = ca};
	AUTO_FREE char *whole = NULL, *lines = NULL;
	struct client client;

	if (!has_tls)
		skip();
	client_init(&client);
	whole = mem_printf("https://localhost:%u/whole", tls_ports[GOOD]);
	lines = mem_printf("https://localhost:%u/lines", tls_ports[GOOD]);
	for (int i = 0; i < 2; i++) {
		struct result all = {.request = {.data = take_lines, .tls = &tls}}, next = {0};
		struct result held = {
			.request = {.data = take_lines, .tls = &tls, .idle_ms = 10000}, .step = 1};

		client_start_url(&client, whole, &all);
		client_run(&client);
		assert_int_equal(all.error, E_NONE);
		assert_int_equal(all.n_data, 8 * LINES);
		get_tls(&client, "localhost", GOOD, &tls, &next);
		assert_string_equal(next.body, "tls");
		client_start_url(&client, lines, &held);
		client_run(&client);
		assert_int_equal(held.n_done, 0);
		assert_int_equal(held.n_data, 8 * LINES);
		result_done(&all);
		result_done(&next);
	}
	client_done(&client);
}

static bool pump_once(struct fix_conn *conn, int fd)
{
	struct pollfd fds[] = {{.fd = conn->fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
	char data[16384];

	poll(fds, 2, -1);
	int from = fds[0].revents ? 0 : 1;
	ssize_t n = recv(fds[from].fd, data, sizeof(data), 0);
	if (n > 0 && from == 0)
		atomic_fetch_add(&conn->server->n_bytes, (int)n);
	return n > 0 && send(fds[!from].fd, data, (size_t)n, MSG_NOSIGNAL) == n;
}

/* Leads to the server with the good certificate, and counts what is sent there. The first of its
 * connections ends in mid-handshake where `cuts`. */
static atomic_bool cuts;

static bool lead_to_good(struct fix_conn *conn)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
		.sin_port = htons(tls_ports[GOOD]),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	char c;

	if (atomic_load(&cuts) && conn->server->n_conns == 1) {
		atomic_fetch_add(&conn->server->n_bytes, (int)recv(conn->fd, &c, 1, 0));
		return false;
	}
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool goes_on = connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0;
	while (goes_on)
		goes_on = pump_once(conn, fd);
	close(fd);
	return false;
}

struct release {
	struct client *client;
	struct fix_server *server;
	struct result *result;
};

static int release_greeted(void *ctx, struct err *err)
{
	struct release *release = ctx;

	if (atomic_load(&release->server->n_bytes) > 0)
		http_authorize(release->result->call, "Bearer t0k");
	else
		loop_add_timer(release->client->loop, clock_ms() + 2, release_greeted, release);
	return 0;
}

/* A held request, then another one; the connections that they took. */
static int count_held(const struct http_tls *tls)
{
	struct client client;
	struct fix_server *server = fix_start(NULL);
	struct result result = {.request = {.tls = tls, .held = true}}, next = {0};
	struct release release = {.client = &client, .server = server, .result = &result};
	/* A name would have libcurl look at both of its addresses after a while. */
	AUTO_FREE char *url = mem_printf("https://127.0.0.1:%u/", server->port);

	server->handshake = lead_to_good;
	client_init(&client);
	client_start_url(&client, url, &result);
	loop_add_timer(client.loop, clock_ms(), release_greeted, &release);
	client_run(&client);
	assert_int_equal(result.status, 200);
	assert_string_equal(result.body, "tls");
	assert_int_equal(client.events.n, 1);
	next.request.tls = tls;
	client_start_url(&client, url, &next);
	client_run(&client);
	assert_int_equal(next.status, 200);
	client_done(&client);
	int n_conns = server->n_conns;
	fix_stop(server);
	result_done(&result);
	result_done(&next);
	return n_conns;
}

static char *lead_to;

static bool lead_on(struct fix_conn *conn)
{
	AUTO_FREE char *text =
		mem_printf("HTTP/1.1 307 X\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", lead_to);

	return fix_print(conn, text);
}

/* Issuers count for where their origin leads, beside the client's; nothing else does. */
static void test_issuers_elsewhere(void **state)
{
	AUTO_FREE char *ca = in_tmp("ca.pem"), *stranger = in_tmp("stranger.pem");
	const struct {
		const char *own; /* issuers of the client */
		struct http_tls tls;
		enum tls_kind kind;
		enum err_id error;
	} rows[] = {
		{NULL, {.ca_file = ca}, GOOD, E_NONE},
		{stranger, {.ca_file = ca}, GOOD, E_NONE},
		{stranger, {.ca_file = ca}, STRANGE, E_NONE},
		{NULL, {.ca_file = ca}, STRANGE, E_HTTP_TLS},
		{NULL, {.ca_file = ca}, EXPIRED, E_HTTP_TLS},
		{NULL, {.ca_file = ca}, ELSEWHERE, E_HTTP_TLS},
		{NULL, {.ca_file = ca, .server_name = "elsewhere.test"}, ELSEWHERE, E_HTTP_TLS},
		{NULL, {.insecure = true}, GOOD, E_HTTP_TLS},
		{NULL, {.ca_file = ca, .insecure = true}, ALONE, E_HTTP_TLS},
		{ca, {.ca_file = stranger}, GOOD, E_NONE},
	};

	if (!has_tls)
		skip();
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct client client;
		struct fix_server *server = fix_start(lead_on);
		struct result result = {.request = {.tls = &rows[i].tls, .follow = true}};

		client_init_with(&client, NULL, rows[i].own);
		lead_to = mem_printf("https://localhost:%u/", tls_ports[rows[i].kind]);
		client_get(&client, server->port, "/", &result);
		assert_int_equal(result.error, rows[i].error);
		if (rows[i].error == E_NONE)
			assert_string_equal(result.body, "tls");
		free(TAKE(lead_to));
		client_done(&client);
		fix_stop(server);
		result_done(&result);
	}
}

/* The handshake is begun while the request is held. Where this process stands still in it libcurl
 * finds all of the server's part there, and completes the connection too early: not each time. */
static void test_held(void **state)
{
	enum { TRIES = 20 };
	AUTO_FREE char *ca = in_tmp("ca.pem");
	const struct http_tls tls = {.ca_file = ca};
	int n_conns = 0;

	if (!has_tls)
		skip();
	atomic_store(&cuts, false);
	for (int i = 0; i < TRIES && n_conns != 1; i++)
		n_conns = count_held(&tls);
	assert_int_equal(n_conns, 1);
	atomic_store(&cuts, true);
	assert_int_equal(count_held(&tls), 2);
}

static void test_own_issuer(void **state)
{
	AUTO_FREE char *ca = in_tmp("ca.pem");
	static const char *const hosts[] = {"localhost", "127.0.0.1"};
	const struct http_tls tls = {.ca_file = ca};
	struct client plain, trusting;

	if (!has_tls)
		skip();
	client_init(&plain);
	client_init_with(&trusting, NULL, ca);
	for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
		struct result named = {0}, general = {0};
		get_tls(&plain, hosts[i], GOOD, &tls, &named);
		assert_int_equal(named.status, 200);
		assert_string_equal(named.body, "tls");
		assert_true(str_starts(named.url, "https://"));
		get_tls(&trusting, hosts[i], GOOD, NULL, &general);
		assert_int_equal(general.status, 200);
		result_done(&named);
		result_done(&general);
	}
	client_done(&plain);
	client_done(&trusting);
}

static void test_refused_certificates(void **state)
{
	static const struct {
		enum tls_kind kind;
		const char *message;
	} rows[] = {
		{ELSEWHERE, "the certificate of localhost:%u names other hosts"},
		{EXPIRED, "the certificate of localhost:%u has expired"},
		{STRANGE, "the certificate of localhost:%u is signed by an unknown issuer"},
		{ALONE, "the certificate of localhost:%u is signed by itself only"},
	};
	AUTO_FREE char *ca = in_tmp("ca.pem");
	struct client client;

	if (!has_tls)
		skip();
	client_init_with(&client, NULL, ca);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct result result = {.request.authorization = "Basic c2VjcmV0"};
		get_tls(&client, "localhost", rows[i].kind, NULL, &result);
		result_is_error(&result, E_HTTP_TLS, false);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		AUTO_FREE char *wanted = mem_printf(rows[i].message, tls_ports[rows[i].kind]);
#pragma GCC diagnostic pop
		assert_string_equal(result.message, wanted);
		assert_non_null(result.evidence);
		assert_false(result.sent);
		result_done(&result);
	}
	client_done(&client);
}

/* What was named is all that is trusted, and nothing of it where nothing was named. */
static void test_issuers_are_not_mixed(void **state)
{
	AUTO_FREE char *stranger = in_tmp("stranger.pem");
	AUTO_FREE char *ca = in_tmp("ca.pem");
	const struct http_tls tls = {.ca_file = stranger};
	struct result other = {0}, none = {0}, good = {0}, again = {0};
	struct client client;

	if (!has_tls)
		skip();
	setenv("CURL_CA_BUNDLE", ca, 1);
	setenv("SSL_CERT_FILE", ca, 1);
	client_init(&client);
	get_tls(&client, "localhost", GOOD, NULL, &none);
	result_is_error(&none, E_HTTP_TLS, false);
	client_done(&client);
	unsetenv("CURL_CA_BUNDLE");
	unsetenv("SSL_CERT_FILE");
	client_init_with(&client, NULL, ca);
	get_tls(&client, "localhost", GOOD, NULL, &good);
	assert_int_equal(good.status, 200);
	/* A connection that others trust is not used either. */
	get_tls(&client, "localhost", GOOD, &tls, &other);
	result_is_error(&other, E_HTTP_TLS, false);
	get_tls(&client, "localhost", GOOD, NULL, &again);
	assert_int_equal(again.status, 200);
	result_done(&none);
	result_done(&good);
	result_done(&other);
	result_done(&again);
	client_done(&client);
}

static void test_insecure(void **state)
{
	const struct http_tls tls = {.insecure = true};
	struct client client;

	if (!has_tls)
		skip();
	client_init(&client);
	for (enum tls_kind kind = GOOD; kind <= ALONE; kind++) {
		struct result lax = {0}, strict = {0};
		get_tls(&client, "localhost", kind, &tls, &lax);
		assert_int_equal(lax.status, 200);
		get_tls(&client, "localhost", kind, NULL, &strict);
		result_is_error(&strict, E_HTTP_TLS, false);
		result_done(&lax);
		result_done(&strict);
	}
	client_done(&client);
}

static void test_old_protocol(void **state)
{
	const struct http_tls tls = {.insecure = true};
	struct result result = {0};
	struct client client;

	if (!has_tls)
		skip();
	client_init(&client);
	get_tls(&client, "localhost", OLD, &tls, &result);
	result_is_error(&result, E_HTTP_TLS, false);
	result_done(&result);
	client_done(&client);
}

static void test_files_of_issuers(void **state)
{
	AUTO_FREE char *missing = in_tmp("missing.pem");
	AUTO_FREE char *empty = in_tmp("empty.pem");
	const struct http_tls rows[] = {{.ca_file = missing}, {.ca_file = empty}};
	struct client client;

	AUTO_FD int fd = open(empty, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct result result = {.request.tls = &rows[i]};
		client_start_url(&client, "https://127.0.0.1:9/", &result);
		client_run(&client);
		if (i == 0) {
			result_is_error(&result, E_HTTP_CA, false);
			assert_non_null(strstr(result.message, missing));
		}
		result_done(&result);
		if (!has_tls)
			continue;
		struct result real = {0};
		get_tls(&client, "localhost", GOOD, &rows[i], &real);
		result_is_error(&real, E_HTTP_CA, false);
		assert_non_null(strstr(real.message, rows[i].ca_file));
		result_done(&real);
	}
	client_done(&client);
}

static bool response_ok(struct fix_conn *conn)
{
	return fix_print(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain");
}

static bool response_not_tls(struct fix_conn *conn)
{
	fix_print(conn, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
	return false;
}

static bool response_hang_up(struct fix_conn *conn)
{
	char c[16];

	recv(conn->fd, c, sizeof(c), 0);
	return false;
}

static void test_no_tls_there(void **state)
{
	struct fix_server *server = fix_start(response_ok);
	struct result not_tls = {0}, closed = {0};
	struct client client;

	AUTO_FREE char *url = mem_printf("https://localhost:%u/", server->port);
	client_init(&client);
	server->handshake = response_not_tls;
	client_start_url(&client, url, &not_tls);
	client_run(&client);
	result_is_error(&not_tls, E_HTTP_TLS, false);
	assert_true(str_ends(not_tls.message, " does not speak TLS"));
	server->handshake = response_hang_up;
	client_start_url(&client, url, &closed);
	client_run(&client);
	result_is_error(&closed, E_HTTP_CLOSED, true);
	result_done(&not_tls);
	result_done(&closed);
	client_done(&client);
	fix_stop(server);
}

/* TLS where http was asked for. */
static void test_tls_there(void **state)
{
	struct result result = {0};
	struct client client;

	if (!has_tls)
		skip();
	client_init(&client);
	client_get(&client, tls_ports[GOOD], "/", &result);
	assert_true(result.error == E_HTTP_PROTOCOL || result.error == E_HTTP_CLOSED);
	result_done(&result);
	client_done(&client);
}

static void test_downgrade(void **state)
{
	AUTO_FREE char *ca = in_tmp("ca.pem");
	struct result followed = {.request.follow = true}, kept = {0};
	struct client client;

	if (!has_tls)
		skip();
	AUTO_FREE char *url = mem_printf("https://localhost:%u/down", tls_ports[GOOD]);
	client_init_with(&client, NULL, ca);
	client_start_url(&client, url, &followed);
	client_run(&client);
	result_is_error(&followed, E_HTTP_REDIRECT, false);
	client_start_url(&client, url, &kept);
	client_run(&client);
	assert_int_equal(kept.status, 302);
	result_done(&followed);
	result_done(&kept);
	client_done(&client);
}

/*
 * Certificates in memory, of either side
 */

/* What the tests below are about: ca.pem, and who we are. */
struct identity {
	char *ca, *cert, *key;
	struct http_tls tls;
};

static struct identity identity_of(const char *name, const char *server_name)
{
	AUTO_FREE char *cert = mem_printf("%s.pem", name ? name : "");
	AUTO_FREE char *key = mem_printf("%s.key", name ? name : "");
	struct identity id = {.ca = read_in_tmp("ca.pem")};

	if (name) {
		id.cert = read_in_tmp(cert);
		id.key = read_in_tmp(key);
	}
	id.tls = (struct http_tls){.ca_pem = id.ca,
		.cert_pem = id.cert,
		.key_pem = id.key,
		.server_name = server_name};
	return id;
}

static void identity_done(struct identity *id)
{
	free(id->ca);
	free(id->cert);
	free(id->key);
}

/* "NAME HOST SNI PORT" of the answer, or the message of the fault. In TLS 1.3 what a server thinks
 * of a client's certificate comes after its own part of the handshake, and is lost if the request
 * meets its end of the connection first. */
static char *query_who(struct client *client, enum tls_kind kind, const struct http_tls *tls)
{
	struct result result = {0};
	int n_lost = 0;

	AUTO_FREE char *url = mem_printf("https://localhost:%u/who", tls_ports[kind]);
	do {
		result_done(&result);
		result.request.tls = tls;
		client_start_url(client, url, &result);
		client_run(client);
	} while (kind == REQUIRED && result.error == E_HTTP_CLOSED && ++n_lost < 100);
	if (result.status != 200)
		result_is_error(&result, kind == REQUIRED ? E_HTTP_CERT : E_HTTP_TLS, false);
	char *said = mem_strdup(result.message ? result.message : result.body);
	result_done(&result);
	return said;
}

/* And with certificates that are copies of those of before, so that it is their content that
 * tells connections apart. */
static int who_on_port(struct client *client, const char *name)
{
	struct identity id = identity_of(name, "elsewhere.test");
	AUTO_FREE char *said = query_who(client, OPTIONAL, &id.tls);
	AUTO_FREE char *wanted = mem_printf(
		"%s localhost:%u elsewhere.test ", name ? name : "nobody", tls_ports[OPTIONAL]);

	if (!str_starts(said, wanted))
		print_error("%s\n", said);
	assert_true(str_starts(said, wanted));
	identity_done(&id);
	return atoi(said + strlen(wanted));
}

static void test_identities_are_not_mixed(void **state)
{
	static const char *const names[] = {"alice", NULL, "bob"};
	int ports[ARRAY_LEN(names)];
	struct client client;

	if (!has_tls)
		skip();
	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		ports[i] = who_on_port(&client, names[i]);
		for (size_t before = 0; before < i; before++)
			assert_int_not_equal(ports[before], ports[i]);
	}
	/* Each has a connection now, and uses it again. */
	for (size_t i = ARRAY_LEN(names); i-- > 0;)
		assert_int_equal(who_on_port(&client, names[i]), ports[i]);
	client_done(&client);
}

static void test_server_name(void **state)
{
	static const struct {
		enum tls_kind kind;
		const char *server_name;
		const char *end;
	} rows[] = {
		{ELSEWHERE, "elsewhere.test", NULL},
		{ELSEWHERE, NULL, " names other hosts"},
		{ELSEWHERE, "localhost", " names other hosts than localhost"},
		{GOOD, "elsewhere.test", " names other hosts than elsewhere.test"},
		{GOOD, "localhost", NULL},
		{GOOD, "127.0.0.1", NULL},
		{ELSEWHERE, "elsewhere.test", NULL},
	};
	struct client client;

	if (!has_tls)
		skip();
	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct identity id = identity_of(NULL, rows[i].server_name);
		AUTO_FREE char *said = query_who(&client, rows[i].kind, &id.tls);
		AUTO_FREE char *who = mem_printf("nobody localhost:%u ", tls_ports[rows[i].kind]);
		if (rows[i].end)
			assert_true(str_ends(said, rows[i].end));
		else
			assert_true(str_starts(said, who));
		identity_done(&id);
	}
	client_done(&client);
}

static void test_server_name_is_a_name(void **state)
{
	static const char *const names[] = {"a b", "x/y", "u@h", "h:80", "", "a\r\nX: y"};
	struct client client;

	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const struct http_tls tls = {.server_name = names[i]};
		struct result result = {.request.tls = &tls};
		client_start_url(&client, "https://127.0.0.1:9/", &result);
		client_run(&client);
		result_is_error(&result, E_HTTP_URL, false);
		result_done(&result);
	}
	client_done(&client);
}

static void test_issuers_in_memory(void **state)
{
	AUTO_FREE char *ca_file = in_tmp("ca.pem"), *ca = NULL, *stranger = NULL;
	struct client client;

	if (!has_tls)
		skip();
	ca = read_in_tmp("ca.pem");
	stranger = read_in_tmp("stranger.pem");
	const struct {
		struct http_tls tls;
		const char *end;
	} rows[] = {
		{{.ca_pem = ca}, NULL},
		/* Instead of every other issuer. */
		{{.ca_pem = stranger}, " is signed by an unknown issuer"},
		{{.ca_pem = stranger, .ca_file = ca_file}, " is signed by an unknown issuer"},
		{{.ca_pem = ca, .ca_file = "/nowhere"}, NULL},
		{{.ca_pem = "rubbish"}, " holds none"},
		{{.ca_pem = ""}, " holds none"},
	};
	client_init_with(&client, NULL, ca_file);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *said = query_who(&client, GOOD, &rows[i].tls);
		if (rows[i].end && !str_ends(said, rows[i].end))
			print_error("%zu %s\n", i, said);
		assert_true(rows[i].end ? str_ends(said, rows[i].end)
					: str_starts(said, "nobody localhost:"));
	}
	client_done(&client);
}

static void test_client_certificates(void **state)
{
	struct client client;

	if (!has_tls)
		skip();
	struct identity alice = identity_of("alice", NULL), nobody = identity_of(NULL, NULL);
	struct identity mallory = identity_of("mallory", NULL), bob = identity_of("bob", NULL);
	AUTO_FREE char *locked = read_in_tmp("locked.key");
	struct http_tls rows[] = {nobody.tls, mallory.tls, alice.tls, alice.tls, alice.tls};
	static const char *const ends[] = {
		" asks for a client certificate",
		" does not accept the client certificate",
		" the client certificate or its key is not valid",
		" the client certificate or its key is not valid",
		" the client certificate or its key is not valid",
	};
	rows[2].key_pem = bob.key;
	rows[3].key_pem = locked; /* and nobody is asked for the password of it */
	rows[4].cert_pem = "rubbish";
	client_init(&client);
	AUTO_FREE char *said = query_who(&client, REQUIRED, &alice.tls);
	assert_true(str_starts(said, "alice "));
	client_done(&client);
	/* A connection with the same certificate would do for the ones with a wrong key. */
	client_init(&client);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *message = query_who(&client, REQUIRED, &rows[i]);
		if (!str_ends(message, ends[i]))
			print_error("%zu %s\n", i, message);
		assert_true(str_ends(message, ends[i]));
	}
	client_done(&client);
	identity_done(&alice);
	identity_done(&nobody);
	identity_done(&mallory);
	identity_done(&bob);
}

/*
 * Proxies
 */

static int connect_to(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

static bool copy_some(int from, int to)
{
	char data[16384];
	ssize_t n = recv(from, data, sizeof(data), 0);

	return n > 0 && send(to, data, (size_t)n, MSG_NOSIGNAL) == n;
}

static void relay(int a, int b)
{
	struct pollfd fds[] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
	bool goes_on = true;

	while (goes_on && poll(fds, 2, -1) > 0) {
		if (fds[0].revents)
			goes_on = copy_some(a, b);
		if (goes_on && fds[1].revents)
			goes_on = copy_some(b, a);
	}
}

static bool proxy_tunnels(struct fix_conn *conn)
{
	if (!str_eq(conn->method, "CONNECT"))
		return response_ok(conn);
	AUTO_FD int fd = connect_to(tls_ports[GOOD]);
	if (fd >= 0 && fix_print(conn, "HTTP/1.1 200 Established\r\nX-Proxy: 1\r\n\r\n"))
		relay(conn->fd, fd);
	return false;
}

static bool proxy_queries(struct fix_conn *conn)
{
	return fix_print(conn,
		"HTTP/1.1 407 Proxy Authentication Required\r\n"
		"Proxy-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n");
}

static bool proxy_fails(struct fix_conn *conn)
{
	fix_print(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n");
	return false;
}

static bool recv_all(struct fix_conn *conn, unsigned char *out, size_t len)
{
	return recv(conn->fd, out, len, MSG_WAITALL) == (ssize_t)len;
}

/* RFC 1928, for one name; then this server answers itself. */
static bool socks_handshake(struct fix_conn *conn)
{
	static const unsigned char granted[10] = {5, 0, 0, 1};
	unsigned char data[512];

	if (!recv_all(conn, data, 2) || data[0] != 5 || !recv_all(conn, data, data[1]))
		return false;
	if (!fix_send(conn, "\5\0", 2) || !recv_all(conn, data, 5) || data[3] != 3)
		return false;
	size_t len = data[4];
	if (!recv_all(conn, data, len + 2) || len != strlen("registry.test") ||
		memcmp(data, "registry.test", len) != 0)
		return false;
	return fix_send(conn, granted, sizeof(granted));
}

static void get_by_proxy(const char *proxy, const char *ca, const char *url, struct result *result)
{
	const struct proxy_env env = {.https_proxy = proxy, .http_proxy = proxy};
	struct client client;

	client_init_with(&client, &env, ca);
	client_start_url(&client, url, result);
	client_run(&client);
	client_done(&client);
}

static void test_plain_proxy(void **state)
{
	struct fix_server *server = fix_start(response_ok);
	struct result result = {.request.authorization = "Bearer t0k"};

	AUTO_FREE char *proxy = mem_printf("http://user:s3cret@127.0.0.1:%u", server->port);
	get_by_proxy(proxy, NULL, "http://registry.test/v2/?q", &result);
	assert_int_equal(result.status, 200);
	assert_string_equal(result.body, "plain");
	assert_int_equal(result.zone, ADDRESS_PUBLIC);
	assert_true(str_starts(server->heads.v[0], "GET http://registry.test/v2/?q HTTP/1.1\r\n"));
	assert_non_null(strstr(server->heads.v[0], "Proxy-Authorization: Basic dXNlcjpzM2NyZXQ="));
	assert_non_null(strstr(server->heads.v[0], "\r\nAuthorization: Bearer t0k\r\n"));
	result_done(&result);
	fix_stop(server);
}

static void test_tunnel(void **state)
{
	struct fix_server *server = fix_start(proxy_tunnels);
	AUTO_FREE char *ca = in_tmp("ca.pem");
	struct result result = {.request.authorization = "Bearer t0k"};

	AUTO_FREE char *proxy = mem_printf("http://user:s3cret@127.0.0.1:%u", server->port);
	if (has_tls) {
		get_by_proxy(proxy, ca, "https://registry.test/v2/", &result);
		assert_int_equal(result.error, E_NONE);
		assert_string_equal(result.body, "tls");
		assert_null(field_find(&result.headers, "x-proxy"));
		assert_true(str_starts(server->heads.v[0], "CONNECT registry.test:443 HTTP/1.1"));
		assert_null(strstr(server->heads.v[0], "t0k"));
	}
	result_done(&result);
	fix_stop(server);
}

static void test_socks(void **state)
{
	struct fix_server *server = fix_start(response_ok);
	struct result result = {0}, refused = {0};

	server->handshake = socks_handshake;
	AUTO_FREE char *proxy = mem_printf("socks5h://127.0.0.1:%u", server->port);
	get_by_proxy(proxy, NULL, "http://registry.test/v2/", &result);
	assert_string_equal(result.body, "plain");
	assert_true(str_starts(server->heads.v[0], "GET /v2/ HTTP/1.1\r\n"));
	get_by_proxy(proxy, NULL, "http://another.test/v2/", &refused);
	result_is_error(&refused, E_HTTP_PROXY, false);
	result_done(&result);
	result_done(&refused);
	fix_stop(server);
}

static bool proxy_tunnels_elsewhere(struct fix_conn *conn)
{
	AUTO_FD int fd = connect_to(tls_ports[ELSEWHERE]);
	if (fd >= 0 && fix_print(conn, "HTTP/1.1 200 Established\r\n\r\n"))
		relay(conn->fd, fd);
	return false;
}

/* Through a proxy it is the host that is asked for, not the name in its certificate. */
static void test_server_name_by_proxy(void **state)
{
	struct fix_server *server = fix_start(proxy_tunnels_elsewhere);
	struct result result = {0};
	struct client client;

	AUTO_FREE char *proxy = mem_printf("http://127.0.0.1:%u", server->port);
	client_init(&client);
	if (has_tls) {
		struct identity id = identity_of("alice", "elsewhere.test");
		result.request.tls = &id.tls;
		result.request.proxy = proxy;
		client_start_url(&client, "https://registry.test:6443/who", &result);
		client_run(&client);
		assert_int_equal(result.status, 200);
		assert_true(str_starts(result.body, "nobody registry.test:6443 elsewhere.test "));
		assert_true(str_starts(server->heads.v[0], "CONNECT registry.test:6443 HTTP/1.1"));
		identity_done(&id);
	}
	result_done(&result);
	client_done(&client);
	fix_stop(server);
}

/* A proxy of one request, instead of what the environment says. */
static void test_own_proxy(void **state)
{
	struct fix_server *proxy = fix_start(response_ok), *server = fix_start(response_ok);
	const struct proxy_env env = {.http_proxy = "http://127.0.0.1:9"};
	struct result straight = {.request.proxy = ""}, by_env = {0},
		      bad = {.request.proxy = "ftp://x"};
	struct result own = {0},
		      gone = {.request.proxy = "http://u:s3cret@no-such-proxy.invalid:1"};
	struct client client;

	AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u/", proxy->port);
	client_init_with(&client, &env, NULL);
	own.request.proxy = url;
	client_get(&client, server->port, "/", &own); /* even for this machine */
	assert_int_equal(own.status, 200);
	assert_int_equal(proxy->n_requests, 1);
	assert_int_equal(server->n_requests, 0);
	client_get(&client, server->port, "/", &straight);
	assert_int_equal(straight.status, 200);
	assert_int_equal(server->n_requests, 1);
	client_start_url(&client, "http://registry.test/", &by_env);
	client_run(&client);
	result_is_error(&by_env, E_HTTP_PROXY, true);
	client_start_url(&client, "http://registry.test/", &bad);
	client_run(&client);
	result_is_error(&bad, E_CONFIG, false);
	assert_string_equal(bad.message, "the proxy for registry.test is not a valid proxy URL");
	client_start_url(&client, "http://registry.test/", &gone);
	client_run(&client);
	result_is_error(&gone, E_HTTP_PROXY, false);
	assert_string_equal(gone.message,
		"the proxy http://no-such-proxy.invalid:1 for registry.test "
		"could not be resolved");
	result_done(&own);
	result_done(&straight);
	result_done(&by_env);
	result_done(&bad);
	result_done(&gone);
	client_done(&client);
	fix_stop(server);
	fix_stop(proxy);
}

static void check_proxy_error(
	const char *proxy, const char *url, bool is_transient, const char *end)
{
	struct result result = {0};

	get_by_proxy(proxy, NULL, url, &result);
	result_is_error(&result, E_HTTP_PROXY, is_transient);
	if (!str_ends(result.message, end))
		print_error("%s\n", result.message);
	assert_true(str_ends(result.message, end));
	assert_non_null(result.hint);
	assert_null(strstr(result.message, "s3cret"));
	assert_null(strstr(result.hint, "s3cret"));
	assert_true(!result.evidence || !strstr(result.evidence, "s3cret"));
	result_done(&result);
}

static void test_proxy_errors(void **state)
{
	static const char *const urls[] = {"http://registry.test/", "https://registry.test/"};
	struct fix_server *queries = fix_start(proxy_queries), *fails = fix_start(proxy_fails);
	uint16_t closed = fix_closed_port();

	AUTO_FREE char *querying = mem_printf("http://user:s3cret@127.0.0.1:%u", queries->port);
	AUTO_FREE char *failing = mem_printf("http://user:s3cret@127.0.0.1:%u", fails->port);
	AUTO_FREE char *missing = mem_printf("http://user:s3cret@127.0.0.1:%u", closed);
	for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
		check_proxy_error(querying, urls[i], false, " asks for a user name and password");
		check_proxy_error(missing, urls[i], true, " cannot be reached");
		check_proxy_error("http://user:s3cret@no-such-proxy.invalid:8080", urls[i], false,
			" could not be resolved");
	}
	check_proxy_error(failing, urls[1], true, " makes no connection (status 502)");
	fix_stop(queries);
	fix_stop(fails);
}

static bool response_inwards(struct fix_conn *conn)
{
	return fix_print(conn, "HTTP/1.1 302 Found\r\nLocation: http://10.1.2.3/secret\r\n"
			       "Content-Length: 0\r\n\r\n");
}

/* Through a proxy only an address that is written out can be told. */
static void test_zones_behind_a_proxy(void **state)
{
	struct fix_server *server = fix_start(response_inwards);
	struct result literal = {.request = {.has_zone = true, .zone = ADDRESS_PUBLIC}};
	struct result redirected = {.request.follow = true};

	AUTO_FREE char *proxy = mem_printf("http://127.0.0.1:%u", server->port);
	get_by_proxy(proxy, NULL, "http://192.168.1.1/", &literal);
	result_is_error(&literal, E_HTTP_ZONE, false);
	assert_int_equal(server->n_conns, 0);
	get_by_proxy(proxy, NULL, "http://registry.test/", &redirected);
	result_is_error(&redirected, E_HTTP_ZONE, false);
	assert_int_equal(server->n_requests, 1);
	result_done(&literal);
	result_done(&redirected);
	fix_stop(server);
}

/* libcurl's own reading of the environment is off. */
static void test_environment_counts_for_nothing(void **state)
{
	static const char *const names[] = {"http_proxy", "all_proxy", "HTTPS_PROXY"};
	struct fix_server *server = fix_start(response_ok);
	struct result result = {0};
	struct client client;

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		setenv(names[i], "http://127.0.0.1:9", 1);
	client_init(&client);
	client_get(&client, server->port, "/", &result);
	assert_int_equal(result.status, 200);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		unsetenv(names[i]);
	result_done(&result);
	client_done(&client);
	fix_stop(server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own_issuer),
		cmocka_unit_test(test_small_records),
		cmocka_unit_test(test_issuers_elsewhere),
		cmocka_unit_test(test_held),
		cmocka_unit_test(test_refused_certificates),
		cmocka_unit_test(test_issuers_are_not_mixed),
		cmocka_unit_test(test_insecure),
		cmocka_unit_test(test_old_protocol),
		cmocka_unit_test(test_files_of_issuers),
		cmocka_unit_test(test_no_tls_there),
		cmocka_unit_test(test_tls_there),
		cmocka_unit_test(test_downgrade),
		cmocka_unit_test(test_identities_are_not_mixed),
		cmocka_unit_test(test_server_name),
		cmocka_unit_test(test_server_name_is_a_name),
		cmocka_unit_test(test_issuers_in_memory),
		cmocka_unit_test(test_client_certificates),
		cmocka_unit_test(test_plain_proxy),
		cmocka_unit_test(test_tunnel),
		cmocka_unit_test(test_socks),
		cmocka_unit_test(test_server_name_by_proxy),
		cmocka_unit_test(test_own_proxy),
		cmocka_unit_test(test_proxy_errors),
		cmocka_unit_test(test_zones_behind_a_proxy),
		cmocka_unit_test(test_environment_counts_for_nothing),
	};

	return cmocka_run_group_tests(tests, set_up_group, tear_down_group);
}
