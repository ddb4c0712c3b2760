/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
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
#include "core/target/target_work.h"

size_t mark_format(const struct mark *mark, char out[static MARK_SIZE])
{
	return (size_t)snprintf(
		out, MARK_SIZE, "%lld %lld\n", (long long)mark->time_ms, (long long)mark->offset);
}

/* Decimal digits up to end; false without any, or beyond 63 bits. */
static bool attempt_log_parse_number(const char **s, const char *end, int64_t *ret)
{
	const char *start = *s;
	int64_t n = 0;

	for (; *s < end && **s >= '0' && **s <= '9'; ++*s)
		if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, **s - '0', &n))
			return false;
	*ret = n;
	return *s > start;
}

size_t mark_parse(const char *s, size_t len, struct mark *ret, bool *ret_ok)
{
	const char *end = memchr(s, '\n', len), *at = s;
	struct mark mark;

	*ret_ok = false;
	if (!end)
		return 0;
	if (attempt_log_parse_number(&at, end, &mark.time_ms) && at < end && *at++ == ' ' &&
		attempt_log_parse_number(&at, end, &mark.offset) && at == end) {
		*ret = mark;
		*ret_ok = true;
	}
	return (size_t)(end - s) + 1;
}

void marks_reader_init(struct marks_reader *reader, const char *path)
{
	*reader = (struct marks_reader){.fd = open(path, O_RDONLY | O_CLOEXEC)};
}

void marks_reader_done(struct marks_reader *reader)
{
	auto_fd(&reader->fd);
	reader->fd = -1;
}

/* Read more bytes behind the pending ones; false: none. */
static bool attempt_log_fill(struct marks_reader *reader)
{
	ssize_t n;

	memmove(reader->pending, reader->pending + reader->at, reader->len - reader->at);
	reader->len -= reader->at;
	reader->at = 0;
	/* No line is that long: these are not marks. */
	if (reader->len == sizeof(reader->pending))
		reader->len = 0;
	do
		n = read(reader->fd, reader->pending + reader->len,
			sizeof(reader->pending) - reader->len);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return false;
	reader->len += (size_t)n;
	return true;
}

static bool parse_pending(struct marks_reader *reader, struct mark *ret)
{
	for (;;) {
		bool ok;
		size_t n = mark_parse(
			reader->pending + reader->at, reader->len - reader->at, ret, &ok);

		if (n == 0)
			return false;
		reader->at += n;
		if (ok)
			return true;
	}
}

bool marks_reader_next(struct marks_reader *reader, struct mark *ret)
{
	struct mark mark;

	if (reader->fd < 0)
		return false;
	while (!parse_pending(reader, &mark))
		if (!attempt_log_fill(reader))
			return false;
	/* The clock may have been set back. */
	if (mark.time_ms < reader->last.time_ms)
		mark.time_ms = reader->last.time_ms;
	if (mark.offset < reader->last.offset)
		mark.offset = reader->last.offset;
	reader->last = mark;
	*ret = mark;
	return true;
}

/*
 * Reading a log, maybe while it grows. Its resume token is OFFSET:TIME, what came last and when.
 */

enum {
	CHUNK = 64 << 10,
	CHUNKS_PER_TURN = 16,
	LINE_POLL_MAX = 64 << 10, /* how far a mark may lie from the start of a line */
	FAST_POLL_MS = 200,       /* where the file cannot be watched */
	SLOW_POLL_MS = 1000,      /* else: is anybody alive? */
};

struct reading {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	struct target_log_request request;
	char *token; /* the caller's */
	struct attempt_place place;
	char *path;
	int fd;              /* -1: the log is not there yet */
	int64_t offset, end; /* end: where to stop without follow */
	int64_t time_ms;     /* of what came last: times never fall */
	struct marks_reader marks;
	struct mark mark; /* the first one beyond offset */
	bool has_mark;
	bool final;     /* the attempt has ended: what is there is all */
	char *reported; /* the reason for waiting that was reported last, or NULL */
	int log_watch, dir_watch;
	struct loop_fd *log_source, *dir_source;
	struct loop_timer *timer;
};

