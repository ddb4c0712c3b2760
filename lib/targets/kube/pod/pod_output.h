/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command in a container of a pod whose output is taken as it comes, and the beginning of what it
 * says on stderr.
 */
#ifndef DLRUN_TARGETS_KUBE_POD_POD_OUTPUT_H
#define DLRUN_TARGETS_KUBE_POD_POD_OUTPUT_H

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/api/client.h"

struct pod_output_request {
	struct loop *loop;
	struct kube_client *client;
	const char *kube_namespace, *pod, *container;
	const struct strv *command;
	int stdin_fd; /* -1: none; stays the caller's, open until done */
	/* A negative return ends the command, and is its fault with err. */
	int (*data)(void *ctx, const char *data, size_t len, struct err *err);
	/* From the loop, once. status: its exit code, unless there is a fault (not set: none): that
	 * of data, or as those of podexec.h. said: of stderr. */
	void (*done)(void *ctx, int status, struct err *fault, const char *said);
	void *ctx;
};

struct pod_output;
int pod_output_start(
	const struct pod_output_request *request, struct pod_output **ret, struct err *err);
/* Give up; no done. NULL is accepted. */
void pod_output_cancel(struct pod_output *output);

#endif
