/*
 * An OCI image layout on disk (OCI image-spec, image-layout.md): oci-layout, index.json,
 * blobs/sha256/. dlrun's own store of images, the target of `push --to oci:DIR` and the source of
 * bases. Writers in several processes exclude each other by a lock on index.json's side file.
 */
#ifndef DLRUN_OCI_LAYOUT_H
#define DLRUN_OCI_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/err.h"
#include "base/vec.h"
#include "oci/blob.h"

struct layout;

/* create: make an empty one where there is nothing (or an empty directory). Anything else that is
 * no layout: E_IMAGE_BASE. */
int layout_open(const char *dir, bool create, struct layout **ret, struct err *err);
void layout_free(struct layout *layout);
AUTO_POINTER(struct layout, layout_free)
#define AUTO_LAYOUT AUTO(layout_free_auto)

/* The layout as a destination; it must outlive the sink. */
struct sink *layout_sink(struct layout *layout);

/* The descriptor that a tag (annotation org.opencontainers.image.ref.name), a digest, or, with
 * name NULL, the only manifest of the layout stands for. E_IMAGE_BASE with the tags as evidence. */
int layout_resolve(struct layout *layout, const char *name, struct descriptor *ret, struct err *err);
/* A blob for reading, its size checked; E_IMAGE_BASE when missing. */
int layout_open_blob(
	struct layout *layout, const struct descriptor *blob, int *ret_fd, struct err *err);
/* The bytes of a small blob (at most max), size and digest checked. */
int layout_read_blob(struct layout *layout, const struct descriptor *blob, size_t max,
	struct buf *ret, struct err *err);

/* Remove manifests from index.json by their names and then every blob that no manifest left
 * reaches, and stale temporary files. keep: digests of manifests that stay although no name points
 * to them. Frees *ret_bytes. */
int layout_gc(struct layout *layout, const struct strv *remove_names, const struct strv *keep,
	uint64_t *ret_bytes, size_t *ret_blobs, struct err *err);

#endif
