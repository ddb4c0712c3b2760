/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deleting images that pushes have left in registries.
 *
 * Only tags of dlrun's form go (gc_tags.h), when they are old by all that is known, and never one
 * that a run which has not ended needs. What others know of an image is not known here: their runs
 * may use the same one.
 */
#ifndef DLRUN_APP_GC_GC_REGISTRY_H
#define DLRUN_APP_GC_GC_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "app/gc/gc_tags.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"

enum { GC_TAGS_MAX = 10000, GC_PAGES_MAX = 1000 };
#define GC_REGISTRY_KEEP_MS (INT64_C(30) * 24 * 3600 * 1000)

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
	struct strv repositories; /* that were looked at */
	bool more;                /* there are more than GC_TAGS_MAX tags in one */
};
/* The report is filled also when it fails in the middle. E_CONFIG: no registry is set; registry.*,
 * http.*; E_REGISTRY_UNSUPPORTED: it deletes nothing; E_STORE: a record cannot be read, so that
 * nobody knows what it needs. Blocks; it waits some seconds for submits at work. */
int gc_registry(struct session *session, const struct gc_registry_options *options,
	struct gc_registry_report *ret, struct err *err);
void gc_registry_report_done(struct gc_registry_report *report);

#endif
