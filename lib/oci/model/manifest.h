/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Image manifests and indexes (OCI image-spec, manifest.md and image-index.md; Docker image
 * manifest version 2, schema 2, which differs in its media types only). An engine: bytes and JSON,
 * no files.
 */
#ifndef DLRUN_OCI_MODEL_MANIFEST_H
#define DLRUN_OCI_MODEL_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "oci/codec/codec.h"
#include "oci/model/blob.h"

enum {
	MANIFEST_SIZE_MAX = 4 << 20, /* bytes; what registries take */
	MANIFEST_LAYERS_MAX = 500,   /* no kernel mounts more */
	MANIFEST_NESTED_MAX = 10000, /* manifests of one index */
};

/* The vendor of an image's media types. */
enum media_family { MEDIA_OCI, MEDIA_DOCKER };

bool media_is_index(const char *media_type);
bool media_is_manifest(const char *media_type);
/* A layer that need not be in the store of its image: layer.md, "Non-Distributable Layers". */
bool media_is_foreign(const char *media_type);
const char *media_manifest(enum media_family family);
const char *media_config(enum media_family family);
/* Docker has no word for zstd: NULL. */
const char *media_layer(enum media_family family, enum codec codec);
/* The OCI word for a layer type of Docker's; any other type as it is. */
const char *media_layer_to_oci(const char *media_type);

/* The descriptor that json is: media type, sha256 digest, size (descriptor.md). E_IMAGE naming
 * what. */
int descriptor_parse(
	const struct json *json, const char *what, struct descriptor *ret, struct err *err);
struct json *descriptor_json(const struct descriptor *descriptor);
/* The descriptor of data, to be stored as a blob. */
void descriptor_of(const void *data, size_t len, const char *media_type, struct descriptor *ret);

struct manifest {
	struct json *json;
	enum media_family family;
	struct descriptor config;
	struct descriptor *layers; /* lowest first */
	size_t n_layers;
};

/* The manifest of an image. what names it in errors. E_IMAGE: not of that form, or no image. */
int manifest_parse(
	const char *text, size_t len, const char *what, struct manifest *ret, struct err *err);
void manifest_done(struct manifest *manifest);
#define AUTO_MANIFEST AUTO(manifest_done)

/* The media type of a manifest or index by its content: its mediaType, else its shape; NULL if it
 * is neither. */
const char *manifest_media_type(const struct json *json);

/* Where an index leads for platform ("linux/amd64", "linux/arm/v7"): to a manifest or to another
 * index. The first that matches; one without a platform only if it is alone. E_IMAGE_PLATFORM with
 * the platforms that there are as evidence. */
int index_pick(const char *text, size_t len, const char *what, const char *platform,
	struct descriptor *ret, struct err *err);

/* "os/architecture" or "os/architecture/variant" in parts. */
struct platform {
	char os[32], architecture[32], variant[32]; /* variant may be empty */
};
/* E_CONFIG when text is not of that form. */
int platform_parse(const char *text, struct platform *ret, struct err *err);
/* Whether json (the platform of a descriptor, or a configuration) fits: os and architecture are
 * equal, and the variant where both have one ("arm64" without one is v8). */
bool platform_matches(const struct platform *platform, const struct json *json);

#endif
