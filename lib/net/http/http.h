/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An HTTP/1.1 client on the loop (RFC 9110, RFC 9112), by libcurl: many requests at once over a few
 * connections that are kept.
 *
 * It trusts no server: responses have limits, redirects are followed here (at most 5, never from
 * https to http), and what is secret is sent to the origin of the request only. Names that a server
 * gave (redirects, and requests with `zone` set) may not lead further inwards than to the zone of
 * the host that the user named (address.h); the address is checked when the connection is made,
 * after the name was looked up.
 */
#ifndef DLRUN_NET_HTTP_HTTP_H
#define DLRUN_NET_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "net/http/proxy.h"
#include "net/stream/address.h"
#include "net/stream/url.h"

enum {
	HTTP_CONNECTIONS_MAX = 8, /* for each host and port, beside those of streams; see options */
	HTTP_TURNS_MAX = 200,     /* streams that take turns, at the same time */
	HTTP_TURN_MS = 5000,
	HTTP_HEADERS_MAX = 64 << 10,
	HTTP_ERROR_BODY_MAX = 64 << 10, /* kept of a response that is no success */
	HTTP_REDIRECTS_MAX = 5,
	HTTP_CONNECT_MS = 8000, /* name lookup, TCP and TLS together */
	HTTP_ROUTE_MS = 40000,  /* the same over a route, which may have to be made */
};

/* An exchange that has ended, for traces and counts, redirects included. The function starts and
 * ends no calls. */
struct http_event {
	const char *method;
	const char *url;               /* without its query */
	int status;                    /* 0: there was none */
	int64_t ms;                    /* since it was handed to the connection pool, or released */
	uint64_t bytes_up, bytes_down; /* bodies */
	const struct err *error;       /* or NULL */
};
typedef void http_event_fn(void *ctx, const struct http_event *event);

struct http_options {
	struct loop *loop;
	const char *user_agent;
	struct proxy_env proxy; /* the values outlive the client */
	const char *ca_file;    /* SSL_CERT_FILE or NULL: the system's */
	unsigned n_connections; /* instead of HTTP_CONNECTIONS_MAX; 0: that */
	http_event_fn *event;   /* or NULL */
	void *event_ctx;
};

/* Begin to load what clients need, beside the caller: the first request waits for it. Only one
 * library is loaded at a time: before whatever else needs one. */
void http_prepare(void);

/* Options of a client of dlrun: proxies and SSL_CERT_FILE are as env has them, whose values outlive
 * the client. */
struct http_options http_options_of(struct loop *loop, const char *const *env);

struct http;
struct http *http_new(const struct http_options *options);
/* Calls that are left are given up without their done. Not from within a callback. */
void http_free(struct http *http);
AUTO_POINTER(struct http, http_free)
#define AUTO_HTTP AUTO(http_free_auto)

/* A connection is about to be made from local_port of this machine over a route; a negative return
 * refuses it, and its call fails with what is in err. Called from within the client: it may not
 * enter it. */
typedef int http_route_fn(void *ctx, uint16_t local_port, struct err *err);
/* Connections to host are led to port `to` of 127.0.0.1 from now on, where a tunnel to it begins:
 * its name is not looked up, no proxy is used, and what lies there counts as ADDRESS_PUBLIC. port
 * 0: the ports of http and https. Requests keep the name; TLS and its certificates, too. Not for
 * upgrades. ctx outlives the client. */
void http_add_route(struct http *http, const char *host, uint16_t port, uint16_t to,
	http_route_fn *open, void *ctx);

/* Of one server; lives as long as its calls. */
struct http_tls {
	const char *ca_file; /* instead of the client's; NULL: that */
	/* Without ca_file: issuers beside the client's; NULL: none. */
	const char *more_ca_file;
	bool insecure; /* any certificate is taken */
	/* PEM text. ca_pem: the only issuers, instead of any file; NULL: none is given.
	 * cert_pem and key_pem: of this side; both or neither. */
	const char *ca_pem, *cert_pem, *key_pem;
	/* The name that the certificate must have (and SNI; the Host header stays the URL's);
	 * NULL: the host of the URL. */
	const char *server_name;
};
/* The settings for other origins that an origin with tls leads to: its issuers, beside the
 * client's. A registry with certificates of its own has its storage behind such ones, too. */
struct http_tls http_tls_elsewhere(const struct http_tls *tls);

/* The bytes that are sent. Exactly one of data, fd, and read, or none for an empty one. */
struct http_body {
	uint64_t size;
	const void *data; /* copied when `copy`, else it lives until done */
	bool copy;
	int fd; /* read by pread from offset on, when has_fd; stays the caller's */
	bool has_fd;
	uint64_t offset;
	/* Up to len bytes (more than 0) into out; 0: none now, http_resume goes on; negative:
	 * the call fails with what is in err. */
	ssize_t (*read)(void *ctx, void *out, size_t len, struct err *err);
};

