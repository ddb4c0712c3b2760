/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Description of a run in Kubernetes' terms, and the objects made from it (batch/v1 Job, JobSet
 * v1alpha2, Service, ConfigMap, Secret, PersistentVolumeClaim). An engine: no I/O.
 *
 * Order of requests. The Job is the commit point: when it is there, all that its pods need is there
 * too, so they start at once, and no crash leaves pods that wait forever.
 *	1. kube_objects_before: claim, Service, ConfigMaps, Secret, in parallel, while the image
 *	   is pushed: they do not depend on its digest. Create; 409 is success when the run-id
 *	   label is this run's.
 *	2. objects->job: create; a lost reply or a 409 is looked up by its name and run-id label.
 *	   A run that may be taken back (may_move) has a ConfigMap as its gate: without it no
 *	   node begins its program.
 *	3. kube_objects_adopt: each PATCHed (merge) with kube_job_owner, so that they go with the
 *	   Job: at its deletion and by its TTL. A failure here fails nothing; it is repeated by
 *	   the next command that looks at the run (an object of a run without owner, whose Job is
 *	   there).
 * Killed before 2: at most labelled objects without a Job, named after a handle that the record
 * has; the next command deletes them by name. Killed between 2 and 3: see 3. The claim of a run's
 * results is never adopted: results outlive Jobs, `dlrun rm` deletes it.
 *
 * Pods. One container "program", one pod for each rank, the rank is the completion index.
 *	single node	backoffLimitPerIndex is retries; disruptions (preempted, evicted,
 *			drained, node lost) are not counted; a pod is replaced when it has ended,
 *			never before.
 *	study		one Job for all, whose completion index is the member; each has pods
 *			and retries as of a single node, and words, variables, an id and
 *			results of its own. One that fails stops no other, but with fail_fast.
 *	gang		nodes > 1: the first failure of any rank ends all of them, a
 *			disruption too. A JobSet starts all again (maxRestarts is retries;
 *			disruptions not counted; its own Service). Without it nothing in the
 *			cluster can: the watching command does, or `dlrun restart`;
 *			kube_objects.notes says so. Ranks find each other by <job>-0.<service>.
 *
 * Roles. Each has a Job of its own, in a JobSet that also ends the others when the one that
 * ends_with names has ended. They are one gang: the first failure of any rank ends all of them,
 * and a restart is one of all. A failure of another role than that waits for 10 s, where the image
 * has a shell: the run may just have ended. Ranks, and variables that tell of them, are those
 * within the role; files of results are named by the rank in the run. Without a JobSet all roles
 * are one Indexed Job, whose successPolicy is ends_with (Kubernetes 1.31): its pods are told by
 * their index what they do, and all ask for what the role asks for that wants most; roles with
 * different GPUs cannot be.
 *
 * Code apart. Where no registry takes the image, the layers of the code lie in ConfigMaps, in
 * entries LAYER.PART, and an init container of the base unpacks them (code.sh) into a volume that
 * has the place of the tree. What is larger is sent to each pod as a stream.
 *
 * Study. Words and variables of its members lie in a ConfigMap of the Job's name, a line for each
 * in entries of KUBE_MEMBERS_EACH; the script evaluates the line of $JOB_COMPLETION_INDEX. The
 * entry KUBE_STUDY_CANCEL INDEX, mostly added later, keeps that member from beginning: its pod ends
 * with KUBE_JOB_CANCELLED and 125, or 0 with fail_fast, where the Job lists those members in
 * KUBE_ANNOTATION_CANCELLED: failures are counted by maxFailedIndexes. KUBE_STUDY_ENDS INDEX allows
 * one more, that of the member whose pod was removed. Kubernetes makes ids and paths of results
 * from their index.
 *
 * Time limit. Waiting does not count. With a shell in the image the program's own limit is kept
 * in the pod: TERM, grace, KILL, exit status 124 and KUBE_JOB_TIMEOUT as termination message, no
 * retry. Without one it is the pod's activeDeadlineSeconds, which also counts what happens on the
 * node before the start (pulling the image), and such an attempt is retried as any other failure.
 * The Job's own activeDeadlineSeconds is never used: it counts waiting and all attempts together.
 *
 * How the program starts. Plain words are executed as they are, behind the image's ENTRYPOINT, with
 * no shell anywhere. These need a shell in the image, at /bin/sh or on PATH: a command that is a
 * line for the shell, a launcher, a study, before, setup, a time limit or signal that is kept, a
 * stop signal other than TERM (a node knows no other for an image), files of the snapshot below an
 * output, DLRUN_ATTEMPT of a retry. There is one POSIX script for that; the last thing that it does
 * is exec, unless a limit, a signal or a shell line makes it stay: then it passes on
 * TERM to all, and ends with the program's own status.
 *
 * Names of the user are never replaced; $(X) in the user's text is never expanded.
 *
 * Limits of a pod that a local run does not have: files of the snapshot below a data path are
 * hidden by the volume; setups that are not in the image are made anew in each pod;
 * $DLRUN_ATTEMPT_DIR ends with its pod; in the restricted level a volume whose root neither group 0
 * nor others may write, and whose driver ignores fsGroup, cannot be written (hostPath, many NFS).
 */
