/* SPDX-License-Identifier: Apache-2.0 */
#include "net/httpd/front.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/front_impl.h"
#include "net/stream/field.h"

static void front_has_idle(struct front *front);
static void front_conn_free(struct front_conn *conn);
static bool front_conn_is_idle(const struct front_conn *conn);

enum { SMALL = 4096 };

void front_wire_open(struct front_wire *wire, struct loop *loop, int fd,
	const struct loop_fd_ops *ops, void *ctx)
{
	*wire = (struct front_wire){.fd = fd};
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	buf_init(&wire->in, FRONT_HEAD_MAX);
	buf_init(&wire->out, PTRDIFF_MAX);
	wire->source = loop_add_fd(loop, fd, ops, ctx);
}

int front_wire_take(struct front_wire *wire, struct loop *loop)
{
	int fd = wire->fd;

	wire->fd = -1;
	front_wire_close(wire, loop, false);
	return fd;
}

void front_wire_close(struct front_wire *wire, struct loop *loop, bool is_reset)
{
	const struct linger linger = {.l_onoff = 1};

	loop_remove_fd(loop, wire->source);
	if (wire->fd >= 0 && is_reset)
		(void)setsockopt(wire->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	auto_fd(&wire->fd);
	buf_done(&wire->in);
	buf_done(&wire->out);
	*wire = (struct front_wire){.fd = -1};
}

void front_wire_read(struct front_wire *wire)
{
	size_t len = wire->in.max - wire->in.len;

	if (wire->ended || len == 0)
		return;
	ssize_t n = recv(wire->fd, buf_room(&wire->in, len), len, 0);
	if (n > 0) {
		buf_added(&wire->in, (size_t)n);
	} else if (n == 0) {
		wire->ended = true;
	} else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
		wire->ended = wire->failed = wire->deaf = true;
	}
}

size_t front_wire_pending(const struct front_wire *wire)
{
	return wire->out.len - wire->out_at;
}

static void drop_out(struct front_wire *wire)
{
	buf_reset(&wire->out);
	wire->out_at = 0;
}

void front_wire_flush(struct front_wire *wire)
{
	while (front_wire_pending(wire) > 0 && !wire->deaf) {
		ssize_t n = send(wire->fd, wire->out.data + wire->out_at, front_wire_pending(wire),
			MSG_NOSIGNAL);
		if (n > 0)
			wire->out_at += (size_t)n;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else if (errno != EINTR)
			wire->deaf = true;
	}
	if (wire->deaf || front_wire_pending(wire) == 0)
		drop_out(wire);
	/* Not before it is worth it: each byte is moved once or twice. */
	if (wire->out_at > wire->out.len / 2) {
		buf_consume(&wire->out, wire->out_at);
		wire->out_at = 0;
	}
}

static void front_trim(struct buf *buf)
{
	size_t max = buf->max;

	if (buf->len > 0 || buf->cap <= SMALL)
		return;
	buf_done(buf);
	buf_init(buf, max);
}

/* Memory of buffers that are empty. */
static void front_wire_trim(struct front_wire *wire)
{
	if (wire->fd < 0)
		return;
	front_trim(&wire->in);
	front_trim(&wire->out);
}

/*
 * Bodies
 */

void front_meter_start(struct front_meter *meter, const struct front_head *head)
{
	*meter = (struct front_meter){
		.body = head->body, .left = head->length, .over = head->body == FRONT_BODY_NONE};
}

