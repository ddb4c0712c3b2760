/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/unpack_batch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/mem.h"

/*
 * Single files.
 */

/* Nothing is written through an existing name: it could be a link, or one of several names of a
 * file. */
int unpack_create(int dir_fd, const char *path, bool exec, int *ret_fd, struct err *err)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	const char *name = fs_basename(path);
	mode_t mode = exec ? 0777 : 0666;
	int fd = openat(dir_fd, name, flags, mode);

	if (fd < 0 && errno == EEXIST) {
		int r = fs_remove_tree(dir_fd, name, err);
		if (r)
			return r;
		fd = openat(dir_fd, name, flags, mode);
	}
	if (fd < 0)
		return fs_error(err, errno, "making %s", path);
	*ret_fd = fd;
	return 0;
}

int unpack_close(int fd, const char *path, const struct timespec *mtime, struct err *err)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, *mtime};

	futimens(fd, times);
	if (close(fd) && errno != EINTR)
		return fs_error(err, errno, "writing %s", path);
	return 0;
}

static int make_file(const struct unpack_job *job, struct err *err)
{
	int fd;
	int r = unpack_create(job->dir_fd, job->path, job->exec, &fd, err);

	if (r)
		return r;
	r = job->len ? fs_write_fd(fd, job->path, job->data, job->len, err) : 0;
	if (r) {
		close(fd);
		return r;
	}
	return unpack_close(fd, job->path, &job->mtime, err);
}

static int make_link(const struct unpack_job *job, struct err *err)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, job->mtime};
	const char *name = fs_basename(job->path);
	int r = symlinkat(job->target, job->dir_fd, name);

	if (r && errno == EEXIST) {
		int rc = fs_remove_tree(job->dir_fd, name, err);
		if (rc)
			return rc;
		r = symlinkat(job->target, job->dir_fd, name);
	}
	if (r)
		return fs_error(err, errno, "making %s", job->path);
	utimensat(job->dir_fd, name, times, AT_SYMLINK_NOFOLLOW);
	return 0;
}

/*
 * Many.
 */

enum {
	JOBS_MAX = 256,
	FDS_MAX = 64,
	DATA_MAX = 1 << 20,
	ALONE_MAX = 8, /* jobs that are not worth a thread */
};

struct batch {
	struct unpack_job *jobs;
	size_t n_jobs;
	int fds[FDS_MAX];
	size_t n_fds;
	uint8_t *data; /* contents, paths, targets */
	size_t used;
};

struct unpack_pool {
	struct batch batches[2];
	unsigned turn;         /* the one that is being filled */
	struct par_task *task; /* makes the other one */
};

struct unpack_pool *unpack_pool_new(void)
{
	return mem_alloc(1, sizeof(struct unpack_pool));
}

static void run_job(void *ctx, size_t i, unsigned worker)
{
	struct unpack_job *job = &((struct batch *)ctx)->jobs[i];

	(void)worker;
	if (job->target)
		make_link(job, &job->err);
	else
		make_file(job, &job->err);
}

static void run_batch(void *ctx)
{
	struct batch *batch = ctx;

	par_for(batch->n_jobs, run_job, batch);
}

/* A batch was made: its first failure; it is empty then. */
static int batch_end(struct batch *batch, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < batch->n_fds; i++)
		close(batch->fds[i]);
	for (size_t i = 0; i < batch->n_jobs; i++) {
		struct err *failure = &batch->jobs[i].err;
		if (r == 0 && err_is_set(failure))
			r = err_move(err, failure);
		err_done(failure);
	}
	batch->n_fds = batch->n_jobs = batch->used = 0;
	return r;
}

/* Wait for the batch in work. */
static int finish(struct unpack_pool *pool, struct err *err)
{
	if (!pool->task)
		return 0;
	par_wait(pool->task);
	pool->task = NULL;
	return batch_end(&pool->batches[pool->turn ^ 1], err);
}

/* The batch that was filled goes into work. */
static int flush(struct unpack_pool *pool, struct err *err)
{
	struct batch *batch = &pool->batches[pool->turn];
	int r = finish(pool, err);

	if (r || batch->n_jobs == 0)
		return r ? r : batch_end(batch, err);
	pool->task = par_start(run_batch, batch);
	pool->turn ^= 1;
	return 0;
}

static char *keep(struct batch *batch, const char *s)
{
	size_t size = strlen(s) + 1;
	char *copy = memcpy(batch->data + batch->used, s, size);

	batch->used += size;
	return copy;
}

int unpack_pool_add(struct unpack_pool *pool, const char *path, const char *target, size_t len,
	struct unpack_job **ret, struct err *err)
{
	struct batch *batch = &pool->batches[pool->turn];
	size_t want = strlen(path) + 1 + (target ? strlen(target) + 1 : 0) + len;

	BUG_ON(want > DATA_MAX);
	if (batch->n_jobs == JOBS_MAX || want > DATA_MAX - batch->used) {
		int r = flush(pool, err);
		if (r)
			return r;
		batch = &pool->batches[pool->turn];
	}
	if (!batch->jobs) {
		batch->jobs = mem_alloc(JOBS_MAX, sizeof(*batch->jobs));
		batch->data = mem_grow(NULL, DATA_MAX, 1);
	}
	struct unpack_job *job = &batch->jobs[batch->n_jobs++];
	*job = (struct unpack_job){.path = keep(batch, path), .len = len};
	job->target = target ? keep(batch, target) : NULL;
	job->data = batch->data + batch->used;
	batch->used += len;
	*ret = job;
	return 0;
}

int unpack_pool_retire(struct unpack_pool *pool, int fd, struct err *err)
{
	struct batch *batch = &pool->batches[pool->turn];

	batch->fds[batch->n_fds++] = fd;
	return batch->n_fds == FDS_MAX ? flush(pool, err) : 0;
}

int unpack_pool_wait(struct unpack_pool *pool, struct err *err)
{
	struct batch *batch = &pool->batches[pool->turn];
	int r = finish(pool, err);

	if (r)
		return r;
	if (batch->n_jobs > ALONE_MAX)
		run_batch(batch);
	for (size_t i = 0; i < batch->n_jobs && batch->n_jobs <= ALONE_MAX; i++)
		run_job(batch, i, 0);
	return batch_end(batch, err);
}

void unpack_pool_free(struct unpack_pool *pool)
{
	if (!pool)
		return;
	par_wait(pool->task);
	for (int i = 0; i < 2; i++) {
		batch_end(&pool->batches[i], NULL);
		free(pool->batches[i].jobs);
		free(pool->batches[i].data);
	}
	free(pool);
}
