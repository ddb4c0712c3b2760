/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVIDIA's management library that dlrun needs, loaded at run time. Declared here from
 * the NVML API reference; it is there with every driver, and no header is needed.
 */
#ifndef DLRUN_HOST_NVML_H
#define DLRUN_HOST_NVML_H

#include <stdbool.h>

#include "host/gpu_meter.h"

struct nvml;
/* NULL where the library is not there, is too old or finds no driver. */
struct nvml *nvml_open(const char *path);
void nvml_close(struct nvml *nvml);

typedef void *nvml_device;
/* By UUID, PCI address or, if id is neither, index. */
bool nvml_find(const struct nvml *nvml, const char *id, unsigned index, nvml_device *ret);
/* Members that the GPU does not report stay as they are. */
void nvml_read(const struct nvml *nvml, nvml_device device, struct gpu_reading *reading);

#endif
