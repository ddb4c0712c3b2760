/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about an image that a target needs beside its digest, from the configuration of its base
 * (OCI image-spec, config.md): kept in the run's specification, so that the run can be repeated
 * without a request to a registry.
 */
#ifndef DLRUN_CORE_IMAGE_IMAGE_FACTS_H
#define DLRUN_CORE_IMAGE_IMAGE_FACTS_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/vec.h"

struct image_facts {
	struct strv entrypoint; /* Entrypoint, what stands in front of the command */
	struct strv env_names;  /* of Env */
	char *user;             /* User; NULL: root */
	char *os, *arch;        /* "linux", "amd64" */
	char *workdir;          /* of the tree in the image */
	bool is_scratch;        /* there is no base, so no shell either */
	char *program;          /* Cmd's first word, which is there; or NULL */
	/* Indications from the build history: commands of a shell, or a builder of images without
	 * one. Both false: no indication. */
	bool has_shell, lacks_shell;
};

/* config: of the base; NULL: scratch. platform: "linux/amd64", for what config does not say. */
void image_facts_of_config(const struct json *config, const char *platform, const char *workdir,
	struct image_facts *ret);
struct json *image_facts_to_json(const struct image_facts *facts);
/* Reading is lenient. */
void image_facts_from_json(const struct json *json, struct image_facts *ret);
void image_facts_done(struct image_facts *facts);
#define AUTO_IMAGE_FACTS AUTO(image_facts_done)

#endif
