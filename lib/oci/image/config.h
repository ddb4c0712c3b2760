/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Image configurations (OCI image-spec, config.md). An engine: JSON in, JSON out.
 */
#ifndef DLRUN_OCI_IMAGE_CONFIG_H
#define DLRUN_OCI_IMAGE_CONFIG_H

#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "oci/image/image.h"

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

#endif
