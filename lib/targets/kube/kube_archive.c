/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/attempt/marks.h"
#include "kube/logs/podlog_lines.h"

enum {
	MARK_MS = 1000,
	SETTLE_MS = 1000,
	OPEN_MAX = 128, /* ranks whose files are open at a time */
};
#define UNFINISHED ATTEMPT_RANKS ".tmp"
#define LOCK       ATTEMPT_RANKS ".lock"
#define PLACES     "places"

struct rank_file {
	int log_fd, marks_fd; /* 0: not open */
	struct mark last;     /* its offset: where the next bytes go */
};

struct kube_archive {
	char *dir; /* of the attempt */
	int lock_fd;
	uint64_t bytes, max_bytes;
	bool is_full, is_whole, is_new; /* new: something was added since the places were written */
	struct VEC_OF(struct rank_file) ranks; /* by rank */
	size_t n_open;
	struct kept_places places;
	struct loop *loop;
	struct loop_timer *timer;
	const struct kube_runlog *runlog;
};

/*
 * Places
 */

void kept_places_done(struct kept_places *places)
{
	vec_foreach (struct kept_place, place, places)
		free(place->token);
	vec_done(places);
}

static struct kept_place *find_place(struct kept_places *places, int rank)
{
	vec_foreach (struct kept_place, place, places)
		if (place->rank == rank)
			return place;
	struct kept_place *place = vec_push(places);
	*place = (struct kept_place){.rank = rank};
	return place;
}

static void parse_place(char *line, struct kept_places *ret)
{
	long long rank, offset;
	unsigned long long left_out;
	int n = 0;

	if (sscanf(line, "%lld %lld %llu %n", &rank, &offset, &left_out, &n) != 3 || rank < 0 ||
		rank >= KUBE_ARCHIVE_RANKS_MAX || offset < 0)
		return;
	struct kept_place *place = find_place(ret, (int)rank);
	place->offset = offset;
	place->left_out = left_out;
	free(place->token);
	place->token = line[n] ? mem_strdup(line + n) : NULL;
}

void kept_places_read(const char *dir, struct kept_places *ret)
{
	AUTO_FREE char *whole = fs_join(dir, ATTEMPT_RANKS "/" PLACES);
	AUTO_FREE char *unfinished = fs_join(dir, UNFINISHED "/" PLACES);
	AUTO_BUF struct buf text = {0};
	char *at, *line;

	*ret = (struct kept_places){0};
	if (fs_read(whole, KUBE_ARCHIVE_TOKENS_MAX, &text, NULL, NULL) < 0 &&
		fs_read(unfinished, KUBE_ARCHIVE_TOKENS_MAX, &text, NULL, NULL) < 0)
		return;
	for (at = text.data; at && (line = strsep(&at, "\n"));)
		parse_place(line, ret);
}

void kept_places_token(const struct kept_places *places, struct buf *out)
{
	vec_foreach (struct kept_place, place, places)
		if (place->token)
			buf_addf(out, "%s%d=%s", out->len ? "," : "", place->rank, place->token);
}

/* "3=POINT,…" as the runlog has it. */
static void take_token(struct kube_archive *archive, const char *token)
{
	while (token && *token) {
		size_t len = strcspn(token, ",");
		char *end;
		long rank = strtol(token, &end, 10);
		if (*end == '=' && rank >= 0 && rank < KUBE_ARCHIVE_RANKS_MAX) {
			struct kept_place *place = find_place(&archive->places, (int)rank);
			free(place->token);
			place->token = mem_strndup(end + 1, len - (size_t)(end + 1 - token));
		}
		token += len + (token[len] == ',');
	}
}

static int write_places(struct kube_archive *archive, struct err *err)
{
	AUTO_FREE char *path = fs_join(archive->dir, UNFINISHED "/" PLACES);
	AUTO_BUF struct buf text;

	buf_init(&text, KUBE_ARCHIVE_TOKENS_MAX);
	vec_foreach (struct kept_place, place, &archive->places) {
		if ((size_t)place->rank < archive->ranks.n)
			place->offset = archive->ranks.v[place->rank].last.offset;
		buf_addf(&text, "%d %lld %llu %s\n", place->rank, (long long)place->offset,
			(unsigned long long)place->left_out, place->token ? place->token : "");
	}
	archive->is_new = false;
	return fs_replace(path, text.data ? text.data : "", text.len, 0600, FS_SYNC_NONE, err);
}

