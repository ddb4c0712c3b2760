/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one poll(2) loop. Sources say what they want (prepare) and act on it (dispatch); a dispatch
 * does a bounded amount of work and never blocks. Sources may be added and removed from within a
 * dispatch.
 */
#ifndef DLRUN_BASE_LOOP_LOOP_H
#define DLRUN_BASE_LOOP_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/util/err.h"

struct loop;
struct loop_fd;
struct loop_timer;

struct loop *loop_new(void);
void loop_free(struct loop *loop);

/* A descriptor. prepare returns the poll events it wants now (0: none; back-pressure). dispatch
 * gets revents; a negative return ends loop_run with that code and err. */
struct loop_fd_ops {
	short (*prepare)(void *ctx);
	int (*dispatch)(void *ctx, short revents, struct err *err);
};
struct loop_fd *loop_add_fd(struct loop *loop, int fd, const struct loop_fd_ops *ops, void *ctx);
/* The descriptor stays open. NULL is accepted. */
void loop_remove_fd(struct loop *loop, struct loop_fd *source);

/* A timer: fn is called once, when clock_ms() reaches at_ms. */
typedef int loop_timer_fn(void *ctx, struct err *err);
struct loop_timer *loop_add_timer(struct loop *loop, int64_t at_ms, loop_timer_fn *fn, void *ctx);
/* Accepts NULL and a timer that has run. */
void loop_remove_timer(struct loop *loop, struct loop_timer *timer);

/* A signal, delivered as an event (the handler only writes to a pipe). At most one source for each
 * signal; the earlier disposition comes back with loop_free. */
typedef int loop_signal_fn(void *ctx, int sig, struct err *err);
int loop_add_signal(struct loop *loop, int sig, loop_signal_fn *fn, void *ctx, struct err *err);
/* Remove the source and restore the earlier disposition. No effect where there is no source. Not
 * from within a signal's own function. */
void loop_remove_signal(struct loop *loop, int sig);
/* The same for each signal that ends a command: SIGINT, SIGTERM, SIGHUP. A failure leaves no
 * source. */
int loop_add_interrupts(struct loop *loop, loop_signal_fn *fn, void *ctx, struct err *err);
/* The same where each only sets *interrupted to 1, for struct loop_wait and loop_pause. */
int loop_flag_interrupts(struct loop *loop, volatile int *interrupted, struct err *err);
void loop_remove_interrupts(struct loop *loop);

/* Run until loop_stop, an error, or nothing is left to wait for: no timer, no signal source, and no
 * descriptor that wants anything. Not from within a dispatch. */
int loop_run(struct loop *loop, struct err *err);
/* The run ends when the present dispatch returns; before loop_run: it ends at once. */
void loop_stop(struct loop *loop);

/* clock_ms() when the loop last found that this machine or process had slept for seconds (a lid, a
 * SIGSTOP), while a timer was there; 0: never. Connections from before are mostly dead. */
int64_t loop_woke_ms(struct loop *loop);

/*
 * A command that has nothing else to do waits for what it started: the loop runs until all of it
 * is there, until a deadline, or until the user interrupts. Blocks; never from within a dispatch of
 * that loop. Other code may stop the loop meanwhile.
 */
struct loop_wait {
	struct loop *loop;
	size_t n_open;       /* what has been started and is not done */
	int64_t deadline_ms; /* of clock_ms(); 0: none */
	/* A flag that the handler of a signal sets, read ten times a second. NULL: none. */
	const volatile int *interrupted;
};

/* 0: all is done, or the deadline has passed and n_open is not 0; what is there by then counts,
 * even if it had passed before. E_CANCELED when interrupted; otherwise what ended the loop. */
int loop_wait_run(struct loop_wait *wait, struct err *err);
/* Counts one of n_open as done. */
void loop_wait_done(struct loop_wait *wait);
/* Wait for ms alone. interrupted: as above. */
int loop_pause(struct loop *loop, int64_t ms, const volatile int *interrupted, struct err *err);

#endif
