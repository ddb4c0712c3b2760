/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of a run in a cluster and the reason for it, in one sentence with numbers: from its Job
 * (batch/v1), pods, events, nodes, Kueue's Workload and quotas, as far as they are known. An
 * engine, no I/O: the caller keeps the facts up to date and calls again after each change.
 *
 * Reasons take precedence over codes, except OOMKilled: a container gets it when any of its
 * processes was killed, and its program may have gone on to an end of its own. Exit status 137 need
 * not mean OOMKilled. Unknown reasons are shown as they are.
 */
#ifndef DLRUN_KUBE_STATUS_STATUS_H
#define DLRUN_KUBE_STATUS_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/status/events.h"

enum { KUBE_SENTENCE_MAX = 500, KUBE_EVIDENCE_LINE_MAX = 300, KUBE_RANKS_MAX = 10000 };

/* As run states of cli.md, but for preparing and unknown. */
enum kube_phase {
	KUBE_QUEUED,    /* accepted, and no pod has a node yet */
	KUBE_STARTING,  /* a pod has a node, the program does not run yet */
	KUBE_RUNNING,   /* the first program runs */
	KUBE_SUCCEEDED, /* all ranks ended well */
	KUBE_FAILED,
	KUBE_CANCELLED,
	KUBE_LOST, /* gone: removed by another client, its end was not seen */
	KUBE_PHASES,
};
/* "queued" */
const char *kube_phase_name(enum kube_phase phase);
bool kube_phase_is_final(enum kube_phase phase);

/* Stages of waiting, in the order in which they happen. */
enum kube_wait {
	KUBE_WAIT_NONE,     /* it runs or has ended */
	KUBE_WAIT_QUEUE,    /* Kueue has not admitted it, or the Job is suspended */
	KUBE_WAIT_PODS,     /* for the Job controller to make pods: quota, policies, nothing yet */
	KUBE_WAIT_SCHEDULE, /* for a node */
	KUBE_WAIT_VOLUME,   /* for volumes to be mounted */
	KUBE_WAIT_PULL,     /* for the image */
	KUBE_WAIT_INIT,     /* for init containers */
	KUBE_WAIT_START,    /* for the runtime */
	KUBE_WAIT_AGAIN,    /* failed, and the next try of the cluster's begins soon */
	KUBE_WAITS,
};

/* How a program ended. Words as in dlrun/run/v1 and these: OutOfMemory Evicted Preempted NodeLost
 * Deleted (a pod, by another client). Both strings are static. */
struct kube_exit {
	bool known;
	int code;           /* 0 to 255; 128 + n for a signal; 124 time limit; 125 no code */
	int signal;         /* 0: none */
	const char *origin; /* "job": the program; "cluster"; "dlrun": its limits */
	const char *reason; /* "Completed" "Error" "Signal" "Timeout" "NotFound" … */
};

struct kube_rank {
	int rank;
	enum kube_phase phase;
	enum kube_wait wait;
	char *pod, *node; /* of the newest pod; or NULL */
	int attempt;      /* from 1: one more than the failures of this rank in this Job */
	int restarts;     /* of its container, in the same pod */
	struct kube_exit exit;
	int64_t started_ms, ended_ms; /* of the program, wall clock of the node; 0: not yet */
	bool is_victim;               /* it ended because another rank did, or was stopped */
	char *reported; /* of results, by its newest pod at its end (KUBE_JOB_RESULTS); or NULL */
	char *versions; /* of data, by its newest pod before it began (KUBE_JOB_DATA); or NULL */
};
struct kube_rank_list VEC_OF(struct kube_rank);

/* The cluster's autoscaler, as it was last heard of, about pods without a node. */
struct kube_growth {
	bool is_silent;      /* that was too long ago to go by it */
	bool applies;        /* it does what it plans */
	bool may_later;      /* none comes now, but one of its groups may have such a node */
	int64_t updated_ms;  /* wall clock, of when it was last heard of */
	char *group;         /* of which a node comes; NULL: of none */
	int64_t expected_ms; /* wall clock of that; 0: not known */
	double price;        /* of that node for an hour; negative: not known */
	struct strv reasons; /* why none comes, "gpu-a: its maximum is 10" */
};
void kube_growth_done(struct kube_growth *growth);
#define AUTO_KUBE_GROWTH AUTO(kube_growth_done)

