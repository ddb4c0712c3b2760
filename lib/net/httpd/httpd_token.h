/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token of a server where the system does not tell whose a connection is (httpd.h): an
 * engine on heads of requests.
 *
 * It is shown in one of three ways: as the parameter dlrun_token of a URL, which a browser opens
 * once and has a cookie from then on; as that cookie (RFC 6265), called dlrun-token-PORT because
 * cookies do not know ports; as the password of Proxy-Authorization: Basic (RFC 7617, any user), by
 * who takes the server for a proxy.
 *
 * A URL may have the token of its host instead of the server's own, and a cookie has no other:
 * whoever gets hold of it (a script of that host, which can see its URLs; a server at another port
 * of that name, which is sent its cookies) is let in to that host alone.
 */
#ifndef DLRUN_NET_HTTPD_HTTPD_TOKEN_H
#define DLRUN_NET_HTTPD_HTTPD_TOKEN_H

#include <stdbool.h>
#include <stdint.h>

#include "net/httpd/httpd_head.h"

enum { HTTPD_TOKEN_SIZE = 33 }; /* 128 bits in hex, NUL-ended */
#define HTTPD_TOKEN_PARAM "dlrun_token"

/* A new one for a server. */
void httpd_token_make(char ret[static HTTPD_TOKEN_SIZE]);
/* The one of a host of that server ("6006.a-22222.localhost", as httpd_request.host has it). */
void httpd_token_of(const char *token, const char *host, char ret[static HTTPD_TOKEN_SIZE]);

/* The tokens that a request has presented. */
struct httpd_proof {
	bool was_in_url; /* the URL had a token, right or wrong */
	bool url_is_right;
	bool field_is_right; /* the cookie or the password */
};
/* Takes all that has to do with tokens, right or wrong, out of the head, so that nobody behind the
 * server sees it: parameters called dlrun_token (percent-encoded, too), cookies called
 * dlrun-token-…, Proxy-Authorization. What else there is stays byte for byte, but blanks between
 * cookies. Values are compared in the same time whatever they are. */
void httpd_token_take(const char *token, const char *host, uint16_t port, struct httpd_head *head,
	struct httpd_proof *ret);
/* The value of Set-Cookie for that host. The caller frees. */
char *httpd_token_cookie(const char *token, const char *host, uint16_t port);

#endif
