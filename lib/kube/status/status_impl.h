/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of status.c: the reasons, one pod, the nodes, which kube/job reads before it submits.
 */
#ifndef DLRUN_KUBE_STATUS_STATUS_IMPL_H
#define DLRUN_KUBE_STATUS_STATUS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/api/kinds.h"
#include "kube/status/object.h"
#include "kube/status/status.h"

/*
 * Members of a study (member.c)
 */

#define KUBE_MEMBER "dlrun.io/member" /* annotation of kube_member_job: its completion index */
/* Reasons of its failure that are none of its own. */
#define KUBE_STOPPED     "StudyStopped"
#define KUBE_FAILED_FAST "StudyFailedFast"
/* The next span of a list like "0,2-5" (Job.status.completedIndexes); returns what is behind it. */
const char *kube_next_indexes(const char *list, int64_t *ret_from, int64_t *ret_to);
/* Whether n is in such a list. */
bool kube_in_indexes(const char *list, int n);

/*
 * Reasons
 */

struct kube_why {
	enum err_id id;
	char *sentence; /* owned, as is the rest; NULL: nothing to say */
	struct strv evidence;
	char *hint;
	bool never_fits, needs_help, is_stranded;
	bool waits_for_code;
	bool is_bought; /* no node that is there could ever run it, and one that could comes */
};
void kube_why_done(struct kube_why *why);
/* Set the sentence; one that is there is replaced. */
void kube_why_set(struct kube_why *why, enum err_id id, const char *fmt, ...) ERR_PRINTF(3, 4);
/* Add a line of evidence, made printable; the fifth and lines already present are dropped. */
void kube_why_evidence(struct kube_why *why, const char *fmt, ...) ERR_PRINTF(2, 3);
void kube_why_hint(struct kube_why *why, const char *fmt, ...) ERR_PRINTF(2, 3);

/* "it reached its time limit of 2h", that of a PodSpec or JobSpec. */
void kube_why_timeout(const struct json *spec, struct kube_why *why);

struct kube_fit;
struct kube_case {
	const struct kube_facts *facts;
	struct kube_event_list events;
	struct kube_fit *fits; /* made when they are first needed */
};
void kube_fits_free(struct kube_fit *fits);
/* The namespace of the run, "default" where none is named. */
const char *kube_case_namespace(const struct kube_case *c);
/* The newest event with that reason about any pod of the run, also one that is gone; or NULL. */
const struct kube_event *kube_pods_event(const struct kube_case *c, const char *reason);

struct kube_pod {
	const struct json *json;
	const char *name, *node; /* node: NULL while it has none */
	int rank;                /* 0 where it does not say */
	enum kube_phase phase;   /* QUEUED, STARTING, RUNNING, SUCCEEDED, FAILED */
	enum kube_wait wait;
	struct kube_exit exit;
	int64_t created_ms, started_ms, ended_ms;
	int64_t failed_ms;  /* when it began to go wrong; for who was first */
	int64_t deleted_ms; /* when its removal was requested */
	int attempt, restarts;
	bool disrupted, is_victim;
	struct kube_why why;
};
struct kube_pod_list VEC_OF(struct kube_pod);

/* A row of a table of reasons; the first that fits is taken. */
struct kube_reason {
	const char *words[8]; /* any of them stands in the text; none: any text */
	enum err_id id;
	unsigned flags;
	/* <1>, <2> (the whole text where it has none), <text>, <node>, <ns>, <run>, <image>,
	 * <host> and <name> are filled in. */
	const char *sentence, *hint, *evidence;
	/* <1> and <2> stand in the text behind the first, up to any character of the second. */
	const char *cut[2][2];
	const char *reasons;   /* of the API, separated by blanks; NULL: any */
	const char *otherwise; /* the text where there is none; NULL: the reason */
	struct kube_exit exit;
};
enum { KUBE_HELP = 1, KUBE_NEVER_FITS = 2 };
/* The source of what is filled in; all but the case may be NULL. */
struct kube_about {
	const struct kube_case *c;
	const struct kube_pod *pod;
	const char *reason, *text; /* as they came */
	const char *image, *host, *name;
};
const struct kube_reason *kube_reason_find(
	const struct kube_reason *rows, size_t n, const char *reason, const char *text);
