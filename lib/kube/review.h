/*
 * Reviews of oneself: who the server takes us for (authentication.k8s.io/v1 SelfSubjectReview) and
 * what we may do (authorization.k8s.io/v1 SelfSubjectAccessReview). Made by POST, changing nothing.
 */
#ifndef DLRUN_KUBE_REVIEW_H
#define DLRUN_KUBE_REVIEW_H

#include "base/json.h"

#define KUBE_WHO_PATH "/apis/authentication.k8s.io/v1/selfsubjectreviews"
#define KUBE_MAY_PATH "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

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

#endif
