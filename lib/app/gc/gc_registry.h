/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deleting images that pushes have left in registries.
 *
 * Only tags of dlrun's form go (gc_tag_is_own), when they are old by all that is known, and never
 * one that a run which has not ended needs. What others know of an image is not known here: their
 * runs may use the same one.
 */
#ifndef DLRUN_APP_GC_GC_REGISTRY_H
#define DLRUN_APP_GC_GC_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"

enum { GC_TAGS_MAX = 10000, GC_PAGES_MAX = 1000 };
#define GC_REGISTRY_KEEP_MS (INT64_C(30) * 24 * 3600 * 1000)

/*
 * Engines: text and facts, no network
 */

/* dlrun-HEX: the first digits of the digest of the manifest; or env-HEX, of an environment (oci
 * image.h). */
#define GC_TAG_PREFIX "dlrun-"
enum { GC_TAG_HEX = 16, GC_TAG_SIZE = sizeof(GC_TAG_PREFIX) + GC_TAG_HEX };

bool gc_tag_is_own(const char *tag);
/* The tag of "sha256:…"; false if that is no digest. */
bool gc_tag_of(const char *digest, char ret[static GC_TAG_SIZE]);

/* {"name", "tags": […] or null} (OCI distribution-spec, "Listing Tags"): those that are tags are
 * added to ret. E_REGISTRY_RESPONSE if it is not of that form. */
int gc_tags_parse(const char *text, size_t len, struct strv *ret, struct err *err);
/* Where the next page is: the target of Link with rel="next" (RFC 8288), or NULL. The caller
 * frees. */
char *gc_next_page(const struct strv *headers);

/* Facts about a tag of dlrun's form. Times are wall clock, 0: not known. */
struct gc_tag_facts {
	bool needed;         /* by a run that has not ended */
	bool is_ours;        /* it stands for an image of dlrun with that digest */
	int64_t recorded_ms; /* the newest that this machine has to do with it */
	int64_t modified_ms; /* as the registry says */
};
enum gc_tag_fate {
	GC_TAG_OLD,     /* may go */
	GC_TAG_YOUNG,   /* not older than is kept */
	GC_TAG_NEEDED,  /* a run needs it */
	GC_TAG_SHARED,  /* it would be old, but another tag stands for the same image */
	GC_TAG_UNKNOWN, /* nobody knows how old it is, or it is not dlrun's */
	GC_TAG_FATES,
};
enum gc_tag_fate gc_tag_evaluate(const struct gc_tag_facts *facts, int64_t now_ms, int64_t keep_ms);

/*
 * The cleaning
 */

struct gc_tag {
	char *name; /* "HOST/REPO:TAG" */
	enum gc_tag_fate fate;
	int64_t age_ms; /* -1: not known */
};
struct gc_tags VEC_OF(struct gc_tag);

struct gc_registry_options {
	const char *target; /* whose registry; NULL: all that the configuration has */
	int64_t keep_ms;
	bool dry_run;
};
struct gc_registry_report {
	struct gc_tags tags;      /* of dlrun's form, in the order of the registry */
	size_t n[GC_TAG_FATES];   /* of each fate; OLD: deleted (dry_run: would be) */
	struct strv repositories; /* that were listed */
	bool more;                /* there are more than GC_TAGS_MAX tags in one */
};
/* The report is filled also when it fails in the middle. E_CONFIG: no registry is set; registry.*,
 * http.*; E_REGISTRY_UNSUPPORTED: it deletes nothing; E_STORE: a record cannot be read, so that
 * nobody knows what it needs. Blocks; it waits some seconds for submits at work. */
int gc_registry(struct session *session, const struct gc_registry_options *options,
	struct gc_registry_report *ret, struct err *err);
void gc_registry_report_done(struct gc_registry_report *report);

#endif
