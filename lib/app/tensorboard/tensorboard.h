/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TensorBoard over the event files of runs, behind an HTTP server of our own (httpd.h), until the
 * user has seen enough: their files are mirrored here (mirror.h) and the user's TensorBoard is
 * started over them, or one beside the program of a run is used. Runs are not touched.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/transfer/mirror.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"

/* A TensorBoard that is being served. */
struct tensorboard_shown {
	const char *url;      /* with the secret path */
	const char *open_url; /* leads there once: for the arguments of a browser */
	uint16_t port;
	const char *version; /* of TensorBoard; empty: not known */
	const char *program; /* its path here; NULL: beside the program */
	uint16_t remote;     /* its port beside the program; 0: it runs here */
	bool was_found;      /* it was there already */
	bool is_alone;       /* nobody else of this machine can reach its own port */
};

struct tensorboard_options {
	uint16_t port; /* 0: 6006, or the next one that is free */
	bool remote;
	bool scalars_only; /* nothing else is copied (mirror.h); not with remote */
	/* All files have been looked for once, here: n states in the order of the runs. */
	void (*mirrored)(void *ctx, const struct mirror_state *states, size_t n);
	/* Called once TensorBoard responds. */
	void (*shown)(void *ctx, const struct tensorboard_shown *shown);
	/* Called with one sentence: why the command waits, or what became of a run. */
	void (*notice)(void *ctx, const char *text);
	void *ctx;
	const volatile int *interrupted;
};

/* Until *interrupted (E_CANCELED) or a failure: E_TENSORBOARD_…; E_LISTEN_TAKEN; with remote, of
 * one run only, what tensorboard_remote_open fails with; where a run has ended and nothing can be
 * had of it (and of no other one) that failure. */
int run_tensorboard(struct session *session, const struct run_list *runs,
	const struct tensorboard_options *options, struct err *err);

#endif
