/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proxy for a URL: HTTPS_PROXY, HTTP_PROXY (lower case only, as in curl, because CGI sets the
 * other), ALL_PROXY, NO_PROXY, as curl and Go read them. An engine.
 */
#ifndef DLRUN_NET_HTTP_PROXY_H
#define DLRUN_NET_HTTP_PROXY_H

#include "base/util/err.h"
#include "net/stream/url.h"

/* Values of the variables; NULL: not set or empty. Lower case wins where both are set. */
struct proxy_env {
	const char *https_proxy, *http_proxy, *all_proxy, *no_proxy;
};
/* From NAME=value words, NULL-ended; the values live as long as env. */
void proxy_env_read(const char *const *env, struct proxy_env *ret);

/* The proxy for url, with its user information, or NULL: straight. Never one for loopback.
 *
 * no_proxy: "*", hosts (also those below them, with or without a leading dot), addresses, CIDR
 * blocks, host:port, with commas or blanks between; an entry of another form matches nothing.
 *
 * E_CONFIG naming the variable for a proxy of another form than
 * http|https|socks4|socks4a|socks5|socks5h://[user[:password]@]host[:port][/]; without a scheme it
 * is http, without a port 80, 443 or 1080. What is returned always has both. The caller frees; it
 * may hold a password. */
int proxy_for(const struct proxy_env *env, const struct url *url, char **ret, struct err *err);
/* A proxy that was named otherwise, in the same form; what: "the proxy of …", for E_CONFIG. */
int proxy_parse(const char *text, const char *what, char **ret, struct err *err);
/* proxy as these return it, without user information. The caller frees. */
char *proxy_without_user(const char *proxy);
/* The same as proxy_for for people: without user information; *ret_variable names the variable
 * (static). */
int proxy_shown(const struct proxy_env *env, const struct url *url, char **ret,
	const char **ret_variable, struct err *err);

#endif
