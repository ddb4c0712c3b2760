/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that a program or its framework writes down among its results: params.json, args.json,
 * hparams.yaml (Lightning), hparams.yml (Accelerate), .hydra/overrides.yaml and
 * .hydra/config.yaml. An object within one becomes members with a dot in their name, a list its
 * JSON text.
 *
 * The files may lie anywhere. Of several files of one name the one nearest to the top counts, and
 * of those the newest; a nearer file takes precedence over a deeper one, and files of the same
 * depth go by the order above.
 */
#ifndef DLRUN_CORE_RECORD_PARAMS_H
#define DLRUN_CORE_RECORD_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/vec.h"

/* A list of files that a run has written. */
struct outputs_file {
	char *path; /* below the outputs; any bytes but NUL, without "." and ".." */
	uint64_t size;
	int64_t mtime_ns;
};
struct outputs_files VEC_OF(struct outputs_file);
void outputs_files_done(struct outputs_files *files);

enum {
	PARAMS_FILES = 6,
	PARAMS_FILE_MAX = 256 << 10,
	PARAMS_MAX = 500,
	PARAMS_DEPTH_MAX = 8,
	PARAMS_KEY_MAX = 200,
	PARAMS_TEXT_MAX = 1000,     /* bytes of a value; what is longer is left out */
	PARAMS_LEVELS = 6,          /* directories below the top that are looked into */
	PARAMS_ENTRIES = 20 * 1000, /* names that one poll reads */
};

/* Choose the files that count, in order of precedence, at most PARAMS_FILES. */
size_t params_choose(
	const struct outputs_files *files, const struct outputs_file *ret[static PARAMS_FILES]);
/* An engine: the content of the file at that path, in its flat form; NULL where it cannot be read.
 * The caller frees. */
struct json *params_read(const char *path, const char *text, size_t len);

/* Add the members that to lacks; from may be NULL. */
void params_complete(const struct json *from, struct json *to);

/* Parameters of the files below a local directory. */
struct params;
struct params *params_new(const char *outputs);
/* Read again the files that have changed; now and then, or (all) at once, search for others. Files
 * that cannot be read leave the parameters as they are. */
void params_poll(struct params *params, bool all);
/* An object; the caller frees. */
struct json *params_json(const struct params *params);
void params_free(struct params *params);
AUTO_POINTER(struct params, params_free)

#endif
