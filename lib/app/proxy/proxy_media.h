/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pictures, videos and sounds of several runs beside each other, or of the steps of one (`dlrun
 * proxy`). An engine: lists of files in, HTML out. Files whose paths differ in numbers only
 * ("samples/epoch_12.png") are the steps of one row, the newest first.
 *
 * They are served from the name of the page itself, since a browser takes the names of several runs
 * for several sites: only as what proxy_type_of calls a picture, a video or a sound, which has no
 * scripts, whatever the file contains.
 */
#ifndef DLRUN_APP_PROXY_PROXY_MEDIA_H
#define DLRUN_APP_PROXY_PROXY_MEDIA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "base/util/vec.h"
#include "core/record/results.h"
#include "core/record/run.h"

enum {
	PROXY_MEDIA_ROWS = 40,
	PROXY_MEDIA_STEPS = 24,    /* of a row with one run; with more runs each has its share */
	PROXY_MEDIA_STEPS_MIN = 2, /* of each run */
};

struct proxy_media {
	const struct run *run;
	const struct outputs_files *files;
};
struct proxy_media_list VEC_OF(struct proxy_media);

/* Add a table with a column for each run; nothing where no run has such files. */
void proxy_media_add(const struct proxy_media_list *list, struct buf *out);

/* Split the request target: the run, and where "/PATH?v=…" begins in target. false: it is of
 * another form. */
bool proxy_media_parse(const char *target, char ret_run[static RUN_ID_SIZE], const char **ret_path);
/* The version of a file, as its URL and its ETag tell it; the caller frees. */
char *proxy_media_version(const struct outputs_file *file);

#endif
