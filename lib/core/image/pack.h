/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing code into an image at its destination: shared by submit and push.
 */
#ifndef DLRUN_CORE_IMAGE_PACK_H
#define DLRUN_CORE_IMAGE_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "oci/image/image.h"
#include "oci/layout/layout.h"
#include "oci/model/ref.h"
#include "snap/tree/snapshot.h"

/* OCI image-spec, annotations.md, "Pre-Defined Annotation Keys". */
#define PACK_LABEL_REVISION "org.opencontainers.image.revision"
#define PACK_LABEL_SOURCE   "org.opencontainers.image.source"

struct pack_plan;

struct pack {
	struct session *session;
	char *base_name;     /* as the user wrote it: "scratch", "oci:DIR", "HOST/REPO:TAG" */
	struct ref base_ref; /* of that */
	struct layout *base_layout;
	struct image_base *base; /* NULL: scratch */
	/* The base, later: calls pack_set_base, while the layers are there already. NULL: now. */
	int (*get_base)(struct pack *pack, void *ctx, struct err *err);
	void *get_base_ctx;
	enum codec codec;
	int64_t mtime_s;
	bool full;
	bool dry;  /* no plan is kept */
	bool adds; /* to the image that base_name names: pack_add */
	struct pack_plan *ahead;
};

/* Read the base image and the settings; nothing is written. base: NULL: from the configuration. A
 * relative directory of a layout is seen from the file that names it, else from the caller's. One
 * in a registry is not read: it stays NULL (what runs on a host needs none) until pack_set_base. */
int pack_init(
	struct pack *pack, struct session *session, const char *base, bool full, struct err *err);
void pack_done(struct pack *pack);
#define AUTO_PACK AUTO(pack_done)

/* The base in a registry, as far as it was fetched into layout. Reads pack only. */
int pack_read_base(const struct pack *pack, struct layout *layout, const char *digest,
	struct image_base **ret, struct err *err);
void pack_set_base(struct pack *pack, struct image_base *take);
/* E_IMAGE_BASE when the base is in a registry and was not set: its layers are not here. */
int pack_need_base(const struct pack *pack, struct err *err);

/* Begin to read the plan of what pack_write will write, beside the caller. root: of the tree. */
void pack_prepare(struct pack *pack, const char *root, const char *dest);

/* Write the image of the snapshot into sink, which plans are kept for under dest (any text that
 * names it). Files that change meanwhile are read again, up to three times: the snapshot is that of
 * the image then. name: of the image there, or NULL. */
int pack_write(struct pack *pack, struct snapshot *snapshot, struct sink *sink, const char *dest,
	const char *name, struct image *ret, struct err *err);

/* The image whose layers are reused: borrowed. */
struct pack_reused {
	const struct image *image;
	struct layout *layout; /* that has dlrun's own layers of it */
	const char *snapshot_id;
	const char *commit; /* NULL: none, as source */
	const char *source; /* URL of the repository */
};
/* Write an image with the code of another one, its layers as they are, on this pack's base. */
int pack_rebase(struct pack *pack, const struct pack_reused *reused, struct sink *sink,
	const char *name, struct image *ret, struct err *err);

/* A file to add to that image, at path (absolute, in a directory of its own). fd: read from the
 * start of the file, regardless of its offset. */
struct pack_added {
	const char *path;
	int fd;
	struct descriptor content;
	const char *snapshot_id; /* of the image */
};
int pack_add(struct pack *pack, const struct pack_added *added, struct sink *sink, const char *name,
	struct image *ret, struct err *err);

/* The files of an environment (setup_key.h), by their paths from the root of the image. */
struct pack_environment {
	const struct entry_list *entries;
	const struct strv *removed; /* sorted: files of the base that are not there any more */
	struct entry_opener opener;
	const char *key;
};
/* This pack's base with the environment as a layer of its own. */
int pack_write_environment(struct pack *pack, const struct pack_environment *environment,
	struct sink *sink, const char *name, struct image *ret, struct err *err);

/* Data of the tree (data: {PATH: sync}), at an absolute directory of the image. */
struct pack_data {
	struct snapshot *snapshot; /* of the directory alone */
	const char *dir;
	const char *key;
};
/* This pack's base with the data as layers of their own. Data that changes meanwhile is
 * E_IO_CHANGED: the snapshot names it no more. dest: as for pack_write. */
int pack_write_data(struct pack *pack, const struct pack_data *data, struct sink *sink,
	const char *dest, const char *name, struct image *ret, struct err *err);

/* The image member of dlrun/run/v1 and dlrun/push/v1. ref: "oci:DIR@sha256:…". */
struct json *pack_image_json(const struct image *image, const char *ref, const char *base);
/* The snapshot member, without git record. */
struct json *pack_snapshot_json(const struct snapshot *snapshot);

#endif
