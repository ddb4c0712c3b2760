/* SPDX-License-Identifier: Apache-2.0 */
#include "net/websocket/upgrade.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/http.h"
#include "net/http/http_impl.h"
#include "net/stream/field.h"

enum { CHUNK_LINE_MAX = 4096 };

void upgrade_reply_init(struct upgrade_reply *reply, const char *host)
{
	*reply = (struct upgrade_reply){.host = host};
	buf_init(&reply->line, HTTP_HEADERS_MAX);
	buf_init(&reply->body, HTTP_ERROR_BODY_MAX);
}

void upgrade_reply_done(struct upgrade_reply *reply)
{
	strv_done(&reply->headers);
	buf_done(&reply->line);
	buf_done(&reply->body);
}

static int upgrade_fail(const struct upgrade_reply *reply, struct err *err, const char *what)
{
	return err_set(err, E_HTTP_PROTOCOL, "%s %s", reply->host, what);
}

/*
 * Lines
 */

static int parse_status(struct upgrade_reply *reply, struct err *err)
{
	const char *line = reply->line.data;
	int status = 0;

	if (!str_starts(line, "HTTP/1.") || !str_is_digit(line[7]) || line[8] != ' ')
		return upgrade_fail(reply, err, "does not answer as HTTP/1 does");
	for (int i = 9; i < 12; i++) {
		if (!str_is_digit(line[i]))
			return upgrade_fail(reply, err, "answers without a status");
		status = status * 10 + (line[i] - '0');
	}
	if (status < 100 || (line[12] && line[12] != ' '))
		return upgrade_fail(reply, err, "answers with a status that makes no sense");
	reply->status = status;
	strv_done(&reply->headers);
	reply->state = REPLY_HEADER;
	return 0;
}

static int parse_header(struct upgrade_reply *reply, struct err *err)
{
	char *line = reply->line.data;
	size_t name_len = strcspn(line, ":");

	if (line[name_len] != ':' || !field_is_token(line, name_len))
		return upgrade_fail(reply, err, "sends a header that is none");
	const char *value = line + name_len + 1;
	value += strspn(value, " \t");
	size_t len = strlen(value);
	while (len > 0 && (value[len - 1] == ' ' || value[len - 1] == '\t'))
		len--;
	for (size_t i = 0; i < name_len; i++)
		if (line[i] >= 'A' && line[i] <= 'Z')
			line[i] = (char)(line[i] | 0x20);
	strv_addf(&reply->headers, "%.*s: %.*s", (int)name_len, line, (int)len, value);
	return 0;
}

static int parse_chunk_size(struct upgrade_reply *reply, struct err *err)
{
	const char *line = reply->line.data;
	size_t digits = strspn(line, "0123456789abcdefABCDEF");
	size_t rest = digits + strspn(line + digits, " \t");

	if (digits == 0 || digits > 15 || (line[rest] && line[rest] != ';'))
		return upgrade_fail(reply, err, "sends a broken chunk of an answer");
	reply->left = strtoull(line, NULL, 16);
	reply->state = reply->left > 0 ? REPLY_CHUNK : REPLY_OVER;
	return 0;
}

/*
 * The end of a head
 */

static int upgrade_note_length(struct upgrade_reply *reply, const char *text, struct err *err)
{
	uint64_t length;

	if (!field_number(text, &length))
		return upgrade_fail(reply, err, "gives a length that is not a number");
	if (reply->has_length && reply->left != length)
		return upgrade_fail(reply, err, "gives two lengths of one answer");
	reply->has_length = true;
	reply->left = length;
	return 0;
}

