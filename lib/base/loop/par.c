/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop/par.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/os/os.h"
#include "base/util/mem.h"
#include "base/util/vec.h"

enum { STACK_SIZE = 1 << 20 };

/* Protected by lock. */
struct thread {
	pthread_t id;
	pthread_cond_t change;
	struct thread *next; /* that waits for work, too */
	void (*fn)(void *ctx);
	void *ctx;
	bool is_done;   /* with fn */
	bool is_left;   /* nobody waits for that */
	bool is_spoilt; /* not to be used again */
	bool is_ended;  /* no work comes any more */
};

static pthread_mutex_t thread_lock = PTHREAD_MUTEX_INITIALIZER;
static struct thread *thread_idle;
static unsigned thread_n_idle;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;
static _Thread_local struct thread *thread_current;

/* A forked child has only the thread that forked. */
static void thread_forget_all(void)
{
	pthread_mutex_init(&thread_lock, NULL);
	thread_idle = NULL;
	thread_n_idle = 0;
}

static void thread_watch_forks(void)
{
	pthread_atfork(NULL, NULL, thread_forget_all);
}

/* With the lock held. */
static void thread_keep(struct thread *thread)
{
	thread->fn = NULL;
	thread->is_done = false;
	thread->next = thread_idle;
	thread_idle = thread;
	thread_n_idle++;
}

static void thread_free(struct thread *thread)
{
	pthread_cond_destroy(&thread->change);
	free(thread);
}

/* Called and returns with the lock held. */
static void thread_work(struct thread *thread)
{
	pthread_mutex_unlock(&thread_lock);
	thread->fn(thread->ctx);
	pthread_mutex_lock(&thread_lock);
	thread->is_done = true;
	thread->is_ended = thread->is_left;
	pthread_cond_broadcast(&thread->change);
}

static void *thread_run(void *arg)
{
	struct thread *thread = arg;
	bool is_left;

	thread_current = thread;
	pthread_mutex_lock(&thread_lock);
	while (!thread->is_ended) {
		if (thread->fn && !thread->is_done)
			thread_work(thread);
		else
			pthread_cond_wait(&thread->change, &thread_lock);
	}
	is_left = thread->is_left;
	pthread_mutex_unlock(&thread_lock);
	if (is_left)
		thread_free(thread);
	return NULL;
}

/* Signals belong to the loop of the main thread, so a new thread has to be born with all of them
 * blocked. */
