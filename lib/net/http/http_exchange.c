/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/http_impl.h"
#include "net/stream/field.h"

enum { PORT_HTTP = 80, PORT_HTTPS = 443 };

void http_add_route(struct http *http, const char *host, uint16_t port, uint16_t to,
	http_route_fn *open, void *ctx)
{
	struct http_route *route = mem_alloc(1, sizeof(*route));

	*route = (struct http_route){http->routes, mem_strdup(host), port, to, open, ctx};
	http->routes = route;
}

static bool http_exchange_leads_to(const struct http_route *route, const struct url *url)
{
	uint16_t port = url->tls ? PORT_HTTPS : PORT_HTTP;

	return url->port == (route->port ? route->port : port) &&
	       strcasecmp(route->host, url->host) == 0;
}

/* The one to url, or NULL. */
static const struct http_route *http_find_route(const struct http *http, const struct url *url)
{
	for (const struct http_route *route = http->routes; route; route = route->next)
		if (http_exchange_leads_to(route, url))
			return route;
	return NULL;
}

void http_drop_routes(struct http *http)
{
	for (struct http_route *route = http->routes, *next; route; route = next) {
		next = route->next;
		free(route->host);
		free(route);
	}
}

/* Bound before it connects, so that the tunnel knows it from what others of this machine
 * connect. */
static int bind_loopback(int fd, uint16_t *ret_port)
{
	struct sockaddr_in from = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(from);

	if (bind(fd, (struct sockaddr *)&from, len) < 0 ||
		getsockname(fd, (struct sockaddr *)&from, &len) < 0)
		return -1;
	*ret_port = ntohs(from.sin_port);
	return 0;
}

/* A socket for it, or -1 with why in x.refused. */
static int http_route_socket(struct http_call *call)
{
	const struct http_route *route = call->x.route;
	AUTO_FD int fd = socket(AF_INET, SOCK_STREAM, 0);
	uint16_t port;

	err_clear(&call->x.refused);
	if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || bind_loopback(fd, &port) < 0 ||
		route->open(route->ctx, port, &call->x.refused) < 0)
		return -1;
	return TAKE_FD(fd);
}

/* The exchange goes over its route. */
static void http_route_options(struct http_call *call)
{
	AUTO_FREE char *to = mem_printf("::127.0.0.1:%u", call->x.route->to);

	call->x.connect_to = curl_slist_append(NULL, to);
	HTTP_SET(call, CURLOPT_CONNECT_TO, call->x.connect_to);
	HTTP_SET(call, CURLOPT_CONNECTTIMEOUT_MS, (long)HTTP_ROUTE_MS);
}

static const char *const zone_words[] = {
	[ADDRESS_PUBLIC] = "a public one",
	[ADDRESS_PRIVATE] = "one of a private network",
	[ADDRESS_LOOPBACK] = "one of this machine",
	[ADDRESS_FORBIDDEN] = "link-local or reserved",
};

static int http_exchange_refuse(
	const struct http_call *call, enum address_zone zone, struct err *err)
{
	AUTO_FREE char *host = url_authority(&call->url);

	return err_set(err, E_HTTP_ZONE, "a server points to %s, whose address is %s", host,
		zone_words[zone]);
}

static bool http_exchange_is_allowed(const struct http_call *call, enum address_zone zone)
{
	return call->x.route || !call->request.has_zone || zone <= call->request.zone;
}

int http_check_literal(const struct http_call *call, struct err *err)
{
	enum address_zone zone;

	if (!address_zone_of_text(call->url.host, &zone) || http_exchange_is_allowed(call, zone))
		return 0;
	return http_exchange_refuse(call, zone, err);
}