/* Between two bytes only: then all that was added is what the runlog has delivered. */
static int settle(struct kube_archive *archive, struct err *err)
{
	AUTO_BUF struct buf token = {0};

	if (archive->is_whole)
		return 0;
	buf_init(&token, KUBE_ARCHIVE_TOKENS_MAX);
	if (archive->runlog)
		kube_runlog_token(archive->runlog, &token);
	take_token(archive, token.data);
	return write_places(archive, err);
}

static int on_settle(void *ctx, struct err *err)
{
	struct kube_archive *archive = ctx;

	(void)err;
	archive->timer = loop_add_timer(archive->loop, clock_ms() + SETTLE_MS, on_settle, archive);
	if (archive->is_new)
		settle(archive, NULL);
	return 0;
}

void kube_archive_watch(
	struct kube_archive *archive, struct loop *loop, const struct kube_runlog *runlog)
{
	archive->loop = loop;
	archive->runlog = runlog;
	archive->timer = loop_add_timer(loop, clock_ms() + SETTLE_MS, on_settle, archive);
}

/*
 * Files
 */

static void close_rank(struct rank_file *file)
{
	if (file->log_fd > 0)
		close(file->log_fd);
	if (file->marks_fd > 0)
		close(file->marks_fd);
	file->log_fd = file->marks_fd = 0;
}

static void close_ranks(struct kube_archive *archive)
{
	vec_foreach (struct rank_file, file, &archive->ranks)
		close_rank(file);
	archive->n_open = 0;
}

static struct rank_file *find_rank(struct kube_archive *archive, int rank)
{
	while (archive->ranks.n <= (size_t)rank)
		(void)vec_push(&archive->ranks);
	return &archive->ranks.v[rank];
}

static int open_rank(struct kube_archive *archive, int rank, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW };
	AUTO_FREE char *dir = mem_printf("%s/" UNFINISHED "/%d", archive->dir, rank);
	AUTO_FREE char *log = fs_join(dir, ATTEMPT_LOG), *marks = fs_join(dir, ATTEMPT_MARKS);
	struct rank_file *file = find_rank(archive, rank);

	/* Thousands of ranks have more files than a process may have open. */
	if (archive->n_open == OPEN_MAX)
		close_ranks(archive);
	int r = fs_mkdirs(dir, 0700, err);
	if (r < 0)
		return r;
	archive->n_open++;
	file->log_fd = open(log, FLAGS, 0600);
	if (file->log_fd < 0)
		return fs_error(err, errno, "%s", log);
	if (lseek(file->log_fd, file->last.offset, SEEK_SET) < 0)
		return fs_error(err, errno, "%s", log);
	file->marks_fd = open(marks, FLAGS | O_APPEND, 0600);
	return file->marks_fd < 0 ? fs_error(err, errno, "%s", marks) : 0;
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

int kube_archive_add(struct kube_archive *archive, int rank, const char *data, size_t len,
	int64_t time_ms, struct err *err)
{
	bool was_full = archive->is_full;
	struct rank_file *file;
	int r = 0;

	if (rank < 0 || rank >= KUBE_ARCHIVE_RANKS_MAX)
		return 0;
	archive->is_new = true;
	archive->is_full = was_full || archive->bytes + len > archive->max_bytes;
	if (archive->is_full) {
		find_place(&archive->places, rank)->left_out += len;
		return !was_full;
	}
	file = find_rank(archive, rank);
	if (file->marks_fd <= 0)
		r = open_rank(archive, rank, err);
	if (r == 0)
		r = fs_write_fd(file->log_fd, ATTEMPT_LOG, data, len, err);
	if (r < 0)
		return r;
	(void)find_place(&archive->places, rank);
	archive->bytes += len;
	file->last.offset += (int64_t)len;
	return add_mark(file, time_ms, err);
}

/* Bytes that a killed writer left behind the place do not come again: continue after them. */
static int64_t skip_to_end(struct kube_archive *archive, int rank)
{
	struct rank_file *file = find_rank(archive, rank);
	struct stat st;

	if ((file->marks_fd > 0 || open_rank(archive, rank, NULL) == 0) &&
		fstat(file->log_fd, &st) == 0 && st.st_size > file->last.offset)
		file->last.offset = lseek(file->log_fd, 0, SEEK_END);
	return file->last.offset;
}

