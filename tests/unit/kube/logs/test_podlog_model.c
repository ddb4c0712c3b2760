/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A log that is written, rotated and served by a kubelet as the real one does it, cut anywhere,
 * with clocks that are set: what comes out is the log, or a gap accounts for what is missing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/vec.h"
#include "kube/logs/podlog_lines.h"

enum { CHUNKS = 400, FILES_MAX = CHUNKS + 1, OUT_MAX = 1 << 20, TURNS_MAX = 20000, SEEDS = 500 };
enum { SECOND = 1000000000 };

/* What a run of the model does. */
struct mode {
	const char *name;
	bool rotates;
	bool skips; /* follow falls behind rotations */
	bool jumps; /* the clock is set */
	bool cuts;
	bool within; /* rotation within lines that are split */
};

/* A line of the file: the runtime's part of one of the program's. */
struct chunk {
	int64_t ns;
	bool partial;
	char text[64]; /* its LF too */
};

struct gap_seen {
	struct podlog_gap gap;
	size_t at;
};

struct model {
	const struct mode *mode;
	uint64_t random;
	struct chunk chunks[CHUNKS];
	int files[FILES_MAX]; /* their first chunks */
	int n_files, written;
	/* The stream */
	bool open, follow, starts_line;
	int64_t since_ns;
	int file, next, n_reopened;
	struct buf wire;
	/* The client */
	struct podlog_lines *lines;
	struct buf out;
	struct gaps_seen VEC_OF(struct gap_seen) gaps;
	int n_remarks;
};

static uint32_t roll(struct model *model, uint32_t n)
{
	model->random ^= model->random << 13;
	model->random ^= model->random >> 7;
	model->random ^= model->random << 17;
	return (uint32_t)(model->random >> 11) % n;
}

/*
 * The program and its runtime
 */

static int64_t step(struct model *model)
{
	static const int64_t steps[] = {0, 0, 1, 1000, 1000, 300000, 7000000, 400000000};

	if (model->mode->jumps && roll(model, 40) == 0)
		return -(int64_t)roll(model, 3) * 1800 * SECOND - (int64_t)roll(model, SECOND) * 3;
	if (roll(model, 10) == 0)
		return -(int64_t)roll(model, 20000);
	if (roll(model, 25) == 0)
		return (int64_t)(2 + roll(model, 8)) * SECOND;
	return steps[roll(model, ARRAY_LEN(steps))];
}

static void make_chunks(struct model *model)
{
	int64_t ns = INT64_C(1795249260) * SECOND;

	for (int i = 0; i < CHUNKS; i++) {
		struct chunk *chunk = &model->chunks[i];
		int n = snprintf(chunk->text, sizeof(chunk->text), "<%d>", i);
		for (uint32_t more = roll(model, 40); more > 0; more--)
			chunk->text[n++] = (char)('a' + roll(model, 26));
		ns += step(model);
		chunk->ns = ns;
		chunk->partial = i + 1 < CHUNKS && roll(model, 12) == 0;
		if (!chunk->partial)
			chunk->text[n] = '\n';
	}
}

/* A kubelet looks every 3 seconds at most. */
static bool is_soon(const struct model *model)
{
	const struct chunk *first = &model->chunks[model->files[model->n_files - 1]];

	return model->chunks[model->written].ns < first->ns + 3 * (int64_t)SECOND;
}

static bool may_rotate(const struct model *model)
{
	int w = model->written;

	return model->mode->rotates && w > model->files[model->n_files - 1] && w < CHUNKS &&
	       model->chunks[w].ns != model->chunks[w - 1].ns &&
	       !(model->mode->skips && is_soon(model)) &&
	       (model->mode->within || !model->chunks[w - 1].partial);
}

static void add_stamped(struct buf *out, const struct chunk *chunk, bool stamped)
{
	time_t seconds = (time_t)(chunk->ns / SECOND);
	struct tm tm;
	char stamp[32];

	if (stamped) {
		gmtime_r(&seconds, &tm);
		strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
		buf_addf(out, "%s.%09dZ ", stamp, (int)(chunk->ns % SECOND));
	}
	buf_adds(out, chunk->text);
}

static void notify_head(struct model *model)
{
	AUTO_BUF struct buf line;
	int first = model->files[model->n_files - 1];

	buf_init(&line, OUT_MAX);
	if (first == model->written)
		return;
	add_stamped(&line, &model->chunks[first], true);
	podlog_lines_head(model->lines, line.data, line.len);
}

static bool is_behind(struct model *model)
{
	AUTO_BUF struct buf line;

	buf_init(&line, OUT_MAX);
	if (model->written == model->files[model->n_files - 1])
		return false;
	add_stamped(&line, &model->chunks[model->written - 1], true);
	return podlog_lines_is_behind(model->lines, line.data, line.len);
}

static void write_some(struct model *model)
{
	for (uint32_t n = roll(model, 12); n > 0 && model->written < CHUNKS; n--) {
		model->written++;
		notify_head(model);
		if (may_rotate(model) && roll(model, 30) == 0)
			model->files[model->n_files++] = model->written;
	}
}

