/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/util/mem.h"
#include "net/http/http_impl.h"

enum { PORT_HTTP = 80, PORT_HTTPS = 443 };

void http_add_route(struct http *http, const char *host, uint16_t port, uint16_t to,
	http_route_fn *open, void *ctx)
{
	struct http_route *route = mem_alloc(1, sizeof(*route));

	*route = (struct http_route){http->routes, mem_strdup(host), port, to, open, ctx};
	http->routes = route;
}

static bool leads_to(const struct http_route *route, const struct url *url)
{
	uint16_t port = url->tls ? PORT_HTTPS : PORT_HTTP;

	return url->port == (route->port ? route->port : port) &&
	       strcasecmp(route->host, url->host) == 0;
}

const struct http_route *http_find_route(const struct http *http, const struct url *url)
{
	for (const struct http_route *route = http->routes; route; route = route->next)
		if (leads_to(route, url))
			return route;
	return NULL;
}

void http_drop_routes(struct http *http)
{
	for (struct http_route *route = http->routes, *next; route; route = next) {
		next = route->next;
		free(route->host);
		free(route);
	}
}

/* Bound before it connects, so that the tunnel knows it from what others of this machine
 * connect. */
static int bind_loopback(int fd, uint16_t *ret_port)
{
	struct sockaddr_in from = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(from);

	if (bind(fd, (struct sockaddr *)&from, len) < 0 ||
		getsockname(fd, (struct sockaddr *)&from, &len) < 0)
		return -1;
	*ret_port = ntohs(from.sin_port);
	return 0;
}

int http_route_socket(struct http_call *call)
{
	const struct http_route *route = call->x.route;
	AUTO_FD int fd = socket(AF_INET, SOCK_STREAM, 0);
	uint16_t port;

	err_clear(&call->x.refused);
	if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || bind_loopback(fd, &port) < 0 ||
		route->open(route->ctx, port, &call->x.refused) < 0)
		return -1;
	return TAKE_FD(fd);
}

void http_route_options(struct http_call *call)
{
	AUTO_FREE char *to = mem_printf("::127.0.0.1:%u", call->x.route->to);

	call->x.connect_to = curl_slist_append(NULL, to);
	HTTP_SET(call, CURLOPT_CONNECT_TO, call->x.connect_to);
	HTTP_SET(call, CURLOPT_CONNECTTIMEOUT_MS, (long)HTTP_ROUTE_MS);
}
