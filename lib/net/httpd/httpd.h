/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An HTTP/1.1 server for programs of this user on this machine (RFC 9110, 9112), which responds by
 * itself or relays requests to a program that knows nothing of who may ask it. With `address` it is
 * another one: for anybody, to be read only.
 *
 * Before `request` is called, refused are: connections of other users of this machine but root,
 * where the system tells whose they are (os_peer_uid); where it does not, as with -Dos=portable,
 * requests without the server's token (httpd_token.h), with 407 to who takes it for a proxy and
 * else with 403, and the URL that has it leads to the same one without it, with a cookie; a Host
 * but localhost, a name below it, 127.0.0.1 and [::1], with the server's own port (DNS rebinding);
 * Sec-Fetch-Site: cross-site, except for a page that is opened by GET, not in a frame, from another
 * name of this machine with that port (Referer: links between runs, so the page with the links
 * needs Referrer-Policy: origin); an Origin of another scheme, host or port than Host has, on
 * upgrades and on every method but GET and HEAD, and such an Origin on GET and HEAD, too, unless
 * the route says otherwise; and what is not exactly one request: see httpd_head.h.
 *
 * With `address` whose a connection is, a token and the name in Host are not asked for. GET and
 * HEAD without a body reach `request`; other methods get 405, bodies 413, and nothing is upgraded
 * or relayed. A request that a page of another site makes is refused, whatever its method. A head
 * that does not come and a response that is not taken within public_ms end the connection, and
 * where HTTPD_PUBLIC_CONNS_MAX are open a new one ends the oldest.
 *
 * Connections stay open between requests; those to programs as long as both sides want it and the
 * next request has the same key. Bodies go through as they come, with back-pressure, both ways;
 * upgrades (WebSocket) and CONNECT become streams (pump.h). Fields of one hop are not passed
 * on; Host, Origin and cookies are.
 */
#ifndef DLRUN_NET_HTTPD_HTTPD_H
#define DLRUN_NET_HTTPD_HTTPD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum {
	HTTPD_HEAD_MAX = 64 << 10, /* of a request or a response */
	HTTPD_CONNS_MAX = 512,
	HTTPD_PUBLIC_CONNS_MAX = 64,
	HTTPD_HEAD_MS = 10 * 1000, /* for a head to come */
	HTTPD_IDLE_MS = 120 * 1000,
};

struct httpd_request {
	const char *method;
	/* Path and query, from "/" on, as they came; of CONNECT "host:port". */
	const char *target;
	/* Of Host or CONNECT: lower case, without port and brackets; "" with an address. */
	const char *host;
	uint16_t port;              /* of CONNECT: which is asked for; else the server's own */
	const struct strv *headers; /* "name: value", names in lower case */
	bool is_connect, is_upgrade;
};

/* A request that waits for its response: exactly one of httpd_respond, httpd_refuse, httpd_begin,
 * httpd_relay, from within `request` or later. The exchange is over, and the pointer invalid, when
 * its `gone` was called, or after httpd_respond, httpd_refuse, httpd_end and httpd_relay: no gone
 * follows these. A caller that responds later than in `request` needs httpd_on_gone. The body of a
 * request that is not forwarded is dropped; a connection on which the body does not end at once is
 * closed after the response. */
struct httpd_exchange;

struct httpd_options {
	struct loop *loop;
	uint16_t port; /* 0: any */
	bool is_exact; /* else the next ones that are free, as of listen.h */
	/* NULL: this machine's programs. Else anybody who reaches it; as of listen.h, "*": all of
	 * this machine's. */
	const char *address;
	int64_t public_ms; /* 0: HTTPD_HEAD_MS */
	/* From the loop. request is valid during the call only. Neither this nor any other
	 * function of the caller's may free the server. */
	void (*request)(
		void *ctx, struct httpd_exchange *exchange, const struct httpd_request *request);
	/* Called with a problem, for -v: one sentence; or NULL. */
	void (*notice)(void *ctx, const char *text);
	void *ctx;
	bool has_secret; /* request looks for a secret of its own: no token */
};

struct httpd;
/* Listens when it returns, on 127.0.0.1 and ::1 without an address. E_LISTEN_TAKEN, E_LISTEN. */
int httpd_open(const struct httpd_options *options, struct httpd **ret, struct err *err);
/* Requests that wait for their responses are reset; no gone. */
void httpd_free(struct httpd *httpd);
uint16_t httpd_port(const struct httpd *httpd);
/* The token that the server's URLs need; NULL: none. Valid as long as the server. */
const char *httpd_token(const struct httpd *httpd);

/* gone: the other side has left before the response was whole, or has ended its direction: whoever
 * does that waits for no response. */
void httpd_on_gone(struct httpd_exchange *exchange, void (*gone)(void *ctx), void *ctx);
/* headers: "Name: value" beside Content-Length, Date and Connection; may be NULL. Without others of
 * that name X-Content-Type-Options: nosniff and Referrer-Policy: no-referrer are added. data is
 * copied. A HEAD gets no body. */
void httpd_respond(struct httpd_exchange *exchange, int status, const struct strv *headers,
	const void *data, size_t len);
/* An error page of plain HTML: what, and what to do (both escaped here; hint may be NULL). */
void httpd_refuse(struct httpd_exchange *exchange, int status, const char *what, const char *hint);

/* A response that comes bit by bit. length: -1 where it is not known. */
void httpd_begin(
	struct httpd_exchange *exchange, int status, const struct strv *headers, int64_t length);
/* Copied. More than HTTPD_PENDING of bytes that wait: false; go on when `writable` is called. */
enum { HTTPD_PENDING = 1 << 20 };
bool httpd_write(struct httpd_exchange *exchange, const void *data, size_t len);
void httpd_on_writable(struct httpd_exchange *exchange, void (*writable)(void *ctx), void *ctx);
/* cut: the response is not whole, and the other side is to see that. */
void httpd_end(struct httpd_exchange *exchange, bool cut);

struct httpd_route {
	const char *key; /* copied: requests of one key go to the same program */
	/* A new connection to it: fd, a connected socket (non-blocking), is the callee's, also on
	 * failure, which passes what comes out of it to the program. */
	int (*connect)(void *ctx, int fd, struct err *err);
	/* The program has ended the connection without a response: what the page says. Both are the
	 * server's to free; or NULL. */
	void (*why)(void *ctx, char **ret_what, char **ret_hint);
	/* Nothing more is called of the route: the response is over, or a stream has begun (then
	 * the fd lives on); or NULL. */
	void (*free)(void *ctx);
	void *ctx;
	bool any_origin; /* answers that other pages may read by GET: the program decides */
	/* Before the path, to be removed from it ("/prefix"); or NULL. */
	const char *strip;
	/* The name that the program takes for its own ("localhost:8888"), as it is behind a
	 * forwarded port (httpd_head_rename); NULL: the one of the request. */
	const char *host;
};
/* A CONNECT is answered with 200 first. The failure of connect is a page of status 502 with its
 * message and hint. A program that ends a connection on which it has answered before is asked once
 * more where the request is a GET or HEAD. */
void httpd_relay(struct httpd_exchange *exchange, const struct httpd_route *route);

#endif
