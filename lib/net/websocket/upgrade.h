/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection that begins as HTTP/1.1 and becomes a stream of bytes (RFC 9110 section 7.8): the
 * way in for WebSocket and SPDY. TLS, client certificates and proxies (CONNECT) are those of
 * http.c.
 */
#ifndef DLRUN_NET_WEBSOCKET_UPGRADE_H
#define DLRUN_NET_WEBSOCKET_UPGRADE_H

#include <stdint.h>

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

#endif
