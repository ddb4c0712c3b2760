/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/attempt/marks.h"
#include "kube/logs/podlog_lines.h"
#include "kube/logs/runlog.h"
#include "targets/kube/kube_archive.h"
#include "targets/kube/kube_reconcile.h"
#include "targets/kube/kube_study_logs.h"
#include "targets/kube/target_kube.h"

/*
 * The archive
 */

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

static void kept_places_done(struct kept_places *places)
{
	vec_foreach (struct kept_place, place, places)
		free(place->token);
	vec_done(places);
}

static struct kept_place *kube_logs_find_place(struct kept_places *places, int rank)
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
	unsigned long long excluded;
	int n = 0;

	if (sscanf(line, "%lld %lld %llu %n", &rank, &offset, &excluded, &n) != 3 || rank < 0 ||
		rank >= KUBE_ARCHIVE_RANKS_MAX || offset < 0)
		return;
	struct kept_place *place = kube_logs_find_place(ret, (int)rank);
	place->offset = offset;
	place->excluded = excluded;
	REPLACE(place->token, line[n] ? mem_strdup(line + n) : NULL);
}

/* Of the archive in dir (of the attempt), none if there is none. */
static void kept_places_read(const char *dir, struct kept_places *ret)
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

/* For kube_runlog_request.token. */
static void kept_places_token(const struct kept_places *places, struct buf *out)
{
	vec_foreach (struct kept_place, place, places)
		if (place->token)
			buf_addf(out, "%s%d=%s", out->len ? "," : "", place->rank, place->token);
}

/* "3=POINT,…" as the runlog has it. */
static void kube_logs_take_token(struct kube_archive *archive, const char *token)
{
	while (token && *token) {
		size_t len = strcspn(token, ",");
		char *end;
		long rank = strtol(token, &end, 10);
		if (*end == '=' && rank >= 0 && rank < KUBE_ARCHIVE_RANKS_MAX) {
			struct kept_place *place =
				kube_logs_find_place(&archive->places, (int)rank);
			REPLACE(place->token,
				mem_strndup(end + 1, len - (size_t)(end + 1 - token)));
		}
		token += len + (token[len] == ',');
	}
}

static int write_places(struct kube_archive *archive, struct err *err)
{
	AUTO_FREE char *path = fs_join(archive->dir, UNFINISHED "/" PLACES);
	AUTO_BUF struct buf text = buf_with(KUBE_ARCHIVE_TOKENS_MAX);

	vec_foreach (struct kept_place, place, &archive->places) {
		if ((size_t)place->rank < archive->ranks.n)
			place->offset = archive->ranks.v[place->rank].last.offset;
		buf_addf(&text, "%d %lld %llu %s\n", place->rank, (long long)place->offset,
			(unsigned long long)place->excluded, place->token ? place->token : "");
	}
	archive->is_new = false;
	return fs_replace(path, text.data ? text.data : "", text.len, 0600, FS_SYNC_NONE, err);
}

/* Between two bytes only: then all that was added is what the runlog has delivered. */
static int kube_logs_settle(struct kube_archive *archive, struct err *err)
{
	AUTO_BUF struct buf token = buf_with(KUBE_ARCHIVE_TOKENS_MAX);

	if (archive->is_whole)
		return 0;
	if (archive->runlog)
		kube_runlog_token(archive->runlog, &token);
	kube_logs_take_token(archive, token.data);
	return write_places(archive, err);
}

static int kube_logs_on_settle(void *ctx, struct err *err UNUSED)
{
	struct kube_archive *archive = ctx;

	archive->timer =
		loop_add_timer(archive->loop, clock_ms() + SETTLE_MS, kube_logs_on_settle, archive);
	if (archive->is_new)
		kube_logs_settle(archive, NULL);
	return 0;
}

