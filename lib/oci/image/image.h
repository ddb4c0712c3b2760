/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From entries to an image: which layers there are, which must be written, the configuration and
 * the manifest (OCI image-spec, manifest.md, config.md).
 *
 *	base layers | full code layer | big files | one cumulative delta with whiteouts
 *
 * The plan (plan.h) of a tree at a destination is remembered in a file, so that an edit writes
 * a small delta only. Depth never grows. A new full layer is written when the delta would pass 25 %
 * of the full one or 256 KiB (whichever is more, both compressed), or 2,000 entries and whiteouts,
 * when the sink lost the full layer, or on request. Big files stand above the full layer and are
 * written as a whole when one of them changes; the delta is that between the two below it and the
 * tree.
 *
 * An environment is a base with one layer more, and data a base with some more, which are a base's
 * to all who read the image. Data is cut into layers by the names of files (image_data_cut), so
 * that a change of some files renews the layers that they are in.
 *
 * The image has the tree's files below workdir and no others, whatever the base has there: the full
 * layer begins with an opaque whiteout. The base, which may be far away, is not asked whether it
 * needs one: the layers are the same over any. Layers have no entry for the parents of workdir, so
 * that one that is a symbolic link in the base is followed and stays. If workdir itself is one, a
 * directory takes its place: through the link the tree would mix with, or hide, what the base has
 * elsewhere.
 */
#ifndef DLRUN_OCI_IMAGE_IMAGE_H
#define DLRUN_OCI_IMAGE_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "oci/codec/codec.h"
#include "oci/layout/layout.h"
#include "oci/model/blob.h"
#include "oci/model/manifest.h"

enum {
	IMAGE_BIG_FILE = 8 << 20, /* files of this size and more go into the layer of big files */
	IMAGE_DELTA_MIN =
		256 << 10, /* bytes, compressed: a delta up to this size always stays one */
	IMAGE_DELTA_ENTRIES = 2000, /* entries and whiteouts of a delta, at most */
	IMAGE_BASE_LAYERS_MAX = 120,
	IMAGE_DATA_LAYERS = 48, /* of data, about: larger data has larger layers */
	IMAGE_OWN_LAYERS_MAX = 3,
	IMAGE_MANIFEST_MAX = MANIFEST_SIZE_MAX,
	IMAGE_CONFIG_MAX = 8 << 20,
};
/* Bytes of the files of a layer of small data: at least a quarter of it, twice as much at most,
 * and one larger file alone. */
#define IMAGE_DATA_LAYER (UINT64_C(8) << 20)
#define IMAGE_WORKDIR    "/dlrun/src"
#define IMAGE_LAYER_MAX  (UINT64_C(1) << 40) /* bytes of a tar that is read */
/* The same of a base that is only listed. */
#define IMAGE_BASE_UNPACKED_MAX (UINT64_C(512) << 20)

/* Annotation of dlrun's own layers in a manifest: "full", "big", "delta". */
#define IMAGE_ANNOTATION_ROLE "dev.dlrun.role"

/* A base image, read and checked. Of an image that dlrun made, the base below its own layers. */
struct image_base {
	struct descriptor manifest; /* of the image as it was found, with all its layers */
	struct json *manifest_json, *config_json;
	char *name;            /* as the user wrote it */
	char *parent;          /* digest of the manifest that has the base's layers only, or NULL */
	struct layout *layout; /* not owned: where its blobs are */
	enum media_family family;
	struct descriptor *layers; /* lowest first */
	const char **diff_ids;     /* in config_json */
	size_t n_layers;
};
/* ref within the layout: a tag or digest (NULL: its only image). An index, also one in an index,
 * picks platform ("linux/amd64"); an image whose configuration names another platform is refused
 * (E_IMAGE_PLATFORM). E_IMAGE_BASE: not there; E_IMAGE_KIND: no image; E_IMAGE_DEPTH: more than
 * IMAGE_BASE_LAYERS_MAX layers; E_IMAGE, E_DATA, E_DATA_LIMIT: not valid. Layers are not read. */
int image_base_load(struct layout *layout, const char *name, const char *ref, const char *platform,
	struct image_base **ret, struct err *err);
