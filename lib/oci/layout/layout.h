/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OCI image layout on disk (OCI image-spec, image-layout.md): oci-layout, index.json,
 * blobs/sha256/. dlrun's own store of images, the target of `push --to oci:DIR` and the source of
 * bases.
 *
 * Order: a blob has its name only once its content is durable; the names are durable before
 * index.json tells of the manifest. A commit costs one sync for each new blob and one for their
 * directory. index.json is replaced without a sync while all its entries are dlrun's (a power cut
 * may lose entries, never blobs: images are found by their digest), else with one.
 *
 * Several processes: index.json changes under an exclusive lock on index.json.lock (as BuildKit
 * does it). An open sink holds a shared lock on oci-layout, and layout_gc an exclusive one, so that
 * blobs which no manifest names yet are safe. Readers need no lock and no permission to write.
 */
#ifndef DLRUN_OCI_LAYOUT_LAYOUT_H
#define DLRUN_OCI_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "oci/model/blob.h"

struct layout;

/* create: make an empty one where there is nothing (or an empty directory); what an interrupted
 * creation left is completed. Anything else that is no layout: E_IMAGE_BASE. */
int layout_open(const char *dir, bool create, struct layout **ret, struct err *err);
void layout_free(struct layout *layout);
AUTO_POINTER(struct layout, layout_free)
#define AUTO_LAYOUT AUTO(layout_free_auto)

/* The layout as a destination; it must outlive the sink. Blocks while a layout_gc is under way; a
 * lock that cannot be had is reported by the sink's first call (E_IO_LOCK after a minute). */
struct sink *layout_sink(struct layout *layout);
/* The same for images whose base stays in a registry: a layer that is to be linked without its
 * content is left out, and the manifest may name it all the same. */
struct sink *layout_sink_apart(struct layout *layout);

/* The descriptor that a tag (annotation org.opencontainers.image.ref.name), a digest (whether the
 * index has it or not), or, with name NULL, the only manifest of the layout stands for.
 * E_IMAGE_BASE with the tags as evidence. */
int layout_resolve(
	struct layout *layout, const char *name, struct descriptor *ret, struct err *err);
/* The names in the index, in its order. */
int layout_names(struct layout *layout, struct strv *ret, struct err *err);
/* A blob for reading, its size checked (E_IMAGE); E_IMAGE_BASE when missing. */
int layout_open_blob(
	struct layout *layout, const struct descriptor *blob, int *ret_fd, struct err *err);
/* The bytes of a small blob (at most max, else E_DATA_LIMIT), size and digest checked (E_IMAGE).
 * ret is initialized by the caller. */
int layout_read_blob(struct layout *layout, const struct descriptor *blob, size_t max,
	struct buf *ret, struct err *err);
/* Read all of a blob that did not read as it should. E_IMAGE when its content is not that of its
 * digest, with a hint how to be rid of it; who needs it next writes it anew. */
int layout_check_blob(struct layout *layout, const struct descriptor *blob, struct err *err);
/* Remove the file of such a blob; it stays while others write to the layout. 1: removed. */
int layout_remove_damaged(struct layout *layout, const struct descriptor *blob, struct err *err);

/* Remove manifests from index.json by their names, and those whose blob is gone, and then every
 * blob that no manifest left reaches, and stale temporary files. keep: digests of manifests that
 * stay although no name points to them. Either list may be NULL. E_IO_LOCK when somebody is writing
 * for longer than two seconds: nothing is removed. ret_bytes and ret_blobs count what was. */
int layout_gc(struct layout *layout, const struct strv *remove_names, const struct strv *keep,
	uint64_t *ret_bytes, size_t *ret_blobs, struct err *err);
/* Count what layout_gc would remove, without removing it. */
int layout_gc_preview(struct layout *layout, const struct strv *remove_names,
	const struct strv *keep, uint64_t *ret_bytes, size_t *ret_blobs, struct err *err);

/*
 * A destination that takes nothing: what would be written there.
 */

/* Whether the real destination has the blob. */
typedef bool dry_sink_has_fn(void *ctx, const struct descriptor *blob);
/* name: of the real destination; stage_dir_fd: for layers that are made to be measured. Both
 * outlive the sink. The manifest is not counted. */
struct sink *dry_sink(const char *name, int stage_dir_fd, dry_sink_has_fn *has, void *ctx);

/*
 * index.json of an image layout (OCI image-spec, image-layout.md "index.json File"). Members and
 * values that others wrote into it stay as they are, in their order. An engine.
 */

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
