/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Port-forward to one pod of a run: any number of TCP connections over a few upgraded ones.
 *
 * The wire (Kubernetes API, "portforward"; measured against 1.34): SPDY/3.1 streams in a WebSocket
 * of protocol SPDY/3.1+portforward.k8s.io, or where the server refuses that a plain upgrade to
 * SPDY/3.1 (portforward.k8s.io). For each TCP connection an error stream and a data stream; what
 * the error stream says is read before an end counts as orderly.
 *
 * There is no flow control for each stream, so that a slow reader holds up its tunnel. Connections
 * therefore go to a tunnel on which nothing is bulk (it moves much, or its reader was slow); a
 * spare one is made as soon as all are, PODFORWARD_TUNNELS_MAX at most. What a slow reader leaves
 * is bounded, then its tunnel is not read.
 *
 * A tunnel is pinged; a dead one is closed with its connections (those ends are not orderly: a
 * reset), and another one is dialled with growing pauses, to the pod that is there by then. A
 * connection to a port that is not open yet is held and tried again for a while. Of a connection
 * that has sent nothing nothing is lost by a new try. The first one to a port sends its bytes only
 * when the port has had the time to refuse it.
 *
 * The end of a pod does not always end what goes to it: while a connection waits for a response it
 * is asked whether the pod is there yet. If it is not, all to it are reset as soon as nothing comes
 * any more and their local sides have what had come; an end that had come stays an orderly one.
 *
 * An end of the local side is passed on when it has come, not earlier: containerd gives the other
 * direction one second after it.
 */
#ifndef DLRUN_KUBE_PORTFORWARD_PODFORWARD_H
#define DLRUN_KUBE_PORTFORWARD_PODFORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "kube/api/client.h"
#include "net/stream/stream.h"

enum {
	PODFORWARD_TUNNELS_MAX = 8,
	PODFORWARD_HOLD_MS = 10 * 1000,    /* for a port that is not open */
	PODFORWARD_DIAL_MS = 30 * 1000,    /* of waiting for a tunnel */
	PODFORWARD_CONNECTIONS_MAX = 2000, /* more are refused */
	PODFORWARD_POLL_MS = 2000,         /* without a response, then it is asked for the pod */
};

/* How a tunnel gets its connection. */
struct podforward_transport {
	/* Begin; `done` once, from the loop: a stream that speaks SPDY/3.1, within WebSocket
	 * messages if is_websocket, or NULL and the error. Never from within dial. */
	void *(*dial)(void *ctx, const char *kube_namespace, const char *pod,
		void (*done)(void *done_ctx, struct stream *stream, bool is_websocket,
			struct err *error),
		void *done_ctx);
	void (*cancel)(void *dial);
	void *ctx;
};
/* Over the API server. The client must outlive what uses it. Freed by podforward_kube_free. */
struct podforward_kube;
struct podforward_kube *podforward_kube_new(
	struct kube_client *client, struct podforward_transport *ret);
void podforward_kube_free(struct podforward_kube *kube);

struct podforward;

struct podforward_options {
	struct loop *loop;
	struct podforward_transport transport;
	/* Resolve the current pod. Called before a tunnel is dialled, and again after one was lost;
	 * completed by podforward_pod or podforward_no_pod, at once or later. */
	void (*resolve)(void *ctx, struct podforward *forward);
	/* Has that pod ended, or is it no more? Answered by podforward_polled, at once or later;
	 * one at a time. May be NULL: it is not asked. */
	void (*poll)(void *ctx, struct podforward *forward, const char *pod);
	/* Report a loss, a recovery, or why a connection ended: one sentence for people. May be
	 * NULL. */
	void (*notice)(void *ctx, const char *text);
	void *ctx;
	int64_t hold_ms, ping_ms, poll_ms; /* 0: as above */
};

struct podforward *podforward_new(const struct podforward_options *options);
/* Connections that are left are reset, without done. NULL is accepted. */
void podforward_free(struct podforward *forward);

void podforward_pod(struct podforward *forward, const char *kube_namespace, const char *pod);
/* The pod cannot be resolved now: resolve is called again after a pause. is_final: there will be
 * none; connections that wait end with the error. */
void podforward_no_pod(struct podforward *forward, const struct err *error, bool is_final);

/* is_gone: as far as is known. */
void podforward_polled(struct podforward *forward, const char *pod, bool is_gone);

struct podforward_end {
	uint64_t bytes_up, bytes_down; /* to and from the pod */
	struct err error;              /* not set: an orderly end. E_KUBE_FORWARD, or the dial's */
};

struct podforward_conn;
/* Relay the connected socket fd, taken over, to a port of the pod. done: from the loop, once; a
 * negative return ends loop_run. */
struct podforward_conn *podforward_relay(struct podforward *forward, int fd, uint16_t port,
	int (*done)(void *ctx, struct podforward_end *end, struct err *err), void *ctx);
/* Give up: the socket is reset; no done. NULL is accepted. */
void podforward_cancel(struct podforward_conn *conn);

#endif
