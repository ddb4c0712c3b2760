/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of httpd.c among each other. */
#ifndef DLRUN_NET_HTTPD_HTTPD_IMPL_H
#define DLRUN_NET_HTTPD_HTTPD_IMPL_H

#include "base/util/buf.h"
#include "net/httpd/httpd.h"
#include "net/httpd/httpd_head.h"
#include "net/httpd/httpd_token.h"
#include "net/stream/listen.h"
#include "net/stream/pump.h"

enum {
	/* Read at once; and a relayed body is not read while more than that waits to be
	 * written. */
	HTTPD_PIECE = 64 << 10,
	HTTPD_LINGER_MS = 2000,
	HTTPD_TURNS_MAX = 32, /* requests of one connection before others have their turn */
};

/*
 * A socket, with what was read of it and what waits to be written to it
 */

struct httpd_wire {
	int fd; /* -1: none */
	struct loop_fd *source;
	struct buf in, out;
	size_t out_at;
	bool ended;  /* nothing more comes */
	bool failed; /* and that was no orderly end */
	bool deaf;   /* takes nothing more */
};

/* Takes fd; the source is added with ops and ctx. */
void httpd_wire_open(struct httpd_wire *wire, struct loop *loop, int fd,
	const struct loop_fd_ops *ops, void *ctx);
/* The descriptor is the caller's then. */
int httpd_wire_take(struct httpd_wire *wire, struct loop *loop);
/* NULL source and fd -1 are accepted; is_reset: the other side is to see that something failed. */
void httpd_wire_close(struct httpd_wire *wire, struct loop *loop, bool is_reset);
void httpd_wire_read(struct httpd_wire *wire);
void httpd_wire_flush(struct httpd_wire *wire);
/* The events of poll to wait for. */
short httpd_wire_events(const struct httpd_wire *wire, bool reads);
/* Append, as a chunk (RFC 9112, section 7.1) or as it is. */
void httpd_wire_add(struct httpd_wire *wire, const void *data, size_t len, bool is_chunk);
/* Bytes that wait to be written. */
size_t httpd_wire_pending(const struct httpd_wire *wire);

/*
 * Where a body ends
 */

struct httpd_meter {
	enum httpd_body body;
	uint64_t left;
	struct httpd_chunks chunks;
	bool over;
};

void httpd_meter_start(struct httpd_meter *meter, const struct httpd_head *head);
/* *ret_used bytes belong to the body. E_HTTPD_HEAD. */
int httpd_meter_feed(
	struct httpd_meter *meter, const char *data, size_t len, size_t *ret_used, struct err *err);

/*
 * Requests and connections
 */

/* How the end of an own response is seen. */
enum httpd_mode {
	HTTPD_MODE_NONE, /* no body: what is written is dropped */
	HTTPD_MODE_LENGTH,
	HTTPD_MODE_CHUNKED,
	HTTPD_MODE_TO_END,
};

struct httpd_relay;

struct httpd_exchange {
	struct httpd_conn *conn;
	struct httpd_head head; /* empty where it could not be read */
	struct httpd_meter body;
	bool is_origin_right; /* wherever it goes to; else only where the route says so */
	enum httpd_mode mode;
	uint64_t left;
	bool closes;      /* no other request comes behind it */
	bool is_over;     /* the whole response waits to be written, or has been */
	bool is_cut;      /* it is not whole */
	bool is_released; /* the caller has it no more: neither gone nor writable is called */
	bool is_full;     /* httpd_write has returned false: writable is called */
	void (*gone)(void *ctx);
	void *gone_ctx;
	void (*writable)(void *ctx);
	void *writable_ctx;
	struct httpd_relay *relay;
};

enum httpd_state {
	HTTPD_WAITS, /* for a head */
	HTTPD_WORKS, /* on the exchange */
	HTTPD_LINGERS,
};

struct httpd_conn {
	struct httpd *httpd;
	struct httpd_conn *before, *next;
	struct httpd_wire client;
	struct httpd_wire program; /* of the last relay */
	char *key;                 /* of that one; NULL: none */
	bool was_answered;         /* by it, before this request */
	enum httpd_state state;
	struct httpd_exchange exchange;
	int64_t since_ms; /* of the state; of a head that has begun: its first byte */
	struct loop_timer *timer, *wake;
	int64_t timer_ms;
	bool is_turning, goes_on, is_dead;
};

struct httpd_tunnel {
	struct httpd *httpd;
	struct httpd_tunnel *before, *next;
	struct pump *pump;
};

struct httpd {
	struct httpd_options options;
	struct listener *listener;
	struct httpd_conn *conns; /* the newest first */
	struct httpd_tunnel *tunnels;
	size_t n; /* of both */
	bool is_held;
	bool is_public; /* options.address */
	int64_t head_ms;
	size_t conns_max;
	bool knows_peers;             /* the system tells whose connections are */
	char token[HTTPD_TOKEN_SIZE]; /* else, where it has no secret; or empty */
};

/* httpd.c */
void httpd_notice(const struct httpd *httpd, const char *format, ...) ERR_PRINTF(2, 3);
/* A connection or a tunnel has ended: others may be accepted. */
void httpd_release(struct httpd *httpd);

/* Whether the system tells of every family whose connections are. */
bool httpd_peers_are_known(void);

/* Go on from the loop. */
void httpd_conn_wake(struct httpd_conn *conn);
void httpd_conn_turn(struct httpd_conn *conn);

/* The response is over as far as this side is concerned. */
void httpd_exchange_end(struct httpd_exchange *exchange, bool is_cut);

/* httpd_relay.c */
/* Whether something was done. */
bool httpd_relay_step(struct httpd_conn *conn);
/* The connection to the program stays for the next request, if it can. */
void httpd_relay_settle(struct httpd_conn *conn);
void httpd_relay_free(struct httpd_relay *relay);

void httpd_tunnel_free(struct httpd_tunnel *tunnel);

#endif