/* The same, with dlrun's own layers: what is written over it adds to that image. */
int image_whole_load(struct layout *layout, const char *name, const char *ref, const char *platform,
	struct image_base **ret, struct err *err);
void image_base_free(struct image_base *base);
/* How many of the layers of a manifest are those of the base that image_base_load makes of it; 0
 * where it makes none. */
size_t image_base_layers(const struct manifest *manifest);
AUTO_POINTER(struct image_base, image_base_free)
/* All files and links of the base, by their paths from the root of the image and without hashes,
 * where its layers are here: E_IMAGE_BASE if one is not, E_DATA_LIMIT if they have more than
 * max_bytes together, E_IMAGE for what is not taken (unpack.h). After a failure the list is
 * worthless. */
int image_base_entries(const struct image_base *base, uint64_t max_bytes, struct entry_list *list,
	struct err *err);

enum image_role { IMAGE_ROLE_BASE, IMAGE_ROLE_FULL, IMAGE_ROLE_BIG, IMAGE_ROLE_DELTA };
/* "base", "full", "big", "delta" */
const char *image_role_name(enum image_role role);

struct image_layer {
	enum image_role role;
	char diff_id[DIGEST_TEXT_SIZE];
	struct descriptor blob;
};

struct image {
	struct descriptor manifest;
	struct descriptor config;
	struct image_layer
		*layers; /* lowest first: base, then full, big, delta as far as there are */
	size_t n_layers;
	char *workdir;
	size_t layers_written;  /* dlrun's own, by image_write */
	uint64_t bytes_written; /* all blobs, by image_write */
};
void image_done(struct image *image);
#define AUTO_IMAGE AUTO(image_done)

struct plan;

/* Label, and annotation, of an image that is a base with an environment: its key, whose first
 * digits make its tag. */
#define IMAGE_LABEL_ENVIRONMENT "dev.dlrun.environment"
#define IMAGE_ENVIRONMENT_TAG   "env-"
enum { IMAGE_ENVIRONMENT_HEX = 32 };
/* The tag. The caller frees. */
char *image_environment_tag(const char *key);

/* The same of a base with data. */
#define IMAGE_LABEL_DATA "dev.dlrun.data"
#define IMAGE_DATA_TAG   "data-"
char *image_data_tag(const char *key);
/* How many of n entries, all of which have total bytes, the first of the layers takes: depends on
 * their names and sizes, and on total within powers of two. */
size_t image_data_cut(const struct entry *entries, size_t n, uint64_t total);

struct image_request {
	const struct entry_list *entries;
	struct entry_opener opener;
	/* Instead of entries: dlrun's own layers of an image, as they are, out of own_layout. Its
	 * workdir is the one here, and opener, codec, plan and full do not count. */
	const struct image *own;
	struct layout *own_layout;
	/* An environment: one layer, of the entries and these whiteouts, from the root of the image
	 * and without directories. snapshot_id, workdir and plan do not count. NULL: of a tree. */
	const struct strv *removed;
	const char *environment; /* the key, with removed */
	/* Data: layers of the entries below this absolute directory, which are files of no layer
	 * below. snapshot_id and workdir do not count. NULL: of a tree. */
	const char *data_dir;
	const char *data;              /* the key, with data_dir */
	const char *snapshot_id;       /* label dev.dlrun.snapshot */
	const char *workdir;           /* IMAGE_WORKDIR, or another one in normal form, not "/" */
	const struct image_base *base; /* NULL: scratch */
	/* Instead of base: asked for when the layers are there, which do not depend on it, nor on
	 * the text of snapshot_id. May be called again; what it gives lives as long as the call.
	 * NULL: base counts. */
	int (*get_base)(void *ctx, const struct image_base **ret, struct err *err);
	void *get_base_ctx;
	const char *platform; /* of the target: "linux/amd64" */
	enum codec codec;
	const char *plan_path; /* NULL: no plan is read or kept. Its directory exists */
	struct plan *plan;     /* read from plan_path already; taken over. May be NULL or empty */
	bool full;             /* write the canonical plan: full and big layers only */
	bool dry;              /* the plan is read, not kept */
	int64_t mtime_s;       /* LAYER_MTIME unless SOURCE_DATE_EPOCH is set */
	const struct strv *labels; /* "key=value" */
	const char *name;          /* of the image in the destination, or NULL */
	uint64_t big_file_bytes;   /* 0: IMAGE_BIG_FILE */
};

