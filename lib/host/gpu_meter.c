/* SPDX-License-Identifier: Apache-2.0 */
#include "host/gpu_meter.h"

#include <stdio.h>
#include <strings.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/nvml.h"
#include "host/sysfs.h"

#define AMD_VENDOR "0x1002"

struct device {
	nvml_device nvidia; /* NULL: no such */
	char *amd;          /* its directory; NULL: no such */
	char *sensors;      /* hwmon; NULL: none */
};

struct gpu_meter {
	struct nvml *nvml;
	size_t n;
	struct device devices[GPU_MAX];
};

/*
 * AMD
 */

static bool is_amd(const char *dir)
{
	AUTO_FREE char *vendor = sysfs_line(dir, "vendor");
	AUTO_FREE char *busy = fs_join(dir, "gpu_busy_percent");

	/* A device without this file is a display or an old card, which the tools do not count. */
	return str_eq(vendor, AMD_VENDOR) && access(busy, F_OK) == 0;
}

/* Whether dir, of a PCI device, is what id means: its address or its unique id. Partitions of a
 * GPU, "ID-2", are read as the whole. */
static bool is_called(const char *dir, const char *id)
{
	const char *address = strrchr(dir, '/') + 1;
	AUTO_FREE char *unique = sysfs_line(dir, "unique_id");

	if (str_starts(id, "0x"))
		id += 2;
	size_t len = strcspn(id, "-");
	return strcasecmp(address, id) == 0 ||
	       (unique && len > 0 && strlen(unique) == len && strncasecmp(unique, id, len) == 0);
}

/* Directories of AMD GPUs in the order of their addresses, which is that of the tools. */
static void list_amd(const char *sysfs, struct strv *ret)
{
	AUTO_FREE char *pci = fs_join(sysfs, "bus/pci/devices");
	AUTO_STRV struct strv all = {0};

	sysfs_list(pci, "", &all);
	for (size_t i = 0; i < all.n; i++)
		if (is_amd(all.v[i]))
			strv_add(ret, all.v[i]);
}

static char *find_amd(const struct strv *list, const struct gpu *gpu)
{
	for (size_t i = 0; i < list->n; i++)
		if (is_called(list->v[i], gpu->id))
			return mem_strdup(list->v[i]);
	return gpu->index < list->n ? mem_strdup(list->v[gpu->index]) : NULL;
}

static char *find_sensors(const char *dir)
{
	AUTO_FREE char *hwmon = fs_join(dir, "hwmon");
	AUTO_STRV struct strv found = {0};

	sysfs_list(hwmon, "hwmon", &found);
	return found.n ? mem_strdup(found.v[0]) : NULL;
}

static void read_amd(const struct device *device, struct gpu_reading *reading)
{
	const char *sensors = device->sensors;

	reading->busy = sysfs_number(device->amd, "gpu_busy_percent", 0.01);
	reading->memory_bytes = (int64_t)sysfs_number(device->amd, "mem_info_vram_used", 1);
	if (!sensors)
		return;
	reading->power_w = sysfs_number(sensors, "power1_average", 1e-6);
	if (reading->power_w < 0)
		reading->power_w = sysfs_number(sensors, "power1_input", 1e-6);
	reading->energy_j = sysfs_number(sensors, "energy1_input", 1e-6);
}

/*
 * All
 */

static void open_amd(struct gpu_meter *meter, const struct gpu_list *gpus, const char *sysfs)
{
	AUTO_STRV struct strv found = {0};

	list_amd(sysfs, &found);
	for (size_t i = 0; i < gpus->n; i++) {
		struct device *device = &meter->devices[i];

		if (gpus->v[i].vendor != GPU_AMD)
			continue;
		device->amd = find_amd(&found, &gpus->v[i]);
		if (device->amd)
			device->sensors = find_sensors(device->amd);
	}
}

static void open_nvidia(struct gpu_meter *meter, const struct gpu_list *gpus, const char *path)
{
	meter->nvml = nvml_open(path);
	for (size_t i = 0; meter->nvml && i < gpus->n; i++)
		if (gpus->v[i].vendor == GPU_NVIDIA)
			nvml_find(meter->nvml, gpus->v[i].id, gpus->v[i].index,
				&meter->devices[i].nvidia);
}

static bool has_vendor(const struct gpu_list *gpus, enum gpu_vendor vendor)
{
	for (size_t i = 0; i < gpus->n; i++)
		if (gpus->v[i].vendor == vendor)
			return true;
	return false;
}

struct gpu_meter *gpu_meter_new(const struct gpu_meter_spec *spec)
{
	struct gpu_meter *meter = mem_alloc(1, sizeof(*meter));

	if (!spec->gpus)
		return meter;
	meter->n = spec->gpus->n;
	if (has_vendor(spec->gpus, GPU_NVIDIA))
		open_nvidia(meter, spec->gpus, spec->nvml ? spec->nvml : GPU_METER_NVML);
	if (has_vendor(spec->gpus, GPU_AMD))
		open_amd(meter, spec->gpus, spec->sysfs ? spec->sysfs : GPU_METER_SYSFS);
	return meter;
}

size_t gpu_meter_count(const struct gpu_meter *meter)
{
	return meter->n;
}

void gpu_meter_read(const struct gpu_meter *meter, size_t i, struct gpu_reading *ret)
{
	const struct device *device = &meter->devices[i];

	*ret = (struct gpu_reading){-1, -1, -1, -1};
	if (device->nvidia)
		nvml_read(meter->nvml, device->nvidia, ret);
	else if (device->amd)
		read_amd(device, ret);
}

void gpu_meter_free(struct gpu_meter *meter)
{
	if (!meter)
		return;
	for (size_t i = 0; i < meter->n; i++) {
		free(meter->devices[i].amd);
		free(meter->devices[i].sensors);
	}
	nvml_close(meter->nvml);
	free(meter);
}
