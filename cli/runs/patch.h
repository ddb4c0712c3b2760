/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The changed files of two runs (or a run and the tree) as a unified diff, made by git.
 */
#ifndef DLRUN_CLI_RUNS_PATCH_H
#define DLRUN_CLI_RUNS_PATCH_H

#include <stdbool.h>

#include "app/submit/diff.h"
#include "base/util/buf.h"
#include "base/util/err.h"

enum { PATCH_MAX = 64 << 20, PATCH_FILE_MAX = 8 << 20 };

/* b NULL: the tree below root. Files over PATCH_FILE_MAX are left out; *ret_skipped counts them.
 * Blocks for git. E_USAGE where there is no git, ERR_LIMIT over PATCH_MAX. */
struct patch_request {
	struct session *session;
	const struct run *a, *b;
	const char *root;
	const struct diff_report *report;
	bool color;
};
int patch_make(
	const struct patch_request *request, struct buf *ret, size_t *ret_skipped, struct err *err);

#endif
