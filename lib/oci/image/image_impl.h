/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations shared by the parts of image.c, and private to them.
 */
#ifndef DLRUN_OCI_IMAGE_IMAGE_IMPL_H
#define DLRUN_OCI_IMAGE_IMAGE_IMPL_H

#include "oci/image/image.h"
#include "oci/model/manifest.h"

/* The role of each layer by its annotation, and how many on top are dlrun's: full, big, delta in
 * this order, full always. E_IMAGE when they stand otherwise. ret_roles has room for all layers. */
int image_roles(const struct manifest *manifest, const char *what, enum image_role *ret_roles,
	size_t *ret_n_own, struct err *err);

/* The configuration that manifest names, and its diff_ids (free the list, its strings are the
 * configuration's). */
int image_read_config(struct layout *layout, const struct manifest *manifest, const char *what,
	struct json **ret_config, const char ***ret_diff_ids, struct err *err);

#endif