static void attempt_log_drop_reading(struct target_work *work)
{
	struct reading *reading = (struct reading *)work;

	loop_remove_timer(reading->loop, reading->timer);
	loop_remove_fd(reading->loop, reading->log_source);
	loop_remove_fd(reading->loop, reading->dir_source);
	auto_fd(&reading->log_watch);
	auto_fd(&reading->dir_watch);
	auto_fd(&reading->fd);
	marks_reader_done(&reading->marks);
	attempt_place_done(&reading->place);
	free(reading->path);
	free(reading->reported);
	free(reading);
}

/* A file of the rank; the caller frees. */
static char *attempt_rank_path(const struct attempt_place *place, const char *name)
{
	if (place->rank == 0)
		return fs_join(place->dir, name);
	return mem_printf("%s/" ATTEMPT_RANKS "/%d/%s", place->dir, place->rank, name);
}

/*
 * Where to begin
 */

static int64_t file_size(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? st.st_size : 0;
}

static ssize_t attempt_log_read_at(int fd, char *out, size_t len, int64_t offset)
{
	ssize_t n;

	do
		n = pread(fd, out, len, offset);
	while (n < 0 && errno == EINTR);
	return n;
}

/* The offset behind the n-th newline from the end, the final one not counted. */
static int64_t tail_offset(int fd, int64_t lines)
{
	AUTO_FREE char *chunk = mem_alloc(CHUNK, 1);
	int64_t size = file_size(fd), at = size;

	if (lines == 0)
		return size;
	while (at > 0) {
		size_t want = at < CHUNK ? (size_t)at : CHUNK;
		ssize_t n = attempt_log_read_at(fd, chunk, want, at - (int64_t)want);
		if (n != (ssize_t)want)
			return 0;
		for (size_t i = want; i > 0; i--) {
			bool last = at - (int64_t)want + (int64_t)i == size;
			if (chunk[i - 1] == '\n' && !last && --lines == 0)
				return at - (int64_t)want + (int64_t)i;
		}
		at -= (int64_t)want;
	}
	return 0;
}

/* The offset of output that came at since_ms or later. */
static int64_t since_offset(const struct reading *reading, const char *marks_path)
{
	struct marks_reader marks;
	struct mark mark;
	int64_t offset = 0;

	marks_reader_init(&marks, marks_path);
	while (marks_reader_next(&marks, &mark) && mark.time_ms < reading->request.since_ms)
		offset = mark.offset;
	marks_reader_done(&marks);
	/* The start of the first line at or behind offset; offset itself if there is none near. */
	AUTO_FREE char *chunk = mem_alloc(LINE_POLL_MAX, 1);
	char *newline;
	ssize_t n;

	if (offset == 0)
		return 0;
	n = attempt_log_read_at(reading->fd, chunk, LINE_POLL_MAX, offset - 1);
	newline = n > 0 ? memchr(chunk, '\n', (size_t)n) : NULL;
	return newline ? offset + (newline - chunk) : offset;
}

static int64_t later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* false: it is none of ours. */
static bool attempt_log_parse_token(struct reading *reading, const char *token, int64_t *ret_offset)
{
	const char *colon = strchr(token, ':');
	int64_t offset, time_ms;

	if (!colon)
		return false;
	AUTO_FREE char *first = mem_strndup(token, (size_t)(colon - token));
	if (str_to_int(first, 0, INT64_MAX, "token", &offset, NULL) < 0 ||
		str_to_int(colon + 1, 0, INT64_MAX, "token", &time_ms, NULL) < 0)
		return false;
	reading->time_ms = time_ms;
	*ret_offset = offset;
	return true;
}

static int64_t first_offset(struct reading *reading, const char *marks_path)
{
	const struct target_log_request *request = &reading->request;
	int64_t offset = 0;

	if (request->token && attempt_log_parse_token(reading, request->token, &offset))
		return offset;
	if (request->since_ms > 0)
		offset = since_offset(reading, marks_path);
	if (request->tail_lines >= 0)
		offset = later(offset, tail_offset(reading->fd, request->tail_lines));
	return offset;
}

static void set_offset(struct reading *reading, int64_t offset)
{
	reading->offset = offset;
	snprintf(reading->token, TARGET_TOKEN_SIZE, "%lld:%lld", (long long)offset,
		(long long)reading->time_ms);
}

