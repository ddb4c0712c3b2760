#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "kube/runlog.h"
#include "run/attempt.h"
#include "run/marks.h"
#include "run/target_kube.h"

/*
 * The log of an attempt in a cluster, copied into its directory here, because the cluster removes
 * it with the pods. It appears as a whole, a directory for each rank.
 */

enum {
	MARK_MS = 1000,
	OPEN_MAX = 128, /* ranks whose files are open at a time */
};
#define BYTES_MAX  (UINT64_C(1) << 30)
#define UNFINISHED ATTEMPT_RANKS ".tmp"
#define LOCK       ATTEMPT_RANKS ".lock"

struct rank_file {
	int log_fd, marks_fd; /* 0: not open */
	struct mark last;
};

struct keeping {
	struct target_work work;
	struct target_call *call;
	struct kube_runlog *runlog;
	const struct target_kube *kube;
	struct kube_handle handle;
	char *dir; /* of the attempt */
	int lock_fd;
	struct VEC_OF(struct rank_file) ranks; /* by rank */
	size_t n_open;
	uint64_t bytes;
	bool follows, is_kept, is_full;
};

static void close_rank(struct rank_file *file)
{
	if (file->log_fd > 0)
		close(file->log_fd);
	if (file->marks_fd > 0)
		close(file->marks_fd);
	file->log_fd = file->marks_fd = 0;
}

static void close_ranks(struct keeping *keeping)
{
	vec_foreach (struct rank_file, file, &keeping->ranks)
		close_rank(file);
	keeping->n_open = 0;
}

static int open_rank(struct keeping *keeping, int rank, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };
	AUTO_FREE char *dir = mem_printf("%s/" UNFINISHED "/%d", keeping->dir, rank);
	AUTO_FREE char *log = fs_join(dir, ATTEMPT_LOG), *marks = fs_join(dir, ATTEMPT_MARKS);
	struct rank_file *file = &keeping->ranks.v[rank];

	/* Thousands of ranks have more files than a process may have open. */
	if (keeping->n_open == OPEN_MAX)
		close_ranks(keeping);
	int r = fs_mkdirs(dir, 0700, err);
	if (r < 0)
		return r;
	keeping->n_open++;
	file->log_fd = open(log, FLAGS, 0600);
	if (file->log_fd < 0)
		return fs_error(err, errno, "%s", log);
	file->marks_fd = open(marks, FLAGS, 0600);
	return file->marks_fd < 0 ? fs_error(err, errno, "%s", marks) : 0;
}

static struct rank_file *find_rank(struct keeping *keeping, int rank)
{
	while (keeping->ranks.n <= (size_t)rank)
		(void)vec_push(&keeping->ranks);
	return &keeping->ranks.v[rank];
}

static int add_mark(struct rank_file *file, int64_t time_ms, struct err *err)
{
	char line[MARK_SIZE];

	if (time_ms < file->last.time_ms + MARK_MS)
		return 0;
	file->last.time_ms = time_ms;
	return fs_write_fd(
		file->marks_fd, ATTEMPT_MARKS, line, mark_format(&file->last, line), err);
}

/* Behind the ceiling the rest is left out: there is what the beginning says. */
static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct keeping *keeping = ctx;
	struct rank_file *file;
	int r = 0;

	keeping->is_full = keeping->is_full || keeping->bytes + len > BYTES_MAX;
	if (rank < 0 || rank >= KUBE_KEEP_RANKS_MAX || keeping->is_full)
		return 0;
	file = find_rank(keeping, rank);
	if (file->marks_fd <= 0)
		r = open_rank(keeping, rank, err);
	if (r == 0)
		r = fs_write_fd(file->log_fd, ATTEMPT_LOG, data, len, err);
	if (r < 0)
		return r;
	keeping->bytes += len;
	file->last.offset += (int64_t)len;
	return add_mark(file, time_ms, err);
}

