/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a program failed, as far as the end of its output and its exit tell: the exception of a
 * Python traceback and where it was raised, memory or a disk that was full, a module, file or
 * program that is missing, a signal. An engine: bytes in, one sentence and what to do about it out.
 */
#ifndef DLRUN_APP_LIFECYCLE_FAILURE_H
#define DLRUN_APP_LIFECYCLE_FAILURE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "core/record/run.h"

/* Of the output that is read; of the sentence, in bytes (line and place apart). */
enum { FAILURE_TAIL = 32 << 10, FAILURE_LINE_MAX = 240, FAILURE_FILE_MAX = 120 };

struct failure_facts {
	const char *run_id;  /* paths below …/RUN_ID/attempts/N/tree/ are of the tree */
	const char *tree;    /* absolute directory of the tree; NULL: not known */
	const char *workdir; /* the same in a container; NULL: there is none */
	struct run_exit exit;
	bool in_container; /* the program has seen the image's files, not the machine's */
	bool is_cluster;   /* resources are what the run asked for */
	/* The run has secrets, and the output may hold their values: nothing is repeated but the
	 * name of an exception and where it was raised. */
	bool is_private;
};

/* Appends to reason, and to hint what to do; false, and nothing appended: nothing is recognised.
 * Output is a stranger's: both are printable UTF-8 of one line and limited length. Only the last
 * FAILURE_TAIL bytes count. */
bool failure_find(const struct failure_facts *facts, const char *output, size_t len,
	struct buf *reason, struct buf *hint);

#endif