/* Everything is borrowed for the call. */
struct kube_facts {
	const char *run_id;                    /* for hints */
	const char *job_name, *kube_namespace; /* job_name: of the JobSet, where it is one */
	const char *image;                     /* the reference that the pods pull; may be NULL */
	const struct json *job;                /* NULL: it is not there */
	struct kube_items pods;                /* of the Job */
	struct kube_items events;              /* of the namespace or of the Job and its pods */
	struct kube_items nodes;               /* all nodes */
	struct kube_items node_pods;           /* pods of all namespaces: what is taken on nodes */
	struct kube_items quotas;              /* ResourceQuotas of the namespace */
	const struct json *workload;           /* of Kueue for this Job; NULL: none */
	bool workload_hidden;                  /* whether there is one may not be seen */
	bool is_jobset;                        /* the Job is, or will be, made by a JobSet */
	const struct json *jobset; /* it, which may make the Job anew; NULL: not known, or gone */
	const struct kube_growth *growth; /* of its pods; NULL: nothing is known */
	int64_t now_ms;                   /* wall clock */
	bool was_cancelled;               /* the user asked for its end */
	/* A member of a study: job is that of kube_member_job, pods are its own. */
	bool is_member;
	bool is_stopped; /* of a member that was_cancelled: no program of it begins any more */
	/* With job NULL: the Job as it was when it was last there (pods and events likewise), or
	 * NULL. One that had ended then still counts: its TTL has removed it. */
	const struct json *last_seen;
};

/* Resources that are free for pods of a PodSpec now, on the nodes that its selector, affinity and
 * tolerations let them go to; of facts only nodes and node_pods count. */
struct kube_free {
	bool known;     /* nodes and what is taken on them */
	int64_t nodes;  /* that could run such a pod if they were empty */
	int64_t pods;   /* that fit now, at most a million */
	int64_t gpus;   /* free ones */
	char model[64]; /* of all of them; "": not known, or several */
};
/* ret_names: of those nodes. */
void kube_free_of(const struct kube_facts *facts, const struct json *spec, struct kube_free *ret,
	struct strv *ret_names);

struct kube_status {
	enum kube_phase phase;
	enum kube_wait wait;
	struct kube_exit exit;        /* of the run: that of the first rank to fail */
	int64_t started_ms, ended_ms; /* of the run, wall clock of the cluster; 0: not yet */
	int attempt;                  /* from 1: the highest of the ranks */
	bool cancelling;              /* it is being removed */
	int64_t results_until_ms;     /* its results wait in pods until then; 0: none do */
	/* Where none do: why those that did cannot be taken, "pod x was removed"; NULL: its pods
	 * are not known, or ended in peace. Owned. */
	char *results_lost;
	/* The reason why a pod could not send results to S3, or NULL. Owned. */
	char *results_unsent;
	bool never_fits;             /* as things are it can never run (sched.impossible) */
	bool needs_help;             /* it waits for something that does not come by itself */
	bool is_stranded;            /* it waits where it never begins, and may be taken back */
	bool waits_for_code;         /* which somebody has to stream to its pods */
	int first_failed;            /* the rank; -1: none */
	int n_victims;               /* others that ended because of it */
	int n_running, n_ranks;      /* programs that run, and are wanted */
	bool has_roles;              /* to which its ranks belong */
	struct kube_rank_list ranks; /* by rank; all of them, also without a pod */
	/* Why: E_NONE while all goes well. */
	enum err_id id;
	/* Stands behind "RUN is queued: " or "RUN failed: "; lower case, no full stop, at most
	 * KUBE_SENTENCE_MAX printable bytes. NULL when there is nothing to say. */
	char *sentence;
	struct strv evidence; /* at most ERR_EVIDENCE_MAX printable lines */
	char *hint;           /* or NULL */
};

/* Each run with roles has one Job in the List from then on, whose name is its label gang and
 * whose completion indexes are its ranks. */
void kube_join_roles(struct json *list);
/* How many ranks the run of a Job has, at least 1. */
int64_t kube_ranks_of(const struct json *job);
/* "rank 3", of a run with roles "actors.3". The caller frees. */
char *kube_rank_name(const struct json *job, int rank);

/* The Job of a study as its member of that completion index sees it: a Job of one pod, without the
 * specification of that unless it is wanted. job: NULL: NULL. The caller frees. */
struct json *kube_member_job(const struct json *job, int index, bool with_pod);
/* Whether that member has ended, as the Job says. */
bool kube_member_has_ended(const struct json *job, int index);
/* Sets the marks of the indexes below n that are in a list like "0,2-5" (NULL: none is). */
void kube_mark_indexes(const char *list, bool *marks, int n);
/* Such a list of those that are marked; the caller frees. */
char *kube_list_indexes(const bool *marks, int n);

/* *ret is filled anew; never fails: what is missing or of another form counts as not known. */
void kube_status_of(const struct kube_facts *facts, struct kube_status *ret);
void kube_status_done(struct kube_status *status);
#define AUTO_KUBE_STATUS AUTO(kube_status_done)

#endif
