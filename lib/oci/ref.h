/*
 * References to images, as users write them.
 *	scratch | oci:DIR[:TAG|@DIGEST] | HOST[:PORT]/REPO[:TAG][@DIGEST]
 * An engine (OCI distribution-spec, "Pulling manifests", for the grammar of names and tags).
 */
#ifndef DLRUN_OCI_REF_H
#define DLRUN_OCI_REF_H

#include <stdbool.h>

#include "base/err.h"

enum ref_kind { REF_SCRATCH, REF_LAYOUT, REF_REGISTRY };

struct ref {
	enum ref_kind kind;
	char *dir;    /* layout */
	char *host;   /* registry: host[:port] */
	char *repo;   /* registry */
	char *tag;    /* or NULL */
	char *digest; /* "sha256:…" or NULL */
};

/* E_IMAGE_REF saying which part is off. For a layout, `oci:a:b` is tag b of directory a; a directory
 * whose name has a colon is written with a trailing slash. */
int ref_parse(const char *text, struct ref *ret, struct err *err);
void ref_done(struct ref *ref);
#define AUTO_REF AUTO(ref_done)

#endif