/* The data added comes from runlog, which was started at the archive's places. */
static void kube_archive_watch(
	struct kube_archive *archive, struct loop *loop, const struct kube_runlog *runlog)
{
	archive->loop = loop;
	archive->runlog = runlog;
	archive->timer = loop_add_timer(loop, clock_ms() + SETTLE_MS, kube_logs_on_settle, archive);
}

/*
 * Files
 */

static void close_ranks(struct kube_archive *archive)
{
	vec_foreach (struct rank_file, file, &archive->ranks) {
		if (file->log_fd > 0)
			close(file->log_fd);
		if (file->marks_fd > 0)
			close(file->marks_fd);
		file->log_fd = file->marks_fd = 0;
	}
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
		kube_logs_find_place(&archive->places, rank)->excluded += len;
		return !was_full;
	}
	file = find_rank(archive, rank);
	if (file->marks_fd <= 0)
		r = open_rank(archive, rank, err);
	if (r == 0)
		r = fs_write_fd(file->log_fd, ATTEMPT_LOG, data, len, err);
	if (r < 0)
		return r;
	(void)kube_logs_find_place(&archive->places, rank);
	archive->bytes += len;
	file->last.offset += (int64_t)len;
	char line[MARK_SIZE];

	if (time_ms < file->last.time_ms + MARK_MS)
		return 0;
	file->last.time_ms = time_ms;
	return fs_write_fd(
		file->marks_fd, ATTEMPT_MARKS, line, mark_format(&file->last, line), err);
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
		(void)kube_logs_find_place(&archive->places, rank);
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

/* 1: it is whole, or somebody else is at it. */
static int lock_dir(const char *dir, int *ret_fd, struct err *err)
{
	AUTO_FREE char *kept = fs_join(dir, ATTEMPT_RANKS), *lock = fs_join(dir, LOCK);
	AUTO_ERR struct err error = {0};

	if (access(kept, F_OK) == 0)
		return 1;
	int r = fs_mkdirs(dir, 0700, err);
	if (r < 0)
		return r;
	if (fs_lock(lock, true, 0, ret_fd, &error) < 0)
		return error.id == E_IO_LOCK ? 1 : err_move(err, &error);
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
		archive->is_full = archive->is_full || place->excluded > 0;
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
	kube_logs_settle(archive, NULL);
	loop_remove_timer(archive->loop, archive->timer);
	close_ranks(archive);
	vec_done(&archive->ranks);
	kept_places_done(&archive->places);
	auto_fd(&archive->lock_fd);
	free(archive->dir);
	free(archive);
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
	int r = kube_logs_settle(archive, err);

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

/*
 * Reading the archive of an attempt: one rank after the other, each gap at its place.
 */

struct gap {
	int64_t offset;
	char *text;
};
struct gaps VEC_OF(struct gap);

struct kept {
	struct target_work work;
	struct target_call *call;
	struct target_call inner; /* of the rank */
	struct loop *loop;
	struct target_log_request request;
	char *dir; /* of the ranks */
	bool is_whole;
	struct kept_places places;
	char token[TARGET_TOKEN_SIZE]; /* "OFFSET:TIME" */
	int rank;
	struct gaps gaps; /* of the rank, in order */
	size_t gap;       /* the next one */
	bool has_begun;   /* the rank */
};

static void drop_gaps(struct kept *kept)
{
	vec_foreach (struct gap, gap, &kept->gaps)
		free(gap->text);
	vec_done(&kept->gaps);
	kept->gaps = (struct gaps){0};
	kept->gap = 0;
}

static void kube_logs_drop(struct target_work *work)
{
	struct kept *kept = (struct kept *)work;

	target_call_cancel(&kept->inner);
	drop_gaps(kept);
	kept_places_done(&kept->places);
	free(kept->dir);
	free(kept);
}

/*
 * Gaps
 */

static void read_gaps(struct kept *kept, const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, KUBE_ARCHIVE_GAPS);
	AUTO_BUF struct buf text = {0};
	char *at, *line;

	drop_gaps(kept);
	if (fs_read(path, KUBE_ARCHIVE_GAPS_MAX, &text, NULL, NULL) < 0)
		return;
	for (at = text.data; at && (line = strsep(&at, "\n"));) {
		char *end;
		long long offset = strtoll(line, &end, 10);
		if (end > line && *end == ' ')
			*vec_push(&kept->gaps) = (struct gap){offset, mem_strdup(end + 1)};
	}
}

