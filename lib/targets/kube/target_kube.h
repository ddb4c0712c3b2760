/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the Kubernetes target: a namespace of a cluster. A handle is
 * kube:SERVER/NAMESPACE/JOB, kube:SERVER/NAMESPACE/jobset/JOBSET, or of the first attempt of a
 * member of a study kube:SERVER/NAMESPACE/JOB/INDEX, where SERVER is told from the API server's
 * URL, so that a context that leads to another cluster now is not asked about runs that it does not
 * know.
 */
#ifndef DLRUN_TARGETS_KUBE_TARGET_KUBE_H
#define DLRUN_TARGETS_KUBE_TARGET_KUBE_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/target/target_work.h"
#include "kube/api/client.h"
#include "kube/api/kinds.h"
#include "kube/job/job.h"
#include "targets/kube/kube_open.h"

struct kube_batch;
struct kube_portforward;
struct kube_stop;
struct kube_study_logs;
struct kube_saving;

struct target_kube {
	struct target target;
	struct session *session;
	struct kube_cluster *cluster;   /* the session's */
	const char *kube_namespace;     /* the cluster's */
	struct json *definition;        /* of the target in the configuration; or NULL */
	struct kube_batch *batch;       /* states that are asked for together */
	char *user;                     /* as the cluster knows us; NULL: not known */
	char *enforced;                 /* Pod Security level of the namespace; NULL: not known */
	bool takes_jobset;              /* a gang with retries, as it was asked (check, learn) */
	struct kube_portforward *reach; /* port-forwards; NULL: none yet */
	struct kube_stop *stops;        /* members of studies that are cancelled together */
	struct kube_study_logs *study_logs; /* and whose logs are archived together */
	struct kube_saving *savings;        /* logs that are saved while their runs go on */
	bool no_exec;          /* of looks at pods: commands cannot be run beside programs */
	int64_t no_metrics_ms; /* clock_ms(), when the cluster had none; 0: it may have */
};

static inline struct target_kube *target_kube_of(struct target *target)
{
	return (struct target_kube *)target;
}

extern const struct target_ops target_kube_ops;

/* name: how the user calls it; definition (or NULL) is copied. context and kube_namespace count
 * before those of the definition; NULL: those. */
int target_kube_new(struct session *session, const char *name, const struct json *definition,
	const char *context, const char *kube_namespace, struct target **ret, struct err *err);

/* The parts of a handle. */
struct kube_handle {
	char server[KUBE_SERVER_ID_SIZE];
	char kube_namespace[64];
	enum kube_kind kind;
	char name[64]; /* of the object that was made */
	char job[64];  /* that has the pods: the same, or what the JobSet makes */
	char run_id[RUN_ID_SIZE];
	int attempt;
	bool is_member; /* of a study, all of which is one Job */
	int index;      /* its completion index there */
	/* Label run-id of the objects: the run's id, of a member that of the study. */
	char owner[RUN_ID_SIZE];
};
/* E_DATA for one of another form; E_TARGET_OTHER when it is of another cluster. */
int kube_handle_parse(const struct target_kube *kube, const char *handle, struct kube_handle *ret,
	struct err *err);
/* Whether the cluster itself starts its gang anew; of any target's handle. */
bool kube_handle_is_jobset(const char *handle);
/* The caller frees. */
char *kube_handle_text(
	const char *server, const char *kube_namespace, enum kube_kind kind, const char *name);
char *kube_handle_member_text(
	const char *server, const char *kube_namespace, const char *study, int index);
/* The study of a run whose id has the form of a member's; false: it has not. */
bool kube_member_study(const char *run_id, char ret_study[static RUN_ID_SIZE], int *ret_index);
/* Selectors of its Job, of the pods that are its own, and of those of this attempt. The caller
 * frees. */
char *kube_handle_jobs(const struct kube_handle *handle);
char *kube_handle_pods(const struct kube_handle *handle);
char *kube_handle_attempt_pods(const struct kube_handle *handle);
/* The item of a list of the cluster's whose metadata.name is that; NULL: none. */
const struct json *kube_item(const struct json *list, const char *name);
/* Of a file in the directory of the attempt here. The caller frees. */
char *kube_attempt_path(
	const struct target_kube *kube, const struct kube_handle *handle, const char *name);
