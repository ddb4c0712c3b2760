/* SPDX-License-Identifier: Apache-2.0 */
#include "net/httpd/httpd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/httpd_impl.h"
#include "net/stream/field.h"

static void httpd_has_idle(struct httpd *httpd);
static void httpd_conn_free(struct httpd_conn *conn);
static bool httpd_conn_is_idle(const struct httpd_conn *conn);
static void httpd_set_state(struct httpd_conn *conn, enum httpd_state state);
static void httpd_abandon(struct httpd_conn *conn);

#ifndef POLLRDHUP
#define POLLRDHUP 0 /* it is noticed when the response comes */
#endif

enum { SMALL = 4096 };

void httpd_wire_open(struct httpd_wire *wire, struct loop *loop, int fd,
	const struct loop_fd_ops *ops, void *ctx)
{
	*wire = (struct httpd_wire){.fd = fd};
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	buf_init(&wire->in, HTTPD_HEAD_MAX);
	buf_init(&wire->out, PTRDIFF_MAX);
	wire->source = loop_add_fd(loop, fd, ops, ctx);
}

int httpd_wire_take(struct httpd_wire *wire, struct loop *loop)
{
	int fd = wire->fd;

	wire->fd = -1;
	httpd_wire_close(wire, loop, false);
	return fd;
}

void httpd_wire_close(struct httpd_wire *wire, struct loop *loop, bool is_reset)
{
	const struct linger linger = {.l_onoff = 1};

	loop_remove_fd(loop, wire->source);
	if (wire->fd >= 0 && is_reset)
		(void)setsockopt(wire->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	auto_fd(&wire->fd);
	buf_done(&wire->in);
	buf_done(&wire->out);
	*wire = (struct httpd_wire){.fd = -1};
}

void httpd_wire_read(struct httpd_wire *wire)
{
	size_t len = wire->in.max - wire->in.len;

	if (wire->ended || len == 0)
		return;
	ssize_t n = recv(wire->fd, buf_reserve(&wire->in, len), len, 0);
	if (n > 0) {
		buf_added(&wire->in, (size_t)n);
	} else if (n == 0) {
		wire->ended = true;
	} else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
		wire->ended = wire->failed = wire->deaf = true;
	}
}

size_t httpd_wire_pending(const struct httpd_wire *wire)
{
	return wire->out.len - wire->out_at;
}

short httpd_wire_events(const struct httpd_wire *wire, bool reads)
{
	bool wants_read = reads && !wire->ended && wire->in.len < wire->in.max;
	bool wants_write = httpd_wire_pending(wire) > 0 && !wire->deaf;

	return (short)((wants_read ? POLLIN : 0) | (wants_write ? POLLOUT : 0));
}

void httpd_wire_add(struct httpd_wire *wire, const void *data, size_t len, bool is_chunk)
{
	if (is_chunk)
		buf_addf(&wire->out, "%zx\r\n", len);
	buf_add(&wire->out, data, len);
	if (is_chunk)
		buf_adds(&wire->out, "\r\n");
}

static void drop_out(struct httpd_wire *wire)
{
	buf_reset(&wire->out);
	wire->out_at = 0;
}

void httpd_wire_flush(struct httpd_wire *wire)
{
	while (httpd_wire_pending(wire) > 0 && !wire->deaf) {
		ssize_t n = send(wire->fd, wire->out.data + wire->out_at, httpd_wire_pending(wire),
			MSG_NOSIGNAL);
		if (n > 0)
			wire->out_at += (size_t)n;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else if (errno != EINTR)
			wire->deaf = true;
	}
	if (wire->deaf || httpd_wire_pending(wire) == 0)
		drop_out(wire);
	/* Not before it is worth it: each byte is moved once or twice. */
	if (wire->out_at > wire->out.len / 2) {
		buf_consume(&wire->out, wire->out_at);
		wire->out_at = 0;
	}
}

static void httpd_trim(struct buf *buf)
{
	size_t max = buf->max;

	if (buf->len > 0 || buf->cap <= SMALL)
		return;
	buf_done(buf);
	buf_init(buf, max);
}

/* Memory of buffers that are empty. */
static void httpd_wire_trim(struct httpd_wire *wire)
{
	if (wire->fd < 0)
		return;
	httpd_trim(&wire->in);
	httpd_trim(&wire->out);
}

/*
 * Bodies
 */

void httpd_meter_start(struct httpd_meter *meter, const struct httpd_head *head)
{
	*meter = (struct httpd_meter){
		.body = head->body, .left = head->length, .over = head->body == HTTPD_BODY_NONE};
}