#ifndef DLRUN_KUBE_JOB_JOB_H
#define DLRUN_KUBE_JOB_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/api/kinds.h"

/* Everything is borrowed. NULL, 0 and empty lists: not asked for. */

enum kube_place_kind {
	KUBE_PLACE_NONE,
	KUBE_PLACE_PVC,   /* name */
	KUBE_PLACE_NFS,   /* name: the server; path: exported directory */
	KUBE_PLACE_HOST,  /* path; E_KUBE_HOST_PATH unless kube_run.allow_host_path */
	KUBE_PLACE_CLAIM, /* results only: a claim of the run's own, of size_bytes */
	KUBE_PLACE_EMPTY, /* ends with the pod */
	KUBE_PLACE_S3,    /* data only; path: "s3://BUCKET/PATH"; size_bytes: of its cache, or 0 */
};
struct kube_place {
	enum kube_place_kind kind;
	const char *name, *path;
	const char *sub_path; /* below the volume's root, relative */
	const char *storage_class;
	uint64_t size_bytes;
	bool read_only;
};

struct kube_mount {
	const char *path; /* data: in the tree, as runtime_path writes it; volumes: absolute */
	struct kube_place place;
	bool has_files; /* data: the snapshot has files there, which the volume hides */
	bool is_shared; /* volumes: other runs write there at the same time */
};
struct kube_output {
	const char *path; /* in the tree */
	bool has_files;   /* of the snapshot: they are copied first */
};

/* The part of a member of a study that is its own. */
struct kube_member {
	const struct strv *command; /* as that of kube_run */
	const struct strv *env;     /* K=V, the same names for each member; or NULL */
	const struct json *params;  /* an object for kube_member_params; or NULL */
	bool is_cancelled;          /* from the beginning */
};
enum { KUBE_MEMBERS_EACH = 64 };

/* Ranks with nodes, resources and words of their own; what it lacks is that of kube_run. */
struct kube_role {
	const char *name; /* a DNS label */
	int nodes, gpus;
	int64_t cpu_milli;
	uint64_t memory_bytes;
	const struct strv *command;
	bool shell;
	const struct strv *env;
	const struct strv *variables; /* K=V of dlrun's own; DLRUN_ROLE_RANK is not among them */
};

/* A layer of the code, as a gzipped tar. */
struct kube_code {
	const char *digest; /* "sha256:…" */
	uint64_t size;
	const void *data; /* NULL: not at hand, and then not in the objects */
};
/* So many bytes go in ConfigMaps, and stay there as long as the Job. */
enum { KUBE_CODE_EACH = 900 << 10, KUBE_CODE_OBJECTS = 4 };
#define KUBE_CODE_STORED ((uint64_t)KUBE_CODE_EACH * KUBE_CODE_OBJECTS)

enum kube_security { KUBE_SECURITY_AUTO, KUBE_SECURITY_IMAGE, KUBE_SECURITY_RESTRICTED };

struct kube_run {
	/* Identity */
	const char *run_id, *job; /* job: KUBE_JOB_NAME, a DNS label */
	int attempt;              /* the first that this Job is: from 1 */
	const char *kube_namespace;
	const char *user, *tree, *commit; /* tree: hex of the snapshot's id */
	const char *spec, *record;        /* annotations: JSON text; at most 200 KiB together */
	const struct json *labels, *annotations; /* objects of strings, of the user; or NULL */
	bool may_move;                           /* it has a gate; of a study: not heeded */

	/* A study: run_id and job are its id; nodes is 1, command is not used. */
	const struct kube_member *members;
	size_t n_members; /* 0: it is none */
	int parallel;     /* so many run at once; 0: no limit */
	bool fail_fast;   /* the first that fails ends all */

	/* Roles, in the order of ranks; nodes is their sum, gpus, cpu_milli and memory_bytes the
	 * most that one has. No members. */
	const struct kube_role *roles;
	size_t n_roles;        /* 0: all ranks are alike */
	const char *ends_with; /* once this role has ended, the run has; NULL: all have to */

