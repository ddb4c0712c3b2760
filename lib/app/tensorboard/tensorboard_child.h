/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start of TensorBoard by a Python interpreter (tensorboard_child.py): the program and its
 * parameters are read from standard input, so that no secret is in the arguments.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_CHILD_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_CHILD_H

#include <stdbool.h>

#include "base/util/buf.h"
#include "base/util/vec.h"

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
/* The words of TensorBoard but --logdir: on a free port of 127.0.0.1, below prefix. */
void tensorboard_child_words(const char *prefix, struct strv *out);

#endif
