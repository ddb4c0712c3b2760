/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Check whether a base image has a program: by its configuration, which may be all of it that is
 * here, and by its layers where those are here.
 */
#ifndef DLRUN_CORE_IMAGE_BASE_PROGRAM_H
#define DLRUN_CORE_IMAGE_BASE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/image/registry_open.h"
#include "oci/image/image.h"
#include "oci/model/ref.h"

enum base_has {
	BASE_UNKNOWN,
	BASE_HAS,
	BASE_LACKS, /* for certain */
};

struct base_program {
	enum base_has has;
	/* BASE_UNKNOWN: the image is a plain root file system, and nothing indicates the program. A
	 * base that is made for the program would indicate it. */
	bool is_bare;
	char *why; /* what tells it: "its Env has PYTHON_VERSION"; NULL: BASE_UNKNOWN */
};
void base_program_done(struct base_program *found);
#define AUTO_BASE_PROGRAM AUTO(base_program_done)

/* program: a name without a slash. Layers on this machine are read where the configuration does not
 * tell, unless that would take long. Layers that cannot be read count as unknown. */
void base_program_find(
	const struct image_base *base, const char *program, struct base_program *ret);

/* Engines, for tests. */

void base_program_of_config(
	const struct json *config, size_t n_layers, const char *program, struct base_program *ret);
/* entries: all of an image, with paths from its root. config: for PATH. BASE_LACKS where no file
 * has that name, wherever it lies. */
void base_program_of_entries(const struct json *config, const struct entry_list *entries,
	const char *program, struct base_program *ret);

/*
 * Inspecting a base image in a registry without any run: its manifest and configuration are fetched
 * into a directory that is removed by base_lookup_done.
 */

struct base_lookup {
	struct registry_client client;
	struct loop_wait wait;
	struct ref ref;
	char *dir;
	struct layout *layout;
	struct image_base *base; /* its layers are not here */
	char *digest;            /* of what the name stands for */
	struct err error;
};

/* Requests end limit_ms from now on. */
int base_lookup_init(
	struct base_lookup *lookup, struct session *session, int64_t limit_ms, struct err *err);
/* name: HOST/REPO[:TAG|@DIGEST]. Blocks. Once. */
int base_lookup_run(
	struct base_lookup *lookup, const char *name, const char *platform, struct err *err);
void base_lookup_done(struct base_lookup *lookup);
#define AUTO_BASE_LOOKUP AUTO(base_lookup_done)

#endif
