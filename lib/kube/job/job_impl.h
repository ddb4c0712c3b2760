/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of job.c: one Job while it is made.
 */
#ifndef DLRUN_KUBE_JOB_JOB_IMPL_H
#define DLRUN_KUBE_JOB_JOB_IMPL_H

#include "kube/job/job.h"

#define JOB_HOSTS_DIR  "/dlrun/hosts"
#define JOB_HOSTS_NOTE "dlrun.io/hosts" /* annotation of pods: what $DLRUN_HOSTFILE holds */
#define JOB_RETRIES    "DLRUN_RETRIES"  /* failures before this pod; the script adds them */
#define JOB_GPU        "nvidia.com/gpu"

struct job {
	const struct kube_run *run;
	struct strv *notes;
	bool is_gang, is_jobset;
	bool is_restricted;
	bool is_root;        /* the program's user, as far as the image says */
	bool keeps_limit;    /* the time limit is kept by the script */
	bool counts;         /* pods are told how often they failed before */
	bool collects;       /* what the program leaves in its tree */
	bool lingers;        /* results end with the pod, which waits for somebody to take them */
	bool carries;        /* results of the attempt before are put back */
	bool keeps_results;  /* on storage that outlives the pod */
	bool shares_results; /* several ranks have the same storage */
	/* The script is started by Python, which starts the program alone where there is no
	 * shell. */
	const char *python;
	struct json *volumes, *mounts;
};

/* "DLRUN_X" is set by the user, openly or as a secret. */
bool job_user_sets(const struct kube_run *run, const char *name, size_t len);
/* E_USAGE unless text is UTF-8: JSON carries nothing else. */
int job_check_text(const char *text, const char *what, struct err *err);
/* The name of a rank that the others resolve. The caller frees. */
char *job_host(const struct job *job, int rank);

/* A quantity: "16Gi". */
void job_set_bytes(struct json *object, const char *key, uint64_t bytes);
/* Labels and annotations of all objects; metadata is an object. */
void job_set_labels(const struct kube_run *run, struct json *metadata);
struct json *job_metadata(const struct kube_run *run, const char *name);

int job_env(const struct job *job, struct json *container, struct err *err);
/* command, args; whether they are a script. */
int job_start(const struct job *job, struct json *container, struct err *err);
/* A script for the pod, which collects. The caller frees. */
char *job_collector(const struct job *job);
/* The container that waits, into containers, and what the script does for it: in front of the
 * program, and behind it (its exit code is $c). */
int job_linger(const struct job *job, struct json *containers, struct err *err);
void job_linger_begin(const struct job *job, struct buf *script);
void job_linger_end(const struct job *job, struct buf *script);
/* Add the words in front of "-c SCRIPT NAME …". */
void job_shell_words(const struct job *job, struct strv *ret);
int job_set_words(
	struct json *container, const char *key, const struct strv *words, struct err *err);
/* Decide what can be done for results: set collects, lingers, carries and python. */
void job_choose_collector(struct job *job, bool ends_with_pod);
bool job_has_script(const struct job *job);
/* Volumes of the pod, mounts of the container, the init container that fills outputs. */
int job_storage(struct job *job, struct json *pod_spec, struct json *container, struct err *err);
void job_resources(const struct job *job, struct json *container, bool with_gpus);
void job_container_security(const struct job *job, struct json *container);
/* {metadata, spec} of pods, the overlay laid over it. */
int job_pod(struct job *job, struct json **ret, struct err *err);

#endif
