/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing one image layer: a tar archive (gnutar, so that every byte of a name survives and no
 * locale matters) with a fixed order, time, owner and mode (OCI image-spec, layer.md).
 *
 * Entries are sorted by bytes with parents before children and whiteouts before their siblings;
 * files 0664 or 0775, directories 0775, uid and gid 0, no user names, one time for all. There is no
 * entry for the parents of workdir.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_H
#define DLRUN_OCI_LAYER_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
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

#endif
