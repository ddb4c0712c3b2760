/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/http_impl.h"

static bool has_body(const struct http_call *call)
{
	const char *method = call->request.method;

	return call->request.body.size > 0 || str_eq(method, "POST") || str_eq(method, "PUT") ||
	       str_eq(method, "PATCH");
}

/* Every body goes as an upload: of a size that is known, without a type that nobody named. */
static void set_method(struct http_call *call)
{
	if (str_eq(call->request.method, "HEAD")) {
		HTTP_SET(call, CURLOPT_NOBODY, 1L);
		return;
	}
	if (has_body(call)) {
		HTTP_SET(call, CURLOPT_UPLOAD, 1L);
		HTTP_SET(call, CURLOPT_INFILESIZE_LARGE, (curl_off_t)call->request.body.size);
		HTTP_SET(call, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)HTTP_EXPECT_MS);
	}
	HTTP_SET(call, CURLOPT_CUSTOMREQUEST, call->request.method);
}

static void add_header(struct http_exchange *x, const char *line)
{
	size_t len = strcspn(line, ":");
	AUTO_FREE char *empty = NULL;

	/* "Name:" would take a header away in libcurl. */
	if (line[len] && line[len + 1 + strspn(line + len + 1, " \t")] == '\0')
		line = empty = mem_printf("%.*s;", (int)len, line);
	x->headers = curl_slist_append(x->headers, line);
}

static void add_authorization(struct http_call *call)
{
	if (!call->request.authorization)
		return;
	AUTO_FREE char *line = mem_printf("Authorization: %s", call->request.authorization);
	call->x.headers = curl_slist_append(call->x.headers, line);
	explicit_bzero(line, strlen(line));
}

static void set_headers(struct http_call *call)
{
	struct http_exchange *x = &call->x;

	add_authorization(call);
	if (call->request.body.size <= HTTP_EXPECT_MIN || call->http->expects_nothing)
		x->headers = curl_slist_append(x->headers, "Expect:");
	vec_foreach (char *, header, &call->headers)
		add_header(x, *header);
	HTTP_SET(call, CURLOPT_HTTPHEADER, x->headers);
	HTTP_SET(call, CURLOPT_USERAGENT, call->http->user_agent);
}

/* The proxy of the request or the environment's, for http_wipe; NULL: none. Ignores routes. */
static int http_find_proxy(const struct http_call *call, char **ret, struct err *err)
{
	const char *named = call->request.proxy;

	if (!named)
		return proxy_for(&call->http->proxy, &call->url, ret, err);
	if (!*named)
		return 0;
	AUTO_FREE char *what = mem_printf("the proxy for %s", call->url.host);
	return proxy_parse(named, what, ret, err);
}

/* Always set a proxy, or libcurl would read the environment itself. */
static int set_proxy(struct http_call *call, struct err *err)
{
	int r = call->x.route ? 0 : http_find_proxy(call, &call->x.proxy, err);

	if (r < 0)
		return r;
	HTTP_SET(call, CURLOPT_PROXY, call->x.proxy ? call->x.proxy : "");
	HTTP_SET(call, CURLOPT_NOPROXY, "");
	HTTP_SET(call, CURLOPT_PROXYAUTH, (long)CURLAUTH_BASIC);
	HTTP_SET(call, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	return 0;
}

static void set_basics(struct http_call *call)
{
	HTTP_SET(call, CURLOPT_PATH_AS_IS, 1L);
	HTTP_SET(call, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
	HTTP_SET(call, CURLOPT_PROTOCOLS_STR, "http,https");
	HTTP_SET(call, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
	HTTP_SET(call, CURLOPT_FOLLOWLOCATION, 0L);
	HTTP_SET(call, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	HTTP_SET(call, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
	HTTP_SET(call, CURLOPT_NOSIGNAL, 1L);
	/* A name lookup that hangs is left to its thread. */
	HTTP_SET(call, CURLOPT_QUICK_EXIT, 1L);
	HTTP_SET(call, CURLOPT_TCP_NODELAY, 1L);
	HTTP_SET(call, CURLOPT_CONNECTTIMEOUT_MS, (long)HTTP_CONNECT_MS);
	HTTP_SET(call, CURLOPT_ERRORBUFFER, call->x.errbuf);
	HTTP_SET(call, CURLOPT_PRIVATE, call);
}

/* libcurl reads the list and the target when it sends; the URL it has read. */
void http_exchange_authorize(struct http_call *call)
{
	add_authorization(call);
	if (call->retargeted)
		HTTP_SET(call, CURLOPT_REQUEST_TARGET, call->url.path);
	HTTP_SET(call, CURLOPT_HTTPHEADER, call->x.headers);
	call->x.start_ms = call->x.last_ms = clock_ms();
}

int http_exchange_init(struct http_call *call, struct err *err)
{
	struct http_exchange *x = &call->x;

	x->last_ms = clock_ms();
	x->start_ms = x->last_ms;
	x->fd = -1;
	x->was_held = call->held;
	x->easy = curl_easy_init();
	if (!x->easy)
		return err_set(err, E_BUG, "libcurl makes no request");
	x->route = http_find_route(call->http, &call->url);
	set_basics(call);
	set_method(call);
	set_headers(call);
	http_connect_options(call);
	http_send_options(call);
	http_receive_options(call);
	int r = set_proxy(call, err);
	if (r == 0)
		r = http_tls_options(call, err);
	if (r < 0)
		return r;
	if (x->route)
		http_route_options(call);
	return x->unset ? err_set(err, E_BUG, "libcurl does not take %s", x->unset) : 0;
}

static void free_curl(struct http_exchange *x)
{
	curl_easy_cleanup(x->easy);
	for (struct curl_slist *line = x->headers; line; line = line->next)
		explicit_bzero(line->data, strlen(line->data));
	curl_slist_free_all(x->headers);
	curl_slist_free_all(x->connect_to);
}

void http_exchange_done(struct http_exchange *x)
{
	/* Without a handle nothing of libcurl's is in use; it may not even be loaded. */
	if (x->easy)
		free_curl(x);
	http_wipe(x->proxy);
	err_done(&x->refused);
	err_done(&x->fault);
	*x = (struct http_exchange){0};
}
