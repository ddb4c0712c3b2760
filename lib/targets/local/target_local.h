/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local target: this machine. A handle is MACHINE:ID/N, so that with a state directory on a
 * shared home no machine evaluates another one's runs.
 */
#ifndef DLRUN_TARGETS_LOCAL_TARGET_LOCAL_H
#define DLRUN_TARGETS_LOCAL_TARGET_LOCAL_H

#include <stdint.h>

#include "core/context/session.h"
#include "host/gpu.h"

extern const struct target_ops target_local_ops;

/* name: how the user calls it; the session must outlive it. */
struct target *target_local_new(struct session *session, const char *name);

/* How many GPUs of that model a run would get now, of those that list says are here. Blocks for a
 * moment; -1: not known. */
int64_t target_local_free_gpus(const struct gpu_list *list, const char *model);

#endif
