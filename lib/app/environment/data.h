/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data of the tree that goes to a cluster (`data: {PATH: sync}`): layers between the base image (or
 * the environment on it) and the code, in KUBE_DATA_DIR (kinds.h), which is linked into the trees
 * of runs. A node unpacks them once, and the registry has them once. The base with the data is an
 * image of its own, tagged data-KEY in the repository of the code; KEY: base, path and content, so
 * that whoever has the same data finds it.
 *
 * All files count, whatever git ignores, but for those of .dlrunignore; empty directories do not.
 * Content is known by stat data (statcache.h), and which layer has what by a plan (plan.h).
 */
#ifndef DLRUN_APP_ENVIRONMENT_DATA_H
#define DLRUN_APP_ENVIRONMENT_DATA_H

#include "app/prepare/prepare.h"

/* Make the submit's base one with its data, which is sent where the registry lacks it, and set
 * what the specification says of the data. Nothing without such data, in a dry run, and where
 * the image of an earlier run is used as it is. ret_tags: of the images. Blocks. E_RUN_DATA: it
 * is not here; E_CONFIG: there is no registry; E_IO_CHANGED: it changes all the time;
 * E_IMAGE_DEPTH; registry.*, http.*; E_CANCELED. */
int data_push(struct submit *submit, struct strv *ret_tags, struct err *err);
/* Do not take for granted any more that the registry has those. */
void data_forget(struct submit *submit, const struct strv *tags);
/* A sentence for each of its data that would go: how much it is. Nothing is read but stat data. */
int data_preview(struct submit *submit, struct err *err);

#endif
