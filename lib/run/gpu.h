/*
 * GPUs of this machine: which there are, who uses them, and a queue for them without a server.
 *
 * Found by nvidia-smi or rocm-smi where they are on PATH, else by sysfs (AMD). Given out by flock(2)
 * on one file for each GPU in a directory on a local disk that all users of the machine share, so
 * that the kernel frees a GPU when its last holder dies: the supervisor, and the program, which
 * inherits the descriptors. A state directory on a shared home does not matter.
 *
 * Waiting is first come, first served: a claim has a ticket, a file locked as long as its owner
 * lives, and only the first living ticket may take GPUs. One that a foreign process uses (nobody
 * holds its lock) is passed over as long as it does.
 */
#ifndef DLRUN_RUN_GPU_H
#define DLRUN_RUN_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/err.h"
#include "base/json.h"
#include "base/vec.h"

enum { GPU_MAX = 64, GPU_ID_SIZE = 96, GPU_MODEL_SIZE = 96 };

enum gpu_vendor { GPU_NVIDIA, GPU_AMD };

struct gpu {
	enum gpu_vendor vendor;
	unsigned index;       /* as the vendor's tools count */
	char id[GPU_ID_SIZE]; /* stays the same over reboots: the UUID, else the PCI address */
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
/* Ask the tools. Blocks for at most timeout_ms. None there is an empty list, not an error; a tool
 * that fails or answers nonsense is E_GPU_TOOL with its words as evidence. */
int gpu_find(const char *path, int64_t timeout_ms, struct gpu_list *ret, struct err *err);
/* For a worker process to tell its supervisor. */
struct json *gpu_list_to_json(const struct gpu_list *list);
int gpu_list_from_json(const struct json *json, struct gpu_list *ret, struct err *err);

struct gpu_claim;
struct gpu_claim_spec {
	const char *dir;         /* NULL: the machine's */
	const char *owner;       /* the run's id, for messages */
	unsigned want;           /* 1 to GPU_MAX */
	const struct strv *only; /* indexes or ids that may be used; NULL or empty: any */
};
/* Take a ticket. E_GPU_LOCK when the directory cannot be made or is not safe. */
int gpu_claim_new(const struct gpu_claim_spec *spec, struct gpu_claim **ret, struct err *err);
/* Look once, without waiting: 1 granted (and stays so), 0 not yet. gpus: with used as it is now.
 * E_GPU_COUNT when the machine has fewer than wanted (of those in only): it would wait for ever. */
int gpu_claim_try(struct gpu_claim *claim, const struct gpu_list *gpus, struct err *err);
/* Place in the queue, from 1; of the last try. */
unsigned gpu_claim_position(const struct gpu_claim *claim);
/* Why it was not granted, one sentence ("2 GPUs are busy, it is 3rd in the queue"); of the last
 * try. */
const char *gpu_claim_why(const struct gpu_claim *claim);
/* A descriptor that becomes readable when something may have become free, then drained by
 * gpu_claim_try; -1: look every second. Foreign processes make no event. */
int gpu_claim_watch_fd(const struct gpu_claim *claim);
/* After the grant: the GPUs, in their order. */
const struct gpu_list *gpu_claim_granted(const struct gpu_claim *claim);
/* Descriptors that hold the locks, close-on-exec: the program's child clears that. */
const int *gpu_claim_fds(const struct gpu_claim *claim, size_t *ret_n);
/* CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES=0,2 */
void gpu_claim_env(const struct gpu_claim *claim, struct strv *ret);
/* Leaves the queue or gives back what this process holds, and wakes who waits. */
void gpu_claim_free(struct gpu_claim *claim);
AUTO_POINTER(struct gpu_claim, gpu_claim_free)
#define AUTO_GPU_CLAIM AUTO(gpu_claim_free_auto)

#endif
