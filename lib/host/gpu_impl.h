/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations shared by the files of host/gpu: readers of the output of tools and the kernel
 * (bytes in, a list out, no I/O), and the list on its way.
 *
 * Formats: `nvidia-smi --help-query-gpu`, `--help-query-compute-apps`; `rocm-smi --json`; Linux,
 * drivers/gpu/drm/amd/amdkfd/kfd_topology.c (the files below /sys/class/kfd).
 */
#ifndef DLRUN_HOST_GPU_IMPL_H
#define DLRUN_HOST_GPU_IMPL_H

#include "host/gpu.h"

enum { GPU_PCI_SIZE = 24, GPU_OUTPUT_MAX = 1 << 20, GPU_KFD_MAX = 64 << 10 };

/* Fields that the readers expect, in this order. */
#define GPU_NVIDIA_QUERY "index,uuid,pci.bus_id,memory.total,name"
#define GPU_NVIDIA_APPS  "gpu_uuid,gpu_bus_id,pid,process_name"

struct gpu_found {
	struct gpu gpu;         /* id empty: it has none of its own */
	char pci[GPU_PCI_SIZE]; /* 0000:c1:00.0, or empty */
};
struct gpu_found_list {
	struct gpu_found v[GPU_MAX];
	size_t n;
};

/* CSV without header and units. Added to list. GPUs that have fallen off the bus and warnings are
 * ignored. E_GPU_TOOL with the line as evidence, E_DATA_LIMIT over GPU_MAX; list may have grown
 * then. */
int gpu_parse_nvidia(const char *text, size_t len, struct gpu_found_list *list, struct err *err);
/* CSV of processes: sets used. Lines that name no GPU of the list are ignored. */
void gpu_parse_nvidia_apps(const char *text, size_t len, struct gpu_found_list *list);
/* Whether the text is that of a tool that finds no driver: no error where there is no GPU. */
bool gpu_says_no_driver(const char *text);
/* JSON behind any number of lines of text. As gpu_parse_nvidia. */
int gpu_parse_rocm(const char *text, size_t len, struct gpu_found_list *list, struct err *err);

/* The file "properties" of a node of the KFD topology; false: no GPU. gpu->index stays. */
bool gpu_parse_kfd(const char *text, size_t len, struct gpu_found *ret);
/* The file "properties" of a bank of its memory: its size if it is local, else 0. */
uint64_t gpu_parse_kfd_bank(const char *text, size_t len);

/* A PCI address in its normal form, lower-case and with four digits of domain; false: it is
 * none. */
bool gpu_pci_normal(const char *s, size_t len, char out[static GPU_PCI_SIZE]);
/* Turn the list into that for callers: ids filled in and made unique, sorted. */
int gpu_found_finish(const struct gpu_found_list *found, struct gpu_list *ret, struct err *err);

/* gpu_find below another /sys. */
int gpu_find_at(const char *path, const char *sysfs, int64_t timeout_ms, struct gpu_list *ret,
	struct err *err);

/* The GPUs of list that words (indexes, ids, beginnings of ids) allow, as bits; none: all. */
uint64_t gpu_list_match(const struct gpu_list *list, const struct strv *words);

#endif
