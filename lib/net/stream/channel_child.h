/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child processes behind channels (channel.h): started anywhere, also in a thread while no loop
 * runs, and made a channel later on the loop. With three pipes, or on a pseudo-terminal of their
 * own with a pipe for stderr only. The process ignores SIGPIPE.
 */
#ifndef DLRUN_NET_STREAM_CHANNEL_CHILD_H
#define DLRUN_NET_STREAM_CHANNEL_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "net/stream/channel.h"

struct child_spec {
	const char *const *argv;
	const char *const *env; /* NULL: ours */
	/* The child's terminal: of that size, with a new terminal's modes; the child itself makes
	 * it raw, and until then nothing is written to it. NULL: pipes. */
	const struct channel_pty *pty;
	/* The child stays in our session and may prompt on /dev/tty; when it is given up it gets a
	 * moment to restore that terminal. */
	bool keeps_terminal;
};

/* A running child. Zero: none. */
struct child {
	pid_t pid;
	int in, out, err; /* our ends */
	bool is_pty, keeps_terminal;
	bool is_alone; /* only it is killed, not what it has started */
};

/* E_RUN_EXEC, E_IO. Blocks until exec. Of a thread beside the loop's: without a terminal only. */
int child_start(const struct child_spec *spec, struct child *ret, struct err *err);
/* Killed and waited for; *child is zero then. */
void child_end(struct child *child);

/* Run it to its end without input; what it writes beyond the limits of out and errors is read and
 * dropped. status: as wait(2). E_IO when it has not ended after timeout_ms, E_CANCELED when
 * cancel_fd (-1: none) is at its end or has something to read; it is killed then. Blocks. */
int child_capture(const struct child_spec *spec, int64_t timeout_ms, int cancel_fd, struct buf *out,
	struct buf *errors, int *ret_status, struct err *err);

/* Takes *child over (it is zero then). */
struct channel *channel_of_child(
	struct loop *loop, struct child *child, const struct channel_events *events);
/* Of such a channel: child.is_alone from now on. */
void channel_child_alone(struct channel *channel);

#endif
