/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Determine the layers of an image above its base, and write the missing ones: the part of image.c
 * that deals with the plan.
 */
#ifndef DLRUN_OCI_IMAGE_IMAGE_LAYERS_H
#define DLRUN_OCI_IMAGE_IMAGE_LAYERS_H

#include "oci/image/image.h"
#include "oci/image/plan.h"
#include "oci/layer/layer_diff.h"

struct layer_work {
	const struct image_request *request;
	struct sink *sink;
	const char *media_type;
	/* result */
	struct image_layer layers[IMAGE_OWN_LAYERS_MAX];
	size_t n_layers, n_written;
	/* own use */
	struct entry_refs all, small, big;
	uint8_t spec[SHA256_SIZE];
	struct plan plan;
	int lock_fd;
	bool may_write; /* full and big layers too: we hold the lock, or there is nothing to lock */
	bool new_full;
	struct plan_layer full;
	uint8_t outgrown[SHA256_SIZE]; /* key of a full layer that the delta was too large for */
};

void layer_work_init(struct layer_work *work, const struct image_request *request,
	struct sink *sink, const char *media_type);
/* Fills in the result; every layer is in the sink then. Blocks while another process writes a full
 * or big layer of the same plan. */
int layer_work_run(struct layer_work *work, struct err *err);
/* Keep the plan: call when the image is committed. */
void layer_work_save(struct layer_work *work);
void layer_work_done(struct layer_work *work);
#define AUTO_LAYER_WORK AUTO(layer_work_done)

#endif
