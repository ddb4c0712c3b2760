/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a layer member by member (OCI image-spec, layer.md). What comes out was checked: names
 * lead nowhere else, whiteouts are told from files, devices and sparse files are refused, set-id
 * bits are not passed on. The archive is unpacked and hashed by a thread beside the reader.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_READ_H
#define DLRUN_OCI_LAYER_LAYER_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "oci/layer/unpack.h"

enum { LAYER_MEMBERS_MAX = 2000000 };

enum layer_kind {
	LAYER_DIR,
	LAYER_FILE,
	LAYER_LINK,     /* target: as written */
	LAYER_HARDLINK, /* target: a path below the workdir */
	LAYER_WHITEOUT, /* path and what is below it goes, as far as lower layers made it */
	LAYER_OPAQUE, /* what is below path goes, as far as lower layers made it; "": everything */
};

struct layer_member {
	enum layer_kind kind;
	const char *path;   /* relative to the workdir; valid until the next call */
	const char *target; /* the same */
	bool exec;
	uint64_t size; /* of a file */
	struct timespec mtime;
};

struct layer_reader;
/* spec must outlive the reader; its fd is at the start of the blob. */
struct layer_reader *layer_reader_new(const struct unpack_spec *spec);
/* The next member below the workdir: 1; 0 at the end, when all of the blob was read and both
 * digests are right. E_IMAGE, or E_DATA_LIMIT over spec's max_bytes or LAYER_MEMBERS_MAX. */
int layer_reader_next(struct layer_reader *reader, struct layer_member *ret, struct err *err);
/* A file's content, in order: 1 with a part, 0 at its end, when there were size bytes. May be left
 * out. *ret_data is valid until the next call. */
int layer_reader_data(
	struct layer_reader *reader, const void **ret_data, size_t *ret_len, struct err *err);
void layer_reader_free(struct layer_reader *reader);
AUTO_POINTER(struct layer_reader, layer_reader_free)
#define AUTO_LAYER_READER AUTO(layer_reader_free_auto)

#endif
