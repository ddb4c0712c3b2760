/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results from the tree: files that a program creates or changes where it runs are kept beside what
 * it writes to $DLRUN_OUTPUT_DIR, by hard links alone.
 *
 *	runs/ID/outputs/PATH    what readers of results see; PATH is the path in the tree
 *	runs/ID/collected/PATH  the same file once more: which files of the outputs are collected
 *	                        ones, and what the next attempt begins with
 *	attempts/N/started      made when the tree is complete: what has changed since is a result
 *	attempts/N/started.dirs the directories that it had then, with their inodes
 *	attempts/N/collected.json  what became of it, once the attempt has ended; if it is missing
 *	                        or not complete, whoever needs the results next collects them
 *
 * A file or symbolic link counts as changed when its status has changed (ctime), which a program
 * cannot set, and when it lies below a directory that the program has moved there: one whose
 * status has changed and that was not there, by its inode, when the tree was complete. Version
 * control, byte code and caches of tools never count, nor do data and what collect.exclude: names.
 * What the program has put into the outputs itself stays; a collected file of the same path lies
 * beside it as PATH.tree. Below an entry of `outputs:` whose link the program has replaced by a
 * directory, the tree's file wins. What the program has removed from its tree is removed from both
 * places.
 *
 * Each step leaves a state from which the next call goes on, so that any of them may be killed; a
 * lock of the run keeps them apart.
 */
#ifndef DLRUN_CORE_ATTEMPT_COLLECT_H
#define DLRUN_CORE_ATTEMPT_COLLECT_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "core/attempt/attempt.h"

#define COLLECT_DIR    "collected"      /* of the run */
#define COLLECT_REPORT "collected.json" /* of the attempt */
#define COLLECT_DIRS   "started.dirs"   /* of the attempt */
#define COLLECT_SUFFIX ".tree"
#define COLLECT_SCHEMA "dlrun/collected/v1"

enum {
	COLLECT_FILES_MAX = 500 * 1000, /* changed ones; further ones are counted as left out */
	COLLECT_DEPTH_MAX = 256,        /* of directories */
	COLLECT_NAMED_MAX = 8,          /* of each kind in a report */
};

enum collect_when {
	COLLECT_EVENTS,  /* it runs: event files and files of parameters only */
	COLLECT_RUNNING, /* it runs: all that is there now */
	COLLECT_ENDED,   /* the last time; the report is written */
};

/* Writes dir/COLLECT_DIRS for dir/tree, based on an existing one: then only directories are read
 * whose status has changed. A tree that waits for its attempt is listed ahead. */
void collect_list_dirs(const char *dir);
/* dir: of an attempt whose tree is complete and is about to be given to its program. */
int collect_mark(const char *dir, struct err *err);
/* Returns when a file that is written now has a later time than the mark: at once, or some
 * milliseconds later where the system's clock is coarse. */
void collect_pass_mark(const char *dir);

/* Brings results of the attempt in dir to the outputs of its run. Does nothing without a mark.
 * Blocks, for other collectors of the run too (but not for COLLECT_EVENTS). Errors of single files
 * go to the report; E_IO where the disk is full or fails: what could be done is done, and the
 * report says that it is not complete. */
int collect_results(
	const char *dir, const struct attempt_job *job, enum collect_when when, struct err *err);
/* The same with COLLECT_ENDED for an attempt that is over, unless that has been done. */
int collect_finish(const char *dir, struct err *err);

/* Put the results of earlier attempts into the tree of the attempt in dir, each at its path, over
 * the files of the snapshot. */
int collect_restore(const char *dir, const struct attempt_job *job, struct err *err);

/* {"schema", "complete", "files", "bytes", "unread", "warnings": [sentence…]}: the files that are
 * results of this attempt; how many of them could not be collected; warnings for the user. NULL:
 * nothing is known. The caller frees. */
struct json *collect_read_report(const char *dir);

/* Event files of TensorBoard, what its plugins read beside them, and files that programs write
 * their parameters to: results of COLLECT_EVENTS. */
bool collect_is_telling(const char *path);

#endif