/* Write what is missing into sink and commit the manifest. E_IO_CHANGED: the tree moved under us;
 * refresh the snapshot and call again. The same entries, base and plan state give the same
 * digests. zstd over a base with Docker's media types gives OCI ones. Several processes may use one
 * plan: while one writes a full or big layer the others that need one wait for it. A plan that
 * cannot be read, locked or kept costs speed only. */
int image_write(
	const struct image_request *request, struct sink *sink, struct image *ret, struct err *err);

/* An image that dlrun made: its layers with roles. E_IMAGE for another one; else as layout_resolve
 * and image_base_load. */
int image_load(struct layout *layout, const char *digest, struct image *ret, struct err *err);
/* Functions that read layers name a damaged blob in their errors (layout_check_blob).
 *
 * Apply dlrun's own layers but the first skip of them to list, which holds the entries below
 * workdir that those give. After a failure the list is worthless. */
int image_entries_above(struct layout *layout, const struct image *image, size_t skip,
	struct entry_list *list, struct err *err);
/* Unpack dlrun's own layers into an empty directory. skip: how many of them are there already. */
int image_unpack(
	struct layout *layout, const struct image *image, size_t skip, int dir_fd, struct err *err);
/* Remove those of dlrun's own layers whose content is damaged, so that the next image_write makes
 * them anew: their number. */
size_t image_remove_damaged(struct layout *layout, const struct image *image);
/* List the paths to remove before the delta's members are unpacked by a tar that does not know
 * whiteouts: ret_gone: paths that the delta removes, or replaces by something else than a
 * directory; ret_dirs: paths that are to be directories. Added in the delta's order; nothing
 * without a delta. */
int image_delta_paths(struct layout *layout, const struct image *image, struct strv *ret_gone,
	struct strv *ret_dirs, struct err *err);
/* Write the content of one file to out_fd. E_IMAGE_BASE if the image has no such path. */
int image_read_file(struct layout *layout, const struct image *image, const char *path, int out_fd,
	struct err *err);

/*
 * Image configurations (OCI image-spec, config.md). An engine: JSON in, JSON out.
 */

#define LABEL_SNAPSHOT "dev.dlrun.snapshot" /* id of the tree */

/* The diff_ids of config, one for each of n_layers layers. E_IMAGE naming what when there are
 * others or it is not the configuration of an image. Strings live as long as config. */
int oci_config_diff_ids(const struct json *config, size_t n_layers, const char *what,
	const char **ret_diff_ids, struct err *err);

struct oci_config_spec {
	const struct json *base; /* checked by oci_config_diff_ids; NULL: scratch */
	size_t n_base_layers;
	const char *platform; /* for what does not say its own, as scratch */
	const char *workdir;
	const char *snapshot_id;
	const struct strv *labels;        /* "key=value", or NULL */
	int64_t time_s;                   /* created, of the image and of its history */
	const struct image_layer *layers; /* dlrun's own, lowest first */
	size_t n_layers;
};

/* The base's configuration with dlrun's layers, working directory, labels and times; every other
 * member stays as it is, but for labels that describe where the base's own source came from. The
 * same spec gives the same bytes. */
int oci_config_make(const struct oci_config_spec *spec, struct json **ret, struct err *err);

/* Take the topmost n layers out of a checked configuration: their diff_ids and, where the history
 * tells of every layer, their entries in it. */
void oci_config_strip(struct json *config, size_t n_layers, size_t n);

/* WorkingDir, or NULL. */
const char *oci_config_workdir(const struct json *config);

/*
 * Declarations shared by the parts of image.c, and private to them.
 */

/* The role of each layer by its annotation, and how many on top are dlrun's: full, big, delta in
 * this order, full always. E_IMAGE when they stand otherwise. ret_roles has room for all layers. */
int image_roles(const struct manifest *manifest, const char *what, enum image_role *ret_roles,
	size_t *ret_n_own, struct err *err);

#endif
