/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies a directory of a container to a sink (fetch_sink.h): first a listing, by find and stat or
 * by Python, then a tar of the files that the sink wants as a whole, made there by tar or by
 * Python, and the parts that it wants of others. A connection that is cut is opened again; data
 * received by then does not come again.
 */
#ifndef DLRUN_TARGETS_KUBE_POD_POD_COPY_H
#define DLRUN_TARGETS_KUBE_POD_POD_COPY_H

#include <stdbool.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "core/target/fetch_sink.h"
#include "kube/api/client.h"
#include "targets/kube/pod/pod_copy_words.h"

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
	/* From the loop, once. E_KUBE_SHELL: neither sh, find and tar nor Python are there. */
	void (*done)(void *ctx, int r, struct err *fault);
	void *ctx;
};

struct pod_copy;
/* Copies what it keeps, but not what client and sink stand for. */
struct pod_copy *pod_copy_start(const struct pod_copy_request *request);
/* Give up; no done. NULL is accepted. */
void pod_copy_cancel(struct pod_copy *copy);

#endif
