/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command in a container of a pod (Kubernetes API, "exec"): its streams on descriptors here, its
 * exit status, a terminal with its size. WebSocket of protocol v5.channel.k8s.io, or v4 where the
 * server has no other (before 1.30; there an end of stdin cannot be passed on). The first byte of a
 * message is its channel: 0 stdin, 1 stdout, 2 stderr, 3 the Status at the end, 4 the size of the
 * terminal, 255 the end of another channel (v5).
 */
#ifndef DLRUN_KUBE_PORTFORWARD_PODEXEC_H
#define DLRUN_KUBE_PORTFORWARD_PODEXEC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/api/client.h"

struct podexec_request {
	struct loop *loop;
	struct kube_client *client;
	const char *kube_namespace, *pod, *container;
	const struct strv *command;
	/* stdin, stdout, stderr; -1: none. They stay the caller's, open until done, and in the mode
	 * that they are in: read and written when poll(2) says so. */
	int fds[3];
	bool tty; /* stderr comes with stdout */
	/* The size of the terminal, in characters; read at the start and by podexec_resize. NULL:
	 * unknown. */
	void (*size)(void *ctx, unsigned *ret_columns, unsigned *ret_rows);
	/* Bytes flow from now on. NULL: not called. */
	void (*opened)(void *ctx);
	/* From the loop, once. status: the command's exit code; with an error (not set: none) it
	 * says nothing: E_EXEC_NOT_FOUND, E_EXEC_NOT_EXECUTABLE, E_KUBE_EXEC, or the
	 * request's (E_KUBE_DENIED, E_KUBE_NOT_FOUND, …). A negative return ends loop_run. */
	int (*done)(void *ctx, int status, struct err *error, struct err *err);
	void *ctx;
};

struct podexec;
/* Copies what it keeps, but not what the pointers of the client and the descriptors stand for. */
struct podexec *podexec_start(const struct podexec_request *request);
/* Give up; no done. The command gets a hang-up. NULL is accepted. */
void podexec_cancel(struct podexec *exec);
/* The size of the terminal has changed. */
void podexec_resize(struct podexec *exec);

/* Read the Status at the end of an exec. program: for messages. 0 and the exit code of the command,
 * 0 to 255; E_EXEC_NOT_FOUND or E_EXEC_NOT_EXECUTABLE for the program, E_KUBE_EXEC otherwise (also
 * text that is no Status). */
int podexec_status(
	const char *text, size_t len, const char *program, int *ret_code, struct err *err);

#endif