/* Each address of the name that libcurl tries. */
static curl_socket_t http_exchange_on_open(
	void *ctx, curlsocktype purpose UNUSED, struct curl_sockaddr *address)
{
	struct http_call *call = ctx;
	enum address_zone zone = address_zone(&address->addr);

	if (call->x.route)
		return http_route_socket(call);
	if (!call->x.proxy && !http_exchange_is_allowed(call, zone)) {
		http_exchange_refuse(call, zone, &call->x.refused);
		return CURL_SOCKET_BAD;
	}
	int fd = socket(address->family, address->socktype, address->protocol);
	if (fd < 0)
		return CURL_SOCKET_BAD;
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

/* Addresses behind a proxy cannot be seen: only a literal says more than "outside". */
static enum address_zone zone_reached(const struct http_call *call, const char *address)
{
	enum address_zone zone;

	if (call->x.route)
		return ADDRESS_PUBLIC;
	if (call->x.proxy)
		address = call->url.host;
	if (address_zone_of_text(address, &zone))
		return zone;
	return call->x.proxy ? ADDRESS_PUBLIC : ADDRESS_FORBIDDEN;
}

/* A connection is there, new or kept from another call, and nothing of this one was sent. */
static int http_exchange_on_begin(void *ctx, char *address, char *local, int port, int local_port)
{
	struct http_call *call = ctx;
	enum address_zone zone = zone_reached(call, address);

	(void)local, (void)port, (void)local_port;
	call->response.zone = zone;
	if (!call->x.proxy && !http_exchange_is_allowed(call, zone)) {
		http_exchange_refuse(call, zone, &call->x.error);
		return CURL_PREREQFUNC_ABORT;
	}
	call->x.too_early = call->held;
	if (call->canceled || call->held)
		return CURL_PREREQFUNC_ABORT;
	call->x.begun = true;
	call->x.last_ms = clock_ms();
	return CURL_PREREQFUNC_OK;
}

static int http_exchange_on_progress(
	void *ctx, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
	struct http_call *call = ctx;
	struct http_exchange *x = &call->x;

	(void)down_total, (void)up_total;
	if (down != x->seen_down || up != x->seen_up)
		x->last_ms = clock_ms();
	x->seen_down = down;
	x->seen_up = up;
	return call->canceled;
}

/* The connection is taken over: no proxy may look into it. */
static void set_connect_only(struct http_call *call)
{
	HTTP_SET(call, CURLOPT_CONNECT_ONLY, 1L);
	HTTP_SET(call, CURLOPT_HTTPPROXYTUNNEL, 1L);
	HTTP_SET(call, CURLOPT_BUFFERSIZE, (long)HTTP_RECV_MAX);
	HTTP_SET(call, CURLOPT_TCP_KEEPALIVE, 1L);
	HTTP_SET(call, CURLOPT_TCP_KEEPIDLE, (long)HTTP_KEEP_S);
	HTTP_SET(call, CURLOPT_TCP_KEEPINTVL, (long)HTTP_KEEP_S);
}

/* Of those that wait to be used again only the ones that were made since then. */
static void leave_old_ones(struct http_call *call, int64_t woke_ms)
{
	int64_t age_s = (call->x.start_ms - woke_ms) / 1000;

	HTTP_SET(call, CURLOPT_MAXLIFETIME_CONN, (long)(age_s > 0 ? age_s : 1));
}

static void set_held(struct http_call *call)
{
	/* Existing connections are for requests that are sent at once. */
	HTTP_SET(call, CURLOPT_FRESH_CONNECT, 1L);
	/* When that time is over libcurl checks the connection, held or not. */
	HTTP_SET(call, CURLOPT_HAPPY_EYEBALLS_TIMEOUT_MS, (long)HTTP_CONNECT_MS);
}

static void http_connect_options(struct http_call *call)
{
	int64_t woke_ms = loop_woke_ms(call->http->loop);

	HTTP_SET(call, CURLOPT_OPENSOCKETFUNCTION, http_exchange_on_open);
	HTTP_SET(call, CURLOPT_OPENSOCKETDATA, call);
	HTTP_SET(call, CURLOPT_PREREQFUNCTION, http_exchange_on_begin);
	HTTP_SET(call, CURLOPT_PREREQDATA, call);
	HTTP_SET(call, CURLOPT_NOPROGRESS, 0L);
	HTTP_SET(call, CURLOPT_XFERINFOFUNCTION, http_exchange_on_progress);
	HTTP_SET(call, CURLOPT_XFERINFODATA, call);
	if (call->connected)
		set_connect_only(call);
	if (call->held)
		set_held(call);
	if (call->request.fresh)
		HTTP_SET(call, CURLOPT_FRESH_CONNECT, 1L);
	if (woke_ms)
		leave_old_ones(call, woke_ms);
}

const char *http_ca_file(const struct http_call *call)
{
	return call->tls.ca_file ? call->tls.ca_file : call->http->ca_file;
}

struct http_tls http_tls_elsewhere(const struct http_tls *tls)
{
	return (struct http_tls){.more_ca_file = tls->ca_file ? tls->ca_file : tls->more_ca_file};
}

/* libcurl reads the text where it is, and keeps copies with the connection, which is reused for the
 * same certificates only. */
static void http_exchange_set_blob(struct http_call *call, CURLoption option, const char *pem)
{
	struct curl_blob blob = {.data = (void *)pem, .len = strlen(pem)};

	HTTP_SET(call, option, &blob);
}

static int check_ca(const char *file, const char *host, struct err *err)
{
	if (access(file, R_OK) == 0)
		return 0;
	AUTO_FREE char *shown = str_escaped(file);
	return err_set_errno(
		err, E_HTTP_CA, errno, "cannot read %s, the issuers to trust for %s", shown, host);
}

/* libcurl has one place for issuers: both are put there. */
static int add_issuers(struct http_call *call, struct err *err)
{
	enum { ISSUERS_MAX = 8 << 20 };
	const char *files[] = {call->http->ca_file, call->tls.more_ca_file};
	AUTO_BUF struct buf both = buf_with(2 * (ISSUERS_MAX + 1));

	/* The system has no file where it has a directory instead, which stays in use. */
	if (files[0])
		HTTP_SET(call, CURLOPT_CAPATH, NULL);
	else
		curl_easy_getinfo(call->x.easy, CURLINFO_CAINFO, &files[0]);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		AUTO_BUF struct buf one = {0};
		if (!files[i] || (i == 0 && !call->http->ca_file && access(files[i], R_OK) < 0))
			continue;
		int r = check_ca(files[i], call->url.host, err);
		if (r == 0)
			r = fs_read(files[i], ISSUERS_MAX, &one, NULL, err);
		if (r < 0)
			return r;
		buf_add(&both, one.data, one.len);
		buf_addc(&both, '\n');
	}
	struct curl_blob blob = {.data = both.data, .len = both.len, .flags = CURL_BLOB_COPY};
	HTTP_SET(call, CURLOPT_CAINFO_BLOB, &blob);
	return 0;
}

