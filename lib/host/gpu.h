/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs of this machine: which ones exist, which are in use, and a queue for them without a server.
 *
 * Found by nvidia-smi or rocm-smi where they are on PATH, AMD's otherwise by sysfs. Assigned by
 * flock(2) on one file for each GPU in a directory on a local disk that all users of the machine
 * share (/tmp/dlrun-gpus; below /run/lock or /dev/shm where /tmp is on a network or not shared), so
 * that the kernel frees a GPU when its last holder dies: the supervisor, and the program, which
 * inherits the descriptors. A state directory on a shared home does not matter. Containers that
 * share no /tmp do not see each other.
 *
 * The queue is first come, first served: a claim has a ticket, a file that is locked as long as its
 * owner lives, and no ticket takes a GPU that an earlier living one may take. So no claim is
 * overtaken for ever, a claim on several GPUs gets them, and one that is limited to GPUs that are
 * busy (`only`) does not keep the rest idle. A GPU that a foreign process uses (its lock is free)
 * is passed over as long as it does.
 *
 * Any user can join, so any can hold a lock, a ticket or the queue for as long as a process of his
 * lives, also a stopped one; the maker of the directory or of a file can replace it. That costs
 * others time, or the order of the queue, which is reported; a GPU is still given to one run only,
 * because each user also locks the GPUs that he holds where only he can write, in DIR.UID, and
 * heeds the locks of others there. Other users cannot make us write to, or wait for,
 * anything but these locks: no link is followed, nothing that others wrote is trusted, and the
 * waits have limits.
 */
#ifndef DLRUN_HOST_GPU_H
#define DLRUN_HOST_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum { GPU_MAX = 64, GPU_ID_SIZE = 96, GPU_MODEL_SIZE = 96 };

enum gpu_vendor { GPU_NVIDIA, GPU_AMD };

struct gpu {
	enum gpu_vendor vendor;
	unsigned index;       /* as CUDA (in the order of the bus) or ROCr counts */
	char id[GPU_ID_SIZE]; /* stays the same over reboots: GPU-UUID, 0xUNIQUE of AMD, else the
	                         PCI address 0000:c1:00.0; never two of one id in a list */
	char model[GPU_MODEL_SIZE];
	uint64_t memory_bytes; /* 0: unknown */
	bool used;             /* some process computes on it now */
};

struct gpu_list {
	struct gpu v[GPU_MAX]; /* by vendor and index */
	size_t n;
};

/* Whether this machine may have GPUs. Starts no process; for the submitting side. path: PATH. */
bool gpu_may_exist(const char *path);
/* Find the GPUs. Blocks for at most timeout_ms. No GPU is an empty list, not an error, also where
 * the tools are installed but neither driver nor GPU is. A tool that fails or prints nonsense is
 * E_GPU_TOOL with its words as evidence; one GPU that is lost does not hide the others. Parts of a
 * processor (AMD, less than 2 GiB set apart) do not count. More than GPU_MAX: E_DATA_LIMIT. */
int gpu_find(const char *path, int64_t timeout_ms, struct gpu_list *ret, struct err *err);
/* Whether the words of type ("a100", "A100-80GB", "rtx4090") are words of model ("NVIDIA
 * A100-SXM4-80GB"), whatever their case; several words of model may be one of type. With commas in
 * type: whether that is so of one part of it. */
bool gpu_model_matches(const char *model, const char *type);
/* For a worker process to report to its supervisor: [{"vendor": "nvidia" or "amd", "index", "id",
 * "model", "memory_bytes", "used"}, …]. E_DATA, E_DATA_LIMIT. */
struct json *gpu_list_to_json(const struct gpu_list *list);
int gpu_list_from_json(const struct json *json, struct gpu_list *ret, struct err *err);

enum { GPU_CLAIM_TEXT_MAX = 8 << 10 }; /* bytes of owner and only, as lines */

struct gpu_claim;
struct gpu_claim_spec {
	const char *dir;         /* NULL: the machine's; made if missing, and open to all */
	const char *owner;       /* the run's id, for users who inspect the directory */
	unsigned want;           /* 1 to GPU_MAX; all of one vendor */
	const struct strv *only; /* indexes, ids or beginnings of GPU-UUIDs that may be used; NULL
	                            or empty: any */
};
/* Take a ticket. Where the directory cannot be used, or another process holds the queue for 10 s (a
 * minute in later tries), this goes on without the order of the queue, which is its notice.
 * E_GPU_LOCK when no directory of our own can be made beside it; E_GPU_COUNT when want is out of
 * range. */
int gpu_claim_new(const struct gpu_claim_spec *spec, struct gpu_claim **ret, struct err *err);
/* Try once: 1 granted (and stays so), 0 not yet. gpus: with used as it is now. Blocks for 0.2 s at
 * most. E_GPU_COUNT when the machine has fewer than wanted (of those in only): it would wait for
 * ever. */
int gpu_claim_try(struct gpu_claim *claim, const struct gpu_list *gpus, struct err *err);
/* Like gpu_claim_try without taking, and whatever used says: 1 if a try with a new list may be
 * granted. For a caller that waits with an old list, so that the tools are run only when it
 * matters. */
int gpu_claim_ready(struct gpu_claim *claim, const struct gpu_list *gpus, struct err *err);
/* Why the last try was not granted ("GPU 0 is in use by q1-hc62r since 2026-11-23T05:04:25Z; 2 runs
 * are before it"); the same as long as nothing changes. Lives until the next try. */
const char *gpu_claim_why(const struct gpu_claim *claim);
/* Why the claim is not queued in order, for the user, granted or not. NULL: it is. */
const char *gpu_claim_notice(const struct gpu_claim *claim);
/* A descriptor, always the same, that becomes readable after a try when a GPU may have become free;
 * the next try drains it. Foreign processes make no event, nor does the death of a holder, so try
 * again every second or few as well. -1: only that. */
int gpu_claim_watch_fd(const struct gpu_claim *claim);
/* After the grant: the GPUs, in their order. */
const struct gpu_list *gpu_claim_granted(const struct gpu_claim *claim);
/* Descriptors that hold the locks, close-on-exec: the program's child clears that. */
const int *gpu_claim_fds(const struct gpu_claim *claim, size_t *ret_n);
/* CUDA_VISIBLE_DEVICES=0,2 with CUDA_DEVICE_ORDER=PCI_BUS_ID, without which CUDA counts in another
 * order, or ROCR_VISIBLE_DEVICES; nothing before the grant. Of n GPUs of those granted,
 * from that index on. */
void gpu_claim_env(const struct gpu_claim *claim, size_t from, size_t n, struct strv *ret);
/* Leaves the queue or gives back what this process holds, and wakes waiting claims. A GPU whose
 * descriptor a program still has stays taken. In a forked child: only closes its copies. Never
 * waits for a lock. */
void gpu_claim_free(struct gpu_claim *claim);
AUTO_POINTER(struct gpu_claim, gpu_claim_free)
#define AUTO_GPU_CLAIM AUTO(gpu_claim_free_auto)

#endif
