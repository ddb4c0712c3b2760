/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of job.c: one Job while it is made.
 */
#ifndef DLRUN_KUBE_JOB_JOB_IMPL_H
#define DLRUN_KUBE_JOB_JOB_IMPL_H

#include "kube/job/job.h"

#define JOB_HOSTS_DIR  "/dlrun/hosts"
#define JOB_HOSTS_NOTE "dlrun.io/hosts"       /* annotation of pods: what $DLRUN_HOSTFILE holds */
#define JOB_RETRIES    "DLRUN_RETRIES"        /* failures before this pod; the script adds them */
#define JOB_INDEX      "JOB_COMPLETION_INDEX" /* a variable that Kubernetes sets, too */
#define JOB_POD        "DLRUN_POD"            /* variable of pods with data in S3: the uid */
#define JOB_GPU        "nvidia.com/gpu"

extern const char job_collect_script[];  /* collect.sh */
extern const char job_code_script[];     /* code.sh */
extern const char job_upload_script[];   /* upload.py */
extern const char job_download_script[]; /* download.py */

struct job {
	const struct kube_run *run;   /* of a role: as if there were no other ranks */
	const struct kube_role *role; /* or NULL */
	int first;                    /* the rank in the run of completion index 0 */
	struct strv *notes;
	bool is_gang, is_jobset;
	bool is_flat; /* the Job of all roles: run has all nodes, and the command of the first */
	bool is_restricted;
	bool is_root;        /* the program's user, as far as the image says */
	bool keeps_limit;    /* the time limit is kept by the script */
	bool yields;         /* a failure waits for the end of the run, which may be its reason */
	bool counts;         /* pods are told how often they failed before */
	bool collects;       /* what the program leaves in its tree */
	bool lingers;        /* results end with the pod, which waits for somebody to take them */
	bool carries_over;   /* results of the attempt before are put back */
	bool keeps_results;  /* on storage that outlives the pod */
	bool shares_results; /* several ranks have the same storage */
	/* The script is started by Python, which starts the program alone where there is no
	 * shell. */
	const char *python;
	struct json *volumes, *mounts;
};

/*
 * members.c
 */

/* E_USAGE unless text is UTF-8: JSON carries nothing else. */
int job_check_text(const char *text, const char *what, struct err *err);
/* 'it'\''s' */
void job_add_quoted(struct buf *out, const char *text);
/* Whether a line for the shell is one in front of which nothing stands. */
bool job_is_own_line(const struct kube_run *run);
/* The words that start a command of the run. */
void job_add_command(const struct kube_run *run, const struct strv *command, struct strv *ret);
/* The id of each member of a study, as Kubernetes is to expand it. The caller frees. */
char *job_member_id(const struct kube_run *run);
/* Whether the members of a study have it of their own. */
bool job_is_member_variable(const struct kube_run *run, const char *name, size_t len);
/* The entries of a study's ConfigMap. */
int job_members(const struct job *job, struct json *data, struct err *err);
/* Members that are cancelled from the beginning, as a list of indexes. The caller frees. */
char *job_list_cancelled(const struct kube_run *run);
/* For the script: append the words of the member to "$@". */
void job_add_member_lines(const struct kube_run *run, struct buf *script);

/*
 * flat.c
 */

/* E_TARGET_UNSUPPORTED unless one Job can be all roles. */
int job_flat_check(const struct kube_run *run, struct err *err);
enum { JOB_FLAT_MAX = 100 << 10 }; /* of the lines: an argument has 128 KiB at most */
/* Add the lines for a pod of that role; base: the variables of the container. */
int job_flat_add_role(
	const struct job *job, const struct json *base, struct buf *out, struct err *err);
void job_flat_note(const struct job *job);

/*
 * volumes.c
 */

/* Volumes of the pod, mounts of the container, and the init containers that fill them. */
int job_storage(struct job *job, struct json *pod_spec, struct json *container, struct err *err);

/*
 * job_script.c
 */

/* The name of the Job, of roles that of the one that their Jobs count as. The caller frees. */
char *job_gang(const struct job *job);
/* The name of a rank's pod, without the end that the cluster gives it. The caller frees. */
char *job_pod_name(const struct job *job, int rank);
/* The name of a rank that the others resolve. The caller frees. */
char *job_host(const struct job *job, int rank);

/* A quantity: "16Gi". */
void job_set_bytes(struct json *object, const char *key, uint64_t bytes);

/* Requests and limits of a container. */
void job_resources(const struct job *job, struct json *container, bool with_gpus);
const char *job_gpu_resource(const struct kube_run *run);

/* Set command or args: words that Kubernetes does not expand. */
int job_set_words(
	struct json *container, const char *key, const struct strv *words, struct err *err);

int job_env(const struct job *job, struct json *container, struct err *err);

/* Whether some of its data are in S3. */
bool job_reads_s3(const struct kube_run *run);
/* Variables of a container that speaks S3: keys, region and endpoint of the program, wherever they
 * come from, and no GPUs. */
void job_s3_env(const struct json *program, struct json *list);
/* Add a variable whose value is a field of the pod. */
void job_add_field(struct json *list, const char *name, const char *path);
/* Words that run a program in Python, behind the lines for the shell, which need no Python. */
void job_python_words(
	const struct job *job, const char *lines, const char *program, struct strv *ret);
/* command, args; whether they are a script. flat: lines for all roles, which append the words of
 * the program; or NULL. */
int job_start(const struct job *job, const char *flat, struct json *container, struct err *err);
/* The container that waits, into containers, and what the script does for it: in front of the
 * program, and behind it (its exit code is $c). */
int job_linger(const struct job *job, struct json *containers, struct err *err);
/* Decide what can be done for results: set collects, lingers, carries and python. */
void job_choose_collector(struct job *job, bool ends_with_pod);
void job_container_security(const struct job *job, struct json *container);

#endif