static bool thread_begin(struct thread *thread)
{
	sigset_t all, before;
	pthread_attr_t attr;

	if (pthread_attr_init(&attr) != 0)
		return false;
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int r = pthread_create(&thread->id, &attr, thread_run, thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return r == 0;
}

/* fn NULL: the thread waits for work. Returns NULL when there are no more threads. */
static struct thread *thread_new(void (*fn)(void *ctx), void *ctx)
{
	struct thread *thread = mem_alloc(1, sizeof(*thread));

	*thread = (struct thread){.fn = fn, .ctx = ctx};
	pthread_cond_init(&thread->change, NULL);
	if (thread_begin(thread))
		return thread;
	thread_free(thread);
	return NULL;
}

/* Lock for one thread at a time: a thread_start meanwhile must not wait for all of them. */
void thread_prepare(unsigned n)
{
	pthread_once(&thread_once, thread_watch_forks);
	for (unsigned i = 0; i < n && i < THREADS_KEPT; i++) {
		struct thread *thread = thread_new(NULL, NULL);

		if (!thread)
			return;
		pthread_mutex_lock(&thread_lock);
		thread_keep(thread);
		pthread_mutex_unlock(&thread_lock);
	}
}

struct thread *thread_start(void (*fn)(void *ctx), void *ctx)
{
	struct thread *thread;

	pthread_once(&thread_once, thread_watch_forks);
	pthread_mutex_lock(&thread_lock);
	thread = thread_idle;
	if (thread) {
		thread_idle = thread->next;
		thread_n_idle--;
		thread->fn = fn;
		thread->ctx = ctx;
		pthread_cond_signal(&thread->change);
	}
	pthread_mutex_unlock(&thread_lock);
	return thread ? thread : thread_new(fn, ctx);
}

/* After the join, what the thread had of its own in the system, such as descriptors, is gone. */
static void thread_end(struct thread *thread)
{
	pthread_join(thread->id, NULL);
	thread_free(thread);
}

void thread_wait(struct thread *thread)
{
	pthread_mutex_lock(&thread_lock);
	while (!thread->is_done)
		pthread_cond_wait(&thread->change, &thread_lock);
	bool is_kept = !thread->is_spoilt && thread_n_idle < THREADS_KEPT;
	if (is_kept)
		thread_keep(thread);
	thread->is_ended = !is_kept;
	pthread_cond_broadcast(&thread->change);
	pthread_mutex_unlock(&thread_lock);
	if (!is_kept)
		thread_end(thread);
}

void thread_leave(struct thread *thread)
{
	pthread_mutex_lock(&thread_lock);
	pthread_detach(thread->id);
	thread->is_left = true;
	thread->is_ended = thread->is_done;
	pthread_cond_broadcast(&thread->change);
	pthread_mutex_unlock(&thread_lock);
}

void thread_spoil(void)
{
	if (!thread_current)
		return;
	pthread_mutex_lock(&thread_lock);
	thread_current->is_spoilt = true;
	pthread_mutex_unlock(&thread_lock);
}

enum { WIDTH_MAX = 16, TAKE_MAX = 16, CHUNK_MAX = 64 };

static unsigned width;
static pthread_once_t width_once = PTHREAD_ONCE_INIT;

static void find_width(void)
{
	unsigned n = os_processors();

	width = n < 1 ? 1 : n > WIDTH_MAX ? WIDTH_MAX : n;
}

unsigned par_width(void)
{
	pthread_once(&width_once, find_width);
	return width;
}

struct for_work {
	par_fn *fn;
	void *ctx;
	size_t n, chunk;
	atomic_size_t next;
	atomic_uint workers;
};

static void for_run(void *arg)
{
	struct for_work *work = arg;
	unsigned worker = atomic_fetch_add(&work->workers, 1);

	for (;;) {
		size_t i = atomic_fetch_add(&work->next, work->chunk);

		if (i >= work->n)
			return;
		size_t end = work->n - i < work->chunk ? work->n : i + work->chunk;
		for (; i < end; i++)
			work->fn(work->ctx, i, worker);
	}
}

void par_for(size_t n, par_fn *fn, void *ctx)
{
	struct for_work work = {.fn = fn, .ctx = ctx, .n = n};
	struct thread *threads[WIDTH_MAX];
	unsigned started = 0;
	size_t want = par_width() < n ? par_width() : n;

	/* Small pieces, so that one slow item does not delay the others, but not single items,
	 * which would make cheap ones wait for the counter. */
	work.chunk = n / (par_width() * 32U);
	if (work.chunk > CHUNK_MAX)
		work.chunk = CHUNK_MAX;
	if (work.chunk == 0)
		work.chunk = 1;
	while (started + 1 < want && (threads[started] = thread_start(for_run, &work)))
		started++;
	for_run(&work);
	for (unsigned i = 0; i < started; i++)
		thread_wait(threads[i]);
}

struct par_queue {
	pthread_mutex_t lock;
	pthread_cond_t change; /* items came, or all is done */
	par_queue_fn *fn;
	void *ctx;
	struct VEC_OF(void *) items;
	unsigned busy; /* workers inside fn, which may add items */
	unsigned idle;
	int only_fd; /* -1: threads use all descriptors */
	unsigned n_threads, n_numbered;
	struct thread *threads[WIDTH_MAX];
};

static void queue_thread(void *arg);

static void add_thread(struct par_queue *queue)
{
	struct thread *thread = thread_start(queue_thread, queue);

	if (thread)
		queue->threads[queue->n_threads++] = thread;
}

void par_queue_add(struct par_queue *queue, void *item)
{
	pthread_mutex_lock(&queue->lock);
	*vec_push(&queue->items) = item;
	if (queue->idle > 0)
		pthread_cond_signal(&queue->change);
	/* Threads are started as work piles up: a small tree needs none. */
	else if (queue->items.n > 1 && queue->n_threads + 1 < par_width())
		add_thread(queue);
	pthread_mutex_unlock(&queue->lock);
}

/* Take the newest items, several at once when there are many; 0 when all is done. Called and
 * returns with the lock held. */
static size_t queue_take(struct par_queue *queue, void *taken[static TAKE_MAX])
{
	while (queue->items.n == 0 && queue->busy > 0) {
		queue->idle++;
		pthread_cond_wait(&queue->change, &queue->lock);
		queue->idle--;
	}
	size_t n = queue->items.n / (2U * par_width());
	if (n == 0)
		n = queue->items.n > 0;
	if (n > TAKE_MAX)
		n = TAKE_MAX;
	for (size_t i = 0; i < n; i++)
		taken[i] = queue->items.v[--queue->items.n];
	return n;
}

static void queue_work(struct par_queue *queue, unsigned worker)
{
	void *taken[TAKE_MAX];
	size_t n;

	pthread_mutex_lock(&queue->lock);
	while ((n = queue_take(queue, taken)) > 0) {
		queue->busy++;
		pthread_mutex_unlock(&queue->lock);
		for (size_t i = 0; i < n; i++)
			queue->fn(queue->ctx, queue, taken[i], worker);
		pthread_mutex_lock(&queue->lock);
		queue->busy--;
	}
	pthread_cond_broadcast(&queue->change);
	pthread_mutex_unlock(&queue->lock);
}

static void keep_only_fd(const struct par_queue *queue)
{
	if (os_keep_only_fd(queue->only_fd))
		thread_spoil();
}

static void queue_thread(void *arg)
{
	struct par_queue *queue = arg;

	pthread_mutex_lock(&queue->lock);
	unsigned worker = ++queue->n_numbered;
	pthread_mutex_unlock(&queue->lock);
	if (queue->only_fd >= 0)
		keep_only_fd(queue);
	queue_work(queue, worker);
}

static void first_thread(void *arg)
{
	struct par_queue *queue = arg;

	keep_only_fd(queue);
	queue_work(queue, 0);
}

void par_queue_run_apart(par_queue_fn *fn, void *ctx, void *first, int fd)
{
	struct par_queue queue = {.fn = fn, .ctx = ctx, .only_fd = fd};
	struct thread *thread = NULL;

	pthread_mutex_init(&queue.lock, NULL);
	pthread_cond_init(&queue.change, NULL);
	*vec_push(&queue.items) = first;
	if (fd >= 0)
		thread = thread_start(first_thread, &queue);
	if (thread)
		thread_wait(thread);
	else
		queue_work(&queue, 0);
	/* No item is added any more, so no further thread can appear. */
	for (unsigned i = 0; i < queue.n_threads; i++)
		thread_wait(queue.threads[i]);
	vec_done(&queue.items);
	pthread_cond_destroy(&queue.change);
	pthread_mutex_destroy(&queue.lock);
}

struct par_task {
	void (*fn)(void *ctx);
	void *ctx;
	struct thread *thread; /* NULL: there was none to be had */
	atomic_int users;      /* the thread and its starter */
};

static void task_drop(struct par_task *task)
{
	if (atomic_fetch_sub(&task->users, 1) == 1)
		free(task);
}

static void par_task_main(void *arg)
{
	struct par_task *task = arg;

	task->fn(task->ctx);
	task_drop(task);
}

struct par_task *par_start(void (*fn)(void *ctx), void *ctx)
{
	struct par_task *task = mem_alloc(1, sizeof(*task));

	task->fn = fn;
	task->ctx = ctx;
	atomic_init(&task->users, 2);
	task->thread = thread_start(par_task_main, task);
	if (!task->thread)
		par_task_main(task);
	return task;
}

void par_wait(struct par_task *task)
{
	if (!task)
		return;
	if (task->thread)
		thread_wait(task->thread);
	task_drop(task);
}

void par_leave(struct par_task *task)
{
	if (!task)
		return;
	if (task->thread)
		thread_leave(task->thread);
	task_drop(task);
}
