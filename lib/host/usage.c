/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>

#include "base/loop/library.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/usage.h"

enum { PROC_FILE_MAX = 64 << 10 };

#define NUMBER_MAX (INT64_MAX / 2)
#define WHOLE_MAX  (1LL << 50)

static size_t host_usage_skip_blanks(const char *text, size_t len)
{
	size_t at = 0;

	while (at < len && (text[at] == ' ' || text[at] == '\t'))
		at++;
	return at;
}

int64_t host_number(const char *text, size_t len)
{
	size_t at = host_usage_skip_blanks(text, len);
	int64_t value = 0;

	if (at == len || !str_is_digit(text[at]))
		return -1;
	for (; at < len && str_is_digit(text[at]); at++) {
		if (value > (NUMBER_MAX - 9) / 10)
			return -1;
		value = value * 10 + (text[at] - '0');
	}
	return value;
}

int64_t host_line_number(const char *text, size_t len, const char *key)
{
	size_t key_len = strlen(key);

	for (size_t n; len > 0; text += n, len -= n) {
		const char *end = memchr(text, '\n', len);

		n = end ? (size_t)(end - text) + 1 : len;
		if (n > key_len && memcmp(text, key, key_len) == 0 &&
			(text[key_len] == ' ' || text[key_len] == '\t'))
			return host_number(text + key_len, n - key_len);
	}
	return -1;
}

double host_load_parse(const char *text, size_t len)
{
	int64_t whole = host_number(text, len);
	double value = (double)whole, unit = 0.1;
	size_t at = host_usage_skip_blanks(text, len);

	if (whole < 0 || whole > WHOLE_MAX)
		return -1;
	while (at < len && str_is_digit(text[at]))
		at++;
	if (at == len || text[at] != '.')
		return value;
	for (at++; at < len && str_is_digit(text[at]); at++, unit /= 10)
		value += (text[at] - '0') * unit;
	return value;
}

static int64_t kib(const char *text, size_t len, const char *key)
{
	int64_t value = host_line_number(text, len, key);

	return value < 0 || value > NUMBER_MAX / 1024 ? -1 : value * 1024;
}

void host_memory_parse(const char *text, size_t len, struct host_load *ret)
{
	ret->memory_bytes = kib(text, len, "MemTotal:");
	ret->memory_free_bytes = kib(text, len, "MemAvailable:");
}

static void host_usage_read_file(const char *dir, const char *name, struct buf *ret)
{
	AUTO_FREE char *path = fs_join(dir, name);

	if (fs_read(path, PROC_FILE_MAX, ret, NULL, NULL) < 0)
		buf_done(ret);
}

void host_load_read(const char *proc, struct host_load *ret)
{
	const char *dir = proc ? proc : "/proc";
	AUTO_BUF struct buf load = {0}, memory = {0};

	*ret = (struct host_load){-1, -1, -1};
	host_usage_read_file(dir, "loadavg", &load);
	host_usage_read_file(dir, "meminfo", &memory);
	if (load.len)
		ret->load = host_load_parse(load.data, load.len);
	if (memory.len)
		host_memory_parse(memory.data, memory.len, ret);
}

/*
 * Files of one line below /sys
 */

enum { SYSFS_LINE_MAX = 255, SYSFS_ENTRIES_MAX = 4096 };

/* The first line of dir/name without its end, or NULL; the caller frees. */
static char *sysfs_line(const char *dir, const char *name)
{
	char line[SYSFS_LINE_MAX + 1];
	AUTO_FREE char *path = mem_printf("%s/%s", dir, name);
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return NULL;
	ssize_t n = read(fd, line, sizeof(line) - 1);
	if (n <= 0)
		return NULL;
	line[n] = '\0';
	line[strcspn(line, "\n")] = '\0';
	return mem_strdup(line);
}

