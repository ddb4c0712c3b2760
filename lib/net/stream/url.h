/* SPDX-License-Identifier: Apache-2.0 */
/*
 * URLs of http and https (RFC 3986; RFC 9110 section 4.2): an engine.
 */
#ifndef DLRUN_NET_STREAM_URL_H
#define DLRUN_NET_STREAM_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"

enum { URL_MAX = 8192, URL_HOST_MAX = 255 };

/* Strings are owned. What a ret held before is overwritten, not freed. */
struct url {
	bool tls;      /* https */
	char *host;    /* lower case; an IPv6 address without its brackets */
	uint16_t port; /* 443 and 80 where none is written */
	char *path;    /* from the first slash on, with the query, as it was written: "/v2/?a=b" */
};

/* An absolute URL. E_HTTP_URL, naming what: another scheme, user information, no host, one that is
 * neither a name nor an address (a name that ends in a number is none), a character that may not
 * stand there (blanks, controls, backslashes, bytes over 0x7e), more than URL_MAX bytes. A fragment
 * is dropped. */
int url_parse(const char *text, const char *what, struct url *ret, struct err *err);
/* text as it stands in a Location of a response to base: absolute, //host/path, /path, path or
 * ?query (RFC 3986 section 5), its dot segments removed. */
int url_resolve(const struct url *base, const char *text, const char *what, struct url *ret,
	struct err *err);
/* "https" or "http" at host[:port]; host may be an IPv6 address in brackets. path begins with a
 * slash. E_HTTP_URL. */
int url_make(bool tls, const char *host, const char *path, struct url *ret, struct err *err);
void url_done(struct url *url);
#define AUTO_URL AUTO(url_done)
void url_copy(const struct url *from, struct url *ret);

/* Scheme, host and port are equal. */
bool url_same_origin(const struct url *a, const struct url *b);
/* The host is a name or address of this machine: localhost, *.localhost, 127.0.0.0/8 in any way of
 * writing (127.1), ::1. */
bool url_is_loopback(const struct url *url);
/* As it is sent. The caller frees. */
char *url_text(const struct url *url);
/* "host", "host:port", "[::1]:port": without the port that the scheme implies. */
char *url_authority(const struct url *url);
/* For people and traces: the query is "?…", because it may hold secrets, and what may not stand in
 * a URL is escaped. */
char *url_shown(const struct url *url);
/* Percent-encode all bytes of text but unreserved ones (RFC 3986 section 2.3) and those in more. */
void url_add_escaped(struct buf *out, const char *text, size_t len, const char *more);
/* path with parameter key=value added to its query, the value percent-encoded (RFC 3986 section
 * 2.3). The caller frees. */
char *url_add_param(const char *path, const char *key, const char *value);

#endif