static int find_framing(struct upgrade_reply *reply, struct err *err)
{
	static const char length[] = "content-length: ", encoding[] = "transfer-encoding: ";
	int r = 0;

	reply->has_length = reply->is_chunked = false;
	reply->left = 0;
	vec_foreach (char *, header, &reply->headers) {
		if (str_starts(*header, length)) {
			r = upgrade_note_length(reply, *header + strlen(length), err);
		} else if (str_starts(*header, encoding)) {
			if (reply->is_chunked ||
				strcasecmp(*header + strlen(encoding), "chunked") != 0)
				r = upgrade_fail(
					reply, err, "encodes an answer in a way that is unknown");
			reply->is_chunked = true;
		}
		if (r < 0)
			return r;
	}
	if (reply->has_length && reply->is_chunked)
		return upgrade_fail(reply, err, "gives two lengths of one answer");
	return 0;
}

static int end_head(struct upgrade_reply *reply, struct err *err)
{
	int status = reply->status;

	if (status == 101) {
		reply->state = REPLY_OVER;
		return 0;
	}
	if (status < 200) {
		reply->state = REPLY_STATUS;
		return 0;
	}
	int r = find_framing(reply, err);
	if (r < 0)
		return r;
	if (status == 204 || status == 304 || (reply->has_length && reply->left == 0))
		reply->state = REPLY_OVER;
	else if (reply->is_chunked)
		reply->state = REPLY_CHUNK_SIZE;
	else
		reply->state = reply->has_length ? REPLY_LENGTH : REPLY_CLOSE;
	return 0;
}

static int upgrade_end_line(struct upgrade_reply *reply, struct err *err)
{
	if (field_has_control(reply->line.data, reply->line.len))
		return upgrade_fail(reply, err, "sends a control character in a header");
	switch (reply->state) {
	case REPLY_STATUS:
		return parse_status(reply, err);
	case REPLY_HEADER:
		return reply->line.len == 0 ? end_head(reply, err) : parse_header(reply, err);
	case REPLY_CHUNK_SIZE:
		return parse_chunk_size(reply, err);
	default:
		if (reply->line.len > 0)
			return upgrade_fail(reply, err, "sends a broken chunk of an answer");
		reply->state = REPLY_CHUNK_SIZE;
		return 0;
	}
}

/*
 * Bytes
 */

static bool upgrade_is_head(const struct upgrade_reply *reply)
{
	return reply->state == REPLY_STATUS || reply->state == REPLY_HEADER;
}

static int upgrade_check_line(struct upgrade_reply *reply, size_t len, struct err *err)
{
	if (upgrade_is_head(reply)) {
		reply->head_bytes += len;
		if (reply->head_bytes > HTTP_HEADERS_MAX)
			return err_set(err, E_HTTP_LIMIT, "%s sends more than %d KiB of headers",
				reply->host, HTTP_HEADERS_MAX >> 10);
	} else if (reply->line.len + len > CHUNK_LINE_MAX) {
		return upgrade_fail(reply, err, "sends a broken chunk of an answer");
	}
	return 0;
}

/* The bytes of data up to the end of a line. */
static ssize_t upgrade_take_line(
	struct upgrade_reply *reply, const char *data, size_t len, struct err *err)
{
	struct buf *line = &reply->line;
	const char *end = memchr(data, '\n', len);

	if (end)
		len = (size_t)(end + 1 - data);
	int r = upgrade_check_line(reply, len, err);
	if (r < 0)
		return r;
	buf_add(line, data, len);
	if (!end)
		return (ssize_t)len;
	if (line->len < 2 || line->data[line->len - 2] != '\r')
		return upgrade_fail(reply, err, "ends a line of its headers as HTTP does not");
	buf_truncate(line, line->len - 2);
	r = upgrade_end_line(reply, err);
	buf_reset(line);
	return r < 0 ? r : (ssize_t)len;
}

/* The rest of a body that is too large is not worth waiting for. */
static ssize_t upgrade_take_body(struct upgrade_reply *reply, const char *data, size_t len)
{
	size_t space = reply->body.max - reply->body.len;

	if (reply->state != REPLY_CLOSE && len > reply->left)
		len = (size_t)reply->left;
	buf_add(&reply->body, data, len < space ? len : space);
	if (len >= space) {
		reply->state = REPLY_OVER;
	} else if (reply->state != REPLY_CLOSE) {
		reply->left -= len;
		if (reply->left == 0)
			reply->state = reply->state == REPLY_CHUNK ? REPLY_CHUNK_END : REPLY_OVER;
	}
	return (ssize_t)len;
}

