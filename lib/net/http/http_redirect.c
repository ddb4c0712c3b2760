/* SPDX-License-Identifier: Apache-2.0 */
/* RFC 9110 section 15.4. */
#include "base/util/str.h"
#include "net/http/http_impl.h"
#include "net/stream/field.h"

static bool can_send_again(const struct http_call *call)
{
	return !call->request.body.read || call->request.body.size == 0;
}

static bool is_followed(const struct http_call *call)
{
	const char *method = call->request.method;

	if (!call->request.follow)
		return false;
	switch (call->x.status) {
	case 301:
	case 302:
	case 303:
		return str_eq(method, "GET") || str_eq(method, "HEAD");
	case 307:
	case 308:
		return can_send_again(call);
	default:
		return false;
	}
}

int http_find_redirect(const struct http_call *call, struct url *ret, struct err *err)
{
	const char *location = field_find(&call->answer.headers, "location");

	if (!is_followed(call) || !location)
		return 0;
	AUTO_FREE char *host = url_authority(&call->url);
	if (call->hops >= HTTP_REDIRECTS_MAX)
		return err_set(err, E_HTTP_REDIRECT, "%s redirects for the %dth time", host,
			HTTP_REDIRECTS_MAX + 1);
	AUTO_URL struct url url = {0};
	int r = url_resolve(&call->url, location, "the redirect", &url, err);
	if (r < 0)
		return err_prefix(err, "%s", host);
	if (call->url.tls && !url.tls) {
		AUTO_FREE char *to = url_authority(&url);
		return err_set(
			err, E_HTTP_REDIRECT, "%s redirects from https to http at %s", host, to);
	}
	*ret = url;
	url = (struct url){0};
	return 1;
}

/* Where a server sends us it may not send us further inwards than it is itself. What was for the
 * first origin stays away from all that come behind another one. */
void http_redirect(struct http_call *call, struct url *url)
{
	if (!call->request.has_zone) {
		call->request.has_zone = true;
		call->request.zone = call->answer.zone;
	}
	if (!url_same_origin(&call->url, url)) {
		http_wipe(call->request.authorization);
		call->request.authorization = NULL;
		call->tls = http_tls_elsewhere(&call->tls);
	}
	url_done(&call->url);
	call->url = *url;
	call->hops++;
	call->recv_paused = call->send_paused = false;
	strv_done(&call->answer.headers);
	buf_reset(&call->answer.body);
}
