/*
 * From entries to an image: which layers there are, which must be written, the configuration and
 * the manifest.
 *
 *	base layers | full code layer | big files | one cumulative delta with whiteouts
 *
 * The plan (which full layer, which big layer, what they hold) is remembered per tree × destination
 * × compression in a file, so that an edit writes a small delta only. Depth never grows. A new full
 * layer is written when the delta would pass 25 % of the full one or 256 KiB (whichever is more,
 * both compressed), 2,000 entries, when the sink lost the full layer, or on request.
 */
#ifndef DLRUN_OCI_IMAGE_H
#define DLRUN_OCI_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/entry.h"
#include "base/err.h"
#include "base/json.h"
#include "base/vec.h"
#include "oci/blob.h"
#include "oci/codec.h"
#include "oci/layout.h"

enum {
	IMAGE_BIG_FILE = 8 << 20,      /* files of this size and more go into the layer of big files */
	IMAGE_BASE_LAYERS_MAX = 120,
	IMAGE_MANIFEST_MAX = 4 << 20,
	IMAGE_CONFIG_MAX = 8 << 20,
};

/* A base image, read: its manifest's and configuration's JSON. */
struct image_base {
	struct descriptor manifest;
	struct json *manifest_json, *config_json;
	char *name; /* as the user wrote it */
	struct layout *layout; /* not owned: where its blobs are */
};
/* ref within the layout (NULL: its only image). An index picks platform ("linux/amd64"). */
int image_base_load(struct layout *layout, const char *name, const char *ref, const char *platform,
	struct image_base **ret, struct err *err);
void image_base_free(struct image_base *base);
AUTO_POINTER(struct image_base, image_base_free)

enum image_role { IMAGE_ROLE_BASE, IMAGE_ROLE_FULL, IMAGE_ROLE_BIG, IMAGE_ROLE_DELTA };
const char *image_role_name(enum image_role role);

struct image_layer {
	enum image_role role;
	char diff_id[DIGEST_TEXT_SIZE];
	struct descriptor blob;
};

struct image {
	struct descriptor manifest;
	struct descriptor config;
	struct image_layer *layers; /* lowest first */
	size_t n_layers;
	char *workdir;
	size_t layers_written;
	uint64_t bytes_written;
};
void image_done(struct image *image);

struct image_request {
	const struct entry_list *entries;
	struct entry_opener opener;
	const char *snapshot_id;       /* label dev.dlrun.snapshot */
	const char *workdir;           /* "/dlrun/src" */
	const struct image_base *base; /* NULL: scratch */
	const char *platform;          /* of the target, for scratch: "linux/amd64" */
	enum codec codec;
	const char *plan_path;         /* NULL: no plan is read or kept */
	bool full;                     /* write the canonical plan: full and big layers only */
	int64_t mtime_s;               /* LAYER_MTIME unless SOURCE_DATE_EPOCH is set */
	const struct strv *labels;     /* "key=value" */
	const char *name;              /* of the image in the destination, or NULL */
};

/* Write what is missing into sink and commit the manifest. E_IO_CHANGED: the tree moved under us;
 * refresh the snapshot and call again. The same entries, base and plan state give the same
 * digests. */
int image_write(const struct image_request *request, struct sink *sink, struct image *ret,
	struct err *err);

/* An image that exists already: its layers with roles (by the label dev.dlrun.layers). */
int image_load(struct layout *layout, const char *digest, struct image *ret, struct err *err);
/* The entries below workdir that dlrun's own layers give, in order applied. */
int image_entries(struct layout *layout, const struct image *image, struct entry_list *ret,
	struct err *err);
/* Unpack dlrun's own layers into an empty directory. skip: how many of them are there already. */
int image_unpack(struct layout *layout, const struct image *image, size_t skip, int dir_fd,
	struct err *err);
/* One file's content. E_IMAGE_BASE if the image has no such path. */
int image_read_file(struct layout *layout, const struct image *image, const char *path, int out_fd,
	struct err *err);

#endif
