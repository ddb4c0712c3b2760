/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of front.c among each other. */
#ifndef DLRUN_NET_HTTPD_FRONT_IMPL_H
#define DLRUN_NET_HTTPD_FRONT_IMPL_H

#include "base/util/buf.h"
#include "net/httpd/front.h"
#include "net/httpd/front_head.h"
#include "net/httpd/front_token.h"
#include "net/stream/listen.h"
#include "net/stream/pump.h"

enum {
	/* Read at once; and a carried body is not read while more than that waits to be
	 * written. */
	FRONT_PIECE = 64 << 10,
	FRONT_LINGER_MS = 2000,
	FRONT_TURNS_MAX = 32, /* requests of one connection before others have their turn */
};

/*
 * A socket, with what was read of it and what waits to be written to it
 */

struct front_wire {
	int fd; /* -1: none */
	struct loop_fd *source;
	struct buf in, out;
	size_t out_at;
	bool ended;  /* nothing more comes */
	bool failed; /* and that was no orderly end */
	bool deaf;   /* takes nothing more */
};

/* Takes fd; the source is added with ops and ctx. */
void front_wire_open(struct front_wire *wire, struct loop *loop, int fd,
	const struct loop_fd_ops *ops, void *ctx);
/* The descriptor is the caller's then. */
int front_wire_take(struct front_wire *wire, struct loop *loop);
/* NULL source and fd -1 are accepted; is_reset: the other side is to see that something failed. */
void front_wire_close(struct front_wire *wire, struct loop *loop, bool is_reset);
void front_wire_read(struct front_wire *wire);
void front_wire_flush(struct front_wire *wire);
/* Bytes that wait to be written. */
size_t front_wire_pending(const struct front_wire *wire);

/*
 * Where a body ends
 */

struct front_meter {
	enum front_body body;
	uint64_t left;
	struct front_chunks chunks;
	bool over;
};

void front_meter_start(struct front_meter *meter, const struct front_head *head);
/* *ret_used bytes belong to the body. E_FRONT_HEAD. */
int front_meter_feed(
	struct front_meter *meter, const char *data, size_t len, size_t *ret_used, struct err *err);

/*
 * Requests and connections
 */

/* How the end of an own answer is seen. */
enum front_mode {
	FRONT_MODE_NONE, /* no body: what is written is dropped */
	FRONT_MODE_LENGTH,
	FRONT_MODE_CHUNKED,
	FRONT_MODE_TO_END,
};

struct front_carry;

struct front_exchange {
	struct front_conn *conn;
	struct front_head head; /* empty where it could not be read */
	struct front_meter body;
	bool is_origin_right; /* wherever it goes to; else only where the route says so */
	enum front_mode mode;
	uint64_t left;
	bool closes;  /* no other request comes behind it */
	bool is_over; /* the whole answer waits to be written, or has been */
	bool is_cut;  /* it is not whole */
	bool is_told; /* the caller has it no more: no gone, no room */
	bool wants_room;
	void (*gone)(void *ctx);
	void *gone_ctx;
	void (*room)(void *ctx);
	void *room_ctx;
	struct front_carry *carry;
};

enum front_state {
	FRONT_WAITS, /* for a head */
	FRONT_WORKS, /* on the exchange */
	FRONT_LINGERS,
};

struct front_conn {
	struct front *front;
	struct front_conn *before, *next;
	struct front_wire client;
	struct front_wire program; /* of the last carry */
	char *key;                 /* of that one; NULL: none */
	bool was_answered;         /* by it, before this request */
	enum front_state state;
	struct front_exchange exchange;
	int64_t since_ms; /* of the state; of a head that has begun: its first byte */
	struct loop_timer *timer, *wake;
	int64_t timer_ms;
	bool is_turning, goes_on, is_dead;
};

struct front_tunnel {
	struct front *front;
	struct front_tunnel *before, *next;
	struct pump *pump;
};

struct front {
	struct front_options options;
	struct listener *listener;
	struct front_conn *conns; /* the newest first */
	struct front_tunnel *tunnels;
	size_t n; /* of both */
	bool is_held;
	bool knows_peers;             /* the system tells whose connections are */
	char token[FRONT_TOKEN_SIZE]; /* else, where it has no secret; or empty */
};

/* front.c */
void front_notice(const struct front *front, const char *format, ...) ERR_PRINTF(2, 3);
void front_count_less(struct front *front);

/* Whether the system tells of every family whose connections are. */
bool front_peers_are_known(void);

/* Go on from the loop. */
void front_conn_wake(struct front_conn *conn);
void front_conn_turn(struct front_conn *conn);

/* The answer is over as far as this side is concerned. */
void front_exchange_end(struct front_exchange *exchange, bool is_cut);
/* front_refuse from within: the caller of the front does not have the exchange any more. */
void front_page(struct front_exchange *exchange, int status, const char *what, const char *hint);

/* front_carry.c */
/* Whether something was done. */
bool front_carry_step(struct front_conn *conn);
/* The connection to the program stays for the next request, if it can. */
void front_carry_settle(struct front_conn *conn);
void front_carry_free(struct front_carry *carry);

void front_tunnel_free(struct front_tunnel *tunnel);

#endif
