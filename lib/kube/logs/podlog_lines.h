/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of one container as the API server serves it (GET …/pods/NAME/log?timestamps=true): each
 * line behind an RFC 3339 timestamp and a blank, the bytes of the program as they are. An engine:
 * stamped bytes in, the program's bytes out, across cuts, so that no line is lost or doubled
 * without a word.
 *
 * What it knows of servers (kubelet, cri-client/pkg/logs): only the newest file of a rotated log is
 * served; sinceTime is cut to whole seconds and drops lines by their time wherever they stand; the
 * parts of a line that the runtime split have one timestamp, that of the first; a line's time may
 * be earlier than that of the line before it; a follow that falls behind rotation leaves files out
 * or begins the newest one anew.
 *
 * A point is the last byte delivered: the time of its line, the line's ordinal among the lines of
 * that time, how many bytes of it, and their hash. A new stream is read up to its point before
 * anything is delivered; where it is not found, its file is gone and all that is served is new.
 */
#ifndef DLRUN_KUBE_LOGS_PODLOG_LINES_H
#define DLRUN_KUBE_LOGS_PODLOG_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"

enum {
	PODLOG_TOKEN_SIZE = 128,
	PODLOG_STAMP_MAX = 40,   /* the longest timestamp that is taken */
	PODLOG_BATCH = 64 << 10, /* bytes of one call of data, at most */
	PODLOG_HEADS = 8,
	PODLOG_SINCE_SIZE = 32,
	PODLOG_REMARK_MAX = 256,
	PODLOG_RECENT = 16384,
	PODLOG_LONG = 16 << 10, /* runtimes split lines of this length */
};

struct podlog_point {
	char id[40];      /* of the container's instance: chosen by the caller, no blanks or ':' */
	int64_t time_ns;  /* of the line, since 1970; 0: nothing was delivered yet */
	int64_t max_ns;   /* the latest of any line so far */
	uint32_t ordinal; /* of the line among neighbours of the same time, from 1 */
	uint64_t len, hash; /* of the bytes of the line that were delivered, its LF too */
};
/* A point as text, and back; false: it is none. */
void podlog_point_format(const struct podlog_point *point, char out[static PODLOG_TOKEN_SIZE]);
bool podlog_point_parse(const char *text, struct podlog_point *ret);

/* A gap in which lines may be missing. */
struct podlog_gap {
	int64_t after_ns, before_ns; /* times of the lines around it; 0: not known */
	enum podlog_gap_kind {
		PODLOG_ROTATED,   /* the point's file was gone when a stream began */
		PODLOG_SKIPPED,   /* a file that was there was never served */
		PODLOG_BEGINNING, /* rotated before anything was read; after_ns is not known */
	} kind;
};

struct podlog_lines_events {
	/* At most PODLOG_BATCH bytes that end at a line's end where they can; time_ms of the last
	 * line in them, all of one millisecond. Return < 0: they count as not delivered. */
	int (*data)(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err);
	void (*gap)(void *ctx, const struct podlog_gap *gap);
	/* Something without a time: not of the program, but what a kubelet has to say. Bounded, as
	 * it came. */
	void (*remark)(void *ctx, const char *text, size_t len);
	void *ctx;
};

/*
 * The state, which is for this module and its tests alone
 */

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
	int64_t started_ns; /* the container; 0: nothing is to be reported, or it was */
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
	uint64_t overlap; /* bytes of the log that are requested again, about */
	struct podlog_begin begin;

	/* Of the next stream */
	bool all;     /* what is served is new, all of it */
	bool doubts;  /* a time may have hidden something: read without one */
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

	char second[20]; /* of the timestamp that was last read: most have the same */
	int64_t second_s;

	/* How far times may fall before the stream is doubted; what was seen of it. */
	int64_t fall_max_ns;
	unsigned n_falls;               /* that were no error */
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

/*
 * The interface
 */

/* point: where to go on, or NULL; from_start: the first stream brings all that there is. */
struct podlog_lines *podlog_lines_new(const struct podlog_lines_events *events,
	const struct podlog_point *point, bool from_start);
void podlog_lines_free(struct podlog_lines *lines);

/* The start time of the container on its node: allows reporting that files from before the first
 * line may be gone. To be called before anything is fed. */
void podlog_lines_started(struct podlog_lines *lines, int64_t started_ms);
/* To be called before the first line: for how long the log was not read until now, and whether it
 * was seen to be empty before that. */
void podlog_lines_unread(struct podlog_lines *lines, int64_t unread_ms, bool was_empty);
/* Whether the first line has not come yet, and podlog_lines_unread is needed to tell whether it
 * will be the program's first. */
bool podlog_lines_lacks_first(const struct podlog_lines *lines);

/* How the next stream is to be requested. */
struct podlog_plan {
	char since[PODLOG_SINCE_SIZE]; /* sinceTime, or "": from the start of the file */
	bool follow; /* false: not before a read without follow has looked for the point */
};
/* wants_follow: the caller would like to follow. */
void podlog_lines_plan(struct podlog_lines *lines, bool wants_follow, struct podlog_plan *ret);
/* A stream as planned begins. */
void podlog_lines_begin(struct podlog_lines *lines);
/* Bytes of the stream. 0; 1 (PODLOG_AGAIN): this stream cannot be trusted further, plan another;
 * negative: of data. */
enum { PODLOG_AGAIN = 1 };
int podlog_lines_feed(struct podlog_lines *lines, const char *data, size_t len, struct err *err);
/* A line of which the end has not come is held back up to PODLOG_BATCH bytes until this: for the
 * caller to say after some time. */
int podlog_lines_flush(struct podlog_lines *lines, struct err *err);
/* The stream has ended. is_whole: it did not follow, and ended properly in terms of HTTP: all was
 * served. 0; PODLOG_AGAIN: plan another, there is more; negative: of data. */
int podlog_lines_end(struct podlog_lines *lines, bool is_whole, struct err *err);
/* Nothing comes any more: report what is known to be missing and was not reported yet. */
void podlog_lines_finish(struct podlog_lines *lines);
/* The next plan is to read the whole file, without follow first. */
void podlog_lines_doubt(struct podlog_lines *lines);

/* The response to a small request for the first line of the present file (limitBytes) or its last
 * one (tailLines=1). The first: lets gaps of rotation be seen. */
void podlog_lines_head(struct podlog_lines *lines, const char *data, size_t len);
/* Whether the last line is not the one that was delivered last; of one response it is said once
 * only while nothing more is delivered. */
bool podlog_lines_is_behind(struct podlog_lines *lines, const char *data, size_t len);

/* The point delivered so far; lives as long as lines. The id is the one given. */
const struct podlog_point *podlog_lines_point(const struct podlog_lines *lines);

/* The time in front of a line: its length with the blank, 0 if there is none. */
size_t podlog_stamp(const char *data, size_t len, int64_t *ret_ns);

#endif
