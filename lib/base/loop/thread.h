/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that wait for the next piece of work when one is done: a new one takes its time, and more
 * of it while the dynamic loader brings in a library (library.h), which holds a lock that the
 * start of a thread needs. All signals are blocked in them. For par.c.
 */
#ifndef DLRUN_BASE_LOOP_THREAD_H
#define DLRUN_BASE_LOOP_THREAD_H

#include <stdbool.h>

enum { THREADS_KEPT = 16 };

struct thread;

/* Add n threads that wait for work, THREADS_KEPT at most. */
void thread_prepare(unsigned n);
/* Run fn(ctx) in a thread; NULL: the system has no more threads. */
struct thread *thread_start(void (*fn)(void *ctx), void *ctx);
/* Returns when fn has returned; the thread may be reused then. */
void thread_wait(struct thread *thread);
/* Instead of thread_wait: the thread goes on by itself. */
void thread_leave(struct thread *thread);
/* For fn: its thread is no longer like the others, so it ends with fn instead of being reused. */
void thread_spoil(void);

#endif
