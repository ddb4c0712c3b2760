/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a log grew: a text file beside it with one line for each mark, `<wall ms> <bytes>`: at that
 * time the log had that many bytes. Written by the supervisor alone, at least once a second while
 * the log grows; both numbers never go down. A line without newline is being written and does not
 * count.
 */
#ifndef DLRUN_CORE_ATTEMPT_MARKS_H
#define DLRUN_CORE_ATTEMPT_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MARK_SIZE = 48 }; /* the longest line and NUL */

struct mark {
	int64_t time_ms;
	int64_t offset;
};

/* An engine: a line with its newline into out, returns its length. */
size_t mark_format(const struct mark *mark, char out[static MARK_SIZE]);
/* The line at s (len bytes). Returns how many bytes it took: 0 if its newline is not there yet, and
 * *ret_ok = false for a line that is no mark. */
size_t mark_parse(const char *s, size_t len, struct mark *ret, bool *ret_ok);

/* Follows a file of marks: the marks in order, also those that are added later. */
struct marks_reader {
	int fd; /* -1: no marks */
	char pending[4096];
	size_t len, at;
	struct mark last; /* the newest that was returned; numbers that go down are raised to it */
};
void marks_reader_init(struct marks_reader *reader, const char *path);
void marks_reader_done(struct marks_reader *reader);
/* The next mark, or false: none for now. */
bool marks_reader_next(struct marks_reader *reader, struct mark *ret);

#endif