int kube_archive_gap(struct kube_archive *archive, int rank, const char *text, struct err *err)
{
	AUTO_FREE char *path = NULL;
	AUTO_FREE char *line = NULL;
	AUTO_FD int fd = -1;

	if (rank >= KUBE_ARCHIVE_RANKS_MAX)
		return 0;
	if (rank >= 0)
		(void)find_place(&archive->places, rank);
	line = mem_printf(
		"%lld %s\n", rank < 0 ? 0LL : (long long)skip_to_end(archive, rank), text);
	path = rank < 0 ? mem_printf("%s/" UNFINISHED "/" KUBE_ARCHIVE_GAPS, archive->dir)
			: mem_printf("%s/" UNFINISHED "/%d/" KUBE_ARCHIVE_GAPS, archive->dir, rank);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return fs_error(err, errno, "%s", path);
	if (lseek(fd, 0, SEEK_END) > KUBE_ARCHIVE_GAPS_MAX / 2)
		return 0;
	archive->is_new = true;
	return fs_write_fd(fd, path, line, strlen(line), err);
}

/*
 * Beginning and end
 */

char *kube_archive_path(const char *dir, bool is_whole)
{
	return fs_join(dir, is_whole ? ATTEMPT_RANKS : UNFINISHED);
}

/* 1: it is whole, or somebody else is at it. */
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

int kube_archive_open(
	const char *dir, uint64_t max_bytes, struct kube_archive **ret, struct err *err)
{
	AUTO_FREE char *unfinished = fs_join(dir, UNFINISHED);
	AUTO_FD int lock_fd = -1;
	struct kube_archive *archive;

	int r = lock_dir(dir, &lock_fd, err);
	if (r != 0)
		return r;
	r = fs_mkdirs(unfinished, 0700, err);
	if (r < 0)
		return r;
	archive = mem_alloc(1, sizeof(*archive));
	*archive = (struct kube_archive){
		.dir = mem_strdup(dir), .lock_fd = TAKE_FD(lock_fd), .max_bytes = max_bytes};
	kept_places_read(dir, &archive->places);
	vec_foreach (struct kept_place, place, &archive->places) {
		find_rank(archive, place->rank)->last.offset = place->offset;
		archive->bytes += (uint64_t)place->offset;
		archive->is_full = archive->is_full || place->left_out > 0;
	}
	*ret = archive;
	return 0;
}

const struct kept_places *kube_archive_places(const struct kube_archive *archive)
{
	return &archive->places;
}

void kube_archive_free(struct kube_archive *archive)
{
	if (!archive)
		return;
	settle(archive, NULL);
	loop_remove_timer(archive->loop, archive->timer);
	close_ranks(archive);
	vec_done(&archive->ranks);
	kept_places_done(&archive->places);
	auto_fd(&archive->lock_fd);
	free(archive->dir);
	free(archive);
}

bool kube_archive_is_empty(const struct kube_archive *archive)
{
	return archive->bytes == 0;
}

/* The end of its log was not reached, and nobody can say what it was. */
static int note_unended(
	struct kube_archive *archive, const struct kept_place *place, struct err *err)
{
	struct podlog_point point;
	char time[CLOCK_TEXT_SIZE];
	AUTO_FREE char *text = NULL;

	if (!place->token || str_ends(place->token, KUBE_RUNLOG_DRAINED) ||
		!podlog_point_parse(place->token, &point))
		return 0;
	clock_format(point.time_ns / 1000000, time);
	text = mem_printf(
		"rank %d: lines after %s may be missing: its pod is gone", place->rank, time);
	return kube_archive_gap(archive, place->rank, text, err);
}

int kube_archive_finish(struct kube_archive *archive, struct err *err)
{
	AUTO_FREE char *from = fs_join(archive->dir, UNFINISHED);
	AUTO_FREE char *to = fs_join(archive->dir, ATTEMPT_RANKS);
	int r = settle(archive, err);

	if (r == 0 && archive->places.n == 0)
		r = kube_archive_gap(archive, -1,
			"nothing of its output was seen here, and the cluster has no pod of it",
			err);
	for (size_t i = 0; r == 0 && i < archive->places.n; i++)
		r = note_unended(archive, &archive->places.v[i], err);
	if (r == 0)
		r = write_places(archive, err);
	if (r == 0 && rename(from, to) < 0 && errno != ENOTEMPTY && errno != EEXIST)
		r = fs_error(err, errno, "%s", to);
	archive->is_whole = true;
	return r;
}
