/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a transfer is: on a terminal one line that is drawn anew, elsewhere a line now and then.
 */
#ifndef DLRUN_CLI_RUNS_TRANSFER_H
#define DLRUN_CLI_RUNS_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "oci/registry/uploads.h"

struct app;

struct transfer {
	struct app *app;
	int64_t begun_ms, printed_ms; /* 0: not yet */
	/* The rate is that of the time since `before`, which is moved on now and then. */
	int64_t before_ms, now_ms;
	uint64_t before_bytes, now_bytes;
	bool on_screen;
};

void transfer_show(struct transfer *transfer, const struct uploads_progress *progress);
/* The same for bytes alone; label: what is done. */
void transfer_show_bytes(
	struct transfer *transfer, const char *label, uint64_t done, uint64_t total);
/* Take the line off the screen, before anything else is written. */
void transfer_clear(struct transfer *transfer);

/* Members of struct submit_events (prepare.h); ctx: a struct transfer. */
void transfer_on_progress(void *ctx, const struct uploads_progress *progress);
void transfer_on_note(void *ctx, const char *text);

#endif
