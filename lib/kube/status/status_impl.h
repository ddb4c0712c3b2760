/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interfaces between the parts of status.c: one pod, the queue and the nodes. Private to lib/kube.
 */
#ifndef DLRUN_KUBE_STATUS_STATUS_IMPL_H
#define DLRUN_KUBE_STATUS_STATUS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/api/names.h"
#include "kube/status/status.h"

/*
 * Reasons
 */

struct kube_why {
	enum err_id id;
	char *sentence; /* owned, as is the rest; NULL: nothing to say */
	struct strv evidence;
	char *hint;
	bool never_fits, needs_help;
	int64_t since_ms;
};
void kube_why_done(struct kube_why *why);
/* Set the sentence; one that is there is replaced. */
void kube_why_set(struct kube_why *why, enum err_id id, const char *fmt, ...) ERR_PRINTF(3, 4);
/* Add a line of evidence, made printable; the fifth and lines already present are dropped. */
void kube_why_evidence(struct kube_why *why, const char *fmt, ...) ERR_PRINTF(2, 3);
void kube_why_hint(struct kube_why *why, const char *fmt, ...) ERR_PRINTF(2, 3);

/*
 * Reading objects
 */

/* A member by a path of keys, "status.conditions"; keys with dots cannot be reached. */
const struct json *kube_at(const struct json *object, const char *path);
const char *kube_str_at(const struct json *object, const char *path);
/* RFC 3339 at a path; 0: none. */
int64_t kube_time_at(const struct json *object, const char *path);
/* status.conditions[type]; NULL: none. */
const struct json *kube_condition(const struct json *object, const char *type);
bool kube_condition_is(const struct json *object, const char *type, const char *status);
/* The member of an array of objects whose name is that. */
const struct json *kube_named(const struct json *array, const char *name);
/* metadata.labels or annotations [key]. */
const char *kube_label(const struct json *object, const char *key);
const char *kube_annotation(const struct json *object, const char *key);
/* Time at which removal was requested: deletionTimestamp lies a grace period later. 0: it was
 * not. */
int64_t kube_deleted_ms(const struct json *object);

/* The text behind before in text up to the next of end (all of it without one), or NULL. */
char *kube_between(const char *text, const char *before, const char *end);
/* The number that stands there (at most nine digits), or fallback. */
int64_t kube_number(const char *text, int64_t fallback);
/* A reference to an image without most of its digest, for sentences. */
char *kube_image_text(const char *image);
/* The host of a reference ("docker.io" where it names none). */
char *kube_image_host(const char *image);

/*
 * Amounts (resource.Quantity)
 */

/* In thousandths: "500m" is 500, "2" 2,000, "1Ki" 1,024,000. false: it is none, or over 2^63. */
bool kube_quantity(const char *text, int64_t *ret_milli);
/* As kube_quantity, of a JSON value, which may be a number; 0 for anything else. */
int64_t kube_quantity_of(const struct json *json);
/* Bytes for people: "64Gi", "1.5Gi". */
const char *kube_bytes_text(int64_t bytes, char out[static 24]);
/* "8 free GPUs" needs to know what they are called: "GPU" for nvidia.com/gpu, the resource's name
 * for others. */
bool kube_is_gpu(const char *resource);

struct kube_demand {
	int64_t cpu_milli, memory, disk; /* bytes; 0: nothing asked for */
	int64_t gpus;
	char resource[64]; /* of the GPUs; "" for none */
};
/* Resource requests of a pod: of spec, a PodSpec. */
void kube_demand_of(const struct json *spec, struct kube_demand *ret);
/* The PodSpec of the Job, or of the first pod where there is no Job; or NULL. */
const struct json *kube_pod_spec(const struct kube_facts *facts);

/*
 * Pods
 */

struct kube_pod {
	const struct json *json;
	const char *name, *node; /* node: NULL while it has none */
	int rank;                /* 0 where it does not say */
	enum kube_phase phase;   /* QUEUED, STARTING, RUNNING, SUCCEEDED, FAILED, LOST (disrupted
				    and not ended) */
	enum kube_wait wait;
	struct kube_exit exit;
	int64_t created_ms, started_ms, ended_ms;
	int64_t failed_ms;  /* when it began to go wrong; for who was first */
	int64_t deleted_ms; /* when its removal was asked for */
	int attempt, restarts;
	bool disrupted, is_victim;
	struct kube_why why;
};
struct kube_pod_list VEC_OF(struct kube_pod);
void kube_pod_done(struct kube_pod *pod);

struct kube_room;
struct kube_case {
	const struct kube_facts *facts;
	struct kube_event_list events;
	/* Room for all pods, which are alike; made once, when it is first needed. */
	struct kube_room *room;
};
/* The newest event with that reason about any pod of the run, also one that is gone; or NULL. */
const struct kube_event *kube_pods_event(const struct kube_case *c, const char *reason);
void kube_pod_read(struct kube_case *c, const struct json *json, struct kube_pod *ret);
/* Parts of it: how it ended, and what it waits for. */
void kube_pod_end(const struct kube_case *c, struct kube_pod *pod);
void kube_pod_wait(struct kube_case *c, struct kube_pod *pod);
/* The status of its program's container, or NULL. */
const struct json *kube_pod_program(const struct json *pod);
/* Time until which the results of the pod wait to be taken, the program having ended; 0: they do
 * not. */
