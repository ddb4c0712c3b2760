/* SPDX-License-Identifier: Apache-2.0 */
#include "core/target/rank_line.h"

#include "base/util/clock.h"

enum {
	LINE_MAX_BYTES = 64 << 10, /* a longer one is handed over without its end */
	LINE_HELD_MAX = LINE_MAX_BYTES + (1 << 20),
	LATE_MS = 1000,
};

void rank_line_init(struct rank_line *line, rank_line_fn *hand_over, void *ctx)
{
	*line = (struct rank_line){.hand_over = hand_over, .ctx = ctx};
	buf_init(&line->line, LINE_HELD_MAX);
}

void rank_line_done(struct rank_line *line)
{
	buf_done(&line->line);
}

static size_t rank_line_whole(const char *data, size_t len)
{
	while (len > 0 && data[len - 1] != '\n' && data[len - 1] != '\r')
		len--;
	return len;
}

int rank_line_flush(struct rank_line *line, struct err *err)
{
	int r = 0;

	if (line->line.len)
		r = line->hand_over(line->ctx, line->line.data, line->line.len, line->time_ms, err);
	buf_reset(&line->line);
	return r;
}

int rank_line_flush_late(struct rank_line *line, struct err *err)
{
	return clock_ms() - line->since_ms >= LATE_MS ? rank_line_flush(line, err) : 0;
}

int rank_line_add(
	struct rank_line *line, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	size_t whole = rank_line_whole(data, len);
	int r = 0;

	if (whole > 0)
		r = rank_line_flush(line, err);
	if (r == 0 && whole > 0)
		r = line->hand_over(line->ctx, data, whole, time_ms, err);
	if (r < 0 || whole == len)
		return r;
	if (!line->line.len) {
		line->time_ms = time_ms;
		line->since_ms = clock_ms();
	}
	buf_add(&line->line, data + whole, len - whole);
	return line->line.len > LINE_MAX_BYTES ? rank_line_flush(line, err) : 0;
}
