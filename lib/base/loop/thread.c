/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/util/mem.h"

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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct thread *idle;
static unsigned n_idle;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local struct thread *current;

/* A forked child has only the thread that forked. */
static void forget_all(void)
{
	pthread_mutex_init(&lock, NULL);
	idle = NULL;
	n_idle = 0;
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forget_all);
}

/* With the lock held. */
static void keep(struct thread *thread)
{
	thread->fn = NULL;
	thread->is_done = false;
	thread->next = idle;
	idle = thread;
	n_idle++;
}

static void thread_free(struct thread *thread)
{
	pthread_cond_destroy(&thread->change);
	free(thread);
}

/* Called and returns with the lock held. */
static void work(struct thread *thread)
{
	pthread_mutex_unlock(&lock);
	thread->fn(thread->ctx);
	pthread_mutex_lock(&lock);
	thread->is_done = true;
	thread->is_ended = thread->is_left;
	pthread_cond_broadcast(&thread->change);
}

static void *run(void *arg)
{
	struct thread *thread = arg;
	bool is_left;

	current = thread;
	pthread_mutex_lock(&lock);
	while (!thread->is_ended) {
		if (thread->fn && !thread->is_done)
			work(thread);
		else
			pthread_cond_wait(&thread->change, &lock);
	}
	is_left = thread->is_left;
	pthread_mutex_unlock(&lock);
	if (is_left)
		thread_free(thread);
	return NULL;
}

/* Signals belong to the loop of the main thread, so a new thread has to be born with all of them
 * blocked. */
static bool begin(struct thread *thread)
{
	sigset_t all, before;
	pthread_attr_t attr;

	if (pthread_attr_init(&attr) != 0)
		return false;
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int r = pthread_create(&thread->id, &attr, run, thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return r == 0;
}

/* fn NULL: the thread waits for work. Returns NULL when there are no more threads. */
static struct thread *new_thread(void (*fn)(void *ctx), void *ctx)
{
	struct thread *thread = mem_alloc(1, sizeof(*thread));

	*thread = (struct thread){.fn = fn, .ctx = ctx};
	pthread_cond_init(&thread->change, NULL);
	if (begin(thread))
		return thread;
	thread_free(thread);
	return NULL;
}

/* Lock for one thread at a time: a thread_start meanwhile must not wait for all of them. */
void thread_prepare(unsigned n)
{
	pthread_once(&once, watch_forks);
	for (unsigned i = 0; i < n && i < THREADS_KEPT; i++) {
		struct thread *thread = new_thread(NULL, NULL);

		if (!thread)
			return;
		pthread_mutex_lock(&lock);
		keep(thread);
		pthread_mutex_unlock(&lock);
	}
}

struct thread *thread_start(void (*fn)(void *ctx), void *ctx)
{
	struct thread *thread;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	thread = idle;
	if (thread) {
		idle = thread->next;
		n_idle--;
		thread->fn = fn;
		thread->ctx = ctx;
		pthread_cond_signal(&thread->change);
	}
	pthread_mutex_unlock(&lock);
	return thread ? thread : new_thread(fn, ctx);
}

/* After the join, what the thread had of its own in the system, such as descriptors, is gone. */
static void end(struct thread *thread)
{
	pthread_join(thread->id, NULL);
	thread_free(thread);
}

void thread_wait(struct thread *thread)
{
	pthread_mutex_lock(&lock);
	while (!thread->is_done)
		pthread_cond_wait(&thread->change, &lock);
	bool is_kept = !thread->is_spoilt && n_idle < THREADS_KEPT;
	if (is_kept)
		keep(thread);
	thread->is_ended = !is_kept;
	pthread_cond_broadcast(&thread->change);
	pthread_mutex_unlock(&lock);
	if (!is_kept)
		end(thread);
}

void thread_leave(struct thread *thread)
{
	pthread_mutex_lock(&lock);
	pthread_detach(thread->id);
	thread->is_left = true;
	thread->is_ended = thread->is_done;
	pthread_cond_broadcast(&thread->change);
	pthread_mutex_unlock(&lock);
}

void thread_spoil(void)
{
	if (!current)
		return;
	pthread_mutex_lock(&lock);
	current->is_spoilt = true;
	pthread_mutex_unlock(&lock);
}
