/* SPDX-License-Identifier: Apache-2.0 */
#include "net/websocket/upgrade_stream.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util/mem.h"
#include "base/util/str.h"

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

static int fail(const struct upgraded *up, const char *what, struct err *err)
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
	return code == CURLE_OK ? (ssize_t)n : fail(up, "broke the connection off", err);
}

static ssize_t send_some(struct upgraded *up, const void *data, size_t len, struct err *err)
{
	size_t n = 0;

	CURLcode code = curl_easy_send(up->call->x.easy, data, len, &n);
	if (code == CURLE_AGAIN || (code == CURLE_OK && n == 0))
		return STREAM_AGAIN;
	return code == CURLE_OK ? (ssize_t)n : fail(up, "has closed the connection", err);
}

static ssize_t send_record(struct upgraded *up, const void *data, size_t len, struct err *err)
{
	if (up->n_record == 0) {
		up->n_record = len < TLS_RECORD_MAX ? len : TLS_RECORD_MAX;
		memcpy(up->record, data, up->n_record);
	}
	BUG_ON(len < up->n_record);
	ssize_t n = send_some(up, up->record, up->n_record, err);
	if (n != STREAM_AGAIN)
		up->n_record = 0;
	return n;
}

static ssize_t up_write(struct stream *stream, const void *data, size_t len, struct err *err)
{
	struct upgraded *up = (struct upgraded *)stream;
	size_t done = 0;

	if (!up->is_tls)
		return send_some(up, data, len, err);
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
		return fail(up, "has closed the connection", err);
	return 0;
}

static short up_events(struct stream *stream, bool want_read, bool want_write)
{
	(void)stream;
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

struct stream *upgrade_stream_new(
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
