/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that a program or its framework writes down among its results: params.json, args.json,
 * hparams.yaml (Lightning), hparams.yml (Accelerate), .hydra/overrides.yaml and
 * .hydra/config.yaml. An object within one becomes members with a dot in their name, a list its
 * JSON text.
 *
 * They may lie anywhere. Of several of one name the one nearest to the top counts, and of those
 * the newest; what is nearer goes before what is deeper, and else the order above counts.
 */
#ifndef DLRUN_CORE_RECORD_PARAMS_H
#define DLRUN_CORE_RECORD_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "core/record/outputs_files.h"

enum {
	PARAMS_FILES = 6,
	PARAMS_FILE_MAX = 256 << 10,
	PARAMS_MAX = 500,
	PARAMS_DEPTH_MAX = 8,
	PARAMS_KEY_MAX = 200,
	PARAMS_TEXT_MAX = 1000,     /* bytes of a value; what is longer is left out */
	PARAMS_LEVELS = 6,          /* directories below the top that are looked into */
	PARAMS_ENTRIES = 20 * 1000, /* names that one look reads */
};

/* Those of files that count, in their order, at most PARAMS_FILES. */
size_t params_choose(
	const struct outputs_files *files, const struct outputs_file *ret[static PARAMS_FILES]);
/* An engine: what the file of that path says, in its flat form; NULL where it cannot be read. The
 * caller frees. */
struct json *params_read(const char *path, const char *text, size_t len);

/* Add what to lacks; from may be NULL. */
void params_complete(const struct json *from, struct json *to);

/* Those below a directory here. */
struct params;
struct params *params_new(const char *outputs);
/* Read again the files that have changed; now and then, or (all) at once, look for others. What
 * cannot be read leaves the parameters as they are. */
void params_look(struct params *params, bool all);
/* An object; the caller frees. */
struct json *params_json(const struct params *params);
void params_free(struct params *params);
AUTO_POINTER(struct params, params_free)

#endif