/* Issuers that were named are instead of the system's, not besides them. */
static int set_issuers(struct http_call *call, struct err *err)
{
	const char *ca_file = http_ca_file(call);

	if (!call->tls.ca_file && call->tls.more_ca_file)
		return add_issuers(call, err);
	if (call->tls.insecure || (!call->tls.ca_pem && !ca_file))
		return 0;
	HTTP_SET(call, CURLOPT_CAPATH, NULL);
	if (call->tls.ca_pem) {
		HTTP_SET(call, CURLOPT_CAINFO, NULL);
		http_exchange_set_blob(call, CURLOPT_CAINFO_BLOB, call->tls.ca_pem);
		return 0;
	}
	HTTP_SET(call, CURLOPT_CAINFO, ca_file);
	return check_ca(ca_file, call->url.host, err);
}

static void set_certificate(struct http_call *call)
{
	if (!call->tls.cert_pem || !call->tls.key_pem)
		return;
	http_exchange_set_blob(call, CURLOPT_SSLCERT_BLOB, call->tls.cert_pem);
	http_exchange_set_blob(call, CURLOPT_SSLKEY_BLOB, call->tls.key_pem);
	/* Without one OpenSSL would ask for it on the terminal. */
	HTTP_SET(call, CURLOPT_KEYPASSWD, "");
}

/* libcurl knows one name of a server, that of the URL. So the URL has the name that the certificate
 * must have, and the connection and the Host header are led to where it really is. */