/*
 * Delivering
 */

/* The first mark beyond offset tells when the bytes before it came. */
static void attempt_log_find_mark(struct reading *reading)
{
	while (!reading->has_mark || reading->mark.offset <= reading->offset) {
		reading->has_mark = marks_reader_next(&reading->marks, &reading->mark);
		if (!reading->has_mark)
			return;
	}
}

static int64_t last_write_ms(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return 0;
	return (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
}

/* Returns how many of the next len bytes came at one time, and when. */
static size_t same_time(struct reading *reading, size_t len, int64_t *ret_time_ms)
{
	int64_t time_ms;

	attempt_log_find_mark(reading);
	if (reading->has_mark) {
		int64_t left = reading->mark.offset - reading->offset;
		len = left < (int64_t)len ? (size_t)left : len;
		time_ms = reading->mark.time_ms;
	} else {
		time_ms = last_write_ms(reading->fd);
	}
	*ret_time_ms = later(time_ms, reading->time_ms);
	return len;
}

static int attempt_log_deliver(
	struct reading *reading, const char *data, size_t len, struct err *err)
{
	const struct target_log_events *events = &reading->request.events;

	for (size_t done = 0, n; done < len; done += n) {
		int64_t time_ms;
		n = same_time(reading, len - done, &time_ms);
		int rank = reading->place.rank, r = 0;
		if (events->data)
			r = events->data(events->ctx, rank, data + done, n, time_ms, err);
		if (r < 0)
			return r;
		reading->time_ms = time_ms;
		set_offset(reading, reading->offset + (int64_t)n);
	}
	return 0;
}

/* 1: there was something; 0: at the end. */
static int read_chunk(struct reading *reading, char *chunk, struct err *err)
{
	size_t want = CHUNK;
	ssize_t n;

	if (!reading->request.follow && reading->end - reading->offset < CHUNK)
		want = (size_t)(reading->end - reading->offset);
	n = want ? attempt_log_read_at(reading->fd, chunk, want, reading->offset) : 0;
	if (n < 0)
		return fs_error(err, errno, "%s", reading->path);
	if (n == 0)
		return 0;
	int r = attempt_log_deliver(reading, chunk, (size_t)n, err);
	return r < 0 ? r : 1;
}

/*
 * Turns
 */

static void open_log(struct reading *reading)
{
	const struct target_log_events *events = &reading->request.events;
	AUTO_FREE char *marks_path = attempt_rank_path(&reading->place, ATTEMPT_MARKS);
	int64_t offset;

	reading->fd = open(reading->path, O_RDONLY | O_CLOEXEC);
	if (reading->fd < 0)
		return;
	reading->end = file_size(reading->fd);
	if (reading->place.limit > 0 && reading->place.limit < reading->end)
		reading->end = reading->place.limit;
	offset = first_offset(reading, marks_path);
	if (offset > reading->end) {
		if (events->notice)
			events->notice(events->ctx, "the log is shorter than it was");
		offset = reading->end;
	}
	set_offset(reading, offset);
	marks_reader_init(&reading->marks, marks_path);
}

/* 1: more is there already. */
static int attempt_log_read_some(struct reading *reading, struct err *err)
{
	AUTO_FREE char *chunk = NULL;
	int r = 1;

	if (reading->fd < 0)
		open_log(reading);
	if (reading->fd < 0)
		return 0;
	chunk = mem_alloc(CHUNK, 1);
	for (int i = 0; r > 0 && i < CHUNKS_PER_TURN; i++)
		r = read_chunk(reading, chunk, err);
	return r;
}

static int attempt_log_check(struct reading *reading, struct err *err)
{
	struct target_status status;
	int r = attempt_poll(reading->place.dir, reading->place.submit_lock, &status, err);

	if (r < 0)
		return r;
	reading->final = run_state_is_final(status.state);
	if (!reading->final && status.state != RUN_RUNNING)
		target_log_waits(&reading->request.events, status.text, &reading->reported);
	target_status_done(&status);
	return 0;
}

static int attempt_log_turn(struct reading *reading, bool poll);

static void attempt_log_watch(struct reading *reading);

static int attempt_log_on_time(void *ctx, struct err *err UNUSED)
{
	struct reading *reading = ctx;

	reading->timer = NULL;
	return attempt_log_turn(reading, true);
}

static void turn_at(struct reading *reading, int64_t ms)
{
	loop_remove_timer(reading->loop, reading->timer);
	reading->timer = loop_add_timer(reading->loop, ms, attempt_log_on_time, reading);
}

static void turn_later(struct reading *reading)
{
	bool watched = reading->log_watch >= 0 && reading->dir_watch >= 0;

	/* Do not postpone a pending timer: a log that always grows would hide the end. */
	if (!reading->timer)
		turn_at(reading, clock_ms() + (watched ? SLOW_POLL_MS : FAST_POLL_MS));
}

static void end_call(struct reading *reading, int status, struct err *err)
{
	target_call_end(reading->call, status, err);
}

/* A supervisor creates the log before its state, and those of further ranks when they begin: a
 * missing log has been removed. */
static int attempt_log_check_file(const struct reading *reading, struct err *err)
{
	struct attempt_state state;

	if (reading->fd >= 0 || !attempt_state_read(reading->place.dir, &state) ||
		(reading->place.rank > 0 && state.n_ranks == 0))
		return 0;
	return err_set(err, E_RUN_LOG, "the output of %s is gone: %s is not there any more",
		reading->place.run_id, reading->path);
}

/* Check whether the attempt is over before the rest is read: output that is written in between is
 * the last of its family, not something new. */
static int attempt_log_turn(struct reading *reading, bool poll)
{
	AUTO_ERR struct err failure = {0};
	bool was_final = reading->final;
	int r;

	attempt_log_watch(reading);
	r = attempt_log_read_some(reading, &failure);
	if (r == 0 && poll && !was_final && reading->request.follow)
		r = attempt_log_check(reading, &failure);
	if (r < 0)
		end_call(reading, r, &failure);
	else if (r > 0 || reading->final != was_final)
		turn_at(reading, 0);
	else if (reading->final || !reading->request.follow)
		end_call(reading, attempt_log_check_file(reading, &failure), &failure);
	else
		turn_later(reading);
	return 0;
}

static short want_input(void *ctx UNUSED)
{
	return POLLIN;
}

static int on_log_grown(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct reading *reading = ctx;

	os_watch_drain(reading->log_watch);
	return attempt_log_turn(reading, false);
}

/* Looking at locks changes the directory again in the eyes of the watch; the end is a file of its
 * own. */
static int on_dir_changed(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct reading *reading = ctx;
	AUTO_FREE char *exit_path = fs_join(reading->place.dir, ATTEMPT_EXIT);

	os_watch_drain(reading->dir_watch);
	return attempt_log_turn(reading, access(exit_path, F_OK) == 0);
}

/* Watch the directory and the log as soon as they exist. */
static void attempt_log_watch(struct reading *reading)
{
	static const struct loop_fd_ops log_ops = {want_input, on_log_grown};
	static const struct loop_fd_ops dir_ops = {want_input, on_dir_changed};

	if (!reading->request.follow)
		return;
	if (reading->dir_watch < 0) {
		reading->dir_watch = os_watch_open(reading->place.dir);
		if (reading->dir_watch >= 0)
			reading->dir_source =
				loop_add_fd(reading->loop, reading->dir_watch, &dir_ops, reading);
	}
	if (reading->log_watch < 0) {
		reading->log_watch = os_watch_open(reading->path);
		if (reading->log_watch >= 0)
			reading->log_source =
				loop_add_fd(reading->loop, reading->log_watch, &log_ops, reading);
	}
}

void attempt_log_read(struct loop *loop, struct attempt_place *place,
	const struct target_log_request *request, char *token, struct target_call *call)
{
	struct reading *reading = mem_alloc(1, sizeof(*reading));

	*reading = (struct reading){
		.work = {attempt_log_drop_reading},
		.call = call,
		.loop = loop,
		.request = *request,
		.token = token,
		.place = *place,
		.path = attempt_rank_path(place, ATTEMPT_LOG),
		.fd = -1,
		.log_watch = -1,
		.dir_watch = -1,
	};
	*place = (struct attempt_place){0};
	reading->marks.fd = -1;
	target_call_begin(call, &reading->work);
	turn_at(reading, 0);
}