/* Whether its end was asked for here: survives the Job, which a cancel removes. */
bool kube_is_cancelled(const struct target_kube *kube, const struct kube_handle *handle);
/* Whether it was cancelled, and no start of its program was seen, as its record says: then its pods
 * have not begun or are gone, and the cluster has no log of it and no pod with results. */
bool kube_has_left_nothing(const struct target_kube *kube, const struct kube_handle *handle);

/* Plan of a job of dlrun's in a cluster; what run points to lives as long as the plan and the
 * target_job that it was made of. */
struct kube_plan {
	struct kube_run run;
	const struct spec *spec;
	struct image_facts *facts;
	struct kube_handle handle;
	struct strv image_env, texts, command, env;
	struct json *json; /* what places are read from, annotations */
	struct kube_mount *data, *volumes;
	struct strv sent;
	struct kube_output *outputs;
	struct kube_role *roles;
	struct kube_plan_role *role_words; /* of each */
	size_t n_roles;
	struct kube_member *members;
	struct strv *member_commands, *member_env; /* of each; or NULL */
	struct kube_code *code;
	struct buf *code_data; /* of each that is at hand */
};
/* Of a first member without job->study all members do what that one does. */
int kube_plan_make(const struct target_kube *kube, const struct target_job *job,
	struct kube_plan *ret, struct err *err);
void kube_plan_done(struct kube_plan *plan);
#define AUTO_KUBE_PLAN AUTO(kube_plan_done)

/* target_ops.fetch */
int kube_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err);

/* target_ops.deliver */
int kube_deliver(struct target *target, const struct target_job *job,
	const struct target_delivery_events *events, struct target_call *call, struct err *err);

/* target_ops.adopt */
int kube_adopt(struct target *target, const char *id, struct run_list *ret,
	struct target_call *call, struct err *err);

/* target_ops.check, room, learn, submit, withdraw, state, preview, logs, keep */
int kube_submit(struct target *target, const struct target_job *job, struct target_call *call,
	struct err *err);
int kube_submit_study(struct target *target, const struct target_study *study,
	struct target_call *call, struct err *err);
int kube_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err);
int kube_withdraw(struct target *target, const char *handle, bool *ret_taken,
	struct target_call *call, struct err *err);
int kube_keep(struct target *target, const char *handle, bool follow, struct target_call *call,
	struct err *err);
struct kept_places;
int kube_check(struct target *target, const struct target_job *job, struct strv *ret_notes,
	struct target_call *call, struct err *err);
int kube_room(struct target *target, const struct target_requirements *requirements,
	struct target_room *ret, struct target_call *call, struct err *err);
int kube_learn(struct target *target, const struct target_requirements *requirements,
	struct strv *ret_notes, struct err *err);
int kube_preview(struct target *target, const struct target_job *job, struct json **ret,
	struct strv *ret_notes, struct err *err);
int kube_logs(struct target *target, const char *handle, const struct target_log_request *request,
	char *token, struct target_call *call, struct err *err);

/* target_ops.sample, and what has been kept of it: dlrun/observed/v1, or NULL. */
int kube_sample(struct target *target, const char *handle, struct json **ret,
	struct target_call *call, struct err *err);
struct json *kube_observed(const struct target_kube *kube, const struct kube_handle *handle);
/* Keep it. Errors are ignored: what cannot be saved is still valid. */
void kube_observed_keep(
	const struct target_kube *kube, const struct kube_handle *handle, const struct json *kept);

int kube_exec(struct target *target, const char *handle, const struct target_exec_request *request,
	int *ret_status, struct target_call *call, struct err *err);

/*
 * Local record of a run that the cluster has no object of any more.
 */

/* The Job of an attempt as it would be made now, by its specification and the target's definition.
 * E_RUN_NOT_FOUND without a record here. */
int kube_record_job(const struct target_kube *kube, const struct kube_handle *handle,
	struct json **ret, struct err *err);

#endif
