/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small pool of threads for pure work on private data: stat walks, hashing, compression. The
 * threads are those below; otherwise only task.c has one. All of them have ended (or wait for
 * work) when a call returns; signals are blocked in them.
 */
#ifndef DLRUN_BASE_LOOP_PAR_H
#define DLRUN_BASE_LOOP_PAR_H

#include <stdbool.h>
#include <stddef.h>

/* The number of threads that run at once: the CPUs that this process may use, 1 to 16. */
unsigned par_width(void);

/* Call fn(ctx, i, worker) once for each i below n, in any order and concurrently; worker is below
 * par_width(). Returns when all are done. With n <= 1 or one CPU no thread is started. */
typedef void par_fn(void *ctx, size_t i, unsigned worker);
void par_for(size_t n, par_fn *fn, void *ctx);

/* A queue of work that may add work to itself (directories found in directories). fn is called for
 * item; it may call par_queue_add. Items are pointers of the caller's. */
struct par_queue;
typedef void par_queue_fn(void *ctx, struct par_queue *queue, void *item, unsigned worker);
void par_queue_add(struct par_queue *queue, void *item);
/* Starts with first and returns when the queue is empty and every call has returned. For work that
 * does little else than call the kernel with descriptors of its own and fd: fn runs in threads that
 * have no others but 0 to 2 (os.h); where no threads can be had, and with an fd of -1, it runs in
 * the caller's thread and in others that have all of them. */
void par_queue_run_apart(par_queue_fn *fn, void *ctx, void *first, int fd);

/* Run fn beside the caller; par_wait, which takes NULL, returns when fn has ended. fn must not wait
 * for the caller: where no thread can be had it runs before par_start returns. */
struct par_task;
struct par_task *par_start(void (*fn)(void *ctx), void *ctx);
void par_wait(struct par_task *task);
/* Instead of par_wait: the task goes on by itself, perhaps after its starter has ended, so it may
 * use only what it owns. For system calls that cannot be ended. */
void par_leave(struct par_task *task);

/*
 * Threads that wait for the next piece of work when one is done: a new one takes its time, and more
 * of it while the dynamic loader brings in a library (library.h), which holds a lock that the
 * start of a thread needs. All signals are blocked in them.
 */
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