int64_t kube_pod_lingers(const struct json *pod);
/* The pod's report on results (KUBE_JOB_RESULTS); or NULL. The caller frees. */
char *kube_pod_told(const struct json *pod);
/* results_lost of kube_status, where no pod waits: by whom it was ended. job: NULL where none was
 * seen. The caller frees. */
char *kube_pods_lost(
	const struct kube_facts *facts, const struct json *job, const struct kube_pod_list *pods);
/* The pod's phase, as told by the program if only results wait. */
const char *kube_pod_phase(const struct json *pod);
/* The memory limit of the program in bytes; 0: none. */
int64_t kube_pod_memory(const struct json *pod);

/* The sentences for what a node says of an image, a container that cannot be started, a volume and
 * a configuration. text: as it came. */
void kube_why_pull(const struct kube_case *c, const struct kube_pod *pod, const char *reason,
	const char *text, struct kube_why *why);
void kube_why_volume(const struct kube_pod *pod, const char *text, struct kube_why *why);
void kube_why_config(const struct kube_case *c, const char *text, struct kube_why *why);
/* Why a command cannot be executed, from what a runtime says; false: it says nothing like that. */
bool kube_why_exec(const char *text, struct kube_exit *ret_exit, struct kube_why *why);

/*
 * Scheduling
 */

enum kube_obstacle {
	KUBE_NO_GPU,
	KUBE_NO_MEMORY,
	KUBE_NO_CPU,
	KUBE_NO_DISK,
	KUBE_NO_SLOT, /* too many pods */
	KUBE_NO_TOLERATION,
	KUBE_NO_MATCH, /* selector, node affinity */
	KUBE_NO_VOLUME,
	KUBE_CORDONED,
	KUBE_NOT_READY,
	KUBE_OTHER,
	KUBE_OBSTACLES,
};
/* "0/12 nodes are available: …" taken apart. A node may be counted under several. */
struct kube_verdict {
	bool parsed;
	int nodes;                     /* in the cluster */
	int counts[KUBE_OBSTACLES];    /* nodes with that obstacle */
	char taint[128], resource[64]; /* of the first of that kind, "" when it does not say */
	char claim[128];               /* of a volume claim; "" likewise */
	bool claim_missing, claim_unbound;
	char rest[300]; /* of others, as they came */
};
void kube_verdict_parse(const char *text, struct kube_verdict *ret);

/* Room on the nodes for pods with that spec. */
struct kube_room {
	bool known, taken_known; /* nodes; what is taken on them */
	int nodes;
	int fit_ever;      /* could run it if they were empty */
	int fit_now;       /* can now */
	int matching;      /* fit its selector */
	int right_arch;    /* of its processor */
	int tolerated;     /* of the matching: without a taint that it does not tolerate */
	int with_gpu;      /* of all: have that resource at all */
	int off;           /* of the matching: cordoned or not ready */
	int64_t gpus_max;  /* most GPUs of one usable node */
	int64_t gpus_free; /* most free ones of one; -1: not known */
	int64_t memory_max, cpu_max, memory_free, cpu_free, disk_max;
	char taint[128];    /* one that keeps it off a node with room */
	int tainted;        /* how many nodes with room are kept off by taints */
	char arch_has[64];  /* processors that there are, "amd64" */
	char free_text[96]; /* free GPUs of nodes that have any, most first: "4 4 2 1 0" */
	bool grows;         /* nodes are made on demand as far as can be seen */
};
const struct kube_room *kube_room_of(struct kube_case *c, const struct json *spec);
/* Why no node takes it: text of the scheduler (may be NULL) and the nodes, as far as known. */
void kube_why_schedule(struct kube_case *c, const char *text, struct kube_why *why);
int kube_gpus_fit(const struct kube_room *room);

/*
 * Outlook on the Job
 */

enum kube_outlook { KUBE_OUTLOOK_OPEN, KUBE_OUTLOOK_SUCCEEDS, KUBE_OUTLOOK_FAILS };
/* How the Job ends for certain, all its pods having ended, none of which is replaced; pods of other
 * Jobs are left out. OPEN: something goes on or may be started again, or it cannot be known. */
enum kube_outlook kube_job_outlook(const struct json *job, const struct kube_items *pods);

/*
 * Before there are pods
 */

/* Kueue and suspension. true: it waits for that. */
bool kube_why_queue(const struct kube_case *c, struct kube_why *why);
/* Pods that cannot be made. true: the newest word of the Job's controller is a refusal. */
bool kube_why_create(const struct kube_case *c, struct kube_why *why);

#endif
