/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a part of an image that a registry has sent is the one that was asked for: an engine on
 * answers. For registry_base.c.
 */
#ifndef DLRUN_OCI_REGISTRY_REGISTRY_CHECK_H
#define DLRUN_OCI_REGISTRY_REGISTRY_CHECK_H

#include <stdint.h>

#include "base/util/err.h"
#include "net/http/http.h"
#include "oci/model/blob.h"

/* The requested part of an image. */
struct registry_part {
	const char *host;   /* of the registry */
	const char *name;   /* of the image, for messages */
	const char *digest; /* NULL: not known yet */
	uint64_t size;      /* 0: not known yet */
};

/* Digest, size and encoding of a body, whatever it is; got has no media type of its own then.
 * E_REGISTRY_ANSWER. */
int registry_check_bytes(const struct registry_part *part, const struct http_answer *answer,
	struct descriptor *got, struct err *err);
/* The same of a manifest or index, and its media type: that of the answer and that in it are the
 * same, and it has no members of the other kind, so that nobody can read it as something else.
 * E_IMAGE, too. */
int registry_check_manifest(const struct registry_part *part, const struct http_answer *answer,
	struct descriptor *got, struct err *err);

#endif
