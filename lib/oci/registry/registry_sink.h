/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A repository of a registry as a destination for images (blob.h). The sink is used by the work
 * of a task (task.h), everything else of the registry by the loop: blobs are handed over and
 * travel while the next one is made.
 */
#ifndef DLRUN_OCI_REGISTRY_REGISTRY_SINK_H
#define DLRUN_OCI_REGISTRY_REGISTRY_SINK_H

#include "base/loop/task.h"
#include "oci/model/blob.h"
#include "oci/registry/uploads.h"

struct registry_sink_options {
	struct task **task; /* that will use it: set before it does */
	struct registry *registry;
	struct uploads *uploads;
	struct registry_cache *memory;
	int stage_dir_fd; /* for layers that are being made; stays the caller's */
	/* Called by the work before each manifest, while blobs still travel; negative: it is not
	 * put. NULL: nobody is asked. */
	int (*may_commit)(void *ctx, struct err *err);
	/* Called by the loop when a manifest was accepted, while the work goes on; or NULL. */
	void (*committed)(void *ctx);
	void *ctx;
};

struct sink *registry_sink(const struct registry_sink_options *options);
/* On the loop, before the task is cancelled: what is under way for the work's present call would
 * use the work's own data. */
void registry_sink_stop(struct sink *sink);

#endif
