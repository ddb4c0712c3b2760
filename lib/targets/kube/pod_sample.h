/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resource usage of a program in a container, sampled by a command of a second that runs beside it:
 * its control group (cgroup v2, v1) or its processes (/proc), and the GPUs that the container sees
 * (nvidia-smi; files of amdgpu for those whose render node it has). Needs sh and cat there.
 *
 * An engine: the words of the command, and a parser of its output, which is a program's and may be
 * anything.
 */
#ifndef DLRUN_TARGETS_KUBE_POD_SAMPLE_H
#define DLRUN_TARGETS_KUBE_POD_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"

enum { POD_SAMPLE_MAX = 1 << 20 }; /* bytes of output that are taken */

/* Below 0: not known. */
struct pod_sample {
	double cpu_s; /* since the container began, or of its processes */
	double cpu;   /* processors in the last second */
	int64_t memory_bytes;
	double gpu_busy; /* 0 to 1 */
	int64_t gpu_memory_bytes;
	double power_w;
};
void pod_sample_parse(const char *text, size_t len, struct pod_sample *ret);

/* As a look of one moment (observed_keep); what is not known is null. The caller frees. */
struct json *pod_sample_json(const struct pod_sample *sample, int64_t wall_ms);

#endif
