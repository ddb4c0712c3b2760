#include <string.h>

#include "base/str.h"
#include "net/field.h"
#include "net/front_impl.h"

static bool is_connect(const struct front_exchange *exchange)
{
	return str_eq(exchange->head.method, "CONNECT");
}

/* Whose name the request is for. */
static bool find_host(
	const struct front_exchange *exchange, char ret[static FRONT_HOST_MAX], uint16_t *ret_port)
{
	const struct front *front = exchange->conn->front;
	const char *host = field_find(&exchange->head.headers, "host");

	if (is_connect(exchange))
		return front_host_split(exchange->head.target, ret, ret_port);
	*ret_port = front_port(front);
	return front_host_is_here(host, *ret_port, ret);
}

/* What comes behind is not listened to. */
static void refuse(struct front_exchange *exchange, const char *what, const char *hint)
{
	exchange->closes = true;
	front_page(exchange, 403, what, hint);
}

static void refuse_host(struct front_exchange *exchange)
{
	const char *host = is_connect(exchange) ? exchange->head.target
						: field_find(&exchange->head.headers, "host");
	AUTO_FREE char *shown = str_shown(host);

	front_notice(exchange->conn->front, "a request for the host %s is refused", shown);
	refuse(exchange, "this is not a server for that name",
		"open the address that dlrun has shown, with its port");
}

static void refuse_origin(struct front_exchange *exchange)
{
	const char *origin = field_find(&exchange->head.headers, "origin");
	AUTO_FREE char *shown = str_shown(origin ? origin : "another site");

	front_notice(exchange->conn->front, "a request from a page of %s is refused", shown);
	refuse(exchange, "another site's page has asked for this",
		"paste the address into the address bar of the browser");
}

static void ask(struct front_exchange *exchange)
{
	struct front *front = exchange->conn->front;
	const struct front_head *head = &exchange->head;
	char host[FRONT_HOST_MAX];
	struct front_request request = {.method = head->method,
		.target = head->target,
		.host = host,
		.headers = &head->headers,
		.is_connect = is_connect(exchange),
		.is_upgrade = head->is_upgrade};

	if (!find_host(exchange, host, &request.port)) {
		refuse_host(exchange);
	} else if (!front_origin_is_right(head, true)) {
		refuse_origin(exchange);
	} else {
		exchange->is_origin_right = front_origin_is_right(head, false);
		front->options.request(front->options.ctx, exchange, &request);
	}
}

static void begin(struct front_conn *conn)
{
	conn->state = FRONT_WORKS;
	conn->exchange = (struct front_exchange){.conn = conn};
}

bool front_request_take(struct front_conn *conn)
{
	AUTO_ERR struct err err = {0};
	struct buf *in = &conn->client.in;
	struct front_head head;
	size_t used;
	int status;

	/* The next one waits until the answer before it has been taken. */
	if (front_wire_pending(&conn->client) > 0)
		return false;
	int r = front_request_parse(in->data, in->len, &head, &used, &status, &err);
	if (r == 0) {
		conn->is_dead = conn->client.ended;
		return false;
	}
	begin(conn);
	if (r < 0) {
		front_notice(conn->front, "a request is refused: %s", err.message);
		front_page(&conn->exchange, status, err.message, NULL);
		return true;
	}
	buf_consume(in, used);
	conn->exchange.head = head;
	front_meter_start(&conn->exchange.body, &head);
	ask(&conn->exchange);
	return true;
}
