/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a base image has a program: what its configuration tells, which may be all that is here
 * of it, and what its layers hold where those are here.
 */
#ifndef DLRUN_CORE_IMAGE_BASE_PROGRAM_H
#define DLRUN_CORE_IMAGE_BASE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/data/json.h"
#include "base/util/auto.h"
#include "oci/image/image.h"

enum base_has {
	BASE_UNKNOWN,
	BASE_HAS,
	BASE_LACKS, /* for certain */
};

struct base_program {
	enum base_has has;
	/* BASE_UNKNOWN: it is a root file system and nothing else, and nothing tells of the
	 * program. A base for it says something. */
	bool is_bare;
	char *why; /* what tells it: "its Env has PYTHON_VERSION"; NULL: BASE_UNKNOWN */
};
void base_program_done(struct base_program *answer);
#define AUTO_BASE_PROGRAM AUTO(base_program_done)

/* program: a name without a slash. Layers on this machine are read where the configuration does not
 * tell, unless that would take long. Whatever cannot be read is not known. */
void base_program_find(
	const struct image_base *base, const char *program, struct base_program *ret);

/* Engines, for tests. */

void base_program_of_config(
	const struct json *config, size_t n_layers, const char *program, struct base_program *ret);
/* entries: all of an image, with paths from its root. config: for PATH. BASE_LACKS where no file
 * has that name, wherever it lies. */
void base_program_of_entries(const struct json *config, const struct entry_list *entries,
	const char *program, struct base_program *ret);

#endif