static void print_gaps(struct kept *kept, int64_t until)
{
	for (; kept->gap < kept->gaps.n && kept->gaps.v[kept->gap].offset <= until; kept->gap++)
		target_log_gap(&kept->request.events, kept->gaps.v[kept->gap].text);
}

/*
 * Bytes
 */

static int kube_logs_on_data(
	void *ctx, int rank UNUSED, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct kept *kept = ctx;
	int64_t at = strtoll(kept->token, NULL, 10);

	while (!kept->has_begun && kept->gap < kept->gaps.n && kept->gaps.v[kept->gap].offset < at)
		kept->gap++;
	kept->has_begun = true;
	while (len > 0) {
		size_t n = len;
		print_gaps(kept, at);
		if (kept->gap < kept->gaps.n && kept->gaps.v[kept->gap].offset - at < (int64_t)n)
			n = (size_t)(kept->gaps.v[kept->gap].offset - at);
		int r = kept->request.events.data(
			kept->request.events.ctx, kept->rank, data, n, time_ms, err);
		if (r < 0)
			return r;
		data += n;
		len -= n;
		at += (int64_t)n;
	}
	return 0;
}

static const struct kept_place *kube_logs_place_of(const struct kept *kept)
{
	vec_foreach (const struct kept_place, place, &kept->places)
		if (place->rank == kept->rank)
			return place;
	return NULL;
}

static void kube_logs_print_excluded(const struct kept *kept)
{
	const struct kept_place *place = kube_logs_place_of(kept);
	char size[16], max[16];

	if (!place || place->excluded == 0)
		return;
	AUTO_FREE char *text = mem_printf("rank %d: %s that came here next is not kept: the log "
					  "of an attempt is kept up to %s",
		kept->rank, str_size(place->excluded, size), str_size(KUBE_ARCHIVE_MAX, max));
	target_log_gap(&kept->request.events, text);
}

static bool read_rank(struct kept *kept);

static void kube_logs_on_done(struct target_call *call, int status, struct err *err)
{
	struct kept *kept = CONTAINER_OF(call, struct kept, inner);

	if (status == 0) {
		print_gaps(kept, INT64_MAX);
		kube_logs_print_excluded(kept);
	}
	if (status == 0 && kept->request.rank < 0) {
		kept->rank++;
		if (read_rank(kept))
			return;
	}
	target_call_end(kept->call, status, err);
}

/* A log that goes on has bytes behind its place, which will come again. */
static bool kube_logs_has_rank(const struct kept *kept, const char *dir, int64_t *ret_limit)
{
	const struct kept_place *place = kube_logs_place_of(kept);

	*ret_limit = kept->is_whole || !place ? 0 : place->offset;
	return (kept->is_whole || *ret_limit > 0) && access(dir, F_OK) == 0;
}

/* The next one that has said something. */
static bool read_rank(struct kept *kept)
{
	struct target_log_request request = kept->request;

	request.follow = false;
	request.token = NULL;
	request.events.data = kube_logs_on_data;
	request.events.ctx = kept;
	request.events.notice = request.events.gap = NULL;
	for (; kept->rank < KUBE_ARCHIVE_RANKS_MAX; kept->rank++) {
		struct attempt_place place = {.dir = mem_printf("%s/%d", kept->dir, kept->rank)};
		if (kube_logs_has_rank(kept, place.dir, &place.limit)) {
			read_gaps(kept, place.dir);
			kept->has_begun = false;
			kept->inner = (struct target_call){.done = kube_logs_on_done};
			attempt_log_read(kept->loop, &place, &request, kept->token, &kept->inner);
			return true;
		}
		attempt_place_done(&place);
		if (kept->request.rank >= 0)
			break;
	}
	return false;
}

