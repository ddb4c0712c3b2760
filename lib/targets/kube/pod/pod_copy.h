/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies a directory of a container to a sink (fetch_sink.h): first a listing, then a tar of the
 * files that the sink wants as a whole, and the parts that it wants of others, by a script for sh
 * (files.sh). A connection that is cut is opened again; data received by then does not come again.
 */
#ifndef DLRUN_TARGETS_KUBE_POD_POD_COPY_H
#define DLRUN_TARGETS_KUBE_POD_POD_COPY_H

#include <stdbool.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "core/target/fetch_sink.h"
#include "kube/api/client.h"

extern const char pod_files_script[]; /* files.sh */

/* Before the listing. */
enum pod_copy_first {
	POD_COPY_LIST,     /* nothing */
	POD_COPY_COLLECT,  /* the program runs: what its tree has by now is collected */
	POD_COPY_ANNOUNCE, /* the same, and the pod is about to be removed (KUBE_ANNOUNCED) */
	POD_COPY_WAIT,     /* in KUBE_KEEPER: for the end of the program */
};

struct pod_copy_request {
	struct loop *loop;
	struct kube_client *client;
	const char *kube_namespace, *pod, *container;
	const char *dir;    /* absolute, in the container */
	const char *prefix; /* in front of its paths here: "" or "rank-0/" */
	bool may_change;    /* programs write there */
	enum pod_copy_first first;
	const char *temp_dir; /* here, for a file without a name */
	struct fetch_sink *sink;
	/* From the loop, once. E_KUBE_SHELL: sh, find, stat or tar are not there. */
	void (*done)(void *ctx, int r, struct err *fault);
	void *ctx;
};

struct pod_copy;
/* Copies what it keeps, but not what client and sink stand for. */
struct pod_copy *pod_copy_start(const struct pod_copy_request *request);
/* Give up; no done. NULL is accepted. */
void pod_copy_cancel(struct pod_copy *copy);

#endif