int upgrade_reply_feed(struct upgrade_reply *reply, const char *data, size_t len, size_t *ret_used,
	struct err *err)
{
	size_t used = 0;

	while (used < len && reply->state != REPLY_OVER) {
		bool is_body = reply->state == REPLY_LENGTH || reply->state == REPLY_CLOSE ||
			       reply->state == REPLY_CHUNK;
		ssize_t n = is_body ? upgrade_take_body(reply, data + used, len - used)
				    : upgrade_take_line(reply, data + used, len - used, err);
		if (n < 0)
			return (int)n;
		used += (size_t)n;
	}
	*ret_used = used;
	return reply->state == REPLY_OVER;
}

/* Tell that the connection has ended; returns whether that makes the response whole. */
static bool upgrade_reply_ended(struct upgrade_reply *reply)
{
	if (reply->state == REPLY_CLOSE)
		reply->state = REPLY_OVER;
	return reply->state == REPLY_OVER;
}

enum { TLS_RECORD_MAX = 16 << 10 };

struct upgraded {
	struct stream stream;
	struct http *http;
	struct http_call *call;
	char *host;
	bool is_tls;
	char *early; /* or NULL */
	size_t n_early, early_at;
	bool may_have_more; /* read, and not handed out, by libcurl or OpenSSL */
	/* OpenSSL wants a record that did not fit into the socket again from the same place. */
	char *record;
	size_t n_record;
};

static int upgrade_stream_fail(const struct upgraded *up, const char *what, struct err *err)
{
	err_set(err, E_HTTP_CLOSED, "%s %s", up->host, what);
	if (!*up->call->x.errbuf)
		return -ERR_NET;
	AUTO_FREE char *shown = str_escaped(up->call->x.errbuf);
	up->call->x.errbuf[0] = '\0';
	return err_evidence(err, "libcurl: %s", shown);
}

static size_t read_early(struct upgraded *up, void *out, size_t len)
{
	size_t left = up->n_early - up->early_at;

	if (len > left)
		len = left;
	memcpy(out, up->early + up->early_at, len);
	up->early_at += len;
	if (len == left) {
		free(TAKE(up->early));
		up->n_early = up->early_at = 0;
	}
	return len;
}

static ssize_t up_read(struct stream *stream, void *out, size_t len, struct err *err)
{
	struct upgraded *up = (struct upgraded *)stream;
	size_t n = 0;

	if (up->early)
		return (ssize_t)read_early(up, out, len);
	CURLcode code = curl_easy_recv(up->call->x.easy, out, len, &n);
	up->may_have_more = code == CURLE_OK && n > 0;
	if (code == CURLE_AGAIN)
		return STREAM_AGAIN;
	return code == CURLE_OK ? (ssize_t)n
				: upgrade_stream_fail(up, "broke the connection off", err);
}

static ssize_t upgrade_send_some(struct upgraded *up, const void *data, size_t len, struct err *err)
{
	size_t n = 0;

	CURLcode code = curl_easy_send(up->call->x.easy, data, len, &n);
	if (code == CURLE_AGAIN || (code == CURLE_OK && n == 0))
		return STREAM_AGAIN;
	return code == CURLE_OK ? (ssize_t)n
				: upgrade_stream_fail(up, "has closed the connection", err);
}

static ssize_t send_record(struct upgraded *up, const void *data, size_t len, struct err *err)
{
	if (up->n_record == 0) {
		up->n_record = len < TLS_RECORD_MAX ? len : TLS_RECORD_MAX;
		memcpy(up->record, data, up->n_record);
	}
	BUG_ON(len < up->n_record);
	ssize_t n = upgrade_send_some(up, up->record, up->n_record, err);
	if (n != STREAM_AGAIN)
		up->n_record = 0;
	return n;
}