static int set_server_name(struct http_call *call, struct err *err)
{
	const char *name = call->tls.server_name, *real = call->url.host;
	bool is_ip6 = strchr(real, ':') != NULL;
	AUTO_URL struct url url = {0};

	AUTO_FREE char *host = mem_printf(
		strchr(name, ':') && *name != '[' ? "[%s]:%u" : "%s:%u", name, call->url.port);
	int r = url_make(true, host, call->url.path, &url, err);
	if (r < 0)
		return err_prefix(err, "the name in the certificate of %s", real);
	AUTO_FREE char *text = url_text(&url);
	AUTO_FREE char *to = mem_printf(is_ip6 ? "::[%s]:%u" : "::%s:%u", real, call->url.port);
	AUTO_FREE char *authority = url_authority(&call->url);
	AUTO_FREE char *header = mem_printf("Host: %s", authority);
	call->x.connect_to = curl_slist_append(NULL, to);
	call->x.headers = curl_slist_append(call->x.headers, header);
	HTTP_SET(call, CURLOPT_URL, text);
	HTTP_SET(call, CURLOPT_CONNECT_TO, call->x.connect_to);
	HTTP_SET(call, CURLOPT_HTTPHEADER, call->x.headers);
	return 0;
}

static int set_url(struct http_call *call, struct err *err)
{
	const char *name = call->tls.server_name;

	if (call->url.tls && name && !str_eq(name, call->url.host))
		return set_server_name(call, err);
	AUTO_FREE char *url = url_text(&call->url);
	HTTP_SET(call, CURLOPT_URL, url);
	return 0;
}