/* Begins to read the archive (kube_archive.h) in the attempt's directory: the whole one, or
 * with places (taken over in any case) the unfinished one up to them. false: there is none. */
static bool kube_kept_logs(struct loop *loop, const char *attempt_dir, struct kept_places *places,
	const struct target_log_request *request, struct target_call *call)
{
	AUTO_FREE char *dir = fs_join(attempt_dir, !places ? ATTEMPT_RANKS : UNFINISHED);
	AUTO(kept_places_done) struct kept_places own = {0};
	struct kept *kept;

	if (places)
		own = *places;
	if (access(dir, F_OK) < 0)
		return false;
	if (!places)
		kept_places_read(attempt_dir, &own);
	kept = mem_alloc(1, sizeof(*kept));
	*kept = (struct kept){
		.work = {kube_logs_drop},
		.call = call,
		.loop = loop,
		.request = *request,
		.dir = TAKE(dir),
		.is_whole = !places,
		.places = own,
		.rank = request->rank < 0 ? 0 : request->rank,
	};
	own = (struct kept_places){0};
	read_gaps(kept, kept->dir);
	if (request->tail_lines < 0)
		print_gaps(kept, INT64_MAX);
	if (read_rank(kept)) {
		target_call_begin(call, &kept->work);
	} else {
		kube_logs_drop(&kept->work);
		target_call_end_soon(call, loop);
	}
	return true;
}

/*
 * The log of an attempt in a cluster, taken to its archive here without being shown.
 */

struct keeping {
	struct target_work work;
	struct target_call *call;
	struct kube_runlog *runlog;
	struct kube_study_log *fed; /* of a member of a study */
	struct kube_archive *archive;
	struct kube_saving saving;
	struct target_kube *kube;
	struct kube_handle handle;
	bool follows, is_kept;
};

/* Behind the limit its size is kept. */
static int keep_on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct keeping *keeping = ctx;

	int r = kube_archive_add(keeping->archive, rank, data, len, time_ms, err);

	return r < 0 ? r : 0;
}

static void on_gap(void *ctx, int rank, const char *text)
{
	struct keeping *keeping = ctx;

	kube_archive_gap(keeping->archive, rank, text, NULL);
}

static int kube_logs_finish(struct keeping *keeping, struct err *err)
{
	keeping->is_kept = true;
	return kube_archive_finish(keeping->archive, err);
}

static void keep_drop(struct target_work *work)
{
	struct keeping *keeping = (struct keeping *)work;

	if (keeping->follows)
		kube_saving_end(keeping->kube, &keeping->saving);
	/* The log kept so far is complete if the run was cancelled: no more will come. */
	if (keeping->follows && !keeping->is_kept && !(keeping->archive->bytes == 0) &&
		kube_is_cancelled(keeping->kube, &keeping->handle))
		kube_logs_finish(keeping, NULL);
	kube_archive_free(keeping->archive);
	kube_study_log_leave(keeping->fed);
	kube_runlog_free(keeping->runlog);
	free(keeping);
}

static int kube_logs_on_end(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct keeping *keeping = ctx;
	AUTO_ERR struct err failure = {0};
	int r = err_is_set(error) ? err_move(&failure, error) : kube_logs_finish(keeping, &failure);

	target_call_end(keeping->call, r, &failure);
	return 0;
}

/* 1: nothing is to be taken. A study may have thousands of members that were cancelled before they
 * began: the cluster is not asked about each. */
