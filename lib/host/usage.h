/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resource use of a program, summed up from samples: CPU time and memory of its processes, its
 * GPUs, and energy (the counters of its GPUs and, where they may be read, of the CPU packages by
 * RAPL: kernel Documentation/power/powercap).
 */
#ifndef DLRUN_HOST_USAGE_H
#define DLRUN_HOST_USAGE_H

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
	const char *nvml, *sysfs;       /* NULL: as in gpu_meter.h */
};
struct usage *usage_new(const struct usage_spec *spec);
void usage_look(struct usage *usage);
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

#endif
