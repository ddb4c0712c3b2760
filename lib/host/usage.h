/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resource use, sampled without starting a process.
 *
 * A program's, summed up: CPU time and memory of its processes, its GPUs, and energy (the counters
 * of its GPUs and, where they may be read, of the CPU packages by RAPL: kernel
 * Documentation/power/powercap). A GPU's at one moment: NVIDIA by NVML (NVML API reference, loaded
 * at run time), AMD by the files of the amdgpu driver (kernel Documentation/gpu/amdgpu). The load
 * of a Linux machine, from the text of files of /proc (proc(5)); any bytes are accepted.
 */
#ifndef DLRUN_HOST_USAGE_H
#define DLRUN_HOST_USAGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/data/json.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "host/gpu.h"

struct usage;
struct usage_spec {
	const struct os_family *family; /* NULL or empty: the descendants of the caller */
	pid_t program;                  /* counted with its own where it is no descendant */
	const struct gpu_list *gpus;    /* NULL: none */
	const char *nvml, *sysfs;       /* NULL: GPU_METER_NVML, GPU_METER_SYSFS */
};
struct usage *usage_new(const struct usage_spec *spec);
void usage_sample(struct usage *usage);
/* The kernel's accounting is used where it exceeds what the samples showed. */
void usage_finish(struct usage *usage, double cpu_s, int64_t memory_peak_bytes);
/* Set the members of "usage" and "now" of dlrun/observed/v1 (observe.h). */
void usage_set(const struct usage *usage, struct json *total, struct json *now);
void usage_free(struct usage *usage);
AUTO_POINTER(struct usage, usage_free)

/* The total gain of a counter. Zero is a new one. */
struct usage_counter {
	bool known; /* there is a last value */
	double last, gained;
};
/* Add the next value; below 0: not known now. range: where the counter wraps to 0; 0: it does not,
 * and a falling value means that it was reset. Returns the gain since the last value; below 0: not
 * known. */
double usage_counter_add(struct usage_counter *counter, double value, double range);

/*
 * GPUs
 */

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

/*
 * The machine
 */

/* Below 0: not known. */
struct host_load {
	double load;                             /* of one minute */
	int64_t memory_bytes, memory_free_bytes; /* free: what programs could get */
};
/* proc: NULL: "/proc". */
void host_load_read(const char *proc, struct host_load *ret);

/* The text of loadavg; below 0: it is none. */
double host_load_parse(const char *text, size_t len);
/* The text of meminfo. */
void host_memory_parse(const char *text, size_t len, struct host_load *ret);

/* A whole decimal number that len bytes begin with, behind blanks; -1: there is none, or it is
 * over 2^62. */
int64_t host_number(const char *text, size_t len);
/* The number behind "key" and blanks in lines "key value…"; -1: there is none. */
int64_t host_line_number(const char *text, size_t len, const char *key);

#endif
