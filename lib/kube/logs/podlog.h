/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of one container on the loop: followed across cut and silent streams, API servers and
 * kubelets that are away, and rotation (podlog_lines.c says how). The end of a stream is never
 * taken for the end of the program: the caller says when the container has ended.
 */
#ifndef DLRUN_KUBE_LOGS_PODLOG_H
#define DLRUN_KUBE_LOGS_PODLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "kube/api/client.h"
#include "kube/logs/podlog_lines.h"

struct podlog_events {
	/* Bytes of the program in order, time_ms of their line on the node; a line that a gap has
	 * cut ends with a LF. < 0: stop; that ends loop_run with err. */
	int (*data)(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err);
	/* A kubelet that is away, or says something: one sentence. */
	void (*notice)(void *ctx, const char *text);
	/* Report output that is missing from here. NULL: notice is called. */
	void (*gap)(void *ctx, const char *text);
	/* All is delivered that can be had, and no event follows; error is not set then, or it is
	 * E_KUBE_DENIED, E_KUBE_AUTH, E_KUBE_INVALID (the container is gone), E_KUBE_NOT_FOUND (the
	 * pod is, as the API server says of the pod itself), or what has kept its end from being
	 * read for a minute. podlog_free may be called from it. < 0 ends loop_run. */
	int (*end)(void *ctx, struct err *error, struct err *err);
	void *ctx;
};

struct podlog_request {
	const char *kube_namespace, *pod, *container;
	const char *label;  /* for notices: "rank 3"; NULL: the pod's name */
	const char *id;     /* of the instance: goes into points */
	const char *uid;    /* of the pod; NULL: any of that name is it */
	bool previous;      /* the instance before the present one: it has ended */
	bool follow;        /* false: what is there now */
	int64_t tail_lines; /* -1: all; not with a point */
	int64_t since_ms;   /* wall clock of the node; 0: all; not with a point */
	int64_t started_ms; /* the container, wall clock of the node; 0: not known */
	const char *token;  /* of podlog_token with the same id; NULL, or not valid: none */
	struct podlog_events events;
};

struct podlog;
/* Copies what it keeps. Events come from the loop. */
struct podlog *podlog_start(
	struct kube_client *client, struct loop *loop, const struct podlog_request *request);
/* NULL is accepted. */
void podlog_free(struct podlog *podlog);
/* The container has ended (or was restarted: previous then): drain what is left, then end. */
void podlog_finish(struct podlog *podlog, bool previous);
/* The token to resume from. */
void podlog_token(const struct podlog *podlog, char out[static PODLOG_TOKEN_SIZE]);

#endif
