/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of podforward.c: tunnels (one upgraded connection each), connections (one TCP connection
 * each), and their assignment. Objects that have ended are only marked, and freed by the forward's
 * own turn of the loop, so that nothing disappears below an event.
 */
#ifndef DLRUN_KUBE_PORTFORWARD_PODFORWARD_IMPL_H
#define DLRUN_KUBE_PORTFORWARD_PODFORWARD_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/vec.h"
#include "kube/portforward/podforward.h"
#include "kube/portforward/podwire.h"
#include "net/websocket/spdy.h"

enum {
	FORWARD_UP_PIECE = 128 << 10,   /* one read of a local side, one data frame */
	FORWARD_DOWN_PIECE = 128 << 10, /* is collected before it is written to a local side */
	FORWARD_DOWN_MAX = 4 << 20,     /* waits for one local side before its tunnel is not read */
	FORWARD_DOWN_ASKED = 32 << 20,  /* the same while others there wait for answers */
	FORWARD_KEPT_MAX = 128 << 10,   /* of what was sent, for a new try */
	FORWARD_ERROR_MAX = 4 << 10,    /* of what the error stream says */
	FORWARD_BULK_BYTES = 4 << 20,   /* moved: a bulk connection */
	FORWARD_BUSY_BYTES = 1 << 20,   /* moved by a tunnel in a second */
};

struct podforward_tunnel;
struct tunnel_list VEC_OF(struct podforward_tunnel *);
struct conn_list VEC_OF(struct podforward_conn *);

struct podforward {
	struct podforward_options options;
	char *kube_namespace, *pod; /* NULL: not known */
	bool resolving;
	bool is_wanted; /* a tunnel is kept ready */
	struct tunnel_list tunnels;
	struct conn_list conns; /* all, in the order of their coming */
	struct VEC_OF(uint16_t) open_ports;
	struct loop_timer *turn; /* of the loop */
	struct loop_timer *redial;
	struct loop_timer *look; /* while there are connections */
	int64_t look_due_ms;
	bool is_looking;
	int64_t redial_ms; /* the pause; 0: the last dial was good */
	bool was_lost;     /* a tunnel, and there has been none since */
	struct err fault;  /* of the last dial */
	char *said;        /* the last notice */
	int64_t said_ms;
	unsigned char scratch[PODWIRE_SCRATCH];
};

/* To be freed and placed in the next turn. */
void forward_wake(struct podforward *forward);
void forward_say(struct podforward *forward, const char *fmt, ...) ERR_PRINTF(2, 3);
bool forward_port_is_open(const struct podforward *forward, uint16_t port);
void forward_set_port(struct podforward *forward, uint16_t port, bool is_open);
/* The next tunnel asks again. */
void forward_forget_pod(struct podforward *forward);
/* A tunnel has opened, turned busy, or ended. */
void forward_tunnel_opened(struct podforward_tunnel *tunnel);
void forward_tunnel_busy(struct podforward_tunnel *tunnel);

/*
 * Tunnels
 */

struct podforward_tunnel {
	struct podforward *forward;
	char *pod;
	void *dial; /* of the transport, while it lasts */
	struct podwire wire;
	struct spdy *spdy;
	struct conn_list conns;   /* by the ids of their streams, which rise */
	struct conn_list touched; /* have something to be written since the last flush */
	bool is_open, is_dead;
	bool is_closing;   /* takes no more connections */
	int64_t came_ms;   /* bytes for a connection */
	int64_t gone_ms;   /* its pod was found gone: what waits, waits in vain. 0: it was not */
	struct err fault;  /* why it is dead */
	int64_t busy_ms;   /* when it was seen to move much; 0: never */
	int64_t window_ms; /* a second in which bytes are counted */
	uint64_t window_bytes;
	unsigned requests; /* numbers of its connections */
	int64_t opened_ms;
	int64_t idle_ms; /* without a connection since then */
	/* Time of the last check of the pod, and the pause before the next one. */
	int64_t looked_ms, look_ms;
};

