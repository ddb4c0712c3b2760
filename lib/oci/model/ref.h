/* SPDX-License-Identifier: Apache-2.0 */
/*
 * References to images, as users write them.
 *	scratch | oci:DIR[:TAG|@DIGEST] | HOST[:PORT]/REPO[:TAG][@DIGEST]
 * An engine (OCI distribution-spec, "Pulling manifests", for the grammar of names and tags). A host
 * is a word with a dot or a port, "localhost", or an IPv6 address in brackets; short names that
 * other tools complete ("ubuntu:24.04") are refused with the full one as a hint.
 */
#ifndef DLRUN_OCI_MODEL_REF_H
#define DLRUN_OCI_MODEL_REF_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/err.h"

enum { REF_HOST_MAX = 260, REF_REPO_MAX = 255, REF_TAG_MAX = 128 };

enum ref_kind { REF_SCRATCH, REF_LAYOUT, REF_REGISTRY };

struct ref {
	enum ref_kind kind;
	char *dir;    /* layout: as written, without trailing slashes */
	char *host;   /* registry: host[:port] */
	char *repo;   /* registry */
	char *tag;    /* or NULL */
	char *digest; /* "sha256:…" or NULL */
};

/* E_IMAGE_REF saying which part is off. For a layout, `oci:a:b` is tag b of directory a; a
 * directory whose name has a colon is written with a trailing slash (`oci:a:b/`). */
int ref_parse(const char *text, struct ref *ret, struct err *err);
void ref_done(struct ref *ref);
#define AUTO_REF AUTO(ref_done)

/* Whether s may be a tag: [A-Za-z0-9_][A-Za-z0-9._-]{0,127}. */
bool ref_is_tag(const char *s);

#endif
