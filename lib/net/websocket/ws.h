/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WebSocket (RFC 6455), the client's side: an engine, bytes in and bytes out, on libwslay. The
 * handshake's headers are made and checked here, too; the upgrade itself is upgrade.c.
 *
 * Hostile servers: masked frames, control frames over 125 bytes, unknown opcodes, and reserved bits
 * end it (E_HTTP_PROTOCOL); pings are answered as long as less than 64 KiB wait to be sent, after
 * that only the newest one, when there is room. Each frame has a random mask of its own. That text
 * is UTF-8 is not checked.
 */
#ifndef DLRUN_NET_WEBSOCKET_WS_H
#define DLRUN_NET_WEBSOCKET_WS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

/*
 * Handshake (section 4.1)
 */

enum { WS_KEY_SIZE = 25 };
/* A new Sec-WebSocket-Key, and the headers of the request: Sec-WebSocket-Key, -Version, -Protocol
 * (protocols: offered in order; may be NULL), Origin is not sent. */
void ws_handshake_headers(
	const char *const *protocols, char key[static WS_KEY_SIZE], struct strv *ret_headers);
/* Of the response 101 ("name: value", names in lower case): Upgrade, Connection,
 * Sec-WebSocket-Accept and the protocol are checked. *ret_protocol points into headers; "" if none
 * was chosen. E_HTTP_PROTOCOL. */
int ws_handshake_check(const struct strv *headers, const char *key, const char *const *protocols,
	const char **ret_protocol, struct err *err);

/*
 * Frames
 */

struct ws_events {
	/* A piece of a message as it arrives, of `opcode` 1 (text) or 2 (binary);
	 * is_start and is_end mark the message's borders (both for one in one piece; len
	 * may be 0). Negative ends it. */
	int (*data)(void *ctx, int opcode, const void *data, size_t len, bool is_start, bool is_end,
		struct err *err);
	void (*pong)(void *ctx); /* may be NULL */
	/* The other side has closed: code (1005: none was given), reason as it was sent. The
	 * response to it is in ws_output. May be NULL. */
	void (*close)(void *ctx, unsigned code, const char *reason, size_t len);
	void *ctx;
};

struct ws;
struct ws *ws_new(const struct ws_events *events);
void ws_free(struct ws *ws);
AUTO_POINTER(struct ws, ws_free)
#define AUTO_WS AUTO(ws_free_auto)

/* Bytes that have arrived; all are taken, those behind a close are dropped. After an error (also
 * one of the callbacks) every further call is one, and what is left to be sent tells the server. */
int ws_receive(struct ws *ws, const void *data, size_t len, struct err *err);
/* Whether more input can come: neither a close nor an error has. */
bool ws_wants_input(const struct ws *ws);
/* A message in one frame; opcode 2 for binary; parts are joined. It is appended to ws_output, which
 * grows: callers wait while it holds more than they can afford. Nothing is sent after a close. */
struct ws_part {
	const void *data;
	size_t len;
};
void ws_send(struct ws *ws, int opcode, const struct ws_part *parts, size_t n);
void ws_ping(struct ws *ws);
/* code 1005: none. Nothing is sent after it. */
void ws_close(struct ws *ws, unsigned code);
/* Output for the transport; the caller consumes from its front (buf_consume). */
struct buf *ws_output(struct ws *ws);

#endif
