/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inspecting a base image in a registry without any run: its manifest and configuration are fetched
 * into a directory that is removed with the base_look.
 */
#ifndef DLRUN_CORE_IMAGE_BASE_LOOK_H
#define DLRUN_CORE_IMAGE_BASE_LOOK_H

#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/image/registry_open.h"
#include "oci/image/image.h"
#include "oci/model/ref.h"

struct base_look {
	struct registry_client client;
	struct ref ref;
	char *dir;
	struct layout *layout;
	struct image_base *base; /* its layers are not here */
	char *digest;            /* of what the name stands for */
	struct err fault;
};

/* Requests end limit_ms from now on. */
int base_look_init(
	struct base_look *look, struct session *session, int64_t limit_ms, struct err *err);
/* name: HOST/REPO[:TAG|@DIGEST]. Blocks. Once. */
int base_look_ask(struct base_look *look, const char *name, const char *platform, struct err *err);
void base_look_done(struct base_look *look);
#define AUTO_BASE_LOOK AUTO(base_look_done)

#endif