	/* The program. image_ref: by digest; NULL while it is not known (then only
	 * kube_objects_before is of use). */
	const char *image_ref;
	struct strv
		image_entrypoint;  /* of its config, or of the user's `entrypoint: none`: empty */
	bool drop_entrypoint;      /* the image has one, and it is not wanted */
	struct strv image_env;     /* K=V of its config: defaults do not replace these */
	const char *image_user;    /* "", "1000", "1000:1000", "nobody"; NULL: root */
	bool has_no_shell;         /* known: made from scratch */
	bool has_shell;            /* known, too */
	bool lacks_shell;          /* as far as can be told */
	const char *image_program; /* Cmd's first word; or NULL */
	/* The image is the base alone, and the layers of the code, lowest first, go beside it. They
	 * are not known yet when n_code is 0. */
	bool code_apart;
	const struct kube_code *code;
	size_t n_code;
	const char *workdir; /* of the tree, absolute */
	const char *cwd;     /* in the tree: "." or "exp/a" */
	const struct strv *command;
	bool shell;                        /* command is one line */
	bool has_launcher;                 /* command is that of /bin/sh and a launcher's line */
	const struct strv *env, *defaults; /* K=V */
	const struct strv *secret_env;     /* K=V: values go to the Secret only */
	const char *before;                /* lines for bash (else sh) in front of the program */
	const char *setup, *setup_cwd;     /* a line for sh, in the tree */
	bool is_baked;                     /* the image has KUBE_BAKED: setup is not run */
	const uint16_t *ports;
	size_t n_ports;

	/* How much */
	int nodes, gpus;                                /* nodes: from 1; gpus: of each */
	const char *gpu_resource;                       /* NULL: nvidia.com/gpu */
	const struct json *node_selector, *tolerations; /* of the GPU type; or NULL */
	bool is_warming;               /* each pod is on a node of its own, and gets no GPUs */
	const struct strv *only_nodes; /* with is_warming: one of these; or NULL, or none: any */
	/* Of several GPU types, any of which will do, the first rather: [{node_selector,
	 * tolerations}, …]; or NULL. */
	const struct json *gpu_choices;
	/* Where the nodes are and what they are: values of labels, any of which will do, with
	 * commas between them; NULL: any. */
	const char *region, *instance_type;
	const char *same; /* a label of nodes, whose value those of all ranks share; or NULL */
	/* Nodes that may be taken back at any time: only such, or none. */
	bool is_spot, is_not_spot;
	int64_t cpu_milli;
	uint64_t memory_bytes, disk_bytes, shm_bytes; /* shm 0: no limit but the memory's */

	/* How long */
	int64_t timeout_ms, grace_ms;
	const char *signal; /* "USR1": sent so long before the limit, or before TERM; NULL: none */
	int64_t signal_before_ms;
	const char *stop_signal; /* "INT": what TERM becomes for the program; NULL: TERM */
	int retries;
	int64_t ttl_ms; /* after its end; 0: 7 days */

	/* Where */
	const char *queue;          /* Kueue LocalQueue */
	const char *queue_priority; /* Kueue WorkloadPriorityClass */
	const char *priority_class;
	const char *service_account; /* NULL: the namespace's, without its token */
	const char *pull_secret;
	const char *os, *arch; /* of the image, in OCI's words */
	bool jobset;           /* make it a JobSet (kube_wants_jobset, and the cluster has it) */
	enum kube_security security;
	const char *enforced;       /* Pod Security level of the namespace; NULL: not known */
	const struct json *overlay; /* overlay.h; or NULL */

	/* Storage. What the program leaves in its tree is copied to the results, but for these
	 * patterns (without '/': of a name, else of a path), newest first up to so many bytes. */
	bool collects;
	const struct strv *exclude;
	uint64_t collect_bytes;
	int64_t linger_ms; /* results that end with the pod are kept so long; 0: not */
	bool carries_over; /* the image has KUBE_CARRIED */
	struct kube_place results;
	/* With KUBE_PLACE_EMPTY: "s3://BUCKET/PATH", to which they go from there. */
	const char *results_s3;
	const char *claim_of; /* whose claim it is that is there already; NULL: its own */
	const struct kube_output *outputs;
	size_t n_outputs;
	const struct kube_mount *data, *volumes;
	size_t n_data, n_volumes;
	/* Where objects of data in S3 stay for the next run; NONE: they end with the pod. */
	struct kube_place s3_cache;
	const struct strv
		*sent; /* paths in the tree that the image has in KUBE_DATA_DIR; or NULL */
	bool allow_host_path;
};

