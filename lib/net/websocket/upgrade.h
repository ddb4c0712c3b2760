/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection that begins as HTTP/1.1 and becomes a stream of bytes (RFC 9110 section 7.8): the
 * way in for WebSocket and SPDY. TLS, client certificates and proxies (CONNECT) are those of
 * http.c.
 */
#ifndef DLRUN_NET_WEBSOCKET_UPGRADE_H
#define DLRUN_NET_WEBSOCKET_UPGRADE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "net/http/http.h"
#include "net/stream/stream.h"
#include "net/stream/url.h"

struct upgrade_request {
	const char *method; /* GET, POST */
	const struct url *url;
	const char *protocol;       /* of Upgrade: "websocket", "SPDY/3.1" */
	const struct strv *headers; /* "Name: value"; NULL: none */
	const char *authorization;  /* the value, or NULL */
	const struct http_tls *tls; /* lives until done; NULL: the client's */
	const char *proxy;          /* as http_request.proxy */
	int64_t deadline_ms;        /* clock_ms(), of all up to the response; 0: none */
	/* stream: the bytes behind the response 101, for the callee to keep; NULL:
	 * response->error, or a response of another status with its body (up to
	 * HTTP_ERROR_BODY_MAX). Called from the loop, once. A negative return ends
	 * loop_run. */
	int (*done)(
		void *ctx, struct stream *stream, struct http_response *response, struct err *err);
	void *ctx;
};

struct upgrade;
/* Copies what it keeps. Uses a connection of its own, outside the pool of http, of which it needs
 * nothing any more when it has started: http_free does not end it, nor the stream. The errors are
 * those of http_start; a 101 to another protocol is E_HTTP_PROTOCOL. Redirects are responses. */
struct upgrade *upgrade_start(struct http *http, const struct upgrade_request *request);
/* Give up; no done. NULL is accepted. */
void upgrade_cancel(struct upgrade *upgrade);

/*
 * The response to a request for an upgrade (RFC 9112): an engine, bytes in. Stricter than browsers
 * are, because what stands behind the head is taken for another protocol's: CR LF ends each line,
 * no line goes on in the next, no blank stands before a colon, no control in a value.
 */

/* Where in a response the next byte stands. */
enum upgrade_reply_state {
	REPLY_STATUS,
	REPLY_HEADER,
	REPLY_LENGTH,     /* body: `left` bytes */
	REPLY_CLOSE,      /* body: up to the end of the connection */
	REPLY_CHUNK_SIZE, /* a line */
	REPLY_CHUNK,      /* `left` bytes */
	REPLY_CHUNK_END,  /* an empty line */
	REPLY_OVER,
};

struct upgrade_reply {
	const char *host;    /* for messages */
	int status;          /* of the present head; answers 100 to 199 but 101 are passed over */
	struct strv headers; /* "name: value", names in lower case, in order */
	struct buf body;     /* up to HTTP_ERROR_BODY_MAX, what is behind that is not waited for */
	enum upgrade_reply_state state;
	struct buf line;   /* as far as it has come */
	size_t head_bytes; /* of all heads */
	uint64_t left;
	bool has_length, is_chunked;
};

/* host lives as long as it. */
void upgrade_reply_init(struct upgrade_reply *reply, const char *host);
void upgrade_reply_done(struct upgrade_reply *reply);

/* 1: the response is whole (a 101 with its head), *ret_used bytes of data belong to it; 0: there is
 * more to come, all were used. E_HTTP_LIMIT: more than HTTP_HEADERS_MAX of heads. E_HTTP_PROTOCOL:
 * none of HTTP/1; lengths that contradict each other; encodings but chunked. */
int upgrade_reply_feed(struct upgrade_reply *reply, const char *data, size_t len, size_t *ret_used,
	struct err *err);

#endif
