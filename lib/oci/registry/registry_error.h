/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classify failed responses of a registry (OCI distribution-spec, "Error Codes"): an engine on
 * responses. For the other parts of registry.c; the rest uses registry.h.
 */
#ifndef DLRUN_OCI_REGISTRY_REGISTRY_ERROR_H
#define DLRUN_OCI_REGISTRY_REGISTRY_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "net/http/http.h"
#include "oci/model/blob.h"

enum {
	REGISTRY_WORDS_MAX = 200,  /* characters of one line of a registry's words */
	REGISTRY_DIGESTS_MAX = 512 /* taken from one response */
};

/* The request, for error messages. */
struct registry_requested {
	const char *host, *repo; /* as the user wrote them */
	const char *doing;       /* "uploading a layer" */
	const char *method;      /* NULL: not known */
	const char *identity;    /* who we are there: "me (from …)"; NULL: not known */
	bool elsewhere;          /* the response is another host's, which the registry named */
};

/* E_REGISTRY_AUTH, E_REGISTRY_DENIED, E_REGISTRY_NOT_FOUND, E_REGISTRY_FULL or E_REGISTRY_RESPONSE,
 * with hint, and as evidence the status and up to two lines of the registry's words. */
int registry_refusal(const struct registry_requested *requested,
	const struct http_response *response, struct err *err);

/*
 * Whether a part of an image that a registry has sent is the one that was requested: an engine on
 * responses. For registry_base.c.
 */

/* The requested part of an image. */
struct registry_part {
	const char *host;   /* of the registry */
	const char *name;   /* of the image, for messages */
	const char *digest; /* NULL: not known yet */
	uint64_t size;      /* 0: not known yet */
};

/* Digest, size and encoding of a body, whatever it is; got has no media type of its own then.
 * E_REGISTRY_RESPONSE. */
int registry_check_bytes(const struct registry_part *part, const struct http_response *response,
	struct descriptor *got, struct err *err);
/* The same of a manifest or index, and its media type: that of the response and that in it are the
 * same, and it has no members of the other kind, so that no client can read it as something else.
 * E_IMAGE, too. */
int registry_check_manifest(const struct registry_part *part, const struct http_response *response,
	struct descriptor *got, struct err *err);

#endif