void kube_why_fill(
	const struct kube_reason *row, const struct kube_about *about, struct kube_why *why);

/* The sentences for what a node says of an image, a volume and a configuration. text: as it
 * came. */
void kube_why_pull(const struct kube_case *c, const struct kube_pod *pod, const char *reason,
	const char *text, struct kube_why *why);
void kube_why_volume(const struct kube_pod *pod, const char *text, struct kube_why *why);
void kube_why_config(const struct kube_case *c, const char *text, struct kube_why *why);
/* Why a command cannot be executed, from what a runtime says; false: it says nothing like that. */
bool kube_why_exec(
	const struct kube_about *about, struct kube_exit *ret_exit, struct kube_why *why);
/* "node N pulls IMAGE" */
void kube_why_pulling(const struct kube_case *c, const struct kube_pod *pod, const char *message,
	struct kube_why *why);
/* Before there are pods: Kueue and suspension. true: it waits for that. */
bool kube_why_queue(const struct kube_case *c, struct kube_why *why);
/* Pods that cannot be made. true: the newest word of the Job's controller is a refusal. */
bool kube_why_create(const struct kube_case *c, struct kube_why *why);

/*
 * Pods
 */

void kube_pod_read(struct kube_case *c, const struct json *json, struct kube_pod *ret);
/* Time until which the results of the pod wait to be taken, the program having ended; 0: they do
 * not. */
int64_t kube_pod_lingers(const struct json *pod);
/* Why the pod could not send its results to S3, or NULL. The caller frees. */
char *kube_pod_unsent(const struct json *pod);
/* The versions of its data that the pod's init containers have told (KUBE_JOB_DATA), or NULL. The
 * caller frees. */
char *kube_pod_versions(const struct json *pod);
/* results_lost of kube_status, where no pod waits: by whom it was ended. job: NULL where none was
 * seen. The caller frees. */
char *kube_pods_lost(
	const struct kube_facts *facts, const struct json *job, const struct kube_pod_list *pods);

enum kube_outlook { KUBE_OUTLOOK_OPEN, KUBE_OUTLOOK_SUCCEEDS, KUBE_OUTLOOK_FAILS };
/* How the Job ends for certain, all its pods having ended, none of which is replaced; pods of other
 * Jobs are left out. OPEN: something goes on or may be started again, or it cannot be known. */
enum kube_outlook kube_job_outlook(const struct json *job, const struct kube_items *pods);

/* The ranks from *ret_first to before *ret_end, whose end is that of the run: all, or those of the
 * role that it ends with. */
void kube_deciding_ranks(const struct json *job, int *ret_first, int *ret_end);
/* Whether a gang that may begin again has succeeded for certain: all ranks have, or those of the
 * role that ends the run, and none has failed. job: of all ranks, or its template in a JobSet. A
 * pod that has not ended may be NULL. */
bool kube_gang_has_succeeded(const struct json *job, const struct kube_items *pods);

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
struct kube_decision {
	bool parsed;
	int nodes;                     /* in the cluster */
	int counts[KUBE_OBSTACLES];    /* nodes with that obstacle */
	char taint[128], resource[64]; /* of the first of that kind, "" when it does not say */
	char claim[128];               /* of a volume claim; "" likewise */
	bool claim_missing, claim_unbound;
	char rest[300]; /* of others, as they came */
};
void kube_decision_parse(const char *text, struct kube_decision *ret);
/* Why no node takes it: text of the scheduler (may be NULL) and the nodes, as far as known. pod: of
 * a role, else one that is as the Job says, or NULL. The caller frees c->fits. */
void kube_why_schedule(
	struct kube_case *c, const struct json *pod, const char *text, struct kube_why *why);

#endif