struct http_response {
	int status;          /* of the last exchange; 0: there is an error */
	struct strv headers; /* of it: "name: value", names in lower case, in order */
	struct buf body;     /* as far as it is kept */
	struct url url;      /* of the last exchange */
	/* Of the address that responded. Behind a proxy, where it is not seen: of a host that is an
	 * address, else ADDRESS_PUBLIC. */
	enum address_zone zone;
	uint64_t bytes_up, bytes_down;
	int64_t ms;
	struct err error;  /* the call failed: E_HTTP_CONNECT, E_HTTP_TLS, … below */
	bool sent;         /* some of the request may have reached the server */
	bool is_transient; /* the same request may work in a moment */
};
/* For a response that was taken over. */
void http_response_done(struct http_response *response);
/* response is the client's and ends with the call. A negative return ends loop_run. */
typedef int http_done_fn(void *ctx, struct http_response *response, struct err *err);
/* Bytes of the body of a success. 0; 1: no more until http_resume (but done, if these were the
 * last); negative: the call fails with what is in err. */
typedef int http_data_fn(void *ctx, const void *data, size_t len, struct err *err);

/* The share of the connections to its host that a request takes. Each long response has a
 * connection beside those of the others, so that no request waits for its end. */
enum http_share {
	HTTP_SHORT,  /* one of HTTP_CONNECTIONS_MAX */
	HTTP_STREAM, /* one of its own; for the few that must not wait */
	/* A turn, out of HTTP_TURNS_MAX. The request waits for a free one without a timeout, and a
	 * request that has had its turn for HTTP_TURN_MS has to give way then
	 * (http_is_to_give_way). */
	HTTP_TURN,
};

struct http_request {
	enum http_share share;
	const char *method; /* GET HEAD POST PUT PATCH DELETE */
	const struct url *url;
	const struct strv *headers; /* "Name: value" to every origin; NULL: none */
	const char *authorization;  /* the value, or NULL: to the origin of url only */
	struct http_body body;
	size_t max_body;            /* more in a success is E_HTTP_LIMIT; ignored with data */
	http_data_fn *data;         /* or NULL: the body is kept in the response */
	bool follow;                /* redirects: 301, 302, 303 of GET and HEAD; 307, 308 of all
				      * whose body can be sent again. Else they are responses */
	const struct http_tls *tls; /* of the origin of url; NULL: the client's */
	/* The proxy's URL (socks5 looks names up here, socks5h there), also for hosts of this
	 * machine; "": no proxy; NULL: as the environment says. */
	const char *proxy;
	bool has_zone;          /* a server named this URL: */
	enum address_zone zone; /* of the host that the user named */
	/* Sent by http_authorize and not before, without authorization until then. Until it is sent
	 * only the deadline ends it. */
	bool held;
	/* On a new connection: libcurl sends what a kept one has lost once more. */
	bool fresh;
	int64_t deadline_ms; /* clock_ms(); 0: none */
	int64_t idle_ms;     /* no byte either way for so long; 0: 30 s */
	http_done_fn *done;
	void *ctx;
};

/* Copies what it keeps. done is called from the loop, never from here, and exactly once unless the
 * call is given up. The errors: E_HTTP_URL (server_name, too); E_CONFIG
 * (proxy); E_HTTP_RESOLVE (name); E_HTTP_CONNECT; E_HTTP_TLS (certificates of both sides);
 * E_HTTP_PROXY; E_HTTP_TIMEOUT; E_HTTP_CLOSED (in mid-exchange); E_HTTP_LIMIT (headers, body);
 * E_HTTP_PROTOCOL (no HTTP, wrong length); E_HTTP_REDIRECT (too many, downgrade); E_HTTP_ZONE; E_IO
 * (there is no libcurl). */
struct http_call *http_start(struct http *http, const struct http_request *request);
/* Send a held request, with this authorization (copied; NULL: none). Its connection was begun by
 * http_start, unless something is between here and the server; it is made again if it was lost
 * meanwhile. NULL is accepted. */
void http_authorize(struct http_call *call, const char *authorization);
/* Turn a held request into one for another path and query of the same origin, whose response goes
 * to another ctx: for requests of which no more is known ahead than that they come. */
void http_retarget(struct http_call *call, const struct url *url, void *ctx);
/* Give up; no done. NULL is accepted. The connection is closed if it is in use. */
void http_cancel(struct http_call *call);
/* Go on reading the body, or sending it. NULL is accepted. */
void http_resume(struct http_call *call);
/* Of HTTP_TURN: it waits for its turn; it is to be given up, as another one waits, and may be begun
 * again behind that. */
bool http_waits_for_turn(const struct http_call *call);
bool http_is_to_give_way(const struct http_call *call);
/* Bytes of the body that have left so far. */
uint64_t http_sent(const struct http_call *call);

#endif
