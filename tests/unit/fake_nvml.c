/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for NVIDIA's management library: one GPU that is half busy and gains 100 J with each
 * look. In a variable of the environment: what is not to be there.
 */
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, MISMATCH = 25 };

struct utilization {
	unsigned gpu, memory;
};
struct memory {
	unsigned long long total, free, used;
};
struct memory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};

static char device;

static int is_off(const char *what)
{
	const char *off = getenv("FAKE_NVML_OFF");

	return off && strstr(off, what);
}

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlInit_v2(void)
{
	return is_off("init") ? NOT_FOUND : SUCCESS;
}

EXPORT int nvmlShutdown(void);
EXPORT int nvmlShutdown(void)
{
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret)
{
	if (strcmp(uuid, "GPU-fake") != 0)
		return NOT_FOUND;
	*ret = &device;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **ret);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **ret)
{
	if (strcmp(address, "00000000:3B:00.0") != 0)
		return NOT_FOUND;
	*ret = &device;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret)
{
	if (index != 1)
		return INVALID_ARGUMENT;
	*ret = &device;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(void *dev, struct utilization *ret);
EXPORT int nvmlDeviceGetUtilizationRates(void *dev, struct utilization *ret)
{
	if (dev != &device || is_off("utilization"))
		return NOT_SUPPORTED;
	*ret = (struct utilization){50, 10};
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *dev, struct memory *ret);
EXPORT int nvmlDeviceGetMemoryInfo(void *dev, struct memory *ret)
{
	if (dev != &device)
		return NOT_SUPPORTED;
	*ret = (struct memory){100ULL << 30, 70ULL << 30, 30ULL << 30};
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *dev, struct memory_v2 *ret);
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *dev, struct memory_v2 *ret)
{
	if (dev != &device || is_off("memory_v2"))
		return NOT_SUPPORTED;
	if (ret->version != 0x02000028)
		return MISMATCH;
	ret->used = 20ULL << 30;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerUsage(void *dev, unsigned *ret_mw);
EXPORT int nvmlDeviceGetPowerUsage(void *dev, unsigned *ret_mw)
{
	if (dev != &device)
		return NOT_SUPPORTED;
	*ret_mw = 250500;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *dev, unsigned long long *ret_mj);
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *dev, unsigned long long *ret_mj)
{
	static unsigned long long mj = 5000000;

	if (dev != &device || is_off("energy"))
		return NOT_SUPPORTED;
	*ret_mj = mj += 100000;
	return SUCCESS;
}