/* The URL, and which certificates stand for it. */
static int http_tls_options(struct http_call *call, struct err *err)
{
	long verify = call->tls.insecure ? 0L : 1L;

	HTTP_SET(call, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	HTTP_SET(call, CURLOPT_SSL_VERIFYPEER, verify);
	HTTP_SET(call, CURLOPT_SSL_VERIFYHOST, verify * 2);
	HTTP_SET(call, CURLOPT_PROXY_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	if (call->http->ca_file && call->x.proxy) {
		HTTP_SET(call, CURLOPT_PROXY_CAINFO, call->http->ca_file);
		HTTP_SET(call, CURLOPT_PROXY_CAPATH, NULL);
	}
	int r = set_url(call, err);
	if (r < 0 || !call->url.tls)
		return r;
	set_certificate(call);
	return set_issuers(call, err);
}

static size_t http_exchange_fail(struct http_call *call, struct err *err)
{
	err_move(&call->x.error, err);
	return CURL_READFUNC_ABORT;
}

static size_t http_exchange_read_file(struct http_call *call, void *out, size_t len)
{
	const struct http_body *body = &call->request.body;
	AUTO_ERR struct err err = {0};
	ssize_t n;

	do {
		n = pread(body->fd, out, len, (off_t)(body->offset + call->x.body_pos));
	} while (n < 0 && errno == EINTR);
	if (n > 0)
		return (size_t)n;
	if (n < 0)
		err_set_errno(&err, E_IO, errno, "cannot read the file that is sent");
	else
		err_set(&err, E_IO, "the file that is sent has become shorter meanwhile");
	return http_exchange_fail(call, &err);
}

static size_t read_caller(struct http_call *call, void *out, size_t len)
{
	AUTO_ERR struct err err = {0};
	ssize_t n = call->request.body.read(call->request.ctx, out, len, &err);

	if (n > 0)
		return (size_t)n;
	if (n < 0)
		return http_exchange_fail(call, &err);
	call->send_paused = true;
	return CURL_READFUNC_PAUSE;
}

/* A server may respond before it has all, and then close. Sending to a closed connection fails, and
 * libcurl would not read the response any more; so what has come is read first. But only once when
 * nothing comes of it: the end of a connection is input for ever. */
static bool has_input(struct http_call *call)
{
	struct pollfd pollfd = {.fd = call->x.fd, .events = POLLIN};
	uint64_t n_read = call->x.header_bytes + call->x.bytes_down + 1;

	if (call->x.waited_at == n_read || pollfd.fd < 0 || poll(&pollfd, 1, 0) <= 0)
		return false;
	call->x.waited_at = n_read;
	return true;
}

static size_t read_first(struct http_call *call)
{
	http_call_wake(call);
	return CURL_READFUNC_PAUSE;
}

static size_t http_exchange_on_read(char *out, size_t size, size_t n, void *ctx)
{
	struct http_call *call = ctx;
	const struct http_body *body = &call->request.body;
	uint64_t left = body->size - call->x.body_pos;
	size_t len = size * n;

	if (call->canceled)
		return CURL_READFUNC_ABORT;
	if (len > left)
		len = (size_t)left;
	if (len == 0)
		return 0;
	if (body->read && has_input(call))
		return read_first(call);
	if (body->data)
		memcpy(out, (const char *)body->data + call->x.body_pos, len);
	else
		len = body->has_fd ? http_exchange_read_file(call, out, len)
				   : read_caller(call, out, len);
	if (len == CURL_READFUNC_ABORT || len == CURL_READFUNC_PAUSE)
		return len;
	/* As late as can be. What a caller gave cannot be given back. */
	if (!body->read && has_input(call))
		return read_first(call);
	call->x.body_pos += len;
	return len;
}

/* A connection that was kept had died: from the start again, on another one. */
static int on_seek(void *ctx, curl_off_t offset, int origin)
{
	struct http_call *call = ctx;

	if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > call->request.body.size)
		return CURL_SEEKFUNC_FAIL;
	if (call->request.body.read && (uint64_t)offset != call->x.body_pos)
		return CURL_SEEKFUNC_FAIL;
	call->x.body_pos = (uint64_t)offset;
	return CURL_SEEKFUNC_OK;
}

static void http_send_options(struct http_call *call)
{
	HTTP_SET(call, CURLOPT_READFUNCTION, http_exchange_on_read);
	HTTP_SET(call, CURLOPT_READDATA, call);
	HTTP_SET(call, CURLOPT_SEEKFUNCTION, on_seek);
	HTTP_SET(call, CURLOPT_SEEKDATA, call);
}

static bool is_success(const struct http_call *call)
{
	return call->x.status >= 200 && call->x.status < 300;
}

static int http_receive_fail(struct http_call *call, enum err_id id, const char *what)
{
	AUTO_FREE char *host = url_authority(&call->url);

	return err_set(&call->x.error, id, "%s %s", host, what);
}

/*
 * Headers
 */

static int start_response(struct http_call *call, const char *line)
{
	struct http_exchange *x = &call->x;
	const char *code = strchr(line, ' ');

	strv_done(&call->response.headers);
	buf_reset(&call->response.body);
	x->headers_over = x->has_length = false;
	x->status = 0;
	for (int i = 1; code && i <= 3; i++) {
		if (!str_is_digit(code[i]))
			return http_receive_fail(call, E_HTTP_PROTOCOL, "answers without a status");
		x->status = x->status * 10 + (code[i] - '0');
	}
	if (x->status == HTTP_EXPECT_REFUSED)
		call->http->expects_nothing = true;
	/* 101: no other protocol was requested. */
	if (x->status < 100 || x->status == 101)
		return http_receive_fail(
			call, E_HTTP_PROTOCOL, "answers with a status that makes no sense");
	return 0;
}

/* Keeps what was declared: two different ones are an attempt to be understood in two ways (RFC
 * 9112 section 6.3). */
static int http_exchange_note_length(struct http_call *call, const char *text)
{
	struct http_exchange *x = &call->x;
	AUTO_ERR struct err ignored = {0};
	int64_t length;

	if (str_to_int(text, 0, INT64_MAX, "length", &length, &ignored) < 0)
		return http_receive_fail(
			call, E_HTTP_PROTOCOL, "gives a length that is not a number");
	if (x->has_length && x->length != (uint64_t)length)
		return http_receive_fail(call, E_HTTP_PROTOCOL, "gives two lengths of one answer");
	x->has_length = true;
	x->length = (uint64_t)length;
	return 0;
}

/* Obsolete: a line that begins with a blank goes on with the one before it (RFC 9112 section
 * 5.2). */
static void continue_header(struct http_call *call, const char *line)
{
	struct strv *headers = &call->response.headers;

	if (headers->n == 0)
		return;
	char *before = headers->v[headers->n - 1];
	headers->v[headers->n - 1] = mem_printf("%s %s", before, line + strspn(line, " \t"));
	free(before);
}

static int add_header(struct http_call *call, const char *line)
{
	size_t len = strcspn(line, ":");

	if (*line == ' ' || *line == '\t') {
		continue_header(call, line);
		return 0;
	}
	if (!line[len] || len == 0)
		return 0;
	AUTO_FREE char *name = str_lower(line, len);
	const char *value = line + len + 1;
	value += strspn(value, " \t");
	strv_addf(&call->response.headers, "%s: %s", name, value);
	return str_eq(name, "content-length") ? http_exchange_note_length(call, value) : 0;
}

static int end_headers(struct http_call *call)
{
	const struct http_exchange *x = &call->x;

	if (x->status < 200)
		return 0;
	call->x.headers_over = true;
	buf_done(&call->response.body);
	bool is_kept = is_success(call) && !call->request.data;
	buf_init(&call->response.body, is_kept ? call->request.max_body : HTTP_ERROR_BODY_MAX);
	if (is_kept && x->has_length && x->length > call->request.max_body &&
		!str_eq(call->request.method, "HEAD"))
		return http_receive_fail(call, E_HTTP_LIMIT, "sends a larger answer than is taken");
	return 0;
}

static void trim_end(char *s, const char *chars)
{
	size_t len = strlen(s);

	while (len > 0 && strchr(chars, s[len - 1]))
		s[--len] = '\0';
}

static int http_exchange_take_line(struct http_call *call, char *line)
{
	bool is_over = call->x.headers_over;

	/* Behind a 417 libcurl asks once more by itself. */
	if (str_starts(line, "HTTP/") && (!is_over || call->x.status == HTTP_EXPECT_REFUSED))
		return start_response(call, line);
	if (is_over)
		return 0; /* trailers of a chunked body */
	if (!*line)
		return end_headers(call);
	trim_end(line, " \t");
	return add_header(call, line);
}

static size_t on_header(char *data, size_t size, size_t n, void *ctx)
{
	struct http_call *call = ctx;
	size_t len = size * n;

	if (call->canceled)
		return 0;
	call->x.last_ms = clock_ms();
	call->x.header_bytes += len;
	if (call->x.header_bytes > HTTP_HEADERS_MAX) {
		http_receive_fail(call, E_HTTP_LIMIT, "sends more than 64 KiB of headers");
		return 0;
	}
	AUTO_FREE char *line = mem_strndup(data, len);
	trim_end(line, "\r\n");
	return http_exchange_take_line(call, line) < 0 ? 0 : len;
}

/*
 * The body
 */

static int http_exchange_give(struct http_call *call, const void *data, size_t len)
{
	AUTO_ERR struct err err = {0};
	int r = call->request.data(call->request.ctx, data, len, &err);

	if (r < 0)
		return err_move(&call->x.error, &err);
	call->recv_paused = call->recv_paused || r > 0;
	return 0;
}

int http_give_batch(struct http_call *call)
{
	struct buf *batch = &call->batch;

	if (batch->len == 0 || call->canceled)
		return 0;
	int r = http_exchange_give(call, batch->data, batch->len);
	buf_reset(batch);
	return r;
}

static bool http_exchange_batch_fits(const struct http_call *call, size_t len)
{
	return len <= HTTP_BATCH_MAX - call->batch.len;
}

/* Servers send logs line by line, each in a record of its own. */
static int http_exchange_take(struct http_call *call, const void *data, size_t len)
{
	if (!call->gathers || !http_exchange_batch_fits(call, len))
		return http_exchange_give(call, data, len);
	buf_add(&call->batch, data, len);
	return 0;
}

static size_t http_exchange_keep(struct http_call *call, const void *data, size_t len)
{
	struct buf *body = &call->response.body;

	buf_add(body, data, len);
	if (!body->full)
		return len;
	if (is_success(call))
		http_receive_fail(call, E_HTTP_LIMIT, "sends a larger answer than is taken");
	else
		call->x.cut = true;
	return 0;
}

static size_t on_write(char *data, size_t size, size_t n, void *ctx)
{
	struct http_call *call = ctx;
	size_t len = size * n;

	if (call->canceled || (!http_exchange_batch_fits(call, len) && http_give_batch(call) < 0))
		return 0;
	if (call->recv_paused)
		return CURL_WRITEFUNC_PAUSE;
	call->x.bytes_down += len;
	if (!is_success(call) || !call->request.data)
		return http_exchange_keep(call, data, len);
	return http_exchange_take(call, data, len) < 0 ? 0 : len;
}

static void http_receive_options(struct http_call *call)
{
	HTTP_SET(call, CURLOPT_HEADERFUNCTION, on_header);
	HTTP_SET(call, CURLOPT_HEADERDATA, call);
	HTTP_SET(call, CURLOPT_WRITEFUNCTION, on_write);
	HTTP_SET(call, CURLOPT_WRITEDATA, call);
}

/* RFC 9110 section 15.4. */

static bool can_send_again(const struct http_call *call)
{
	return !call->request.body.read || call->request.body.size == 0;
}

static bool is_followed(const struct http_call *call)
{
	const char *method = call->request.method;

	if (!call->request.follow)
		return false;
	switch (call->x.status) {
	case 301:
	case 302:
	case 303:
		return str_eq(method, "GET") || str_eq(method, "HEAD");
	case 307:
	case 308:
		return can_send_again(call);
	default:
		return false;
	}
}

int http_find_redirect(const struct http_call *call, struct url *ret, struct err *err)
{
	const char *location = field_find(&call->response.headers, "location");

	if (!is_followed(call) || !location)
		return 0;
	AUTO_FREE char *host = url_authority(&call->url);
	if (call->hops >= HTTP_REDIRECTS_MAX)
		return err_set(err, E_HTTP_REDIRECT, "%s redirects for the %dth time", host,
			HTTP_REDIRECTS_MAX + 1);
	AUTO_URL struct url url = {0};
	int r = url_resolve(&call->url, location, "the redirect", &url, err);
	if (r < 0)
		return err_prefix(err, "%s", host);
	if (call->url.tls && !url.tls) {
		AUTO_FREE char *to = url_authority(&url);
		return err_set(
			err, E_HTTP_REDIRECT, "%s redirects from https to http at %s", host, to);
	}
	*ret = url;
	url = (struct url){0};
	return 1;
}

/* Where a server sends us it may not send us further inwards than it is itself. What was for the
 * first origin stays away from all that come behind another one. */
void http_redirect(struct http_call *call, struct url *url)
{
	if (!call->request.has_zone) {
		call->request.has_zone = true;
		call->request.zone = call->response.zone;
	}
	if (!url_same_origin(&call->url, url)) {
		http_wipe(call->request.authorization);
		call->request.authorization = NULL;
		call->tls = http_tls_elsewhere(&call->tls);
	}
	url_done(&call->url);
	call->url = *url;
	call->hops++;
	call->recv_paused = call->send_paused = false;
	strv_done(&call->response.headers);
	buf_reset(&call->response.body);
}

static bool http_exchange_has_body(const struct http_call *call)
{
	const char *method = call->request.method;

	return call->request.body.size > 0 || str_eq(method, "POST") || str_eq(method, "PUT") ||
	       str_eq(method, "PATCH");
}

/* Every body goes as an upload: of a size that is known, without a type that nobody named. */
static void http_exchange_set_method(struct http_call *call)
{
	if (str_eq(call->request.method, "HEAD")) {
		HTTP_SET(call, CURLOPT_NOBODY, 1L);
		return;
	}
	if (http_exchange_has_body(call)) {
		HTTP_SET(call, CURLOPT_UPLOAD, 1L);
		HTTP_SET(call, CURLOPT_INFILESIZE_LARGE, (curl_off_t)call->request.body.size);
		HTTP_SET(call, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)HTTP_EXPECT_MS);
	}
	HTTP_SET(call, CURLOPT_CUSTOMREQUEST, call->request.method);
}