int front_meter_feed(
	struct front_meter *meter, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	*ret_used = 0;
	if (meter->over)
		return 0;
	if (meter->body == FRONT_BODY_CHUNKED) {
		int r = front_chunks_feed(&meter->chunks, data, len, ret_used, err);
		meter->over = r > 0;
		return r < 0 ? r : 0;
	}
	if (meter->body == FRONT_BODY_LENGTH) {
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

enum response { TELLS, TELLS_NOT, HAS_NO_FAMILY };

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

static enum response query_family(int family)
{
	struct sockaddr_storage address = {0};
	socklen_t len;
	uid_t uid;
	AUTO_FD int listening = listen_here(family, &address, &len);
	AUTO_FD int client = socket(family, SOCK_STREAM, 0);

	if (listening == -EAFNOSUPPORT || listening == -EPROTONOSUPPORT ||
		listening == -EADDRNOTAVAIL)
		return HAS_NO_FAMILY;
	if (listening < 0 || client < 0 || connect(client, (struct sockaddr *)&address, len) < 0)
		return TELLS_NOT;
	AUTO_FD int fd = accept(listening, NULL, NULL);
	return fd >= 0 && os_peer_uid(fd, &uid) > 0 && uid == geteuid() ? TELLS : TELLS_NOT;
}

bool front_peers_are_known(void)
{
	enum response ip4 = query_family(AF_INET), ip6 = query_family(AF_INET6);

	return ip4 != TELLS_NOT && ip6 != TELLS_NOT && (ip4 == TELLS || ip6 == TELLS);
}

/*
 * Check of a connection
 */

/* A client that has gone already has no owner that could be checked, and needs no response. */
static bool front_peer_is_welcome(const struct front *front, int fd, const char *peer)
{
	uid_t uid;

	int r = os_peer_uid(fd, &uid);
	if ((r < 0 && !front->knows_peers) || (r > 0 && (uid == geteuid() || uid == 0)))
		return true;
	if (r > 0)
		front_notice(front, "a connection of another user of this machine (%u) is refused",
			(unsigned)uid);
	else if (r < 0)
		front_notice(front,
			"a connection from %s is refused: the system does not tell whose it is",
			peer);
	else
		front_notice(front, "a connection from %s is refused: it belongs to nobody", peer);
	return false;
}

/*
 * The exchange
 */

void front_on_gone(struct front_exchange *exchange, void (*gone)(void *ctx), void *ctx)
{
	exchange->gone = gone;
	exchange->gone_ctx = ctx;
}

void front_on_room(struct front_exchange *exchange, void (*room)(void *ctx), void *ctx)
{
	exchange->room = room;
	exchange->room_ctx = ctx;
}

/* Drop what has arrived of an unwanted body; whether that was all of it. */
static bool front_body_drop(struct front_exchange *exchange)
{
	struct buf *in = &exchange->conn->client.in;
	size_t used = 0;

	if (front_meter_feed(&exchange->body, in->data, in->len, &used, NULL) < 0)
		return false;
	buf_consume(in, used);
	return exchange->body.over;
}

void front_exchange_end(struct front_exchange *exchange, bool is_cut)
{
	exchange->is_over = exchange->is_told = true;
	exchange->is_cut = exchange->is_cut || is_cut;
	front_conn_wake(exchange->conn);
}

static void front_exchange_done(struct front_exchange *exchange)
{
	front_carry_free(exchange->carry);
	front_head_done(&exchange->head);
	*exchange = (struct front_exchange){0};
}

/*
 * Heads
 */

static bool front_has_body(const struct front_exchange *exchange, int status)
{
	return status >= 200 && status != 204 && status != 304 &&
	       !str_eq(exchange->head.method, "HEAD");
}

static enum front_mode choose_mode(
	const struct front_exchange *exchange, int status, int64_t length)
{
	if (!front_has_body(exchange, status))
		return FRONT_MODE_NONE;
	if (length >= 0)
		return FRONT_MODE_LENGTH;
	return exchange->head.is_http_1_0 ? FRONT_MODE_TO_END : FRONT_MODE_CHUNKED;
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

static bool front_is_called(const char *header, const char *name)
{
	size_t len = strlen(name);

	return strncasecmp(header, name, len) == 0 && header[len] == ':';
}

static bool has_field(const struct strv *headers, const char *name)
{
	for (size_t i = 0; headers && i < headers->n; i++)
		if (front_is_called(headers->v[i], name))
			return true;
	return false;
}

/* A header that would be more than this one field is left out. */
static bool is_one_field(const char *header)
{
	return strchr(header, ':') && header[strcspn(header, "\r\n")] == '\0';
}

static bool front_is_ours(const char *header)
{
	static const char *const names[] = {
		"Content-Length", "Transfer-Encoding", "Connection", "Date"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (front_is_called(header, names[i]))
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
		if (is_one_field(headers->v[i]) && !front_is_ours(headers->v[i]))
			buf_addf(out, "%s\r\n", headers->v[i]);
	for (size_t i = 0; i < ARRAY_LEN(usual); i++)
		if (!has_field(headers, usual[i].name))
			buf_addf(out, "%s: %s\r\n", usual[i].name, usual[i].value);
}

static void add_framing(
	struct buf *out, const struct front_exchange *exchange, int status, int64_t length)
{
	if (exchange->mode == FRONT_MODE_CHUNKED)
		buf_adds(out, "Transfer-Encoding: chunked\r\n");
	else if (length >= 0 && status >= 200 && status != 204 && status != 304)
		buf_addf(out, "Content-Length: %" PRId64 "\r\n", length);
	buf_addf(out, "Connection: %s\r\n\r\n", exchange->closes ? "close" : "keep-alive");
}

static void httpd_front_begin(
	struct front_exchange *exchange, int status, const struct strv *headers, int64_t length)
{
	struct buf *out = &exchange->conn->client.out;

	exchange->mode = choose_mode(exchange, status, length);
	exchange->left = length > 0 ? (uint64_t)length : 0;
	exchange->closes = exchange->closes || !exchange->head.keeps_open ||
			   exchange->mode == FRONT_MODE_TO_END || !front_body_drop(exchange);
	buf_addf(out, "HTTP/1.1 %d %s\r\n", status, front_reason(status));
	add_date(out);
	add_fields(out, headers);
	add_framing(out, exchange, status, length);
}

static void front_write_response(struct front_exchange *exchange, int status,
	const struct strv *headers, const void *data, size_t len)
{
	httpd_front_begin(exchange, status, headers, (int64_t)len);
	if (exchange->mode != FRONT_MODE_NONE)
		buf_add(&exchange->conn->client.out, data, len);
}

/*
 * Pages
 */

static void front_add_text(struct buf *out, const char *text)
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
static void write_page(struct front_exchange *exchange, int status, const char *header,
	const char *what, const char *hint)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_BUF struct buf page = {0};

	if (header)
		strv_add(&headers, header);
	strv_add(&headers, "Content-Type: text/html; charset=utf-8");
	strv_add(&headers, "Cache-Control: no-store");
	strv_add(&headers, "Content-Security-Policy: default-src 'none'; base-uri 'none'; "
			   "form-action 'none'; frame-ancestors 'self'");
	buf_init(&page, FRONT_PENDING);
	buf_addf(&page,
		"<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
		"<title>dlrun: %d %s</title>\n<h1>%d %s</h1>\n<p>",
		status, front_reason(status), status, front_reason(status));
	front_add_text(&page, what);
	buf_adds(&page, "</p>\n");
	if (hint) {
		buf_adds(&page, "<p>");
		front_add_text(&page, hint);
		buf_adds(&page, "</p>\n");
	}
	front_write_response(exchange, status, &headers, page.data, page.len);
}

void front_page(struct front_exchange *exchange, int status, const char *what, const char *hint)
{
	write_page(exchange, status, NULL, what, hint);
	front_exchange_end(exchange, false);
}

/* The same of status 407. */
static void front_challenge(struct front_exchange *exchange, const char *what)
{
	write_page(exchange, 407, "Proxy-Authenticate: Basic realm=\"dlrun\"", what, NULL);
	front_exchange_end(exchange, false);
}

/* Responses of dlrun itself are for its own pages. */
static bool refuse_origin(struct front_exchange *exchange)
{
	if (exchange->is_origin_right)
		return false;
	write_page(exchange, 403, NULL, "a page of another origin has asked for this", NULL);
	exchange->mode = FRONT_MODE_NONE;
	return true;
}

/*
 * Answers
 */

void front_response(struct front_exchange *exchange, int status, const struct strv *headers,
	const void *data, size_t len)
{
	if (!refuse_origin(exchange))
		front_write_response(exchange, status, headers, data, len);
	front_exchange_end(exchange, false);
}

void front_refuse(struct front_exchange *exchange, int status, const char *what, const char *hint)
{
	front_page(exchange, status, what, hint);
}

void front_begin(
	struct front_exchange *exchange, int status, const struct strv *headers, int64_t length)
{
	if (!refuse_origin(exchange))
		httpd_front_begin(exchange, status, headers, length);
	front_conn_wake(exchange->conn);
}

static void front_add_piece(struct front_exchange *exchange, const void *data, size_t len)
{
	struct buf *out = &exchange->conn->client.out;

	if (exchange->mode == FRONT_MODE_CHUNKED)
		buf_addf(out, "%zx\r\n", len);
	buf_add(out, data, len);
	if (exchange->mode == FRONT_MODE_CHUNKED)
		buf_adds(out, "\r\n");
}

/* Data beyond the announced length would be read as the next response. */
bool front_write(struct front_exchange *exchange, const void *data, size_t len)
{
	if (exchange->mode == FRONT_MODE_LENGTH) {
		exchange->is_cut = exchange->is_cut || len > exchange->left;
		len = len > exchange->left ? (size_t)exchange->left : len;
		exchange->left -= len;
	}
	if (exchange->mode != FRONT_MODE_NONE && len > 0)
		front_add_piece(exchange, data, len);
	front_conn_wake(exchange->conn);
	exchange->wants_room = front_wire_pending(&exchange->conn->client) > FRONT_PENDING;
	return !exchange->wants_room;
}

void front_end(struct front_exchange *exchange, bool cut)
{
	bool is_short = exchange->mode == FRONT_MODE_LENGTH && exchange->left > 0;

	if (exchange->mode == FRONT_MODE_CHUNKED && !cut)
		buf_adds(&exchange->conn->client.out, "0\r\n\r\n");
	front_exchange_end(exchange, cut || is_short);
}

static bool is_connect(const struct front_exchange *exchange)
{
	return str_eq(exchange->head.method, "CONNECT");
}

/* Find the host and port that the request is for; false: not a name of this machine. */
static bool find_host(
	const struct front_exchange *exchange, char ret[static FRONT_HOST_MAX], uint16_t *ret_port)
{
	const struct front *front = exchange->conn->front;
	const char *host = field_find(&exchange->head.headers, "host");

	if (is_connect(exchange))
		return front_host_split(exchange->head.target, ret, ret_port);
	*ret_port = front_port(front);
	return front_host_is_here(host, *ret_port, ret);
}

/* Input after a refused request is ignored. */
static void httpd_front_refuse(struct front_exchange *exchange, const char *what, const char *hint)
{
	exchange->closes = true;
	front_page(exchange, 403, what, hint);
}

static void refuse_host(struct front_exchange *exchange)
{
	const char *host = is_connect(exchange) ? exchange->head.target
						: field_find(&exchange->head.headers, "host");
	AUTO_FREE char *shown = str_shown(host);

	front_notice(exchange->conn->front, "a request for the host %s is refused", shown);
	httpd_front_refuse(exchange, "this is not a server for that name",
		"open the address that dlrun has shown, with its port");
}

static void front_refuse_request_origin(struct front_exchange *exchange)
{
	const char *origin = field_find(&exchange->head.headers, "origin");
	AUTO_FREE char *shown = str_shown(origin ? origin : "another site");

	front_notice(exchange->conn->front, "a request from a page of %s is refused", shown);
	httpd_front_refuse(exchange, "another site's page has asked for this",
		"paste the address into the address bar of the browser");
}

/* To the same URL without the token, which the cookie stands for from then on. The name is written
 * out: a path may begin with "//", and would be one. */
static void front_redirect(struct front_exchange *exchange, const char *host)
{
	const struct front *front = exchange->conn->front;
	const struct front_head *head = &exchange->head;
	AUTO_FREE char *cookie = front_token_cookie(front->token, host, front_port(front));
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "Location: http://%s%s", field_find(&head->headers, "host"),
		head->target);
	strv_addf(&headers, "Set-Cookie: %s", cookie);
	strv_add(&headers, "Cache-Control: no-store");
	/* A link that leads here over another name of this machine is still one from there. */
	strv_add(&headers, "Referrer-Policy: origin");
	front_response(exchange, 307, &headers, "", 0);
}

static void refuse_token(struct front_exchange *exchange)
{
	front_notice(exchange->conn->front, "a request without the token is refused");
	if (is_connect(exchange) || exchange->head.is_absolute) {
		exchange->closes = true;
		front_challenge(exchange, "this proxy needs a token as its password: take the "
					  "address that dlrun has printed where it was started");
	} else {
		httpd_front_refuse(exchange,
			"this address needs a token: open the URL that dlrun has printed where it "
			"was started",
			NULL);
	}
}

/* Whether the request goes on; else it is answered. */
static bool check_token(struct front_exchange *exchange, const char *host)
{
	const struct front *front = exchange->conn->front;
	struct front_proof proof;

	if (!front_token(front))
		return true;
	front_token_take(front->token, host, front_port(front), &exchange->head, &proof);
	/* No WebSocket follows where it is led to. */
	bool is_led = proof.was_in_url && !exchange->head.is_upgrade;
	if (is_led && (proof.url_is_right || proof.field_is_right))
		front_redirect(exchange, host);
	else if (!proof.field_is_right)
		refuse_token(exchange);
	return proof.field_is_right && !is_led;
}

static void front_query(struct front_exchange *exchange)
{
	struct front *front = exchange->conn->front;
	const struct front_head *head = &exchange->head;
	char host[FRONT_HOST_MAX];
	struct front_request request = {.method = head->method,
		.host = host,
		.headers = &head->headers,
		.is_connect = is_connect(exchange),
		.is_upgrade = head->is_upgrade};

	if (!find_host(exchange, host, &request.port)) {
		refuse_host(exchange);
		return;
	}
	if (!front_origin_is_right(head, true)) {
		front_refuse_request_origin(exchange);
		return;
	}
	exchange->is_origin_right = front_origin_is_right(head, false);
	if (!check_token(exchange, host))
		return;
	request.target = head->target;
	front->options.request(front->options.ctx, exchange, &request);
}

static void front_request_begin(struct front_conn *conn)
{
	conn->state = FRONT_WORKS;
	conn->exchange = (struct front_exchange){.conn = conn};
}

/* Take what is there of a request. Whether something was done. */
static bool front_request_take(struct front_conn *conn)
{
	AUTO_ERR struct err err = {0};
	struct buf *in = &conn->client.in;
	struct front_head head;
	size_t used;
	int status;

	/* The next one waits until the answer before it has been taken. */
	if (front_wire_pending(&conn->client) > 0)
		return false;
	int r = front_request_parse(in->data, in->len, &head, &used, &status, &err);
	if (r == 0) {
		conn->is_dead = conn->client.ended;
		return false;
	}
	front_request_begin(conn);
	if (r < 0) {
		front_notice(conn->front, "a request is refused: %s", err.message);
		front_page(&conn->exchange, status, err.message, NULL);
		return true;
	}
	buf_consume(in, used);
	conn->exchange.head = head;
	front_meter_start(&conn->exchange.body, &head);
	front_query(&conn->exchange);
	return true;
}

#ifndef POLLRDHUP
#define POLLRDHUP 0 /* it is noticed when the answer comes */
#endif

#ifndef POLLRDHUP
#define POLLRDHUP 0 /* it is noticed when the answer comes */
#endif

/*
 * Time
 */

static int64_t front_deadline_of(const struct front_conn *conn)
{
	if (conn->state == FRONT_LINGERS)
		return conn->since_ms + FRONT_LINGER_MS;
	if (conn->state == FRONT_WORKS)
		return INT64_MAX;
	return conn->since_ms + (conn->client.in.len > 0 ? FRONT_HEAD_MS : FRONT_IDLE_MS);
}

static int front_timer_due(void *ctx, struct err *err);

/* A timer that is too early is kept: timer_due checks the deadline, and sets it again. */
static void front_set_timer(struct front_conn *conn)
{
	int64_t at_ms = front_deadline_of(conn);

	if (at_ms == INT64_MAX || (conn->timer && conn->timer_ms <= at_ms))
		return;
	loop_remove_timer(conn->front->options.loop, conn->timer);
	conn->timer = loop_add_timer(conn->front->options.loop, at_ms, front_timer_due, conn);
	conn->timer_ms = at_ms;
}

static int front_timer_due(void *ctx, struct err *err)
{
	struct front_conn *conn = ctx;

	(void)err;
	conn->timer = NULL;
	if (clock_ms() >= front_deadline_of(conn)) {
		if (conn->state == FRONT_WAITS && conn->client.in.len > 0) {
			conn->state = FRONT_WORKS;
			conn->exchange = (struct front_exchange){.conn = conn};
			front_page(&conn->exchange, 408, "the request did not come in time", NULL);
		} else {
			conn->is_dead = true;
		}
	}
	front_conn_turn(conn);
	return 0;
}

static int front_wake_due(void *ctx, struct err *err)
{
	struct front_conn *conn = ctx;

	(void)err;
	conn->wake = NULL;
	front_conn_turn(conn);
	return 0;
}

void front_conn_wake(struct front_conn *conn)
{
	conn->goes_on = true;
	if (!conn->is_turning && !conn->wake)
		conn->wake =
			loop_add_timer(conn->front->options.loop, clock_ms(), front_wake_due, conn);
}

/*
 * States of a connection
 */

static void front_enter(struct front_conn *conn, enum front_state state)
{
	conn->state = state;
	conn->since_ms = clock_ms();
}

/* The answer was written. What the other side still sends is read, or it would be told of a reset
 * before it has read the answer. */
static void linger(struct front_conn *conn)
{
	bool needs_reset = conn->exchange.is_cut && conn->exchange.mode == FRONT_MODE_TO_END;

	front_exchange_done(&conn->exchange);
	if (needs_reset || shutdown(conn->client.fd, SHUT_WR) < 0)
		conn->is_dead = true;
	if (needs_reset)
		front_wire_close(&conn->client, conn->front->options.loop, true);
	front_enter(conn, FRONT_LINGERS);
}

static bool end_exchange(struct front_conn *conn)
{
	struct front_exchange *exchange = &conn->exchange;

	front_carry_settle(conn);
	if (exchange->closes || exchange->is_cut || !front_body_drop(exchange)) {
		linger(conn);
		return true;
	}
	front_exchange_done(exchange);
	front_enter(conn, FRONT_WAITS);
	return true;
}

/* A client that has ended its direction does not wait for a response. */
static bool has_left(const struct front_conn *conn)
{
	return conn->client.deaf || (conn->client.ended && !conn->exchange.is_over);
}

static void front_leave(struct front_conn *conn)
{
	struct front_exchange *exchange = &conn->exchange;

	conn->is_dead = true;
	if (!exchange->is_told && exchange->gone)
		exchange->gone(exchange->gone_ctx);
	exchange->is_told = true;
}

static void tell_room(struct front_exchange *exchange)
{
	if (!exchange->wants_room || exchange->is_told || !exchange->room ||
		front_wire_pending(&exchange->conn->client) > FRONT_PENDING / 2)
		return;
	exchange->wants_room = false;
	exchange->room(exchange->room_ctx);
}

static bool front_work(struct front_conn *conn)
{
	struct front_exchange *exchange = &conn->exchange;
	bool goes_on = false;

	if (has_left(conn)) {
		front_leave(conn);
		return false;
	}
	if (exchange->carry && !exchange->is_over)
		goes_on = front_carry_step(conn);
	else
		tell_room(exchange);
	if (conn->is_dead)
		return false;
	size_t waiting = front_wire_pending(&conn->client);
	front_wire_flush(&conn->client);
	if (exchange->is_over && front_wire_pending(&conn->client) == 0)
		return end_exchange(conn);
	/* Room that the flush has made may be announced by no event. */
	return goes_on || front_wire_pending(&conn->client) < waiting;
}

static bool front_step(struct front_conn *conn)
{
	front_wire_flush(&conn->client);
	if (conn->state == FRONT_WORKS)
		return front_work(conn);
	if (conn->state == FRONT_WAITS && !conn->client.deaf)
		return front_request_take(conn);
	buf_reset(&conn->client.in);
	conn->is_dead = conn->is_dead || conn->client.ended || conn->client.deaf;
	return false;
}

/* Memory that may not be needed for long. */
static void rest(struct front_conn *conn)
{
	front_wire_trim(&conn->client);
	front_wire_trim(&conn->program);
	if (front_conn_is_idle(conn))
		front_has_idle(conn->front);
	front_set_timer(conn);
}

void front_conn_turn(struct front_conn *conn)
{
	bool goes_on = true;

	conn->is_turning = true;
	for (int i = 0; goes_on && !conn->is_dead && i < FRONT_TURNS_MAX; i++) {
		conn->goes_on = false;
		goes_on = front_step(conn) || conn->goes_on;
	}
	conn->is_turning = false;
	if (conn->is_dead) {
		front_conn_free(conn);
		return;
	}
	if (goes_on)
		front_conn_wake(conn);
	rest(conn);
}

/*
 * The loop
 */

static short events_of(const struct front_wire *wire, bool reads)
{
	bool wants_read = reads && !wire->ended && wire->in.len < wire->in.max;
	bool wants_write = front_wire_pending(wire) > 0 && !wire->deaf;

	return (short)((wants_read ? POLLIN : 0) | (wants_write ? POLLOUT : 0));
}

/* Where it has sent more than is read ahead of its answer, its end cannot be read. */
static bool is_full(const struct front_conn *conn)
{
	const struct front_wire *wire = &conn->client;

	return wire->in.len == wire->in.max && !wire->ended && conn->state == FRONT_WORKS &&
	       !conn->exchange.is_over;
}

static short prepare_client(void *ctx)
{
	const struct front_conn *conn = ctx;

	return (short)(events_of(&conn->client, true) | (is_full(conn) ? POLLRDHUP : 0));
}

static int dispatch_client(void *ctx, short revents, struct err *err)
{
	struct front_conn *conn = ctx;
	bool was_empty = conn->client.in.len == 0;

	(void)err;
	if (is_full(conn) && (revents & (POLLRDHUP | POLLHUP | POLLERR)))
		conn->client.ended = true;
	if (revents & ~POLLOUT)
		front_wire_read(&conn->client);
	if (conn->state == FRONT_WAITS && was_empty && conn->client.in.len > 0)
		conn->since_ms = clock_ms();
	front_conn_turn(conn);
	return 0;
}

static const struct loop_fd_ops client_ops = {
	.prepare = prepare_client, .dispatch = dispatch_client};

/*
 * Connections
 */

/* Whether it only waits for another request. */
static bool front_conn_is_idle(const struct front_conn *conn)
{
	return conn->state == FRONT_WAITS && conn->client.in.len == 0 &&
	       front_wire_pending(&conn->client) == 0;
}

static void front_conn_new(struct front *front, int fd)
{
	struct front_conn *conn = mem_alloc(1, sizeof(*conn));

	conn->front = front;
	conn->program.fd = -1;
	front_wire_open(&conn->client, front->options.loop, fd, &client_ops, conn);
	conn->next = front->conns;
	if (front->conns)
		front->conns->before = conn;
	front->conns = conn;
	front->n++;
	front_enter(conn, FRONT_WAITS);
	front_set_timer(conn);
}

static void front_conn_free(struct front_conn *conn)
{
	struct front *front = conn->front;
	struct loop *loop = front->options.loop;
	bool is_reset = conn->state == FRONT_WORKS;

	if (conn->next)
		conn->next->before = conn->before;
	if (conn->before)
		conn->before->next = conn->next;
	else
		front->conns = conn->next;
	loop_remove_timer(loop, conn->timer);
	loop_remove_timer(loop, conn->wake);
	front_exchange_done(&conn->exchange);
	front_wire_close(&conn->client, loop, is_reset);
	front_wire_close(&conn->program, loop, is_reset);
	free(conn->key);
	free(conn);
	front_count_less(front);
}

void front_notice(const struct front *front, const char *format, ...)
{
	va_list args;

	if (!front->options.notice)
		return;
	va_start(args, format);
	AUTO_FREE char *text = mem_vprintf(format, args);
	va_end(args);
	front->options.notice(front->options.ctx, text);
}

/*
 * Connections
 */

static void front_hold(struct front *front, bool is_held)
{
	front->is_held = is_held;
	if (front->listener)
		listener_hold(front->listener, is_held);
}

void front_count_less(struct front *front)
{
	front->n--;
	front_hold(front, false);
}

/* A connection may give way. */
static void front_has_idle(struct front *front)
{
	if (front->is_held)
		front_hold(front, false);
}

/* The one but the newest that has waited longest for another request. */
static struct front_conn *find_idle(struct front *front)
{
	struct front_conn *found = NULL;

	for (struct front_conn *conn = front->conns->next; conn; conn = conn->next)
		if (front_conn_is_idle(conn) && (!found || conn->since_ms <= found->since_ms))
			found = conn;
	return found;
}

/* Of a new connection. Where all are at work others wait in the system's queue. */
static void front_make_room(struct front *front)
{
	if (front->n < FRONT_CONNS_MAX)
		return;
	struct front_conn *idle = find_idle(front);
	if (idle)
		front_conn_free(idle);
	else
		front_hold(front, true);
}

static int front_on_accept(void *ctx, int fd, const char *peer, struct err *err)
{
	struct front *front = ctx;

	(void)err;
	if (!front_peer_is_welcome(front, fd, peer)) {
		close(fd);
		return 0;
	}
	front_conn_new(front, fd);
	front_make_room(front);
	return 0;
}

/*
 * The front
 */

int front_open(const struct front_options *options, struct front **ret, struct err *err)
{
	struct front *front = mem_alloc(1, sizeof(*front));
	const struct listen_options listening = {.loop = options->loop,
		.port = options->port,
		.is_exact = options->is_exact,
		.accept = front_on_accept,
		.ctx = front};

	front->options = *options;
	front->knows_peers = front_peers_are_known();
	if (!front->knows_peers && !options->has_secret)
		front_token_make(front->token);
	int r = listener_open(&listening, &front->listener, err);
	if (r < 0) {
		free(front);
		return r;
	}
	*ret = front;
	return 0;
}

void front_free(struct front *front)
{
	if (!front)
		return;
	listener_free(TAKE(front->listener));
	while (front->conns)
		front_conn_free(front->conns);
	while (front->tunnels) {
		struct front_tunnel *tunnel = front->tunnels;

		pump_cancel(tunnel->pump);
		front_tunnel_free(tunnel);
	}
	free(front);
}

uint16_t front_port(const struct front *front)
{
	return listener_port(front->listener);
}

const char *front_token(const struct front *front)
{
	return *front->token ? front->token : NULL;
}