/* The number in the file dir/name, scaled; below 0: there is none. */
static double sysfs_number(const char *dir, const char *name, double scale)
{
	AUTO_FREE char *line = sysfs_line(dir, name);
	int64_t value;

	if (!line || str_to_int(line, 0, INT64_MAX, name, &value, NULL) < 0)
		return -1;
	return (double)value * scale;
}

/* Paths of the entries of dir that begin with prefix, sorted. */
static void sysfs_list(const char *dir, const char *prefix, struct strv *ret)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	while (stream && ret->n < SYSFS_ENTRIES_MAX && (entry = readdir(stream)))
		if (str_starts(entry->d_name, prefix))
			strv_addf(ret, "%s/%s", dir, entry->d_name);
	strv_sort(ret);
}

/*
 * The part of NVIDIA's management library that dlrun needs, loaded at run time. Declared here from
 * the NVML API reference; it is there with every driver, and no header is needed.
 */

typedef void *nvml_device;

LIBRARY_NOTE("gpu", "Reads the use of NVIDIA GPUs", "suggested", GPU_METER_NVML);

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

/* NULL where the library is not there, is too old or finds no driver. */
static struct nvml *nvml_open(const char *path)
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

static void nvml_close(struct nvml *nvml)
{
	if (!nvml)
		return;
	nvml->shutdown();
	dlclose(nvml->library);
	free(nvml);
}

/* The device by UUID, PCI address or, if id is neither, index. */
static bool nvml_find(const struct nvml *nvml, const char *id, unsigned index, nvml_device *ret)
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

/* Members that the GPU does not report stay as they are. */
static void nvml_read(const struct nvml *nvml, nvml_device device, struct gpu_reading *reading)
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
static bool host_usage_is_called(const char *dir, const char *id)
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

static char *host_usage_find_amd(const struct strv *list, const struct gpu *gpu)
{
	for (size_t i = 0; i < list->n; i++)
		if (host_usage_is_called(list->v[i], gpu->id))
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
		device->amd = host_usage_find_amd(&found, &gpus->v[i]);
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

/*
 * A program
 */

enum { PACKAGES_MAX = 64 };

/* The longest interval over which a power reading is taken as constant; beyond that the machine
 * slept or stood still. */
static const double power_span_s = 600;

struct package {
	char *dir;
	double range_j;
	struct usage_counter energy;
};
struct package_list VEC_OF(struct package);

struct gpu_energy {
	struct usage_counter counter;
	double power_w, power_j; /* for those without a counter */
	bool known;
};

/* Below 0: not known. */
struct now {
	double cpu, gpu_busy, power_w;
	int64_t memory_bytes, gpu_memory_bytes;
};

struct usage {
	struct os_family family;
	pid_t program;
	uint64_t program_start;
	double reaped_before_s; /* processor time of children that are not the program's */
	int64_t sampled_us;     /* 0: not yet */
	double cpu_s;           /* below 0: not known */
	int64_t memory_peak_bytes, gpu_memory_peak_bytes;
	double busy_sum;
	size_t busy_n;
	struct now now;
	struct gpu_meter *gpus;
	struct gpu_energy gpu_energy[GPU_MAX];
	struct package_list packages;
};

double usage_counter_add(struct usage_counter *counter, double value, double range)
{
	double gain = -1;

	if (value < 0)
		return -1;
	if (counter->known) {
		gain = value - counter->last;
		if (gain < 0 && range > 0)
			gain += range;
		if (gain > 0)
			counter->gained += gain;
	}
	counter->known = true;
	counter->last = value;
	return gain;
}

static double reaped_s(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_CHILDREN, &usage) < 0)
		return 0;
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* "package-0"; not the zones within them, nor "psys", which has them in it. */
static void find_packages(struct usage *usage, const char *sysfs)
{
	AUTO_FREE char *dir = fs_join(sysfs, "class/powercap");
	AUTO_STRV struct strv zones = {0};

	sysfs_list(dir, "intel-rapl:", &zones);
	for (size_t i = 0; i < zones.n && usage->packages.n < PACKAGES_MAX; i++) {
		AUTO_FREE char *name = sysfs_line(zones.v[i], "name");

		if (!name || !str_starts(name, "package-"))
			continue;
		*vec_push(&usage->packages) = (struct package){
			.dir = mem_strdup(zones.v[i]),
			.range_j = sysfs_number(zones.v[i], "max_energy_range_uj", 1e-6),
		};
	}
}