static int keep_open(const struct target_kube *kube, const struct kube_handle *place, bool follow,
	struct kube_archive **ret, struct err *err)
{
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, place->run_id, place->attempt);
	int r = kube_archive_open(dir, KUBE_ARCHIVE_MAX, ret, err);

	if (r != 0 || follow || !kube_has_left_nothing(kube, place))
		return r;
	r = kube_archive_finish(*ret, err);
	kube_archive_free(TAKE(*ret));
	return r < 0 ? r : 1;
}

int kube_keep(struct target *target, const char *handle, bool follow, struct target_call *call,
	struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_archive *archive;
	struct kube_handle place;
	struct keeping *keeping;
	AUTO_BUF struct buf token = buf_with(KUBE_ARCHIVE_TOKENS_MAX);

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r < 0)
		return r;
	r = keep_open(kube, &place, follow, &archive, err);
	if (r > 0)
		target_call_end_soon(call, target->loop);
	if (r != 0)
		return r < 0 ? r : 0;
	keeping = mem_alloc(1, sizeof(*keeping));
	*keeping = (struct keeping){
		.work = {keep_drop},
		.call = call,
		.kube = kube,
		.handle = place,
		.archive = archive,
		.follows = follow,
	};
	kept_places_token(kube_archive_places(archive), &token);
	AUTO_FREE char *pods = kube_handle_attempt_pods(&place);
	const struct kube_runlog_request wanted = {
		.kube_namespace = place.kube_namespace,
		.kind = place.kind,
		.name = place.name,
		.is_member = place.is_member,
		.index = place.index,
		.pods = pods,
		.rank = -1,
		.tail_lines = -1,
		.follow = follow,
		.has_ended = !follow,
		.is_fed = place.is_member,
		.token = token.data,
		.events = {.data = keep_on_data,
			.gap = on_gap,
			.end = kube_logs_on_end,
			.ctx = keeping},
	};
	target_call_begin(call, &keeping->work);
	keeping->runlog = kube_runlog_start(kube->cluster->client, target->loop, &wanted);
	keeping->saving = (struct kube_saving){.handle = place, .runlog = keeping->runlog};
	if (follow)
		kube_saving_begin(kube, &keeping->saving);
	if (place.is_member)
		keeping->fed = kube_study_log_join(
			kube, &place, follow, call->deadline_ms, keeping->runlog);
	kube_archive_watch(archive, target->loop, keeping->runlog);
	return 0;
}

/*
 * The log of an attempt, and while its program has not begun what it waits for: that is asked for
 * now and then, and said when it has changed. What is seen is kept here.
 */

/* Most programs have begun before the first look: its requests would take the connections that are
 * open from the log. */
enum { FIRST_POLL_MS = 2500, POLL_MS = 2000, POLL_LIMIT_MS = 15000 };

struct following {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct target_log_request request; /* but for its token */
	struct kube_handle place;
	struct kube_runlog *runlog;
	struct kube_archive *archive; /* that what is read goes to; or NULL */
	struct target_call kept;      /* what is in it is read first */
	struct buf live_token;        /* behind that */
	char *token;                  /* the caller's */
	char *handle;
	struct err error;
	struct target_call keep; /* beside, with a stream of its own */
	struct loop_timer *keep_timer;
	bool is_over, keeps;
	/* what it waits for */
	struct loop_timer *timer;
	struct target_call poll;
	struct target_status status;
	char *said;
	bool has_begun;
};

static void logs_drop(struct target_work *work)
{
	struct following *following = (struct following *)work;

	target_call_cancel(&following->kept);
	kube_archive_free(following->archive);
	kube_runlog_free(following->runlog);
	loop_remove_timer(following->kube->target.loop, following->timer);
	loop_remove_timer(following->kube->target.loop, following->keep_timer);
	target_call_cancel(&following->poll);
	target_call_cancel(&following->keep);
	target_status_done(&following->status);
	err_done(&following->error);
	buf_done(&following->live_token);
	free(following->handle);
	free(following->said);
	free(following);
}

/*
 * Waiting
 */

static void logs_print(struct following *following, const char *text)
{
	if (following->request.events.notice)
		following->request.events.notice(following->request.events.ctx, text);
}

