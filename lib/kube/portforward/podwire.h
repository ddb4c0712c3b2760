/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An upgraded connection to a pod (port-forward, exec) on the loop: reads while its owner can take
 * more, writes what waits, pings, and tells once when it is dead. With WebSocket messages on it, or
 * plain bytes.
 */
#ifndef DLRUN_KUBE_PORTFORWARD_PODWIRE_H
#define DLRUN_KUBE_PORTFORWARD_PODWIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "net/stream/stream.h"
#include "net/websocket/ws.h"

enum {
	PODWIRE_SCRATCH = 256 << 10, /* one read */
	PODWIRE_OUT_MAX = 256 << 10, /* waits to be written before it is not writable */
	PODWIRE_PING_MS = 15 * 1000, /* a pong is due after two thirds of it */
};

/* None may free the wire. NULL members are not called. */
struct podwire_events {
	/* Bytes: of a binary message, of which they are the start, or of the plain stream. A
	 * negative return is its death. */
	int (*data)(void *ctx, const void *data, size_t len, bool is_start, struct err *err);
	bool (*wants_input)(void *ctx);   /* back-pressure */
	void (*after_input)(void *ctx);   /* what could be read now has been */
	void (*before_output)(void *ctx); /* the last moment for more to be sent */
	bool (*has_output)(void *ctx);    /* before_output has something */
	void (*ping)(void *ctx);          /* on a plain stream */
	/* Once; nothing follows. */
	void (*dead)(void *ctx, struct err *error);
	void *ctx;
};

struct podwire {
	struct loop *loop;
	struct podwire_events events;
	struct stream *stream;
	struct loop_fd *source;
	struct ws *ws;    /* NULL: plain */
	struct buf plain; /* to be sent, without ws */
	unsigned char *scratch;
	struct loop_timer *kick, *ping;
	int64_t ping_ms, due_ms;
	bool is_pinging, is_silent; /* a pong is due; nothing was heard since */
	bool is_dead;
};

/* Takes the stream. scratch: PODWIRE_SCRATCH bytes, used only within its dispatch. ping_ms 0: as
 * above. */
void podwire_init(struct podwire *wire, struct loop *loop, struct stream *stream, bool is_websocket,
	unsigned char *scratch, int64_t ping_ms, const struct podwire_events *events);
/* Says good-bye if it lives. A zeroed one is accepted. */
void podwire_done(struct podwire *wire);

/* Send one binary message, or its bytes without WebSocket; parts are joined. */
void podwire_send(struct podwire *wire, const struct ws_part *parts, size_t n);
/* Whether it lives and less than PODWIRE_OUT_MAX waits. */
bool podwire_is_writable(const struct podwire *wire);
/* Write what waits, as far as it goes now. */
void podwire_flush(struct podwire *wire);

#endif