int httpd_meter_feed(
	struct httpd_meter *meter, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	*ret_used = 0;
	if (meter->over)
		return 0;
	if (meter->body == HTTPD_BODY_CHUNKED) {
		int r = httpd_chunks_feed(&meter->chunks, data, len, ret_used, err);
		meter->over = r > 0;
		return r < 0 ? r : 0;
	}
	if (meter->body == HTTPD_BODY_LENGTH) {
		len = meter->left < len ? (size_t)meter->left : len;
		meter->left -= len;
		meter->over = meter->left == 0;
	}
	*ret_used = len;
	return 0;
}

/*
 * Whether the system tells the owner: tested on connections of this process to itself
 */

enum peer_owner { OWNER_KNOWN, OWNER_UNKNOWN, NO_FAMILY };

/* At any port of this machine's own address. */
static int listen_here(int family, struct sockaddr_storage *ret, socklen_t *ret_len)
{
	const struct sockaddr_in ip4 = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct sockaddr_in6 ip6 = {
		.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	AUTO_FD int fd = socket(family, SOCK_STREAM, 0);

	*ret_len = family == AF_INET ? sizeof(ip4) : sizeof(ip6);
	memcpy(ret, family == AF_INET ? (const void *)&ip4 : (const void *)&ip6, *ret_len);
	if (fd < 0 || bind(fd, (struct sockaddr *)ret, *ret_len) < 0 || listen(fd, 1) < 0 ||
		getsockname(fd, (struct sockaddr *)ret, ret_len) < 0)
		return -errno;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	return TAKE_FD(fd);
}

static enum peer_owner probe_family(int family)
{
	struct sockaddr_storage address = {0};
	socklen_t len;
	uid_t uid;
	AUTO_FD int listening = listen_here(family, &address, &len);
	AUTO_FD int client = socket(family, SOCK_STREAM, 0);

	if (listening == -EAFNOSUPPORT || listening == -EPROTONOSUPPORT ||
		listening == -EADDRNOTAVAIL)
		return NO_FAMILY;
	if (listening < 0 || client < 0 || connect(client, (struct sockaddr *)&address, len) < 0)
		return OWNER_UNKNOWN;
	AUTO_FD int fd = accept(listening, NULL, NULL);
	return fd >= 0 && os_peer_uid(fd, &uid) > 0 && uid == geteuid() ? OWNER_KNOWN
									: OWNER_UNKNOWN;
}

bool httpd_peers_are_known(void)
{
	enum peer_owner ip4 = probe_family(AF_INET), ip6 = probe_family(AF_INET6);

	return ip4 != OWNER_UNKNOWN && ip6 != OWNER_UNKNOWN &&
	       (ip4 == OWNER_KNOWN || ip6 == OWNER_KNOWN);
}

/*
 * Check of a connection
 */

/* A client that has gone already has no owner that could be checked, and needs no response. */
static bool httpd_peer_is_welcome(const struct httpd *httpd, int fd, const char *peer)
{
	uid_t uid;

	int r = os_peer_uid(fd, &uid);
	if ((r < 0 && !httpd->knows_peers) || (r > 0 && (uid == geteuid() || uid == 0)))
		return true;
	if (r > 0)
		httpd_notice(httpd, "a connection of another user of this machine (%u) is refused",
			(unsigned)uid);
	else if (r < 0)
		httpd_notice(httpd,
			"a connection from %s is refused: the system does not tell whose it is",
			peer);
	else
		httpd_notice(httpd, "a connection from %s is refused: it belongs to nobody", peer);
	return false;
}

/*
 * The exchange
 */

void httpd_on_gone(struct httpd_exchange *exchange, void (*gone)(void *ctx), void *ctx)
{
	exchange->gone = gone;
	exchange->gone_ctx = ctx;
}

void httpd_on_writable(struct httpd_exchange *exchange, void (*writable)(void *ctx), void *ctx)
{
	exchange->writable = writable;
	exchange->writable_ctx = ctx;
}

/* Drop what has arrived of an unwanted body; whether that was all of it. */
static bool httpd_body_drop(struct httpd_exchange *exchange)
{
	struct buf *in = &exchange->conn->client.in;
	size_t used = 0;

	if (httpd_meter_feed(&exchange->body, in->data, in->len, &used, NULL) < 0)
		return false;
	buf_consume(in, used);
	return exchange->body.over;
}

void httpd_exchange_end(struct httpd_exchange *exchange, bool is_cut)
{
	exchange->is_over = exchange->is_released = true;
	exchange->is_cut = exchange->is_cut || is_cut;
	httpd_conn_wake(exchange->conn);
}

static void httpd_exchange_done(struct httpd_exchange *exchange)
{
	httpd_relay_free(exchange->relay);
	httpd_head_done(&exchange->head);
	*exchange = (struct httpd_exchange){0};
}

/*
 * Heads
 */

static bool httpd_has_body(const struct httpd_exchange *exchange, int status)
{
	return status >= 200 && status != 204 && status != 304 &&
	       !str_eq(exchange->head.method, "HEAD");
}

static enum httpd_mode choose_mode(
	const struct httpd_exchange *exchange, int status, int64_t length)
{
	if (!httpd_has_body(exchange, status))
		return HTTPD_MODE_NONE;
	if (length >= 0)
		return HTTPD_MODE_LENGTH;
	return exchange->head.is_http_1_0 ? HTTPD_MODE_TO_END : HTTPD_MODE_CHUNKED;
}

/* RFC 9110, section 5.6.7; strftime would take the words of the locale. */
static void add_date(struct buf *out)
{
	static const char days[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
	static const char months[][4] = {
		"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
	time_t now = (time_t)(clock_wall_ms() / 1000);
	struct tm tm;

	if (!gmtime_r(&now, &tm))
		return;
	buf_addf(out, "Date: %s, %02d %s %d %02d:%02d:%02d GMT\r\n", days[tm.tm_wday], tm.tm_mday,
		months[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
}

static bool httpd_field_is(const char *header, const char *name)
{
	size_t len = strlen(name);

	return strncasecmp(header, name, len) == 0 && header[len] == ':';
}

static bool has_field(const struct strv *headers, const char *name)
{
	for (size_t i = 0; headers && i < headers->n; i++)
		if (httpd_field_is(headers->v[i], name))
			return true;
	return false;
}

/* A header that would be more than this one field is left out. */
static bool is_one_field(const char *header)
{
	return strchr(header, ':') && header[strcspn(header, "\r\n")] == '\0';
}

static bool httpd_is_own_field(const char *header)
{
	static const char *const names[] = {
		"Content-Length", "Transfer-Encoding", "Connection", "Date"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (httpd_field_is(header, names[i]))
			return true;
	return false;
}

static void add_fields(struct buf *out, const struct strv *headers)
{
	static const struct {
		const char *name, *value;
	} usual[] = {
		{"X-Content-Type-Options", "nosniff"},
		{"Referrer-Policy", "no-referrer"},
	};

	for (size_t i = 0; headers && i < headers->n; i++)
		if (is_one_field(headers->v[i]) && !httpd_is_own_field(headers->v[i]))
			buf_addf(out, "%s\r\n", headers->v[i]);
	for (size_t i = 0; i < ARRAY_LEN(usual); i++)
		if (!has_field(headers, usual[i].name))
			buf_addf(out, "%s: %s\r\n", usual[i].name, usual[i].value);
}

static void add_framing(
	struct buf *out, const struct httpd_exchange *exchange, int status, int64_t length)
{
	if (exchange->mode == HTTPD_MODE_CHUNKED)
		buf_adds(out, "Transfer-Encoding: chunked\r\n");
	else if (length >= 0 && status >= 200 && status != 204 && status != 304)
		buf_addf(out, "Content-Length: %" PRId64 "\r\n", length);
	buf_addf(out, "Connection: %s\r\n\r\n", exchange->closes ? "close" : "keep-alive");
}

static void httpd_add_head(
	struct httpd_exchange *exchange, int status, const struct strv *headers, int64_t length)
{
	struct buf *out = &exchange->conn->client.out;

	exchange->mode = choose_mode(exchange, status, length);
	exchange->left = length > 0 ? (uint64_t)length : 0;
	exchange->closes = exchange->closes || !exchange->head.keeps_open ||
			   exchange->mode == HTTPD_MODE_TO_END || !httpd_body_drop(exchange);
	buf_addf(out, "HTTP/1.1 %d %s\r\n", status, httpd_reason(status));
	add_date(out);
	add_fields(out, headers);
	add_framing(out, exchange, status, length);
}

static void httpd_write_response(struct httpd_exchange *exchange, int status,
	const struct strv *headers, const void *data, size_t len)
{
	httpd_add_head(exchange, status, headers, (int64_t)len);
	if (exchange->mode != HTTPD_MODE_NONE)
		buf_add(&exchange->conn->client.out, data, len);
}

/*
 * Pages
 */

static void httpd_add_text(struct buf *out, const char *text)
{
	static const struct {
		char c;
		const char *written;
	} escapes[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"},
		{'\'', "&#39;"}, {'\n', "<br>"}};

	for (size_t n; *text; text += n) {
		const char *written = NULL;

		n = str_utf8_len(text, strlen(text));
		for (size_t i = 0; i < ARRAY_LEN(escapes); i++)
			if (*text == escapes[i].c)
				written = escapes[i].written;
		if (written)
			buf_adds(out, written);
		else if (n == 0 || (unsigned char)*text < 0x20 || *text == 0x7f)
			buf_addc(out, '?');
		else
			buf_add(out, text, n);
		n = n == 0 ? 1 : n;
	}
}

/* header: one more field, or NULL. */
static void write_page(struct httpd_exchange *exchange, int status, const char *header,
	const char *what, const char *hint)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_BUF struct buf page = buf_with(HTTPD_PENDING);

	if (header)
		strv_add(&headers, header);
	strv_add(&headers, "Content-Type: text/html; charset=utf-8");
	strv_add(&headers, "Cache-Control: no-store");
	strv_add(&headers, "Content-Security-Policy: default-src 'none'; base-uri 'none'; "
			   "form-action 'none'; frame-ancestors 'self'");
	buf_addf(&page,
		"<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
		"<title>dlrun: %d %s</title>\n<h1>%d %s</h1>\n<p>",
		status, httpd_reason(status), status, httpd_reason(status));
	httpd_add_text(&page, what);
	buf_adds(&page, "</p>\n");
	if (hint) {
		buf_adds(&page, "<p>");
		httpd_add_text(&page, hint);
		buf_adds(&page, "</p>\n");
	}
	httpd_write_response(exchange, status, &headers, page.data, page.len);
}

void httpd_refuse(struct httpd_exchange *exchange, int status, const char *what, const char *hint)
{
	write_page(exchange, status, NULL, what, hint);
	httpd_exchange_end(exchange, false);
}

/* The same with one more field. Input after it is ignored. */
static void httpd_refuse_with(
	struct httpd_exchange *exchange, int status, const char *header, const char *what)
{
	exchange->closes = true;
	write_page(exchange, status, header, what, NULL);
	httpd_exchange_end(exchange, false);
}

/* Responses of dlrun itself are for its own pages. */
static bool refuse_origin(struct httpd_exchange *exchange)
{
	if (exchange->is_origin_right)
		return false;
	write_page(exchange, 403, NULL, "a page of another origin has asked for this", NULL);
	exchange->mode = HTTPD_MODE_NONE;
	return true;
}

/*
 * Responses
 */

void httpd_respond(struct httpd_exchange *exchange, int status, const struct strv *headers,
	const void *data, size_t len)
{
	if (!refuse_origin(exchange))
		httpd_write_response(exchange, status, headers, data, len);
	httpd_exchange_end(exchange, false);
}

void httpd_begin(
	struct httpd_exchange *exchange, int status, const struct strv *headers, int64_t length)
{
	if (!refuse_origin(exchange))
		httpd_add_head(exchange, status, headers, length);
	httpd_conn_wake(exchange->conn);
}

/* Data beyond the announced length would be read as the next response. */
bool httpd_write(struct httpd_exchange *exchange, const void *data, size_t len)
{
	if (exchange->mode == HTTPD_MODE_LENGTH) {
		exchange->is_cut = exchange->is_cut || len > exchange->left;
		len = len > exchange->left ? (size_t)exchange->left : len;
		exchange->left -= len;
	}
	if (exchange->mode != HTTPD_MODE_NONE && len > 0)
		httpd_wire_add(
			&exchange->conn->client, data, len, exchange->mode == HTTPD_MODE_CHUNKED);
	httpd_conn_wake(exchange->conn);
	exchange->is_full = httpd_wire_pending(&exchange->conn->client) > HTTPD_PENDING;
	return !exchange->is_full;
}

void httpd_end(struct httpd_exchange *exchange, bool cut)
{
	bool is_short = exchange->mode == HTTPD_MODE_LENGTH && exchange->left > 0;

	if (exchange->mode == HTTPD_MODE_CHUNKED && !cut)
		buf_adds(&exchange->conn->client.out, "0\r\n\r\n");
	httpd_exchange_end(exchange, cut || is_short);
}

static bool is_connect(const struct httpd_exchange *exchange)
{
	return str_eq(exchange->head.method, "CONNECT");
}

/* Find the host and port that the request is for; false: not a name of this machine. */
static bool find_host(
	const struct httpd_exchange *exchange, char ret[static HTTPD_HOST_MAX], uint16_t *ret_port)
{
	const struct httpd *httpd = exchange->conn->httpd;
	const char *host = field_find(&exchange->head.headers, "host");

	if (is_connect(exchange))
		return httpd_host_split(exchange->head.target, ret, ret_port);
	*ret_port = httpd_port(httpd);
	ret[0] = '\0';
	if (httpd->is_public)
		return true;
	return httpd_host_is_here(host, *ret_port, ret);
}

/* Input after a refused request is ignored. */
static void httpd_forbid(struct httpd_exchange *exchange, const char *what, const char *hint)
{
	exchange->closes = true;
	httpd_refuse(exchange, 403, what, hint);
}

static void refuse_host(struct httpd_exchange *exchange)
{
	const char *host = is_connect(exchange) ? exchange->head.target
						: field_find(&exchange->head.headers, "host");
	AUTO_FREE char *shown = str_shown(host);

	httpd_notice(exchange->conn->httpd, "a request for the host %s is refused", shown);
	httpd_forbid(exchange, "this is not a server for that name",
		"open the address that dlrun has shown, with its port");
}

static void httpd_refuse_request_origin(struct httpd_exchange *exchange)
{
	const char *origin = field_find(&exchange->head.headers, "origin");
	AUTO_FREE char *shown = str_shown(origin ? origin : "another site");

	httpd_notice(exchange->conn->httpd, "a request from a page of %s is refused", shown);
	httpd_forbid(exchange, "another site's page has asked for this",
		"paste the address into the address bar of the browser");
}

/* To the same URL without the token, which the cookie stands for from then on. The name is written
 * out: a path may begin with "//", and would be one. */
static void httpd_redirect(struct httpd_exchange *exchange, const char *host)
{
	const struct httpd *httpd = exchange->conn->httpd;
	const struct httpd_head *head = &exchange->head;
	AUTO_FREE char *cookie = httpd_token_cookie(httpd->token, host, httpd_port(httpd));
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "Location: http://%s%s", field_find(&head->headers, "host"),
		head->target);
	strv_addf(&headers, "Set-Cookie: %s", cookie);
	strv_add(&headers, "Cache-Control: no-store");
	/* A link that leads here over another name of this machine is still one from there. */
	strv_add(&headers, "Referrer-Policy: origin");
	httpd_respond(exchange, 307, &headers, "", 0);
}

static void refuse_token(struct httpd_exchange *exchange)
{
	httpd_notice(exchange->conn->httpd, "a request without the token is refused");
	if (is_connect(exchange) || exchange->head.is_absolute) {
		httpd_refuse_with(exchange, 407, "Proxy-Authenticate: Basic realm=\"dlrun\"",
			"this proxy needs a token as its password: take the address that dlrun has "
			"printed where it was started");
	} else {
		httpd_forbid(exchange,
			"this address needs a token: open the URL that dlrun has printed where it "
			"was started",
			NULL);
	}
}

/* Whether the request goes on; else it is answered. */
static bool check_token(struct httpd_exchange *exchange, const char *host)
{
	const struct httpd *httpd = exchange->conn->httpd;
	struct httpd_proof proof;

	if (!httpd_token(httpd))
		return true;
	httpd_token_take(httpd->token, host, httpd_port(httpd), &exchange->head, &proof);
	/* No WebSocket follows where it is led to. */
	bool is_led = proof.was_in_url && !exchange->head.is_upgrade;
	if (is_led && (proof.url_is_right || proof.field_is_right))
		httpd_redirect(exchange, host);
	else if (!proof.field_is_right)
		refuse_token(exchange);
	return proof.field_is_right && !is_led;
}

/* Whether it is one that anybody may make; else it is answered. */
static bool httpd_is_read_only(struct httpd_exchange *exchange)
{
	const struct httpd_head *head = &exchange->head;

	if (!str_eq(head->method, "GET") && !str_eq(head->method, "HEAD"))
		httpd_refuse_with(exchange, 405, "Allow: GET, HEAD", "this can only be read");
	else if (head->body != HTTPD_BODY_NONE)
		httpd_refuse_with(exchange, 413, NULL, "a request here has no body");
	else
		return true;
	return false;
}

/* Call the caller's `request` unless the request is refused. */
static void httpd_dispatch(struct httpd_exchange *exchange)
{
	struct httpd *httpd = exchange->conn->httpd;
	const struct httpd_head *head = &exchange->head;
	char host[HTTPD_HOST_MAX];
	struct httpd_request request = {.method = head->method,
		.host = host,
		.headers = &head->headers,
		.is_connect = is_connect(exchange),
		.is_upgrade = head->is_upgrade && !httpd->is_public};

	if (httpd->is_public && !httpd_is_read_only(exchange))
		return;
	if (!find_host(exchange, host, &request.port)) {
		refuse_host(exchange);
		return;
	}
	if (!httpd_origin_is_right(head, !httpd->is_public)) {
		httpd_refuse_request_origin(exchange);
		return;
	}
	exchange->is_origin_right = httpd_origin_is_right(head, false);
	if (!check_token(exchange, host))
		return;
	request.target = head->target;
	httpd->options.request(httpd->options.ctx, exchange, &request);
}

static void httpd_request_begin(struct httpd_conn *conn)
{
	httpd_set_state(conn, HTTPD_WORKS);
	conn->exchange = (struct httpd_exchange){.conn = conn};
}

/* Take what is there of a request. Whether something was done. */
static bool httpd_request_take(struct httpd_conn *conn)
{
	AUTO_ERR struct err err = {0};
	struct buf *in = &conn->client.in;
	struct httpd_head head;
	size_t used;
	int status;

	/* The next one waits until the response before it has been taken. */
	if (httpd_wire_pending(&conn->client) > 0)
		return false;
	int r = httpd_request_parse(in->data, in->len, &head, &used, &status, &err);
	if (r == 0) {
		conn->is_dead = conn->client.ended;
		return false;
	}
	httpd_request_begin(conn);
	if (r < 0) {
		httpd_notice(conn->httpd, "a request is refused: %s", err.message);
		httpd_refuse(&conn->exchange, status, err.message, NULL);
		return true;
	}
	buf_consume(in, used);
	conn->exchange.head = head;
	httpd_meter_start(&conn->exchange.body, &head);
	httpd_dispatch(&conn->exchange);
	return true;
}

/*
 * Time
 */

static int64_t httpd_deadline_of(const struct httpd_conn *conn)
{
	if (conn->state == HTTPD_LINGERS)
		return conn->since_ms + HTTPD_LINGER_MS;
	if (conn->state == HTTPD_WORKS && !conn->httpd->is_public)
		return INT64_MAX;
	if (conn->state == HTTPD_WORKS || conn->client.in.len > 0)
		return conn->since_ms + conn->httpd->head_ms;
	return conn->since_ms + HTTPD_IDLE_MS;
}

static int httpd_timer_due(void *ctx, struct err *err);

/* A timer that is too early is kept: httpd_timer_due checks the deadline, and sets it again. */
static void httpd_set_timer(struct httpd_conn *conn)
{
	int64_t at_ms = httpd_deadline_of(conn);

	if (at_ms == INT64_MAX || (conn->timer && conn->timer_ms <= at_ms))
		return;
	loop_remove_timer(conn->httpd->options.loop, conn->timer);
	conn->timer = loop_add_timer(conn->httpd->options.loop, at_ms, httpd_timer_due, conn);
	conn->timer_ms = at_ms;
}

static int httpd_timer_due(void *ctx, struct err *err UNUSED)
{
	struct httpd_conn *conn = ctx;

	conn->timer = NULL;
	if (clock_ms() >= httpd_deadline_of(conn)) {
		if (conn->state == HTTPD_WAITS && conn->client.in.len > 0) {
			httpd_request_begin(conn);
			httpd_refuse(
				&conn->exchange, 408, "the request did not come in time", NULL);
		} else if (conn->state == HTTPD_WORKS) {
			httpd_abandon(conn);
		} else {
			conn->is_dead = true;
		}
	}
	httpd_conn_turn(conn);
	return 0;
}

static int httpd_wake_due(void *ctx, struct err *err UNUSED)
{
	struct httpd_conn *conn = ctx;

	conn->wake = NULL;
	httpd_conn_turn(conn);
	return 0;
}

void httpd_conn_wake(struct httpd_conn *conn)
{
	conn->goes_on = true;
	if (!conn->is_turning && !conn->wake)
		conn->wake =
			loop_add_timer(conn->httpd->options.loop, clock_ms(), httpd_wake_due, conn);
}

/*
 * States of a connection
 */

static void httpd_set_state(struct httpd_conn *conn, enum httpd_state state)
{
	conn->state = state;
	conn->since_ms = clock_ms();
}

/* The response was written. What the other side still sends is read, or it would be told of a reset
 * before it has read the response. */
static void linger(struct httpd_conn *conn)
{
	bool needs_reset = conn->exchange.is_cut && conn->exchange.mode == HTTPD_MODE_TO_END;

	httpd_exchange_done(&conn->exchange);
	if (needs_reset || shutdown(conn->client.fd, SHUT_WR) < 0)
		conn->is_dead = true;
	if (needs_reset)
		httpd_wire_close(&conn->client, conn->httpd->options.loop, true);
	httpd_set_state(conn, HTTPD_LINGERS);
}

static bool end_exchange(struct httpd_conn *conn)
{
	struct httpd_exchange *exchange = &conn->exchange;

	httpd_relay_settle(conn);
	if (exchange->closes || exchange->is_cut || !httpd_body_drop(exchange)) {
		linger(conn);
		return true;
	}
	httpd_exchange_done(exchange);
	httpd_set_state(conn, HTTPD_WAITS);
	return true;
}

/* A client that has ended its direction does not wait for a response. */
static bool has_left(const struct httpd_conn *conn)
{
	return conn->client.deaf || (conn->client.ended && !conn->exchange.is_over);
}

static void httpd_abandon(struct httpd_conn *conn)
{
	struct httpd_exchange *exchange = &conn->exchange;

	conn->is_dead = true;
	if (!exchange->is_released && exchange->gone)
		exchange->gone(exchange->gone_ctx);
	exchange->is_released = true;
}

static void httpd_notify_writable(struct httpd_exchange *exchange)
{
	if (!exchange->is_full || exchange->is_released || !exchange->writable ||
		httpd_wire_pending(&exchange->conn->client) > HTTPD_PENDING / 2)
		return;
	exchange->is_full = false;
	exchange->writable(exchange->writable_ctx);
}

static bool httpd_work(struct httpd_conn *conn)
{
	struct httpd_exchange *exchange = &conn->exchange;
	bool goes_on = false;

	if (has_left(conn)) {
		httpd_abandon(conn);
		return false;
	}
	if (exchange->relay && !exchange->is_over)
		goes_on = httpd_relay_step(conn);
	else
		httpd_notify_writable(exchange);
	if (conn->is_dead)
		return false;
	size_t waiting = httpd_wire_pending(&conn->client);
	httpd_wire_flush(&conn->client);
	if (exchange->is_over && httpd_wire_pending(&conn->client) == 0)
		return end_exchange(conn);
	/* Room that the flush has made may be announced by no event. */
	return goes_on || httpd_wire_pending(&conn->client) < waiting;
}

static bool httpd_step(struct httpd_conn *conn)
{
	httpd_wire_flush(&conn->client);
	if (conn->state == HTTPD_WORKS)
		return httpd_work(conn);
	if (conn->state == HTTPD_WAITS && !conn->client.deaf)
		return httpd_request_take(conn);
	buf_reset(&conn->client.in);
	conn->is_dead = conn->is_dead || conn->client.ended || conn->client.deaf;
	return false;
}

/* Memory that may not be needed for long. */
static void rest(struct httpd_conn *conn)
{
	httpd_wire_trim(&conn->client);
	httpd_wire_trim(&conn->program);
	if (httpd_conn_is_idle(conn))
		httpd_has_idle(conn->httpd);
	httpd_set_timer(conn);
}

void httpd_conn_turn(struct httpd_conn *conn)
{
	bool goes_on = true;

	conn->is_turning = true;
	for (int i = 0; goes_on && !conn->is_dead && i < HTTPD_TURNS_MAX; i++) {
		conn->goes_on = false;
		goes_on = httpd_step(conn) || conn->goes_on;
	}
	conn->is_turning = false;
	if (conn->is_dead) {
		httpd_conn_free(conn);
		return;
	}
	if (goes_on)
		httpd_conn_wake(conn);
	rest(conn);
}

/*
 * The loop
 */

/* Where it has sent more than is read ahead of its response, its end cannot be read. */
static bool is_full(const struct httpd_conn *conn)
{
	const struct httpd_wire *wire = &conn->client;

	return wire->in.len == wire->in.max && !wire->ended && conn->state == HTTPD_WORKS &&
	       !conn->exchange.is_over;
}

static short prepare_client(void *ctx)
{
	const struct httpd_conn *conn = ctx;

	return (short)(httpd_wire_events(&conn->client, true) | (is_full(conn) ? POLLRDHUP : 0));
}

static int dispatch_client(void *ctx, short revents, struct err *err UNUSED)
{
	struct httpd_conn *conn = ctx;
	bool was_empty = conn->client.in.len == 0;

	if (is_full(conn) && (revents & (POLLRDHUP | POLLHUP | POLLERR)))
		conn->client.ended = true;
	if (revents & ~POLLOUT)
		httpd_wire_read(&conn->client);
	if (conn->state == HTTPD_WAITS && was_empty && conn->client.in.len > 0)
		conn->since_ms = clock_ms();
	httpd_conn_turn(conn);
	return 0;
}

static const struct loop_fd_ops client_ops = {
	.prepare = prepare_client, .dispatch = dispatch_client};

/*
 * Connections
 */

/* Whether it only waits for another request. */
static bool httpd_conn_is_idle(const struct httpd_conn *conn)
{
	return conn->state == HTTPD_WAITS && conn->client.in.len == 0 &&
	       httpd_wire_pending(&conn->client) == 0;
}

static void httpd_conn_new(struct httpd *httpd, int fd)
{
	struct httpd_conn *conn = mem_alloc(1, sizeof(*conn));

	conn->httpd = httpd;
	conn->program.fd = -1;
	httpd_wire_open(&conn->client, httpd->options.loop, fd, &client_ops, conn);
	conn->next = httpd->conns;
	if (httpd->conns)
		httpd->conns->before = conn;
	httpd->conns = conn;
	httpd->n++;
	httpd_set_state(conn, HTTPD_WAITS);
	httpd_set_timer(conn);
}

static void httpd_conn_free(struct httpd_conn *conn)
{
	struct httpd *httpd = conn->httpd;
	struct loop *loop = httpd->options.loop;
	bool is_reset = conn->state == HTTPD_WORKS;

	if (conn->next)
		conn->next->before = conn->before;
	if (conn->before)
		conn->before->next = conn->next;
	else
		httpd->conns = conn->next;
	loop_remove_timer(loop, conn->timer);
	loop_remove_timer(loop, conn->wake);
	httpd_exchange_done(&conn->exchange);
	httpd_wire_close(&conn->client, loop, is_reset);
	httpd_wire_close(&conn->program, loop, is_reset);
	free(conn->key);
	free(conn);
	httpd_release(httpd);
}

void httpd_notice(const struct httpd *httpd, const char *format, ...)
{
	va_list args;

	if (!httpd->options.notice)
		return;
	va_start(args, format);
	AUTO_FREE char *text = mem_vprintf(format, args);
	va_end(args);
	httpd->options.notice(httpd->options.ctx, text);
}

/*
 * The number of connections
 */

static void httpd_hold(struct httpd *httpd, bool is_held)
{
	httpd->is_held = is_held;
	if (httpd->listener)
		listener_hold(httpd->listener, is_held);
}

void httpd_release(struct httpd *httpd)
{
	httpd->n--;
	httpd_hold(httpd, false);
}

/* An idle connection may give way. */
static void httpd_has_idle(struct httpd *httpd)
{
	if (httpd->is_held)
		httpd_hold(httpd, false);
}

/* The one but the newest that has waited longest for another request. With anybody there, the one
 * that has waited longest for whatever it be: the others would wait for who wants to be slow. */
static struct httpd_conn *httpd_find_oldest(const struct httpd *httpd)
{
	struct httpd_conn *found = NULL;

	for (struct httpd_conn *conn = httpd->conns->next; conn; conn = conn->next)
		if ((httpd->is_public || httpd_conn_is_idle(conn)) && !conn->is_turning &&
			(!found || conn->since_ms <= found->since_ms))
			found = conn;
	return found;
}

/* When there is a new one another one ends, or where all are at work further ones wait in the
 * system's queue. */
static void httpd_limit_conns(struct httpd *httpd)
{
	if (httpd->n < httpd->conns_max)
		return;
	struct httpd_conn *conn = httpd_find_oldest(httpd);
	if (!conn) {
		httpd_hold(httpd, true);
		return;
	}
	httpd_abandon(conn);
	httpd_conn_free(conn);
}

static int httpd_on_accept(void *ctx, int fd, const char *peer, struct err *err UNUSED)
{
	struct httpd *httpd = ctx;

	if (!httpd->is_public && !httpd_peer_is_welcome(httpd, fd, peer)) {
		close(fd);
		return 0;
	}
	httpd_conn_new(httpd, fd);
	httpd_limit_conns(httpd);
	return 0;
}

/*
 * The server
 */

int httpd_open(const struct httpd_options *options, struct httpd **ret, struct err *err)
{
	struct httpd *httpd = mem_alloc(1, sizeof(*httpd));
	const struct listen_options listening = {.loop = options->loop,
		.address = options->address,
		.port = options->port,
		.is_exact = options->is_exact,
		.accept = httpd_on_accept,
		.ctx = httpd};

	httpd->options = *options;
	httpd->is_public = options->address != NULL;
	httpd->options.address = NULL;
	httpd->head_ms =
		httpd->is_public && options->public_ms ? options->public_ms : HTTPD_HEAD_MS;
	httpd->conns_max = httpd->is_public ? HTTPD_PUBLIC_CONNS_MAX : HTTPD_CONNS_MAX;
	httpd->knows_peers = httpd->is_public || httpd_peers_are_known();
	if (!httpd->knows_peers && !options->has_secret)
		httpd_token_make(httpd->token);
	int r = listener_open(&listening, &httpd->listener, err);
	if (r < 0) {
		free(httpd);
		return r;
	}
	*ret = httpd;
	return 0;
}

void httpd_free(struct httpd *httpd)
{
	if (!httpd)
		return;
	listener_free(TAKE(httpd->listener));
	while (httpd->conns)
		httpd_conn_free(httpd->conns);
	while (httpd->tunnels) {
		struct httpd_tunnel *tunnel = httpd->tunnels;

		pump_cancel(tunnel->pump);
		httpd_tunnel_free(tunnel);
	}
	free(httpd);
}

uint16_t httpd_port(const struct httpd *httpd)
{
	return listener_port(httpd->listener);
}

const char *httpd_token(const struct httpd *httpd)
{
	return *httpd->token ? httpd->token : NULL;
}