/* Begins to dial the forward's pod. */
struct podforward_tunnel *tunnel_new(struct podforward *forward);
void tunnel_free(struct podforward_tunnel *tunnel);
/* Nothing goes over it any more. Takes the fault. */
void tunnel_kill(struct podforward_tunnel *tunnel, struct err *fault);
/* No more connections over it; the next tunnel asks again which pod it is. */
void tunnel_leave(struct podforward_tunnel *tunnel);
/* Whether something on it would hold up a small request. */
bool tunnel_is_busy(const struct podforward_tunnel *tunnel, int64_t now_ms);
bool tunnel_takes(const struct podforward_tunnel *tunnel);
/* Whether the tunnel is not read, until local sides take the data that is pending for them. */
bool tunnel_is_held(const struct podforward_tunnel *tunnel);
/* Room for what local sides send. */
bool tunnel_has_room(const struct podforward_tunnel *tunnel);
void tunnel_count(struct podforward_tunnel *tunnel, size_t bytes);
/* A data frame, or with len 0 and is_end the stream's end alone. */
void tunnel_send(
	struct podforward_tunnel *tunnel, uint32_t id, const void *data, size_t len, bool is_end);
/* Write what waits, as far as it goes now. */
void tunnel_flush(struct podforward_tunnel *tunnel);
void tunnel_forget(struct podforward_tunnel *tunnel, struct podforward_conn *conn);

/*
 * Connections
 */

/* Purpose of the timer. */
enum conn_wait {
	WAIT_NOTHING,
	WAIT_TUNNEL,
	WAIT_RETRY,  /* the port was not open */
	WAIT_REPLY,  /* the first sign of life of its streams */
	WAIT_SETTLE, /* it may still be said that the port is not open */
	WAIT_SETTLED,
	WAIT_ERROR, /* the error stream's end behind the data's */
	WAIT_LOCAL, /* the local side's end behind the pod's */
};

struct podforward_conn {
	struct podforward *forward;
	struct podforward_tunnel *tunnel; /* NULL: none yet, or no more */
	uint32_t error_id, data_id;
	uint16_t port;
	int fd;
	struct loop_fd *source;
	struct buf kept;    /* all that was sent, as long as nothing has come back and it fits */
	struct buf pending; /* for the local side; from pending_at on */
	size_t pending_at;
	struct buf error; /* what the error stream has said */
	bool is_behind;   /* kept has not been sent to these streams yet */
	bool heard;       /* something has come back: no new try */
	bool has_asked;   /* it has sent something */
	bool is_answered; /* and something has come since, the last at came_ms */
	int64_t came_ms;
	bool local_end, remote_end, error_end;
	bool is_touched, is_blocked, was_slow, is_over;
	int64_t begun_ms, last_ms;
	int64_t waits_ms; /* for an answer, since then */
	int losses;       /* tunnels that ended below it */
	int64_t retry_ms; /* the pause before the next try */
	enum conn_wait wait;
	struct loop_timer *timer;
	struct podforward_end end;
	int (*done)(void *ctx, struct podforward_end *end, struct err *err);
	void *ctx;
};

struct podforward_conn *conn_new(struct podforward *forward, int fd, uint16_t port);
void conn_free(struct podforward_conn *conn);
/* Without a tunnel, and one would be of use now. */
bool conn_waits(const struct podforward_conn *conn);
/* Give it streams of the tunnel. */
void conn_open(struct podforward_conn *conn, struct podforward_tunnel *tunnel);
/* Events of its streams. */
void conn_data(struct podforward_conn *conn, const void *data, size_t len, bool is_end);
void conn_reply(struct podforward_conn *conn);
void conn_error(struct podforward_conn *conn, const void *data, size_t len, bool is_end);
void conn_reset(struct podforward_conn *conn, bool is_data);
/* Write what has come, as far as it goes now, and see whether it was all. */
void conn_flush(struct podforward_conn *conn);
/* The tunnel of the connection is gone. */
void conn_lost(struct podforward_conn *conn, const struct err *fault);
/* The pod is gone, whatever the tunnel says: a connection that has sent nothing moves to another
 * tunnel; any other one may end, unless bytes for it still come or wait. */
void conn_pod_gone(struct podforward_conn *conn, bool may_end, int64_t now_ms);
/* Whether the data that the connection waits for may never come. */
bool conn_is_stuck(const struct podforward_conn *conn, int64_t now_ms);
/* Reset the local side; fault is copied. */
void conn_fail(struct podforward_conn *conn, const struct err *fault);
/* As conn_fail, without a message. */
void conn_drop(struct podforward_conn *conn);
/* Whether data pending for the local side keeps its tunnel from being read: always, except for
 * responses that others wait for, or not. */
enum conn_room { ROOM_NONE, ROOM_FOR_OTHERS, ROOM_FREE };
enum conn_room conn_room(const struct podforward_conn *conn);
/* Whether a response to the connection is expected, behind data for others. */
bool conn_asks(const struct podforward_conn *conn, int64_t now_ms);
bool conn_is_bulk(const struct podforward_conn *conn, int64_t now_ms);

#endif
