/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/front_impl.h"

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

bool front_body_drop(struct front_exchange *exchange)
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

void front_exchange_done(struct front_exchange *exchange)
{
	front_carry_free(exchange->carry);
	front_head_done(&exchange->head);
	*exchange = (struct front_exchange){0};
}

/*
 * Heads
 */

static bool has_body(const struct front_exchange *exchange, int status)
{
	return status >= 200 && status != 204 && status != 304 &&
	       !str_eq(exchange->head.method, "HEAD");
}

static enum front_mode choose_mode(
	const struct front_exchange *exchange, int status, int64_t length)
{
	if (!has_body(exchange, status))
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

static bool is_called(const char *header, const char *name)
{
	size_t len = strlen(name);

	return strncasecmp(header, name, len) == 0 && header[len] == ':';
}

static bool has_field(const struct strv *headers, const char *name)
{
	for (size_t i = 0; headers && i < headers->n; i++)
		if (is_called(headers->v[i], name))
			return true;
	return false;
}

/* A header that would be more than this one field is left out. */
static bool is_one_field(const char *header)
{
	return strchr(header, ':') && header[strcspn(header, "\r\n")] == '\0';
}

static bool is_ours(const char *header)
{
	static const char *const names[] = {
		"Content-Length", "Transfer-Encoding", "Connection", "Date"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (is_called(header, names[i]))
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
		if (is_one_field(headers->v[i]) && !is_ours(headers->v[i]))
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

static void begin(
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

static void answer(struct front_exchange *exchange, int status, const struct strv *headers,
	const void *data, size_t len)
{
	begin(exchange, status, headers, (int64_t)len);
	if (exchange->mode != FRONT_MODE_NONE)
		buf_add(&exchange->conn->client.out, data, len);
}

/*
 * Pages
 */

static void add_text(struct buf *out, const char *text)
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
	add_text(&page, what);
	buf_adds(&page, "</p>\n");
	if (hint) {
		buf_adds(&page, "<p>");
		add_text(&page, hint);
		buf_adds(&page, "</p>\n");
	}
	answer(exchange, status, &headers, page.data, page.len);
}

void front_page(struct front_exchange *exchange, int status, const char *what, const char *hint)
{
	write_page(exchange, status, NULL, what, hint);
	front_exchange_end(exchange, false);
}

void front_challenge(struct front_exchange *exchange, const char *what)
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

void front_answer(struct front_exchange *exchange, int status, const struct strv *headers,
	const void *data, size_t len)
{
	if (!refuse_origin(exchange))
		answer(exchange, status, headers, data, len);
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
		begin(exchange, status, headers, length);
	front_conn_wake(exchange->conn);
}

static void add_piece(struct front_exchange *exchange, const void *data, size_t len)
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
		add_piece(exchange, data, len);
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
