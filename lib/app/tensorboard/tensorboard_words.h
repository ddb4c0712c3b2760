/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsers for TensorBoard's output and for how it is started: engines, bytes in, facts out. Nothing
 * of the input is trusted; what is returned is plain text.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_WORDS_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum { TENSORBOARD_VERSION_SIZE = 32, TENSORBOARD_RESPONSE_MAX = 64 << 10 };

/* "TensorBoard 2.21.0 at http://127.0.0.1:34567/prefix/ (Press CTRL+C to quit)", which it writes to
 * stderr once it listens: 0 for any other line. */
struct tensorboard_line {
	uint16_t port;
	char version[TENSORBOARD_VERSION_SIZE];
};
bool tensorboard_line_read(const char *line, struct tensorboard_line *ret);

/* The words in front of a script that make its interpreter, if that is a Python: of "#!/a/python
 * -s", "#!/usr/bin/env python3", and the two lines for sh that pip, uv and conda write where the
 * path is long or has blanks. head: the first bytes of the script. */
bool tensorboard_python_read(const char *head, size_t len, struct strv *ret);

/* A response to GET /data/environment, head and body: whether TensorBoard gives it, and its version
 * (empty: it does not say). */
bool tensorboard_response_read(
	const char *response, size_t len, char ret_version[static TENSORBOARD_VERSION_SIZE]);

/* The TensorBoard that failed, for the error. */
struct tensorboard_who {
	const char *path;    /* of the program, or where it was looked for */
	const char *version; /* NULL or empty: not known */
	const char *install; /* "/a/python -m pip install": packages follow */
	const char *plot;    /* the run whose curves can be read without it; NULL: any */
};
/* Why a TensorBoard that said this on stderr ended before it answered: E_TENSORBOARD_PKG_RESOURCES,
 * E_TENSORBOARD_MISSING (its package), else E_TENSORBOARD_START. */
int tensorboard_explain(
	const char *said, size_t len, const struct tensorboard_who *who, struct err *err);
/* The last line that is not empty, without controls, at most 200 bytes; the caller frees. NULL:
 * there is none. */
char *tensorboard_last_line(const char *said, size_t len);

/* "/" and 26 characters of 31: 128 bits. */
enum { TENSORBOARD_SECRET_SIZE = 28 };
void tensorboard_secret_make(char ret[static TENSORBOARD_SECRET_SIZE]);
/* Whether the path and query of a request are below the secret. Takes the same time for every path
 * of one length. */
bool tensorboard_secret_fits(const char *secret, const char *target);

/*
 * Start of TensorBoard by a Python interpreter (tensorboard_child.py): the program and its
 * parameters are read from standard input, so that no secret is in the arguments.
 */

enum { TENSORBOARD_CHILD_MAX = 32 << 10 };

struct tensorboard_child {
	const char *logdir; /* NULL: $DLRUN_OUTPUT_DIR there */
	const struct strv *words;
	/* Standard input is a socket: it says there in one line of JSON {alone, version} how it
	 * runs, and hands out a socket of its network for each byte that comes. */
	bool has_link;
	bool is_fast;     /* nobody else can connect to it there anyway */
	bool has_scratch; /* TMPDIR is private already */
};
/* Argument of "python -c". */
extern const char tensorboard_child_loader[];
/* The two lines for its standard input, whose end is TensorBoard's. */
void tensorboard_child_text(const struct tensorboard_child *child, struct buf *out);
/* The arguments of TensorBoard but --logdir: on a free port of 127.0.0.1, below prefix. */
void tensorboard_child_argv(const char *prefix, struct strv *out);

#endif
