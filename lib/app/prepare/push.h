/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Only snapshot and image: into a repository of a registry, or an OCI image layout on disk.
 *
 * To a registry, what can be done early is done early: the login is looked for, the base looked up
 * and upload sessions are opened while the tree is read (task.h).
 */
#ifndef DLRUN_APP_PREPARE_PUSH_H
#define DLRUN_APP_PREPARE_PUSH_H

#include <stdbool.h>
#include <stdint.h>

#include "app/prepare/submit_options.h"
#include "base/data/json.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "oci/image/image.h"
#include "oci/registry/uploads.h"
#include "snap/tree/snapshot.h"

struct push_options {
	/* "HOST[:PORT]/REPO[:TAG]", "oci:DIR[:TAG]"; NULL: the registry of the target, of the
	 * configuration, else the local layout. */
	const char *to;
	const char *target; /* NULL: the configuration's */
	const char *base;   /* an image reference, "scratch"; NULL: the configuration's */
	bool full;
	bool copy_base; /* copy base layers that cannot be mounted from registry to registry */
	bool dry_run;   /* nothing is sent or kept; the base is looked up */
	const struct submit_options *tree; /* include, allow, allow_bytes */
};

struct push_result {
	struct snapshot *snapshot;
	struct image image;
	char *ref;            /* "REPO@sha256:…" (as runs name it), "oci:DIR@sha256:…" */
	char *name;           /* of the destination, for people */
	char *base;           /* the base image as it was named */
	char *base_digest;    /* what it stood for, of one in a registry; else NULL */
	struct strv warnings; /* besides those of the snapshot */
	struct strv there;    /* digests of layers that the destination has, after a dry run */
	struct uploads_progress sent;
	size_t requests; /* to registries and token servers */
	int64_t snapshot_ms, pack_ms, push_ms, total_ms;
};

/* A base in another registry is E_REGISTRY_MOUNT without copy_base; registry.*, http.*; E_CANCELED
 * after SIGINT, SIGTERM or SIGHUP. */
int push_image(struct session *session, const struct push_options *options,
	const struct submit_events *events, struct push_result *ret, struct err *err);
/* E_CONFIG. */
int push_fail_no_registry(const char *target, struct err *err);
void push_result_done(struct push_result *result);
struct json *push_result_json(const struct push_result *result); /* dlrun/push/v1 */

#endif
