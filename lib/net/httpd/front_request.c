/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/str.h"
#include "net/httpd/front_impl.h"
#include "net/stream/field.h"

static bool is_connect(const struct front_exchange *exchange)
{
	return str_eq(exchange->head.method, "CONNECT");
}

/* Find the host and port that the request is for; false: not a name of this machine. */
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

/* Input after a refused request is ignored. */
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

/* To the same URL without the token, which the cookie stands for from then on. The name is written
 * out: a path may begin with "//", and would be one. */
static void redirect(struct front_exchange *exchange, const char *host)
{
	const struct front *front = exchange->conn->front;
	const struct front_head *head = &exchange->head;
	AUTO_FREE char *cookie = front_token_cookie(front->token, host, front_port(front));
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "Location: http://%s%s", field_find(&head->headers, "host"),
		head->target);
	strv_addf(&headers, "Set-Cookie: %s", cookie);
	strv_add(&headers, "Cache-Control: no-store");
	/* A link that leads here over another name of this machine is still one from there. */
	strv_add(&headers, "Referrer-Policy: origin");
	front_answer(exchange, 307, &headers, "", 0);
}

static void refuse_token(struct front_exchange *exchange)
{
	front_notice(exchange->conn->front, "a request without the token is refused");
	if (is_connect(exchange) || exchange->head.is_absolute) {
		exchange->closes = true;
		front_challenge(exchange, "this proxy needs a token as its password: take the "
					  "address that dlrun has printed where it was started");
	} else {
		refuse(exchange,
			"this address needs a token: open the URL that dlrun has printed where it "
			"was started",
			NULL);
	}
}

/* Whether the request goes on; else it is answered. */
static bool check_token(struct front_exchange *exchange, const char *host)
{
	const struct front *front = exchange->conn->front;
	struct front_proof proof;

	if (!front_token(front))
		return true;
	front_token_take(front->token, host, front_port(front), &exchange->head, &proof);
	/* No WebSocket follows where it is led to. */
	bool is_led = proof.was_in_url && !exchange->head.is_upgrade;
	if (is_led && (proof.url_is_right || proof.field_is_right))
		redirect(exchange, host);
	else if (!proof.field_is_right)
		refuse_token(exchange);
	return proof.field_is_right && !is_led;
}

static void ask(struct front_exchange *exchange)
{
	struct front *front = exchange->conn->front;
	const struct front_head *head = &exchange->head;
	char host[FRONT_HOST_MAX];
	struct front_request request = {.method = head->method,
		.host = host,
		.headers = &head->headers,
		.is_connect = is_connect(exchange),
		.is_upgrade = head->is_upgrade};

	if (!find_host(exchange, host, &request.port)) {
		refuse_host(exchange);
		return;
	}
	if (!front_origin_is_right(head, true)) {
		refuse_origin(exchange);
		return;
	}
	exchange->is_origin_right = front_origin_is_right(head, false);
	if (!check_token(exchange, host))
		return;
	request.target = head->target;
	front->options.request(front->options.ctx, exchange, &request);
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
