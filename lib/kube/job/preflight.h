/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of a run before it is submitted: requests to the cluster, sent in parallel while the image
 * is pushed, and the meaning of the responses. An engine: no I/O.
 *
 * A response that is denied (403) or missing is not a problem: a note says what is not known.
 * Problems are reported only if the run could never start as things are.
 */
#ifndef DLRUN_KUBE_JOB_PREFLIGHT_H
#define DLRUN_KUBE_JOB_PREFLIGHT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/job/job.h"
#include "kube/status/status.h"

/* A single request. All of them only read, also those with a body (self-subject reviews, dry runs).
 * Lists must be read completely (kube_list). */
struct kube_question {
	char *path;
	struct json *body;        /* POST it; NULL: GET */
	const char *const *query; /* of a list: pairs; or NULL */
	bool is_list;
	bool is_dry_run; /* with body: dryRun=All, fieldValidation=Strict */
	int subject;     /* private to preflight */
	char *name;      /* of what is asked for */
};
struct kube_questions VEC_OF(struct kube_question);
void kube_questions_done(struct kube_questions *questions);
#define AUTO_KUBE_QUESTIONS AUTO(kube_questions_done)

/* run: image_ref and enforced need not be known yet. */
void kube_preflight_query(const struct kube_run *run, struct kube_questions *ret);
/* Only whether it could be a JobSet, where that is wanted. */
void kube_preflight_query_jobset(const struct kube_run *run, struct kube_questions *ret);

/* The reply to the question at the same index. */
struct kube_reply {
	int status;                /* HTTP; 0: none came */
	const struct json *object; /* or NULL */
};

/* Handle the reply to one of the questions: if it asked for all of our rights, add a question for
 * each right that it does not grant, as not every authorizer can list all. */
void kube_preflight_query_rights(const struct kube_run *run, const struct kube_question *answered,
	const struct kube_reply *reply, struct kube_questions *ret);

/* Facts about the cluster from the replies, for kube_run. Strings live as long as the replies. */
struct kube_surroundings {
	const char *enforced; /* Pod Security level; "privileged" where none is; NULL: not known */
	bool jobset;          /* it takes the run as a JobSet */
	bool no_stream;       /* no code can be sent to its pods */
	const char *user;     /* as the cluster knows us; NULL: not known */
	int growth_status;    /* HTTP, of the ConfigMap of its autoscaler; 0: no response */
	const struct json *growth; /* it; NULL: none */
};
void kube_preflight_surroundings(const struct kube_questions *questions,
	const struct kube_reply *replies, struct kube_surroundings *ret);

struct kube_findings {
	struct VEC_OF(struct err) problems; /* E_KUBE_DENIED, E_KUBE_NOT_FOUND, E_KUBE_STORAGE,
					       E_SCHED_…; as the questions stand */
	struct strv notes;
};
void kube_findings_done(struct kube_findings *findings);
#define AUTO_KUBE_FINDINGS AUTO(kube_findings_done)

/* objects: of kube_job_make with that run, to be compared with nodes and quotas; NULL: not yet
 * known. growth: of its autoscaler, for the pods of kube_objects_pods at the same index; NULL:
 * nothing is known. */
void kube_preflight_evaluate(const struct kube_run *run, const struct kube_objects *objects,
	const struct kube_growth *growth, const struct kube_questions *questions,
	const struct kube_reply *replies, struct kube_findings *ret);

/*
 * Reviews of oneself: who the server takes us for (authentication.k8s.io/v1 SelfSubjectReview), and
 * what we may do (authorization.k8s.io/v1): one deed (SelfSubjectAccessReview), and all in a
 * namespace, as far as authorizers can list it (SelfSubjectRulesReview). Made by POST, changing
 * nothing.
 */

#define KUBE_WHO_PATH   "/apis/authentication.k8s.io/v1/selfsubjectreviews"
#define KUBE_MAY_PATH   "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
#define KUBE_RULES_PATH "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

/* The body to send. The caller frees. */
struct json *kube_who_query(void);
/* From the response (NULL: none); lives as long. NULL: it does not say. */
const char *kube_who_name(const struct json *review);

struct kube_deed {
	const char *kube_namespace; /* NULL: of the whole cluster */
	const char *verb, *group, *resource;
	const char *sub; /* "log"; or NULL */
};
/* The body to send. The caller frees. */
struct json *kube_may_query(const struct kube_deed *deed);

/* Whether a server with that response to /version (NULL: none) wants the right to create, besides
 * that to get, for connections to pods by WebSocket, which are GET: pods/exec, pods/portforward. */
bool kube_upgrade_creates(const struct json *version);

/* Whether the response (NULL: none) grants it for objects of any name. false: not, or not said. */
bool kube_rules_grant(const struct json *review, const struct kube_deed *deed);

/* Subjects of questions from here on are rights, of which kube_preflight_query_rights adds at most
 * so many. */
enum { KUBE_RIGHTS_FROM = 1000, KUBE_RIGHTS_MAX = 80 };

#endif
