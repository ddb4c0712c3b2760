/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long piece of work beside the loop: reading and packing a tree while waiting for the network.
 * It runs in a thread of its own on private data. For anything on the loop's side it calls
 * task_request, which blocks until task_respond, so that no data is used by both at once.
 */
#ifndef DLRUN_BASE_LOOP_TASK_H
#define DLRUN_BASE_LOOP_TASK_H

#include "base/loop/loop.h"
#include "base/util/err.h"

struct task;

/* The work: in the thread. */
typedef int task_fn(struct task *task, void *ctx, struct err *err);
/* The end of the work: on the loop, once. r and error are the work's; a negative return ends
 * loop_run. */
typedef int task_done_fn(void *ctx, int r, struct err *error, struct err *err);

/* *ret is set before the work begins, which may use it. Where no thread is to be had the failure
 * arrives by done. */
void task_start(struct loop *loop, task_fn *fn, task_done_fn *done, void *ctx, struct task **ret);
/* Waits for the thread's end; an open request, and every later one, fails with E_CANCELED. Not from
 * within the work. NULL is accepted. */
void task_free(struct task *task);
/* From the loop's side: the open request, and every later one, fails with E_CANCELED. */
void task_cancel(struct task *task);

/* A request of the work: on the loop, ends with task_respond, at once or later. */
typedef void task_request_fn(void *ctx, struct task *task);
/* In the thread: have fn called on the loop and wait for the response. */
int task_request(struct task *task, task_request_fn *fn, void *ctx, struct err *err);
/* On the loop: r is what task_request returns; error (or NULL) is moved to its err. */
void task_respond(struct task *task, int r, struct err *error);
/* In the thread: have fn called on the loop some time, without waiting. ctx is not the work's any
 * more unless fn says so. At most TASK_POSTS_MAX wait; more are dropped: only for news. */
enum { TASK_POSTS_MAX = 64 };
typedef void task_post_fn(void *ctx);
void task_post(struct task *task, task_post_fn *fn, void *ctx);

#endif
