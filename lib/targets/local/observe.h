/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Observing a running program from beside it, sampled by its supervisor: resource use (processor,
 * memory, GPUs, energy), the last scalars of the event files in its outputs, the parameters that it
 * wrote there (params.h), and the addresses of experiment trackers in its output. Takes less than 1
 * % of one processor: the pace follows the cost of a sample.
 *
 * The result is one JSON object, dlrun/observed/v1:
 *	{"time": "…Z",
 *	 "usage": {"cpu_s", "memory_peak_bytes", "gpu_busy", "gpu_memory_peak_bytes", "energy_j"},
 *	 "now": {"cpu": 1.5, "memory_bytes", "gpu_busy", "gpu_memory_bytes", "power_w"},
 *	 "metrics": {"loss": {"value": 2.31, "step": 100}}, "params": {…}, "links": ["https://…"]}
 * null where something is not known. gpu_busy: 0 to 1, mean over samples and GPUs. energy_j: what
 * the counters of its GPUs and of the processor (RAPL, where it may be read) gained in the time.
 */
#ifndef DLRUN_TARGETS_LOCAL_OBSERVE_H
#define DLRUN_TARGETS_LOCAL_OBSERVE_H

#include <stdint.h>
#include <sys/types.h>

#include "base/data/json.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "core/record/observed.h"
#include "host/gpu.h"

struct observer;
struct observer_spec {
	const char *outputs;            /* $DLRUN_OUTPUT_DIR, absolute; NULL: none */
	const char *log;                /* the program's output, absolute; NULL: none */
	const struct os_family *family; /* may be empty: then the descendants of the caller */
	pid_t program;                  /* never counted as the caller's own */
	const struct gpu_list *gpus;    /* that the program holds; NULL: none */
};
struct observer *observer_new(const struct observer_spec *spec);
/* Take a sample; never blocks for long. Returns the milliseconds until the next sample is due. */
int64_t observer_sample(struct observer *observer);
/* Take a last sample, of what the program left behind; cpu_s and peak of the kernel's accounting
 * (wait4) count where they are more than was sampled. */
void observer_finish(struct observer *observer, double cpu_s, int64_t memory_peak_bytes);
/* dlrun/observed/v1 as of the last sample; the caller frees. */
struct json *observer_json(const struct observer *observer);
void observer_free(struct observer *observer);
AUTO_POINTER(struct observer, observer_free)
#define AUTO_OBSERVER AUTO(observer_free_auto)

#endif