static void kube_logs_poll_later(struct following *following, int64_t ms);

static void print_status(struct following *following)
{
	const struct target_status *status = &following->status;
	const char *text = status->text;

	if (status->state == RUN_RUNNING || run_state_is_final(status->state)) {
		following->has_begun = true;
		return;
	}
	if (!text || str_eq(text, following->said))
		return;
	REPLACE(following->said, mem_strdup(text));
	AUTO_FREE char *line = mem_printf("%s: %s", run_state_name(status->state), text);
	logs_print(following, line);
}

static void kube_logs_on_polled(struct target_call *call, int r, struct err *err)
{
	struct following *following = CONTAINER_OF(call, struct following, poll);

	if (r == 0)
		print_status(following);
	else
		err_clear(err);
	target_status_done(&following->status);
	if (!following->has_begun)
		kube_logs_poll_later(following, POLL_MS);
}

static int kube_logs_poll(void *ctx, struct err *err)
{
	struct following *following = ctx;

	following->timer = NULL;
	if (following->has_begun)
		return 0;
	following->poll = (struct target_call){
		.deadline_ms = clock_ms() + POLL_LIMIT_MS, .done = kube_logs_on_polled};
	return kube_state(&following->kube->target, following->handle, &following->status,
		&following->poll, err);
}

static void kube_logs_poll_later(struct following *following, int64_t ms)
{
	following->timer = loop_add_timer(
		following->kube->target.loop, clock_ms() + ms, kube_logs_poll, following);
}

/*
 * The log
 */

static void keep_data(
	struct following *following, int rank, const char *data, size_t len, int64_t time_ms)
{
	AUTO_ERR struct err error = {0};
	char max[16];

	if (!following->archive)
		return;
	int r = kube_archive_add(following->archive, rank, data, len, time_ms, &error);
	if (r < 0) {
		/* A full disk here keeps nobody from reading on. */
		AUTO_FREE char *text =
			mem_printf("from here on the log is not kept: %s", error.message);

		kube_archive_free(TAKE(following->archive));
		logs_print(following, text);
	}
	if (r <= 0)
		return;
	AUTO_FREE char *text = mem_printf("from here on the log is shown, but not kept: that of an "
					  "attempt is kept up to %s",
		str_size(KUBE_ARCHIVE_MAX, max));
	logs_print(following, text);
}

static int logs_on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct following *following = ctx;
	const struct target_log_events *events = &following->request.events;

	following->has_begun = true;
	int r = events->data(events->ctx, rank, data, len, time_ms, err);
	if (r >= 0)
		keep_data(following, rank, data, len, time_ms);
	return r;
}

static void kube_logs_on_notice(void *ctx, int rank UNUSED, const char *text)
{
	logs_print(ctx, text);
}

static void logs_on_gap(void *ctx, int rank, const char *text)
{
	struct following *following = ctx;

	if (following->archive)
		kube_archive_gap(following->archive, rank, text, NULL);
	target_log_gap(&following->request.events, text);
}

static void end_both(struct following *following)
{
	if (following->is_over && !following->keeps)
		target_call_end_as(following->call, &following->error);
}

static int logs_on_end(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct following *following = ctx;

	AUTO_BUF struct buf token = buf_with(1 << 20);

	kube_runlog_token(following->runlog, &token);
	/* The token of too many ranks does not fit: the log is started anew then. */
	if (token.len < TARGET_TOKEN_SIZE)
		memcpy(following->token, token.data, token.len + 1);
	following->is_over = true;
	if (err_is_set(error)) {
		err_move(&following->error, error);
		following->keeps = false;
	} else if (following->archive && following->request.follow && following->request.rank < 0) {
		kube_archive_finish(following->archive, NULL);
	}
	end_both(following);
	return 0;
}

/*
 * The archive: of one who reads all from the start it is the same stream; beside another one it is
 * a stream of its own, as soon as nobody else keeps it.
 */

