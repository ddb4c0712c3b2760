/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of submit and push about a snapshot and an image, and `submit --dry-run`.
 */
#ifndef DLRUN_CLI_RUNS_PREVIEW_H
#define DLRUN_CLI_RUNS_PREVIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "app/submit/diff.h"
#include "app/submit/submit.h"
#include "base/util/buf.h"
#include "base/util/err.h"

struct app;

/* "snapshot  main@4f2c91a +3 changed · 412 files · 3.1 MiB · 40 ms", what was left out on a second
 * line. */
void preview_print_snapshot(struct app *app, const struct snapshot *snapshot, int64_t ms);
/* "image     1 layer, 2 KiB · sha256:0123456789ab · 10 ms" */
void preview_print_image(struct app *app, const struct image *image, int64_t ms);

/* Each file with its size, and what was left out, on stdout. */
void preview_print_files(struct app *app, const struct snapshot *snapshot);
/* The same as members "files" and "excluded". */
void preview_add_files(const struct snapshot *snapshot, struct json *json);

/* The facts of the run that would be (list_files: each file, too) on stdout, or as
 * dlrun/preview/v1. Returns the exit status. */
int preview_print(struct app *app, const struct submit_options *options, bool list_files);
/* Print the objects that would be created in a cluster to stdout, as YAML documents or (json) JSON,
 * one per line. */
int preview_print_objects(struct app *app, const struct submit_options *options, bool json);

/*
 * The changed files of two runs (or a run and the tree) as a unified diff, made by git.
 */
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
