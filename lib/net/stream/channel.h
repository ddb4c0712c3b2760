/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command that runs elsewhere, or a connection made from there: bytes in, bytes out, bytes of the
 * command's stderr, an end with an exit status. One interface for every transport: a session of
 * libssh2, the OpenSSH client, a child process, a pod's exec. On the loop; nothing blocks.
 *
 * Whoever has a channel reads and writes it from `ready` on, until CHANNEL_AGAIN.
 */
#ifndef DLRUN_NET_STREAM_CHANNEL_H
#define DLRUN_NET_STREAM_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "net/stream/stream.h"

/* "not now": `ready` is called when it is worth another try. */
enum { CHANNEL_AGAIN = STREAM_AGAIN };

enum channel_flow { CHANNEL_OUT, CHANNEL_ERR };

/* How a command ended (RFC 4254, section 6.10). */
struct channel_exit {
	bool known; /* false: it ended without saying how (a connection that broke, …) */
	int code;   /* of an exit, 0 to 255; not set behind a signal */
	/* "KILL" without SIG, "?" for one that the transport does not report; empty: none. It is
	 * read before code. */
	char signal[16];
};

/* Something may be read or written now, it is open, or it has ended. From the loop only, never from
 * within a call of the channel; the channel may be freed in it. A negative return ends loop_run. */
struct channel_events {
	int (*ready)(void *ctx, struct err *err);
	void *ctx;
};

struct channel;
struct channel_ops {
	/* Bytes (more than 0), 0 at the end of that flow, CHANNEL_AGAIN, or a negative code (which
	 * every later call gives, too). A channel to a port has no CHANNEL_ERR: 0. */
	ssize_t (*read)(struct channel *channel, enum channel_flow flow, void *out, size_t len,
		struct err *err);
	/* Bytes taken (more than 0), CHANNEL_AGAIN, or a negative code. len is more than 0. What a
	 * command does not read any more is taken and dropped: how it ended is reported by wait. */
	ssize_t (*write)(struct channel *channel, const void *data, size_t len, struct err *err);
	/* Nothing more will be written; what was taken goes first. Does nothing to a terminal: it
	 * has no end of one direction, there the end of input is a key (VEOF, termios(3)). */
	int (*send_eof)(struct channel *channel, struct err *err);
	/* 1: it has ended, both flows have been read to their ends, and *ret is set; 0: not yet; a
	 * negative code: the connection has failed, how the command ended is not known. */
	int (*wait)(struct channel *channel, struct channel_exit *ret, struct err *err);
	void (*resize)(struct channel *channel, unsigned columns, unsigned rows); /* or NULL */
	/* Gives it up at once; the command there loses its streams. */
	void (*free)(struct channel *channel);
};

struct channel {
	const struct channel_ops *ops;
	struct channel_events events;
};

void channel_free(struct channel *channel); /* NULL is accepted */

/* A terminal of the command's own. */
struct channel_pty {
	const char *term; /* "xterm-256color" */
	unsigned columns, rows;
};

/* Opens channels on one connection. The channel is there at once and opens when it can: that it
 * could not is reported by read, write and wait. command: one line for the login shell there. */
struct channel_opener {
	struct channel *(*command)(void *ctx, const char *command, const struct channel_pty *pty,
		const struct channel_events *events);
	/* A TCP connection from there; NULL: cannot. */
	struct channel *(*connect)(
		void *ctx, const char *host, uint16_t port, const struct channel_events *events);
	void *ctx;
};

/* For pumps: the channel (taken over) as a stream without a descriptor. woken is called for what
 * the channel's ready was: pump_wake. Of a channel to a port. */
struct stream *channel_stream(struct channel *channel, void (*woken)(void *ctx), void *ctx);

/*
 * Child processes behind channels: started anywhere, also in a thread while no loop runs, and made
 * a channel later on the loop. With three pipes, or on a pseudo-terminal of their own with a pipe
 * for stderr only. The process ignores SIGPIPE; the channel's free kills the child's process group.
 */

struct child_spec {
	const char *const *argv; /* argv[0] is looked up on PATH of env */
	const char *const *env;  /* NULL: ours */
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

/* Takes *child over (it is zero then). */
struct channel *channel_of_child(
	struct loop *loop, struct child *child, const struct channel_events *events);
/* Of such a channel: child.is_alone from now on. */
void channel_child_alone(struct channel *channel);

#endif