/* What a JobSet has removed before anybody could read it. */
static int note_missing(const struct keeping *keeping, const char *dir, struct err *err)
{
	int64_t restarts = keeping->runlog ? kube_runlog_restarts(keeping->runlog) : 0;
	AUTO_FREE char *path = fs_join(dir, KUBE_KEPT_RESTARTS);
	AUTO_FREE char *text = mem_printf("%lld", (long long)restarts);

	return restarts > 0 ? fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, err) : 0;
}

static int finish(struct keeping *keeping, struct err *err)
{
	AUTO_FREE char *from = fs_join(keeping->dir, UNFINISHED);
	AUTO_FREE char *to = fs_join(keeping->dir, ATTEMPT_RANKS);

	/* A program that said nothing has an empty log. */
	int r = fs_mkdirs(from, 0700, err);
	if (r == 0)
		r = note_missing(keeping, from, err);
	if (r == 0 && rename(from, to) < 0 && errno != ENOTEMPTY && errno != EEXIST)
		r = fs_error(err, errno, "%s", to);
	keeping->is_kept = true;
	return r;
}

/* What has come is all that there will be only of a run whose end was asked for. */
static bool are_last_words(const struct keeping *keeping)
{
	return keeping->follows && !keeping->is_kept && keeping->bytes > 0 &&
	       kube_is_cancelled(keeping->kube, &keeping->handle);
}

static void drop(struct target_work *work)
{
	struct keeping *keeping = (struct keeping *)work;

	if (are_last_words(keeping))
		finish(keeping, NULL);
	kube_runlog_free(keeping->runlog);
	close_ranks(keeping);
	vec_done(&keeping->ranks);
	auto_fd(&keeping->lock_fd);
	free(keeping->dir);
	free(keeping);
}

static int on_end(void *ctx, struct err *fault, struct err *err)
{
	struct keeping *keeping = ctx;
	AUTO_ERR struct err failure = {0};
	int r = err_is_set(fault) ? err_move(&failure, fault) : finish(keeping, &failure);

	(void)err;
	target_call_end(keeping->call, r, &failure);
	return 0;
}

/* 1: done is to be called at once: it is here, or somebody else is at it, whose files are not to be
 * taken away. */
static int lock_dir(const char *dir, int *ret_fd, struct err *err)
{
	AUTO_FREE char *kept = fs_join(dir, ATTEMPT_RANKS), *lock = fs_join(dir, LOCK);
	AUTO_ERR struct err fault = {0};

	if (access(kept, F_OK) == 0)
		return 1;
	int r = fs_mkdirs(dir, 0700, err);
	if (r < 0)
		return r;
	if (fs_lock(lock, true, 0, ret_fd, &fault) < 0)
		return fault.id == E_IO_LOCK ? 1 : err_move(err, &fault);
	return access(kept, F_OK) == 0;
}

int kube_keep(struct target *target, const char *handle, bool follow, struct target_call *call,
	struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle place;
	struct keeping *keeping;

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r < 0)
		return r;
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, place.run_id, place.attempt);
	AUTO_FREE char *unfinished = fs_join(dir, UNFINISHED);
	AUTO_FD int lock_fd = -1;
	r = lock_dir(dir, &lock_fd, err);
	if (r > 0)
		target_call_end_soon(call, target->loop);
	if (r != 0)
		return r < 0 ? r : 0;
	fs_remove_tree(AT_FDCWD, unfinished, NULL);
	keeping = mem_alloc(1, sizeof(*keeping));
	*keeping = (struct keeping){
		.work = {drop},
		.call = call,
		.kube = kube,
		.handle = place,
		.dir = TAKE(dir),
		.lock_fd = TAKE_FD(lock_fd),
		.follows = follow,
	};
	const struct kube_runlog_request wanted = {
		.kube_namespace = place.kube_namespace,
		.kind = place.kind,
		.name = place.name,
		.rank = -1,
		.tail_lines = -1,
		.follow = follow,
		.events = {.data = on_data, .end = on_end, .ctx = keeping},
	};
	target_call_begin(call, &keeping->work);
	keeping->runlog = kube_runlog_start(kube->cluster->client, target->loop, &wanted);
	return 0;
}
