/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/socket.h>

#include "base/util/clock.h"
#include "net/http/http_impl.h"

static const char *const zone_words[] = {
	[ADDRESS_PUBLIC] = "a public one",
	[ADDRESS_PRIVATE] = "one of a private network",
	[ADDRESS_LOOPBACK] = "one of this machine",
	[ADDRESS_FORBIDDEN] = "link-local or reserved",
};

static int refuse(const struct http_call *call, enum address_zone zone, struct err *err)
{
	AUTO_FREE char *host = url_authority(&call->url);

	return err_set(err, E_HTTP_ZONE, "a server points to %s, whose address is %s", host,
		zone_words[zone]);
}

static bool is_allowed(const struct http_call *call, enum address_zone zone)
{
	return call->x.route || !call->request.has_zone || zone <= call->request.zone;
}

int http_check_literal(const struct http_call *call, struct err *err)
{
	enum address_zone zone;

	if (!address_zone_of_text(call->url.host, &zone) || is_allowed(call, zone))
		return 0;
	return refuse(call, zone, err);
}

/* Each address of the name that libcurl tries. */
static curl_socket_t on_open(void *ctx, curlsocktype purpose, struct curl_sockaddr *address)
{
	struct http_call *call = ctx;
	enum address_zone zone = address_zone(&address->addr);

	(void)purpose;
	if (call->x.route)
		return http_route_socket(call);
	if (!call->x.proxy && !is_allowed(call, zone)) {
		refuse(call, zone, &call->x.refused);
		return CURL_SOCKET_BAD;
	}
	int fd = socket(address->family, address->socktype, address->protocol);
	if (fd < 0)
		return CURL_SOCKET_BAD;
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

/* Addresses behind a proxy cannot be seen: only a literal says more than "outside". */
static enum address_zone zone_reached(const struct http_call *call, const char *address)
{
	enum address_zone zone;

	if (call->x.route)
		return ADDRESS_PUBLIC;
	if (call->x.proxy)
		address = call->url.host;
	if (address_zone_of_text(address, &zone))
		return zone;
	return call->x.proxy ? ADDRESS_PUBLIC : ADDRESS_FORBIDDEN;
}

/* A connection is there, new or kept from another call, and nothing of this one was sent. */
static int on_begin(void *ctx, char *address, char *local, int port, int local_port)
{
	struct http_call *call = ctx;
	enum address_zone zone = zone_reached(call, address);

	(void)local, (void)port, (void)local_port;
	call->answer.zone = zone;
	if (!call->x.proxy && !is_allowed(call, zone)) {
		refuse(call, zone, &call->x.fault);
		return CURL_PREREQFUNC_ABORT;
	}
	call->x.too_early = call->held;
	if (call->canceled || call->held)
		return CURL_PREREQFUNC_ABORT;
	call->x.begun = true;
	call->x.last_ms = clock_ms();
	return CURL_PREREQFUNC_OK;
}

static int on_progress(
	void *ctx, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
	struct http_call *call = ctx;
	struct http_exchange *x = &call->x;

	(void)down_total, (void)up_total;
	if (down != x->seen_down || up != x->seen_up)
		x->last_ms = clock_ms();
	x->seen_down = down;
	x->seen_up = up;
	return call->canceled;
}

/* The connection is taken over: no proxy may look into it. */
static void set_connect_only(struct http_call *call)
{
	HTTP_SET(call, CURLOPT_CONNECT_ONLY, 1L);
	HTTP_SET(call, CURLOPT_HTTPPROXYTUNNEL, 1L);
	HTTP_SET(call, CURLOPT_BUFFERSIZE, (long)HTTP_RECV_MAX);
	HTTP_SET(call, CURLOPT_TCP_KEEPALIVE, 1L);
	HTTP_SET(call, CURLOPT_TCP_KEEPIDLE, (long)HTTP_KEEP_S);
	HTTP_SET(call, CURLOPT_TCP_KEEPINTVL, (long)HTTP_KEEP_S);
}

/* Of those that wait to be used again only the ones that were made since then. */
static void leave_old_ones(struct http_call *call, int64_t woke_ms)
{
	int64_t age_s = (call->x.start_ms - woke_ms) / 1000;

	HTTP_SET(call, CURLOPT_MAXLIFETIME_CONN, (long)(age_s > 0 ? age_s : 1));
}

static void set_held(struct http_call *call)
{
	/* Existing connections are for requests that are sent at once. */
	HTTP_SET(call, CURLOPT_FRESH_CONNECT, 1L);
	/* When that time is over libcurl looks at the connection, held or not. */
	HTTP_SET(call, CURLOPT_HAPPY_EYEBALLS_TIMEOUT_MS, (long)HTTP_CONNECT_MS);
}

void http_connect_options(struct http_call *call)
{
	int64_t woke_ms = loop_woke_ms(call->http->loop);

	HTTP_SET(call, CURLOPT_OPENSOCKETFUNCTION, on_open);
	HTTP_SET(call, CURLOPT_OPENSOCKETDATA, call);
	HTTP_SET(call, CURLOPT_PREREQFUNCTION, on_begin);
	HTTP_SET(call, CURLOPT_PREREQDATA, call);
	HTTP_SET(call, CURLOPT_NOPROGRESS, 0L);
	HTTP_SET(call, CURLOPT_XFERINFOFUNCTION, on_progress);
	HTTP_SET(call, CURLOPT_XFERINFODATA, call);
	if (call->connected)
		set_connect_only(call);
	if (call->held)
		set_held(call);
	if (woke_ms)
		leave_old_ones(call, woke_ms);
}
