/* SPDX-License-Identifier: Apache-2.0 */
#include "net/websocket/upgrade.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/http_impl.h"
#include "net/stream/field.h"
#include "net/websocket/upgrade_reply.h"
#include "net/websocket/upgrade_stream.h"

enum { READ_SIZE = 16 << 10, REQUEST_MAX = 256 << 10 };

/* A client of its own with one call: libcurl would count the connection among those that may be
 * used again, and close it when they become too many. */
struct upgrade {
	struct http *http;
	struct http_call *call;
	char *host;
	char *protocol;
	int (*done)(void *ctx, struct stream *stream, struct http_answer *answer, struct err *err);
	void *ctx;
	int fd;
	struct loop_fd *source;
	struct buf request; /* what is not sent yet */
	struct upgrade_reply reply;
	bool over;
};

static void free_upgrade(struct upgrade *up)
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
static int on_ended(struct http_call *call, struct err *err)
{
	struct upgrade *up = call->request.ctx;

	up->over = true;
	int r = up->done(up->ctx, NULL, &call->answer, err);
	free_upgrade(up);
	return r;
}

static void take_answer(struct upgrade *up)
{
	struct http_answer *answer = &up->call->answer;

	up->call->x.status = answer->status = up->reply.status;
	up->call->x.headers_over = true;
	strv_done(&answer->headers);
	buf_done(&answer->body);
	answer->headers = up->reply.headers;
	answer->body = up->reply.body;
	up->reply.headers = (struct strv){0};
	up->reply.body = (struct buf){0};
}

static bool has_word(const struct strv *headers, const char *prefix, const char *word)
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

	if (has_word(headers, "upgrade: ", up->protocol) &&
		has_word(headers, "connection: ", "upgrade"))
		return 0;
	return err_set(err, E_HTTP_PROTOCOL, "%s changes to another protocol than %s", up->host,
		up->protocol);
}

static int hand_over(struct upgrade *up, const char *early, size_t n_early, struct err *err)
{
	struct http_call *call = up->call;
	struct loop *loop = call->http->loop;

	take_answer(up);
	call->answer.ms = clock_ms() - call->start_ms;
	url_copy(&call->url, &call->answer.url);
	http_call_tell(call);
	loop_remove_timer(loop, call->timer);
	call->timer = NULL;
	loop_remove_fd(loop, up->source);
	up->source = NULL;
	up->over = true;
	/* The answer stays with the call, and the call with the stream. */
	struct stream *stream = upgrade_stream_new(up->http, call, up->fd, early, n_early);
	struct http_answer answer = call->answer;
	call->answer = (struct http_answer){0};
	up->http = NULL;
	up->call = NULL;
	int r = up->done(up->ctx, stream, &answer, err);
	http_answer_done(&answer);
	free_upgrade(up);
	return r;
}

/* End with an error that was found here, and that libcurl does not know. */
static int give_up(struct upgrade *up, struct err *fault, struct err *err)
{
	err_move(&up->call->x.fault, fault);
	return http_call_ended(up->call, CURLE_RECV_ERROR, err);
}

/*
 * Request and answer
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

static CURLcode send_request(struct upgrade *up)
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
	take_answer(up);
	return http_call_ended(up->call, CURLE_OK, err);
}

/* 0: more is to come; else the upgrade has ended, with *ret. */
static int take_bytes(struct upgrade *up, const char *data, size_t len, int *ret, struct err *err)
{
	AUTO_ERR struct err fault = {0};
	size_t used = 0;

	up->call->x.last_ms = clock_ms();
	up->call->x.bytes_down = up->reply.body.len;
	int r = upgrade_reply_feed(&up->reply, data, len, &used, &fault);
	if (r > 0 && up->reply.status == 101)
		r = check_protocol(up, &fault) < 0 ? -1 : 1;
	if (r == 0)
		return 0;
	if (r < 0) {
		*ret = give_up(up, &fault, err);
	} else if (up->reply.status == 101) {
		*ret = hand_over(up, data + used, len - used, err);
	} else {
		take_answer(up);
		*ret = http_call_ended(up->call, CURLE_OK, err);
	}
	return 1;
}

/* Until nothing is there: an answer has an end. */
static int receive(struct upgrade *up, struct err *err)
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
		if (take_bytes(up, data, n, &r, err))
			return r;
	}
}

static short prepare(void *ctx)
{
	const struct upgrade *up = ctx;

	return (short)(POLLIN | (up->request.len > 0 ? POLLOUT : 0));
}

/* A response that the server sends before it closes counts more than an error in sending to it. */
static int dispatch(void *ctx, short revents, struct err *err)
{
	struct upgrade *up = ctx;

	(void)revents;
	CURLcode code = send_request(up);
	if (code != CURLE_OK && code != CURLE_AGAIN)
		buf_reset(&up->request);
	return receive(up, err);
}

static const struct loop_fd_ops ops = {.prepare = prepare, .dispatch = dispatch};

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

	up->http = http_twin(http);
	up->host = url_authority(request->url);
	up->protocol = mem_strdup(request->protocol);
	up->done = request->done;
	up->ctx = request->ctx;
	buf_init(&up->request, REQUEST_MAX);
	upgrade_reply_init(&up->reply, up->host);
	up->call = http_start(up->http, &call);
	up->call->connected = on_connected;
	up->call->ended = on_ended;
	return up;
}

void upgrade_cancel(struct upgrade *upgrade)
{
	if (upgrade && !upgrade->over)
		free_upgrade(upgrade);
}
