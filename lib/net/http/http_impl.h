/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Definitions shared by the parts of the HTTP client; only they include this.
 *
 * libcurl must not be entered again from its own callbacks, so the functions of http.h only mark
 * and set timers there: http_enter and http_exit stand around each entry, and what was marked is
 * carried out in http_exit.
 */
#ifndef DLRUN_NET_HTTP_HTTP_IMPL_H
#define DLRUN_NET_HTTP_HTTP_IMPL_H

#include "net/http/http.h"
#include "net/http/http_curl.h"

enum {
	HTTP_IDLE_MS = 30 * 1000,
	HTTP_EXPECT_MIN = 8 << 20, /* larger bodies ask first (RFC 9110 section 10.1.1) */
	HTTP_EXPECT_MS = 300,
	HTTP_EXPECT_REFUSED = 417, /* the status (RFC 9110 section 15.5.18) */
	HTTP_POOL_MAX = 32,
	HTTP_KEEP_S = 30,          /* a probe of an idle connection that was taken over */
	HTTP_RECV_MAX = 256 << 10, /* at once, of a connection that was taken over */
	HTTP_BATCH_MAX = 64 << 10, /* of a body, given to the caller at once */
};

struct http_route {
	struct http_route *next;
	char *host;
	uint16_t port, to;
	http_route_fn *open;
	void *ctx;
};

/* A socket of libcurl's on the loop. */
struct http_watch;

struct http {
	struct loop *loop;
	char *user_agent;
	char *ca_file;
	struct proxy_env proxy;
	unsigned n_connections; /* for each host, beside those of streams */
	http_event_fn *event;
	void *event_ctx;
	struct http_route *routes;
	CURLM *multi;                /* NULL until the first exchange */
	struct http_call *calls;     /* the newest first */
	unsigned n_streams, n_turns; /* under way; the latter of the former */
	size_t n_running;            /* with libcurl */
	struct loop_timer *timer;
	struct loop_timer *drain_timer;
	bool draining;
	bool released;
	bool expects_nothing; /* a server or a proxy has refused Expect */
	int depth;            /* entries of libcurl that have not returned */
};

/* An exchange of a call: a request and its response. */
struct http_exchange {
	CURL *easy;
	struct curl_slist *headers;
	struct curl_slist *connect_to;
	const struct http_route *route; /* the client's, or NULL */
	char *proxy;                    /* with user information, or NULL */
	int fd;                         /* as far as libcurl waits for it, or -1 */
	struct http_watch *watch;       /* of fd, or NULL */
	char errbuf[CURL_ERROR_SIZE];
	const char *unset; /* an option that libcurl does not take */
	int64_t start_ms;
	int64_t last_ms; /* when a byte went either way */
	curl_off_t seen_up, seen_down;
	uint64_t body_pos;
	size_t header_bytes;
	uint64_t waited_at; /* sending, for input: what had been read by then, and 1 */
	int status;
	bool attached;     /* libcurl is at it */
	bool begun;        /* a connection was given to it */
	bool was_held;     /* it was begun while the call was held */
	bool too_early;    /* a connection was there while it still was: given up */
	bool headers_over; /* of the final response */
	bool cut;          /* the rest of an error's body is not wanted */
	bool has_length;
	uint64_t length;
	uint64_t bytes_up, bytes_down;
	struct err refused; /* by zone: an address of several, maybe; by the route */
	struct err error;
	bool is_transient;
};

struct http_call {
	struct http *http;
	struct http_call *prev, *next;
	struct http_request request; /* its pointers are owned, but tls' and body's */
	struct http_tls tls;
	struct url url; /* of the exchange */
	struct strv headers;
	struct http_exchange x;
	bool waits_for_turn, has_share; /* it has not, or has, a connection of its own */
	struct loop_timer *timer;       /* start, then limits */
	struct loop_timer *wake_timer;
	bool resumes; /* and not only checks for input */
	int64_t start_ms;
	unsigned hops;
	bool held;       /* not to be sent yet */
	bool retargeted; /* since its connection was begun, maybe */
	bool recv_paused, send_paused;
	bool gathers; /* of the body what is read at once, in batch */
	struct buf batch;
	bool canceled;
	bool over; /* done was or is being called */
	struct http_response response;
	/* Of an upgrade: it only connects, and whoever takes the connection over owns the call:
	 * http_call_free ends it. An error comes to `ended`, instead of request.done. */
	int (*connected)(struct http_call *call, struct err *err);
	int (*ended)(struct http_call *call, struct err *err);
};

/* http.c */
/* Another client with the same settings and none of its connections. */
struct http *http_clone(const struct http *http);
/* http_free, also where http_drain has called. */
void http_release(struct http *http);

/* Tells http_event of an exchange that has ended. */
void http_call_notify(struct http_call *call);
/* libcurl is through with the exchange of a call. */
int http_call_ended(struct http_call *call, CURLcode result, struct err *err);
void http_call_free(struct http_call *call);
/* Resume sending when the data that has come is read. */
void http_call_wake(struct http_call *call);

/* Overwrites and frees a string; NULL is accepted. */
void http_wipe(const char *secret);

/* 1: the response redirects to *ret; 0: it is final. */
int http_find_redirect(const struct http_call *call, struct url *ret, struct err *err);
/* Makes the call one for url, which it takes over. */
void http_redirect(struct http_call *call, struct url *url);

void http_drop_routes(struct http *http);

/* http_exchange.c */
/* The handle of the next exchange of the call. */
int http_exchange_init(struct http_call *call, struct err *err);
/* With the authorization of the call, which came after its connection was begun. */
void http_exchange_authorize(struct http_call *call);
void http_exchange_done(struct http_exchange *x);

/* Of the issuers to trust; NULL: the system's. */
const char *http_ca_file(const struct http_call *call);

/* Check the zone of a url that goes to a proxy, which will look it up: only an address can be. */
int http_check_literal(const struct http_call *call, struct err *err);

/* Give what was gathered of the body to the caller. < 0: the caller refuses it, with x.error. */
int http_give_batch(struct http_call *call);

/* http_error.c */
/* Explain a failed exchange to people, in x.error; sets is_transient. */
void http_error(struct http_call *call, CURLcode result);

#define HTTP_SET(call, option, value)                                                              \
	do {                                                                                       \
		if (curl_easy_setopt((call)->x.easy, option, value) != CURLE_OK)                   \
			(call)->x.unset = #option;                                                 \
	} while (0)

#endif
