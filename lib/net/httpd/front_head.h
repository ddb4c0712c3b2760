/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of HTTP/1.1 messages between a browser and a program behind front.c: an engine, bytes
 * in. It takes only what every program understands alike (RFC 9112, sections 2, 3, 5, 6, 11.2): CR
 * LF ends each line and stands nowhere else, no control characters in values, no blank before a
 * colon, no folded lines, one Host, one length (Content-Length once, digits only, or
 * Transfer-Encoding: chunked once, never both), HTTP/1.0 or 1.1. A request that is anything else
 * is refused as a whole.
 */
#ifndef DLRUN_NET_HTTPD_FRONT_HEAD_H
#define DLRUN_NET_HTTPD_FRONT_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum front_body { FRONT_BODY_NONE, FRONT_BODY_LENGTH, FRONT_BODY_CHUNKED, FRONT_BODY_TO_END };

struct front_head {
	/* Of a request. */
	char *method, *target;
	bool is_absolute; /* target came as a URL: the client takes this server for its proxy */
	/* Of an answer. */
	int status;
	struct strv headers; /* "name: value", names in lower case, in order */
	bool is_http_1_0;
	bool keeps_open; /* Connection and the version say so */
	bool is_upgrade; /* Connection: upgrade, with an Upgrade */
	bool expects;    /* Expect: 100-continue */
	enum front_body body;
	uint64_t length;
};
void front_head_done(struct front_head *head);
#define AUTO_FRONT_HEAD AUTO(front_head_done)

/* 1: *ret_used bytes are the head; 0: more is needed. Fails with E_FRONT_HEAD: status is the HTTP
 * status of the refusal (400, 405, 414, 417, 431, 501, 505). */
int front_request_parse(const char *data, size_t len, struct front_head *ret, size_t *ret_used,
	int *ret_status, struct err *err);
/* The answer to method; 1xx but 101 are heads of their own. */
int front_response_parse(const char *data, size_t len, const char *method, struct front_head *ret,
	size_t *ret_used, struct err *err);

/* Where a chunked body (section 7.1) ends; the bytes go through as they are. Extensions and
 * trailers are refused. */
struct front_chunks {
	int state;
	uint64_t left;
	unsigned digits;
};
/* *ret_used bytes belong to the body; 1: it is whole. E_FRONT_HEAD, and again from then on. */
int front_chunks_feed(struct front_chunks *chunks, const char *data, size_t len, size_t *ret_used,
	struct err *err);

/* The head as it goes on to the other side: without fields of one hop (Connection and what it
 * names, Keep-Alive, Proxy-*, TE, Trailer; Upgrade only with is_upgrade); Connection: is added.
 * strip: as front_route.strip. */
void front_head_write(
	const struct front_head *head, const char *strip, bool keeps_open, struct buf *out);

/* A program takes itself for `to` ("localhost:8888") where others ask for `from`, the value of
 * their Host: in a request Host, Origin and Referer say so, and X-Forwarded-Host and -Proto what
 * was asked for; in an answer, with the two exchanged, Location and Access-Control-Allow-Origin.
 */
void front_head_rename(struct front_head *head, const char *from, const char *to);

/* The usual words for a status, or "". */
const char *front_reason(int status);

/* Whether a Host is of this machine, with that port: its name without port and brackets, in lower
 * case, into ret (NUL-ended). */
enum { FRONT_HOST_MAX = 256 };
bool front_host_is_here(const char *value, uint16_t port, char ret[static FRONT_HOST_MAX]);
/* The same with any port; without one: 80. */
bool front_host_split(const char *value, char ret[static FRONT_HOST_MAX], uint16_t *ret_port);
/* Whether the request may be from a page of the same origin (see front.h). */
bool front_origin_is_right(const struct front_head *head, bool any_origin);

#endif
