/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP listeners of this machine on the loop: for its own programs only (127.0.0.1 and ::1 at the
 * same port) unless another address is requested.
 */
#ifndef DLRUN_NET_STREAM_LISTEN_H
#define DLRUN_NET_STREAM_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"

enum { LISTEN_TRIES_MAX = 64 };

/* A connection: non-blocking, close-on-exec, without Nagle's delay; the callee's from now on. peer
 * is "address:port", for people. A negative return ends loop_run. */
typedef int listen_accept_fn(void *ctx, int fd, const char *peer, struct err *err);

struct listen_options {
	struct loop *loop;
	/* IPv4 or IPv6 address as text, without brackets; NULL: both of loopback, or the one that
	 * this machine has. "::" and "0.0.0.0" are one family each, "*" is both. */
	const char *address;
	uint16_t port; /* 0: any */
	bool is_exact; /* this port or none; else, when it is taken, the next one that is free, of
			* LISTEN_TRIES_MAX, or any */
	listen_accept_fn *accept;
	void *ctx;
};

struct listener;
/* Listens when it returns. E_LISTEN_TAKEN (is_exact), E_LISTEN (address, permission). */
int listener_open(const struct listen_options *options, struct listener **ret, struct err *err);
/* Connections that were accepted stay. NULL is accepted. */
void listener_free(struct listener *listener);
AUTO_POINTER(struct listener, listener_free)
#define AUTO_LISTENER AUTO(listener_free_auto)
/* The port that it is. */
uint16_t listener_port(const struct listener *listener);
/* Back-pressure: while it is held, who connects waits in the system's queue. Without descriptors
 * left it holds itself for moments. */
void listener_hold(struct listener *listener, bool is_held);

#endif
