/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/http_impl.h"

static bool is_success(const struct http_call *call)
{
	return call->x.status >= 200 && call->x.status < 300;
}

static int fail(struct http_call *call, enum err_id id, const char *what)
{
	AUTO_FREE char *host = url_authority(&call->url);

	return err_set(&call->x.fault, id, "%s %s", host, what);
}

/*
 * Headers
 */

static int start_answer(struct http_call *call, const char *line)
{
	struct http_exchange *x = &call->x;
	const char *code = strchr(line, ' ');

	strv_done(&call->answer.headers);
	buf_reset(&call->answer.body);
	x->headers_over = x->has_length = false;
	x->status = 0;
	for (int i = 1; code && i <= 3; i++) {
		if (!str_is_digit(code[i]))
			return fail(call, E_HTTP_PROTOCOL, "answers without a status");
		x->status = x->status * 10 + (code[i] - '0');
	}
	if (x->status == HTTP_EXPECT_REFUSED)
		call->http->expects_nothing = true;
	/* 101: no other protocol was requested. */
	if (x->status < 100 || x->status == 101)
		return fail(call, E_HTTP_PROTOCOL, "answers with a status that makes no sense");
	return 0;
}

/* Keeps what was declared: two different ones are an attempt to be understood in two ways (RFC
 * 9112 section 6.3). */
static int note_length(struct http_call *call, const char *text)
{
	struct http_exchange *x = &call->x;
	AUTO_ERR struct err ignored = {0};
	int64_t length;

	if (str_to_int(text, 0, INT64_MAX, "length", &length, &ignored) < 0)
		return fail(call, E_HTTP_PROTOCOL, "gives a length that is not a number");
	if (x->has_length && x->length != (uint64_t)length)
		return fail(call, E_HTTP_PROTOCOL, "gives two lengths of one answer");
	x->has_length = true;
	x->length = (uint64_t)length;
	return 0;
}

/* Obsolete: a line that begins with a blank goes on with the one before it (RFC 9112 section
 * 5.2). */
static void continue_header(struct http_call *call, const char *line)
{
	struct strv *headers = &call->answer.headers;

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
	strv_addf(&call->answer.headers, "%s: %s", name, value);
	return str_eq(name, "content-length") ? note_length(call, value) : 0;
}

static int end_headers(struct http_call *call)
{
	const struct http_exchange *x = &call->x;

	if (x->status < 200)
		return 0;
	call->x.headers_over = true;
	buf_done(&call->answer.body);
	bool is_kept = is_success(call) && !call->request.data;
	buf_init(&call->answer.body, is_kept ? call->request.max_body : HTTP_ERROR_BODY_MAX);
	if (is_kept && x->has_length && x->length > call->request.max_body &&
		!str_eq(call->request.method, "HEAD"))
		return fail(call, E_HTTP_LIMIT, "sends a larger answer than is taken");
	return 0;
}

static void trim_end(char *s, const char *chars)
{
	size_t len = strlen(s);

	while (len > 0 && strchr(chars, s[len - 1]))
		s[--len] = '\0';
}

static int take_line(struct http_call *call, char *line)
{
	bool is_over = call->x.headers_over;

	/* Behind a 417 libcurl asks once more by itself. */
	if (str_starts(line, "HTTP/") && (!is_over || call->x.status == HTTP_EXPECT_REFUSED))
		return start_answer(call, line);
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
		fail(call, E_HTTP_LIMIT, "sends more than 64 KiB of headers");
		return 0;
	}
	AUTO_FREE char *line = mem_strndup(data, len);
	trim_end(line, "\r\n");
	return take_line(call, line) < 0 ? 0 : len;
}

/*
 * The body
 */

static int give(struct http_call *call, const void *data, size_t len)
{
	AUTO_ERR struct err err = {0};
	int r = call->request.data(call->request.ctx, data, len, &err);

	if (r < 0)
		return err_move(&call->x.fault, &err);
	call->recv_paused = call->recv_paused || r > 0;
	return 0;
}

int http_give_batch(struct http_call *call)
{
	struct buf *batch = &call->batch;

	if (batch->len == 0 || call->canceled)
		return 0;
	int r = give(call, batch->data, batch->len);
	buf_reset(batch);
	return r;
}

static bool has_room(const struct http_call *call, size_t len)
{
	return len <= HTTP_BATCH_MAX - call->batch.len;
}

/* Servers send logs line by line, each in a record of its own. */
static int take(struct http_call *call, const void *data, size_t len)
{
	if (!call->gathers || !has_room(call, len))
		return give(call, data, len);
	buf_add(&call->batch, data, len);
	return 0;
}

static size_t keep(struct http_call *call, const void *data, size_t len)
{
	struct buf *body = &call->answer.body;

	buf_add(body, data, len);
	if (!body->full)
		return len;
	if (is_success(call))
		fail(call, E_HTTP_LIMIT, "sends a larger answer than is taken");
	else
		call->x.cut = true;
	return 0;
}

static size_t on_write(char *data, size_t size, size_t n, void *ctx)
{
	struct http_call *call = ctx;
	size_t len = size * n;

	if (call->canceled || (!has_room(call, len) && http_give_batch(call) < 0))
		return 0;
	if (call->recv_paused)
		return CURL_WRITEFUNC_PAUSE;
	call->x.bytes_down += len;
	if (!is_success(call) || !call->request.data)
		return keep(call, data, len);
	return take(call, data, len) < 0 ? 0 : len;
}

void http_receive_options(struct http_call *call)
{
	HTTP_SET(call, CURLOPT_HEADERFUNCTION, on_header);
	HTTP_SET(call, CURLOPT_HEADERDATA, call);
	HTTP_SET(call, CURLOPT_WRITEFUNCTION, on_write);
	HTTP_SET(call, CURLOPT_WRITEDATA, call);
}
