/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readings of a GPU at one moment, without starting a process: NVIDIA by NVML (NVML API reference,
 * loaded at run time), AMD by the files of the amdgpu driver (kernel Documentation/gpu/amdgpu).
 */
#ifndef DLRUN_HOST_GPU_METER_H
#define DLRUN_HOST_GPU_METER_H

#include <stdint.h>

#include "base/util/auto.h"
#include "host/gpu.h"

#define GPU_METER_NVML  "libnvidia-ml.so.1"
#define GPU_METER_SYSFS "/sys"

/* Below 0: not known. */
struct gpu_reading {
	double busy; /* 0 to 1, over the last part of a second */
	int64_t memory_bytes;
	double power_w;
	double energy_j; /* a counter that starts anywhere */
};

struct gpu_meter;
struct gpu_meter_spec {
	const struct gpu_list *gpus; /* NULL: none */
	const char *nvml, *sysfs;    /* NULL: the ones above */
};
/* Values whose source cannot be found or opened here are not known later. The first use of NVML may
 * take a second where the driver has to wake a GPU. */
struct gpu_meter *gpu_meter_new(const struct gpu_meter_spec *spec);
/* The number of GPUs in the spec. */
size_t gpu_meter_count(const struct gpu_meter *meter);
void gpu_meter_read(const struct gpu_meter *meter, size_t i, struct gpu_reading *ret);
void gpu_meter_free(struct gpu_meter *meter);
AUTO_POINTER(struct gpu_meter, gpu_meter_free)

#endif
