/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing one image layer: a tar archive (gnutar, so that every byte of a name survives and no
 * locale matters) with a fixed order, time, owner and mode (OCI image-spec, layer.md).
 *
 * Entries are sorted by bytes with parents before children and whiteouts before their siblings;
 * files 0664 or 0775 where they have no mode of their own, directories 0775, uid and gid 0, no user
 * names, one time for all. There is no entry for the parents of workdir.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_H
#define DLRUN_OCI_LAYER_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "oci/codec/codec.h"
#include "oci/model/blob.h"

enum { LAYER_MTIME = 315619200 };    /* 1980-01-02T00:00:00Z: zip files know nothing earlier */
#define LAYER_MTIME_MAX 8589934591LL /* eleven octal digits */

struct layer_spec {
	const char *workdir;                /* absolute, normal form: "/dlrun/src" */
	const struct entry *const *entries; /* sorted */
	size_t n_entries;
	const char *const
		*whiteouts; /* sorted relative paths that disappear; files or whole directories */
	size_t n_whiteouts;
	bool no_dirs; /* no entries for directories: those of lower layers stay as they are */
	bool full; /* with an opaque whiteout, so that what layers below have in workdir disappears,
	            * and with an entry for workdir even if there is nothing else */
	struct entry_opener opener;
	int64_t mtime_s; /* 0 to LAYER_MTIME_MAX, E_USAGE otherwise */
	enum codec codec;
};

struct layer_result {
	char diff_id[DIGEST_TEXT_SIZE]; /* of the uncompressed tar */
	struct descriptor blob;         /* media type is left empty */
	uint64_t tar_size;
};

/* Writes into stage, which is finished (blob_stage_end). A content whose size or digest is not that
 * of its entry: E_IO_CHANGED naming it; a path that an image cannot hold (.wh.x): E_SNAPSHOT_NAME;
 * after any failure the stage is worthless. Memory does not depend on file sizes. Blocks; reading,
 * hashing and compression go on beside each other. */
int layer_write(const struct layer_spec *spec, struct blob_stage *stage, struct layer_result *ret,
	struct err *err);

/*
 * The headers of a tar archive in GNU's format (GNU tar manual, "Basic Tar Format" and "GNU
 * Extensions"): names and targets of any length, byte for byte, and files of any size. Owner and
 * group are 0 and have no names. No I/O.
 */

enum {
	LAYER_TAR_BLOCK = 512,
	LAYER_TAR_END = 2 * LAYER_TAR_BLOCK, /* zero bytes, behind the last member */
};

enum layer_tar_type {
	LAYER_TAR_FILE = '0',
	LAYER_TAR_LINK = '2', /* symbolic */
	LAYER_TAR_DIR = '5',
};

struct layer_tar_member {
	enum layer_tar_type type;
	const char *name;   /* of a directory: with a slash at its end */
	unsigned mode;      /* permissions */
	uint64_t size;      /* of the content that follows, before its padding; files only */
	int64_t mtime_s;    /* 0 to LAYER_MTIME_MAX */
	const char *target; /* of a link; else NULL */
};

/* Adds whole blocks to out. */
void layer_tar_header(const struct layer_tar_member *member, struct buf *out);
/* How many zero bytes follow a content of that size. */
size_t layer_tar_padding(uint64_t size);

/*
 * Names in layers (OCI image-spec, layer.md). A name of a tar member is relative to the root of the
 * image; dlrun's paths are relative to the workdir. An engine.
 */

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

/*
 * Compute the layer that turns one list of entries into another (OCI image-spec, layer.md,
 * "Representing Changes"). An engine.
 */

/* Entries that live elsewhere, sorted by path, none the directory of another. */
struct entry_refs VEC_OF(const struct entry *);

/* The tree of lower with upper on top of it: what upper does not replace. An entry of upper hides
 * one at its path, those below its path, and a file or link where upper needs a directory. */
void entry_refs_cover(
	const struct entry_refs *lower, const struct entry_refs *upper, struct entry_refs *ret);

struct layer_diff {
	struct entry_refs entries; /* of `to`: new ones and changed ones */
	struct strv whiteouts;     /* sorted; of whole directories where nothing of them is left */
};

/* From one tree to another. What turns into another kind needs no whiteout: an entry replaces
 * whatever has its path, a directory any file or link. false, and nothing returned, when it would
 * be more than max entries and whiteouts. */
bool layer_diff_make(const struct entry_refs *from, const struct entry_refs *to, size_t max,
	struct layer_diff *ret);
void layer_diff_done(struct layer_diff *diff);
#define AUTO_LAYER_DIFF AUTO(layer_diff_done)

#endif