static void keep_later(struct following *following);

static void kube_logs_on_kept(struct target_call *call, int r UNUSED, struct err *err)
{
	struct following *following = CONTAINER_OF(call, struct following, keep);

	err_clear(err);
	following->keeps = false;
	if (following->is_over)
		end_both(following);
	else
		keep_later(following);
}

static int keep_beside(void *ctx, struct err *err UNUSED)
{
	struct following *following = ctx;

	following->keep_timer = NULL;
	if (following->is_over)
		return 0;
	following->keep = (struct target_call){.done = kube_logs_on_kept};
	following->keeps = kube_keep(&following->kube->target, following->handle, true,
				   &following->keep, NULL) == 0;
	return 0;
}

static void keep_later(struct following *following)
{
	following->keep_timer = loop_add_timer(
		following->kube->target.loop, clock_ms() + POLL_MS, keep_beside, following);
}

static void start_live(struct following *following, const char *token)
{
	const struct target_log_request *request = &following->request;
	struct loop *loop = following->kube->target.loop;
	AUTO_FREE char *pods = kube_handle_attempt_pods(&following->place);
	const struct kube_runlog_request wanted = {
		.kube_namespace = following->place.kube_namespace,
		.kind = following->place.kind,
		.name = following->place.name,
		.is_member = following->place.is_member,
		.index = following->place.index,
		.pods = pods,
		.rank = request->rank,
		.tail_lines = request->tail_lines,
		.since_ms = request->since_ms,
		.follow = request->follow,
		.token = token,
		.events = {logs_on_data, kube_logs_on_notice, logs_on_gap, logs_on_end, following},
	};

	following->runlog = kube_runlog_start(following->kube->cluster->client, loop, &wanted);
	if (following->archive)
		kube_archive_watch(following->archive, loop, following->runlog);
	if (request->follow && !following->archive &&
		kube_is_own(following->kube, &following->place))
		keep_later(following);
	if (request->follow)
		kube_logs_poll_later(following, FIRST_POLL_MS);
}

static void kube_logs_on_read(struct target_call *call, int status, struct err *err)
{
	struct following *following = CONTAINER_OF(call, struct following, kept);

	if (status < 0)
		target_call_end(following->call, status, err);
	else
		start_live(following, following->live_token.data);
}

/* The node may no longer have the part of the log that was seen here before. */
static bool kube_logs_read_kept(struct following *following, const char *dir)
{
	struct kept_places places;

	if (kube_archive_open(dir, KUBE_ARCHIVE_MAX, &following->archive, NULL) != 0)
		following->archive = NULL;
	kept_places_read(dir, &places);
	kept_places_token(&places, &following->live_token);
	following->kept = (struct target_call){.done = kube_logs_on_read};
	return kube_kept_logs(
		following->kube->target.loop, dir, &places, &following->request, &following->kept);
}

int kube_logs(struct target *target, const char *handle, const struct target_log_request *request,
	char *token, struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle place;
	struct following *following;

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r < 0)
		return r;
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, place.run_id, place.attempt);
	/* A token is a place in the live log. */
	if (!request->token && kube_kept_logs(target->loop, dir, NULL, request, call))
		return 0;
	following = mem_alloc(1, sizeof(*following));
	*following = (struct following){
		.work = {logs_drop},
		.kube = kube,
		.call = call,
		.request = *request,
		.place = place,
		.token = token,
		.handle = mem_strdup(handle),
	};
	buf_init(&following->live_token, KUBE_ARCHIVE_TOKENS_MAX);
	target_call_begin(call, &following->work);
	bool is_whole = !request->token && request->tail_lines < 0 && request->since_ms == 0 &&
			kube_is_own(kube, &place);
	if (!is_whole || !kube_logs_read_kept(following, dir))
		start_live(following, is_whole ? following->live_token.data : request->token);
	return 0;
}