/*
 * The kubelet
 */

static int file_end(const struct model *model, int file)
{
	return file + 1 < model->n_files ? model->files[file + 1] : model->written;
}

/* At the end of the file that it has open: on to a later one? */
static bool next_file(struct model *model)
{
	if (!model->follow || model->file + 1 >= model->n_files) {
		/* Within a line it would not show. */
		bool again = model->n_reopened > 0 && model->starts_line;
		model->n_reopened = 0;
		model->next = again ? model->files[model->file] : model->next;
		return again;
	}
	if (model->mode->skips && roll(model, 2)) {
		/* One event for each file, and the newest is opened at each of them. */
		model->n_reopened = model->n_files - 2 - model->file;
		model->file = model->n_files - 1;
	} else {
		model->file++;
	}
	model->next = model->files[model->file];
	return true;
}

/* false: nothing more now. */
static bool serve_chunk(struct model *model)
{
	if (model->next == file_end(model, model->file) && !next_file(model))
		return false;
	if (model->next == file_end(model, model->file))
		return false;
	const struct chunk *chunk = &model->chunks[model->next++];
	if (chunk->ns >= model->since_ns)
		add_stamped(&model->wire, chunk, model->starts_line);
	model->starts_line = !chunk->partial;
	return true;
}

static void open_stream(struct model *model, bool wants_follow)
{
	struct podlog_plan plan;
	struct tm tm = {0};

	podlog_lines_plan(model->lines, wants_follow, &plan);
	model->since_ns = 0;
	if (*plan.since) {
		assert_non_null(strptime(plan.since, "%Y-%m-%dT%H:%M:%SZ", &tm));
		model->since_ns = (int64_t)timegm(&tm) * SECOND;
	}
	model->follow = plan.follow;
	model->file = model->n_files - 1;
	model->next = model->files[model->file];
	model->starts_line = true;
	model->n_reopened = 0;
	buf_reset(&model->wire);
	podlog_lines_begin(model->lines);
	model->open = true;
}

/*
 * The client
 */

static int on_data(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct model *model = ctx;

	buf_add(&model->out, data, len);
	return 0;
}

static void on_gap(void *ctx, const struct podlog_gap *gap)
{
	struct model *model = ctx;

	*vec_push(&model->gaps) = (struct gap_seen){*gap, model->out.len};
}

static void on_remark(void *ctx, const char *text, size_t len)
{
	struct model *model = ctx;

	model->n_remarks++;
}

/* true: the stream is over. */
static bool read_some(struct model *model)
{
	size_t n = roll(model, 200) + 1;
	bool more = true;
	int r;

	while (model->wire.len < n && more)
		more = serve_chunk(model);
	n = n < model->wire.len ? n : model->wire.len;
	r = podlog_lines_feed(model->lines, model->wire.data, n, NULL);
	buf_consume(&model->wire, n);
	if (roll(model, 3) == 0)
		podlog_lines_flush(model->lines, NULL);
	if (r == PODLOG_AGAIN)
		return true;
	if (more || model->wire.len > 0)
		return false;
	if (!model->follow) {
		podlog_lines_end(model->lines, true, NULL);
		return true;
	}
	if (!is_behind(model))
		return false;
	podlog_lines_doubt(model->lines);
	return true;
}

static void run_turn(struct model *model, bool follow)
{
	bool is_over;

	write_some(model);
	if (model->written == 0)
		return;
	if (!model->open)
		open_stream(model, follow);
	is_over = read_some(model);
	if (model->mode->cuts && !is_over && roll(model, 15) == 0) {
		podlog_lines_end(model->lines, false, NULL);
		is_over = true;
	}
	model->open = !is_over;
}

/* All was written, and the container has ended: no rotation any more. */
static void drain(struct model *model)
{
	const struct mode *mode = model->mode;

	model->mode = &(struct mode){.name = mode->name};
	for (int i = 0; i < 5; i++) {
		int r = PODLOG_AGAIN;
		for (int n = 0; r == PODLOG_AGAIN && n < 10; n++) {
			open_stream(model, false);
			while (serve_chunk(model))
				;
			r = podlog_lines_feed(
				model->lines, model->wire.data, model->wire.len, NULL);
			if (r == 0)
				r = podlog_lines_end(model->lines, true, NULL);
		}
		assert_int_equal(r, 0);
		if (!is_behind(model))
			break;
		podlog_lines_doubt(model->lines);
	}
	model->mode = mode;
}

/*
 * What must come out
 */

static bool gap_covers(const struct model *model, size_t at, int chunk)
{
	int64_t ns = model->chunks[chunk].ns;

	vec_foreach (struct gap_seen, seen, &model->gaps) {
		const struct podlog_gap *gap = &seen->gap;
		if (gap->kind == PODLOG_ROTATED && seen->at == at)
			return true;
		/* Times of neighbours overtake each other by little. */
		if (gap->kind == PODLOG_SKIPPED && ns >= gap->after_ns - 1000000 &&
			ns <= gap->before_ns + 1000000)
			return true;
	}
	return false;
}

