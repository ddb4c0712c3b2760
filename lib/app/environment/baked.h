/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading what the pod of a setup has sent (bake.sh): a tar with the lists "tops", "gone" and
 * "secrets", then tars of files. What it has becomes the entries of a layer, whose content stays
 * where it is in the file; memory is needed for the names only. Nothing of it is trusted.
 */
#ifndef DLRUN_APP_ENVIRONMENT_BAKED_H
#define DLRUN_APP_ENVIRONMENT_BAKED_H

#include <stdint.h>

#include "base/data/entry.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/vec.h"

/* A file or link of the environment. */
struct baked_file {
	struct entry entry;
	uint64_t at; /* of its content in the tar */
};

struct baked {
	const char *tree;           /* in the image, without its first slash: "dlrun/src" */
	const struct strv *secrets; /* K=V: no value of these may be in a file */
	int fd;                     /* of the tar; the list of links is added behind it */
	/* private */
	struct VEC_OF(struct baked_file) files;
	struct VEC_OF(struct baked_file) hardlinks; /* target: the path of another */
	struct arena arena;
	struct buf tops, gone; /* lists of names, a line for each */
	struct buf told;       /* a line "NAME PATH" for each file with a secret of the pod */
	struct buf *list;      /* that the present member is; or NULL: it is a file */
	struct digest digest;
	const char *chunk;
	uint64_t chunk_at;
	bool has_content;  /* of the present member some has come */
	struct buf window; /* its last bytes, where a value may have begun */
	/* result */
	struct entry_list entries;
	struct strv removed;
	uint64_t bytes;
};

void baked_done(struct baked *baked);

/* Fills in the result. E_SECRET: a file has the value of a secret; E_DATA, E_DATA_LIMIT. */
int baked_read(struct baked *baked, struct err *err);
/* For an entry_opener with is_part; ctx: a struct baked. */
int baked_open(void *ctx, const struct entry *entry, int *ret_fd, struct err *err);

#endif
