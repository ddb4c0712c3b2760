/* SPDX-License-Identifier: Apache-2.0 */
#include "host/nvml.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "base/loop/library.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu_meter.h"

enum { NVML_SUCCESS = 0 };

struct utilization {
	unsigned gpu, memory; /* percent */
};
struct memory_v1 {
	unsigned long long total, free, used;
};
/* used is without what the driver keeps for itself. */
struct memory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};
#define MEMORY_V2_VERSION (sizeof(struct memory_v2) | 2u << 24)

struct nvml {
	void *library;
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_uuid)(const char *uuid, nvml_device *ret);
	int (*by_pci)(const char *address, nvml_device *ret);
	int (*by_index)(unsigned index, nvml_device *ret);
	int (*utilization)(nvml_device device, struct utilization *ret);
	int (*memory)(nvml_device device, struct memory_v1 *ret);
	int (*memory_v2)(nvml_device device, struct memory_v2 *ret); /* may be NULL */
	int (*power)(nvml_device device, unsigned *ret_mw);
	int (*energy)(nvml_device device, unsigned long long *ret_mj); /* may be NULL */
};

static const struct {
	size_t offset;
	const char *name;
	bool optional;
} symbols[] = {
	{offsetof(struct nvml, init), "nvmlInit_v2"},
	{offsetof(struct nvml, shutdown), "nvmlShutdown"},
	{offsetof(struct nvml, by_uuid), "nvmlDeviceGetHandleByUUID"},
	{offsetof(struct nvml, by_pci), "nvmlDeviceGetHandleByPciBusId_v2"},
	{offsetof(struct nvml, by_index), "nvmlDeviceGetHandleByIndex_v2"},
	{offsetof(struct nvml, utilization), "nvmlDeviceGetUtilizationRates"},
	{offsetof(struct nvml, memory), "nvmlDeviceGetMemoryInfo"},
	{offsetof(struct nvml, memory_v2), "nvmlDeviceGetMemoryInfo_v2", true},
	{offsetof(struct nvml, power), "nvmlDeviceGetPowerUsage"},
	{offsetof(struct nvml, energy), "nvmlDeviceGetTotalEnergyConsumption", true},
};

static bool load_symbols(struct nvml *nvml)
{
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
		void *symbol = dlsym(nvml->library, symbols[i].name);

		if (!symbol && !symbols[i].optional)
			return false;
		/* ISO C has no conversion from an object to a function; POSIX's dlsym has. */
		memcpy((char *)nvml + symbols[i].offset, &symbol, sizeof(symbol));
	}
	return true;
}

LIBRARY_NOTE("gpu", "Reads the use of NVIDIA GPUs", "suggested", GPU_METER_NVML);

struct nvml *nvml_open(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return NULL;
	struct nvml *nvml = mem_alloc(1, sizeof(*nvml));
	nvml->library = library;
	if (load_symbols(nvml) && nvml->init() == NVML_SUCCESS)
		return nvml;
	dlclose(library);
	free(nvml);
	return NULL;
}

void nvml_close(struct nvml *nvml)
{
	if (!nvml)
		return;
	nvml->shutdown();
	dlclose(nvml->library);
	free(nvml);
}

bool nvml_find(const struct nvml *nvml, const char *id, unsigned index, nvml_device *ret)
{
	if (str_starts(id, "GPU-") || str_starts(id, "MIG-"))
		return nvml->by_uuid(id, ret) == NVML_SUCCESS;
	if (strchr(id, ':'))
		return nvml->by_pci(id, ret) == NVML_SUCCESS;
	return nvml->by_index(index, ret) == NVML_SUCCESS;
}

static void read_memory(const struct nvml *nvml, nvml_device device, struct gpu_reading *reading)
{
	struct memory_v2 v2 = {.version = MEMORY_V2_VERSION};
	struct memory_v1 v1 = {0};

	if (nvml->memory_v2 && nvml->memory_v2(device, &v2) == NVML_SUCCESS)
		reading->memory_bytes = (int64_t)v2.used;
	else if (nvml->memory(device, &v1) == NVML_SUCCESS)
		reading->memory_bytes = (int64_t)v1.used;
}

void nvml_read(const struct nvml *nvml, nvml_device device, struct gpu_reading *reading)
{
	struct utilization utilization = {0};
	unsigned long long mj = 0;
	unsigned mw = 0;

	if (nvml->utilization(device, &utilization) == NVML_SUCCESS && utilization.gpu <= 100)
		reading->busy = utilization.gpu / 100.0;
	read_memory(nvml, device, reading);
	if (nvml->power(device, &mw) == NVML_SUCCESS)
		reading->power_w = mw / 1e3;
	if (nvml->energy && nvml->energy(device, &mj) == NVML_SUCCESS)
		reading->energy_j = (double)mj / 1e3;
}