/* Owned. What is not needed is NULL. */
struct kube_objects {
	struct json *claim, *service, *config, *secret; /* step 1; config: of a study, or a gate */
	struct json *code[KUBE_CODE_OBJECTS];           /* step 1 */
	struct json *job;                               /* step 2: a Job, or a JobSet */
	bool is_jobset;
	struct strv notes; /* sentences for the user: what is not as it would be locally */
};
void kube_objects_done(struct kube_objects *objects);
#define AUTO_KUBE_OBJECTS AUTO(kube_objects_done)

/* E_KUBE_NAME (a name that is too long or not of the form), E_KUBE_HOST_PATH, E_KUBE_OVERLAY,
 * E_KUBE_SHELL (something needs a shell and has_no_shell), E_TARGET_UNSUPPORTED (signals that
 * cannot be told apart), E_KUBE_STORAGE (a path or place that a pod cannot have), E_DATA_LIMIT
 * (annotations, values of a Secret over 1 MiB, words of members over 900 KiB). */
int kube_job_make(const struct kube_run *run, struct kube_objects *ret, struct err *err);

/* Whether the code goes in objects; else the init container waits until it was sent. */
bool kube_code_fits(const struct kube_run *run);

/* The objects of step 1 and of step 3, in their order. Borrowed from objects. */
enum { KUBE_OBJECTS_MAX = 4 + KUBE_CODE_OBJECTS };
size_t kube_objects_before(
	const struct kube_objects *objects, const struct json *ret[static KUBE_OBJECTS_MAX]);
size_t kube_objects_adopt(
	const struct kube_objects *objects, const struct json *ret[static KUBE_OBJECTS_MAX]);
/* The PodSpec of the role at i, of which the first is all of a run without roles, and how many pods
 * run together: of a study one, as its members can do that one after another. NULL: there is none.
 * Borrowed from objects. */
const struct json *kube_objects_pods(const struct kube_run *run, const struct kube_objects *objects,
	size_t i, int64_t *ret_nodes);
/* The path to POST an object to, and its own path from then on. The caller frees. */
char *kube_object_collection(const struct json *object);
char *kube_object_path(const struct json *object);
/* application/merge-patch+json for step 3; job: as the server answered, with its uid. */
struct json *kube_job_owner(const struct json *job);

/* Whether it is better as a JobSet, where the cluster has them. */
bool kube_wants_jobset(int nodes, int retries, bool has_roles);
/* The name by which other ranks find a rank of a role: of run only its names, roles and jobset
 * count. The caller frees. */
char *kube_role_host(const struct kube_run *run, size_t role, int rank);
/* The name of an attempt's Job: the run's id, from the second on "<id>-<n>". The caller frees. */
char *kube_job_name(const char *run_id, int attempt);
#define KUBE_LINGERS KUBE_ATTEMPT_DIR "/linger" /* there once KUBE_KEEPER waits for that */
/* Script for sh in the container KUBE_KEEPER: end its wait; fails where it has not begun. */
#define KUBE_RELEASE                                                                               \
	"i=0; until [ -e " KUBE_LINGERS " ]; do [ $((i += 1)) -le 200 ] || exit 1; "               \
	"sleep 0.1; done; read -r p <" KUBE_LINGERS "; kill \"$p\""
/* A file, made before the pod is removed: what the program leaves will be taken then. */
#define KUBE_ANNOUNCED KUBE_ATTEMPT_DIR "/announced"
/* Names of what goes with a Job of that name. The caller frees. */
char *kube_job_secret_name(const char *job);
char *kube_job_claim_name(const char *run_id);
char *kube_job_gate_name(const char *job);
char *kube_job_code_name(const char *job, size_t i);
/* A label's value from any text: other characters become '-', cut to 63; "" when nothing is
 * left. */
char *kube_label_value(const char *text);
/* Set a label to that value, unless it is empty; text may be NULL. */
void kube_set_label(struct json *labels, const char *key, const char *text);

/* Read the ConfigMap of a study for a member: its words, behind those of an ENTRYPOINT, and its
 * variables; E_DATA. */
int kube_member_read(const struct json *config, int index, struct strv *ret_words,
	struct strv *ret_env, struct err *err);
/* Parameters of the member: an object of the caller's; NULL: not known, as where they are too large
 * together. */
struct json *kube_member_params(const struct json *config, int index);
/* The path that subPathExpr of a member's results stands for. The caller frees. */
char *kube_member_path(const char *expression, int index);

/* The words for args, with what Kubernetes would expand written so that it does not. */
char *kube_escaped(const char *text);

#endif