struct usage *usage_new(const struct usage_spec *spec)
{
	struct usage *usage = mem_alloc(1, sizeof(*usage));
	const struct gpu_meter_spec meter = {
		.gpus = spec->gpus, .nvml = spec->nvml, .sysfs = spec->sysfs};

	if (spec->family)
		usage->family = *spec->family;
	usage->program = spec->program;
	usage->program_start = os_process_start(spec->program);
	usage->reaped_before_s = reaped_s();
	usage->cpu_s = -1;
	usage->memory_peak_bytes = usage->gpu_memory_peak_bytes = -1;
	usage->now = (struct now){-1, -1, -1, -1, -1};
	usage->gpus = gpu_meter_new(&meter);
	find_packages(usage, spec->sysfs ? spec->sysfs : GPU_METER_SYSFS);
	return usage;
}

/*
 * Sampling
 */

static void add_peak(int64_t *peak, int64_t value)
{
	if (value > *peak)
		*peak = value;
}

/* elapsed_s: since the last sample; 0: this is the first. */
static void check_processes(struct usage *usage, double elapsed_s)
{
	struct os_use use;
	pid_t root = os_process_alive(usage->program, usage->program_start) ? usage->program : 0;
	double before_s = usage->cpu_s;

	usage->now.cpu = -1;
	usage->now.memory_bytes = -1;
	if (!os_family_use(&usage->family, root, &use))
		return;
	if (!use.cpu_is_whole)
		use.cpu_s += reaped_s() - usage->reaped_before_s;
	/* Times of processes that were never waited for are lost again. */
	usage->cpu_s = fmax(usage->cpu_s, use.cpu_s);
	if (elapsed_s > 0 && before_s >= 0)
		usage->now.cpu = (usage->cpu_s - before_s) / elapsed_s;
	usage->now.memory_bytes = use.memory_bytes;
	add_peak(&usage->memory_peak_bytes, use.memory_bytes);
}

static void host_usage_add_power(struct usage *usage, double joules, double elapsed_s)
{
	if (joules >= 0 && elapsed_s > 0)
		usage->now.power_w = fmax(usage->now.power_w, 0) + joules / elapsed_s;
}

/* Returns the joules since the last sample, below 0: not known. */
static double add_gpu_energy(
	struct gpu_energy *energy, const struct gpu_reading *reading, double elapsed_s)
{
	double joules = usage_counter_add(&energy->counter, reading->energy_j, 0);

	if (reading->energy_j < 0 && reading->power_w >= 0) {
		if (energy->known && elapsed_s < power_span_s)
			joules = (energy->power_w + reading->power_w) / 2 * elapsed_s;
		if (joules > 0)
			energy->power_j += joules;
		energy->power_w = reading->power_w;
	}
	energy->known = reading->energy_j >= 0 || reading->power_w >= 0;
	return joules;
}

