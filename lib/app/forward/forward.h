/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports of a run on this machine: listeners of its own programs only (listen.h), whose
 * connections the target relays to the program.
 */
#ifndef DLRUN_APP_FORWARD_FORWARD_H
#define DLRUN_APP_FORWARD_FORWARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target.h"

enum { FORWARD_PORTS_MAX = 64 };

struct forward_port {
	uint16_t local; /* 0: as remote, or the next one that is free */
	uint16_t remote;
};
/* "6006" or "8080:6006". E_USAGE. */
int forward_port_parse(const char *text, struct forward_port *ret, struct err *err);

struct forward_options {
	const struct forward_port *ports;
	size_t n_ports;
	int rank;
	/* Called when port is listened on. */
	void (*listening)(void *ctx, const struct forward_port *port);
	/* The run waits to begin; lost, back again, why a connection ended. One sentence. */
	void (*notice)(void *ctx, const char *text);
	void *ctx;
	const volatile int *interrupted; /* ends it with E_CANCELED within a second */
};
/* Waits until the run has begun, then listens until it has ended (0), for ever new attempts of it,
 * too. E_RUN_ENDED when it had before; E_LISTEN_TAKEN. */
int run_forward(struct session *session, const struct run *run,
	const struct forward_options *options, struct err *err);

/*
 * The same beside something else that runs the session's loop, such as following the log.
 */
struct forward;
/* Listens from now on until it is freed; contacts nobody and waits for nothing. Connections go to
 * the newest attempt that run has when they come; run is borrowed and may change. Why one was not
 * relayed goes to notice only; the loop goes on. E_LISTEN_TAKEN, and what target_open_run fails
 * with. */
int forward_open(struct session *session, const struct run *run,
	const struct forward_options *options, struct forward **ret, struct err *err);
/* Connections are reset. NULL is accepted. */
void forward_free(struct forward *forward);
AUTO_POINTER(struct forward, forward_free)

/* Waits as run_forward does until a run that has not begun runs or has ended, as *ret says then;
 * not set if it had begun. Of options rank, notice, ctx and interrupted count. */
int run_wait_begun(struct session *session, const struct run *run,
	const struct forward_options *options, struct run **ret, struct err *err);

/* A command beside the program of a run that has begun (run_wait_begun), or in the tree that it
 * left. E_RUN_ENDED: there is none. */
int run_exec(struct session *session, const struct run *run,
	const struct target_exec_request *request, int *ret_status, const volatile int *interrupted,
	struct err *err);

/* The terminal of such a run, which is waited for to begin; the command's exit status as far as it
 * can be told. Interrupted as target_exec. */
int run_terminal(struct session *session, const struct run *run,
	const struct target_exec_request *request, int *ret_status, const volatile int *interrupted,
	struct err *err);

#endif