static void http_exchange_add_header(struct http_exchange *x, const char *line)
{
	size_t len = strcspn(line, ":");
	AUTO_FREE char *empty = NULL;

	/* "Name:" would take a header away in libcurl. */
	if (line[len] && line[len + 1 + strspn(line + len + 1, " \t")] == '\0')
		line = empty = mem_printf("%.*s;", (int)len, line);
	x->headers = curl_slist_append(x->headers, line);
}

static void add_authorization(struct http_call *call)
{
	if (!call->request.authorization)
		return;
	AUTO_FREE char *line = mem_printf("Authorization: %s", call->request.authorization);
	call->x.headers = curl_slist_append(call->x.headers, line);
	explicit_bzero(line, strlen(line));
}

static void set_headers(struct http_call *call)
{
	struct http_exchange *x = &call->x;

	add_authorization(call);
	if (call->request.body.size <= HTTP_EXPECT_MIN || call->http->expects_nothing)
		x->headers = curl_slist_append(x->headers, "Expect:");
	vec_foreach (char *, header, &call->headers)
		http_exchange_add_header(x, *header);
	HTTP_SET(call, CURLOPT_HTTPHEADER, x->headers);
	HTTP_SET(call, CURLOPT_USERAGENT, call->http->user_agent);
}

/* The proxy of the request or the environment's, for http_wipe; NULL: none. Ignores routes. */
static int http_find_proxy(const struct http_call *call, char **ret, struct err *err)
{
	const char *named = call->request.proxy;

	if (!named)
		return proxy_for(&call->http->proxy, &call->url, ret, err);
	if (!*named)
		return 0;
	AUTO_FREE char *what = mem_printf("the proxy for %s", call->url.host);
	return proxy_parse(named, what, ret, err);
}