static void check_gpus(struct usage *usage, double elapsed_s)
{
	struct gpu_reading reading;
	double busy = 0;
	size_t n_busy = 0;

	usage->now.gpu_busy = -1;
	usage->now.gpu_memory_bytes = -1;
	for (size_t i = 0; i < gpu_meter_count(usage->gpus); i++) {
		gpu_meter_read(usage->gpus, i, &reading);
		if (reading.busy >= 0) {
			busy += reading.busy;
			n_busy++;
		}
		if (reading.memory_bytes >= 0)
			usage->now.gpu_memory_bytes =
				(usage->now.gpu_memory_bytes < 0 ? 0
								 : usage->now.gpu_memory_bytes) +
				reading.memory_bytes;
		host_usage_add_power(usage,
			add_gpu_energy(&usage->gpu_energy[i], &reading, elapsed_s), elapsed_s);
	}
	add_peak(&usage->gpu_memory_peak_bytes, usage->now.gpu_memory_bytes);
	usage->busy_sum += busy;
	usage->busy_n += n_busy;
	if (n_busy)
		usage->now.gpu_busy = busy / (double)n_busy;
}

void usage_sample(struct usage *usage)
{
	int64_t now_us = clock_us();
	double elapsed_s = usage->sampled_us ? (double)(now_us - usage->sampled_us) / 1e6 : 0;

	usage->sampled_us = now_us;
	usage->now.power_w = -1;
	check_processes(usage, elapsed_s);
	check_gpus(usage, elapsed_s);
	vec_foreach (struct package, package, &usage->packages) {
		double value = sysfs_number(package->dir, "energy_uj", 1e-6);

		host_usage_add_power(usage,
			usage_counter_add(&package->energy, value, package->range_j), elapsed_s);
	}
}

void usage_finish(struct usage *usage, double cpu_s, int64_t memory_peak_bytes)
{
	usage_sample(usage);
	usage->now = (struct now){-1, -1, -1, -1, -1};
	usage->cpu_s = fmax(usage->cpu_s, cpu_s);
	add_peak(&usage->memory_peak_bytes, memory_peak_bytes > 0 ? memory_peak_bytes : -1);
}

/*
 * The result
 */

/* null where it is below 0. */
static void host_usage_set_num(struct json *object, const char *key, double value, double steps)
{
	if (value < 0)
		json_set(object, key, json_null());
	else
		json_set_num(object, key, round(value * steps) / steps);
}

static void host_usage_set_bytes(struct json *object, const char *key, int64_t value)
{
	if (value < 0)
		json_set(object, key, json_null());
	else
		json_set_int(object, key, value);
}

static double energy_j(const struct usage *usage)
{
	double sum = 0;
	bool known = false;

	for (size_t i = 0; i < gpu_meter_count(usage->gpus); i++) {
		const struct gpu_energy *energy = &usage->gpu_energy[i];

		known |= energy->known || energy->counter.known;
		sum += energy->counter.gained + energy->power_j;
	}
	vec_foreach (struct package, package, &usage->packages) {
		known |= package->energy.known;
		sum += package->energy.gained;
	}
	return known ? sum : -1;
}

void usage_set(const struct usage *usage, struct json *total, struct json *now)
{
	host_usage_set_num(total, "cpu_s", usage->cpu_s, 1000);
	host_usage_set_bytes(total, "memory_peak_bytes", usage->memory_peak_bytes);
	host_usage_set_num(total, "gpu_busy",
		usage->busy_n ? usage->busy_sum / (double)usage->busy_n : -1, 1000);
	host_usage_set_bytes(total, "gpu_memory_peak_bytes", usage->gpu_memory_peak_bytes);
	host_usage_set_num(total, "energy_j", energy_j(usage), 10);
	host_usage_set_num(now, "cpu", usage->now.cpu, 100);
	host_usage_set_bytes(now, "memory_bytes", usage->now.memory_bytes);
	host_usage_set_num(now, "gpu_busy", usage->now.gpu_busy, 1000);
	host_usage_set_bytes(now, "gpu_memory_bytes", usage->now.gpu_memory_bytes);
	host_usage_set_num(now, "power_w", usage->now.power_w, 10);
}

void usage_free(struct usage *usage)
{
	if (!usage)
		return;
	gpu_meter_free(usage->gpus);
	vec_foreach (struct package, package, &usage->packages)
		free(package->dir);
	vec_done(&usage->packages);
	free(usage);
}
