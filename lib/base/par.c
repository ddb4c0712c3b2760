#include "base/par.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/vec.h"

enum { WIDTH_MAX = 16, STACK_SIZE = 1 << 20, TAKE_MAX = 16, CHUNK_MAX = 64 };

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

/* Signals belong to the loop of the main thread, so a new thread has to be born with all of them
 * blocked. A system that has no more threads makes the work slower, not wrong: false. */
static bool thread_start(pthread_t *thread, void *(*fn)(void *), void *ctx)
{
	sigset_t all, before;
	pthread_attr_t attr;

	if (pthread_attr_init(&attr) != 0)
		return false;
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int r = pthread_create(thread, &attr, fn, ctx);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return r == 0;
}

struct for_work {
	par_fn *fn;
	void *ctx;
	size_t n, chunk;
	atomic_size_t next;
	atomic_uint workers;
};

static void *for_run(void *arg)
{
	struct for_work *work = arg;
	unsigned worker = atomic_fetch_add(&work->workers, 1);

	for (;;) {
		size_t i = atomic_fetch_add(&work->next, work->chunk);

		if (i >= work->n)
			return NULL;
		size_t end = work->n - i < work->chunk ? work->n : i + work->chunk;
		for (; i < end; i++)
			work->fn(work->ctx, i, worker);
	}
}

void par_for(size_t n, par_fn *fn, void *ctx)
{
	struct for_work work = {.fn = fn, .ctx = ctx, .n = n};
	pthread_t threads[WIDTH_MAX];
	unsigned started = 0;
	size_t want = par_width() < n ? par_width() : n;

	/* Small pieces, so that one slow item keeps nobody else waiting, but not one by one, which
	 * would make cheap items wait for the counter. */
	work.chunk = n / (par_width() * 32U);
	if (work.chunk > CHUNK_MAX)
		work.chunk = CHUNK_MAX;
	if (work.chunk == 0)
		work.chunk = 1;
	while (started + 1 < want && thread_start(&threads[started], for_run, &work))
		started++;
	for_run(&work);
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
}

struct par_queue {
	pthread_mutex_t lock;
	pthread_cond_t change; /* items came, or all is done */
	par_queue_fn *fn;
	void *ctx;
	struct VEC_OF(void *) items;
	unsigned busy; /* workers inside fn, which may add items */
	unsigned idle;
	unsigned n_threads;
	pthread_t threads[WIDTH_MAX];
};

static void *queue_thread(void *arg);

void par_queue_add(struct par_queue *queue, void *item)
{
	pthread_mutex_lock(&queue->lock);
	*vec_push(&queue->items) = item;
	if (queue->idle > 0)
		pthread_cond_signal(&queue->change);
	/* Threads are started as work piles up: a small tree needs none. */
	else if (queue->items.n > 1 && queue->n_threads + 1 < par_width() &&
		 thread_start(&queue->threads[queue->n_threads], queue_thread, queue))
		queue->n_threads++;
	pthread_mutex_unlock(&queue->lock);
}

/* The newest items, some at once when there are many; 0 when all is done. Called and returns with
 * the lock held. */
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

static void *queue_thread(void *arg)
{
	struct par_queue *queue = arg;
	unsigned worker = 1;

	/* The lock is held while a thread is started, so the array is complete once we have it. */
	pthread_mutex_lock(&queue->lock);
	while (!pthread_equal(queue->threads[worker - 1], pthread_self()))
		worker++;
	pthread_mutex_unlock(&queue->lock);
	queue_work(queue, worker);
	return NULL;
}

void par_queue_run(par_queue_fn *fn, void *ctx, void *first)
{
	struct par_queue queue = {.fn = fn, .ctx = ctx};

	pthread_mutex_init(&queue.lock, NULL);
	pthread_cond_init(&queue.change, NULL);
	*vec_push(&queue.items) = first;
	queue_work(&queue, 0);
	/* Nobody adds any more, so no further thread can appear. */
	for (unsigned i = 0; i < queue.n_threads; i++)
		pthread_join(queue.threads[i], NULL);
	vec_done(&queue.items);
	pthread_cond_destroy(&queue.change);
	pthread_mutex_destroy(&queue.lock);
}

struct par_task {
	void (*fn)(void *ctx);
	void *ctx;
	pthread_t thread;
	bool started;
};

static void *task_run(void *arg)
{
	struct par_task *task = arg;

	task->fn(task->ctx);
	return NULL;
}

struct par_task *par_start(void (*fn)(void *ctx), void *ctx)
{
	struct par_task *task = mem_alloc(1, sizeof(*task));

	task->fn = fn;
	task->ctx = ctx;
	task->started = thread_start(&task->thread, task_run, task);
	if (!task->started)
		fn(ctx);
	return task;
}

void par_wait(struct par_task *task)
{
	if (!task)
		return;
	if (task->started)
		pthread_join(task->thread, NULL);
	free(task);
}
