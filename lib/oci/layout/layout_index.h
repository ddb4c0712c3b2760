/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.json of an image layout (OCI image-spec, image-layout.md "index.json File"), changed as
 * text: what others wrote into it stays byte by byte, and ten thousand entries cost no tree. An
 * engine.
 */
#ifndef DLRUN_OCI_LAYOUT_LAYOUT_INDEX_H
#define DLRUN_OCI_LAYOUT_LAYOUT_INDEX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "oci/model/blob.h"

enum { LAYOUT_INDEX_MAX = 8 << 20 }; /* bytes: about 25,000 images of dlrun's */

/* An element of "manifests", in the text of the index. */
struct layout_entry {
	const char *text;
	size_t len;
	bool drop; /* layout_index_write leaves it out */
};

struct layout_index {
	const char *text; /* not owned */
	size_t len;
	size_t first, last; /* of "manifests": at its [, behind its ] (or around null) */
	struct VEC_OF(struct layout_entry) entries;
};

/* text must outlive ret. An empty text, or one of NULs only (what a power cut leaves), is an index
 * without images. E_DATA, E_DATA_LIMIT: it is no index. */
int layout_index_parse(
	const char *text, size_t len, const char *what, struct layout_index *ret, struct err *err);
void layout_index_done(struct layout_index *index);
#define AUTO_LAYOUT_INDEX AUTO(layout_index_done)

/* The parsed content of an entry. */
struct layout_row {
	struct descriptor blob;
	char *name; /* annotation org.opencontainers.image.ref.name, or NULL */
};
int layout_entry_read(const struct layout_entry *entry, const char *what, struct layout_row *ret,
	struct err *err);
void layout_row_done(struct layout_row *row);
#define AUTO_LAYOUT_ROW AUTO(layout_row_done)

/* Whether the entry can have the text in one of its strings; false is certain. */
bool layout_entry_may_have(const struct layout_entry *entry, const char *text);

/* Whether dlrun wrote the entry. */
bool layout_entry_is_own(const struct layout_entry *entry);

/* The index without the dropped entries and with one more at the end (NULL: none). name: its
 * ref.name or NULL. */
void layout_index_write(const struct layout_index *index, const struct descriptor *add,
	const char *name, struct buf *out);

#endif
