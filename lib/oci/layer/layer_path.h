/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in layers (OCI image-spec, layer.md). A name of a tar member is relative to the root of the
 * image; dlrun's paths are relative to the workdir. An engine.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_PATH_H
#define DLRUN_OCI_LAYER_LAYER_PATH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/entry.h"
#include "base/util/err.h"

#define LAYER_WHITEOUT_PREFIX ".wh."
#define LAYER_OPAQUE_NAME     ".wh..wh..opq"

/* Whether an entry's path can stand in a layer: relative, no empty component, "." or "..", none of
 * over 255 bytes, none that starts with .wh., at most 4,095 bytes in all. */
bool layer_path_is_valid(const char *path);

/* The workdir without its first slash: "" for "/". */
const char *layer_prefix(const char *workdir);

enum layer_place {
	LAYER_OUTSIDE, /* no concern of the workdir's */
	LAYER_ABOVE,   /* the workdir itself, or a parent of it */
	LAYER_INSIDE,
};
enum layer_mark {
	LAYER_PLAIN,   /* no whiteout */
	LAYER_REMOVED, /* path is what the whiteout removes */
	LAYER_EMPTIED, /* an opaque whiteout: path is the directory */
};

struct layer_path {
	enum layer_place place; /* of path: what is removed, emptied or there */
	enum layer_mark mark;
	char path[ENTRY_PATH_MAX + 1]; /* LAYER_INSIDE: relative to the workdir */
};

/* E_IMAGE for a name that is empty, absolute, too long, climbs with "..", or is a whiteout of
 * nothing. "." components and doubled slashes are dropped. */
int layer_path_parse(
	const char *name, const char *workdir, struct layer_path *ret, struct err *err);

#endif