static ssize_t up_write(struct stream *stream, const void *data, size_t len, struct err *err)
{
	struct upgraded *up = (struct upgraded *)stream;
	size_t done = 0;

	if (!up->is_tls)
		return upgrade_send_some(up, data, len, err);
	while (done < len) {
		ssize_t n = send_record(up, (const char *)data + done, len - done, err);
		if (n == STREAM_AGAIN && done > 0)
			break;
		if (n < 0)
			return n;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

/* libcurl has no half of TLS to close, and the end of TCP alone would look like an attack. */
static int up_shutdown(struct stream *stream, struct err *err)
{
	const struct upgraded *up = (const struct upgraded *)stream;

	if (!up->is_tls && shutdown(stream->fd, SHUT_WR) < 0)
		return upgrade_stream_fail(up, "has closed the connection", err);
	return 0;
}

static short up_events(struct stream *stream UNUSED, bool want_read, bool want_write)
{
	return (short)((want_read ? POLLIN : 0) | (want_write ? POLLOUT : 0));
}

static bool up_pending(const struct stream *stream)
{
	const struct upgraded *up = (const struct upgraded *)stream;

	return up->early || up->may_have_more;
}

static void up_free(struct stream *stream)
{
	struct upgraded *up = (struct upgraded *)stream;

	http_call_free(up->call);
	http_release(up->http);
	free(up->early);
	free(up->record);
	free(up->host);
	free(up);
}

/* A reset; and before it, so that TLS does not say good-bye, the end of all writing. */
static void up_reset(struct stream *stream)
{
	const struct linger linger = {.l_onoff = 1};

	(void)setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	if (((struct upgraded *)stream)->is_tls)
		(void)shutdown(stream->fd, SHUT_RDWR);
	up_free(stream);
}

static const struct stream_ops up_ops = {
	.read = up_read,
	.write = up_write,
	.shutdown = up_shutdown,
	.events = up_events,
	.pending = up_pending,
	.free = up_free,
	.reset = up_reset,
};

/* Takes over http with its one call, which is connected. early: what came behind the head. */
static struct stream *upgrade_stream_new(
	struct http *http, struct http_call *call, int fd, const char *early, size_t n_early)
{
	struct upgraded *up = mem_alloc(1, sizeof(*up));

	*up = (struct upgraded){
		.stream = {.ops = &up_ops, .fd = fd},
		.http = http,
		.call = call,
		.host = url_authority(&call->url),
		.is_tls = call->url.tls,
		.n_early = n_early,
		.may_have_more = true,
	};
	if (n_early > 0)
		up->early = mem_dup(early, n_early);
	if (up->is_tls)
		up->record = mem_alloc(1, TLS_RECORD_MAX);
	call->x.errbuf[0] = '\0';
	return &up->stream;
}

enum { READ_SIZE = 16 << 10, REQUEST_MAX = 256 << 10 };

/* A client of its own with one call: libcurl would count the connection among those that may be
 * used again, and close it when they become too many. */
struct upgrade {
	struct http *http;
	struct http_call *call;
	char *host;
	char *protocol;
	int (*done)(
		void *ctx, struct stream *stream, struct http_response *response, struct err *err);
	void *ctx;
	int fd;
	struct loop_fd *source;
	struct buf request; /* what is not sent yet */
	struct upgrade_reply reply;
	bool over;
};

static void upgrade_free_upgrade(struct upgrade *up)
{
	if (up->source)
		loop_remove_fd(up->call->http->loop, up->source);
	if (up->request.data)
		explicit_bzero(up->request.data, up->request.cap);
	buf_done(&up->request);
	upgrade_reply_done(&up->reply);
	if (up->call)
		http_call_free(up->call);
	if (up->http)
		http_release(up->http);
	free(up->host);
	free(up->protocol);
	free(up);
}

/*
 * The end
 */

/* Called with an error, or with a response that is no upgrade. */
static int upgrade_on_ended(struct http_call *call, struct err *err)
{
	struct upgrade *up = call->request.ctx;

	up->over = true;
	int r = up->done(up->ctx, NULL, &call->response, err);
	upgrade_free_upgrade(up);
	return r;
}

static void upgrade_take_response(struct upgrade *up)
{
	struct http_response *response = &up->call->response;

	up->call->x.status = response->status = up->reply.status;
	up->call->x.headers_over = true;
	strv_done(&response->headers);
	buf_done(&response->body);
	response->headers = up->reply.headers;
	response->body = up->reply.body;
	up->reply.headers = (struct strv){0};
	up->reply.body = (struct buf){0};
}

static bool upgrade_has_word(const struct strv *headers, const char *prefix, const char *word)
{
	size_t len = strlen(word);

	vec_foreach (char *, header, headers) {
		const char *at = str_starts(*header, prefix) ? *header + strlen(prefix) : "";
		for (; *at; at += strcspn(at, ","), at += *at == ',') {
			at += strspn(at, " \t");
			if (strncasecmp(at, word, len) == 0 &&
				(!at[len] || strchr(", \t", at[len])))
				return true;
		}
	}
	return false;
}

/* Check that the server has switched to the requested protocol. */
static int check_protocol(struct upgrade *up, struct err *err)
{
	const struct strv *headers = &up->reply.headers;

	if (upgrade_has_word(headers, "upgrade: ", up->protocol) &&
		upgrade_has_word(headers, "connection: ", "upgrade"))
		return 0;
	return err_set(err, E_HTTP_PROTOCOL, "%s changes to another protocol than %s", up->host,
		up->protocol);
}

static int upgrade_hand_over(struct upgrade *up, const char *early, size_t n_early, struct err *err)
{
	struct http_call *call = up->call;
	struct loop *loop = call->http->loop;

	upgrade_take_response(up);
	call->response.ms = clock_ms() - call->start_ms;
	url_copy(&call->url, &call->response.url);
	http_call_notify(call);
	loop_remove_timer(loop, call->timer);
	call->timer = NULL;
	loop_remove_fd(loop, up->source);
	up->source = NULL;
	up->over = true;
	/* The response stays with the call, and the call with the stream. */
	struct stream *stream = upgrade_stream_new(up->http, call, up->fd, early, n_early);
	struct http_response response = call->response;
	call->response = (struct http_response){0};
	up->http = NULL;
	up->call = NULL;
	int r = up->done(up->ctx, stream, &response, err);
	http_response_done(&response);
	upgrade_free_upgrade(up);
	return r;
}

/* End with an error that was found here, and that libcurl does not know. */
static int upgrade_give_up(struct upgrade *up, struct err *error, struct err *err)
{
	err_move(&up->call->x.error, error);
	return http_call_ended(up->call, CURLE_RECV_ERROR, err);
}

/*
 * Request and response
 */

static void make_request(struct upgrade *up)
{
	const struct http_request *request = &up->call->request;
	AUTO_FREE char *host = url_authority(&up->call->url);
	struct buf *out = &up->request;

	buf_addf(out, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\n", request->method,
		up->call->url.path, host, up->http->user_agent);
	buf_addf(out, "Connection: Upgrade\r\nUpgrade: %s\r\n", up->protocol);
	if (request->authorization)
		buf_addf(out, "Authorization: %s\r\n", request->authorization);
	vec_foreach (char *, header, &up->call->headers)
		buf_addf(out, "%s\r\n", *header);
	buf_adds(out, str_eq(request->method, "GET") ? "\r\n" : "Content-Length: 0\r\n\r\n");
}

static CURLcode upgrade_send_request(struct upgrade *up)
{
	CURLcode code = CURLE_OK;
	size_t n = 0;

	while (up->request.len > 0 && code == CURLE_OK) {
		code = curl_easy_send(up->call->x.easy, up->request.data, up->request.len, &n);
		if (code == CURLE_OK)
			buf_consume(&up->request, n);
	}
	return code;
}

/* The connection has ended. */
static int at_end(struct upgrade *up, struct err *err)
{
	CURLcode code = up->reply.head_bytes > 0 ? CURLE_PARTIAL_FILE : CURLE_GOT_NOTHING;

	if (!upgrade_reply_ended(&up->reply))
		return http_call_ended(up->call, code, err);
	upgrade_take_response(up);
	return http_call_ended(up->call, CURLE_OK, err);
}

/* 0: more is to come; else the upgrade has ended, with *ret. */
static int upgrade_take_bytes(
	struct upgrade *up, const char *data, size_t len, int *ret, struct err *err)
{
	AUTO_ERR struct err error = {0};
	size_t used = 0;

	up->call->x.last_ms = clock_ms();
	up->call->x.bytes_down = up->reply.body.len;
	int r = upgrade_reply_feed(&up->reply, data, len, &used, &error);
	if (r > 0 && up->reply.status == 101)
		r = check_protocol(up, &error) < 0 ? -1 : 1;
	if (r == 0)
		return 0;
	if (r < 0) {
		*ret = upgrade_give_up(up, &error, err);
	} else if (up->reply.status == 101) {
		*ret = upgrade_hand_over(up, data + used, len - used, err);
	} else {
		upgrade_take_response(up);
		*ret = http_call_ended(up->call, CURLE_OK, err);
	}
	return 1;
}

/* Until nothing is there: a response has an end. */
static int upgrade_receive(struct upgrade *up, struct err *err)
{
	char data[READ_SIZE];
	int r = 0;

	for (;;) {
		size_t n = 0;

		CURLcode code = curl_easy_recv(up->call->x.easy, data, sizeof(data), &n);
		if (code == CURLE_AGAIN)
			return 0;
		if (code != CURLE_OK)
			return http_call_ended(up->call, code, err);
		if (n == 0)
			return at_end(up, err);
		if (upgrade_take_bytes(up, data, n, &r, err))
			return r;
	}
}

static short upgrade_prepare(void *ctx)
{
	const struct upgrade *up = ctx;

	return (short)(POLLIN | (up->request.len > 0 ? POLLOUT : 0));
}

/* A response that the server sends before it closes counts more than an error in sending to it. */
static int upgrade_dispatch(void *ctx, short revents UNUSED, struct err *err)
{
	struct upgrade *up = ctx;

	CURLcode code = upgrade_send_request(up);
	if (code != CURLE_OK && code != CURLE_AGAIN)
		buf_reset(&up->request);
	return upgrade_receive(up, err);
}

static const struct loop_fd_ops ops = {.prepare = upgrade_prepare, .dispatch = upgrade_dispatch};

static int on_connected(struct http_call *call, struct err *err)
{
	struct upgrade *up = call->request.ctx;
	curl_socket_t fd = CURL_SOCKET_BAD;

	call->connected = NULL;
	if (curl_easy_getinfo(call->x.easy, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK || fd < 0)
		return http_call_ended(call, CURLE_GOT_NOTHING, err);
	up->fd = fd;
	make_request(up);
	up->source = loop_add_fd(call->http->loop, fd, &ops, up);
	return 0;
}

/*
 * The start
 */

struct upgrade *upgrade_start(struct http *http, const struct upgrade_request *request)
{
	struct upgrade *up = mem_alloc(1, sizeof(*up));
	const struct http_request call = {
		.method = request->method,
		.url = request->url,
		.headers = request->headers,
		.authorization = request->authorization,
		.tls = request->tls,
		.proxy = request->proxy,
		.deadline_ms = request->deadline_ms,
		.ctx = up,
	};

	up->http = http_clone(http);
	up->host = url_authority(request->url);
	up->protocol = mem_strdup(request->protocol);
	up->done = request->done;
	up->ctx = request->ctx;
	buf_init(&up->request, REQUEST_MAX);
	upgrade_reply_init(&up->reply, up->host);
	up->call = http_start(up->http, &call);
	up->call->connected = on_connected;
	up->call->ended = upgrade_on_ended;
	return up;
}

void upgrade_cancel(struct upgrade *upgrade)
{
	if (upgrade && !upgrade->over)
		upgrade_free_upgrade(upgrade);
}