/* Always set a proxy, or libcurl would read the environment itself. */
static int set_proxy(struct http_call *call, struct err *err)
{
	int r = call->x.route ? 0 : http_find_proxy(call, &call->x.proxy, err);

	if (r < 0)
		return r;
	HTTP_SET(call, CURLOPT_PROXY, call->x.proxy ? call->x.proxy : "");
	HTTP_SET(call, CURLOPT_NOPROXY, "");
	HTTP_SET(call, CURLOPT_PROXYAUTH, (long)CURLAUTH_BASIC);
	HTTP_SET(call, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	return 0;
}

static void set_basics(struct http_call *call)
{
	HTTP_SET(call, CURLOPT_PATH_AS_IS, 1L);
	HTTP_SET(call, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
	HTTP_SET(call, CURLOPT_PROTOCOLS_STR, "http,https");
	HTTP_SET(call, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
	HTTP_SET(call, CURLOPT_FOLLOWLOCATION, 0L);
	HTTP_SET(call, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	HTTP_SET(call, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
	HTTP_SET(call, CURLOPT_NOSIGNAL, 1L);
	/* A name lookup that hangs is left to its thread. */
	HTTP_SET(call, CURLOPT_QUICK_EXIT, 1L);
	HTTP_SET(call, CURLOPT_TCP_NODELAY, 1L);
	HTTP_SET(call, CURLOPT_CONNECTTIMEOUT_MS, (long)HTTP_CONNECT_MS);
	HTTP_SET(call, CURLOPT_ERRORBUFFER, call->x.errbuf);
	HTTP_SET(call, CURLOPT_PRIVATE, call);
}

/* libcurl reads the list and the target when it sends; the URL it has read. */
void http_exchange_authorize(struct http_call *call)
{
	add_authorization(call);
	if (call->retargeted)
		HTTP_SET(call, CURLOPT_REQUEST_TARGET, call->url.path);
	HTTP_SET(call, CURLOPT_HTTPHEADER, call->x.headers);
	call->x.start_ms = call->x.last_ms = clock_ms();
}

int http_exchange_init(struct http_call *call, struct err *err)
{
	struct http_exchange *x = &call->x;

	x->last_ms = clock_ms();
	x->start_ms = x->last_ms;
	x->fd = -1;
	x->was_held = call->held;
	x->easy = curl_easy_init();
	if (!x->easy)
		return err_set(err, E_BUG, "libcurl makes no request");
	x->route = http_find_route(call->http, &call->url);
	set_basics(call);
	http_exchange_set_method(call);
	set_headers(call);
	http_connect_options(call);
	http_send_options(call);
	http_receive_options(call);
	int r = set_proxy(call, err);
	if (r == 0)
		r = http_tls_options(call, err);
	if (r < 0)
		return r;
	if (x->route)
		http_route_options(call);
	return x->unset ? err_set(err, E_BUG, "libcurl does not take %s", x->unset) : 0;
}

static void free_curl(struct http_exchange *x)
{
	curl_easy_cleanup(x->easy);
	for (struct curl_slist *line = x->headers; line; line = line->next)
		explicit_bzero(line->data, strlen(line->data));
	curl_slist_free_all(x->headers);
	curl_slist_free_all(x->connect_to);
}

void http_exchange_done(struct http_exchange *x)
{
	/* Without a handle nothing of libcurl's is in use; it may not even be loaded. */
	if (x->easy)
		free_curl(x);
	http_wipe(x->proxy);
	err_done(&x->refused);
	err_done(&x->error);
	*x = (struct http_exchange){0};
}
