/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop/task.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

struct post {
	task_post_fn *fn;
	void *ctx;
};

/* Members below lock are protected by it. */
struct task {
	struct loop *loop;
	struct loop_fd *source;
	task_fn *fn;
	task_done_fn *done;
	void *ctx;
	pthread_t thread;
	bool has_thread;
	int wake[2]; /* a byte for each thing that the loop should handle */
	bool reported;

	pthread_mutex_t lock;
	pthread_cond_t answered;
	task_request_fn *request; /* not seen by the loop yet */
	void *request_ctx;
	bool is_open, is_cancelled, is_finished;
	int response;
	struct err response_err;
	struct post posts[TASK_POSTS_MAX];
	size_t n_posts;
	int result;
	struct err error;
};

static void wake_loop(struct task *task)
{
	/* A full pipe wakes as well. */
	while (write(task->wake[1], "", 1) < 0 && errno == EINTR)
		;
}

/*
 * In the thread
 */

static void *task_main(void *arg)
{
	struct task *task = arg;
	AUTO_ERR struct err error = {0};
	int r = task->fn(task, task->ctx, &error);

	pthread_mutex_lock(&task->lock);
	task->result = r;
	err_move(&task->error, &error);
	task->is_finished = true;
	pthread_mutex_unlock(&task->lock);
	wake_loop(task);
	return NULL;
}

static void set_cancelled(struct task *task)
{
	task->response = err_set(&task->response_err, E_CANCELED, "interrupted");
}

int task_request(struct task *task, task_request_fn *fn, void *ctx, struct err *err)
{
	pthread_mutex_lock(&task->lock);
	if (task->is_cancelled) {
		set_cancelled(task);
	} else {
		task->request = fn;
		task->request_ctx = ctx;
		task->is_open = true;
		wake_loop(task);
		while (task->is_open)
			pthread_cond_wait(&task->answered, &task->lock);
	}
	int r = task->response;
	if (err_is_set(&task->response_err))
		err_move(err, &task->response_err);
	err_clear(&task->response_err);
	pthread_mutex_unlock(&task->lock);
	return r;
}

void task_post(struct task *task, task_post_fn *fn, void *ctx)
{
	pthread_mutex_lock(&task->lock);
	if (task->n_posts < TASK_POSTS_MAX)
		task->posts[task->n_posts++] = (struct post){fn, ctx};
	pthread_mutex_unlock(&task->lock);
	wake_loop(task);
}

/*
 * On the loop
 */

void task_respond(struct task *task, int r, struct err *error)
{
	pthread_mutex_lock(&task->lock);
	/* A cancelled request has its response already. */
	if (task->is_open) {
		task->response = r;
		if (err_is_set(error))
			err_move(&task->response_err, error);
		task->is_open = false;
		pthread_cond_signal(&task->answered);
	}
	pthread_mutex_unlock(&task->lock);
}

void task_cancel(struct task *task)
{
	pthread_mutex_lock(&task->lock);
	task->is_cancelled = true;
	task->request = NULL;
	if (task->is_open) {
		set_cancelled(task);
		task->is_open = false;
		pthread_cond_signal(&task->answered);
	}
	pthread_mutex_unlock(&task->lock);
}

/* Take the next post or, if there is none, the request. */
static bool take_next(
	struct task *task, struct post *ret_post, task_request_fn **ret_request, void **ret_ctx)
{
	*ret_request = NULL;
	pthread_mutex_lock(&task->lock);
	bool any = task->n_posts > 0 || task->request;
	if (task->n_posts > 0) {
		*ret_post = task->posts[0];
		task->n_posts--;
		for (size_t i = 0; i < task->n_posts; i++)
			task->posts[i] = task->posts[i + 1];
	} else if (task->request) {
		*ret_request = task->request;
		*ret_ctx = task->request_ctx;
		task->request = NULL;
	}
	pthread_mutex_unlock(&task->lock);
	return any;
}

static bool is_finished(struct task *task)
{
	pthread_mutex_lock(&task->lock);
	bool finished = task->is_finished;
	pthread_mutex_unlock(&task->lock);
	return finished;
}

static void task_join(struct task *task)
{
	if (task->has_thread)
		pthread_join(task->thread, NULL);
	task->has_thread = false;
}

static int task_report(struct task *task, struct err *err)
{
	AUTO_ERR struct err error = {0};

	task_join(task);
	task->reported = true;
	loop_remove_fd(task->loop, task->source);
	task->source = NULL;
	err_move(&error, &task->error);
	/* The task may be freed by done. */
	return task->done(task->ctx, task->result, &error, err);
}

static short task_prepare(void *ctx UNUSED)
{
	return POLLIN;
}

static int task_dispatch(void *ctx, short revents UNUSED, struct err *err)
{
	struct task *task = ctx;
	char bytes[TASK_POSTS_MAX];
	struct post post;
	task_request_fn *request;
	void *request_ctx;

	while (read(task->wake[0], bytes, sizeof(bytes)) < 0 && errno == EINTR)
		;
	/* Read this first: posts made before the end are then taken below. */
	bool finished = is_finished(task);
	while (take_next(task, &post, &request, &request_ctx)) {
		if (request)
			request(request_ctx, task);
		else
			post.fn(post.ctx);
	}
	return finished ? task_report(task, err) : 0;
}

static const struct loop_fd_ops task_ops = {.prepare = task_prepare, .dispatch = task_dispatch};

/* Signals are the loop's. */
static void start_thread(struct task *task)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int errnum = pthread_create(&task->thread, NULL, task_main, task);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	task->has_thread = errnum == 0;
	if (errnum == 0)
		return;
	task->result = err_set_errno(&task->error, E_IO, errnum, "starting a thread");
	task->is_finished = true;
	wake_loop(task);
}

void task_start(struct loop *loop, task_fn *fn, task_done_fn *done, void *ctx, struct task **ret)
{
	struct task *task = mem_alloc(1, sizeof(*task));

	*task = (struct task){.loop = loop, .fn = fn, .done = done, .ctx = ctx};
	BUG_ON(os_pipe(task->wake, O_NONBLOCK) < 0);
	pthread_mutex_init(&task->lock, NULL);
	pthread_cond_init(&task->answered, NULL);
	task->source = loop_add_fd(loop, task->wake[0], &task_ops, task);
	*ret = task;
	start_thread(task);
}

void task_free(struct task *task)
{
	if (!task)
		return;
	task_cancel(task);
	task_join(task);
	if (task->source)
		loop_remove_fd(task->loop, task->source);
	close(task->wake[0]);
	close(task->wake[1]);
	pthread_cond_destroy(&task->answered);
	pthread_mutex_destroy(&task->lock);
	err_done(&task->response_err);
	err_done(&task->error);
	free(task);
}
