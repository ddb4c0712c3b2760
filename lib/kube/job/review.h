/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reviews of oneself: who the server takes us for (authentication.k8s.io/v1 SelfSubjectReview), and
 * what we may do (authorization.k8s.io/v1): one deed (SelfSubjectAccessReview), and all in a
 * namespace, as far as authorizers can list it (SelfSubjectRulesReview). Made by POST, changing
 * nothing.
 */
#ifndef DLRUN_KUBE_JOB_REVIEW_H
#define DLRUN_KUBE_JOB_REVIEW_H

#include <stdbool.h>

#include "base/data/json.h"

#define KUBE_WHO_PATH   "/apis/authentication.k8s.io/v1/selfsubjectreviews"
#define KUBE_MAY_PATH   "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
#define KUBE_RULES_PATH "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

/* The body to send. The caller frees. */
struct json *kube_who_ask(void);
/* From the answer (NULL: none); lives as long. NULL: it does not say. */
const char *kube_who_name(const struct json *review);

struct kube_deed {
	const char *kube_namespace; /* NULL: of the whole cluster */
	const char *verb, *group, *resource;
	const char *sub; /* "log"; or NULL */
};
/* The body to send. The caller frees. */
struct json *kube_may_ask(const struct kube_deed *deed);

/* The body to send. The caller frees. */
struct json *kube_rules_ask(const char *kube_namespace);
/* Whether the answer (NULL: none) grants it for objects of any name. false: not, or not said. */
bool kube_rules_grant(const struct json *review, const struct kube_deed *deed);

#endif
