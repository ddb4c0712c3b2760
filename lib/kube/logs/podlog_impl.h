/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of podlog_lines.c. */
#ifndef DLRUN_KUBE_LOGS_PODLOG_IMPL_H
#define DLRUN_KUBE_LOGS_PODLOG_IMPL_H

#include "kube/logs/podlog_lines.h"

enum {
	PODLOG_REMARK_MAX = 256,
	PODLOG_RECENT = 16384,
	PODLOG_LONG = 16 << 10, /* runtimes split lines of this length */
};

/* The first line of a file of the log. */
struct podlog_head {
	int64_t ns;
	bool passed; /* it, or something later, was delivered */
	/* Something later was, maybe no more than a line that overtook it: the time before that. */
	int64_t after_ns;
};

/* Bytes delivered up to a time: the last marks, at least PODLOG_MARK_BYTES apart. */
enum { PODLOG_MARKS = 8, PODLOG_MARK_BYTES = 32 << 10 };
struct podlog_mark {
	int64_t ns;
	uint64_t bytes;
};

/* Looking for the point in a stream. */
struct podlog_seek {
	uint32_t ordinal;   /* of the present line among its neighbours of the point's time */
	uint32_t candidate; /* the last one of them that could be the point's line */
	bool compares;      /* the present line is one of them, and equal so far */
	uint64_t len, hash; /* of its bytes */
	uint64_t n_dropped; /* lines */
};

/* Knowledge of the time before the first line. */
struct podlog_begin {
	int64_t started_ns; /* the container; 0: nothing is to be told, or it was */
	int64_t unread_ns;  /* how long nothing could be read before the first line */
	bool was_empty;     /* and before that there was nothing */
	int64_t first_ns;   /* 0: no line yet */
	/* Lines without a gap between them */
	int64_t from_ns;
	uint64_t bytes;
};

enum podlog_place { PODLOG_AT_START, PODLOG_IN_LINE, PODLOG_IN_REMARK, PODLOG_IN_REST };

struct podlog_lines {
	struct podlog_lines_events events;
	struct podlog_point point;

	uint64_t n_bytes;                       /* delivered by this */
	struct podlog_mark marks[PODLOG_MARKS]; /* oldest first */
	size_t n_marks;
	bool is_short;    /* until all marks are set: all was delivered by this */
	uint64_t overlap; /* bytes of the log that are asked for again, about */
	struct podlog_begin begin;

	/* Of the next stream */
	bool all;     /* what is served is new, all of it */
	bool doubts;  /* a time may have hidden something: look without one */
	bool scanned; /* and that was done just now */

	/* Of the present one */
	bool has_since, is_first;
	bool seeking, just_found;
	struct podlog_seek seek;
	enum podlog_place place;
	char pending[PODLOG_STAMP_MAX + 8]; /* a timestamp that has not come in full */
	size_t n_pending;
	char remark[PODLOG_REMARK_MAX];
	size_t n_remark;

	/* The present line */
	int64_t ns;
	int64_t max_ns; /* of all lines */
	uint32_t ordinal;
	size_t line_off; /* where it begins in out, unless it goes on from a batch before */
	bool goes_on;

	/* The second of the timestamp that was last read, up to the point, and its zone with the
	 * blank: most timestamps differ in their fraction only. */
	char second[20], zone[8];
	size_t n_zone; /* 0: none was read */
	int64_t second_ns;

	/* How far times may fall before the stream is doubted; what was seen of it. */
	int64_t fall_max_ns;
	unsigned n_falls;               /* that were no fault */
	bool has_long;                  /* lines that the runtime may have split */
	uint32_t recent[PODLOG_RECENT]; /* of times; 0: none */
	uint32_t n_recent;
	struct podlog_head heads[PODLOG_HEADS]; /* oldest first */
	size_t n_heads;
	bool head_ahead;    /* one of them is to be passed yet */
	uint64_t tail_hash; /* the last line that the file was said to have */
	bool has_tail;
	struct podlog_point tail_point; /* delivered by then */

	char out[PODLOG_BATCH];
	size_t out_len;
};

#define PODLOG_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t podlog_hash(uint64_t hash, const char *data, size_t len);

/* Deliver what is in out. */
int podlog_flush(struct podlog_lines *lines, struct err *err);
void podlog_tell_gap(
	struct podlog_lines *lines, enum podlog_gap_kind kind, int64_t after_ns, int64_t before_ns);

/* podlog_begin.c: what is in out is to be delivered. */
void podlog_begin_batch(struct podlog_lines *lines);
/* Lines are missing between the last one and the next. */
void podlog_begin_gap(struct podlog_lines *lines);

/* podlog_seek.c: a line begins, goes on, in a stream whose point was not found yet. */
int podlog_seek_line(struct podlog_lines *lines, int64_t ns);
int podlog_seek_bytes(struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used);
/* The point is not in the stream. */
int podlog_seek_failed(struct podlog_lines *lines);

/* podlog_order.c: may a line of this time follow the present one? 0, PODLOG_AGAIN. */
int podlog_check_order(struct podlog_lines *lines, int64_t ns);
/* A line of this time is delivered: does it pass the start of a file? */
void podlog_pass_heads(struct podlog_lines *lines, int64_t ns);

static inline void podlog_note_recent(struct podlog_lines *lines, int64_t ns)
{
	lines->recent[lines->n_recent++ % PODLOG_RECENT] = (uint32_t)ns;
}

#endif
