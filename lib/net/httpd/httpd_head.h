/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of HTTP/1.1 messages between a browser and a program behind httpd.c: an engine, bytes
 * in. It takes only what every program understands alike (RFC 9112, sections 2, 3, 5, 6, 11.2): CR
 * LF ends each line and stands nowhere else, no control characters in values, no blank before a
 * colon, no folded lines, one Host, one length (Content-Length once, digits only, or
 * Transfer-Encoding: chunked once, never both), HTTP/1.0 or 1.1. A request that is anything else
 * is refused as a whole.
 */
#ifndef DLRUN_NET_HTTPD_HTTPD_HEAD_H
#define DLRUN_NET_HTTPD_HTTPD_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum httpd_body { HTTPD_BODY_NONE, HTTPD_BODY_LENGTH, HTTPD_BODY_CHUNKED, HTTPD_BODY_TO_END };

struct httpd_head {
	/* Of a request. */
	char *method, *target;
	bool is_absolute; /* target came as a URL: the client takes this server for its proxy */
	/* Of a response. */
	int status;
	struct strv headers; /* "name: value", names in lower case, in order */
	bool is_http_1_0;
	bool keeps_open; /* Connection and the version say so */
	bool is_upgrade; /* Connection: upgrade, with an Upgrade */
	bool expects;    /* Expect: 100-continue */
	enum httpd_body body;
	uint64_t length;
};
void httpd_head_done(struct httpd_head *head);
#define AUTO_HTTPD_HEAD AUTO(httpd_head_done)

/* 1: *ret_used bytes are the head; 0: more is needed. Fails with E_HTTPD_HEAD: status is the HTTP
 * status of the refusal (400, 405, 414, 417, 431, 501, 505). */
int httpd_request_parse(const char *data, size_t len, struct httpd_head *ret, size_t *ret_used,
	int *ret_status, struct err *err);
/* The response to method; 1xx but 101 are heads of their own. */
int httpd_response_parse(const char *data, size_t len, const char *method, struct httpd_head *ret,
	size_t *ret_used, struct err *err);

/* Where a chunked body (section 7.1) ends; the bytes go through as they are. Extensions and
 * trailers are refused. */
struct httpd_chunks {
	int state;
	uint64_t left;
	unsigned digits;
};
/* *ret_used bytes belong to the body; 1: it is whole. E_HTTPD_HEAD, and again from then on. */
int httpd_chunks_feed(struct httpd_chunks *chunks, const char *data, size_t len, size_t *ret_used,
	struct err *err);

/* The head as it goes on to the other side: without fields of one hop (Connection and what it
 * names, Keep-Alive, Proxy-*, TE, Trailer; Upgrade only with is_upgrade); Connection: is added.
 * strip: as httpd_route.strip. */
void httpd_head_write(
	const struct httpd_head *head, const char *strip, bool keeps_open, struct buf *out);

/* A program takes itself for `to` ("localhost:8888") where others ask for `from`, the value of
 * their Host: in a request Host, Origin and Referer say so, and X-Forwarded-Host and -Proto what
 * was asked for; in a response, with the two exchanged, Location and Access-Control-Allow-Origin.
 */
void httpd_head_rename(struct httpd_head *head, const char *from, const char *to);

/* The usual words for a status, or "". */
const char *httpd_reason(int status);

/* Whether a Host is of this machine, with that port: its name without port and brackets, in lower
 * case, into ret (NUL-ended). */
enum { HTTPD_HOST_MAX = 256 };
bool httpd_host_is_here(const char *value, uint16_t port, char ret[static HTTPD_HOST_MAX]);
/* The same with any port; without one: 80. */
bool httpd_host_split(const char *value, char ret[static HTTPD_HOST_MAX], uint16_t *ret_port);
/* Whether the request may be from a page of the same origin (see httpd.h). */
bool httpd_origin_is_right(const struct httpd_head *head, bool any_origin);

#endif