/* The chunk that begins at at; -1: none does. */
static int chunk_at(const struct model *model, size_t at)
{
	int id = -1, end = 0;

	if (model->out.data[at] == '<')
		sscanf(model->out.data + at, "<%d>%n", &id, &end);
	return end > 0 && id < CHUNKS ? id : -1;
}

static void complain(const struct model *model, uint64_t seed, size_t at, int want)
{
	print_error("%s, seed %" PRIu64 ": chunk %d is missing at %zu: %.40s\n", model->mode->name,
		seed, want, at, model->out.data + at);
	for (int i = want > 3 ? want - 3 : 0; i < want + 4 && i < CHUNKS; i++)
		print_error("chunk %d at %" PRId64 "%s\n", i, model->chunks[i].ns,
			model->chunks[i].partial ? ", a part" : "");
	for (int i = 0; i < model->n_files; i++)
		print_error("file from %d\n", model->files[i]);
	vec_foreach (struct gap_seen, seen, &model->gaps)
		print_error("gap %d at %zu, %" PRId64 " to %" PRId64 "\n", (int)seen->gap.kind,
			seen->at, seen->gap.after_ns, seen->gap.before_ns);
	fail();
}

/* How much of the chunk's text is there, in what was delivered without a gap. */
static size_t common(const struct model *model, size_t at, int chunk, size_t *ret_limit)
{
	const char *text = model->chunks[chunk].text;
	size_t n = 0;

	*ret_limit = model->out.len;
	vec_foreach (struct gap_seen, seen, &model->gaps)
		if (seen->at > at && seen->at < *ret_limit)
			*ret_limit = seen->at;
	while (text[n] && at + n < *ret_limit && model->out.data[at + n] == text[n])
		n++;
	return n;
}

/* Chunks from want to next are missing at at: is it said? What was rotated away before the first
 * line came is not missed. */
static void check_missing(const struct model *model, uint64_t seed, size_t at, int want, int next)
{
	if (next <= want)
		complain(model, seed, at, want);
	for (; want < next; want++)
		if (at > 0 && !gap_covers(model, at, want))
			complain(model, seed, at, want);
}

static void check(const struct model *model, uint64_t seed)
{
	size_t at = 0;
	int want = 0;

	while (want < CHUNKS) {
		size_t limit, n = common(model, at, want, &limit);
		if (!model->chunks[want].text[n]) {
			at += n;
			want++;
			continue;
		}
		/* A part of it, then a gap? */
		if (at + n == limit && n > 0)
			at += n;
		int next = at == model->out.len ? CHUNKS : chunk_at(model, at);
		if (next < 0 && limit < model->out.len && limit - at < 6) {
			/* Less than its number between two gaps. */
			at = limit;
			continue;
		}
		check_missing(model, seed, at, want, next);
		want = next;
	}
	if (at != model->out.len || (!model->mode->rotates && model->gaps.n > 0))
		complain(model, seed, at, want);
	assert_int_equal(model->n_remarks, 0);
}

static void run_seed(const struct mode *mode, uint64_t seed)
{
	struct model *model = mem_alloc(1, sizeof(*model));
	struct podlog_lines_events events = {on_data, on_gap, on_remark, model};

	model->mode = mode;
	model->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	model->n_files = 1;
	model->lines = podlog_lines_new(&events, NULL, true);
	if (seed % 4)
		model->lines->overlap = 0;
	buf_init(&model->wire, OUT_MAX);
	buf_init(&model->out, OUT_MAX);
	make_chunks(model);
	for (int i = 0; model->written < CHUNKS; i++) {
		assert_true(i < TURNS_MAX);
		run_turn(model, true);
	}
	if (model->open)
		podlog_lines_end(model->lines, false, NULL);
	drain(model);
	check(model, seed);
	podlog_lines_free(model->lines);
	buf_done(&model->wire);
	buf_done(&model->out);
	vec_done(&model->gaps);
	free(model);
}

static void run_mode(const struct mode *mode)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		run_seed(mode, seed);
}

static void test_cut(void **state)
{
	run_mode(&(struct mode){"cut", .cuts = true});
}

static void test_clock(void **state)
{
	run_mode(&(struct mode){"clock", .cuts = true, .jumps = true});
}

static void test_rotated(void **state)
{
	run_mode(&(struct mode){"rotated", .cuts = true, .rotates = true});
}

static void test_rotated_clock(void **state)
{
	run_mode(&(struct mode){"rotated, clock", .cuts = true, .rotates = true, .jumps = true});
}

static void test_skipped(void **state)
{
	run_mode(&(struct mode){"skipped", .rotates = true, .skips = true});
	run_mode(&(struct mode){"skipped, cut", .rotates = true, .skips = true, .cuts = true});
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_clock),
		cmocka_unit_test(test_rotated),
		cmocka_unit_test(test_rotated_clock),
		cmocka_unit_test(test_skipped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
