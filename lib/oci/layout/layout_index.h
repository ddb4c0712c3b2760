/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.json of an image layout (OCI image-spec, image-layout.md "index.json File"). Members and
 * values that others wrote into it stay as they are, in their order. An engine.
 */
#ifndef DLRUN_OCI_LAYOUT_LAYOUT_INDEX_H
#define DLRUN_OCI_LAYOUT_LAYOUT_INDEX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "oci/model/blob.h"

enum { LAYOUT_INDEX_MAX = 8 << 20 }; /* bytes: about 25,000 images of dlrun's */

/* An element of "manifests". */
struct layout_entry {
	const struct json *json;
	const char *name; /* annotation org.opencontainers.image.ref.name, or NULL */
	bool is_own;      /* dlrun wrote it */
	bool drop;        /* layout_index_write leaves it out */
};

struct layout_index {
	struct json *json; /* owned, with all that entries point to */
	struct VEC_OF(struct layout_entry) entries;
};

/* An empty text, or one of NULs only (what a power cut leaves), is an index without images.
 * E_DATA, E_DATA_LIMIT: it is no index. */
int layout_index_parse(
	const char *text, size_t len, const char *what, struct layout_index *ret, struct err *err);
void layout_index_done(struct layout_index *index);
#define AUTO_LAYOUT_INDEX AUTO(layout_index_done)

/* The descriptor in an entry; what: the index, for errors. */
int layout_entry_blob(const struct layout_entry *entry, const char *what, struct descriptor *ret,
	struct err *err);

/* The index without the dropped entries and with one more at the end (NULL: none). name: its
 * ref.name or NULL. */
void layout_index_write(const struct layout_index *index, const struct descriptor *add,
	const char *name, struct buf *out);

#endif
