/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that a run has written, read without keeping them here: a list of files, parts of one of
 * them. For every target, of running and ended runs. On the loop: done is called once, never from
 * within the starting call.
 */
#ifndef DLRUN_APP_TRANSFER_OUTPUTS_H
#define DLRUN_APP_TRANSFER_OUTPUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/results.h"
#include "core/target/target.h"

enum { OUTPUTS_FILES_MAX = 100 * 1000 };

struct outputs_call;
typedef void outputs_done_fn(void *ctx, int status, struct err *error);
/* How much a list is worth: all that it takes, or (brief) no more than a question. */
enum outputs_effort { OUTPUTS_THOROUGH, OUTPUTS_BRIEF };
/* Regular files, in byte order of their paths; at most max (then status is ERR_LIMIT, with what is
 * there in *ret). path: that file alone, if it is there; or NULL. */
struct outputs_call *outputs_list(struct target *target, const char *handle, const char *path,
	enum outputs_effort effort, size_t max, struct outputs_files *ret, outputs_done_fn *done,
	void *ctx);
/* The same for one that waits for it; paths (fetch_sink.h) may be NULL, and is borrowed.
 * from_tree: of the tree of the attempt. interrupted as of target_fetch. */
struct fetch_paths;
int outputs_list_now(struct target *target, const char *handle, struct fetch_paths *paths,
	bool from_tree, const volatile int *interrupted, struct outputs_files *ret,
	struct err *err);
/* The bytes of a regular file from offset on, at most max. E_FETCH_PATH: there is none. A negative
 * return of data ends it. */
struct outputs_call *outputs_read(struct target *target, const char *handle, const char *path,
	uint64_t offset, uint64_t max,
	int (*data)(void *ctx, const void *data, size_t len, struct err *err),
	outputs_done_fn *done, void *ctx);
/* Give up; no done. NULL is accepted. */
void outputs_cancel(struct outputs_call *call);

#endif
